"""A line on standard error that says what is being done, once something takes over a second."""

from __future__ import annotations

import sys
import time


class Progress:
    """Call it with a text before each piece of work; the terminal shows the latest, at most ten a second.

    Where standard error is no terminal, a line a second is written instead.  Nothing is shown in the first
    second.  `close` wipes the line.
    """

    def __init__(self) -> None:
        self._begin = self._shown = time.monotonic()
        self._width = 0
        self._terminal = sys.stderr.isatty()

    def __call__(self, text: str) -> None:
        now = time.monotonic()
        if now - self._begin < 1.0 or now - self._shown < (0.1 if self._terminal else 1.0):
            return
        self._shown = now
        line = f"[{now - self._begin:5.1f} s] {text}"
        if self._terminal:
            sys.stderr.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


def silent(text: str) -> None:
    """No progress."""
