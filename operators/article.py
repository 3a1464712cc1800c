"""The block form: each body speaks of one tile, and is lifted to whole arrays.

GEMM, convolution and layer normalisation at fixed shapes, in float16, float32 or whatever the inputs are.
"""

from __future__ import annotations

import math

from pyschedule import tile, unroll, vectorize


@tile(input_shapes=[(4096, 4096), (4096, 4096)], tile_shapes=[(128, 128), (128, 128)])
@vectorize(width=8, dtype="half")
@unroll(factors=[8, 8])
def gemm_tiled(A_block, B_block):
    C_tile = [[0.0 for _ in range(128)] for _ in range(128)]
    for i in range(128):
        for j in range(128):
            for k in range(128):
                C_tile[i][j] += A_block[i][k] * B_block[k][j]
    return C_tile


# A 28 x 28 tile of the image holds 26 x 26 windows of 3 x 3.
@tile(input_shapes=[(1, 256, 56, 56), (512, 256, 3, 3)], tile_shapes=[(1, 128, 28, 28), (256, 128, 3, 3)])
@vectorize(width=8, dtype="half")
@unroll(factors=[4, 4])
def conv2d(X_block, W_block):
    Y_tile = [[[[0.0 for _ in range(26)] for _ in range(26)] for _ in range(256)] for _ in range(1)]
    for n in range(1):
        for o in range(256):
            for y in range(26):
                for x in range(26):
                    for c in range(128):
                        for r in range(3):
                            for s in range(3):
                                Y_tile[n][o][y][x] += X_block[n][c][y + r][x + s] * W_block[o][c][r][s]
    return Y_tile


# The tile is 64 columns wide; lifted, the sums run over all 768 of a row, and so does `X_tile.shape[1]`.
@tile(input_shapes=[(1024, 768)], tile_shapes=[(1024, 64)])
@vectorize(width=8, dtype="half")
@unroll(factors=[4])
def layer_norm(X_tile):
    Y_tile = [[0.0 for _ in range(64)] for _ in range(1024)]
    for i in range(1024):
        mean = 0.0
        for j in range(64):
            mean += X_tile[i][j]
        mean /= X_tile.shape[1]
        variance = 0.0
        for j in range(64):
            deviation = X_tile[i][j] - mean
            variance += deviation * deviation
        scale = 1.0 / math.sqrt(variance / X_tile.shape[1] + 1e-5)
        for j in range(64):
            Y_tile[i][j] = (X_tile[i][j] - mean) * scale
    return Y_tile
