"""Trip counts and bounds of counters, against loops that are really run."""

from __future__ import annotations

import random

import pytest
import sympy

from pyschedule.analysis.induction import (
    divides,
    lower_bound,
    max_trip,
    static_trip,
    upper_bound,
)
from pyschedule.ir.algebra import to_sympy, trip_count
from pyschedule.ir.build import const
from pyschedule.ir.nodes import BinOp, Dim, Expr, For, Select, UnaryOp
from pyschedule.ir.types import INT64
from tests.analysis.evaluate import evaluate
from tests.analysis.helpers import cmp, ix, loop, low, minus, op, plus, times

M = Dim("A", 0)


@pytest.mark.parametrize("step", [-4, -3, -1, 1, 2, 5])
def test_trip_count_is_that_of_range(step: int) -> None:
    count = trip_count(loop("i", "a", "b", step=step))
    a, b = sympy.Symbol("a", integer=True), sympy.Symbol("b", integer=True)
    for start in range(-4, 5):
        for stop in range(-6, 7):
            assert count.subs({a: start, b: stop}) == len(range(start, stop, step))


def test_trip_count_with_a_symbolic_step() -> None:
    count = trip_count(loop("i", 0, "b", step="s"))
    names = {name: sympy.Symbol(name, integer=True) for name in "bs"}
    for stop in (-7, 0, 7):
        for step in (-3, 3):
            assert count.subs({names["b"]: stop, names["s"]: step}) == len(range(0, stop, step))


def test_extents_are_nonnegative_symbols() -> None:
    extent = to_sympy(M)
    assert extent.name == "A.shape[0]" and extent.is_integer and extent.is_nonnegative
    assert trip_count(loop("i", 0, M)) == extent
    assert to_sympy(low(op("//", M, 4), op("%", M, 4))) == sympy.Min(sympy.floor(extent / 4), sympy.Mod(extent, 4))


@pytest.mark.parametrize(
    ("nest", "trips"),
    [
        (loop("i", 0, 10), 10),
        (loop("i", 1, 10, step=3), 3),
        (loop("i", 9, -1, step=-4), 3),
        (loop("i", 5, 2), 0),
        (loop("i", "i_0", plus("i_0", 6)), 6),
        (loop("i", plus(M, 3), M, step=-2), 2),
        (loop("i", 0, M), None),
        (loop("i", 0, 10, step="s"), None),
        (loop("i", "i_0", low(plus("i_0", 6), M)), None),
    ],
)
def test_static_trip(nest: For, trips: int | None) -> None:
    assert static_trip(nest) == trips


@pytest.mark.parametrize(
    ("nest", "trips"),
    [
        (loop("i", "i_0", low(plus("i_0", 192), M)), 192),
        (loop("i", "i_0", low(plus("i_0", 192), M), step=6), 32),
        (loop("i", "i_1", low(plus("i_1", 6), low(plus("i_0", 192), M))), 6),
        (loop("i", times(op("//", M, 4), 4), M), 3),
        (loop("i", minus(M, op("%", M, 4)), M), 3),
        (loop("i", times(op(">>", M, 3), 8), M), 7),
        (loop("i", 0, op("&", M, 7)), 7),
        (loop("i", 0, M, max_trip=64), 64),
        (loop("i", 0, 10, max_trip=64), 10),
        (loop("i", 0, minus(5, M)), 5),
        (loop("i", 0, M), None),
        (loop("i", 0, 10, step="s"), None),
    ],
)
def test_max_trip(nest: For, trips: int | None) -> None:
    assert max_trip(nest) == trips


def test_max_trip_of_a_triangle_needs_the_outer_loop() -> None:
    inner = loop("j", "i", 10)
    assert max_trip(inner) is None
    assert max_trip(inner, (loop("i", 0, 10, inner),)) == 10


def test_the_step_tells_the_last_value() -> None:
    outer = loop("i_0", 0, M, step=192)
    middle = loop("i_1", "i_0", low(plus("i_0", 192), M), step=6)
    assert upper_bound(minus(plus("i_1", 6), "i_0"), (outer, middle)) == 192
    ragged = loop("i_1", "i_0", low(plus("i_0", 192), M), step=7)
    assert upper_bound(minus(plus("i_1", 7), "i_0"), (outer, ragged)) == 196


def test_divisibility() -> None:
    assert divides(plus(times("i", 8), 16), 8)
    assert not divides(plus(times("i", 8), 4), 8)
    assert divides(times(op("//", M, 4), 4), 4)
    assert divides(low(times("i", 8), 64), 8)
    assert not divides(low(times("i", 8), M), 8)
    assert divides(times("i", times("j", 8)), 4)
    assert divides(op("&", M, -16), 16) and not divides(op("&", M, 24), 16)
    assert divides(ix(0), 7)
    outer = loop("i", 0, M, step=16)
    assert divides(ix("i"), 16, (outer,)) and not divides(ix("i"), 32, (outer,))
    inner = loop("j", "i", plus("i", 16), step=8)
    assert divides(ix("j"), 8, (outer, inner)) and not divides(ix("j"), 16, (outer, inner))


def _bound(rng: random.Random, names: list[str]) -> Expr:
    term: Expr = ix(rng.choice(names)) if names and rng.random() < 0.7 else const(rng.randint(-4, 8))
    choice = rng.random()
    if choice < 0.3:
        return plus(term, rng.randint(-3, 9))
    if choice < 0.5:
        return low(plus(term, rng.randint(0, 9)), M if rng.random() < 0.5 else const(rng.randint(0, 9)))
    if choice < 0.6:
        return times(op("//", term, 3), rng.choice([1, 3, -3]))
    if choice < 0.7:
        return op("%", term, 4)
    return Select(cmp("<", term, 3), term, const(2), INT64) if choice < 0.8 else term


@pytest.mark.parametrize("seed", range(150))
def test_bounds_and_divisors_hold_in_loops_that_are_run(seed: int) -> None:
    rng = random.Random(seed)
    nest: list[For] = []
    for depth in range(3):
        names = [one.var for one in nest]
        step = rng.choice([1, 1, 2, 3, -1, -2])
        nest.append(loop(f"i{depth}", _bound(rng, names), _bound(rng, names), step=step))
    expr: Expr = ix(rng.randint(-3, 3))
    for one in nest:
        expr = plus(expr, times(one.var, rng.randint(-3, 3)))
    expr = BinOp("-", expr, _bound(rng, [one.var for one in nest]), INT64) if rng.random() < 0.5 else expr
    expr = UnaryOp("-", expr) if rng.random() < 0.2 else expr
    most, least = upper_bound(expr, nest), lower_bound(expr, nest)
    trips = [max_trip(one, nest[:depth]) for depth, one in enumerate(nest)]
    by = [number for number in (2, 3, 4) if divides(expr, number, nest)]
    for extent in (0, 1, 5, 8):
        _run(nest, trips, expr, {"A.shape[0]": extent}, most, least, by)


def _run(
    nest: list[For],
    trips: list[int | None],
    expr: Expr,
    values: dict[str, int],
    most: int | None,
    least: int | None,
    by: list[int],
) -> None:
    depth = len(values) - 1
    if depth == len(nest):
        value = evaluate(expr, values)
        assert most is None or value <= most
        assert least is None or value >= least
        assert all(value % number == 0 for number in by)
        return
    one = nest[depth]
    counts = range(*(evaluate(part, values) for part in (one.start, one.stop, one.step)))
    limit, exact = trips[depth], static_trip(one)
    assert limit is None or len(counts) <= limit
    assert exact is None or len(counts) == exact
    for value in counts:
        _run(nest, trips, expr, values | {one.var: value}, most, least, by)
