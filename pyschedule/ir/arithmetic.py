"""What the IR's operations compute, bit for bit, on scalars and on lanes: the interpreter's arithmetic.

How values are held: an int64 scalar as a Python `int`, a bool scalar as a Python `bool`, any other scalar as
a NumPy scalar of its type, a vector as a NumPy array of one axis.  Each function here takes types and returns
a Python function of values, so that types are looked at once and not at every step.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any, Final

import numpy as np

from pyschedule.ir.types import BOOL, FLOAT32, INT64, Scalar, Type, Vector, element_of, lanes_of

Function = Callable[..., Any]

_MODULUS: Final = 1 << 64
_HALF: Final = 1 << 63


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    if name == "bfloat16":
        import ml_dtypes  # needed by few

        half: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return half
    return np.dtype(name)


def held(dtype: Scalar) -> Scalar:
    """The type that values of `dtype` have in registers: halves are float32 there."""
    return FLOAT32 if dtype.is_half else dtype.strong()


def wrap(value: int) -> int:
    """A Python integer as int64 arithmetic would leave it."""
    return value if -_HALF <= value < _HALF else (value + _HALF) % _MODULUS - _HALF


def same(value: Any) -> Any:
    """The conversion that changes nothing."""
    return value


def _own(dtype: Scalar) -> Function:
    """From a NumPy scalar of `dtype` to the way such scalars are held."""
    return int if dtype == INT64 else bool if dtype == BOOL else same


def hold(value: Any, dtype: Scalar) -> Any:
    """A number (or an array's element) of type `dtype`, the way such scalars are held."""
    kept = held(dtype)
    exact = np.asarray(value).astype(numpy_dtype(dtype.name), copy=False)
    return _own(kept)(exact.astype(numpy_dtype(kept.name), copy=False)[()])


def holder(dtype: Scalar) -> Function:
    """`hold` for the elements of arrays of `dtype`."""
    if not dtype.is_half:
        return _own(dtype)
    float32 = np.float32
    return lambda value: float32(value)


# ------------------------------------------------------------------------------------------- conversions


@cache
def convert(source: Type, target: Type) -> Function:
    """From one type to another as `astype` does it; a scalar becomes a vector by broadcast."""
    start, goal = held(element_of(source)), held(element_of(target))
    lanes = lanes_of(target)
    dtype = numpy_dtype(goal.name)
    if isinstance(source, Vector):
        return same if start == goal else lambda value: value.astype(dtype)
    scalar = _scalar_conversion(start, goal)
    if lanes == 1:
        return scalar
    return lambda value: np.full(lanes, scalar(value), dtype)


def stored(source: Type, element: Scalar) -> Function:
    """From a value of type `source` (scalar or lanes) to what an array of `element` keeps, rounded once."""
    if held(element_of(source)) == element.strong():
        return same
    dtype = numpy_dtype(element.name)
    if isinstance(source, Vector):
        return lambda value: value.astype(dtype)
    return lambda value: np.asarray(value).astype(dtype)[()]


def _scalar_conversion(start: Scalar, goal: Scalar) -> Function:
    dtype = numpy_dtype(goal.name)
    if start == goal:
        return same
    if goal == BOOL:
        return bool
    if start == BOOL:
        return int if goal == INT64 else lambda value: dtype.type(value)
    if start == INT64:
        return lambda value: np.int64(value).astype(dtype)
    own = _own(goal)
    return lambda value: own(value.astype(dtype))


@cache
def cast(source: Type, dtype: Scalar) -> Function:
    """`Cast`: as `convert`, and a half type rounds."""
    if not dtype.is_half:
        return convert(source, Vector(dtype, lanes_of(source)) if isinstance(source, Vector) else dtype)
    half = numpy_dtype(dtype.name)
    if isinstance(source, Vector):
        return lambda value: value.astype(half).astype(np.float32)
    return lambda value: np.asarray(value).astype(half).astype(np.float32)[()]


# --------------------------------------------------------------------------------------------- operators


def _shift_left(value: int, count: int) -> int:
    if count < 0:
        raise ValueError("negative shift count")
    return wrap(value << count) if count < 64 else 0


def _shift_right(value: int, count: int) -> int:
    return value >> min(count, 63)


def _int_power(base: int, exponent: int) -> int:
    if exponent < 0:
        raise ValueError("integers to negative integer powers are not allowed")
    return wrap(pow(base, exponent, _MODULUS))


_INT64_OPERATORS: Final[dict[str, Function]] = {
    "+": lambda a, b: wrap(a + b),
    "-": lambda a, b: wrap(a - b),
    "*": lambda a, b: wrap(a * b),
    "//": lambda a, b: wrap(a // b),
    "%": operator.mod,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "<<": _shift_left,
    ">>": _shift_right,
    "**": _int_power,
}
_OPERATORS: Final[dict[str, Function]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.true_divide,
    "//": np.floor_divide,
    "%": np.remainder,
    "&": np.bitwise_and,
    "|": np.bitwise_or,
    "^": np.bitwise_xor,
    "<<": np.left_shift,
    ">>": np.right_shift,
    "**": np.power,
}
_COMPARISONS: Final[dict[str, Function]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}


def binary(op: str, dtype: Scalar, vector: bool) -> Function:
    """`BinOp` on two values of `dtype`.  A scalar integer divided by zero raises `ZeroDivisionError`; a lane
    gives 0, as NumPy has it, since lanes that a `Select` discards are computed too."""
    dtype = held(dtype)
    if not vector and dtype == INT64 and op in _INT64_OPERATORS:
        return _INT64_OPERATORS[op]
    compute = _OPERATORS[op]
    if vector:
        return compute
    own = _own(dtype)
    if dtype.is_integer and op in ("//", "%"):

        def divide(left: Any, right: Any) -> Any:
            if right == 0:
                raise ZeroDivisionError("integer division or modulo by zero")
            return own(compute(left, right))

        return divide
    return lambda left, right: own(compute(left, right))


def comparison(op: str, vector: bool) -> Function:
    compare = _COMPARISONS[op]
    return compare if vector else lambda left, right: bool(compare(left, right))


def unary(op: str, type_: Type) -> Function:
    element = held(element_of(type_))
    if op == "not" or (op == "~" and element == BOOL):
        return np.logical_not if isinstance(type_, Vector) else operator.not_
    if isinstance(type_, Vector) or element != INT64:
        return np.negative if op == "-" else np.invert
    return (lambda value: wrap(-value)) if op == "-" else operator.invert


# --------------------------------------------------------------------------------------------- functions


def _fma32(a: Any, b: Any, c: Any) -> Any:
    """Rounded once: the product of float32s is exact in float64, and the sum there is rounded to odd, which
    keeps what the last rounding needs (Boldo and Melquiond, 2008)."""
    product = np.multiply(a, b, dtype=np.float64)
    addend = np.asarray(c, np.float64)
    total = product + addend
    seen = total - product
    error = (product - (total - seen)) + (addend - seen)
    even = (np.asarray(total).view(np.int64) & 1) == 0
    inexact = np.isfinite(total) & (error != 0) & even
    odd = np.nextafter(total, np.where(error > 0, np.inf, -np.inf))
    return np.where(inexact, odd, total).astype(np.float32)[()]


def _fma64(a: float, b: float, c: float) -> float:
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return a * b + c
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c  # the sign of a zero
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


_RENAMED: Final = {
    "asin": "arcsin",
    "acos": "arccos",
    "atan": "arctan",
    "asinh": "arcsinh",
    "acosh": "arccosh",
    "atanh": "arctanh",
    "atan2": "arctan2",
    "pow": "power",
}


def _quiet(function: Callable[..., float], pole: float = math.nan) -> Function:
    """A function of `math` that gives `pole` or an infinity, as C's does, where Python raises."""

    def value(*args: float) -> float:
        try:
            return function(*args)
        except ValueError:
            return math.copysign(math.inf, args[0]) if args[0] == 0 and len(args) == 1 else pole
        except OverflowError:
            return math.inf

    return value


#: Functions that NumPy lacks, on single values.
SCALAR_ONLY: Final[dict[str, Function]] = {
    "erf": math.erf,
    "erfc": math.erfc,
    "gamma": _quiet(math.gamma),
    "lgamma": _quiet(lambda x: math.lgamma(x) if x else math.inf, math.inf),
    "remainder": _quiet(math.remainder),
}
#: Python's `min` and `max`: where an operand is a NaN, its place decides.  On scalars, and on lanes.
_BY_PLACE: Final[dict[str, tuple[Function, Function]]] = {
    "pmin": (lambda a, b: b if b < a else a, lambda a, b: np.where(b < a, b, a)),
    "pmax": (lambda a, b: b if b > a else a, lambda a, b: np.where(b > a, b, a)),
}


def _lanewise(name: str, dtype: Scalar) -> Function:
    if name in _BY_PLACE:
        return _BY_PLACE[name][1]
    if name == "fma":
        if dtype == FLOAT32:
            return _fma32
        return np.vectorize(_fma64, otypes=[np.float64]) if dtype.is_float else lambda a, b, c: a * b + c
    if name in SCALAR_ONLY:
        return np.vectorize(SCALAR_ONLY[name], otypes=[numpy_dtype(dtype.name)])
    function: Function = getattr(np, _RENAMED.get(name, name))
    return function


def function(name: str, dtype: Scalar, vector: bool) -> Function:
    """A function of `ir.functions` (short of `checked_index`) on values of the type it computes in."""
    dtype = held(dtype)
    if name in _BY_PLACE and not vector:
        return _BY_PLACE[name][0]
    compute = _lanewise(name, dtype)
    if vector:
        return compute
    own = _own(dtype)
    numpy_type = numpy_dtype(dtype.name).type
    return lambda *values: own(numpy_type(compute(*values)))


def reduction(op: str, type_: Type) -> Function:
    """All lanes combined, first to last; a scalar is its own reduction."""
    element = held(element_of(type_))
    if not isinstance(type_, Vector):
        return same
    own = _own(element)
    if op in ("and", "or"):
        return lambda value: bool(value.all() if op == "and" else value.any())
    step = _OPERATORS[op] if op in _OPERATORS else _lanewise(op, element)
    return lambda value: own(functools.reduce(step, value)[()])


def garbage(dtype: Scalar, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An array that nobody has written: NaN, or a pattern that no sum of small numbers hits."""
    array = np.empty(shape, numpy_dtype(dtype.name))
    array.fill(math.nan if dtype.is_float else int.from_bytes(b"\x5a" * dtype.bytes, "little"))
    return array
