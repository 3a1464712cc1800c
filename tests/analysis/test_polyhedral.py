"""Statement instances and their times, compared with what the loops really do."""

from __future__ import annotations

import random

import islpy as isl
import pytest

from pyschedule.analysis.polyhedral import RETURN, model
from pyschedule.analysis.quasiaffine import (
    Formula,
    Junction,
    Linear,
    Parameters,
    Quasi,
    atom,
    condition,
    quasi,
)
from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.nodes import BinOp, BoolOp, Call, Compare, Expr, UnaryOp, Var
from pyschedule.ir.types import FLOAT32, INT64
from tests.analysis.helpers import array, assign, f32, ix, kernel, load, loop, store, var, when
from tests.analysis.nests import nest
from tests.analysis.oracle import Run


def instances(text: str, params: str, statement: int = 0) -> list[tuple[int, ...]]:
    """The instances of a statement, in the order of their times; extents and arguments are fixed at 5."""
    made = model(nest(text, params))
    times = made.schedule(statement)
    for name in made.parameters.names.values():
        place = times.find_dim_by_name(isl.dim_type.param, name)
        if place >= 0:
            times = times.fix_val(isl.dim_type.param, place, 5)
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []

    def note(point: isl.Point) -> None:
        values = [
            point.get_coordinate_val(isl.dim_type.set, place).to_python()
            for place in range(times.dim(isl.dim_type.in_) + times.dim(isl.dim_type.out))
        ]
        count = times.dim(isl.dim_type.in_)
        found.append((tuple(values[count:]), tuple(values[:count])))

    times.wrap().flatten().foreach_point(note)
    return [instance for _, instance in sorted(found)]


def really(text: str, params: str, statement: int = 0) -> list[tuple[int, ...]]:
    source = nest(text, params)
    extents = {(param.name, axis): 5 for param in source.array_params for axis in range(param.rank)}
    run = Run(source, extents)
    return [instance for number, instance in run.reads if number == statement]


@pytest.mark.parametrize(
    "text",
    [
        "for i in range(A.shape[0]):\n    A[i] = 0.0",
        "for i in range(9, -1, -4):\n    A[i] = 0.0",
        "for i in range(5, 2):\n    A[i] = 0.0",
        "for i in range(1, 12, 3):\n    for j in range(i, -1, -2):\n        A[j] = 0.0",
        "for i in range(-5, 6):\n    for j in range(i // 4, i % 4):\n        A[j] = 0.0",
        "for i in range(-5, 6):\n    for j in range(i // -3, i % -3 + 4):\n        A[j] = 0.0",
        "for i in range(12):\n    for j in range(max(i - 3, 2), min(i + 2, 9), 2):\n        A[j] = 0.0",
        "for i in range(12):\n    for j in range(min(i, 4), 6 - max(i - 3, 2)):\n        A[j] = 0.0",
        "for i in range(8):\n    if i % 3 == 1 or not (i < 5 and i != 2):\n        A[i] = 0.0",
        "for i in range(8):\n    if i == 3 or i > 6:\n        B[i] = 0.0\n    else:\n        A[i] = 0.0",
    ],
)
def test_the_instances_are_those_that_run_in_that_order(text: str) -> None:
    for statement in range(text.count(" = ")):
        assert instances(text, "A B", statement) == really(text, "A B", statement)


def test_locals_that_hold_affine_values_bound_loops() -> None:
    text = (
        "n = A.shape[0] - 1\nfor i in range(n):\n    k = 2 * i\n    for j in range(k, k + 2):\n        A[j] = 0.0"
    )
    assert instances(text, "A", 2) == [(i, j) for i in range(4) for j in (2 * i, 2 * i + 1)]


def test_times_interleave_the_text_and_the_iterations() -> None:
    made = model(nest("for i in range(3):\n    s = 0.0\n    for k in range(4):\n        s += A[i, k]", "A:2"))
    outer = isl.Map("{ S[i] -> [0, i, 0, 0] : 0 <= i < 3 }", made.context)
    inner = isl.Map("{ S[i, k] -> [0, i, 1, k] : 0 <= i < 3 and 0 <= k < 4 }", made.context)
    assert made.schedule(0).is_equal(outer) and made.schedule(1).is_equal(inner)


def test_a_test_of_data_is_a_guard_at_its_own_time() -> None:
    positive = Compare(">", load("A", "i"), f32(0.0), FLOAT32)
    test = BoolOp("and", build.compare("<", Var("i"), 3), positive)
    body = loop("i", 0, 4, store("B", ["i"], f32(0.0)), when(test, store("A", ["i"], f32(1.0))))
    made = model(kernel((array("A"), array("B")), body))
    (guarded,) = made.of(1)
    assert len(guarded.guards) == 1
    assert [str(entry) for entry in guarded.time(0)] == ["0", "t0", "1"]
    assert [str(entry) for entry in guarded.time()] == ["0", "t0", "2"]
    # The affine half of the test still bounds the instances.
    assert made.schedule(1).domain().is_equal(isl.Set("{ S[i] : 0 <= i < 3 }", made.context))


def test_a_return_of_scalars_reads_them_after_all() -> None:
    made = model(nest("n = 0\nfor i in range(3):\n    n += i\nreturn n", "A"))
    assert made.statements() == {0, 1, RETURN}
    last = made.schedule(RETURN).range()
    earlier = made.schedule(1).range()
    assert earlier.lex_ge_set(last).is_empty()


def test_a_local_that_changes_is_no_bound() -> None:
    for text in (
        "n = 4\nfor i in range(3):\n    n = n + lut[i]\nfor j in range(n):\n    A[j] = 0.0",
        "n = 4\nif A[0] > 0.0:\n    n = 5\nfor j in range(n):\n    A[j] = 0.0",
        "n = 4\nfor i in range(3):\n    for j in range(n):\n        A[j] = 0.0\n    n = i",
    ):
        with pytest.raises(Unsupported, match="the bound n of loop 'j' is not affine"):
            model(nest(text, "A lut"))
    model(nest("n = 4\nfor j in range(n):\n    A[j] = 0.0\nn = lut[0]", "A lut"))


def test_statements_without_an_origin_are_the_sources_own() -> None:
    body = loop("i", 0, 4, assign("s", load("A", "i")), store("A", ["i"], var("s")))
    made = model(kernel((array("A"),), body))
    assert made.statements() == {0, 1}


# ------------------------------------------------------------------------------------ index arithmetic


def _random_index(chance: random.Random, depth: int) -> Expr:
    if depth == 0:
        return chance.choice([ix("i"), ix("j"), ix("n"), ix(0), ix(1), ix(3), ix(-2)])
    left, right = _random_index(chance, depth - 1), _random_index(chance, depth - 1)
    kind = chance.randrange(8)
    if kind < 3:
        return BinOp(chance.choice("+-"), left, right, INT64)
    if kind == 3:
        return BinOp(chance.choice(["*", "//", "%"]), left, ix(chance.choice([1, 2, 3, 5, -1, -2, -3])), INT64)
    if kind == 4:
        return Call(chance.choice(["pmin", "pmax"]), (left, right), INT64)
    if kind == 5:
        return UnaryOp("-", left)
    if kind == 6:
        return Call("abs", (left,), INT64)
    return left


def _value(expr: Quasi, env: dict[str, int]) -> int:
    if isinstance(expr, Linear):
        total = expr.constant
        for symbol, factor in expr.terms:
            if isinstance(symbol, str):
                total += factor * env[symbol]
            else:
                total += factor * (_value(symbol.numerator, env) // symbol.divisor)
        return total
    return (min if expr.op == "min" else max)(_value(part, env) for part in expr.parts)


def _holds(formula: Formula, env: dict[str, int]) -> bool:
    if isinstance(formula, Junction):
        return (all if formula.op == "and" else any)(_holds(part, env) for part in formula.parts)
    value = _value(formula.value, env)
    return value == 0 if formula.equal else value <= 0


class _Numbers(Run):
    def __init__(self, env: dict[str, int]) -> None:
        super().__init__(kernel(()))
        self.env = env

    def __call__(self, expr: Expr) -> int:
        if isinstance(expr, Call) and expr.function == "abs":
            return abs(self(expr.args[0]))
        if isinstance(expr, Call):
            return {"pmin": min, "pmax": max}[expr.function](self(expr.args[0]), self(expr.args[1]))
        if isinstance(expr, BinOp):
            return int(self._apply(expr.op, self(expr.left), self(expr.right)))
        if isinstance(expr, UnaryOp):
            return -self(expr.operand)
        return int(self.value(expr, (self.env, -1), set()))


def test_index_arithmetic_has_the_values_of_pythons() -> None:
    chance = random.Random(5)
    for _ in range(400):
        expr, other = _random_index(chance, 3), _random_index(chance, 2)
        parameters = Parameters()
        scope: dict[str, Quasi] = {"i": atom("i"), "j": atom("j"), "n": parameters.named("n")}
        value = quasi(expr, scope, parameters)
        test = build.compare(chance.choice(["<", "<=", "==", "!=", ">", ">="]), expr, other)
        formula, exact = condition(test, scope, parameters, positive=chance.random() < 0.5)
        opposite, _ = condition(UnaryOp("not", test), scope, parameters)
        plain, _ = condition(test, scope, parameters)
        assert value is not None and exact
        for _ in range(8):
            numbers = {name: chance.randrange(-9, 10) for name in "ijn"}
            env = {"i": numbers["i"], "j": numbers["j"], "p0": numbers["n"]}
            evaluate = _Numbers(numbers)
            assert _value(value, env) == evaluate(expr), expr
            assert _holds(plain, env) != _holds(opposite, env)
            assert _holds(formula, env) in (_holds(plain, env), _holds(opposite, env))


def test_isl_reads_index_arithmetic_as_it_is_meant() -> None:
    chance = random.Random(6)
    context = isl.Context()
    for _ in range(60):
        expr = _random_index(chance, 2)
        parameters = Parameters()
        scope: dict[str, Quasi] = {"i": atom("i"), "j": atom("j"), "n": atom("n")}
        value = quasi(expr, scope, parameters)
        numbers = {name: chance.randrange(-9, 10) for name in "ijn"}
        expected = _Numbers(numbers)(expr)
        where = " and ".join(f"{name} = {number}" for name, number in numbers.items())
        points = isl.Set(f"{{ [v] : exists (i, j, n : {where} and v = {value}) }}", context)
        assert points.is_equal(isl.Set(f"{{ [{expected}] }}", context)), expr


def test_what_is_not_affine_is_none_or_a_parameter() -> None:
    parameters = Parameters()
    scope: dict[str, Quasi] = {"i": atom("c0"), "n": parameters.named("n")}
    product = BinOp("*", ix("i"), ix("n"), INT64)
    assert quasi(product, scope, parameters) is None
    assert quasi(load("A", "i"), scope, parameters) is None
    assert quasi(ix("unknown"), scope, parameters) is None
    square = quasi(BinOp("*", ix("n"), ix("n"), INT64), scope, parameters)
    again = quasi(BinOp("*", ix("n"), ix("n"), INT64), scope, parameters)
    assert square == again == atom("p1")
    formula, exact = condition(build.compare("<", product, 3), scope, parameters)
    assert not exact and formula == Junction("and", ())
