"""Affine forms of index expressions."""

from __future__ import annotations

import random

import pytest

from pyschedule.analysis.affine import Affine, affine, coefficient, difference, expression, is_invariant
from pyschedule.ir.build import const
from pyschedule.ir.nodes import BinOp, Cast, Const, Dim, Expr, Ramp, UnaryOp, Var
from pyschedule.ir.types import FLOAT32, INT32, INT64
from tests.analysis.evaluate import evaluate
from tests.analysis.helpers import ix, load, low, minus, op, plus, times

N = Dim("A", 1)


def test_linear_terms_are_gathered() -> None:
    form = affine(minus(plus(times(3, "i"), times("j", 2)), minus("i", 5)))
    assert form == Affine(5, (("i", 2), ("j", 2)))


def test_what_cancels_is_gone() -> None:
    assert affine(minus(plus("i", 192), "i")) == Affine(192)
    assert difference(plus(N, "i"), plus("i", plus(N, -4))) == 4
    assert difference(ix("i"), ix("j")) is None


def test_the_rest_is_opaque() -> None:
    half = op("//", "i", 2)
    assert affine(plus(half, times(3, half))) == Affine(0, ((half, 4),))
    least = low("i", N)
    assert affine(minus(least, 1)) == Affine(-1, ((least, 1),))
    narrow = BinOp("+", Var("a", INT32), Var("b", INT32), INT32)
    assert affine(plus(narrow, 1)) == Affine(1, ((narrow, 1),))  # it wraps: not looked into
    assert affine(Cast(INT64, Var("x", FLOAT32))) == Affine(0, ((Cast(INT64, Var("x", FLOAT32)), 1),))


def test_floats_and_vectors_have_none() -> None:
    assert affine(Const(1.0, FLOAT32)) is None
    assert affine(load("A", "i")) is None
    assert affine(plus(Ramp(ix("i"), 1, 8), 1)) is None


def test_products_of_variables_are_one_term_in_either_order() -> None:
    assert difference(plus(times("i", "ld"), 3), times("ld", "i")) == 3
    squared = affine(times(plus("i", 1), plus("i", -1)))
    assert squared is not None and squared.constant == -1 and len(squared.terms) == 1


def test_a_coefficient_may_be_symbolic() -> None:
    expr = plus(times(plus("i", 1), N), times("i", 4))
    assert coefficient(expr, "i") == plus(N, 4)
    assert coefficient(expr, "j") == const(0)
    assert coefficient(times("i", "i"), "i") is None
    assert coefficient(op("//", "i", 2), "i") is None
    assert coefficient(op("//", "j", 2), "i") == const(0)
    assert coefficient(load("t", "i", dtype=INT64), "i") is None


def test_invariance_covers_variables_and_arrays() -> None:
    expr = plus(load("t", "j", dtype=INT64), "n")
    assert is_invariant(expr, {"i"})
    assert not is_invariant(expr, {"j"})
    assert not is_invariant(expr, {"t"})


def _random_expr(rng: random.Random, depth: int) -> Expr:
    if depth == 0:
        return ix(rng.randint(-9, 9)) if rng.random() < 0.25 else ix(rng.choice("ijn"))
    kind = rng.choice(["+", "-", "*", "<<", "neg", "//", "min"])
    left = _random_expr(rng, depth - 1)
    if kind == "neg":
        return UnaryOp("-", left)
    if kind == "<<":
        return op("<<", left, rng.randint(0, 3))
    if kind == "//":
        return op("//", left, rng.choice([2, 3, -4]))
    right = _random_expr(rng, depth - 1)
    return low(left, right) if kind == "min" else op(kind, left, right)


@pytest.mark.parametrize("seed", range(200))
def test_the_form_has_the_value_of_the_expression(seed: int) -> None:
    rng = random.Random(seed)
    expr = _random_expr(rng, 3)
    form = affine(expr)
    assert form is not None
    for _ in range(5):
        values = {name: rng.randint(-20, 20) for name in ("i", "j", "n")}
        assert evaluate(expression(form), values) == evaluate(expr, values)
