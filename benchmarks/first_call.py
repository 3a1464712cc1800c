"""What the first call of an operator costs a new process: with nothing cached, and from the cache on disk.

    python benchmarks/first_call.py

Each sample is a process of its own, in turns with a cache directory that was emptied before and one that is full;
medians, in seconds of the clock.  Importing Numba is part of the first call, since `import operators` does not, and
stands in a column of its own too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

#: By the name of a row, the statements that make `call`.
CALLS = {
    "matmul 300x300x300": "a = np.ones((300, 300), np.float32); call = lambda: operators.matmul(a, a)",
    "matmul 300x2000x300": "a = np.ones((300, 2000), np.float32); call = lambda: operators.matmul(a, a.T.copy())",
    "linear 300x300x300, gelu": "a = np.ones((300, 300), np.float32);"
    "call = lambda: operators.linear(a, a, a[0], activation='gelu')",
    "conv2d 3x3, 64->64, 56x56": "x = np.ones((1, 64, 56, 56), np.float32);"
    "w = np.ones((64, 64, 3, 3), np.float32); call = lambda: operators.conv2d(x, w, padding=1)",
    "layer_norm 1024x768": "x = np.ones((1024, 768), np.float32); call = lambda: operators.layer_norm(x, 768)",
}

PROCESS = """
import json, time
begin = time.perf_counter()
import numpy as np
import operators
imported = time.perf_counter()
import numba
numba_too = time.perf_counter()
{setup}
ready = time.perf_counter()
call()
print(json.dumps([imported - begin, numba_too - imported, time.perf_counter() - ready]))
"""


def sample(setup: str, cache: Path) -> list[float]:
    """Seconds of `import operators`, `import numba` and the first call, in a process of its own."""
    environment = os.environ | {"PYSCHEDULE_CACHE_DIR": str(cache)}
    result = subprocess.run(
        [sys.executable, "-c", PROCESS.format(setup=setup)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found: list[float] = json.loads(result.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="What the first call of an operator costs a new process.")
    parser.add_argument("--rounds", type=int, default=5, help="processes a row, for each kind of cache")
    rounds = parser.parse_args().rounds
    print(f"{'':28} {'operators':>10} {'numba':>7} {'cold call':>10} {'cached call':>12}")
    for name, setup in CALLS.items():
        cold, cached = [], []
        with tempfile.TemporaryDirectory() as full:
            sample(setup, Path(full))
            for _ in range(rounds):
                with tempfile.TemporaryDirectory() as empty:
                    cold.append(sample(setup, Path(empty)))
                cached.append(sample(setup, Path(full)))
        imports = [statistics.median(times) for times in zip(*(row[:2] for row in cold + cached), strict=True)]
        calls = [statistics.median(row[2] for row in rows) for rows in (cold, cached)]
        print(f"{name:28} {imports[0]:10.2f} {imports[1]:7.2f} {calls[0]:10.2f} {calls[1]:12.2f}", flush=True)


if __name__ == "__main__":
    main()
