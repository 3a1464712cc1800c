"""Speculation: the tail of a register tile is computed in full from addresses that exist, and stored in part."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pyschedule import tile, unroll, vectorize
from pyschedule.ir.nodes import If
from pyschedule.ir.printer import format_kernel
from pyschedule.ir.visitors import walk
from pyschedule.transforms.speculation import speculate
from tests.transforms import kernels
from tests.transforms.schedules import GPU
from tests.transforms.stages import agrees, counting, execute, loop_named, lower, same


def conditions_in(loop):
    return sum(isinstance(stmt, If) for stmt in walk(loop.body))


def test_the_inner_loop_of_a_register_tile_has_no_guards():
    lowering = agrees(tile(i=4, j=3)(kernels.gemm), *[counting(9, 9)] * 3)
    assert conditions_in(loop_named(lowering.stages["tiling"], "k")) > 0
    inner = loop_named(lowering.stages["vectorization"], "k")
    assert conditions_in(inner) == 0
    assert "A[min(i_1, A.shape[0] - 1), k_b] * B[k_b, min(j_1, B.shape[1] - 1)]" in format_kernel(
        lowering.stages["vectorization"]
    )


def test_the_store_at_the_end_keeps_its_guard():
    stage = agrees(tile(i=4, j=3)(kernels.gemm), *[counting(9, 9)] * 3).stages["vectorization"]
    guards = [stmt for stmt in walk(stage.body) if isinstance(stmt, If)]
    assert any("C[" in format_kernel(dataclasses.replace(stage, body=(guard,))) for guard in guards)


@pytest.mark.parametrize("sizes", [(0, 3, 2), (1, 1, 1), (3, 2, 0), (5, 4, 3), (9, 7, 5)])
@pytest.mark.parametrize("target", [None, GPU])
def test_tails_read_no_address_that_does_not_exist(sizes, target):
    m, n, k = sizes
    kernel = tile(i=4, j=3, k=2)(kernels.gemm)
    lowering = lower(kernel, *[counting(9, 9)] * 3, **({"target": target} if target else {}))
    same(lowering, counting(m, k), counting(k, n), counting(m, n))


def test_what_repeats_the_last_iteration_repeats_its_nans_in_its_own_element():
    """Rows beyond the end are computed from the last row, NaN and all, and dropped."""
    A, B, C = counting(5, 4), counting(4, 5), counting(5, 5)
    A[4, :] = np.nan
    agrees(tile(i=4, j=3)(kernels.gemm), A, B, C)


def test_a_count_downwards_is_clamped_from_below():
    def sums(A, s):
        for j in range(A.shape[1] - 1, -1, -1):
            for i in range(A.shape[0]):
                s[j] += A[i, j]

    lowering = agrees(tile(j=4, order="j.0 i j.1")(sums), counting(5, 7), counting(7))
    assert "max(j_1, 0)" in format_kernel(lowering.stages["vectorization"])


def test_conditions_of_the_user_are_kept():
    lowering = agrees(tile(i=4, order="i.0 j i.1")(guarded_sums), counting(7, 6), counting(7))
    inner = loop_named(lowering.stages["unroll"], "j")
    assert conditions_in(inner) >= 1


def guarded_sums(A, s):
    for i in range(s.shape[0]):
        for j in range(A.shape[1]):
            if A[i, j] > 0:
                s[i] += A[i, j]


def test_statements_that_write_memory_stay_guarded():
    def both(A, s, log):
        for i in range(s.shape[0]):
            for j in range(A.shape[1]):
                s[i] += A[i, j]
                log[i, j] = j

    stage = agrees(tile(i=4, order="i.0 j i.1")(both), counting(7, 6), counting(7), counting(7, 6)).stages["unroll"]
    assert conditions_in(loop_named(stage, "j")) >= 1


def test_ranges_that_grow_with_a_clamped_counter_are_not_speculated():
    lowering = agrees(tile(i=4, j=3, order="i.0 j.0 i.1 k j.1")(kernels.lower_product), *[counting(7, 7)] * 3)
    agrees(
        tile(i=4, j=3, order="j.0 i.0 k i.1 j.1")(unroll("i")(vectorize("j", width=2)(kernels.lower_product))),
        *[counting(7, 7)] * 3,
    )
    assert lowering.stages["vectorization"]


def test_a_kernel_without_tails_is_the_very_object():
    plain = kernels.CASES["gemm"].kernel()
    assert speculate(plain) is plain
    tiled = lower(tile(i=4)(kernels.transposed), *[counting(9, 9)] * 2).stages["tiling"]
    assert speculate(tiled) is tiled


def test_a_user_condition_that_looks_like_a_tail_is_none():
    """Only guards that tiling made may be dropped."""

    def half(A, s):
        for i in range(s.shape[0]):
            for k in range(A.shape[1]):
                if i < 3:
                    s[i] += A[i, k]

    arrays, _ = execute(
        agrees(tile(i=4, order="i.0 k i.1")(half), counting(3, 6), counting(7)).stages["unroll"],
        counting(3, 6),
        counting(7),
    )
    assert (arrays["s"][3:] == counting(7)[3:]).all()


def shifted(A, B):
    """Sums of rows and of those before and behind them, with zeros around the matrix."""
    rows, columns = A.shape
    for i in range(rows):
        for j in range(columns):
            acc = 0.0
            for k in range(3):
                row = i + k - 1
                acc += A[row, j] if row >= 0 and row < rows else 0.0
            B[i, j] = acc


def test_a_read_that_asks_whether_its_element_exists_is_not_clamped():
    kernel = tile(i=4, order="i.0 j k i.1")(shifted)
    lowering = agrees(kernel, counting(9, 7), counting(9, 7))
    assert "min(" not in format_kernel(lowering.stages["vectorization"])
    for rows in (0, 1, 3, 4, 5):
        same(lowering, counting(rows, 7), counting(rows, 7))


def half_asked(A, B):
    rows, columns = A.shape
    for i in range(rows):
        for j in range(columns):
            acc = 0.0
            for k in range(3):
                acc += A[i - k, j] if i - k >= 0 else 0.0
            B[i, j] = acc


def test_a_read_that_asks_for_one_end_alone_is_clamped():
    kernel = tile(i=4, order="i.0 j k i.1")(half_asked)
    lowering = agrees(kernel, counting(9, 7), counting(9, 7))
    assert ", A.shape[0] - 1) - k" in format_kernel(lowering.stages["vectorization"])
    for rows in (1, 3, 5, 6):
        same(lowering, counting(rows, 7), counting(rows, 7))
