"""An evaluator of scalar expressions on Python's unbounded integers: the oracle of the index algebra.

It shares nothing with the package's own interpreter or constant folding."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from pyschedule.ir.nodes import BinOp, BoolOp, Call, Cast, Compare, Const, Dim, Expr, Select, UnaryOp, Var

_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_UNARY: dict[str, Callable[[Any], Any]] = {"-": operator.neg, "~": operator.invert, "not": operator.not_}
_CALLS: dict[str, Callable[..., Any]] = {"pmin": min, "pmax": max, "minimum": min, "maximum": max, "abs": abs}


def evaluate(expr: Expr, values: Mapping[str, int]) -> Any:
    """Variables by name, extents by `"A.shape[0]"`."""
    if isinstance(expr, Const):
        return expr.value
    if isinstance(expr, Var):
        return values[expr.name]
    if isinstance(expr, Dim):
        return values[f"{expr.array}.shape[{expr.axis}]"]
    if isinstance(expr, (BinOp, Compare)):
        return _BINARY[expr.op](evaluate(expr.left, values), evaluate(expr.right, values))
    if isinstance(expr, BoolOp):
        left = evaluate(expr.left, values)
        if expr.op == "and":
            return left and evaluate(expr.right, values)
        return left or evaluate(expr.right, values)
    if isinstance(expr, UnaryOp):
        operand = evaluate(expr.operand, values)
        return _UNARY[expr.op](operand)
    if isinstance(expr, Select):
        return evaluate(expr.then if evaluate(expr.test, values) else expr.orelse, values)
    if isinstance(expr, Cast) and expr.dtype.is_integer:
        return int(evaluate(expr.operand, values))
    if isinstance(expr, Call):
        return _CALLS[expr.function](*(evaluate(arg, values) for arg in expr.args))
    raise TypeError(f"no evaluation of {type(expr).__name__}")
