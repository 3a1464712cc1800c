"""What polling costs: a loop that never polls, one that polls in every iteration, one that polls once in 4096.

    python benchmarks/poll.py [STEPS]          (default: 100000000)

On the CPU: the time of a step, for a recurrence (`acc = acc * 0.999 + x`) and for a loop that waits for memory.
The three run in turns in one process, each first in as many turns as the others; medians of the thread's own time,
which other programs change least; results are compared.  For GPUs: the hot loop of the same three in machine code,
so that no GPU is needed; each of 4096 threads has a loop of its own.
"""

from __future__ import annotations

import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from pyschedule.report.progress import Progress

FORMS = {"no poll": None, "every iteration": 1, "split by 4096": 4096}
ARCHITECTURES = ("sm_80", "sm_90")
ROUNDS = 21
ELEMENTS = 1 << 24  # more than caches hold


def recurrence(x, n):
    acc = 0.0
    for k in range(n):
        acc = acc * 0.999 + x
    return acc


def memory_bound(x, y, times):
    for _ in range(times):
        for k in range(y.shape[0]):
            y[k] = x[k] + 0.5 * y[k]


def recurrences(x, y):
    for i in range(4096):
        for k in range(x.shape[0]):
            y[i] = y[i] * 0.999 + x[k]


def columns(x, y):
    for i in range(4096):
        for k in range(x.shape[0]):
            y[k, i] = x[k, i] + 0.5 * y[k, i]


def polled(function: Callable[..., Any], every: int | None, target: str) -> Any:
    """The kernel, which polls on `target` where `every` says how often."""
    from pyschedule import poll

    other = "cuda" if target == "cpu" else "cpu"
    return poll(target=other)(function) if every is None else poll(every=every, target=target)(function)


# ---------------------------------------------------------------------------------------------------- CPU


def on_cpu(steps: int, progress: Progress) -> None:
    import numpy as np

    x = np.random.default_rng(0).standard_normal(ELEMENTS)
    y = np.empty(ELEMENTS)

    def run_recurrence(kernel: Any) -> tuple[float, Any]:
        began = time.thread_time()
        result = kernel(1.0, steps)
        return time.thread_time() - began, result

    def run_memory_bound(kernel: Any) -> tuple[float, Any]:
        y[:] = 1.0
        began = time.thread_time()
        kernel(x, y, max(1, steps // ELEMENTS))
        return time.thread_time() - began, y.copy()

    compare("acc = acc * 0.999 + x", recurrence, run_recurrence, steps, progress)
    done = max(1, steps // ELEMENTS) * ELEMENTS
    compare("y[k] = x[k] + 0.5 * y[k]", memory_bound, run_memory_bound, done, progress)


def compare(
    title: str,
    function: Callable[..., Any],
    run: Callable[[Any], tuple[float, Any]],
    steps: int,
    progress: Progress,
) -> None:
    """Prints the time of a step of the three forms of a loop."""
    import numpy as np

    kernels = [(form, polled(function, every, "cpu")) for form, every in FORMS.items()]
    times: dict[str, list[float]] = {form: [] for form in FORMS}
    expected: Any = None
    for number in range(-1, ROUNDS):  # in the first, which does not count, kernels are compiled
        turn = number % len(kernels)
        for form, kernel in kernels[turn:] + kernels[:turn]:
            progress(f"{title}: {form}, round {number + 1} of {ROUNDS}")
            took, result = run(kernel)
            expected = result if expected is None else expected
            np.testing.assert_array_equal(result, expected)
            if number >= 0:
                times[form].append(took)
    progress.close()
    print(f"CPU, {title}, {steps:,} steps, median of {ROUNDS}")
    base = statistics.median(times["no poll"])
    for form, samples in times.items():
        middle = statistics.median(samples)
        print(f"  {form:16} {middle / steps * 1e9:7.3f} ns a step  {middle / base:6.3f} of no poll")
    print()


# ---------------------------------------------------------------------------------------------------- GPU


def on_gpus(progress: Progress) -> None:
    from pyschedule import spec, tile

    vector, grid = spec("float32[4096]"), spec("float32[1000, 4096]")
    cases = {
        "acc = acc * 0.999 + x[k]": (recurrences, (vector, vector)),
        "y[k, i] = x[k, i] + 0.5 * y[k, i]": (columns, (grid, grid)),
    }
    for title, (function, arguments) in cases.items():
        print(f"GPU, {title}, hot loop in machine code")
        print(f"  {'':22} instructions  unrolled by  an iteration  YIELD  BSSY  BSYNC")
        for arch in ARCHITECTURES:
            for form, every in FORMS.items():
                progress(f"{title}: {form} for {arch}")
                kernel = tile(i=128, order="i.0 i.1 k")(polled(function, every, "cuda"))
                hot = hot_loop(kernel.lower(*arguments, target=f"cuda:{arch}").sass())
                progress.close()
                copies = sum(line.startswith("FFMA") for line in hot)
                marks = "".join(
                    f"{sum(line.startswith(name) for line in hot):7}" for name in ("YIELD", "BSSY", "BSYNC")
                )
                print(f"  {arch} {form:16} {len(hot):12} {copies:12} {len(hot) / max(1, copies):13.2f}{marks}")
        print()


def hot_loop(sass: str) -> list[str]:
    """The instructions of the innermost loop with most multiply-adds."""
    return max(innermost_loops(sass), key=lambda loop: sum(line.startswith("FFMA") for line in loop))


def innermost_loops(sass: str) -> Iterator[list[str]]:
    """The instructions between a label and a branch back to it, predicates left out; loops without loops inside."""
    labels: dict[str, int] = {}
    lines: list[str] = []
    spans: list[tuple[int, int]] = []
    for text in sass.splitlines():
        if label := re.match(r"\s*(\.L\w+):", text):
            labels[label[1]] = len(lines)
        elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([^;]+);", text):
            lines.append(found[1].strip())
            target = re.search(r"BRA\S*.*?(\.L\w+)", found[1])
            if target and target[1] in labels:
                spans.append((labels[target[1]], len(lines)))
    for first, last in spans:
        if not any(first <= start and end <= last for start, end in spans if (start, end) != (first, last)):
            yield lines[first:last]


def main(steps: int) -> None:
    progress = Progress()
    on_cpu(steps, progress)
    on_gpus(progress)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000_000)
