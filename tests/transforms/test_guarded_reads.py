"""Guarded reads: what a vector reads or else takes as zero, by one test for all lanes, becomes a masked load."""

from __future__ import annotations

import numpy as np
import pytest

from pyschedule import tile, unroll, vectorize
from pyschedule.ir.nodes import Load, Select
from pyschedule.ir.printer import format_kernel
from pyschedule.ir.types import lanes_of
from pyschedule.ir.visitors import expressions
from tests.support import agrees as agrees_compiled
from tests.transforms.schedules import GPU
from tests.transforms.stages import counting, lower, same


def windows(X, W, Y, left):
    """Sums over windows of three columns of channels, with imagined zeros before and behind the columns."""
    Q, C = Y.shape
    width, _ = X.shape
    for c in range(C):
        for x in range(Q):
            acc = 0.0
            for s in range(3):
                column = x + s - left
                acc += W[s, c] * (X[column, c] if column >= 0 and column < width else 0.0)
            Y[x, c] = acc


def scheduled(nest, channels=4):
    nest = vectorize("c", width=4)(tile(c=channels, x=3, order="x.0 c.0 s x.1 c.1")(nest))
    return unroll("s")(unroll("x")(nest))


def choices(lowering):
    """The choices between vectors by one test that are left."""
    return [
        part
        for part in expressions(lowering.stages["unroll"].body)
        if isinstance(part, Select) and lanes_of(part.type) > 1 and lanes_of(part.test.type) == 1
    ]


def masked_loads(lowering, array):
    found = (part for part in expressions(lowering.stages["unroll"].body) if isinstance(part, Load))
    return [load for load in found if load.array == array and load.mask is not None]


@pytest.fixture(scope="module")
def lowering():
    return lower(scheduled(windows), counting(9, 8), counting(3, 8), counting(9, 8), 1)


def test_windows_that_hang_over_either_end(lowering):
    for count in (0, 1, 2, 3, 4, 7, 9):
        for left in (0, 1, 2, 5, -2):
            for width in (count, 7, 3, 0):
                for channels in (1, 4, 5, 8):
                    same(
                        lowering, counting(width, channels), counting(3, channels), counting(count, channels), left
                    )


def test_no_choice_is_left(lowering):
    assert not choices(lowering)
    text = format_kernel(lowering.stages["unroll"])
    assert "x_0 - left >= 0 and x_0 - left < X.shape[0]" in text


def test_the_index_is_one_that_may_exist_where_all_lanes_are_off(lowering):
    text = format_kernel(lowering.stages["unroll"])
    assert "X[x_0 - left if x_0 - left >= 0 and x_0 - left < X.shape[0] else 0, c_0:c_0+4; " in text


def test_the_choice_of_a_version_stands_before_the_channels():
    """What is worked out for one version alone is not for the others, in each round of the loop over channels."""
    kernel = unroll("x")(vectorize("c", width=4)(tile(c=4, x=3, order="x.0 c.0 s x.1 c.1")(windows)))
    lowering = lower(kernel, counting(9, 8), counting(3, 8), counting(9, 8), 1)
    first, second, third, *_ = format_kernel(lowering.stages["unroll"]).splitlines()[1:]
    assert "# x.0" in first and second.strip().startswith("if left <= x_0") and "# c.0" in third
    for count in (0, 1, 3, 8, 9):
        same(lowering, counting(count, 5), counting(3, 5), counting(count, 5), 1)


def test_a_value_other_than_zero_stays_a_choice():
    def ones(X, Y):
        Q, C = Y.shape
        for c in range(C):
            for x in range(Q):
                Y[x, c] = X[x - 1, c] if x >= 1 else 1.0

    kernel = unroll("x")(vectorize("c", width=4)(tile(c=4, x=3, order="x.0 c.0 x.1 c.1")(ones)))
    lowering = lower(kernel, counting(9, 8), counting(9, 8))
    assert choices(lowering)
    for count in (0, 1, 4, 9):
        same(lowering, counting(count, 5), counting(count, 5))


def test_halves_keep_their_choice():
    """Not every CPU that has masks has them for elements of two bytes."""
    half = np.float16
    X, W, Y = counting(9, 8).astype(half), counting(3, 8).astype(half), counting(9, 8).astype(half)
    lowering = lower(scheduled(windows), X, W, Y, 1)
    assert choices(lowering)


def test_nothing_changes_for_a_gpu():
    lowering = lower(tile(c=4, x=3)(windows), counting(9, 8), counting(3, 8), counting(9, 8), 1, target=GPU)
    assert not masked_loads(lowering, "X")


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_compiled(dtype):
    generator = np.random.default_rng(5)
    kernel = scheduled(windows)
    for count, channels, left in ((1, 7, 1), (6, 8, 0), (14, 9, 2), (3, 4, 40)):
        X, W, Y = (generator.integers(-8, 9, (n, channels)).astype(dtype) for n in (count, 3, count))
        agrees_compiled(kernel, X, W, Y, left)
