"""Unrolling: copies and remainders, jammed or plain, within a budget; what a target's compiler is left to do."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pyschedule import ScheduleError, nounroll, tile, unroll, vectorize
from pyschedule.ir.nodes import For, If, Store
from pyschedule.ir.printer import format_kernel
from pyschedule.ir.visitors import loops, walk
from tests.support import call, on_every_target
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


def left_early(a, s, n, c):
    """Case 13: where it leaves, and what it has summed until then."""
    for i in range(n):
        if a[i] < 0:
            break
        s[0] += a[i]
        c += 1
    return c


def left_in_the_middle(a, s, n, c):
    for i in range(n - 1, -1, -1):
        s[0] += 1
        if a[i] > 0:
            if a[i] > 5:
                c = i
                break
            s[1] += a[i]
        else:
            s[2] += a[i]
    return c


@pytest.mark.parametrize("body", [left_early, left_in_the_middle])
@pytest.mark.parametrize("factor", [2, 3, 4, 7])
@on_every_target
def test_after_an_early_exit_neither_copies_nor_remainder_run(body, factor, target):
    kernel = unroll("i", factor)(body)
    lowering = lower(kernel, counting(9, dtype="int64"), counting(3, dtype="int64"), 9, 0)
    assert applied(lowering) == [f"Unroll: factors=[{factor}] on loops 'i'"]
    assert nest(lowering.stages["unroll"]) == ["i", "i"]
    for size in (0, 1, factor - 1, factor, factor + 1, 9):
        for leaves in range(size + 1):
            a = np.ones(9, np.int64)
            a[leaves % 9] = -1 if body is left_early else 6
            expected, found = np.zeros(3, np.int64), np.zeros(3, np.int64)
            same(lowering, a, expected.copy(), size, 17)
            wanted = body(a, expected, size, 17)
            if target == "cpu" or leaves in (0, size // 2, size):
                assert call(kernel, a, found, size, 17, target=target) == wanted
                assert (found == expected).all()


def test_the_copies_after_an_early_exit_stay_away_from_memory():
    """What stands behind the exit is out of reach: a copy that ran too far would raise in the interpreter."""

    def guarded(a, s):
        for i in range(1000):
            if i >= a.shape[0]:
                break
            s[0] += a[i]

    agrees(unroll("i", 7)(guarded), counting(9), np.zeros(1, np.float32))


@on_every_target
def test_a_full_unroll_of_a_loop_that_may_be_left(target):
    def first(a, s):
        found = -1
        for i in range(9):
            if a[i] < 0:
                found = i
                break
            s[0] += a[i]
        return found

    kernel = unroll("i")(first)
    assert nest(lower(kernel, counting(9), counting(1)).stages["unroll"]) == []
    for leaves in (*range(9), None):
        a = np.arange(1, 10, dtype=np.float32)
        if leaves is not None:
            a[leaves] = -1
        s, wanted = np.zeros(1, np.float32), np.zeros(1, np.float32)
        assert call(kernel, a, s, target=target) == first(a, wanted)
        assert (s == wanted).all()


def test_an_exit_that_the_counter_decides_ends_the_copies():
    def stops(s):
        for i in range(100):
            if i == 5:
                break
            s[i] += 1

    lowering = agrees(unroll("i")(stops), np.zeros(100, np.int64))
    assert nest(lowering.stages["unroll"]) == [] and copies(lowering, "s") == 5
    assert not any(isinstance(stmt, (For, If)) for stmt in walk(lowering.stages["unroll"].body))


def test_an_inner_loop_s_exit_is_its_own():
    def inner(a, s):
        for i in range(a.shape[0]):
            for j in range(a.shape[1]):
                if a[i, j] < 0:
                    break
                s[i] += a[i, j]
            s[i] += 100

    for decorate in (unroll("i", 2), unroll("j", 3), unroll("i"), unroll("j")):
        agrees(decorate(inner), counting(5, 7), counting(5))
    agrees(unroll("i", 2)(unroll("j", 3)(inner)), counting(5, 7), counting(5))


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

    lowering = agrees(unroll("n", 2)(halving), np.zeros(1), 9)
    (record,) = [record for record in lowering.log if record.status == "Skipped"]
    assert "is a while loop whose trip count is not known on entry: " in record.summary
    assert record.statement is not None and record.loc is not None


# ------------------------------------------------------------------------------------------------------- budgets


def long(x):
    for i in range(5000):
        x[i % 7] = i


def test_more_copies_than_the_limit_are_refused():
    lowering = lower(unroll("i")(long), counting(7, dtype="int64"))
    assert "5000 copies of its body are more than the limit of 1024 a directive" in skips(lowering)[0]
    assert "PYSCHEDULE_UNROLL_LIMITS=copies=5000, makes it possible" in skips(lowering)[0]
    assert nest(lowering.stages["unroll"]) == ["i"]


@pytest.mark.parametrize(
    "limit, message",
    [
        ("operations=20", "120 copied operations are more than the limit of 20"),
        ("blocks=29", "30 copied blocks are more than the limit of 29"),
        ("copies=29", "30 copies of its body are more than the limit of 29"),
    ],
)
def test_each_limit_can_be_set(monkeypatch, limit, message):
    monkeypatch.setenv("PYSCHEDULE_UNROLL_LIMITS", f" {limit} ")
    assert message in skips(lower(unroll("i", 30)(update), counting(9)))[0]
    name, value = limit.split("=")
    monkeypatch.setenv("PYSCHEDULE_UNROLL_LIMITS", f"copies=5000,{name}={10 * int(value)}")
    assert not skips(lower(unroll("i", 30)(update), counting(9)))


@pytest.mark.parametrize("text", ["copies", "copies=-1", "copies=0", "lines=4", "copies=1e3"])
def test_what_sets_no_limit_is_an_error(monkeypatch, text):
    monkeypatch.setenv("PYSCHEDULE_UNROLL_LIMITS", text)
    with pytest.raises(ScheduleError, match=f"PYSCHEDULE_UNROLL_LIMITS: '{text}' sets no limit"):
        lower(unroll("i", 2)(update), counting(9))


def test_the_copies_of_all_factors_count_together():
    lowering = lower(unroll(factors=[40, 40])(kernels.gemm), *[counting(7, 7)] * 3)
    assert "1600 copies of its body are more than the limit of 1024" in skips(lowering)[0]


# ------------------------------------------------------------------------------------------------- steps, hints


@on_every_target
def test_a_step_known_at_run_time(target):
    def strided(x, start, stop, step):
        for i in range(start, stop, step):
            x[i] = x[i] * 2 + i

    kernel = unroll("i", 3)(strided)
    lowering = lower(kernel, counting(23, dtype="int64"), 1, 2, 3)
    assert applied(lowering) == ["Unroll: factors=[3] on loops 'i'"]
    for bounds in (
        (0, 23, 1),
        (1, 20, 3),
        (22, -1, -1),
        (21, 2, -4),
        (5, 5, 2),
        (5, 2, 2),
        (2, 5, -2),
        (0, 23, 30),
    ):
        x = counting(23, dtype="int64")
        same(lowering, x, *bounds)
        expected = x.copy()
        strided(expected, *bounds)
        call(kernel, x, *bounds, target=target)
        assert (x == expected).all()


def test_bounds_that_the_body_changes_are_those_of_the_entry():
    def shrinking(x, n, counts):
        for i in range(counts[0]):
            counts[0] -= 1
            n -= 2
            x[i] += n
        for i in range(n, x.shape[0], 2):
            n += 1
            x[i] += 1

    for factor in (2, 3, 5):
        agrees(unroll("i", factor)(shrinking), counting(17, dtype="int64"), 3, np.array([8]))


def test_many_copies_are_left_to_the_compiler():
    lowering = agrees(unroll("i", 64)(update), counting(150, dtype="int64"))
    assert loop_named(lowering.stages["unroll"], "i").unroll == 64
    assert "loop 'i': left to the target's compiler, by loop metadata" in details(lowering)
    assert nest(lowering.stages["unroll"]) == ["i"]


def test_many_copies_are_written_where_their_constants_fold():
    def wheel(x):
        for i in range(x.shape[0]):
            x[i] += (i + 1) % 64

    lowering = agrees(unroll("i", 64)(wheel), counting(150, dtype="int64"))
    assert nest(lowering.stages["unroll"]) == ["i", "i"]


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
    assert "factor 8; a copy needs about 2 of 32 registers (limit 25 in all), statements: 1 (limit 64" in details(
        lowering
    )


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
    assert "loop 'i': it may be left early" in details(lowering)


# ------------------------------------------------------------------------------------------------ staying rolled


def test_a_loop_that_stays_rolled_is_marked_and_left_alone():
    lowering = agrees(nounroll("i")(unroll()(update)), counting(9))
    assert loop_named(lowering.stages["unroll"], "i").unroll == 1
    assert "NoUnroll: loop 'i' stays rolled" in applied(lowering)
    assert not any(line.startswith("Unroll") for line in applied(lowering))


def test_what_threads_run_is_no_loop_to_keep_rolled():
    lowering = agrees(nounroll("i")(update), counting(9), target=GPU)
    assert "NoUnroll: loop 'i' is no loop here: its iterations run on block.x, thread.x" in skips(lowering)[0]
    inner = agrees(nounroll("k")(kernels.gemm), *[counting(5, 5)] * 3, target=GPU)
    assert "NoUnroll: loop 'k' stays rolled" in applied(inner)


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


def test_around_a_register_tile_the_compiler_makes_the_copies():
    """The loops over registers are written out; nothing is left inside that a compiler would not share."""

    def product(A, B, C):
        for i in range(C.shape[0]):
            for j in range(C.shape[1]):
                acc = 0.0
                for k in range(A.shape[1]):
                    acc += A[i, k] * B[k, j]
                C[i, j] = acc

    kernel = tile(i=6, j=64, order="i.0 j.0 k i.1 j.1")(vectorize("j", 16)(unroll("i")(unroll("k", 4)(product))))
    arrays = [counting(*shape).astype(np.float32) for shape in ((7, 9), (9, 70), (7, 70))]
    lowering = agrees(kernel, *arrays)
    assert "loop 'k': left to the target's compiler, by loop metadata" in details(lowering)
    whole, edge = [loop for loop in loops(lowering.stages["unroll"].body) if loop.source == "k"]
    assert whole.unroll == edge.unroll == 4
    assert len(whole.body) == 24, "six rows of four vectors, once"
    assert len(edge.body) == 6, "six rows of one vector, once"


def test_unrolls_that_together_take_long_to_compile_are_warned_of_and_carried_out_in_strict_mode_too():
    def product(A, B, C):
        for i in range(A.shape[0]):
            for j in range(B.shape[1]):
                for k in range(A.shape[1]):
                    C[i, j] += A[i, k] * B[k, j]

    def warned(*factors):
        kernel = product
        for name, factor in zip("ijk", factors, strict=True):
            kernel = unroll(name, factor, strict=True)(kernel)
        lowering = agrees(kernel, counting(9, 9), counting(9, 9), counting(9, 9), rtol=1e-5)
        found = [record for record in lowering.log if record.status == "Warning"]
        return [record for record in found if "operations" in record.summary]

    assert not warned(4, 4, 4)
    (record,) = warned(8, 8, 4)
    assert record.transform == "Unroll" and record.loc is not None
    assert "operations, more than the 4000" in record.summary and "a smaller factor" in record.summary
