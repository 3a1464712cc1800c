"""Two-dimensional convolution (cross-correlation, as deep-learning libraries call it)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from operators.activations import number_of
from operators.arrays import FLOATS, Operand, filled, new, require_shape, result_of, same_dtype, shape_of, supported
from operators.kernels.convolutions import (
    convolution_kernel,
    depthwise_by_channels,
    depthwise_by_rows,
    padding_kernel,
    pointwise_kernel,
    windowed_kernel,
)
from operators.kernels.products import linear_kernel
from operators.operator import operator
from operators.parameters import integer_of
from operators.plans import Plan, Step, copy
from operators.products import arranged, lanes_of
from operators.windows import Windows, windows_of

#: From so many channels on it pays to lay those of a pixel side by side first.
TURNED = 16
#: A part of an image is for so many register tiles side by side at most.
_WIDEST = 16
#: Bytes of packed weights beside which parts of images stay in the second cache.
_WEIGHTS = 512 * 1024
#: Depthwise windows of up to so many elements are read from where the image lies, if channels are side by side.
READ_IN_PLACE = 9
#: Register tiles: vectors of output channels, columns of a row, and how they compare where no column is lost.
_SHAPES = ((4, 6, 1.0), (2, 14, 0.95), (2, 7, 0.9))
#: The same where the part of the image that is read is copied, so that columns are a constant apart.
_SHAPES_OF_COPIES = ((2, 14, 1.0), (4, 6, 0.97), (2, 7, 0.9))


@operator("x", "weight", "bias", "out")
def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | tuple[int, int, int, int] | str = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    *,
    layout: str = "NCHW",
    activation: str | None = None,
    out: Any = None,
) -> Plan:
    """`activation(x * weight + bias)`, where `*` slides windows over images; names and defaults as PyTorch's.

    x: (N, C, H, W), or (N, H, W, C) with `layout="NHWC"`; weight, in either: (O, C / groups, R, S); bias: (O,).
    The result is (N, O, P, Q), or (N, P, Q, O); without the N where x has none.  float32, float64, float16 or
    bfloat16, all of one kind; halves are summed in float32 and rounded once.

    stride, dilation: an int, or (height, width).  padding: so, or (top, bottom, left, right); `"valid"` for none;
    `"same"` for a result as large as x (strides of 1 only; an odd zero goes to the far side).  groups: the
    channels of x and of the result are that many groups, each with weights of its own.  activation: `"relu"`,
    `"gelu"`, `"gelu_tanh"` or `"silu"`.  As in PyTorch, images of no channels have a result of no channels.

    `TypeError` for mixed or other dtypes and what is no integer; `ValueError` where shapes disagree, a number is
    too small, an image is empty, or the dilated window is larger than the padded image (both are named).
    """
    dtype = same_dtype(("x", x), ("weight", weight), ("bias", bias))
    supported(dtype, "x", FLOATS)
    if not isinstance(layout, str):
        raise TypeError(f"layout: 'NCHW' or 'NHWC' is needed, not {layout!r}")
    if layout not in ("NCHW", "NHWC"):
        raise ValueError(f"layout: 'NCHW' or 'NHWC' is needed, not {layout!r}")
    last = layout == "NHWC"
    if x.ndim not in (3, 4):
        raise ValueError(f"x: 3 or 4 dimensions are needed, not {x.ndim} (shape {x.shape})")
    images = x if x.ndim == 4 else _split(x, 1, *x.shape)
    batch, channels, *image = (images.shape[axis] for axis in ((0, 3, 1, 2) if last else (0, 1, 2, 3)))
    filters, depth, *window = shape_of(weight, "weight", 4)
    groups = integer_of(groups, "groups", 1)
    if filters == 0:
        raise ValueError(f"weight: one output channel at least is needed (shape {weight.shape})")
    if filters % groups:
        raise ValueError(
            f"groups: a divisor of the {filters} output channels of weight (shape {weight.shape}) is needed, "
            f"not {groups}"
        )
    if channels != depth * groups:
        raise ValueError(_channels_disagree(x, layout, channels, weight, groups))
    windows = windows_of((image[0], image[1]), (window[0], window[1]), stride, padding, dilation)
    require_shape(bias, "bias", (filters,))
    number = number_of(activation)

    made = filters if channels else 0  # as PyTorch has it
    sizes = (*windows.count, made) if last else (made, *windows.count)
    result = result_of(out, (batch, *sizes) if x.ndim == 4 else sizes, dtype)
    if bias is None:
        bias = filled((filters,), dtype, 0.0)
    results = result if x.ndim == 4 else _split(result, 1, *result.shape)
    *steps, main = _steps(images, weight, bias, results, windows, groups, last, number)
    return Plan((*steps, main) if result.size else (), main, result)


def _padded(images: Operand, windows: Windows, last: bool) -> tuple[Operand, list[Step]]:
    """The images with zeros around them, in the layout that they have, and the steps that make them."""
    top, bottom, left, right = windows.pads
    if windows.pads == (0, 0, 0, 0):
        return images, []
    if last and images.shape[3] >= TURNED:
        return _by_channels(images.permuted(0, 3, 1, 2), windows.pads, turned=False)
    shape = list(images.shape)
    down, across = (1, 2) if last else (2, 3)
    inner = [slice(0, extent) for extent in shape]
    inner[down] = slice(top, top + shape[down])
    inner[across] = slice(left, left + shape[across])
    shape[down] += top + bottom
    shape[across] += left + right
    padded = filled(shape, images.dtype, 0.0)
    return padded, [Step(copy, (images, padded[tuple(inner)]))]


def _channels_disagree(x: Operand, layout: str, channels: int, weight: Operand, groups: int) -> str:
    """What is wrong with the channels of x, and whether they would be right in the other layout."""
    depth = weight.shape[1]
    needed = f"{depth}" if groups == 1 else f"{depth * groups}, which is {depth} for each of {groups} groups"
    text = (
        f"x: {channels} channels were given (shape {x.shape}, layout={layout!r}), and weight (shape "
        f"{weight.shape}) needs {needed}"
    )
    other, place = ("NCHW", -3) if layout == "NHWC" else ("NHWC", -1)
    return f"{text}; with layout={other!r} x has as many" if x.shape[place] == depth * groups else text


def _by_channels(
    images: Operand, pads: tuple[int, int, int, int], *, turned: bool = True
) -> tuple[Operand, list[Step]]:
    """Images, (N, C, H, W), as padded ones in NHWC, and the step that makes them."""
    top, bottom, left, right = pads
    batch, channels, height, width = images.shape
    result = new((batch, top + height + bottom, left + width + right, channels), images.dtype)
    return result, [Step(padding_kernel(turned), (images, result.permuted(0, 3, 1, 2), top, left))]


def _steps(
    images: Operand,
    weight: Operand,
    bias: Operand,
    results: Operand,
    windows: Windows,
    groups: int,
    last: bool,
    activation: int,
) -> list[Step]:
    """The calls of kernels that make the results: what prepares the images, and one for all groups."""
    filters, depth, *window = weight.shape
    if groups == 1 and window == [1, 1] and windows.strides == (1, 1):
        padded, steps = _padded(images, windows, last)
        product = _product(padded, weight[:, :, 0, 0], bias, results, last, activation)
        if product is not None:
            return [*steps, product]
    if groups > 1 and depth == 1 and filters == groups:
        return _depthwise(images, weight, bias, results, windows, last, activation)
    size, columns = filters // groups, results.shape[2 if last else 3]
    tile = _register_tile(size, columns, weight.dtype, _SHAPES_OF_COPIES)
    # Windows that are dilated leave gaps in what they read; few channels side by side are no vectors to copy.
    packed = 2 * tile[0] * depth * math.prod(window) * max(weight.dtype.itemsize, 4)
    few = size <= 2 * tile[0] and (packed <= _WEIGHTS or depth < TURNED)
    if few and windows.dilations == (1, 1) and (not last or depth >= TURNED):
        arguments = _of_groups(images, weight, bias, results, groups, last, last)
        given = ((window[0], window[1]), windows.strides, activation)
        kernel = windowed_kernel(*given, *tile, _columns(columns, tile[1]), depth < window[1])
        return [Step(kernel, (*arguments, windows.pads[0], windows.pads[2]))]
    tile = _register_tile(size, columns, weight.dtype, _SHAPES)
    turned = not last and depth >= TURNED
    images, steps = _by_channels(images, windows.pads) if turned else _padded(images, windows, last)
    arguments = _of_groups(images, weight, bias, results, groups, last or turned, last)
    return [*steps, Step(convolution_kernel(windows.strides, windows.dilations, activation, *tile), arguments)]


def _of_groups(
    images: Operand, weight: Operand, bias: Operand, results: Operand, groups: int, from_last: bool, to_last: bool
) -> tuple[Operand, Operand, Operand, Operand]:
    """The arguments of a kernel for all groups; the channels of images and results are their last axis, or not."""
    size = weight.shape[0] // groups
    return (
        _grouped(images, groups, from_last),
        _split(weight, groups, size, *weight.shape[1:]),
        _split(bias, groups, size),
        _grouped(results, groups, to_last),
    )


def _columns(extent: int, pixels: int) -> int:
    """Columns of the results for which a part of the image is copied: a power of two of register tiles, so that few
    kernels are compiled."""
    tiles = -(-extent // pixels)
    return min(_WIDEST, 1 << (tiles - 1).bit_length()) * pixels


def _depthwise(
    images: Operand, weight: Operand, bias: Operand, results: Operand, windows: Windows, last: bool, activation: int
) -> list[Step]:
    """Each channel by itself: many channels of a pixel at once, or many columns of a row."""
    _, _, rows, columns = weight.shape
    given = ((rows, columns), windows.strides, windows.dilations, activation)
    lanes = lanes_of(weight.dtype)
    pads = (windows.pads[0], windows.pads[2])
    if last:
        images, results = images.permuted(0, 3, 1, 2), results.permuted(0, 3, 1, 2)
        in_place = rows * columns <= READ_IN_PLACE and weight.dtype.itemsize >= 4  # lanes of halves are not masked
        part = 4 if in_place else _part(results.shape[3])
        kernel = depthwise_by_channels(*given, part, lanes, in_place)
    else:
        vectors = 1 if results.shape[3] <= lanes else 2
        most = 8 if vectors == 1 else _most_rows(rows, columns, windows)
        kernel = depthwise_by_rows(*given, _part(results.shape[2], most), vectors * lanes)
    return [Step(kernel, (images, weight[:, 0], bias, results, *pads))]


def _most_rows(rows: int, columns: int, windows: Windows) -> int:
    """Of how many rows two vectors each fit in registers, with the rows of the image that a written out window of
    more than one column reads several times; a window of one element is summed while other results are stored."""
    if rows * columns == 1:
        return 5
    if columns == 1 or rows < 5:
        return 8
    return 4 if rows > 5 else 7 if windows.strides[0] == windows.dilations[0] == 1 else 8


def _part(extent: int, most: int = 8) -> int:
    """So many of the rows or columns, at `most`, in whose parts fewest are missing."""
    return min((size for size in (7, 8, 6, 5, 4) if size <= most), key=lambda size: -extent % size)


def _register_tile(
    filters: int, columns: int, dtype: np.dtype[Any], among: tuple[tuple[int, int, float], ...]
) -> tuple[int, int]:
    """The output channels, and the columns of a row, whose sums are kept in registers: of the shapes that fit, that
    which loses least to columns that are not there."""
    vector = lanes_of(dtype)
    shapes = among if filters > 2 * vector else [shape for shape in among if shape[0] <= 2]

    def worth(shape: tuple[int, int, float]) -> float:
        _, pixels, rate = shape
        return rate * columns / (-(-columns // pixels) * pixels)

    vectors, pixels, _ = max(shapes, key=worth)
    return vectors * vector, pixels


def _product(
    images: Operand, weight: Operand, bias: Operand, results: Operand, last: bool, activation: int
) -> Step | None:
    """Windows of one pixel as a product of matrices; `None` where the pixels of an image are no row in memory."""
    if last:  # all pixels of all images are the rows of one matrix
        pixels = math.prod(images.shape[:3])
        rows, results_of_rows = images.reshaped(pixels, weight.shape[1]), results.reshaped(pixels, weight.shape[0])
        if rows is None or results_of_rows is None:
            return None
        form = arranged(rows, weight.T, results_of_rows, may_flip=False).form
        kernel = linear_kernel(activation, True, form, lanes_of(weight.dtype))
        return Step(kernel, (rows, weight, bias, results_of_rows))
    batch, channels, height, width = images.shape
    columns = images.reshaped(batch, channels, height * width)
    results_of_columns = results.reshaped(batch, weight.shape[0], height * width)
    if columns is None or results_of_columns is None or batch == 0:
        return None
    form = arranged(weight, columns[0], results_of_columns[0], may_flip=False).form
    kernel = pointwise_kernel(activation, form, lanes_of(weight.dtype))
    if batch == 1:
        return Step(kernel, (weight, columns[0], bias, results_of_columns[0]))
    every = (
        weight.broadcast(batch, *weight.shape),
        columns,
        bias.broadcast(batch, *bias.shape),
        results_of_columns,
    )
    return Step(kernel, every, over=(batch,))


def _grouped(array: Operand, groups: int, last: bool) -> Operand:
    """(N, groups, channels of a group, height, width), whatever the layout in memory."""
    if last:
        batch, height, width, channels = array.shape
        return _split(array, batch, height, width, groups, channels // groups).permuted(0, 3, 4, 1, 2)
    batch, channels, height, width = array.shape
    return _split(array, batch, groups, channels // groups, height, width)


def _split(array: Operand, *shape: int) -> Operand:
    """The array with axes cut in two, which never takes a copy."""
    view = array.reshaped(*shape)
    assert view is not None
    return view
