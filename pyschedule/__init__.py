"""Schedules for loop nests in plain Python: tile, vectorize, unroll.

@tile(i=(192, 6), j=(2048, 64), k=384)
@vectorize("j", width=16)
@unroll("i")
def gemm(A, B, C):
    ...three plain loops...

gemm(A, B, C)             # compiled for the CPU, or for a GPU where the arrays live there
gemm.python(A, B, C)      # the undecorated function
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyschedule.decorators import nounroll, poll, tile, unroll, vectorize
from pyschedule.errors import (
    FrontendError,
    KernelCancelled,
    KernelTimeout,
    LegalityError,
    OverlapError,
    ScheduleError,
    ScheduleWarning,
)
from pyschedule.ir.signature import spec
from pyschedule.kernel import inspect_loop_transforms
from pyschedule.runtime.shortcuts import Shortcuts
from pyschedule.runtime.warn import configure_logging

if TYPE_CHECKING:
    from pyschedule.report import perf_report

__version__ = "0.1.0"

__all__ = [
    "FrontendError",
    "KernelCancelled",
    "KernelTimeout",
    "LegalityError",
    "OverlapError",
    "ScheduleError",
    "ScheduleWarning",
    "Shortcuts",
    "__version__",
    "inspect_loop_transforms",
    "nounroll",
    "perf_report",
    "poll",
    "spec",
    "tile",
    "unroll",
    "vectorize",
]

configure_logging()


def __getattr__(name: str) -> Any:
    if name == "perf_report":  # with pandas, so only when it is wanted
        from pyschedule.report import perf_report

        return perf_report
    raise AttributeError(f"module 'pyschedule' has no attribute {name!r}")
