"""`matmul` against float64: random shapes and layouts, batches, vectors, NaN, sentinels, outputs that overlap."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import operators
from operators.kernels import products as kernels
from pyschedule import spec
from tests.operators.accuracy import BFLOAT16, assert_near
from tests.support import call, inside_slack, nan_around

RNG = np.random.default_rng(11)

#: Where kernels are compiled the time of one example says nothing.
slowly = settings(deadline=None, max_examples=10, suppress_health_check=list(HealthCheck), derandomize=True)

DTYPES = [np.dtype("float32"), np.dtype("float64"), np.dtype("float16"), BFLOAT16]


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def laid_out(array, layout):
    """The same matrices (the last two axes) under another layout in memory, amid NaNs where there are gaps."""
    if layout == "rows":
        return array
    if layout == "columns":
        return np.ascontiguousarray(array.swapaxes(-1, -2)).swapaxes(-1, -2)
    if layout == "inside":
        return nan_around(array)
    if layout == "strided and reversed":
        return laid_out(array[..., ::-1, :], "strided")[..., ::-1, :]
    every_other = np.full((*array.shape[:-1], 2 * array.shape[-1]), np.nan).astype(array.dtype)
    every_other[..., ::2] = array
    return every_other[..., ::2]


def check(a, b, **keywords):
    exact = np.matmul(a.astype(np.float64), b.astype(np.float64))
    terms = np.matmul(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    got = operators.matmul(a, b, **keywords)
    assert got.dtype == (np.int32 if a.dtype == np.int8 else a.dtype)
    assert_near(got, exact, terms)
    return got


# --------------------------------------------------------------------------------------------- shapes, layouts

extent = st.sampled_from([0, 1, 5, 6, 7, 16, 17, 63, 65])
layout = st.sampled_from(["rows", "columns", "inside", "strided and reversed"])


@slowly
@given(extent, extent, extent, layout, layout)
def test_matrices_of_random_shapes_and_layouts(m, n, k, of_a, of_b):
    check(laid_out(normal(m, k), of_a), laid_out(normal(k, n), of_b))


@st.composite
def batches(draw):
    """Two shapes of batches that go together."""
    whole = draw(st.lists(st.integers(0, 4), max_size=3))
    pair = []
    for _ in range(2):
        shape = [draw(st.sampled_from([size, 1])) for size in whole]
        pair.append(tuple(shape[draw(st.integers(0, len(shape))) :]))
    return pair


@slowly
@given(batches(), st.integers(0, 5), st.integers(0, 5), st.integers(0, 5), st.booleans(), st.booleans())
def test_batches_are_broadcast(pair, m, n, k, left_vector, right_vector):
    a = normal(k) if left_vector else normal(*pair[0], m, k)
    b = normal(k) if right_vector else normal(*pair[1], k, n)
    got = check(a, b)
    assert type(got) is type(np.matmul(a, b))


def test_batches_in_any_order_of_axes():
    x = normal(3, 20, 4, 8)  # as attention has it: batch, place, head, depth
    q, kt = x.transpose(0, 2, 1, 3), x.transpose(0, 2, 3, 1)
    check(q, kt)
    check(q[::-1, ::2], kt[::-1, ::2])
    check(np.broadcast_to(normal(6, 7), (5, 6, 7)), normal(5, 7, 3))
    large = normal(2, 3, 60, 61)
    check(large.swapaxes(0, 1), large.transpose(1, 0, 3, 2))


LARGE = [(6 * 33 + 1, 130, 515), (5, 2049, 40), (150, 3, 300), (3, 300, 400), (129, 257, 1300)]


@pytest.mark.parametrize("m, n, k", LARGE)
def test_sizes_around_the_tiles(m, n, k):
    check(normal(m, k), normal(k, n))


@pytest.mark.parametrize(
    "of_a, of_b", [("columns", "rows"), ("rows", "columns"), ("strided and reversed", "inside")]
)
def test_large_products_of_other_layouts(of_a, of_b):
    check(laid_out(normal(140, 1300), of_a), laid_out(normal(1300, 142), of_b))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("m, n, k", [(7, 66, 37), (1, 65, 70), (70, 1, 33), (0, 3, 2), (3, 2, 0)])
def test_floating_dtypes(dtype, m, n, k):
    check(normal(m, k, dtype=dtype), normal(k, n, dtype=dtype))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
def test_integers_are_exact(dtype):
    info = np.iinfo(np.int8)
    a, b = (RNG.integers(info.min, info.max + 1, shape).astype(dtype) for shape in ((9, 300), (300, 17)))
    assert_near(operators.matmul(a, b), a.astype(np.int64) @ b.astype(np.int64))
    assert operators.matmul(a, b).dtype == (np.int32 if dtype == "int8" else dtype)
    assert_near(operators.matmul(a[:, 0], b[0, :9]), a[:, 0].astype(np.int64) @ b[0, :9].astype(np.int64))
    batch = np.stack([a[:, :17], -a[:, :17]])
    assert_near(operators.matmul(batch, b[:17][None]), batch.astype(np.int64) @ b[:17].astype(np.int64))


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "wanted"),
    [
        (48, 48, "float32", kernels.SMALL_THREE),
        (32, 32, "float32", kernels.SMALL_TWO),
        (64, 64, "float32", kernels.SMALL),
        (128, 128, "float32", kernels.SMALL),
        (100, 100, "float32", kernels.SMALL_THREE),
        (127, 127, "float32", kernels.SMALL_THREE),
        (10, 512, "float32", kernels.SMALL),
        (24, 24, "float64", kernels.SMALL_THREE),
        (64, 64, "float64", kernels.SMALL),
        (48, 48, "float16", kernels.SMALL_THREE),
    ],
)
def test_small_products_get_the_tile_that_fits(rows, columns, dtype, wanted):
    a, b = normal(rows, 40, dtype=dtype), normal(40, columns, dtype=dtype)
    ((kernel, _),), _ = operators.matmul.steps(a, b)
    assert kernel is kernels.product_kernel(wanted, 8 if dtype == "float64" else 16)
    check(a, b)


def test_products_of_a_batch_get_the_tile_that_fits():
    a, b = normal(3, 48, 40), normal(3, 40, 48)
    ((kernel, _),), _ = operators.matmul.steps(a, b)
    assert kernel is kernels.batched_kernel(kernels.SMALL_THREE, 16)
    check(a, b)
    transposed = normal(3, 24, 40).transpose(0, 2, 1)  # whatever form a single one of them would get
    check(a, transposed)


def test_each_form_of_kernel_is_reached():
    def form(a, b):
        ((kernel, _),), _ = operators.matmul.steps(a, b)
        return kernel

    rows, columns = normal(200, 200), normal(200, 200).T
    expected = {
        (1, True): kernels.ROW,
        (1, False): kernels.DOTS,
        (30, True): kernels.SMALL,
        (200, True): kernels.BLOCKED,
        (200, False): kernels.BLOCKED,
    }
    deep = normal(1, 200 * 1600)
    long, tall = deep.reshape(200, 1600), deep.reshape(1600, 200)
    assert form(long, tall) is kernels.product_kernel(kernels.DEEP, 16)
    assert form(long[:192], tall) is kernels.product_kernel(kernels.DEEP_FEW, 16)
    assert form(long[:, :1536], tall[:1536]) is kernels.product_kernel(kernels.NARROW, 16)
    assert form(long[:192, :300], tall[:300]) is kernels.product_kernel(kernels.NARROW, 16)
    assert form(long[:, :300], tall[:300]) is kernels.product_kernel(kernels.BLOCKED, 16)
    assert form(tall.T, tall) is kernels.product_kernel(kernels.TURNED_DEEP, 16)
    assert form(tall[:1000].T, tall[:1000]) is kernels.product_kernel(kernels.TURNED, 16)
    for (count, by_rows), wanted in expected.items():
        b = rows if by_rows else columns
        assert form(rows[:count], b) is kernels.product_kernel(wanted, 16), (count, by_rows)
    assert form(rows, columns[:, :2]) is kernels.product_kernel(kernels.DOTS, 16)
    assert form(rows.T, rows[:, :2]) is kernels.product_kernel(kernels.ROW, 16)
    assert form(rows.astype(np.float64), rows.astype(np.float64)) is kernels.product_kernel(kernels.BLOCKED, 8)


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "distance", "in_place"),
    [
        (8, 1000, 1000, 1024, True),  # one pass over B, wherever its rows lie
        (12, 1000, 1000, 1024, True),
        (24, 1000, 1000, 1000, True),
        (24, 1000, 1000, 1024, False),  # its rows would put one another out of the cache
        (24, 1000, 250, 1024, True),
        (24, 1500, 1500, 1500, False),  # more than the cache holds
        (48, 1000, 250, 1000, True),
        (48, 1000, 300, 1000, False),
        (64, 400, 500, 400, True),  # neighbouring rows are near
        (64, 400, 500, 600, False),
        (64, 400, 700, 400, False),
        (65, 400, 500, 400, False),
    ],
)
def test_a_few_rows_read_b_where_it_lies_unless_the_cache_cannot_hold_it(rows, columns, depth, distance, in_place):
    a, b = np.empty((rows, depth), np.float32), np.empty((depth, distance), np.float32)[:, :columns]
    ((kernel, _),), _ = operators.matmul.steps(a, b)
    small = [kernels.product_kernel(form, 16) for form in kernels.SMALL_TILES]
    assert (kernel in small) == in_place


# ------------------------------------------------------------------------------------- cases, NaN, sentinels


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_case_23_sizes_that_are_no_multiples_amid_nan(target):
    a, b = nan_around(np.arange(35.0).reshape(5, 7)), nan_around(np.arange(21.0).reshape(7, 3))
    out, intact = inside_slack(np.full((5, 3), np.nan))
    if target == "cpu":
        operators.matmul(a, b, out=out)
    else:
        ((kernel, arguments),), _ = operators.matmul.steps(a, b, out=out)
        call(kernel, *arguments, target="cuda")
    assert intact()
    np.testing.assert_array_equal(out[0], [273, 294, 315])
    np.testing.assert_array_equal(out[-1], [2037, 2254, 2471])


def test_case_23_all_small_sizes():
    for m in range(1, 10):
        for n in range(1, 10):
            for k in range(1, 10):
                a, b = nan_around(normal(m, k)), nan_around(normal(k, n))
                np.testing.assert_allclose(operators.matmul(a, b), a @ b, rtol=1e-5, atol=1e-5)


def test_case_25_no_depth_writes_zeros():
    out, intact = inside_slack(np.full((3, 2), np.nan))
    operators.matmul(np.ones((3, 0)), np.ones((0, 2)), out=out)
    assert intact() and not out.any()
    np.testing.assert_array_equal(operators.matmul(np.ones((4, 3, 0)), np.ones((0, 2))), np.zeros((4, 3, 2)))
    assert operators.matmul(np.ones(0), np.ones(0)) == 0


@pytest.mark.parametrize("dtype", [np.dtype("float16"), BFLOAT16], ids=str)
def test_case_27_halves_are_summed_in_float32(dtype):
    ones = np.ones((1, 4096), dtype)
    assert operators.matmul(ones, ones.T).astype(np.float64) == 4096
    swing = np.array([[32000.0] * 4 + [-32000.0] * 4], dtype)
    assert operators.matmul(swing, np.ones((8, 1), dtype)).astype(np.float64) == 0
    many = np.ones((8, 4096), dtype)
    np.testing.assert_array_equal(operators.matmul(many, many.T).astype(np.float64), np.full((8, 8), 4096.0))


@pytest.mark.parametrize("m, n, k", [(5, 20, 9), (130, 150, 140), (1, 80, 30), (40, 2, 10)])
def test_nan_and_infinity_appear_where_they_must(m, n, k):
    a, b = normal(m, k), normal(k, n)
    a[m // 2, k // 2] = np.nan
    b[k // 3, n // 2] = np.inf
    b[0, 0] = -np.inf
    with np.errstate(invalid="ignore"):
        exact = a.astype(np.float64) @ b
        terms = np.nan_to_num(np.abs(a.astype(np.float64)) @ np.abs(b), nan=0, posinf=0)
    assert np.isnan(exact[m // 2]).all()
    assert_near(operators.matmul(a, b), exact, terms)


def test_nothing_beside_a_strided_output_is_written():
    buffer = np.full((20, 90), -7.0, np.float32)
    out = buffer[1:15:2, 5:83:2]
    a, b = normal(7, 10), normal(10, 39)
    assert operators.matmul(a, b, out=out) is out
    assert_near(out, a.astype(np.float64) @ b, np.abs(a) @ np.abs(b))
    out[...] = -7
    assert (buffer == -7).all()


# ---------------------------------------------------------------------------------------------------- out


@pytest.mark.parametrize("size", [5, 70])
def test_an_output_that_overlaps_an_input(size):
    a, b = normal(size, size), normal(size, size)
    exact, terms = a.astype(np.float64) @ b, np.abs(a) @ np.abs(b)
    for which in range(2):
        given = [a.copy(), b.copy()]
        assert operators.matmul(*given, out=given[which]) is given[which]
        assert_near(given[which], exact, terms)
    given = a.copy()
    assert_near(operators.matmul(given.T, b, out=given), a.T.astype(np.float64) @ b, np.abs(a.T) @ np.abs(b))
    buffer = np.zeros((size + 3, size), np.float32)
    buffer[:size] = a
    assert_near(operators.matmul(buffer[:size], b, out=buffer[3:]), exact, terms)


def test_outputs_of_other_layouts_and_of_no_axes():
    a, b = normal(9, 30), normal(30, 80)
    out = np.full((80, 9), np.nan, np.float32).T
    assert operators.matmul(a, b, out=out) is out
    assert_near(out, a.astype(np.float64) @ b, np.abs(a) @ np.abs(b))
    number = np.array(np.nan, np.float32)
    assert operators.matmul(a[0], b[:, 0], out=number) is number
    assert_near(number, a[0].astype(np.float64) @ b[:, 0], np.abs(a[0]) @ np.abs(b[:, 0]))


def read_only(array):
    array.flags.writeable = False
    return array


WRONG = [
    ((np.ones((2, 3)), np.ones((4, 5))), {}, ValueError, "last extent of a"),
    ((np.ones((2, 3)), np.ones((3, 5), np.float32)), {}, TypeError, "b is float32, but a is float64"),
    ((np.ones(3), np.ones((4, 5))), {}, ValueError, "last extent of a"),
    ((np.array(1.0), np.ones((1, 1))), {}, ValueError, "^a: one dimension"),
    (([[1.0]], np.ones((1, 1))), {}, TypeError, "^a: an array"),
    ((np.ones((2, 3, 4)), np.ones((3, 4, 5))), {}, ValueError, "extents before the last two"),
    ((np.ones((2, 2), complex), np.ones((2, 2), complex)), {}, TypeError, "^a: dtype complex128"),
    ((np.ones((2, 2), bool), np.ones((2, 2), bool)), {}, TypeError, "^a: dtype bool"),
    ((np.ones((2, 2), ">f4"), np.ones((2, 2), ">f4")), {}, TypeError, "^a: dtype >f4"),
    ((np.ones((2, 2)), np.ones((2, 2))), {"out": np.ones((2, 3))}, ValueError, "^out: shape"),
    ((np.ones((2, 2)), np.ones((2, 2))), {"out": np.ones((2, 2), np.float32)}, TypeError, "^out is float32"),
    ((np.ones((2, 2)), np.ones((2, 2))), {"out": read_only(np.ones((2, 2)))}, ValueError, "^out: .*read-only"),
    ((np.ones((2, 2), np.int8),) * 2, {"out": np.ones((2, 2), np.int8)}, TypeError, "^out is int8; int32"),
    (
        (np.ones((2, 2)), np.ones((2, 2))),
        {"out": np.broadcast_to(np.ones(2), (2, 2))},
        ValueError,
        "^out: .*(overlap|read-only)",
    ),
]


@pytest.mark.parametrize("arguments, keywords, kind, word", WRONG)
def test_the_wrong_argument_is_named_and_nothing_written(arguments, keywords, kind, word):
    before = {name: array.copy() for name, array in keywords.items()}
    with pytest.raises(kind, match=word):
        operators.matmul(*arguments, **keywords)
    for name, array in keywords.items():
        np.testing.assert_array_equal(array, before[name])


# ------------------------------------------------------------------------------------------------- looking inside


def test_the_kernel_of_a_call_is_shown_for_both_targets():
    a = spec("float32[300, 300]")
    assert "staged B" in str(operators.matmul.lower(a, a).log)
    assert "shared memory" in str(operators.matmul.lower(a, a, target="cuda:sm_80").log)
    batch = spec("bfloat16[8, 20, 20]")
    assert operators.matmul.lower(batch, batch, target="cuda:sm_80").ptx()
    assert operators.matmul.lower(spec("float32[2, 3, 100, 100]"), spec("float32[2, 1, 100, 100]")).stages["unroll"]


@pytest.mark.parametrize("a, b", [((2, 3, 4), (4, 5)), ((3,), (3,)), ((2, 1, 3, 4), (3, 4, 5)), ((4, 3), (3,))])
def test_plain_python_means_the_same(a, b):
    a, b = normal(*a, dtype=np.float64), normal(*b, dtype=np.float64)
    np.testing.assert_allclose(operators.matmul.python(a, b), np.matmul(a, b), rtol=1e-12)
    np.testing.assert_allclose(operators.matmul(a, b), np.matmul(a, b), rtol=1e-12)


@pytest.mark.parametrize("m, n, k", [(1, 5, 3), (17, 9, 33), (0, 3, 2), (20, 1, 4)])
def test_products_run_as_gpu_kernels(m, n, k):
    a, b = normal(2, m, k), normal(2, k, n)
    for arguments in ((a[0], b[0]), (a, b)):
        steps, result = operators.matmul.steps(*arguments)
        for kernel, given_ in steps:
            call(kernel, *given_, target="cuda")
        assert_near(result, np.matmul(*(x.astype(np.float64) for x in arguments)))
