"""Contests: entries are checked, timed in turns, and set against the fastest peer."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest

from pyschedule.errors import InternalError
from pyschedule.report import Contest, Entry, perf_report
from pyschedule.report.contest import orders, timed
from pyschedule.report.progress import silent
from pyschedule.report.rows import COLUMNS

ONES = np.ones((3, 4))


class Clock:
    """A clock that calls move on by what they take, in milliseconds."""

    def __init__(self):
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self):
        return self.now

    def entry(self, name, milliseconds, result=ONES):
        def call():
            self.calls.append(name)
            self.now += milliseconds / 1e3
            return result

        return Entry(call, before=lambda: self.calls.append(f"({name})"))


def contest(clock, own, peers, **others):
    given = {"expected": ONES, "flops": 2e6, "bytes_moved": 4e6, "clock": clock} | others
    return Contest("sum", "3x4", "float32", own, peers, **given)


def test_speedup_is_against_the_fastest_peer():
    clock = Clock()
    one = contest(
        clock,
        {"ours": clock.entry("ours", 2.0)},
        {"slow": clock.entry("slow", 8.0), "fast": clock.entry("fast", 3.0)},
    )
    frame = perf_report([one], rounds=3)
    assert tuple(frame.columns) == COLUMNS
    assert frame["variant"].tolist() == ["ours", "slow", "fast"]
    assert frame["time_s"].tolist() == pytest.approx([2e-3, 8e-3, 3e-3])
    assert frame["speedup"].tolist() == pytest.approx([1.5, 3 / 8, 1.0])
    assert frame["gflops"].tolist() == pytest.approx([1.0, 0.25, 2 / 3])
    assert frame["gbytes_s"].tolist() == pytest.approx([2.0, 0.5, 4 / 3])
    assert (frame["rel_error"] == 0).all()


def test_without_a_peer_there_is_nothing_to_be_faster_than():
    clock = Clock()
    frame = perf_report([contest(clock, {"ours": clock.entry("ours", 2.0)}, {}, flops=None)], rounds=1)
    assert frame["speedup"].isna().all() and frame["gflops"].isna().all() and frame["pct_peak"].isna().all()


def test_each_entry_is_timed_after_its_own_preparation_in_balanced_orders():
    clock = Clock()
    entries = {name: clock.entry(name, 30.0) for name in "abc"}
    timed(entries, rounds=7, seconds=99, progress=silent, clock=clock)
    # a call of each finds how long it takes; then one call a group, for they are long
    groups = ["abc", "abc", "cba", "bca", "acb", "cab", "bac", "abc"]
    finding = [call for name in groups[0] for call in (f"({name})", name, name)]
    counted = [call for group in groups[1:] for name in group for call in (f"({name})", name)]
    assert clock.calls == finding + counted


@pytest.mark.parametrize("count", range(1, 10))
def test_each_follows_each_other_equally_often_and_each_comes_first(count):
    found = orders(count)
    times = len(found) // count
    assert times in (1, 2) and all(sorted(order) == list(range(count)) for order in found)
    for place in range(count):
        assert Counter(order[place] for order in found) == dict.fromkeys(range(count), times)
    after = Counter(pair for order in found for pair in itertools.pairwise(order))
    others = {(one, other) for one in range(count) for other in range(count) if one != other}
    assert after == dict.fromkeys(others, times)


def test_short_calls_are_made_in_groups_that_the_clock_can_see():
    clock = Clock()
    times = timed({"a": clock.entry("a", 0.5)}, rounds=2, seconds=99, progress=silent, clock=clock)
    assert times == {"a": pytest.approx(0.5e-3)}
    # found by one after a first; two groups of four, each after one that is not counted
    assert clock.calls.count("a") == 2 + 2 * 5


def test_no_round_begins_after_the_time_is_used_up():
    clock = Clock()
    timed({"a": clock.entry("a", 30.0)}, rounds=50, seconds=0.1, progress=silent, clock=clock)
    assert clock.calls.count("a") == 2 + 4


def test_the_median_is_of_single_calls():
    durations = iter([1, 1, 50, 20, 90])
    now = [0.0]

    def call():
        now[0] += next(durations)

    found = timed({"a": Entry(call)}, rounds=3, seconds=999, progress=silent, clock=lambda: now[0])
    assert found == {"a": 50}


@pytest.mark.parametrize(("wrong", "error"), [("own", InternalError), ("peer", ValueError)])
def test_a_wrong_entry_is_found_before_anything_is_timed(wrong, error):
    clock = Clock()
    off = ONES.copy()
    off[2, 3] = 1.5
    own = {"ours": clock.entry("ours", 1.0, off if wrong == "own" else ONES)}
    peers = {"peer": clock.entry("peer", 1.0, off if wrong == "peer" else ONES)}
    with pytest.raises(error, match=r"sum 3x4 float32, \w+: the result is off by"):
        perf_report([contest(clock, own, peers)], rounds=1)
    assert len(clock.calls) <= 4


def test_integers_must_be_exact_and_names_different():
    clock = Clock()
    one = Contest("sum", "3x4", "int8", {"a": clock.entry("a", 1.0, ONES * 1.0001)}, {}, ONES, clock=clock)
    with pytest.raises(InternalError, match="off by"):
        perf_report([one])
    with pytest.raises(ValueError, match="a name in common"):
        perf_report([contest(clock, {"a": clock.entry("a", 1.0)}, {"a": clock.entry("a", 1.0)})])


def test_what_an_entry_returns_is_read_as_it_says():
    clock = Clock()
    entry = Entry(clock.entry("a", 1.0, ONES.T).call, read=lambda result: result.T)
    assert len(perf_report([contest(clock, {"a": entry}, {})], rounds=1)) == 1
