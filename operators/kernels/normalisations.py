"""Normalisation of rows: passes for the statistics, one for the result."""

from __future__ import annotations

import math

import numpy as np

from pyschedule import tile, unroll, vectorize


# Each row is read three times, and only once from memory: a row stays in the first cache.  The first pass finds a
# center beside the mean, from differences from the first element; the second sums deviations from the center and
# their squares; what the center misses the mean by, `drift`, is taken out of both.  So neither a mean that is large
# beside the spread nor a first element far from the rest costs digits.
@vectorize("j", target="cpu")
@unroll("j", 4, target="cpu")
@tile(i=16, parallel="i.0", target="cpu")
@tile(i=1, target="cuda")
def layer_norm_kernel(X, weight, bias, Y, eps):
    """`Y = (X - mean) / sqrt(variance + eps) * weight + bias` by rows; X, Y: (M, N); weight, bias: (N,)."""
    M, N = X.shape
    for i in range(M):
        first = X[i, 0]
        total = 0.0
        for j in range(N):
            total += X[i, j] - first
        center = first + total / N
        drift = 0.0
        spread = 0.0
        for j in range(N):
            deviation = X[i, j] - center
            drift += deviation
            spread += deviation * deviation
        drift = drift / N
        scale = 1.0 / math.sqrt(np.maximum(spread / N - drift * drift, 0.0) + eps)
        for j in range(N):
            Y[i, j] = (X[i, j] - center - drift) * scale * weight[j] + bias[j]


@vectorize("j", target="cpu")
@unroll("j", 4, target="cpu")
@tile(i=16, parallel="i.0", target="cpu")
@tile(i=1, target="cuda")
def rms_norm_kernel(X, weight, Y, eps):
    """`Y = X / sqrt(mean of X * X + eps) * weight` by rows; X, Y: (M, N); weight: (N,)."""
    M, N = X.shape
    for i in range(M):
        squares = 0.0
        for j in range(N):
            squares += X[i, j] * X[i, j]
        scale = 1.0 / math.sqrt(squares / N + eps)
        for j in range(N):
            Y[i, j] = X[i, j] * scale * weight[j]
