"""Versioning: tiles in which every test of an index holds get a copy of the body without tests."""

from __future__ import annotations

import dataclasses
import warnings

import numpy as np
import pytest

from pyschedule import ScheduleWarning, tile, unroll, vectorize
from pyschedule.ir.nodes import Call, If
from pyschedule.ir.printer import format_kernel
from pyschedule.ir.visitors import expressions, walk
from tests.support import agrees as agrees_compiled
from tests.transforms import kernels
from tests.transforms.schedules import GPU
from tests.transforms.stages import agrees, counting, details, lower, same


def windows(X, W, Y, left):
    """Sums over windows of rows of channels, with `left` imagined columns of zeros before each row."""
    Q, C = Y.shape
    width, _ = X.shape
    S, _ = W.shape
    for c in range(C):
        for x in range(Q):
            acc = 0.0
            for s in range(S):
                if x + s - left >= 0 and x + s - left < width:
                    acc += X[x + s - left, c] * W[s, c]
            Y[x, c] = acc


def scheduled(nest, *loops):
    nest = vectorize("c", width=4)(tile(c=4, x=3, order="c.0 x.0 s x.1 c.1")(nest))
    for loop in loops:
        nest = unroll(loop)(nest)
    return nest


def versions(lowering):
    """The copies without tests, and beside each the body as it was."""
    kernel = lowering.stages["unroll"]
    return [stmt for stmt in walk(kernel.body) if isinstance(stmt, If) and stmt.orelse]


def conditions(body):
    clamps = (part for part in expressions(body) if isinstance(part, Call) and part.function in ("pmin", "pmax"))
    return sum(isinstance(stmt, If) for stmt in walk(body)) + sum(1 for _ in clamps)


@pytest.fixture(scope="module")
def lowering():
    return lower(scheduled(windows, "x"), counting(9, 8), counting(3, 8), counting(9, 8), 1)


def test_windows_that_hang_over_either_end(lowering):
    for count in (0, 1, 2, 3, 4, 7, 9):
        for left in (0, 1, 2, 5):
            for width, window in ((count, 3), (7, 3), (3, 5), (4, 0)):
                same(lowering, counting(width, 5), counting(window, 5), counting(count, 5), left)


def test_the_inside_of_an_image_has_no_tests(lowering):
    assert "versioned: where all tests of indices in loop 'x.0' hold, a copy of its body has none" in details(
        lowering
    )
    found = versions(lowering)
    assert found
    for stmt in found:
        assert conditions(stmt.body) == 0
        assert conditions(stmt.orelse) > 0


def test_one_test_of_the_outermost_elements_stands_for_all(lowering):
    stage = lowering.stages["unroll"]
    tests = {
        format_kernel(dataclasses.replace(stage, body=(dataclasses.replace(stmt, body=(), orelse=()),)))
        for stmt in versions(lowering)
    }
    assert any("left <= x_0 and x_0 + W.shape[0] + 2 <= X.shape[0] + left" in text for text in tests), tests


def test_a_window_that_is_written_out():
    def three(X, W, Y, left):
        Q, C = Y.shape
        width, _ = X.shape
        for c in range(C):
            for x in range(Q):
                acc = 0.0
                for s in range(3):
                    if x + s - left >= 0 and x + s - left < width:
                        acc += X[x + s - left, c] * W[s, c]
                Y[x, c] = acc

    lowering = lower(scheduled(three, "x", "s"), counting(1, 5), counting(3, 5), counting(1, 5), 1)
    assert all(conditions(stmt.body) == 0 for stmt in versions(lowering)) and versions(lowering)
    for count in (1, 3, 4, 11):
        same(lowering, counting(count, 5), counting(3, 5), counting(count, 5), 1)


def test_a_choice_between_an_element_and_nothing():
    def blurred(X, Y):
        Q, C = Y.shape
        for c in range(C):
            for x in range(Q):
                acc = 0.0
                for s in range(3):
                    acc += X[x + s - 1, c] if x + s >= 1 and x + s <= Q else 0.0
                Y[x, c] = acc

    lowering = lower(scheduled(blurred, "x"), counting(1, 5), counting(1, 5))
    assert versions(lowering)
    for count in (0, 1, 2, 9, 10):
        same(lowering, counting(count, 5), counting(count, 5))


def test_a_loop_that_counts_downwards():
    def backwards(X, Y):
        Q, C = Y.shape
        for c in range(C):
            for x in range(Q - 1, -1, -1):
                acc = 0.0
                for s in range(3):
                    if x >= s:
                        acc += X[x - s, c]
                Y[x, c] = acc

    lowering = lower(scheduled(backwards, "x", "s"), counting(1, 5), counting(1, 5))
    assert versions(lowering)
    for count in (0, 1, 2, 3, 8, 9):
        same(lowering, counting(count, 5), counting(count, 5))


def test_a_condition_on_data_stays():
    def positive(X, Y):
        Q, C = Y.shape
        for c in range(C):
            for x in range(Q):
                acc = 0.0
                for s in range(3):
                    if x + s < Q and X[x, 0] > 20.0:
                        acc += X[x + s, c]
                Y[x, c] = acc

    lowering = agrees(scheduled(positive, "x"), counting(10, 5), counting(10, 5))
    assert all(conditions(stmt.body) > 0 for stmt in versions(lowering))


def test_a_test_with_two_outcomes_stays_one():
    """Neither arm is the rule, as far as anyone can tell."""

    def halves(X, Y):
        Q, C = Y.shape
        for c in range(C):
            for x in range(Q):
                acc = 0.0
                for s in range(3):
                    if x + s < 4:
                        acc += X[x, c]
                    else:
                        acc -= X[x, c]
                Y[x, c] = acc

    lowering = agrees(scheduled(halves, "x"), counting(9, 8), counting(9, 8))
    assert "x + " not in "".join(str(stmt.test) for stmt in versions(lowering))


def test_what_does_not_change_in_the_inner_loop_has_no_copies():
    """A product's clamps are worked out once a tile; copies of it would only take longer to compile."""
    kernel = unroll("i")(vectorize("j", width=4)(tile(i=3, j=8)(kernels.gemm)))
    assert "versioned" not in details(lower(kernel, *[counting(9, 9)] * 3))


def test_nothing_is_copied_for_a_gpu():
    kernel = unroll("x")(tile(x=(8, 3))(windows))
    lowering = lower(kernel, counting(9, 8), counting(3, 8), counting(9, 8), 1, target=GPU)
    assert "versioned" not in details(lowering)


def test_compiled():
    generator = np.random.default_rng(5)
    kernel = scheduled(windows, "x")
    for count in (1, 6, 14):
        X, W, Y = (
            generator.integers(-8, 9, shape).astype(np.float32) for shape in ((count, 7), (3, 7), (count, 7))
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error", ScheduleWarning)
            agrees_compiled(kernel, X, W, Y, 1)
