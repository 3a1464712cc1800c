"""Expressions that the host evaluates: against IR's meaning, and the estimate against counting."""

from __future__ import annotations

import numpy as np
import pytest

from pyschedule import vectorize
from pyschedule.errors import Unsupported
from pyschedule.ir.build import add, both, compare, const, floordiv, maximum, minimum, mod, mul
from pyschedule.ir.nodes import Cast, Const, Dim, Load, Select, UnaryOp, Var
from pyschedule.ir.types import BOOL, FLOAT64, INT64
from pyschedule.runtime import binding, hostcode

A0, A1, n = Dim("A", 0), Dim("A", 1), Var("n")


@pytest.mark.parametrize(
    ("expr", "meaning"),
    [
        (add(mul(A0, 3), n), lambda a, n: a[0] * 3 + n),
        (floordiv(n, 4), lambda a, n: n // 4),
        (mod(n, A1), lambda a, n: n % a[1]),
        (minimum(n, A0), lambda a, n: min(n, a[0])),
        (maximum(n, A0), lambda a, n: max(n, a[0])),
        (both(compare("<", n, A0), compare(">=", n, 0)), lambda a, n: 0 <= n < a[0]),
        (Select(compare("<", n, 0), add(n, A0), n, INT64), lambda a, n: n + a[0] if n < 0 else n),
        (UnaryOp("-", n), lambda a, n: -n),
        (UnaryOp("not", compare("==", n, 2)), lambda a, n: n != 2),
        (Cast(INT64, Const(2.75, FLOAT64)), lambda a, n: 2),
        (compare("<", n, A0), lambda a, n: n < a[0]),
    ],
)
def test_an_expression_is_evaluated_as_python_would(expr, meaning):
    text = hostcode.python_source(expr)
    for shape in ((1, 2), (5, 3)):
        for value in (-7, 0, 2, 5):
            assert binding.evaluate(text, {"A": np.zeros(shape), "n": value}) == meaning(shape, value)


def test_infinities_and_nan_are_python_too():
    for value in (np.inf, -np.inf):
        assert binding.evaluate(hostcode.python_source(Const(float(value), FLOAT64)), {}) == value
    assert np.isnan(binding.evaluate(hostcode.python_source(Const(float("nan"), FLOAT64)), {}))


def test_names_of_helpers_do_not_meet_names_of_arguments():
    text = hostcode.python_source(minimum(Var("min"), Var("max")))
    assert binding.evaluate(text, {"min": 3, "max": 2}) == 2


def test_loads_are_not_for_the_host():
    with pytest.raises(Unsupported, match="Load"):
        hostcode.python_source(Load("A", (const(0),), FLOAT64))
    assert hostcode.names(add(A0, n)) == ({"A"}, {"n"})
    assert BOOL is not None


def counted(x, n):
    c = 0
    for i in range(n):
        for j in range(i + 1):
            x[i, j] = 0
            c += 1
        for j in range(n - 1, -1, -2):
            x[i, j] = 1
            c += 1
    for i in range(2, x.shape[0]):
        if i > 3:
            for j in range(0, x.shape[1], 3):
                x[i, j] = 2
                c += 1
    return c


def test_the_estimate_is_an_upper_bound_of_the_iterations():
    for n in (0, 1, 2, 5, 9):
        x = np.zeros((9, 10))
        lowering = vectorize("j#1", 4)(counted).lower(x, n)
        text, reads_scalars = hostcode.work_estimate(lowering.stages["source"])
        estimate = binding.evaluate(text, {"x": x, "n": n})
        assert reads_scalars
        work = 4 * counted(x, n)  # each iteration has an element of its own
        assert work <= estimate <= 4 * work + 120


def test_iterations_that_meet_the_same_elements_count_less():
    def product(A, B, C):
        for i in range(C.shape[0]):
            for j in range(C.shape[1]):
                for k in range(A.shape[1]):
                    C[i, j] += A[i, k] * B[k, j]
                C[i, j] *= 2

    arrays = {"A": np.zeros((2, 7)), "B": np.zeros((7, 3)), "C": np.zeros((2, 3))}
    text, _ = hostcode.work_estimate(vectorize(product).lower(*arrays.values()).stages["source"])
    assert binding.evaluate(text, arrays) == 2 * 3 * 7


def test_what_cannot_be_estimated_counts_as_endless():
    def gather(x, starts):
        for i in range(starts.shape[0]):
            for j in range(starts[i]):
                x[j] += 1

    lowering = vectorize(gather).lower(np.zeros(5), np.zeros(3, np.int64))
    text, reads_scalars = hostcode.work_estimate(lowering.stages["source"])
    assert binding.evaluate(text, {}) == float("inf") and not reads_scalars
