"""Matrix products: three loops, and a schedule for each target; and what goes over a matrix before or after."""

from __future__ import annotations

from pyschedule import tile, unroll, vectorize


# On the CPU: 6 rows by 64 columns of C stay in vector registers while the depth k runs; B is packed once for
# each (j.0, k.0), in the order in which it is read.  On a GPU: a block owns 128 x 128 of C, a thread 8 x 8.
@tile(
    i=(192, 6),
    j=(2048, 64),
    k=512,
    order="j.0 k.0 i.0 j.1 i.1 k.1 i.2 j.2",
    stage={"B": "k.0"},
    parallel="i.0",
    target="cpu",
)
@vectorize("j", width=16, target="cpu")
@unroll("i", target="cpu")
@unroll("k", 2, target="cpu")
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


# Registers hold half as many float64: the same nest with half the columns and half the lanes.
@tile(
    i=(192, 6),
    j=(2048, 32),
    k=512,
    order="j.0 k.0 i.0 j.1 i.1 k.1 i.2 j.2",
    stage={"B": "k.0"},
    parallel="i.0",
    target="cpu",
)
@vectorize("j", width=8, target="cpu")
@unroll("i", target="cpu")
@unroll("k", 2, target="cpu")
@tile(i=(64, 4), j=(64, 4), k=16, stage={"A": "k.0", "B": "k.0"}, target="cuda")
@vectorize("j", width=2, target="cuda")
@unroll("i", target="cuda")
@unroll("j", target="cuda")
def gemm_kernel_float64(A, B, C):
    """`C += A @ B`, as `gemm_kernel`."""
    M, K = A.shape
    _, N = B.shape
    for i in range(M):
        for j in range(N):
            for k in range(K):
                C[i, j] += A[i, k] * B[k, j]


@vectorize("j", target="cpu")
@tile(i=8, j=128, target="cuda")
def scale_kernel(C, out, factor):
    """`out = factor * C`, element by element."""
    M, N = out.shape
    for i in range(M):
        for j in range(N):
            out[i, j] = C[i, j] * factor


@vectorize("j", target="cpu")
@tile(i=8, j=128, target="cuda")
def clear_kernel(out):
    """`out = 0`: what `out` held, NaN included, is never read."""
    M, N = out.shape
    for i in range(M):
        for j in range(N):
            out[i, j] = 0
