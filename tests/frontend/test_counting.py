"""`while` loops: which count, what they become, what their counter is afterwards, and why the others do not."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

from pyschedule.ir.nodes import For, While
from pyschedule.ir.visitors import walk
from tests.frontend.execution import agrees, built, nest

N = 64
STEP = 3
NARROW = np.int32(61)


def several_continues(x, n):
    i = 0
    while i < n:
        if x[i] > 2:
            if x[i] > 4:
                x[i] = 0
                i += 1
                continue
            x[i] -= 1
        elif x[i] < -1:
            i = i + 1
            continue
        x[i] += 10
        i += 1
    return i


def counted_at_the_top(x, n):
    i = 0
    while n > i:
        i = 1 + i
        x[i - 1] = i
        if x[i - 1] == 5:
            continue
        x[i - 1] += i
    return i


def counted_in_the_middle(x, n):
    i = n - 1
    while 0 <= i:
        x[i] = i
        i -= 2
        x[i + 2] += i
        if x[i + 2] == 4:
            return i
    return i


def counted_on_each_arm(x, n):
    i = 0
    while not i >= n:
        if x[i] > 0:
            x[i] = 1
            i += STEP
        else:
            i += STEP
            x[i - STEP] = i
        x[i - STEP] += 1
    return i


def counted_twice_a_turn(x, n):
    i = 0
    while i + 1 < n:
        x[i] += 1
        i += 1
        x[i] += 2
        i += 1
    return i


def left_early(x, n):
    i = 2
    while i < n:
        if x[i] > 3:
            break
        i += 2
        if x[i - 1] < -2:
            break
    return i


def two_conditions(x, n):
    i = 0
    ok = True
    while i < n and ok and x[i] < 4:
        if x[i] == -1:
            ok = False
        x[i] = 9
        i += 1
    return i, ok


def from_both_sides(x, n):
    i = n - 1
    while 0 <= i < 5:
        x[i] = i
        i -= 1
    return i


def endless_but_for_a_break(x, n):
    i = 0
    while True:
        if i >= n:
            break
        x[i] = 2
        i += 1
    return i


def unequal(x, n):
    i = 12
    while i != 3:
        x[i % 8] += 1
        i -= 3
    j = x.shape[0]
    while j:
        j -= 1
        x[j] += j
    return i, j


def from_an_outer_counter(x, n):
    c = 0
    for k in range(n):
        j = k
        while j <= n:
            c += j
            j += 2
        x[k] += j
    return c


def bound_is_an_element(x, n):
    c = 0
    k = x[0] - n
    while k < x[1] + n:
        c += k
        k += 1
    return c, k


def inner_loops_read_it(x, n):
    i = 0
    while i < n:
        i += 1
        for k in range(i):
            x[k] += i
            j = k
            while j > i - 4:
                j -= 1
                x[i % 8] += j * i
    return i


def steps_of_a_local(x, n):
    step = STEP + 1
    stop = n - 1
    i = 1
    while i <= stop:
        place = i * 2
        x[place % 8] = i
        i += step
    return i


COUNTED = [
    several_continues,
    counted_at_the_top,
    counted_in_the_middle,
    counted_on_each_arm,
    counted_twice_a_turn,
    left_early,
    two_conditions,
    from_both_sides,
    endless_but_for_a_break,
    unequal,
    from_an_outer_counter,
    bound_is_an_element,
    steps_of_a_local,
    inner_loops_read_it,
]


def data():
    return np.array([-3, 4, 5, 1, -1, 0, 7, 3], dtype=np.int64)


@pytest.mark.parametrize("function", COUNTED, ids=lambda function: function.__name__)
def test_a_loop_that_counts_is_one_and_leaves_the_right_counter(function):
    kernel = built(function, data(), 3).kernel
    assert not [stmt for stmt in walk(kernel.body) if isinstance(stmt, While)]
    for n in (0, 1, 2, 3, 5, 7, -2):
        agrees(function, data(), n)


def test_what_is_read_behind_the_increment_is_read_plus_the_step():
    assert (
        nest(counted_at_the_top, data(), 3)
        == """\
    i = 0
    for i in range(n):
        x[i] = i + 1
        if x[i] != 5:
            x[i] += i + 1
    i = max(0, n)
    return i"""
    )


def test_a_way_out_says_what_the_counter_is():
    assert (
        nest(left_early, data(), 3)
        == """\
    i_value = 2
    i_value = max((n - 1) // 2, 0) * 2 + 2
    for i in range(2, n, 2):
        if x[i] > 3:
            i_value = i
            break
        if x[i + 1] < -2:
            i_value = i + 2
            break
    return i_value"""
    )


def folded(x):
    for i in range(NARROW // 8):
        x[i] += 1
    for j in range(N >> 3):
        x[j] += 1
    for k in range(int(np.int32(N) % 7) + int(2.5)):
        x[k] += 1
    for m in range(np.int64(1) << 2):
        x[m] += 1
    c = 0
    while c < int(N // 8) - (NARROW & 1):
        x[c] += 1
        c += NARROW % 4
    return int(c)


def test_constants_fold_through_division_shifts_and_casts():
    loops = [stmt for stmt in walk(built(folded, data()).kernel.body) if isinstance(stmt, For)]
    assert [loop.max_trip for loop in loops] == [7, 8, 3, 4, 7]
    agrees(folded, data())


def test_narrow_constants_that_wrap_are_left_to_run():
    def wraps(x):
        x[0] = np.int8(100) + np.int8(28)
        x[1] = -np.int16(-32768)

    agrees(wraps, data())


def limits_change(x, n):
    i = 0
    while i < n:
        n -= 1  # here
        i += 1


def different_steps(x, n):
    i = 0
    while i < n:
        if x[i] > 3:
            i += 1
            continue
        i += 2  # here
    return i


def different_steps_at_a_join(x, n):
    i = 0
    while i < n:
        if x[i] > 3:
            i += 1  # here
        i += 2
    return i


def no_step_on_a_path(x, n):
    i = 0
    while i < n:
        if x[i] > 3:
            x[i] = 0
            continue
        i += 1  # here


def counter_is_set(x, n):
    i = 0
    while i < n:
        i = x[0]  # here
        i += 1


def counter_is_doubled(x, n):
    i = 1
    while i < n:
        i *= 2  # here


def inner_loop_counts_it(x, n):
    i = 0
    while i < n:
        for k in range(2):
            x[k] += 1
            i += 1  # here


def step_is_an_argument(x, n):
    i = 0
    while i < 5:
        i += n  # here


def bound_is_written(x, n):
    i = 0
    while i < x[2]:
        x[i] -= 1  # here
        i += 1


def moves_away(x, n):
    i = 0
    while i > n:
        i += 1  # here
        if i > 9:
            break


def counter_is_a_float(x, n):
    t = 0.5
    while t < n:  # here
        t += 1


def may_miss(x, n):
    i = 0
    while i != n:  # here
        i += 1
        if i > 9:
            break


def no_counter(x, n):
    i = 0
    while x[0] < n:  # here
        x[0] += 1
        i += 1


def too_late(x, n):
    i = 0
    while x[i] < 3 and i < n:  # here
        i += 1


REFUSED = [
    (limits_change, "the bound `n` changes in the body (line {}); keep the bound in a local"),
    (different_steps, "counter 'i' takes different steps on different paths: 1 (line {-2}) and 2 (line {})"),
    (different_steps_at_a_join, "different steps on different paths: 1 (line {}) and none"),
    (no_step_on_a_path, "different steps on different paths: none and 1 (line {})"),
    (counter_is_set, "counter 'i' is written in the body (line {}); only add a constant to it"),
    (counter_is_doubled, "counter 'i' is written in the body (line {}); only add a constant to it"),
    (
        inner_loop_counts_it,
        "counter 'i' is written by an inner loop (line {}); give that loop a counter of its own",
    ),
    (step_is_an_argument, "the step of counter 'i' is no constant (line {}); use a constant"),
    (bound_is_written, "the bound is read from 'x', which the body writes (line {}); keep the bound in a local"),
    (moves_away, "counter 'i' moves by 1 (line {}), not towards its bound under '>'; turn"),
    (counter_is_a_float, "counter 't' is no integer; start it from 'int(...)'"),
    (may_miss, "`i != n` may step over its bound, as far as is known; write '<' or '>' for '!='"),
    (no_counter, "`x[0] < n` does not compare a counter 'i' with a bound; write it as 'while i < n:'"),
    (too_late, "`i < n` stands behind a test that reads an element; write it first"),
]


@pytest.mark.parametrize(("function", "reason"), REFUSED, ids=lambda item: getattr(item, "__name__", ""))
def test_a_loop_that_does_not_count_says_why_and_stays(function, reason):
    (loop,) = (s for s in walk(built(function, data(), 3).kernel.body) if isinstance(s, While))
    first = function.__code__.co_firstlineno
    here = first + next(at for at, line in enumerate(inspect.getsourcelines(function)[0]) if "# here" in line)
    wanted = reason.replace("{-2}", str(here - 2)).replace("{}", str(here))
    assert wanted in loop.reason
    assert ";" in loop.reason and "\n" not in loop.reason
    assert loop.reason_loc is not None
    if function not in (different_steps_at_a_join,):
        assert loop.reason_loc.line == here
    for n in (0, 1, 3):
        if function not in (no_step_on_a_path, step_is_an_argument, too_late, may_miss, moves_away) or n == 3:
            if function is no_step_on_a_path:
                agrees(function, np.array([9, 1, 9, 0, 0, 0, 0, 0]), n)
            elif function is counter_is_set:
                agrees(function, np.full(8, 7), n)
            else:
                agrees(function, data(), n)


def rows(row, x, out):
    """A sparse sum: the counter is of the rows' type."""
    for i in range(len(out)):
        k = row[i]
        while k < row[i + 1]:
            if x[k] > 6:
                break
            out[i] += x[k] * k
            k += 1
        out[i] += k
    k = row[0]
    while 3 > k:
        k += 1
        x[k] += k
    return k


def may_wrap(row, x, out):
    k = row[0]
    while k < len(x) - 2:
        k += 1
        out[k] = k
    k = row[1]
    while k < 4:
        k += 2
        out[k] = k
    return k


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64"])
def test_counters_of_fewer_bits_count_where_they_cannot_wrap(dtype):
    row = np.array([0, 3, 3, 8], dtype)
    kernel = built(rows, row, data(), np.zeros(3)).kernel
    assert not [stmt for stmt in walk(kernel.body) if isinstance(stmt, While)]
    assert agrees(rows, row, data(), np.zeros(3)) == 3
    kernel = built(may_wrap, row, data(), np.zeros(8)).kernel
    left = [stmt for stmt in walk(kernel.body) if isinstance(stmt, While)]
    assert len(left) == (0 if dtype == "int64" else 2)
    assert all(f"counter 'k' is of type {dtype}, which may wrap" in loop.reason for loop in left)
    agrees(may_wrap, row, data(), np.zeros(8))


def test_a_counter_has_the_type_that_its_step_gives_it():
    def stepped(x, n):
        i = 0
        t = x[0]
        while i < n:
            i += WIDE_STEP
            t += x[i] * i  # a float64, since i is NumPy's
        return i, t

    i, t = agrees(stepped, np.arange(9, dtype=np.float32) / 3, 5)
    assert not built(stepped, data(), 5).kernel.scalar_results[0].weak
    assert i == 6 and np.asarray(t).dtype == np.float64


WIDE_STEP = np.int64(2)
