"""Which statements are steps of a reduction: `x = x op value`, with an associative and commutative `op`.

A step may be regrouped with the other steps on the same `x`: freely where `Reduction.exact`, else as a
permission that the caller logs.  What is matched, and why the rest is not:

* the target occurs once, reached from the root through nodes of one operation and one dtype, so that
  `x = (a + x) - b` is `x + (a - b)`, while `x = a - x` and `x = x * 2 + a` are no reductions;
* `pmax(m, x)`, Python's `max(m, x)`, keeps `m` when `x` is a NaN, so lanes started at minus infinity never
  hold one and may be combined in any order.  `pmax(x, m)` returns a NaN `x` and forgets it at the next step:
  its result depends on the order, and it is matched for integers only;
* storing must not lose what the next step reads: an integer target takes sums computed in a wider integer
  (they agree modulo its width) but no float, and no minimum computed in another type.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pyschedule.ir.nodes import (
    Assign,
    BinOp,
    BoolOp,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    If,
    Load,
    Select,
    Stmt,
    Store,
    UnaryOp,
    Var,
)
from pyschedule.ir.types import BOOL, Scalar, element_of
from pyschedule.ir.visitors import children, walk, walk_expr

#: Operations of `BinOp` that are associative and commutative on integers (and, to rounding, on floats).
_MODULAR = ("+", "*", "&", "|", "^")
_EXTREMA = ("pmin", "pmax", "minimum", "maximum")


@dataclass(frozen=True, slots=True)
class Reduction:
    """One step `target = target op value`.

    `name` is the scalar, or the array whose element `indices` is accumulated.  `dtype` is what the operation
    computes in: the type an accumulator has, at least as wide as the target.  `exact`: no order of the steps
    changes the result.  `value` has type `dtype` and does not read the target (nor its array).
    """

    op: str
    name: str
    indices: tuple[Expr, ...] | None
    value: Expr
    dtype: Scalar
    exact: bool


def match(stmt: Stmt) -> Reduction | None:
    """The reduction step that a statement is, or `None`.

    Looks at an `Assign` or an unmasked `Store`, and at `if x > m: m = x` (an `If` with that one statement).
    """
    if isinstance(stmt, If):
        return _guarded(stmt)
    if isinstance(stmt, Assign):
        return _step(stmt.value, Var(stmt.target, stmt.vtype), element_of(stmt.vtype).strong())
    if isinstance(stmt, Store) and stmt.mask is None:
        target = _element(stmt)
        return None if target is None else _step(stmt.value, target, element_of(target.type).strong())
    return None


def turned_around(stmt: Stmt) -> tuple[str, Expr, Expr] | None:
    """Of a step such as `m = min(x, m)`, which is no reduction since it keeps a NaN by its place: the name of its
    target, the value, and the one to write instead, `min(m, x)`, with which it is one.  `None` for all else."""
    if not isinstance(stmt, (Assign, Store)) or match(stmt) is not None:
        return None
    target = Var(stmt.target, stmt.vtype) if isinstance(stmt, Assign) else _element(stmt)
    if target is None:
        return None
    value = _strip(stmt.value, element_of(target.type).strong())
    if not isinstance(value, Call) or value.function not in ("pmin", "pmax"):
        return None
    instead = replace(value, args=value.args[::-1])
    return None if match(replace(stmt, value=instead)) is None else (_name(target), value, instead)


def reader(body: tuple[Stmt, ...], name: str) -> Stmt | None:
    """The first statement of a body that reads a scalar or array other than as its own reduction step: it wants
    what has been accumulated so far, so that the steps may not be kept apart."""
    for stmt in walk(body):
        step = match(stmt) if isinstance(stmt, (Assign, Store)) else None
        if step is not None and step.name == name:
            continue
        for top in children(stmt):
            for part in walk_expr(top):
                if (isinstance(part, Var) and part.name == name) or (isinstance(part, Load) and part.array == name):
                    return stmt
    return None


def identity(op: str, dtype: Scalar) -> Const:
    """The value `e` with `op(e, x) == x` for every `x` that a step may hold."""
    dtype = dtype.strong()
    if op in ("and", "or"):
        return Const(op == "and", BOOL)
    if dtype.kind == "b":
        return Const(op in ("*", "&", "pmin", "minimum"), dtype)
    if op in ("+", "|", "^"):
        return Const(0.0 if dtype.is_float else 0, dtype)
    if op == "*":
        return Const(1.0 if dtype.is_float else 1, dtype)
    if op == "&":
        return Const(-1 if dtype.kind == "i" else _range(dtype)[1], dtype)
    if op in _EXTREMA:
        smallest, largest = _range(dtype)
        return Const(largest if op.endswith(("min", "minimum")) else smallest, dtype)
    raise ValueError(f"{op!r} is not the operation of a reduction")


def combine(op: str, left: Expr, right: Expr, dtype: Scalar) -> Expr:
    """`left op right`.  `left` is the accumulator: the order matters to a NaN in `pmin` and `pmax`."""
    if op in ("and", "or"):
        return BoolOp(op, left, right)
    if op in _EXTREMA:
        return Call(op, (left, right), dtype)
    if op in _MODULAR:
        return BinOp(op, left, right, dtype)
    raise ValueError(f"{op!r} is not the operation of a reduction")


# ------------------------------------------------------------------------------------------------ matching


def _range(dtype: Scalar) -> tuple[int | float, int | float]:
    if dtype.is_float:
        return float("-inf"), float("inf")
    bits = 8 * dtype.bytes
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if dtype.kind == "i" else (0, (1 << bits) - 1)


def _element(stmt: Store) -> Load | None:
    """The load of the very element that `stmt` writes; `None` where its index reads the array itself."""
    dtype = next(
        (
            part.dtype
            for part in walk_expr(stmt.value)
            if isinstance(part, Load) and part.array == stmt.array and part.indices == stmt.indices
        ),
        None,
    )
    if dtype is None or any(_reads(index, Load(stmt.array, (), dtype)) for index in stmt.indices):
        return None
    return Load(stmt.array, stmt.indices, dtype)


def _reads(expr: Expr, target: Expr) -> bool:
    """Whether `expr` reads the target scalar, or any element of the target's array."""
    if isinstance(target, Load):
        return any(isinstance(part, Load) and part.array == target.array for part in walk_expr(expr))
    return any(isinstance(part, Var) and part.name == _name(target) for part in walk_expr(expr))


def _is_target(expr: Expr, target: Expr) -> bool:
    if isinstance(target, Load):
        return (
            isinstance(expr, Load)
            and expr.array == target.array
            and expr.indices == target.indices
            and expr.mask is None
        )
    return isinstance(expr, Var) and expr.name == _name(target)


def _name(target: Expr) -> str:
    if isinstance(target, Load):
        return target.array
    if isinstance(target, Var):
        return target.name
    raise TypeError(f"no target: {target!r}")


def _strip(expr: Expr, dtype: Scalar) -> Expr:
    """`expr` without conversions to `dtype`, which the place it stands in makes anyway."""
    while isinstance(expr, Cast) and expr.dtype.strong() == dtype:
        expr = expr.operand
    return expr


def _step(value: Expr, target: Expr, stored: Scalar) -> Reduction | None:
    value = _strip(value, stored)
    if isinstance(value, BinOp):
        if value.op in "+-":
            return _sum(value, target, stored)
        if value.op in _MODULAR:
            return _spine(value, target, stored)
    elif isinstance(value, BoolOp):
        return _logical(value, target, stored)
    elif isinstance(value, Call) and value.function in _EXTREMA and len(value.args) == 2:
        return _extremum(value.function, value.args, value.dtype.strong(), target, stored)
    elif isinstance(value, Select) and isinstance(value.test, Compare):
        return _selected(value.test, value.then, value.orelse, target, stored)
    return None


def _made(op: str, value: Expr, dtype: Scalar, target: Expr, stored: Scalar) -> Reduction | None:
    """The reduction, if its value is independent of the target and storing is harmless."""
    if _reads(value, target) or not _holds(op, dtype, stored):
        return None
    if element_of(value.type).strong() != dtype:
        value = Cast(dtype, value)
    indices = target.indices if isinstance(target, Load) else None
    exact = not dtype.is_float or op in _EXTREMA
    return Reduction(op, _name(target), indices, value, dtype, exact)


def _holds(op: str, computed: Scalar, stored: Scalar) -> bool:
    """Whether steps computed in one type and stored in another may be kept in the first and stored once.

    Floats: a wider accumulator only rounds less (and rounding is monotonic, so a minimum is the same).
    Integers: truncation commutes with `+ * & | ^`, as long as it only drops high bits.
    """
    if computed == stored:
        return computed.is_float or computed.kind != "b" or op not in ("+", "*")
    if computed.is_float and stored.is_float:
        return computed.bytes >= stored.bytes
    return computed.is_integer and stored.is_integer and op in _MODULAR and computed.bytes >= stored.bytes


def _sum(root: BinOp, target: Expr, stored: Scalar) -> Reduction | None:
    """Terms of `+` and `-` around the target, itself with a plus."""
    dtype = root.dtype.strong()
    added: list[Expr] = []
    taken: list[Expr] = []
    node: Expr = root
    negative = False
    while not _is_target(node := _strip(node, dtype), target):
        if not isinstance(node, BinOp) or node.op not in "+-" or node.dtype.strong() != dtype:
            return None
        in_left = _reads(node.left, target)
        other = node.right if in_left else node.left
        minus = node.op == "-"
        # The sign of the part that is left behind; the right operand of a minus changes it.
        (taken if negative != (minus and in_left) else added).append(other)
        negative = negative != (minus and not in_left)
        node = node.left if in_left else node.right
    if negative:
        return None
    # Outer terms were met first; the value adds them in the order in which the user's text did.
    added.reverse()
    taken.reverse()
    value = _joined("+", added, dtype) if added else UnaryOp("-", _converted(taken.pop(0), dtype))
    for term in taken:
        value = BinOp("-", value, term, dtype)
    return _made("+", value, dtype, target, stored)


def _converted(expr: Expr, dtype: Scalar) -> Expr:
    return expr if element_of(expr.type).strong() == dtype else Cast(dtype, expr)


def _joined(op: str, terms: list[Expr], dtype: Scalar) -> Expr:
    value = terms[0]
    for term in terms[1:]:
        value = BinOp(op, value, term, dtype)
    return value


def _spine(root: BinOp, target: Expr, stored: Scalar) -> Reduction | None:
    """Operands of one commutative operation around the target."""
    dtype = root.dtype.strong()
    operands: list[Expr] = []
    node: Expr = root
    while not _is_target(node := _strip(node, dtype), target):
        if not isinstance(node, BinOp) or node.op != root.op or node.dtype.strong() != dtype:
            return None
        in_left = _reads(node.left, target)
        operands.append(node.right if in_left else node.left)
        node = node.left if in_left else node.right
    operands.reverse()
    return _made(root.op, _joined(root.op, operands, dtype), dtype, target, stored)


def _logical(root: BoolOp, target: Expr, stored: Scalar) -> Reduction | None:
    if stored != BOOL:
        return None
    operands: list[Expr] = []
    node: Expr = root
    while not _is_target(node, target):
        if not isinstance(node, BoolOp) or node.op != root.op:
            return None
        in_left = _reads(node.left, target)
        operands.append(node.right if in_left else node.left)
        node = node.left if in_left else node.right
    operands.reverse()
    value = operands[0]
    for operand in operands[1:]:
        value = BoolOp(root.op, value, operand)
    return _made(root.op, value, BOOL, target, stored)


def _extremum(op: str, args: tuple[Expr, ...], dtype: Scalar, target: Expr, stored: Scalar) -> Reduction | None:
    first, second = _strip(args[0], dtype), _strip(args[1], dtype)
    if _is_target(first, target):
        return _made(op, second, dtype, target, stored)
    # With the target second a NaN would come and go with the order (see the head of this module); NumPy's
    # functions let a NaN win from either side.
    if _is_target(second, target) and (not dtype.is_float or op in ("minimum", "maximum")):
        return _made(op, first, dtype, target, stored)
    return None


def _selected(test: Compare, then: Expr, orelse: Expr, target: Expr, stored: Scalar) -> Reduction | None:
    """`x if x > m else m` is `pmax(m, x)`: a NaN on either side keeps `m`.

    `m if m > x else x` is `pmax(x, m)`; `x if x >= m else m` differs only in which of two equals is kept.
    """
    dtype = test.dtype.strong()
    if test.op not in ("<", "<=", ">", ">=") or not _is_target(_strip(orelse, dtype), target):
        if dtype.is_float or not _is_target(_strip(then, dtype), target):
            return None
        # On integers `m if test else x` is `x if not test else m`.
        flipped = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}.get(test.op)
        if flipped is None:
            return None
        return _selected(Compare(flipped, test.left, test.right, test.dtype), orelse, then, target, stored)
    left, right = _strip(test.left, dtype), _strip(test.right, dtype)
    value = _strip(then, dtype)
    if dtype != stored:  # the comparison must see what is stored
        return None
    if left == value and _is_target(right, target):
        op = "pmax" if test.op in (">", ">=") else "pmin"
    elif right == value and _is_target(left, target):
        op = "pmax" if test.op in ("<", "<=") else "pmin"
    else:
        return None
    return _made(op, value, dtype, target, stored)


def _guarded(stmt: If) -> Reduction | None:
    if stmt.orelse or len(stmt.body) != 1 or not isinstance(stmt.test, Compare):
        return None
    inner = stmt.body[0]
    if isinstance(inner, Assign):
        target: Expr = Var(inner.target, inner.vtype)
    elif isinstance(inner, Store) and inner.mask is None:
        loads = [part for part in walk_expr(stmt.test) if isinstance(part, Load)]
        found = next((one for one in loads if (one.array, one.indices) == (inner.array, inner.indices)), None)
        if found is None or any(_reads(index, found) for index in inner.indices):
            return None
        target = Load(inner.array, inner.indices, found.dtype)
    else:
        return None
    return _selected(stmt.test, inner.value, target, target, element_of(target.type).strong())
