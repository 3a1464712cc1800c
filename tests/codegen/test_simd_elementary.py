"""exp, tanh and erf of float32: within two units in the last place, and the same in every lane and alone."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyschedule import tile, vectorize


def exp_of(x, y):
    for i in range(x.shape[0]):
        y[i] = math.exp(x[i])


def tanh_of(x, y):
    for i in range(x.shape[0]):
        y[i] = math.tanh(x[i])


def erf_of(x, y):
    for i in range(x.shape[0]):
        y[i] = math.erf(x[i])


FUNCTIONS = {
    "exp": (exp_of, np.exp, (-105.0, 89.5)),
    "tanh": (tanh_of, np.tanh, (-11.0, 11.0)),
    "erf": (erf_of, np.vectorize(math.erf, otypes=[np.float64]), (-4.5, 4.5)),
}
SPECIAL = (
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1e-45,
    -1e-45,
    1e-38,
    88.7228,
    88.7229,
    -87.4,
    -103.97,
    -104.0,
    3e38,
    -3e38,
)
EDGES = (0.625, 1.0, 4.0, 0.34657359, 0.6931472)


def arguments(low, high):
    rng = np.random.default_rng(5)
    edges = [
        np.nextafter(np.float32(edge * sign), np.float32(to))
        for edge in EDGES
        for sign in (1, -1)
        for to in (-9, 9)
    ]
    drawn = (
        rng.uniform(low, high, 60_000),
        rng.standard_normal(20_000) * 1e-3,
        np.exp(rng.uniform(-80, 3, 20_000)),
    )
    return np.concatenate([SPECIAL, edges, EDGES, *drawn]).astype(np.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_within_two_units_in_the_last_place(name):
    function, reference, interval = FUNCTIONS[name]
    x = arguments(*interval)
    y = np.empty_like(x)
    vectorize("i")(function)(x, y)
    with np.errstate(all="ignore"):
        exact = reference(x.astype(np.float64))
        wanted = exact.astype(np.float32)
    numbers = np.isfinite(wanted)
    np.testing.assert_array_equal(y[~numbers], wanted[~numbers])
    units = np.abs(y[numbers].astype(np.float64) - exact[numbers]) / np.spacing(np.abs(wanted[numbers]))
    assert units.max() <= 2, x[numbers][units.argmax()]
    zeros = wanted == 0
    np.testing.assert_array_equal(np.signbit(y[zeros]), np.signbit(wanted[zeros]))


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("width", [2, 4, 16])
def test_a_lane_has_the_bits_of_a_scalar(name, width):
    function, _, interval = FUNCTIONS[name]
    x = arguments(*interval)[:5001]  # with a tail
    alone, together = np.empty_like(x), np.empty_like(x)
    tile(i=64)(function)(x, alone)
    vectorize("i", width)(function)(x, together)
    np.testing.assert_array_equal(alone.view(np.uint32), together.view(np.uint32))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_float64_stays_the_librarys(name):
    function, _, interval = FUNCTIONS[name]
    x = np.random.default_rng(6).uniform(interval[0], interval[1], 999)
    y = np.empty_like(x)
    vectorize("i")(function)(x, y)
    np.testing.assert_array_equal(y, [getattr(math, name)(value) for value in x])
