"""Mapping: which loops cores, blocks and threads run, and why others stay serial."""

from __future__ import annotations

import pytest

from pyschedule import tile, vectorize
from pyschedule.ir.nodes import For, If
from pyschedule.ir.visitors import loops, walk
from tests.transforms import kernels
from tests.transforms.schedules import GPU
from tests.transforms.stages import agrees, counting, details, loop_named, mappings, nest, skips


def square(size=7):
    return counting(size, size), counting(size, size)


# ------------------------------------------------------------------------------------------------- cores of a CPU


def test_the_outermost_tiles_run_on_the_cores():
    stage = agrees(tile(i=4, j=3)(kernels.transposed), *square()).stages["tiling"]
    assert mappings(stage) == {"i.0": "parallel"}


def test_without_tiles_nothing_runs_at_once():
    assert mappings(agrees(tile(order="j i")(kernels.transposed), *square()).stages["unroll"]) == {}
    assert mappings(agrees(vectorize("j")(kernels.transposed), *square()).stages["unroll"]) == {}


def test_a_tile_loop_that_carries_a_dependence_is_passed_over():
    stage = agrees(tile(i=4, j=3)(kernels.antidiagonal), counting(9, 8)).stages["tiling"]
    assert mappings(stage) == {"j.0": "parallel"}


def test_a_reduction_does_not_run_on_the_cores():
    lowering = agrees(tile(k=4, parallel="k.0")(kernels.gemm), *[counting(7, 7)] * 3)
    assert mappings(lowering.stages["tiling"]) == {}
    (skip,) = skips(lowering)
    assert skip.startswith("Parallelization: parallel='k.0': C[i, j] is written at (i=0, j=0, k=0)")
    assert "written again at (i=0, j=0, k=4)" in skip


def test_the_piece_that_was_asked_for_and_no_other():
    stage = agrees(tile(i=4, parallel="i.1")(kernels.transposed), *square()).stages["tiling"]
    assert mappings(stage) == {"i.1": "parallel"}


def test_several_loops_each_where_its_iterations_may_run_at_once():
    stage = agrees(tile(i=4, j=3, parallel="i.0 j.0")(kernels.transposed), *square()).stages["tiling"]
    assert mappings(stage) == {"i.0": "parallel", "j.0": "parallel"}
    lowering = agrees(tile(i=4, k=3, parallel=["i.0", "k.0"])(kernels.gemm), *[counting(7, 7)] * 3)
    assert mappings(lowering.stages["tiling"]) == {"i.0": "parallel"}
    assert [skip.split(":")[1] for skip in skips(lowering)] == [" parallel='k.0'"]


def test_how_finely_a_tile_may_be_shared_out():
    def grains(kernel, *args):
        stage = agrees(kernel, *args).stages["tiling"]
        return [loop.grain for loop in loops(stage.body) if loop.mapping == "parallel"]

    assert grains(tile(i=(12, 4), parallel="i.0")(kernels.transposed), *square()) == [4]
    assert grains(tile(i=12, parallel="i.0")(kernels.transposed), *square()) == [1]
    assert grains(tile(i=(12, 5), parallel="i.0")(kernels.transposed), *square()) == [None]


@pytest.mark.parametrize("loop", ["i", "i.0", "j"])
def test_loops_around_a_break_do_not_run_on_the_cores(loop):
    def first(A, out):
        for i in range(out.shape[0]):
            for j in range(out.shape[1]):
                if A[i, j] < 0:
                    break
                out[i, j] = 1

    tiled = tile(i=2, parallel=loop) if loop == "i.0" else tile(order="i j", parallel=loop)
    assert mappings(agrees(tiled(first), *square()).stages["tiling"]) == {}


def test_a_scalar_of_every_iteration_is_no_obstacle():
    def scaled(A, B):
        for i in range(B.shape[0]):
            for j in range(B.shape[1]):
                if A[i, j] > 0:
                    t = A[i, j]
                    t = t * t
                    B[i, j] += t

    assert mappings(agrees(tile(i=2)(scaled), *square()).stages["tiling"]) == {"i.0": "parallel"}
    assert "thread.x" in mappings(agrees(tile(i=2)(scaled), *square(), target=GPU).stages["tiling"]).values()


def test_a_piece_that_is_not_there_is_refused():
    lowering = agrees(tile(i=2, parallel="i.0")(kernels.first_negative), counting(9), counting(2))
    assert "its loop was not tiled" in skips(lowering)[1]


# ----------------------------------------------------------------------------------------------- blocks and threads


def test_outer_tiles_go_to_blocks_and_inner_ones_to_threads():
    stage = agrees(tile(i=4, j=8)(kernels.transposed), *square(), target=GPU).stages["tiling"]
    assert mappings(stage) == {"i.0": "block.y", "j.0": "block.x", "i.1": "thread.y", "j.1": "thread.x"}


def test_a_reduction_stays_in_its_thread():
    stage = agrees(tile(i=4, j=8, k=2)(kernels.gemm), *[counting(7, 7)] * 3, target=GPU).stages["tiling"]
    assert {label for label in mappings(stage) if label.startswith("k")} == set()
    assert nest(stage) == ["i.0", "j.0", "i.1", "j.1", "k.0", "k.1"]


def test_no_more_threads_than_a_block_may_have():
    stage = agrees(tile(i=64, j=64)(kernels.transposed), *square(), target=GPU).stages["tiling"]
    count = 1
    for loop in loops(stage.body):
        if loop.mapping.startswith("thread"):
            count *= loop.max_trip
    assert 1 < count <= 1024


def test_threads_run_all_iterations_of_a_tile_and_guard_what_they_do():
    """So that every thread reaches every barrier."""
    stage = agrees(tile(i=4, j=8)(kernels.transposed), *square(), target=GPU).stages["tiling"]
    for label, size in (("i.1", 4), ("j.1", 8)):
        loop = loop_named(stage, label)
        assert loop.max_trip == size
    assert any(isinstance(stmt, If) and stmt.tail for stmt in walk(stage.body))


def test_a_nest_without_tiles_is_cut_into_blocks_of_threads():
    lowering = agrees(vectorize("j")(kernels.transposed), *square(), target=GPU)
    assert mappings(lowering.stages["tiling"]) == {"i": "block.y", "j.0": "block.x", "j.1": "thread.x"}
    assert "loop 'j' cut into blocks of 256 threads" in details(lowering)


def test_only_the_outer_loops_that_may_run_at_once_are_mapped():
    stage = agrees(tile(order="i k j")(kernels.gemm), *[counting(7, 7)] * 3, target=GPU).stages["tiling"]
    assert "k" not in mappings(stage)
    assert set(mappings(stage)) == {"i.0", "i.1"}


def test_a_nest_that_carries_a_dependence_runs_in_one_thread_and_the_log_says_why():
    lowering = agrees(tile(i=4)(kernels.gauss_seidel), counting(9), target=GPU)
    assert mappings(lowering.stages["tiling"]) == {}
    assert "the nest over 't' runs in one thread: A[i]" in details(lowering)


def test_iterations_that_share_a_local_array_run_in_one_thread():
    def shared(A, B):
        part = [0.0, 0.0, 0.0, 0.0]
        for i in range(A.shape[0]):
            part[i % 4] = A[i, 0]
            B[i, 0] = part[i % 4]

    lowering = agrees(tile(i=4)(shared), *square(), target=GPU)
    assert mappings(lowering.stages["tiling"]) == {}
    assert "its iterations share 'part'" in details(lowering)


def test_a_local_array_of_an_iteration_is_a_threads_own():
    lowering = agrees(tile(i=4)(kernels.local_array), *square(), target=GPU)
    assert mappings(lowering.stages["tiling"]) == {"i.0": "block.x", "i.1": "thread.x"}


def test_bounds_of_blocks_do_not_depend_on_other_loops():
    stage = agrees(tile(i=2, j=2)(kernels.lower_product), *[counting(7, 7)] * 3, target=GPU).stages["tiling"]
    from pyschedule.ir.visitors import variables

    blocks = [loop for loop in loops(stage.body) if loop.mapping.startswith("block")]
    assert blocks
    counters = {loop.var for loop in loops(stage.body)}
    assert not any((variables(loop.start) | variables(loop.stop)) & counters for loop in blocks)


@pytest.mark.parametrize("body", [kernels.gemm_scalar, kernels.masked_sums, kernels.layer_norm])
def test_scalars_beyond_a_tiles_end_are_no_iterations_of_the_source(body):
    """They are set in every thread, and once kept inner loops from running in lanes."""
    args = {
        kernels.gemm_scalar: (counting(7, 5), counting(6, 5), counting(7, 6)),
        kernels.masked_sums: (counting(7, 5), counting(7, 5), counting(7)),
        kernels.layer_norm: (counting(7, 8), counting(7, 8)),
    }[body]
    loop = "k" if body is kernels.gemm_scalar else "j"
    lowering = agrees(tile(i=4)(vectorize(loop, width=2)(body)), *args, target=GPU)
    assert not skips(lowering)


@pytest.mark.parametrize("sizes", [(0, 0), (1, 1), (4, 8), (5, 9), (9, 3)])
def test_tails_of_blocks_and_threads(sizes):
    m, n = sizes
    agrees(tile(i=(4, 2), j=(8, 3))(kernels.transposed), counting(m, n), counting(n, m), target=GPU)


def test_a_downward_loop_is_mapped_too():
    def backwards(A, B):
        for i in range(A.shape[0] - 1, -1, -2):
            B[i] = A[i] + i

    for size in (0, 1, 6, 9):
        lowering = agrees(tile(i=3)(backwards), counting(size), counting(size), target=GPU)
        assert mappings(lowering.stages["tiling"]) == {"i.0": "block.x", "i.1": "thread.x"}
        assert all(isinstance(loop, For) for loop in loops(lowering.stages["tiling"].body))


def test_a_scalar_read_after_the_second_nest_keeps_it_in_one_thread():
    """The first nest's new loops must not hide the second's."""

    def two(x, y):
        last = -9
        for i in range(y.shape[0]):
            y[i] += x[i]
        for k in range(7, y.shape[0]):
            y[k] += x[k]
            last = k
        return last

    for decorated in (tile(i=4)(two), tile(i=4, k=3)(two), tile(k=3)(two)):
        lowering = agrees(decorated, counting(29), counting(29), target=GPU)
        assert "the nest over 'k' runs in one thread: last is written" in details(lowering)
        assert "the nest over 'i' runs in one thread" not in details(lowering)
