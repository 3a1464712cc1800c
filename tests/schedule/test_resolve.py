"""Malformed requests: each says where, what was given, and what is allowed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pyschedule import FrontendError, ScheduleError, nounroll, poll, spec, tile, unroll, vectorize


def gemm(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


def two_passes(x, y):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j]
        for j in range(x.shape[1]):
            y[i, j] += 1
    for n in range(x.shape[0]):
        y[n, 0] = 0


def apply(function, *decorators):
    for decorator in reversed(decorators):
        function = decorator(function)
    return function


def refused(function, *decorators):
    """Why the decorators are refused: as they are applied, or when the kernel is first lowered."""
    with pytest.raises(ScheduleError) as caught:
        apply(function, *decorators).lower(*[spec("float32[8, 8]")] * function.__code__.co_argcount)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------- names


def test_an_unknown_loop_lists_the_loops_there_are():
    text = refused(gemm, tile(q=4))
    assert "'q'" in text
    line = gemm.__code__.co_firstlineno
    assert f"'i' (line {line + 1}), 'j' (line {line + 2}), 'k' (line {line + 3})" in text


def test_a_refusal_points_at_the_decorator():
    with pytest.raises(ScheduleError) as caught:
        apply(
            gemm,
            vectorize("j"),
            unroll("z", 4),
        )
    place = caught.value.place
    assert place is not None
    assert place.file == __file__
    line = Path(__file__).read_text().splitlines()[place.line - 1]
    assert line[place.column :].startswith('unroll("z", 4)')
    assert str(caught.value).startswith(f"{__file__}:{place.line}:{place.column + 1}: ")


@pytest.mark.parametrize("make", [vectorize, unroll, nounroll, lambda name: tile(parallel=name)])
@pytest.mark.parametrize("name", ["z", "j#2", "i.0", "", "i.", "#1", "i#0"])
def test_every_decorator_refuses_a_loop_that_is_not_there(make, name):
    assert repr(name) in refused(gemm, lambda nest: make(name)(nest))


@pytest.mark.parametrize("make", [vectorize, unroll, nounroll])
def test_two_names_are_no_loop(make):
    assert "'i j'" in refused(gemm, make("i j"))


def test_each_of_the_loops_that_threads_share_must_be_there():
    assert "'z'" in refused(gemm, tile(parallel="i z"))


def test_an_ordinal_beyond_the_loops_of_that_name():
    text = refused(two_passes, vectorize("j#3"))
    assert "2 loops of 'two_passes' are named 'j'" in text
    line = two_passes.__code__.co_firstlineno
    assert f"'j#1' (line {line + 2}), 'j#2' (line {line + 4})" in text


def test_an_ordinal_addresses_one_loop_and_a_name_all():
    apply(two_passes, tile(**{"j#2": 8}), vectorize("j#1"), unroll("j#2", 2))
    assert "twice" in refused(two_passes, tile(j=4), tile(**{"j#2": 8}))
    apply(two_passes, tile(**{"j#1": 4}), tile(**{"j#2": 8}))


def test_staging_an_array_that_is_not_there():
    text = refused(gemm, tile(i=4, stage={"D": "i.0"}))
    assert "'D'" in text and "'A', 'B', 'C'" in text


@pytest.mark.parametrize("piece", ["i.2", "k.0", "z"])
def test_staging_at_a_piece_that_is_not_there(piece):
    assert repr(piece) in refused(gemm, tile(i=4, stage={"B": piece}))


# ------------------------------------------------------------------------- loops named like an argument


def named_like_arguments(x, y):
    for order in range(x.shape[0]):
        for stage in range(x.shape[1]):
            y[order, stage] = x[order, stage] + 10 * order


@pytest.mark.parametrize("name", ["order", "stage", "parallel", "target", "strict", "strict_math", "tile_shapes"])
@pytest.mark.parametrize("size", [8, (8, 2)])
def test_a_loop_named_like_an_argument_is_told_the_way_out(name, size):
    text = refused(gemm, lambda function: tile(**{name: size})(function))
    assert f"the sizes of a loop named {name!r} go into a dict, as in tile({{{name!r}: {size!r}}})" in text
    assert f"{__file__}:" in text


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"ordr": "i.0 j k i.1"}, "order='i.0 j k i.1'"),
        ({"paralel": "i.0"}, "parallel='i.0'"),
        ({"stages": {}}, "stage={}"),
    ],
)
def test_a_slip_in_the_name_of_an_argument_is_told_from_a_loop(given, meant):
    text = refused(gemm, lambda function: tile(i=4, **given)(function))
    assert f"there is no argument {next(iter(given))!r}; {meant} may be what was meant" in text
    assert "there is no loop 'ordr'" in refused(gemm, tile(ordr=4))


def test_a_dict_takes_the_sizes_of_any_loop_beside_keywords():
    kernel = apply(named_like_arguments, tile({"order": 4, "stage": 8}, order="order.0 stage.0 order.1 stage.1"))
    x, y = np.ones((9, 11)), np.zeros((9, 11))
    kernel(x, y)
    assert (y == x + 10 * np.arange(9)[:, None]).all()
    assert "- Applied Tiling: order=4, stage=8" in str(kernel.lower(x, y).log)
    sizes = apply(two_passes, tile({"j#1": (4, 2)}, i=8))._schedule.directives[0].sizes
    assert sizes == (("j#1", (4, 2)), ("i", (8,)))
    assert "'i' has sizes in the dict and as a keyword" in refused(gemm, lambda one: tile({"i": 4}, i=8)(one))
    assert "in a dict, as in tile({'i': 64}), not as 64" in refused(gemm, lambda one: tile(64)(one))


# ------------------------------------------------------------------------------------------------ numbers


@pytest.mark.parametrize(
    "bad", [0, -1, 2.0, "4", None, True, (4, 0), (4, -2), (), (8, 16), [4, 2.5], np.array([4, 2])]
)
def test_a_tile_size_is_a_positive_integer_that_does_not_grow_inwards(bad):
    with pytest.raises(ScheduleError, match="'i'"):
        tile(i=bad)


@pytest.mark.parametrize("bad", [0, -8, 1.5, "8", True, [8]])
def test_a_width_is_a_positive_integer(bad):
    with pytest.raises(ScheduleError, match="width must be a positive integer"):
        vectorize("j", width=bad)


@pytest.mark.parametrize("bad", [0, -8, 1.5, "8", False])
def test_a_factor_is_a_positive_integer(bad):
    with pytest.raises(ScheduleError, match="factor must be a positive integer"):
        unroll("j", bad)


@pytest.mark.parametrize("bad", [[], 4, "44", [4, 0], [4.0], [None]])
def test_factors_are_positive_integers(bad):
    with pytest.raises(ScheduleError, match="factors"):
        unroll(factors=bad)


@pytest.mark.parametrize("bad", [0, -1, 1.5, None])
def test_polling_every_so_many_iterations(bad):
    with pytest.raises(ScheduleError, match="every must be a positive integer"):
        poll(every=bad)


def test_numpy_integers_will_do():
    kernel = apply(gemm, tile(i=np.int32(4), j=(np.int64(8), 4)), unroll("k", np.int8(2)))
    assert kernel._schedule.directives[0].sizes == (("i", (4,)), ("j", (8, 4)))


def test_a_dtype_is_an_element_type():
    with pytest.raises(ScheduleError, match="element type, not 'complex64'"):
        vectorize("j", dtype="complex64")
    dtypes = [apply(gemm, vectorize("j", dtype=it))._schedule.directives[0].dtype for it in ("half", np.float32)]
    assert dtypes == ["float16", "float32"]


@pytest.mark.parametrize("target", ["gpu", "cuda:sm_90", 1])
def test_a_target_is_the_cpu_or_cuda(target):
    with pytest.raises(ScheduleError, match="target must be"):
        vectorize("j", target=target)


@pytest.mark.parametrize("flag", ["strict", "strict_math"])
def test_flags_are_true_or_false(flag):
    with pytest.raises(ScheduleError, match=f"{flag} must be True or False"):
        unroll("j", 2, **{flag: "yes"})


# ------------------------------------------------------------------------------------------------- orders


def test_an_order_lists_every_piece_of_the_nest():
    text = refused(gemm, tile(i=4, order="i.0 j i.1"))
    assert "missing: 'k'" in text
    assert "missing: 'i.1', 'k'" in refused(gemm, tile(i=4, order="i.0 j"))


def test_an_order_lists_no_piece_twice():
    assert "lists 'j' twice" in refused(gemm, tile(order="i j k j"))


def test_an_order_calls_pieces_by_their_names():
    assert "'i.0', 'i.1'" in refused(gemm, tile(i=4, order="i j k"))
    assert "'i.2' is not a piece" in refused(gemm, tile(i=4, order="i.0 j k i.2 i.1"))
    assert "not tiled; call it 'k'" in refused(gemm, tile(i=4, order="i.0 j k.0 i.1"))


def test_what_no_further_decorator_can_mend_is_refused_at_once():
    for decorators in [
        (tile(i=4, order="i j k"),),
        (tile(i=4, order="i.0 j i.1"),),
        (tile(order="i j j k"),),
        (tile(i=4, parallel="i.2"),),
        (vectorize("z"),),
    ]:
        with pytest.raises(ScheduleError):
            apply(gemm, *decorators)


def test_a_piece_may_be_named_below_the_decorator_that_makes_it():
    apply(gemm, tile(i=4), unroll("i.1"), nounroll("i.0"), tile(parallel="i.0"))
    apply(gemm, unroll("i.1"), nounroll("i.0"), tile(parallel="i.0"), tile(i=4))


def test_an_order_may_come_apart_from_its_sizes():
    apply(gemm, tile(order="j i.0 k i.1"), tile(i=4))


def test_an_order_speaks_of_one_nest_and_leaves_the_others():
    apply(two_passes, tile(order="j i"))
    apply(two_passes, tile(n=4, order="n.0 n.1"))
    assert "missing: 'j'" in refused(two_passes, tile(order="i n"))


@pytest.mark.parametrize(
    ("order", "wrong", "right"),
    [
        ("i.1 j.0 i.0 j.1 k", "'i.1' around 'i.0'", "i.0 j.0 i.1 j.1 k"),
        ("i.0 j.1 k i.1 j.0", "'j.1' around 'j.0'", "i.0 j.0 k i.1 j.1"),
        ("k i.0 j.0 i.1 j.1 j.2", None, ""),
    ],
)
def test_an_inner_piece_does_not_run_around_an_outer_one(order, wrong, right):
    sizes = tile(i=8, j=(8, 4)) if wrong is None else tile(i=8, j=8)
    if wrong is None:
        apply(gemm, tile(order=order), sizes)
        return
    text = refused(gemm, tile(order=order), sizes)
    assert f"{__file__}:" in text
    assert f"tile: order={order!r} puts {wrong}, of which it is a part" in text
    assert f"as in order={right!r}" in text
    apply(gemm, tile(order=right), sizes)


@pytest.mark.parametrize("bad", [3, {"i": 1}, ["i", 2]])
def test_an_order_is_a_string_of_names(bad):
    with pytest.raises(ScheduleError, match="order must be a string of loop names"):
        tile(order=bad)


# ----------------------------------------------------------------------------------------- contradictions


@pytest.mark.parametrize(
    ("decorators", "reason"),
    [
        ((tile(i=4), tile(i=8)), "'i' is tiled twice"),
        ((tile(order="i j k"), tile(order="j i k")), "order is given twice"),
        ((tile(parallel="i"), tile(parallel="j")), "parallel is given twice"),
        ((tile(stage={"A": "i"}), tile(stage={"A": "j"})), "stage of 'A' is given twice"),
        ((vectorize("j", 4), vectorize("j", 8)), "vectorized by two decorators"),
        ((vectorize(), vectorize(width=4)), "vectorize without a loop is given twice"),
        ((unroll("i", 2), unroll("i", 4)), "unrolled by two decorators"),
        ((unroll("i"), nounroll("i")), "keep one"),
        ((nounroll("i"), unroll("i", 4)), "keep one"),
        ((tile(i=4), unroll("i", 2), nounroll("i.1")), "keep one"),
        ((unroll(factors=[2]), unroll(factors=[4])), "unroll without a loop is given twice"),
        ((unroll(factors=[2, 2, 2, 2]),), "names 4 loops"),
        ((poll(), poll(every=8)), "poll is given twice"),
    ],
)
def test_two_directives_that_contradict_each_other(decorators, reason):
    assert reason in refused(gemm, *decorators)


def test_a_contradiction_is_one_only_on_the_same_target():
    apply(gemm, tile(i=4, target="cpu"), tile(i=8, target="cuda"))
    assert "tiled twice" in refused(gemm, tile(i=4, target="cpu"), tile(i=8))


def test_tiles_of_different_loops_join():
    apply(gemm, tile(i=4), tile(j=8), tile(k=2))


def test_unrolling_one_piece_and_leaving_another_rolled():
    apply(gemm, tile(i=(16, 4)), unroll("i.2"), nounroll("i.1"))


def test_tile_needs_something_to_do():
    with pytest.raises(ScheduleError, match="at least one loop"):
        tile()


def test_unroll_takes_a_loop_or_factors():
    with pytest.raises(ScheduleError, match="not both"):
        unroll("i", factors=[2])
    with pytest.raises(ScheduleError, match="needs a loop"):
        unroll(factor=2)


def test_only_functions_can_be_decorated():
    with pytest.raises(ScheduleError, match="made of a Python function"):
        tile(i=4)(3)
    with pytest.raises(FrontendError):
        tile(i=4)(lambda x: x)


# ----------------------------------------------------------------------------------------- the block form


def block(A_block, B_block):
    C = [[0.0 for _ in range(8)] for _ in range(8)]
    for i in range(8):
        for j in range(8):
            for k in range(8):
                C[i][j] += A_block[i][k] * B_block[k][j]
    return C


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"input_shapes": [(16, 16), (16, 16)]}, "needs tile_shapes too"),
        ({"tile_shapes": [(8, 8), (8, 8)]}, "needs input_shapes too"),
        ({"pad": 1}, "needs input_shapes too"),
        ({"input_shapes": [(16, 16)], "tile_shapes": [(8, 8), (8, 8)]}, "1 shapes and tile_shapes 2"),
        ({"input_shapes": [(16, 16), (16,)], "tile_shapes": [(8, 8), (8, 8)]}, "input 2 has shape (16,)"),
        ({"input_shapes": [(16, -1), (16, 16)], "tile_shapes": [(8, 8), (8, 8)]}, "-1 in (16, -1)"),
        ({"input_shapes": [(16, 16), (16, 16)], "tile_shapes": [(8, 0), (8, 8)]}, "0 in (8, 0)"),
        ({"input_shapes": [(16, 16), (16, 16)], "tile_shapes": [(8, None), (8, 8)]}, "None in (8, None)"),
        ({"input_shapes": (16, 16), "tile_shapes": (8, 8)}, "16 is no shape"),
        ({"input_shapes": [(16, 16), (16, 16)], "tile_shapes": [(8, 8), (8, 8)], "pad": -1}, "pad must be"),
        ({"input_shapes": [(16, 16), (16, 16)], "tile_shapes": [(8, 8), (8, 8)], "pad": [(1,), (1, 1)]}, "rank"),
    ],
)
def test_shapes_of_the_block_form_that_do_not_fit(arguments, reason):
    with pytest.raises(ScheduleError) as caught:
        tile(**arguments)(block)
    assert reason in str(caught.value)


def test_as_many_input_shapes_as_the_function_takes_arrays():
    text = refused(block, tile(input_shapes=[(16, 16)], tile_shapes=[(8, 8)]))
    assert "input_shapes has 1 shapes; 'block' takes 2 arrays: 'A_block', 'B_block'" in text


def test_one_block_form_a_kernel():
    form = tile(input_shapes=[(16, 16), (16, 16)], tile_shapes=[(8, 8), (8, 8)])
    assert "given twice" in refused(block, form, form)


def test_a_free_extent_is_none():
    apply(block, tile(input_shapes=[(None, 16), (16, None)], tile_shapes=[(8, 8), (8, 8)], pad=0))


def test_poll_without_parentheses_and_with_a_number():
    def kernel(x):
        for k in range(x.shape[0]):
            x[k] = k

    x = np.zeros(5)
    poll(kernel)(x)
    assert x[4] == 4
    with pytest.raises(ScheduleError, match=r"write poll\(every=64\)"):
        poll(64)(kernel)
