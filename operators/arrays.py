"""Arrays as a plan sees them: element type, shape and strides, without the data; and checks that name the argument.

A plan of an operator is made once for all calls with arguments of one layout.  What it says of arrays it says of
`Operand`s: arguments, views of them, and new arrays.  Each knows its layout and how a call makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Layout = np.ndarray[Any, Any]

FLOATS = ("float32", "float64", "float16", "bfloat16")

_ALIGNMENT = 256


def layout(dtype: Any, shape: Sequence[int], strides: Sequence[int] | None = None) -> Layout:
    """A NumPy array with this layout whose elements are never touched: there is no memory for them.

    It is aligned as fresh memory of a GPU is.
    """
    size = np.dtype(dtype).itemsize
    buffer = np.empty(2 * _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    item = buffer[start : start + size].view(dtype)
    if strides is None:
        strides = contiguous_strides(size, shape)
    return np.lib.stride_tricks.as_strided(item, tuple(shape), tuple(strides))


def contiguous_strides(size: int, shape: Sequence[int]) -> tuple[int, ...]:
    """The strides in bytes of an array in C order with elements of `size` bytes."""
    strides: list[int] = []
    for extent in reversed(shape):
        strides.append(size)
        size *= max(extent, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True, eq=False)
class Operand:
    """An array in a plan.

    `sample` has its layout and no data.  A call takes it from its arguments (`argument` is the parameter's name),
    or makes it: as a view of `parent` (`view` is its Python text, `{}.T` say), or as a new array, empty or full of
    `fill`.  Two operands are the same array exactly if they are the same object.
    """

    sample: Layout
    argument: str | None = None
    parent: Operand | None = None
    view: str = ""
    fill: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.sample.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.sample.dtype)

    @property
    def strides(self) -> tuple[int, ...]:
        """In bytes, as NumPy has them."""
        return self.sample.strides

    @property
    def ndim(self) -> int:
        return self.sample.ndim

    @property
    def size(self) -> int:
        return self.sample.size

    @property
    def root(self) -> Operand:
        """The array that this is a view of, or itself."""
        return self if self.parent is None else self.parent.root

    @property
    def T(self) -> Operand:  # noqa: N802
        return Operand(self.sample.T, parent=self, view="{}.T")

    def __getitem__(self, index: Any) -> Operand:
        """A view by integers, slices, `None` and `...`."""
        items = index if isinstance(index, tuple) else (index,)
        if not items:
            return self
        text = ", ".join(map(_index_text, items))
        if not any(item is Ellipsis for item in items):
            items = (*items, Ellipsis)  # never a scalar
            text += ", ..."
        return Operand(self.sample[items], parent=self, view=f"{{}}[{text}]")

    def reshaped(self, *shape: int) -> Operand | None:
        """The same elements in C order under another shape, as a view; `None` where that would take a copy."""
        if shape == self.shape:
            return self
        try:
            view = np.reshape(self.sample, shape, copy=False)
        except ValueError:
            return None
        return Operand(view, parent=self, view=f"{{}}.reshape({shape})")

    def permuted(self, *axes: int) -> Operand:
        """A view with the axes in this order; only ask for other views before it, not of it."""
        if axes == tuple(range(self.ndim)):
            return self
        return Operand(self.sample.transpose(axes), parent=self, view=f"_permuted({{}}, {axes})")

    def broadcast(self, *shape: int) -> Operand:
        """A view in which axes of extent 1 are repeated; the shape must allow it."""
        if shape == self.shape:
            return self
        return Operand(np.broadcast_to(self.sample, shape), parent=self, view=f"_broadcast({{}}, {shape})")


def _index_text(item: Any) -> str:
    if isinstance(item, slice):
        parts = ("" if part is None else str(int(part)) for part in (item.start, item.stop, item.step))
        return ":".join(parts)
    if item is None or item is Ellipsis:
        return "None" if item is None else "..."
    return str(int(item))


def new(shape: Sequence[int], dtype: Any) -> Operand:
    """A new array in C order, of the kind of the operator's arguments; nothing is written to it yet."""
    return Operand(layout(dtype, shape))


def filled(shape: Sequence[int], dtype: Any, value: float) -> Operand:
    """A new array in C order, full of `value`."""
    return Operand(layout(dtype, shape), fill=value)


# ------------------------------------------------------------------------------------------------------ checks


def shape_of(array: Operand, name: str, rank: int) -> tuple[int, ...]:
    """The extents of an argument; `ValueError` for another rank."""
    if array.ndim != rank:
        raise ValueError(f"{name}: {rank} dimensions are needed, not {array.ndim} (shape {array.shape})")
    return array.shape


def require_shape(array: Operand | None, name: str, shape: tuple[int, ...]) -> None:
    """`ValueError` where an array that is given has another shape."""
    if array is not None and array.shape != shape:
        raise ValueError(f"{name}: shape {shape} is needed, not {array.shape}")


def same_dtype(*arrays: tuple[str, Operand | None]) -> np.dtype[Any]:
    """The dtype that all the (name, array) pairs have; `TypeError` naming two that differ; `None`s are left out."""
    named = [(name, array) for name, array in arrays if array is not None]
    other, first = named[0]
    for name, array in named:
        if array.dtype != first.dtype:
            raise TypeError(f"{name} is {array.dtype}, but {other} is {first.dtype}; one dtype is needed")
    return first.dtype


def require_dtype(array: Operand | None, name: str, dtype: Any, reason: str) -> None:
    """`TypeError` where an array that is given has another dtype; `reason` says what asks for this one."""
    if array is not None and array.dtype != dtype:
        raise TypeError(f"{name} is {array.dtype}; {np.dtype(dtype)} is needed{reason}")


def supported(dtype: np.dtype[Any], name: str, names: Sequence[str]) -> None:
    """`TypeError` where an element type is not among the ones named."""
    if dtype.name not in names or not dtype.isnative:
        raise TypeError(f"{name}: dtype {dtype} is not supported; allowed are {', '.join(names)}")


def check_written(array: Layout, name: str) -> None:
    """`ValueError` for an array that cannot be written: read-only, or one whose elements may overlap."""
    if not array.flags.writeable:
        raise ValueError(f"{name}: it is written, and it is read-only")
    reach = array.itemsize
    axes = sorted(
        (abs(stride), extent) for stride, extent in zip(array.strides, array.shape, strict=True) if extent > 1
    )
    for stride, extent in axes if array.size else ():
        if stride < reach:
            raise ValueError(f"{name}: it is written, and its elements overlap in memory; pass a copy")
        reach += stride * (extent - 1)


def result_of(out: Operand | None, shape: tuple[int, ...], dtype: Any) -> Operand:
    """`out`, checked against shape and dtype; where it is `None`, a new array in which nothing is written yet."""
    if out is None:
        return new(shape, dtype)
    require_shape(out, "out", shape)
    require_dtype(out, "out", dtype, " for this result")
    return out


def rows_of(array: Operand, width: int | None) -> Operand:
    """The array as a matrix of rows of `width` elements, or flat; a view (`ValueError` where that needs a copy)."""
    rows = array.size // width if width else int(np.prod(array.shape[:-1], dtype=np.int64))
    view = array.reshaped(array.size) if width is None else array.reshaped(rows, width)
    if view is None:
        raise ValueError(f"an array of shape {array.shape} and strides {array.strides} is no matrix of rows")
    return view
