"""PyTorch: products, convolutions in both layouts, normalisations with its allocator as it is and at its best."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from peers.problems import Convolution, Normalisation, Product
from pyschedule.report import Entry

# glibc's malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX = -1, -3, -4
_MMAP_THRESHOLD_MAX = 32 << 20


def _of_numpy(array: Any) -> Any:
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


def _to_numpy(tensor: Any) -> Any:
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()


class _Allocator:
    """glibc's malloc, which PyTorch's results come from."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None) if sys.platform == "linux" else None

    @property
    def known(self) -> bool:
        return hasattr(self._libc, "mallopt")

    def as_it_is(self) -> None:
        """What the process comes to by itself once it has freed a large array: the thresholds at their maxima."""
        if self._libc is not None and self.known:
            self._libc.mallopt(_M_MMAP_MAX, 65536)
            self._libc.mallopt(_M_MMAP_THRESHOLD, _MMAP_THRESHOLD_MAX)
            self._libc.mallopt(_M_TRIM_THRESHOLD, 2 * _MMAP_THRESHOLD_MAX)
            self._libc.malloc_trim(0)

    def keeping_pages(self) -> None:
        """No array is given back to the system when it is freed, so that no page is cleared for the next one."""
        if self._libc is not None:
            self._libc.mallopt(_M_MMAP_MAX, 0)
            self._libc.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)


class Torch:
    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        self.threads = threads
        self._allocator = _Allocator()
        self.version = (
            f"PyTorch {torch.__version__} ({torch.backends.cpu.get_cpu_capability()}, with MKL and oneDNN)"
        )
        self.done = (
            "`torch.mm(a, b, out=)`, `torch._int_mm(a, b, out=)` for int8; `conv2d` with NCHW tensors, and with "
            "image and weight in `torch.channels_last`; `layer_norm` and `rms_norm`, whose results are new arrays, "
            "with glibc's malloc as it is, and with one that keeps pages (no mmap, no trim); gradients off"
        )

    def product(self, given: Product) -> dict[str, Entry]:
        a, b, out = (_of_numpy(array) for array in (given.a, given.b, given.out()))
        multiply = torch._int_mm if given.dtype == "int8" else torch.mm
        return {"torch": Entry(lambda: multiply(a, b, out=out), _to_numpy, cores=self.threads)}

    def convolution(self, given: Convolution) -> dict[str, Entry]:
        bias = _of_numpy(given.bias)

        def entry(x: Any, weight: Any) -> Entry:
            conv2d, stride, padding, groups = functional.conv2d, given.stride, given.padding, given.groups
            return Entry(lambda: conv2d(x, weight, bias, stride, padding, 1, groups), _to_numpy, cores=self.threads)

        tensors = [_of_numpy(given.x), _of_numpy(given.weight)]
        last = [tensor.to(memory_format=torch.channels_last) for tensor in tensors]
        return {"torch": entry(*tensors), "torch channels-last": entry(*last)}

    def normalisation(self, given: Normalisation) -> dict[str, Entry]:
        x, weight, bias = (_of_numpy(array) for array in (given.x, given.weight, given.bias))
        shape, eps = [given.width], given.eps
        layer_norm, rms_norm = functional.layer_norm, functional.rms_norm
        call: Callable[[], Any] = lambda: layer_norm(x, shape, weight, bias, eps)  # noqa: E731
        if given.operator == "rms_norm":
            call = lambda: rms_norm(x, shape, weight, eps)  # noqa: E731
        as_it_is, keeping = self._allocator.as_it_is, self._allocator.keeping_pages
        entries = {"torch": Entry(call, _to_numpy, as_it_is, self.threads)}
        if self._allocator.known:
            entries["torch, keeping pages"] = Entry(call, _to_numpy, keeping, self.threads)
        return entries
