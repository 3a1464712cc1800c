"""Whole register tiles without masks, and their tails one vector at a time."""

from __future__ import annotations

import numpy as np
import pytest

from pyschedule import tile, unroll, vectorize
from pyschedule.ir.nodes import Alloc, If, Load, Store
from pyschedule.ir.printer import format_expr
from pyschedule.ir.visitors import bodies, expressions, loops, walk
from pyschedule.transforms.nest import exact_trips
from tests import support as compiled
from tests.transforms.stages import agrees

STAGED = {"stage": {"B": "j.0"}, "order": "j.0 i.0 k i.1 j.1"}
NOTE = "edge tiles: what is left of a register tile runs one vector at a time, whole tiles without masks"


def product(A, B, C):
    for i in range(C.shape[0]):
        for j in range(C.shape[1]):
            acc = 0.0
            for k in range(A.shape[1]):
                acc += A[i, k] * B[k, j]
            C[i, j] = acc


def scheduled(nest, **more):
    return tile(i=3, j=32, **more)(vectorize("j", 8)(unroll("i")(nest)))


def numbers(*shape):
    return np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)


def operands(rows, columns, depth):
    return numbers(rows, depth), numbers(depth, columns), numbers(rows, columns)


def masks(body):
    """All that masks are on, in a body."""
    found = [part for part in expressions(body) if isinstance(part, Load) and part.mask is not None]
    return [*found, *(stmt for stmt in walk(body) if isinstance(stmt, Store) and stmt.mask is not None)]


def versions(lowering):
    """Whole tile and edge tile: the arms of the test that tells them apart."""
    found = [
        stmt
        for stmt in walk(lowering.stages["unroll"].body)
        if isinstance(stmt, If) and stmt.orelse and any(isinstance(inner, Alloc) for inner in walk(stmt.body))
    ]
    (split,) = found
    return split.body, split.orelse


def is_split(lowering):
    return NOTE in [detail for record in lowering.log for detail in record.details]


def registers(body):
    return [stmt.array.shape for stmt in walk(body) if isinstance(stmt, Alloc) and stmt.array.space == "register"]


def test_a_whole_tile_has_no_masks_and_an_edge_tile_one_vector():
    lowering = scheduled(product).lower(*operands(7, 70, 5))
    whole, edge = versions(lowering)
    assert masks(edge) and not masks(whole)
    ((rows, vectors),) = registers(whole)
    ((edge_rows, edge_vectors),) = registers(edge)
    assert (rows.value, vectors.value) == (3, 4)
    assert (edge_rows.value, edge_vectors.value) == (3, 1)
    (around,) = edge
    assert around.label == "j.1" and exact_trips(around) is None and around.max_trip == 4
    assert is_split(lowering)


@pytest.mark.parametrize("more", [{}, STAGED], ids=["plain", "staged"])
def test_every_number_of_columns(more):
    kernel = scheduled(product, **more)
    for columns in (0, 1, 7, 8, 9, 31, 32, 33, 40, 63, 64, 65, 96, 97):
        for rows, depth in ((1, 3), (3, 0), (7, 4)):
            compiled.agrees(kernel, *operands(rows, columns, depth))
    for columns in (9, 33, 70):
        agrees(kernel, *operands(7, columns, 4))


def test_tiles_that_are_always_whole_are_left_alone():
    def fixed(A, B, C):
        for i in range(6):
            for j in range(64):
                for k in range(A.shape[1]):
                    C[i, j] += A[i, k] * B[k, j]

    lowering = agrees(scheduled(fixed), *operands(6, 64, 5))
    assert not is_split(lowering)
    assert not masks(lowering.stages["unroll"].body)


def test_what_follows_the_sum_belongs_to_its_columns():
    def layer(A, B, bias, C, scale):
        for i in range(C.shape[0]):
            for j in range(C.shape[1]):
                acc = 0.0
                for k in range(A.shape[1]):
                    acc += A[i, k] * B[k, j]
                shifted = acc * scale[i] + bias[j]
                C[i, j] = C[i, j] + shifted if shifted > 0.0 else 0.5 * shifted

    for columns in (32, 45):
        a, b, c = operands(5, columns, 6)
        assert is_split(agrees(scheduled(layer), a, b, numbers(columns), c, numbers(5)))


def test_a_user_guard_stays():
    def lower_half(A, B, C):
        for i in range(C.shape[0]):
            for j in range(C.shape[1]):
                acc = 0.0
                for k in range(A.shape[1]):
                    acc += A[i, k] * B[k, j]
                if j <= i + 20:
                    C[i, j] = acc

    for columns in (19, 45):
        agrees(scheduled(lower_half), *operands(9, columns, 4))


def test_columns_of_another_vector_are_not_taken_for_its_own():
    """The result is shifted by a column: what one vector writes, another one would read."""

    def shifted(A, B, C):
        for i in range(C.shape[0]):
            for j in range(C.shape[1] - 1):
                acc = 0.0
                for k in range(A.shape[1]):
                    acc += A[i, k] * B[k, j]
                C[i, j] = acc + C[i, j + 1]

    for columns in (33, 45):
        lowering = agrees(scheduled(shifted), *operands(5, columns, 6))
        assert not is_split(lowering)


def test_a_sum_over_all_columns_is_not_repeated():
    """A value of the row that all vectors add to: it has no vector of its own."""

    def norms(A, B, C, total):
        for i in range(C.shape[0]):
            for j in range(C.shape[1]):
                acc = 0.0
                for k in range(A.shape[1]):
                    acc += A[i, k] * B[k, j]
                C[i, j] = acc
                total[i] += acc

    for columns in (33, 45):
        a, b, c = operands(5, columns, 6)
        agrees(scheduled(norms), a, b, c, np.zeros(5, np.float32))


def test_copies_of_whole_panels_have_no_masks():
    """Only what is left of the columns is copied under a mask."""
    staged = scheduled(product, **STAGED)
    lowering = staged.lower(*operands(7, 70, 5))
    copies = [
        stmt
        for loop in loops(lowering.stages["unroll"].body)
        for stmt in loop.body
        if isinstance(stmt, If)
        and stmt.orelse
        and any(isinstance(inner, Store) and inner.array == "B_tile" for inner in walk(stmt.body))
    ]
    (split,) = copies
    assert not masks(split.body) and masks(split.orelse)
    assert all(list(bodies(stmt)) for stmt in split.orelse)


def test_reversed_columns_are_left_alone():
    def backwards(A, B, C):
        for i in range(C.shape[0]):
            for j in range(C.shape[1] - 1, -1, -1):
                acc = 0.0
                for k in range(A.shape[1]):
                    acc += A[i, k] * B[k, j]
                C[i, j] = acc

    for columns in (33,):
        agrees(scheduled(backwards), *operands(5, columns, 6))


def test_arguments_are_unchanged_by_tails():
    """Nothing beyond the last column is written: the arrays are views with numbers of their own behind."""
    around = numbers(9, 100)
    before = around.copy()
    a, b = numbers(7, 5), numbers(5, 61)
    scheduled(product)(a, b, around[1:8, 3:64])
    expected = before.copy()
    expected[1:8, 3:64] = (a.astype(np.float64) @ b).astype(np.float32)
    np.testing.assert_allclose(around, expected, rtol=1e-5, atol=1e-5)
    outside = np.ones(around.shape, bool)
    outside[1:8, 3:64] = False
    assert (around[outside] == before[outside]).all()


def test_a_padded_copy_serves_as_long_as_each_vector_has_a_column():
    """No mask stands in the loop over k: the whole tile is taken for 25 to 32 columns."""
    staged = scheduled(product, **STAGED)
    (split,) = [
        stmt
        for stmt in walk(staged.lower(*operands(7, 70, 5)).stages["unroll"].body)
        if isinstance(stmt, If) and stmt.orelse and any(isinstance(inner, Alloc) for inner in walk(stmt.body))
    ]
    assert format_expr(split.test) == "j_0 + 24 < C.shape[1]"
    assert masks(split.body) and not any(masks(loop.body) for loop in loops(split.body))
    for columns in (24, 25, 31, 56, 57):
        compiled.agrees(staged, *operands(7, columns, 4))
