"""Statements and expressions in lanes: what `lanes` has planned, carried out (see there)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyschedule.analysis import reductions
from pyschedule.analysis.reductions import Reduction
from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.nodes import (
    Alloc,
    Assign,
    Barrier,
    BinOp,
    BoolOp,
    Broadcast,
    Call,
    Cast,
    Const,
    Expr,
    For,
    If,
    Load,
    Location,
    Ramp,
    Reduce,
    Select,
    Stmt,
    Store,
    UnaryOp,
    Var,
)
from pyschedule.ir.types import Vector, element_of, lanes_of
from pyschedule.ir.visitors import (
    map_children,
    walk_expr,
)
from pyschedule.transforms.facts import has_effect
from pyschedule.transforms.nest import Body, conjuncts, is_zero

if TYPE_CHECKING:
    from pyschedule.transforms.lanes import Accumulator, Lanes

#: Where lanes beyond a tile's end may be read: buffers are padded to whole tiles.
_PADDED = ("packed", "shared", "register")


@dataclass(frozen=True, slots=True)
class Mask:
    """Which lanes are on.  `conditional`: more than a tail is off, so that values must be kept by `Select`.
    `beyond`: lanes lie beyond the loop's own end, and so perhaps beyond the padding of a buffer."""

    lanes: Expr | None = None
    conditional: bool = False
    beyond: bool = False

    def also(self, test: Expr, conditional: bool) -> Mask:
        lanes = test if self.lanes is None else BoolOp("and", self.lanes, test)
        return Mask(lanes, self.conditional or conditional, self.beyond)


@dataclass(slots=True)
class BodyInLanes:
    lanes: Lanes
    ramp: Ramp
    pending: list[Stmt] = field(default_factory=list)  # tests named before the statement that needs them

    # ----------------------------------------------------------------------------------------- statements

    def statements(self, body: Body, mask: Mask) -> Body:
        result: list[Stmt] = []
        for stmt in body:
            outer, self.pending = self.pending, []
            new = self.statement(stmt, mask)
            result.extend(self.pending)
            self.pending = outer
            result.extend(new)
        return tuple(result)

    def _named(self, test: Expr) -> Expr:
        """A test that reads memory, named: the loads that it masks, and those that these mask, repeat it."""
        if not any(isinstance(part, Load) for part in walk_expr(test)):
            return test
        name = self.lanes.names.fresh("lanes")
        self.pending.append(Assign(name, test, test.type))
        return Var(name, test.type)

    def statement(self, stmt: Stmt, mask: Mask) -> Body:
        if isinstance(stmt, (Assign, Store)):
            accumulator = self._accumulator(stmt)
            if accumulator is not None:
                return (self._accumulate(stmt, accumulator, mask),)
            return (self._assign(stmt, mask) if isinstance(stmt, Assign) else self._store(stmt, mask),)
        if isinstance(stmt, If):
            return self._if(stmt, mask)
        if isinstance(stmt, For):
            if any(self._varies(bound) for bound in (stmt.start, stmt.stop, stmt.step)):
                raise Unsupported(f"the trip count of loop '{stmt.source}' differs from lane to lane", stmt.loc)
            return (dataclasses.replace(stmt, body=self.statements(stmt.body, mask)),)
        if isinstance(stmt, Alloc):
            if stmt.array.name in self.lanes.varying:
                if stmt.array.space not in ("local", "register"):
                    raise Unsupported(f"the tile '{stmt.array.name}' differs from lane to lane", stmt.loc)
                if any(build.constant(extent) is None for extent in stmt.array.shape):
                    raise Unsupported(f"'{stmt.array.name}' is too large for registers, or may be", stmt.loc)
                vtype = Vector(element_of(stmt.array.dtype), self.lanes.width)
                own = dataclasses.replace(stmt.array, dtype=vtype, space="register")
                return (dataclasses.replace(stmt, array=own),)
            return (stmt,)
        if isinstance(stmt, Barrier):
            return (stmt,)
        kind = type(stmt).__name__.lower()
        raise Unsupported(f"a '{kind}' in the body leaves lanes at different times", getattr(stmt, "loc", None))

    def _accumulator(self, stmt: Assign | Store) -> Accumulator | None:
        name = stmt.target if isinstance(stmt, Assign) else stmt.array
        found = reductions.match(stmt)
        items = [item for item in self.lanes.accumulators if item.reduction.name == name]
        for item in items:
            if found is not None and (item.shape is not None or item.reduction.indices == found.indices):
                return item
        if items:
            raise Unsupported(f"'{name}' is also set otherwise in the loop", stmt.loc)
        return None

    def _accumulate(self, stmt: Assign | Store, item: Accumulator, mask: Mask) -> Stmt:
        found = reductions.match(stmt)
        if found is None:
            raise Unsupported(f"'{item.reduction.name}' is also set otherwise in the loop", stmt.loc)
        if self.lanes.each_step:
            return self._combine_now(stmt, found, mask)
        vtype = Vector(found.dtype, self.lanes.width)
        at = found.indices or ()
        old: Expr = Var(item.vector, vtype) if item.shape is None else Load(item.vector, at, vtype)
        value = self._broadcast(self.expression(found.value, mask))
        new: Expr = reductions.combine(found.op, old, value, found.dtype)
        if mask.lanes is not None:
            new = Select(mask.lanes, new, old, found.dtype)
        if item.shape is None:
            return Assign(item.vector, new, vtype, origin=stmt.origin, loc=stmt.loc)
        return Store(item.vector, at, new, origin=stmt.origin, loc=stmt.loc)

    def _combine_now(self, stmt: Assign | Store, found: Reduction, mask: Mask) -> Stmt:
        value = self._broadcast(self.expression(found.value, mask))
        if mask.lanes is not None:
            value = Select(mask.lanes, value, reductions.identity(found.op, found.dtype), found.dtype)
        item = self._accumulator(stmt)
        target = found.dtype if item is None else item.target
        old: Expr = (
            Load(found.name, found.indices, target) if found.indices is not None else Var(found.name, target)
        )
        new = reductions.combine(found.op, old, Reduce(found.op, value), found.dtype)
        if target != found.dtype and isinstance(stmt, Assign):
            new = Cast(target, new)
        return dataclasses.replace(stmt, value=new)

    def _assign(self, stmt: Assign, mask: Mask) -> Stmt:
        if stmt.target not in self.lanes.varying:
            return stmt
        value = self._broadcast(self.expression(stmt.value, mask))
        vtype = Vector(element_of(stmt.vtype), self.lanes.width)
        if mask.conditional and mask.lanes is not None:
            value = Select(mask.lanes, value, Var(stmt.target, vtype), element_of(vtype))
        return dataclasses.replace(stmt, value=value, vtype=vtype)

    def _store(self, stmt: Store, mask: Mask) -> Stmt:
        indices = tuple(as_ramp(self.expression(index, mask)) for index in stmt.indices)
        value = self.expression(stmt.value, mask)
        if stmt.array in self.lanes.varying:  # private to the iteration: an element is a vector
            if any(lanes_of(index.type) > 1 for index in indices):
                raise Unsupported(f"'{stmt.array}' is indexed differently in each lane", stmt.loc)
            value = self._broadcast(value)
            if mask.conditional and mask.lanes is not None:
                old = Load(stmt.array, indices, value.type)
                value = Select(mask.lanes, value, old, element_of(value.type))
            return dataclasses.replace(stmt, indices=indices, value=value)
        if not any(lanes_of(index.type) > 1 for index in indices):
            if lanes_of(value.type) > 1 or mask.conditional:
                raise Unsupported(f"all lanes would write one element of '{stmt.array}'", stmt.loc)
            return dataclasses.replace(stmt, indices=indices, value=value)
        lanes = None if self._needs_no_mask(stmt.array, mask) else mask.lanes
        self._check_reached(indices, mask, stmt.loc)
        return dataclasses.replace(stmt, indices=indices, value=value, mask=lanes)

    def _if(self, stmt: If, mask: Mask) -> Body:
        if not self._varies(stmt.test):
            then, orelse = self.statements(stmt.body, mask), self.statements(stmt.orelse, mask)
            return (dataclasses.replace(stmt, body=then, orelse=orelse),)
        if not stmt.orelse:
            # What holds for all lanes or for none stays a branch.
            uniform, varying = self._parted(conjuncts(stmt.test), tail=stmt.tail)
            if uniform and varying:
                inner = dataclasses.replace(stmt, test=build.all_of(varying))
                return (dataclasses.replace(stmt, test=build.all_of(uniform), body=self._if(inner, mask)),)
        test = self.expression(stmt.test, mask)
        if stmt.tail:
            return self.statements(stmt.body, mask.also(test, conditional=False))
        # The test is evaluated once: the body may change what it reads.
        name = self.lanes.names.fresh("lanes")
        on = Var(name, test.type)
        result: list[Stmt] = [Assign(name, test, test.type, loc=stmt.loc)]
        result.extend(self.statements(stmt.body, mask.also(on, conditional=True)))
        result.extend(self.statements(stmt.orelse, mask.also(UnaryOp("not", on), conditional=True)))
        return tuple(result)

    def _parted(self, tests: list[Expr], *, tail: bool) -> tuple[list[Expr], list[Expr]]:
        """The tests that are the same in all lanes and may be made first, and the others, each in its order."""
        first: list[Expr] = []
        rest: list[Expr] = []
        for test in tests:
            early = not self._varies(test) and (tail or not rest or not _may_fail(test))
            (first if early else rest).append(test)
        return first, rest

    # ---------------------------------------------------------------------------------------- expressions

    def _varies(self, expr: Expr) -> bool:
        varying = self.lanes.varying
        return any(
            (isinstance(part, Var) and part.name in varying) or (isinstance(part, Load) and part.array in varying)
            for part in walk_expr(expr)
        )

    def _broadcast(self, value: Expr) -> Expr:
        return value if lanes_of(value.type) > 1 else Broadcast(value, self.lanes.width)

    def _check_reached(self, indices: tuple[Expr, ...], mask: Mask, loc: Location | None) -> None:
        """An index is checked where the source evaluates it, and that may be in no lane."""
        if mask.conditional and any(has_effect(index) for index in indices):
            raise Unsupported("an index that must be checked may be reached by no lane", loc)

    def _needs_no_mask(self, array: str, mask: Mask) -> bool:
        """Tail lanes of a padded buffer exist, and nobody looks at them."""
        padded = array in self.lanes.arrays and self.lanes.arrays[array].space in _PADDED
        return padded and not mask.conditional and not mask.beyond

    def expression(self, expr: Expr, mask: Mask) -> Expr:
        """The expression in lanes, or unchanged where nothing in it varies."""
        if isinstance(expr, Var):
            if expr.name == self.lanes.counter:
                return self.ramp
            if expr.name in self.lanes.varying:
                return dataclasses.replace(expr, vtype=Vector(element_of(expr.vtype), self.lanes.width))
            return expr
        if isinstance(expr, Load):
            return self._load(expr, mask)
        if isinstance(expr, Select) and self._varies(expr.test):
            # One scalar for all that is the same in all lanes, and one mask.
            together = build.both(*map(build.all_of, self._parted(conjuncts(expr.test), tail=False)))
            test = self._named(self.expression(together, mask))
            then = self.expression(expr.then, mask.also(test, conditional=True))
            orelse = self.expression(expr.orelse, mask.also(UnaryOp("not", test), conditional=True))
            if isinstance(then, Load) and then.mask is not None and is_zero(orelse):
                return then  # lanes that are off read as zero
            return dataclasses.replace(expr, test=test, then=then, orelse=orelse)
        if isinstance(expr, BoolOp) and self._varies(expr.left):
            left = self._named(self.expression(expr.left, mask))
            reached = left if expr.op == "and" else UnaryOp("not", left)
            return BoolOp(expr.op, left, self.expression(expr.right, mask.also(reached, conditional=True)))
        if isinstance(expr, Call) and expr.function == "checked_index" and self._varies(expr):
            raise Unsupported("an index that must be checked differs from lane to lane", expr.loc)
        new = map_children(expr, lambda part: self.expression(part, mask))
        if isinstance(new, BinOp) and new.op in ("//", "%") and new.dtype.is_integer and mask.lanes is not None:
            # A lane that is off must not divide by zero.
            divisor = new.right
            if lanes_of(divisor.type) > 1:
                return dataclasses.replace(new, right=Select(mask.lanes, divisor, Const(1, new.dtype), new.dtype))
        return new  # type: ignore[no-any-return]

    def _load(self, expr: Load, mask: Mask) -> Expr:
        indices = tuple(as_ramp(self.expression(index, mask)) for index in expr.indices)
        if expr.array in self.lanes.varying:
            if any(lanes_of(index.type) > 1 for index in indices):
                raise Unsupported(f"'{expr.array}' is indexed differently in each lane", expr.loc)
            vtype = Vector(element_of(expr.dtype), self.lanes.width)
            return dataclasses.replace(expr, indices=indices, dtype=vtype)
        self._check_reached(indices, mask, expr.loc)
        vector = any(lanes_of(index.type) > 1 for index in indices)
        if vector:
            lanes = None if self._needs_no_mask(expr.array, mask) else mask.lanes
            return dataclasses.replace(expr, indices=indices, mask=lanes)
        if mask.conditional and mask.lanes is not None and expr.indices:
            # No lane may be on, and then the address may not exist: the load becomes a masked gather.
            first = Broadcast(indices[0], self.lanes.width)
            return dataclasses.replace(expr, indices=(first, *indices[1:]), mask=mask.lanes)
        return expr


def as_ramp(index: Expr) -> Expr:
    """An index in lanes as one `Ramp` where it is one: `ramp(j, 1, 8) - j_1` is `ramp(j - j_1, 1, 8)`."""
    if not isinstance(index, BinOp) or lanes_of(index.type) == 1 or index.dtype.name != "int64":
        return index
    left, right = as_ramp(index.left), as_ramp(index.right)
    if isinstance(left, Ramp) and lanes_of(right.type) == 1:
        if index.op == "+":
            return dataclasses.replace(left, base=build.add(left.base, right))
        if index.op == "-":
            return dataclasses.replace(left, base=build.sub(left.base, right))
        factor = build.constant(right)
        if index.op == "*" and factor is not None:
            return Ramp(build.mul(left.base, factor), left.stride * factor, left.lanes)
    if isinstance(right, Ramp) and lanes_of(left.type) == 1:
        if index.op == "+":
            return dataclasses.replace(right, base=build.add(right.base, left))
        if index.op == "-":
            return Ramp(build.sub(left, right.base), -right.stride, right.lanes)
        factor = build.constant(left)
        if index.op == "*" and factor is not None:
            return Ramp(build.mul(right.base, factor), right.stride * factor, right.lanes)
    if isinstance(left, Ramp) and isinstance(right, Ramp) and index.op in "+-":
        sign = 1 if index.op == "+" else -1
        base = build.add(left.base, right.base) if sign > 0 else build.sub(left.base, right.base)
        return Ramp(base, left.stride + sign * right.stride, left.lanes)
    return index


def _may_fail(test: Expr) -> bool:
    """Whether a test must not be made where the source would not make it."""
    return has_effect(test) or any(
        isinstance(part, Load) or (isinstance(part, BinOp) and part.op in ("//", "%", "**", "/"))
        for part in walk_expr(test)
    )
