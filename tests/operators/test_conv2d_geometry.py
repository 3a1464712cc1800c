"""Where the windows of a convolution lie: all forms of padding, and the occasions of errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.windows import windows_of

EXTENTS = st.integers(1, 9)
PAIRS = st.tuples(st.integers(1, 4), st.integers(1, 4))


def starts(image, kernel, stride, dilation, near, far):
    """The first pixel of each window of one axis, counted in the image; found by trying them all."""
    reach = [tap * dilation for tap in range(kernel)]
    return [at for at in range(-near, image + far, stride) if at + reach[-1] < image + far]


@settings(max_examples=200, deadline=None)
@given(
    image=st.tuples(EXTENTS, EXTENTS),
    kernel=PAIRS,
    stride=PAIRS,
    dilation=PAIRS,
    pads=st.tuples(*[st.integers(0, 5)] * 4),
)
def test_the_windows_are_those_that_fit(image, kernel, stride, dilation, pads):
    expected = [
        len(starts(image[axis], kernel[axis], stride[axis], dilation[axis], *pads[2 * axis : 2 * axis + 2]))
        for axis in range(2)
    ]
    if 0 in expected:
        with pytest.raises(ValueError, match=r"window.*larger than the padded input"):
            windows_of(image, kernel, stride, pads, dilation)
    else:
        got = windows_of(image, kernel, stride, pads, dilation)
        assert (got.strides, got.dilations, got.pads, got.count) == (stride, dilation, pads, tuple(expected))


@settings(max_examples=100, deadline=None)
@given(image=st.tuples(EXTENTS, EXTENTS), kernel=PAIRS, dilation=PAIRS)
def test_same_keeps_the_extents_and_has_the_extra_zero_on_the_far_side(image, kernel, dilation):
    got = windows_of(image, kernel, 1, "same", dilation)
    assert got.count == image
    top, bottom, left, right = got.pads
    assert 0 <= bottom - top <= 1 and 0 <= right - left <= 1


@pytest.mark.parametrize(
    "padding, pads",
    [
        (2, (2, 2, 2, 2)),
        ((1, 3), (1, 1, 3, 3)),
        ([1, 3], (1, 1, 3, 3)),
        ((4,), (4, 4, 4, 4)),
        (np.int64(1), (1, 1, 1, 1)),
        (np.array([1, 2]), (1, 1, 2, 2)),
        ((1, 2, 3, 4), (1, 2, 3, 4)),
        ("valid", (0, 0, 0, 0)),
        ("same", (1, 2, 0, 1)),
    ],
)
def test_forms_of_padding(padding, pads):
    assert windows_of((9, 9), (4, 2), 1, padding, 1).pads == pads


def test_a_number_a_list_or_a_pair_of_strides():
    for stride in (2, (2,), [2, 2], (2, 2), np.int32(2)):
        assert windows_of((9, 9), (3, 3), stride, 0, 1).count == (4, 4)
    assert windows_of((9, 9), (3, 3), (1, 4), 0, 1).count == (7, 2)


WRONG_TYPES = [True, 1.0, "a", None, (1, 1.0), (1, True), {"height": 1}]


@pytest.mark.parametrize("value", WRONG_TYPES)
@pytest.mark.parametrize("name", ["stride", "padding", "dilation"])
def test_what_is_no_integer(name, value):
    arguments = {"stride": 1, "padding": 0, "dilation": 1, name: value}
    if name == "padding" and value == "a":
        with pytest.raises(ValueError, match="padding: 'same', 'valid', or 1, 2 or 4 integers are needed, not 'a'"):
            windows_of((9, 9), (2, 2), **arguments)
    else:
        with pytest.raises(TypeError, match=name):
            windows_of((9, 9), (2, 2), **arguments)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"stride": 0}, "stride: at least 1 is needed, not 0"),
        ({"stride": (1, -1)}, "stride: at least 1 is needed, not -1"),
        ({"dilation": 0}, "dilation: at least 1 is needed, not 0"),
        ({"padding": -1}, "padding: at least 0 is needed, not -1"),
        ({"padding": (0, 0, 0, -2)}, "padding: at least 0 is needed, not -2"),
        ({"stride": (1, 1, 1)}, "stride: 1 or 2 integers"),
        ({"padding": (1, 1, 1)}, "padding: 1, 2 or 4 integers"),
        ({"padding": ()}, "padding: 1, 2 or 4 integers"),
        ({"padding": "same", "stride": (1, 2)}, r"with padding='same' a stride of 1 is needed, not \(1, 2\)"),
        ({"kernel": (0, 3)}, "0 x 3, is empty"),
        ({"image": (0, 5), "padding": 3}, "0 x 5, are empty"),
        ({"kernel": (7, 7)}, "window, 7 x 7, is larger than the padded input, 6 x 6"),
        (
            {"kernel": (3, 3), "dilation": (1, 4), "padding": (1, 1)},
            r"window, 3 x 9 \(3 x 3 with dilation \(1, 4\)\), .* 8 x 8 \(6 x 6 with padding \(1, 1\)\)",
        ),
    ],
)
def test_what_is_too_small_or_too_many(arguments, words):
    given = {"image": (6, 6), "kernel": (2, 2), "stride": 1, "padding": 0, "dilation": 1, **arguments}
    with pytest.raises(ValueError, match=words):
        windows_of(**given)
