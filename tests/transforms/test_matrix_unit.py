"""Products on a matrix unit: what they mean, on any machine by the interpreter, and compiled where there is one."""

from __future__ import annotations

import dataclasses
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pyschedule import inspect_loop_transforms, nounroll, tile, unroll, vectorize
from pyschedule.ir import interpreter
from pyschedule.ir.blocks import MatrixProduct
from pyschedule.ir.visitors import walk
from pyschedule.schedule.targets import MatrixUnit, Target, host

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = (np.dtype(np.int8), np.dtype(np.uint8))
#: This machine as it would be with a unit: it can be lowered for, if not run.
TARGET = dataclasses.replace(host(), matrix=(MatrixUnit("AMX", 16, 64, ("int8", "uint8", "bfloat16")),))
AMX_IS_HERE = any(unit.name == "AMX" for unit in host().matrix)
TAILS = [(1, 1, 1), (16, 16, 64), (17, 33, 65), (40, 16, 3), (0, 5, 5), (5, 0, 5), (5, 5, 0)]


def numbers(rng: np.random.Generator, dtype: np.dtype[Any], *shape: int) -> np.ndarray:
    """Whole numbers, so that sums of halves are exact in any order."""
    if dtype in INTEGERS:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
    return rng.integers(-4, 4, shape, endpoint=True).astype(dtype)


def agrees(kernel: Any, *args: Any, used: bool = True, target: Target = TARGET) -> None:
    """The stages do what the plain function does, and so does the compiled kernel; `used`: on the unit."""
    expected = [np.copy(arg) for arg in args]
    kernel.python(*expected)
    lowering = kernel.lower(*args, target=target)
    products = [stmt for stmt in walk(lowering.kernel.body) if isinstance(stmt, MatrixProduct)]
    assert bool(products) == used, str(lowering.log)
    for name in ("tiling", "unroll") if used else ("tiling",):
        given = [np.copy(arg) for arg in args]
        interpreter.run(lowering.stages[name], dict(zip(lowering.definition.arrays, given, strict=False)))
        for one, other in zip(given, expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=name)
    if host().matrix and used:
        given = [np.copy(arg) for arg in args]
        kernel(*given)
        for one, other in zip(given, expected, strict=True):
            np.testing.assert_array_equal(one, other, err_msg="compiled")


def log_of(kernel: Any, *args: Any) -> str:
    return str(kernel.lower(*args, target=TARGET).log)


SHAPE = {"i": (32, 16), "j": (64, 32), "order": "j.0 i.0 i.1 j.1 k i.2 j.2", "parallel": "i.0"}


@tile(**SHAPE, stage={"A": "i.0", "B": "j.0"})
@vectorize("j", width=16)
@unroll("k", 4)
def bytes_product(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0
            for k in range(A.shape[1]):
                C[i, j] += np.int32(A[i, k]) * np.int32(B[k, j])


@tile(**SHAPE, stage={"A": "i.0", "B": "j.0"})
@vectorize("j", width=16)
def halves_product(A, B, C, bias):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            acc = 0.0
            for k in range(A.shape[1]):
                acc += A[i, k] * B[k, j]
            C[i, j] = max(acc + bias[j], 0.0)


@pytest.mark.parametrize(("rows", "columns", "depth"), TAILS)
def test_sums_of_bytes_are_exact(rows, columns, depth):
    rng = np.random.default_rng(rows)
    A, B = numbers(rng, INTEGERS[0], rows, depth), numbers(rng, INTEGERS[0], depth, columns)
    agrees(bytes_product, A, B, np.full((rows, columns), 7, np.int32))


@pytest.mark.parametrize("kinds", [(0, 1), (1, 0), (1, 1)])
def test_bytes_have_signs_or_none(kinds):
    rng = np.random.default_rng(2)
    A, B = numbers(rng, INTEGERS[kinds[0]], 17, 65), numbers(rng, INTEGERS[kinds[1]], 65, 18)
    agrees(bytes_product, A, B, np.full((17, 18), 7, np.int32))


@pytest.mark.parametrize(("rows", "columns", "depth"), TAILS)
def test_halves_are_summed_in_float32_and_rounded_once(rows, columns, depth):
    rng = np.random.default_rng(columns)
    A, B = numbers(rng, BFLOAT16, rows, depth), numbers(rng, BFLOAT16, depth, columns)
    agrees(halves_product, A, B, np.full((rows, columns), 7, BFLOAT16), numbers(rng, BFLOAT16, columns))


def test_sums_wrap_as_int32():
    A, B = np.full((16, 64), -128, np.int8), np.full((64, 16), -128, np.int8)
    C = np.full((16, 16), 2**31 - 1, np.int32)

    @tile(i=16, j=16, order="i.0 j.0 k i.1 j.1", stage={"A": "i.0", "B": "j.0"})
    def add(A, B, C):
        for i in range(A.shape[0]):
            for j in range(B.shape[1]):
                for k in range(A.shape[1]):
                    C[i, j] += np.int32(A[i, k]) * np.int32(B[k, j])

    with np.errstate(over="ignore"):
        agrees(add, A, B, C)


@pytest.mark.parametrize("turned", ["A", "B", "both", "strided"])
def test_operands_may_lie_in_any_order(turned):
    rng = np.random.default_rng(3)
    for dtype in (INTEGERS[0], BFLOAT16):
        A, B = numbers(rng, dtype, 19, 70), numbers(rng, dtype, 70, 35)
        if turned in ("A", "both"):
            A = np.asfortranarray(A)
        if turned in ("B", "both"):
            B = np.asfortranarray(B)
        if turned == "strided":
            A, B = np.repeat(A, 2, axis=1)[:, ::2], np.repeat(B, 3, axis=1)[:, ::3]
        if dtype == BFLOAT16:
            agrees(halves_product, A, B, np.zeros((19, 35), dtype), numbers(rng, dtype, 35))
        else:
            agrees(bytes_product, A, B, np.zeros((19, 35), np.int32))


def test_the_depth_may_be_cut_and_results_added_to():
    @tile(
        i=(32, 16),
        j=(64, 48),
        k=40,
        order="j.0 k.0 i.0 i.1 j.1 k.1 i.2 j.2",
        stage={"A": "i.0", "B": "k.0"},
        parallel="i.0",
    )
    @vectorize("j", width=16)
    def update(A, B, C):
        for i in range(A.shape[0]):
            for j in range(B.shape[1]):
                for k in range(A.shape[1]):
                    C[i, j] += A[i, k] * B[k, j]

    rng = np.random.default_rng(5)
    A, B = numbers(rng, BFLOAT16, 18, 90), numbers(rng, BFLOAT16, 90, 50)
    agrees(update, A, B, numbers(rng, np.dtype(np.float32), 18, 50))


def test_a_result_whose_columns_are_contiguous_is_made_as_its_transpose():
    A, B = (numbers(np.random.default_rng(6), INTEGERS[0], 35, 35) for _ in "AB")
    agrees(bytes_product, A, B, np.asfortranarray(np.zeros((35, 35), np.int32)))


def test_products_of_a_batch():
    @tile(i=16, j=32, order="b i.0 j.0 k i.1 j.1", stage={"X": "i.0", "W": "j.0"}, parallel="b")
    def batched(X, W, Y):
        """Both operands with a depth that is contiguous."""
        for b in range(X.shape[0]):
            for i in range(X.shape[1]):
                for j in range(W.shape[0]):
                    Y[b, i, j] = 0
                    for k in range(X.shape[2]):
                        Y[b, i, j] += np.int32(X[b, i, k]) * np.int32(W[j, k])

    rng = np.random.default_rng(7)
    X, W = numbers(rng, INTEGERS[0], 2, 18, 66), numbers(rng, INTEGERS[1], 17, 66)
    agrees(batched, X, W, np.zeros((2, 18, 17), np.int32))


def test_one_array_may_be_both_operands():
    @tile(i=16, j=16, order="i.0 j.0 k i.1 j.1", stage={"A": "j.0"})
    def squares(A, C):
        for i in range(A.shape[0]):
            for j in range(A.shape[0]):
                C[i, j] = 0
                for k in range(A.shape[1]):
                    C[i, j] += np.int32(A[i, k]) * np.int32(A[j, k])

    A = numbers(np.random.default_rng(8), INTEGERS[0], 35, 70)
    agrees(squares, A, np.zeros((35, 35), np.int32))


def test_the_log_says_what_the_unit_does():
    A, B = np.zeros((64, 64), np.int8), np.zeros((64, 64), np.int8)
    log = log_of(bytes_product, A, B, np.zeros((64, 64), np.int32))
    assert "- Applied Matrix unit: AMX, 16x32 int32 of 'C' from int8 in loop 'k'" in log
    assert "staged A at 'i.0' as n x n x 1 x 1024 int8 in packed memory" in log
    assert "staged B at 'j.0' as n x n x 16 x 128 int8 in packed memory" in log
    assert "- Note Unroll: loop 'k' is the matrix unit's" in log
    assert "- Note Vectorization: loop 'j' is the matrix unit's" in log
    text = inspect_loop_transforms(bytes_product, A, B, np.zeros((64, 64), np.int32), target=TARGET)
    assert "0 : +(A.shape[1])] or A_tile_b[(i_1_c - i_0_b) // 16], B_tile_b[" in text
    assert "4 of depth side by side" in text


def test_on_a_target_without_a_unit_nothing_is_said_of_it():
    A, B = np.zeros((64, 64), np.int8), np.zeros((64, 64), np.int8)
    plain = dataclasses.replace(host(), matrix=())
    assert "Matrix unit" not in str(bytes_product.lower(A, B, np.zeros((64, 64), np.int32), target=plain).log)


def with_schedule(*decorators: Any) -> Any:
    def halves(A, B, C):
        for i in range(A.shape[0]):
            for j in range(B.shape[1]):
                for k in range(A.shape[1]):
                    C[i, j] += A[i, k] * B[k, j]

    for decorator in decorators:
        halves = decorator(halves)
    return halves


ORDER = "i.0 j.0 k i.1 j.1"
BOTH = {"A": "i.0", "B": "j.0"}


@pytest.mark.parametrize(
    ("decorators", "reason"),
    [
        (
            [tile(i=6, j=64, order=ORDER, stage=BOTH)],
            "the tile is 6 along loop 'i', and the unit's are 16; a size",
        ),
        ([tile(i=16, j=24, order=ORDER, stage=BOTH)], "the tile is 24 along loop 'j'"),
        ([tile(i=128, j=16, order=ORDER, stage=BOTH)], "the tile is 128 along loop 'i'; a size of 32"),
        ([tile(i=16, j=16, order=ORDER, stage={"A": "i.0"})], "'B' is read in place, and the unit reads packed"),
        ([tile(i=16, j=16, order=ORDER, stage=BOTH, strict_math=True)], "strict_math=True keeps the order"),
        ([tile(i=16, j=16, order="i.0 j.0 i.1 j.1 k", stage={"A": "i.1", "B": "j.0"})], "'A' is staged at 'i.1'"),
    ],
)
def test_what_nearly_fits_is_told_why_it_does_not(decorators, reason):
    rng = np.random.default_rng(9)
    A, B = numbers(rng, BFLOAT16, 20, 30), numbers(rng, BFLOAT16, 30, 40)
    C = np.zeros((20, 40), np.float32)
    kernel = with_schedule(*decorators)
    assert f"- Note Matrix unit: not used: {reason}" in log_of(kernel, A, B, C)
    agrees(kernel, A, B, C, used=False)


def test_a_left_operand_whose_depth_is_not_contiguous_is_to_be_staged():
    A, B = np.asfortranarray(numbers(np.random.default_rng(15), BFLOAT16, 20, 30)), np.ones((30, 40), BFLOAT16)
    C = np.zeros((20, 40), np.float32)
    kernel = with_schedule(tile(i=16, j=16, order=ORDER, stage={"B": "j.0"}))
    assert "'A' is read in place, where the depth of the product is not contiguous; stage={'A'" in log_of(
        kernel, A, B, C
    )
    agrees(kernel, A, B, C, used=False)


@tile(i=(64, 32), j=(64, 32), order="j.0 i.0 i.1 j.1 k i.2 j.2", stage={"B": "j.0"}, parallel="i.0")
def bytes_in_place(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += np.int32(A[i, k]) * np.int32(B[k, j])


@tile(i=32, j=(64, 48), k=70, order="j.0 k.0 i.0 j.1 k.1 i.1 j.2", stage={"A": "i.0", "B": "k.0"}, parallel="i.0")
@vectorize("j", width=16)
def halves_in_either_place(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            acc = 0.0
            for k in range(A.shape[1]):
                acc += A[i, k] * B[k, j]
            C[i, j] = acc


def within(values: np.ndarray, fill: float, start: int, row: int) -> np.ndarray:
    """The values in rows of `row` bytes, the first one `start` bytes behind a multiple of 64; `fill` around."""
    memory = np.empty(128 + values.shape[0] * row, np.uint8)
    first = -memory.ctypes.data % 64 + start
    memory = memory[first % 2 : len(memory) - first % 2].view(values.dtype)
    memory[...] = fill
    first //= values.itemsize
    per_row = row // values.itemsize
    view = memory[first : first + values.shape[0] * per_row].reshape(-1, per_row)[:, : values.shape[1]]
    view[...] = values
    return view


@pytest.mark.parametrize(("rows", "columns", "depth"), [(17, 33, 65), (5, 5, 0), (33, 49, 1)])
def test_a_left_operand_that_is_not_packed_adds_up_to_the_same(rows, columns, depth):
    rng = np.random.default_rng(depth)
    for kernel, dtype in ((bytes_in_place, INTEGERS[0]), (halves_in_either_place, BFLOAT16)):
        A, B = numbers(rng, dtype, rows, depth), numbers(rng, dtype, depth, columns)
        agrees(kernel, A, B, np.full((rows, columns), 7, np.int32 if dtype in INTEGERS else dtype))


@pytest.mark.skipif(not AMX_IS_HERE, reason="this machine has no matrix unit, or may not use it")
@pytest.mark.parametrize(
    ("kernel", "dtype", "fill"), [(bytes_in_place, 0, 99), (halves_in_either_place, 1, np.nan)]
)
def test_a_left_operand_may_lie_anywhere_and_nothing_around_it_is_read(kernel, dtype, fill):
    rng = np.random.default_rng(dtype)
    for rows, columns, depth in [*TAILS, (64, 64, 128), (95, 40, 130), (33, 49, 1)]:
        A, B = (numbers(rng, (INTEGERS[0], BFLOAT16)[dtype], *shape) for shape in ((rows, depth), (depth, columns)))
        expected = A.astype(np.float64) @ B.astype(np.float64)
        for start, row, step in ((0, 320, 1), (16, 320, 1), (0, 322, 1), (0, 320, -1), (2, 384, -1)):
            result = np.zeros((rows, columns), BFLOAT16 if dtype else np.int32)
            kernel(within(A[::step], fill, start, row)[::step], B, result)
            np.testing.assert_array_equal(
                result, expected.astype(result.dtype), err_msg=f"{rows} {start} {row} {step}"
            )


def test_a_staged_left_operand_is_copied_where_its_rows_begin_inside_of_lines():
    A, B, C = (np.zeros((64, 64), BFLOAT16) for _ in "ABC")
    lowering = halves_in_either_place.lower(A, B, C, target=TARGET)
    assert "unless its rows begin at lines of the cache" in str(lowering.log)
    assert "if not A_lines1:" in lowering.source
    turned = halves_in_either_place.lower(np.asfortranarray(A), B, C, target=TARGET)
    assert "unless" not in str(turned.log)
    assert "if not A_lines" not in turned.source


def test_the_unit_is_set_up_once_around_its_products():
    A, B, C = (np.zeros((64, 64), BFLOAT16) for _ in "ABC")
    source = halves_in_either_place.lower(A, B, C, target=TARGET).source
    lines = [line.strip() for line in source.splitlines()]
    assert "for i_0" in lines[lines.index("set_up_matrix_unit()") + 1]
    assert [line for line in lines if "_matrix_unit()" in line] == ["set_up_matrix_unit()", "release_matrix_unit()"]


def test_a_window_of_rows_is_read_where_it_lies():
    @tile(i=16, j=16, order="r i.0 j.0 k i.1 j.1", stage={"B": "i.0"})
    def windows(A, B, C):
        for r in range(3):
            for i in range(C.shape[0]):
                for j in range(C.shape[1]):
                    for k in range(B.shape[1]):
                        C[i, j] += np.int32(A[i + r, k]) * np.int32(B[r, k, j])

    rng = np.random.default_rng(16)
    A, B = numbers(rng, INTEGERS[0], 22, 70), numbers(rng, INTEGERS[0], 3, 70, 17)
    agrees(windows, A, B, np.zeros((20, 17), np.int32))


def test_strict_math_leaves_integers_to_the_unit():
    A, B = (numbers(np.random.default_rng(10), INTEGERS[0], 20, 20) for _ in "AB")
    agrees(nounroll("i", strict_math=True)(bytes_product), A, B, np.zeros((20, 20), np.int32))


def test_products_that_wrap_as_bytes_stay_where_they_are():
    @tile(i=16, j=16, order=ORDER, stage=BOTH)
    def narrow(A, B, C):
        for i in range(A.shape[0]):
            for j in range(B.shape[1]):
                for k in range(A.shape[1]):
                    C[i, j] += A[i, k] * B[k, j]

    A, B = (numbers(np.random.default_rng(11), INTEGERS[0], 20, 20) for _ in "AB")
    C = np.zeros((20, 20), np.int32)
    assert "its products are computed in int8; in int32 they could be made there" in log_of(narrow, A, B, C)
    with np.errstate(over="ignore"):
        agrees(narrow, A, B, C, used=False)


def test_sums_in_int64_are_not_the_units():
    @tile(i=16, j=16, order=ORDER, stage=BOTH)
    def wide(A, B, C):
        for i in range(A.shape[0]):
            for j in range(B.shape[1]):
                acc = 0
                for k in range(A.shape[1]):
                    acc += int(A[i, k]) * int(B[k, j])
                C[i, j] = acc

    A, B = (numbers(np.random.default_rng(12), INTEGERS[0], 20, 20) for _ in "AB")
    C = np.zeros((20, 20), np.int64)
    assert "sums of int8 are made in int32, and 'acc' is int64" in log_of(wide, A, B, C)
    agrees(wide, A, B, C, used=False)


def test_an_operand_that_is_read_elsewhere_too_is_left_to_staging():
    @tile(i=16, j=16, order=ORDER, stage={"A": "i.0", "B": "i.0"})
    def with_trace(A, B, C):
        for i in range(A.shape[0]):
            for j in range(B.shape[1]):
                C[i, j] = B[0, j]
                for k in range(A.shape[1]):
                    C[i, j] += np.int32(A[i, k]) * np.int32(B[k, j])

    A, B = (numbers(np.random.default_rng(13), INTEGERS[0], 20, 20) for _ in "AB")
    C = np.zeros((20, 20), np.int32)
    assert "'B' is also read elsewhere in loop 'i.0'" in log_of(with_trace, A, B, C)
    agrees(with_trace, A, B, C, used=False)


def test_copies_of_a_product_have_buffers_of_their_own():
    @tile(i=(32, 16), j=32, order="j.0 i.0 i.1 k i.2 j.1", stage={"A": "i.1", "B": "j.0"})
    @unroll("i.1", 2)
    @vectorize("j", width=16)
    def sums(A, B, C):
        for i in range(A.shape[0]):
            for j in range(B.shape[1]):
                acc = np.int32(1)
                for k in range(A.shape[1]):
                    acc += np.int32(A[i, k]) * np.int32(B[k, j])
                C[i, j] = acc

    A, B = (numbers(np.random.default_rng(14), INTEGERS[0], 36, 36) for _ in "AB")
    agrees(sums, A, B, np.zeros((36, 36), np.int32))


@pytest.mark.skipif(not AMX_IS_HERE, reason="this machine has no matrix unit, or may not use it")
def test_infinities_and_nans_go_through_the_unit():
    A, B = np.ones((16, 32), BFLOAT16), np.ones((32, 16), BFLOAT16)
    A[0, 3], A[1, 4], B[5, 2] = np.inf, np.nan, -np.inf
    C = np.zeros((16, 16), BFLOAT16)
    halves_product(A, B, C, np.zeros(16, BFLOAT16))
    expected = np.zeros((16, 16), BFLOAT16)
    with np.errstate(invalid="ignore"):
        halves_product.python(A, B, expected, np.zeros(16, BFLOAT16))
    np.testing.assert_array_equal(C.astype(np.float32), expected.astype(np.float32))
