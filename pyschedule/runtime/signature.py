"""Arguments, as they come: what they are called, whether a kernel can take them, and how they specialise it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np

from pyschedule.errors import OverlapError
from pyschedule.ir.signature import ArraySpec, ScalarSpec, Shaped
from pyschedule.ir.types import BOOL, DTYPES, FLOAT64, INT64, WEAK_BOOL, WEAK_FLOAT, WEAK_INT, Scalar
from pyschedule.schedule.targets import Target

INT64_MIN: Final = -(1 << 63)
INT64_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a kernel's function, in order, and which of them are arrays."""

    signature: inspect.Signature
    names: tuple[str, ...]
    arrays: frozenset[str]

    @staticmethod
    def of(function: Callable[..., Any], arrays: frozenset[str]) -> Parameters:
        signature = inspect.signature(function)
        return Parameters(signature, tuple(signature.parameters), arrays)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """All arguments in order, defaults filled in; `TypeError` as Python's own for a wrong call."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(bound.arguments.values())


@lru_cache(maxsize=256)
def dtype_name(dtype: np.dtype[Any]) -> str | None:
    """The name of an element type a kernel can have, or `None` (`object`, complex, text, foreign byte order)."""
    if not dtype.isnative:
        return None
    name = dtype.name
    return name if name in DTYPES and dtype.subdtype is None else None


def is_cuda(value: Any) -> bool:
    """Whether an argument lives on a GPU."""
    if isinstance(value, np.ndarray):
        return False
    if hasattr(value, "__cuda_array_interface__"):
        return True
    device = getattr(value, "__dlpack_device__", None)
    return callable(device) and int(device()[0]) in (2, 13)  # kDLCUDA, kDLCUDAManaged


# -------------------------------------------------------------------------------------------------- arrays


def as_array(value: Any, name: str) -> np.ndarray[Any, Any]:
    """An array argument as a plain `ndarray` on the same memory; `TypeError` where it is none or is refused."""
    if type(value) is not np.ndarray:
        value = _foreign_array(value, name)
    if dtype_name(value.dtype) is None:
        order = "" if value.dtype.isnative else " (foreign byte order: pass A.astype(A.dtype.newbyteorder('=')))"
        raise TypeError(f"{name}: dtype {value.dtype}{order} is not supported; allowed are {', '.join(DTYPES)}")
    if not value.flags.aligned:
        raise ValueError(f"{name}: its elements are not aligned in memory; pass a copy")
    return value  # type: ignore[no-any-return]


def _foreign_array(value: Any, name: str) -> np.ndarray[Any, Any]:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name}: a masked array would lose its mask; pass its .data or .filled(...)")
    if isinstance(value, np.ndarray):  # memory maps and other subclasses
        return value.view(np.ndarray)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise TypeError(f"{name}: NumPy cannot view this {type(value).__name__}: {error}") from error
    raise TypeError(f"{name}: an array is needed, not {type(value).__name__}")


def array_spec(array: np.ndarray[Any, Any], shape: tuple[int | None, ...] | None = None) -> ArraySpec:
    """What a CPU kernel specialises by: dtype, rank, layout.  `shape` has the extents the user fixed.

    The CPU's code uses no alignment beyond the element's, so `divisor` promises nothing.
    """
    dtype = dtype_name(array.dtype)
    assert dtype is not None  # as_array has refused all others
    contiguous = array.flags.c_contiguous
    unit_axis: int | None = None
    if contiguous:
        unit_axis = array.ndim - 1 if array.ndim else None
    else:
        for axis in reversed(range(array.ndim)):
            if array.strides[axis] == array.itemsize:
                unit_axis = axis
                break
    return ArraySpec(dtype, shape or (None,) * array.ndim, unit_axis, contiguous)


def shaped_spec(given: Shaped, shape: tuple[int | None, ...] | None, vector_bytes: int) -> ArraySpec:
    """As `array_spec`, for what only stands for an array: C order, and aligned as fresh memory is.

    `vector_bytes` is the widest access that the target's code makes of an alignment: its `divisor` is the
    largest number of elements in it that divides all rows.
    """
    rank = len(given.shape)
    divisor = max(1, vector_bytes // Scalar(given.dtype).bytes)
    stride = 1
    for extent in reversed(given.shape[1:]):
        stride *= extent
        divisor = math.gcd(divisor, stride)
    return ArraySpec(given.dtype, shape or (None,) * rank, rank - 1 if rank else None, True, divisor)


def lowering_spec(value: Any, name: str, fixed: tuple[int | None, ...] | None, target: Target) -> ArraySpec:
    """The spec of an argument that is only looked at: an array on either side, or a `pyschedule.spec`.

    On a GPU's target a C-contiguous and aligned NumPy array stands for a copy of it there, in fresh memory; any
    other one for an array with its strides and its alignment.
    """
    if is_cuda(value):
        from pyschedule.runtime.cuda_launch import device_array
        from pyschedule.runtime.gpu import device_spec

        array = device_array(value, name)
        check_block_shape(name, fixed, array.shape)
        return device_spec(array, fixed)
    if isinstance(value, Shaped):
        shaped: Shaped | None = value
    else:
        value = as_array(value, name)
        copied = target.kind == "cuda" and value.flags.c_contiguous and value.ctypes.data % target.vector_bytes == 0
        shaped = Shaped(dtype_name(value.dtype) or "", value.shape) if copied else None
    check_block_shape(name, fixed, value.shape if shaped is None else shaped.shape)
    if shaped is None:
        return array_spec(value, fixed)
    return shaped_spec(shaped, fixed, target.vector_bytes if target.kind == "cuda" else 1)


def check_block_shape(name: str, fixed: tuple[int | None, ...] | None, shape: tuple[int, ...]) -> None:
    """`ValueError` naming both where an array is not of the shape that `input_shapes` fixes."""
    if fixed is None:
        return
    if len(fixed) != len(shape) or any(
        want is not None and want != have for want, have in zip(fixed, shape, strict=True)
    ):
        raise ValueError(f"{name}: input_shapes says {fixed}, but the shape of the argument is {shape}")


def check_written(array: np.ndarray[Any, Any], name: str) -> None:
    """`ValueError` for an array that the kernel writes and must not: read-only, or overlapping itself."""
    if not array.flags.writeable:
        raise ValueError(f"{name}: the kernel writes it, and it is read-only")
    if not (array.flags.forc or array.size <= 1) and _overlaps_itself(array):
        raise ValueError(f"{name}: the kernel writes it, and its elements overlap in memory; pass a copy")


_EXACT_OVERLAP: Final = 1 << 20


def _overlaps_itself(array: np.ndarray[Any, Any]) -> bool:
    """Whether two elements share memory.  Nested strides never do; others are counted out where that is cheap,
    and refused beyond."""
    reach = array.itemsize
    axes = sorted(
        (abs(stride), extent) for stride, extent in zip(array.strides, array.shape, strict=True) if extent > 1
    )
    for stride, extent in axes:
        if stride < reach:
            break
        reach += stride * (extent - 1)
    else:
        return False
    if array.size > _EXACT_OVERLAP or any(stride % array.itemsize for stride in array.strides):
        return True
    offsets = np.zeros(1, np.int64)
    for stride, extent in axes:
        offsets = (offsets[:, None] + stride * np.arange(extent)[None, :]).reshape(-1)
    return len(np.unique(offsets)) != len(offsets)


_OVERLAP_WORK: Final[Any] = 100_000


def check_apart(written: np.ndarray[Any, Any], name: str, other: np.ndarray[Any, Any], other_name: str) -> None:
    """`OverlapError` where an array that the kernel writes shares an element with another argument."""
    try:
        if not np.shares_memory(written, other, max_work=_OVERLAP_WORK):
            return
        reason = f"overlaps {other_name} in memory"
    except np.exceptions.TooHardError:
        reason = f"could not be shown to be apart from {other_name} in memory"
    raise OverlapError(f"{name}: the kernel writes it, and it {reason}; pass a copy of one of them")


# ------------------------------------------------------------------------------------------------- scalars

_WEAK: Final[dict[type, Scalar]] = {bool: WEAK_BOOL, int: WEAK_INT, float: WEAK_FLOAT}


def as_scalar(value: Any, name: str) -> Any:
    """A scalar argument as a Python or NumPy number; `TypeError` for anything else."""
    if type(value) in _WEAK:
        return value
    if isinstance(value, np.ndarray) and value.ndim == 0 and dtype_name(value.dtype) is not None:
        return value[()]
    if isinstance(value, np.generic) and dtype_name(value.dtype) is not None:
        return value
    for kind in _WEAK:  # subclasses: IntEnum and the like
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"{name}: a number is needed, not {type(value).__name__}")


def scalar_spec(value: Any) -> ScalarSpec:
    """The type of a scalar that `as_scalar` let pass: Python's are weak, NumPy's integers are int64."""
    weak = _WEAK.get(type(value))
    if weak is not None:
        return ScalarSpec(weak)
    kind = value.dtype.kind
    if kind == "b":
        return ScalarSpec(BOOL)
    if kind in "iu":
        return ScalarSpec(INT64)
    name = dtype_name(value.dtype)
    return ScalarSpec(FLOAT64 if name is None else Scalar(name))


def lowering_scalar(value: Any, name: str) -> ScalarSpec:
    """The type of a number that is only looked at; `pyschedule.spec("float32[]")` stands for one."""
    if isinstance(value, Shaped) and not value.shape:
        scalar = Scalar(value.dtype)
        return ScalarSpec(INT64 if scalar.is_integer else scalar)
    return scalar_spec(as_scalar(value, name))


def check_range(value: Any, name: str) -> None:
    """`OverflowError` for an integer that a kernel's int64 cannot hold."""
    if isinstance(value, (int, np.integer)) and not INT64_MIN <= int(value) <= INT64_MAX:
        raise OverflowError(f"{name}: {value} does not fit in a 64-bit integer")


def passed_scalar(value: Any) -> Any:
    """What compiled code is given for a scalar; see `scalar_conversion`."""
    if isinstance(value, np.generic):
        if value.dtype.kind in "biu":
            return value.item()
        if value.dtype.itemsize == 2:
            return np.float32(value)
    return value


def scalar_conversion(name: str, value: Any) -> tuple[str, bool]:
    """How generated code passes a scalar of this type on, as Python source, and whether its range needs a look.

    Numba takes NumPy's small integers and halves for types of their own; a kernel has int64 and float32.
    """
    if type(value) in _WEAK:
        return name, type(value) is int
    kind = value.dtype.kind
    if kind == "b":
        return f"_ps_bool({name})", False
    if kind in "iu":
        return f"_ps_int({name})", value.dtype == np.uint64
    if value.dtype.itemsize == 2:
        return f"_ps_float32({name})", False
    return name, False
