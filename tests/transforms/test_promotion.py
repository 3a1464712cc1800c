"""Promotion: what is accumulated lives in registers, and memory that the loops do not touch is left alone."""

from __future__ import annotations

import numpy as np
import pytest

from pyschedule import tile, vectorize
from pyschedule.ir.nodes import If, Store
from pyschedule.ir.visitors import loops, walk, walk_with_loops
from tests.transforms import kernels
from tests.transforms.schedules import GPU, NARROW, WIDE
from tests.transforms.stages import (
    agrees,
    buffers,
    counting,
    details,
    loads,
    loop_named,
    lower,
    nest,
    same,
    stores,
)


def labels_around(kernel, array):
    """The labels of the loops around each store to an array."""
    from pyschedule.ir.nodes import Store

    return [
        [loop.label for loop in around]
        for stmt, around in walk_with_loops(kernel.body)
        if isinstance(stmt, Store) and stmt.array == array
    ]


def test_an_accumulated_element_is_loaded_and_stored_once():
    stage = agrees(tile(order="i j k")(kernels.gemm), *[counting(5, 5)] * 3).stages["tiling"]
    assert len(loads(stage, "C")) == 1
    assert labels_around(stage, "C") == [["i", "j"]]


def test_a_tile_of_elements_is_a_register_array_around_the_reduction():
    lowering = agrees(tile(i=4, j=3)(kernels.gemm), *[counting(9, 9)] * 3)
    stage = lowering.stages["tiling"]
    assert list(buffers(stage, "register").values()) == ["4 x 3 float32"]
    assert "C: 4x3 float32 kept in registers" in details(lowering)
    assert labels_around(stage, "C") == [["i.0", "j.0", "i.1", "j.1"]]
    assert all("k" in around for around in labels_around(stage, "C_acc")[1:])


def test_a_tile_that_is_set_first_is_not_loaded():
    stage = agrees(tile(i=4, j=3)(kernels.gemm_zeroed), *[counting(9, 9)] * 3).stages["tiling"]
    assert not loads(stage, "C")
    assert len(stores(stage, "C")) == 1


def test_a_tile_above_the_registers_stays_in_memory_or_is_promoted_further_in():
    lowering = agrees(tile(i=16, j=16)(kernels.gemm), *[counting(19, 19)] * 3, target=NARROW)
    assert "256" not in "".join(buffers(lowering.stages["tiling"], "register").values())
    assert "C: " in details(lowering)


def test_without_directives_nothing_but_halves_is_promoted():
    kernel = kernels.CASES["gemm"].kernel("float32")
    from pyschedule.schedule.directives import Schedule
    from pyschedule.transforms import pipeline

    lowered = pipeline.lower(kernel, Schedule(), NARROW, check_stages=True)
    assert len(stores(lowered.stages["tiling"], "C")) == 1 and loads(lowered.stages["tiling"], "C")
    half = pipeline.lower(kernels.CASES["gemm"].kernel("float16"), Schedule(), NARROW, check_stages=True)
    assert "C: 1 float32 kept in registers" in str(half.records[0])


def test_a_half_is_rounded_once():
    ones = np.ones((1, 4096), np.float16)
    lowering = lower(vectorize("k")(kernels.gemm), ones, ones.T.copy(), np.zeros((1, 1), np.float16))
    from tests.transforms.stages import execute

    for stage in ("tiling", "vectorization", "unroll"):
        arrays, _ = execute(lowering.stages[stage], ones, ones.T.copy(), np.zeros((1, 1), np.float16))
        assert arrays["C"][0, 0] == 4096


# --------------------------------------------------------------------------------- what the loops would not touch


def test_an_element_that_no_iteration_reaches_is_neither_read_nor_written():
    lowering = lower(tile(order="i j")(kernels.perhaps_no_element), counting(3, 3), counting(1))
    for shape in ((0, 3), (3, 0), (0, 0)):
        same(lowering, counting(*shape), counting(0))


def test_the_number_of_iterations_is_tested_once_outside_the_loops():
    stage = agrees(tile(order="i j k")(kernels.gemm), *[counting(5, 5)] * 3).stages["tiling"]
    (test,) = [stmt for stmt, around in walk_with_loops(stage.body) if isinstance(stmt, If)]
    assert [
        loop.label for stmt, loop_around in walk_with_loops(stage.body) if stmt is test for loop in loop_around
    ] == [
        "i",
        "j",
    ]


def test_a_loop_over_a_tile_that_has_begun_needs_no_test():
    stage = agrees(tile(i=4, k=4, order="i.0 k.0 i.1 j k.1")(kernels.gemm), *[counting(9, 9)] * 3).stages["tiling"]
    assert not any(isinstance(stmt, If) for stmt, _ in walk_with_loops(stage.body))


@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_a_guard_around_an_element_is_kept_around_its_copies(size):
    agrees(vectorize("j", width=4)(kernels.guarded_element), counting(size, 6), counting(size))
    agrees(tile(i=3, j=2)(kernels.guarded_element), counting(size, 6), counting(size))


def test_an_element_that_only_data_can_tell_is_promoted_where_it_exists():
    stage = agrees(tile(order="i j")(kernels.masked_elements), counting(5, 6), counting(5)).stages["tiling"]
    assert len(loads(stage, "s")) == 1


def test_an_element_that_only_data_can_tell_and_may_not_exist_stays_in_memory():
    stage = agrees(tile(order="i j")(kernels.element_that_may_not_exist), counting(5, 6), counting(3)).stages[
        "tiling"
    ]
    assert labels_around(stage, "s") == [["i", "j"]]


def test_the_other_arm_is_reached_where_the_first_is_not():
    tiled = tile(i=3, j=2)(kernels.element_of_the_other_arm)
    for kernel in (tile(order="i j")(kernels.element_of_the_other_arm), tiled):
        for m in (0, 2, 3, 7):
            agrees(kernel, counting(m, 4), counting(max(m - 2, 0)))


def test_what_comes_after_a_break_may_not_be_reached():
    def after(A, s):
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                if A[i, j] < 99:
                    break
                s[i + 1] += A[i, j]

    agrees(tile(order="i j")(after), counting(4, 3), counting(2))


def test_arms_of_conditional_expressions_are_conditions_too():
    def arms(A, s, out):
        for i in range(out.shape[0]):
            for k in range(A.shape[1]):
                out[i] += s[i - 1] if i > 0 else A[i, k]
                if i > 0:
                    s[i - 1] += 1

    agrees(tile(order="i k")(arms), counting(4, 3), counting(3), counting(4))


# -------------------------------------------------------------------------------------------------- when it is not


def test_an_index_that_changes_inside_is_not_promoted():
    moved = agrees(vectorize("i")(kernels.moving_place), counting(8), np.array([1]), counting(4))
    assert not any(around == [] for around in labels_around(moved.stages["tiling"], "s"))

    def wandering(A, s):
        p = 0
        for i in range(A.shape[0]):
            s[p % 4] += A[i]
            p += 3

    agrees(tile(order="i")(wandering), counting(9), counting(4))


def test_two_elements_of_an_array_in_one_loop_stay_in_memory():
    stage = agrees(tile(order="i")(kernels.two_elements), counting(9), counting(2)).stages["tiling"]
    assert labels_around(stage, "s") == [["i"], ["i"]]


def test_an_accumulator_does_not_outlive_the_thread_that_owns_it():
    lowering = agrees(tile(i=4, j=4)(kernels.gemm), *[counting(7, 7)] * 3, target=GPU)
    stage = lowering.stages["tiling"]
    threads = [loop for loop in loops(stage.body) if loop.mapping.startswith("thread")]
    assert threads and labels_around(stage, "C") == [["i.0", "j.0", "i.1", "j.1"]]


def test_local_arrays_are_promoted_without_loads_and_stores():
    lowering = agrees(tile(i=4, j=2)(kernels.gemm_scalar), counting(7, 5), counting(6, 5), counting(7, 6))
    stage = lowering.stages["tiling"]
    assert list(buffers(stage, "register").values()) == ["4 x 2 float32"]
    assert not buffers(stage, "local")


@pytest.mark.parametrize("sizes", [(0, 0, 0), (1, 1, 1), (4, 3, 5), (5, 7, 0), (9, 4, 2), (8, 6, 9)])
def test_tails_of_register_tiles(sizes):
    m, n, k = sizes
    lowering = lower(tile(i=4, j=3, k=2)(kernels.gemm), *[counting(9, 9)] * 3)
    same(lowering, counting(m, k), counting(k, n), counting(m, n))
    assert "i.1" in nest(lowering.stages["tiling"])


def test_steps_other_than_one_have_dense_tiles():
    def strided(A, s):
        for j in range(A.shape[1] - 1, -1, -3):
            for i in range(A.shape[0]):
                s[j] += A[i, j]

    for size in (0, 1, 5, 13):
        lowering = agrees(tile(j=2, order="j.0 i j.1")(strided), counting(4, size), counting(size))
        assert list(buffers(lowering.stages["tiling"], "register").values()) == ["2 float32"]


def test_a_break_after_the_sum_loses_nothing_that_registers_hold():
    def until(A, y, n):
        for i in range(y.shape[0]):
            for k in range(A.shape[1]):
                y[i] += A[i, k]
            if i == n:
                break
            y[i] += 100

    def from_the_first(A, y, n):
        for i in range(y.shape[0]):
            if i == n:
                break
            for k in range(A.shape[1]):
                y[i] += A[i, k]
            y[i] += 100

    for n in (0, 2, 9):
        lowering = agrees(vectorize("k", width=4)(until), counting(5, 9), counting(5), n)
        inner = loop_named(lowering.stages["unroll"], "k")
        assert not any(isinstance(stmt, Store) and stmt.array == "y" for stmt in walk(inner.body))
        agrees(vectorize("k", width=4)(from_the_first), counting(5, 9), counting(5), n)


def test_a_tile_that_starts_at_an_argument_stays_in_memory():
    """An index of registers must be a constant once the loops are unrolled."""

    def window(A, y, first):
        for k in range(A.shape[0]):
            for j in range(first, first + 4):
                y[j] += A[k, j]

    for target in (WIDE, NARROW, GPU):
        lowering = agrees(tile(k=2)(window), counting(5, 9), counting(9), 3, target=target)
        assert buffers(lowering.stages["tiling"], "register") == {}
