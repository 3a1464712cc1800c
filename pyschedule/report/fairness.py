"""As many threads for one as for the other, and peers at their best: an environment that slows none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

#: They choose kernels, instruction sets or cache sizes for OpenBLAS, MKL, oneDNN, PyTorch and Halide, and are read
#: when these are loaded.
_SLOWING: Final = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
    "MKL_CBWR",
    "MKL_ENABLE_INSTRUCTIONS",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "ATEN_CPU_CAPABILITY",
    "HL_JIT_TARGET",
)
_THREADS: Final = (
    "NUMBA_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "HL_NUM_THREADS",
    "TVM_NUM_THREADS",
)


def fair_environment(threads: int = 1) -> dict[str, str]:
    """This process's environment without what slows peers, and with so many threads for each of them."""
    environment = {name: value for name, value in os.environ.items() if name not in _SLOWING}
    return environment | dict.fromkeys(_THREADS, str(threads))


def is_fair(threads: int = 1) -> bool:
    return dict(os.environ) == fair_environment(threads)


def run_fairly(arguments: Sequence[str], threads: int = 1) -> int:
    """Runs `python arguments...` in such an environment; its exit status."""
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=fair_environment(threads), check=False).returncode
