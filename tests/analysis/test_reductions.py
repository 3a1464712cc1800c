"""Which statements are reduction steps, and that regrouping an exact one changes nothing."""

from __future__ import annotations

import math

import pytest

from pyschedule.analysis.reductions import combine, identity, match
from pyschedule.ir.nodes import BinOp, BoolOp, Call, Cast, Compare, Const, Expr, Load, Select, UnaryOp, Var
from pyschedule.ir.types import BOOL, FLOAT32, FLOAT64, INT32, INT64, Scalar
from tests.analysis.helpers import assign, load, plus, store, when

X, A, B = Var("x", FLOAT32), Var("a", FLOAT32), Var("b", FLOAT32)


def f(symbol: str, left: Expr, right: Expr, dtype: Scalar = FLOAT32) -> BinOp:
    return BinOp(symbol, left, right, dtype)


@pytest.mark.parametrize(
    ("value", "op", "expected"),
    [
        (f("+", X, A), "+", A),
        (f("+", A, X), "+", A),
        (f("+", f("+", X, A), B), "+", f("+", A, B)),
        (f("+", A, f("+", X, B)), "+", f("+", B, A)),
        (f("-", X, A), "+", UnaryOp("-", A)),
        (f("-", f("-", X, A), B), "+", f("-", UnaryOp("-", A), B)),
        (f("-", f("+", X, A), B), "+", f("-", A, B)),
        (f("-", A, f("-", B, X)), "+", f("-", A, B)),
        (f("*", f("*", A, X), B), "*", f("*", A, B)),
        (f("+", X, f("*", A, B)), "+", f("*", A, B)),
        (Call("pmax", (X, A), FLOAT32), "pmax", A),
        (Call("pmin", (X, A), FLOAT32), "pmin", A),
        (Call("maximum", (A, X), FLOAT32), "maximum", A),
        (Select(Compare(">", A, X, FLOAT32), A, X, FLOAT32), "pmax", A),
        (Select(Compare("<", X, A, FLOAT32), A, X, FLOAT32), "pmax", A),
        (Select(Compare("<", A, X, FLOAT32), A, X, FLOAT32), "pmin", A),
    ],
)
def test_a_float_step_is_matched(value: Expr, op: str, expected: Expr) -> None:
    step = match(assign("x", value))
    assert step is not None
    assert (step.op, step.name, step.indices, step.value) == (op, "x", None, expected)
    assert step.exact == (op not in "+*")


@pytest.mark.parametrize(
    "value",
    [
        f("-", A, X),  # alternates the sign
        f("-", A, f("+", X, B)),
        f("+", f("*", X, A), B),  # Horner's rule
        f("+", X, X),
        f("*", X, f("+", X, A)),
        f("/", X, A),
        UnaryOp("-", X),
        Call("pmax", (A, X), FLOAT32),  # a NaN comes and goes
        Select(Compare(">", X, A, FLOAT32), X, A, FLOAT32),
        Select(Compare(">", A, B, FLOAT32), A, X, FLOAT32),
        Call("pmax", (X, f("+", X, A)), FLOAT32),
        A,
        X,
    ],
)
def test_another_use_of_the_target_is_no_reduction(value: Expr) -> None:
    assert match(assign("x", value)) is None


@pytest.mark.parametrize("op", ["&", "|", "^", "+", "*"])
def test_integer_steps_are_exact(op: str) -> None:
    x, a = Var("x", INT64), Var("a", INT64)
    step = match(assign("x", BinOp(op, a, x, INT64), INT64))
    assert step is not None and step.exact and step.op == op and step.value == a


def test_python_max_of_integers_is_matched_either_way_round() -> None:
    x, a = Var("x", INT64), Var("a", INT64)
    step = match(assign("x", Call("pmax", (a, x), INT64), INT64))
    assert step is not None and step.exact and step.value == a
    kept = match(assign("x", Select(Compare(">=", x, a, INT64), x, a, INT64), INT64))
    assert kept is not None and kept.op == "pmax"


def test_logical_steps() -> None:
    x, a, b = (Var(name, BOOL) for name in "xab")
    step = match(assign("x", BoolOp("and", BoolOp("and", a, x), b), BOOL))
    assert step is not None and step.exact and step.value == BoolOp("and", a, b)
    assert match(assign("x", BoolOp("or", BoolOp("and", a, x), b), BOOL)) is None


def test_an_element_is_a_target_where_its_indices_agree() -> None:
    step = match(store("C", ("i", plus("j", 1)), f("+", load("C", "i", plus("j", 1), line=3), A)))
    assert step is not None and step.name == "C" and step.value == A
    assert step.indices == load("C", "i", plus("j", 1)).indices
    assert match(store("C", ("i", "j"), f("+", load("C", "j", "i"), A))) is None
    # The value reads another element, which may be this one: not independent.
    assert match(store("C", ("i",), f("+", load("C", "i"), load("C", "k")))) is None
    index = load("C", "i", dtype=INT64)
    assert match(store("C", (index,), f("+", load("C", index, dtype=INT64), Var("a", INT64), INT64))) is None


def test_an_integer_target_takes_no_float_steps() -> None:
    # n += 0.5 truncates at every step.
    n = Var("n", INT64)
    assert match(assign("n", f("+", n, Const(0.5, FLOAT64), FLOAT64), INT64)) is None
    assert match(assign("n", Cast(INT64, f("+", n, Const(0.5, FLOAT64), FLOAT64)), INT64)) is None


def test_a_wider_accumulator_is_matched_where_storing_commutes() -> None:
    narrow, wide = Load("C", (Var("i"),), INT32), Var("a", INT64)
    step = match(store("C", ("i",), BinOp("+", narrow, wide, INT64)))
    assert step is not None and step.dtype == INT64 and step.exact
    assert match(store("C", ("i",), Call("pmax", (narrow, wide), INT64))) is None
    rounded = match(assign("x", Cast(FLOAT32, f("+", X, Var("d", FLOAT64), FLOAT64))))
    assert rounded is not None and rounded.dtype == FLOAT64 and not rounded.exact


def test_the_value_is_converted_to_the_type_of_the_step() -> None:
    step = match(assign("x", f("+", X, Var("n", INT64))))
    assert step is not None and step.value == Cast(FLOAT32, Var("n", INT64))


def test_a_guarded_assignment_is_a_maximum() -> None:
    step = match(when(Compare(">", A, X, FLOAT32), assign("x", A)))
    assert step is not None and (step.op, step.value) == ("pmax", A)
    element = match(when(Compare("<", A, load("m", "i"), FLOAT32), store("m", ("i",), A)))
    assert element is not None and (element.op, element.name) == ("pmin", "m")
    assert match(when(Compare(">", X, A, FLOAT32), assign("x", A))) is not None  # a minimum
    assert match(when(Compare(">", A, X, FLOAT32), assign("x", B))) is None
    assert match(when(Compare(">", A, X, FLOAT32), assign("x", A), orelse=(assign("y", A),))) is None


@pytest.mark.parametrize(
    ("op", "dtype", "value"),
    [
        ("+", FLOAT32, 0.0),
        ("*", FLOAT64, 1.0),
        ("pmax", FLOAT32, -math.inf),
        ("minimum", FLOAT32, math.inf),
        ("pmax", INT32, -(2**31)),
        ("pmin", Scalar("uint8"), 255),
        ("maximum", Scalar("uint16"), 0),
        ("&", INT64, -1),
        ("&", Scalar("uint8"), 255),
        ("|", INT64, 0),
        ("and", BOOL, True),
        ("or", BOOL, False),
    ],
)
def test_the_identity(op: str, dtype: Scalar, value: float) -> None:
    assert identity(op, dtype) == Const(value, dtype)
    assert isinstance(identity(op, dtype).value, type(value))


def test_combine_keeps_the_accumulator_first() -> None:
    assert combine("pmax", X, A, FLOAT32) == Call("pmax", (X, A), FLOAT32)
    assert combine("+", X, A, FLOAT32) == f("+", X, A)
    p, q = Var("p", BOOL), Var("q", BOOL)
    assert combine("or", p, q, BOOL) == BoolOp("or", p, q)
    with pytest.raises(ValueError, match="'-'"):
        combine("-", X, A, FLOAT32)
