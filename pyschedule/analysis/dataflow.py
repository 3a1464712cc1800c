"""Whether a nest moves the same values as its source: exact, value-based dataflow.

For every memory location the source has writes, reads, and - where regrouping is allowed - updates, the steps
of a reduction, which may change places with one another.  A new order means the same when

* every read and every update still comes after the write it sees, with no other write in between (or, where
  there was none before it, before all writes);
* every read still comes after the updates that it sees and before those that it does not see;
* updates of different operations keep their order.

What the caller sees afterwards, the elements of array arguments, is one more read, after everything.

A cheaper condition is tried first: no two accesses to one location change places.  Where two do, the conditions
above decide.  Last writers are found by P. Feautrier's array dataflow analysis (*Dataflow analysis of array and
scalar references*, 1991), as isl implements it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import islpy as isl

from pyschedule.analysis.conflicts import Conflict, pair
from pyschedule.analysis.footprints import Access, footprints
from pyschedule.analysis.polyhedral import Model

#: Which reductions may be regrouped: none, those whose result cannot change (integers, minima), or all.
Freedom = Literal["none", "exact", "all"]

Relation = dict[tuple[Access, Access], isl.Map]


@dataclass(frozen=True, slots=True)
class Flow:
    """`seen`: (write, reader) → which write instances a reader's may see; `initial`: the reader's instances
    that may see the value from before the kernel.  Readers are reads and updates."""

    seen: Relation
    initial: dict[Access, isl.Set]


class Dataflow:
    """The accesses of a source nest, and relations between them, each computed once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.accesses = footprints(model)
        self.params = {param.name for param in model.kernel.params}
        self.arrays = {param.name for param in model.kernel.array_params}
        self._same: Relation = {}
        self._before: Relation = {}
        self._flows: dict[tuple[str, Freedom], Flow] = {}

    def same(self, first: Access, second: Access) -> isl.Map:
        """Pairs of instances that touch one location."""
        key = (first, second)
        if key not in self._same:
            self._same[key] = first.element.apply_range(second.element.reverse())
        return self._same[key]

    def before(self, first: Access, second: Access) -> isl.Map:
        """Pairs that touch one location, the first earlier in the source."""
        key = (first, second)
        if key not in self._before:
            earlier = first.time(self.model).lex_lt_map(second.time(self.model))
            self._before[key] = self.same(first, second).intersect(earlier)
        return self._before[key]

    def flow(self, name: str, free: Freedom) -> Flow:
        key = (name, free)
        if key not in self._flows:
            self._flows[key] = self._flow(Roles(self.accesses[name], free))
        return self._flows[key]

    def sharing(self, free: Freedom, first: Access, second: Access) -> isl.Map:
        """Pairs of readers of one location that see the same write, or both the value from before the kernel."""
        flow, shared = self.flow(first.name, free), self.same(first, second)
        result = shared.subtract(shared)
        if first in flow.initial and second in flow.initial:
            result = shared.intersect_domain(flow.initial[first]).intersect_range(flow.initial[second])
        for (write, reader), relation in flow.seen.items():
            if reader is first and (write, second) in flow.seen:
                through = relation.reverse().apply_range(flow.seen[write, second])
                result = result.union(through.intersect(shared))
        return result

    def _flow(self, roles: Roles) -> Flow:
        return _last(self.model, roles.writes, (*roles.reads, *roles.updates))


def _last(model: Model, sources: Iterable[Access], sinks: Iterable[Access], kills: Iterable[Access] = ()) -> Flow:
    """For every instance of a sink the sources that may be the last before it at its location; none from
    before a `kill` or a source that is sure to happen."""
    sources, sinks, kills = tuple(sources), tuple(sinks), tuple(kills)
    everything = {access.tag: access for access in (*sources, *sinks, *kills)}

    def touched(accesses: Iterable[Access]) -> isl.UnionMap:
        union = isl.UnionMap("{ }", model.context)
        for access in accesses:
            made = access.element.intersect_domain(access.time(model).domain())
            union = union.union(isl.UnionMap.from_map(made))
        return union

    when = isl.UnionMap("{ }", model.context)
    for access in everything.values():
        when = when.union(isl.UnionMap.from_map(access.time(model)))
    found = (
        isl.UnionAccessInfo.from_sink(touched(sinks))
        .set_must_source(touched(access for access in sources if access.must))
        .set_may_source(touched(access for access in sources if not access.must))
        .set_kill(touched(kills))
        .set_schedule_map(when)
        .compute_flow()
    )
    seen: Relation = {}
    for one in _maps(found.get_may_dependence()):
        ends = (one.get_tuple_name(isl.dim_type.in_), one.get_tuple_name(isl.dim_type.out))
        seen[everything[ends[0]], everything[ends[1]]] = one
    initial = {
        everything[one.get_tuple_name(isl.dim_type.in_)]: one.domain() for one in _maps(found.get_may_no_source())
    }
    return Flow(seen, initial)


def last_before(source: Dataflow, name: str) -> Relation:
    """The direct dependences through one name: flow, output, and anti since the last sure write."""
    accesses = [access for access in source.accesses[name] if access.occurrence is not None]
    writes = [access for access in accesses if access.writes]
    reads = [access for access in accesses if not access.writes]
    sure = [access for access in writes if access.must]
    result = dict(_last(source.model, writes, accesses).seen)
    # Several reads may precede one write, so that none of them hides another: each is asked for alone.
    for read in reads:
        result |= _last(source.model, [read], writes, sure).seen
    return result


@dataclass(frozen=True, slots=True, init=False)
class Roles:
    """The accesses to one name by what they are; a step that may not be regrouped is a read and a write."""

    writes: tuple[Access, ...]
    reads: tuple[Access, ...]
    updates: tuple[Access, ...]

    def __init__(self, accesses: Iterable[Access], free: Freedom) -> None:
        accesses = tuple(accesses)

        def step(access: Access) -> bool:
            return access.update is not None and (free == "all" or (free == "exact" and access.update.exact))

        object.__setattr__(self, "writes", tuple(one for one in accesses if one.writes and not step(one)))
        object.__setattr__(self, "reads", tuple(one for one in accesses if not one.writes and not step(one)))
        object.__setattr__(self, "updates", tuple(one for one in accesses if one.writes and step(one)))

    def ordered_pairs(self) -> list[tuple[Access, Access]]:
        """All pairs whose order may matter, both ways round."""
        everything = (*self.writes, *self.reads, *self.updates)
        return [(a, b) for a in everything for b in everything if self.matter(a, b)]

    def matter(self, a: Access, b: Access) -> bool:
        if a in self.reads and b in self.reads:
            return False
        return not (a in self.updates and b in self.updates and commute(a, b))


def commute(a: Access, b: Access) -> bool:
    """Whether two update steps may change places."""
    if a.update is None or b.update is None:
        return False
    return (a.update.op, a.update.dtype) == (b.update.op, b.update.dtype)


def _maps(union: isl.UnionMap) -> list[isl.Map]:
    found: list[isl.Map] = []
    union.foreach_map(found.append)
    return found


def kind_of(first: Access, second: Access) -> str:
    if first.writes:
        return "output" if second.writes else "flow"
    return "anti"


# ------------------------------------------------------------------------------------------ the comparison


class Comparison:
    """One new nest against the source."""

    def __init__(self, source: Dataflow, new: Model, free: Freedom) -> None:
        self.source = source
        self.new = new
        self.free: Freedom = free
        self._late = isl.Map.lex_ge(isl.Space.set_alloc(new.context, 0, new.width))
        self._flips: dict[object, bool] = {}

    def conflict(self, name: str, expanded: bool) -> Conflict | None:
        """The first condition that fails for one name.

        `expanded`: the name has a copy for every iteration, so that writes of others do not matter.
        """
        roles = Roles(self.source.accesses[name], self.free)
        flipped = [(a, b) for a, b in roles.ordered_pairs() if self.flips(a, b)]
        if not flipped and not expanded:
            return None
        flow = self.source.flow(name, self.free)
        return (
            self._order_of_flow(flow)
            or self._order_of_updates(roles)
            or (self._initial_copies(name, flow) if expanded else self._overwritten(roles, flow))
        )

    def flips(self, a: Access, b: Access) -> bool:
        """Whether an instance of `b` that followed one of `a` at the same location now precedes it."""
        old_a, old_b = _places(a, self.source.model), _places(b, self.source.model)
        new_a, new_b = _places(a, self.new), _places(b, self.new)
        if not new_a or not new_b:
            return False  # it was shown to run never, and is gone
        if min(old_a) > max(old_b) or max(new_a) < min(new_b):
            return False
        key = (a.place, b.place)
        if key not in self._flips:
            self._flips[key] = not self._turned(self.source.before(a, b), a, b)
        return self._flips[key]

    def _turned(self, relation: isl.Map, a: Access, b: Access) -> bool:
        """Whether no pair of a relation has its second instance first in the new nest."""
        times = relation.apply_domain(a.time(self.new)).apply_range(b.time(self.new))
        return bool(times.intersect(self._late).is_empty())

    def _example(self, relation: isl.Map, a: Access, b: Access, reason: str) -> Conflict:
        turned = relation.intersect(a.time(self.new).lex_ge_map(b.time(self.new)))
        return pair(kind_of(a, b), a, b, turned, reason)

    def _order_of_flow(self, flow: Flow) -> Conflict | None:
        for (write, reader), relation in flow.seen.items():
            if self.flips(write, reader) and not self._turned(relation, write, reader):
                return self._example(relation, write, reader, "the read would come before the write that it sees")
        return None

    def _order_of_updates(self, roles: Roles) -> Conflict | None:
        for update in roles.updates:
            others = (*roles.reads, *(one for one in roles.updates if not commute(update, one)))
            for other in others:
                for first, second in ((update, other), (other, update)):
                    if not self.flips(first, second):
                        continue
                    relation = self.source.before(first, second).intersect(
                        self.source.sharing(self.free, first, second)
                    )
                    if not self._turned(relation, first, second):
                        return self._example(relation, first, second, "a step of a reduction would change sides")
        return None

    def _overwritten(self, roles: Roles, flow: Flow) -> Conflict | None:
        for reader, instances in flow.initial.items():
            for write in roles.writes:
                if not self.flips(reader, write):
                    continue
                relation = self.source.before(reader, write).intersect_domain(instances)
                if not self._turned(relation, reader, write):
                    return self._example(relation, reader, write, "the value read would be overwritten before")
        for (write, reader), relation in flow.seen.items():
            for other in roles.writes:
                pairs = ((other, write), (write, other), (other, reader), (reader, other))
                if any(self.flips(*one) for one in pairs):
                    found = self._between(relation, write, reader, other)
                    if found is not None:
                        return found
        return None

    def _between(self, flow: isl.Map, write: Access, reader: Access, other: Access) -> Conflict | None:
        """A write of `other` that the new nest puts between a write and its reader, and the source did not."""
        to_write, to_reader = flow.domain_map(), flow.range_map()

        def triples(model: Model, after: isl.Map | None, ahead: isl.Map | None) -> isl.Map:
            result = to_reader.apply_range(self.source.same(reader, other))
            if after is not None:
                result = result.intersect(to_write.apply_range(after))
            if ahead is not None:
                result = result.intersect(to_reader.apply_range(ahead))
            return result

        new, old = self.new, self.source.model
        found = triples(
            new,
            write.time(new).lex_lt_map(other.time(new)),
            reader.time(new).lex_gt_map(other.time(new)),
        )
        if found.is_empty():
            return None
        # In the source the other write came after the reader, or before the write: there the two changed places.
        later = to_reader.reverse().apply_range(
            found.intersect(to_reader.apply_range(reader.time(old).lex_lt_map(other.time(old))))
        )
        if not later.is_empty():
            return pair(kind_of(reader, other), reader, other, later, "the value read would be overwritten before")
        earlier = found.intersect(to_write.apply_range(write.time(old).lex_gt_map(other.time(old))))
        if earlier.is_empty():
            return None
        turned = earlier.reverse().apply_range(to_write)
        return pair("output", other, write, turned, "the earlier value would overwrite the later one")

    def _initial_copies(self, name: str, flow: Flow) -> Conflict | None:
        """A copy for every iteration starts without the value that an argument came with."""
        if name not in self.source.params:
            return None
        for reader, instances in flow.initial.items():
            if reader.occurrence is None:
                continue
            for write in self.source.accesses[name]:
                relation = self.source.same(reader, write).intersect_domain(instances)
                if write.writes and not relation.is_empty():
                    return pair("anti", reader, write, relation, "it is read before it is written")
        return None


def _places(access: Access, model: Model) -> set[int]:
    if access.statement is None:
        return {model.end}
    return model.first_component(access.statement, access.guard)
