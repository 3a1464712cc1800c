"""What holds while kernels are lowered and compiled: one at a time, with fewer collections of garbage.

Trees of statements and types are made by the hundred thousand, and nearly all of them stay until the end: looking
for garbage among them every 700 objects, as CPython does by default, takes up to a sixth of a first call.
"""

from __future__ import annotations

import gc
import threading
from types import TracebackType
from typing import Final

#: The objects made, less those gone, after which a collection comes.
OBJECTS: Final = 50_000


class Compiling:
    """A lock that a thread may take again.  While it is held, collections are rarer, in the whole process; then as
    often as before.  One who has turned them off, or made them rarer still, has them so."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._before = gc.get_threshold()

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self._before = young, *older = gc.get_threshold()
            if 0 < young < OBJECTS:
                gc.set_threshold(OBJECTS, *older)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            gc.set_threshold(*self._before)
        self._lock.release()
