"""Room for the frames of deep calls, in one piece.

CPython keeps the frames of Python functions in chunks of 16 KiB.  A call that begins a new chunk maps memory, and
its return unmaps it: where a busy loop happens to stand at the end of one, each of its calls pays for both, and a
compiler deep in a call of another takes up to three times as long.  A chunk is as large as its first frame asks
for, rounded up to a power of two, so that a frame a little larger than half of it leaves the other half to all that
it calls.  (`push_chunk` in `Python/pystate.c`, since Python 3.11.)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Final, ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")

#: Slots of a frame, of 8 bytes: just over 512 KiB, which are never touched, in a chunk of 1 MiB.
SLOTS: Final = 66_000


def with_room(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """The function, called from a frame that leaves half a megabyte of its chunk to what is called from it."""

    @wraps(function)
    def call(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        return function(*args, **kwargs)

    made: Any = call
    made.__code__ = made.__code__.replace(co_stacksize=SLOTS)
    return call
