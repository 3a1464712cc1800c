"""One thread against one thread, NumPy at its best: a process whose environment does not slow its BLAS."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Final

#: They choose a kernel or a cache size for OpenBLAS, and are read when it is loaded.
_SLOWING: Final = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
_THREADS: Final = (
    "NUMBA_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


def fair_environment() -> dict[str, str]:
    """This process's environment without what slows OpenBLAS, and with one thread for Numba and every BLAS."""
    environment = {name: value for name, value in os.environ.items() if name not in _SLOWING}
    return environment | dict.fromkeys(_THREADS, "1")


def is_fair() -> bool:
    return dict(os.environ) == fair_environment()


def run_fairly(arguments: Sequence[str]) -> int:
    """Runs `python arguments...` in such an environment; its exit status."""
    return subprocess.run([sys.executable, *arguments], env=fair_environment(), check=False).returncode
