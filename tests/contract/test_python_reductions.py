"""Reductions in lanes, copies and tiles: sums, products, extremes with NaNs anywhere, bits; and strict_math."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from pyschedule import ScheduleWarning, poll, tile, unroll, vectorize
from tests.contract.oracle import RNG, numbers, same, scheduled

SCHEDULES = {
    "lanes": (vectorize("i", 8), unroll("i", 2)),
    "copies": (unroll("i", 4),),
    "tiles": (tile(i=5), vectorize("i", 4)),
}
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
pytestmark = pytest.mark.filterwarnings("ignore::pyschedule.ScheduleWarning")


def all_kinds(x, out):
    total = 0.0
    product = 1
    most = x[0]
    least = x[0]
    numpys = x[0]
    down = 0
    longer = 0
    for i in range(len(x)):
        total += x[i]
        down -= x[i]
        most = max(most, x[i])
        if x[i] < least:
            least = x[i]
        numpys = np.maximum(numpys, x[i])
        longer = longer + x[i] + 1
        product *= 2 if i % 7 == 0 else 1
    out[0] = total
    out[1] = product
    return total, product, most, least, numpys, down, longer


@each_schedule
def test_every_kind_of_reduction(schedule):
    kernel = scheduled(all_kinds, *schedule)
    for dtype in ("float64", "float32", "int32", "uint8"):
        for n in (1, 7, 37):
            x = np.round(RNG.standard_normal(n) * 4).astype(dtype)
            same(kernel, x, np.zeros(2), rtol=1e-6)


def extremes(x, first, second):
    most = first
    least = first
    kept = first
    numpys = second
    lowest = second
    for i in range(len(x)):
        most = max(most, x[i])
        least = min(x[i], least)
        if x[i] > kept:
            kept = x[i]
        numpys = np.maximum(numpys, x[i])
        lowest = np.minimum(lowest, x[i])
    return most, least, kept, numpys, lowest


@each_schedule
def test_a_nan_counts_by_its_place_in_python_and_always_in_numpy(schedule):
    kernel = scheduled(extremes, *schedule)
    for places in ([], [0], [3], [8], [4, 5, 6, 7], list(range(9)), [2, 9]):
        x = numbers("float64", 11)
        x[places] = math.nan
        for first in (-math.inf, math.nan, 0.5):
            same(kernel, x, np.float64(first), np.float64(0.1), types=False)


def by_rows(x, most, least, sums):
    for i in range(x.shape[0]):
        most[i] = x[i, 0]
        least[i] = x[i, 0]
        sums[i] = 0
        for j in range(x.shape[1]):
            most[i] = max(most[i], x[i, j])
            if x[i, j] < least[i]:
                least[i] = x[i, j]
            sums[i] -= x[i, j]


@pytest.mark.parametrize("schedule", [(tile(i=2), vectorize("j", 4)), (vectorize("i", 4),), (unroll("i", 2),)])
def test_elements_that_hold_an_extreme(schedule):
    for places in ([], [0], [5], [0, 5]):
        x = numbers("float64", 5, 9)
        x[:, places] = math.nan
        same(scheduled(by_rows, *schedule), x, np.zeros(5), np.zeros(5), np.zeros(5), rtol=1e-12)


def of_integers(x):
    total = x[0] - x[0]
    either = total
    both = ~total
    odd = total
    product = total + 1
    some = False
    every = True
    for i in range(len(x)):
        total += x[i]
        either |= x[i]
        both &= x[i]
        odd ^= x[i]
        product *= x[i]
        some = some or x[i] > 100
        every = every and x[i] != 3
    return total, either, both, odd, product, some, every


@each_schedule
def test_integers_wrap_in_every_order(schedule):
    kernel = scheduled(of_integers, *schedule)
    for dtype in ("int8", "uint16", "int64", "uint64"):
        for n in (1, 9, 40):
            same(kernel, numbers(dtype, n) | 1)


# --------------------------------------------------------------------------------------------------- strict_math


def product(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            s = 0.0
            for k in range(A.shape[1]):
                s += A[i, k] * B[k, j]
            C[i, j] = 2.0 * s + C[i, j] * 0.5


def normalised(x, out, eps):
    for i in range(x.shape[0]):
        mean = 0.0
        for j in range(x.shape[1]):
            mean += x[i, j]
        mean /= x.shape[1]
        spread = 0.0
        for j in range(x.shape[1]):
            spread += (x[i, j] - mean) * (x[i, j] - mean)
        spread = spread / x.shape[1]
        for j in range(x.shape[1]):
            out[i, j] = (x[i, j] - mean) / math.sqrt(spread + eps)


def formulas(x, y, out):
    for i in range(len(x)):
        out[0, i] = x[i] * y[i] + x[i] - y[i] * 3.0
        out[1, i] = x[i] / y[i] + x[i] // y[i] - x[i] % y[i]
        out[2, i] = x[i] ** 2
        out[3, i] = x[i] ** 3 + x[i] ** -1
        out[4, i] = 2.0 ** x[i] + 10.0 ** y[i]
        out[5, i] = abs(x[i]) ** 0.5 + abs(x[i]) ** y[i]
        out[6, i] = -x[i] * 0.0
        out[7, i] = x[i] / 3.0 + x[i] * 0.1
        out[8, i] = math.exp(y[i]) * math.sin(x[i]) + math.atan(y[i])
        out[9, i] = math.fmod(x[i], y[i]) + math.sqrt(abs(x[i]))


STRICT = {
    "all": (tile(i=4, j=8, k=3), vectorize("j", 8), unroll("i", 2), poll(strict_math=True)),
    "reduction": (vectorize("k", 4, strict_math=True), unroll("k", 2)),
    "staged": (
        tile(i=(8, 2), j=(16, 8), k=7, stage={"B": "k.0"}, strict_math=True),
        vectorize("j", 4),
        unroll("i"),
    ),
}


@pytest.mark.parametrize("schedule", STRICT.values(), ids=STRICT)
def test_strict_math_is_python_bit_for_bit(schedule):
    for M, N, K in ((1, 1, 1), (5, 17, 11), (9, 16, 0)):
        same(
            scheduled(product, *schedule),
            numbers("float64", M, K),
            numbers("float64", K, N),
            numbers("float64", M, N),
        )


def test_strict_math_in_rows_and_formulas():
    for schedule in ((tile(i=2), vectorize("j", 8, strict_math=True)), (vectorize("i", 4, strict_math=True),)):
        same(scheduled(normalised, *schedule), numbers("float64", 5, 17), np.zeros((5, 17)), 1e-5)
    x, y = RNG.standard_normal(1000) * 3, RNG.standard_normal(1000) * 2
    same(vectorize("i", 8, strict_math=True)(formulas), x, y, np.zeros((10, 1000)), targets=("cpu",))


# ------------------------------------------------------------------------------------- extrema the other way around


def least(x):
    m = np.inf
    for i in range(x.shape[0]):
        m = min(x[i], m)
    return m


def least_of_integers(x):
    m = 1 << 40
    for i in range(x.shape[0]):
        m = min(x[i], m)
    return m


def row_maxima(x, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i] = max(abs(x[i, j]), out[i])


def largest_so_far(x, out):
    m = 0.0
    for i in range(x.shape[0]):
        m = x[i] if m < x[i] else m
        out[i] = min(m, x[i])


@pytest.mark.parametrize(
    "decorate", [vectorize("i", 4), tile(i=4, parallel="i.0")], ids=["Vectorization", "Parallelization"]
)
def test_an_extremum_with_its_accumulator_last_says_which_is_a_reduction(decorate):
    kernel = decorate(least)
    with pytest.warns(ScheduleWarning, match=r"`min\(x\[i\], m\)` .* is no reduction; `min\(m, x\[i\]\)` is one"):
        log = str(kernel.lower(np.zeros(9)).log)
    assert "`min(m, x[i])` is one" in log
    with_nans = np.array([3.0, np.nan, 5.0, 4.0, np.nan, 6.0, 7.0, 8.0, 9.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        assert decorate(least)(with_nans) == least(with_nans) == 6.0


def test_an_element_is_named_in_the_users_words():
    kernel = vectorize("j", 4)(row_maxima)
    with pytest.warns(
        ScheduleWarning, match=r"`max\(abs\(x\[i, j\]\), out\[i\]\)` .*`max\(out\[i\], abs\(x\[i, j\]\)\)` is"
    ):
        kernel.lower(np.zeros((3, 9)), np.zeros(3))


def test_integers_need_no_advice_nor_does_what_is_in_the_way_for_another_reason():
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScheduleWarning)
        vectorize("i", 4)(least_of_integers).lower(np.zeros(9, np.int64))
    with pytest.warns(ScheduleWarning) as caught:
        vectorize("i", 4)(largest_so_far).lower(np.zeros(9), np.zeros(9))
    assert not any("is one" in str(warning.message) for warning in caught)
