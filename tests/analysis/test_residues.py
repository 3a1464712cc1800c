"""Residues of integer expressions: by example, and against every value that the loops around them let them have."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest

from pyschedule.analysis.residues import remainder, residue
from pyschedule.ir.build import const
from pyschedule.ir.nodes import BinOp, Call, Cast, Const, Dim, Expr, For, Select, UnaryOp
from pyschedule.ir.types import FLOAT64, INT32, INT64, Scalar
from tests.analysis.evaluate import evaluate
from tests.analysis.helpers import cmp, ix, load, loop, low, minus, op, plus, times, var

UINT8, INT8 = Scalar("uint8"), Scalar("int8")
N = ix("n")


def known(expr: Expr, modulus: int, *around: For) -> int | None:
    return residue(expr, modulus, {one.var: one for one in around})


FOURS = loop("k", 8, "n", step=4)
DOWN = loop("k", 7, "n", step=-4)
ODD = loop("k", 8, "n", step=3)


@pytest.mark.parametrize(
    ("expr", "modulus", "around", "expected"),
    [
        (const(-7), 4, (), 1),
        (ix("k"), 4, (FOURS,), 0),
        (plus("k", 3), 4, (FOURS,), 3),
        (minus(1, "k"), 4, (FOURS,), 1),
        (ix("k"), 2, (FOURS,), 0),
        (ix("k"), 8, (FOURS,), None),
        (ix("k"), 3, (FOURS,), None),
        (ix("k"), 4, (DOWN,), 3),
        (ix("k"), 4, (ODD,), None),
        (ix("k"), 3, (ODD,), 2),
        (ix("k"), 4, (), None),
        (ix("k"), 1, (), 0),
        # A start that moves with an outer loop, or is not known but for a factor.
        (ix("i"), 4, (FOURS, loop("i", "k", low(plus("k", 4), "n"), step=8)), 0),
        (ix("i"), 4, (loop("j", 0, "n"), loop("i", times(4, "j"), "n", step=4)), 0),
        (ix("i"), 8, (loop("j", 0, "n"), loop("i", times(4, "j"), "n", step=8)), None),
        (ix("i"), 8, (loop("j", 1, "n", step=2), loop("i", times(4, "j"), "n", step=8)), 4),
        (ix("i"), 4, (loop("i", "n", 99, step=4),), None),
        (ix("i"), 4, (loop("i", plus(times("n", 4), 2), 99, step=4),), 2),
        (ix("i"), 4, (loop("i", low("k", 16), 99, step=4), FOURS), 0),
        (ix("i"), 4, (loop("i", low("k", 18), 99, step=4), FOURS), None),
        (ix("k"), 4, (loop("k", 0, "n", step=ix("s")),), None),
        # Operations.
        (times(6, "n"), 4, (), None),
        (times(6, "k"), 12, (loop("k", 0, "n", step=2),), 0),
        (op("//", plus("k", 3), 4), 2, (loop("k", 4, "n", step=8),), 1),
        (op(">>", plus("k", 5), 2), 2, (loop("k", 4, "n", step=8),), 0),
        (op("<<", "n", 3), 8, (), 0),
        (op("%", "k", 12), 4, (FOURS,), 0),
        (op("%", "n", 3), 4, (), None),
        (op("^", "k", 1), 4, (FOURS,), 1),
        (op("|", "k", 2), 4, (FOURS,), 2),
        (UnaryOp("~", ix("k")), 4, (FOURS,), 3),
        (UnaryOp("-", plus("k", 1)), 4, (FOURS,), 3),
        (Call("pmax", (ix("k"), ix(4)), INT64), 4, (FOURS,), 0),
        (Call("pmax", (ix("k"), ix(5)), INT64), 4, (FOURS,), None),
        (Select(cmp("<", "n", 3), ix("k"), times("n", 4), INT64), 4, (FOURS,), 0),
        (Dim("A", 0), 2, (), None),
        (times(Dim("A", 0), 6), 3, (), 0),
        (load("t", 0, dtype=INT64), 2, (), None),
        (var("x"), 1, (), None),
    ],
)
def test_examples(expr: Expr, modulus: int, around: Sequence[For], expected: int | None) -> None:
    assert known(expr, modulus, *around) == expected


def test_what_may_wrap_keeps_its_residue_modulo_powers_of_two_only() -> None:
    """6 * n wraps by 2**64, which 2 divides and 3 does not; counters and extents do not get so far."""
    element = load("t", 0, dtype=INT64)
    for unbounded in (N, element):
        assert known(times(6, unbounded), 2) == 0
        assert known(times(6, unbounded), 3) is None
    assert known(times(6, "k"), 3, FOURS) == 0
    assert known(ix("i"), 3, loop("i", times(3, "n"), 99, step=3)) is None
    assert known(ix("i"), 4, loop("i", times(4, "n"), 99, step=4)) == 0
    assert ((3 << 62) - (1 << 64)) % 3 != 0  # 3 * 2**62, wrapped: which is why


def test_narrow_types_wrap_sooner() -> None:
    narrow = Cast(UINT8, ix("k"))
    assert known(narrow, 4, FOURS) == 0
    assert known(Cast(UINT8, times("k", 3)), 3, FOURS) is None  # 258 becomes 2
    assert known(BinOp("*", narrow, Const(3, UINT8), UINT8), 3, FOURS) is None
    assert known(BinOp("*", narrow, Const(3, UINT8), UINT8), 4, FOURS) == 0
    assert known(BinOp("+", Cast(INT32, ix("k")), Const(5, INT32), INT32), 4, FOURS) == 1
    assert known(Cast(INT64, Cast(INT32, ix("k"))), 4, FOURS) == 0
    assert known(BinOp("//", ix("k"), Const(4, INT8), INT8), 2, loop("k", 0, "n", step=8)) is None
    assert known(BinOp("+", ix("k"), Const(1.0, FLOAT64), FLOAT64), 4, FOURS) is None
    assert known(Cast(INT64, Const(4.0, FLOAT64)), 4) is None


@pytest.mark.parametrize(
    ("symbol", "left", "right", "expected"),
    [
        ("&", plus("k", 6), const(3), 2),
        ("&", plus("k", 6), const(1), 0),
        ("&", plus("k", 6), const(4), None),
        ("&", plus("k", 6), const(-4), None),
        ("&", plus("k", 6), const(0), 0),
        ("%", plus("k", 6), const(4), 2),
        ("%", plus("k", 6), const(-4), -2),
        ("%", ix("k"), const(-4), 0),
        ("%", ix("k"), const(3), None),
        ("%", ix("k"), const(0), None),
        ("%", ix("k"), N, None),
        ("%", ix("k"), const(1), 0),
        ("//", ix("k"), const(4), None),
    ],
)
def test_remainders(symbol: str, left: Expr, right: Expr, expected: int | None) -> None:
    assert remainder(BinOp(symbol, left, right, INT64), {"k": FOURS}) == expected


# --------------------------------------------------------------------------------------------------- random


def random_expr(rng: random.Random, depth: int) -> Expr:
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([ix("i"), ix("j"), N, const(rng.randint(-9, 9)), Dim("A", 0)])
    kind = rng.random()
    left = random_expr(rng, depth - 1)
    if kind < 0.55:
        return op(rng.choice("++--**"), left, random_expr(rng, depth - 1))
    if kind < 0.8:
        return op(rng.choice(["//", "%"]), left, rng.choice([2, 3, 4, 6, 8]))
    if kind < 0.9:
        symbol, most = rng.choice([("&", 15), ("|", 7), ("^", 7), (">>", 3), ("<<", 3)])
        return op(symbol, left, rng.randint(0, most))
    if kind < 0.93:
        return UnaryOp(rng.choice("-~"), left)
    return Call(rng.choice(["pmin", "pmax"]), (left, random_expr(rng, depth - 1)), INT64)


def nests(rng: random.Random) -> Iterator[tuple[For, For]]:
    """Two loops, the start of the inner one perhaps a form of the outer counter."""
    while True:
        steps = [rng.choice([1, 2, 3, 4, 6, 8, -1, -2, -4, -6]) for _ in range(2)]
        starts = [rng.choice([const(rng.randint(-9, 9)), times(N, rng.choice([2, 4])), N])]
        starts.append(rng.choice([*starts, ix("i"), plus(times("i", 2), 1), low("i", 4)]))
        yield (
            loop("i", starts[0], plus(starts[0], 20 if steps[0] > 0 else -20), step=steps[0]),
            loop("j", starts[1], plus(starts[1], 20 if steps[1] > 0 else -20), step=steps[1]),
        )


def points(outer: For, inner: For, n: int) -> Iterator[dict[str, int]]:
    values = {"n": n, "A.shape[0]": 5 + n}

    def counter(one: For) -> range:
        return range(*(evaluate(part, values) for part in (one.start, one.stop, one.step)))

    for values["i"] in counter(outer):
        for values["j"] in counter(inner):
            yield dict(values)


def test_residues_hold_for_every_value() -> None:
    rng = random.Random(7)
    found = 0
    for nest in nests(rng):
        around = {one.var: one for one in nest}
        exprs = [random_expr(rng, 3) for _ in range(30)]
        claims = [
            (expr, modulus, rest)
            for expr in exprs
            for modulus in (2, 3, 4, 6, 8)
            if not isinstance(expr, Const) and (rest := residue(expr, modulus, around)) is not None
        ]
        for n in (-3, 0, 1, 6):
            for values in points(*nest, n):
                for expr, modulus, rest in claims:
                    assert evaluate(expr, values) % modulus == rest, (expr, modulus, nest, values)
        found += len(claims)
        if found > 3000:
            break
