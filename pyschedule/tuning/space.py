"""The schedules that a search chooses from: a kernel's own tiling with other sizes.

Each size may be halved or doubled, twice over; those of a vectorized loop stay multiples of its lanes.  The
number of levels, the order of the pieces, staging and everything else stay as the kernel has them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pyschedule.errors import Unsupported
from pyschedule.ir import visitors
from pyschedule.ir.nodes import For, Kernel, Store
from pyschedule.ir.types import element_of
from pyschedule.runtime import binding, hostcode
from pyschedule.runtime.lowering import Lowering
from pyschedule.schedule.directives import Directive, Schedule, Tile, Vectorize
from pyschedule.schedule.names import LoopSpec, parse

Sizes = tuple[tuple[str, tuple[int, ...]], ...]
#: For each loop, for each level: the sizes it may have, rising.
Ladders = tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """`sizes`: loop name → sizes, outermost first, as `tile` takes them."""

    sizes: Sizes

    def describe(self) -> str:
        """As a decorator has it: `i=(64, 8), k=256`."""
        return ", ".join(f"{name}={sizes[0] if len(sizes) == 1 else sizes}" for name, sizes in self.sizes)


@dataclass(frozen=True, slots=True)
class Accumulators:
    """An array whose elements are accumulated: how many bytes one takes, and which loops (as named in
    `Candidate.sizes`) run over them."""

    element_bytes: int
    loops: frozenset[str]

    def bytes_of(self, candidate: Candidate) -> int:
        return self.element_bytes * math.prod(sizes[-1] for name, sizes in candidate.sizes if name in self.loops)


@dataclass(frozen=True, slots=True)
class Space:
    """The candidates around `original`, which is always one of them."""

    original: Candidate
    ladders: Ladders
    accumulators: tuple[Accumulators, ...] = ()
    register_bytes: int = 0

    def __contains__(self, candidate: Candidate) -> bool:
        """Whether sizes do not grow inwards, and the innermost tile of accumulators fits the registers.

        Where the original's does not fit, it is no register tile, and others need not fit either.
        """
        if candidate == self.original:
            return True
        if any(inner > outer for _, sizes in candidate.sizes for outer, inner in pairwise(sizes)):
            return False
        return all(
            tile.bytes_of(candidate) <= self.register_bytes or tile.bytes_of(self.original) > self.register_bytes
            for tile in self.accumulators
        )

    def __iter__(self) -> Iterator[Candidate]:
        """All candidates, the original first, then by the number of steps from it; always in the same order."""
        seen = {self.original}
        waiting = deque([self.original])
        while waiting:
            candidate = waiting.popleft()
            if candidate in self:
                yield candidate
            for other in self._steps(candidate):
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)

    def neighbours(self, candidate: Candidate) -> tuple[Candidate, ...]:
        """The candidates that differ in one size, by one step."""
        return tuple(other for other in self._steps(candidate) if other in self)

    def _steps(self, candidate: Candidate) -> Iterator[Candidate]:
        for place, ((name, sizes), ladder) in enumerate(zip(candidate.sizes, self.ladders, strict=True)):
            for level, values in enumerate(ladder):
                index = values.index(sizes[level])
                for size in (*values[:index][-1:], *values[index + 1 :][:1]):
                    changed = (name, (*sizes[:level], size, *sizes[level + 1 :]))
                    yield Candidate((*candidate.sizes[:place], changed, *candidate.sizes[place + 1 :]))


def space_of(lowering: Lowering, arguments: tuple[Any, ...]) -> Space:
    """The candidates for a kernel that was lowered for these arguments (all of them, defaults included).

    `ValueError` where the schedule for the lowering's target tiles no loop.
    """
    kernel, target = lowering.stages["source"], lowering.target
    schedule = lowering.definition.schedule.for_target(target.kind)
    sizes = tuple(item for tile in schedule.of(Tile) for item in tile.sizes)
    if not sizes:
        raise ValueError(
            f"tune: {kernel.name!r} tiles no loop for the target {target.kind!r}, so there is no size to vary; "
            f"add the decorator tile, as in @tile(i=64)"
        )
    named = dict(zip((p.name for p in kernel.params if p.name not in kernel.outputs), arguments, strict=True))
    ladders = []
    for name, levels in sizes:
        lanes = _lanes(name, schedule, lowering)
        extent = _extent(name, kernel, named)
        last = len(levels) - 1
        ladders.append(tuple(_ladder(size, lanes, extent, place == last) for place, size in enumerate(levels)))
    return Space(Candidate(sizes), tuple(ladders), _accumulators(kernel, sizes), target.register_bytes)


def with_sizes(schedule: Schedule, kind: str, candidate: Candidate) -> tuple[Directive, ...]:
    """The directives with a candidate's sizes in those that hold for this kind of target."""
    sizes = dict(candidate.sizes)
    return tuple(
        replace(item, sizes=tuple((name, sizes[name]) for name, _ in item.sizes))
        if isinstance(item, Tile) and item.target in (None, kind)
        else item
        for item in schedule.directives
    )


# ------------------------------------------------------------------------------------------------- helpers


def _ladder(size: int, lanes: int, extent: int | None, innermost: bool) -> tuple[int, ...]:
    """The sizes to try in place of one.  Of those that cover the whole loop, which all mean the same, one."""
    wanted = [size // 4, size // 2, 2 * size, 4 * size]
    if innermost and lanes > 1:
        wanted += [size - lanes, size + lanes]
    values = {size} | {value // lanes * lanes for value in wanted if value >= lanes}
    if extent is not None:
        covering = size if size >= extent else min((value for value in values if value >= extent), default=size)
        values = {value for value in values if value < extent} | {size, covering}
    return tuple(sorted(values))


def _spec(name: str) -> LoopSpec:
    spec = parse(name)
    if spec is None:
        raise TypeError(f"{name!r} was checked to be a loop's name")
    return spec


def _lanes(name: str, schedule: Schedule, lowering: Lowering) -> int:
    """How many lanes the schedule maps this loop to; 1 where it does not say."""
    spec = _spec(name)
    for item in schedule.of(Vectorize):
        if item.loop is not None and _spec(item.loop).source == spec.source:
            arrays = lowering.stages["source"].array_params
            widest = max((element_of(array.dtype).bytes for array in arrays), default=4)
            return item.width or lowering.target.lanes(widest)
    return 1


def _extent(name: str, kernel: Kernel, named: Mapping[str, Any]) -> int | None:
    """The largest trip count of the loops of this name; `None` where it depends on more than the arguments."""
    spec = _spec(name)
    counts = []
    for loop in visitors.loops(kernel.body):
        if spec.names(loop.source, loop.ordinal):
            try:
                bounds = [
                    int(binding.evaluate(hostcode.python_source(bound), dict(named)))
                    for bound in (loop.start, loop.stop, loop.step)
                ]
            except (Unsupported, NameError, ArithmeticError, ValueError):  # such as the counter of another loop
                return None
            counts.append(len(range(*bounds)))
    return max(counts, default=None)


def _accumulators(kernel: Kernel, sizes: Sizes) -> tuple[Accumulators, ...]:
    """The arrays that a nest writes while another loop of the nest, a reduction, runs."""
    found: dict[Accumulators, None] = {}
    declared = visitors.arrays(kernel)
    for stmt, around in visitors.walk_with_loops(kernel.body):
        if not isinstance(stmt, Store) or not around or not isinstance(around[0], For):
            continue
        used = {name for index in stmt.indices for name in visitors.variables(index)}
        nest = list(visitors.loops((around[0],)))
        if all(loop.var in used for loop in nest):
            continue
        over = frozenset(
            name
            for name, _ in sizes
            if any(loop.var in used and _spec(name).names(loop.source, loop.ordinal) for loop in nest)
        )
        element = element_of(declared[stmt.array].dtype)
        found[Accumulators(4 if element.is_half else element.bytes, over)] = None  # halves are summed in float32
    return tuple(found)
