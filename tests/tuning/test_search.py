"""The search: driven by a clock and times that the tests make up, then once in earnest."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import operators
from pyschedule import spec, tile, vectorize
from pyschedule.errors import InternalError
from pyschedule.tuning import search, tune
from pyschedule.tuning.measure import Arena, Timing, measure
from pyschedule.tuning.search import Refused, climb
from pyschedule.tuning.space import Candidate, Space

STEPS = (1, 2, 4, 8, 16)


@tile(i=(32, 4), j=(32, 8))
@vectorize("j", width=4)
def product(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


@tile(i=8)
def wrong(x, y, factor=2):
    for i in range(x.shape[0]):
        y[i] = factor * x[i] + 1


@tile(i=8)
def twice(x, y, factor=2):
    for i in range(x.shape[0]):
        y[i] = factor * x[i]


def at(i, j):
    return Candidate((("i", (i,)), ("j", (j,))))


class Machine:
    """Candidates take the time that `cost` says; measuring takes a second of a clock of its own."""

    def __init__(self, cost, fail_at=None):
        self.now, self.cost, self.fail_at, self.judged = 0.0, cost, fail_at, []

    def clock(self):
        return self.now

    def judge(self, candidate, incumbent):
        if len(self.judged) == self.fail_at:
            raise KeyboardInterrupt
        self.now += 1.0
        self.judged.append((candidate, incumbent))
        time = self.cost(*(sizes[0] for _, sizes in candidate.sizes))
        if time is None:
            return Refused("not here")
        base = time if incumbent is None else self.cost(*(sizes[0] for _, sizes in incumbent.sizes))
        return Timing(time, time, 1), time / base

    def climb(self, seconds=1000.0, seed=0, progress=None):
        space = Space(at(4, 4), ((STEPS,), (STEPS,)))
        return climb(space, self.judge, seconds=seconds, seed=seed, clock=self.clock, progress=progress)


def valley(i, j):
    """Best at i=16, j=1."""
    return 1.0 + abs(math.log2(i) - 4) + abs(math.log2(j))


def test_it_finds_the_best_and_tries_each_candidate_once():
    machine = Machine(valley)
    best, trials, stopped = machine.climb()
    assert best == at(16, 1) and stopped == "space"
    assert len(trials) == 25 == len({trial.candidate for trial in trials})
    assert trials[0].status == "original" and trials[0].ratio == 1.0
    ratios = {trial.candidate: trial.ratio for trial in trials}
    for candidate, ratio in ratios.items():
        (_, (i,)), (_, (j,)) = candidate.sizes
        assert ratio == pytest.approx(valley(i, j) / valley(4, 4))


def test_it_climbs_rather_than_walks():
    machine = Machine(valley)
    machine.climb()
    tried = [candidate for candidate, _ in machine.judged]
    assert tried.index(at(16, 1)) < 16  # 4 steps of at most 4 neighbours, each tried once
    machine = Machine(lambda i, j: 1.0)
    machine.climb()
    assert {candidate for candidate, _ in machine.judged[1:5]} == {at(2, 4), at(8, 4), at(4, 2), at(4, 8)}


def test_time_ends_it():
    machine = Machine(valley)
    best, trials, stopped = machine.climb(seconds=6.0)
    assert stopped == "time" and len(trials) == 6
    assert valley(*(sizes[0] for _, sizes in best.sizes)) == min(trial.timing.median_s for trial in trials)


def test_the_original_is_measured_however_short_the_time():
    best, trials, stopped = Machine(valley).climb(seconds=0.1)
    assert (best, stopped, len(trials)) == (at(4, 4), "time", 1)


@pytest.mark.parametrize("moment", [0, 1, 5, 12])
def test_an_interrupt_keeps_the_best_so_far(moment):
    machine = Machine(valley, fail_at=moment)
    best, trials, stopped = machine.climb()
    assert stopped == "interrupt" and len(trials) == moment
    expected = min(trials, key=lambda trial: trial.timing.median_s).candidate if trials else at(4, 4)
    assert best == expected


def test_the_seed_decides_the_order():
    def order(seed):
        machine = Machine(lambda i, j: 1.0)
        machine.climb(seed=seed)
        return [candidate for candidate, _ in machine.judged]

    assert order(0) == order(0)
    assert len({tuple(order(seed)) for seed in range(5)}) > 1


def test_what_is_hardly_faster_does_not_replace_the_best():
    best, trials, _ = Machine(lambda i, j: 1.0 if (i, j) == (4, 4) else 0.99).climb()
    assert best == at(4, 4)
    assert {trial.status for trial in trials[1:]} == {"slower"}


def test_a_win_that_does_not_repeat_is_no_win():
    machine = Machine(lambda i, j: 0.5 if (i, j) == (8, 4) else 1.0)
    judge = machine.judge

    def second_time_slower(candidate, incumbent):
        seen = any(candidate == other for other, _ in machine.judged)
        timing, ratio = judge(candidate, incumbent)
        return timing, 1.1 if seen and candidate == at(8, 4) else ratio

    machine.judge = second_time_slower
    best, trials, _ = machine.climb()
    assert best == at(4, 4)
    assert [trial.note for trial in trials if trial.candidate == at(8, 4)] == ["not faster when measured again"]


def test_refused_candidates_are_listed_with_the_reason():
    _, trials, _ = Machine(lambda i, j: None if i == 8 else valley(i, j)).climb()
    refused = [trial for trial in trials if trial.status == "refused"]
    assert len(refused) == 5 and all(trial.note == "not here" and trial.timing is None for trial in refused)


def test_progress_says_what_is_done():
    said = []
    Machine(valley).climb(progress=said.append)
    assert said[0] == "measuring i=4, j=4"
    assert said[1].startswith("1 tried, 1.00 times as fast; trying ")
    assert said[-1] == "comparing i=16, j=1 with the original once more"


# ----------------------------------------------------------------------------------------------- measuring


class Steps:
    """A clock that stands still between calls; the kernels below move it."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_duel_compares_round_by_round():
    clock = Steps()
    x = np.ones(9)
    arena = Arena(twice, (x, x.copy(), 2), clock)
    load = iter(range(1, 1000))

    def one(*_):
        clock.now += 3.0 * (next(load) // 2 + 1)  # the machine gets slower and slower, for both

    def other(*_):
        clock.now += 4.0 * (next(load) // 2 + 1)

    timing, ratio = arena.duel(one, other, rounds=9, seconds=1e9)
    assert timing.rounds == 9 and ratio < 1.0
    _, ratio = arena.duel(other, one, rounds=9, seconds=1e9)
    assert ratio > 1.0


def test_what_is_clearly_slower_is_given_up_early():
    clock = Steps()
    x = np.ones(9)
    arena = Arena(twice, (x, x.copy(), 2), clock)

    def takes(seconds):
        def run(*_):
            clock.now += seconds

        return run

    timing, ratio = arena.duel(takes(3.0), takes(1.0), rounds=50, seconds=1e9)
    assert (timing.rounds, ratio) == (3, 3.0)


def test_measuring_leaves_the_arguments_alone():
    x, y = np.ones(1001), np.full(1001, 7.0)
    timing = measure(twice, (x, y, 2), rounds=4, seconds=10.0)
    assert timing.rounds == 4 and 0 < timing.best_s <= timing.median_s
    assert (y == 7.0).all()


def test_a_wrong_result_is_an_error():
    x = np.ones(9)
    arena = Arena(twice, (x, x.copy(), 2))
    expected = arena.outputs(twice)
    arena.check(twice, expected, "i=8")
    with pytest.raises(InternalError, match="i=4 changes the result"):
        arena.check(wrong, expected, "i=4")


# ------------------------------------------------------------------------------------------------- in earnest


def matrices():
    rng = np.random.default_rng(3)
    return rng.standard_normal((37, 19), np.float32), rng.standard_normal((19, 41), np.float32)


def test_tuning_a_small_product():
    A, B = matrices()
    C = np.full((37, 41), 5.0, np.float32)
    result = tune(product, A, B, C, seconds=3)
    assert (C == 5.0).all()
    result.kernel(A, B, C)
    np.testing.assert_allclose(C, A @ B + 5.0, rtol=1e-4, atol=1e-4)
    assert result.stopped == "time" and result.speedup >= 1.0
    frame = result.to_frame()
    assert list(frame.columns) == ["schedule", "status", "time_s", "best_s", "speedup", "rounds", "note"]
    assert frame.schedule[0] == "i=(32, 4), j=(32, 8)" and frame.status[0] == "original"
    assert result.decorators == (f"@tile({result.best.describe()})",)
    assert (result.kernel is product) == (result.best.describe() == frame.schedule[0])


def test_a_wrong_candidate_raises(monkeypatch):
    def makes_wrong(function, directives):
        return wrong

    x = np.ones(100)
    monkeypatch.setattr(search, "schedule_function", makes_wrong)
    with pytest.raises(InternalError, match="changes the result"):
        tune(twice, x, x.copy(), seconds=100)


def test_a_candidate_that_cannot_run_here_is_refused(monkeypatch):
    def too_large(self, kernel, expected, name):
        raise RuntimeError("the device refuses 9 bytes")

    x = np.ones(20)
    monkeypatch.setattr(Arena, "check", too_large)
    result = tune(twice, x, x.copy(), seconds=100)
    assert (result.stopped, result.kernel) == ("space", twice)
    assert [trial.note for trial in result.trials[1:]] == ["does not run: the device refuses 9 bytes"] * 4
    assert result.to_frame().time_s.isna().sum() == 4


def test_an_interrupt_in_earnest(monkeypatch):
    def interrupted(self, *args, **kwargs):
        raise KeyboardInterrupt

    x = np.ones(100)
    monkeypatch.setattr(Arena, "duel", interrupted)
    result = tune(twice, x, x.copy(), seconds=100)
    assert (result.stopped, result.kernel, len(result.trials)) == ("interrupt", twice, 1)


def test_the_decorator_keeps_what_is_not_tuned(monkeypatch):
    def interrupted(self, *args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(Arena, "duel", interrupted)  # so that the original wins on every machine
    a = np.ones((16, 16), np.float32)
    result = tune(operators.gemm, a, a, seconds=100)  # of an operator: the kernel that does its work
    (decorator,) = result.decorators
    sizes, rest = decorator.split(", order=")
    assert re.fullmatch(r"@tile\(i=\(48, \d+\), j=\d+", sizes)  # as many as registers have room for
    assert rest == '"i.0 j.0 i.1 k i.2 j.1", parallel="i.0 j.0", target="cpu")'


def test_wrong_requests():
    x = np.ones(10)
    with pytest.raises(TypeError, match="needs a kernel"):
        tune(len, x)
    with pytest.raises(TypeError, match="argument 2 is a spec"):
        tune(twice, x, spec("float64[10]"))
    with pytest.raises(ValueError, match="seconds must be a positive number"):
        tune(twice, x, x.copy(), seconds=0)
    with pytest.raises(ValueError, match="live on the CPU"):
        tune(twice, x, x.copy(), target="cuda:sm_80")
