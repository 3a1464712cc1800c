"""The NumPy twins of the intrinsics in `codegen.ptx`, for the lockstep executor.

A scalar is a NumPy scalar (the same in all threads) or a vector with one entry a thread; a vector value has a
second axis, its lanes.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import numpy as np

from pyschedule.codegen.ptx_names import LONG
from pyschedule.ir.arithmetic import SCALAR_ONLY
from pyschedule.ir.types import Scalar

Value = Any


def cast(value: Value, dtype: str) -> Value:
    """Conversion as NumPy's `astype` (a bool: whether it is not zero)."""
    array = np.asarray(value).astype(np.dtype(dtype))
    return array if array.ndim else array[()]


def widen(stored: Value, dtype: str) -> Value:
    """Stored words as values."""
    if dtype == "float16":
        return stored.view(np.float16).astype(np.float32)
    if dtype == "bfloat16":
        return (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return stored != 0 if dtype == "bool" else stored


def narrow(value: Value, dtype: str) -> Value:
    """Values as stored words; halves rounded to nearest even."""
    if dtype == "float16":
        return np.asarray(value, np.float32).astype(np.float16).view(np.uint16)
    if dtype == "bfloat16":
        numbers = np.asarray(value, np.float32)
        bits = numbers.view(np.uint32)
        odd = (bits >> np.uint32(16)) & np.uint32(1)
        rounded = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
        quiet = (bits >> np.uint32(16)) | np.uint32(0x40)
        return np.where(np.isnan(numbers), quiet, rounded).astype(np.uint16)
    if dtype == "bool":
        return np.asarray(value).astype(np.uint8)
    return np.asarray(value).astype(np.dtype(dtype))


def _half(dtype: str, widens: bool) -> Callable[[Value], Value]:
    def twin(value: Value) -> Value:
        array = np.atleast_1d(np.asarray(value))
        result = widen(array, dtype) if widens else narrow(array, dtype)
        return result if np.ndim(value) else result[0]

    return twin


def _rounded(dtype: str) -> Callable[[Value], Value]:
    def twin(value: Value) -> Value:
        array = np.atleast_1d(np.asarray(value))
        result: Value = widen(narrow(array, dtype), dtype)
        return result if np.ndim(value) else result[0]

    return twin


def _pmin(x: Value, y: Value) -> Value:
    return np.where(y < x, y, x)


def _pmax(x: Value, y: Value) -> Value:
    return np.where(y > x, y, x)


def _shift(left: bool) -> Callable[[Value, Value], Value]:
    def twin(x: Value, count: Value) -> Value:
        width = np.asarray(x).dtype.itemsize * 8
        far = (count < 0) | (count >= width)
        kept = np.where(far, 0, count).astype(np.asarray(x).dtype)
        if left:
            return np.where(far, np.zeros_like(x), np.left_shift(x, kept))
        last = np.asarray(width - 1, np.asarray(x).dtype)
        beyond = np.right_shift(x, last) if np.asarray(x).dtype.kind == "i" else np.zeros_like(x)
        return np.where(far, beyond, np.right_shift(x, kept))

    return twin


def _elementwise(function: Callable[..., float]) -> Callable[..., Value]:
    def twin(*args: Value) -> Value:
        return np.vectorize(function, otypes=[np.asarray(args[0]).dtype])(*args)

    return twin


_BINARY: Final[dict[str, Callable[..., Value]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floordiv": np.floor_divide,
    "mod": np.mod,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "shl": _shift(True),
    "shr": _shift(False),
    "pmin": _pmin,
    "pmax": _pmax,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "atan2": np.arctan2,
    "hypot": np.hypot,
    "copysign": np.copysign,
    "fmod": np.fmod,
    "remainder": _elementwise(SCALAR_ONLY["remainder"]),
    "pow": np.power,
}
_UNARY: Final[dict[str, Callable[..., Value]]] = {
    "neg": np.negative,
    "inv": np.invert,
    "not": np.logical_not,
    "abs": np.abs,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    **{
        name: getattr(np, name)
        for name in ["sqrt", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan"]
    },
    **{name: getattr(np, name) for name in ["sinh", "cosh", "tanh", "floor", "ceil", "trunc"]},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ["sin", "cos", "tan", "sinh", "cosh", "tanh"]},
    "cbrt": np.cbrt,
    **{name: _elementwise(SCALAR_ONLY[name]) for name in ("erf", "erfc", "gamma", "lgamma")},
    "tgamma": _elementwise(SCALAR_ONLY["gamma"]),
    "fabs": np.abs,
}


def _splat(lanes: int) -> Callable[[Value], Value]:
    return lambda value: np.repeat(np.atleast_1d(np.asarray(value))[:, None], lanes, axis=1)


def _ramp(lanes: int) -> Callable[[Value, Value], Value]:
    def twin(base: Value, stride: Value) -> Value:
        first = np.atleast_1d(np.asarray(base))[:, None]
        return first + np.asarray(stride) * np.arange(lanes, dtype=first.dtype)

    return twin


def _select(test: Value, then: Value, orelse: Value) -> Value:
    return np.where(test, then, orelse)


def _fma(x: Value, y: Value, z: Value) -> Value:
    wide = np.longdouble
    return (np.asarray(x, wide) * np.asarray(y, wide) + np.asarray(z, wide)).astype(np.asarray(x).dtype)


def _reduce(operation: Callable[..., Value]) -> Callable[[Value], Value]:
    def twin(vector: Value) -> Value:
        parts = [vector[:, lane] for lane in range(vector.shape[1])]
        while len(parts) > 1 and len(parts) % 2 == 0:
            half = len(parts) // 2
            parts = [operation(parts[n], parts[n + half]) for n in range(half)]
        total = parts[0]
        for part in parts[1:]:
            total = operation(total, part)
        return total

    return twin


def in_range(index: Value, extent: Value) -> Value:
    return (index >= -extent) & (index < extent)


_FIXED: Final[dict[str, Callable[..., Value]]] = {
    "vselect": _select,
    "vfma": _fma,
    "in_range": in_range,
}
_SIZED = re.compile(r"^(splat|ramp)(\d+)$")


@cache
def twin(name: str) -> Callable[..., Value] | None:
    """The NumPy function for an intrinsic that touches no memory, or `None`."""
    if name in _FIXED:
        return _FIXED[name]
    sized = _SIZED.match(name)
    if sized:
        return (_splat if sized[1] == "splat" else _ramp)(int(sized[2]))
    head, _, short = name.rpartition("_")
    if short in LONG and head == "cast":
        dtype = LONG[short]
        return lambda value: cast(value, dtype)
    if short in ("f16", "bf16") and head in ("widen", "narrow"):
        return _half(LONG[short], head == "widen")
    if short in ("f16", "bf16") and head == "round":
        return _rounded(LONG[short])
    if head == "reduce":
        return _reduce(_BINARY[short])
    operation = name.removeprefix("v")
    return _BINARY.get(operation) or _UNARY.get(operation)


@cache
def libdevice(name: str) -> Callable[..., Value]:
    """The twin of `libdevice.expf` and its like: float32 with the suffix `f`, else float64."""
    for candidate, dtype in ((name, np.float64), (name.removesuffix("f"), np.float32)):
        function = _BINARY.get(candidate) or _UNARY.get(candidate)
        if function is not None and not (candidate == "er" and name == "erf"):
            return _typed(function, dtype)
    raise KeyError(name)


def _typed(function: Callable[..., Value], dtype: type) -> Callable[..., Value]:
    def twin_of(*args: Value) -> Value:
        result: Value = np.asarray(function(*(np.asarray(arg, dtype) for arg in args))).astype(dtype)
        return result if result.ndim else result[()]

    return twin_of


def held_dtype(dtype: str) -> np.dtype[Any]:
    """The NumPy type of a loaded value."""
    return np.dtype(np.float32) if Scalar(dtype).is_half else np.dtype(dtype)
