"""Two-dimensional convolution (cross-correlation, as deep-learning libraries call it), NCHW."""

from __future__ import annotations

from typing import Any

from operators.arrays import filled, result_of, same_dtype, shape_of
from operators.kernels.convolutions import bias_kernel, conv2d_kernel
from operators.operator import operator
from operators.plans import Plan, Step, copy


def _pair(value: Any, name: str, least: int) -> tuple[int, int]:
    pair = (value, value) if hasattr(value, "__index__") else tuple(value)
    if len(pair) != 2 or any(not hasattr(item, "__index__") or int(item) < least for item in pair):
        raise ValueError(f"{name}: an integer of at least {least}, or two of them, is needed, not {value!r}")
    return int(pair[0]), int(pair[1])


@operator("x", "weight", "bias", "out")
def conv2d(
    x: Any,
    weight: Any,
    bias: Any = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
    *,
    out: Any = None,
) -> Plan:
    """The convolution of x: (N, C, H, W) with weight: (O, C / groups, R, S); names and defaults as PyTorch's.

    `stride`, `padding` and `dilation` are ints or (height, width) pairs.  The result is (N, O, P, Q).
    `ValueError` where the shapes disagree or the dilated window is larger than the padded input.
    """
    same_dtype(("x", x), ("weight", weight), ("bias", bias))
    batch, channels, height, width = shape_of(x, "x", 4)
    filters, depth, rows, columns = shape_of(weight, "weight", 4)
    strides, dilations = _pair(stride, "stride", 1), _pair(dilation, "dilation", 1)
    pads = _pair(padding, "padding", 0)
    if groups < 1 or filters % groups or channels != depth * groups:
        raise ValueError(
            f"groups={groups}: x has {channels} channels and weight is {(filters, depth, rows, columns)}; "
            f"groups must divide both counts of channels, and weight must have {channels} / groups of them"
        )
    window = tuple(step * (size - 1) + 1 for step, size in zip(dilations, (rows, columns), strict=True))
    area = (height + 2 * pads[0], width + 2 * pads[1])
    if window[0] > area[0] or window[1] > area[1]:
        raise ValueError(f"the window, {window} with its dilation, is larger than the padded input, {area}")
    if bias is not None and shape_of(bias, "bias", 1) != (filters,):
        raise ValueError(f"bias: shape {(filters,)} is needed, not {bias.shape}")
    shape = (batch, filters, *((area[axis] - window[axis]) // strides[axis] + 1 for axis in range(2)))
    result = result_of(out, shape, x.dtype)
    steps = [Step(bias_kernel, (filled((filters,), x.dtype, 0.0) if bias is None else bias, result))]
    source = x
    if pads != (0, 0):
        source = filled((batch, channels, *area), x.dtype, 0.0)
        inner = source[..., pads[0] : pads[0] + height, pads[1] : pads[1] + width]
        steps.append(Step(copy, (x, inner)))
    kernel = conv2d_kernel(*strides, *dilations)
    if groups == 1:
        work = [Step(kernel, (source, weight, result))]
    else:
        size = filters // groups
        work = [
            Step(
                kernel,
                (
                    source[:, group * depth : (group + 1) * depth],
                    weight[group * size : (group + 1) * size],
                    result[:, group * size : (group + 1) * size],
                ),
            )
            for group in range(groups)
        ]
    return Plan((*steps, *work), main=work[0], result=result)
