"""The block form at small shapes, on both targets: tiles that divide nothing, halos, reductions across tiles."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyschedule import tile, unroll, vectorize
from tests.support import call, on_every_target

RNG = np.random.default_rng(3)

pytestmark = pytest.mark.filterwarnings("ignore::pyschedule.ScheduleWarning")


@tile(input_shapes=[(37, 21), (21, 43)], tile_shapes=[(16, 8), (8, 16)])
@vectorize(width=4)
@unroll(factors=[2, 2])
def product(A_block, B_block):
    C_tile = [[0.0 for _ in range(16)] for _ in range(16)]
    for i in range(16):
        for j in range(16):
            for k in range(8):
                C_tile[i][j] += A_block[i][k] * B_block[k][j]
    return C_tile


def convolution(pad):
    @tile(input_shapes=[(1, 5, 11, 13), (6, 5, 3, 3)], tile_shapes=[(1, 4, 6, 6), (4, 4, 3, 3)], pad=pad)
    @unroll(factors=[2, 2])
    def conv2d(X_block, W_block):
        Y_tile = [[[[0.0 for _ in range(4)] for _ in range(4)] for _ in range(4)] for _ in range(1)]
        for n in range(1):
            for o in range(4):
                for y in range(4):
                    for x in range(4):
                        for c in range(4):
                            for r in range(3):
                                for s in range(3):
                                    Y_tile[n][o][y][x] += X_block[n][c][y + r][x + s] * W_block[o][c][r][s]
        return Y_tile

    return conv2d


@tile(input_shapes=[(9, 70)], tile_shapes=[(4, 16)])
@vectorize(width=4)
@unroll(factors=[2])
def layer_norm(X_tile):
    Y_tile = [[0.0 for _ in range(16)] for _ in range(4)]
    for i in range(4):
        mean = 0.0
        for j in range(16):
            mean += X_tile[i][j]
        mean /= X_tile.shape[1]
        variance = 0.0
        for j in range(16):
            deviation = X_tile[i][j] - mean
            variance += deviation * deviation
        scale = 1.0 / math.sqrt(variance / X_tile.shape[1] + 1e-5)
        for j in range(16):
            Y_tile[i][j] = (X_tile[i][j] - mean) * scale
    return Y_tile


def normal(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


@on_every_target
@pytest.mark.parametrize("dtype, tolerance", [(np.float16, 1e-3), (np.float32, 1e-5), (np.float64, 1e-12)])
def test_product(target, dtype, tolerance):
    A, B = normal(37, 21, dtype=dtype), normal(21, 43, dtype=dtype)
    C = call(product, A, B, target=target)
    assert C.dtype == dtype and C.shape == (37, 43)
    expected = A.astype(np.float64) @ B
    assert np.abs(C - expected).max() <= tolerance * np.abs(expected).max()


@on_every_target
@pytest.mark.parametrize("pad", [0, 1])
def test_convolution_keeps_its_windows_inside_the_padded_input(target, pad):
    X, W = normal(1, 5, 11, 13), normal(6, 5, 3, 3)
    kernel = convolution([(0, 0, pad, pad), (0, 0, 0, 0)])
    Y = call(kernel, X, W, target=target)
    wide = np.pad(X.astype(np.float64), [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3))
    expected = np.einsum("ncyxrs,ocrs->noyx", windows, W)
    assert Y.shape == expected.shape
    np.testing.assert_allclose(Y, expected, rtol=1e-4, atol=1e-5)


@on_every_target
def test_layer_norm_runs_over_whole_rows(target):
    X = normal(9, 70)
    Y = call(layer_norm, X, target=target)
    wide = X.astype(np.float64)
    expected = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(Y, expected, rtol=1e-4, atol=1e-5)


def test_an_order_a_stage_and_a_parallel_piece_beside_the_shapes():
    def blocks(A_block, B_block):
        C_tile = [[0.0 for _ in range(16)] for _ in range(8)]
        for i in range(8):
            for j in range(16):
                for k in range(32):
                    C_tile[i][j] += A_block[i][k] * B_block[k][j]
        return C_tile

    kernel = tile(
        input_shapes=[(64, 96), (96, 80)],
        tile_shapes=[(8, 32), (32, 16)],
        order="j.0 i.0 k.0 k.1 i.1 j.1",
        stage={"B_block": "k.0"},
        parallel="j.0",
    )(blocks)
    a, b = np.arange(64 * 96.0).reshape(64, 96) % 7, np.arange(96 * 80.0).reshape(96, 80) % 5
    np.testing.assert_array_equal(kernel(a, b), a @ b)
    log = str(kernel.lower(a, b).log)
    assert "- Applied Tiling: (8, 32), (32, 16)" in log and "order: j.0 i.0 k.0 k.1 i.1 j.1" in log
    assert "loop 'j.0' runs on the cores" in log
    assert log.count("B_block") == 1 and "staged B_block at 'k.0' as 32 x 16" in log
