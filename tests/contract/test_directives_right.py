"""Schedules under which a small nest once computed something else: each stage against the Python function.

Every nest stands for a kind: elements that several iterations share (`c[i // 2]`), sums that are read before they
are complete, indices that are not linear, conditions in lanes, a scalar that is expanded into an array.
"""

from __future__ import annotations

import numpy as np
import pytest

from pyschedule import tile, unroll, vectorize
from tests.support import agrees as agrees_on
from tests.transforms.stages import agrees

RNG = np.random.default_rng(7)


def halved(x, c):
    for i in range(x.shape[0]):
        for k in range(x.shape[1]):
            c[i // 2] += x[i, k]


def diagonals(x, c):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            for q in range(3):
                c[i + j] += x[i, j] * q


def neighbours(x, c):
    for i in range(x.shape[0]):
        for k in range(x.shape[1]):
            c[i] += x[i, k]
            c[i + 1] += x[i, k] * 2


def prefixes(x, y):
    for i in range(x.shape[0]):
        total = 0.0
        for j in range(x.shape[1]):
            total += x[i, j]
            y[i, j] = total


def products(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            s = 0.0
            for k in range(A.shape[1]):
                s += A[i, k] * B[k, j]
            C[i, j] = s


def clamped(x, y):
    for i in range(0, x.shape[0], 2):
        for j in range(x.shape[1]):
            for k in range(2):
                y[i // 2, j] += x[i + k if i + k < x.shape[0] else i, j]


def places(x, c):
    for i in range(x.shape[0]):
        best, place = -1e30, 0
        for j in range(x.shape[1]):
            if x[i, j] > best:
                best = x[i, j]
                place = j
        c[i] = place


def triangle(A, B, C):
    for i in range(A.shape[0]):
        for j in range(i + 1):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[j, k]


def randoms(*shape):
    return RNG.standard_normal(shape)


@pytest.mark.parametrize(
    "decorate",
    [
        unroll("i", 2),
        unroll("i", 4),
        unroll(factors=[3]),
        tile(i=4),
        tile(i=3, k=2),
        tile(i=4, parallel="i.0"),
        vectorize("i", 4),
        lambda nest: vectorize("i", 16)(tile(i=2)(nest)),
        lambda nest: vectorize("i", 4)(tile(i=(4, 2), k=2)(nest)),
    ],
)
def test_sums_of_several_iterations_in_one_element(decorate):
    for n in (0, 1, 5, 8):
        agrees(decorate(halved), randoms(n, 5), np.zeros((n + 1) // 2), rtol=1e-12)


@pytest.mark.parametrize(
    "decorate",
    [
        unroll("i", 2),
        unroll("j", 2),
        unroll(factors=[2, 2]),
        lambda nest: unroll("j", 2)(tile(i=2, order="j i.0 i.1 q")(nest)),
        lambda nest: unroll("i")(unroll("j", 2)(tile(i=2, j=4)(nest))),
        lambda nest: vectorize("j", 4)(tile(i=2, order="j i.0 i.1 q")(nest)),
        lambda nest: vectorize()(tile(j=2)(nest)),
    ],
)
def test_copies_and_lanes_that_share_elements_have_no_registers_each(decorate):
    agrees(decorate(diagonals), randoms(7, 6), np.zeros(12), rtol=1e-12)


@pytest.mark.parametrize("decorate", [vectorize("k", 4), vectorize(), unroll("i", 2), tile(i=4, k=2)])
def test_two_sums_into_one_array(decorate):
    agrees(decorate(neighbours), randoms(5, 9), np.zeros(6), rtol=1e-12)


@pytest.mark.parametrize("size", [1, 2, 8])
@pytest.mark.parametrize("lanes", [vectorize("j", 4), vectorize()])
def test_a_sum_that_is_read_before_it_is_complete(lanes, size):
    kernel = lanes(tile(i=4, j=(8, size))(prefixes))
    agrees(kernel, randoms(6, 9), np.zeros((6, 9)), rtol=1e-12)


@pytest.mark.parametrize(
    "decorate",
    [
        lambda nest: unroll("k", 2)(tile(j=1)(nest)),
        lambda nest: unroll("k", 3)(tile(j=2, order="j.0 k i j.1")(nest)),
        lambda nest: unroll("k.0", 2)(tile(k=2, order="k.0 i j k.1")(nest)),
    ],
)
def test_copies_of_the_loop_that_sums_into_an_expanded_scalar(decorate):
    agrees(decorate(products), randoms(5, 7), randoms(7, 6), np.zeros((5, 6)), rtol=1e-12)


@pytest.mark.parametrize("piece", ["i.0", "j.0", "k.0"])
def test_a_window_of_an_index_that_is_not_linear_is_not_staged(piece):
    kernel = tile(i=5, j=4, k=2, stage={"x": piece})(clamped)
    lowering = agrees(kernel, randoms(9, 6), np.zeros((5, 6)), rtol=1e-12)
    assert "Skipped Staging" in str(lowering.log)


@pytest.mark.parametrize("size", [4, 5, 8])
def test_conditions_hold_in_vectors_that_are_kept_in_registers(size):
    kernel = vectorize("i", 4)(tile(i=size, order="i.0 j i.1")(places))
    agrees(kernel, randoms(9, 7), np.zeros(9))


@pytest.mark.parametrize("decorate", [vectorize("j", 4), vectorize("k", 4), vectorize(), tile(i=4, j=4)])
def test_lanes_of_threads_beyond_the_end_touch_nothing_on_a_gpu(decorate):
    A, B, C = randoms(5, 7), randoms(5, 7), np.zeros((5, 5))
    agrees_on(decorate(triangle), A, B, C, target="cuda", rtol=1e-12)
