"""What each decorator makes of a small nest: the loops that are left, and what the log says of them."""

from __future__ import annotations

import pytest

from pyschedule import inspect_loop_transforms, nounroll, spec, tile, unroll, vectorize
from pyschedule.ir.nodes import Const, For, Kernel
from pyschedule.ir.visitors import loops
from tests.transforms.stages import lower

MATRIX, ROW = spec("float32[32, 32]"), spec("float32[32]")


def add(a, b, c):
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            c[i, j] = a[i, j] + b[i, j]


def product(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


def cleared_product(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


def shifted(a):
    for i in range(4, a.shape[0]):
        a[i] = a[i - 4] * 2


def pulled(a):
    for i in range(a.shape[0] - 1):
        a[i] = a[i + 1]


def summed(a):
    for i in range(1, a.shape[0]):
        a[i] += a[i - 1]


def twelve(x, y):
    for i in range(12):
        y[i] = 2 * x[i]


def rows(x, y):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = 2 * x[i, j]


def twice_j(x, y):
    for j in range(x.shape[0]):
        y[j] = x[j]
    for j in range(x.shape[0]):
        y[j] += 1


def two_loops(x, y):
    for i in range(x.shape[0]):
        y[i] = 2 * x[i]
    for j in range(x.shape[0]):
        y[j] += x[j]


def counted(x, y):
    i = 0
    while i < x.shape[0]:
        y[i] = x[i] * 2
        i += 1


def doubling(x, y):
    i = 1
    while i < x.shape[0]:
        y[i] = x[i] * 2
        i *= 2


def until_negative(x, y):
    for i in range(x.shape[0]):
        if x[i] < 0:
            break
        y[i] = x[i]


def labels(kernel: Kernel) -> list[str]:
    return [loop.label for loop in loops(kernel.body) if loop.source]


def found(kernel, *args, target="cpu") -> list[str]:
    """The lines of the log that are not details."""
    return [str(record).splitlines()[0].split(" [")[0] for record in lower(kernel, *args, target=target).log]


def order_of(kernel, *args, target="cpu") -> str:
    log = str(lower(kernel, *args, target=target).log)
    return next(line.strip() for line in log.splitlines() if "order: " in line).removeprefix("order: ")


# ------------------------------------------------------------------------------------------------- tiling


@pytest.mark.parametrize(
    ("sizes", "order"),
    [
        ({"i": 2}, "i.0 k i.1 j"),
        ({"j": 2}, "j.0 k i j.1"),
        ({"k": 2}, "k.0 k.1 i j"),
        ({"i": (8, 4), "j": (16, 8), "k": 4}, "i.0 j.0 k.0 i.1 j.1 k.1 i.2 j.2"),
        ({"i": (8, 4), "j": 16, "k": (8, 2)}, "i.0 j.0 k.0 i.1 k.1 k.2 i.2 j.1"),
    ],
)
def test_reductions_come_last_among_the_outer_pieces_and_outside_the_innermost_output_pieces(sizes, order):
    assert order_of(tile(**sizes)(product), MATRIX, MATRIX, MATRIX) == order


def test_a_loop_that_is_not_tiled_counts_as_an_innermost_piece_in_its_place():
    lowering = lower(tile(i=2)(add), MATRIX, MATRIX, MATRIX)
    assert labels(lowering.stages["tiling"]) == ["i.0", "i.1", "j"]
    assert str(lowering.log).splitlines()[1] == "- Applied Tiling: i=2"


def test_an_order_without_sizes_is_an_interchange():
    lowering = lower(tile(order="j i")(add), MATRIX, MATRIX, MATRIX)
    assert labels(lowering.stages["tiling"]) == ["j", "i"]
    assert str(lowering.log).splitlines()[1] == "- Applied Tiling: order=j i"


def test_an_order_is_obeyed_to_the_letter():
    order = "j.0 i.0 j.1 i.1 i.2 j.2"
    lowering = lower(tile(i=(8, 4), j=(16, 8), order=order)(add), MATRIX, MATRIX, MATRIX)
    assert labels(lowering.stages["tiling"]) == order.split()


@pytest.mark.parametrize(("decorate", "name"), [(tile(i=8, j=8, parallel="i.0"), "i.0"), (tile(parallel="i"), "i")])
def test_a_parallel_loop_is_the_one_that_was_named(decorate, name):
    lowering = lower(decorate(rows), MATRIX, MATRIX, target="cpu")
    assert [loop.label for loop in loops(lowering.kernel.body) if loop.mapping == "parallel"] == [name]


def test_an_inner_piece_may_be_the_parallel_one():
    lowering = lower(tile(i=8, j=8, parallel="j.1")(rows), MATRIX, MATRIX, target="cpu")
    assert [loop.label for loop in loops(lowering.kernel.body) if loop.mapping == "parallel"] == ["j.1"]


@pytest.mark.parametrize(("target", "memory"), [("cpu", "packed"), ("cuda:sm_90", "shared")])
def test_stage_copies_a_tile_into_fast_memory(target, memory):
    kernel = tile(i=16, j=16, k=8, order="i.0 j.0 k.0 i.1 j.1 k.1", stage={"A": "k.0", "B": "k.0"})(product)
    text = inspect_loop_transforms(kernel, MATRIX, MATRIX, MATRIX, target=target)
    for name in "AB":
        assert f"{name}_tile = {memory} float32[" in text
        assert f"staged {name} at 'k.0'" in text


def test_tiling_reaches_across_the_statements_of_an_imperfect_nest():
    lowering = lower(tile(i=8, j=8, k=8)(cleared_product), MATRIX, MATRIX, MATRIX)
    assert "order: i.0 j.0 k.0 k.1 i.1 j.1" in str(lowering.log)
    assert labels(lowering.stages["tiling"]).count("k.0") == 1


def test_an_imperfect_nest_is_distributed_for_an_order_that_needs_it():
    nest = labels(lower(tile(order="k i j")(cleared_product), MATRIX, MATRIX, MATRIX).stages["tiling"])
    assert nest == ["i", "j", "k", "i", "j"]


def test_tiles_of_different_loops_join():
    lines = found(tile(i=8)(tile(j=16)(tile(k=4)(product))), MATRIX, MATRIX, MATRIX)
    assert lines == ["- Applied Tiling: i=8, j=16, k=4"]


def test_each_target_has_a_schedule_of_its_own():
    kernel = tile(i=8, target="cpu")(tile(i=16, j=(64, 4), target="cuda")(vectorize("j", 4, target="cuda")(add)))
    assert found(kernel, MATRIX, MATRIX, MATRIX) == ["- Applied Tiling: i=8"]
    lines = found(kernel, MATRIX, MATRIX, MATRIX, target="cuda:sm_80")
    assert lines == ["- Applied Tiling: i=16, j=(64, 4)", "- Applied Vectorization: width=4 on loop 'j'"]


def test_on_a_gpu_middle_tiles_go_to_threads_and_innermost_ones_to_registers():
    lowering = lower(tile(i=(16, 4), j=(64, 4))(add), MATRIX, MATRIX, MATRIX, target="cuda:sm_90")
    mapped = {loop.label: loop.mapping for loop in loops(lowering.kernel.body)}
    assert mapped["i.0"] == "block.y" and mapped["j.0"] == "block.x"
    assert mapped["i.1"] == "thread.y" and mapped["j.1"] == "thread.x"
    assert mapped["i.2"] == mapped["j.2"] == "serial"


@pytest.mark.parametrize(("piece", "taken"), [("i.0", True), ("j.1", True), ("i.2", False), ("k.0", False)])
def test_on_a_gpu_a_parallel_loop_is_mapped_or_refused(piece, taken):
    kernel = tile(i=(16, 4), j=(16, 4), k=8, parallel=piece)(product)
    lines = found(kernel, MATRIX, MATRIX, MATRIX, target="cuda:sm_90")
    assert any(line.startswith(f"- Skipped Parallelization: parallel='{piece}'") for line in lines) != taken


# ------------------------------------------------------------------------------------------------- names


def widths(kernel: Kernel) -> dict[tuple[str, int], int]:
    """Steps of the loops that run in lanes, by name and number."""
    return {
        (loop.source, loop.ordinal): loop.step.value
        for loop in loops(kernel.body)
        if isinstance(loop, For) and isinstance(loop.step, Const) and loop.step.value != 1
    }


def test_a_name_stands_for_every_loop_of_that_name_and_a_number_for_one():
    both = lower(vectorize("j", 8)(twice_j), ROW, ROW).kernel
    second = lower(vectorize("j#2", 8)(twice_j), ROW, ROW).kernel
    assert widths(both) == {("j", 1): 8, ("j", 2): 8}
    assert widths(second) == {("j", 2): 8}


def test_a_while_is_named_by_its_counter():
    kernel = tile(i=16)(vectorize("i", 4)(unroll("i", 2)(counted)))
    assert found(kernel, ROW, ROW) == [
        "- Applied Tiling: i=16",
        "- Applied Vectorization: width=4 on loop 'i'",
        "- Applied Unroll: factors=[2] on loops 'i'",
    ]


@pytest.mark.parametrize(
    "decorate",
    [tile(i=8), vectorize("i", 4), unroll("i", 4), tile(i=8, parallel="i.0")],
    ids=["tile", "vectorize", "unroll", "parallel"],
)
def test_a_while_that_cannot_be_counted_is_left_aloud(decorate):
    lines = found(decorate(doubling), ROW, ROW)
    assert lines and all(line.startswith("- Skipped ") for line in lines)


# ------------------------------------------------------------------------------------------------- lanes


def test_lanes_take_a_loop_that_is_not_the_innermost():
    lowering = lower(vectorize("j", 8)(cleared_product), MATRIX, MATRIX, MATRIX)
    assert "- Applied Vectorization: width=8 on loop 'j'" in str(lowering.log)
    assert widths(lowering.kernel) == {("j", 1): 8}


@pytest.mark.parametrize(("width", "taken"), [(2, True), (4, True), (8, False), (16, False)])
def test_distances_are_exact(width, taken):
    (line,) = found(vectorize("i", width)(shifted), ROW)
    if taken:
        assert line == f"- Applied Vectorization: width={width} on loop 'i'"
    else:
        assert line.startswith(f"- Skipped Vectorization: width={width} on loop 'i': a[i] is written at (i=4)")
        assert "read at (i=8) as a[i - 4]" in line


@pytest.mark.parametrize("width", [2, 16, 64])
def test_reading_ahead_is_no_obstacle(width):
    assert found(vectorize("i", width)(pulled), ROW) == [f"- Applied Vectorization: width={width} on loop 'i'"]


@pytest.mark.parametrize("width", [64, 1024])
def test_a_width_over_the_trip_count_is_applied_with_a_masked_tail(width):
    lowering = lower(vectorize("j", width)(rows), MATRIX, MATRIX)
    assert str(lowering.log).splitlines()[1] == f"- Applied Vectorization: width={width} on loop 'j'"
    text = inspect_loop_transforms(vectorize("j", width)(rows), MATRIX, MATRIX)
    assert f"ramp(j_tail, 1, {width}) < x.shape[1]" in text


@pytest.mark.parametrize("decorate", [vectorize, vectorize()])
def test_an_automatic_request_says_what_it_chose_and_why(decorate):
    log = str(lower(decorate(add), MATRIX, MATRIX, MATRIX).log)
    assert "on loop 'j'" in log and "contiguous: a, b, c" in log


def test_an_automatic_request_that_finds_nothing_is_a_line_and_no_warning(recwarn):
    log = str(vectorize()(unroll()(tile(order="i")(summed))).lower(ROW).log)
    assert (
        "- Note Vectorization: not loop 'i' of line " in log
        and ": a[i] is written at (i=1) and read at (i=2)" in log
    )
    assert not recwarn.list


def test_a_named_loop_comes_before_an_automatic_choice():
    lines = found(vectorize()(vectorize("j", 4)(product)), MATRIX, MATRIX, MATRIX)
    assert "- Applied Vectorization: width=4 on loop 'j'" in lines
    assert not any(line.startswith("- Skipped") for line in lines)


def test_several_loops_may_have_lanes():
    lines = found(vectorize("i", 4)(vectorize("j", 8)(two_loops)), ROW, ROW)
    assert lines == ["- Applied Vectorization: width=4 on loop 'i'", "- Applied Vectorization: width=8 on loop 'j'"]


def test_lanes_inside_of_lanes_are_refused():
    lines = found(vectorize("i", 4)(vectorize("j", 8)(rows)), MATRIX, MATRIX)
    assert sorted(line.split(":")[0] for line in lines) == ["- Applied Vectorization", "- Skipped Vectorization"]


# ----------------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize(
    ("factor", "applied", "left"),
    [(5, 5, ["i", "i"]), (4, 4, ["i"]), (12, 12, []), (100, 12, []), (None, 12, [])],
)
def test_a_partial_unroll_has_a_remainder_and_a_full_one_no_loop(factor, applied, left):
    lowering = lower(unroll("i", factor)(twelve), ROW, ROW)
    assert labels(lowering.kernel) == left
    assert str(lowering.log).splitlines()[1] == f"- Applied Unroll: factors=[{applied}] on loops 'i'"


@pytest.mark.parametrize(("name", "nest"), [("i.0", ["i.0", "i.1", "j"]), ("i.1", ["i.0", "i.1", "j"])])
def test_a_piece_is_unrolled_when_it_is_named(name, nest):
    lowering = lower(unroll(name, 2)(tile(i=8, parallel="j")(rows)), MATRIX, MATRIX, target="cpu")
    assert f"on loops '{name}'" in str(lowering.log)
    steps = {loop.label: loop.step.value for loop in reversed(list(loops(lowering.kernel.body)))}
    assert steps["i.0"] == (16 if name == "i.0" else 8)
    assert steps["i.1"] == (1 if name == "i.0" else 2)
    assert set(nest) <= set(labels(lowering.kernel))


def test_a_piece_stays_rolled_when_it_is_named():
    lowering = lower(nounroll("i.0")(unroll("i.1", 2)(tile(i=8)(rows))), MATRIX, MATRIX)
    assert {loop.label for loop in loops(lowering.kernel.body) if loop.unroll == 1} == {"i.0"}


def test_a_factor_over_the_steps_that_there_are_is_their_number():
    lowering = lower(unroll("i", 4)(vectorize("i", 4)(tile(i=8)(twelve))), ROW, ROW)
    assert "- Applied Unroll: factors=[2] on loops 'i'" in str(lowering.log)


def test_more_factors_than_loops_are_said():
    lines = found(unroll(factors=[2, 3, 4])(product), MATRIX, MATRIX, MATRIX)
    assert "- Applied Unroll: factors=[3,4] on loops 'i','j'" in lines
    assert lines[-1].startswith("- Skipped Unroll: factors=[2, 3, 4]: 2 loops can take them")


def test_factors_go_to_the_innermost_loops_that_are_not_reductions_in_source_order():
    log = str(lower(unroll(factors=[2, 4])(product), MATRIX, MATRIX, MATRIX).log)
    assert "- Applied Unroll: factors=[2,4] on loops 'i','j'" in log
    log = str(lower(unroll(factors=[4])(product), MATRIX, MATRIX, MATRIX).log)
    assert "- Applied Unroll: factors=[4] on loops 'j'" in log


def test_unrolling_an_outer_loop_is_unroll_and_jam():
    lowering = lower(unroll("i", 2)(rows), MATRIX, MATRIX)
    assert "unroll-and-jam" in str(lowering.log)
    assert labels(lowering.kernel) == ["i", "j", "i", "j"]


def test_with_lanes_on_the_same_loop_unrolling_counts_vector_steps():
    lowering = lower(unroll("j", 2)(vectorize("j", 8)(rows)), MATRIX, MATRIX)
    steps = [loop.step.value for loop in loops(lowering.kernel.body) if loop.source == "j"]
    assert steps == [16, 8]


def test_a_full_unroll_of_a_run_time_count_offers_a_factor():
    (line,) = found(unroll("j")(rows), MATRIX, MATRIX)
    assert line.startswith("- Skipped Unroll: loop 'j': its trip count is not known at compile time")
    assert "a factor, as in unroll('j', 4)" in line


def test_nounroll_keeps_an_automatic_unroll_away():
    log = str(lower(unroll()(nounroll("k")(product)), MATRIX, MATRIX, MATRIX).log)
    assert "- Applied NoUnroll: loop 'k' stays rolled" in log
    assert "on loops 'k'" not in log


# ------------------------------------------------------------------------------- after a skipped tiling


@pytest.mark.parametrize(
    ("decorate", "transform"),
    [
        (vectorize("i.1", 4), "Vectorization"),
        (unroll("i.1", 2), "Unroll"),
        (tile(parallel="i.0"), "Parallelization"),
        (tile(stage={"x": "i.0"}), "Staging"),
    ],
    ids=["vectorize", "unroll", "parallel", "stage"],
)
def test_a_directive_on_a_piece_whose_tiling_was_skipped_is_skipped_with_its_own_line(decorate, transform):
    lowering = lower(tile(i=8)(decorate(until_negative)), ROW, ROW, target="cpu")
    lines = [str(record) for record in lowering.log]
    assert lines[0].startswith("- Skipped Tiling: i=8: loop 'i' may be left early")
    assert any(line.startswith(f"- Skipped {transform}: ") and "i." in line for line in lines[1:]), lines
    assert not any("Applied" in line for line in lines)
    assert labels(lowering.kernel) == ["i"]
