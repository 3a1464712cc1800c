"""Vectorization: lanes, masks and tails, reductions, what is chosen and why, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from pyschedule import tile, vectorize
from pyschedule.ir.nodes import Alloc, If, Ramp, Reduce, Select
from pyschedule.ir.printer import format_kernel
from pyschedule.ir.types import FLOAT32, Vector, lanes_of
from pyschedule.ir.visitors import expressions, walk
from tests.support import agrees as machine_code_agrees
from tests.transforms import kernels
from tests.transforms.schedules import GPU, NARROW, WIDE
from tests.transforms.stages import (
    agrees,
    applied,
    counting,
    details,
    loads,
    loop_named,
    lower,
    runs,
    same,
    skips,
    stores,
)


def double(x, y):
    for i in range(x.shape[0]):
        y[i] = x[i] * 2


def widths(lowering, stage="vectorization"):
    """The numbers of lanes that expressions of a stage have."""
    return {lanes_of(part.type) for part in expressions(lowering.stages[stage].body)} - {1}


# ----------------------------------------------------------------------------------------- trip counts and tails


@pytest.mark.parametrize("width", [2, 4, 8, 16])
def test_every_trip_count_around_a_width(width):
    lowering = lower(vectorize("i", width=width)(double), counting(1), counting(1))
    assert applied(lowering) == [f"Vectorization: width={width} on loop 'i'"]
    assert widths(lowering) == {width}
    for size in range(2 * width + 2):
        same(lowering, counting(size), counting(size))


def test_a_tail_is_one_masked_pass_that_only_runs_where_something_is_left():
    stage = lower(vectorize("i", width=8)(double), counting(1), counting(1)).stages["vectorization"]
    main, tail = loop_named(stage, "i"), next(stmt for stmt in walk(stage.body) if isinstance(stmt, If))
    assert main.step.value == 8 and tail.tail
    whole, masked = stores(stage, "y")
    assert whole.mask is None and lanes_of(masked.mask.type) == 8


def exact(x):
    for i in range(16):
        x[i] = x[i] * 2


def short(x):
    for i in range(5):
        x[i] = x[i] * 2


def test_a_known_trip_count_that_the_width_divides_has_no_tail():
    stage = agrees(vectorize("i", width=8)(exact), counting(16)).stages["vectorization"]
    assert [store.mask for store in stores(stage, "x")] == [None]


def test_a_width_above_a_known_trip_count_is_all_tail():
    x = counting(5)
    stage = agrees(vectorize("i", width=8)(short), x).stages["vectorization"]
    assert [store.mask is None for store in stores(stage, "x")] == [False]


def backwards(x, y):
    for i in range(x.shape[0] - 1, 0, -3):
        y[i] = x[i] + i


@pytest.mark.parametrize("size", [0, 1, 2, 4, 13, 25, 28])
def test_steps_other_than_one_and_downwards(size):
    lowering = agrees(vectorize("i", width=4)(backwards), counting(size), counting(size))
    assert applied(lowering)
    ramps = [part for part in expressions(lowering.stages["vectorization"].body) if isinstance(part, Ramp)]
    assert {ramp.stride for ramp in ramps} == {-3}


def test_a_width_that_is_no_power_of_two_is_refused():
    lowering = agrees(vectorize("i", width=6)(double), counting(9), counting(9))
    assert skips(lowering) == ["Vectorization: width=6 is no power of two; 4 is"]


# ---------------------------------------------------------------------------------------------------- conditions


def branches(x, y):
    for i in range(y.shape[0]):
        t = y[i]
        if x[i] > 1:
            y[i] = x[i] * 2
        elif x[i] > 0:
            y[i] = t - 1
        else:
            y[i] = 0


def conditional_scalar(x, y):
    for i in range(y.shape[0]):
        if x[i] > 0:
            t = x[i] * 2
        else:
            t = x[i] - 1
            t = t * t
        y[i] += t


def scalar_of_one_arm(x, y):
    for i in range(y.shape[0]):
        if x[i] > 0:
            t = x[i] * 2
            if t > 3:
                y[i] += t


def skipping(x, y):
    for i in range(y.shape[0]):
        if x[i] < 0:
            continue
        y[i] = x[i]


def arms_of_expressions(x, y):
    for i in range(y.shape[0]):
        y[i] = x[i] if x[i] > 0 and i > 0 and x[i - 1] > 0 else -x[i]


@pytest.mark.parametrize("body", [branches, conditional_scalar, scalar_of_one_arm, skipping, arms_of_expressions])
@pytest.mark.parametrize("size", [0, 3, 4, 9])
def test_conditions_become_masks(body, size):
    lowering = agrees(vectorize("i", width=4)(body), counting(size), counting(size)[::-1].copy())
    assert applied(lowering)
    assert widths(lowering) == {4}


def test_a_condition_is_evaluated_before_the_body_changes_what_it_reads():
    def flip(x):
        for i in range(x.shape[0]):
            if x[i] > 0:
                x[i] = -1
            else:
                x[i] = 1

    assert applied(agrees(vectorize("i", width=4)(flip), counting(9)))


def test_lanes_that_are_off_do_not_divide_by_zero():
    def guarded(x, y, z):
        for i in range(x.shape[0]):
            if y[i] != 0:
                z[i] = x[i] // y[i]

    x = np.arange(9, dtype=np.int32)
    lowering = agrees(vectorize("i", width=4)(guarded), x, x % 3, x * 0)
    assert "divi" not in str(lowering.log)


def test_lanes_that_are_off_touch_no_memory():
    def far(x, y):
        for i in range(y.shape[0]):
            if i < 5:
                y[i] = x[i]

    def wild(x, p, y):
        for i in range(y.shape[0]):
            q = p[i]
            if q < 4:
                y[i] = x[q]

    agrees(vectorize("i", width=4)(far), counting(5), counting(11))
    agrees(vectorize("i", width=4)(wild), counting(4), np.array([0, 9, 3, 10**9, 1, 2, 4]), counting(7))


def test_a_loop_around_a_condition_that_all_lanes_share():
    def uniform(A, flags):
        for i in range(A.shape[0]):
            if flags[i] > 0:
                for j in range(A.shape[1]):
                    A[i, j] = A[i, j] * 2

    lowering = agrees(vectorize("j", width=4)(uniform), counting(5, 7), counting(5))
    assert applied(lowering)


# ---------------------------------------------------------------------------------------------------- reductions


def total(x):
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i]
    return s


def product(x):
    p = 1.0
    for i in range(x.shape[0]):
        p *= x[i]
    return p


def largest(x):
    m = x[0]
    for i in range(x.shape[0]):
        m = max(m, x[i])
    return m


def smallest(x):
    m = x[0]
    for i in range(x.shape[0]):
        if x[i] < m:
            m = x[i]
    return m


def largest_of_numpy(x):
    m = x[0]
    for i in range(x.shape[0]):
        m = np.maximum(m, x[i])
    return m


def some(x):
    s = 3.0
    for i in range(x.shape[0]):
        if x[i] > 0:
            s += x[i]
    return s


@pytest.mark.parametrize("body", [total, product, largest, smallest, largest_of_numpy, some])
@pytest.mark.parametrize("size", [1, 3, 4, 5, 11])
def test_a_reduction_has_an_accumulator_a_lane(body, size):
    x = np.where(np.arange(size) % 3 == 1, 0.5, 2.0).astype(np.float32) if body is product else counting(size)
    lowering = agrees(vectorize("i", width=4)(body), x)
    assert applied(lowering) == ["Vectorization: width=4 on loop 'i'"]
    assert any(isinstance(part, Reduce) for part in expressions(lowering.stages["unroll"].body))


@pytest.mark.parametrize("body", [largest, smallest, largest_of_numpy])
@pytest.mark.parametrize("place", [0, 1, 5, 8, 10])
def test_extrema_mean_with_a_nan_what_they_mean_without_lanes(body, place):
    x = counting(11)
    x[place] = np.nan
    assert applied(agrees(vectorize("i", width=4)(body), x))


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_extrema_of_infinities(value):
    agrees(vectorize("i", width=4)(largest), np.full(7, value, np.float32))
    agrees(vectorize("i", width=4)(smallest), np.full(7, value, np.float32))


def test_the_log_says_what_was_reassociated_and_what_was_exact():
    assert "reduction into 's' reassociated: 4 partial results" in details(
        lower(vectorize("i", width=4)(total), counting(9))
    )
    assert "reassociated" not in details(lower(vectorize("i", width=4)(largest), counting(9)))


@pytest.mark.parametrize("body, taken", [(total, False), (product, False), (largest, True), (smallest, True)])
def test_under_strict_math_only_exact_reductions_go_into_lanes(body, taken):
    x = np.random.default_rng(0).standard_normal(11).astype(np.float32)
    lowering = agrees(vectorize("i", width=4, strict_math=True)(body), x)
    assert bool(applied(lowering)) == taken
    if not taken:
        assert "strict_math" in skips(lowering)[0] or "is written" in skips(lowering)[0]


def test_sums_of_integers_are_exact_under_strict_math_too():
    lowering = agrees(vectorize("i", width=4, strict_math=True)(kernels.total), np.arange(11), np.array([2**62]))
    assert applied(lowering)


def test_two_elements_of_one_array_are_accumulated_apart():
    """Both went into one accumulator once."""
    lowering = agrees(vectorize("i", width=4)(kernels.two_elements), counting(11), counting(2))
    assert applied(lowering)


def test_an_element_that_no_iteration_reaches_is_not_touched():
    lowering = lower(vectorize("i", width=4)(kernels.two_elements), counting(1), counting(2))
    same(lowering, counting(0), counting(0))


def test_one_array_accumulated_by_two_operations_is_refused():
    def two(x, s):
        for i in range(x.shape[0]):
            s[0] += x[i]
            s[0] *= x[i]

    assert skips(agrees(vectorize("i", width=4)(two), counting(5), counting(1)))


def running(x, y):
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i]
        y[i] = s


def test_a_sum_that_is_read_on_the_way_is_refused():
    lowering = agrees(vectorize("i", width=4)(running), counting(9), counting(9))
    assert "'s'" in skips(lowering)[0] or "s is written" in skips(lowering)[0]


def test_a_reduction_in_a_register_tile_has_a_vector_an_element():
    tiled = tile(i=4, j=3)(vectorize("k", width=4)(kernels.gemm))
    lowering = agrees(tiled, *[counting(9, 9)] * 3)
    accumulators = [
        stmt.array.shape
        for stmt in walk(lowering.stages["vectorization"].body)
        if isinstance(stmt, Alloc) and stmt.array.dtype == Vector(FLOAT32, 4)
    ]
    assert [tuple(extent.value for extent in shape) for shape in accumulators] == [(4, 3)]


# ----------------------------------------------------------------------------------------------------- addresses


def test_contiguous_strided_and_broadcast_accesses():
    def mixed(A, B, y):
        for i in range(y.shape[0]):
            y[i] = A[i, 0] + A[0, 1] + B[2 * i + 1] + B[i]

    lowering = agrees(vectorize("i", width=4)(mixed), counting(7, 3), counting(15), counting(7))
    assert "contiguous: B, y; broadcast: A; strided or gathered: A, B" in details(lowering)
    found = loads(lowering.stages["vectorization"], "A")
    assert {lanes_of(load.type) for load in found} == {1, 4}  # A[0, 1] is loaded once for all lanes


def test_an_index_that_must_be_checked_is_not_gathered():
    def looked_up(x, p, y):
        for i in range(y.shape[0]):
            y[i] = x[p[i]]

    lowering = agrees(vectorize("i", width=4)(looked_up), counting(5), np.array([2, 0, 1, 4, 4, 0, 2]), counting(7))
    assert "checked" in skips(lowering)[0]


def test_indices_that_lanes_may_share_are_not_stored_to():
    lowering = agrees(
        vectorize("i", width=4)(kernels.histogram), np.array([0, 0, 2, 0, 1, 0]), np.zeros(4, np.int64)
    )
    assert skips(lowering) and not applied(lowering)


def test_a_store_of_every_lane_to_one_element_is_refused():
    def last(x, y):
        for i in range(x.shape[0]):
            y[0] = x[i]

    assert skips(agrees(vectorize("i", width=4)(last), counting(6), counting(1)))


# -------------------------------------------------------------------------------------------------- dependences


@pytest.mark.parametrize("width, taken", [(2, True), (4, True), (8, False), (16, False)])
def test_distances_are_exact(width, taken):
    lowering = agrees(vectorize("i", width=width)(kernels.recurrence), counting(23))
    assert bool(applied(lowering)) == taken
    if not taken:
        assert "A[i] is written at (i=4) and read at (i=8) as A[i - 4]" in skips(lowering)[0]


@pytest.mark.parametrize("width", [2, 8, 16])
def test_reading_ahead_is_no_obstacle(width):
    assert applied(agrees(vectorize("i", width=width)(kernels.shifted), counting(23)))


def swapped(x, y):
    for i in range(x.shape[0] - 1):
        y[i] = x[i] + 1
        x[i + 1] = y[i] * 2


def forwarded(x, y):
    for i in range(x.shape[0] - 1):
        x[i] = y[i] + 1
        y[i + 1] = 0.5


def test_statements_whose_order_in_a_chunk_matters():
    assert skips(agrees(vectorize("i", width=4)(swapped), counting(9), counting(9)))
    assert skips(agrees(vectorize("i", width=4)(forwarded), counting(9), counting(9)))


def test_a_scalar_read_after_the_loop_is_refused():
    lowering = agrees(vectorize("j", width=4)(kernels.read_afterwards), counting(3, 6), counting(2))
    assert "read after the loop" in skips(lowering)[0] or "t is written" in skips(lowering)[0]


def test_a_scalar_read_in_the_next_round_of_a_loop_around_is_refused():
    lowering = agrees(vectorize("j", width=4)(kernels.carried_around), counting(3, 6), counting(3))
    assert skips(lowering) and not applied(lowering)


def test_a_value_carried_from_one_iteration_to_the_next_is_refused():
    def carried(x, y):
        t = 0.0
        for i in range(x.shape[0]):
            y[i] = t
            t = x[i]

    assert skips(agrees(vectorize("i", width=4)(carried), counting(9), counting(9)))


def test_a_break_is_refused():
    lowering = agrees(vectorize("i", width=4)(kernels.first_negative), counting(9), counting(2))
    assert skips(lowering)


# ------------------------------------------------------------------------------------------------ loops in lanes


def test_an_outer_loop_runs_its_inner_loops_in_lanes():
    lowering = agrees(vectorize("i", width=4)(kernels.gemm_scalar), counting(7, 3), counting(5, 3), counting(7, 5))
    assert applied(lowering)
    inner = loop_named(lowering.stages["vectorization"], "k")
    assert inner.step.value == 1
    assert any(lanes_of(part.type) == 4 for part in expressions(inner.body))


def test_an_outer_loop_whose_inner_trip_counts_differ_is_refused():
    lowering = agrees(vectorize("i", width=4)(kernels.lower_product), *[counting(6, 6)] * 3)
    assert "differs from lane to lane" in skips(lowering)[0]


def test_local_arrays_of_an_iteration_get_an_element_a_lane():
    def window(x, y):
        for i in range(y.shape[0]):
            part = np.zeros(3, dtype=x.dtype)
            for j in range(3):
                part[j] = x[i + j] * j
            y[i] = part[0] + part[1] * part[2]

    lowering = agrees(vectorize("i", width=4)(window), counting(11), counting(9))
    assert applied(lowering)


def test_all_loops_of_a_name_and_one_of_them():
    every = agrees(vectorize("j", width=4)(kernels.layer_norm), counting(3, 8), counting(3, 8))
    assert [loop_named(every.stages["vectorization"], "j").step.value] == [4]
    one = agrees(vectorize("j#3", width=4)(kernels.layer_norm), counting(3, 8), counting(3, 8))
    text = format_kernel(one.stages["vectorization"])
    assert "Y[i, j_3:j_3+4]" in text and "X[i, j:j+4]" not in text


def test_the_innermost_piece_of_a_tiled_loop():
    lowering = agrees(tile(i=8)(vectorize("i", width=4)(double)), counting(19), counting(19))
    assert loop_named(lowering.stages["vectorization"], "i.0").step.value == 8
    assert loop_named(lowering.stages["vectorization"], "i.1").step.value == 4


def test_what_runs_in_lanes_already_is_not_put_into_lanes_again():
    lowering = agrees(vectorize("j", width=4)(vectorize("i", width=2)(kernels.transposed)), *square(6))
    assert applied(lowering) == ["Vectorization: width=2 on loop 'i'"]
    assert skips(lowering) == [
        "Vectorization: width=4 on loop 'j': what is in loop 'j' runs in lanes already",
    ]


def square(size):
    return counting(size, size), counting(size, size)


# -------------------------------------------------------------------------------------------------------- choice


@pytest.mark.parametrize("target, width", [(WIDE, 16), (NARROW, 4)])
def test_the_width_is_the_targets_for_the_widest_element(target, width):
    lowering = agrees(vectorize("i")(double), counting(9), counting(9), target=target)
    assert applied(lowering) == [f"Vectorization: width={width} on loop 'i'"]
    wide = counting(9, dtype="float64")
    lowering = agrees(vectorize("i")(double), wide, wide, target=target)
    assert applied(lowering) == [f"Vectorization: width={width // 2} on loop 'i'"]


def test_a_width_on_a_gpu_is_at_most_its_widest_access():
    lowering = agrees(tile(i=64)(vectorize("i", width=16)(double)), counting(9), counting(9), target=GPU)
    assert all("width=16" not in line for line in applied(lowering))


def test_the_loop_of_contiguous_accesses_is_chosen():
    def rows(A, B):
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                B[i, j] = A[i, j] * 2

    def columns(A, B):
        for j in range(A.shape[1]):
            for i in range(A.shape[0]):
                B[i, j] = A[i, j] * 2

    for body in (rows, columns):
        lowering = agrees(vectorize()(body), *square(9))
        assert applied(lowering) == ["Vectorization: width=16 on loop 'j'"], body.__name__
        assert "chosen" in details(lowering)


def test_a_parallel_loop_is_chosen_before_a_reduction():
    lowering = agrees(vectorize()(kernels.column_sums), counting(5, 9), counting(9))
    assert applied(lowering) == ["Vectorization: width=16 on loop 'j'"]


def test_an_automatic_request_that_finds_nothing_is_a_note():
    def prefix(x):
        for i in range(1, x.shape[0]):
            x[i] = x[i] + x[i - 1]

    lowering = agrees(vectorize()(prefix), counting(9))
    assert not skips(lowering) and not applied(lowering)
    assert [record.status for record in lowering.log] == ["Note"]
    named = agrees(vectorize("i")(prefix), counting(9))
    assert skips(named)


def test_the_next_best_loop_is_taken_where_the_best_is_not_legal():
    def sweep(A):
        for i in range(A.shape[0]):
            for j in range(1, A.shape[1]):
                A[i, j] += A[i, j - 1]

    lowering = agrees(vectorize(width=4)(sweep), counting(7, 6))
    assert applied(lowering) == ["Vectorization: width=4 on loop 'i'"]
    line = sweep.__code__.co_firstlineno + 2
    assert f"not loop 'j' of line {line}: A[i, j] is written at (i=0, j=1) and read at (i=0, j=2)" in details(
        lowering
    )


def softmax(X, Y):
    for i in range(X.shape[0]):
        m = X[i, 0]
        for j in range(X.shape[1]):
            m = max(m, X[i, j])
        s = 0.0
        for j in range(X.shape[1]):
            Y[i, j] = X[i, j] - m
            s += Y[i, j]
        for j in range(X.shape[1]):
            Y[i, j] = Y[i, j] + s


def test_of_several_inner_loops_each_is_chosen_and_the_log_says_which_and_before_what():
    lowering = agrees(vectorize()(softmax), *square(19))
    assert applied(lowering) == ["Vectorization: width=16 on loop 'j'"] * 3
    first = softmax.__code__.co_firstlineno
    said = [record.details[:2] for record in lowering.log if record.transform == "Vectorization"]
    instead = f"rather than loop 'i' of line {first + 1} (strided or gathered: X, Y)"
    assert said == [
        (f"chosen: loop 'j' of line {first + 9} (contiguous: Y)", instead),
        (f"chosen: loop 'j' of line {first + 6} (contiguous: X, Y; a reduction)", instead),
        (f"chosen: loop 'j' of line {first + 3} (contiguous: X; a reduction)", instead),
    ]
    machine_code_agrees(vectorize()(softmax), *square(19))


def test_a_further_loop_is_left_where_its_lanes_would_be_gathered_or_are_not_legal():
    def two(A, B, x):
        for j in range(A.shape[1]):
            B[0, j] = A[0, j] * 2
        for n in range(A.shape[0]):
            B[n, 1] = A[n, 1] * 3
        for k in range(1, x.shape[0]):
            x[k] += x[k - 1]

    lowering = agrees(vectorize()(two), *square(18), counting(9))
    assert applied(lowering) == ["Vectorization: width=16 on loop 'j'"]
    line = two.__code__.co_firstlineno
    assert f"not loop 'n' of line {line + 3}: lanes would not pay (strided or gathered: A, B)" in details(lowering)
    assert f"not loop 'k' of line {line + 5}: x[k] is written at (k=1) and read at (k=2)" in details(lowering)


@pytest.mark.parametrize("size, width", [(1, 2), (2, 2), (3, 4), (6, 8), (8, 8), (9, 16), (40, 16)])
def test_a_width_that_nobody_gave_fits_the_tile(size, width):
    def twice(A, B):
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                B[i, j] = A[i, j] * 2

    lowering = agrees(tile(j=size)(vectorize("j")(twice)), *square(19))
    assert applied(lowering)[1] == f"Vectorization: width={width} on loop 'j'"
    note = f"{width} lanes of 16: loop 'j.1' has at most {size} iteration{'s' * (size > 1)}"
    assert (note in details(lowering)) == (width < 16)
    given = agrees(tile(j=size)(vectorize("j", 16)(twice)), *square(19))
    assert applied(given)[1] == "Vectorization: width=16 on loop 'j'"


def test_a_guarded_sum_that_an_unproved_index_keeps_in_memory_says_so_and_a_proved_one_runs_in_lanes():
    def perhaps_outside(A, r):
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                if A[i, j] > 0:
                    r[i] += A[i, j]

    def inside(A, r):
        for i in range(r.shape[0]):
            for j in range(A.shape[1]):
                if A[i, j] > 0:
                    r[i] += A[i, j]

    # As many sums as rows, or more, are what is hoped for.
    (reason,) = skips(lower(vectorize("j", 4)(perhaps_outside), counting(5, 9), counting(4)))
    assert "the index `i` stays below `r.shape[0]` where 'r' is reached: it is checked in every iteration" in reason
    assert (
        "a scalar that is summed in the loop and stored after it, or a loop over `range(r.shape[0])`, needs"
        in reason
    )

    def in_a_scalar(A, r):
        for i in range(A.shape[0]):
            s = 0.0
            for j in range(A.shape[1]):
                if A[i, j] > 0:
                    s += A[i, j]
            r[i] += s

    for body in (inside, in_a_scalar, perhaps_outside):
        lowering = agrees(vectorize("j", 4)(body), counting(5, 9), counting(5))
        assert applied(lowering) == ["Vectorization: width=4 on loop 'j'"]
        machine_code_agrees(vectorize("j", 4)(body), counting(5, 9), counting(5))


def test_lanes_of_another_dtype_than_the_arrays_are_refused():
    lowering = agrees(vectorize("i", width=8, dtype="half")(double), counting(9), counting(9))
    assert "lanes hold the arrays' elements, which are float32" in skips(lowering)[0]


# ------------------------------------------------------------------------------------------------------ instances


@pytest.mark.parametrize("size", [0, 1, 5, 8, 13])
def test_every_chunk_runs_once(size):
    stage = lower(vectorize("i", width=4)(double), counting(1), counting(1)).stages["vectorization"]
    # An origin stands for the first lane.
    assert runs(stage, counting(size), counting(size)) == [(0, i) for i in range(0, size, 4)]


def test_a_masked_accumulator_keeps_its_value_in_lanes_that_are_off():
    stage = lower(vectorize("i", width=4)(some), counting(9)).stages["vectorization"]
    assert any(isinstance(part, Select) for part in expressions(stage.body))


def test_a_scalar_of_one_name_in_lanes_and_in_another_loop():
    def two(x, y, z):
        for i in range(x.shape[0]):
            t = x[i] * 2
            if t > 1:
                t = t + 1
            y[i] = t
        for k in range(1, z.shape[0]):
            t = z[k - 1] * 2
            z[k] = t + z[k]

    for target in (WIDE, NARROW):
        lowering = agrees(vectorize("i", width=4)(two), counting(11), counting(11), counting(7), target=target)
        assert applied(lowering)
    machine_code_agrees(vectorize("i", width=4)(two), counting(11), counting(11), counting(7))


# -------------------------------------------------------------------- conditions of some lanes and of all


def between(x, y, low, high, least):
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            if j >= low and i >= least and j < high and i + least < 5:
                y[i, j] += x[i, j]


def chosen(x, y, low, high, least):
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            y[i, j] = x[i, j - low] if j >= low and i >= least and j < high and i + least < 5 else 0.0


@pytest.mark.parametrize("nest", [between, chosen])
def test_conditions_of_some_lanes_and_of_all(nest):
    kernel = vectorize("j", width=8)(nest)
    lowering = lower(kernel, counting(4, 21), counting(4, 21), 0, 0, 0)
    stage = lowering.stages["vectorization"]
    same_in_all = [stmt for stmt in walk(stage.body) if isinstance(stmt, If) and not stmt.tail]
    assert bool(same_in_all) == (nest is between)
    assert all(lanes_of(stmt.test.type) == 1 for stmt in same_in_all)
    for low, high, least in ((0, 21, 0), (3, 9, 1), (-4, 40, 0), (9, 3, 0), (8, 16, 3), (20, 21, -1), (21, 21, 2)):
        args = counting(4, 70)[:, 40:61], counting(4, 21), low, high, least
        if nest is between or (0 <= low and low <= high):
            same(lowering, *args)
            machine_code_agrees(kernel, *(np.ascontiguousarray(arg) if np.ndim(arg) else arg for arg in args))


def test_a_test_that_might_fail_is_not_made_before_its_turn():
    def quotients(x, y, d):
        for i in range(y.shape[0]):
            for j in range(y.shape[1]):
                if j < d and 20 // d > i:
                    y[i, j] = x[i, j]

    lowering = lower(vectorize("j", width=4)(quotients), counting(3, 9), counting(3, 9), 2)
    assert all(
        lanes_of(stmt.test.type) > 1
        for stmt in walk(lowering.stages["vectorization"].body)
        if isinstance(stmt, If) and not stmt.tail
    )
    for divisor in (1, 5, 9):
        same(lowering, counting(3, 9), counting(3, 9), divisor)


def test_one_lane_is_the_loop_as_it_is():
    def windows(X, W, Y):
        for i in range(Y.shape[0]):
            for r in range(W.shape[0]):
                Y[i] += X[2 * i + 3 * r] * W[r]

    kernel = tile(i=2)(tile(r=8)(vectorize("r", width=1)(windows)))
    lowering = agrees(kernel, counting(60), counting(5), counting(9))
    (record,) = [record for record in lowering.log if record.transform == "Vectorization"]
    assert record.status == "Applied" and record.details == ("one lane: the loop stays as it is",)
    assert not any(lanes_of(part.type) > 1 for part in expressions(lowering.kernel.body))
