"""Arguments of any layout, and the block form at sizes that divide nothing: each on either target."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyschedule import ScheduleWarning, tile, unroll, vectorize
from tests.contract.oracle import BFLOAT16, HALF, RNG, numbers, same
from tests.support import call, on_every_target


@tile(i=4, j=8)
@vectorize("j", 4)
@unroll("i", 2)
def combine(x, y, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * 2 + y[j, i]


LAYOUTS = {
    "C": lambda a: a,
    "Fortran": np.asfortranarray,
    "rows reversed": lambda a: a[::-1],
    "columns reversed": lambda a: a[:, ::-1],
    "spread": lambda a: _inside(a, 2, 0),
    "inside": lambda a: _inside(a, 1, 3),
}


def _inside(a: np.ndarray, step: int, start: int) -> np.ndarray:
    outer = np.zeros(tuple(step * extent + 2 * start for extent in a.shape), a.dtype)
    view = outer[tuple(slice(start, start + step * extent, step) for extent in a.shape)]
    view[...] = a
    return view


@on_every_target
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_every_layout(layout, target):
    others = list(LAYOUTS.values())
    shapes = [(0, 4), (4, 0), (1, 1), (5, 13), (8, 16)]
    for dtype, shape in zip(["float32", "int16", "float64", "float16", "bool"], shapes, strict=True):
        x = layout(RNG.integers(0, 2 if dtype == "bool" else 50, shape).astype(dtype))
        y = others[shape[0] % 6](RNG.integers(0, 2 if dtype == "bool" else 50, shape[::-1]).astype(dtype))
        for place in (layout, others[shape[1] % 6]):
            out = place(np.zeros(shape, dtype))
            wanted = np.zeros(shape, dtype)
            combine.python(x, y, wanted)
            call(combine, x, y, out, target=target)
            np.testing.assert_array_equal(out, wanted)


@vectorize("l", 4)
@tile(i=2, l=4)
def turned(x, y):
    I, J, K, L = x.shape
    for i in range(I):
        for j in range(J):
            for k in range(K):
                for l in range(L):
                    y[l, k, j, i] = x[i][j][k][l] + i - j + k - l


@tile(i=2)
def no_axes(x, y):
    for i in range(3):
        y[()] += x[()] * i


@vectorize("i", 4)
def from_the_end(x, y, n):
    for i in range(n):
        y[-1 - i] = x[i - n]
    y[-1] = x[0]


def test_four_axes_none_and_negative_indices():
    for shape in ((2, 3, 4, 5), (1, 1, 1, 1), (3, 0, 2, 2)):
        same(turned, numbers("float64", *shape), np.zeros(shape[::-1]))
    same(no_axes, np.array(2.0), np.array(1.0))
    for n in (1, 3, 13):
        same(from_the_end, numbers("float64", n), np.zeros(n), n)


@vectorize("i", 4)
def moved(x, y, k):
    for i in range(len(y)):
        y[i] = x[i + k]


def test_an_index_outside_is_refused_with_both_ends_before_anything_is_written():
    for k in (0, -3, -10):
        same(moved, np.arange(10.0), np.zeros(10), k)
    for k in (1, -13):
        y = np.zeros(10)
        with pytest.raises(ValueError, match=rf"^x: axis 0 .* indices k to k \+ y.shape\[0\] - 1 \(k = {k},"):
            moved(np.arange(10.0), y, k)
        assert not y.any()


@tile(i=8)
@vectorize("j", 4)
def bumped(x, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] + 1


def test_one_kernel_serves_every_extent(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PYSCHEDULE_CACHE_DIR", str(tmp_path))
    with caplog.at_level("INFO", logger="pyschedule"):
        for n in range(1, 30):
            x = np.ones((n, n + 3))
            bumped(x, out := np.zeros_like(x))
            assert (out == 2).all()
    assert sum("lowered for" in record.getMessage() for record in caplog.records) == 1


# ------------------------------------------------------------------------------------------------ the block form


@tile(input_shapes=[(37, 29), (29, 23)], tile_shapes=[(8, 8), (8, 8)])
@vectorize(width=8, dtype="half")
@unroll(factors=[4, 4])
def product(A_block, B_block):
    C_tile = [[0.0 for _ in range(8)] for _ in range(8)]
    for i in range(8):
        for j in range(8):
            for k in range(8):
                C_tile[i][j] += A_block[i][k] * B_block[k][j]
    return C_tile


@on_every_target
@pytest.mark.parametrize("dtype", [BFLOAT16, "int32"], ids=str)
def test_a_block_product_has_the_dtype_of_its_inputs(dtype, target):
    a, b = RNG.integers(-3, 4, (37, 29)).astype(dtype), RNG.integers(-3, 4, (29, 23)).astype(dtype)
    got = call(product, a, b, target=target)
    assert got.dtype == dtype
    wanted = a.astype(float) @ b.astype(float)
    np.testing.assert_allclose(got.astype(float), wanted, rtol=HALF if got.itemsize == 2 else 0)


@tile(input_shapes=[(None, None), (None, None)], tile_shapes=[(16, 64), (64, 8)])
@vectorize(width=4)
@unroll(factors=[2, 2])
def free(A, B):
    C = [[0.0 for _ in range(8)] for _ in range(16)]
    for i in range(16):
        for j in range(8):
            for k in range(64):
                C[i][j] += A[i][k] * B[k][j]
    return C


@on_every_target
def test_free_extents_below_at_and_above_the_tile(target):
    for M, N, K in ((1, 1, 1), (5, 3, 2), (17, 9, 65), (3, 0, 4), (0, 2, 2), (4, 4, 0)):
        a, b = RNG.integers(-3, 4, (M, K)).astype(float), RNG.integers(-3, 4, (K, N)).astype(float)
        np.testing.assert_array_equal(call(free, a, b, target=target), a @ b)


def windows(X, W):
    Y = [[[[0.0 for _ in range(5)] for _ in range(4)] for _ in range(2)] for _ in range(1)]
    for n in range(1):
        for o in range(2):
            for y in range(4):
                for x in range(5):
                    for c in range(3):
                        for r in range(3):
                            for s in range(3):
                                Y[n][o][y][x] += X[n][c][y + r][x + s] * W[o][c][r][s]
    return Y


@on_every_target
def test_windows_that_start_before_the_array(target):
    pad = 1
    shapes = [(1, 3, 5, 7), (3, 3, 3, 3)]
    tiled = tile(input_shapes=shapes, tile_shapes=[(1, 3, 4, 5), (2, 3, 3, 3)], pad=pad)
    kernel = tiled(vectorize(width=4)(unroll(factors=[2, 2])(windows)))
    x, w = (RNG.integers(-3, 4, shape).astype(float) for shape in shapes)
    around = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    rows, columns = 5 - 2 + 2 * pad, 7 - 2 + 2 * pad
    wanted = sum(
        np.einsum("nchw,oc->nohw", around[:, :, r : r + rows, s : s + columns], w[:, :, r, s])
        for r in range(3)
        for s in range(3)
    )
    np.testing.assert_array_equal(call(kernel, x, w, target=target), wanted)


@tile(input_shapes=[(50,)], tile_shapes=[(8,)])
@vectorize(width=4)
def softmax(x):
    y = [0.0 for _ in range(8)]
    most = -math.inf
    for i in range(8):
        most = max(most, x[i])
    total = 0.0
    for i in range(8):
        total += math.exp(x[i] - most)
    for i in range(8):
        y[i] = math.exp(x[i] - most) / total
    return y


@on_every_target
def test_reductions_run_over_the_whole_axis(target):
    x = RNG.standard_normal(50)
    wanted = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    np.testing.assert_allclose(call(softmax, x, target=target), wanted, rtol=1e-12)


def test_a_divisor_that_equals_a_tile_draws_a_warning():
    @tile(input_shapes=[(11, 77)], tile_shapes=[(2, 16)])
    def centred(X):
        Y = [[0.0 for _ in range(16)] for _ in range(2)]
        for i in range(2):
            mean = 0.0
            for j in range(16):
                mean += X[i][j]
            mean /= 16
            for j in range(16):
                Y[i][j] = X[i][j] - mean
        return Y

    with pytest.warns(ScheduleWarning, match=r"divides by the tile extent 16 of a 77-wide axis.*X\.shape\[1\]"):
        centred(np.ones((11, 77)))
