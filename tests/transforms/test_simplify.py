"""Simplification: each rule by example, and all of them against evaluators that know nothing of the rules."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping

import numpy as np
import pytest

from pyschedule.analysis.induction import static_trip
from pyschedule.ir import interpreter
from pyschedule.ir.build import FALSE, TRUE, const
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    BinOp,
    BoolOp,
    Break,
    Broadcast,
    Call,
    Cast,
    Compare,
    Const,
    Dim,
    Expr,
    For,
    Load,
    Origin,
    Ramp,
    Return,
    Select,
    Stmt,
    Store,
    UnaryOp,
    Var,
    While,
)
from pyschedule.ir.types import FLOAT32, FLOAT64, INT32, INT64, Scalar
from pyschedule.ir.visitors import Body, walk
from pyschedule.transforms.algebra import negation, simplified
from pyschedule.transforms.facts import Facts
from pyschedule.transforms.indexing import make_explicit
from pyschedule.transforms.simplify import simplify
from tests.analysis.evaluate import evaluate
from tests.analysis.helpers import (
    array,
    assign,
    cmp,
    f32,
    gemm,
    ix,
    kernel,
    load,
    local,
    loop,
    low,
    minus,
    op,
    plus,
    store,
    times,
    var,
    when,
)
from tests.analysis.watched import PARAMS, random_body

M = Dim("A", 0)
I, J, K, X = ix("i"), ix("j"), ix("k"), var("x")
UINT8 = Scalar("uint8")


def high(left: Expr | int | str, right: Expr | int | str) -> Call:
    return Call("pmax", (ix(left), ix(right)), INT64)


def alone(expr: Expr, *loops: For) -> Expr:
    return simplified(expr, Facts(loops))


# ------------------------------------------------------------------------------------------- expressions


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (minus(plus("i", "j"), "i"), J),
        (minus(plus("i", 192), "i"), const(192)),
        (plus(times("i", 1), 0), I),
        (times("i", 0), const(0)),
        (plus(times("i", 2), times(3, "i")), times("i", 5)),
        (plus(plus("i", 2), 3), plus("i", 5)),
        (minus("i", plus("i", "j")), UnaryOp("-", J)),
        (plus(minus(0, "i"), "j"), minus("j", "i")),
        (UnaryOp("-", UnaryOp("-", I)), I),
        (op("<<", "i", 0), I),
        (op("//", plus(times(4, "k"), 7), 4), plus("k", 1)),
        (op("%", plus(times(4, "k"), 7), 4), const(3)),
        (op("&", plus(times(4, "k"), 7), 3), const(3)),
        (op(">>", plus(times(4, "k"), 7), 2), plus("k", 1)),
        (op("//", minus(times(4, "k"), 1), 4), minus("k", 1)),
        (op("%", minus(times(4, "k"), 1), 4), const(3)),
        (op("//", plus(times(8, "k"), "j"), 4), plus(op("//", "j", 4), times("k", 2))),
        (op("%", plus(times(8, "k"), plus("j", 9)), 4), op("%", plus("j", 1), 4)),
        (op("//", "i", 1), I),
        (op("%", "i", 1), const(0)),
        (low("i", "i"), I),
        (low("i", plus("i", 3)), I),
        (high("i", plus("i", 3)), plus("i", 3)),
        (low(low("i", "j"), "i"), low("i", "j")),
        (low("i", low("j", plus("i", 1))), low("i", "j")),
        (low(3, low("i", 2)), low("i", 2)),
        (cmp("<", "i", plus("i", 1)), TRUE),
        (cmp(">=", "i", plus("i", 1)), FALSE),
        (cmp("==", plus("i", "j"), plus("j", "i")), TRUE),
        (cmp("!=", plus("i", 2), "i"), TRUE),
        (cmp(">=", M, 0), TRUE),
        (BoolOp("and", TRUE, cmp("<", "i", "j")), cmp("<", "i", "j")),
        (BoolOp("or", cmp("<", "i", "j"), TRUE), TRUE),
        (BoolOp("and", cmp("<", "i", "j"), cmp("<", "i", "j")), cmp("<", "i", "j")),
        (UnaryOp("not", cmp("<", "i", "j")), cmp(">=", "i", "j")),
        (Select(TRUE, I, J, INT64), I),
        (Select(cmp("<", "i", "j"), K, K, INT64), K),
        (Cast(INT64, I), I),
        (Ramp(plus("i", 0), 1, 8), Ramp(I, 1, 8)),
    ],
)
def test_index_arithmetic(expr: Expr, expected: Expr) -> None:
    assert alone(expr) == expected


def test_what_no_rule_touches_is_the_same_object() -> None:
    for expr in (plus(1, "i"), op("//", plus("i", 5), 4), low("i", "j"), load("A", plus("i", 1), "j")):
        assert alone(expr) is expr
    source = gemm()
    assert simplify(source) is source


def test_loops_decide_minima_and_comparisons() -> None:
    outer = loop("i_0", 0, 384, step=192)
    middle = loop("i_1", "i_0", plus("i_0", 192), step=6)
    inner = loop("i_2", "i_1", plus("i_1", 6))
    assert alone(low(plus("i_1", 6), plus("i_0", 192)), outer, middle) == plus("i_1", 6)
    assert alone(cmp("<", "i_2", 384), outer, middle, inner) == TRUE
    assert alone(cmp("<", "i_2", 383), outer, middle, inner) == cmp("<", "i_2", 383)
    ragged = loop("i_1", "i_0", plus("i_0", 192), step=7)
    assert isinstance(alone(low(plus("i_1", 7), plus("i_0", 192)), outer, ragged), Call)
    assert alone(op("//", plus(times("j", 6), minus("i_2", "i_1")), 6), outer, middle, inner) == J
    assert alone(op("%", minus("i_2", "i_1"), 6), outer, middle, inner) == minus("i_2", "i_1")


def test_a_base_that_is_added_keeps_a_stage_index() -> None:
    # (base + k) & 3 is not constant in a copy of the body unless base is.
    assert alone(op("&", plus("base", plus("k", 2)), 3)) == op("&", plus("base", plus("k", 2)), 3)
    assert alone(op("%", plus(times("k", 4), 1), 3)) == op("%", plus(times("k", 4), 1), 3)


def test_numbers_from_arrays_may_overflow() -> None:
    value = load("t", "i", dtype=INT64)
    division = op("//", times(value, 4), 4)
    assert alone(division) is division
    assert alone(minus(plus(value, 1), value)) == const(1)  # holds modulo 2**64
    test = cmp("<", value, plus(value, 1))
    assert alone(test) is test
    scalar = op("%", plus(times(Var("n"), 3), 1), 3)
    assert simplified(scalar, Facts(assigned=frozenset("n"))) is scalar
    assert alone(op("%", plus(times(4, value), 1), 4)) == const(1)  # what wraps does so by a multiple of four


def test_errors_that_the_user_is_owed_stay() -> None:
    checked = Call("checked_index", (I, M), INT64)
    for expr in (times(checked, 0), minus(checked, checked), low(checked, checked)):
        assert alone(expr) == expr
    nothing = when(cmp("<", load("x", checked), f32(0.0), FLOAT32))
    assert simplify((nothing,)) == (nothing,)


def test_narrow_integers_wrap_when_folded() -> None:
    assert alone(BinOp("+", Const(200, UINT8), Const(100, UINT8), UINT8)) == Const(44, UINT8)
    assert alone(BinOp("*", Const(2**31 - 1, INT32), Const(2, INT32), INT32)) == Const(-2, INT32)
    assert alone(plus(const(2**63 - 1), 1)) == const(-(2**63))
    assert alone(op("//", -7, 2)) == const(-4) and alone(op("%", -7, 4)) == const(1)
    division = op("//", 1, 0)
    assert alone(division) is division
    narrow = BinOp("-", BinOp("+", Var("a", INT32), Var("b", INT64), INT32), Var("b", INT64), INT32)
    assert alone(narrow) is narrow


def test_floats_keep_every_bit() -> None:
    for same in (f32(1.0), Const(1, INT64)):
        assert alone(BinOp("*", X, same, FLOAT32)) is X
    assert alone(BinOp("/", X, f32(1.0), FLOAT32)) is X
    assert alone(BinOp("-", X, f32(0.0), FLOAT32)) is X
    kept = (
        BinOp("+", X, f32(0.0), FLOAT32),
        BinOp("-", X, f32(-0.0), FLOAT32),
        BinOp("-", f32(0.0), X, FLOAT32),
        BinOp("*", X, f32(0.0), FLOAT32),
        BinOp("-", X, X, FLOAT32),
        BinOp("/", X, X, FLOAT32),
        BinOp("*", X, Const(1.0, FLOAT64), FLOAT64),
        UnaryOp("not", Compare("<", X, f32(1.0), FLOAT32)),
        Compare("==", X, X, FLOAT32),
        Call("pmax", (X, X), FLOAT32),
        BinOp("/", f32(1.0), f32(0.0), FLOAT32),
    )
    for expr in kept:
        assert alone(expr) is expr or expr == alone(expr)
    third = alone(BinOp("/", f32(1.0), f32(3.0), FLOAT32))
    assert isinstance(third, Const) and third.value == float(np.float32(1) / np.float32(3))
    assert alone(Cast(FLOAT32, Const(0.1, FLOAT64))) == Const(float(np.float32(0.1)), FLOAT32)
    assert alone(Cast(Scalar("float16"), f32(0.1))) == f32(float(np.float16(0.1)))
    assert alone(Cast(Scalar("float16"), X)) == Cast(Scalar("float16"), X)


def test_masks_that_let_everything_through_are_gone() -> None:
    lanes = Ramp(I, 1, 8)
    mask = Compare("<", lanes, plus("i", 8), INT64)
    assert alone(mask) == Broadcast(TRUE, 8)
    bare = Load("x", (lanes,), FLOAT32)
    assert alone(Load("x", (lanes,), FLOAT32, mask)) == bare
    assert simplify((Store("x", (lanes,), bare, mask),)) == (Store("x", (lanes,), bare),)
    off = Compare(">=", lanes, plus("i", 8), INT64)
    assert simplify((Store("x", (lanes,), bare, off),)) == ()
    partly = Store("x", (lanes,), bare, Compare("<", lanes, plus("i", 7), INT64))
    assert simplify((partly,)) == (partly,)
    crossing = Compare("==", lanes, plus("i", 3), INT64)
    assert alone(crossing) is crossing
    # A scalar index takes its lanes from the mask: it has to stay.
    broadcast = Load("x", (I,), FLOAT32, mask)
    assert alone(broadcast).type == broadcast.type


def test_negation_of_floats_is_spelled_out() -> None:
    test = Compare("<", X, f32(1.0), FLOAT32)
    assert negation(test) == UnaryOp("not", test) and negation(negation(test)) == test


# -------------------------------------------------------------------------------------- random expressions


class _Random:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def integer(self, depth: int) -> Expr:
        if depth == 0:
            return self.rng.choice([I, J, K, M, const(self.rng.randint(-9, 9))])
        left = self.integer(depth - 1)
        pick = self.rng.randrange(12)
        number = self.rng.choice([2, 3, 4, 8])
        if pick < 5:
            return op(self.rng.choice("+-*+-"), left, self.integer(depth - 1))
        if pick < 7:
            scaled = plus(times(left, number), self.integer(0))
            return op(self.rng.choice(["//", "%"]), scaled, number)
        if pick == 7:
            return op("&", left, self.rng.choice([0, 1, 3, 7, 6]))
        if pick == 8:
            return op(self.rng.choice([">>", "<<"]), left, self.rng.randint(0, 3))
        if pick == 9:
            return UnaryOp("-", left)
        if pick == 10:
            name = self.rng.choice(["pmin", "pmax", "minimum", "maximum"])
            return Call(name, (left, plus(left, self.integer(depth - 1))), INT64)
        return Select(self.test(depth - 1), left, self.integer(depth - 1), INT64)

    def test(self, depth: int) -> Expr:
        if depth > 0 and self.rng.random() < 0.4:
            if self.rng.random() < 0.3:
                return UnaryOp("not", self.test(depth - 1))
            return BoolOp(self.rng.choice(["and", "or"]), self.test(depth - 1), self.test(depth - 1))
        left = self.integer(max(0, depth))
        right = plus(left, self.integer(0)) if self.rng.random() < 0.4 else self.integer(0)
        return cmp(self.rng.choice(["<", "<=", ">", ">=", "==", "!="]), left, right)

    def nest(self) -> list[For]:
        loops: list[For] = []
        for name in "ijk":
            before = [ix(one.var) for one in loops] or [const(0)]
            start = plus(self.rng.choice(before), self.rng.randint(-3, 3))
            width = plus(start, self.rng.randint(0, 9))
            stop = self.rng.choice([width, low(width, M), plus(M, 2), op("//", M, 2)])
            loops.append(loop(name, start, stop, step=self.rng.choice([1, 1, 2, 4, -1, -2])))
        return loops


def _points(loops: list[For], values: dict[str, int]) -> Iterator[dict[str, int]]:
    if not loops:
        yield values
        return
    first, *rest = loops
    for value in range(*(evaluate(part, values) for part in (first.start, first.stop, first.step))):
        yield from _points(rest, values | {first.var: value})


@pytest.mark.parametrize("seed", range(150))
def test_random_expressions_keep_their_values(seed: int) -> None:
    made = _Random(seed)
    exprs = [made.integer(2) for _ in range(3)] + [made.test(2)]
    shorter = [alone(expr) for expr in exprs]
    for _ in range(25):
        values = {name: made.rng.randint(-40, 40) for name in "ijk"} | {"A.shape[0]": made.rng.randint(0, 20)}
        for expr, new in zip(exprs, shorter, strict=True):
            assert evaluate(new, values) == evaluate(expr, values)
    assert all(new.type == expr.type for expr, new in zip(exprs, shorter, strict=True))


@pytest.mark.parametrize("seed", range(100))
def test_random_expressions_keep_their_values_inside_loops(seed: int) -> None:
    made = _Random(seed)
    loops = made.nest()
    exprs = [made.integer(1), low(made.integer(1), made.integer(1)), made.test(1), made.test(1)]
    shorter = [alone(expr, *loops) for expr in exprs]
    for extent in (0, 3, 8):
        for values in itertools.islice(_points(loops, {"A.shape[0]": extent}), 300):
            for expr, new in zip(exprs, shorter, strict=True):
                assert evaluate(new, values) == evaluate(expr, values), values


def test_folding_agrees_with_the_interpreter() -> None:
    rng = random.Random(5)
    types = [INT64, INT32, UINT8, FLOAT32, FLOAT64, Scalar("int8"), Scalar("uint64")]
    folded = 0
    for _ in range(600):
        dtype = rng.choice(types)
        symbols = "+-*/" if dtype.is_float else ["+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>"]
        operands = []
        for _ in range(2):
            number = rng.choice([0, 1, 2, 3, 5, 7, 100, 127]) * (1 if dtype.kind == "u" else rng.choice([1, -1]))
            operands.append(Const(number * 0.7 if dtype.is_float else number, dtype))
        expr = BinOp(rng.choice(symbols), operands[0], operands[1], dtype)
        new = alone(expr)
        if new is expr:
            continue
        folded += 1
        result = kernel(
            [Array("out", dtype, (const(2),), unit_axis=0)], store("out", [0], expr), store("out", [1], new)
        )
        out = np.zeros(2, dtype.name)
        with np.errstate(all="ignore"):
            interpreter.run(result, {"out": out})
        assert out[0] == out[1] or (math.isnan(out[0]) and math.isnan(out[1])), expr
    assert folded > 300


# ---------------------------------------------------------------------------------------------- statements


def test_decided_branches() -> None:
    a, b = assign("x", f32(1.0)), assign("x", f32(2.0))
    assert simplify((when(TRUE, a, orelse=(b,)),)) == (a,)
    assert simplify((when(cmp("<", plus("i", 1), "i"), a, orelse=(b,)),)) == (b,)
    assert simplify((when(FALSE, a),)) == ()
    undecided = cmp("<", "i", "j")
    assert simplify((when(undecided, when(FALSE, a)),)) == ()
    assert simplify((when(undecided, orelse=(a,)),)) == (when(cmp(">=", "i", "j"), a),)


def test_a_test_inside_its_own_branch_is_known() -> None:
    a, b = assign("x", f32(1.0)), assign("x", f32(2.0))
    inside = cmp("<", "i", M)
    nested = when(inside, when(inside, a), orelse=(when(inside, b, orelse=(a,)),))
    assert simplify((nested,)) == (when(inside, a, orelse=(a,)),)
    both = BoolOp("and", inside, cmp("<", "j", 3))
    assert simplify((when(both, when(inside, a)),)) == (when(both, a),)
    # Not where what is tested changes in between.
    counted = when(cmp("<", "n", 3), assign("n", plus("n", 1), INT64), when(cmp("<", "n", 3), a))
    assert simplify((counted,)) == (counted,)
    data = cmp("<", load("y", "i"), f32(0.0), FLOAT32)
    changed = when(data, store("y", ["i"], f32(1.0)), when(data, a))
    assert simplify((changed,)) == (changed,)


def test_loops_that_never_run_or_do_nothing_are_gone() -> None:
    a = store("x", ["i"], f32(1.0))
    assert simplify((loop("i", 5, 2, a),)) == ()
    assert simplify((loop("i", M, M, a),)) == ()
    assert simplify((loop("i", 0, UnaryOp("-", M), a),)) == ()
    assert simplify((loop("i", 0, M, when(FALSE, a)),)) == ()
    assert simplify((loop("i", 0, M, loop("j", 0, 3)),)) == ()
    assert simplify((While(FALSE, (a,)),)) == ()


def test_one_iteration_needs_no_loop() -> None:
    a = Store("x", (I,), f32(1.0), origin=Origin(0, (I,)))
    (new,) = simplify((loop("i", "i_0", plus("i_0", 1), a),))
    assert isinstance(new, Store) and new.indices == (ix("i_0"),) and new.origin == Origin(0, (ix("i_0"),))
    assert simplify((loop("i", 2, 6, store("x", [plus("i", 1)], f32(1.0)), step=4),)) == (
        store("x", [3], f32(1.0)),
    )
    nest = (loop("i", 0, 1, a),)
    assert simplify(nest, inline=False) == nest


def test_one_iteration_keeps_its_loop_where_it_must() -> None:
    thread = For("t", const(0), const(1), const(1), (store("x", ["t"], f32(1.0)),), mapping="thread.x")
    assert simplify((thread,)) == (thread,)
    leaving = loop("i", 0, 1, when(cmp("<", "n", 3), Break()), store("x", ["i"], f32(1.0)))
    assert simplify((leaving,)) == (leaving,)
    moving = loop("i", "n", plus("n", 1), assign("n", ix(7), INT64), store("x", ["i"], f32(1.0)))
    assert simplify((moving,)) == (moving,)
    inner = loop("j", 0, 5, Break())
    assert simplify((loop("i", 0, 1, inner, store("x", ["i"], f32(1.0))),)) == (
        inner,
        store("x", [0], f32(1.0)),
    )


def test_nothing_runs_after_a_break() -> None:
    a = assign("x", f32(1.0))
    nest = loop("i", 0, M, when(cmp("<", "i", "j"), a, Break(), a), a)
    assert simplify((nest,)) == (loop("i", 0, M, when(cmp("<", "i", "j"), a, Break()), a),)
    assert simplify((Return(()), a)) == (Return(()),)


def test_bounds_that_the_body_changes_say_nothing() -> None:
    inner = when(cmp("<", "i", "n"), store("x", ["i"], f32(1.0)))
    nest = loop("i", 0, "n", inner, assign("n", ix(3), INT64))
    assert simplify((nest,)) == (nest,)
    table = load("t", 0, dtype=INT64)
    nest = loop("i", 0, table, when(cmp("<", "i", table), store("t", [0], const(0))))
    assert simplify((nest,)) == (nest,)


def test_fixed_extents_are_numbers() -> None:
    fixed = Array("x", FLOAT32, (const(8),), unit_axis=0)
    nest = loop("i", 0, Dim("x", 0), when(cmp("<", "i", Dim("x", 0)), store("x", ["i"], f32(1.0))))
    assert simplify(kernel([fixed], nest)).body == (loop("i", 0, 8, store("x", ["i"], f32(1.0))),)


def test_tiles_of_a_fixed_extent_lose_their_guards() -> None:
    point = when(cmp("<", "i_2", 48), store("x", ["i_2"], f32(1.0)))
    inner = loop("i_2", "i_1", low(plus("i_1", 6), low(plus("i_0", 24), 48)), point)
    middle = loop("i_1", "i_0", low(plus("i_0", 24), 48), inner, step=6)
    (outer,) = simplify((loop("i_0", 0, 48, middle, step=24),))
    assert isinstance(outer, For)
    (middle_,) = outer.body
    assert isinstance(middle_, For) and middle_.stop == plus("i_0", 24)
    (inner_,) = middle_.body
    assert isinstance(inner_, For) and inner_.stop == plus("i_1", 6) and static_trip(inner_) == 6
    assert inner_.body == (store("x", ["i_2"], f32(1.0)),)


@pytest.mark.parametrize("seed", range(150))
def test_random_kernels_do_what_they_did(seed: int) -> None:
    explicit, bounds = make_explicit(kernel(PARAMS, *random_body(seed)))
    shorter = simplify(explicit)
    assert len(list(walk(shorter.body))) <= len(list(walk(explicit.body)))
    for x, y, n in itertools.product((0, 1, 4), (0, 3), (-1, 0, 3)):
        values = {"x.shape[0]": x, "y.shape[0]": y, "n": n}
        if all(evaluate(one.test, values) for one in bounds.preconditions):
            assert _result(shorter.body, values) == _result(explicit.body, values)


def _result(body: Body, values: Mapping[str, int]) -> object:
    arrays = {
        "x": np.array([2, 0, -1, 1][: values["x.shape[0]"]], np.int64),
        "y": np.array([1, 3, 0][: values["y.shape[0]"]], np.int64),
    }
    try:
        interpreter.run(kernel(PARAMS, *body), arrays, {"n": values["n"]})
    except IndexError:
        return "IndexError", [one.tolist() for one in arrays.values()]
    return [one.tolist() for one in arrays.values()]


def test_local_arrays_survive_inlining() -> None:
    tile = local("t", 4)
    body: tuple[Stmt, ...] = (
        Alloc(tile),
        store("t", [0], f32(2.0)),
        store("x", ["i"], load("t", 0)),
    )
    new = simplify(kernel([array("x")], loop("i", 0, 1, *body)))
    x = np.zeros(1, np.float32)
    interpreter.run(new, {"x": x})
    assert x[0] == 2.0 and not any(isinstance(stmt, For) for stmt in walk(new.body))
