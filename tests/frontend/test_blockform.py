"""The block form: bodies that speak of one tile, lifted to whole arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyschedule import tile
from pyschedule.errors import ScheduleError
from pyschedule.frontend.build import Block, Built, build
from pyschedule.frontend.parser import parse
from pyschedule.ir import checker
from pyschedule.ir.nodes import Alloc, Array, For
from pyschedule.ir.types import FLOAT32
from pyschedule.ir.visitors import arrays, walk
from tests.frontend.execution import built, explicit, interpreted, nest, signature_of


def run(function: Callable[..., Any], block: Block, *args: Any) -> tuple[Built, Any]:
    result = built(function, *args, block=block)
    return result, interpreted(result, *args)


def integers(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    """Small whole numbers, so that any order of summation is exact."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


def gemm_tiled(A_block, B_block):
    C_tile = [[0.0 for _ in range(128)] for _ in range(128)]
    for i in range(128):
        for j in range(128):
            for k in range(128):
                C_tile[i][j] += A_block[i][k] * B_block[k][j]
    return C_tile


def test_the_articles_gemm_lifts() -> None:
    block = Block(((4096, 4096), (4096, 4096)), ((128, 128), (128, 128)))
    arguments = signature_of(np.zeros((1, 1), np.float16), np.zeros((1, 1), np.float16))
    result = build(parse(gemm_tiled), arguments, block)
    checker.check(explicit(result.kernel))
    assert result.tile_sizes == (("i", (128,)), ("j", (128,)), ("k", (128,)))
    assert result.notices == () and result.checks == ()
    trips = {
        loop.source: loop.max_trip for loop in walk(result.kernel.body) if isinstance(loop, For) and loop.source
    }
    assert trips == {"i": 4096, "j": 4096, "k": 4096}
    out = result.kernel.array_params[-1]
    assert (out.name, str(out.dtype), [extent.value for extent in out.shape]) == ("C_tile", "float16", [4096, 4096])
    from pyschedule.ir.printer import format_kernel

    assert format_kernel(result.kernel).splitlines()[-1].strip() == "C_tile[i, j] += A_block[i, k] * B_block[k, j]"


@pytest.mark.parametrize(("m", "n", "k"), [(5, 7, 3), (1, 1, 1), (128, 3, 130), (0, 2, 3), (2, 3, 0)])
def test_gemm_of_any_extents(m: int, n: int, k: int) -> None:
    A, B = integers(m, k), integers(k, n, seed=1)
    free = Block(((None, None), (None, None)), ((128, 128), (128, 128)))
    result, C = run(gemm_tiled, free, A, B)
    np.testing.assert_array_equal(C, A @ B)
    assert C.dtype == np.float32
    assert [size for _, size in result.tile_sizes] == [(128,)] * 3
    fixed = Block(((m, k), (k, n)), ((128, 128), (128, 128)))
    result, C = run(gemm_tiled, fixed, A, B)
    np.testing.assert_array_equal(C, A @ B)
    # A tile larger than the extent is the extent: nothing is left to tile.
    assert dict(result.tile_sizes) == {
        name: (128,) for name, extent in zip("ijk", (m, n, k), strict=True) if extent > 128
    }


def test_free_extents_that_must_agree_are_checked_at_the_call() -> None:
    free = Block(((None, None), (None, None)), ((128, 128), (128, 128)))
    with pytest.raises(
        ValueError, match=r"the loop over 'k' spans A_block.shape.1. and B_block.shape.0., which differ"
    ):
        run(gemm_tiled, free, integers(2, 3), integers(4, 2))


def test_fixed_extents_that_disagree_are_refused() -> None:
    block = Block(((8, 9), (10, 8)), ((4, 4), (4, 4)))
    with pytest.raises(ScheduleError, match=r"spans A_block.shape.1. and B_block.shape.0., which differ: 9 and 10"):
        built(_small_gemm, integers(8, 9), integers(10, 8), block=block)


def _small_gemm(A_block, B_block):
    C = np.zeros((4, 4))
    for i in range(4):
        for j in range(A_block.shape[0] * 0 + 4):
            for k in range(A_block.shape[1]):
                C[i, j] += A_block[i, k] * B_block[k, j]
    return C


def test_arrays_of_another_shape_are_refused_naming_both() -> None:
    block = Block(((8, 9), (9, 8)), ((4, 4), (4, 4)))
    from pyschedule.ir.signature import ArraySpec, Signature

    wrong = Signature((ArraySpec("float32", (8, 7)), ArraySpec("float32", (None, 8))))
    with pytest.raises(
        ValueError, match=r"argument 'A_block' of .* has the shape \(8, 7\), 'input_shapes' says \(8, 9\)"
    ):
        build(parse(_small_gemm), wrong, block)


# ------------------------------------------------------------------------------------------ convolution


def conv_28(X_tile, W_tile):
    Y = np.zeros((1, 256, 28, 28))
    for n in range(1):
        for k in range(256):
            for h in range(28):
                for w in range(28):
                    for c in range(128):
                        for r in range(3):
                            for s in range(3):
                                Y[n][k][h][w] += X_tile[n][c][h + r][w + s] * W_tile[k][c][r][s]
    return Y


def conv_26(X_tile, W_tile):
    Y = [[[[0.0 for _ in range(26)] for _ in range(26)] for _ in range(256)] for _ in range(1)]
    for n in range(1):
        for k in range(256):
            for h in range(26):
                for w in range(26):
                    for c in range(128):
                        for r in range(3):
                            for s in range(3):
                                Y[n][k][h][w] += X_tile[n][c][h + r][w + s] * W_tile[k][c][r][s]
    return Y


@pytest.mark.parametrize(("function", "size"), [(conv_28, 28), (conv_26, 26)])
def test_the_articles_conv2d_lifts(function: Callable[..., Any], size: int) -> None:
    block = Block(((1, 256, 56, 56), (512, 256, 3, 3)), ((1, 128, 28, 28), (256, 128, 3, 3)))
    arguments = signature_of(np.zeros((1,) * 4, np.float32), np.zeros((1,) * 4, np.float32))
    result = build(parse(function), arguments, block)
    checker.check(explicit(result.kernel))
    assert dict(result.tile_sizes) == {"k": (256,), "h": (size,), "w": (size,), "c": (128,)}
    assert [extent.value for extent in result.kernel.array_params[-1].shape] == [1, 512, 54, 54]
    trips = {
        loop.source: loop.max_trip for loop in walk(result.kernel.body) if isinstance(loop, For) and loop.source
    }
    assert trips == {"n": 1, "k": 512, "h": 54, "w": 54, "c": 256, "r": 3, "s": 3}


def conv_reference(X, W, stride=(1, 1), dilation=(1, 1), pad=(0, 0)):
    X = np.pad(X, ((0, 0), (0, 0), (pad[0],) * 2, (pad[1],) * 2))
    N, _, H, V = X.shape
    K, _, R, S = W.shape
    P = (H - (R - 1) * dilation[0] - 1) // stride[0] + 1
    Q = (V - (S - 1) * dilation[1] - 1) // stride[1] + 1
    Y = np.zeros((N, K, P, Q), X.dtype)
    for r in range(R):
        for s in range(S):
            rows = X[:, :, r * dilation[0] :][:, :, : (P - 1) * stride[0] + 1 : stride[0]]
            part = rows[..., s * dilation[1] :][..., : (Q - 1) * stride[1] + 1 : stride[1]]
            Y += np.einsum("nchw,kc->nkhw", part, W[:, :, r, s])
    return Y


def strided(X, W):
    Y = [[[[0.0 for _ in range(3)] for _ in range(4)] for _ in range(2)] for _ in range(1)]
    for n in range(1):
        for k in range(2):
            for h in range(4):
                for w in range(3):
                    for c in range(2):
                        for r in range(2):
                            for s in range(3):
                                Y[n][k][h][w] += X[n][c][2 * h + r][w + s * 2] * W[k][c][r][s]
    return Y


@pytest.mark.parametrize("free", [False, True])
@pytest.mark.parametrize("pad", [0, 1, 2, ((0, 0, 0, 1), (0, 0, 0, 0))])
def test_windows_with_stride_dilation_and_padding(free: bool, pad: Any) -> None:
    X, W = integers(2, 3, 12, 11), integers(3, 3, 2, 3, seed=1)
    shapes = tuple((None,) * 4 if free else array.shape for array in (X, W))
    block = Block(shapes, ((1, 2, 8, 7), (2, 2, 2, 3)), pad)
    result, Y = run(strided, block, X, W)
    sides = (pad, pad) if isinstance(pad, int) else pad[0][2:]
    np.testing.assert_array_equal(Y, conv_reference(X, W, (2, 1), (1, 2), sides))
    sizes = dict(result.tile_sizes)
    assert sizes["h"] == (4,) and sizes["w"] == (3,) and sizes["c"] == (2,)
    # The window's own loops span all of it: only where the extent is not known is there anything to tile.
    assert ("r" in sizes) == free


def test_conv2d_at_small_odd_sizes() -> None:
    X, W = integers(1, 5, 7, 6), integers(3, 5, 3, 3, seed=1)
    for function in (conv_28, conv_26):
        block = Block((X.shape, W.shape), ((1, 128, 28, 28), (256, 128, 3, 3)))
        _, Y = run(function, block, X, W)
        np.testing.assert_array_equal(Y, conv_reference(X, W))


@pytest.mark.parametrize("free", [False, True])
def test_a_window_that_is_larger_than_its_input_is_refused(free: bool) -> None:
    def sums(X):
        total = [0.0 for _ in range(8)]
        for i in range(8):
            for r in range(3):
                total[i] += X[i + r]
        return total

    kernel = tile(input_shapes=[(None if free else 1,)], tile_shapes=[(8,)])(sums)
    with pytest.raises(ValueError if free else ScheduleError, match="the loop over 'i' has no room: the window"):
        kernel(np.ones(1, np.float32))
    assert kernel(np.ones(2, np.float32)).shape == (0,) if free else True


def test_a_pool_window_keeps_its_own_extent() -> None:
    def pool(X):
        Y = [[0.0 for _ in range(4)] for _ in range(4)]
        for i in range(4):
            for j in range(4):
                m = -math.inf
                for r in range(2):
                    for s in range(2):
                        m = max(m, X[2 * i + r][2 * j + s])
                Y[i][j] = m
        return Y

    X = integers(10, 13)
    result, Y = run(pool, Block((X.shape,), ((8, 8),)), X)
    np.testing.assert_array_equal(Y, X[:10, :12].reshape(5, 2, 6, 2).max((1, 3)))
    assert dict(result.tile_sizes) == {"i": (4,), "j": (4,)}


def test_a_stencil_keeps_its_border() -> None:
    def blur(X):
        Y = np.zeros((16,))
        for i in range(1, 15):
            Y[i] = X[i - 1] + X[i] + X[i + 1]
        return Y

    X = integers(37)
    _, Y = run(blur, Block((X.shape,), ((16,),)), X)
    wanted = np.zeros(37, np.float32)
    wanted[1:-1] = X[:-2] + X[1:-1] + X[2:]
    np.testing.assert_array_equal(Y, wanted)


# ------------------------------------------------------------------------------------------ layer norm


def layer_norm(X_tile):
    Y = [[0.0 for _ in range(64)] for _ in range(1024)]
    for i in range(1024):
        mean = 0.0
        for j in range(64):
            mean += X_tile[i][j]
        mean = mean / X_tile.shape[1]
        var = 0.0
        for j in range(64):
            var += (X_tile[i][j] - mean) * (X_tile[i][j] - mean)
        scale = 1.0 / math.sqrt(var / X_tile.shape[1] + 1e-5)
        for j in range(64):
            Y[i][j] = (X_tile[i][j] - mean) * scale
    return Y


def test_layer_norm_normalises_the_whole_row() -> None:
    block = Block(((1024, 768),), ((1024, 64),))
    result = build(parse(layer_norm), signature_of(np.zeros((1, 1), np.float32)), block)
    checker.check(explicit(result.kernel))
    assert result.tile_sizes == (("j", (64,)),) and result.notices == ()
    assert [extent.value for extent in result.kernel.array_params[-1].shape] == [1024, 768]

    X = np.random.default_rng(0).normal(3, 2, (5, 77)).astype(np.float32)
    result, Y = run(layer_norm, Block(((None, None),), ((1024, 64),)), X)
    wanted = (X - X.mean(1, keepdims=True)) / np.sqrt(X.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(Y, wanted, rtol=1e-4, atol=1e-5)
    assert dict(result.tile_sizes) == {"i": (1024,), "j": (64,)}


def test_a_temporary_of_the_tiles_shape_is_lifted_with_its_loops() -> None:
    def centred(X):
        Y = np.zeros((8, 64), np.float32)
        for i in range(8):
            row = [0.0 for _ in range(64)]
            total = 0.0
            for j in range(64):
                row[j] = X[i][j] * 2
                total += row[j]
            for j in range(64):
                Y[i][j] = row[j] * 8 - total
        return Y

    X = integers(10, 100, dtype="float16")
    result, Y = run(centred, Block((X.shape,), ((8, 64),)), X)
    np.testing.assert_array_equal(Y, X.astype(np.float32) * 16 - 2 * X.astype(np.float32).sum(1, keepdims=True))
    assert dict(result.tile_sizes) == {"i": (8,), "j": (64,)}
    (row,) = [stmt.array for stmt in walk(result.kernel.body) if isinstance(stmt, Alloc)]
    assert (row.dtype, row.shape[0].value) == (FLOAT32, 100)
    assert str(arrays(result.kernel)["Y"].dtype) == "float32"  # asked for, so not the inputs' float16


@pytest.mark.parametrize("form", ["mean / 64", "mean * (1.0 / 64)", "0.015625 * mean", "mean / size"])
def test_a_divisor_that_is_the_tiles_extent_draws_a_notice(form: str, tmp_path: Any) -> None:
    path = tmp_path / "rows.py"
    path.write_text(
        "def rows(X):\n    Y = [0.0 for _ in range(4)]\n    size = 64\n    for i in range(4):\n        mean = 0.0\n"
        f"        for j in range(64):\n            mean += X[i][j]\n        Y[i] = {form}\n    return Y\n"
    )
    space: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    X = integers(4, 768)
    result, Y = run(space["rows"], Block((X.shape,), ((4, 64),)), X)
    (notice,) = result.notices
    assert "divides by the tile extent 64 of a 768-wide axis" in notice.message and "X.shape[1]" in notice.message
    assert notice.loc is not None and notice.loc.line == 8
    np.testing.assert_array_equal(Y, X.sum(1) / 64)  # the literal keeps its value


def test_loops_of_one_name_with_different_tiles_are_told_apart() -> None:
    def two(X, Z):
        for j in range(8):
            X[j] += 1
        for j in range(4):
            Z[j] += 1

    result = built(two, integers(20), integers(30), block=Block(((20,), (30,)), ((8,), (4,))))
    assert result.tile_sizes == (("j#1", (8,)), ("j#2", (4,)))


def test_a_bound_written_as_a_shape_is_the_whole_extent() -> None:
    def scale(X):
        for i in range(X.shape[0]):
            for j in range(len(X)):
                X[i, j] *= X.shape[1]

    X = integers(6, 6)
    result, _ = run(scale, Block(((None, None),), ((4, 3),)), X)
    np.testing.assert_array_equal(X, integers(6, 6) * 6)
    assert result.tile_sizes == (("i", (4,)), ("j", (3,)))
    assert len(result.checks) <= 1


def test_arrays_passed_for_the_result_are_lifted_too() -> None:
    def gemm(A, B, C):
        for i in range(4):
            for j in range(4):
                for k in range(4):
                    C[i][j] += A[i][k] * B[k][j]

    A, B, C = integers(5, 6), integers(6, 7, seed=1), integers(5, 7, seed=2)
    wanted = C + A @ B
    run(gemm, Block((A.shape, B.shape, C.shape), ((4, 4),) * 3), A, B, C)
    np.testing.assert_array_equal(C, wanted)


@pytest.mark.parametrize(
    ("function", "block", "says"),
    [
        (gemm_tiled, Block(((8, 8),), ((4, 4),)), "has 2 array parameters"),
        (gemm_tiled, Block(((8, 8, 8), (8, 8)), ((4, 4, 4), (4, 4))), "'A_block' has 2 axes"),
        (gemm_tiled, Block(((8, 8), (8, 8)), ((4, 0), (4, 4))), "no size"),
        (gemm_tiled, Block(((8, 8), (8, 8)), ((4, 4), (4, 4))), "runs to 128, the tile of A_block.shape.0. to 4"),
        (
            gemm_tiled,
            Block(((256, 256), (256, 256)), ((128, 128), (64, 128))),
            "'k' goes through tiles of two sizes: that of A_block.shape.1. has 128, that of B_block.shape.0. 64",
        ),
        (gemm_tiled, Block(((8, 8), (8, 8)), ((128, 128), (128, 128)), 1), "no window slides"),
        (gemm_tiled, Block(((8, 8), (8, 8)), ((128, 128), (128, 128)), ((1,), (1, 1))), "the pad"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(function: Callable[..., Any], block: Block, says: str) -> None:
    with pytest.raises(ScheduleError, match=says):
        built(function, integers(8, 8), integers(8, 8), block=block)


def test_what_cannot_be_lifted_is_refused() -> None:
    def first(X):
        for i in range(4):
            X[i] = X[0]

    def backwards(X):
        for i in range(4):
            X[3 - i] += 1

    def downwards(X):
        for i in range(3, -1, -1):
            X[i] += 1

    def by_argument(X, n):
        for i in range(n):
            X[i] += 1

    def shifted(X):
        row = [0.0] * 5
        for i in range(4):
            row[i + 1] = X[i]
            X[i] = row[i]

    for function, says in (
        (first, "no sum of loop counters"),
        (backwards, "runs backwards"),
        (downwards, "does not run upwards"),
        (shifted, "index it by 'i' alone"),
    ):
        with pytest.raises(ScheduleError, match=says):
            built(function, integers(8), block=Block(((8,),), ((4,),)))
    with pytest.raises(ScheduleError, match="must be the tile's extent"):
        built(by_argument, integers(8), 3, block=Block(((8,),), ((4,),)))


def test_the_result_is_a_fresh_aligned_array() -> None:
    block = Block(((4096, 4096), (4096, 4096)), ((128, 128), (128, 128)))
    arguments = signature_of(np.zeros((1, 1), np.float32), np.zeros((1, 1), np.float32))
    out = build(parse(gemm_tiled), arguments, block).kernel.array_params[-1]
    assert isinstance(out, Array) and (out.unit_axis, out.divisor, out.space) == (1, 16, "global")
    assert nest(gemm_tiled, integers(2, 2), integers(2, 2), block=Block(((None,) * 2,) * 2, ((128, 128),) * 2))
