"""The question that every transform asks: does this nest still mean what its source means?

    Dependences(source).conflict(new, reorder_reductions=True, vector={"j_2": 16})

is `None`, or the first `Conflict` found, with the two iterations that stand in the way.  The answer is exact
for what `polyhedral` models; what it does not, and what would take too long, is a conflict of kind
`"unsupported"`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import islpy as isl

from pyschedule.analysis.concurrency import Concurrent
from pyschedule.analysis.conflicts import Conflict, uncovered, unsupported
from pyschedule.analysis.dataflow import Comparison, Dataflow, Freedom, commute, kind_of, last_before
from pyschedule.analysis.footprints import Access
from pyschedule.analysis.polyhedral import Model, Occurrence, model
from pyschedule.analysis.quasiaffine import Parameters
from pyschedule.analysis.reductions import turned_around
from pyschedule.errors import InternalError, Unsupported
from pyschedule.ir.nodes import Kernel, Location
from pyschedule.ir.printer import format_expr
from pyschedule.ir.visitors import loops, walk

#: Operations of isl after which a question counts as too complex: about two seconds.
_EFFORT = 2_000_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Edge:
    """Statement `target` depends on statement `source` (their numbers in the source kernel) through `array`,
    an array or a scalar.

    `kind`: `"flow"`, `"anti"` or `"output"`.  `distance`: for every loop around both, outermost first, how
    many counter values later the target runs, or `"*"` where that varies.  `reduction`: both are steps of one
    reduction, which may change places.
    """

    source: int
    target: int
    array: str
    kind: str
    distance: tuple[int | str, ...]
    reduction: bool


class Dependences:
    """The dependences of one source kernel.  All facts are computed when first asked for, and kept."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._context = isl.Context()
        self._context.set_max_operations(_EFFORT)
        self._parameters = Parameters()

    @cached_property
    def model(self) -> Model:
        """Raises `Unsupported`."""
        return model(self.kernel, self._parameters, self._context)

    @cached_property
    def _dataflow(self) -> Dataflow:
        return Dataflow(self.model)

    def unsupported(self) -> Conflict | None:
        """Why this kernel cannot be analysed, if it cannot."""

        def look() -> None:
            _ = self._dataflow

        return self._answer(look)

    def conflict(
        self,
        new: Kernel,
        *,
        reorder_reductions: bool,
        parallel: Collection[str] = (),
        vector: Mapping[str, int] | None = None,
        expanded: Collection[str] = (),
        own: Collection[str] = (),
    ) -> Conflict | None:
        """Why `new` does not compute what the source computes; `None`: it does.

        `reorder_reductions`: steps of float reductions may change places (others always may).
        `parallel`: counters of loops of `new` whose iterations run at once, on threads.
        `vector`: counters of loops that run in chunks of so many lanes.
        `expanded`: scalars and arrays (by their source names) of which every iteration has its own copy; that
        a copy is written before it is read is for the transform to see to.
        `own`: scalars that the iterations of all loops that move or run at once set before they read them, as their
        text alone shows; nothing is asked of them.
        Loops that are not in `new`, or hold no statement of the source, are in nobody's way.
        """
        free: Freedom = "all" if reorder_reductions else "exact"

        def checks() -> Iterator[Conflict | None]:
            lanes = vector or {}
            yield _nested_lanes(new, lanes)
            nest = model(new, self._parameters, self._context)
            yield self._coverage(nest)
            comparison = Comparison(self._dataflow, nest, free)
            for name in self._dataflow.accesses:
                if name in own:
                    continue
                yield comparison.conflict(name, name in expanded)
            for loop in parallel:
                yield Concurrent(self._dataflow, nest, loop, None, "none").conflict(expanded, own)
            for loop, width in lanes.items():
                yield Concurrent(self._dataflow, nest, loop, width, free).conflict(expanded, own)

        found = self._answer(lambda: next((found for found in checks() if found is not None), None))
        return None if found is None else replace(found, remedy=self._remedy(found.name))

    def _remedy(self, name: str) -> str:
        """What to write instead of the steps on a scalar or array that are almost those of a reduction."""
        for found in map(turned_around, walk(self.kernel.body)):
            if found is not None and found[0] == name:
                given, instead = map(format_expr, found[1:])
                return f"`{given}` forgets a NaN in the next step, and is no reduction; `{instead}` is one"
        return ""

    def carried(self, loop: str) -> Conflict | None:
        """What keeps the iterations of a source loop (by its counter) from running in any order, at once.

        Steps of reductions do not; scalars and arrays declared inside are private to an iteration.
        """

        def decide() -> Conflict | None:
            if all(loop != one.var for one in loops(self.kernel.body)):
                return unsupported(f"there is no loop '{loop}'", self.kernel.loc)
            return Concurrent(self._dataflow, self.model, loop, None, "all").conflict()

        return self._answer(decide)

    def edges(self) -> list[Edge]:
        """The direct dependences between statements: each read or write upon the last access before it.

        Raises `Unsupported`.
        """
        self._context.reset_operations()
        found: dict[Edge, None] = {}
        try:
            for name in self._dataflow.accesses:
                for (first, second), relation in last_before(self._dataflow, name).items():
                    edge = _edge(first, second, relation)
                    if edge is not None:
                        found[edge] = None
        except isl.Error as error:
            if not self._exhausted():
                raise InternalError(f"isl failed on kernel '{self.kernel.name}': {error}") from error
            raise Unsupported("the dependences are too complex to list", self.kernel.loc) from error
        return list(found)

    # -------------------------------------------------------------------------------------------- checks

    def _answer(self, decide: Callable[[], Conflict | None]) -> Conflict | None:
        self._context.reset_operations()
        try:
            return decide()
        except Unsupported as error:
            return unsupported(error.reason, _location(error))
        except isl.Error as error:
            if not self._exhausted():
                raise InternalError(f"isl failed on kernel '{self.kernel.name}': {error}") from error
            return unsupported("the dependences are too complex to decide", self.kernel.loc)

    def _exhausted(self) -> bool:
        """Whether the limit of operations is reached: then the least of them fails."""
        try:
            isl.Set("{ [] }", self._context)
        except isl.Error:
            return True
        return False

    def _coverage(self, nest: Model) -> Conflict | None:
        """Every instance of the source runs in the new nest, once, and no other does."""
        known = {item.statement: item for item in self.model.occurrences}
        for number in nest.statements() - known.keys():
            node = nest.of(number)[0].node
            return unsupported("this statement is not one of the source's", node.loc)
        clashes = self._dataflow.accesses.keys() & nest.temporaries
        if clashes:
            name = min(clashes)
            return unsupported(f"'{name}' is assigned by a statement that is not the source's", self.kernel.loc)
        for number, item in known.items():
            copies = nest.of(number)
            every = self.model.schedule(number).domain()
            if not copies:
                if every.is_empty():
                    continue
                return uncovered(item, every, "would not run")
            if any(len(copy.guards) != len(item.guards) for copy in copies):
                return unsupported("the conditions around this statement changed", item.node.loc)
            runs = nest.schedule(number)
            missing = every.subtract(runs.domain())
            if not missing.is_empty():
                return uncovered(item, missing, "would not run")
            extra = runs.domain().subtract(every)
            if not extra.is_empty():
                return uncovered(item, extra, "does not run in the source, and would")
            if not runs.is_single_valued():
                return uncovered(item, _repeated(runs), "would run more than once")
        return None


def _nested_lanes(kernel: Kernel, vector: Mapping[str, int]) -> Conflict | None:
    for loop in loops(kernel.body):
        if loop.var in vector and any(inner.var in vector for inner in loops(loop.body)):
            return unsupported(f"loop '{loop.var}' has lanes inside its lanes", loop.loc)
    return None


def _repeated(runs: isl.Map) -> isl.Set:
    """Instances with more than one time."""
    times = runs.reverse().apply_range(runs)  # time -> time of one instance
    apart = times.subtract(isl.Map.identity(times.get_space()))
    return runs.intersect_range(apart.domain()).domain()


def _edge(first: Access, second: Access, relation: isl.Map) -> Edge | None:
    a, b = first.occurrence, second.occurrence
    if a is None or b is None:
        return None
    shared = _shared_loops(a, b)
    distance: list[int | str] = []
    for place in range(shared):
        steps = relation.project_out(isl.dim_type.in_, place + 1, relation.dim(isl.dim_type.in_) - place - 1)
        steps = steps.project_out(isl.dim_type.out, place + 1, steps.dim(isl.dim_type.out) - place - 1)
        steps = steps.project_out(isl.dim_type.in_, 0, place).project_out(isl.dim_type.out, 0, place)
        steps = steps.reset_tuple_id(isl.dim_type.in_).reset_tuple_id(isl.dim_type.out)
        fixed = steps.deltas().plain_get_val_if_fixed(isl.dim_type.set, 0)
        distance.append("*" if fixed.is_nan() else fixed.to_python())
    reduction = first.update is not None and second.update is not None and commute(first, second)
    return Edge(a.statement, b.statement, first.name, kind_of(first, second), tuple(distance), reduction)


def _shared_loops(a: Occurrence, b: Occurrence) -> int:
    count = 0
    for one, other in zip(a.loops, b.loops, strict=False):
        if one.counter != other.counter:
            break
        count += 1
    return count


def _location(error: Unsupported) -> Location | None:
    return error.place if isinstance(error.place, Location) else None
