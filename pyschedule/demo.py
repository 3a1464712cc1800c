"""`pyschedule demo`: a product of matrices with more and more of its schedule, then NumPy."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any


def run(size: int, progress: Callable[[str], None]) -> None:
    """Prints the kernel, its transform log, and the table of size³ in float32 on one thread."""
    import numpy as np

    from operators.kernels.products import gemm_kernel
    from pyschedule.report.perf import perf_report
    from pyschedule.report.table import show

    generator = np.random.default_rng(0)
    A, B = (generator.standard_normal((size, size), dtype=np.float32) for _ in range(2))
    C = np.zeros((size, size), np.float32)

    def numpy_product(A: Any, B: Any, C: Any) -> None:
        np.matmul(A, B, out=C)

    progress("lowering")
    print(inspect.getsource(gemm_kernel.python))
    print(gemm_kernel.lower(A, B, C).log, flush=True)
    frame = perf_report(
        gemm_kernel,
        A,
        B,
        C,
        operator="gemm",
        shape=f"{size}x{size}x{size}",
        peers={"numpy": numpy_product},
        reference=numpy_product,
        rounds=15,
        seconds=4.0,
        progress=progress,
    )
    print()
    print(show(frame), flush=True)
