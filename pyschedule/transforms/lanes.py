"""The body of a loop, rewritten so that one pass does the work of `width` iterations in SIMD lanes.

Before, and after with the counter in 8 lanes:

    y[i] = 2 * x[i]                     y[i:i+8] = 2 * x[i:i+8]
    if x[i] > 0: z[i] = x[i]            m = x[i:i+8] > 0;  z[i:i+8; m] = x[i:i+8; m]
    s += x[i]                           s_v += x[i:i+8]            (and s += reduce(s_v) after the loop)
    for k in range(K): t += A[i, k]     for k in range(K): t += A[i:i+8, k]

What differs from lane to lane is *varying*: the counter, what is computed from it, scalars assigned such a
value or under a varying condition.  Everything else stays scalar, is computed once, and is broadcast where it
meets a vector.  Conditions become masks (if-conversion: J. R. Allen et al., *Conversion of Control Dependence
to Data Dependence*, POPL 1983); lanes that are off touch no memory.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from pyschedule.analysis import reductions
from pyschedule.analysis.reductions import Reduction
from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.nodes import (
    Alloc,
    Array,
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
from pyschedule.ir.types import Scalar, Vector, element_of, lanes_of
from pyschedule.ir.visitors import (
    bodies,
    counters,
    map_children,
    substitute,
    variables,
    walk,
    walk_expr,
    written_variables,
)
from pyschedule.transforms import reach
from pyschedule.transforms.algebra import has_effect
from pyschedule.transforms.nest import Body, Names, before, conjuncts, first_access, guarded

#: Where lanes beyond a tile's end may be read: buffers are padded to whole tiles.
_PADDED = ("packed", "shared", "register")


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A reduction target, and the vector (or register array of vectors) that stands in for it in the loop."""

    reduction: Reduction
    target: Scalar  # the type of what is accumulated into
    vector: str
    shape: tuple[int, ...] | None  # of the register array it mirrors; `None`: one vector
    guard: Expr  # tests outside of which the target may have no value, or not exist

    @property
    def lanes_type(self) -> Scalar:
        return self.reduction.dtype


@dataclass(frozen=True, slots=True)
class _Mask:
    """Which lanes are on.  `conditional`: more than a tail is off, so that values must be kept by `Select`.
    `beyond`: lanes lie beyond the loop's own end, and so perhaps beyond the padding of a buffer."""

    lanes: Expr | None = None
    conditional: bool = False
    beyond: bool = False

    def also(self, test: Expr, conditional: bool) -> _Mask:
        lanes = test if self.lanes is None else BoolOp("and", self.lanes, test)
        return _Mask(lanes, self.conditional or conditional, self.beyond)


@dataclass(frozen=True, slots=True)
class Lanes:
    """How one loop goes into lanes.  Build it with `plan`, then call `body` (twice, for a masked tail)."""

    counter: str
    step: int
    width: int
    varying: frozenset[str]
    accumulators: tuple[Accumulator, ...]
    arrays: dict[str, Array]
    names: Names
    each_step: bool

    def body(self, body: Body, base: Expr, tail: Expr | None) -> Body:
        """The body for the lanes `base, base + step, ...`; `tail` is the mask of those that exist."""
        rewriter = _Rewriter(self, Ramp(base, self.step, self.width))
        new = rewriter.statements(body, _Mask(tail, beyond=tail is not None))
        new = (*self._undefined(new), *new)
        # What is left of the counter stands in origins: there it means the first lane.
        return new if base == Var(self.counter) else substitute(new, {self.counter: base})

    def _undefined(self, new: Body) -> Body:
        """Values for the scalars that are set under a condition first: lanes that are off keep what they had."""
        assigned = {stmt.target: stmt.vtype for stmt in walk(new) if isinstance(stmt, Assign)}
        return tuple(
            Assign(name, Broadcast(Const(0.0 if vtype.element.is_float else 0, vtype.element), self.width), vtype)
            for name, vtype in assigned.items()
            if name in self.varying and isinstance(vtype, Vector) and first_access(new, name) == "read"
        )

    def before(self) -> Body:
        """Sets the accumulators to the identity of their operation."""
        if self.each_step:
            return ()
        return tuple(part for item in self.accumulators for part in self._started(item))

    def _started(self, item: Accumulator) -> Body:
        zero = Broadcast(reductions.identity(item.reduction.op, item.lanes_type), self.width)
        vtype = Vector(item.lanes_type, self.width)
        if item.shape is None:
            return (Assign(item.vector, zero, vtype),)
        shape = tuple(build.const(extent) for extent in item.shape)
        declared = Alloc(Array(item.vector, vtype, shape, space="register"))
        return (declared, *self._elementwise(item.shape, lambda at: Store(item.vector, at, zero)))

    def after(self) -> Body:
        """Combines the lanes of each accumulator into its target."""
        if self.each_step:
            return ()
        return tuple(part for item in self.accumulators for part in guarded(self._combined(item), item.guard))

    def _combined(self, item: Accumulator) -> Body:
        found, dtype = item.reduction, item.lanes_type
        vtype = Vector(dtype, self.width)

        def combined(old: Expr, lanes: Expr) -> Expr:
            return reductions.combine(found.op, old, Reduce(found.op, lanes), dtype)

        if item.shape is not None:
            return self._elementwise(
                item.shape,
                lambda at: Store(
                    found.name, at, combined(Load(found.name, at, item.target), Load(item.vector, at, vtype))
                ),
            )
        lanes = Var(item.vector, vtype)
        if found.indices is not None:
            old = Load(found.name, found.indices, item.target)
            return (Store(found.name, found.indices, combined(old, lanes)),)
        value = combined(Var(found.name, item.target), lanes)
        if item.target != dtype:
            value = Cast(item.target, value)
        return (Assign(found.name, value, item.target),)

    def _elementwise(self, shape: tuple[int, ...], make: Callable[[tuple[Expr, ...]], Stmt]) -> Body:
        """A nest over all elements of a register array; its loops are unrolled with every other on registers."""
        counters = [self.names.fresh(f"r_{axis}") for axis in range(len(shape))]
        body: Stmt = make(tuple(Var(counter) for counter in counters))
        for counter, extent in reversed(list(zip(counters, shape, strict=True))):
            body = For(counter, build.ZERO, build.const(extent), build.ONE, (body,), max_trip=extent)
        return (body,)


def plan(
    loop: For,
    body: Body,
    width: int,
    arrays: dict[str, Array],
    names: Names,
    strict_math: bool,
    each_step: bool,
) -> Lanes:
    """What becomes varying, and which statements are reductions over the loop.

    `each_step`: lanes of a reduction are combined in every step, where vectors are wide accesses and no
    registers (else each lane keeps a partial result, and these are combined after the loop).

    Raises `Unsupported` where the body has something that lanes cannot do.
    """
    step = build.constant(loop.step)
    if not step:
        raise Unsupported(f"loop '{loop.source}' has a step that is not a constant", loop.loc)
    accumulators = _accumulators(loop, body, arrays, names, strict_math)
    carried = {item.reduction.name for item in accumulators}
    varying = _varying(loop.var, body, carried)
    for name in sorted(varying & written_variables(body)):
        if first_access(body, name) == "read":
            raise Unsupported(f"'{name}' carries a value from one iteration to the next", loop.loc)
    return Lanes(loop.var, step, width, frozenset(varying), accumulators, arrays, names, each_step)


def _accumulators(
    loop: For, body: Body, arrays: dict[str, Array], names: Names, strict_math: bool
) -> tuple[Accumulator, ...]:
    found: dict[tuple[str, tuple[Expr, ...] | None], Accumulator] = {}
    inner = {stmt.var for stmt in walk(body) if isinstance(stmt, For)}
    declared = {stmt.array.name for stmt in walk(body) if isinstance(stmt, Alloc)}
    for stmt in walk(body):
        reduction = reductions.match(stmt) if isinstance(stmt, (Assign, Store)) else None
        if reduction is None or reduction.name in declared:
            continue
        place = getattr(stmt, "loc", None)
        if reduction.indices is None:
            if first_access(body, reduction.name) != "read":
                continue  # set afresh in every iteration
        elif any(loop.var in variables(index) for index in reduction.indices):
            continue
        if strict_math and not reduction.exact:
            raise Unsupported(f"the sum into '{reduction.name}' may not be reassociated under strict_math", place)
        shape: tuple[int, ...] | None = None
        if reduction.indices is not None and any(variables(index) & inner for index in reduction.indices):
            array = arrays[reduction.name]
            extents = [build.constant(extent) for extent in array.shape]
            if array.space != "register" or None in extents:
                raise Unsupported(
                    f"'{reduction.name}' is accumulated in many elements that are not in registers", place
                )
            shape = tuple(extent or 0 for extent in extents)
        others = [item for item in found.values() if item.reduction.name == reduction.name]
        if any(item.reduction.op != reduction.op for item in others):
            raise Unsupported(f"'{reduction.name}' is accumulated by two operations", place)
        if any((item.shape is None) != (shape is None) for item in others):
            raise Unsupported(f"'{reduction.name}' is accumulated in one element and in many", place)
        key = (reduction.name, None if shape is not None else reduction.indices)
        if key in found:
            continue
        reader = reductions.reader(body, reduction.name)
        if reader is not None:
            place = getattr(reader, "loc", None)
            raise Unsupported(f"'{reduction.name}' is read while it is being accumulated", place)
        moving = inner | written_variables(body) | {loop.var}
        guard = build.all_of([test for test in tails(body, stmt) if not variables(test) & moving])
        if reduction.indices is not None and shape is None and arrays[reduction.name].space != "register":
            guard = _touched(loop, body, stmt, reduction)
        target = _target_type(stmt, reduction, arrays)
        vector = names.fresh(f"{reduction.name}_v")
        found[key] = Accumulator(reduction, target, vector, shape, guard)
    return tuple(found.values())


def _touched(loop: For, body: Body, stmt: Stmt, reduction: Reduction) -> Expr:
    """When the loop touches an element in memory at all; raises `Unsupported` where that depends on the lane."""
    site = next(one for one in reach.sites(body, reduction.name) if one.access is stmt)
    moving = counters(body) | {loop.var}
    known = reach.reach(site, {}, moving, written_variables(body), ())
    if not known.certain:
        raise Unsupported(f"some lanes may not reach the element of '{reduction.name}'", getattr(stmt, "loc", None))
    return build.all_of([before(loop.start, loop.stop, build.constant(loop.step) or 1), *known.tests])


def tails(body: Body, place: Stmt) -> list[Expr]:
    """The tail guards around a statement (found by identity) of a body."""
    for stmt in body:
        if stmt is place:
            return []
        for inner in bodies(stmt):
            if any(part is place for part in walk(inner)):
                own = conjuncts(stmt.test) if isinstance(stmt, If) and stmt.tail else []
                return own + tails(inner, place)
    return []


def _target_type(stmt: Stmt, reduction: Reduction, arrays: dict[str, Array]) -> Scalar:
    if isinstance(stmt, Assign):
        return element_of(stmt.vtype)
    stored = element_of(arrays[reduction.name].dtype)
    return Scalar("float32") if stored.is_half else stored


def _varying(counter: str, body: Body, carried: set[str]) -> set[str]:
    """The least set closed under: computed from a varying value, or assigned under a varying condition."""
    varying = {counter}

    def depends(expr: Expr) -> bool:
        return any(
            (isinstance(part, Var) and part.name in varying) or (isinstance(part, Load) and part.array in varying)
            for part in walk_expr(expr)
        )

    def visit(body: Body, conditional: bool) -> None:
        for stmt in body:
            if isinstance(stmt, Assign) and stmt.target not in carried:
                if conditional or depends(stmt.value):
                    varying.add(stmt.target)
            elif isinstance(stmt, Store) and stmt.array in private:
                if conditional or depends(stmt.value):
                    varying.add(stmt.array)
            elif isinstance(stmt, If):
                inside = conditional or depends(stmt.test)
                visit(stmt.body, inside)
                visit(stmt.orelse, inside)
            elif isinstance(stmt, For):
                visit(stmt.body, conditional)

    private = {stmt.array.name for stmt in walk(body) if isinstance(stmt, Alloc)}
    size = 0
    while size != len(varying):
        size = len(varying)
        visit(body, False)
    return varying


@dataclass(slots=True)
class _Rewriter:
    lanes: Lanes
    ramp: Ramp

    # ----------------------------------------------------------------------------------------- statements

    def statements(self, body: Body, mask: _Mask) -> Body:
        result: list[Stmt] = []
        for stmt in body:
            result.extend(self.statement(stmt, mask))
        return tuple(result)

    def statement(self, stmt: Stmt, mask: _Mask) -> Body:
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

    def _accumulate(self, stmt: Assign | Store, item: Accumulator, mask: _Mask) -> Stmt:
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

    def _combine_now(self, stmt: Assign | Store, found: Reduction, mask: _Mask) -> Stmt:
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

    def _assign(self, stmt: Assign, mask: _Mask) -> Stmt:
        if stmt.target not in self.lanes.varying:
            return stmt
        value = self._broadcast(self.expression(stmt.value, mask))
        vtype = Vector(element_of(stmt.vtype), self.lanes.width)
        if mask.conditional and mask.lanes is not None:
            value = Select(mask.lanes, value, Var(stmt.target, vtype), element_of(vtype))
        return dataclasses.replace(stmt, value=value, vtype=vtype)

    def _store(self, stmt: Store, mask: _Mask) -> Stmt:
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

    def _if(self, stmt: If, mask: _Mask) -> Body:
        if not self._varies(stmt.test):
            then, orelse = self.statements(stmt.body, mask), self.statements(stmt.orelse, mask)
            return (dataclasses.replace(stmt, body=then, orelse=orelse),)
        if stmt.tail and not stmt.orelse:
            uniform = [test for test in conjuncts(stmt.test) if not self._varies(test)]
            varying = [test for test in conjuncts(stmt.test) if self._varies(test)]
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

    # ---------------------------------------------------------------------------------------- expressions

    def _varies(self, expr: Expr) -> bool:
        varying = self.lanes.varying
        return any(
            (isinstance(part, Var) and part.name in varying) or (isinstance(part, Load) and part.array in varying)
            for part in walk_expr(expr)
        )

    def _broadcast(self, value: Expr) -> Expr:
        return value if lanes_of(value.type) > 1 else Broadcast(value, self.lanes.width)

    def _check_reached(self, indices: tuple[Expr, ...], mask: _Mask, loc: Location | None) -> None:
        """An index is checked where the source evaluates it, and that may be in no lane."""
        if mask.conditional and any(has_effect(index) for index in indices):
            raise Unsupported("an index that must be checked may be reached by no lane", loc)

    def _needs_no_mask(self, array: str, mask: _Mask) -> bool:
        """Tail lanes of a padded buffer exist, and nobody looks at them."""
        padded = array in self.lanes.arrays and self.lanes.arrays[array].space in _PADDED
        return padded and not mask.conditional and not mask.beyond

    def expression(self, expr: Expr, mask: _Mask) -> Expr:
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
            test = self.expression(expr.test, mask)
            then = self.expression(expr.then, mask.also(test, conditional=True))
            orelse = self.expression(expr.orelse, mask.also(UnaryOp("not", test), conditional=True))
            if isinstance(then, Load) and then.mask is not None and _is_zero(orelse):
                return then  # lanes that are off read as zero
            return dataclasses.replace(expr, test=test, then=then, orelse=orelse)
        if isinstance(expr, BoolOp) and self._varies(expr.left):
            left = self.expression(expr.left, mask)
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

    def _load(self, expr: Load, mask: _Mask) -> Expr:
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


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0 and str(expr.value) != "-0.0"
