"""Numba by hand: a fused LayerNorm, one row at a time, and the dispatcher as the floor of a call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import njit, prange

from peers.problems import Convolution, Normalisation, Product
from pyschedule.report import Entry

_OPTIONS: dict[str, Any] = {"fastmath": True, "error_model": "numpy", "boundscheck": False}


def _layer_norm(x: Any, weight: Any, bias: Any, eps: float, out: Any) -> None:
    rows, width = x.shape
    for i in prange(rows):
        mean = np.float32(0)
        for j in range(width):
            mean += x[i, j]
        mean /= np.float32(width)
        square = np.float32(0)
        for j in range(width):
            difference = x[i, j] - mean
            square += difference * difference
        scale = np.float32(1 / math.sqrt(square / np.float32(width) + eps))
        for j in range(width):
            out[i, j] = (x[i, j] - mean) * scale * weight[j] + bias[j]


def _rms_norm(x: Any, weight: Any, eps: float, out: Any) -> None:
    rows, width = x.shape
    for i in prange(rows):
        square = np.float32(0)
        for j in range(width):
            square += x[i, j] * x[i, j]
        scale = np.float32(1 / math.sqrt(square / np.float32(width) + eps))
        for j in range(width):
            out[i, j] = x[i, j] * scale * weight[j]


def _product(a: Any, b: Any, c: Any) -> None:
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            s = np.float32(0)
            for k in range(a.shape[1]):
                s += a[i, k] * b[k, j]
            c[i, j] = s


class Numba:
    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.version = f"Numba {numba.__version__}"
        self.done = (
            "a LayerNorm by hand: mean, squared deviations and result of a row while it is in the first cache, "
            "`fastmath`, rows in `prange` where there are two threads; and a plain product of three loops, "
            "whose call at tiny sizes is the dispatcher's own time"
        )
        options = {**_OPTIONS, "parallel": threads > 1}
        self._layer_norm, self._rms_norm = njit(**options)(_layer_norm), njit(**options)(_rms_norm)
        self._product = njit(**_OPTIONS)(_product)

    def product(self, given: Product) -> dict[str, Entry]:
        return {}

    def dispatched(self, given: Product) -> dict[str, Entry]:
        """The plain product: at tiny sizes the time of a call through Numba's dispatcher."""
        a, b, out, product = given.a, given.b, given.out(), self._product

        def call() -> Any:
            product(a, b, out)
            return out

        return {"numba's dispatcher": Entry(call)}

    def convolution(self, given: Convolution) -> dict[str, Entry]:
        return {}

    def normalisation(self, given: Normalisation) -> dict[str, Entry]:
        x, weight, bias, out, eps = given.x, given.weight, given.bias, given.out(), given.eps
        layer_norm, rms_norm, threads = self._layer_norm, self._rms_norm, self.threads
        call: Callable[[], Any] = lambda: layer_norm(x, weight, bias, eps, out)  # noqa: E731
        if given.operator == "rms_norm":
            call = lambda: rms_norm(x, weight, eps, out)  # noqa: E731
        return {"numba": Entry(call, lambda _: out, lambda: numba.set_num_threads(threads), threads)}
