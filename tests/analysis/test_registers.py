"""Register pressure of loop bodies."""

from __future__ import annotations

import pytest

from pyschedule.analysis.registers import RegisterFile, accumulators, pressure
from pyschedule.ir.build import const
from pyschedule.ir.nodes import Alloc, BinOp, Broadcast, Call, Expr, Load, Ramp, Store, Var
from pyschedule.ir.types import FLOAT32, FLOAT64, INT32, INT64, Vector
from pyschedule.ir.visitors import Body
from tests.analysis.helpers import assign, cmp, f32, ix, load, local, loop, plus, store, var, when

LANES = Vector(FLOAT32, 16)
#: AVX-512, AVX2, and registers of 16 bytes that read nothing from memory.
WIDE = RegisterFile(64, masks=True)
NARROW = RegisterFile(32, folds_broadcasts=False)
SMALL = RegisterFile(16, folds_vectors=False, folds_broadcasts=False)


def tile(rows: int, columns: int) -> Body:
    """One step of a register tile: `rows` broadcasts, `columns` vectors, one multiply-add for each pair."""
    body = []
    for row in range(rows):
        for column in range(columns):
            where = const(row), const(column)
            a = load("A", plus("i", row), "k")
            b = Load("B", (ix("k"), Ramp(plus("j", 16 * column), 1, 16)), FLOAT32)
            fma = Call("fma", (a, b, Load("acc", where, LANES)), FLOAT32)
            body.append(Store("acc", where, fma))
    return tuple(body)


@pytest.mark.parametrize(("rows", "columns"), [(6, 4), (8, 3), (14, 2), (2, 2), (12, 4)])
def test_a_register_tile_needs_its_accumulators_and_one_row_of_operands(rows: int, columns: int) -> None:
    assert pressure(tile(rows, columns), WIDE) == rows * columns + columns + 1
    assert accumulators(tile(rows, columns), WIDE) == rows * columns


def test_an_element_that_one_vector_is_multiplied_by_is_read_by_the_instruction_itself() -> None:
    assert pressure(tile(24, 1), WIDE) == 24 + 1
    assert pressure(tile(24, 1), NARROW) == 2 * 24 + 2 + 1
    assert pressure(tile(1, 8), WIDE) == 8 + 1
    assert pressure(tile(1, 8), SMALL) == 4 * 8 + 4 + 1


def test_without_contraction_a_product_is_in_a_register_before_it_is_added() -> None:
    a, b, acc = (
        load("A", "i", "k"),
        Load("B", (ix("k"), Ramp(ix("j"), 1, 16)), FLOAT32),
        Load("acc", (ix(0),), LANES),
    )
    value = BinOp("+", acc, BinOp("*", a, b, FLOAT32), FLOAT32)
    other = Store("acc", (ix(1),), BinOp("+", Load("acc", (ix(1),), LANES), BinOp("*", a, b, FLOAT32), FLOAT32))
    body = Store("acc", (ix(0),), value), other
    assert pressure(body, WIDE) == 2 + 2
    assert pressure(body, RegisterFile(64, masks=True, contracts=False)) == 2 + 2 + 1


def test_masks_take_vector_registers_where_they_have_none_of_their_own() -> None:
    mask = cmp("<", Ramp(ix("j"), 1, 8), "n")
    masked = Load("B", (ix("k"), Ramp(ix("j"), 1, 8)), FLOAT32, mask)
    body = (Store("acc", (ix(0),), BinOp("+", Load("acc", (ix(0),), Vector(FLOAT32, 8)), masked, FLOAT32)),)
    assert pressure(body, RegisterFile(32, masks=True)) == 2
    assert pressure(body, NARROW) == 4  # held as bits, and widened for the access


def test_integers_that_are_spread_over_lanes_are_vectors() -> None:
    a = load("A", "i", "k", dtype=INT32)

    def step(place: int) -> Store:
        acc = Load("acc", (ix(place),), Vector(INT32, 16))
        b = Load("B", (ix("k"), Ramp(plus("j", 16 * place), 1, 16)), INT32)
        return Store("acc", (ix(place),), BinOp("+", acc, BinOp("*", a, b, INT32), INT32))

    assert pressure((step(0), step(1)), WIDE) == 2 + 1 + 1


def test_a_vector_wider_than_a_register_takes_several() -> None:
    wide, narrow = pressure(tile(2, 2), NARROW), pressure(tile(2, 2), WIDE)
    assert wide >= 2 * narrow - 2  # the broadcasts are as long as one register


def test_accumulators_of_a_declared_array_count_whatever_indexes_them() -> None:
    body = Alloc(local("acc", 4, space="register")), store("acc", ["i"], load("x", "i"))
    undeclared = (store("acc", ["i"], load("x", "i")),)
    assert pressure(body, WIDE) == pressure(undeclared, WIDE) + 1
    assert pressure(undeclared, WIDE, registers=["acc"]) == pressure(body, WIDE)


def test_constants_and_invariants_are_held() -> None:
    plain: Expr = BinOp("*", load("x", "i"), load("y", "i"), FLOAT32)
    scaled = BinOp("*", plain, f32(2.0), FLOAT32)
    twice = BinOp("*", scaled, f32(2.0), FLOAT32)
    invariant = BinOp("*", scaled, var("alpha"), FLOAT32)
    needs = [pressure((store("z", ["i"], value),), WIDE) for value in (plain, scaled, twice, invariant)]
    assert needs[1] == needs[0] + 1 and needs[2] == needs[1] and needs[3] == needs[1] + 1
    spread = BinOp("*", load("x", Ramp(ix("i"), 1, 16)), Broadcast(var("alpha"), 16), FLOAT32)
    assert pressure((store("z", [Ramp(ix("i"), 1, 16)], spread),), WIDE) == 2


def test_a_scalar_that_goes_around_is_held_and_a_local_only_while_it_lives() -> None:
    total = assign("s", BinOp("+", var("s"), load("x", "i"), FLOAT32))
    assert pressure((total,), WIDE) == 1  # its summand is read from memory
    assert pressure((total,), SMALL) == 2

    def chain(count: int) -> Body:
        """Locals that are used at once: never two at a time."""
        first = [assign("t0", load("x", "i"))]
        rest = [assign(f"t{n}", BinOp("*", var(f"t{n - 1}"), var(f"t{n - 1}"), FLOAT32)) for n in range(1, count)]
        return (*first, *rest, store("y", ["i"], var(f"t{count - 1}")))

    assert pressure(chain(3), WIDE) == pressure(chain(9), WIDE)
    kept = tuple(assign(f"t{n}", load("x", plus("i", n))) for n in range(9))
    total_of: Expr = var("t0")
    for n in range(1, 9):
        total_of = BinOp("+", total_of, var(f"t{n}"), FLOAT32)
    assert pressure((*kept, store("y", ["i"], total_of)), WIDE) >= 9


def test_integers_and_addresses_need_none() -> None:
    index = plus("i", load("t", "i", dtype=INT64))
    assert pressure((store("n", [index], plus("i", 1)),), WIDE) == 0
    assert (
        pressure((assign("k", plus("i", 1), INT64), when(cmp("<", "k", 3), store("n", ["k"], Var("k")))), WIDE) == 0
    )


def test_a_balanced_tree_needs_its_depth() -> None:
    def tree(depth: int, place: int = 0) -> Expr:
        if depth == 0:
            return BinOp("*", load("x", plus("i", place)), load("y", plus("i", place)), FLOAT32)
        return BinOp("+", tree(depth - 1, place), tree(depth - 1, place + (1 << depth)), FLOAT32)

    needs = [pressure((store("z", ["i"], tree(depth)),), WIDE) for depth in range(4)]
    assert needs == sorted(needs) and needs[3] == needs[0] + 3


def test_an_element_that_is_stored_is_loaded_anew() -> None:
    shared = (store("y", ["i"], load("x", 0, "i")), store("z", ["i"], load("x", 0, "i")))
    between = (shared[0], store("x", [0, "i"], f32(0.0)), shared[1])
    assert pressure(shared, WIDE) == 1
    assert pressure(between, WIDE) == 2  # the constant


def test_inner_loops_count_as_their_statements() -> None:
    body = tile(2, 2)
    assert pressure((loop("k", 0, 8, *body),), WIDE) == pressure(body, WIDE)
    assert pressure((), WIDE) == 0
    assert pressure((store("x", ["i"], load("y", "i", dtype=FLOAT64)),), SMALL) == 1
