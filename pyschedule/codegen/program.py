"""What a back end hands to the runtime: Numba source text and the name to call in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Program:
    """A complete Python module as text.

    `entry` is the jitted function to call, with the kernel's parameters in order, and behind them, where the kernel
    polls, the call's control array (`codegen.simd.polling`); it returns `None`, or the tuple of the kernel's scalar
    results.  `parallel` says whether it uses threads (so that a runtime can lock
    where the threading layer is not safe to enter twice).
    """

    source: str
    entry: str
    parallel: bool
