"""Two-dimensional convolution: seven loops, with strides and dilations as constants of their index arithmetic."""

from __future__ import annotations

from functools import cache
from typing import Any

from pyschedule import tile, unroll, vectorize


@cache
def conv2d_kernel(stride_h: int, stride_w: int, dilation_h: int, dilation_w: int) -> Any:
    """The kernel for one pair of strides and dilations: they are constants of its index arithmetic."""

    # On the CPU: 4 output channels by 28 columns of one row stay in registers while the window and the input
    # channels run.  On a GPU: a block owns 32 channels of a part of the image, a thread 4 x 4 outputs.
    @tile(o=(32, 4), x=28, order="n o.0 y o.1 x.0 c r s o.2 x.1", target="cpu")
    @vectorize("x", target="cpu")
    @unroll("o", target="cpu")
    @tile(o=(32, 4), x=(32, 4), c=8, target="cuda")
    @unroll("o", target="cuda")
    @unroll("x", target="cuda")
    def conv2d(X, W, Y):
        """`Y += X * W`, for X: (N, C, H, W), W: (O, C, R, S), Y: (N, O, P, Q)."""
        N, O, P, Q = Y.shape
        _, C, R, S = W.shape
        for n in range(N):
            for o in range(O):
                for y in range(P):
                    for x in range(Q):
                        for c in range(C):
                            for r in range(R):
                                for s in range(S):
                                    Y[n, o, y, x] += (
                                        X[n, c, y * stride_h + r * dilation_h, x * stride_w + s * dilation_w]
                                        * W[o, c, r, s]
                                    )

    return conv2d


@vectorize("x", target="cpu")
@tile(y=8, x=32, target="cuda")
def bias_kernel(bias, Y):
    """`Y[n, o] = bias[o]` everywhere, for bias: (O,), Y: (N, O, P, Q)."""
    N, O, P, Q = Y.shape
    for n in range(N):
        for o in range(O):
            for y in range(P):
                for x in range(Q):
                    Y[n, o, y, x] = bias[o]
