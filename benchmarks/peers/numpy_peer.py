"""NumPy: products through the BLAS it was built with, and the copy that no normalisation can beat."""

from __future__ import annotations

from typing import Any

import numpy as np

from peers.problems import Convolution, Normalisation, Product
from pyschedule.report import Entry

#: NumPy multiplies these with its BLAS; all else in plain loops, a hundred times slower.
_BLAS = ("float32", "float64")


class Numpy:
    def __init__(self, threads: int) -> None:
        self.threads = threads
        blas: Any = np.show_config(mode="dicts")
        found = blas["Build Dependencies"]["blas"]
        self.version = f"NumPy {np.__version__} with {found['name']} {found['version']}"
        self.done = (
            "`np.matmul(a, b, out=)`; float32 and float64 alone, the rest is not done by its BLAS; "
            "`np.copyto` of the array as the limit of LayerNorm"
        )

    def product(self, given: Product) -> dict[str, Entry]:
        if given.dtype not in _BLAS:
            return {}
        a, b, out = given.a, given.b, given.out()
        matmul = np.matmul
        return {"numpy": Entry(lambda: matmul(a, b, out=out), cores=self.threads)}

    def convolution(self, given: Convolution) -> dict[str, Entry]:
        return {}

    def normalisation(self, given: Normalisation) -> dict[str, Entry]:
        x, out, expected = given.x, given.out(), given.expected
        copyto = np.copyto
        return {"copy": Entry(lambda: copyto(out, x), lambda _: expected if np.array_equal(out, x) else out)}
