"""Unrolling as its table promises it: what becomes of each shape of loop, on both targets, and what is said."""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from pyschedule import LegalityError, ScheduleWarning, inspect_loop_transforms, nounroll, tile, unroll, vectorize
from tests.contract.oracle import same

INT = np.int64


def quietly(kernel, *args, target="cpu"):
    """The lowering, its warnings unheard."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        return kernel.lower(*args, target=target)


def nest(kernel, *args, target="cpu"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        return inspect_loop_transforms(kernel, *args, target=target).partition("\n\n")[2]


@pytest.fixture(autouse=True)
def what_a_gpu_maps_to_threads_is_skipped_there():
    """A GPU's threads run the outer loops, which then cannot be unrolled: that is said, and right."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        yield


def test_of_a_constant_trip_count_no_loop_is_left():
    def chosen(x, y):
        s = 1
        for k in range(6):
            if k == 2:
                s = s * 3
            elif k > 3:
                s = s + x[k]
            y[k] = s * k

    kernel = unroll("k")(chosen)
    text = nest(kernel, np.ones(6, INT), np.ones(6, INT))
    assert "for " not in text and "if " not in text
    assert "y[4] = s * 4" in text and "y[0] = 0" in text
    same(kernel, np.arange(6), np.zeros(6, INT))


@pytest.mark.parametrize("factor", [2, 5])
def test_any_factor_start_stop_and_step(factor):
    def upwards(x, first, last):
        s = 7
        for k in range(first, last, 2):
            s = s * 3 + x[k]
        return s

    def downwards(x, first, last):
        s = 7
        for k in range(last, first, -3):
            s = s * 3 + x[k]
        return s

    x = np.arange(60)
    for body in (upwards, downwards):
        kernel = unroll("k", factor)(body)
        for first, last in (
            (0, 0),
            (3, 2),
            (1, 2),
            *((factor, factor + length) for length in range(0, 6 * factor, 3)),
        ):
            same(kernel, x, first, last, types=False)


def test_several_continues():
    def some(x):
        s = 1
        for k in range(x.shape[0]):
            if x[k] % 3 == 0:
                continue
            if x[k] > 20:
                s = s - 1
                continue
            s = s * 2 + k
        return s

    for factor in (2, 4):
        kernel = unroll("k", factor)(some)
        assert "factors=" in str(quietly(kernel, np.ones(9, INT)).log)
        for size in range(2 * factor + 2):
            same(kernel, np.arange(size) * 7 % 25)


def until(x, s):
    where = -1
    for k in range(9):
        where = k
        if x[k] < 0:
            break
        s[0] = s[0] * 2 + k
    return where


def until_of(x, s):
    where = -1
    for k in range(x.shape[0]):
        where = k
        if x[k] < 0:
            break
        s[0] = s[0] * 2 + k
    return where


@pytest.mark.parametrize("kernel", [unroll("k")(until), unroll("k", 4)(until), unroll("k", 4)(until_of)])
def test_a_break_ends_the_copies_and_the_remainder(kernel):
    assert "Applied Unroll" in str(quietly(kernel, np.ones(9, INT), np.ones(1, INT)).log)
    for place in range(10):
        x = np.ones(9, INT)
        x[place:] = -1
        same(kernel, x, np.ones(1, INT))


def test_case_13_nothing_after_the_exit_is_summed():
    def until_negative(a):
        s = c = 0
        for i in range(9):
            if a[i] < 0:
                break
            s += a[i]
            c += 1
        return s, c

    for kernel in (unroll("i", 4)(until_negative), unroll("i")(until_negative)):
        assert kernel(np.array([1, 2, 3, 4, 5, -1, 7, 8, 9])) == (15, 5)
        same(kernel, np.array([1, 2, 3, 4, 5, -1, 7, 8, 9]))


def table(A, s):
    for i in range(A.shape[0]):
        for k in range(A.shape[1]):
            s[0] = s[0] * 3 + A[i, k]


def test_of_nested_loops_only_those_that_are_named():
    A, s = np.arange(35).reshape(5, 7), np.ones(1, INT)
    copies = {
        "inner": (unroll("k", 2)(table), 1 + 1 + 1),
        "outer": (unroll("i", 2)(table), 1 + 1 + 3),
        "both": (unroll("i", 2)(unroll("k", 2)(table)), 1 + 1 + 2 * 3),
    }
    for kernel, loops in copies.values():
        assert nest(kernel, A, s).count("for ") == loops
        same(kernel, A, s)


# ------------------------------------------------------------------------------------------------- refusals


def doubling(x, n):
    k = 1
    while k < n:
        x[k] += 1
        n = n - k
        k += 1


def two_counters(x, n):
    k = 0
    j = n
    while k < j:
        x[k] += 1
        k += 1
        j -= 1


def written(x, n):
    k = 0
    while k < n:
        if x[k] > 3:
            k += 2
        x[k] += 1
        k += 1


@pytest.mark.parametrize("body", [doubling, two_counters, written])
def test_a_while_that_does_not_count_is_left_as_it_was(body):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        kernel = unroll("k", 2)(body)
        lowering = kernel.lower(np.ones(12, INT), 5, target="cpu")
    (warning,) = [str(item.message) for item in heard if issubclass(item.category, ScheduleWarning)]
    assert re.search(r"test_directives_unroll\.py:\d+:\d+: Skipped Unroll: ", warning)
    assert lowering.stages["unroll"].body == lowering.stages["source"].body
    for n in range(7):
        same(kernel, np.arange(12), n)


def test_warnings_name_the_decorator_that_they_answer():
    def three(x, y):
        for i in range(x.shape[0]):
            x[i] = x[i] * 3 + i
        for j in range(y.shape[0]):
            y[j] = y[j] * 3 + j
        for k in range(4):
            x[0] += y[0] + k

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        # The first and the last of these three decorators cannot be obeyed.
        kernel = unroll("i")(
            unroll("k", 2)(
                unroll("j")(three),
            )
        )
        kernel.lower(np.ones(9, INT), np.ones(9, INT), target="cpu")
    texts = [str(item.message) for item in heard if issubclass(item.category, ScheduleWarning)]
    places = [re.search(r":(\d+):(\d+): Skipped Unroll: loop '(\w)'.*unroll\('\w', 4\)", text) for text in texts]
    assert all(places) and len(places) == 2
    lines = {place[3]: int(place[1]) for place in places}
    assert lines["j"] == lines["i"] + 2


def test_a_request_over_the_budget_names_the_limit():
    def long(x):
        s = 1
        for k in range(5000):
            s = (s * 3 + x[k]) % 1009
        return s

    kernel = unroll("k")(long)
    (line,) = [line for line in str(quietly(kernel, np.ones(5000, INT)).log).splitlines() if "Skipped" in line]
    assert "1024" in line or "1,024" in line
    same(kernel, np.arange(5000), targets=("cpu",))


# -------------------------------------------------------------------------------------------------- nounroll


def test_nounroll_travels_with_the_copies_of_the_loop_around():
    from pyschedule.ir.nodes import For
    from pyschedule.ir.visitors import walk

    kernel = unroll("i", 3)(nounroll("k")(table))
    stage = quietly(kernel, np.ones((5, 7), INT), np.ones(1, INT)).stages["unroll"]
    inner = [stmt.unroll for stmt in walk(stage.body) if isinstance(stmt, For) and stmt.source == "k"]
    assert inner == [1] * 4
    same(kernel, np.arange(35).reshape(5, 7), np.ones(1, INT))


def test_nounroll_of_no_loop_is_a_warning():
    def until_zero(x):
        s = 0
        for k in range(x.shape[0]):
            if x[k] == 0:
                break
            s = s * 3 + x[k]
        return s

    kernel = tile(k=4)(nounroll("k.1")(until_zero))
    with pytest.warns(ScheduleWarning, match="no loop 'k.1'"):
        kernel.lower(np.ones(5, INT), target="cpu")
    same(kernel, np.arange(5)[::-1].copy())


# ---------------------------------------------------------------------------------------------- stage numbers


def staged(A, y):
    for i in range(A.shape[0]):
        s = 0
        for k in range(A.shape[1]):
            stage = (k + 5) % 4
            if stage == 0:
                s = s * 2
            elif stage == 1:
                s = s + A[i, k]
            elif stage == 2:
                s = s - 3 * A[i, k]
            else:
                s = -s
        y[i] = s


@pytest.mark.parametrize("decorate", [unroll("k", 4), unroll("k", 8), unroll("k", 3), tile(k=8)])
def test_stages_of_a_pipeline(decorate):
    kernel = decorate(staged)
    for length in (0, 1, 3, 4, 5, 8, 11, 13):
        same(kernel, np.arange(3 * length).reshape(3, length), np.zeros(3, INT))


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_four_stages_are_four_straight_bodies(target):
    text = nest(unroll("k", 4)(staged), np.ones((3, 9), INT), np.ones(3, INT), target=target)
    main = text[text.index("for k") : text.index("for k_r")]
    assert "stage" not in main
    assert [line for line in main.split() if line in ("+=", "-=", "-s", "*=")] == ["+=", "-=", "-s", "*="]
    assert "% 4" in text[text.index("for k_r") :]


def test_in_lanes_copies_are_vectors():
    def bits(x, y):
        for k in range(x.shape[0]):
            y[k] = x[k] * ((k & 1) + 1)

    kernel = vectorize("k", width=4)(unroll("k", 2)(bits))
    for size in (0, 1, 7, 8, 9, 23):
        same(kernel, np.arange(size), np.zeros(size, INT))


# -------------------------------------------------------------------------------- a name of several nests


def product_in_three_nests(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0.0
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = max(C[i, j], 0.0)


def whole_numbers(*shape):
    return (np.arange(int(np.prod(shape))).reshape(shape) % 7 - 3).astype("float32")


@pytest.mark.parametrize("sizes", [{"i#2": 4, "j#2": 8}, {"i": 4, "j": 8}], ids=["one nest", "all nests"])
def test_a_register_tile_in_one_nest_is_what_an_unroll_of_its_name_meant_in_strict_mode_too(sizes):
    kernel = tile(**sizes)(vectorize("j", 8)(unroll("i")(product_in_three_nests)))
    A, B = whole_numbers(7, 5), whole_numbers(5, 11)
    log = str(unroll("k", 2, strict=True)(kernel).lower(A, B, np.zeros((7, 11), "float32"), target="cpu").log)
    assert "- Applied Unroll: factors=[4] on loops 'i'" in log
    first = product_in_three_nests.__code__.co_firstlineno + 1
    for line in (first, first + 7):
        rolled = f"the loop 'i' of line {line} stays rolled: its trip count is not known at compile time" in log
        assert rolled == ("i" not in sizes)
    assert ("a tile that is cut stays rolled" in log) == ("i" in sizes)
    same(kernel, A, B, np.full((7, 11), 9, "float32"))


def test_a_name_that_no_nest_can_unroll_in_full_is_skipped_in_each_and_an_error_in_strict_mode():
    A = whole_numbers(4, 4)
    log = str(quietly(unroll("i")(product_in_three_nests), A, A, A).log)
    assert log.count("- Skipped Unroll: loop 'i': its trip count") == 3 and "Applied" not in log
    with pytest.raises(LegalityError, match="loop 'i': its trip count is not known"):
        unroll("i", strict=True)(product_in_three_nests).lower(A, A, A, target="cpu")
    # A loop that is named alone is what was meant, whatever becomes of the others.
    one = tile(**{"i#2": 4, "j#2": 8})(unroll("i#2")(unroll("i#1")(product_in_three_nests)))
    log = str(quietly(one, A, A, A).log)
    assert log.count("- Skipped Unroll: loop 'i': its trip count") == 1 and "- Applied Unroll" in log


@pytest.mark.parametrize("size", [0, 1, 3, 4, 9, 16])
def test_all_of_a_tile_that_may_be_cut_is_unrolled_and_the_cut_one_stays_rolled(size):
    def halves(x, y):
        for i in range(x.shape[0]):
            s = 0.0
            for k in range(x.shape[1]):
                if x[i, k] > 0:
                    s += x[i, k]
            y[i] = s if s > 2 else -s

    x, y = whole_numbers(size, 5), whole_numbers(size)
    lowering = tile(i=4)(unroll("i", strict=True)(halves)).lower(x, y, target="cpu")
    (record,) = [record for record in lowering.log if record.transform == "Unroll"]
    assert str(record).startswith("- Applied Unroll: factors=[4] on loops 'i'")
    same(tile(i=4)(unroll("i")(halves)), x, y)
