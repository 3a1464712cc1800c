"""Normalisation of rows: passes for the statistics, one for the result."""

from __future__ import annotations

import math

from pyschedule import tile, unroll, vectorize


# Each row is read three times, and only once from memory: a row stays in the first cache.  Sums are taken of
# differences from the row's first element, so that a mean that is large beside the spread costs no digits.
@vectorize("j", target="cpu")
@unroll("j", 4, target="cpu")
@tile(i=1, target="cuda")
def layer_norm_kernel(X, weight, bias, Y, eps):
    """`Y = (X - mean) / sqrt(variance + eps) * weight + bias` by rows; X, Y: (M, N); weight, bias: (N,)."""
    M, N = X.shape
    for i in range(M):
        shift = X[i, 0]
        mean = 0.0
        for j in range(N):
            mean += X[i, j] - shift
        mean = mean / N
        variance = 0.0
        for j in range(N):
            deviation = X[i, j] - shift - mean
            variance += deviation * deviation
        scale = 1.0 / math.sqrt(variance / N + eps)
        for j in range(N):
            Y[i, j] = (X[i, j] - shift - mean) * scale * weight[j] + bias[j]
