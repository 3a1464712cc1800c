"""The few things the operators need of arrays, whoever owns them: NumPy, a CUDA library, or nobody (a spec)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import pyschedule


def is_spec(array: Any) -> bool:
    """Whether this only stands for an array (`pyschedule.spec`) and holds no data."""
    return not hasattr(array, "__array__") and not hasattr(array, "__cuda_array_interface__")


def _spec(dtype: Any, shape: tuple[int, ...]) -> Any:
    return pyschedule.spec(f"{dtype}[{', '.join(map(str, shape))}]")


def shape_of(array: Any, name: str, rank: int) -> tuple[int, ...]:
    """The extents of an argument; `TypeError` for what is no array, `ValueError` for another rank."""
    if not hasattr(array, "shape") or not hasattr(array, "dtype"):
        raise TypeError(f"{name}: an array is needed, not {type(array).__name__}")
    shape = tuple(int(extent) for extent in array.shape)
    if len(shape) != rank:
        raise ValueError(f"{name}: {rank} dimensions are needed, not {len(shape)} (shape {shape})")
    return shape


def same_dtype(*arrays: tuple[str, Any]) -> None:
    """`TypeError` naming two of the (name, array) pairs whose dtypes differ; `None`s are left out."""
    named = [(name, array) for name, array in arrays if array is not None]
    for name, array in named:
        if not hasattr(array, "dtype"):
            raise TypeError(f"{name}: an array is needed, not {type(array).__name__}")
        if str(array.dtype) != str(named[0][1].dtype):
            other, first = named[0]
            raise TypeError(f"{name} is {array.dtype}, but {other} is {first.dtype}; one dtype is needed")


def full(like: Any, shape: tuple[int, ...], value: float) -> Any:
    """A new array of the kind and dtype of `like`, filled with `value`; like a spec, a spec."""
    if is_spec(like):
        return _spec(like.dtype, shape)
    if hasattr(like, "new_full"):  # PyTorch's tensors make their own kind
        return like.new_full(shape, value)
    host = np.full(shape, value, dtype=like.dtype)
    if not hasattr(like, "__cuda_array_interface__"):
        return host
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__().asarray(host)
    from numba import cuda

    return cuda.to_device(host)


def result_of(like: Any, out: Any, shape: tuple[int, ...]) -> Any:
    """`out`, checked against `shape` and the dtype of `like`; or, where it is `None`, new zeros."""
    if out is None:
        return full(like, shape, 0.0)
    if shape_of(out, "out", len(shape)) != shape:
        raise ValueError(f"out: shape {shape} is needed, not {tuple(out.shape)}")
    same_dtype(("x", like), ("out", out))
    return out


def rows_of(array: Any, width: int | None) -> Any:
    """The array as a matrix of rows of `width` elements, or flat; a view (`ValueError` where that needs a copy)."""
    shape = (math.prod(array.shape),) if width is None else (math.prod(array.shape) // max(width, 1), width)
    if is_spec(array):
        return _spec(array.dtype, shape)
    if tuple(array.shape) == shape:
        return array
    if isinstance(array, np.ndarray):
        view = array.view()
        view.shape = shape  # raises where reshape would copy, so that writes always reach the caller's array
        return view
    return array.reshape(shape)


def padded(array: Any, pads: tuple[int, int]) -> Any:
    """The array with `pads` zeros before and after its last two axes; itself where there are none."""
    if pads == (0, 0):
        return array
    shape = (*array.shape[:-2], array.shape[-2] + 2 * pads[0], array.shape[-1] + 2 * pads[1])
    result = full(array, shape, 0.0)
    if not is_spec(array):
        result[..., pads[0] : shape[-2] - pads[0], pads[1] : shape[-1] - pads[1]] = array
    return result
