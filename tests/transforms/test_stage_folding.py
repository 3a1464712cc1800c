"""Stage numbers of software pipelines become constants in unrolled copies, exactly where they are constants."""

from __future__ import annotations

import numpy as np
import pytest

from pyschedule import nounroll, tile, unroll, vectorize
from pyschedule.ir.nodes import Assign, If
from pyschedule.ir.printer import format_kernel
from pyschedule.ir.visitors import walk
from tests.support import call, on_every_target
from tests.transforms.schedules import GPU, WIDE
from tests.transforms.stages import agrees, applied, lower, same, stores

INT = np.int64


def nest_of(kernel, *args, target=WIDE):
    """The nest after the last stage, without its first line."""
    return format_kernel(lower(kernel, *args, target=target).stages["unroll"]).split("\n", 1)[1].rstrip("\n")


def branches(lowering, stage="unroll"):
    return sum(isinstance(stmt, If) and not stmt.tail for stmt in walk(lowering.stages[stage].body))


def pipeline(x, y):
    for k in range(x.shape[0]):
        stage = k & 3
        if stage == 0:
            y[k] = x[k] * 2
        elif stage == 1:
            y[k] = x[k] + 1
        elif stage == 2:
            y[k] = x[k] - 3
        else:
            y[k] = -x[k]


FOUR_BODIES = """\
    for k in range(0, x.shape[0] // 4 * 4, 4):
        y[k] = x[k] * 2
        y[k + 1] = x[k + 1] + 1
        y[k + 2] = x[k + 2] - 3
        y[k + 3] = -x[k + 3]
    for k_r in range(x.shape[0] // 4 * 4, x.shape[0]):  # k
        stage = k_r & 3
        if stage == 0:
            y[k_r] = x[k_r] * 2
        elif stage == 1:
            y[k_r] = x[k_r] + 1
        elif stage == 2:
            y[k_r] = x[k_r] - 3
        else:
            y[k_r] = -x[k_r]"""


def test_four_stages_become_four_straight_bodies_and_the_remainder_stays_whole():
    x = np.zeros(9, INT)
    assert nest_of(unroll("k", 4)(pipeline), x, x) == FOUR_BODIES


def test_half_as_many_copies_leave_half_of_the_choices():
    """Of a step of 2 the number is known modulo 2 and not modulo 4."""
    x = np.zeros(9, INT)
    text = nest_of(unroll("k", 2)(pipeline), x, x)
    assert text.count("stage = k & 3") == text.count("stage = k + 1 & 3") == 1
    for size in range(14):
        agrees(unroll("k", 2)(pipeline), np.arange(size, dtype=INT), np.zeros(size, INT))


def filtered_rows(A, B):
    for i in range(A.shape[0]):
        state = 0
        for k in range(A.shape[1]):
            if k % 4 == 0:
                state = state * 2 + A[i, k]
            elif k % 4 == 1:
                state = A[i, k] - state
            elif k % 4 == 3:
                state = -state
            B[i, k] = state


THREAD_BODY = """\
            for k in range(0, A.shape[1] // 4 * 4, 4):
                if i_1 < A.shape[0]:
                    state = state * 2 + A[i_1, k]
                    B[i_1, k] = state
                if i_1 < A.shape[0]:
                    state = A[i_1, k + 1] - state
                    B[i_1, k + 1] = state
                if i_1 < A.shape[0]:
                    B[i_1, k + 2] = state
                if i_1 < A.shape[0]:
                    state = -state
                    B[i_1, k + 3] = state
            for k_r in range(A.shape[1] // 4 * 4, A.shape[1]):  # k
                if i_1 < A.shape[0]:
                    if k_r % 4 == 0:
                        state = state * 2 + A[i_1, k_r]
                    elif k_r % 4 == 1:
                        state = A[i_1, k_r] - state
                    elif k_r % 4 == 3:
                        state = -state
                    B[i_1, k_r] = state"""


def test_a_gpus_threads_too_get_straight_bodies():
    A = np.zeros((5, 9), INT)
    assert nest_of(unroll("k", 4)(filtered_rows), A, A, target=GPU).endswith(THREAD_BODY)


@on_every_target
def test_every_trip_count_on_both_targets(target):
    kernel = unroll("k", 4)(filtered_rows)
    for trips in range(14):
        A = np.arange(3, 3 + 2 * trips).reshape(2, trips)
        expected, B = np.full((2, trips), 77), np.full((2, trips), 77)
        filtered_rows(A, expected)
        call(kernel, A, B, target=target)
        assert B.tolist() == expected.tolist(), trips


# ------------------------------------------------------------------------------------------- starts and steps


def starting_at(first, step):
    def upwards(p, q, n):
        for k in range(first, first + n * step, step):
            p[(k - first) // step] = (k + 5) & 3
            q[(k - first) // step] = (k + 1) % 3

    def downwards(p, q, n):
        for k in range(first, first - n * step, -step):
            p[(first - k) // step] = (k + 5) & 3
            q[(first - k) // step] = (k + 1) % 3

    return upwards, downwards


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("first", range(8))
def test_a_constant_start_folds_whatever_it_is(first, step):
    for body in starting_at(first, step):
        for factor in (3, 4):
            lowering = lower(unroll("k", factor)(body), np.zeros(9, INT), np.zeros(9, INT), 9)
            text = format_kernel(lowering.stages["unroll"])
            main = text.split("# k")[0]
            assert ("& 3" in main) == (factor * step % 4 != 0), text
            assert ("% 3" in main) == (factor * step % 3 != 0), text
            for trips in (0, 1, factor - 1, factor, factor + 1, 13):
                same(lowering, np.full(trips, 77), np.full(trips, 77), trips)


def run_time_start(p, q, first, n):
    for k in range(first, first + n):
        p[k - first] = k & 3
        q[k - first] = (k + 1) % 3


def run_time_start_downwards(p, q, first, n):
    for k in range(first, first - n, -1):
        p[first - k] = k & 3
        q[first - k] = (k + 1) % 3


def chained(p, q, first, n):
    s = 1
    for k in range(first, first + n):
        s = s * 3 + (k & 3)
        p[k - first] = s
        q[k - first] = (k + 1) % 3


def chained_downwards(p, q, first, n):
    s = 1
    for k in range(first, first - n, -1):
        s = s * 3 + (k & 3)
        p[first - k] = s
        q[first - k] = (k + 1) % 3


@pytest.mark.parametrize("body", [run_time_start, run_time_start_downwards])
def test_a_run_time_start_is_never_folded(body):
    for factor in (2, 3, 4, 6):
        lowering = lower(unroll("k", factor)(body), np.zeros(9, INT), np.zeros(9, INT), 1, 9)
        text = format_kernel(lowering.stages["unroll"])
        assert text.count("& 3") == factor + 1 and text.count("% 3") == factor + 1


@on_every_target
@pytest.mark.parametrize("body", [chained, chained_downwards])
def test_run_time_starts_on_both_targets(target, body):
    kernel = unroll("k", 4)(body)
    for first in range(8):
        for trips in range(14) if target == "cpu" or first == 5 else (0, 5):
            wanted, got = np.full((2, trips), 77), np.full((2, trips), 77)
            body(*wanted, first, trips)
            call(kernel, *got, first, trips, target=target)
            assert got.tolist() == wanted.tolist(), (first, trips)


def test_a_base_that_is_known_but_for_a_multiple_of_the_period_folds():
    def shifted(p, base):
        for k in range(4 * base, 4 * base + p.shape[0]):
            p[k - 4 * base] = (k + 8 * base) & 3

    lowering = lower(unroll("k", 4)(shifted), np.zeros(9, INT), 1)
    assert format_kernel(lowering.stages["unroll"]).count("& 3") == 1  # in the remainder
    for base in range(4):
        same(lowering, np.zeros(11, INT), base)


def below_zero(p):
    for k in range(6, -9, -1):
        p[k + 8] = k % 4


def test_negative_counters_floor():
    def around_zero(p):
        for k in range(-6, 7):
            p[k + 6] = k % 4 * 10 + (k & 3)

    assert "%" not in format_kernel(agrees(unroll("k")(around_zero), np.zeros(13, INT)).stages["unroll"])
    lowering = agrees(unroll("k", 4)(around_zero), np.zeros(13, INT))
    assert "%" not in format_kernel(lowering.stages["unroll"])  # the remainder is one iteration
    down = agrees(unroll("k", 4)(below_zero), np.zeros(15, INT))
    assert "%" not in format_kernel(down.stages["unroll"])  # those of the remainder share their quotient


# ------------------------------------------------------------------------------------------- where steps come from


def test_the_users_own_step_folds_without_any_decorator():
    def by_fours(x):
        for k in range(0, x.shape[0], 4):
            if k & 3 == 0:
                x[k] = (k + 3) % 4
            else:
                x[k] = -1

    lowering = agrees(nounroll("k")(by_fours), np.zeros(11, INT))
    assert branches(lowering, "tiling") == 0


def test_the_pieces_of_a_tile_start_where_the_outer_piece_stands():
    x = np.zeros(19, INT)
    kernel = tile(k=8)(unroll("k.1", 4)(pipeline))
    lowering = agrees(kernel, x, x.copy())
    assert branches(lowering) == 3  # those of the remainder
    assert branches(agrees(tile(k=6)(unroll("k.1", 4)(pipeline)), x, x.copy())) > 3


def test_in_lanes_the_steps_are_whole_vectors():
    kernel = vectorize("k", width=4)(unroll("k", 2)(run_time_start))
    for first in range(5):
        agrees(kernel, np.zeros(21, INT), np.zeros(21, INT), first, 21)

    def stages(p):
        for j in range(p.shape[0]):
            for k in range(8):
                if j & 1 == 0:
                    p[j, k] = k & 3
                else:
                    p[j, k] = -1

    agrees(vectorize("k", width=4)(unroll("j", 2)(stages)), np.zeros((5, 8), INT))


def test_two_levels_of_stages():
    def nested(A):
        for i in range(A.shape[0]):
            for k in range(2 * i, 2 * i + 10):
                if k & 1 == i & 1:
                    A[i, k - 2 * i] += k

    lowering = agrees(unroll("i", 2)(unroll("k", 2)(nested)), np.zeros((5, 10), INT))
    assert applied(lowering)
    # Four copies in the main loops of both; two of them are dead.
    assert len(stores(lowering.stages["unroll"], "A")) == 2 + 2


def test_a_tested_bit_of_several():
    def bits(p):
        for k in range(p.shape[0]):
            if k & 2:
                p[k] = k // 4
            else:
                p[k] = k >> 1

    lowering = agrees(unroll("k", 4)(bits), np.zeros(11, INT))
    text = format_kernel(lowering.stages["unroll"])
    assert "p[k + 2] = k // 4" in text and "p[k + 3] = k // 4" in text and "p[k + 1] = k >> 1" in text


# ------------------------------------------------------------------------------------------- constants of scalars


def test_a_scalar_that_is_read_after_the_loop_keeps_its_value():
    def last_stage(x):
        stage = 7
        for k in range(x.shape[0]):
            stage = k & 1
            if stage == 0:
                x[k] = 5
        return stage

    lowering = lower(unroll("k", 2)(last_stage), np.zeros(9, INT))
    assert branches(lowering) == 1
    for size in range(6):
        same(lowering, np.zeros(size, INT))
    body = lowering.stages["unroll"].body
    assert [stmt.value.value for stmt in walk(body[1].body) if isinstance(stmt, Assign)] == [1]  # the first is dead


def test_what_an_arm_of_an_if_sets_is_not_known_after_it():
    def chosen(x, y):
        mode = 1
        for k in range(8):
            phase = k & 1
            if phase == 0:
                mode = 2
            if x[k] > 0:
                mode = 3
            if mode == 2:
                y[k] += 1
            elif mode == 3:
                y[k] += 10
            else:
                y[k] += 100

    for seed in range(6):
        x = np.random.default_rng(seed).integers(-1, 2, 8)
        agrees(unroll("k")(chosen), x, np.zeros(8, INT))
        agrees(unroll("k", 4)(chosen), x, np.zeros(8, INT))


def test_a_constant_does_not_survive_a_loop_that_may_change_it():
    def counted(x, y):
        c = 0
        for k in range(x.shape[0]):
            if x[k] > 0:
                c = c + 1
            if c == 0:
                y[k] = 1
        d = 0
        while d < c:
            d = d + 2
        y[0] += c + d

    for seed in range(6):
        x = np.random.default_rng(seed).integers(-1, 2, 7)
        agrees(unroll("k", 2)(counted), x, np.zeros(7, INT))
        agrees(unroll("k", 7)(counted), x, np.zeros(7, INT))


def test_a_break_leaves_with_the_value_it_had():
    def found(x):
        where = -1
        for k in range(8):
            odd = k & 1
            where = odd
            if x[k] > 0:
                break
            where = 2
        return where

    for place in (*range(8), None):
        x = np.zeros(8, INT)
        if place is not None:
            x[place] = 1
        for decorate in (unroll("k"), unroll("k", 2), unroll("k", 4)):
            agrees(decorate(found), x)
