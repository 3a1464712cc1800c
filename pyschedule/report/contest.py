"""Whole calls beside other libraries' calls: no arguments that are restored, and calls of a microsecond too."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyschedule.errors import InternalError
from pyschedule.report.quiet import until_quiet
from pyschedule.report.rows import row
from pyschedule.runtime.repeated import TOLERANCE, relative_error

#: What a clock reads is the sum of as many calls as take this long, in seconds.
_LEAST: Final = 2e-3
#: Calls shorter than this are made once more before those that count, which finds their data in the caches.
_WARMED: Final = 2e-2
#: So many times where threads have to wake up first.
_WAKING: Final = 3


def _as_it_is(result: Any) -> Any:
    return result


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Entry:
    """One way to compute the result: a call without arguments, which may be made again and again.

    `read` makes of what the call returned an array of the expected shape; it is not timed.  `before` is run before
    each group of calls, and is not timed either: it sets threads, or an allocator.  `cores` may be in use.
    """

    call: Callable[[], Any]
    read: Callable[[Any], Any] = _as_it_is
    before: Callable[[], object] = _nothing
    cores: int = 1


@dataclass(frozen=True)
class Contest:
    """A row group of a report: `own` entries and those of `peers`, all of which compute `expected` (float64).

    `flops` and `bytes_moved` are of one call, `None` where they say nothing.  `settle`: seconds to wait before each
    group of calls, at most, until the threads of the entry before have gone to sleep; 0 where there are none.
    `clock` may be `time.process_time` where all entries use one core and other programs run: it counts what all
    threads of the process compute.
    """

    operator: str
    shape: str
    dtype: str
    own: Mapping[str, Entry]
    peers: Mapping[str, Entry]
    expected: Any
    flops: float | None = None
    bytes_moved: float | None = None
    settle: float = 0.0
    clock: Callable[[], float] = time.perf_counter


def contest_rows(
    contest: Contest, rounds: int, seconds: float, progress: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    """The rows, own entries first.  `speedup` is against the fastest peer: above 1 where an entry is faster.

    Every entry is checked against `expected` before anything is timed (`InternalError` for an own entry that is
    wrong, `ValueError` for a peer).
    """
    entries = {**contest.own, **contest.peers}
    if len(entries) < len(contest.own) + len(contest.peers):
        raise ValueError(f"{contest.operator}: own entries and peers have a name in common")
    errors = {}
    for name, entry in entries.items():
        progress(f"{contest.operator} {contest.shape} {contest.dtype}: checking {name}")
        entry.before()
        errors[name] = relative_error([entry.read(entry.call())], [contest.expected])
        if not errors[name] <= TOLERANCE.get(contest.dtype, 0.0):
            message = (
                f"{contest.operator} {contest.shape} {contest.dtype}, {name}: the result is off by "
                f"{errors[name]:.2g} (relative, against float64)"
            )
            raise InternalError(message) if name in contest.own else ValueError(message)
    times = timed(
        entries,
        rounds=rounds,
        seconds=seconds,
        settle=contest.settle,
        progress=progress,
        clock=contest.clock,
    )
    best = min((times[name] for name in contest.peers), default=math.nan)
    for name, elapsed in times.items():
        yield row(
            operator=contest.operator,
            shape=contest.shape,
            dtype=contest.dtype,
            target="cpu",
            variant=name,
            time_s=elapsed,
            speedup=best / elapsed,
            rel_error=errors[name],
            flops=contest.flops,
            bytes_moved=contest.bytes_moved,
            cores=entries[name].cores,
        )


def timed(
    entries: Mapping[str, Entry],
    *,
    rounds: int,
    seconds: float,
    settle: float = 0.0,
    progress: Callable[[str], None],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """The median time of one call of each entry, in seconds, of groups of calls that are interleaved.

    A round makes one group of calls of each entry, in the orders of `orders`.  After one round at least, no new one
    begins once the entries have used up `seconds` each, on average.
    """
    names = list(entries)
    order = orders(len(names))
    found: dict[str, list[float]] = {name: [] for name in names}
    single = {name: _group(entry, 1, 0.0, clock, settle) for name, entry in entries.items()}
    counts = {name: max(1, math.ceil(_LEAST / max(elapsed, 1e-8))) for name, elapsed in single.items()}
    begin = clock()
    for number in range(rounds):
        if number and clock() - begin > seconds * len(names):
            break
        for name in (names[place] for place in order[number % len(order)]):
            progress(f"timing {name}, round {number + 1} of at most {rounds}")
            found[name].append(_group(entries[name], counts[name], single[name], clock, settle))
    return {name: statistics.median(times) for name, times in found.items()}


def orders(count: int) -> list[list[int]]:
    """Orders of 0 ... count - 1 for one round after the other: each comes first equally often, and straight after
    each of the others equally often, since what an entry finds in the caches is what the one before it left there.

    A Latin square that is balanced for pairs of neighbours; two of them, mirror images, in turns, where the count
    is odd: E. J. Williams, "Experimental designs balanced for the estimation of residual effects of treatments",
    Australian Journal of Scientific Research A 2 (1949).
    """
    ends = [(place + 1) // 2 if place % 2 else -(place // 2) for place in range(count)]  # 0, 1, -1, 2, -2, ...
    square = [[(start + end) % count for end in ends] for start in range(count)]
    if count % 2 == 0:
        return square
    return [order for row in square for order in (row, row[::-1])]


def _group(entry: Entry, count: int, single: float, clock: Callable[[], float], settle: float) -> float:
    """The time of one call, of a group of so many."""
    if settle:
        until_quiet(settle)
    entry.before()
    call = entry.call
    if single < _WARMED:
        for _ in range(_WAKING if settle else 1):
            call()
    turns = range(count)
    begin = clock()
    for _ in turns:
        call()
    return (clock() - begin) / count
