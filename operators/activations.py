"""The functions that a kernel may apply to a result before it stores it: their names, and how kernels know them.

A kernel is made for one of them: its number is a constant of the nest, so that only its branch is left.
"""

from __future__ import annotations

import math
from typing import Any

NONE, RELU, GELU, GELU_TANH, SILU = range(5)

#: `gelu` is `x * (1 + erf(x * ROOT_OF_HALF)) / 2`.
ROOT_OF_HALF = math.sqrt(1 / 2)
#: `gelu_tanh` is `x * (1 + tanh(x * (TANH_SLOPE + TANH_CURVE * x * x))) / 2`.
TANH_SLOPE = math.sqrt(2 / math.pi)
TANH_CURVE = 0.044715 * TANH_SLOPE

_NUMBERS = {None: NONE, "relu": RELU, "gelu": GELU, "gelu_tanh": GELU_TANH, "silu": SILU}


def number_of(activation: Any) -> int:
    """The number of an activation; `TypeError` for what is no name, `ValueError` for an unknown one."""
    if activation is not None and not isinstance(activation, str):
        raise TypeError(f"activation: a name or None is needed, not {type(activation).__name__}")
    if activation not in _NUMBERS:
        names = ", ".join(repr(name) for name in _NUMBERS if name is not None)
        raise ValueError(f"activation: {activation!r} is unknown; there are {names} and None")
    return _NUMBERS[activation]
