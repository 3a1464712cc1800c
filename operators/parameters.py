"""Parameters that are no arrays, as operators take them: integers, tuples of them, numbers."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np


def integer_of(value: Any, name: str, least: int) -> int:
    """One integer of at least `least`: `TypeError` for what is none (True and 1.0 included), else `ValueError`."""
    number = _integer(value)
    if number is None:
        raise TypeError(f"{name}: an integer is needed, not {value!r} ({type(value).__name__})")
    if number < least:
        raise ValueError(f"{name}: at least {least} is needed, not {value!r}")
    return number


def integers_of(value: Any, name: str, least: int, lengths: tuple[int, ...] | None) -> tuple[int, ...]:
    """An integer, or as many of them as `lengths` allows (`None`: any number), each at least `least`."""
    if _integer(value) is not None:
        return (integer_of(value, name, least),)
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise TypeError(f"{name}: integers are needed, not {value!r} ({type(value).__name__})")
    numbers = tuple(value)
    if lengths is not None and len(numbers) not in lengths:
        wanted = f"{', '.join(map(str, lengths[:-1]))} or {lengths[-1]}"
        raise ValueError(f"{name}: {wanted} integers are needed, not {value!r}")
    return tuple(integer_of(number, name, least) for number in numbers)


def float_of(value: Any, name: str) -> float:
    """A number as a Python float; `TypeError` for what is none."""
    number = hasattr(value, "__float__") or hasattr(value, "__index__")
    if isinstance(value, (str, bytes)) or not number or getattr(value, "shape", ()) != ():
        raise TypeError(f"{name}: a number is needed, not {value!r} ({type(value).__name__})")
    return float(value)


def flag_of(value: Any, name: str) -> bool:
    """True or False, or the integer 1 or 0; `TypeError` for all else (BLAS's letters would all be true)."""
    if isinstance(value, (bool, np.bool_)) or (_integer(value) in (0, 1)):
        return bool(value)
    raise TypeError(f"{name}: True or False is needed, not {value!r} ({type(value).__name__})")


def _integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None
