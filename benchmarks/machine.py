"""The machine and the libraries that a table was measured with."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from pathlib import Path

_FLAGS = ("fma", "avx2", "f16c", "avx512", "avx_vnni", "amx", "asimd", "sve")
_OPENMP = ("libgomp", "libiomp", "libomp")


def load() -> str:
    return ", ".join(f"{value:.2f}" for value in os.getloadavg())


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def facts() -> dict[str, str]:
    """What a reader needs to know to compare these numbers with others'."""
    from pyschedule.report.peak import copy_gbytes, fma_gflops

    found = _cpuinfo()
    flags = [flag for flag in found.get("flags", "").split() if flag.startswith(_FLAGS)]
    libraries = ("numpy", "numba", "llvmlite", "ml_dtypes")
    model = f", family {found['cpu family']} model {found['model']}" if "cpu family" in found else ""
    return {
        "CPU": found.get("model name", platform.processor() or platform.machine()) + model,
        "instruction sets": " ".join(flags) or "not known",
        "caches": _caches() or "not known",
        "cores": f"{usable_cores()} of {os.cpu_count()} may be used",
        "one core, measured": (
            f"{fma_gflops('float32'):.0f} GFLOP/s of fused multiply-adds in float32, "
            f"{fma_gflops('float64'):.0f} in float64; copies {copy_gbytes():.0f} GB/s, read and written"
        ),
        "scheduling": _scheduling(),
        "system": f"{platform.system()} {platform.release()}, {' '.join(platform.libc_ver())}",
        "Python": ", ".join(
            [platform.python_version(), *(f"{name} {metadata.version(name)}" for name in libraries)]
        ),
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "load average": load(),
    }


def _scheduling() -> str:
    """Whether other programs may take a core from this one."""
    if not hasattr(os, "sched_getscheduler"):
        return "not known"
    policy = os.sched_getscheduler(0)
    if policy in (os.SCHED_FIFO, os.SCHED_RR):
        return f"before all programs without real-time priority ({os.sched_getparam(0).sched_priority})"
    return f"nice {os.nice(0)}"


def openmp() -> str:
    """The OpenMP runtimes that are loaded: libraries that share one share its threads."""
    path = Path("/proc/self/maps")
    if not path.exists():
        return "not known"
    files = {Path(line.split()[-1]).name for line in path.read_text().splitlines() if "/" in line}
    return ", ".join(sorted(name for name in files if name.startswith(_OPENMP))) or "none"


def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return {}
    first = path.read_text().split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _caches() -> str:
    texts = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            texts.append(f"L{level} {size}")
    return ", ".join(texts)
