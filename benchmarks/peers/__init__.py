"""The libraries that the kernels are measured beside, as far as they are installed.

Each module has a class that is made with a number of threads.  Its methods take a problem and return entries of a
contest, none where the library does not take part; `version` and `done` say what it is and what was done for it.
"""

from __future__ import annotations

from importlib import import_module, util
from typing import Any, Protocol

from peers.problems import Convolution, Normalisation, Product
from pyschedule.report import Entry

#: Name of the peer -> what must be installed, the module and the class.
PEERS = {
    "numpy": ("numpy", "peers.numpy_peer", "Numpy"),
    "numba": ("numba", "peers.numba_peer", "Numba"),
    "torch": ("torch", "peers.torch_peer", "Torch"),
    "halide": ("halide", "peers.halide_peer", "Halide"),
    "tvm": ("tvm", "peers.tvm_peer", "Tvm"),
}


class Peer(Protocol):
    version: str
    done: str

    def product(self, given: Product) -> dict[str, Entry]: ...

    def convolution(self, given: Convolution) -> dict[str, Entry]: ...

    def normalisation(self, given: Normalisation) -> dict[str, Entry]: ...


def is_installed(name: str) -> bool:
    return util.find_spec(PEERS[name][0]) is not None


def load(name: str, threads: int) -> Peer:
    _, module, kind = PEERS[name]
    peer: Any = getattr(import_module(module), kind)(threads)
    return peer  # type: ignore[no-any-return]
