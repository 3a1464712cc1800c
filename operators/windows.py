"""Where the windows of a convolution lie: strides, dilations, padding in all its forms, and the errors of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from operators.parameters import integers_of

Pair = tuple[int, int]
#: Zeros above, below, left and right of an image.
Pads = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of an image: their steps, the zeros around the image, and how many windows fit each way."""

    strides: Pair
    dilations: Pair
    pads: Pads
    count: Pair


def windows_of(image: Pair, kernel: Pair, stride: Any, padding: Any, dilation: Any) -> Windows:
    """The windows of a `kernel` (height, width) over an `image` (height, width).

    `stride`, `padding` and `dilation` as `torch.nn.functional.conv2d` has them: an integer or (height, width).
    `padding` is also `"valid"` (none), `"same"` (as many windows as pixels; where the zeros of an axis are odd in
    number the extra one is on the far side; only with strides of 1), or (top, bottom, left, right).

    `TypeError` for what is no such thing; `ValueError` for a number that is too small, for an empty kernel or
    image, and for a dilated kernel that is larger than the padded image.
    """
    strides, dilations = pair_of(stride, "stride", 1), pair_of(dilation, "dilation", 1)
    if 0 in kernel:
        raise ValueError(f"weight: its window, {_by(kernel)}, is empty")
    reach = (dilations[0] * (kernel[0] - 1) + 1, dilations[1] * (kernel[1] - 1) + 1)
    pads = pads_of(padding, reach, strides)
    area = (image[0] + pads[0] + pads[1], image[1] + pads[2] + pads[3])
    if reach[0] > area[0] or reach[1] > area[1]:
        dilated = "" if reach == kernel else f" ({_by(kernel)} with dilation {dilations})"
        padded = "" if area == image else f" ({_by(image)} with padding {padding!r})"
        raise ValueError(
            f"weight: its window, {_by(reach)}{dilated}, is larger than the padded input, {_by(area)}{padded}; a "
            "smaller window or more padding is needed"
        )
    if 0 in image:
        raise ValueError(f"x: its images, {_by(image)}, are empty; only the batch and the channels may be")
    return Windows(
        strides, dilations, pads, ((area[0] - reach[0]) // strides[0] + 1, (area[1] - reach[1]) // strides[1] + 1)
    )


def pads_of(padding: Any, reach: Pair, strides: Pair) -> Pads:
    """The zeros on the four sides; `reach` is the extent of the dilated kernel."""
    if isinstance(padding, str):
        if padding == "valid":
            return (0, 0, 0, 0)
        if padding != "same":
            raise ValueError(f"padding: 'same', 'valid', or 1, 2 or 4 integers are needed, not {padding!r}")
        if strides != (1, 1):
            raise ValueError(f"stride: with padding='same' a stride of 1 is needed, not {strides}")
        top, left = (reach[0] - 1) // 2, (reach[1] - 1) // 2
        return (top, reach[0] - 1 - top, left, reach[1] - 1 - left)
    numbers = integers_of(padding, "padding", 0, (1, 2, 4))
    if len(numbers) == 4:
        return (numbers[0], numbers[1], numbers[2], numbers[3])
    down, across = numbers[0], numbers[-1]
    return (down, down, across, across)


def pair_of(value: Any, name: str, least: int) -> Pair:
    """An integer, or one or two of them, as a (height, width) pair; each at least `least`."""
    numbers = integers_of(value, name, least, (1, 2))
    return numbers[0], numbers[-1]


def _by(extents: Pair) -> str:
    return f"{extents[0]} x {extents[1]}"
