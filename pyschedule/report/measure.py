"""Timing several functions fairly: interleaved in one process, each from the same arguments, medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    prepare: Callable[[], object],
    *,
    rounds: int,
    seconds: float,
    progress: Callable[[str], None],
) -> dict[str, float]:
    """The median time of one call of each run, in seconds.

    A round calls each run once, after `prepare`, which is not timed.  A run that has used up `seconds` sits
    out the rounds that remain; each runs once at least.
    """
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in runs.items():
            if number and sum(samples[name]) > seconds:
                continue
            progress(f"timing {name}, round {number + 1} of at most {rounds}")
            prepare()
            begin = time.perf_counter()
            run()
            samples[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times) for name, times in samples.items()}
