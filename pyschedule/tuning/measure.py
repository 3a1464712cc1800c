"""Candidates measured: on copies of the arguments, checked, and interleaved with what they have to beat."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from pyschedule.errors import InternalError
from pyschedule.runtime.repeated import (
    TOLERANCE,
    Repeated,
    on_device,
    relative_error,
    samples,
    to_host,
    written_places,
)

Clock = Callable[[], float]

#: The rounds after which a candidate that is slower by more than `_HOPELESS` is given up.
_FIRST_ROUNDS: Final = 3
_HOPELESS: Final = 1.15


@dataclass(frozen=True, slots=True)
class Timing:
    """The median and the shortest time of one call, over so many."""

    median_s: float
    best_s: float
    rounds: int


def measure(kernel: Any, args: tuple[Any, ...], rounds: int, seconds: float) -> Timing:
    """Times calls of a kernel: at most `rounds`, or fewer once they have taken `seconds`.  `args` are all its
    arguments, defaults included; those it writes are copied first, so that the caller's stay as they are."""
    arena = Arena(kernel, args)
    arena.outputs(kernel)  # compiles
    return arena.alone(kernel, rounds=rounds, seconds=seconds)


class Arena:
    """Where kernels of one function are run: on the same arguments, restored before each call.

    Arguments that are written are copied once; a copy keeps the order of the axes in memory, and an array given
    for two parameters stays one array.  The others are read where they are.
    """

    def __init__(self, kernel: Any, arguments: tuple[Any, ...], clock: Clock = time.perf_counter) -> None:
        source = kernel.lower(*arguments).stages["source"]
        self._calls = Repeated(_with_copies(arguments, written_places(source)), source)
        self._clock = clock
        dtypes = [str(arg.dtype) for arg in arguments if hasattr(arg, "shape")]
        self._tolerance = max((TOLERANCE.get(dtype, 0.0) for dtype in dtypes), default=TOLERANCE["float64"])

    def outputs(self, kernel: Any) -> list[Any]:
        """What a kernel writes, or returns; compiles it."""
        return self._calls.outputs(kernel)

    def check(self, kernel: Any, expected: list[Any], name: str) -> None:
        """Compiles and runs a kernel; `InternalError` where its result is another than `expected`."""
        error = relative_error(self.outputs(kernel), expected)
        if not error <= self._tolerance:
            raise InternalError(f"the schedule {name} changes the result, by {error:.2g} (relative)")

    def alone(self, kernel: Any, *, rounds: int, seconds: float) -> Timing:
        """Times a kernel that was compiled."""
        return _timing(self._samples({"it": kernel}, rounds, seconds)["it"])

    def duel(self, kernel: Any, incumbent: Any, *, rounds: int, seconds: float) -> tuple[Timing, float]:
        """Times a kernel in turn with the incumbent; also its time by the incumbent's, the median over the rounds.

        What slows the machine for a while slows both.  Stops early where the kernel is clearly slower.
        """
        first = self._samples({"it": kernel, "incumbent": incumbent}, min(rounds, _FIRST_ROUNDS), seconds)
        times, others = first["it"], first["incumbent"]
        if _ratio(times, others) <= _HOPELESS and rounds > len(times) and sum(times) < seconds:
            # The other way round, so that neither has the better place.
            more = self._samples({"incumbent": incumbent, "it": kernel}, rounds - len(times), seconds - sum(times))
            pairs = list(zip(more["it"], more["incumbent"], strict=False))
            times, others = times + [one for one, _ in pairs], others + [other for _, other in pairs]
        return _timing(times), _ratio(times, others)

    def _samples(self, kernels: dict[str, Any], rounds: int, seconds: float) -> dict[str, list[float]]:
        runs = {name: partial(self._calls.run, kernel) for name, kernel in kernels.items()}
        return samples(
            runs,
            self._calls.restore,
            rounds=rounds,
            seconds=seconds,
            progress=lambda text: None,
            clock=self._clock,
        )


def _with_copies(arguments: tuple[Any, ...], places: list[int]) -> tuple[Any, ...]:
    copies: dict[int, Any] = {}
    for place in places:
        array = arguments[place]
        if id(array) not in copies:
            copies[id(array)] = _copy(array)
    return tuple(copies.get(id(argument), argument) for argument in arguments)


def _copy(array: Any) -> Any:
    import numpy as np

    if on_device(array):
        from numba import cuda

        return cuda.to_device(to_host(array))
    return np.array(array, order="K", copy=True)


def _timing(times: list[float]) -> Timing:
    return Timing(statistics.median(times), min(times), len(times))


def _ratio(times: list[float], others: list[float]) -> float:
    # A clock may be too coarse to see a call at all.
    return statistics.median(max(one, 1e-9) / max(other, 1e-9) for one, other in zip(times, others, strict=False))
