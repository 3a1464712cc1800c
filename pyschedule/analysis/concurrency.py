"""Whether the iterations of a loop may run at once: on several threads, or as the lanes of vectors.

Threads: two iterations must not touch one location, unless both only read it.  Lanes: a chunk of `width`
iterations runs as one, statement by statement, inner loops in lockstep; every statement reads in all lanes
before it writes in any.  So of two accesses in one chunk the one that came first must still come first, which
makes the distance count: `a[i] = a[i - 4]` runs in 4 lanes and not in 8, `a[i] = a[i + 1]` in any number.

Scalars, and arrays declared inside the loop, are private to an iteration, provided that every value read was
written in the same one.  Steps of a reduction may meet on one location where lanes are combined afterwards:
where the location is the same for all iterations and nothing else touches it meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import product

import islpy as isl

from pyschedule.analysis.conflicts import Conflict, pair, unsupported
from pyschedule.analysis.dataflow import Dataflow, Freedom, Roles, commute, kind_of
from pyschedule.analysis.footprints import Access
from pyschedule.analysis.polyhedral import Model, Occurrence
from pyschedule.analysis.quasiaffine import symbols


@dataclass(frozen=True, slots=True)
class Concurrent:
    """One loop of a nest, by its counter, whose iterations run at once.

    `width`: lanes of a chunk, or `None`: threads take any iterations.  `free`: which reductions may meet.
    """

    source: Dataflow
    nest: Model
    loop: str
    width: int | None
    free: Freedom

    def conflict(self, expanded: Collection[str] = (), own: Collection[str] = ()) -> Conflict | None:
        """The first name that keeps the iterations apart; `own` ones do not, see `Dependences.conflict`."""
        if not any(True for _ in self._occurrences()):
            return None
        found = self._lockstep()
        if found is not None:
            return found
        for name, accesses in self.source.accesses.items():
            inside = {
                access: [item for item in self.nest.of(access.statement) if self._depth(item) is not None]
                for access in accesses
                if access.statement is not None
            }
            inside = {access: items for access, items in inside.items() if items}
            if name in own or not any(access.writes for access in inside):
                continue
            if name in expanded:
                found = self._between_copies(name, inside)
            elif self._private(name):
                found = self._private_conflict(name, inside)
            else:
                found = self._shared_conflict(name, inside)
            if found is not None:
                return found
        return None

    # ------------------------------------------------------------------------------------------- places

    def _occurrences(self) -> Iterator[Occurrence]:
        return (item for item in self.nest.occurrences if self._depth(item) is not None)

    def _depth(self, item: Occurrence) -> int | None:
        return next((place for place, loop in enumerate(item.loops) if loop.node.var == self.loop), None)

    def _component(self) -> int:
        item = next(self._occurrences())
        depth = self._depth(item)
        return self.nest.component(depth if depth is not None else 0)

    def _private(self, name: str) -> bool:
        if name in self.source.arrays:
            return False
        around = self.nest.declared.get(name, self.source.model.declared.get(name))
        if around is None:  # a scalar
            return True
        return any(loop.var == self.loop for loop in around)

    def _lockstep(self) -> Conflict | None:
        """Lanes need inner loops that start together."""
        if self.width is None:
            return None
        for item in self._occurrences():
            depth = self._depth(item) or 0
            lane, around = item.loops[depth].counter, item.loops[depth].node.label
            for inner in item.loops[depth + 1 :]:
                if lane in symbols(inner.start):
                    return unsupported(
                        f"loop '{inner.node.label}' starts elsewhere in every lane of loop '{around}'",
                        inner.node.loc,
                    )
        return None

    # ---------------------------------------------------------------------------------------- relations

    def _times(self, relation: isl.Map, first: Access, a: Occurrence, second: Access, b: Occurrence) -> isl.Map:
        return relation.apply_domain(first.time(self.nest, a)).apply_range(second.time(self.nest, b))

    def _meeting(self, relation: isl.Map, component: int, order: str) -> isl.Map:
        """Of pairs of times those in one run of the loop, the first iteration `<`, `=` or `!=` the second."""
        for place in range(component):
            relation = relation.equate(isl.dim_type.in_, place, isl.dim_type.out, place)
        if order == "=":
            return relation.equate(isl.dim_type.in_, component, isl.dim_type.out, component)
        smaller = relation.order_lt(isl.dim_type.in_, component, isl.dim_type.out, component)
        if order == "<":
            return smaller
        return smaller.union(relation.order_gt(isl.dim_type.in_, component, isl.dim_type.out, component))

    def _same_chunk(self, times: isl.Map, component: int) -> isl.Map:
        if self.width is None:
            return times
        width = self.nest.width
        first = ", ".join(f"i{place}" for place in range(width))
        second = ", ".join(f"o{place}" for place in range(width))
        chunk = isl.Map(
            f"{{ [{first}] -> [{second}] : floor(i{component}/{self.width}) = floor(o{component}/{self.width}) }}",
            self.nest.context,
        )
        return times.intersect(chunk)

    def _not_later(self, times: isl.Map, component: int, strict: bool) -> isl.Map:
        """Pairs whose second member comes first in the order of lanes (`strict`: not at the same point)."""
        inner = self.nest.width - component - 1
        result = times.subtract(times)
        for place in range(component + 1, component + 1 + inner):
            result = result.union(times.order_gt(isl.dim_type.in_, place, isl.dim_type.out, place))
            times = times.equate(isl.dim_type.in_, place, isl.dim_type.out, place)
        return result if strict else result.union(times)

    def _conflicting(self, first: Access, second: Access, times: isl.Map) -> isl.Map:
        """Pairs of times, `first` in an earlier iteration, that the concurrent order does not keep."""
        component = self._component()
        times = self._meeting(times, component, "<")
        if self.width is None or times.is_empty():
            return times
        # Reads come before writes in a statement, so that only a read may share its point with a later write.
        anti = not first.writes and second.writes
        return self._not_later(self._same_chunk(times, component), component, strict=anti)

    def _pair(
        self, times: isl.Map, first: Access, a: Occurrence, second: Access, b: Occurrence, reason: str
    ) -> Conflict:
        instances = times.apply_domain(first.time(self.nest, a).reverse()).apply_range(
            second.time(self.nest, b).reverse()
        )
        return pair(kind_of(first, second), first, second, instances, reason)

    @property
    def _reason(self) -> str:
        return (
            f"iterations of '{self.loop}' would run at once"
            if self.width is None
            else (f"{self.width} iterations of '{self.loop}' would run at once")
        )

    # ------------------------------------------------------------------------------------- shared memory

    def _shared_conflict(self, name: str, inside: Mapping[Access, list[Occurrence]]) -> Conflict | None:
        roles = Roles(inside, self.free)
        for first, second in self._pairs(roles):
            same = self.source.same(first, second)
            for a in inside[first]:
                for b in inside[second]:
                    times = self._times(same, first, a, second, b)
                    if first in roles.updates and second in roles.updates and commute(first, second):
                        times = self._lost_steps(times, first, a, second)
                    else:
                        times = self._conflicting(first, second, times)
                    if not times.is_empty():
                        return self._pair(times, first, a, second, b, self._reason)
        return self._observed(roles, inside)

    def _pairs(self, roles: Roles) -> list[tuple[Access, Access]]:
        everything = (*roles.writes, *roles.updates, *roles.reads)
        return [(a, b) for a in everything for b in everything if a.writes or b.writes]

    def _lost_steps(self, times: isl.Map, first: Access, a: Occurrence, second: Access) -> isl.Map:
        """Steps of a reduction that lanes take at one point on one location that is not the loop's own."""
        component = self._component()
        meeting = self._meeting(times, component, "<")
        if self.width is None or meeting.is_empty() or (first is second and self._invariant(first, a)):
            return meeting.subtract(meeting)
        meeting = self._same_chunk(meeting, component)
        for place in range(component + 1, self.nest.width):
            meeting = meeting.equate(isl.dim_type.in_, place, isl.dim_type.out, place)
        return meeting

    def _invariant(self, access: Access, item: Occurrence) -> bool:
        """Whether the location does not depend on the loop's counter, inner counters being equal."""
        if access.spare:
            return False
        element = access.element.apply_domain(access.time(self.nest, item))
        apart = element.apply_range(element.reverse())
        component = self._component()
        times = self._meeting(self._all_pairs(access, item), component, "!=")
        for place in range(component + 1, self.nest.width):
            times = times.equate(isl.dim_type.in_, place, isl.dim_type.out, place)
        return bool(times.is_subset(apart))

    def _all_pairs(self, access: Access, item: Occurrence) -> isl.Map:
        when = access.time(self.nest, item).range()
        return isl.Map.from_domain_and_range(when, when)

    def _observed(self, roles: Roles, inside: Mapping[Access, list[Occurrence]]) -> Conflict | None:
        """A location that lanes accumulate, touched otherwise while they do."""
        component = self._component()
        for step in roles.updates:
            for a in inside[step]:
                meeting = self._meeting(self._times(self.source.same(step, step), step, a, step, a), component, "<")
                if meeting.is_empty():
                    continue
                accumulated = meeting.domain().union(meeting.range())
                for other in (*roles.writes, *roles.reads):
                    for b in inside[other]:
                        times = self._times(self.source.same(step, other), step, a, other, b)
                        times = times.intersect_domain(accumulated)
                        for place in range(component):
                            times = times.equate(isl.dim_type.in_, place, isl.dim_type.out, place)
                        if not times.is_empty():
                            return self._pair(
                                times, step, a, other, b, f"lanes of '{self.loop}' are combined only after the loop"
                            )
        return None

    def _between_copies(self, name: str, inside: Mapping[Access, list[Occurrence]]) -> Conflict | None:
        """Each iteration has a copy: only values that pass between iterations matter."""
        for (write, reader), relation in self.source.flow(name, self.free).seen.items():
            for a, b in product(inside.get(write, ()), inside.get(reader, ())):
                times = self._conflicting(write, reader, self._times(relation, write, a, reader, b))
                if not times.is_empty():
                    return self._pair(times, write, a, reader, b, self._reason)
        roles = Roles(inside, self.free)
        for step in roles.updates:
            for other in (*roles.updates, *roles.reads):
                relation = self.source.sharing(self.free, step, other)
                for a, b in product(inside[step], inside[other]):
                    times = self._times(relation, step, a, other, b)
                    if other in roles.updates and commute(step, other):
                        times = self._lost_steps(times, step, a, other)
                    else:
                        times = self._meeting(times, self._component(), "!=")
                    if not times.is_empty():
                        return self._pair(times, step, a, other, b, self._reason)
        return None

    # ------------------------------------------------------------------------------------ private memory

    def _private_conflict(self, name: str, inside: Mapping[Access, list[Occurrence]]) -> Conflict | None:
        flow = self.source.flow(name, self.free)
        carried: dict[Access, None] = {}
        brought: Conflict | None = None
        for (write, reader), relation in flow.seen.items():
            for a in self._everywhere(write):
                for b in self._everywhere(reader):
                    into, out_of = b in inside.get(reader, ()), a in inside.get(write, ())
                    if not into and not out_of:
                        continue
                    times = self._times(relation, write, a, reader, b)
                    if into and out_of:
                        times = self._between_iterations(times)
                    if times.is_empty():
                        continue
                    if out_of:
                        return self._pair(times, write, a, reader, b, self._reason)
                    if reader.writes:
                        carried[reader] = None
                    elif self.width is None:
                        brought = brought or self._from_before(reader, relation.range(), inside)
        for reader, instances in flow.initial.items():
            if reader not in inside:
                continue
            if reader.writes:
                carried[reader] = None
            elif self.width is None and name in self.source.params:
                brought = brought or self._from_before(reader, instances, inside)
        return brought or self._observed_steps(list(carried), inside)

    def _everywhere(self, access: Access) -> tuple[Occurrence, ...]:
        return () if access.statement is None else self.nest.of(access.statement)

    def _between_iterations(self, times: isl.Map) -> isl.Map:
        """Pairs of times that are not in one iteration of one run of the loop."""
        result = times.subtract(times)
        for place in range(self._component() + 1):
            result = result.union(times.order_lt(isl.dim_type.in_, place, isl.dim_type.out, place))
            result = result.union(times.order_gt(isl.dim_type.in_, place, isl.dim_type.out, place))
            times = times.equate(isl.dim_type.in_, place, isl.dim_type.out, place)
        return result

    def _from_before(
        self, reader: Access, instances: isl.Set, inside: Mapping[Access, list[Occurrence]]
    ) -> Conflict | None:
        """A private copy would start without the value from before the loop."""
        for write in inside:
            if write.writes:
                relation = self.source.same(reader, write).intersect_domain(instances)
                relation = relation.intersect_range(write.time(self.source.model).domain())
                if not relation.is_empty():
                    return pair("anti", reader, write, relation, self._reason)
        return None

    def _observed_steps(self, carried: list[Access], inside: Mapping[Access, list[Occurrence]]) -> Conflict | None:
        """A scalar that iterations accumulate, touched otherwise in the same run of the loop."""
        for step in carried:
            for other in inside:
                if other.update is not None and (not other.writes or commute(step, other)):
                    continue
                for a in inside[step]:
                    for b in inside[other]:
                        times = self._times(self.source.same(step, other), step, a, other, b)
                        for place in range(self._component()):
                            times = times.equate(isl.dim_type.in_, place, isl.dim_type.out, place)
                        if not times.is_empty():
                            return self._pair(times, step, a, other, b, self._reason)
        return None
