"""`linear` against float64: activations, biases, ranks, layouts, NaN, dtypes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import operators
from operators.kernels import products as kernels
from pyschedule import spec
from tests.operators.accuracy import BFLOAT16, assert_near
from tests.support import call, nan_around

RNG = np.random.default_rng(13)
slowly = settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck), derandomize=True)

erf, tanh = np.vectorize(math.erf, otypes=[float]), np.tanh
ACTIVATIONS = {
    None: lambda y: y,
    "relu": lambda y: np.maximum(y, 0),
    "gelu": lambda y: 0.5 * y * (1 + erf(y / math.sqrt(2))),
    "gelu_tanh": lambda y: 0.5 * y * (1 + tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y**3))),
    "silu": lambda y: y / (1 + np.exp(-y)),
}


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def check(x, weight, bias=None, activation=None):
    wide = [np.asarray(item).astype(np.float64) for item in (x, weight, 0 if bias is None else bias)]
    total = wide[0] @ wide[1].T + wide[2]
    terms = np.abs(wide[0]) @ np.abs(wide[1].T) + np.abs(wide[2])
    got = operators.linear(x, weight, bias, activation=activation)
    assert got.dtype == x.dtype
    # No activation is steeper than 1.13, and a bound on the sum's error is one on the result's.
    assert_near(got, ACTIVATIONS[activation](total), 1.2 * terms)
    return got


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations_and_biases(activation, biased):
    x, weight = normal(3, 5, 33), normal(70, 33)
    check(x, weight, normal(70) if biased else None, activation)


@slowly
@given(
    st.lists(st.sampled_from([0, 1, 3, 7]), max_size=3),
    st.sampled_from([0, 1, 17]),
    st.sampled_from([0, 3, 40]),
    st.booleans(),
    st.booleans(),
)
def test_ranks_and_layouts(leading, depth, features, transposed, inside):
    x, weight = normal(*leading, depth), normal(features, depth)
    if transposed:
        weight = np.ascontiguousarray(weight.T).T
    if inside:
        x, weight = nan_around(x), nan_around(weight)
    check(x, weight, normal(features), "relu")


@pytest.mark.parametrize("dtype", [np.dtype(np.float64), np.dtype(np.float16), BFLOAT16], ids=str)
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_floating_dtypes_are_rounded_once(dtype, activation):
    check(normal(6, 40, dtype=dtype), normal(20, 40, dtype=dtype), normal(20, dtype=dtype), activation)


@pytest.mark.parametrize("dtype", ["int8", "int64"])
@pytest.mark.parametrize("activation", [None, "relu"])
def test_integers(activation, dtype):
    x, weight = (RNG.integers(-128, 128, shape).astype(dtype) for shape in ((6, 300), (20, 300)))
    result = np.int32 if dtype == "int8" else np.int64
    bias = RNG.integers(-1000, 1000, 20).astype(result)
    for added in (None, bias):
        got = operators.linear(x, weight, added, activation=activation)
        assert got.dtype == result
        assert_near(
            got,
            ACTIVATIONS[activation](
                x.astype(np.int64) @ weight.T.astype(np.int64) + (0 if added is None else added)
            ),
        )


def test_a_weight_of_one_axis():
    x, weight = normal(4, 5, 9), normal(9)
    got = check(x, weight, np.array(0.5, np.float32), "silu")
    assert got.shape == (4, 5)
    assert check(x[0, 0], weight).shape == ()


def test_views_that_are_no_matrix_of_rows():
    x, weight, bias = normal(6, 5, 33), normal(70, 33), normal(70)
    check(x[:, ::2], weight, bias, "relu")
    check(x.transpose(1, 0, 2), weight, bias, "relu")
    large = normal(3, 200, 70)[:, :150:2]
    check(large, normal(80, 70), normal(80), "relu")
    steps, _ = operators.linear.steps(large, normal(80, 70))
    assert len(steps) == 3, "large matrices of rows are read where they lie"


@pytest.mark.parametrize("rows", [1, 40, 200])
def test_one_kernel_makes_all_of_it(rows):
    x, weight, bias = normal(rows, 300), normal(150, 300), normal(150)
    check(x, weight, bias, "gelu_tanh")
    steps, _ = operators.linear.steps(x, weight, bias, activation="gelu_tanh")
    assert len(steps) == 1
    assert "linear" in repr(steps[0][0])


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
def test_large_and_special_values(activation):
    values = np.array([np.nan, np.inf, 3e38, 100, 1e-30, 0.0, -1e-30, -100, -3e38], np.float32)[:, None]
    got = operators.linear(values, np.ones((1, 1), np.float32), activation=activation)[:, 0]
    assert np.isnan(got[0]) and got[1] == np.inf
    np.testing.assert_allclose(got[2:4], values[2:4, 0])
    np.testing.assert_allclose(got[4:7], values[4:7, 0] * (0.5 if activation != "relu" else [1, 1, 0]), atol=1e-37)
    np.testing.assert_allclose(got[7:], 0, atol=1e-30)


WRONG = [
    ((np.ones((2, 3)), np.ones((4, 5))), {}, ValueError, "last extents"),
    ((np.ones((2, 3)), np.ones((4, 3), np.float32)), {}, TypeError, "weight is float32, but x is float64"),
    ((np.array(1.0), np.ones(1)), {}, ValueError, "^x: one dimension"),
    ((np.ones((2, 3)), np.ones((1, 4, 3))), {}, ValueError, "^weight: 1 or 2"),
    ((np.ones((2, 3)), np.ones((4, 3)), np.ones(3)), {}, ValueError, "^bias: shape"),
    ((np.ones((2, 3)), np.ones((4, 3)), np.ones(4, np.float32)), {}, TypeError, "^bias is float32"),
    ((np.ones((2, 3)), np.ones((4, 3))), {"activation": "swish"}, ValueError, "^activation: 'swish'"),
    ((np.ones((2, 3)), np.ones((4, 3))), {"activation": 1}, TypeError, "^activation"),
    ((np.ones((2, 3), np.int8), np.ones((4, 3), np.int8)), {"activation": "gelu"}, ValueError, "^activation"),
]


@pytest.mark.parametrize("arguments, keywords, kind, word", WRONG)
def test_the_wrong_argument_is_named(arguments, keywords, kind, word):
    with pytest.raises(kind, match=word):
        operators.linear(*arguments, **keywords)


def test_the_kernel_is_shown_and_means_what_plain_python_does():
    x, weight, bias = normal(5, 6, dtype=np.float64), normal(7, 6, dtype=np.float64), normal(7, dtype=np.float64)
    for activation, applied in ACTIVATIONS.items():
        np.testing.assert_allclose(
            operators.linear.python(x, weight, bias, activation=activation),
            applied(x @ weight.T + bias),
            rtol=1e-12,
            atol=1e-12,
        )
    a, row = spec("float32[300, 300]"), spec("float32[300]")
    assert "staged W" in str(operators.linear.lower(a, a, row, activation="gelu").log)
    assert operators.linear.lower(a, a, row, activation="gelu", target="cuda:sm_80").ptx()


@pytest.mark.parametrize("activation", ["relu", "gelu", "silu"])
def test_linear_runs_as_gpu_kernels(activation):
    x, weight, bias = normal(5, 9), normal(17, 9), normal(17)
    for added in (None, bias):
        steps, result = operators.linear.steps(x, weight, added, activation=activation)
        for kernel, given_ in steps:
            call(kernel, *given_, target="cuda")
        total = x.astype(np.float64) @ weight.T + (0 if added is None else bias)
        assert_near(result, ACTIVATIONS[activation](total))


def test_kernels_are_made_once():
    assert kernels.linear_kernel(1, True, kernels.SMALL, 16) is kernels.linear_kernel(1, True, kernels.SMALL, 16)
