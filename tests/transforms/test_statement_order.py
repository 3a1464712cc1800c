"""The order of a register tile's statements: fewest registers, and no value changed."""

from __future__ import annotations

from collections import Counter

import pytest

from pyschedule import tile, unroll, vectorize
from pyschedule.analysis.registers import RegisterFile, pressure
from pyschedule.ir.nodes import Alloc, BinOp, Load, Ramp, Store, Vector
from pyschedule.ir.types import FLOAT32
from pyschedule.transforms.nest import innermost_loops
from pyschedule.transforms.statement_order import best_order, order_statements, orders
from tests.analysis.helpers import array, assign, f32, ix, kernel, load, local, loop, plus, store, var
from tests.transforms import kernels
from tests.transforms.stages import agrees, counting

FILE = RegisterFile(64, masks=True)
ACC = frozenset({"acc"})


def step(row, column, depth=0):
    """One multiply-add of a register tile."""
    at, kind = (ix(row), ix(column)), Vector(FLOAT32, 16)
    a = load("A", plus("i", row), plus("k", depth))
    b = Load("B", (plus("k", depth), Ramp(plus("j", 16 * column), 1, 16)), FLOAT32)
    return Store("acc", at, BinOp("+", Load("acc", at, kind), BinOp("*", a, b, FLOAT32), FLOAT32))


@pytest.mark.parametrize("rows, columns", [(6, 4), (14, 2), (2, 14), (8, 1), (1, 8)])
def test_the_shorter_side_of_a_tile_waits_in_registers(rows, columns):
    by_columns = tuple(step(row, column) for column in range(columns) for row in range(rows))
    by_rows = tuple(step(row, column) for row in range(rows) for column in range(columns))
    for body in (by_columns, by_rows):
        best = best_order(body, ACC, FILE)
        assert Counter(best) == Counter(body)
        assert pressure(best, FILE, ACC) == rows * columns + min(rows, columns) + (min(rows, columns) > 1)
        assert best_order(best, ACC, FILE) is best


def test_the_updates_of_an_element_stay_in_their_order():
    body = tuple(step(row, column, depth) for column in range(2) for row in range(6) for depth in range(3))
    found = list(orders(body, ACC))
    assert len(found) == len(set(found)) == 3
    for order in found:
        for at in {stmt.indices for stmt in body}:
            assert [stmt for stmt in order if stmt.indices == at] == [stmt for stmt in body if stmt.indices == at]
    best = best_order(body, ACC, FILE)
    assert pressure(best, FILE, ACC) == 12 + 2 + 1 < pressure(body, FILE, ACC)


@pytest.mark.parametrize(
    "other",
    [
        assign("s", f32(1.0)),
        store("out", ["i"], f32(0.0)),
        Store("acc", (ix(0), var("i")), f32(0.0)),
        Store("acc", (ix(1), ix(1)), Load("acc", (ix(0), ix(0)), FLOAT32)),
    ],
)
def test_a_body_with_another_statement_is_left_alone(other):
    body = (*(step(row, column) for column in range(2) for row in range(6)), other)
    assert list(orders(body, ACC)) == [body]


def test_a_kernel_without_register_tiles_is_the_very_object():
    plain = kernels.CASES["gemm"].kernel()
    assert order_statements(plain, FILE) is plain
    memory = kernel(
        [array("out")], Alloc(local("acc", 4, space="register")), loop("k", 0, 8, store("out", ["k"], f32(0.0)))
    )
    assert order_statements(memory, FILE) is memory


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_a_tile_of_many_rows_is_computed_row_by_row_and_exactly(depth):
    scheduled = tile(i=5, j=4, k=4)(vectorize("j", width=2)(unroll("i")(kernels.gemm)))
    if depth > 1:
        scheduled = unroll("k", depth)(scheduled)
    lowering = agrees(scheduled, counting(11, 9), counting(9, 7), counting(11, 7))
    hot = max(innermost_loops(lowering.kernel.body), key=lambda item: len(item.body))
    places = [tuple(index.value for index in stmt.indices) for stmt in hot.body]
    tile_of = [(row, column) for row in range(5) for column in range(2)]
    copies = len(places) // len(tile_of)  # the others are the compiler's
    assert places == tile_of * copies
    assert (copies, hot.unroll) in ((depth, 0), (1, depth))
