"""The lock that is held while kernels are lowered and compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from pyschedule.runtime import specialisations
from pyschedule.runtime.compiling import OBJECTS, Compiling


@pytest.fixture(autouse=True)
def thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(700, 11, 12)
    yield
    gc.set_threshold(*before)


def test_collections_are_rarer_while_it_is_held_and_as_before_then() -> None:
    lock = Compiling()
    with lock:
        assert gc.get_threshold() == (OBJECTS, 11, 12)
        with lock:
            assert gc.get_threshold() == (OBJECTS, 11, 12)
        assert gc.get_threshold() == (OBJECTS, 11, 12)
    assert gc.get_threshold() == (700, 11, 12)


def test_an_error_leaves_them_as_before() -> None:
    lock = Compiling()
    with pytest.raises(ZeroDivisionError), lock:
        _ = 1 // 0
    assert gc.get_threshold() == (700, 11, 12)
    with lock:
        assert gc.get_threshold()[0] == OBJECTS


@pytest.mark.parametrize("young", [0, 10 * OBJECTS])
def test_collections_that_are_off_or_rarer_stay_so(young: int) -> None:
    gc.set_threshold(young, 11, 12)
    with Compiling():
        assert gc.get_threshold() == (young, 11, 12)
    assert gc.get_threshold() == (young, 11, 12)


def test_kernels_are_lowered_and_compiled_under_it() -> None:
    assert isinstance(specialisations.compiling, Compiling)
