"""Constructors of int64 index arithmetic that fold constants and the plainest identities as they build."""

from __future__ import annotations

from typing import TypeGuard

from pyschedule.ir.nodes import BinOp, BoolOp, Call, Compare, Const, Expr
from pyschedule.ir.types import BOOL, INT64, Scalar


def const(value: int) -> Const:
    return Const(value, INT64)


ZERO = const(0)
ONE = const(1)
TRUE = Const(True, BOOL)
FALSE = Const(False, BOOL)


def constant(expr: Expr) -> int | None:
    """The value of an integer constant, else `None`."""
    if isinstance(expr, Const) and not isinstance(expr.value, float):
        return int(expr.value)
    return None


def _is_int64(expr: Expr, *operators: str) -> TypeGuard[BinOp]:
    """An operation that wraps as int64 does: only such may be regrouped (a narrower one wraps earlier)."""
    return isinstance(expr, BinOp) and expr.op in operators and expr.dtype.name == "int64"


def wrapped(value: int) -> int:
    """The number that stands for `value` in int64 arithmetic."""
    return (value + (1 << 63)) % (1 << 64) - (1 << 63)


def _wrapped(value: int) -> Const:
    """A folded constant, wrapped as the operation would have."""
    return const(wrapped(value))


def _as_expr(value: Expr | int) -> Expr:
    return const(value) if isinstance(value, int) else value


def add(left: Expr | int, right: Expr | int) -> Expr:
    """`left + right`, constants gathered on the right: `(x + 2) + 3` becomes `x + 5`."""
    left, right = _as_expr(left), _as_expr(right)
    a, b = constant(left), constant(right)
    if a is not None and b is not None:
        return _wrapped(a + b)
    if a is not None:
        left, right, a, b = right, left, b, a
    if b == 0:
        return left
    if b is not None and _is_int64(left, "+", "-"):
        inner = constant(left.right)
        if inner is not None:
            return add(left.left, _wrapped(b + (inner if left.op == "+" else -inner)))
    if b is not None and -(1 << 63) < b < 0:
        return BinOp("-", left, const(-b), INT64)
    return BinOp("+", left, right, INT64)


def sub(left: Expr | int, right: Expr | int) -> Expr:
    left, right = _as_expr(left), _as_expr(right)
    if left == right:
        return ZERO
    b = constant(right)
    if b is not None:
        return add(left, -b)
    if _is_int64(left, "+"):  # (x + y) - x
        if left.left == right:
            return left.right
        if left.right == right:
            return left.left
    if _is_int64(left, "-") and left.left == right:  # (x - 2) - x
        taken = constant(left.right)
        if taken is not None:
            return _wrapped(-taken)
    return BinOp("-", left, right, INT64)


def mul(left: Expr | int, right: Expr | int) -> Expr:
    left, right = _as_expr(left), _as_expr(right)
    a, b = constant(left), constant(right)
    if a is not None and b is not None:
        return _wrapped(a * b)
    if a is not None:
        left, right, a, b = right, left, b, a
    if b == 1:
        return left
    if b == 0:
        return ZERO
    return BinOp("*", left, right, INT64)


def floordiv(left: Expr | int, right: Expr | int) -> Expr:
    left, right = _as_expr(left), _as_expr(right)
    a, b = constant(left), constant(right)
    if a is not None and b:
        return _wrapped(a // b)
    if b == 1:
        return left
    return BinOp("//", left, right, INT64)


def mod(left: Expr | int, right: Expr | int) -> Expr:
    left, right = _as_expr(left), _as_expr(right)
    a, b = constant(left), constant(right)
    if a is not None and b:
        return const(a % b)
    if b == 1:
        return ZERO
    return BinOp("%", left, right, INT64)


def ceildiv(left: Expr | int, right: int) -> Expr:
    """`ceil(left / right)` for a positive constant `right`."""
    return floordiv(add(left, right - 1), right)


def minimum(left: Expr | int, right: Expr | int) -> Expr:
    left, right = _as_expr(left), _as_expr(right)
    if left == right:
        return left
    a, b = constant(left), constant(right)
    if a is not None and b is not None:
        return const(min(a, b))
    return Call("pmin", (left, right), INT64)


def maximum(left: Expr | int, right: Expr | int) -> Expr:
    left, right = _as_expr(left), _as_expr(right)
    if left == right:
        return left
    a, b = constant(left), constant(right)
    if a is not None and b is not None:
        return const(max(a, b))
    return Call("pmax", (left, right), INT64)


_COMPARE = {
    "<": int.__lt__,
    "<=": int.__le__,
    ">": int.__gt__,
    ">=": int.__ge__,
    "==": int.__eq__,
    "!=": int.__ne__,
}


def compare(op: str, left: Expr | int, right: Expr | int, dtype: Scalar = INT64) -> Expr:
    """`left op right` computed in `dtype`; folded only where that is int64, the meaning of `_COMPARE`."""
    left, right = _as_expr(left), _as_expr(right)
    a, b = constant(left), constant(right)
    if a is not None and b is not None and dtype.name == "int64":
        return Const(bool(_COMPARE[op](a, b)), BOOL)
    return Compare(op, left, right, dtype)


def both(left: Expr, right: Expr) -> Expr:
    """`left and right`."""
    if left == TRUE or right == FALSE:
        return right
    if right == TRUE or left == FALSE:
        return left
    return BoolOp("and", left, right)


def all_of(tests: list[Expr] | tuple[Expr, ...]) -> Expr:
    result: Expr = TRUE
    for test in tests:
        result = both(result, test)
    return result
