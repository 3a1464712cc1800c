"""What a call costs beside its kernel: operators and kernels, Numba's dispatcher, NumPy and PyTorch.

    python benchmarks/calls.py

One thread, the least of many interleaved rounds in one process, in microseconds of the thread's own time: what a
call costs is the same each time, and other programs only add to it.  The first table has calls that do next
to nothing (products of 1 x 1); the second small products, with the result in a new array.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable
from typing import Any

from pyschedule.report.fairness import is_fair, run_fairly

ROUNDS = 41
SECONDS = 0.002


def least(calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """The least time of a call of each, in microseconds; each is called before anything is measured."""
    turns = {}
    for name, call in calls.items():
        call()
        begin = time.thread_time()
        for _ in range(10):
            call()
        turns[name] = max(10, int(SECONDS * 10 / max(time.thread_time() - begin, 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    gc.disable()
    for number in range(ROUNDS):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            call, count = calls[name], turns[name]
            begin = time.thread_time()
            for _ in range(count):
                call()
            times[name].append((time.thread_time() - begin) / count * 1e6)
    gc.enable()
    return {name: min(samples) for name, samples in times.items()}


def show(title: str, rows: dict[str, float], base: str) -> None:
    print(title)
    for name, value in rows.items():
        print(f"  {name:44} {value:7.2f} us   {value - rows[base]:+7.2f} above {base!r}")
    print()


def main() -> None:
    import numba
    import numpy as np

    import operators

    try:
        import torch
    except ImportError:
        torch = None
    else:
        torch.set_num_threads(1)

    @numba.njit
    def nothing(a, b, c):
        pass

    def arrays(size: int) -> Any:
        generator = np.random.default_rng(size)
        return (generator.standard_normal((size, size), dtype=np.float32) for _ in range(3))

    a, b, out = arrays(1)
    ((kernel, arguments),), _ = operators.matmul.steps(a, b, out=out)
    prepared = kernel.prepared(*arguments)
    empty = np.empty
    calls = {
        "Numba, a function that does nothing": lambda: nothing(a, b, out),
        "a kernel": lambda: kernel(*arguments),
        "a kernel, prepared": lambda: prepared(*arguments),
        "a kernel, prepared, and np.empty": lambda: (empty((1, 1), a.dtype), prepared(*arguments)),
        "operators.matmul, new result": lambda: operators.matmul(a, b),
        "operators.matmul, out=": lambda: operators.matmul(a, b, out=out),
        "operators.gemm, new result": lambda: operators.gemm(a, b),
        "operators.linear, new result": lambda: operators.linear(a, b),
        "np.matmul, new result": lambda: np.matmul(a, b),
        "np.matmul, out=": lambda: np.matmul(a, b, out=out),
    }
    if torch is not None:
        x, y = torch.from_numpy(a), torch.from_numpy(b)
        calls["torch.matmul"] = lambda: torch.matmul(x, y)
        calls["operators.matmul of tensors"] = lambda: operators.matmul(x, y)
    show("calls of 1 x 1", least(calls), "Numba, a function that does nothing")

    for size in (8, 16, 32, 64):
        a, b, out = arrays(size)
        calls = {
            "np.matmul": lambda a=a, b=b: np.matmul(a, b),
            "operators.matmul": lambda a=a, b=b: operators.matmul(a, b),
        }
        if torch is not None:
            x, y = torch.from_numpy(a), torch.from_numpy(b)
            calls["torch.matmul"] = lambda x=x, y=y: torch.matmul(x, y)
            calls["operators.matmul of tensors"] = lambda x=x, y=y: operators.matmul(x, y)
        show(f"matmul {size} x {size} x {size}", least(calls), "np.matmul")


if __name__ == "__main__":
    if not is_fair():
        raise SystemExit(run_fairly(sys.argv))
    main()
