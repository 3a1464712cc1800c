"""What a user waits for: the import, the lowering of GEMM, and a second process's first call.

    python benchmarks/startup.py

Prints the median of several runs beside what is aimed for, and their ratio (below 1 is within it).
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = 5

IMPORT = """
import time
begin = time.perf_counter()
import pyschedule
print(time.perf_counter() - begin)
"""

LOWERING = """
import time
from pyschedule import spec
from operators.kernels.products import gemm_kernel
arguments = [spec("float32[1024, 1024]")] * 3
begin = time.perf_counter()
gemm_kernel.lower(*arguments)
print(time.perf_counter() - begin)
"""

LOWERING_AGAIN = LOWERING.replace("begin =", 'gemm_kernel.lower(*[spec("float64[8, 8]")] * 3)\nbegin =')

FIRST_CALL = """
import time
begin = time.perf_counter()
import numpy as np
from operators.kernels.products import gemm_kernel
A = np.ones((64, 64), np.float32)
gemm_kernel(A, A, np.zeros((64, 64), np.float32))
print(time.perf_counter() - begin)
"""


def seconds(code: str, cache: str) -> float:
    environment = os.environ | {"PYSCHEDULE_CACHE_DIR": cache, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return float(result.stdout)


def main() -> None:
    with tempfile.TemporaryDirectory() as cache:
        cold = seconds(FIRST_CALL, cache)
        print(f"{'first call of a cold GEMM (import and compilation)':<52} {cold:6.2f} s")
        for name, code, aim in (
            ("import pyschedule", IMPORT, 0.5),
            ("lowering GEMM, all transforms, no LLVM", LOWERING_AGAIN, 0.3),
            ("the same, first in a process (isl is imported)", LOWERING, 0.3),
            ("a second process's first call, from the disk cache", FIRST_CALL, 1.0),
        ):
            median = statistics.median(seconds(code, cache) for _ in range(RUNS))
            print(f"{name:<52} {median:6.2f} s   aim {aim:.1f} s   ratio {median / aim:.2f}")


if __name__ == "__main__":
    main()
