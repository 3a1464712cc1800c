"""Prefetches of the next row: where they stand, what they ask for, and that they mean nothing."""

from __future__ import annotations

import re

import numpy as np
import pytest

from pyschedule import tile, unroll, vectorize
from pyschedule.ir.evaluation import Env, Expressions
from pyschedule.ir.nodes import Assign, Prefetch
from pyschedule.ir.printer import format_kernel
from pyschedule.ir.visitors import loops, variables, walk, walk_with_loops
from tests.support import inside_slack
from tests.transforms.schedules import GPU, NARROW, WIDE
from tests.transforms.stages import agrees, counting, lower


def scaled_rows(X, Y):
    for i in range(X.shape[0]):
        total = np.float32(0.0)
        for j in range(X.shape[1]):
            total += X[i, j]
        for j in range(X.shape[1]):
            Y[i, j] = X[i, j] * total


def prefetches(lowering, write=False):
    return [
        (stmt, [loop.label for loop in above])
        for stmt, above in walk_with_loops(lowering.stages["unroll"].body)
        if isinstance(stmt, Prefetch) and stmt.write == write
    ]


def loop_of(lowering, place):
    """The assignments and stores beside a prefetch: what they write."""
    inner = next(loop for loop in loops(lowering.stages["unroll"].body) if place in loop.body)
    written = [stmt.target if isinstance(stmt, Assign) else getattr(stmt, "array", "") for stmt in inner.body]
    return {name.split("_")[0] for name in written if name}


def rows(count, width):
    return counting(count, width).astype(np.float32), np.zeros((count, width), np.float32)


@pytest.mark.parametrize(("target", "lines"), [(WIDE, 4), (NARROW, 1)])
def test_the_last_loop_asks_for_the_next_row_a_line_at_a_time(target, lines):
    lowering = agrees(unroll("j", 4)(vectorize("j")(scaled_rows)), *rows(5, 203), target=target)
    found = prefetches(lowering)
    assert [above for _, above in found] == [["i", "j"]] * lines
    assert {stmt.array for stmt, _ in found} == {"X"}
    text = format_kernel(lowering.stages["unroll"])
    last = text.rindex("for j")
    assert re.search(r"prefetch\(X\[i(_b)? \+ ahead, ", text[text.index("Y[") :])
    assert last > text.index("total")


def test_what_is_read_once_is_left_to_the_processor():
    def copied(X, Y):
        for i in range(X.shape[0]):
            for j in range(X.shape[1]):
                Y[i, j] = X[i, j]

    lowering = agrees(vectorize("j")(copied), *rows(5, 40))
    assert not prefetches(lowering) and not prefetches(lowering, write=True)


def test_a_row_that_is_the_same_for_every_iteration_is_not_fetched():
    def by_weights(X, w, Y):
        for i in range(X.shape[0]):
            total = np.float32(0.0)
            for j in range(X.shape[1]):
                total += w[j]
            for j in range(X.shape[1]):
                Y[i, j] = w[j] * total

    X, Y = rows(5, 40)
    assert not prefetches(agrees(vectorize("j")(by_weights), X, X[0].copy(), Y))


def test_a_row_that_is_written_is_not_fetched():
    def in_place(X):
        for i in range(X.shape[0]):
            total = np.float32(0.0)
            for j in range(X.shape[1]):
                total += X[i, j]
            for j in range(X.shape[1]):
                X[i, j] = X[i, j] - total

    assert not prefetches(agrees(vectorize("j")(in_place), rows(5, 40)[0]))


@pytest.mark.parametrize(("target", "lines"), [(WIDE, 4), (NARROW, 1)])
def test_a_row_that_will_be_written_is_fetched_while_a_loop_before_reads(target, lines):
    lowering = agrees(unroll("j", 4)(vectorize("j")(scaled_rows)), *rows(5, 203), target=target)
    found = prefetches(lowering, write=True)
    assert [above for _, above in found] == [["i", "j"]] * lines
    assert {stmt.array for stmt, _ in found} == {"Y"}
    assert loop_of(lowering, found[0][0]) == {"total", "Y"}  # the sum, and the prefetches of Y beside it
    said = "'Y' to be written in an iteration of loop 'i' 4096 bytes further, in loop 'j'"
    assert said in lowering.log.verbose()


def ahead_of(lowering, X):
    """How many rows lie between the one that is read and the one that is fetched meanwhile."""
    kernel = lowering.stages["unroll"]
    (setting,) = (stmt for stmt in walk(kernel.body) if isinstance(stmt, Assign) and stmt.target == "ahead")
    for write in (False, True):
        assert all("ahead" in variables(place.indices[0]) for place, _ in prefetches(lowering, write))
    return Expressions(kernel).value(setting.value)(Env(X=X))


@pytest.mark.parametrize(
    ("width", "ahead"),
    [(16, 64), (128, 8), (256, 4), (300, 3), (768, 1), (1024, 1), (5000, 1), (0, 4096), (5, 4096)],
)
def test_short_rows_are_fetched_some_ahead(width, ahead):
    """4096 bytes of whole vectors, at least one row, whatever the width; none at all is no division by zero."""
    X, Y = rows(3, width)
    lowering = agrees(vectorize("j")(scaled_rows), X, Y)
    assert ahead_of(lowering, X) == ahead


def test_rows_of_a_known_length_are_fetched_a_known_number_ahead():
    def of_200(X, Y):
        for i in range(X.shape[0]):
            total = np.float32(0.0)
            for j in range(200):
                total += X[i, j]
            for j in range(200):
                Y[i, j] = X[i, j] * total

    lowering = agrees(vectorize("j")(of_200), *rows(7, 200))
    assert "prefetch(X[i + 5, " in format_kernel(lowering.stages["unroll"])
    assert not any(
        isinstance(stmt, Assign) and stmt.target == "ahead" for stmt in walk(lowering.stages["unroll"].body)
    )


def test_rows_whose_length_changes_are_fetched_one_ahead():
    def below_the_diagonal(X, Y):
        for i in range(X.shape[0]):
            total = np.float32(0.0)
            for j in range(i):
                total += X[i, j]
            for j in range(i):
                Y[i, j] = X[i, j] * total

    lowering = agrees(vectorize("j")(below_the_diagonal), *rows(70, 70))
    assert "prefetch(X[i + 1, " in format_kernel(lowering.stages["unroll"])
    assert "'X' for the next iteration of loop 'i', in loop 'j'" in lowering.log.verbose()


def test_threads_share_rows_that_are_fetched_ahead():
    X, Y = rows(600, 128)
    shared = tile(i=1, parallel="i.0", target="cpu")(vectorize("j")(scaled_rows))
    shared(X, Y)
    expected = np.zeros_like(Y)
    vectorize("j")(scaled_rows)(X, expected)
    np.testing.assert_array_equal(Y, expected)
    assert "ahead" in shared.lower(X, Y).cpu_program(parallel=True).source


def test_a_row_written_by_two_loops_is_fetched_before_the_first():
    def squares_over_total(X, Y):
        for i in range(X.shape[0]):
            total = np.float32(0.0)
            for j in range(X.shape[1]):
                Y[i, j] = X[i, j] * X[i, j]
                total += X[i, j]
            for j in range(X.shape[1]):
                Y[i, j] = Y[i, j] * total

    lowering = agrees(vectorize("j")(squares_over_total), *rows(5, 40))
    (place, _), *more = prefetches(lowering, write=True)
    assert not more and place.array == "Y" and loop_of(lowering, place) == {"total", "Y"}


def test_loops_of_other_lengths_leave_it_to_the_loop_that_writes():
    def of_half(X, Y):
        for i in range(X.shape[0]):
            total = np.float32(0.0)
            for j in range(X.shape[1] // 2):
                total += X[i, j]
            for j in range(X.shape[1]):
                Y[i, j] = X[i, j] * total

    lowering = agrees(vectorize("j")(of_half), *rows(5, 40))
    assert [loop_of(lowering, stmt) for stmt, _ in prefetches(lowering, write=True)] == [{"X", "Y"}]


def test_a_row_that_is_read_before_it_is_written_comes_by_being_read():
    def added(X, Y):
        for i in range(X.shape[0]):
            total = np.float32(0.0)
            for j in range(X.shape[1]):
                total += X[i, j]
            for j in range(X.shape[1]):
                Y[i, j] += X[i, j] * total

    assert not prefetches(agrees(vectorize("j")(added), *rows(5, 40)), write=True)


def test_gpus_and_kernels_without_lanes_have_none():
    for write in (False, True):
        assert not prefetches(lower(tile(i=1)(vectorize("j", 4)(scaled_rows)), *rows(5, 40), target=GPU), write)
        assert not prefetches(agrees(unroll("j", 4)(scaled_rows), *rows(5, 40)), write)


@pytest.mark.parametrize("shape", [(0, 5), (1, 0), (1, 16), (1, 64), (7, 203), (3, 4096)])
def test_beyond_the_last_row_nothing_happens(shape):
    X, Y = rows(*shape)
    inside, _ = inside_slack(X)
    out, untouched = inside_slack(Y)
    unroll("j", 4)(vectorize("j")(scaled_rows))(inside, out)
    scaled_rows(X, Y)
    np.testing.assert_array_equal(out, Y)
    assert untouched()
