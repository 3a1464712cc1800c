"""Staging: the tile that is copied, its layout and padding, and what may not be copied."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pyschedule import tile, unroll, vectorize
from pyschedule.ir.nodes import Barrier, Load, Select, Store
from pyschedule.ir.types import lanes_of
from pyschedule.ir.visitors import expressions, loops, variables, walk_with_loops
from tests.transforms import kernels
from tests.transforms.schedules import GPU, WIDE
from tests.transforms.stages import (
    agrees,
    buffers,
    count,
    counting,
    details,
    loads,
    loop_named,
    lower,
    same,
    skips,
)


def convolution(X, W, Y):
    for y in range(Y.shape[0]):
        for x in range(Y.shape[1]):
            for r in range(3):
                for s in range(2):
                    Y[y, x] += X[y + r, x + s] * W[r, s]


def around(kernel, wanted):
    """The labels of the loops around the first statement or expression for which `wanted` holds."""
    for stmt, above in walk_with_loops(kernel.body):
        if wanted(stmt):
            return [loop.label for loop in above]
    raise AssertionError("there is no such statement")


# ---------------------------------------------------------------------------------------------------- the buffer


def test_a_tile_is_copied_in_the_loop_that_was_named_before_its_first_use():
    lowering = agrees(tile(i=4, j=3, k=2, stage={"B": "k.0"})(kernels.gemm), *[counting(7, 7)] * 3)
    stage = lowering.stages["tiling"]
    assert "staged B at 'k.0'" in details(lowering)
    assert len(loads(stage, "B")) == 1  # by the copy
    assert around(stage, lambda stmt: isinstance(stmt, Store) and stmt.array == "B_tile")[:3] == [
        "i.0",
        "j.0",
        "k.0",
    ]
    first = loop_named(stage, "k.0").body[0]
    assert first.array.name == "B_tile" and first.array.space == "packed"


def test_panels_follow_the_loops_that_read_them():
    tiled = tile(i=4, j=(8, 4), k=3, order="j.0 k.0 i.0 j.1 k.1 i.1 j.2", stage={"B": "k.0"})
    stage = agrees(tiled(kernels.gemm), counting(9, 7), counting(7, 11), counting(9, 11)).stages["tiling"]
    assert buffers(stage, "packed") == {"B_tile": "n x n x 4 float32"}  # panel, k, j
    use = next(part for part in expressions(stage.body) if isinstance(part, Load) and part.array == "B_tile")
    assert [{name.partition("_")[0] for name in variables(index)} for index in use.indices] == [{"j"}, {"k"}, {"j"}]


def test_what_runs_in_lanes_lies_side_by_side():
    def product(A, B, C):
        for j in range(B.shape[0]):
            for k in range(A.shape[0]):
                for i in range(A.shape[1]):
                    C[j, i] += A[k, i] * B[j, k]

    tiled = tile(i=8, k=4, j=3, stage={"A": "k.0"})(vectorize("i", width=4)(product))
    stage = agrees(tiled, counting(9, 11), counting(5, 9), counting(5, 11)).stages["vectorization"]
    moved = [part for part in expressions(stage.body) if isinstance(part, Load) and part.array == "A_tile"]
    assert moved and all(type(part.indices[-1]).__name__ == "Ramp" for part in moved)


def test_a_window_is_copied_with_its_halo():
    lowering = agrees(
        tile(y=4, x=3, stage={"X": "x.0"})(convolution), counting(11, 9), counting(3, 2), counting(9, 8)
    )
    assert buffers(lowering.stages["tiling"], "packed") == {"X_tile": "6 x 4 float32"}


@pytest.mark.parametrize(("target", "space"), [(WIDE, "packed"), (GPU, "shared")])
@pytest.mark.parametrize(("layout", "shape"), [("C", "6 x 4"), ("F", "4 x 6")])
def test_a_window_is_copied_in_the_order_in_which_it_lies_in_memory(layout, shape, target, space):
    arguments = np.asarray(counting(11, 9), order=layout), counting(3, 2), counting(9, 8)
    lowering = tile(y=4, x=3, stage={"X": "x.0"})(convolution).lower(*arguments, target=target)
    same(lowering, *arguments)
    assert buffers(lowering.stages["tiling"], space) == {"X_tile": f"{shape} float32"}


@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (3, 5), (4, 3), (9, 8)])
@pytest.mark.parametrize("target", [WIDE, GPU])
def test_windows_at_the_edges(shape, target):
    m, n = shape
    lowering = lower(
        tile(y=4, x=3, stage={"X": "x.0", "W": "x.0"})(convolution), *[counting(9, 9)] * 3, target=target
    )
    assert not skips(lowering)
    same(lowering, counting(m + 2, n + 1), counting(3, 2), counting(m, n))


def test_a_window_of_strided_reads():
    lowering = agrees(
        tile(i=4, stage={"X": "i.0"})(kernels.strided_window), counting(24), counting(3), counting(9), target=GPU
    )
    assert buffers(lowering.stages["tiling"], "shared") == {"X_tile": "13 float32"}


def test_reads_that_differ_in_more_than_their_loops_have_no_common_tile():
    def twice(x, y):
        for i in range(y.shape[0]):
            y[i] = x[i, 0] + x[2, i]

    lowering = agrees(tile(i=4, stage={"x": "i.0"})(twice), counting(9, 9), counting(9))
    assert "differ in more than their loops" in skips(lowering)[0]


def test_several_reads_of_one_element_share_the_tile():
    def squares(x, y):
        for i in range(y.shape[0]):
            for j in range(x.shape[0]):
                y[i] += x[j] * x[j]

    stage = agrees(tile(i=4, j=3, stage={"x": "j.0"})(squares), counting(8), counting(9)).stages["tiling"]
    assert len(buffers(stage, "packed")) == 1 and len(loads(stage, "x")) == 1


def test_a_half_is_widened_by_the_copy_on_a_cpu_and_not_on_a_gpu():
    args = [np.ones((9, 9), np.float16)] * 3
    tiled = tile(i=4, j=4, k=4, stage={"B": "k.0"})(kernels.gemm)
    (packed,) = buffers(agrees(tiled, *args).stages["tiling"], "packed").values()
    assert packed.endswith("float32")
    shared = buffers(agrees(tiled, *args, target=GPU).stages["tiling"], "shared")
    assert list(shared.values()) == ["4 x 4 float16"]


# ------------------------------------------------------------------------------------------------------- padding


@pytest.mark.parametrize("target", [WIDE, GPU])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 4, 5), (5, 7, 3), (8, 9, 4), (0, 3, 3), (3, 3, 0)])
def test_padding_does_not_reach_results(target, sizes):
    """Values behind the arrays' ends are not finite; padding of the tiles is zero, or garbage nobody reads."""
    m, n, k = sizes
    tiled = tile(i=4, j=(8, 4), k=3, stage={"A": "k.0", "B": "k.0"})(vectorize("j", width=4)(kernels.gemm))
    lowering = lower(tiled, *[counting(9, 9)] * 3, target=target)
    assert not [line for line in skips(lowering) if "Staging" in line]
    same(lowering, counting(m, k), counting(k, n), counting(m, n))


def test_a_product_over_a_padded_tile_is_not_zero():
    def product(A, p):
        for i in range(A.shape[0]):
            t = 1.0
            for j in range(A.shape[1]):
                t *= A[i, j]
            p[i] = t

    ones = np.full((5, 7), 2, np.float32)
    tiled = tile(i=4, j=4, stage={"A": "j.0"})(vectorize("j", width=8)(product))
    agrees(tiled, ones, counting(5))


# ------------------------------------------------------------------------------------------------- memory, barriers


def test_a_block_fills_its_tile_between_two_barriers():
    lowering = agrees(tile(i=4, j=4, k=3, stage={"B": "k.0"})(kernels.gemm), *[counting(7, 7)] * 3, target=GPU)
    body = loop_named(lowering.stages["tiling"], "k.0").body
    kinds = [type(stmt).__name__ for stmt in body]
    assert kinds[:4] == ["Alloc", "Barrier", "For", "Barrier"]
    copied = list(loops((body[2],)))
    assert {loop.mapping for loop in copied} == {"cooperative"}


def test_two_tiles_in_one_loop_share_their_barriers():
    tiled = tile(i=4, j=4, k=3, stage={"A": "k.0", "B": "k.0"})(kernels.gemm)
    stage = agrees(tiled, *[counting(7, 7)] * 3, target=GPU).stages["tiling"]
    assert count(stage, Barrier) == 2


def test_a_cpu_needs_no_barriers():
    stage = agrees(tile(i=4, j=4, k=3, stage={"B": "k.0"})(kernels.gemm), *[counting(7, 7)] * 3).stages["tiling"]
    assert count(stage, Barrier) == 0


def test_a_tile_that_does_not_fit_is_refused_with_both_numbers():
    small = dataclasses.replace(GPU, staging_bytes=100)
    tiled = tile(i=8, j=8, k=4, stage={"B": "k.0"})(kernels.gemm)
    lowering = agrees(tiled, *[counting(9, 9)] * 3, target=small)
    assert "its tile of 128 bytes does not fit the 100 bytes of shared memory" in skips(lowering)[0]


def test_what_is_staged_already_counts():
    small = dataclasses.replace(GPU, staging_bytes=200)
    tiled = tile(i=8, j=8, k=4, stage={"A": "k.0", "B": "k.0"})(kernels.gemm)
    lowering = agrees(tiled, *[counting(9, 9)] * 3, target=small)
    assert len(buffers(lowering.stages["tiling"], "shared")) == 1
    assert "does not fit" in skips(lowering)[0]


def test_shared_memory_needs_a_constant_size():
    lowering = agrees(tile(i=4, stage={"A": "i.0"})(kernels.transposed), *square(7), target=GPU)
    assert "has no constant size" in skips(lowering)[0]
    assert not skips(agrees(tile(i=4, stage={"A": "i.0"})(kernels.transposed), *square(7)))


def square(size):
    return counting(size, size), counting(size, size)


# ------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("target", [WIDE, GPU])
def test_an_array_that_is_written_is_not_staged(target):
    lowering = agrees(tile(i=4, stage={"A": "i.0"})(kernels.transposed_in_place), counting(6, 6), target=target)
    assert "'A' is also written" in " ".join(skips(lowering))


def test_an_index_that_is_read_itself_is_not_staged():
    args = counting(9), np.array([3, 0, 1, 2, 3, 3, 0, 1, 2]), counting(4), counting(9)
    lowering = agrees(tile(i=4, stage={"table": "i.0"})(kernels.gathered), *args)
    assert "at an index that is itself read" in skips(lowering)[0]


def test_an_index_computed_in_the_loop_is_not_staged():
    def computed(x, p, y):
        for i in range(y.shape[0]):
            for j in range(y.shape[1]):
                t = p[j] + i
                y[i, j] = x[t % 4, j]

    p = np.arange(6) % 3
    lowering = agrees(tile(i=4, j=3, stage={"x": "j.0"})(computed), counting(4, 6), p, counting(5, 6))
    assert skips(lowering) and not buffers(lowering.stages["tiling"], "packed")


def test_an_array_that_no_loop_there_reads():
    tiled = tile(i=4, j=3, stage={"B": "i.0"})(kernels.transposed)
    assert "no loop 'i.0' has reads of 'B' in it" in skips(agrees(tiled, *square(5)))[0]


def test_an_element_read_at_one_place_is_not_staged():
    tiled = tile(i=4, j=4, k=4, stage={"B": "j.1"})(kernels.gemm)
    assert "'B' is read at one place" in skips(agrees(tiled, *[counting(7, 7)] * 3))[0]


def test_a_loop_that_counts_downwards_is_not_staged():
    lowering = agrees(tile(i=2, j=2, stage={"A": "j.0"})(kernels.downwards), counting(10, 5), counting(10, 5))
    assert "does not count upwards" in skips(lowering)[0]


# ------------------------------------------------------------------------------ elements that no read would reach


def test_a_copy_reads_nothing_that_a_condition_keeps_from_being_read():
    def first_five(x, y):
        for i in range(y.shape[0]):
            if i < 5:
                y[i] = x[i]

    for target in (WIDE, GPU):
        lowering = agrees(tile(i=4, stage={"x": "i.0"})(first_five), counting(5), counting(11), target=target)
        assert not skips(lowering)


@pytest.mark.parametrize("target", [WIDE, GPU])
@pytest.mark.parametrize("m", [0, 1, 4, 6])
def test_a_copy_reads_nothing_where_the_loops_inside_do_not_run(target, m):
    tiled = tile(i=4, j=3, k=2, order="j.0 k.0 i.0 j.1 k.1 i.1", stage={"B": "k.0"})
    if target is GPU:
        tiled = tile(i=4, j=3, k=2, stage={"B": "k.0"})
    lowering = lower(tiled(kernels.product_of_nothing), *[counting(9, 9)] * 3, target=target)
    assert not skips(lowering)
    same(lowering, counting(m, 5), counting(5 if m else 0, 7), counting(m, 7))


def test_a_checked_index_is_not_checked_by_the_copy():
    def perhaps(x, f, y):
        for i in range(y.shape[0]):
            for j in range(y.shape[1]):
                if f[i] > 0:
                    y[i, j] = x[i + 3, j]

    tiled = tile(i=4, j=3, stage={"x": "j.0"})(perhaps)
    agrees(tiled, counting(4, 5), -np.ones(5, np.float32), counting(5, 5))


# ----------------------------------------------------------------------------------------- the order of the copy


@pytest.mark.parametrize(("layout", "order"), [("C", ["k", "j", "j"]), ("F", ["j", "k", "j"])])
def test_a_copy_reads_whole_rows(layout, order):
    """Panels of j are filled row by row where a row is contiguous; a tile that is turned around, panel by panel."""
    panels = tile(i=2, j=(64, 16), order="j.0 i.0 j.1 k i.1 j.2", stage={"B": "j.0"})(kernels.gemm)
    A, B, C = counting(5, 7), np.asarray(counting(7, 70), order=layout), np.zeros((5, 70))
    lowering = panels.lower(A, B, C, target=WIDE)
    same(lowering, A, B, C)
    for stmt, above in walk_with_loops(lowering.stages["tiling"].body):
        if isinstance(stmt, Store) and stmt.array == "B_tile":
            assert [loop.var[0] for loop in above][1:] == order
            return
    raise AssertionError("nothing is staged")


def test_a_copy_that_turns_a_tile_around_gathers_and_writes_whole_vectors():
    def product(A, W, C):
        for i in range(C.shape[0]):
            for j in range(C.shape[1]):
                for k in range(A.shape[1]):
                    C[i, j] += A[i, k] * W[j, k]

    kernel = vectorize("j", 16)(tile(j=16, order="j.0 i k j.1", stage={"W": "j.0"})(product))
    for columns in (16, 21, 3, 0):
        lowering = agrees(kernel, counting(5, 7), counting(columns, 7), np.zeros((5, columns)))
        stores = [
            stmt
            for stmt, _ in walk_with_loops(lowering.stages["vectorization"].body)
            if isinstance(stmt, Store) and stmt.array == "W_tile"
        ]
        assert [lanes_of(index.type) for index in stores[0].indices] == [1, 16]


def imagined_zeros(X, W, Y, top):
    """Sums over windows of columns, with `top` imagined rows of zeros before the first."""
    P, Q = Y.shape
    H, _ = X.shape
    for i in range(P):
        for j in range(Q):
            acc = 0.0
            for r in range(3):
                acc += W[r] * (X[i + r - top, j] if i + r >= top and i + r - top < H else 0.0)
            Y[i, j] = acc


def test_a_staged_tile_holds_the_zeros_that_are_imagined_around_an_array():
    kernel = tile(i=4, j=8, order="i.0 j.0 i.1 j.1 r", stage={"X": "j.0"})(imagined_zeros)
    lowering = lower(kernel, counting(6, 9), counting(3), counting(6, 9), 1)
    inner = loop_named(lowering.stages["tiling"], "r")
    assert loads(lowering.stages["tiling"], "X_tile")
    assert not any(isinstance(part, Select) for part in expressions(inner.body))
    for height, rows, top in ((6, 6, 1), (1, 3, 2), (0, 2, 0), (9, 11, 5), (5, 0, 1), (20, 3, 0)):
        same(lowering, counting(height, 9), counting(3), counting(rows, 9), top)


def test_a_choice_of_another_value_than_zero_is_made_at_each_read():
    def imagined_ones(X, Y):
        P, Q = Y.shape
        for i in range(P):
            for j in range(Q):
                acc = 0.0
                for r in range(3):
                    acc += X[i + r - 1, j] if i + r >= 1 and i + r - 1 < P else 1.0
                Y[i, j] = acc

    def imagined_from_the_second_row(X, Y):
        P, Q = Y.shape
        for i in range(P):
            for j in range(Q):
                acc = 0.0
                for r in range(3):
                    acc += X[i + r - 1, j] if i + r >= 2 and i + r - 1 < P else 0.0
                Y[i, j] = acc

    for nest in (imagined_ones, imagined_from_the_second_row):
        kernel = tile(i=4, j=8, order="i.0 j.0 i.1 j.1 r", stage={"X": "j.0"})(nest)
        lowering = agrees(kernel, counting(6, 9), counting(6, 9))
        assert loads(lowering.stages["tiling"], "X_tile")
        assert any(
            isinstance(part, Select) for part in expressions(loop_named(lowering.stages["tiling"], "r").body)
        )


@pytest.mark.parametrize(("dtype", "last"), [(np.float16, "k"), (np.float32, "i")])
def test_halves_that_lanes_share_are_widened_row_by_row(dtype, last):
    """Other elements stand in the order in which they are read, the rows of the register tile side by side."""
    order = "j.0 i.0 i.1 j.1 k i.2 j.2"
    both = tile(i=(8, 4), j=(32, 16), order=order, stage={"A": "i.0", "B": "j.0"})(kernels.gemm)
    for rows, depth in ((9, 7), (4, 0), (1, 19)):
        A, B, C = (counting(*shape).astype(dtype) for shape in ((rows, depth), (depth, 20), (rows, 20)))
        lowering = agrees(vectorize("j", 16)(unroll("i")(both)), A, B, np.zeros_like(C))
        filled = [
            above[-1].var
            for stmt, above in walk_with_loops(lowering.stages["tiling"].body)
            if isinstance(stmt, Store) and stmt.array == "A_tile"
        ]
        assert [name[0] for name in filled] == [last]
        assert all(
            [lanes_of(index.type) for index in stmt.indices] == [1, 1, 16]
            for stmt, _ in walk_with_loops(lowering.stages["vectorization"].body)
            if isinstance(stmt, Store) and stmt.array == "A_tile" and dtype == np.float16
        )
