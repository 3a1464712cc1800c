"""Transposed stores: neighbouring vectors whose lanes lie apart are stored row by row."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pyschedule import tile, unroll, vectorize
from pyschedule.errors import InternalError
from pyschedule.ir import build
from pyschedule.ir.blocks import TransposedStores
from pyschedule.ir.nodes import Ramp, Store
from pyschedule.ir.visitors import rewrite, walk
from pyschedule.transforms.nest import with_body
from tests import support as compiled
from tests.transforms.stages import agrees, execute, lower

SIZES = (0, 1, 2, 5, 6, 7, 12, 13)


def transposed_product(A, B, C):
    """C[j, i]: the lanes of `j` lie apart, the rows `i` are neighbours."""
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            acc = 0.0
            for k in range(A.shape[1]):
                acc += A[i, k] * B[k, j]
            C[j, i] = acc


def scheduled(nest, rows=6, columns=16, lanes=8):
    return tile(i=rows, j=columns)(vectorize("j", lanes)(unroll("i")(nest)))


def numbers(*shape, dtype=np.float32):
    return np.random.default_rng(0).integers(-4, 5, shape).astype(dtype)


def operands(rows, columns, depth, dtype=np.float32):
    return (
        numbers(rows, depth, dtype=dtype),
        numbers(depth, columns, dtype=dtype),
        numbers(columns, rows, dtype=dtype),
    )


def blocks(lowering):
    """How many vectors the transposed blocks have, and whether some may be missing."""
    found = [stmt for stmt in walk(lowering.stages["unroll"].body) if isinstance(stmt, TransposedStores)]
    return [(len(block.stores), block.count is not None) for block in found]


def strided(lowering, array):
    """The stores of an array that are in no block."""
    body = lowering.stages["unroll"].body
    inside = [id(store) for stmt in walk(body) if isinstance(stmt, TransposedStores) for store in stmt.stores]
    return [
        stmt for stmt in walk(body) if isinstance(stmt, Store) and stmt.array == array and id(stmt) not in inside
    ]


def in_lanes(lowering):
    """Whether a store of `C` is one of vectors at all."""
    return any(isinstance(index, Ramp) for store in strided(lowering, "C") for index in store.indices)


def test_a_product_whose_result_is_transposed_is_stored_by_rows():
    lowering = scheduled(transposed_product).lower(*operands(13, 37, 5))
    assert blocks(lowering) and not strided(lowering, "C")
    assert {size for size, _ in blocks(lowering)} == {6}
    (record,) = [record for record in lowering.log if record.transform == "Transposition"]
    assert record.summary == "'C' stored by rows: 6 vectors of 8 lanes are transposed in registers"
    assert "store_transposed(C" in lowering.source


@pytest.mark.parametrize("rows", [2, 3, 16])
def test_tiles_of_every_height(rows):
    kernel = scheduled(transposed_product, rows)
    lowering = agrees(kernel, *operands(rows + 1, 19, 3))
    assert {size for size, _ in blocks(lowering)} == ({rows} if rows <= 8 else {8})
    for more in (0, 1, rows - 1):
        compiled.agrees(kernel, *operands(rows + more, 35, 3))


def test_every_tail():
    kernel = scheduled(transposed_product)
    for rows in SIZES:
        for columns in (0, 1, 7, 8, 9, 16, 17, 31, 33):
            compiled.agrees(kernel, *operands(rows, columns, 2))
    for rows, columns in ((5, 9), (7, 17), (12, 33)):
        agrees(kernel, *operands(rows, columns, 2))


@pytest.mark.parametrize("lanes, sizes", [(2, {2}), (4, {2, 4}), (32, {6})])
def test_every_width(lanes, sizes):
    kernel = scheduled(transposed_product, 6, 2 * lanes, lanes)
    assert {size for size, _ in blocks(agrees(kernel, *operands(13, 2 * lanes + 3, 2)))} == sizes
    compiled.agrees(kernel, *operands(13, 2 * lanes + 3, 4))


DTYPES = (np.float64, np.int64, np.int32, np.int16, np.uint8, np.float16, ml_dtypes.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_every_type_of_elements(dtype):
    rows = 6 if np.dtype(dtype).itemsize % 4 else 8

    @tile(i=rows, j=16)
    @unroll("i")
    @vectorize("j", 16)
    def scaled(A, C):
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                C[j, i] = A[i, j] + A[i, j]

    for shape in ((rows, 16), (2 * rows + 1, 35)):
        a = np.abs(numbers(*shape, dtype=np.int8)).astype(dtype)
        assert blocks(scaled.lower(a, a.T.copy()))
        compiled.agrees(scaled, a, np.zeros_like(a.T, order="C"))


def test_booleans():
    @tile(i=5, j=16)
    @unroll("i")
    @vectorize("j", 16)
    def positive(A, C):
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                C[j, i] = A[i, j] > 0.0

    a = numbers(13, 35)
    assert blocks(positive.lower(a, np.zeros((35, 13), bool)))
    compiled.agrees(positive, a, np.zeros((35, 13), bool))


def test_strides_that_are_negative_or_of_a_larger_array():
    kernel = scheduled(transposed_product)
    a, b, c = operands(13, 37, 3)
    compiled.agrees(kernel, a, b, compiled.nan_around(c))
    reversed_rows = np.zeros((37, 13), np.float32)
    kernel(a, b, reversed_rows[::-1])
    np.testing.assert_array_equal(reversed_rows[::-1], (a @ b).T)


def test_a_row_that_is_no_neighbour_is_stored_as_before():
    @scheduled
    def apart(A, C):
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                C[j, 2 * i] = A[i, j]

    a, c = numbers(13, 35), numbers(35, 26)
    lowering = agrees(apart, a, c)
    assert not blocks(lowering) and strided(lowering, "C")
    compiled.agrees(apart, a, c)


def test_without_a_contiguous_axis_it_is_stored_as_before():
    a, b, _ = operands(13, 37, 3)
    kernel = scheduled(transposed_product)
    wide = np.zeros((37, 26), np.float32)
    kernel(a, b, wide[:, ::2])
    np.testing.assert_array_equal(wide[:, ::2], (a @ b).T)
    assert not blocks(kernel.lower(a, b, wide[:, ::2]))


def test_results_that_continue_what_was_there():
    @scheduled
    def update(A, B, C, scale):
        for i in range(A.shape[0]):
            for j in range(B.shape[1]):
                acc = 0.0
                for k in range(A.shape[1]):
                    acc += A[i, k] * B[k, j]
                C[j, i] = C[j, i] * scale[i] + acc

    a, b, c = operands(13, 37, 3)
    lowering = agrees(update, a, b, c, numbers(13))
    assert blocks(lowering) and not strided(lowering, "C")
    compiled.agrees(update, a, b, c, numbers(13))


def test_two_arrays_under_one_test():
    @scheduled
    def both(A, C, D):
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                C[j, i] = A[i, j]
                D[j, i] = A[i, j] * 2.0

    a, c = numbers(13, 37), numbers(37, 13)
    lowering = agrees(both, a, c, c + 1)
    body = lowering.stages["unroll"].body
    assert {stmt.stores[0].array for stmt in walk(body) if isinstance(stmt, TransposedStores)} == {"C", "D"}
    compiled.agrees(both, a, c, c + 1)


def test_a_store_stays_before_what_reads_it():
    @unroll("i")
    @vectorize("j", 8)
    def running(A, C):
        for j in range(A.shape[1]):
            for i in range(1, 6):
                C[j, i] = C[j, i - 1] + A[i, j]

    lowering = agrees(running, numbers(6, 37), numbers(37, 6))
    assert not blocks(lowering) and in_lanes(lowering)
    compiled.agrees(running, numbers(6, 37), numbers(37, 6))


def test_a_store_stays_before_another_one_that_may_hit_it():
    @unroll("i")
    @vectorize("j", 8)
    def crossing(A, C, m):
        for j in range(A.shape[1]):
            for i in range(4):
                C[0, j, i] = A[i, j]
                C[m, j, 3 - i] = A[i, j] * 2.0

    for m in (0, 1):
        lowering = agrees(crossing, numbers(4, 19), numbers(2, 19, 4), m)
        assert all(count < 4 for count, _ in blocks(lowering))  # those that surely lie apart may still be together
        compiled.agrees(crossing, numbers(4, 19), numbers(2, 19, 4), m)


def test_a_test_of_data_leaves_stores_where_they_are():
    @unroll("i")
    @vectorize("j", 8)
    def chosen(take, C):
        for j in range(C.shape[0]):
            for i in range(6):
                if take[i] > 0:
                    C[j, i] = C[j, i] * 2.0

    take = np.array([1, 0, 1, 1, 0, 1], np.int32)
    lowering = agrees(chosen, take, numbers(19, 6))
    assert not blocks(lowering) and in_lanes(lowering)
    compiled.agrees(chosen, take, numbers(19, 6))


def test_the_interpreter_looks_whether_a_block_is_what_it_says():
    arguments = operands(13, 37, 3)
    kernel = lower(scheduled(transposed_product), *arguments).stages["unroll"]

    def broken(stmt):
        if isinstance(stmt, TransposedStores) and stmt.count is not None:
            return TransposedStores(stmt.body, build.add(stmt.count, 1))
        return None

    with pytest.raises(InternalError, match="is not like the others"):
        execute(with_body(kernel, rewrite(kernel.body, broken)), *arguments)
