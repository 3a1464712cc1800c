"""rms_norm against float64: trailing shapes, the default of eps, dtypes, views, wrong arguments."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators import rms_norm
from tests.support import call, inside_slack, nan_around

RNG = np.random.default_rng(31)
EPSILON = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "float64": 2**-52}
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
#: What `torch.testing.assert_close` allows: relative, absolute.
TOLERANCE = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
}


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def close(got, expected):
    rtol, atol = TOLERANCE[got.dtype.name]
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=rtol, atol=atol)


def defined(x, trailing, weight=None, eps=None):
    """The definition, in float64."""
    eps = EPSILON[x.dtype.name] if eps is None else eps
    x = x.astype(np.float64)
    axes = tuple(range(x.ndim - len(trailing), x.ndim))
    y = x / np.sqrt(np.square(x).mean(axis=axes, keepdims=True) + eps)
    return y if weight is None else y * weight.astype(np.float64)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_shapes(data):
    extents = st.integers(0, 5)
    trailing = (*data.draw(st.lists(extents, max_size=2)), data.draw(st.integers(0, 140)))
    x = normal(*data.draw(st.lists(extents, max_size=2)), *trailing)
    x = data.draw(st.sampled_from([lambda array: array, nan_around, lambda array: array[..., ::-1]]))(x)
    weight = data.draw(st.sampled_from([None, normal(*trailing)]))
    got = rms_norm(x, trailing, weight)
    assert got.shape == x.shape and got.dtype == x.dtype and got.flags.c_contiguous
    if x.size:
        close(got, defined(x, trailing, weight))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_dtypes_and_their_epsilon(dtype, scale):
    """At 1e-3 the default of eps decides the result: it is the dtype's."""
    x, weight = (scale * normal(5, 131)).astype(dtype), normal(131, dtype=dtype)
    got = rms_norm(x, 131, weight)
    assert got.dtype == dtype
    close(got, defined(x, (131,), weight))
    assert not np.array_equal(got, rms_norm(x, 131, weight, 2 * EPSILON[x.dtype.name])) or dtype == np.float64
    assert np.array_equal(got, rms_norm(x, 131, weight, EPSILON[x.dtype.name]))


@pytest.mark.parametrize("trailing", [4, np.int64(4), (4,), [4], (3, 4), [2, 3, 4]])
def test_forms_of_the_trailing_shape(trailing):
    x = normal(2, 3, 4)
    close(rms_norm(x, trailing, eps=1e-3), defined(x, tuple(np.atleast_1d(trailing)), eps=1e-3))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_are_squared_and_summed_in_float32_and_rounded_once(dtype):
    x, weight = (100 * normal(3, 4096)).astype(dtype), normal(4096, dtype=dtype)
    got, expected = rms_norm(x, 4096, weight), defined(x, (4096,), weight)
    unit = np.spacing(np.abs(expected).astype(dtype)).astype(np.float64)
    assert np.all(np.abs(got.astype(np.float64) - expected) <= 0.501 * unit + 2e-6)
    assert rms_norm(np.full((1, 3), 60000, np.float16), 3).tolist() == [[1, 1, 1]]


def test_nan_and_infinity_appear_where_they_must():
    x = normal(4, 40) + np.float32(10)
    x[1, 3], x[2, 39] = np.nan, np.inf
    got = rms_norm(x, 40)
    assert np.isnan(got[1]).all()
    assert np.isnan(got[2, 39]) and np.all(got[2, :39] == 0)
    close(got[[0, 3]], defined(x[[0, 3]], (40,)))
    assert np.array_equal(rms_norm(np.zeros((1, 3), np.float32), 3), np.zeros((1, 3)))
    assert np.isnan(rms_norm(np.zeros((1, 3), np.float32), 3, eps=0.0)).all()


@pytest.mark.parametrize("shape, trailing", [((3, 0), 0), ((0, 8), 8), ((2, 0, 4), (0, 4)), ((0,), 0)])
def test_zero_extents(shape, trailing):
    assert rms_norm(np.ones(shape, np.float32), trailing).shape == shape


def test_rows_that_do_not_follow_each_other():
    whole = normal(6, 8, 10)
    for x in (whole.transpose(2, 0, 1), whole.transpose(1, 0, 2)[::-1], whole[::2, 1::3, ::-1]):
        for trailing in (x.shape[-1:], x.shape[-2:]):
            weight = normal(*trailing[::-1]).T
            close(rms_norm(x, trailing, weight), defined(x, trailing, weight))


def test_outputs():
    x, weight = normal(4, 5, 33), normal(33)
    expected = defined(x, (33,), weight)
    out, intact = inside_slack(np.full(x.shape, np.nan, np.float32))
    assert rms_norm(x, 33, weight, out=out) is out and intact()
    close(out, expected)
    whole = np.full((66, 8, 10), 7.0, np.float32)
    view = whole[::2, ::2, 1::2].transpose(1, 2, 0)
    assert rms_norm(x, 33, weight, out=view) is view
    close(view, expected)
    whole[::2, ::2, 1::2] = 7.0
    assert np.all(whole == 7.0)


def test_outputs_that_overlap_an_input():
    memory = normal(2 * 5 * 17)
    for start in (0, 1, 17, 40, 85):
        buffer = memory.copy()
        x, out = buffer[:85].reshape(5, 17), buffer[start : start + 85].reshape(5, 17)
        expected = defined(x, (17,))
        assert rms_norm(x, 17, out=out) is out
        close(out, expected)
    x = normal(9, 9)
    expected = defined(x, (9,))
    assert rms_norm(x, 9, out=x) is x
    close(x, expected)


X = np.ones((3, 4), np.float32)

WRONG = [
    ({"normalized_shape": 5}, ValueError, r"normalized_shape=\(5,\) must be .* \(3, 4\)"),
    ({"normalized_shape": ()}, ValueError, "normalized_shape"),
    ({"normalized_shape": 4.0}, TypeError, "normalized_shape"),
    ({"normalized_shape": None}, TypeError, "normalized_shape"),
    ({"weight": np.ones(1, np.float32)}, ValueError, r"weight: shape \(4,\)"),
    ({"weight": np.ones(4)}, TypeError, "weight is float64, but x is float32"),
    ({"x": X.astype(int)}, TypeError, "x: dtype int64"),
    ({"x": X.tolist()}, TypeError, "x: an array"),
    ({"eps": "small"}, TypeError, "eps"),
    ({"out": np.ones((4, 3), np.float32)}, ValueError, "out: shape"),
    ({"out": np.ones((3, 4), np.float16)}, TypeError, "out is float16"),
]


@pytest.mark.parametrize("arguments, kind, words", WRONG)
def test_what_is_wrong_is_named_before_anything_is_written(arguments, kind, words):
    out = np.full((3, 4), 7.0, np.float32)
    with pytest.raises(kind, match=words):
        rms_norm(**{"x": X, "normalized_shape": 4, "out": out, **arguments})
    assert np.all(out == 7.0)


def test_plain_python_and_lowering():
    x, weight = normal(2, 3, 5), normal(3, 5)
    np.testing.assert_allclose(rms_norm(x, (3, 5), weight), rms_norm.python(x, (3, 5), weight), rtol=1e-5)
    log = str(rms_norm.lower(x, (3, 5), weight).log)
    assert "Applied Vectorization: width=16 on loop 'j'" in log and "Skipped" not in log


@pytest.mark.filterwarnings("ignore::pyschedule.ScheduleWarning")
@pytest.mark.parametrize("width", [1, 7, 65])
def test_as_a_gpu_kernel(width):
    x, weight = normal(3, width), normal(width)
    steps, result = rms_norm.steps(x, width, weight)
    for kernel, arguments in steps:
        call(kernel, *arguments, target="cuda")
    close(result, defined(x, (width,), weight))


# ------------------------------------------------------------------------------------------- beside PyTorch


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("shape, trailing", [((4, 33), (33,)), ((2, 3, 5, 7), (5, 7)), ((2, 0), (0,)), ((5,), [5])])
def test_pytorch_means_the_same(dtype, shape, trailing):
    """Where PyTorch is installed.  Its kernel for the CPU takes float32's epsilon for halves, other than its
    documentation says, which `eps=None` follows here."""
    torch = pytest.importorskip("torch")
    kind = getattr(torch, dtype)
    x, weight = (torch.from_numpy(normal(*extents)).to(kind) for extents in (shape, trailing))
    for eps in (None, 1e-3):
        got = rms_norm(x, trailing, weight, eps)
        assert isinstance(got, torch.Tensor) and got.dtype == kind
        eps = EPSILON[dtype] if eps is None else eps
        expected = torch.nn.functional.rms_norm(x.double(), trailing, weight.double(), eps)
        torch.testing.assert_close(got, expected.to(kind))
    torch.testing.assert_close(rms_norm(x.double(), trailing), torch.nn.functional.rms_norm(x.double(), trailing))
    x[..., :1] = torch.inf
    got, expected = rms_norm(x, trailing, weight), torch.nn.functional.rms_norm(x, trailing, weight)
    torch.testing.assert_close(got, expected, equal_nan=True)
