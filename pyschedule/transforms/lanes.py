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

from collections.abc import Callable
from dataclasses import dataclass

from pyschedule.analysis import access, reductions
from pyschedule.analysis.reductions import Reduction
from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    Broadcast,
    Cast,
    Const,
    Expr,
    For,
    If,
    Load,
    Ramp,
    Reduce,
    Stmt,
    Store,
    Var,
)
from pyschedule.ir.types import Scalar, Vector, element_of
from pyschedule.ir.visitors import (
    bodies,
    counters,
    substitute,
    variables,
    walk,
    walk_expr,
    written_variables,
)
from pyschedule.transforms import reach
from pyschedule.transforms.lane_bodies import BodyInLanes, Mask
from pyschedule.transforms.nest import Body, Names, before, conjuncts, first_access, guarded


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
        rewriter = BodyInLanes(self, Ramp(base, self.step, self.width))
        new = rewriter.statements(body, Mask(tail, beyond=tail is not None))
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
            _check_apart(loop, stmt, arrays)
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


def _check_apart(loop: For, stmt: Stmt, arrays: dict[str, Array]) -> None:
    """Lanes that sum into elements of their own must not meet in one: `c[i // 2]` is the same for two of them,
    which is legal only where lanes are combined."""
    if not isinstance(stmt, Store) or arrays[stmt.array].space == "register":
        return
    if not access.apart((stmt,), loop.var, build.constant(loop.step) or 1):
        raise Unsupported(f"lanes may meet in one element of '{stmt.array}'", stmt.loc)


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
