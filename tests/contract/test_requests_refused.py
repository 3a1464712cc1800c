"""Wrong requests: what is malformed, what cannot be proved safe, and how each is said."""

from __future__ import annotations

import inspect
import re
import warnings

import numpy as np
import pytest

import pyschedule
from pyschedule import LegalityError, ScheduleError, ScheduleWarning, nounroll, poll, spec, tile, unroll, vectorize
from pyschedule.errors import FrontendError

ROW = spec("float32[32]")
MATRIX = spec("float32[32, 32]")


def product(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


def running(a):
    for i in range(1, a.shape[0]):
        a[i] = a[i - 1] + a[i]


def scaled(x, y):
    for i in range(x.shape[0]):
        y[i] = 2 * x[i]


# ---------------------------------------------------------------------------------------------- malformed

MALFORMED = [
    (lambda: tile(z=8)(product), "there is no loop 'z'; the loops of 'product' are 'i' (line"),
    (lambda: vectorize("j#2")(product), "1 loop of 'product' is named 'j'"),
    (lambda: tile(i=0), "the size of 'i' must be a positive integer, not 0"),
    (lambda: tile(i=()), "the size of 'i' must have at least one size"),
    (lambda: tile(i=(8, 16)), "the inner size 16 is above its outer size 8"),
    (lambda: tile(i=8)(tile(i=16)(product)), "the loop 'i' is tiled twice"),
    (lambda: tile(), "tile needs at least one loop with its sizes"),
    (lambda: tile(stage={}), "tile needs at least one loop with its sizes"),
    (lambda: tile(order=""), "order='' lists no loop"),
    (lambda: tile(i=8, order="i.0 j k")(product), "must list every piece of the nest once; missing: 'i.1'"),
    (lambda: tile(i=8, order="i.0 i.1 i.2 j k")(product), "the pieces of 'i' are 'i.0', 'i.1'"),
    (lambda: tile(i=8, stage={"D": "i.0"})(product), "its arrays are 'A', 'B', 'C'"),
    (lambda: tile(i=8, parallel="i.2")(product), "the pieces of 'i' are 'i.0', 'i.1'"),
    (lambda: vectorize("j", 0), "width must be a positive integer, not 0"),
    (lambda: vectorize("j", 8.0), "width must be a positive integer, not 8.0"),
    (lambda: vectorize("j", True), "width must be a positive integer, not True"),
    (lambda: vectorize(8), "a loop is named by a string, as in vectorize('i'), not 8"),
    (lambda: vectorize(dtype="quarter"), "dtype must be an element type, not 'quarter'; allowed are half, "),
    (lambda: vectorize("j", 8)(vectorize("j", 4)(product)), "vectorized by two decorators; keep one"),
    (lambda: unroll("k", -4), "factor must be a positive integer, not -4"),
    (lambda: unroll(factors=[]), "factors must be a list of positive integers, not []"),
    (lambda: unroll("k", factors=[4]), "takes a loop with its factor, or factors, not both"),
    (lambda: unroll("k", 4)(nounroll("k")(product)), "is to stay rolled, but unroll('k') asks to unroll it"),
    (lambda: unroll(factors=[2, 2, 2, 2])(product), "names 4 loops; the loops of 'product' are"),
    (lambda: poll(every=0), "every must be a positive integer, not 0"),
    (lambda: tile(i=8, target="tpu"), "target must be 'cpu', 'cuda' or None (both), not 'tpu'"),
    (lambda: tile(i=8, strict=1), "strict must be True or False, not 1"),
    (lambda: nounroll("k")(3), "a kernel is made of a Python function, not of 3 (int)"),
]


@pytest.mark.parametrize(("make", "reason"), MALFORMED, ids=[reason[:40] for _, reason in MALFORMED])
def test_a_malformed_request_says_where_what_was_given_and_what_is_allowed(make, reason):
    with pytest.raises(ScheduleError) as caught:
        make()
    assert isinstance(caught.value, ValueError)
    text = str(caught.value)
    assert reason in text
    file, line, column, _ = re.match(r"(.*?):(\d+):(\d+): (.*)", text).groups()
    source, first = inspect.getsourcelines(inspect.getmodule(test_an_order_of_loops_that_are_not_there))
    assert file == __file__
    decorator = source[int(line) - max(first, 1)][int(column) - 1 :]
    assert re.match(r"(tile|vectorize|unroll|nounroll|poll)\(", decorator), decorator


def test_an_order_of_loops_that_are_not_there():
    with pytest.raises(ScheduleError, match="there is no loop 'l'"):
        tile(order="l i j")(product)


def test_factors_and_a_name_that_mean_one_loop_contradict_each_other():
    kernel = unroll(factors=[2, 2])(unroll("i", 4)(product))
    with pytest.raises(ScheduleError, match=r"factors=\[2, 2\] and unroll\('i'\) both unroll loop 'i'; keep one"):
        kernel.lower(MATRIX, MATRIX, MATRIX)


def test_the_kinds_of_refusal_are_schedule_errors_and_those_are_value_errors():
    assert issubclass(ScheduleError, ValueError)
    assert issubclass(FrontendError, ScheduleError)
    assert issubclass(LegalityError, ScheduleError)
    assert issubclass(ScheduleWarning, UserWarning)
    assert {"FrontendError", "LegalityError", "ScheduleError", "ScheduleWarning"} <= set(dir(pyschedule))


# ----------------------------------------------------------------------------------- not provably safe

SKIPPED = [
    (lambda: vectorize("i", 8)(running), (ROW,), "Vectorization", "a[i - 1]", True),
    (lambda: tile(i=4, parallel="i.0")(running), (ROW,), "Parallelization", "a[i - 1]", True),
    (lambda: unroll("i")(running), (ROW,), "Unroll", "unroll('i', 4)", True),
    (lambda: vectorize("i", 6)(scaled), (ROW, ROW), "Vectorization", "no power of two", False),
    (lambda: tile(i=4, stage={"y": "i.0"})(scaled), (ROW, ROW), "Staging", "'y'", False),
    (lambda: vectorize("i", 8, dtype="half")(scaled), (ROW, ROW), "Vectorization", "are float32", False),
    (lambda: unroll(factors=[2, 2, 2])(product), (MATRIX,) * 3, "Unroll", "2 loops can take them", False),
]
IDS = [f"{transform}: {word}" for _, _, transform, word, _ in SKIPPED]


def warned(kernel, args) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel.lower(*args)
    return caught


@pytest.mark.parametrize(("make", "args", "transform", "word", "placed"), SKIPPED, ids=IDS)
def test_a_request_that_is_skipped_warns_once_with_its_places_and_its_reason(make, args, transform, word, placed):
    kernel = make()
    (warning,) = warned(kernel, args)
    assert warning.category is ScheduleWarning
    assert warning.filename == __file__
    text = str(warning.message)
    assert re.match(rf"{re.escape(__file__)}:{warning.lineno}:\d+: Skipped {transform}: ", text), text
    assert word in text
    line = inspect.getsourcelines(running)[1]
    if placed:  # the statement in the way stands in the function
        assert any(f"line {line + offset}," in text or f":{line + offset}:" in text for offset in (1, 2)), text
    assert not warned(kernel, args)
    log = str(kernel.lower(*args).log)
    assert f"- Skipped {transform}: " in log and word in log and f"[{__file__}:{warning.lineno}:" in log


@pytest.mark.parametrize(("make", "args", "transform", "word", "placed"), SKIPPED, ids=IDS)
def test_the_environment_makes_it_an_error(make, args, transform, word, placed, monkeypatch):
    monkeypatch.setenv("PYSCHEDULE_STRICT", "1")
    for _ in range(2):
        with pytest.raises(LegalityError, match=f"Skipped {transform}: ") as caught:
            make().lower(*args)
        assert word in str(caught.value)


def test_strict_on_any_decorator_holds_for_the_kernel():
    for kernel in (unroll("i", strict=True)(running), tile(order="i", strict=True)(unroll("i")(running))):
        with pytest.raises(LegalityError, match="Skipped Unroll"):
            kernel.lower(ROW)


def test_strict_has_no_quarrel_with_an_automatic_request_that_finds_nothing(monkeypatch):
    monkeypatch.setenv("PYSCHEDULE_STRICT", "1")
    log = str(vectorize()(running).lower(ROW).log)
    assert "- Note Vectorization: " in log


def test_a_new_signature_warns_again():
    kernel = unroll("i")(running)
    assert len(warned(kernel, (spec("float32[9]"),))) == 1
    assert len(warned(kernel, (spec("float32[10]"),))) == 0  # an extent is no part of a signature
    assert len(warned(kernel, (spec("float64[9]"),))) == 1


def test_the_statement_in_the_way_is_said_once():
    text = str(warned(unroll("i")(running), (ROW,))[0].message)
    line = inspect.getsourcelines(running)[1] + 1
    assert len(re.findall(rf"line {line}\b|:{line}:", text)) == 1, text


def test_what_was_skipped_leaves_the_result_right():
    kernel = vectorize("i", 8)(tile(i=4, parallel="i.0")(unroll("i")(running)))
    a = np.arange(37, dtype=np.float32)
    with pytest.warns(ScheduleWarning):
        kernel(a)
    np.testing.assert_array_equal(a, np.cumsum(np.arange(37, dtype=np.float32)))


@pytest.mark.parametrize("decorator", [unroll, vectorize])
def test_a_loop_as_a_keyword_is_told_how_loops_are_named(decorator):
    with pytest.raises(
        ScheduleError, match=rf"{decorator.__name__}: i=4 is no argument.*{decorator.__name__}\('i', 4\)"
    ):
        decorator(i=4)
