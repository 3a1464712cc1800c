"""layer_norm against float64: trailing shapes, statistics that do not cancel, dtypes, views, wrong arguments."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators import layer_norm
from tests.support import call, inside_slack, nan_around

RNG = np.random.default_rng(29)
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


def defined(x, trailing, weight=None, bias=None, eps=1e-5):
    """The definition, in float64."""
    x = x.astype(np.float64)
    axes = tuple(range(x.ndim - len(trailing), x.ndim))
    deviation = x - x.mean(axis=axes, keepdims=True)
    y = deviation / np.sqrt(np.square(deviation).mean(axis=axes, keepdims=True) + eps)
    y = y if weight is None else y * weight.astype(np.float64)
    return y if bias is None else y + bias.astype(np.float64)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(data=st.data())
def test_random_shapes(data):
    extents = st.integers(0, 5)
    trailing = (*data.draw(st.lists(extents, max_size=2)), data.draw(st.integers(0, 140)))
    x = normal(*data.draw(st.lists(extents, max_size=2)), *trailing)
    view = data.draw(st.sampled_from([lambda array: array, nan_around, lambda array: array[..., ::-1]]))
    weight = data.draw(st.sampled_from([None, normal(*trailing)]))
    bias = data.draw(st.sampled_from([None, normal(*trailing)]))
    x = view(x)
    got = layer_norm(x, trailing, weight, bias)
    assert got.shape == x.shape and got.dtype == x.dtype and got.flags.c_contiguous
    if x.size:
        close(got, defined(x, trailing, weight, bias))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [1, 7, 130])
def test_dtypes(dtype, width):
    x, weight, bias = normal(5, width, dtype=dtype), normal(width, dtype=dtype), normal(width, dtype=dtype)
    got = layer_norm(x, width, weight, bias)
    assert got.dtype == dtype
    close(got, defined(x, (width,), weight, bias))


@pytest.mark.parametrize("trailing", [4, np.int64(4), (4,), [4], (3, 4), [2, 3, 4]])
def test_forms_of_the_trailing_shape(trailing):
    x = normal(2, 3, 4)
    close(layer_norm(x, trailing), defined(x, tuple(np.atleast_1d(trailing))))


@pytest.mark.parametrize("eps", [0, 1, 1e-3, np.float32(0.5)])
def test_eps(eps):
    x = normal(3, 40) * np.float32(0.01)
    close(layer_norm(x, 40, eps=eps), defined(x, (40,), eps=float(eps)))


# ------------------------------------------------------------------------------------------------ statistics


def test_a_mean_that_is_large_beside_the_spread():
    x = np.array([[40000, 40001, 40002, 40003]], np.float32)
    np.testing.assert_allclose(layer_norm(x, 4)[0], [-1.34164, -0.44721, 0.44721, 1.34164], atol=1e-4)
    for mean, first in ((0, -1.3416), (100, -1.3415), (1000, -1.3415), (10000, -1.3313)):
        x = (mean + 0.001 * np.arange(16)).astype(np.float32)
        got = layer_norm(x, 16)
        assert abs(got[0] - first) < 1e-3
        np.testing.assert_allclose(got, defined(x, (16,)), atol=1e-5)


ROWS = {
    "one that differs by a unit in the last place": [1e8] * 100 + [1e8 + 8],
    "a first that is far from the rest": [1e6, *np.linspace(-1, 1, 999)],
    "a last that is far from the rest": [*np.linspace(-1, 1, 999), -1e6],
    "two values beside each other": [16777214.0, 16777215.0] * 50,
    "a ramp": 1e5 + np.arange(777.0) / 4,
    "all the same": [0.1] * 50,
    "large": np.linspace(-1e18, 1e18, 33),
    "small": np.linspace(-1e-3, 1e-3, 33),
}


@pytest.mark.parametrize("name", ROWS)
def test_rows_whose_statistics_are_delicate(name):
    x = np.asarray(ROWS[name]).astype(np.float32)[None]
    close(layer_norm(x, x.shape[1]), defined(x, x.shape[1:]))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_halves_have_float32_statistics_and_are_rounded_once(dtype):
    x = normal(4, 4096, dtype=dtype) + np.array(3, dtype)
    weight, bias = normal(4096, dtype=dtype), normal(4096, dtype=dtype)
    got, expected = layer_norm(x, 4096, weight, bias), defined(x, (4096,), weight, bias)
    unit = np.spacing(np.abs(expected).astype(dtype)).astype(np.float64)
    assert np.all(np.abs(got.astype(np.float64) - expected) <= 0.501 * unit + 2e-6)


def test_sums_of_halves_beyond_their_range():
    x = np.array([[60000, 60000, 0, 0] * 50], np.float16)
    close(layer_norm(x, 200), defined(x, (200,)))


def test_nan_and_infinity_spoil_their_row_and_no_other():
    x = normal(6, 70)
    x[1, 3], x[2, 0], x[3, 69], x[4, 0] = np.nan, np.inf, -np.inf, np.nan
    got = layer_norm(x, 70)
    assert np.isnan(got[1:5]).all()
    close(got[[0, 5]], defined(x[[0, 5]], (70,)))


def test_a_bad_weight_or_bias_spoils_its_column():
    x, weight, bias = normal(3, 40), normal(40), normal(40)
    weight[5], bias[7] = np.nan, np.inf
    got = layer_norm(x, 40, weight, bias)
    assert np.isnan(got[:, 5]).all() and np.isposinf(got[:, 7]).all() and np.isfinite(got[:, 8:]).all()


@pytest.mark.parametrize("shape, trailing", [((3, 0), 0), ((0, 8), 8), ((2, 0, 4), (0, 4)), ((0,), 0)])
def test_zero_extents(shape, trailing):
    x = np.ones(shape, np.float32)
    assert layer_norm(x, trailing).shape == shape
    out = np.ones(shape, np.float32)
    assert layer_norm(x, trailing, out=out) is out


# -------------------------------------------------------------------------------------------- views, outputs


def test_rows_that_do_not_follow_each_other():
    whole = normal(6, 8, 10)
    views = [
        whole.transpose(2, 0, 1),
        whole.transpose(1, 0, 2)[::-1],
        whole[::2, 1::3, ::-1],
        whole[:, :, None, ::2].transpose(0, 2, 1, 3),
        np.broadcast_to(whole[0], (3, 8, 10)),
    ]
    for x, count in itertools.product(views, (1, 2)):
        trailing = x.shape[-count:]
        weight, bias = normal(*trailing[::-1]).T, normal(*trailing[::-1]).T
        close(layer_norm(x, trailing, weight, bias), defined(x, trailing, weight, bias))


def test_an_output_with_slack_and_strided_outputs():
    x, weight, bias = normal(4, 5, 33), normal(33), normal(33)
    expected = defined(x, (33,), weight, bias)
    out, intact = inside_slack(np.full(x.shape, np.nan, np.float32))
    assert layer_norm(x, 33, weight, bias, out=out) is out and intact()
    close(out, expected)
    for axes, index in (((0, 1, 2), np.s_[::2, ::-2, 1::2]), ((2, 0, 1), np.s_[::2, ::2, ::2])):
        whole = np.full([2 * x.shape[axis] for axis in axes], 7.0, np.float32)
        view = whole[index].transpose(np.argsort(axes))
        assert layer_norm(x, 33, weight, bias, out=view) is view
        close(view, expected)
        whole[index] = 7.0
        assert np.all(whole == 7.0)


def test_outputs_that_overlap_an_input():
    memory = normal(2 * 5 * 17)
    for start in (0, 1, 17, 40, 85):
        buffer = memory.copy()
        x, out = buffer[:85].reshape(5, 17), buffer[start : start + 85].reshape(5, 17)
        expected = defined(x, (17,))
        assert layer_norm(x, 17, out=out) is out
        close(out, expected)
    x = normal(5, 17)
    expected = defined(x, (17,))
    assert layer_norm(x, 17, out=x) is x
    close(x, expected)
    x = normal(9, 9)
    expected = defined(x, (9,))
    layer_norm(x, 9, out=x.T)
    close(x.T, expected)
    x, weight = normal(1, 17), normal(17)
    expected = defined(x, (17,), weight, weight)
    layer_norm(x, 17, weight, weight, out=weight.reshape(1, 17))
    close(weight.reshape(1, 17), expected)


# ------------------------------------------------------------------------------------------ wrong arguments

X = np.ones((3, 4), np.float32)
READ_ONLY = np.ones((3, 4), np.float32)
READ_ONLY.flags.writeable = False

WRONG = [
    ({"normalized_shape": 5}, ValueError, r"normalized_shape=\(5,\) must be .* \(3, 4\)"),
    ({"normalized_shape": (3,)}, ValueError, "normalized_shape"),
    ({"normalized_shape": (2, 3, 4)}, ValueError, "normalized_shape"),
    ({"normalized_shape": ()}, ValueError, "normalized_shape"),
    ({"normalized_shape": -1}, ValueError, "normalized_shape"),
    ({"normalized_shape": 4.0}, TypeError, "normalized_shape"),
    ({"normalized_shape": True}, TypeError, "normalized_shape"),
    ({"normalized_shape": None}, TypeError, "normalized_shape"),
    ({"normalized_shape": "4"}, TypeError, "normalized_shape"),
    ({"x": np.array(1.0, np.float32), "normalized_shape": ()}, ValueError, "normalized_shape"),
    ({"weight": np.ones(3, np.float32)}, ValueError, r"weight: shape \(4,\)"),
    ({"weight": np.ones(1, np.float32)}, ValueError, r"weight: shape \(4,\)"),
    ({"bias": np.ones((1, 4), np.float32)}, ValueError, r"bias: shape \(4,\)"),
    ({"weight": np.ones(4)}, TypeError, "weight is float64, but x is float32"),
    ({"x": X.astype(np.float16), "bias": np.ones(4, np.float32)}, TypeError, "bias is float32"),
    ({"weight": [1.0] * 4}, TypeError, "weight: an array"),
    ({"x": X.astype(int)}, TypeError, "x: dtype int64"),
    ({"x": X.astype(complex)}, TypeError, "x: dtype complex128"),
    ({"eps": None}, TypeError, "eps"),
    ({"eps": "1e-5"}, TypeError, "eps"),
    ({"eps": 1j}, TypeError, "eps"),
    ({"eps": np.ones(1, np.float32)}, TypeError, "eps: a number is needed"),
    ({"out": np.ones((4, 3), np.float32)}, ValueError, "out: shape"),
    ({"out": np.ones((3, 4))}, TypeError, "out is float64"),
    ({"out": READ_ONLY}, ValueError, r"out: .*read-only"),
    ({"out": np.broadcast_to(np.ones(4, np.float32), (3, 4))}, ValueError, "out"),
]


@pytest.mark.parametrize("arguments, kind, words", WRONG)
def test_what_is_wrong_is_named_before_anything_is_written(arguments, kind, words):
    out = np.full((3, 4), 7.0, np.float32)
    with pytest.raises(kind, match=words):
        layer_norm(**{"x": X, "normalized_shape": 4, "out": out, **arguments})
    assert np.all(out == 7.0)


# --------------------------------------------------------------------------------------- how it is carried out


def test_matrices_of_rows_are_read_and_written_in_place():
    x, out = nan_around(normal(3, 40)), nan_around(normal(3, 40))
    steps, _ = layer_norm.steps(x, 40, normal(40), normal(40), out=out)
    assert len(steps) == 1
    assert np.shares_memory(steps[0][1][0], x) and np.shares_memory(steps[0][1][3], out)


def test_plain_python_and_lowering():
    x, weight, bias = normal(2, 3, 5), normal(3, 5), normal(3, 5)
    expected = layer_norm.python(x, (3, 5), weight, bias)
    np.testing.assert_allclose(layer_norm(x, (3, 5), weight, bias), expected, rtol=1e-5, atol=1e-6)
    log = str(layer_norm.lower(x, (3, 5), weight, bias).log)
    assert "Applied Vectorization: width=16 on loop 'j'" in log and "Skipped" not in log


@pytest.mark.filterwarnings("ignore::pyschedule.ScheduleWarning")
@pytest.mark.parametrize("width", [1, 7, 65])
def test_as_a_gpu_kernel(width):
    x, weight, bias = normal(3, width), normal(width), normal(width)
    steps, result = layer_norm.steps(x, width, weight, bias)
    for kernel, arguments in steps:
        call(kernel, *arguments, target="cuda")
    close(result, defined(x, (width,), weight, bias))


def test_negative_eps_gives_nan_as_in_pytorch():
    assert np.isnan(layer_norm(np.zeros((1, 4), np.float32), 4, eps=-1.0)).all()
    assert np.isnan(layer_norm(np.zeros((1, 4), np.float32), 4, eps=0)).all()
    assert math.isclose(layer_norm(np.zeros((1, 4), np.float32), 4)[0, 0], 0.0)


# ------------------------------------------------------------------------------------------- beside PyTorch
# Only where PyTorch is installed: the same calls mean the same, and are refused on the same occasions.


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("shape, trailing", [((4, 33), (33,)), ((2, 3, 5, 7), (5, 7)), ((2, 0), (0,)), ((5,), [5])])
def test_pytorch_means_the_same(torch, dtype, shape, trailing):
    kind = getattr(torch, dtype)
    x, weight, bias = (torch.from_numpy(normal(*extents)).to(kind) for extents in (shape, trailing, trailing))
    expected = torch.nn.functional.layer_norm(x.double(), trailing, weight.double(), bias.double())
    got = layer_norm(x, trailing, weight, bias)
    assert isinstance(got, torch.Tensor) and got.dtype == kind
    torch.testing.assert_close(got, expected.to(kind))
    assert layer_norm(x, trailing, weight, bias, out=x) is x
    assert torch.equal(x, got)


def test_pytorch_has_nan_in_the_same_places(torch):
    x = torch.randn(7, 20)
    x[0, 0], x[1, 5], x[2, 0], x[3, 19], x[4] = torch.nan, torch.nan, torch.inf, -torch.inf, torch.inf
    x[5, :2] = torch.tensor([torch.inf, -torch.inf])
    torch.testing.assert_close(layer_norm(x, 20), torch.nn.functional.layer_norm(x, (20,)), equal_nan=True)


#: PyTorch's layer_norm has no output; takes integers for no shape, and float32 parameters of halves.
OCCASIONS = [
    (arguments, words)
    for arguments, _, words in WRONG
    if "out" not in arguments and arguments.get("normalized_shape") != -1 and "bias is float32" not in words
]


@pytest.mark.parametrize(
    "arguments, words",
    [*OCCASIONS, ({"eps": -1}, ""), ({"eps": np.float32(1)}, "")],
    ids=lambda item: str(item)[:40],
)
def test_pytorch_refuses_on_the_same_occasions(torch, arguments, words):
    def outcome(x, normalized_shape, weight=None, bias=None, eps=1e-5, function=layer_norm):
        try:
            return tuple(function(x, normalized_shape, weight, bias, eps).shape)
        except TypeError:
            return "not of the right type"
        except (RuntimeError, ValueError):
            return "of the right type, but wrong"

    given = {"x": X, "normalized_shape": (4,), **arguments}
    tensors = {
        name: torch.from_numpy(item) if isinstance(item, np.ndarray) else item for name, item in given.items()
    }
    ours, pytorch = outcome(**given), outcome(**tensors, function=torch.nn.functional.layer_norm)
    if "float" in words or "dtype" in words or given["normalized_shape"] == 5:
        assert isinstance(ours, str) and isinstance(pytorch, str)
    else:
        assert ours == pytorch
