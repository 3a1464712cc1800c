"""The functions of `math` and their NumPy twins: values, special values, and one function for body and tail."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyschedule import vectorize
from tests.contract.oracle import RNG, same


@vectorize("i", 8)
def of_math(x, out):
    for i in range(len(x)):
        out[0, i] = math.exp(x[i])
        out[1, i] = math.sin(x[i])
        out[2, i] = math.cos(x[i])
        out[3, i] = math.tan(x[i])
        out[4, i] = math.tanh(x[i])
        out[5, i] = math.atan(x[i])
        out[6, i] = math.sinh(x[i])
        out[7, i] = math.cosh(x[i])
        out[8, i] = math.erf(x[i])
        out[9, i] = math.erfc(x[i])
        out[10, i] = math.expm1(x[i])
        out[11, i] = math.asinh(x[i])
        out[12, i] = math.floor(x[i])
        out[13, i] = math.ceil(x[i])
        out[14, i] = math.fabs(x[i])
        out[15, i] = math.isnan(x[i]) + 2 * math.isinf(x[i]) + 4 * math.isfinite(x[i])
        out[16, i] = math.degrees(x[i]) + math.radians(x[i])
        out[17, i] = math.remainder(x[i], 1.5)
        out[18, i] = math.hypot(x[i], 2.0, x[i] + 1) + math.hypot(x[i])


@vectorize("i", 8)
def of_positive(x, out):
    for i in range(len(x)):
        out[0, i] = math.sqrt(x[i])
        out[1, i] = math.log(x[i])
        out[2, i] = math.log2(x[i])
        out[3, i] = math.log10(x[i])
        out[4, i] = math.log1p(x[i])
        out[5, i] = math.acosh(x[i] + 1)
        out[6, i] = math.asin(x[i] / 30)
        out[7, i] = math.acos(x[i] / 30)
        out[8, i] = math.atanh(x[i] / 30)
        out[9, i] = math.atan2(x[i], 2.0)
        out[10, i] = math.hypot(x[i], 1.5)
        out[11, i] = math.copysign(x[i], -1.0)
        out[12, i] = math.fmod(x[i], 1.5)
        out[13, i] = math.pow(x[i], 1.5)
        out[14, i] = x[i] ** 2.5
        out[15, i] = x[i] ** 3
        out[16, i] = x[i] ** -1
        out[17, i] = pow(2.0, x[i])
        out[18, i] = math.gamma(x[i])
        out[19, i] = math.lgamma(x[i])
        out[20, i] = math.log(x[i], 3)


@vectorize("i", 8)
def of_numpy(x, out):
    for i in range(len(x)):
        out[0, i] = np.exp(x[i])
        out[1, i] = np.sin(x[i])
        out[2, i] = np.cos(x[i])
        out[3, i] = np.tan(x[i])
        out[4, i] = np.tanh(x[i])
        out[5, i] = np.arctan(x[i])
        out[6, i] = np.sinh(x[i])
        out[7, i] = np.cosh(x[i])
        out[8, i] = np.expm1(x[i])
        out[9, i] = np.arcsinh(x[i])
        out[10, i] = np.floor(x[i])
        out[11, i] = np.ceil(x[i])
        out[12, i] = np.trunc(x[i])
        out[13, i] = np.fabs(x[i])
        out[14, i] = np.exp2(x[i])
        out[15, i] = np.isnan(x[i]) + 2.0 * np.isinf(x[i]) + 4.0 * np.isfinite(x[i])
        out[16, i] = np.sqrt(abs(x[i]))
        out[17, i] = np.log(abs(x[i]) + 1)
        out[18, i] = np.power(abs(x[i]), 1.5)
        out[19, i] = np.hypot(x[i], 2.0)
        out[20, i] = np.abs(x[i])
        out[21, i] = np.degrees(x[i]) + np.deg2rad(x[i])
        out[22, i] = np.cbrt(x[i])
        out[23, i] = np.fmod(x[i], 1.5)
        out[24, i] = np.remainder(x[i], 1.5)


def points(dtype, n: int) -> np.ndarray:
    return (RNG.standard_normal(n) * 3).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=str)
def test_functions_in_lanes(dtype):
    rtol = {4: 1e-5, 8: 1e-13}[np.dtype(dtype).itemsize]
    x = np.clip(points(dtype, 13), -8, 8).astype(dtype)
    same(of_math, x, np.zeros((19, 13), dtype), rtol=rtol)
    same(of_numpy, x, np.zeros((25, 13), dtype), rtol=rtol)
    same(of_positive, (abs(x) + np.ones(1, dtype)).astype(dtype), np.zeros((21, 13), dtype), rtol=rtol)


@vectorize("i", 4)
def of_integers(x, out):
    for i in range(len(x)):
        out[0, i] = math.sqrt(x[i])
        out[1, i] = np.sqrt(x[i])
        out[2, i] = math.floor(x[i]) + np.ceil(x[i]) + math.fabs(x[i])
        out[3, i] = math.atan2(x[i], 2)


def test_functions_of_integers():
    for dtype in ("int8", "uint16", "int64"):
        same(of_integers, np.arange(5).astype(dtype), np.zeros((4, 5)), rtol=1e-3 if dtype == "int8" else 1e-7)


def test_special_values():
    special = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-310,
        5e-324,
        1e308,
        -1e308,
        709.9,
        -745.5,
        88.9,
        1e16,
        0.5,
        2.5,
    ]
    for dtype, rtol in ((np.float64, 1e-14), (np.float32, 3e-6)):
        with np.errstate(all="ignore"):
            x = np.array(special).astype(dtype)
        same(of_numpy, x, np.zeros((25, len(x)), dtype), rtol=rtol)


@pytest.mark.parametrize("kernel", [of_math, of_positive, of_numpy], ids=lambda kernel: kernel.__name__)
@pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=str)
def test_body_and_tail_use_the_same_function_bit_for_bit(kernel, dtype):
    x = abs(points(dtype, 24)) + 1
    whole = np.zeros((25, 24), dtype)
    kernel(x, whole)
    for n in range(1, 17):  # the last elements of each are tails
        part = np.zeros((25, n), dtype)
        kernel(x[24 - n :].copy(), part)
        assert part.tobytes() == np.ascontiguousarray(whole[:, 24 - n :]).tobytes(), n


@vectorize
def poles(x, out):
    for i in range(len(x)):
        out[0, i] = math.gamma(x[i])
        out[1, i] = math.lgamma(x[i])
        out[2, i] = math.remainder(x[i], 0.0)
        out[3, i] = math.sqrt(x[i])
        out[4, i] = math.log(x[i])
        out[5, i] = math.fmod(np.inf, x[i])


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_where_python_would_raise_there_is_a_nan_or_an_infinity(target):
    from tests.support import call

    x, out = np.array([0.0, -0.0, -1.0, -np.inf, 200.0]), np.zeros((6, 5))
    call(poles, x, out, target=target)
    np.testing.assert_array_equal(out[0], [np.inf, -np.inf, np.nan, np.nan, np.inf])
    np.testing.assert_array_equal(out[1, :4], [np.inf] * 4)
    assert np.isnan(out[[2, 5]]).all()
    np.testing.assert_array_equal(out[3, 1:4], [0, np.nan, np.nan])
    np.testing.assert_array_equal(out[4, :4], [-np.inf, -np.inf, np.nan, np.nan])
