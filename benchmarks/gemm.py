"""GEMM in float32 on one thread: each step of the schedule, and the ratio to NumPy's OpenBLAS at its best.

    python benchmarks/gemm.py [SIZE ...]          (default: 1024 2048)

Interleaved in one process, medians, each variant from the same arguments; NumPy in the environment of
`pyschedule.report.fairness` (nothing that slows OpenBLAS, one thread).  The last line of each size is the ratio
of NumPy's time to the full schedule's: above 1 the kernel is faster.
"""

from __future__ import annotations

import sys

from pyschedule.report.fairness import is_fair, run_fairly


def main(sizes: list[int]) -> None:
    import numpy as np
    from threadpoolctl import threadpool_info

    from operators.kernels.products import gemm_kernel
    from pyschedule.report import Case, perf_report
    from pyschedule.report.progress import Progress
    from pyschedule.report.table import show

    for pool in threadpool_info():
        if pool["user_api"] == "blas":
            print(
                f"NumPy's BLAS: {pool['internal_api']} {pool['version']}, {pool.get('architecture')}, "
                f"{pool['num_threads']} thread"
            )
    generator = np.random.default_rng(0)
    progress = Progress()

    def numpy_product(A, B, C):
        np.matmul(A, B, out=C)

    for size in sizes:
        A, B = (generator.standard_normal((size, size), dtype=np.float32) for _ in range(2))
        case = Case(
            gemm_kernel,
            (A, B, np.zeros((size, size), np.float32)),
            operator="gemm",
            shape=f"{size}x{size}x{size}",
            peers={"numpy": numpy_product},
            reference=numpy_product,
        )
        frame = perf_report([case], rounds=31, seconds=8.0, progress=progress)
        progress.close()
        print(show(frame))
        times = dict(zip(frame["variant"], frame["time_s"], strict=True))
        full = times["+tiling+vectorization+unroll"]
        print(
            f"{size}: full / naive speedup {times['naive'] / full:.1f}, numpy / full {times['numpy'] / full:.3f}\n"
        )


if __name__ == "__main__":
    if not is_fair():
        raise SystemExit(run_fairly(sys.argv))
    main([int(text) for text in sys.argv[1:]] or [1024, 2048])
