"""The operators against float64 NumPy: shapes, strides, wrong arguments, and what they show of themselves."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import operators
from operators import article
from pyschedule import inspect_loop_transforms, spec
from tests.support import call

RNG = np.random.default_rng(7)
TOLERANCE = {np.float16: 5e-3, np.float32: 1e-5, np.float64: 1e-12}


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def close(got, expected, dtype=np.float32):
    expected = np.asarray(expected, np.float64)
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(got, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * scale)


# ------------------------------------------------------------------------------------------------------- gemm


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "m, n, k", [(1, 1, 1), (6, 64, 384), (7, 65, 385), (193, 17, 5), (5, 200, 31), (0, 4, 3), (4, 3, 0)]
)
def test_gemm_of_odd_shapes(m, n, k, dtype):
    a, b = normal(m, k, dtype=dtype), normal(k, n, dtype=dtype)
    got = operators.gemm(a, b)
    assert got.dtype == dtype and got.shape == (m, n)
    close(got, a.astype(np.float64) @ b, dtype)


def test_gemm_with_all_it_takes():
    a, b, c = normal(9, 13), normal(21, 9), normal(13, 21)
    out = np.full((13, 21), np.nan, np.float32)
    got = operators.gemm(a, b, c, alpha=2.0, beta=-0.5, trans_a=True, trans_b=True, out=out)
    assert got is out
    close(got, 2.0 * (a.T.astype(np.float64) @ b.T) - 0.5 * c)


def test_gemm_of_strided_views():
    a, b = normal(40, 60)[::2, ::3], normal(50, 20)[:20, ::-1]
    close(operators.gemm(a, b), a.astype(np.float64) @ b)


WRONG_PRODUCTS = [
    ((np.ones((2, 3)), np.ones((4, 5))), ValueError, r"a is \(2, 3\) and b is \(4, 5\)"),
    ((np.ones((2, 3)), np.ones((3, 5), np.float32)), TypeError, "float32"),
    ((np.ones(3), np.ones((3, 5))), ValueError, "a: 2 dimensions"),
    (([[1.0]], np.ones((1, 1))), TypeError, "a: an array"),
    ((np.ones((2, 3)), np.ones((3, 5)), np.ones((5, 2))), ValueError, "c: shape"),
]


@pytest.mark.parametrize("arguments, kind, word", WRONG_PRODUCTS)
def test_gemm_names_the_wrong_argument(arguments, kind, word):
    with pytest.raises(kind, match=word):
        operators.gemm(*arguments)


# ----------------------------------------------------------------------------------------------------- conv2d


def convolution(x, w, stride, padding, dilation, groups):
    """The definition, in float64."""
    x = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *[(p, p) for p in padding]])
    n, _, height, width = x.shape
    o, depth, r, s = w.shape
    p = (height - dilation[0] * (r - 1) - 1) // stride[0] + 1
    q = (width - dilation[1] * (s - 1) - 1) // stride[1] + 1
    y = np.zeros((n, o, p, q))
    size = o // groups
    for g, i, j in itertools.product(range(groups), range(r), range(s)):
        rows = slice(i * dilation[0], i * dilation[0] + (p - 1) * stride[0] + 1, stride[0])
        columns = slice(j * dilation[1], j * dilation[1] + (q - 1) * stride[1] + 1, stride[1])
        window = x[:, g * depth : (g + 1) * depth, rows, columns]
        taps = w[g * size : (g + 1) * size, :, i, j].astype(np.float64)
        y[:, g * size : (g + 1) * size] += np.einsum("fc,ncpq->nfpq", taps, window, optimize=True)
    return y


CONVOLUTIONS = [
    ((1, 3, 9, 11), (5, 3, 3, 3), (1, 1), (0, 0), (1, 1), 1),
    ((2, 4, 12, 37), (6, 4, 3, 2), (1, 1), (1, 2), (1, 1), 1),
    ((1, 2, 15, 40), (33, 2, 3, 3), (2, 3), (1, 0), (2, 1), 1),
    ((1, 4, 8, 8), (6, 2, 3, 3), (1, 1), (1, 1), (1, 1), 2),
    ((1, 3, 7, 9), (3, 1, 2, 2), (1, 1), (0, 0), (1, 1), 3),
    ((1, 5, 6, 30), (7, 5, 1, 1), (1, 1), (0, 0), (1, 1), 1),
]


@pytest.mark.parametrize("x, w, stride, padding, dilation, groups", CONVOLUTIONS)
def test_conv2d_against_the_definition(x, w, stride, padding, dilation, groups):
    image, weight = normal(*x), normal(*w)
    bias = normal(w[0])
    got = operators.conv2d(image, weight, bias, stride, padding, dilation, groups)
    close(got, convolution(image, weight, stride, padding, dilation, groups) + bias[:, None, None])


def test_conv2d_into_an_output_that_held_nan():
    image, weight = normal(1, 2, 6, 6), normal(3, 2, 3, 3)
    out = np.full((1, 3, 4, 4), np.nan, np.float32)
    assert operators.conv2d(image, weight, out=out) is out
    close(out, convolution(image, weight, (1, 1), (0, 0), (1, 1), 1))


@pytest.mark.parametrize(
    "keywords, word",
    [
        ({"stride": 0}, "stride"),
        ({"padding": (1, 2, 3)}, "padding"),
        ({"groups": 2}, "groups"),
        ({"dilation": 9}, "window"),
    ],
)
def test_conv2d_names_the_wrong_argument(keywords, word):
    with pytest.raises(ValueError, match=word):
        operators.conv2d(np.ones((1, 3, 6, 6)), np.ones((4, 3, 3, 3)), **keywords)


# ------------------------------------------------------------------------------------------------- layer norm


def normalised(x, axes, weight=1.0, bias=0.0, eps=1e-5):
    x = x.astype(np.float64)
    mean = x.mean(axis=axes, keepdims=True)
    return (x - mean) / np.sqrt(x.var(axis=axes, keepdims=True) + eps) * weight + bias


@pytest.mark.parametrize(
    "shape, trailing",
    [((5, 7), 7), ((3, 4, 33), (33,)), ((2, 3, 4, 5), (4, 5)), ((6,), 6), ((0, 8), 8), ((3, 0), 0)],
)
def test_layer_norm_of_trailing_shapes(shape, trailing):
    x = normal(*shape)
    got = operators.layer_norm(x, trailing)
    assert got.shape == shape and got.dtype == np.float32
    if x.size:
        close(got, normalised(x, tuple(range(-len(np.atleast_1d(trailing)), 0))), np.float32)


def test_layer_norm_with_weight_bias_and_out():
    x, weight, bias = normal(9, 130), normal(130), normal(130)
    out = np.full_like(x, np.nan)
    assert operators.layer_norm(x, 130, weight, bias, 1e-3, out=out) is out
    close(out, normalised(x, -1, weight, bias, 1e-3))


def test_layer_norm_names_the_wrong_argument():
    x = normal(3, 4)
    with pytest.raises(ValueError, match="normalized_shape"):
        operators.layer_norm(x, 5)
    with pytest.raises(ValueError, match="weight"):
        operators.layer_norm(x, 4, normal(3))
    with pytest.raises(TypeError, match="bias"):
        operators.layer_norm(x, 4, None, normal(4, dtype=np.float64))


# ---------------------------------------------------------------------------------------- looking inside, meaning

CALLS = {
    "gemm": ((normal(5, 6), normal(6, 7)), {}),
    "conv2d": ((normal(1, 2, 5, 6), normal(3, 2, 2, 2)), {"stride": 2}),
    "layer_norm": ((normal(3, 8), 8), {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_operator_shows_the_kernel_and_computes_in_plain_python(name):
    operator = getattr(operators, name)
    args, keywords = CALLS[name]
    close(operator(*args, **keywords), operator.python(*args, **keywords))
    lowering = operator.lower(*args, **keywords)
    assert list(lowering.stages) == ["source", "tiling", "vectorization", "unroll"]
    assert "Applied Vectorization" in str(lowering.log)
    assert operator.__doc__ and operator.__name__ == name


def test_an_operator_is_lowered_for_a_gpu_from_specs():
    a = spec("float32[256, 256]")
    assert "Applied Tiling" in inspect_loop_transforms(operators.gemm, a, a, target="cuda:sm_80")
    lowering = operators.conv2d.lower(
        spec("float32[1, 8, 20, 20]"), spec("float32[16, 8, 3, 3]"), None, 1, 1, target="cuda"
    )
    assert lowering.stages["unroll"]
    assert operators.layer_norm.lower(spec("float32[8, 64]"), 64, target="cuda").stages["unroll"]


# ------------------------------------------------------------------------------------------------ the block form


def test_block_form_layer_norm_normalises_whole_rows():
    x = normal(1024, 768)
    got = article.layer_norm(x)
    assert got.dtype == np.float32
    close(got, normalised(x, -1))


def test_block_form_conv2d_is_the_convolution_of_the_whole_image():
    x, w = normal(1, 256, 56, 56), normal(512, 256, 3, 3) / 48
    got = article.conv2d(x, w)
    assert got.shape == (1, 512, 54, 54)
    close(got, convolution(x, w, (1, 1), (0, 0), (1, 1), 1))


def test_block_form_gemm_in_half_precision():
    a, b = normal(4096, 4096, dtype=np.float16), normal(4096, 4096, dtype=np.float16)
    got = article.gemm_tiled(a, b)
    assert got.dtype == np.float16 and got.shape == (4096, 4096)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    error = np.linalg.norm(got.astype(np.float32) - expected) / np.linalg.norm(expected)
    assert error < 5e-4


def test_block_form_log_begins_as_promised():
    a = spec("float16[4096, 4096]")
    text = inspect_loop_transforms(article.gemm_tiled, a, a)
    assert text.startswith("[Transform Log]\n- Applied Tiling: (128, 128)\n")
    assert "\n- Applied Vectorization: width=8 on loop 'k'\n" in text
    assert "\n- Applied Unroll: factors=[8,8] on loops 'i','j'\n" in text


def test_block_form_conv2d_unrolls_the_output_height_and_width():
    text = inspect_loop_transforms(article.conv2d, spec("float16[1, 256, 56, 56]"), spec("float16[512, 256, 3, 3]"))
    assert text.startswith("[Transform Log]\n- Applied Tiling: (1, 128, 28, 28), (256, 128, 3, 3)\n")
    assert "\n- Applied Unroll: factors=[4,4] on loops 'y','x'\n" in text


def test_block_form_refuses_another_shape():
    with pytest.raises(ValueError, match=r"\(1024, 768\).*\(10, 768\)"):
        article.layer_norm(normal(10, 768))


# --------------------------------------------------------------------------------------------------- GPU targets


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90"])
@pytest.mark.parametrize("name", ["gemm_tiled", "conv2d", "layer_norm"])
def test_block_forms_compile_for_gpus(name, target):
    arguments = {
        "gemm_tiled": ["float16[4096, 4096]"] * 2,
        "conv2d": ["float16[1, 256, 56, 56]", "float16[512, 256, 3, 3]"],
        "layer_norm": ["float16[1024, 768]"],
    }[name]
    lowering = getattr(article, name).lower(*map(spec, arguments), target=target)
    assert ".entry" in lowering.ptx()
    assert "EXIT" in lowering.sass()


@pytest.mark.parametrize("target", ["cuda:sm_80", "cuda:sm_90"])
@pytest.mark.parametrize("name", CALLS)
def test_operators_compile_for_gpus(name, target):
    arguments = {
        "gemm": ("float32[1024, 1024]", "float32[1024, 1024]"),
        "conv2d": ("float32[1, 64, 56, 56]", "float32[64, 64, 3, 3]"),
        "layer_norm": ("float32[1024, 768]", 768),
    }[name]
    arrays = [spec(item) if isinstance(item, str) else item for item in arguments]
    lowering = getattr(operators, name).lower(*arrays, target=target)
    assert ".entry" in lowering.ptx()
    assert "EXIT" in lowering.sass()


@pytest.mark.filterwarnings("ignore::pyschedule.ScheduleWarning")
@pytest.mark.parametrize("name", CALLS)
def test_operators_run_as_gpu_kernels_at_odd_sizes(name):
    operator = getattr(operators, name)
    calls = {
        "gemm": [(normal(m, k), normal(k, n)) for m, n, k in ((1, 1, 1), (5, 7, 3), (17, 9, 33), (0, 3, 2))],
        "conv2d": [
            (normal(1, 3, 5, 7), normal(5, 3, 2, 3), normal(5), 2, 1),
            (normal(2, 1, 4, 35), normal(1, 1, 3, 3)),
        ],
        "layer_norm": [(normal(3, 7), 7), (normal(1, 65), 65)],
    }[name]
    for arguments in calls:
        steps, result = operator.steps(*arguments)
        for kernel, given in steps:
            if hasattr(kernel, "python"):
                call(kernel, *given, target="cuda")
            else:  # a copy
                kernel(*given)
        close(result, operator.python(*arguments))
