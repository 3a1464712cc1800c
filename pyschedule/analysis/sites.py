"""Every array access of a kernel, with what is known where it runs.

The kernel is run once on symbols.  Counters and parameters are symbols of the index arithmetic that
`quasiaffine` understands; whatever it does not understand - an element that is read, a scalar after a branch -
becomes a fresh symbol, equal to itself as long as nothing that it was computed from is written.  So
`if lut[r] < n: x[lut[r]] = 0` is known to stay below `n`, although nothing is known of `lut`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pyschedule.analysis.quasiaffine import (
    TRUE,
    Formula,
    Parameters,
    Quasi,
    at_most,
    atom,
    below,
    both,
    condition,
    constant,
    equal,
    formula_symbols,
    junction,
    quasi,
    scale,
    symbols,
)
from pyschedule.analysis.quasiaffine import add as plus
from pyschedule.ir.blocks import TransposedStores
from pyschedule.ir.build import constant as literal
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    BoolOp,
    Break,
    Cast,
    Compare,
    Dim,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Location,
    Return,
    Select,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.types import BOOL, INT64, Scalar
from pyschedule.ir.visitors import (
    Body,
    children,
    contains,
    local_arrays,
    rewrite_expr,
    walk,
    walk_expr,
    written_arrays,
    written_variables,
)


@dataclass(frozen=True, slots=True)
class Site:
    """One `Load` or `Store`.

    `indices` and `extents` are one a dimension.  The access runs only where `domain` holds, a formula over
    the `unknowns` and the kernel's parameters; `exact`: it runs in all of these points.
    """

    array: Array
    indices: tuple[Quasi, ...]
    extents: tuple[Quasi, ...]
    domain: Formula
    unknowns: tuple[str, ...]
    exact: bool
    writes: bool
    loc: Location | None


def sites(kernel: Kernel, parameters: Parameters) -> list[Site]:
    """All accesses of a kernel whose indices have Python's meaning, in the order of `accesses`."""
    walker = _Walker(kernel, parameters)
    walker.body(kernel.body, _Context())
    return walker.found


def accesses(body: Body) -> Iterator[Load | Store]:
    """All accesses: statements in textual order, a `Store` before what it reads, outer loads before inner."""
    for stmt in walk(body):
        if isinstance(stmt, Store):
            yield stmt
        for child in children(stmt):
            yield from (part for part in walk_expr(child) if isinstance(part, Load))


@dataclass(frozen=True, slots=True)
class _Context:
    """Where the walk stands: what holds there, and whether all such points are reached."""

    holds: Formula = TRUE
    exact: bool = True

    def with_fact(self, fact: Formula, exact: bool = True) -> _Context:
        return _Context(both(self.holds, fact), self.exact and exact)

    def perhaps(self) -> _Context:
        return replace(self, exact=False)


@dataclass(slots=True)
class _Walker:
    kernel: Kernel
    parameters: Parameters
    found: list[Site] = field(default_factory=list)
    # What each integer variable holds now; counters and symbols are in it too.
    scope: dict[str, Quasi] = field(default_factory=dict)
    # Changes whenever a variable or an array is written.
    versions: dict[str, int] = field(default_factory=dict)
    clock: Iterator[int] = field(default_factory=itertools.count)
    arrays: dict[str, Array] = field(default_factory=dict)
    # Symbols for what is not affine: by expression and the versions of all that it reads.
    opaque: dict[object, str] = field(default_factory=dict)
    # What defines a symbol, or bounds it by its type.
    facts: dict[str, Formula] = field(default_factory=dict)
    # Symbols of which not every value that `facts` admits is taken.
    data: set[str] = field(default_factory=set)
    returned: bool = False

    def __post_init__(self) -> None:
        self.arrays = {array.name: array for array in self.kernel.array_params}
        self.arrays |= local_arrays(self.kernel.body)
        for param in self.kernel.scalar_params:
            if param.vtype == INT64:
                self.scope[param.name] = self.parameters.named(param)

    # --------------------------------------------------------------------------------------- statements

    def body(self, body: Body, context: _Context) -> None:
        for stmt in body:
            self.statement(stmt, context)
            context = self._afterwards(stmt, context)

    def _afterwards(self, stmt: Stmt, context: _Context) -> _Context:
        """What holds after a statement that may have left the body."""
        if isinstance(stmt, If):
            leaves = bool(stmt.body) and isinstance(stmt.body[-1], (Break, Return))
            if leaves and not stmt.orelse:
                # Nothing ran since the test: the branch was not taken.
                context = context.with_fact(*self._condition(stmt.test, positive=False))
        if self.returned or _breaks((stmt,)):
            context = context.perhaps()
        return context

    def statement(self, stmt: Stmt, context: _Context) -> None:
        if isinstance(stmt, For):
            self._for(stmt, context)
        elif isinstance(stmt, While):
            self._forget(stmt.body)
            self._visit(stmt.test, context.perhaps())
            inside = context.perhaps().with_fact(*self._condition(stmt.test))
            self.body(stmt.body, inside)
            self._forget(stmt.body)
        elif isinstance(stmt, If):
            self._if(stmt, context)
        elif isinstance(stmt, TransposedStores):
            self.body(stmt.body, context)
        else:
            if isinstance(stmt, Store):
                self._emit(stmt, context)
            for child in children(stmt):
                self._visit(child, context)
            if isinstance(stmt, Assign):
                self._assign(stmt)
            elif isinstance(stmt, Store):
                self._touch(stmt.array)
            elif isinstance(stmt, Alloc):
                self._touch(stmt.array.name)
            elif isinstance(stmt, Return):
                self.returned = True

    def _assign(self, stmt: Assign) -> None:
        value = self._quasi(stmt.value) if stmt.vtype == INT64 and _is_integer(stmt.value) else None
        self._touch(stmt.target)
        if value is not None:
            self.scope[stmt.target] = value

    def _if(self, stmt: If, context: _Context) -> None:
        self._visit(stmt.test, context)
        taken = self._condition(stmt.test)
        other = self._condition(stmt.test, positive=False)
        before = dict(self.scope), dict(self.versions)
        self.body(stmt.body, context.with_fact(*taken))
        self.scope, self.versions = before
        self.body(stmt.orelse, context.with_fact(*other))
        self._forget((*stmt.body, *stmt.orelse))

    def _for(self, stmt: For, context: _Context) -> None:
        for part in (stmt.start, stmt.stop, stmt.step):
            self._visit(part, context)
        start, stop, step = self._quasi(stmt.start), self._quasi(stmt.stop), literal(stmt.step)
        self._forget(stmt.body)
        counter = self._fresh()
        self.scope[stmt.var] = atom(counter)
        if not step:
            self.data.add(counter)
            inside = context.perhaps()
        else:
            inside = context.with_fact(self._range(atom(counter), start, stop, step))
        if contains(stmt.body, Return) or _breaks(stmt.body):
            inside = inside.perhaps()
        self.body(stmt.body, inside)
        self._forget(stmt.body)

    def _range(self, counter: Quasi, start: Quasi, stop: Quasi, step: int) -> Formula:
        if step > 0:
            bounds = both(at_most(start, counter), below(counter, stop))
        else:
            bounds = both(at_most(counter, start), below(stop, counter))
        if abs(step) == 1:
            return bounds
        steps = atom(self._fresh())
        return both(bounds, equal(counter, plus(start, scale(steps, step))))

    def _forget(self, body: Body) -> None:
        """After (or before an unknown number of) runs of a body nothing is known of what it writes."""
        for name in (*sorted(written_variables(body)), *sorted(written_arrays(body))):
            self._touch(name)

    def _touch(self, name: str) -> None:
        self.versions[name] = next(self.clock)
        self.scope.pop(name, None)

    def _fresh(self) -> str:
        return f"c{next(self.clock)}"

    # -------------------------------------------------------------------------------------- expressions

    def _visit(self, expr: Expr, context: _Context) -> None:
        """Finds the loads in an expression; what `and`, `or` and conditional expressions skip is not run."""
        if isinstance(expr, Load):
            self._emit(expr, context)
        if isinstance(expr, BoolOp):
            self._visit(expr.left, context)
            fact = self._condition(expr.left, positive=expr.op == "and")
            self._visit(expr.right, context.with_fact(*fact))
        elif isinstance(expr, Select):
            self._visit(expr.test, context)
            self._visit(expr.then, context.with_fact(*self._condition(expr.test)))
            self._visit(expr.orelse, context.with_fact(*self._condition(expr.test, positive=False)))
        else:
            for part in children(expr):
                self._visit(part, context)

    def _emit(self, access: Load | Store, context: _Context) -> None:
        array = self.arrays[access.array]
        indices = tuple(self._quasi(index) for index in access.indices)
        extents = tuple(self._quasi(extent) for extent in array.shape)
        domain = context.holds
        known = set(self.parameters.names.values())
        unknowns: dict[str, None] = {}
        queue = [*formula_symbols(domain), *(name for one in (*indices, *extents) for name in symbols(one))]
        while queue:
            name = queue.pop(0)
            if name in unknowns or name in known:
                continue
            unknowns[name] = None
            fact = self.facts.get(name)
            if fact is not None:
                domain = both(domain, fact)
                queue.extend(formula_symbols(fact))
        exact = context.exact and self.data.isdisjoint(unknowns)
        writes = isinstance(access, Store)
        self.found.append(Site(array, indices, extents, domain, tuple(unknowns), exact, writes, access.loc))

    def _condition(self, test: Expr, positive: bool = True) -> tuple[Formula, bool]:
        test = self._understood(rewrite_expr(test, _widened))
        return condition(test, self.scope, self.parameters, positive)

    def _quasi(self, expr: Expr) -> Quasi:
        value = quasi(self._understood(expr), self.scope, self.parameters)
        if value is None:  # no integer: whatever it is, it is not known
            value = self._symbol(expr)
        return value

    def _understood(self, expr: Expr) -> Expr:
        """`expr` with a variable in place of every integer in it that is not affine."""
        return rewrite_expr(expr, self._replacement)

    def _replacement(self, expr: Expr) -> Expr | None:
        if isinstance(expr, Dim):
            extent = self.arrays[expr.array].shape[expr.axis]
            return None if extent == expr else self._understood(extent)
        if isinstance(expr, Load) and not _is_integer(expr):
            return None
        if not _is_integer(expr) or quasi(expr, self.scope, self.parameters) is not None:
            return None
        symbol = self._symbol(expr)
        name = f"{symbol} "  # no name of the user's
        self.scope[name] = symbol
        return Var(name, INT64)

    def _symbol(self, expr: Expr) -> Quasi:
        reads = (part for part in walk_expr(expr) if isinstance(part, (Var, Load)))
        names = sorted({part.name if isinstance(part, Var) else part.array for part in reads})
        key = expr, tuple((name, self.versions.get(name, -1)) for name in names)
        name = self.opaque.get(key)
        if name is None:
            name = self.opaque[key] = self._fresh()
            self._describe(name, expr)
        return atom(name)

    def _describe(self, name: str, expr: Expr) -> None:
        """What the form of an expression says of its value."""
        symbol = atom(name)
        if isinstance(expr, Select) and expr.dtype == INT64:
            test, exact = condition(expr.test, self.scope, self.parameters)
            otherwise, _ = condition(expr.test, self.scope, self.parameters, positive=False)
            then = quasi(expr.then, self.scope, self.parameters)
            orelse = quasi(expr.orelse, self.scope, self.parameters)
            if then is not None and orelse is not None:
                self.facts[name] = junction(
                    "or", both(test, equal(symbol, then)), both(otherwise, equal(symbol, orelse))
                )
                if exact:
                    return  # a value like any other
        self.data.add(name)
        limits = _type_limits(expr)
        if limits is not None and name not in self.facts:
            least, most = limits
            self.facts[name] = both(at_most(constant(least), symbol), at_most(symbol, constant(most)))


def _is_integer(expr: Expr) -> bool:
    return isinstance(expr.type, Scalar) and expr.type.is_integer


def _widened(expr: Expr) -> Expr | None:
    """A comparison of narrow integers as one of int64, where no operand changes by conversion."""
    if isinstance(expr, Compare) and expr.dtype.is_integer and expr.dtype.bytes <= 4:
        least, most = _limits(expr.dtype)
        for operand in (expr.left, expr.right):
            number = literal(operand)
            if operand.type != expr.dtype and (number is None or not least <= number <= most):
                return None
        return replace(expr, dtype=INT64)
    return None


def _breaks(body: Body) -> bool:
    """Whether a `break` in this body leaves the loop that it is the body of."""
    for stmt in body:
        if isinstance(stmt, Break):
            return True
        if isinstance(stmt, If) and (_breaks(stmt.body) or _breaks(stmt.orelse)):
            return True
    return False


def _type_limits(expr: Expr) -> tuple[int, int] | None:
    """The range of a type narrow enough to say something of an index: `lut[image[i, j]]` with uint8 pixels."""
    if isinstance(expr, Cast) and expr.operand.type == BOOL:
        return 0, 1
    if not isinstance(expr.type, Scalar) or expr.type.bytes > 4:
        return None
    return _limits(expr.type)


def _limits(dtype: Scalar) -> tuple[int, int]:
    bits = 8 * dtype.bytes
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.kind == "i" else (0, (1 << bits) - 1)
