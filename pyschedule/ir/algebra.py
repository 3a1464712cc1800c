"""Index arithmetic and trip counts as sympy expressions: exact, over the mathematical integers.

Counters, arguments and locals become integer symbols of their name, the extents of arrays non-negative ones.
What has no exact counterpart (a float, an element of an array, arithmetic narrower than 64 bits) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import sympy

from pyschedule.errors import Unsupported
from pyschedule.ir.nodes import BinOp, BoolOp, Call, Cast, Compare, Const, Dim, Expr, For, Select, UnaryOp, Var
from pyschedule.ir.printer import format_expr
from pyschedule.ir.types import Scalar

Symbols = Mapping[str, sympy.Symbol]

_BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: sympy.floor(a / b),
    "%": sympy.Mod,  # of the divisor's sign, as Python's
    "<<": lambda a, b: a * 2**b,
    ">>": lambda a, b: sympy.floor(a / 2**b),
}
_COMPARE: Final = {
    "<": sympy.Lt,
    "<=": sympy.Le,
    ">": sympy.Gt,
    ">=": sympy.Ge,
    "==": sympy.Eq,
    "!=": sympy.Ne,
}
_CALLS: Final = {
    "pmin": sympy.Min,
    "pmax": sympy.Max,
    "minimum": sympy.Min,
    "maximum": sympy.Max,
    "abs": sympy.Abs,
    "checked_index": lambda index, extent: index + sympy.Piecewise((extent, index < 0), (0, True)),
}


def to_sympy(expr: Expr, symbols: Symbols | None = None) -> sympy.Expr:
    """An integer expression (or a bool one) in sympy; raises `Unsupported` for any other.

    `symbols` gives the symbols of some names (`"n"`, `"A.shape[0]"`), for who knows more of them.
    """
    known = symbols or {}
    match expr:
        case Const(value=bool()):
            return sympy.true if expr.value else sympy.false
        case Const(value=int()) if expr.dtype.is_integer:
            return sympy.Integer(expr.value)
        case Var() if isinstance(expr.vtype, Scalar) and expr.vtype.is_integer:
            return known.get(expr.name) or sympy.Symbol(expr.name, integer=True)
        case Dim():
            name = format_expr(expr)
            return known.get(name) or sympy.Symbol(name, integer=True, nonnegative=True)
        case BinOp() if expr.dtype.name == "int64":
            left, right = to_sympy(expr.left, known), to_sympy(expr.right, known)
            return _binary(expr, left, right)
        case UnaryOp(op="-") if expr.type == Scalar("int64"):
            return -to_sympy(expr.operand, known)
        case UnaryOp(op="~") if expr.type == Scalar("int64"):
            return -to_sympy(expr.operand, known) - 1
        case UnaryOp(op="not"):
            return sympy.Not(to_sympy(expr.operand, known))
        case Call() if expr.function in _CALLS and expr.dtype.name == "int64":
            return _CALLS[expr.function](*(to_sympy(arg, known) for arg in expr.args))
        case Cast() if expr.dtype.name == "int64":
            return to_sympy(expr.operand, known)
        case Select() if expr.dtype.name == "int64":
            test, then, orelse = (to_sympy(part, known) for part in (expr.test, expr.then, expr.orelse))
            return sympy.Piecewise((then, test), (orelse, True))
        case Compare() if expr.dtype.name == "int64":
            return _COMPARE[expr.op](to_sympy(expr.left, known), to_sympy(expr.right, known))
        case BoolOp():
            join = sympy.And if expr.op == "and" else sympy.Or
            return join(to_sympy(expr.left, known), to_sympy(expr.right, known))
    raise Unsupported(f"`{format_expr(expr)}` has no exact integer form", getattr(expr, "loc", None))


def _binary(expr: BinOp, left: sympy.Expr, right: sympy.Expr) -> sympy.Expr:
    if expr.op in _BINARY:
        return _BINARY[expr.op](left, right)
    if expr.op == "**" and right.is_nonnegative:
        return left**right
    if expr.op == "&" and right.is_Integer and right >= 0 and (right & (right + 1)) == 0:
        return sympy.Mod(left, right + 1)  # a mask of low bits
    raise Unsupported(f"`{format_expr(expr)}` has no exact integer form", expr.loc)


def trip_count(loop: For, symbols: Symbols | None = None) -> sympy.Expr:
    """How many iterations a loop has, `len(range(start, stop, step))`, for bounds of any form and a step of
    any sign: `max(0, ceiling((stop - start) / step))`.

    Raises `Unsupported` where a bound is not an exact integer expression.
    """
    start, stop, step = (to_sympy(bound, symbols) for bound in (loop.start, loop.stop, loop.step))
    return _at_least_zero(_ceiling_divided(_minus(stop, start), step))


def _minus(stop: sympy.Expr, start: sympy.Expr) -> sympy.Expr:
    """`stop - start`, taken into a minimum so that `min(i + 6, n) - i` becomes `min(6, n - i)`."""
    if isinstance(stop, (sympy.Min, sympy.Max)):
        return stop.func(*(_minus(arg, start) for arg in stop.args))
    if isinstance(start, (sympy.Min, sympy.Max)):
        other = sympy.Max if isinstance(start, sympy.Min) else sympy.Min
        return other(*(_minus(stop, arg) for arg in start.args))
    return sympy.expand(stop - start)


def _ceiling_divided(span: sympy.Expr, step: sympy.Expr) -> sympy.Expr:
    """`ceiling(span / step)`, which is monotone in `span`: rising where the step is positive."""
    if isinstance(span, (sympy.Min, sympy.Max)) and (step.is_positive or step.is_negative):
        other = sympy.Max if isinstance(span, sympy.Min) else sympy.Min
        return (span.func if step.is_positive else other)(*(_ceiling_divided(arg, step) for arg in span.args))
    return sympy.ceiling(span / step)


def _at_least_zero(count: sympy.Expr) -> sympy.Expr:
    if isinstance(count, sympy.ceiling) and count.args[0].is_nonnegative:
        return count
    return sympy.Max(0, count)
