"""What integer expressions leave when they are divided by a constant.

    for k in range(8, n, 4):        residue(k, 4) is 0, so that (k + 1) & 3 is 1 and (k + 6) % 4 is 2;
        S(k)                        residue(k, 3) is not known: the step moves it

A counter keeps its residue where the modulus divides its loop's constant step; the residue is that of the start,
which may be an outer counter (`range(i_0, min(i_0 + 4, n))`) or a multiple of the modulus (`range(4 * j, n, 4)`).
Extents, scalars and elements of arrays have no known residue, but multiples of them do.

What may wrap at the end of an integer type keeps its residues modulo powers of two only.  Counters do not wrap,
nor does what is counted with them and with constants and extents alone.  Not handled: divisors and masks that are
not constant, residues that a test around the expression tells, relations between two counters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import Final

from pyschedule.ir.build import constant
from pyschedule.ir.nodes import BinOp, Call, Cast, Compare, Const, Dim, Expr, For, Select, UnaryOp, Var
from pyschedule.ir.types import Scalar, element_of
from pyschedule.ir.visitors import walk_expr

Loops = Mapping[str, For]

_EXTREMA = ("pmin", "minimum", "pmax", "maximum")
_WIDEST: Final = 1 << 62


def residue(expr: Expr, modulus: int, loops: Loops) -> int | None:
    """The remainder, in `0 <= r < modulus`, that the value of a scalar integer expression always leaves.

    `loops`: those around the expression, by their counters.  `None` where it is not known.
    """
    if not isinstance(expr.type, Scalar) or not expr.type.is_integer:
        return None
    if not _wraps_evenly(modulus) and any(_is_unbounded(part, loops) for part in walk_expr(expr)):
        return None
    return _residue(expr, modulus, loops)


def remainder(expr: BinOp, loops: Loops) -> int | None:
    """The value of `e % d` and of `e & mask`, for a constant on the right, where it is always the same.

    `d` may be negative: the remainder then lies in `d < r <= 0`, as Python's does.
    """
    number = _number(expr)
    if number is None or not -_WIDEST < number < _WIDEST:
        return None
    if expr.op == "%" and number:
        rest = _converted(expr.left, abs(number), expr.dtype, loops)
        return None if rest is None else rest + number if number < 0 < rest else rest
    if expr.op != "&" or number < 0:
        return None
    rest = _converted(expr.left, 1 << number.bit_length(), expr.dtype, loops)
    return None if rest is None else rest & number


def _wraps_evenly(modulus: int) -> bool:
    """Whether a sum that wraps at the end of 64 bits keeps its residue."""
    return modulus & (modulus - 1) == 0


def _is_unbounded(expr: Expr, loops: Loops) -> bool:
    """Whether a part of an expression may have any value of its type, so that arithmetic with it may wrap."""
    if isinstance(expr, Var):
        return expr.name not in loops
    if isinstance(expr, Call):
        return expr.function not in (*_EXTREMA, "abs")
    return not isinstance(expr, (Const, Dim, BinOp, UnaryOp, Compare, Select, Cast))


def _residue(expr: Expr, modulus: int, loops: Loops) -> int | None:
    if modulus == 1:
        return 0
    if isinstance(expr, Const):
        return int(expr.value) % modulus
    if isinstance(expr, Var):
        loop = loops.get(expr.name)
        step = None if loop is None else constant(loop.step)
        return residue(loop.start, modulus, loops) if loop is not None and step and step % modulus == 0 else None
    if isinstance(expr, BinOp):
        rule = _RULES.get(expr.op)
        return None if rule is None else rule(expr, modulus, loops)
    if isinstance(expr, UnaryOp) and expr.op in ("-", "~"):
        rest = residue(expr.operand, modulus, loops) if _fits(modulus, element_of(expr.type)) else None
        return None if rest is None else (-rest if expr.op == "-" else -1 - rest) % modulus
    if isinstance(expr, Cast):
        return _converted(expr.operand, modulus, expr.dtype, loops)
    if isinstance(expr, Call) and expr.function in _EXTREMA:
        return _agreed([_converted(arg, modulus, expr.dtype, loops) for arg in expr.args])
    if isinstance(expr, Select):
        return _agreed([_converted(arm, modulus, expr.dtype, loops) for arm in (expr.then, expr.orelse)])
    return None


def _agreed(rests: list[int | None]) -> int | None:
    return rests[0] if len(set(rests)) == 1 else None


# -------------------------------------------------------------------------------------- types and wrapping


def _fits(modulus: int, dtype: Scalar) -> bool:
    """Whether arithmetic in a type keeps the residue: nothing wraps, or it wraps by a multiple of the modulus."""
    return (1 << 8 * dtype.bytes) % modulus == 0 or dtype.name == "int64"


def _keeps_value(expr: Expr, dtype: Scalar) -> bool:
    """Whether conversion to a type leaves every value of an integer expression as it is."""
    kind = expr.type
    if not isinstance(kind, Scalar) or not kind.is_integer:
        return False
    if kind.kind == dtype.kind:
        return kind.bytes <= dtype.bytes
    return kind.kind == "u" and kind.bytes < dtype.bytes


def _converted(expr: Expr, modulus: int, dtype: Scalar, loops: Loops) -> int | None:
    """The residue of an operand of an operation in `dtype`, which is converted to that type first."""
    kind = expr.type
    if not isinstance(kind, Scalar) or not kind.is_integer or not dtype.is_integer or modulus >= _WIDEST:
        return None
    if not _keeps_value(expr, dtype) and (1 << 8 * dtype.bytes) % modulus:
        return None
    return residue(expr, modulus, loops)


# -------------------------------------------------------------------------------------------- operations


def _number(expr: BinOp) -> int | None:
    """A constant on the right, if the operation takes it at its value."""
    return constant(expr.right) if _keeps_value(expr.right, expr.dtype) else None


def _sum(expr: BinOp, modulus: int, loops: Loops) -> int | None:
    if not _fits(modulus, expr.dtype):
        return None
    left = _converted(expr.left, modulus, expr.dtype, loops)
    right = None if left is None else _converted(expr.right, modulus, expr.dtype, loops)
    if left is None or right is None:
        return None
    return (left + right if expr.op == "+" else left - right) % modulus


def _product(expr: BinOp, modulus: int, loops: Loops) -> int | None:
    """A multiple needs less of what it multiplies: `6 * x` modulo 4 needs `x` modulo 2."""
    if not _fits(modulus, expr.dtype):
        return None
    for factor, other in ((expr.left, expr.right), (expr.right, expr.left)):
        number = constant(factor)
        if number is not None and _keeps_value(factor, expr.dtype):
            rest = _converted(other, modulus // gcd(number, modulus), expr.dtype, loops)
            return None if rest is None else number * rest % modulus
    left = _converted(expr.left, modulus, expr.dtype, loops)
    right = None if left is None else _converted(expr.right, modulus, expr.dtype, loops)
    return None if left is None or right is None else left * right % modulus


def _quotient(expr: BinOp, modulus: int, loops: Loops) -> int | None:
    """`(q * d * m + r) // d` leaves `r // d` modulo m."""
    number = _number(expr)
    if number is None or not _keeps_value(expr.left, expr.dtype):
        return None
    if expr.op == ">>":
        number = 1 << number if 0 <= number < 62 else 0
    if number <= 0:
        return None
    rest = _converted(expr.left, number * modulus, expr.dtype, loops)
    return None if rest is None else rest // number


def _remainder(expr: BinOp, modulus: int, loops: Loops) -> int | None:
    """Known altogether, or `e % d` of a modulus that divides d; bits, for a modulus that is a power of two."""
    whole = remainder(expr, loops)
    if whole is not None:
        return whole % modulus
    number = _number(expr)
    if expr.op == "%":
        if not number or number % modulus:
            return None
        return _converted(expr.left, modulus, expr.dtype, loops)
    return _bits(expr, modulus, loops)


def _bits(expr: BinOp, modulus: int, loops: Loops) -> int | None:
    """The low bits of `&`, `|` and `^` come from the low bits of both operands."""
    if not _wraps_evenly(modulus) or not _fits(modulus, expr.dtype):
        return None
    left = _converted(expr.left, modulus, expr.dtype, loops)
    right = None if left is None else _converted(expr.right, modulus, expr.dtype, loops)
    if left is None or right is None:
        return None
    return left & right if expr.op == "&" else left | right if expr.op == "|" else left ^ right


def _shifted(expr: BinOp, modulus: int, loops: Loops) -> int | None:
    number = _number(expr)
    if number is None or not 0 <= number < 8 * expr.dtype.bytes or not _fits(modulus, expr.dtype):
        return None
    rest = _converted(expr.left, modulus // gcd(1 << number, modulus), expr.dtype, loops)
    return None if rest is None else (rest << number) % modulus


_RULES: Final[Mapping[str, Callable[[BinOp, int, Loops], int | None]]] = {
    "+": _sum,
    "-": _sum,
    "*": _product,
    "//": _quotient,
    ">>": _quotient,
    "%": _remainder,
    "&": _remainder,
    "|": _bits,
    "^": _bits,
    "<<": _shifted,
}
