"""Which loops an `unroll` means: those it names, those its `factors` go to, or those that it chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyschedule.analysis.registers import pressure
from pyschedule.errors import ScheduleError, Unsupported
from pyschedule.ir.nodes import For, Kernel, While
from pyschedule.ir.visitors import walk
from pyschedule.schedule import names as loop_names
from pyschedule.schedule.directives import Unroll
from pyschedule.schedule.log import Record, skipped
from pyschedule.schedule.targets import Target
from pyschedule.transforms import bands, matrix_unit
from pyschedule.transforms.lane_choice import innermost_pieces
from pyschedule.transforms.nest import runners, uncounted
from pyschedule.transforms.registers import register_file


@dataclass(frozen=True, slots=True)
class Request:
    """One loop of the user's to unroll, its innermost piece or the one named: `factor` is `None` for all of it.
    `notes` are lines for the log."""

    source: str
    ordinal: int
    factor: int | None
    piece: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.source if self.piece is None else f"{self.source}.{self.piece}"

    def loops(self, kernel: Kernel) -> list[For]:
        if self.piece is None:
            return innermost_pieces(kernel).get((self.source, self.ordinal), [])
        own = (self.source, self.ordinal, self.piece)
        return [
            stmt
            for stmt in walk(kernel.body)
            if isinstance(stmt, For) and (stmt.source, stmt.ordinal, stmt.piece) == own
        ]


class NothingToWriteOut(Unsupported):
    """A loop that the request cannot mean: its trip count is known at run time only, or it is no loop any more."""


def not_taken(requests: list[Request], directive: Unroll, taken: set[tuple[str, int]]) -> list[Request]:
    """The requests on loops that no directive before has unrolled; an automatic one looks at these alone.

    Raises `ScheduleError` where `factors` mean a loop that is also unrolled by its name.
    """
    free = [request for request in requests if (request.source, request.ordinal) not in taken]
    if directive.factors and len(free) < len(requests):
        name = next(request.source for request in requests if request not in free)
        raise ScheduleError(
            f"unroll: factors={list(directive.factors)} and unroll({name!r}) both unroll loop {name!r}; keep one",
            directive.loc,
        )
    if directive.loop is None:
        requests = free
    taken.update((request.source, request.ordinal) for request in requests)
    return requests


def without_loops(directive: Unroll, count: int) -> Record:
    loops = f"{count or 'no'} loop{'' if count == 1 else 's'}"
    surplus = list(directive.factors[: len(directive.factors) - count])
    summary = (
        f"factors={list(directive.factors)}: {loops} can take them, so that {surplus} have none; a loop that a "
        "reduction runs over is unrolled by its name, as in unroll('k', 4)"
    )
    return skipped("Unroll", summary, directive.loc)


def describe(done: list[tuple[str, int]]) -> str:
    unique = list(dict.fromkeys(done))
    factors = ",".join(str(factor) for _, factor in unique)
    names = ",".join(f"'{name}'" for name, _ in unique)
    return f"factors=[{factors}] on loops {names}"


def refused(directive: Unroll, request: Request, refusal: Unsupported) -> Record:
    return skipped("Unroll", f"loop '{request.name}': {refusal.reason}", directive.loc, refusal.place)


def left_rolled(request: Request, refusal: Unsupported) -> str:
    """The line, under a request that was carried out in another nest, on a loop of the same name."""
    at = "" if refusal.place is None else f" of line {refusal.place.line}"
    return f"the loop '{request.name}'{at} stays rolled: {refusal.reason.partition(';')[0]}"


def refusals_of_names(kernel: Kernel, directive: Unroll) -> list[Record]:
    """A name that means no counted loop any more: a `while`, or a piece of a loop that was not tiled."""
    spec = None if directive.loop is None else loop_names.parse(directive.loop)
    if spec is None:
        return []
    if matrix_unit.takes(kernel, directive.loop, innermost_pieces(kernel)):
        text = f"loop '{directive.loop}' is the matrix unit's: there is nothing to unroll"
        return [Record("Unroll", "Note", text, (), directive.loc, silent=True)]
    loops = [stmt for stmt in walk(kernel.body) if isinstance(stmt, (For, While))]
    if any(isinstance(loop, For) and spec.matches(loop) for loop in loops):
        return []
    for loop in loops:
        if isinstance(loop, While) and spec.names(loop.source, loop.ordinal):
            return [skipped("Unroll", uncounted(loop), directive.loc, loop.reason_loc or loop.loc)]
    reason = f"no loop '{directive.loop}' is there to unroll (was its tiling skipped?)"
    return [skipped("Unroll", reason, directive.loc)]


def requests_of(kernel: Kernel, source: Kernel, directive: Unroll, target: Target) -> list[Request]:
    """Which loops a directive means, in source order; what a reduction runs over is told by the source."""
    pieces = innermost_pieces(kernel)
    if directive.loop is not None:
        spec = loop_names.parse(directive.loop)
        return [
            request
            for source, ordinal in pieces
            if spec is not None and spec.names(source, ordinal)
            if (request := Request(source, ordinal, directive.factor, spec.piece)).loops(kernel)
        ]
    if directive.factors:
        outputs = output_loops(source)
        count = min(len(directive.factors), len(outputs))
        if not count:
            return []
        chosen = list(zip(outputs[len(outputs) - count :], directive.factors[-count:], strict=True))
        return [Request(source, ordinal, factor) for (source, ordinal), factor in chosen]
    choices = ((key, _automatic(loops, target, kernel.strict_math)) for key, loops in pieces.items())
    return [Request(*key, choice.factor, notes=(choice.why,)) for key, choice in choices if choice.factor > 1]


def output_loops(kernel: Kernel) -> list[tuple[str, int]]:
    """The loops that no reduction runs over, in source order, of the deepest nest."""
    pieces = innermost_pieces(kernel)
    result: dict[tuple[str, int], None] = {}
    for key, loops in pieces.items():
        if not any(bands.is_reduction_loop(loop) for loop in loops):
            result[key] = None
    return list(result)


# ------------------------------------------------------------------------------------------- automatic factors

#: The share of a target's registers that copies may take, the largest factor, and the most statements in copies.
_SHARE = 0.8
_LARGEST = 8
_MOST_STATEMENTS = 64


@dataclass(frozen=True, slots=True)
class _Choice:
    factor: int
    why: str


def _automatic(loops: Sequence[For], target: Target, strict_math: bool) -> _Choice:
    """The largest power of two up to 8 whose copies stay under 0.8 of the registers; 1 for a loop with loops in
    it, that may be left or stays rolled, or with more statements than pay."""
    label = loops[0].label
    for loop in loops:
        if loop.unroll == 1:
            return _Choice(1, f"loop '{label}': it stays rolled")
        if any(isinstance(stmt, (For, While)) for stmt in walk(loop.body)):
            return _Choice(1, f"loop '{label}': there are loops in it")
        if bands.early_exit(loop.body) is not None:
            return _Choice(1, f"loop '{label}': it may be left early")
        if loop.mapping != "serial":
            return _Choice(1, f"loop '{label}': its iterations run on {runners(loop)}")
    file = register_file(target, strict_math=strict_math)
    need = max(max(1, pressure(loop.body, file)) for loop in loops)
    statements = max(sum(1 for _ in walk(loop.body)) for loop in loops)
    limit = int(_SHARE * target.vector_registers)
    factor = 1
    while factor < _LARGEST and 2 * factor * need <= limit and 2 * factor * statements <= _MOST_STATEMENTS:
        factor *= 2
    return _Choice(
        factor,
        f"loop '{label}': factor {factor}; a copy needs about {need} of {target.vector_registers} registers (limit "
        f"{limit} in all), statements: {statements} (limit {_MOST_STATEMENTS} in all)",
    )


def why_not(kernel: Kernel, target: Target) -> list[str]:
    """For each loop, why an automatic request leaves it alone."""
    return [_automatic(loops, target, kernel.strict_math).why for loops in innermost_pieces(kernel).values()]
