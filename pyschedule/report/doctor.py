"""What pyschedule finds on this machine: the facts to put into a report of a fault."""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

_PACKAGES: Final = (
    "numpy",
    "numba",
    "llvmlite",
    "islpy",
    "sympy",
    "networkx",
    "pandas",
    "ml_dtypes",
    "numba-cuda",
)
_CUDA_TOOLS: Final = (
    ("nvidia-cuda-nvcc", "PTX to machine code"),
    ("nvidia-cuda-nvrtc", "the headers that Numba's kernels include"),
    ("nvidia-nvjitlink", "linking, registers and spills"),
    ("nvidia-cuda-nvdisasm", "machine code listings"),
    ("nvidia-cuda-cuobjdump", "resource usage"),
)
_FEATURES: Final = ("avx512f", "avx2", "fma", "f16c", "neon", "sve")


def facts() -> dict[str, str]:
    """Name → what was found, in the order to print."""
    import pyschedule

    return {
        "pyschedule": pyschedule.__version__,
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        **{name: _version(name) for name in _PACKAGES},
        **_cpu(),
        "threads": _threads(),
        "cache": _cache(),
        **{f"cuda: {name}": f"{_version(name)} ({purpose})" for name, purpose in _CUDA_TOOLS},
        "cuda: device": _device(),
        "environment": _environment(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu() -> dict[str, str]:
    import llvmlite.binding as llvm

    from pyschedule.schedule.targets import host

    target = host()
    features = llvm.get_host_cpu_features()
    found = [name for name in _FEATURES if features.get(name, False)]
    return {
        "cpu": f"{target.arch}, {target.cores} cores",
        "cpu features": " ".join(found) or "none of " + " ".join(_FEATURES),
        "vectors": f"{8 * target.vector_bytes} bits, {target.vector_registers} registers",
        "matrix unit": "; ".join(f"{unit.name}, of {', '.join(unit.types)}" for unit in target.matrix) or "none",
    }


def _threads() -> str:
    import numba
    from numba.np.ufunc import parallel

    found = []
    for layer, module in (("tbb", "tbbpool"), ("omp", "omppool"), ("workqueue", "workqueue")):
        try:
            available = importlib.util.find_spec(f"numba.np.ufunc.{module}") is not None
            if available:
                importlib.import_module(f"numba.np.ufunc.{module}")
                found.append(layer)
        except ImportError:
            continue
    layers = ", ".join(found) or "no layer"
    return f"{parallel.get_thread_count()} ({layers}; NUMBA_THREADING_LAYER={numba.config.THREADING_LAYER})"


def _cache() -> str:
    from pyschedule.runtime.cache import default_directory

    directory = default_directory().absolute()
    parent = next(path for path in (directory, *directory.parents) if path.exists())
    return f"{directory} ({'writable' if os.access(parent, os.W_OK) else 'not writable'})"


def _device() -> str:
    if importlib.util.find_spec("numba_cuda") is None:
        return "pip install 'pyschedule[cuda]' to compile for GPUs"
    from numba import cuda

    if not cuda.is_available():
        return "none (compiling to PTX and machine code needs none)"
    device = cuda.get_current_device()
    name = device.name.decode() if isinstance(device.name, bytes) else device.name
    return f"{name}, sm_{device.compute_capability[0]}{device.compute_capability[1]}"


def _environment() -> str:
    names = sorted(name for name in os.environ if name.startswith(("PYSCHEDULE_", "NUMBA_", "OPENBLAS_")))
    return " ".join(f"{name}={os.environ[name]}" for name in names) or "nothing of PYSCHEDULE_, NUMBA_, OPENBLAS_"
