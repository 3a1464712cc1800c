"""Transposed stores: of neighbouring vectors whose lanes lie apart, rows are stored instead of single elements.

    Y[i:i+16, x] = acc[0]                      transposed:
    if x + 1 < N:                                  Y[i:i+16, x] = acc[0]
        Y[i:i+16, x + 1] = acc[1]                  if x + 1 < N:
    if x + 2 < N:                          →           Y[i:i+16, x + 1] = acc[1]
        Y[i:i+16, x + 2] = acc[2]                  if x + 2 < N:
                                                       Y[i:i+16, x + 2] = acc[2]

Stored as they are, these vectors go element by element to 16 lines each.  Transposed in registers they are 16 rows
of three neighbours, a store each.  It fires where an unrolled loop runs along the contiguous axis of an
array, and lanes along another one: a product whose result is transposed, images whose channels are in lanes.

Stores move down to the last one of their block.  What they move over must not touch what they read and write, nor
leave the body.  Values that the other stores of a block read must not lie in it.  Deliberately not handled: tests
that do not leave out the last stores first, and places that are no constant apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from pyschedule.analysis.affine import Affine, affine, difference, expression
from pyschedule.ir import build
from pyschedule.ir.blocks import TransposedStores
from pyschedule.ir.nodes import (
    Array,
    Assign,
    Expr,
    If,
    Kernel,
    Load,
    Prefetch,
    Ramp,
    Stmt,
    Store,
    Var,
)
from pyschedule.ir.types import lanes_of
from pyschedule.ir.visitors import arrays, children, expressions, walk, walk_expr
from pyschedule.schedule.log import Record
from pyschedule.schedule.targets import Target
from pyschedule.transforms.facts import has_effect
from pyschedule.transforms.nest import Body, map_bodies, margin_of, with_body

#: Bodies with more stores are left alone: each is compared with each.
_MOST_STORES = 512


def transpose_stores(kernel: Kernel, target: Target) -> tuple[Kernel, tuple[Record, ...]]:
    """Makes blocks of such stores; and a line for the log about each array."""
    if not target.copies:
        return kernel, ()
    known = arrays(kernel)
    body = _inside(kernel.body, known)
    found: dict[tuple[str, int, int], TransposedStores] = {}
    for stmt in walk(body):
        if isinstance(stmt, TransposedStores):
            first = stmt.stores[0]
            found.setdefault((first.array, len(stmt.stores), max(map(_lanes, first.indices))), stmt)
    records = [
        Record(
            "Transposition",
            "Note",
            f"'{array}' stored by rows: {count} vectors of {lanes} lanes are transposed in registers",
            (),
            stmt.stores[0].loc,
            silent=True,
        )
        for (array, count, lanes), stmt in found.items()
    ]
    return with_body(kernel, body), tuple(records)


def _lanes(expr: Expr) -> int:
    return lanes_of(expr.type)


def _inside(body: Body, known: dict[str, Array]) -> Body:
    """The body with blocks in it, and in the bodies of its statements."""
    new = tuple(map_bodies(stmt, lambda part: _inside(part, known)) for stmt in body)
    body = new if any(one is not other for one, other in zip(new, body, strict=True)) else body
    return _Search(body, known).result()


@dataclass(frozen=True, slots=True)
class _Member:
    """A store that may be one of a block: its place in the body, and its distance from the first that was found."""

    stmt: Stmt
    store: Store
    test: Expr | None
    at: int
    distance: int


class _Search:
    """One body: its stores in groups of neighbours, and of each group the runs that become blocks."""

    def __init__(self, body: Body, known: dict[str, Array]) -> None:
        self._body, self._known = body, known
        self._statements = tuple(part for stmt in body for part in _one_by_one(stmt))
        self._effects: dict[int, _Effects] = {}

    def result(self) -> Body:
        blocks: dict[int, TransposedStores] = {}
        moved: set[int] = set()
        for group in self._groups():
            for run in _runs(group):
                count = _count(run)
                body = tuple(member.stmt for member in run)
                blocks[max(member.at for member in run)] = TransposedStores(body, count, run[0].store.loc)
                moved |= {member.at for member in run}
        if not blocks:
            return self._body
        return tuple(
            blocks.get(at, stmt) for at, stmt in enumerate(self._statements) if at in blocks or at not in moved
        )

    def _groups(self) -> list[list[_Member]]:
        open_groups: dict[object, list[_Member]] = {}
        groups: list[list[_Member]] = []
        found = [(at, *self._store(stmt)) for at, stmt in enumerate(self._statements)]
        stores = [(at, store, test) for at, store, test in found if store is not None]
        if len(stores) > _MOST_STORES:
            return []
        for at, store, test in stores:
            axis = self._known[store.array].contiguous_axis or 0
            key = (store.array, store.indices[:axis], store.indices[axis + 1 :], store.mask)
            group = open_groups.get(key)
            if group is not None:
                distance = difference(store.indices[axis], group[0].store.indices[axis])
                member = None if distance is None else _Member(self._statements[at], store, test, at, distance)
                if member is not None and self._may_join(group, member):
                    group.append(member)
                    continue
            open_groups[key] = [_Member(self._statements[at], store, test, at, 0)]
            groups.append(open_groups[key])
        return groups

    def _store(self, stmt: Stmt) -> tuple[Store | None, Expr | None]:
        """The store, and its test, of a statement that might be one of a block."""
        inner = stmt.body[0] if isinstance(stmt, If) else stmt
        test = stmt.test if isinstance(stmt, If) else None
        if (
            not isinstance(inner, Store)
            or inner.stream
            or (isinstance(stmt, If) and (stmt.orelse or stmt.body[1:]))
        ):
            return None, None
        array = self._known[inner.array]
        axis = array.contiguous_axis
        ramps = [index for index in inner.indices if _lanes(index) > 1]
        lanes = _lanes(ramps[0]) if ramps else 1
        fits = array.space != "register" and axis is not None and _lanes(inner.indices[axis]) == 1
        whole = inner.mask is None or _lanes(inner.mask) > 1
        if not fits or not whole or lanes < 2 or lanes & (lanes - 1):
            return None, None
        return (inner, test) if all(isinstance(ramp, Ramp) for ramp in ramps) else (None, None)

    def _may_join(self, group: list[_Member], new: _Member) -> bool:
        """Whether the others may move down to a store, over all that stands between, and be done in any order."""
        if any(member.distance == new.distance for member in group):
            return False
        own = self._effects_of(new.at)
        if not all(own.commute(self._effects_of(member.at)) for member in group):
            return False
        inside = {member.at for member in group}
        between = [at for at in range(group[-1].at + 1, new.at) if at not in inside]
        return all(self._effects_of(at).commute(self._effects_of(member.at)) for at in between for member in group)

    def _effects_of(self, at: int) -> _Effects:
        if at not in self._effects:
            self._effects[at] = _effects(self._statements[at])
        return self._effects[at]


def _one_by_one(stmt: Stmt) -> Iterator[Stmt]:
    """A test of several stores as one of each."""
    stores = isinstance(stmt, If) and not stmt.orelse and all(isinstance(inner, Store) for inner in stmt.body)
    if isinstance(stmt, If) and stores and not any(isinstance(part, Load) for part in walk_expr(stmt.test)):
        yield from (dataclasses.replace(stmt, body=(inner,)) for inner in stmt.body)
    else:
        yield stmt


def _runs(group: list[_Member]) -> Iterator[list[_Member]]:
    """The members in order of their addresses, cut where one is missing, where there are as many as lanes, and
    where tests do not leave out the last ones first."""
    most = max(map(_lanes, group[0].store.indices))
    run: list[_Member] = []
    for member in sorted(group, key=lambda member: member.distance):
        follows = bool(run) and member.distance == run[-1].distance + 1 and len(run) < most
        if not follows or not _in_one(run, member):
            if len(run) > 1:
                yield run
            run = []
        run = [*run, member]
    if len(run) > 1:
        yield run


def _in_one(run: list[_Member], member: _Member) -> bool:
    """Whether the store's test fails where, and only where, so many of the first ones are all."""
    tested = [one for one in run if one.test is not None]
    if member.test is None:
        return not tested
    limit = _limit(member)
    return limit is not None and all(_limit(one) == limit for one in tested)


def _limit(member: _Member) -> Affine | None:
    """Stores of a lesser distance than this are done, by the test of this one."""
    margin = None if member.test is None else margin_of(member.test)
    form = None if margin is None else affine(margin)
    return None if form is None else form.plus(member.distance + 1)


def _count(run: list[_Member]) -> Expr | None:
    """How many of the stores are done, as the tests say."""
    certain = sum(member.test is None for member in run)
    limit = None if certain == len(run) else _limit(run[-1])
    if limit is None:
        return None
    count = expression(limit.plus(-run[0].distance))
    return build.maximum(count, certain) if certain else count


@dataclass(frozen=True, slots=True)
class _Effects:
    """What a statement reads and writes; `fixed`: it stays where it is."""

    read: frozenset[str]
    assigned: frozenset[str]
    loads: tuple[Load, ...]
    stores: tuple[Store, ...]
    fixed: bool

    def commute(self, other: _Effects) -> bool:
        """Whether the two statements may change places."""
        if self.fixed or other.fixed:
            return False
        if self.assigned & (other.read | other.assigned) or other.assigned & self.read:
            return False
        touched: list[Load | Store] = [*other.loads, *other.stores]
        pairs = [(one, two) for one in self.stores for two in touched]
        pairs += [(one, two) for one in other.stores for two in self.loads]
        return all(one.array != two.array or _apart(one, two) for one, two in pairs)


def _effects(stmt: Stmt) -> _Effects:
    parts = list(expressions((stmt,)))
    inside = list(walk((stmt,)))
    checks = any(has_effect(top) for part in inside for top in children(part))
    return _Effects(
        frozenset(part.name for part in parts if isinstance(part, Var)),
        frozenset(part.target for part in inside if isinstance(part, Assign)),
        tuple(part for part in parts if isinstance(part, Load)),
        tuple(part for part in inside if isinstance(part, Store)),
        checks or not all(isinstance(part, (Assign, Store, If, Prefetch)) for part in inside),
    )


def _apart(one: Load | Store, other: Load | Store) -> bool:
    """Whether two accesses to an array surely reach different elements."""
    return any(_disjoint(left, right) for left, right in zip(one.indices, other.indices, strict=True))


def _disjoint(left: Expr, right: Expr) -> bool:
    (first, low, high), (second, other_low, other_high) = _reach(left), _reach(right)
    if first is None or second is None:
        return False
    distance = difference(first, second)
    return distance is not None and (distance + low > other_high or distance + high < other_low)


def _reach(index: Expr) -> tuple[Expr | None, int, int]:
    """Where an index starts, and how far its lanes reach below and above."""
    if isinstance(index, Ramp):
        span = index.stride * (index.lanes - 1)
        return index.base, min(0, span), max(0, span)
    return (index if _lanes(index) == 1 else None), 0, 0
