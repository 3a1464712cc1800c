"""Timing several functions fairly: interleaved in one process, each from the same arguments, medians."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping

from pyschedule.runtime.repeated import samples


def interleaved(
    runs: Mapping[str, Callable[[], object]],
    prepare: Callable[[], object],
    *,
    rounds: int,
    seconds: float,
    progress: Callable[[str], None],
) -> dict[str, float]:
    """The median time of one call of each run, in seconds; see `samples`."""
    times = samples(runs, prepare, rounds=rounds, seconds=seconds, progress=progress)
    return {name: statistics.median(found) for name, found in times.items()}
