"""What the innermost loops take of the vector registers once all transforms have run, and which smaller register
tile would take fewer.

With `@tile(i=15, j=32) @vectorize("j") @unroll("i")` a product of matrices has a loop over `k` of 30 accumulators,
2 vectors of B and one element of A: 33 registers.  A smaller tile's statements are among those of a larger one, so
that each can be judged by the estimate that judges the loop at hand.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyschedule.analysis.registers import RegisterFile, accumulators, pressure
from pyschedule.ir import build
from pyschedule.ir.nodes import Array, For, Kernel, Location, Store
from pyschedule.ir.types import Vector
from pyschedule.ir.visitors import Body, local_arrays, variables, walk, written_arrays
from pyschedule.transforms.nest import innermost_loops
from pyschedule.transforms.registers import accesses_of
from pyschedule.transforms.statement_order import best_order, element_of

#: A loop of the user's: its name, and which of that name.
Loop = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Use:
    """One innermost loop: the registers it needs, how many of them hold what it accumulates, and the register
    arrays that it updates."""

    label: str
    body: Body
    need: int
    held: int
    arrays: tuple[str, ...]
    loc: Location | None = None

    @property
    def is_tile(self) -> bool:
        """Whether its register arrays are registers in machine code too: each index is a constant."""
        return bool(self.arrays) and all(
            build.constant(index) is not None
            for name in self.arrays
            for indices in accesses_of(self.body, name)
            for index in indices
        )


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop that a register array has an axis for: `size` iterations, in `count` registers of `lanes` each."""

    loop: Loop
    size: int
    count: int
    lanes: int

    def size_of(self, count: int) -> int:
        """How many iterations so many registers are."""
        return self.size if count == self.count else count * self.lanes


#: For each register array the loops of its axes.
Axes = dict[str, tuple[Axis, ...]]


def uses(kernel: Kernel, file: RegisterFile) -> list[Use]:
    """The innermost loops, the one of most pressure first."""
    tiles = {name for name, array in local_arrays(kernel.body).items() if array.space == "register"}
    found = []
    for loop in innermost_loops(kernel.body):
        label = loop.label if isinstance(loop, For) else loop.source
        need, held = pressure(loop.body, file, tiles), accumulators(loop.body, file, tiles)
        arrays = tuple(sorted(tiles & written_arrays(loop.body)))
        found.append(Use(label, loop.body, need, held, arrays, loop.loc))
    return sorted(found, key=lambda use: -use.need)


def axes_of(tiled: Kernel, packed: Kernel, names: Sequence[str]) -> Axes:
    """The axes of register arrays, from the kernels before and after lanes; nothing where one is not known."""
    before, after = local_arrays(tiled.body), local_arrays(packed.body)
    found: Axes = {}
    for name in names:
        if name not in after:
            return {}
        # Partial results of a reduction in lanes are an array that was not there before.
        new, body = after[name], tiled.body if name in before else packed.body
        array = before.get(name, new)
        loops = _loops_of(body, array)
        if len(loops) < array.rank:
            return {}
        lanes = new.dtype.lanes if isinstance(new.dtype, Vector) else 1
        found[name] = tuple(
            Axis(loop, size, count, lanes if count < size else 1)
            for loop, size, count in zip(loops, _extents(array), _extents(new), strict=True)
        )
    return found


def _extents(array: Array) -> list[int]:
    return [build.constant(extent) or 1 for extent in array.shape]


def _loops_of(body: Body, array: Array) -> list[Loop]:
    """The user's loop that counts along each axis of a register array, as far as there is one."""
    by_counter = {stmt.var: stmt for stmt in walk(body) if isinstance(stmt, For) and stmt.source}
    result: list[Loop] = []
    for axis in range(array.rank):
        counters = (name for indices in accesses_of(body, array.name) for name in sorted(variables(indices[axis])))
        loop = next((by_counter[name] for name in counters if name in by_counter), None)
        if loop is None:
            break
        result.append((loop.source, loop.ordinal))
    return result


def loops_of(axes: Axes) -> dict[Loop, Axis]:
    return {axis.loop: axis for each in axes.values() for axis in each}


def registers_of(axes: Axes) -> int:
    """How many registers the arrays take."""
    return sum(math.prod(axis.count for axis in each) for each in axes.values())


def nearest(use: Use, axes: Axes, registers: int, file: RegisterFile) -> tuple[dict[Loop, int], int] | None:
    """The largest tile within the present one that so many registers hold, as registers along each loop, and what
    it needs; of several the one nearest in shape.  `None` where a single element needs more."""
    now = loops_of(axes)
    counts = [axis.count for axis in now.values()]

    def farness(choice: tuple[int, ...]) -> tuple[int, float]:
        size = math.prod(axis.size_of(count) for axis, count in zip(now.values(), choice, strict=True))
        return -size, max(most / count for count, most in zip(choice, counts, strict=True))

    for choice in sorted(itertools.product(*(range(1, count + 1) for count in counts)), key=farness):
        chosen = dict(zip(now, choice, strict=True))
        if sum(math.prod(chosen[axis.loop] for axis in each) for each in axes.values()) > registers:
            continue
        body = best_order(_within(use.body, axes, chosen), frozenset(axes), file)
        need = pressure(body, file, axes)
        if need <= registers:
            return chosen, need
    return None


def _within(body: Body, axes: Axes, chosen: Mapping[Loop, int]) -> Body:
    """The statements that a smaller tile has."""

    def inside(stmt: Store) -> bool:
        known = element_of(stmt, frozenset(axes))
        if known is None:
            return True
        name, place = known
        return all(index < chosen[axis.loop] for index, axis in zip(place, axes[name], strict=True))

    return tuple(stmt for stmt in body if not isinstance(stmt, Store) or inside(stmt))
