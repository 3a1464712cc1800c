"""Whose arrays they are: NumPy's, another library's on the CPU, a GPU's, or nobody's (a `pyschedule.spec`).

Arrays of other libraries on the CPU become NumPy's on the same memory, by DLPack, and what comes back becomes an
array of that library.  Arrays on a GPU stay what they are: a kernel takes them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy._core.multiarray import may_share_memory  # the C function: np.may_share_memory costs twice as much

import pyschedule
from operators.arrays import Layout, contiguous_strides, layout

#: DLPack's device types that are the host's memory, and a GPU's.
_HOST, _GPU = (1, 3, 11), (2, 13)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of array that kernels take: all of one call must be of one.

    `view(array, name)` is the array as a kernel takes it, `layout_of` of that its layout without the data;
    `new(shape, dtype, fill, like)` makes an array, empty where `fill` is `None`; `overlap(x, y)` tells whether two
    may share memory.
    """

    name: str
    view: Callable[[Any, str], Any]
    layout_of: Callable[[Any], Layout]
    new: Callable[[tuple[int, ...], np.dtype[Any], float | None, Any], Any]
    overlap: Callable[[Any, Any], bool]


def dtype_named(text: str) -> np.dtype[Any]:
    """NumPy's dtype of this name; `bfloat16` is that of `ml_dtypes`."""
    if text == "bfloat16":
        import ml_dtypes

        kind: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return kind
    return np.dtype(text)


def _view_numpy(array: Any, name: str) -> Layout:
    if not array.flags.aligned:
        raise ValueError(f"{name}: its elements are not aligned in memory; pass a copy")
    return array if type(array) is np.ndarray else array.view(np.ndarray)


def _new_numpy(shape: tuple[int, ...], dtype: np.dtype[Any], fill: float | None, like: Any) -> Any:
    return np.empty(shape, dtype) if fill is None else np.full(shape, fill, dtype)


NUMPY = Kind("NumPy", _view_numpy, lambda array: array, _new_numpy, may_share_memory)

# ------------------------------------------------------------------------------------------------ specs


def _new_layout(shape: tuple[int, ...], dtype: np.dtype[Any], fill: float | None, like: Any) -> Any:
    return layout(dtype, shape)


_SPEC_TYPE = type(pyschedule.spec("float32[0]"))
SPEC = Kind(
    "spec",
    lambda array, name: layout(dtype_named(array.dtype), array.shape),
    lambda array: array,
    _new_layout,
    lambda one, other: False,
)

# ------------------------------------------------------------------------------------------------- GPUs


def _device_layout(array: Any) -> Layout:
    dtype = dtype_named(str(array.dtype).removeprefix("torch."))
    shape = tuple(int(extent) for extent in array.shape)
    strides = array.__cuda_array_interface__.get("strides") if hasattr(array, "__cuda_array_interface__") else None
    return layout(dtype, shape, strides or contiguous_strides(dtype.itemsize, shape))


def _new_device(shape: tuple[int, ...], dtype: np.dtype[Any], fill: float | None, like: Any) -> Any:
    if hasattr(like, "new_full"):  # PyTorch's tensors make their own kind
        kind = getattr(sys.modules["torch"], dtype.name)
        return like.new_empty(shape, dtype=kind) if fill is None else like.new_full(shape, fill, dtype=kind)
    namespace = like.__array_namespace__() if hasattr(like, "__array_namespace__") else None
    if fill is not None:
        host = np.full(shape, fill, dtype)
        if namespace is not None:
            return namespace.asarray(host)
        from numba import cuda

        return cuda.to_device(host)
    if namespace is not None:
        return namespace.empty(shape, dtype=dtype)
    from numba import cuda

    return cuda.device_array(shape, dtype)


def _device_bounds(array: Any) -> tuple[int, int]:
    """The first byte of an array on a GPU, and the one behind its last; both 0 where it has no element."""
    interface = array.__cuda_array_interface__
    view = _device_layout(array)
    if not view.size:
        return 0, 0
    steps = [stride * (extent - 1) for stride, extent in zip(view.strides, view.shape, strict=True)]
    start = int(interface["data"][0])
    return start + sum(step for step in steps if step < 0), start + sum(
        step for step in steps if step > 0
    ) + view.itemsize


def _device_overlap(one: Any, other: Any) -> bool:
    """Whether what lies between first and last byte overlaps; `False` where an array does not say where it lies."""
    if not (hasattr(one, "__cuda_array_interface__") and hasattr(other, "__cuda_array_interface__")):
        return False  # each kernel looks for itself
    (first, last), (start, stop) = _device_bounds(one), _device_bounds(other)
    return first < stop and start < last


CUDA = Kind("a GPU", lambda array, name: array, _device_layout, _new_device, _device_overlap)


def broadcast(array: Any, shape: tuple[int, ...]) -> Any:
    """A view with axes of extent 1 repeated, of any kind."""
    if isinstance(array, np.ndarray):
        return np.broadcast_to(array, shape)
    if hasattr(array, "expand"):  # PyTorch's name for it
        return array.expand(shape)
    return array.__array_namespace__().broadcast_to(array, shape)


def permuted(array: Any, axes: tuple[int, ...]) -> Any:
    """A view with the axes in this order, of any kind."""
    if isinstance(array, np.ndarray):
        return array.transpose(axes)
    if hasattr(array, "permute"):  # PyTorch's name for it
        return array.permute(axes)
    if hasattr(array, "__array_namespace__"):
        return array.__array_namespace__().permute_dims(array, axes)
    return _Permuted(array, axes)


class _Permuted:
    """A view of an array on a GPU with its axes in another order; Numba's own transpose has two axes at most."""

    def __init__(self, array: Any, axes: tuple[int, ...]) -> None:
        known = _device_layout(array).transpose(axes)
        self.base, self.dtype, self.shape, self.strides = array, array.dtype, known.shape, known.strides
        interface = array.__cuda_array_interface__
        self.__cuda_array_interface__ = {**interface, "shape": known.shape, "strides": known.strides}


# ------------------------------------------------------------------------------ other libraries, on the CPU


@dataclass(frozen=True, slots=True)
class Foreign:
    """Arrays of another library on the CPU.  `view(array, name)` is NumPy's on the same memory (`TypeError` or
    `RuntimeError` naming the argument where there is none); `wrap(array, like)` the way back."""

    name: str
    view: Callable[[Any, str], Layout]
    wrap: Callable[[Layout, Any], Any]


class Elsewhere(Exception):
    """An array of a class that `KNOWN` has is not in the host's memory."""


def _of_torch(tensor: Any, name: str) -> Layout:
    torch = sys.modules["torch"]
    if not tensor.is_cpu:
        raise Elsewhere
    if tensor.requires_grad:
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"{name}: it requires grad, and this operator has no gradient; call it under torch.no_grad(), or "
                f"pass {name}.detach()"
            )
        tensor = tensor.detach()
    try:
        if tensor.dtype is torch.bfloat16:
            return tensor.view(torch.int16).numpy().view(dtype_named("bfloat16"))  # type: ignore[no-any-return]
        return tensor.numpy()  # type: ignore[no-any-return]
    except (RuntimeError, TypeError) as error:
        raise TypeError(f"{name}: NumPy cannot view this tensor: {error}") from error


def _to_torch(array: Layout, like: Any) -> Any:
    torch = sys.modules["torch"]
    if array.__class__ is not np.ndarray:  # a scalar
        array = np.asarray(array)
    if array.dtype.kind == "V":  # bfloat16, which NumPy has not of its own
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


TORCH = Foreign("PyTorch", _of_torch, _to_torch)

#: Classes whose arrays are known to be of another library, once one has been met in the host's memory.
KNOWN: dict[type, Foreign] = {}


def _of_dlpack(array: Any, name: str) -> Layout:
    try:
        return np.from_dlpack(array)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        if str(array.dtype) == "bfloat16":  # NumPy's DLPack has none
            host = np.asarray(array)
            if host.dtype == dtype_named("bfloat16"):
                return host
        raise TypeError(f"{name}: NumPy cannot view this {type(array).__name__}: {error}") from error


def _to_dlpack(array: Layout, like: Any) -> Any:
    if hasattr(like, "__array_namespace__"):
        namespace = like.__array_namespace__()
    else:
        namespace = sys.modules[type(like).__module__.partition(".")[0]]
    if array.dtype.name == "bfloat16":
        return namespace.asarray(array)
    return namespace.from_dlpack(array)


# ------------------------------------------------------------------------------------------ telling them apart


def _is_torch(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def kind_of(value: Any, name: str) -> Kind | Foreign:
    """The kind of an argument; `TypeError` for what is no array, or is none that a kernel can take."""
    if isinstance(value, np.ndarray):
        if isinstance(value, np.ma.MaskedArray):
            raise TypeError(f"{name}: a masked array would lose its mask; pass its .data or .filled(...)")
        return NUMPY
    if _is_torch(value):
        if value.device.type not in ("cpu", "cuda"):
            raise TypeError(f"{name}: a tensor on {value.device} is not supported; pass one on the CPU or a GPU")
        if value.device.type == "cuda":
            return CUDA
        KNOWN[type(value)] = TORCH
        return TORCH
    if hasattr(value, "__cuda_array_interface__"):
        return CUDA
    device = getattr(value, "__dlpack_device__", None)
    if callable(device) and hasattr(value, "__dlpack__"):
        place = int(device()[0])
        if place in _GPU:
            return CUDA
        if place in _HOST:
            return Foreign(type(value).__module__.partition(".")[0], _of_dlpack, _to_dlpack)
        raise TypeError(f"{name}: an array on DLPack's device {place} is not supported")
    if isinstance(value, _SPEC_TYPE):
        return SPEC
    raise TypeError(f"{name}: an array is needed, not {type(value).__name__}")
