"""conv2d against its definition in float64: geometry, layouts, groups, dtypes, activations, wrong arguments."""

from __future__ import annotations

import itertools
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators import conv2d
from pyschedule import spec
from tests.support import call, inside_slack, nan_around

RNG = np.random.default_rng(28)
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
#: What `torch.testing.assert_close` allows: relative, absolute.
TOLERANCE = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
}


def normal(*shape, dtype=np.float32, scale=1.0):
    return (scale * RNG.standard_normal(shape)).astype(dtype)


def close(got, expected):
    rtol, atol = TOLERANCE[got.dtype.name]
    np.testing.assert_allclose(got.astype(np.float64), expected, rtol=rtol, atol=atol)


ACTIVATIONS = {
    None: lambda value: value,
    "relu": lambda value: np.maximum(value, 0),
    "gelu": lambda value: value * (1 + np.vectorize(math.erf, otypes=[float])(value / math.sqrt(2))) / 2,
    "gelu_tanh": lambda value: value * (1 + np.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3))) / 2,
    "silu": lambda value: value / (1 + np.exp(-value)),
}


def defined(x, w, bias=None, stride=(1, 1), pads=(0, 0, 0, 0), dilation=(1, 1), groups=1, activation=None):
    """The definition, in float64, of images (N, C, H, W)."""
    x, w = x.astype(np.float64), w.astype(np.float64)
    x = np.pad(x, [(0, 0), (0, 0), pads[:2], pads[2:]])
    o, depth, r, s = w.shape
    p = (x.shape[2] - dilation[0] * (r - 1) - 1) // stride[0] + 1
    q = (x.shape[3] - dilation[1] * (s - 1) - 1) // stride[1] + 1
    y = np.zeros((x.shape[0], o, p, q)) + (0 if bias is None else bias.astype(np.float64)[:, None, None])
    size = o // groups
    for g, i, j in itertools.product(range(groups), range(r), range(s)):
        rows = slice(i * dilation[0], i * dilation[0] + (p - 1) * stride[0] + 1, stride[0])
        columns = slice(j * dilation[1], j * dilation[1] + (q - 1) * stride[1] + 1, stride[1])
        window = x[:, g * depth : (g + 1) * depth, rows, columns]
        taps = w[g * size : (g + 1) * size, :, i, j]
        y[:, g * size : (g + 1) * size] += np.einsum("fc,ncpq->nfpq", taps, window)
    return ACTIVATIONS[activation](y)


def run(
    x, w, bias=None, stride=(1, 1), pads=(0, 0, 0, 0), dilation=(1, 1), groups=1, activation=None, layout="NCHW"
):
    """conv2d of images (N, C, H, W) and their result so, in either layout."""
    if layout == "NCHW":
        return conv2d(x, w, bias, stride, pads, dilation, groups, activation=activation)
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    got = conv2d(x, w, bias, stride, pads, dilation, groups, layout=layout, activation=activation)
    assert got.flags.c_contiguous
    return got.transpose(0, 3, 1, 2)


LAYOUTS = pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
#: Strides and dilations are constants of a kernel: each pair is compiled once, so there are few.
STEPS = [((1, 1), (1, 1)), ((2, 3), (3, 1))]


@LAYOUTS
@settings(max_examples=8, deadline=None, derandomize=True)  # each compiles a kernel: more take minutes
@given(data=st.data())
def test_random_shapes(layout, data):
    stride, dilation = data.draw(st.sampled_from(STEPS))
    groups = data.draw(st.sampled_from([1, 1, 2, 3, 5]))
    depth, size = data.draw(st.integers(1, 5)), data.draw(st.sampled_from([1, 2, 7, 17]))
    window = data.draw(st.tuples(st.integers(1, 3), st.integers(1, 4)))
    pads = data.draw(st.tuples(*[st.integers(0, 3)] * 4))
    least = [max(1, dilation[k] * (window[k] - 1) + 1 - pads[2 * k] - pads[2 * k + 1]) for k in range(2)]
    image = [least[0] + data.draw(st.integers(0, 9)), least[1] + data.draw(st.integers(0, 31))]
    x = nan_around(normal(data.draw(st.integers(0, 2)), groups * depth, *image))
    w = nan_around(normal(groups * size, depth, *window, scale=1 / math.sqrt(depth * window[0] * window[1])))
    bias = data.draw(st.sampled_from([None, normal(groups * size)]))
    got = run(x, w, bias, stride, pads, dilation, groups, layout=layout)
    close(got, defined(x, w, bias, stride, pads, dilation, groups))


@LAYOUTS
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("groups, depth, size", [(1, 3, 5), (66, 1, 1), (3, 1, 2)], ids=str)
def test_dtypes_and_groups(layout, dtype, groups, depth, size):
    x, w = normal(2, groups * depth, 7, 9, dtype=dtype), normal(groups * size, depth, 3, 2, dtype=dtype, scale=0.4)
    bias = normal(groups * size, dtype=dtype)
    got = run(x, w, bias, pads=(1, 1, 1, 0), groups=groups, layout=layout)
    assert got.dtype == dtype
    close(got, defined(x, w, bias, pads=(1, 1, 1, 0), groups=groups))


@pytest.mark.parametrize(
    "activation, layout, groups",
    [("gelu", "NCHW", 1), ("gelu_tanh", "NHWC", 1), ("silu", "NCHW", 6), ("relu", "NHWC", 6)],
)
def test_activations(activation, layout, groups):
    x, w, bias = normal(1, 6, 5, 18, scale=3), normal(6, 6 // groups, 2, 2), normal(6)
    got = run(x, w, bias, groups=groups, activation=activation, layout=layout)
    close(got, defined(x, w, bias, groups=groups, activation=activation))


@pytest.mark.parametrize(
    "layout, dtype, activation, depth",
    [
        ("NCHW", np.float16, "relu", 40),
        ("NHWC", ml_dtypes.bfloat16, "silu", 40),
        ("NCHW", ml_dtypes.bfloat16, "silu", 1),
        ("NHWC", np.float16, "relu", 1),
    ],
)
def test_halves_are_rounded_once(layout, dtype, activation, depth):
    """At most half a unit in the last place, and a little of a float32 sum: no second rounding before the end."""
    filters = 9 if depth > 1 else 40
    x, w, bias = (normal(*shape, dtype=dtype) for shape in ((1, 40, 6, 20), (filters, depth, 3, 3), (filters,)))
    groups = 40 // depth
    expected = defined(x, w, bias, activation=activation, groups=groups)
    got = run(x, w, bias, activation=activation, groups=groups, layout=layout)
    unit = np.spacing(np.abs(expected).astype(dtype)).astype(np.float64)
    assert np.all(np.abs(got.astype(np.float64) - expected) <= 0.501 * unit + 1e-4)


@LAYOUTS
def test_halves_are_summed_in_float32(layout):
    x = np.ones((1, 4096, 1, 1), np.float16)
    assert run(x, np.ones((1, 4096, 1, 1), np.float16), layout=layout).item() == 4096
    x[:, :8] = np.array([32000] * 4 + [-32000] * 4, np.float16)[:, None, None]
    x[:, 8:] = 0
    assert run(x, np.ones((1, 4096, 1, 1), np.float16), layout=layout).item() == 0


# ---------------------------------------------------------------------------------------------- geometry


@LAYOUTS
def test_another_stride_dilation_and_kernel_on_each_axis(layout):
    x, w = np.arange(99.0).reshape(1, 1, 9, 11), np.arange(1.0, 7.0).reshape(1, 1, 2, 3)
    given = x if layout == "NCHW" else x.transpose(0, 2, 3, 1)
    got = conv2d(given, w, stride=(2, 1), dilation=(1, 4), padding=(0, 1), layout=layout).reshape(4, 5)
    assert got[0].tolist() == [205, 265, 286, 307, 163]
    assert got[3].tolist() == [1261, 1651, 1672, 1693, 955]
    assert got.sum() == 16916


def test_same_pads_the_far_side_by_one_more():
    x = np.arange(5.0).reshape(1, 1, 1, 5)
    assert conv2d(x, np.array([[[[1.0, 10.0]]]]), padding="same").ravel().tolist() == [10, 21, 32, 43, 4]
    x, w = normal(1, 2, 8, 9), normal(3, 2, 4, 2)
    close(conv2d(x, w, padding="same", dilation=(3, 2)), defined(x, w, pads=(4, 5, 1, 1), dilation=(3, 2)))


def test_forms_of_numbers():
    x, w = normal(1, 2, 8, 9), normal(3, 2, 3, 3)
    expected = defined(x, w, stride=(2, 2), pads=(1, 1, 1, 1))
    for stride, padding in ((2, 1), ([2, 2], [1]), (np.int64(2), (1, 1, 1, 1)), ((2,), np.array([1, 1]))):
        close(conv2d(x, w, None, stride, padding), expected)
    assert np.array_equal(conv2d(x, w, padding="valid"), conv2d(x, w))


@LAYOUTS
def test_images_without_a_batch(layout):
    x, w, bias = normal(3, 6, 8), normal(4, 3, 3, 3), normal(4)
    expected = defined(x[None], w, bias, pads=(1, 1, 1, 1))[0]
    if layout == "NHWC":
        x, expected = x.transpose(1, 2, 0), expected.transpose(1, 2, 0)
    got = conv2d(x, w, bias, padding=1, layout=layout)
    assert got.shape == expected.shape
    close(got, expected)
    out = np.full(expected.shape, np.nan, np.float32)
    assert conv2d(x, w, bias, padding=1, layout=layout, out=out) is out
    close(out, expected)


@LAYOUTS
@pytest.mark.parametrize("image", [(7, 9), (1, 1)])
@pytest.mark.parametrize("filters, channels", [(5, 6), (70, 33)])
def test_a_window_of_one_pixel_is_a_product(layout, image, filters, channels):
    x, w, bias = normal(2, channels, *image), normal(filters, channels, 1, 1, scale=0.2), normal(filters)
    expected = defined(x, w, bias, activation="relu")
    close(run(x, w, bias, activation="relu", layout=layout), expected)
    close(run(nan_around(x), w, bias, activation="relu", layout=layout), expected)
    if layout == "NCHW":  # a view whose rows do not follow each other
        close(conv2d(nan_around(x), w, bias, activation="relu"), expected)


# ------------------------------------------------------------------------------------------ views, outputs


@LAYOUTS
def test_views_and_an_output_with_slack(layout):
    x, w, bias = normal(2, 4, 7, 20), normal(6, 4, 3, 2), normal(6)
    expected = defined(x, w, bias, pads=(1, 0, 2, 0))
    axes = (0, 1, 2, 3) if layout == "NCHW" else (0, 2, 3, 1)
    images = normal(2, 7, 40, 8)[::-1, :, ::2, ::2].transpose(0, 3, 1, 2)
    images[...] = x
    taps = normal(2, 3, 4, 6).transpose(3, 2, 1, 0)
    taps[...] = w
    out, intact = inside_slack(np.full(expected.transpose(axes).shape, np.nan, np.float32))
    steps = conv2d(images.transpose(axes), taps, bias, padding=(1, 0, 2, 0), layout=layout, out=out)
    assert steps is out and intact()
    close(out, expected.transpose(axes))
    strided = np.full(tuple(2 * extent for extent in out.shape), 7.0, np.float32)
    conv2d(
        images.transpose(axes), taps, bias, padding=(1, 0, 2, 0), layout=layout, out=strided[::2, 1::2, ::-2, ::2]
    )
    close(strided[::2, 1::2, ::-2, ::2], expected.transpose(axes))
    strided[::2, 1::2, ::-2, ::2] = 7.0
    assert np.all(strided == 7.0)


@LAYOUTS
def test_outputs_that_overlap_an_input(layout):
    shape = (1, 4, 6, 16) if layout == "NCHW" else (1, 6, 16, 4)
    axes = (0, 1, 2, 3) if layout == "NCHW" else (0, 3, 1, 2)
    buffer = normal(2 * math.prod(shape))
    w = normal(4, 4, 3, 3)
    for start in (0, 5, math.prod(shape)):
        memory = buffer.copy()
        x = memory[: math.prod(shape)].reshape(shape)
        out = memory[start : start + math.prod(shape)].reshape(shape)
        expected = defined(x.transpose(axes).copy(), w, pads=(1, 1, 1, 1))
        assert conv2d(x, w, padding=1, layout=layout, out=out) is out
        close(out.transpose(axes), expected)
    weight = normal(4, 4, 1, 1)
    x = normal(1, 4, 2, 2)
    expected = defined(x, weight)
    close(conv2d(x, weight, out=weight.reshape(1, 4, 2, 2)), expected)


@LAYOUTS
@pytest.mark.parametrize("groups", [1, 6])
def test_nan_and_infinity_appear_where_they_must_and_nowhere_else(layout, groups):
    x, w = normal(1, 6, 8, 40), np.abs(normal(6, 6 // groups, 3, 3)) + 0.5
    x[0, 2, 3, 17], x[0, 4, 4, 30] = np.nan, np.inf
    with np.errstate(invalid="ignore"):
        expected = defined(x, w, groups=groups)
    got = run(x, w, groups=groups, layout=layout)
    assert np.array_equal(np.isnan(got), np.isnan(expected)) and np.isnan(got).sum() >= 9
    assert np.array_equal(np.isposinf(got), np.isposinf(expected)) and np.isposinf(got).sum() >= 9
    finite = np.isfinite(expected)
    close(got[finite], expected[finite])
    with np.errstate(invalid="ignore"):
        kept = run(x, w, groups=groups, activation="relu", layout=layout)
    assert np.array_equal(np.isnan(kept), np.isnan(expected))


def test_an_output_that_held_nan_is_not_read():
    x, w = normal(1, 2, 6, 6), normal(3, 2, 3, 3)
    out = np.full((1, 3, 4, 4), np.nan, np.float32)
    close(conv2d(x, w, out=out), defined(x, w))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("channels", [2, 20])
def test_zeros_around_the_image_are_summed(layout, channels):
    x, w = np.ones((1, channels, 5, 5), np.float32), np.ones((channels, channels, 3, 3), np.float32)
    w[:, :, 0, 0] = np.inf
    with np.errstate(invalid="ignore"):
        expected = defined(x, w, pads=(1, 1, 1, 1))
    got = run(x, w, pads=(1, 1, 1, 1), layout=layout)
    assert np.array_equal(got, expected, equal_nan=True) and np.isnan(got[0, 0, 0]).all()
    got = run(x, w[:, :1], pads=(1, 1, 1, 1), groups=channels, layout=layout)
    assert np.isnan(got[0, :, 0]).all() and np.isnan(got[0, :, :, 0]).all() and np.isposinf(got[0, :, 1:, 1:]).all()


# --------------------------------------------------------------------------------------------- zero extents


@LAYOUTS
@pytest.mark.parametrize("groups", [1, 4])
def test_no_images(layout, groups):
    x, w = np.ones((0, 4, 5, 6), np.float32), np.ones((8, 4 // groups, 3, 3), np.float32)
    assert run(x, w, groups=groups, layout=layout).shape == (0, 8, 3, 4)


@LAYOUTS
def test_images_without_channels_have_results_without_channels(layout):
    x, w = np.ones((2, 0, 5, 6), np.float32), np.ones((4, 0, 3, 3), np.float32)
    assert run(x, w, np.ones(4, np.float32), layout=layout).shape == (2, 0, 3, 4)


# ------------------------------------------------------------------------------------------ wrong arguments

IMAGE, WEIGHT = np.ones((1, 4, 6, 6), np.float32), np.ones((6, 4, 3, 3), np.float32)
READ_ONLY = np.ones((1, 6, 4, 4), np.float32)
READ_ONLY.flags.writeable = False

WRONG = [
    ({"x": np.ones((6, 6), np.float32)}, ValueError, "x: 3 or 4 dimensions"),
    ({"weight": np.ones((6, 4, 3), np.float32)}, ValueError, "weight: 4 dimensions"),
    ({"weight": np.ones((6, 4, 7, 3), np.float32)}, ValueError, r"window, 7 x 3, .* padded input, 6 x 6"),
    ({"dilation": 3}, ValueError, r"window, 7 x 7 \(3 x 3 with dilation \(3, 3\)\), .* input, 6 x 6"),
    ({"weight": np.ones((6, 4, 0, 3), np.float32)}, ValueError, "0 x 3, is empty"),
    ({"weight": np.ones((0, 4, 3, 3), np.float32)}, ValueError, "^weight: one output channel"),
    ({"weight": np.ones((6, 3, 3, 3), np.float32)}, ValueError, "^x: 4 channels .* needs 3$"),
    ({"groups": 2}, ValueError, "^x: 4 channels .* needs 8, which is 4 for each of 2"),
    ({"groups": 4, "weight": np.ones((6, 1, 3, 3), np.float32)}, ValueError, "^groups: a divisor of the 6 "),
    ({"groups": 0}, ValueError, "^groups: at least 1 is needed, not 0"),
    ({"groups": 1.0}, TypeError, "groups: an integer"),
    ({"groups": (1, 1)}, TypeError, "groups: an integer"),
    ({"x": np.ones((1, 4, 0, 6), np.float32), "padding": 3}, ValueError, "0 x 6, are empty"),
    ({"bias": np.ones(4, np.float32)}, ValueError, r"bias: shape \(6,\)"),
    ({"bias": np.ones((6, 1), np.float32)}, ValueError, r"bias: shape \(6,\)"),
    ({"bias": np.ones(6)}, TypeError, "bias is float64, but x is float32"),
    ({"weight": WEIGHT.astype(np.float16)}, TypeError, "weight is float16"),
    ({"weight": WEIGHT.tolist()}, TypeError, "weight: an array"),
    ({"x": None}, TypeError, "x: an array"),
    ({"x": IMAGE.astype(int), "weight": WEIGHT.astype(int)}, TypeError, "x: dtype int64"),
    ({"stride": 0}, ValueError, "^stride: at least 1 is needed, not 0"),
    ({"stride": 1.0}, TypeError, "stride"),
    ({"dilation": (1, 1, 1)}, ValueError, "dilation: 1 or 2 integers"),
    ({"padding": -1}, ValueError, "^padding: at least 0 is needed, not -1"),
    ({"padding": "full"}, ValueError, "'full'"),
    ({"padding": None}, TypeError, "padding"),
    ({"padding": "same", "stride": 2}, ValueError, "with padding='same' a stride of 1 is needed"),
    ({"layout": "NCWH"}, ValueError, "layout: 'NCHW' or 'NHWC'"),
    ({"layout": None}, TypeError, "layout"),
    ({"layout": "NHWC"}, ValueError, "^x: 6 channels .* layout='NHWC'.* needs 4; with layout='NCHW' x has as many"),
    ({"activation": "tanh"}, ValueError, "activation: 'tanh' is unknown"),
    ({"activation": 1}, TypeError, "activation"),
    ({"out": np.ones((1, 6, 4, 5), np.float32)}, ValueError, r"out: shape \(1, 6, 4, 4\)"),
    ({"out": np.ones((1, 6, 4, 4))}, TypeError, "out is float64"),
    ({"out": READ_ONLY}, ValueError, "out: .*read-only"),
    ({"out": np.broadcast_to(np.ones((4, 4), np.float32), (1, 6, 4, 4))}, ValueError, "out"),
]


@pytest.mark.parametrize("arguments, kind, words", WRONG)
def test_what_is_wrong_is_named_before_anything_is_written(arguments, kind, words):
    out = np.full((1, 6, 4, 4), 7.0, np.float32)
    keywords = {"x": IMAGE, "weight": WEIGHT, "out": out, **arguments}
    with pytest.raises(kind, match=words):
        conv2d(**keywords)
    assert np.all(out == 7.0)


# --------------------------------------------------------------------------------------- how it is carried out


@LAYOUTS
@pytest.mark.parametrize("groups, depth", [(1, 4), (2, 2), (4, 1)])
def test_all_groups_are_one_call_of_a_kernel(layout, groups, depth):
    axes = (0, 1, 2, 3) if layout == "NCHW" else (0, 2, 3, 1)
    steps, _ = conv2d.steps(
        IMAGE.transpose(axes), np.ones((8, depth, 3, 3), np.float32), groups=groups, layout=layout
    )
    assert len(steps) == 1


@LAYOUTS
@pytest.mark.parametrize("batch", [1, 3])
def test_a_window_of_one_pixel_is_a_product_of_the_images_as_they_lie(layout, batch):
    axes = (0, 1, 2, 3) if layout == "NCHW" else (0, 2, 3, 1)
    x = np.ascontiguousarray(np.ones((batch, 4, 5, 7), np.float32).transpose(axes))
    steps, result = conv2d.steps(x, np.ones((8, 4, 1, 1), np.float32), layout=layout)
    assert len(steps) == (batch if layout == "NCHW" else 1)
    for _, (one, other, _, to) in steps:
        pixels = other if layout == "NCHW" else one
        assert pixels.shape == ((4, 35) if layout == "NCHW" else (batch * 35, 4))
        assert np.shares_memory(pixels, x) and np.shares_memory(to, result)


@LAYOUTS
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_plain_python_and_lowering(layout, groups):
    x, w, bias = normal(1, 4, 4, 5), normal(4, 4 // groups, 2, 2), normal(4)
    keywords = {"padding": (1, 0, 0, 1), "groups": groups, "activation": "silu", "layout": layout}
    x = x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    np.testing.assert_allclose(
        conv2d(x, w, bias, **keywords), conv2d.python(x, w, bias, **keywords), rtol=1e-4, atol=1e-6
    )
    lowering = conv2d.lower(x, w, bias, **keywords)
    assert "Applied Vectorization: width=16" in str(lowering.log) and "Skipped" not in str(lowering.log)


@LAYOUTS
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("groups", [1, 64])
def test_the_schedules_are_carried_out_in_full(layout, dtype, groups):
    shape = "1, 64, 20, 20" if layout == "NCHW" else "1, 20, 20, 64"
    weight = spec(f"{dtype}[64, {64 // groups}, 3, 3]")
    log = str(conv2d.lower(spec(f"{dtype}[{shape}]"), weight, padding=1, groups=groups, layout=layout).log)
    assert "Skipped" not in log and "kept in registers" in log


@pytest.mark.parametrize(
    "window, stride, dilation", [((3, 3), 2, 1), ((1, 5), (2, 3), 1), ((1, 1), 2, 1), ((2, 2), 2, 2)], ids=str
)
def test_windows_with_gaps_between_them_too(window, stride, dilation):
    x, w = spec("float32[1, 8, 30, 30]"), spec(f"float32[40, 8, {window[0]}, {window[1]}]")
    log = str(conv2d.lower(x, w, None, stride, 1, dilation).log)
    assert "Skipped" not in log and "Warning" not in log and "stored by rows" in log


@LAYOUTS
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.filterwarnings("ignore::pyschedule.ScheduleWarning")
def test_as_gpu_kernels(layout, groups):
    x, w, bias = normal(2, 6, 5, 7), normal(6, 6 // groups, 2, 3), normal(6)
    given = x if layout == "NCHW" else np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    steps, result = conv2d.steps(given, w, bias, (2, 1), groups=groups, layout=layout, activation="relu")
    for kernel, arguments in steps:
        call(kernel, *arguments, target="cuda")
    expected = defined(x, w, bias, (2, 1), groups=groups, activation="relu")
    close(result, expected if layout == "NCHW" else expected.transpose(0, 2, 3, 1))


# ------------------------------------------------------------------------------------------- beside PyTorch
# Only where PyTorch is installed: the same calls mean the same, and are refused on the same occasions.


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "x, w, keywords",
    [
        ((2, 4, 9, 11), (6, 4, 3, 2), {"stride": (2, 1), "padding": (1, 2)}),
        ((2, 4, 9, 11), (6, 2, 3, 2), {"groups": 2, "padding": "same", "dilation": (1, 3)}),
        ((4, 9, 11), (4, 1, 4, 2), {"groups": 4, "padding": "same"}),
        ((4, 9, 11), (8, 4, 1, 1), {}),
        ((0, 4, 9, 11), (6, 4, 3, 2), {"padding": "valid", "stride": 3}),
        ((2, 0, 9, 11), (6, 0, 3, 2), {}),
    ],
    ids=str,
)
def test_pytorch_means_the_same(torch, dtype, x, w, keywords):
    kind = getattr(torch, dtype)
    image, weight, bias = (torch.from_numpy(normal(*shape)).to(kind) for shape in (x, w, w[:1]))
    expected = torch.nn.functional.conv2d(image.double(), weight.double(), bias.double(), **keywords)
    got = conv2d(image, weight, bias, **keywords)
    assert isinstance(got, torch.Tensor) and got.dtype == kind
    torch.testing.assert_close(got.double(), expected, rtol=TOLERANCE[dtype][0], atol=2 * TOLERANCE[dtype][1])
    out = torch.full_like(got, float("nan"))
    assert conv2d(image, weight, bias, **keywords, out=out) is out
    assert torch.equal(out, got)
    if len(x) == 4:
        last = image.to(memory_format=torch.channels_last)
        torch.testing.assert_close(conv2d(last, weight, bias, **keywords), got)


@pytest.mark.parametrize("activation", [name for name in ACTIVATIONS if name])
def test_pytorch_activations(torch, activation):
    functional = torch.nn.functional
    pytorch = {
        "relu": functional.relu,
        "gelu": functional.gelu,
        "gelu_tanh": lambda value: functional.gelu(value, approximate="tanh"),
        "silu": functional.silu,
    }[activation]
    x = torch.tensor([0.0, -0.0, 1e-30, 3.0, -3.0, -20.0, 20.0, -1e20, 1e20, torch.inf, -torch.inf, torch.nan])
    got = conv2d(x.reshape(1, 1, 1, 12), torch.ones(1, 1, 1, 1), activation=activation).flatten()
    torch.testing.assert_close(got, pytorch(x.double()).float(), equal_nan=True)


#: What PyTorch's conv2d has too: not an output, a layout or an activation; integers it takes.
OCCASIONS = [
    (arguments, words)
    for arguments, _, words in WRONG
    if not arguments.keys() & {"out", "layout", "activation"} and "int64" not in words
]
RIGHT = [{"stride": (2,)}, {"stride": [1, 2]}, {"padding": [1]}, {"stride": np.int64(2)}, {"padding": (0, 2)}]


@pytest.mark.parametrize(
    "arguments, words",
    [*OCCASIONS, *((right, "") for right in RIGHT)],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_pytorch_refuses_on_the_same_occasions(torch, arguments, words):
    def outcome(function, x, weight, **rest):
        try:
            return tuple(function(x, weight, **rest).shape)
        except TypeError:
            return "not of the right type"
        except (RuntimeError, ValueError):
            return "of the right type, but wrong"

    given = {"x": IMAGE, "weight": WEIGHT, **arguments}
    tensors = {
        name: torch.from_numpy(item) if isinstance(item, np.ndarray) else item for name, item in given.items()
    }
    ours = outcome(conv2d, **given)
    pytorch = outcome(torch.nn.functional.conv2d, tensors.pop("x"), tensors.pop("weight"), **tensors)
    if "float" in words:  # of mixed dtypes PyTorch complains by a RuntimeError
        assert isinstance(ours, str) and isinstance(pytorch, str)
    else:
        assert ours == pytorch
