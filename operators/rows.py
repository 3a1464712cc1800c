"""What the normalisations share: the trailing shape they are told, and arrays as matrices of rows of it."""

from __future__ import annotations

import math
from typing import Any

from operators.arrays import FLOATS, Operand, filled, new, require_shape, same_dtype, supported
from operators.parameters import integers_of
from operators.plans import Step, copy


def checked_shape(x: Operand, normalized_shape: Any, **parameters: Operand | None) -> tuple[int, ...]:
    """The trailing shape that is meant, where x has it, the parameters have it, and all are floats of one dtype.

    `TypeError` for a shape that is neither an integer nor integers, and for dtypes; `ValueError` for the rest.
    """
    supported(same_dtype(("x", x), *parameters.items()), "x", FLOATS)
    trailing = integers_of(normalized_shape, "normalized_shape", 0, None)
    if not trailing or x.shape[-len(trailing) :] != trailing:
        raise ValueError(f"normalized_shape={trailing} must be the trailing shape of x, which is {x.shape}")
    for name, array in parameters.items():
        require_shape(array, name, trailing)
    return trailing


class Rows:
    """Arrays as kernels of rows take them, and the copies that need to be made for it.

    `before` and `after` are the steps that copy what is no such matrix as it lies in memory.
    """

    def __init__(self, x: Operand, trailing: tuple[int, ...]) -> None:
        self.width = math.prod(trailing)
        self.count = math.prod(x.shape[: x.ndim - len(trailing)])
        self.before: list[Step] = []
        self.after: list[Step] = []

    def read(self, array: Operand) -> Operand:
        """An array that is read, as (count, width)."""
        return self._read(array, self.count, self.width)

    def parameter(self, array: Operand | None, default: float, like: Operand) -> Operand:
        """A parameter of the trailing shape, flat; where it is not given, one full of `default`."""
        return filled((self.width,), like.dtype, default) if array is None else self._read(array, self.width)

    def written(self, array: Operand) -> Operand:
        """An array that is written, as (count, width)."""
        view = array.reshaped(self.count, self.width)
        if view is None:
            view = new((self.count, self.width), array.dtype)
            whole = view.reshaped(*array.shape)
            self.after.append(Step(copy, (whole, array)))
        return view

    def _read(self, array: Operand, *shape: int) -> Operand:
        view = array.reshaped(*shape)
        if view is None:
            fresh = new(array.shape, array.dtype)
            self.before.append(Step(copy, (array, fresh)))
            view = fresh.reshaped(*shape)
            assert view is not None  # it is contiguous
        return view
