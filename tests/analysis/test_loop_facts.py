"""Facts of loops for the verbose log: trip counts against plain Python, and what the log says of each loop."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest
import sympy

from pyschedule import inspect_loop_transforms, nounroll, tile, unroll, vectorize
from pyschedule.analysis.loop_facts import loop_facts
from tests.frontend.execution import built


def forward(n, m, s):
    for i in range(n, m, 3):
        s += 1
    return s


def backward(n, m, s):
    for i in range(m + 2, n - 1, -2):
        s += 1
    return s


def of_either_sign(n, m, s):
    count = 0
    for i in range(n, m, s):
        count += 1
    return count


def bounded(n, m, s):
    count = 0
    for i in range(max(n, -2), min(m * 2, 5, n + 4)):
        count += 1
    return count


def divided(n, m, s):
    count = 0
    for i in range(n // 2, m % 5 + (s >> 1)):
        count += 1
    return count


def counted_up(n, m, s):
    count = 0
    i = n
    while not m < i:
        count += 1
        i += 2
    return count


def counted_down(n, m, s):
    count = 0
    i = m - 1
    while n < i - 1:
        i -= 3
        count += 1
    return count


def counted_with_continue(n, m, s):
    count = 0
    i = 1
    while i < n:
        count += 1
        if count % 2:
            i += 2
            continue
        i += 2
    return count


FUNCTIONS = [forward, backward, of_either_sign, bounded, divided, counted_up, counted_down, counted_with_continue]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_trip_counts_are_those_of_python(function):
    (facts,) = loop_facts(built(function, 1, 2, 1).kernel, lambda source, ordinal: source == "i")
    assert facts.counter == "i" and facts.trip_count is not None
    symbols = {symbol.name: symbol for symbol in facts.trip_count.free_symbols}
    for n, m, s in itertools.product((-3, 0, 1, 4, 9), (-4, 0, 2, 7), (-3, -1, 1, 2)):
        start = 0 if function not in (forward, backward) else s
        values = {"n": n, "m": m, "s": s}
        found = facts.trip_count.subs({symbols[name]: value for name, value in values.items() if name in symbols})
        assert found == function(n, m, s) - start, (n, m, s)


def test_an_inner_loop_counts_in_terms_of_the_outer():
    def triangle(x):
        for i in range(x.shape[0]):
            for j in range(i, x.shape[0], 2):
                x[j] += 1

    outer, inner = loop_facts(built(triangle, np.zeros(3)).kernel, lambda source, ordinal: True)
    extent = sympy.Symbol("x.shape[0]", integer=True, nonnegative=True)
    i = sympy.Symbol("i", integer=True)
    assert outer.trip_count == extent and outer.trips is None
    assert [inner.trip_count.subs({extent: 7, i: at}) for at in range(7)] == [4, 3, 3, 2, 2, 1, 1]


def several(x, n):
    for i in range(64 // 8):
        if x[i] > 3:
            break
        k = 9
        while k >= n:
            x[k] += 1
            k -= 2
    for j in range(n):
        x[j] = 0
    i = 0
    limit = n
    while i < limit:
        limit -= 1
        i += 1
    for i in range(int(x[0])):
        if x[i] < 0:
            return


def lines(text):
    return [line.split(" [")[0] for line in text.partition("[Loops]\n")[2].partition("\n\n")[0].splitlines()]


@pytest.mark.filterwarnings("ignore::pyschedule.ScheduleWarning")
def test_the_verbose_log_tells_of_the_loops_that_directives_name():
    kernel = unroll("i", 2)(nounroll("k")(several))
    x = np.zeros(12)
    log = kernel.lower(x, 3).log
    assert "[Loops]" not in str(log) and log.verbose().startswith(f"{log}\n\n[Loops]\n")
    line = several.__code__.co_firstlineno + 13
    assert lines(inspect_loop_transforms(kernel, x, 3, verbose=True)) == [
        "- loop 'i'",
        "    counter i, from 0, step 1, while i < 8",
        "    trip count: 8 (constant)",
        "    may be left early: break",
        "- loop 'k'",
        "    counter k, from 9, step -2, while k > n - 1",
        "    trip count: Max(0, ceiling(-n/2) + 5)",
        "- loop 'i#2'",
        f"    while i_value < limit: the bound `limit` changes in the body (line {line}); keep the bound in a "
        "local that the loop does not assign",
        "- loop 'i#3'",
        "    counter i, from 0, step 1, while i < int64(x[0])",
        "    trip count: no closed form: `x[0]` has no exact integer form",
        "    may be left early: return",
    ]
    assert log.loops()[0].loc.line == several.__code__.co_firstlineno + 1
    assert log.loops()[0].exits[0][1].line == several.__code__.co_firstlineno + 3
    assert "[Loops]" not in inspect_loop_transforms(kernel, x, 3)


def plain(x, y):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = 2 * x[i, j]


@pytest.mark.parametrize(
    ("decorators", "names"),
    [
        ([tile(i=2)], ["i"]),
        ([tile(order="j i")], ["i", "j"]),
        ([vectorize("j", 4)], ["j"]),
        ([unroll()], ["i", "j"]),
        ([vectorize("j#1", 4, target="cuda")], []),
    ],
)
def test_which_loops_are_told_of(decorators, names):
    kernel = plain
    for decorate in decorators:
        kernel = decorate(kernel)
    log = kernel.lower(np.zeros((3, 5)), np.zeros((3, 5)), target="cpu").log
    assert [facts.name for facts in log.loops()] == names


def test_the_facts_are_worked_out_when_they_are_asked_for():
    code = """
import sys, numpy as np
sys.path.insert(0, {folder!r})
from tests.analysis.test_loop_facts import plain
sys.modules.pop("sympy")
for name in [name for name in sys.modules if name.startswith("sympy.")]:
    sys.modules.pop(name)
from pyschedule import unroll
log = unroll("j", 2)(plain).lower(np.zeros((3, 5)), np.zeros((3, 5))).log
str(log)
print("sympy" in sys.modules)
"""
    folder = __file__.partition("/tests/")[0]
    done = subprocess.run([sys.executable, "-c", code.format(folder=folder)], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr
