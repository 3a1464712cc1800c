"""Unrolling: copies and remainders, jammed or plain, within a budget; what a target's compiler is left to do."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pyschedule import nounroll, tile, unroll, vectorize
from pyschedule.ir.nodes import For, Store
from pyschedule.ir.printer import format_kernel
from pyschedule.ir.visitors import loops, walk
from pyschedule.transforms import unrolling
from tests.transforms import kernels
from tests.transforms.schedules import GPU, NARROW, WIDE
from tests.transforms.stages import (
    agrees,
    applied,
    counting,
    details,
    loop_named,
    lower,
    nest,
    runs,
    same,
    skips,
    stores,
)


def update(x):
    for i in range(x.shape[0]):
        x[i] = x[i] * 2 + i


def known(x):
    for i in range(7):
        x[i] = x[i] * 2 + i


def steps(x):
    for i in range(1, x.shape[0], 3):
        x[i] += i


def downwards(x):
    for i in range(x.shape[0] - 1, -1, -2):
        x[i] += i


def copies(lowering, array):
    return len(stores(lowering.stages["unroll"], array))


# ------------------------------------------------------------------------------------------------ full and partial


def test_a_full_unroll_leaves_no_loop():
    lowering = agrees(unroll("i")(known), counting(7))
    assert nest(lowering.stages["unroll"]) == []
    assert copies(lowering, "x") == 7
    assert applied(lowering) == ["Unroll: factors=[7] on loops 'i'"]


def test_a_full_unroll_of_a_run_time_trip_count_is_skipped_and_offers_a_factor():
    lowering = agrees(unroll("i")(update), counting(9))
    assert "not known at compile time" in skips(lowering)[0] and "unroll('i', 4)" in skips(lowering)[0]
    assert lowering.stages["unroll"].body == lowering.stages["source"].body


@pytest.mark.parametrize("body", [update, steps, downwards])
@pytest.mark.parametrize("factor", [1, 2, 3, 4, 7])
def test_a_partial_unroll_of_every_trip_count(body, factor):
    lowering = lower(unroll("i", factor)(body), counting(9, dtype="int64"))
    assert applied(lowering) == [f"Unroll: factors=[{factor}] on loops 'i'"]
    assert copies(lowering, "x") == (factor + 1 if factor > 1 else 2) or factor == 1
    for size in range(3 * factor + 3):
        x = counting(size, dtype="int64")
        same(lowering, x)
        assert runs(lowering.stages["unroll"], x) == runs(lowering.stages["source"], x)


def test_a_partial_unroll_has_a_main_loop_and_a_remainder():
    stage = lower(unroll("i", 4)(update), counting(9)).stages["unroll"]
    main, rest = [loop for loop in loops(stage.body) if loop.source == "i"]
    assert (main.step.value, rest.step.value) == (4, 1)
    assert rest.start == main.stop and rest.max_trip == 3


@pytest.mark.parametrize("factor, left", [(7, []), (9, []), (3, ["i", "i"])])
def test_a_factor_that_covers_a_known_trip_count_is_a_full_unroll(factor, left):
    lowering = agrees(unroll("i", factor)(known), counting(7))
    assert nest(lowering.stages["unroll"]) in (left, left[:1])
    assert applied(lowering) == [f"Unroll: factors=[{min(factor, 7)}] on loops 'i'"]


@pytest.mark.parametrize("start, stop, trips", [(3, 3, 0), (5, 2, 0), (3, 4, 1)])
def test_loops_of_no_or_one_iteration(start, stop, trips):
    def body(x):
        for i in range(start, stop):
            x[i] = 1

    lowering = agrees(unroll("i")(body), counting(9))
    assert nest(lowering.stages["unroll"]) == []
    assert copies(lowering, "x") == trips


def test_counters_in_copies_fold_to_constants():
    def wheel(x):
        for i in range(6):
            x[i] = (i + 1) % 3 + (i & 1)

    text = format_kernel(agrees(unroll("i")(wheel), counting(6, dtype="int64")).stages["unroll"])
    assert "%" not in text and "&" not in text


def test_a_phase_that_is_not_known_stays():
    def wheel(x, base):
        for i in range(x.shape[0]):
            x[i] = (base + i) & 3

    lowering = lower(unroll("i", 4)(wheel), counting(9, dtype="int64"), 1)
    for base in range(8):
        same(lowering, counting(10, dtype="int64"), base)


# ------------------------------------------------------------------------------------------------------ jamming


def test_copies_of_an_outer_loop_share_the_loops_inside():
    lowering = agrees(unroll("i", 2)(kernels.gemm), *[counting(5, 5)] * 3)
    assert "copies share the loops inside (unroll-and-jam)" in details(lowering)
    main = loop_named(lowering.stages["unroll"], "i")
    assert [loop.label for loop in loops(main.body)] == ["j", "k"]


def test_where_jamming_is_not_legal_copies_stand_one_after_the_other():
    lowering = agrees(unroll("t", 3)(kernels.gauss_seidel), counting(9))
    assert "plain copies" in details(lowering)
    assert nest(lowering.stages["unroll"]) == ["i"] * 3


def test_a_value_that_a_later_copy_would_overwrite_is_not_jammed():
    for kernel in (kernels.transposed_in_place, kernels.antidiagonal):
        lowering = agrees(unroll("i", 3)(kernel), counting(7, 7))
        assert "plain copies" in details(lowering)


def test_loops_whose_bounds_move_with_the_counter_are_not_shared():
    lowering = agrees(unroll("i", 2)(kernels.lower_product), *[counting(7, 7)] * 3)
    assert "plain copies" in details(lowering)


def test_jammed_copies_have_scalars_of_their_own():
    lowering = agrees(unroll("i", 3)(kernels.gemm_scalar), counting(7, 4), counting(5, 4), counting(7, 5))
    assert "unroll-and-jam" in details(lowering)
    main = loop_named(lowering.stages["unroll"], "i")
    (inner,) = [loop for loop in loops(main.body) if loop.label == "k"]
    assert len({stmt.target for stmt in inner.body}) == 3


def test_jammed_copies_have_local_arrays_of_their_own():
    agrees(unroll("i", 2)(kernels.local_array), counting(5, 6), counting(5, 6))


def test_a_scalar_read_after_the_loop_keeps_its_last_value():
    lowering = agrees(unroll("i", 2)(kernels.read_afterwards), counting(5, 3), counting(2))
    assert applied(lowering)
    agrees(unroll("j", 2)(kernels.read_afterwards), counting(5, 3), counting(2))


def test_a_reduction_is_jammed_but_not_under_strict_math():
    def sums(A, s):
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                s[j] += A[i, j]

    assert "unroll-and-jam" in details(agrees(unroll("i", 2)(sums), counting(5, 4), counting(4)))
    rough = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)
    agrees(unroll("i", 2, strict_math=True)(sums), rough, counting(4))

    def one_sum(A, s):
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                s[0] += A[i, j]

    agrees(unroll("i", 2, strict_math=True)(one_sum), rough, counting(1))


# ------------------------------------------------------------------------------------------- leaving early, while


def test_a_loop_that_may_be_left_is_not_unrolled():
    lowering = agrees(unroll("i", 4)(kernels.first_negative), counting(9), counting(2))
    assert "may be left by a break" in skips(lowering)[0]
    assert nest(lowering.stages["unroll"]) == ["i"]


def test_a_continue_is_no_obstacle():
    def body(s):
        for i in range(10):
            if i > 3:
                continue
            s[0] += i

    for decorate in (unroll("i"), unroll("i", 3), unroll("i", 4)):
        assert applied(agrees(decorate(body), np.zeros(1, np.int64)))


def test_an_early_return_ends_the_copies_too():
    for size in range(7):
        x = counting(size)
        if size > 4:
            x[4] = 2
        agrees(unroll("i", 3)(kernels.early_return), x, counting(1))


def test_a_while_loop_is_refused():
    def halving(b, n):
        while n > 0:
            b[0] += n
            n = n // 2

    assert "is a while loop" in skips(agrees(unroll("n", 2)(halving), np.zeros(1), 9))[0]


# ------------------------------------------------------------------------------------------------------- budgets


def test_more_copies_than_the_limit_are_refused():
    def long(x):
        for i in range(5000):
            x[i % 7] = i

    lowering = lower(unroll("i")(long), counting(7, dtype="int64"))
    assert (
        f"5000 copies of its body are more than the limit of {unrolling.MOST_COPIES} copies" in skips(lowering)[0]
    )
    assert nest(lowering.stages["unroll"]) == ["i"]


def test_more_statements_than_the_limit_are_refused(monkeypatch):
    monkeypatch.setattr(unrolling, "MOST_STATEMENTS", 20)
    lowering = lower(unroll("i", 30)(update), counting(9))
    assert "30 copied statements are more than the limit of 20" in skips(lowering)[0]


# ------------------------------------------------------------------------------------------- factors and automatic


def test_factors_go_to_the_innermost_loops_that_are_no_reductions():
    lowering = agrees(unroll(factors=[2, 3])(kernels.gemm), *[counting(7, 7)] * 3)
    assert applied(lowering) == ["Unroll: factors=[2,3] on loops 'i','j'"]
    lowering = agrees(unroll(factors=[3])(kernels.gemm), *[counting(7, 7)] * 3)
    assert applied(lowering) == ["Unroll: factors=[3] on loops 'j'"]


def test_the_register_tile_of_gemm_computes_all_its_elements_in_one_body():
    tiled = tile(i=2, j=4)(unroll(factors=[2, 4])(kernels.gemm))
    lowering = agrees(tiled, *[counting(6, 8)] * 1, counting(8, 8), counting(6, 8))
    inner = loop_named(lowering.stages["unroll"], "k")
    assert sum(isinstance(stmt, Store) for stmt in walk(inner.body)) == 8
    assert not any(isinstance(stmt, For) for stmt in walk(inner.body))


def test_an_automatic_request_unrolls_small_bodies():
    lowering = agrees(unroll()(update), counting(19))
    assert applied(lowering) == ["Unroll: factors=[8] on loops 'i'"]


def test_an_automatic_request_looks_at_the_registers():
    def wide(A, y):
        for i in range(y.shape[0]):
            y[i] = (
                (A[i, 0] * A[i, 1] + A[i, 2]) * (A[i, 3] + A[i, 4]) + (A[i, 5] * A[i, 6] - A[i, 7]) * A[i, 8]
            ) * y[i]

    def factor(target):
        lowering = agrees(unroll()(wide), counting(9, 9), counting(9), target=target)
        found = [line for line in applied(lowering) if line.startswith("Unroll")]
        return int(found[0].split("[")[1].split("]")[0]) if found else 1

    scarce = dataclasses.replace(WIDE, vector_registers=8)
    assert factor(scarce) < factor(WIDE)


def test_an_automatic_request_that_finds_nothing_is_a_note():
    lowering = agrees(unroll()(kernels.first_negative), counting(9), counting(2))
    assert [record.status for record in lowering.log if record.transform == "Unroll"] == ["Note"]


# ------------------------------------------------------------------------------------------------ staying rolled


def test_a_loop_that_stays_rolled_is_marked_and_left_alone():
    lowering = agrees(nounroll("i")(unroll()(update)), counting(9))
    assert loop_named(lowering.stages["unroll"], "i").unroll == 1
    assert "NoUnroll: loop 'i' stays rolled" in applied(lowering)
    assert not any(line.startswith("Unroll") for line in applied(lowering))


def test_register_tiles_stay_rolled_where_that_is_asked_for():
    tiled = tile(i=4)(nounroll("i")(kernels.column_sums))
    lowering = agrees(tiled, counting(9, 5), counting(5))
    assert all(loop.unroll == 1 for loop in loops(lowering.stages["unroll"].body) if loop.source == "i")


# ------------------------------------------------------------------------------------------------ with lanes, tiles


def test_with_lanes_it_counts_vector_steps():
    lowering = agrees(vectorize("i", width=4)(unroll("i", 2)(update)), counting(21))
    main = loop_named(lowering.stages["unroll"], "i")
    assert main.step.value == 8
    for size in range(20):
        same(lowering, counting(size))


def test_the_innermost_piece_of_a_tiled_loop_is_unrolled():
    lowering = agrees(tile(i=6)(unroll("i", 2)(update)), counting(17))
    assert "Unroll: factors=[2] on loops 'i'" in applied(lowering)
    assert loop_named(lowering.stages["unroll"], "i.0").step.value == 6


def test_a_piece_whose_tiling_was_skipped_is_skipped_too():
    lowering = agrees(tile(i=4)(unroll("i.1", 2)(kernels.first_negative)), counting(9), counting(2))
    assert len(skips(lowering)) == 2
    assert "was its tiling skipped?" in skips(lowering)[1]


def test_both_loops_of_a_name():
    lowering = agrees(unroll("j", 2)(kernels.layer_norm), counting(3, 7), counting(3, 7))
    assert applied(lowering) == ["Unroll: factors=[2] on loops 'j'"]
    assert nest(lowering.stages["unroll"]).count("j") == 6  # three main loops, three remainders


def test_a_gpus_compiler_unrolls_by_itself():
    lowering = agrees(tile(i=8, j=4)(unroll("k", 4)(kernels.gemm)), *[counting(9, 9)] * 3, target=GPU)
    assert "loop 'k': left to the target's compiler, by loop metadata" in details(lowering)
    assert loop_named(lowering.stages["unroll"], "k").unroll == 4


def test_copies_are_written_for_a_gpu_too_where_the_counter_folds():
    def wheel(A, s):
        for i in range(A.shape[0]):
            for k in range(8):
                s[i] += A[i, k] * (k % 4)

    lowering = agrees(unroll("k")(wheel), counting(9, 8), counting(9), target=GPU)
    assert format_kernel(lowering.stages["unroll"]).count("s_acc += ") > 3


@pytest.mark.parametrize("target", [WIDE, NARROW])
def test_register_arrays_are_indexed_by_constants_in_the_end(target):
    lowering = agrees(tile(i=3, j=4)(kernels.gemm), counting(7, 5), counting(5, 6), counting(7, 6), target=target)
    assert "kept in registers" in details(lowering)
    inside = tile(i=3, j=4)(unroll("i", 3)(unroll("j", 4)(kernels.gemm)))
    stage = agrees(inside, counting(7, 5), counting(5, 6), counting(7, 6), target=target).stages["unroll"]
    from pyschedule.transforms.registers import loops_over_registers

    assert loops_over_registers(stage.body, 32) == set()
