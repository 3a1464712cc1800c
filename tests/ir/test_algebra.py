"""Trip counts and index arithmetic in sympy, against Python's own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.algebra import to_sympy, trip_count
from pyschedule.ir.build import const
from pyschedule.ir.interpreter import run
from pyschedule.ir.nodes import Call, Cast, Compare, Dim, Expr, Return, Select, UnaryOp, Var
from pyschedule.ir.types import FLOAT32, INT32, INT64, WEAK_INT
from tests.ir import trees
from tests.ir.nests import I, J, N, f32, kernel, load, loop, op, ramp

START, STOP, STEP = Var("start"), Var("stop"), Var("step")


def at(expr: sympy.Expr, **values: int) -> int:
    named = {symbol: values[symbol.name] for symbol in expr.free_symbols}
    return int(expr.subs(named))


def test_the_count_of_any_constant_range_is_its_length() -> None:
    for start, stop, step in itertools.product(range(-7, 8, 2), range(-8, 9), (-4, -3, -1, 1, 2, 5)):
        assert trip_count(loop("i", start, stop, step)) == len(range(start, stop, step))


@pytest.mark.parametrize("step", [-3, -1, 1, 2, 192])
def test_the_count_of_a_symbolic_range_is_its_length(step: int) -> None:
    count = trip_count(loop("i", START, STOP, step))
    for start, stop in itertools.product(range(-5, 6), range(-6, 7)):
        assert at(count, start=start, stop=stop) == len(range(start, stop, step))


def test_a_step_of_unknown_sign_counts_too() -> None:
    count = trip_count(loop("i", START, STOP, STEP))
    for start, stop, step in itertools.product((-4, 0, 3), range(-6, 7, 2), (-5, -2, -1, 1, 2, 7)):
        assert at(count, start=start, stop=stop, step=step) == len(range(start, stop, step))


def test_the_pieces_of_a_tiled_loop_count_as_they_run() -> None:
    """`for i_0 in range(0, n, 6): for i_1 in range(i_0, min(i_0 + 6, n), 2)`, and the same downwards."""
    i_0 = Var("i_0")
    up = trip_count(loop("i_1", i_0, build.minimum(build.add(i_0, 6), N), 2))
    down = trip_count(loop("i_1", build.maximum(i_0, N), build.sub(i_0, 3), -2))
    for n, first in itertools.product(range(-3, 15), range(-6, 13, 3)):
        assert at(up, n=n, i_0=first) == len(range(first, min(first + 6, n), 2))
        assert at(down, n=n, i_0=first) == len(range(max(first, n), first - 3, -2))


def test_counts_simplify_where_signs_are_known() -> None:
    rows = sympy.Symbol("A.shape[0]", integer=True, nonnegative=True)
    assert trip_count(loop("i", 0, Dim("A", 0), 1)) == rows
    assert trip_count(loop("i", 0, Dim("A", 0), 192)) == sympy.ceiling(rows / 192)
    i_0 = Var("i_0")
    piece = trip_count(loop("i", i_0, build.minimum(build.add(i_0, 6), Dim("A", 0)), 1))
    assert piece == sympy.Max(0, sympy.Min(6, rows - sympy.Symbol("i_0", integer=True)))
    assert trip_count(loop("i", i_0, build.add(i_0, 192), 6)) == 32
    positive = {"n": sympy.Symbol("n", integer=True, positive=True)}
    assert trip_count(loop("i", 0, N, 1), positive) == positive["n"]


def _in_sympy(expr: Expr, values: dict[str, int]) -> Any:
    form = to_sympy(expr)
    return form.subs({symbol: values[symbol.name] for symbol in form.free_symbols})


@settings(max_examples=60, deadline=None)
@given(trees.integers(), st.fixed_dictionaries({name: st.integers(-20, 20) for name in trees.INTEGERS}))
def test_sympy_agrees_with_the_interpreter(expr: Expr, values: dict[str, int]) -> None:
    try:
        form = _in_sympy(expr, values)
    except (Unsupported, ZeroDivisionError):
        assume(False)
    params = [Var(name) for name in values]
    made = kernel(params, Return((expr,)), returns=(0,), scalar_results=(INT64,))
    try:
        wanted = run(made, {}, values)[0]
    except ZeroDivisionError:
        return
    assume(form.is_finite and abs(form) < 2**63)
    assume(all(abs(part) < 2**60 for part in sympy.preorder_traversal(form) if part.is_number and part.is_real))
    assert int(form) == wanted


@pytest.mark.parametrize(
    ("expr", "wanted"),
    [
        (op("//", I, const(4), INT64), -2),
        (op("%", I, const(4), INT64), 3),
        (op("&", I, const(3), INT64), 3),
        (op(">>", I, const(1), INT64), -3),
        (op("<<", I, const(2), INT64), -20),
        (op("**", I, const(2), INT64), 25),
        (UnaryOp("~", I), 4),
        (Call("abs", (I,), INT64), 5),
        (Call("checked_index", (I, const(9)), INT64), 4),
        (Select(Compare("<", I, const(0), INT64), const(1), const(2), INT64), 1),
        (Cast(INT64, Var("i", WEAK_INT)), -5),
    ],
)
def test_forms_at_minus_five(expr: Expr, wanted: int) -> None:
    assert _in_sympy(expr, {"i": -5}) == wanted


@pytest.mark.parametrize(
    "expr",
    [
        f32(1),
        Var("x", FLOAT32),
        load("A", 0, dtype=INT64),
        op("+", I, J, INT32),
        op("&", I, const(5), INT64),
        op("^", I, J, INT64),
        op("**", I, J, INT64),
        Cast(INT32, I),
        ramp(0, 4),
        Call("sqrt", (f32(1),), FLOAT32),
    ],
)
def test_what_has_no_exact_form_is_refused(expr: Expr) -> None:
    with pytest.raises(Unsupported, match="has no exact integer form"):
        to_sympy(expr)
