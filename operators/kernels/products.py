"""Matrix products: three loops, and a schedule for each target; and what goes over a matrix before or after."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from operators.activations import GELU, GELU_TANH, RELU, ROOT_OF_HALF, SILU, TANH_CURVE, TANH_SLOPE
from pyschedule import spec, tile, unroll, vectorize


# On the CPU: 6 rows by 64 columns of C stay in vector registers while the depth k runs; a part of B that the
# second cache holds is packed once for each (j.0, k.0), in the order in which it is read, and every 6 rows of A go
# over all of it.  On a GPU: a block owns 128 x 128 of C, a thread 8 x 8.
@tile(
    i=(96, 6),
    j=(256, 64),
    k=1024,
    order="j.0 k.0 i.0 i.1 j.1 k.1 i.2 j.2",
    stage={"B": "k.0"},
    parallel="i.0",
    target="cpu",
)
@vectorize("j", width=16, target="cpu")
@unroll("i", target="cpu")
@unroll("k", 4, target="cpu")
@tile(i=(128, 8), j=(128, 8), k=16, stage={"A": "k.0", "B": "k.0"}, target="cuda")
@vectorize("j", width=4, target="cuda")
@unroll("i", target="cuda")
@unroll("j", target="cuda")
def gemm_kernel(A, B, C):
    """`C += A @ B`, for A: (M, K), B: (K, N), C: (M, N)."""
    M, K = A.shape
    _, N = B.shape
    for i in range(M):
        for j in range(N):
            for k in range(K):
                C[i, j] += A[i, k] * B[k, j]


# ------------------------------------------------------------------------------------- schedules of products

#: How a product `Y[i, j] = f(sum over k)` is computed, by its shape and layout: see `schedule`.
BLOCKED, DEEP, TURNED, TURNED_DEEP = "blocked", "deep", "turned", "turned-deep"
WIDENED, WIDENED_DEEP, NARROW, DEEP_FEW = "widened", "widened-deep", "narrow", "deep-few"
SMALL, SMALL_THREE, SMALL_TWO, ROW, DOTS = "small", "small-3", "small-2", "row", "dots"
MATRIX, MATRIX_DEEP = "matrix", "matrix-deep"

#: Rows and vectors of columns of the part of the result that stays in registers, where B is read where it lies.
SMALL_TILES = {SMALL: (6, 4), SMALL_THREE: (8, 3), SMALL_TWO: (8, 2)}


def schedule(form: str, lanes: int, left: str = "A", right: str = "B", batch: str = "") -> Callable[[Any], Any]:
    """The decorators of a product of `left` and `right`, with `lanes` elements in a vector register.

    A `batch` is the name of a loop around the product; its products are then made one by one (`SMALL` and its
    like, `ROW` or `DOTS`).

    On the CPU a part of the result stays in vector registers while the depth k runs:

    - `BLOCKED`: 6 rows by 4 vectors.  16 vectors of B are packed at a time, in the order in which they are read;
      they stay in the second cache (up to a depth of 1024 or so) while every 6 rows of A go over all of them.
    - `NARROW`: the same with 8 vectors of B.
    - `DEEP`: as `BLOCKED`, 1024 steps of k at a time; in between the sums are in memory.
    - `DEEP_FEW`: the same with 512 steps, for results of few rows, where packing is much of the work.
    - `TURNED`, `TURNED_DEEP`: so too with 12 rows by 2 vectors, and A packed as well, for an A whose columns are
      contiguous.
    - `MATRIX`: blocks of 32 rows by 32 columns, for a matrix unit.  512 columns of B are packed at a time, and
      every 32 rows of A, packed or where they lie, go over all of them.
    - `MATRIX_DEEP`: the same with 256 columns, 2048 steps of k at a time.
    - `WIDENED`, `WIDENED_DEEP`: as `BLOCKED` and `DEEP`, with A packed too, for halves: the copies hold float32.
    - `SMALL`: as `BLOCKED`, with B read where it lies; `SMALL_THREE` and `SMALL_TWO`: 8 rows by 3 or 2 vectors.
    - `ROW`: for results of few rows.  16 rows of B are read at a time, from end to end, and their multiples added
      to 128 vectors of sums in the first cache.
    - `DOTS`: 4 columns of one row, with k in lanes: for results of few rows where the columns of B are contiguous.

    On a GPU: a block owns 128 x 128 of the result, a thread 8 x 8.
    """
    panel = 4 * lanes

    def packed(rows: int, columns: int, depth: int | None, also: str = "", vectors: int = 16) -> list[Any]:
        """Tiles of rows by columns in registers, in a block of 96 rows by so many vectors.

        `depth` cuts k, `also` is packed too.
        """
        cut: dict[str, Any] = {"k": depth} if depth else {}
        inner, outer = ("k.1", "k.0") if depth else ("k", "")
        stage = {right: outer or "j.0"} | ({also: "i.0"} if also else {})
        order = f"j.0 {outer} i.0 i.1 j.1 {inner} i.2 j.2"
        sizes = {"i": (96, rows), "j": (vectors * lanes, columns)} | cut
        return [
            tile(**sizes, order=order, stage=stage, parallel="j.0 i.0", target="cpu"),
            vectorize("j", width=lanes, target="cpu"),
            unroll("i", rows, target="cpu"),
            unroll("k", 4, target="cpu"),
        ]

    def in_place(rows: int, vectors: int) -> list[Any]:
        return [
            tile(
                i=(48, rows),
                j=vectors * lanes,
                order=f"{batch} i.0 j.0 i.1 k i.2 j.1",
                parallel=batch or "i.0 j.0",
                target="cpu",
            ),
            vectorize("j", width=lanes, target="cpu"),
            unroll("i", rows, target="cpu"),
            unroll("k", 4, target="cpu"),
        ]

    def for_matrix_unit(columns: int, depth: int | None) -> list[Any]:
        sizes: dict[str, Any] = {"i": 32, "j": (columns, 32)} | ({"k": depth} if depth else {})
        inner, outer = ("k.1", "k.0") if depth else ("k", "")
        return [
            tile(
                **sizes,
                order=f"j.0 {outer} i.0 j.1 {inner} i.1 j.2",
                stage={left: "i.0", right: outer or "j.0"},
                parallel="i.0",
                target="cpu",
            ),
            vectorize("j", width=lanes, target="cpu"),
        ]

    on_cpu = {
        BLOCKED: packed(6, panel, None),
        NARROW: packed(6, panel, None, vectors=8),
        DEEP: packed(6, panel, 1024),
        DEEP_FEW: packed(6, panel, 512),
        TURNED: packed(12, panel // 2, None, left),
        TURNED_DEEP: packed(12, panel // 2, 1024, left),
        MATRIX: for_matrix_unit(512, None),
        MATRIX_DEEP: for_matrix_unit(256, 2048),
        WIDENED: packed(6, panel, None, left),
        WIDENED_DEEP: packed(6, panel, 1024, left),
        **{form: in_place(*sizes) for form, sizes in SMALL_TILES.items()},
        ROW: [
            tile(j=128 * lanes, k=16, order=f"{batch} j.0 k.0 i j.1 k.1", parallel=batch or "j.0", target="cpu"),
            vectorize("j", width=lanes, target="cpu"),
            unroll("k", 16, target="cpu"),
        ],
        DOTS: [
            tile(j=4, order=f"{batch} j.0 i k j.1", parallel=batch or "j.0", target="cpu"),
            vectorize("k", width=lanes, target="cpu"),
            unroll("j", 4, target="cpu"),
        ],
    }
    block, part = (128, 8) if lanes >= 16 else (64, 4)
    on_gpu = [
        tile(i=(block, part), j=(block, part), k=16, stage={left: "k.0", right: "k.0"}, target="cuda"),
        vectorize("j", width=part // 2, target="cuda"),
        unroll("i", target="cuda"),
        unroll("j", target="cuda"),
    ]

    def apply(nest: Any) -> Any:
        for decorator in reversed([*on_cpu[form], *on_gpu]):
            nest = decorator(nest)
        return nest

    return apply


@cache
def on_matrix_unit(dtype: str) -> bool:
    """Whether this machine has a matrix unit, or instructions like one's, for such elements."""
    units = integer_sum_kernel.lower(*[spec("int32[1, 1]")] * 2, 1, 1).target.matrix
    return any(dtype in unit.types for unit in units)


# ------------------------------------------------------------------------------------------------- the nests


@cache
def product_kernel(form: str, lanes: int) -> Any:
    """The kernel of a schedule for elements of which a register holds `lanes`."""

    @schedule(form, lanes)
    def product(A, B, C):
        """`C = A @ B`, for A: (M, K), B: (K, N), C: (M, N); one rounding an element."""
        M, K = A.shape
        _, N = B.shape
        for i in range(M):
            for j in range(N):
                acc = 0.0
                for k in range(K):
                    acc += A[i, k] * B[k, j]
                C[i, j] = acc

    return product


@cache
def integer_product_kernel(form: str, lanes: int) -> Any:
    """As `product_kernel`, for integers, with sums in the result's width: int64 in 8 lanes, else int32."""
    wide = np.int64 if lanes < 16 else np.int32

    if form in (MATRIX, MATRIX_DEEP):  # the unit adds to where the result lies

        @schedule(form, lanes)
        def integer_product_in_place(A, B, C):
            """`C = A @ B` of integers."""
            M, K = A.shape
            _, N = B.shape
            for i in range(M):
                for j in range(N):
                    C[i, j] = 0
                    for k in range(K):
                        C[i, j] += wide(A[i, k]) * wide(B[k, j])

        return integer_product_in_place

    @schedule(form, lanes)
    def integer_product(A, B, C):
        """`C = A @ B` of integers."""
        M, K = A.shape
        _, N = B.shape
        for i in range(M):
            for j in range(N):
                acc = wide(0)
                for k in range(K):
                    acc += wide(A[i, k]) * wide(B[k, j])
                C[i, j] = acc

    return integer_product


@cache
def batched_kernel(form: str, lanes: int) -> Any:
    """Many small products."""

    @schedule(form, lanes, batch="b")
    def batched(A, B, C):
        """`C[b] = A[b] @ B[b]`, for A: (P, M, K), B: (P, K, N), C: (P, M, N)."""
        P, M, K = A.shape
        _, _, N = B.shape
        for b in range(P):
            for i in range(M):
                for j in range(N):
                    acc = 0.0
                    for k in range(K):
                        acc += A[b, i, k] * B[b, k, j]
                    C[b, i, j] = acc

    return batched


@cache
def integer_batched_kernel(form: str, lanes: int) -> Any:
    """As `batched_kernel`, for integers."""
    wide = np.int64 if lanes < 16 else np.int32

    @schedule(form, lanes, batch="b")
    def integer_batched(A, B, C):
        """`C[b] = A[b] @ B[b]` of integers."""
        P, M, K = A.shape
        _, _, N = B.shape
        for b in range(P):
            for i in range(M):
                for j in range(N):
                    acc = wide(0)
                    for k in range(K):
                        acc += wide(A[b, i, k]) * wide(B[b, k, j])
                    C[b, i, j] = acc

    return integer_batched


@cache
def scaled_product_kernel(form: str, lanes: int) -> Any:
    """The product times a number."""

    @schedule(form, lanes)
    def scaled_product(A, B, C, alpha):
        """`C = alpha * A @ B`, as `product`."""
        M, K = A.shape
        _, N = B.shape
        for i in range(M):
            for j in range(N):
                acc = 0.0
                for k in range(K):
                    acc += A[i, k] * B[k, j]
                C[i, j] = alpha * acc

    return scaled_product


@cache
def updated_product_kernel(form: str, lanes: int) -> Any:
    """The product times a number, added to a multiple of what the result held."""

    @schedule(form, lanes)
    def updated_product(A, B, C, alpha, beta):
        """`C = alpha * A @ B + beta * C`, as `product`."""
        M, K = A.shape
        _, N = B.shape
        for i in range(M):
            for j in range(N):
                acc = 0.0
                for k in range(K):
                    acc += A[i, k] * B[k, j]
                C[i, j] = alpha * acc + beta * C[i, j]

    return updated_product


#: The shape of what a product is added to: (M, N), (1, N), (M, 1), (1, 1).
WHOLE, SAME_ROWS, SAME_COLUMNS, NUMBER = range(4)


@cache
def product_sum_kernel(form: str, lanes: int, added: int) -> Any:
    """The product times a number, added to a multiple of something of the shape `added`."""

    @schedule(form, lanes)
    def product_sum(A, B, D, C, alpha, beta):
        """`C = alpha * A @ B + beta * D`, as `product`."""
        M, K = A.shape
        _, N = B.shape
        for i in range(M):
            for j in range(N):
                acc = 0.0
                for k in range(K):
                    acc += A[i, k] * B[k, j]
                if added == WHOLE:
                    C[i, j] = alpha * acc + beta * D[i, j]
                elif added == SAME_ROWS:
                    C[i, j] = alpha * acc + beta * D[0, j]
                elif added == SAME_COLUMNS:
                    C[i, j] = alpha * acc + beta * D[i, 0]
                else:
                    C[i, j] = alpha * acc + beta * D[0, 0]

    return product_sum


@vectorize("j", target="cpu")
@tile(i=8, j=128, target="cuda")
def integer_sum_kernel(P, C, alpha, beta):
    """`C = alpha * P + beta * C` of integers, element by element."""
    M, N = C.shape
    for i in range(M):
        for j in range(N):
            C[i, j] = alpha * P[i, j] + beta * C[i, j]


@cache
def linear_kernel(activation: int, biased: bool, form: str, lanes: int) -> Any:
    """The kernel of a linear layer: an activation's number, with a bias or without (`bias` is not read then)."""

    @schedule(form, lanes, "X", "W")
    def linear(X, W, bias, Y):
        """`Y = activation(X @ W.T + bias)`, for X: (M, K), W: (N, K), bias: (N,), Y: (M, N)."""
        M, K = X.shape
        N, _ = W.shape
        for i in range(M):
            for j in range(N):
                acc = 0.0
                for k in range(K):
                    acc += X[i, k] * W[j, k]
                if biased:
                    acc += bias[j]
                if activation == RELU:
                    Y[i, j] = np.maximum(acc, 0.0)
                elif activation == GELU:
                    Y[i, j] = 0.5 * acc * (1.0 + math.erf(acc * ROOT_OF_HALF))
                elif activation == GELU_TANH:
                    Y[i, j] = 0.5 * acc * (1.0 + math.tanh(acc * (TANH_SLOPE + TANH_CURVE * acc * acc)))
                elif activation == SILU:
                    Y[i, j] = acc / (1.0 + math.exp(-acc))
                else:
                    Y[i, j] = acc

    return linear


@cache
def integer_linear_kernel(activation: int, biased: bool, form: str, lanes: int) -> Any:
    """As `linear_kernel`, for integers; the only activation is `RELU`."""
    wide = np.int64 if lanes < 16 else np.int32

    @schedule(form, lanes, "X", "W")
    def integer_linear(X, W, bias, Y):
        """`Y = activation(X @ W.T + bias)` of integers."""
        M, K = X.shape
        N, _ = W.shape
        for i in range(M):
            for j in range(N):
                acc = wide(0)
                for k in range(K):
                    acc += wide(X[i, k]) * wide(W[j, k])
                if biased:
                    acc += bias[j]
                if activation == RELU:
                    Y[i, j] = max(acc, 0)
                else:
                    Y[i, j] = acc

    return integer_linear
