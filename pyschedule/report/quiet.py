"""Waiting until the threads of the libraries that were called before have gone to sleep.

The workers of a thread pool wait awake for its next call, OpenBLAS's for a tenth of a second and TVM's for half of
that, measured, GNU OpenMP's for some milliseconds.  So long they take a core from whoever is called next.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

_TASKS: Final = Path("/proc/self/task")
#: Seconds between two looks.
_STEP: Final = 1e-3
#: The part of a step that other threads may compute in while they pass for asleep.
_IDLE: Final = 0.05


def until_quiet(limit: float) -> bool:
    """Waits until no other thread of this process computes; whether it came to that within `limit` seconds.

    It is asked how much they compute, and, on Linux, whether one only waits for a core: where other programs run,
    one that is awake may compute nothing for a while.
    """
    end = time.monotonic() + limit
    while True:
        before, began = _computed(), time.perf_counter()
        time.sleep(_STEP)
        idle = _computed() - before <= _IDLE * (time.perf_counter() - began)
        if idle and not _awake():
            return True
        if time.monotonic() >= end:
            return False


def _computed() -> float:
    """The seconds that the other threads of this process have computed."""
    return time.process_time() - time.thread_time()


def _awake() -> bool:
    """Whether another thread runs or waits for a core; where the system does not say, it does not."""
    mine = str(threading.get_native_id())
    try:
        tasks = list(_TASKS.iterdir())
    except OSError:
        return False
    return any(task.name != mine and _state(task) == "R" for task in tasks)


def _state(task: Path) -> str:
    """The letter after the name, which is in parentheses and may hold some."""
    try:
        return (task / "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):  # it has ended
        return ""
