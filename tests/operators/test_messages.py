"""What operators refuse: each message begins with the argument, and says what was given and what is needed."""

from __future__ import annotations

import numpy as np
import pytest

import operators


def f32(*shape):
    return np.ones(shape, "float32")


CASES = {
    "channels": (
        lambda: operators.conv2d(f32(1, 3, 8, 8), f32(8, 4, 3, 3)),
        "x: 3 channels were given (shape (1, 3, 8, 8), layout='NCHW'), and weight (shape (8, 4, 3, 3)) needs 4",
    ),
    "channels of groups": (
        lambda: operators.conv2d(f32(3, 8, 8), f32(8, 2, 3, 3), groups=2),
        "x: 3 channels were given (shape (3, 8, 8), layout='NCHW'), and weight (shape (8, 2, 3, 3)) needs 4, "
        "which is 2 for each of 2 groups",
    ),
    "the other layout": (
        lambda: operators.conv2d(f32(1, 8, 8, 4), f32(8, 4, 3, 3)),
        "x: 8 channels were given (shape (1, 8, 8, 4), layout='NCHW'), and weight (shape (8, 4, 3, 3)) needs 4; "
        "with layout='NHWC' x has as many",
    ),
    "the other layout, without a batch": (
        lambda: operators.conv2d(f32(4, 8, 9), f32(8, 4, 3, 3), layout="NHWC"),
        "x: 9 channels were given (shape (4, 8, 9), layout='NHWC'), and weight (shape (8, 4, 3, 3)) needs 4; with "
        "layout='NCHW' x has as many",
    ),
    "groups": (
        lambda: operators.conv2d(f32(1, 6, 8, 8), f32(8, 2, 3, 3), groups=3),
        "groups: a divisor of the 8 output channels of weight (shape (8, 2, 3, 3)) is needed, not 3",
    ),
    "no output channels": (
        lambda: operators.conv2d(f32(1, 2, 8, 8), f32(0, 2, 3, 3)),
        "weight: one output channel at least is needed (shape (0, 2, 3, 3))",
    ),
    "window": (
        lambda: operators.conv2d(f32(1, 2, 4, 4), f32(8, 2, 3, 3), dilation=3, padding=1),
        "weight: its window, 7 x 7 (3 x 3 with dilation (3, 3)), is larger than the padded input, 6 x 6 (4 x 4 "
        "with padding 1); a smaller window or more padding is needed",
    ),
    "padding": (
        lambda: operators.conv2d(f32(1, 2, 4, 4), f32(8, 2, 3, 3), padding="full"),
        "padding: 'same', 'valid', or 1, 2 or 4 integers are needed, not 'full'",
    ),
    "stride": (
        lambda: operators.conv2d(f32(1, 2, 4, 4), f32(8, 2, 3, 3), stride=0),
        "stride: at least 1 is needed, not 0",
    ),
    "stride of same": (
        lambda: operators.conv2d(f32(1, 2, 4, 4), f32(8, 2, 3, 3), stride=2, padding="same"),
        "stride: with padding='same' a stride of 1 is needed, not (2, 2)",
    ),
    "bias": (
        lambda: operators.conv2d(f32(1, 2, 4, 4), f32(8, 2, 3, 3), f32(2)),
        "bias: shape (8,) is needed, not (2,)",
    ),
    "gemm": (
        lambda: operators.gemm(f32(3, 2), f32(4, 5), trans_a=True),
        "a, transposed, is (2, 3) and b is (4, 5): the first must have as many columns, 3, as the second has "
        "rows, 4",
    ),
    "c": (
        lambda: operators.gemm(f32(2, 3), f32(3, 5), f32(3)),
        "c: shape (3,) cannot be repeated to the result's, (2, 5); two axes at most, each of that extent or of 1, "
        "are needed",
    ),
    "linear": (
        lambda: operators.linear(f32(2, 3), f32(5, 4)),
        "x is (2, 3) and weight is (5, 4): their last extents, 3 and 4, must be the same",
    ),
    "matmul": (
        lambda: operators.matmul(f32(2, 3), f32(4, 5)),
        "a is (2, 3) and b is (4, 5): the last extent of a, 3, and the last but one of b, 4, must be the same",
    ),
    "matmul with a vector": (
        lambda: operators.matmul(f32(2, 3), f32(4)),
        "a is (2, 3) and b is (4,): the last extent of a, 3, and the length of b, 4, must be the same",
    ),
    "batches": (
        lambda: operators.matmul(f32(2, 2, 3), f32(3, 3, 5)),
        "a is (2, 2, 3) and b is (3, 3, 5): the extents before the last two, (2,) and (3,), must be the same, or "
        "1, from the last on",
    ),
    "normalized_shape": (
        lambda: operators.layer_norm(f32(4, 6), (4,)),
        "normalized_shape=(4,) must be the trailing shape of x, which is (4, 6)",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_refusal_names_the_argument_what_was_given_and_what_is_needed(name):
    wrong, text = CASES[name]
    with pytest.raises(ValueError) as caught:
        wrong()
    assert str(caught.value) == text
