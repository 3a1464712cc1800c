"""`gemm` against float64: everything that is added, numbers, transposition, in place, cases 23, 25 and 26."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import operators
from pyschedule import spec
from tests.operators.accuracy import BFLOAT16, assert_near
from tests.support import call, inside_slack, nan_around

RNG = np.random.default_rng(12)
slowly = settings(deadline=None, max_examples=8, suppress_health_check=list(HealthCheck), derandomize=True)


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def exact(a, b, c=None, alpha=1.0, beta=1.0):
    """The result and the sum of the magnitudes in it, in float64."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    value, terms = alpha * (a @ b), abs(alpha) * (np.abs(a) @ np.abs(b))
    if c is not None and beta != 0:
        value, terms = value + beta * c.astype(np.float64), terms + abs(beta) * np.abs(c.astype(np.float64))
    return value, terms


def shapes_of_c(m, n):
    return [(m, n), (1, n), (n,), (m, 1), (1, 1), (1,), ()]


@slowly
@given(
    st.sampled_from([0, 5, 8]),
    st.sampled_from([0, 7, 33]),
    st.integers(0, 9),
    st.integers(0, 6),
    st.sampled_from([1.0, 0.5, -2.0, 0.0]),
    st.sampled_from([1.0, 0.0, -0.5]),
    st.booleans(),
    st.booleans(),
)
def test_all_that_it_takes(m, n, k, which, alpha, beta, trans_a, trans_b):
    a, b, c = normal(m, k), normal(k, n), normal(*shapes_of_c(m, n)[which])
    got = operators.gemm(
        np.ascontiguousarray(a.T) if trans_a else a,
        np.ascontiguousarray(b.T) if trans_b else b,
        c,
        alpha=alpha,
        beta=beta,
        trans_a=trans_a,
        trans_b=trans_b,
    )
    assert got.dtype == np.float32
    assert_near(got, *exact(a, b, c, alpha, beta))


@pytest.mark.parametrize("dtype", [np.dtype(np.float64), np.dtype(np.float16), BFLOAT16], ids=str)
def test_floating_dtypes_are_rounded_once(dtype):
    a, b, c = normal(9, 40, dtype=dtype), normal(40, 20, dtype=dtype), normal(20, dtype=dtype)
    assert_near(operators.gemm(a, b, c, alpha=0.3, beta=-2), *exact(a, b, c, 0.3, -2))


@pytest.mark.parametrize("alpha, beta", [(1, 1), (3, -2), (1, 0), (0, 5), (-2, 0)])
def test_int8_makes_int32(alpha, beta):
    a, b = (RNG.integers(-128, 128, shape).astype(np.int8) for shape in ((9, 300), (300, 20)))
    wanted = alpha * (a.astype(np.int64) @ b)
    assert_near(operators.gemm(a, b, alpha=alpha), wanted)
    for shape in shapes_of_c(9, 20):
        c = RNG.integers(-1000, 1000, shape).astype(np.int32)
        got = operators.gemm(a, b, c, alpha=alpha, beta=beta)
        assert got.dtype == np.int32
        assert_near(got, wanted + beta * c)
    c = RNG.integers(-1000, 1000, (9, 20)).astype(np.int32)
    added = c.copy()
    assert operators.gemm(a, b, c, alpha=alpha, beta=beta, out=c) is c
    assert_near(c, wanted + beta * added)


def test_results_of_one_column_and_outputs_by_columns():
    a, b = normal(50, 30), normal(30, 2)
    for c in (normal(2), normal(50, 1)):
        assert_near(operators.gemm(a, b, c, alpha=2.0, beta=3.0), *exact(a, b, c, 2.0, 3.0))
    out = np.full((20, 50), np.nan, np.float32).T
    wide, c = normal(30, 20), normal(20)
    assert operators.gemm(a, wide, c, out=out) is out
    assert_near(out, *exact(a, wide, c))


# --------------------------------------------------------------------------------------------- out and c


@pytest.mark.parametrize("alpha, beta", [(2.0, -0.5), (1.0, 0.0), (0.0, 2.0)])
def test_out_may_be_c(alpha, beta):
    a, b, c = normal(7, 9), normal(9, 70), normal(7, 70)
    added = c.copy()
    assert operators.gemm(a, b, c, alpha=alpha, beta=beta, out=c) is c
    assert_near(c, *exact(a, b, added, alpha, beta))
    c[...] = added
    assert operators.gemm(a, b, c, alpha=alpha, beta=beta, out=c[:]) is not c  # the same memory, another array
    assert_near(c, *exact(a, b, added, alpha, beta))


def test_out_may_overlap_anything():
    buffer = normal(12, 9)
    a, c, out = buffer[:9], buffer[2:11], buffer[3:]
    b = normal(9, 9)
    wanted = exact(a.copy(), b, c.copy())
    operators.gemm(a, b, c, out=out)
    assert_near(out, *wanted)
    square = normal(9, 9)
    wanted = exact(square.copy(), square.copy(), square.copy())
    operators.gemm(square, square, square, out=square)
    assert_near(square, *wanted)


# ------------------------------------------------------------------------------------------------- cases


def case_23():
    return nan_around(np.arange(35.0).reshape(5, 7)), nan_around(np.arange(21.0).reshape(7, 3))


@pytest.mark.parametrize("beta, expected", [(0.0, 0.0), (1.0, 5.0), (0.5, 2.5)])
def test_case_25_inner_dimension_0(beta, expected):
    a, b = np.ones((3, 0)), np.ones((0, 2))
    out, intact = inside_slack(np.full((3, 2), np.nan if beta == 0 else 5.0))
    operators.gemm(a, b, out, alpha=1.0, beta=beta, out=out)
    np.testing.assert_array_equal(out, np.full((3, 2), expected))
    apart, still = inside_slack(np.full((3, 2), np.nan))
    operators.gemm(a, b, np.full((3, 2), 5.0), beta=beta, out=apart)
    np.testing.assert_array_equal(apart, np.full((3, 2), expected))
    assert intact() and still()


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_case_26_beta_0_never_reads_c(target):
    a, b = case_23()
    out, intact = inside_slack(np.full((5, 3), np.nan))
    for c in (out, np.full((5, 3), np.nan), np.full(3, np.inf)):
        out[...] = np.nan
        if target == "cpu":
            operators.gemm(a, b, c, beta=0.0, out=out)
        else:
            for kernel, given_ in operators.gemm.steps(a, b, c, beta=0.0, out=out)[0]:
                call(kernel, *given_, target="cuda")
        np.testing.assert_array_equal(out, np.arange(35.0).reshape(5, 7) @ np.arange(21.0).reshape(7, 3))
    assert intact()


def test_case_26_nan_in_a_factor_appears_in_its_row():
    a, b = case_23()
    a[2, 3] = np.nan
    got = operators.gemm(a, b, beta=0.0)
    assert np.isnan(got[2]).all() and not np.isnan(np.delete(got, 2, axis=0)).any()
    b[1, 1] = np.inf
    assert np.isinf(operators.gemm(a, b)[[0, 1, 3, 4], 1]).all()


def test_alpha_0_reads_neither_factor():
    a, b, c = np.full((3, 4), np.nan), np.full((4, 5), np.inf), normal(3, 5, dtype=np.float64)
    np.testing.assert_array_equal(operators.gemm(a, b, c, alpha=0.0, beta=2.0), 2 * c)
    np.testing.assert_array_equal(operators.gemm(a, b, alpha=0.0), np.zeros((3, 5)))


# ---------------------------------------------------------------------------------------------- what is wrong

A, B = np.ones((2, 3)), np.ones((3, 5))
WRONG = [
    ((A, np.ones((4, 5))), {}, ValueError, "as many columns"),
    ((A, B.astype(np.float32)), {}, TypeError, "float32"),
    ((np.ones(3), B), {}, ValueError, "^a: 2 dimensions"),
    ((A, B, np.ones((5, 2))), {}, ValueError, "^c: shape"),
    ((A, B, np.ones((1, 2, 5))), {}, ValueError, "^c: shape"),
    ((A, B, np.ones(2)), {}, ValueError, "^c: shape"),
    ((A, B, np.ones(5, np.float32)), {}, TypeError, "^c is float32"),
    ((A, B, 3.0), {}, TypeError, "^c: an array"),
    ((A, B), {"alpha": "one"}, TypeError, "^alpha"),
    ((A, B), {"alpha": 1j}, TypeError, "^alpha"),
    ((A.astype(np.int8), B.astype(np.int8)), {"alpha": 0.5}, ValueError, "^alpha: a whole"),
    ((A.astype(np.int8), B.astype(np.int8), np.ones(5, np.int8)), {}, TypeError, "^c is int8; int32"),
    ((A, B), {"out": np.ones((5, 2))}, ValueError, "^out: shape"),
    ((A, B), {"trans_a": True}, ValueError, "as many columns"),
]


@pytest.mark.parametrize("arguments, keywords, kind, word", WRONG)
def test_the_wrong_argument_is_named(arguments, keywords, kind, word):
    with pytest.raises(kind, match=word):
        operators.gemm(*arguments, **keywords)


# ------------------------------------------------------------------------------------------- looking inside


def test_plain_python_means_the_same():
    a, b, c = (normal(*shape, dtype=np.float64) for shape in ((4, 5), (5, 6), (1, 6)))
    keywords = {"alpha": 2.0, "beta": 0.5}
    np.testing.assert_allclose(operators.gemm.python(a, b, c, **keywords), exact(a, b, c, **keywords)[0])
    number = np.arange(6, dtype=np.int8).reshape(2, 3)
    assert_near(operators.gemm.python(number, number.T, alpha=3), 3 * number.astype(np.int64) @ number.T)


def test_the_kernel_is_shown_for_both_targets():
    a, row = spec("float32[300, 300]"), spec("float32[300]")
    assert "staged B" in str(operators.gemm.lower(a, a, row).log)
    assert operators.gemm.lower(a, a, row, alpha=0.5, target="cuda:sm_80").ptx()


@pytest.mark.parametrize("c", [None, (9, 33), (33,), (9, 1), ()])
def test_gemm_runs_as_gpu_kernels(c):
    a, b = normal(9, 17), normal(17, 33)
    c = None if c is None else normal(*c)
    steps, result = operators.gemm.steps(a, b, c, alpha=2.0, beta=0.5)
    for kernel, given_ in steps:
        call(kernel, *given_, target="cuda")
    assert_near(result, *exact(a, b, c, 2.0, 0.5))


@pytest.mark.parametrize("name", ["trans_a", "trans_b"])
def test_letters_are_no_flags(name):
    a = np.ones((3, 3))
    for flag in ("N", "T", None, 2, 0.0):
        with pytest.raises(TypeError, match=f"{name}: True or False is needed, not {flag!r}"):
            operators.gemm(a, a, **{name: flag})
    for flag in (1, np.True_, np.int64(0)):
        operators.gemm(a, a, **{name: flag})


def test_a_mismatch_says_what_was_transposed():
    with pytest.raises(ValueError, match=r"a, transposed, is \(4, 3\) and b is \(4, 5\)"):
        operators.gemm(np.ones((3, 4)), np.ones((4, 5)), trans_a=True)
