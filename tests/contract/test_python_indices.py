"""Accesses that only may run: arrays that fit cost no checks, others are checked index by index, as Python does."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from pyschedule import ScheduleError, ScheduleWarning, tile, unroll, vectorize
from tests.support import call, inside_slack, on_every_target


def guarded_store(x, y):
    for i in range(x.shape[0]):
        if x[i] > 0:
            y[i] = x[i]


def guarded_sum(x, y):
    for i in range(x.shape[0] // 4):
        for j in range(4):
            if x[4 * i + j] > 0:
                y[i] += x[4 * i + j]


def before(x, y):
    for i in range(x.shape[0]):
        if x[i] > 0:
            y[i - 1] += 1


def until_zero(x, y):
    for i in range(x.shape[0]):
        if y[i] == 7:
            break
        x[i] = 1


def one_of_two(x, y):
    for i in range(x.shape[0]):
        x[i] = y[i] if x[i] > 0 else y[i + 1] if x[i] < 0 else 0


KERNELS = (guarded_store, guarded_sum, before, until_zero, one_of_two)
SCHEDULES = {
    "lanes": lambda kernel: vectorize("i", 4)(kernel),
    "tiled": lambda kernel: unroll("i")(tile(i=4)(kernel)),
    "as it is": lambda kernel: tile(i=1, target="cuda")(kernel),
}


def outcome(run, x, y):
    """What the arrays are afterwards, or that an index was out of range."""
    (x, clean_x), (y, clean_y) = inside_slack(x), inside_slack(y)
    try:
        run(x, y)
    except IndexError:
        return IndexError
    finally:
        assert clean_x() and clean_y()
    return x.tolist(), y.tolist()


@on_every_target
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("function", KERNELS, ids=lambda function: function.__name__)
def test_it_runs_as_in_python_whether_arrays_fit_or_not(function, schedule, target):
    kernel = SCHEDULES[schedule](function)
    data = np.random.default_rng(3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        for extent in (0, 1, 13):
            # The runtime gives an empty array on a GPU memory that a checked index may read; lockstep has none.
            for other in {extent - 1, extent, extent + 1, extent // 4} - ({-1, 0} if target == "cuda" else {-1}):
                x = data.integers(-1, 2, extent).astype(np.float32)
                for y in (np.zeros(other, np.float32), np.full(other, 7, np.float32)):
                    wanted = outcome(function, x, y)
                    assert outcome(lambda *given: call(kernel, *given, target=target), x, y) == wanted


def up_to(x, y, n):
    for i in range(n):
        if x[i] > 0:
            y[i] += x[i]


def test_numbers_decide_anew_in_each_call():
    kernel = vectorize("i", 4)(up_to)
    x, y = np.ones(9, np.float32), np.zeros(6, np.float32)
    with pytest.warns(ScheduleWarning, match="nothing shows that the index"):
        for count in (6, 9, 2, 7, 0, 6):
            if count > 6:
                with pytest.raises(IndexError):
                    kernel(x, y.copy(), count)
            else:
                y[:] = 0
                kernel(x, y, count)
                assert y.tolist() == [1.0] * count + [0.0] * (6 - count)


def looked_up(codes, table, out):
    for i in range(codes.shape[0]):
        out[i] = table[codes[i]]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_a_table_that_has_an_entry_for_each_code_is_read_without_checks(dtype):
    kernel = vectorize("i", 4)(looked_up)
    codes = np.arange(-11, 12).astype(dtype)
    out, wanted = np.zeros((2, codes.size), np.float32)
    for entries in (256, 128, 20):
        table = np.arange(entries, dtype=np.float32)
        try:
            looked_up(codes, table, wanted)
        except IndexError:
            with pytest.raises(IndexError), warnings.catch_warnings():
                warnings.simplefilter("ignore", ScheduleWarning)
                kernel(codes, table, out)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ScheduleWarning)
                kernel(codes, table, out)
            np.testing.assert_array_equal(out, wanted)
        applied = "Applied Vectorization" in str(kernel.lower(codes, table, out).log)
        assert applied == (entries >= {"uint8": 256, "int8": 128}.get(dtype, 1 << 40))


def test_the_log_says_what_is_assumed_and_strict_schedules_refuse_what_does_not_fit():
    kernel = vectorize("i", 4, strict=True)(guarded_store)
    x, y = np.ones(6, np.float32), np.zeros(6, np.float32)
    kernel(x, y)
    log = kernel.lower(x, y).log
    assert "x.shape[0] <= y.shape[0] is assumed, so that 'y' is not left along axis 0" in str(log)
    assert "Applied Vectorization: width=4 on loop 'i'" in str(log)
    with pytest.raises(ScheduleError, match=r"nothing shows that the index `i` stays below `y.shape\[0\]`"):
        kernel(x, y[:3])


def either(x, y, out):
    for i in range(out.shape[0]):
        out[i] = np.where(x[i] > 0, x[i], y[i])


@on_every_target
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_arm_of_where_that_is_not_taken_is_not_read(schedule, target):
    kernel = SCHEDULES[schedule](either)
    x, out = np.array([3, -1, 2, 5, 7, 1, 4], np.float32), np.zeros(7, np.float32)
    y = np.array([9, 8], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        call(kernel, x, y, out, target=target)
        assert out.tolist() == [3, 8, 2, 5, 7, 1, 4]
        with pytest.raises(IndexError):
            either(x, y, out)
        x[4] = -1
        with pytest.raises(IndexError, match="index 4 is outside axis 0 of 'y', which has extent 2"):
            call(kernel, x, y, out, target=target)
