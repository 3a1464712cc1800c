"""What is computed: the arrays of one row of a table, its result in float64, and how much work it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

#: Bytes: a line of the caches, and the widest vector.
ALIGNMENT = 64
#: Bytes of arrays that come from malloc's heap, some of which are aligned, and not as pages of their own, 16 bytes
#: after whose beginning an array begins.
_SMALL = 64 * 1024


def aligned(values: Any) -> Any:
    """A dense copy in row-major order that begins at a multiple of `ALIGNMENT`.

    Of small arrays it is one that owns its memory, as the arrays of most users do: a view costs a call more, where
    it is looked whether arrays overlap.  Of large ones, where that is nothing, it is a view.
    """
    copy = _owner(values) if values.nbytes < _SMALL else None
    if copy is None:
        memory = np.empty(values.nbytes + ALIGNMENT, np.uint8)
        start = -memory.ctypes.data % ALIGNMENT
        copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


def _owner(values: Any) -> Any | None:
    """An aligned array that owns its memory, if one is found in some tries."""
    found = []
    for attempt in range(100):
        found.append(np.empty(values.shape, values.dtype))
        if found[-1].ctypes.data % ALIGNMENT == 0:
            return found[-1]
        found.append(np.empty(16 * attempt, np.uint8))  # the next one begins elsewhere
    return None


def _random(shape: tuple[int, ...], dtype: str, seed: int) -> Any:
    generator = np.random.default_rng(seed)
    if dtype == "int8":
        return aligned(generator.integers(-128, 128, shape, np.int8))
    values = generator.standard_normal(shape, np.float64 if dtype == "float64" else np.float32)
    return aligned(values.astype(numpy_dtype(dtype)))


def _zeros(shape: tuple[int, ...], dtype: Any = np.float32) -> Any:
    return aligned(np.zeros(shape, dtype))


def numpy_dtype(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


@dataclass(frozen=True)
class Product:
    """`a @ b`, of m x k and k x n."""

    m: int
    n: int
    k: int
    dtype: str = "float32"

    @property
    def shape(self) -> str:
        return f"{self.m}x{self.n}x{self.k}"

    @cached_property
    def a(self) -> Any:
        return _random((self.m, self.k), self.dtype, 1)

    @cached_property
    def b(self) -> Any:
        return _random((self.k, self.n), self.dtype, 2)

    def out(self) -> Any:
        return _zeros((self.m, self.n), np.int32 if self.dtype == "int8" else self.a.dtype)

    @property
    def expected(self) -> Any:
        return np.matmul(self.a.astype(np.float64), self.b.astype(np.float64))

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.n * self.k

    @property
    def bytes_moved(self) -> float:
        return float(self.a.nbytes + self.b.nbytes + self.out().nbytes)


@dataclass(frozen=True)
class Convolution:
    """Windows of `window` x `window` over one image of `size` x `size`, with a border of `padding` zeros."""

    window: int
    channels: int
    filters: int
    size: int
    stride: int = 1
    padding: int = 0
    groups: int = 1
    dtype: str = "float32"

    @property
    def shape(self) -> str:
        kind = "depthwise " if self.groups > 1 else ""
        stride = f" stride {self.stride}" if self.stride > 1 else ""
        sizes = f"{self.channels}->{self.filters}, {self.size}x{self.size}"
        return f"{kind}{self.window}x{self.window}{stride}, {sizes}"

    @property
    def size_out(self) -> int:
        return (self.size + 2 * self.padding - self.window) // self.stride + 1

    @cached_property
    def x(self) -> Any:
        return _random((1, self.channels, self.size, self.size), self.dtype, 1)

    @cached_property
    def weight(self) -> Any:
        return _random((self.filters, self.channels // self.groups, self.window, self.window), self.dtype, 2)

    @cached_property
    def bias(self) -> Any:
        return _random((self.filters,), self.dtype, 3)

    def out(self) -> Any:
        return _zeros((1, self.filters, self.size_out, self.size_out))

    @property
    def expected(self) -> Any:
        """One product of matrices in float64 for each place in the window."""
        edge = ((0, 0), (0, 0), (self.padding, self.padding), (self.padding, self.padding))
        padded = np.pad(self.x.astype(np.float64), edge)[0]
        weight = self.weight.astype(np.float64)
        result = np.zeros(self.out().shape[1:]) + self.bias[:, None, None]
        span = (self.size_out - 1) * self.stride + 1
        for r in range(self.window):
            for s in range(self.window):
                seen = padded[:, r : r + span : self.stride, s : s + span : self.stride]
                if self.groups > 1:
                    result += weight[:, 0, r, s, None, None] * seen
                else:
                    result += np.tensordot(weight[:, :, r, s], seen, axes=1)
        return result[None]

    @property
    def flops(self) -> float:
        return 2.0 * self.weight.size * self.size_out**2

    @property
    def bytes_moved(self) -> float:
        return float(self.x.nbytes + self.weight.nbytes + self.bias.nbytes + self.out().nbytes)


@dataclass(frozen=True)
class Normalisation:
    """Rows of `width`, normalised (`"layer_norm"`, `"rms_norm"`)."""

    rows: int
    width: int
    operator: str = "layer_norm"
    dtype: str = "float32"
    eps: float = 1e-5

    @property
    def shape(self) -> str:
        return f"{self.rows}x{self.width}"

    @cached_property
    def x(self) -> Any:
        return _random((self.rows, self.width), self.dtype, 1)

    @cached_property
    def weight(self) -> Any:
        return _random((self.width,), self.dtype, 2)

    @cached_property
    def bias(self) -> Any:
        return _random((self.width,), self.dtype, 3)

    def out(self) -> Any:
        return _zeros((self.rows, self.width))

    @property
    def expected(self) -> Any:
        x = self.x.astype(np.float64)
        if self.operator == "layer_norm":
            x -= x.mean(1, keepdims=True)
        scale = np.asarray(self.weight, np.float64) / np.sqrt((x * x).mean(1, keepdims=True) + self.eps)
        x *= scale
        return x + self.bias if self.operator == "layer_norm" else x

    @property
    def bytes_moved(self) -> float:
        return 2.0 * self.x.nbytes
