"""Index constructors: what they fold means the same, at the edges of int64 too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyschedule.ir import build
from pyschedule.ir.arithmetic import wrap
from pyschedule.ir.build import FALSE, ONE, TRUE, ZERO, const
from pyschedule.ir.interpreter import run
from pyschedule.ir.nodes import BinOp, BoolOp, Cast, Compare, Const, Expr, Return, Var
from pyschedule.ir.types import BOOL, FLOAT32, INT32, INT64, Scalar
from tests.ir.nests import I, J, N, kernel, less

NAMES = ("i", "j")
EDGES = st.one_of(st.integers(-5, 5), st.sampled_from([-(2**63), -(2**63) + 1, 2**63 - 1, 2**62]))
OPERATIONS: dict[str, tuple[Callable[..., Expr], Callable[[int, int], int]]] = {
    "add": (build.add, lambda a, b: a + b),
    "sub": (build.sub, lambda a, b: a - b),
    "mul": (build.mul, lambda a, b: a * b),
    "floordiv": (build.floordiv, lambda a, b: a // b),
    "mod": (build.mod, lambda a, b: a % b),
    "minimum": (build.minimum, min),
    "maximum": (build.maximum, max),
}


def value(expr: Expr, values: dict[str, int]) -> Any:
    result = expr.type
    assert isinstance(result, Scalar)
    made = kernel([Var(name) for name in values], Return((expr,)), returns=(0,), scalar_results=(result,))
    return run(made, {}, values)[0]


@given(st.data(), st.fixed_dictionaries(dict.fromkeys(NAMES, EDGES)))
def test_built_expressions_mean_what_they_say(data: st.DataObject, values: dict[str, int]) -> None:
    """Chains of operations, each folded as it is built, against wrapping Python integers."""
    expr: Expr = I
    wanted = values["i"]
    for _ in range(data.draw(st.integers(1, 5))):
        make, python = OPERATIONS[data.draw(st.sampled_from(sorted(OPERATIONS)))]
        name = data.draw(st.sampled_from([None, None, *NAMES]))
        number = values[name] if name else data.draw(EDGES)
        operand: Expr = Var(name) if name else const(number)
        swapped = data.draw(st.booleans())
        left, right = (number, wanted) if swapped else (wanted, number)
        if make in (build.floordiv, build.mod) and right == 0:
            return
        wanted = wrap(python(left, right))
        expr = make(operand, expr) if swapped else make(expr, operand)
    assert value(expr, values) == wanted


@pytest.mark.parametrize(
    ("built", "wanted"),
    [
        (build.add(build.add(I, 2), 3), BinOp("+", I, const(5), INT64)),
        (build.add(build.add(I, 2), -2), I),
        (build.add(build.add(I, -3), 5), BinOp("+", I, const(2), INT64)),
        (build.sub(build.sub(I, 3), 4), BinOp("-", I, const(7), INT64)),
        (build.add(2, I), BinOp("+", I, const(2), INT64)),
        (build.sub(build.add(I, 2), 5), BinOp("-", I, const(3), INT64)),
        (build.sub(build.add(I, J), I), J),
        (build.sub(build.add(I, J), J), I),
        (build.sub(I, I), ZERO),
        (build.mul(I, 1), I),
        (build.mul(0, I), ZERO),
        (build.mul(3, I), BinOp("*", I, const(3), INT64)),
        (build.floordiv(-7, 2), const(-4)),
        (build.floordiv(I, 1), I),
        (build.mod(-7, 4), ONE),
        (build.mod(I, 1), ZERO),
        (build.ceildiv(7, 2), const(4)),
        (build.ceildiv(I, 1), I),
        (build.minimum(3, 4), const(3)),
        (build.maximum(I, I), I),
        (build.compare("<", 3, 4), TRUE),
        (build.both(TRUE, less(I, N)), less(I, N)),
        (build.both(less(I, N), FALSE), FALSE),
        (build.both(less(I, N), less(J, N)), BoolOp("and", less(I, N), less(J, N))),
        (build.all_of([]), TRUE),
        (build.floordiv(I, 0), BinOp("//", I, ZERO, INT64)),
    ],
)
def test_folds(built: Expr, wanted: Expr) -> None:
    assert built == wanted


def test_sums_of_narrower_integers_are_not_regrouped() -> None:
    """`int32(2147483647 + 1) + 1` is -2147483647, where regrouped it would be 2147483649."""
    narrow = BinOp("+", Cast(INT32, I), Const(1, INT32), INT32)
    assert value(build.add(narrow, 1), {"i": 2**31 - 1}) == -(2**31) + 1
    assert value(build.sub(narrow, 1), {"i": 2**31 - 1}) == -(2**31) - 1
    both = BinOp("+", Cast(INT32, I), Cast(INT32, J), INT32)
    assert value(build.sub(both, Cast(INT32, I)), {"i": 2**31 - 1, "j": 1}) == -(2**32) + 1


def test_comparisons_fold_only_as_int64() -> None:
    assert isinstance(build.compare("==", Const(16777217, FLOAT32), Const(16777216, FLOAT32), FLOAT32), Compare)
    assert value(build.compare("<", -1, const(0), Scalar("uint64")), {}) is False
    assert build.compare("==", Const(True, BOOL), 1) == TRUE


def test_constant_reads_integers_only() -> None:
    assert build.constant(const(-3)) == -3 and build.constant(I) is None
    assert build.constant(Const(2.0, FLOAT32)) is None
