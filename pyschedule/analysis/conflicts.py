"""What stands in the way of a transform, told with the two iterations that conflict."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import islpy as isl

from pyschedule.analysis.footprints import Access
from pyschedule.analysis.polyhedral import Occurrence
from pyschedule.ir.nodes import Assign, Call, Expr, Location, Return, Store
from pyschedule.ir.printer import format_expr


@dataclass(frozen=True, slots=True)
class Instance:
    """One run of a statement: `counters` are the source's loops, outermost first, and their values."""

    loc: Location | None
    counters: tuple[tuple[str, int], ...]
    text: str

    def __str__(self) -> str:
        return "(" + ", ".join(f"{name}={value}" for name, value in self.counters) + ")"


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a nest does not mean what its source does.

    `kind`: `"flow"` (a value would not reach its reader), `"anti"` (a reader would see a later value),
    `"output"` (another value would remain), `"coverage"` (an iteration would run twice, or never) or
    `"unsupported"` (not analysed: `reason` says what).  `source` and `sink` are two runs in the source's order;
    both are `None` where no pair can be named.  `remedy`: what to write instead, where that is known.
    """

    kind: str
    name: str
    source: Instance | None
    sink: Instance | None
    reason: str
    loc: Location | None = None
    remedy: str = ""

    def __str__(self) -> str:
        place = self.source.loc if self.source is not None else self.loc
        text = self.reason if self.source is None or self.sink is None else self._pair()
        text = text if place is None else f"{text}: {place}"
        return f"{text}; {self.remedy}" if self.remedy else text

    def _pair(self) -> str:
        source, sink = self.source, self.sink
        if source is None or sink is None:
            return self.reason
        if self.kind == "coverage":
            return f"{source.text} {self.reason} at {source}"
        first, second = {
            "flow": ("written", "read"),
            "anti": ("read", "written"),
            "output": ("written", "written"),
        }[self.kind]
        then = "after the kernel" if sink.text == "" else f"at {sink}" if sink.counters else "outside of the loops"
        start = f"at {source}" if source.counters else "outside of the loops"
        if sink.counters == source.counters and sink.loc is not None and sink.loc != source.loc:
            then += f" on line {sink.loc.line}"  # what happens within one iteration is told apart by its line
        if not source.counters and not sink.counters:
            then = f"on line {sink.loc.line}" if sink.loc is not None else "later"
            return f"{source.text} is {first} here and {second} {then}"
        where = "" if sink.text in ("", source.text) else f" as {sink.text}"
        again = "again " if first == second else ""
        return f"{source.text} is {first} {start} and {second} {again}{then}{where}"


def unsupported(reason: str, loc: Location | None = None) -> Conflict:
    return Conflict("unsupported", "", None, None, reason, loc)


def pair(kind: str, source: Access, sink: Access, relation: isl.Map, reason: str) -> Conflict:
    """A conflict with a small example from a non-empty relation between the instances of two accesses."""
    point = sample(relation.wrap())
    count = relation.dim(isl.dim_type.in_)
    return Conflict(
        kind,
        source.name,
        _instance(source, point[: count - source.spare]),
        _instance(sink, point[count : len(point) - sink.spare]),
        reason,
    )


def uncovered(occurrence: Occurrence, instances: isl.Set, reason: str) -> Conflict:
    node = occurrence.node
    name = node.target if isinstance(node, Assign) else node.array if isinstance(node, Store) else "return"
    point = Instance(node.loc, _named(occurrence, sample(instances)), target_text(node))
    return Conflict("coverage", name, point, point, reason)


def target_text(node: Assign | Store | Return) -> str:
    if isinstance(node, Assign):
        return node.target
    if isinstance(node, Return):
        return "return"
    return f"{node.array}[{_indices(node.indices)}]"


def _indices(indices: Sequence[Expr]) -> str:
    """As the user wrote them: without the check of an index that data decide."""
    plain = (
        index.args[0] if isinstance(index, Call) and index.function == "checked_index" else index
        for index in indices
    )
    return ", ".join(map(format_expr, plain))


def _instance(access: Access, values: Sequence[int]) -> Instance:
    if access.occurrence is None:
        return Instance(access.loc, (), "")
    text = f"{access.name}[{_indices(access.indices)}]" if access.indices else access.name
    return Instance(access.loc, _named(access.occurrence, values), text)


def _named(occurrence: Occurrence, values: Sequence[int]) -> tuple[tuple[str, int], ...]:
    names = (loop.node.source or loop.node.var for loop in occurrence.loops)
    return tuple(zip(names, values, strict=True))


def sample(points: isl.Set) -> list[int]:
    """A point of a non-empty set, for small parameters, and the first there in lexicographic order."""
    params = points.dim(isl.dim_type.param)
    for small in _restrictions(points, params):
        if small.is_empty():
            continue
        closed = small.move_dims(isl.dim_type.set, 0, isl.dim_type.param, 0, params)
        try:
            point = closed.lexmin().sample_point()
        except isl.Error:  # not bounded below
            point = closed.sample_point()
        if point.is_void():  # nor here, as isl says it of coordinates that nothing bounds
            point = closed.sample_point()
        places = range(params, closed.dim(isl.dim_type.set))
        return [point.get_coordinate_val(isl.dim_type.set, place).to_python() for place in places]
    raise ValueError("an empty set has no point")


def _restrictions(points: isl.Set, params: int) -> Iterator[isl.Set]:
    flat = points.flatten()
    for lower, upper in ((0, 4), (0, 16), (-256, 256), (-65536, 65536)):
        small = flat
        for place in range(params):
            small = small.lower_bound_val(isl.dim_type.param, place, lower)
            small = small.upper_bound_val(isl.dim_type.param, place, upper)
        yield small
    yield flat
