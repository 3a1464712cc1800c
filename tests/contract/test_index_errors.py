"""An index out of range names its array, axis, extent and place, whatever became of the loops around it."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import numba
import numpy as np
import pytest

from pyschedule import ScheduleWarning, poll, tile, unroll, vectorize
from pyschedule.ir import interpreter
from tests.support import call, on_every_target


def looked_up(codes, table, out):
    for i in range(codes.shape[0]):
        out[i] = table[codes[i]]


def put(where, x, out):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[where[i], j] = x[i, j]


def summed(codes, first, second):
    s = 0.0
    for i in range(codes.shape[0]):
        s += first[codes[i]]
        s += second[-1, codes[i] + 1]
    return s


def guarded(x, y):
    for i in range(x.shape[0]):
        if x[i] > 0:
            y[i] = x[i]


def histogram(x, n):
    counts = np.zeros(n, np.int64)
    for i in range(x.shape[0]):
        counts[x[i]] += 1
    return counts


def lines_of(function, text):
    """The number of the first line of a function with this text."""
    code = function.__code__
    lines = Path(code.co_filename).read_text(encoding="utf-8").splitlines()
    return next(at for at, line in enumerate(lines, 1) if text in line and at > code.co_firstlineno)


SCHEDULES = {
    "lanes": lambda function: vectorize("i", 4)(function),
    "tiled": lambda function: unroll("i")(tile(i=4)(function)),
    "polled": lambda function: poll(every=3)(function),
    "parallel": lambda function: tile(i=5, parallel="i.0")(function),
    "alone": lambda function: tile(i=1)(function),
}


def message_of(function, schedule, target, *args):
    with warnings.catch_warnings(), pytest.raises(IndexError) as caught:
        warnings.simplefilter("ignore", ScheduleWarning)
        call(SCHEDULES[schedule](function), *args, target=target)
    assert type(caught.value) is IndexError
    return str(caught.value)


@on_every_target
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_says_where_and_which(schedule, target):
    codes = np.zeros(23, np.int64)
    codes[17] = -8
    table, out = np.ones(7, np.float32), np.zeros(23, np.float32)
    message = message_of(looked_up, schedule, target, codes, table, out)
    line = lines_of(looked_up, "table[codes[i]]")
    assert f"{__file__}:{line}:18: index -8 is outside axis 0 of 'table', which has extent 7" in message
    assert "in `table[codes[i]]`" in message


@on_every_target
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_of_several_checks_it_is_the_one_that_failed(schedule, target):
    codes = np.zeros(9, np.int64)
    codes[4] = 5
    first, second = np.ones(6), np.ones((2, 6))
    message = message_of(summed, schedule, target, codes, first, second)
    line = lines_of(summed, "s += second")
    assert f":{line}:14: index 6 is outside axis 1 of 'second', which has extent 6" in message
    codes[2] = 6
    message = message_of(summed, schedule, target, codes, first, second)
    assert f":{line - 1}:14: index 6 is outside axis 0 of 'first', which has extent 6" in message


@on_every_target
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_store_is_named_as_it_is_written(schedule, target):
    where = np.array([0, 1, 2, 3, 4, 9, 6])
    message = message_of(put, schedule, target, where, np.ones((7, 5), np.float32), np.zeros((7, 5), np.float32))
    assert f":{lines_of(put, 'out[where')}:13: index 9 is outside axis 0 of 'out'" in message
    assert "in `out[where[i], j]`" in message


@on_every_target
def test_an_array_that_may_be_too_short_names_the_iteration(target):
    message = message_of(guarded, "lanes", target, np.ones(37, np.float32), np.zeros(20, np.float32))
    assert f":{lines_of(guarded, 'y[i] =')}:13: index 20 is outside axis 0 of 'y', which has extent 20" in message


def test_an_array_of_the_kernels_own():
    message = message_of(histogram, "alone", "cpu", np.array([3, 1, 4]), 4)
    assert "index 4 is outside axis 0 of 'counts', which has extent 4, in `counts[x[i]]`" in message


def test_one_thread_of_several_says_it():
    codes = np.zeros(600_000, np.int64)
    codes[-3] = 1 << 40
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        kernel = tile(i=1000, parallel="i.0")(looked_up)
        before = numba.get_num_threads()
        for threads in {1, numba.config.NUMBA_NUM_THREADS}:
            numba.set_num_threads(threads)
            try:
                for _ in range(3):
                    with pytest.raises(IndexError, match=rf"index {1 << 40} is outside axis 0 of 'table', which"):
                        kernel(codes, np.ones(7, np.float32), np.zeros(codes.size, np.float32))
            finally:
                numba.set_num_threads(before)


def test_every_thread_may_fail():
    kernel = tile(i=1000, parallel="i.0")(looked_up)
    codes = np.full(600_000, 7)
    for _ in range(3):
        with pytest.raises(IndexError, match="index 7 is outside axis 0 of 'table', which has extent 7"):
            kernel(codes, np.ones(7, np.float32), np.zeros(codes.size, np.float32))


def test_the_interpreter_says_it_in_the_same_words():
    codes, table, out = np.array([0, 3]), np.ones(3, np.float32), np.zeros(2, np.float32)
    compiled = message_of(looked_up, "alone", "cpu", codes, table, out)
    lowering = tile(i=1)(looked_up).lower(codes, table, out)
    for stage in lowering.stages.values():
        with pytest.raises(IndexError, match=re.escape(compiled)):
            interpreter.run(stage, {"codes": codes, "table": table, "out": out}, {})


def test_braces_in_the_name_of_a_file_are_no_places_for_numbers(tmp_path):
    path = tmp_path / "{index}{0}.py"
    path.write_text("def f(a, x):\n    for i in range(a.shape[0]):\n        a[i] = x[a[i]]\n", encoding="utf-8")
    space = {}
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), space)
    with pytest.raises(IndexError, match=re.escape(f"{path}:3:16: index 8 is outside axis 0 of 'x'")):
        tile(i=1)(space["f"])(np.array([1, 8]), np.array([1, 2, 3]))
