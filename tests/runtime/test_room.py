"""Frames with room for deep calls."""

from __future__ import annotations

import sys

import pytest

from pyschedule.runtime.room import SLOTS, with_room
from pyschedule.runtime.specialisations import Specialisations


@with_room
def half(number: float, *, shift: int = 0) -> float:
    """Half of a number."""
    caller = sys._getframe(1)
    assert caller.f_code.co_stacksize >= SLOTS
    return number / 2 + shift


def test_a_function_with_room_is_the_function_called_from_a_large_frame() -> None:
    assert half(3, shift=1) == 2.5
    assert (half.__name__, half.__doc__) == ("half", "Half of a number.")
    with pytest.raises(TypeError, match="unsupported operand"):
        half("3")  # type: ignore[arg-type]


def test_it_may_call_itself() -> None:
    @with_room
    def depth(left: int) -> int:
        return 1 + depth(left - 1) if left else 0

    assert depth(50) == 50


@pytest.mark.parametrize("name", ["lowering", "plan", "program"])
def test_kernels_are_lowered_and_compiled_with_room(name: str) -> None:
    assert getattr(Specialisations, name).__code__.co_stacksize >= SLOTS
