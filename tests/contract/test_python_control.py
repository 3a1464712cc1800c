"""Loops, conditions and ways out of them, as Python means them, under every kind of schedule."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyschedule import inspect_loop_transforms, tile, unroll, vectorize
from tests.contract.oracle import RNG, numbers, same, scheduled

LIMIT = 3

pytestmark = pytest.mark.filterwarnings("ignore::pyschedule.ScheduleWarning")


def over(loop: str) -> list[tuple]:
    """Schedules of one loop: sizes that divide nothing, lanes, copies, and all together."""
    return [
        (tile(**{loop: 3}),),
        (vectorize(loop, 4),),
        (unroll(loop, 3),),
        (tile(**{loop: 5}), vectorize(loop, 2), unroll(loop, 2)),
    ]


def over_both(outer: str, inner: str) -> list[tuple]:
    return [
        (tile(**{outer: 3, inner: 4}), vectorize(inner, 4), unroll(outer, 2)),
        (vectorize(outer, 4),),
        (unroll(inner, 3),),
        (tile(**{outer: 2}, parallel=f"{outer}.0"), vectorize(), unroll()),
    ]


def steps(out, first, last, step):
    count = 0
    for i in range(first, last, step):
        out[count] = i * 3
        count += 1
    return count


@pytest.mark.parametrize("schedule", over("i"), ids=["tile", "lanes", "copies", "all"])
def test_range_of_any_start_stop_and_step(schedule):
    kernel = scheduled(steps, *schedule)
    ranges = [(0, 10, 1), (9, -1, -4), (1, 10, 3), (5, 2, 1), (-3, 8, 2), (3, 3, 1), (10, -10, -3), (0, 37, 1)]
    for bounds in ranges:
        same(kernel, np.full(40, -1), *bounds)
    with pytest.raises(ValueError, match="step of 'range' is zero"):
        kernel(np.zeros(3, int), 0, 3, 0)


def counting_up(n):
    i = 0
    total = 0
    while i < n:
        total += i * i
        i += 3
    return total, i


def counting_down(n):
    count = 0
    while n > 0:
        n -= 2
        if n % 3 == 0:
            continue
        count += n
    return count, n


def collatz(n):
    steps = 0
    while n != 1:
        if n % 2 == 0:
            n //= 2
        else:
            n = 3 * n + 1
        steps += 1
        if steps > 50:
            break
    return steps, n


@pytest.mark.parametrize(
    ("function", "loop"), [(counting_up, "i"), (counting_down, "n"), (collatz, "n")], ids=["up", "down", "collatz"]
)
def test_while_loops(function, loop):
    for kernel in (unroll(loop, 4)(function), tile(**{loop: 3})(function) if loop == "i" else unroll()(function)):
        for n in (1, 2, 3, 10, 37):
            same(kernel, n)


def find(x, value):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if x[i, j] == value:
                return i, j
    return -1, -1


def first_negative(x, out):
    for i in range(x.shape[0]):
        out[i] = -1
        for j in range(x.shape[1]):
            if x[i, j] < 0:
                out[i] = j
                break


def some(x, out):
    count = 0
    for i in range(x.shape[0]):
        if i % 3 == 1:
            continue
        for j in range(x.shape[1]):
            if x[i, j] > 1:
                continue
            out[i, j] = x[i, j] * 2 + i
            count += 1
    return count


def escape(across, down, out):
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            a = 0.0
            b = 0.0
            n = 0
            while n < 20 and a * a + b * b < 4.0:
                a, b = a * a - b * b + across[j], 2 * a * b + down[i]
                n += 1
            out[i, j] = n


def triangle(x, out):
    for i in range(x.shape[0]):
        for j in range(i, -1, -1):
            for k in range(j, i + 1):
                out[i, j] += x[i, k]


@pytest.mark.parametrize("schedule", over_both("i", "j"), ids=["all", "outer lanes", "inner copies", "automatic"])
def test_ways_out_of_nested_loops(schedule):
    kernel = scheduled(find, *schedule)
    for value in (0, 13, 34, 99):
        same(kernel, np.arange(35).reshape(5, 7), value)
    same(kernel, np.zeros((0, 3)), 1)
    kernel = scheduled(first_negative, *schedule)
    for x in (numbers("float64", 5, 7), np.ones((3, 9)), np.zeros((2, 0))):
        same(kernel, x, np.zeros(len(x)))
    same(scheduled(some, *schedule), numbers("float64", 7, 9), np.zeros((7, 9)))
    same(scheduled(escape, *schedule), RNG.standard_normal(9), RNG.standard_normal(5), np.zeros((5, 9), int))
    same(scheduled(triangle, *schedule), np.arange(49.0).reshape(7, 7), np.zeros((7, 7)))


def branches(x, y, out):
    for i in range(len(x)):
        if x[i] > 0:
            if y[i] > 0:
                out[i] = x[i] / y[i]
            elif y[i] < -1:
                out[i] = x[i]
            else:
                pass
        else:
            t = x[i] * 2
            for k in range(3):
                if t < -3:
                    break
                t -= y[i]
            out[i] = t


def stages(x, out, base):
    for i in range(len(x)):
        match (base + i) & 3:
            case 0:
                out[i] = x[i]
            case 1 | 2 if x[i] > 0:
                out[i] = x[i] * 2
            case 1:
                continue
            case -1 | math.inf:
                out[i] = 99
            case _:
                out[i] -= 1
        out[i] += base


def match_of_an_element(x, out):
    for i in range(len(x)):
        match x[i]:  # evaluated once: the arms change it
            case 0:
                x[i] = 1
            case 1:
                x[i] = 2
            case 2 | 3 | 2.5:
                x[i] = 0
                match i % 2:
                    case 0:
                        out[i] = 1
        match LIMIT:
            case 3:
                out[i] += 1
            case _:
                out[i] = math.nan


def passing(x):
    for i in range(len(x)):
        if x[i] > 3:
            pass
        elif x[i] > 2:
            x[i] = 0
        else:
            x[i] -= 1
    return


def by_index(x, index, out):
    for i in range(len(index)):
        out[i] = x[index[i]] - x[-1 - i]
        out[index[i] % len(out)] += 1


def counted_by_elements(x, out):
    for i in range(len(x)):
        for k in range(x[i]):
            out[i] += k
        for k in range(x[i] - 3, x[i] + 2):
            out[i] -= 1


@pytest.mark.parametrize("schedule", over("i")[1:], ids=["lanes", "copies", "all"])
def test_conditions_and_indices_that_depend_on_data(schedule):
    for n in (0, 1, 13):
        same(scheduled(branches, *schedule), numbers("float64", n), numbers("float64", n), np.zeros(n), rtol=1e-12)
        same(scheduled(passing, *schedule), np.arange(n))
        for base in range(4):
            same(scheduled(stages, *schedule), numbers("float64", n), np.zeros(n), base)
        for dtype in ("int64", "float32", "uint8"):
            same(scheduled(match_of_an_element, *schedule), (np.arange(n) % 5).astype(dtype), np.zeros(n))
    for dtype in ("int8", "int64", "uint8", "uint64"):
        index = np.array([0, 8, 3, 2, 2] if dtype[0] == "u" else [0, 8, -9, -1, -1], dtype)
        same(scheduled(by_index, *schedule), numbers("float64", 9), index, np.zeros(5))
        if dtype != "uint64":  # a counter is an int64: 0 - 3 wraps to -3
            same(scheduled(counted_by_elements, *schedule), np.array([0, 1, 2, 5, 9], dtype), np.zeros(5, int))


# -------------------------------------------------------- what a loop's body does to its own bounds and counter


def stop_moves(n, out):
    for j in range(n):
        n = n - 1
        out[j] = n
    return n


def element_moves(x, out):
    for j in range(x[0]):
        x[0] -= 1
        out[j] = x[0]


def step_moves(n, step, out):
    for j in range(0, n, step):
        step += 1
        out[j] = step
    return step


def start_is_the_counter(j, out):
    for j in range(j, j + 9):  # noqa: B020
        out[j] = j
    return j


@pytest.mark.parametrize("schedule", over("j"), ids=["tile", "lanes", "copies", "all"])
def test_bounds_are_evaluated_once(schedule):
    for n in (0, 1, 7, 13):
        same(scheduled(stop_moves, *schedule), n, np.zeros(13, int))
        same(scheduled(element_moves, *schedule), np.array([n]), np.zeros(13, int))
        same(scheduled(step_moves, *schedule), n, 2, np.zeros(13, int))
    same(scheduled(start_is_the_counter, *schedule), 3, np.zeros(13, int))


def counters_after(n):
    i = -5
    for i in range(3, n, 2):
        pass
    j = i
    for j in range(0):
        pass
    k = 0
    while True:
        k += 1
        if k >= n:
            break
    for m in range(4):
        m *= 2
    return i, j, k, m


@pytest.mark.parametrize("schedule", [(unroll("i", 2),), (tile(i=2), unroll("m")), (vectorize("m", 4),)])
def test_counters_after_their_loops(schedule):
    for n in (0, 3, 4, 9):
        same(scheduled(counters_after, *schedule), n)


# ---------------------------------------------------------------------------------------- what comes back


def several(x, n):
    made = np.zeros(3)
    single = np.zeros((2, n), np.float32)
    for i in range(3):
        made[i] = x[i]
        if x[i] < 0:
            return made, single, made, x, i
    single[1, n - 1] = 7
    return made, single, made, x, -1


def nothing(x):
    pass


def through(x, n):
    return n, x


def test_arrays_and_scalars_come_back_and_arguments_themselves():
    kernel = unroll("i", 2)(several)
    same(kernel, np.array([1.0, -2, 3]), 2)
    same(kernel, np.array([1.0, 2, 3]), 4)
    x = np.array([1.0, 2, 3])
    made, _, again, given, _ = kernel(x, 2)
    assert made is again and given is x


def test_a_parameter_that_is_not_computed_with_takes_anything():
    for x in (np.arange(3), np.ones((2, 3), np.float16), 3, 2.5):
        same(vectorize(nothing), x)
        same(unroll(through), x, 2)
    x = np.arange(3)
    assert unroll(through)(x, 2)[1] is x
    with pytest.raises(TypeError, match=r"argument 'n' of counting_up\(\) must be a number"):
        unroll(counting_up)(x)


# --------------------------------------------------------------------- names that generated code has of its own


@tile(min=4)
@vectorize("max", 4)
def int64(f32, u32, results_, n):
    cuda = 0
    prange = 1
    inf = 2.0
    njit = f32.shape[0]
    u64 = 3
    stop = 5
    for min in range(njit):
        for max in range(f32.shape[1]):
            i_stop = min * 2
            splat = max
            u32[min, max] = f32[min, max] * inf + i_stop + splat + cuda + prange + u64 + stop + n
        results_[min] = njit
    return inf


@vectorize("α", 4)
@unroll("tx", 2)
def naïve(β, ü, bx):  # noqa: PLC2401
    tx = 0
    for α in range(len(β)):  # noqa: PLC2401
        ü[α] = β[α] * 2
    for tx in range(3):
        for ty in range(2):
            bx[tx] += ty
    return tx


@tile(i=4)
@unroll("i_0", 2)
def pieces(x, i_0, i_1, i_tail, _fill, acc):
    for i in range(len(x)):
        x[i] = x[i] + i_0 + i_1
    i_b = 3
    for i_tail in range(i_tail):  # noqa: B020
        x[0] += i_tail * i_b
    for i_0 in range(i_1):
        x[1] += _fill + acc
    return i_0


def test_any_name_will_do():
    same(int64, numbers("float32", 7, 9), np.zeros((7, 9)), np.zeros(7), 3)
    same(naïve, numbers("float64", 9), np.zeros(9), np.zeros(3))
    same(pieces, numbers("float64", 9), 2, 3, 4, 5, 6)


# ------------------------------------------------------------------------------------- small local arrays


def sorted_rows(x, out):
    for i in range(x.shape[0]):
        row = [0.0] * 5
        for j in range(5):
            row[j] = x[i, j]
        for j in range(1, 5):
            value = row[j]
            k = j - 1
            while k >= 0 and row[k] > value:
                row[k + 1] = row[k]
                k -= 1
            row[k + 1] = value
        for j in range(5):
            out[i, j] = row[j]


def tables(x, out):
    weights = [0.25, 0.5, 0.25]
    shifts = np.array([0, 1, 2])
    window = np.zeros(3)
    doubled = np.empty(3, dtype=np.float32)
    counts = [[0 for _ in range(2)] for _ in range(3)]
    sevens = np.full((2, 2), 7)
    ones = np.ones(2, np.int8)
    for i in range(len(x) - 2):
        s = 0.0
        for k in range(3):
            window[k] = x[i + k]
            doubled[k] = x[i + shifts[k]] * 2
            counts[k][0] += 1
            counts[k][1] = k
        for k in range(3):
            s += weights[k] * window[k] + doubled[k]
        out[i] = s + counts[2][0] + counts[2][1] + sevens[1, 1] + ones[0]
    return counts[1][0]


def histogram(x, out):
    found = np.zeros(8, np.int64)
    for i in range(len(x)):
        found[x[i] % 8] += 1
    for j in range(8):
        out[j] = found[j]


@pytest.mark.parametrize("schedule", over("i")[1:], ids=["lanes", "copies", "all"])
def test_small_local_arrays(schedule):
    for n in (0, 1, 5, 11):
        same(scheduled(sorted_rows, *schedule), numbers("float64", n, 5), np.zeros((n, 5)))
    for n in (2, 3, 13):
        same(scheduled(tables, *schedule), numbers("float64", n), np.zeros(n), rtol=1e-12)
        same(scheduled(tables, *schedule), np.arange(n, dtype=np.int32), np.zeros(n))
    same(scheduled(histogram, *schedule), numbers("int64", 41), np.zeros(8, np.int64))


def blurred(x, out):
    for i in range(len(x)):
        s = 0.0
        for r in range(3):
            if i + r >= 1 and i + r - 1 < len(x):
                s += x[i + r - 1]
        out[i] = s


def test_a_window_that_starts_before_its_array_is_staged_from_where_that_begins():
    kernel = tile(i=8, stage={"x": "i.0"})(blurred)
    x = np.arange(1, 14.0)
    assert "staged x" in inspect_loop_transforms(kernel, x, x)
    assert "x_b >= 0" in inspect_loop_transforms(kernel, x, x)
    same(kernel, x, np.zeros(13))


FAR = 2**63 - 1


@unroll("i", 2)
def until_three(start):
    n = 0
    for i in range(start, FAR):
        if i == 3:
            break
        n += 1
    return n


@unroll("i", 2)
def until_three_by_while(start):
    n = 0
    i = start
    while i < FAR:
        if i == 3:
            break
        n += 1
        i += 1
    return n


@unroll("i", 2)
def down_to_minus_three(start, stop):
    n = 0
    for i in range(start, stop, -1):
        if i == -3:
            break
        n += 1
    return n


def test_bounds_too_far_apart_for_a_count_of_64_bits_are_refused():
    for kernel in (until_three, until_three_by_while):
        assert kernel(0) == 3 and kernel(2) == 1
        with pytest.raises(ValueError, match="bounds of a loop are 2\\*\\*63 or more apart"):
            kernel(-2)
    assert down_to_minus_three(2, -10) == 5
    assert down_to_minus_three(0, -FAR) == 3
    with pytest.raises(ValueError, match="apart"):
        down_to_minus_three(2, -FAR)
    with pytest.raises(ValueError, match="apart"):
        down_to_minus_three(-FAR, 5)  # no iteration, where the distance does not wrap


def test_constant_bounds_too_far_apart_are_refused_too():
    @unroll("i", 2)
    def endless(x):
        for i in range(-5, FAR):
            if i == 3:
                break
            x[0] += 1

    with pytest.raises(ValueError, match="2\\*\\*63 or more apart"):
        endless(np.zeros(1))
