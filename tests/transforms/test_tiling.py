"""Tiling: every iteration once, in an order that is legal, and the reason where none is."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from pyschedule import ScheduleError, tile
from pyschedule.ir.nodes import Alloc, If
from pyschedule.ir.printer import format_expr, format_kernel
from pyschedule.ir.visitors import walk
from tests.transforms import kernels
from tests.transforms.schedules import GPU, WIDE
from tests.transforms.stages import (
    agrees,
    applied,
    buffers,
    count,
    counting,
    details,
    loop_named,
    lower,
    nest,
    runs,
    same,
    skips,
)


def copy(a, b):
    for i in range(b.shape[0]):
        b[i] = a[i] + 1


def update(A, C):
    for i in range(C.shape[0]):
        for j in range(C.shape[1]):
            C[i, j] = C[i, j] * 2 + A[j, i]


# ---------------------------------------------------------------------------------------------- sizes and tails


@pytest.mark.parametrize("sizes", [(1,), (4,), (7,), (100,), (48, 32), (7, 3), (5, 5), (12, 8, 3), (9, 4, 4, 1)])
def test_every_iteration_runs_once_whatever_divides_what(sizes):
    kernel = tile(i=sizes)(copy)
    lowering = lower(kernel, counting(1), counting(1))
    assert nest(lowering.stages["tiling"]) == [f"i.{level}" for level in range(len(sizes) + 1)]
    for size in {0, 1, 2, 37, *(n + d for n in sizes for d in (-1, 0, 1))}:
        a = counting(size)
        same(lowering, a, a * 0)
        found = runs(lowering.stages["tiling"], a, a * 0)
        assert found == [(0, i) for i in range(size)]


def fixed(b):
    for i in range(12):
        b[i] = i


def test_pieces_of_a_known_trip_count_are_not_clipped():
    stage = agrees(tile(i=(6, 2))(fixed), np.zeros(12)).stages["tiling"]
    assert [loop_named(stage, f"i.{level}").max_trip for level in range(3)] == [2, 3, 2]
    assert "min(" not in format_kernel(stage)


def test_a_size_above_a_known_trip_count_is_the_trip_count():
    stage = agrees(tile(i=(100, 5))(fixed), np.zeros(12)).stages["tiling"]
    assert [loop_named(stage, f"i.{level}").max_trip for level in range(3)] == [1, 3, 5]


def never(b):
    for i in range(3, 3):
        b[i] = 1


def test_a_loop_without_iterations_is_tiled_too():
    lowering = agrees(tile(i=(4, 2))(never), np.zeros(12))
    assert applied(lowering) == ["Tiling: i=(4, 2)"]


def steps(b):
    for i in range(1, b.shape[0], 3):
        for j in range(b.shape[1] - 1, -1, -2):
            b[i, j] += i * 10 + j


@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (2, 5), (11, 8), (13, 9)])
@pytest.mark.parametrize("i, j", [(2, 2), ((3, 2), 1), (4, (5, 3)), (50, 50)])
def test_steps_other_than_one_and_downwards(shape, i, j):
    lowering = agrees(tile(i=i, j=j)(steps), counting(*shape, dtype="int64"))
    assert nest(lowering.stages["tiling"])[:2] == ["i.0", "j.0"]


# -------------------------------------------------------------------------------------------------------- order


def test_default_order_is_level_by_level():
    stage = lower(tile(i=(8, 4), j=(6, 2))(update), counting(9, 9), counting(9, 9)).stages["tiling"]
    assert nest(stage) == ["i.0", "j.0", "i.1", "j.1", "i.2", "j.2"]


def test_default_order_puts_reductions_last_outside_and_outermost_inside():
    lowering = lower(tile(i=(8, 4), j=6, k=5)(kernels.gemm), *[counting(9, 9)] * 3)
    assert "order: i.0 j.0 k.0 i.1 k.1 i.2 j.1" in details(lowering)


def test_default_order_on_a_gpu_keeps_an_accumulator_in_one_thread():
    lowering = lower(tile(i=(8, 4), j=(6, 2), k=5)(kernels.gemm), *[counting(9, 9)] * 3, target=GPU)
    assert "order: i.0 j.0 i.1 j.1 k.0 k.1 i.2 j.2" in details(lowering)


def test_an_untiled_loop_is_an_innermost_piece_in_its_place():
    assert nest(lower(tile(i=2)(update), *[counting(9, 9)] * 2).stages["tiling"]) == ["i.0", "i.1", "j"]
    assert nest(lower(tile(j=2)(update), *[counting(9, 9)] * 2).stages["tiling"]) == ["j.0", "i", "j.1"]


@pytest.mark.parametrize("order", list(itertools.permutations(["i.0", "i.1", "j.0", "j.1"])))
def test_every_order_of_a_nest_without_dependences(order):
    if order.index("i.0") > order.index("i.1") or order.index("j.0") > order.index("j.1"):
        with pytest.raises(ScheduleError, match="the pieces of a loop stand in the order of their numbers"):
            tile(i=3, j=4, order=order)(update)
        return
    lowering = agrees(tile(i=3, j=4, order=order)(update), counting(8, 7), counting(7, 8))
    assert nest(lowering.stages["tiling"]) == list(order)
    assert applied(lowering) and not skips(lowering)


def test_an_order_without_sizes_is_an_interchange():
    lowering = agrees(tile(order="j i")(update), counting(5, 3), counting(3, 5))
    assert nest(lowering.stages["tiling"]) == ["j", "i"]
    assert applied(lowering) == ["Tiling: order=j i"]
    found = runs(lowering.stages["tiling"], counting(2, 3), counting(3, 2))
    assert found == [(0, i, j) for j in range(2) for i in range(3)]


@pytest.mark.parametrize(
    "order, missing",
    [("i.0 j.0 i.1", "'j.1'"), ("i j", "i.0"), ("i.0 i.1", "'j.0', 'j.1'"), ("i.0 i.0 j.0 j.1", "twice")],
)
def test_an_order_must_list_every_piece_once(order, missing):
    with pytest.raises(ScheduleError, match="piece") as caught:
        lower(tile(i=2, j=2, order=order)(update), counting(5, 3), counting(3, 5))
    assert missing in str(caught.value)


# --------------------------------------------------------------------------------------------------- legality


def test_where_interleaving_is_not_legal_loops_are_split_in_place():
    lowering = agrees(tile(i=4, j=3)(kernels.antidiagonal), counting(9, 8))
    assert nest(lowering.stages["tiling"]) == ["i.0", "i.1", "j.0", "j.1"]
    assert "strip-mined in place" in details(lowering)
    assert applied(lowering) == ["Tiling: i=4, j=3"]


def test_an_illegal_order_is_refused_with_the_two_iterations_and_the_place():
    lowering = agrees(tile(i=4, j=3, order="j.0 i.0 j.1 i.1")(kernels.antidiagonal), counting(9, 8))
    (skip,) = skips(lowering)
    assert "A[i + 1, j - 1] is read at (i=" in skip and "and written at (i=" in skip
    line = kernels.antidiagonal.__code__.co_firstlineno + 4
    assert f"kernels.py:{line}:" in skip
    assert lowering.stages["tiling"].body == lowering.stages["source"].body


@pytest.mark.parametrize("order, legal", [("t i", True), ("i t", False)])
def test_a_stencil_in_place_keeps_its_order(order, legal):
    lowering = agrees(tile(order=order)(kernels.gauss_seidel), counting(9))
    assert bool(applied(lowering)) == legal


def test_the_reason_names_the_flow_of_a_value_forwards_in_time():
    lowering = lower(tile(order="i t")(kernels.gauss_seidel), counting(9))
    assert "A[i] is written at (t=0, i=2) and read at (t=1, i=1) as A[i + 1]" in skips(lowering)[0]


def skewed(A):
    for i in range(1, A.shape[0]):
        for j in range(A.shape[1] - 3):
            A[i, j] = A[i - 1, j + 3] + 1


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_a_dependence_that_points_back_in_an_inner_loop_forbids_blocks(size):
    lowering = agrees(tile(i=2, j=size)(skewed), counting(7, 12))
    assert nest(lowering.stages["tiling"]) == ["i.0", "i.1", "j.0", "j.1"]


def forward(A):
    for i in range(1, A.shape[0]):
        for j in range(3, A.shape[1]):
            A[i, j] = A[i - 1, j - 3] + 1


def test_dependences_that_point_forwards_in_all_loops_may_be_tiled():
    lowering = agrees(tile(i=2, j=4)(forward), counting(7, 12))
    assert nest(lowering.stages["tiling"]) == ["i.0", "j.0", "i.1", "j.1"]


def test_sums_may_be_reordered_but_not_under_strict_math():
    free = agrees(tile(order="k i j")(kernels.gemm), *[counting(5, 5)] * 3)
    assert nest(free.stages["tiling"])[0] == "k"  # each element still sums in the order of k
    free = agrees(tile(i=2, order="i.0 i.1")(kernels.total), counting(9), counting(1))
    assert nest(free.stages["tiling"]) == ["i.0", "i.1"]


def column_first(A, s):
    for i in range(A.shape[0]):
        for j in range(A.shape[1]):
            s[0] += A[i, j]


@pytest.mark.parametrize("strict_math", [False, True])
def test_interchanging_a_sum_is_a_reassociation(strict_math):
    lowering = agrees(tile(order="j i", strict_math=strict_math)(column_first), counting(5, 4), counting(1))
    assert bool(applied(lowering)) != strict_math
    if strict_math:
        assert "s[0]" in skips(lowering)[0]


def moving_bound(A, n):
    for i in range(A.shape[0]):
        for j in range(n[0]):
            n[0] = 3
            A[i, j] = j


def test_a_bound_that_the_nest_changes_stays_in_place():
    lowering = agrees(tile(i=2, j=2)(moving_bound), counting(4, 4), np.array([2]))
    assert nest(lowering.stages["tiling"]) == ["i.0", "i.1", "j.0", "j.1"]
    assert "the bound of loop 'j' reads" in details(lowering)


def test_a_loop_with_a_break_is_not_tiled_but_one_around_it_is():
    lowering = agrees(tile(i=2)(kernels.first_negative), counting(9), counting(2))
    assert "loop 'i' may be left early" in skips(lowering)[0]

    def rows(A, out):
        for i in range(out.shape[0]):
            for j in range(A.shape[1]):
                if A[i, j] < 0:
                    break
                out[i] += 1

    lowering = agrees(tile(i=2)(rows), counting(9, 5), counting(9))
    assert applied(lowering) == ["Tiling: i=2"]
    assert "order: i.0 i.1" in details(lowering)
    lowering = agrees(tile(i=2, order="j i.0 i.1")(rows), counting(9, 5), counting(9))
    assert "loop 'j' may be left early" in skips(lowering)[0]


# -------------------------------------------------------------------------------------------------- triangles


def test_an_inner_bound_over_the_outer_counter_becomes_its_hull():
    lowering = agrees(tile(i=4, j=3, order="j.0 i.0 j.1 i.1 k")(kernels.lower_product), *[counting(9, 9)] * 3)
    assert nest(lowering.stages["tiling"])[:2] == ["j.0", "i.0"]
    text = format_kernel(lowering.stages["tiling"])
    assert "for j_0 in range(0, A.shape[0], 3)" in text  # over the whole square
    assert "if j_1 < i_1 + 1" in text  # and the triangle is left of it


@pytest.mark.parametrize("order", ["i j", "j i"])
@pytest.mark.parametrize("n", [0, 1, 2, 5, 8])
def test_triangles_of_every_kind_run_every_point_once(order, n):
    def upper(A):
        for i in range(A.shape[0]):
            for j in range(i, A.shape[0]):
                A[i, j] += i - j

    def strict(A):
        for i in range(A.shape[0] - 1, -1, -1):
            for j in range(i):
                A[i, j] += i - j

    def falling(A):
        for i in range(A.shape[0]):
            for j in range(A.shape[0] - 1, i, -1):
                A[i, j] += i - j

    def band(A):
        for i in range(A.shape[0]):
            for j in range(max(0, i - 2), min(A.shape[0], i + 3)):
                A[i, j] += i - j

    for body in (upper, strict, falling, band):
        lowering = agrees(tile(order=order)(body), counting(n, n, dtype="int64"))
        assert nest(lowering.stages["tiling"]) == order.split(), body.__name__
        first, second = order.split()
        tiled = tile(i=3, j=2, order=f"{second}.0 {first}.0 {first}.1 {second}.1")(body)
        lowering = agrees(tiled, counting(n, n, dtype="int64"))
        assert nest(lowering.stages["tiling"])[0] == f"{second}.0", body.__name__
        found = Counter(runs(lowering.stages["tiling"], counting(n, n, dtype="int64")))
        assert found == Counter(runs(lowering.stages["source"], counting(n, n, dtype="int64")))


def test_a_bound_without_a_simple_hull_is_refused_by_name():
    def wild(A):
        for i in range(A.shape[0]):
            for j in range(i * i % 5):
                A[i, j] += 1

    lowering = agrees(tile(order="j i")(wild), counting(6, 6))
    assert "the bound of loop 'j' depends on loop 'i'" in skips(lowering)[0]
    assert "no simple hull" in skips(lowering)[0]


# ------------------------------------------------------------------------------------------------ imperfect nests


def test_statements_between_loops_are_distributed():
    lowering = agrees(tile(i=3, j=2, k=2)(kernels.gemm_zeroed), *[counting(7, 7)] * 3)
    stage = lowering.stages["tiling"]
    assert nest(stage)[:2] == ["i.0", "j.0"]  # shared by both statements
    assert nest(stage).count("i.1") > 1  # the zeros have loops of their own


def test_a_scalar_between_two_loops_gets_an_element_an_iteration():
    lowering = agrees(tile(i=3, j=2, k=2)(kernels.gemm_scalar), *[counting(7, 7)] * 3)
    assert "s: 3x2 float32 kept in registers" in details(lowering)
    assert list(buffers(lowering.stages["tiling"], "register").values()) == ["3 x 2 float32"]


@pytest.mark.parametrize("sizes", [(0, 0, 3), (1, 1, 1), (5, 4, 2), (9, 11, 3)])
def test_an_expanded_scalar_is_indexed_by_iterations_and_not_by_counters(sizes):
    m, n, k = sizes
    lowering = lower(tile(i=3, j=2, k=2)(kernels.strided_products), *[counting(9, 9)] * 3)
    assert list(buffers(lowering.stages["tiling"], "register").values()) == ["3 x 2 float32"]
    same(lowering, counting(m, k), counting(n, k), counting(m, n))
    lowering = lower(tile(i=48, j=48, k=2)(kernels.strided_products), *[counting(9, 9)] * 3)
    assert list(buffers(lowering.stages["tiling"], "local").values()) == ["48 x 48 float32"]
    same(lowering, counting(m, k), counting(n, k), counting(m, n))


def test_a_scalar_is_expanded_in_memory_where_registers_have_no_room():
    lowering = agrees(tile(i=48, j=48, k=2)(kernels.gemm_scalar), *[counting(7, 7)] * 3)
    assert list(buffers(lowering.stages["tiling"], "local").values()) == ["48 x 48 float32"]
    assert "stays in memory" in details(lowering)


def test_a_scalar_that_carries_a_value_between_iterations_keeps_its_order():
    lowering = agrees(tile(i=3, order="i.0 i.1")(kernels.prefix_sum), counting(8), counting(8))
    assert count(lowering.stages["tiling"], Alloc) == 0

    def running(A, B):
        s = 0.0
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                s = s * 2 + A[i, j]
                B[i, j] = s

    lowering = agrees(tile(order="j i")(running), counting(4, 3), counting(4, 3))
    assert skips(lowering)


def test_two_inner_loops_share_the_outer_tiles():
    lowering = agrees(tile(j=3)(kernels.layer_norm), counting(4, 8), counting(4, 8))
    assert nest(lowering.stages["tiling"]) == ["i", *["j.0", "j.1"] * 3]


def test_one_loop_of_several_of_a_name_is_tiled_alone():
    lowering = agrees(tile(**{"j#2": 3})(kernels.layer_norm), counting(4, 8), counting(4, 8))
    assert nest(lowering.stages["tiling"]) == ["i", "j", "j.0", "j.1", "j"]


def test_every_top_level_nest_is_tiled():
    args = counting(5), counting(5, 7), counting(7)
    lowering = agrees(tile(i=2, j=3)(kernels.several_nests), *args)
    labels = nest(lowering.stages["tiling"])
    assert labels[:2] == ["i.0", "i.1"]
    assert labels.count("i.0") == 3 and labels.count("j.0") == 2


# ----------------------------------------------------------------------------------------------------- decorators


def test_two_tile_decorators_on_different_loops_are_one():
    one = lower(tile(i=4, j=3)(update), *[counting(9, 9)] * 2)
    for two in (tile(i=4)(tile(j=3)(update)), tile(j=3)(tile(i=4)(update))):
        lowering = agrees(two, *[counting(9, 9)] * 2)
        assert lowering.stages["tiling"] == one.stages["tiling"]
        assert applied(lowering) == ["Tiling: i=4, j=3"]


def test_the_order_and_the_stages_of_joined_decorators_count():
    joined = tile(j=3, order="j.0 i.0 j.1 i.1")(tile(i=4, stage={"A": "i.0"})(update))
    lowering = agrees(joined, *[counting(9, 9)] * 2)
    assert nest(lowering.stages["tiling"])[:2] == ["j.0", "i.0"]
    assert "staged A" in details(lowering)


@pytest.mark.parametrize("make", [lambda: tile(i=4)(tile(i=2)(update)), lambda: tile(i=(2, 4))(update)])
def test_a_loop_tiled_twice_or_an_inner_size_above_its_outer_is_an_error(make):
    with pytest.raises(ScheduleError):
        make()


def test_a_while_loop_cannot_be_tiled():
    def halving(b, n):
        while n > 0:
            b[0] += n
            n = n // 2

    lowering = agrees(tile(n=2)(halving), np.zeros(1), 9)
    assert "is a while loop whose trip count is not known on entry" in skips(lowering)[0]


def test_guards_of_a_hull_are_no_tail_guards():
    """What a triangle leaves out may be read by iterations that have it, so that it is no padding."""
    order = "j.0 i.0 j.1 i.1 k"
    stage = lower(tile(i=4, j=3, order=order)(kernels.lower_product), *[counting(9, 9)] * 3).stages["tiling"]
    tests = {format_expr(stmt.test): stmt.tail for stmt in walk(stage.body) if isinstance(stmt, If)}
    assert tests["j_1 < i_1 + 1"] is False
    assert tests["j_1 < A.shape[0] and i_1 < A.shape[0]"] is True


def test_a_scalar_read_after_the_loops_is_not_given_an_element_for_each_iteration():
    def last_one(A, y):
        last = -1
        for i in range(y.shape[0]):
            last = i * 2
            for k in range(A.shape[1]):
                y[i] += A[i, k] + last
        return last

    for target in (WIDE, GPU):
        for rows in (0, 1, 9):
            args = counting(rows, 5), counting(rows)
            lowering = agrees(tile(i=4, order="i.0 k i.1")(last_one), *args, target=target)
            assert "'last' is read after the loops" in skips(lowering)[0]
            assert "'last' is read after the loops" in details(agrees(tile(i=4)(last_one), *args, target=WIDE))


def triangular(A, C):
    for i in range(A.shape[0]):
        for j in range(i + 1):
            s = 0.0
            for k in range(A.shape[1]):
                s += A[i, k] * A[j, k]
            C[i, j] = s


@pytest.mark.parametrize(
    "sizes",
    [{"k": 4}, {"k": 2, "order": "k.0 i j k.1"}, {"i": 4, "j": 4, "k": 4}, {"j": 4, "k": 4}, {"i": 2, "k": 3}],
)
@pytest.mark.parametrize("rows", [0, 1, 5, 9])
def test_an_array_whose_extent_changes_is_not_made(sizes, rows):
    """A sum for each (i, j) of a triangle: the array for one row of sums would have a new length in each row."""
    lowering = agrees(tile(**sizes)(triangular), counting(rows, 7), np.zeros((rows, rows)))
    if "i" not in sizes and "j" not in sizes:
        assert "bounds change inside this order" in "".join(skips(lowering))
