"""Two-dimensional convolution: a nest, with strides and dilations as constants of its index arithmetic, and a
schedule for each layout in memory.  Bias and activation are part of the nest: each result is stored once."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np

from operators.activations import GELU, GELU_TANH, RELU, ROOT_OF_HALF, SILU, TANH_CURVE, TANH_SLOPE
from operators.kernels.products import schedule
from pyschedule import tile, unroll, vectorize


def convolution_nest(strides: tuple[int, int], dilations: tuple[int, int], activation: int) -> Any:
    """The loops of a convolution, as plain Python; a schedule suits one layout in memory of X and Y."""
    stride_h, stride_w = strides
    dilation_h, dilation_w = dilations

    def convolution(X, W, bias, Y):
        """`Y = activation(X * W + bias)`, group by group.

        X: (N, G, C, H, W), W: (G, O, C, R, S), bias: (G, O), Y: (N, G, O, P, Q).
        """
        N, G, O, P, Q = Y.shape
        _, _, C, R, S = W.shape
        for n in range(N):
            for g in range(G):
                for o in range(O):
                    for y in range(P):
                        for x in range(Q):
                            Y[n, g, o, y, x] = bias[g, o]
                            for c in range(C):
                                for r in range(R):
                                    for s in range(S):
                                        Y[n, g, o, y, x] += (
                                            X[n, g, c, y * stride_h + r * dilation_h, x * stride_w + s * dilation_w]
                                            * W[g, o, c, r, s]
                                        )
                            if activation == RELU:
                                Y[n, g, o, y, x] = np.maximum(Y[n, g, o, y, x], 0.0)
                            elif activation == GELU:
                                Y[n, g, o, y, x] *= 0.5 + 0.5 * math.erf(Y[n, g, o, y, x] * ROOT_OF_HALF)
                            elif activation == GELU_TANH:
                                Y[n, g, o, y, x] *= 0.5 + 0.5 * math.tanh(
                                    Y[n, g, o, y, x]
                                    * (TANH_SLOPE + TANH_CURVE * Y[n, g, o, y, x] * Y[n, g, o, y, x])
                                )
                            elif activation == SILU:
                                Y[n, g, o, y, x] /= 1.0 + np.exp(-Y[n, g, o, y, x])

    return convolution


def windowed_nest(window: tuple[int, int], strides: tuple[int, int], activation: int) -> Any:
    """The loops of a convolution whose windows have a fixed size, over images with imagined zeros around them."""
    R, S = window
    stride_h, stride_w = strides

    def convolution(X, W, bias, Y, top, left):
        """`Y = activation(X * W + bias)`, group by group; X stands for one with zeros around it.

        X: (N, G, C, H, W), with `top` rows and `left` columns of zeros imagined before the first, and as many
        behind the last as Y needs; W: (G, O, C, R, S), bias: (G, O), Y: (N, G, O, P, Q).
        """
        N, G, O, P, Q = Y.shape
        _, _, C, H, width = X.shape
        for n in range(N):
            for g in range(G):
                for o in range(O):
                    for y in range(P):
                        for x in range(Q):
                            Y[n, g, o, y, x] = bias[g, o]
                            for c in range(C):
                                for r in range(R):
                                    for s in range(S):
                                        row = y * stride_h + r - top
                                        column = x * stride_w + s - left
                                        Y[n, g, o, y, x] += W[g, o, c, r, s] * (
                                            X[n, g, c, row, column]
                                            if row >= 0 and row < H and column >= 0 and column < width
                                            else 0.0
                                        )
                            if activation == RELU:
                                Y[n, g, o, y, x] = np.maximum(Y[n, g, o, y, x], 0.0)
                            elif activation == GELU:
                                Y[n, g, o, y, x] *= 0.5 + 0.5 * math.erf(Y[n, g, o, y, x] * ROOT_OF_HALF)
                            elif activation == GELU_TANH:
                                Y[n, g, o, y, x] *= 0.5 + 0.5 * math.tanh(
                                    Y[n, g, o, y, x]
                                    * (TANH_SLOPE + TANH_CURVE * Y[n, g, o, y, x] * Y[n, g, o, y, x])
                                )
                            elif activation == SILU:
                                Y[n, g, o, y, x] /= 1.0 + np.exp(-Y[n, g, o, y, x])

    return convolution


def depthwise_nest(
    window: tuple[int, int], strides: tuple[int, int], dilations: tuple[int, int], activation: int
) -> Any:
    """The loops of a convolution of each channel by itself, as plain Python."""
    R, S = window
    stride_h, stride_w = strides
    dilation_h, dilation_w = dilations

    def depthwise(X, W, bias, Y, top, left):
        """`Y = activation(X * W + bias)`, channel by channel; X stands for one with zeros around it.

        X: (N, C, H, W), of which `top` rows and `left` columns of zeros are imagined before the first, and as many
        behind the last as Y needs; W: (C, R, S), bias: (C,), Y: (N, C, P, Q).
        """
        N, C, P, Q = Y.shape
        _, _, H, width = X.shape
        for n in range(N):
            for c in range(C):
                for y in range(P):
                    for x in range(Q):
                        acc = bias[c]
                        for r in range(R):
                            for s in range(S):
                                row = y * stride_h + r * dilation_h - top
                                column = x * stride_w + s * dilation_w - left
                                acc += W[c, r, s] * (
                                    X[n, c, row, column]
                                    if row >= 0 and row < H and column >= 0 and column < width
                                    else 0.0
                                )
                        if activation == RELU:
                            Y[n, c, y, x] = np.maximum(acc, 0.0)
                        elif activation == GELU:
                            Y[n, c, y, x] = 0.5 * acc * (1.0 + math.erf(acc * ROOT_OF_HALF))
                        elif activation == GELU_TANH:
                            Y[n, c, y, x] = (
                                0.5 * acc * (1.0 + math.tanh(acc * (TANH_SLOPE + TANH_CURVE * acc * acc)))
                            )
                        elif activation == SILU:
                            Y[n, c, y, x] = acc / (1.0 + math.exp(-acc))
                        else:
                            Y[n, c, y, x] = acc

    return depthwise


@cache
def convolution_kernel(
    strides: tuple[int, int], dilations: tuple[int, int], activation: int, block: int = 64, pixels: int = 6
) -> Any:
    """The schedule of a convolution, whatever the layout of its images and results.

    On the CPU `block` output channels of some `pixels` of a row stay in registers while the window and the input
    channels run: each step takes vectors of weights, which are packed once an image in the order in which they are
    read, times one element of the image.  That element may lie anywhere; where the channels of a pixel are
    contiguous, they are read from end to end.  On a GPU: a block owns 32 channels of a part of the image, a thread
    4 x 4 outputs.
    """
    kernel = convolution_nest(strides, dilations, activation)
    order = "n g o.0 y x.0 r s c x.1 o.1"
    kernel = tile(o=block, x=pixels, order=order, stage={"W": "o.0"}, parallel="o.0 y", target="cpu")(kernel)
    kernel = vectorize("o", target="cpu")(kernel)
    kernel = unroll("x", target="cpu")(kernel)
    kernel = tile(o=(32, 4), x=(32, 4), c=8, target="cuda")(kernel)
    return unroll("x", target="cuda")(unroll("o", target="cuda")(kernel))


@cache
def windowed_kernel(
    window: tuple[int, int],
    strides: tuple[int, int],
    activation: int,
    block: int,
    pixels: int,
    columns: int,
    few_channels: bool,
    rows: int = 8,
) -> Any:
    """The schedule for few output channels in a group, in either layout.

    As that of `convolution_kernel`, but for the image: the part of it that some `rows` of `columns` results need is
    copied, with the zeros around it, in the order in which it lies in memory, and is in the caches while they are
    computed; once for two `block`s of output channels.  Windows that are dilated would leave gaps in that part.

    `few_channels`: fewer input channels than columns of the window, so that these are the innermost loop.
    """
    kernel = windowed_nest(window, strides, activation)
    depth = "c s" if few_channels else "s c"
    kernel = tile(
        o=(2 * block, block),
        x=(columns, pixels),
        y=rows,
        order=f"n g o.0 y.0 x.0 o.1 y.1 x.1 r {depth} x.2 o.2",
        stage={"W": "o.0", "X": "x.0"},
        parallel="o.0 y.0",
        target="cpu",
    )(kernel)
    kernel = unroll("x", target="cpu")(vectorize("o", target="cpu")(kernel))
    kernel = tile(o=(32, 4), x=(32, 4), c=8, target="cuda")(kernel)
    return unroll("x", target="cuda")(unroll("o", target="cuda")(kernel))


#: Windows of up to so many elements are written out.
_WRITTEN_OUT = 25


@cache
def depthwise_by_rows(
    window: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    activation: int,
    rows: int = 7,
    columns: int = 32,
) -> Any:
    """The schedule for NCHW: on the CPU `columns` of some `rows` stay in registers, while a part of the channel's
    image lies in the first cache, with the zeros around it; on a GPU a thread has 4 columns.
    """
    kernel = depthwise_nest(window, strides, dilations, activation)
    band = max(1, 32 // (rows * strides[0])) * rows
    order = "n c y.0 x.0 y.1 r s y.2 x.1"
    kernel = tile(y=(band, rows), x=columns, order=order, stage={"X": "x.0"}, parallel="c", target="cpu")(kernel)
    kernel = vectorize("x", target="cpu")(kernel)
    kernel = unroll("y", target="cpu")(unroll("x", target="cpu")(_with_window_written_out(kernel, window)))
    return unroll("x", target="cuda")(tile(x=(32, 4), target="cuda")(kernel))


@cache
def depthwise_by_channels(
    window: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    activation: int,
    columns: int = 7,
    channels: int = 16,
    in_place: bool = False,
) -> Any:
    """The schedule for NHWC: on the CPU so many `channels` of some `columns` of a row stay in registers, while
    these channels of a part of the image lie in the first cache, with the zeros around it.

    `in_place`: so do these columns of 2 rows, and the image is read where it lies, all channels of a pixel before
    the next ones; the zeros are lanes that are off.  For a small window copies take longer than the sums.
    """
    kernel = depthwise_nest(window, strides, dilations, activation)
    kernel = vectorize("c", target="cpu")(unroll("x", target="cpu")(kernel))
    if in_place or 1 not in window:  # else all weights and images of a row would be in registers at once
        kernel = _with_window_written_out(kernel, window)
    if in_place:
        order = "n y.0 x.0 c.0 r s y.1 x.1 c.1"
        tiled = tile(y=2, x=columns, c=channels, order=order, stage={"W": "n"}, parallel="y.0", target="cpu")
        kernel = unroll("y", target="cpu")(tiled(kernel))
    else:
        band = max(1, 28 // (columns * strides[1])) * columns
        kernel = tile(
            c=channels,
            y=max(1, 7 // strides[0]),
            x=(band, columns),
            order="n y.0 c.0 x.0 y.1 x.1 r s x.2 c.1",
            stage={"X": "x.0", "W": "c.0"},
            parallel="y.0",
            target="cpu",
        )(kernel)
    return unroll("c", target="cuda")(tile(c=(32, 4), target="cuda")(kernel))


def _with_window_written_out(kernel: Any, window: tuple[int, int]) -> Any:
    if window[0] * window[1] > _WRITTEN_OUT:
        return kernel
    return unroll("r", target="cpu")(unroll("s", target="cpu")(kernel))


@cache
def pointwise_kernel(activation: int, form: str, lanes: int) -> Any:
    """The kernel for windows of one pixel: a product, with the schedules of products.

    In NHWC such a convolution is a linear layer; here the channels are the rows.
    """

    @schedule(form, lanes, "W", "X")
    def pointwise(W, X, bias, Y):
        """`Y = activation(W @ X + bias)`, for W: (O, C), X: (C, P), bias: (O,), Y: (O, P), with P pixels."""
        O, C = W.shape
        _, P = X.shape
        for i in range(O):
            for j in range(P):
                acc = 0.0
                for k in range(C):
                    acc += W[i, k] * X[k, j]
                acc += bias[i]
                if activation == RELU:
                    Y[i, j] = np.maximum(acc, 0.0)
                elif activation == GELU:
                    Y[i, j] = acc * (0.5 + 0.5 * math.erf(acc * ROOT_OF_HALF))
                elif activation == GELU_TANH:
                    Y[i, j] = acc * (0.5 + 0.5 * math.tanh(acc * (TANH_SLOPE + TANH_CURVE * acc * acc)))
                elif activation == SILU:
                    Y[i, j] = acc / (1.0 + np.exp(-acc))
                else:
                    Y[i, j] = acc

    return pointwise


@cache
def padding_kernel(turned: bool) -> Any:
    """The kernel that copies images and puts zeros around them, the channels of a pixel side by side in the copy.

    `turned`: in the images they are not; 16 columns of 64 channels are read at a time then, so that all of each
    line that is fetched is used.
    """

    @vectorize("c", target="cpu")
    @tile(y=8, x=32, target="cuda")
    def padded(X, Y, top, left):
        """`Y[y + top, x + left] = X[y, x]`, and 0 around it, for X, Y: (N, C, H, W)."""
        N, C, H, W = Y.shape
        _, _, P, Q = X.shape
        for n in range(N):
            for y in range(H):
                for x in range(W):
                    for c in range(C):
                        if y >= top and y < top + P and x >= left and x < left + Q:
                            Y[n, c, y, x] = X[n, c, y - top, x - left]
                        else:
                            Y[n, c, y, x] = 0.0

    if not turned:
        return tile(y=1, parallel="y.0", target="cpu")(padded)
    return tile(x=16, c=64, order="n y x.0 c.0 x.1 c.1", parallel="y", target="cpu")(padded)
