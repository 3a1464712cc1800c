"""exp, tanh and erf of float32, for scalars and for all lanes of a vector at once, with the same bits.

Each is a reduction of the argument to an interval, a polynomial there, and no branch; the library's functions would
be called lane by lane.  The polynomials are fitted to the functions (least squares, reweighted until the largest
error is least) with relative errors below 5e-9, so that what is left are the roundings of float32: a result is
within two units in the last place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyschedule.codegen.simd.types import INT32, call_intrinsic, constant, lanes_in, widened

#: (exp(r) - 1 - r) / r**2 for |r| <= log(2) / 2.
_EXP: Final = (0.499999931, 0.166665148, 0.0416684568, 0.00836941904, 0.00138131424)
#: (tanh(a) / a - 1) / a**2 in powers of a**2, for a <= 0.625.
_TANH: Final = (-0.333332839, 0.133314917, -0.0537435327, 0.0206507078, -0.00571718753)
#: erf(a) / a - 1 in powers of a**2, for a <= 1.
_ERF: Final = (0.12837917, -0.376126271, 0.112836002, -0.0268544446, 0.00518953534, -0.000802084128, 7.88911954e-05)
#: log(erfc(a)) for 1 <= a <= 4.
_LOG_ERFC: Final = (
    *(-0.00035370893, -1.12704008, -0.638225602, -0.103037436),
    *(0.0218053512, -0.00293961573, 0.000185574893),
)

#: log(2) as two numbers, of which the first has few digits: its multiples are exact.
_LOG2_HIGH: Final = 0.693145751953125
_LOG2_LOW: Final = 1.42860677e-06
#: Added to a number below 2**22, it leaves the nearest integer in the low bits.
_ROUNDER: Final = 12582912.0
_ROUNDER_BITS: Final = 0x4B400000


def exp(builder: Any, x: Any) -> Any:
    """`2**n * exp(r)`, `n` the integer nearest to `x / log(2)`; infinity above 88.72, 0 below -103.97."""
    number = _Numbers(builder, x.type)
    x = number.clipped(x, -104.0, 89.0)
    shifted = number.fma(x, number(1.4426950408889634), number(_ROUNDER))
    n = builder.fsub(shifted, number(_ROUNDER))
    r = number.fma(n, number(-_LOG2_LOW), number.fma(n, number(-_LOG2_HIGH), x))
    value = number.fma(number.polynomial(r, _EXP), builder.fmul(r, r), builder.fadd(r, number(1.0)))
    # 2**n by its bits, in two steps: n may be beyond the exponents that there are.
    bits = builder.sub(builder.bitcast(shifted, number.integers), number.integer(_ROUNDER_BITS))
    half = builder.ashr(bits, number.integer(1))
    for exponent in (half, builder.sub(bits, half)):
        power = builder.shl(builder.add(exponent, number.integer(127)), number.integer(23))
        value = builder.fmul(value, builder.bitcast(power, x.type))
    return value


def tanh(builder: Any, x: Any) -> Any:
    """A polynomial up to 0.625, beyond it `1 - 2 / (exp(2 * |x|) + 1)`."""
    number = _Numbers(builder, x.type)
    size = call_intrinsic(builder, "fabs", x.type, [x])
    square = builder.fmul(x, x)
    near = number.fma(builder.fmul(square, size), number.polynomial(square, _TANH), size)
    power = exp(builder, builder.fadd(size, size))
    far = builder.fsub(number(1.0), builder.fdiv(number(2.0), builder.fadd(power, number(1.0))))
    result = builder.select(builder.fcmp_ordered("<", size, number(0.625)), near, far)
    return call_intrinsic(builder, "copysign", x.type, [result, x])


def erf(builder: Any, x: Any) -> Any:
    """A polynomial up to 1, beyond it `1 - exp(log(erfc(|x|)))` with a polynomial for the logarithm."""
    number = _Numbers(builder, x.type)
    size = call_intrinsic(builder, "fabs", x.type, [x])
    square = builder.fmul(x, x)
    near = number.fma(size, number.polynomial(square, _ERF), size)
    most = number.clipped(size, 1.0, 4.0)
    far = builder.fsub(number(1.0), exp(builder, number.polynomial(most, _LOG_ERFC)))
    result = builder.select(builder.fcmp_ordered("<", size, number(1.0)), near, far)
    return call_intrinsic(builder, "copysign", x.type, [result, x])


class _Numbers:
    """Constants and steps of computations in one type: float32, or a vector of it."""

    def __init__(self, builder: Any, kind: Any) -> None:
        self._builder, self._kind = builder, kind
        self.integers = widened(INT32, lanes_in(constant(kind, 0.0)))

    def __call__(self, value: float) -> Any:
        return constant(self._kind, value)

    def integer(self, value: int) -> Any:
        return constant(self.integers, value)

    def fma(self, x: Any, y: Any, z: Any) -> Any:
        return call_intrinsic(self._builder, "fma", self._kind, [x, y, z])

    def clipped(self, x: Any, least: float, most: float) -> Any:
        """A NaN stays one."""
        builder = self._builder
        x = builder.select(builder.fcmp_ordered("<", x, self(least)), self(least), x)
        return builder.select(builder.fcmp_ordered(">", x, self(most)), self(most), x)

    def polynomial(self, x: Any, coefficients: Sequence[float]) -> Any:
        """By W. G. Horner's scheme; the coefficient of the lowest power comes first."""
        *others, value = map(self, coefficients)
        for coefficient in reversed(others):
            value = self.fma(value, x, coefficient)
        return value
