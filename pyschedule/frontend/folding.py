"""Constant arithmetic on Python's numbers, done once, as Python does it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from pyschedule.frontend.promotion import arithmetic
from pyschedule.frontend.surface import (
    OF_FILL,
    Apply,
    Binary,
    Branch,
    Comparison,
    Conditional,
    Convert,
    Logic,
    Number,
    Unary,
)
from pyschedule.ir.nodes import Expr, Stmt
from pyschedule.ir.types import WEAK_INT, Scalar
from pyschedule.ir.visitors import Body, rewrite

_BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "**": operator.pow,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
}
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_LARGEST: Final = 2**63


def _literal(expr: Expr) -> bool | int | float | None:
    """The value of one of Python's numbers; NumPy's scalars are computed in their dtype."""
    return expr.value if isinstance(expr, Number) and expr.dtype is None else None


def _integer(expr: Expr) -> tuple[int, Scalar] | None:
    """The value and type of an integer, Python's or NumPy's."""
    if isinstance(expr, Number) and type(expr.value) is int:
        return expr.value, WEAK_INT if expr.dtype is None else Scalar(expr.dtype)
    return None


def _of_dtype(value: int, dtype: str, like: Expr) -> Expr:
    """A NumPy integer, where the dtype holds it: what would wrap is left to run."""
    info = np.iinfo(dtype)
    return Number(value, dtype, getattr(like, "loc", None)) if info.min <= value <= info.max else like


def _number(value: Any, like: Expr) -> Expr:
    return Number(value, None, getattr(like, "loc", None)) if type(value) in (bool, int, float) else like


def fold(expr: Expr) -> Expr:
    """`expr`, whose parts are folded already, as a `Number` where it is one.

    Raises `ArithmeticError` (a division by zero, an integer out of range) where Python would, or an int64
    could not hold it.
    """
    result = _fold(expr)
    if isinstance(result, Number) and type(result.value) is int and not -_LARGEST <= result.value < 2 * _LARGEST:
        raise OverflowError("it does not fit 64 bits")
    return result


def _fold(expr: Expr) -> Expr:
    if isinstance(expr, Binary):
        left, right = _literal(expr.left), _literal(expr.right)
        if left is None or right is None:
            return _fold_integers(expr)
        if _is_huge(expr.op, left, right):
            raise OverflowError("it does not fit 64 bits")
        try:
            return _number(_BINARY[expr.op](left, right), expr)
        except (TypeError, ValueError):  # a float shifted, a negative shift: refused where it is typed
            return expr
    if isinstance(expr, Unary):
        value = _literal(expr.operand)
        if value is None:
            known = _integer(expr.operand)
            if known is None or expr.op == "not":
                return expr
            return _of_dtype(-known[0] if expr.op == "-" else ~known[0], known[1].name, expr)
        if expr.op == "not":
            return _number(not value, expr)
        if expr.op == "-":
            return _number(-value, expr)
        return _number(~int(value), expr) if not isinstance(value, float) else expr
    if isinstance(expr, Comparison):
        left, right = _literal(expr.left), _literal(expr.right)
        return expr if left is None or right is None else _number(_COMPARE[expr.op](left, right), expr)
    if isinstance(expr, Logic):
        return _fold_logic(expr)
    if isinstance(expr, Conditional):
        test = _literal(expr.test)
        return expr if test is None else expr.then if test else expr.orelse
    if isinstance(expr, Convert) and not expr.weak:
        known = _integer(expr.operand)
        if known is None:
            return expr
        if expr.dtype == OF_FILL:
            return _of_dtype(known[0], known[1].strong().name, expr)
        return _of_dtype(known[0], expr.dtype, expr) if Scalar(expr.dtype).is_integer else expr
    if isinstance(expr, Convert):
        number = _integer(expr.operand)
        value = number[0] if number is not None else _literal(expr.operand)
        if value is None or (expr.dtype == "int64" and isinstance(value, float) and not math.isfinite(value)):
            return expr
        return _number({"int64": int, "float64": float, "bool": bool}[expr.dtype](value), expr)
    if isinstance(expr, Apply):
        return _fold_call(expr)
    return expr


def _fold_integers(expr: Binary) -> Expr:
    """Arithmetic of integers, some of them NumPy's, in the type that it has; what wraps, or what NumPy warns of,
    is left to run."""
    left, right = _integer(expr.left), _integer(expr.right)
    if left is None or right is None or expr.op in ("/", "**"):
        return expr
    type_ = arithmetic(expr.op, left[1], right[1])
    if type_ is None or not type_.is_integer:
        return expr
    a, b = left[0], right[0]
    info = np.iinfo(type_.name)
    if not (info.min <= a <= info.max and info.min <= b <= info.max):
        return expr
    if (expr.op in ("//", "%") and b == 0) or (expr.op in ("<<", ">>") and not 0 <= b < 8 * type_.bytes):
        return expr
    return _of_dtype(_BINARY[expr.op](a, b), type_.name, expr)


def _is_huge(op: str, left: float, right: float) -> bool:
    """Whether a power or shift of integers is out of range beyond doubt, and not worth the memory."""
    if not isinstance(left, int) or not isinstance(right, int) or right <= 64:
        return False
    return (op == "**" and abs(left) > 1) or (op == "<<" and left != 0)


def _fold_logic(expr: Logic) -> Expr:
    """Leading constants decide or fall away; those further on stay, since what precedes may decide."""
    parts = list(expr.parts)
    while len(parts) > 1:
        value = _literal(parts[0])
        if value is None:
            break
        if bool(value) == (expr.op == "or"):
            return parts[0]
        parts.pop(0)
    return parts[0] if len(parts) == 1 else Logic(expr.op, tuple(parts), expr.loc)


def _fold_call(expr: Apply) -> Expr:
    values = [_literal(arg) for arg in expr.args]
    present = [value for value in values if value is not None]
    if len(present) < len(values):
        return expr
    if expr.function == "pmin":
        return expr.args[1] if present[1] < present[0] else expr.args[0]
    if expr.function == "pmax":
        return expr.args[1] if present[1] > present[0] else expr.args[0]
    if expr.function == "abs" and expr.home == "python":
        return _number(abs(present[0]), expr)
    if expr.home == "math" and expr.function != "abs":
        try:
            return (
                _number(float(getattr(math, expr.function)(*present)), expr)
                if (not expr.function.startswith("is"))
                else _number(getattr(math, expr.function)(*present), expr)
            )
        except (ValueError, OverflowError):  # Python raises when it runs; the kernel gives NaN or infinity
            return expr
    return expr


def live_branches(body: Body) -> Body:
    """A body without the arms that constants rule out."""

    def choose(stmt: Stmt) -> Body | None:
        if isinstance(stmt, Branch):
            test = _literal(stmt.test)
            if test is not None:
                return stmt.body if test else stmt.orelse
        return None

    return rewrite(body, statement=choose)


def refold(expr: Expr) -> Expr | None:
    """For `rewrite`: folds again after a substitution."""
    folded = fold(expr)
    return None if folded is expr else folded
