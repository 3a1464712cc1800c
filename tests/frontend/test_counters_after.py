"""The counter of a `for` after its loop: its last value, under the user's name wherever people read it."""

# ruff: noqa: B020 - counters that override what they count

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from pyschedule import ScheduleWarning, inspect_loop_transforms, tile, unroll, vectorize
from tests.support import agrees, on_every_target


def plain(x, n, s):
    i = -7
    for i in range(n):
        x[i] += 2
    return i


def from_itself(x, n, s):
    i = 2
    for i in range(i, n):
        x[i] += i
    x[0] += i
    return i


def down(x, n, s):
    i = 99
    for i in range(n, 0, -3):
        x[i - 1] = i
    return i


def steps_of_four(x, n, s):
    i = 99
    for i in range(1, n, 4):
        x[i] = i
    return i


def a_step_that_is_given(x, n, s):
    i = 99
    for i in range(0, n, s):
        x[i] = i
    return i


def left_early(x, n, s):
    i = 50
    for i in range(n):
        if x[i] > 3:
            break
        x[i] = 9
    return i


def returned_from(x, n, s):
    i = 50
    for i in range(n):
        if x[i] > 3:
            return i
        x[i] = 9
    return i + 100


def set_in_the_body(x, n, s):
    i = 50
    for i in range(n):
        x[i] = 1
        i += 3
        x[0] += i
    return i


def inner(x, n, s):
    j = 40
    for i in range(n):
        for j in range(i):
            x[i] += x[j]
        x[i] += j
    return j


def a_bound_that_the_loop_changes(x, n, s):
    i = m = 5
    for i in range(m):
        m = m - 1
        x[i] += m
    return i


def once_and_again(x, n, s):
    i = 8
    for i in range(n):
        x[i] += 1
    for i in range(i):
        x[i] += i
    return i


def over_constants(x, n, s):
    for i in range(2, 5):
        x[i] = 7
    y = i
    for i in range(5, 2):
        x[i] = 7
    return i + y


def argument(x, n, s):
    for n in range(n):
        x[n] += n
    return n


def a_name_that_looks_made(x, n, s):
    i_value = 3
    i = 0
    for i in range(n):
        x[i] += i_value
    i_value += i
    return i_value


FUNCTIONS = (
    plain,
    from_itself,
    down,
    steps_of_four,
    a_step_that_is_given,
    left_early,
    returned_from,
    set_in_the_body,
    inner,
    a_bound_that_the_loop_changes,
    once_and_again,
    over_constants,
    argument,
    a_name_that_looks_made,
)
SCHEDULES = (
    lambda function: vectorize("i" if function is not argument else "n", 4)(function),
    lambda function: unroll("i" if function is not argument else "n", 3)(function),
    lambda function: tile(**{"i" if function is not argument else "n": 4})(function),
)


@on_every_target
@pytest.mark.filterwarnings("ignore::pyschedule.ScheduleWarning")
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_it_is_what_python_leaves(function, target):
    for schedule in SCHEDULES:
        kernel = schedule(function)
        for n in (0, 1, 2, 6, 11):
            agrees(kernel, np.arange(12.0) % 5, n, 3, target=target)


def test_a_loop_whose_counter_is_read_later_goes_into_lanes():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function in (plain, steps_of_four, a_name_that_looks_made):
            log = str(vectorize("i", 4)(function).lower(np.zeros(12), 11, 1).log)
            assert "Applied Vectorization: width=4 on loop 'i'" in log


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_log_and_warnings_have_the_users_names(function):
    loop = "n" if function is argument else "i"
    for decorate in (vectorize(loop, 4), unroll(loop), tile({loop: 4}, parallel=f"{loop}.0")):
        kernel = decorate(function)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ScheduleWarning)
            log = str(kernel.lower(np.zeros(12), 11, 1).log)
        made = re.findall(r"\w+_value\w*", log + "".join(str(warning.message) for warning in caught))
        assert set(made) <= ({"i_value"} if function is a_name_that_looks_made else set()), log


def test_pseudocode_has_the_users_name_where_no_counter_of_that_name_is_in_use():
    for function in (plain, steps_of_four, inner, from_itself, once_and_again):
        assert "_value" not in inspect_loop_transforms(tile(i=4)(function), np.zeros(12), 11, 1), function
    text = inspect_loop_transforms(tile(i=4)(a_name_that_looks_made), np.zeros(12), 11, 1)
    assert "i = n - 1\n    i_value = 3 + i\n    return i_value" in text
    text = inspect_loop_transforms(tile(i=1, target="cuda")(left_early), np.zeros(12), 11, 1)
    assert "        i_value = i\n        if x[i] > 3.0:\n            break\n" in text


def test_an_extent_is_not_called_by_what_a_counter_has_become():
    def counted(x):
        i = 0
        while i < x.shape[0]:
            x[i] = 1
            i += 1
        return i

    assert "def counted(x: float64[:])" in inspect_loop_transforms(unroll("i", 2)(counted), np.zeros(4))


def test_an_index_error_has_the_users_names():
    def found(x, y):
        i = 0
        for i in range(x.shape[0]):
            if x[i] > 3:
                break
        for j in range(2):
            y[j] = 1
        for j in range(2):
            if x[0] >= 0:
                y[x.shape[0] + j + i] = x[i]

    with warnings.catch_warnings(), pytest.raises(IndexError, match=r"in `y\[x.shape\[0\] \+ j \+ i\]`"):
        warnings.simplefilter("ignore", ScheduleWarning)
        tile(j=2)(found)(np.zeros(3), np.zeros(3))
