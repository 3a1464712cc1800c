"""The functions that `Call` and `Reduce` may name, with their arity and the type rule of their result."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Function:
    """`result`: `"float"` (computed in the float type of the arguments), `"same"` (the promoted type of the
    arguments), `"bool"`, or `"int"`."""

    name: str
    arity: int
    result: str = "float"


_UNARY_MATH: Final = (
    *("sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p"),
    *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh"),
    *("cbrt", "erf", "erfc", "gamma", "lgamma", "floor", "ceil", "trunc"),
)
#: `remainder` is that of `math`, to the nearest multiple; NumPy's is the operator `%`.
_BINARY_MATH: Final = ("atan2", "hypot", "copysign", "fmod", "remainder", "pow")

FUNCTIONS: Final = {
    function.name: function
    for function in (
        *(Function(name, 1) for name in _UNARY_MATH),
        *(Function(name, 2) for name in _BINARY_MATH),
        Function("fma", 3),
        Function("abs", 1, "same"),
        # Python's min and max: `pmax(a, b)` is `b if b > a else a`, so a NaN counts by its place.
        Function("pmin", 2, "same"),
        Function("pmax", 2, "same"),
        # NumPy's: a NaN on either side wins.
        Function("minimum", 2, "same"),
        Function("maximum", 2, "same"),
        Function("isnan", 1, "bool"),
        Function("isinf", 1, "bool"),
        Function("isfinite", 1, "bool"),
        # (index, extent): Python's negative index made explicit; IndexError where it is out of range.
        Function("checked_index", 2, "int"),
    )
}

#: Associative operations: the ones a reduction may be split by.  `pmax` as `m = pmax(m, x)` only.
REDUCTIONS: Final = ("+", "*", "pmin", "pmax", "minimum", "maximum", "&", "|", "^", "and", "or")
