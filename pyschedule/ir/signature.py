"""What a call looks like to a compiler: one spec an argument, enough to specialise by and no more."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyschedule.errors import ScheduleError
from pyschedule.ir.types import DTYPES, Scalar


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """An array argument.  `shape` has an int where the extent is fixed, `None` where it is free.

    `unit_axis`: the axis of element stride 1 (`None`: there is none).  `contiguous`: C order, so that all
    strides follow from the shape.  `divisor`: a number of elements (a power of two) that divides the base
    address and every non-unit stride; 1 promises nothing.  `readonly`: stores to it are an error.
    """

    dtype: str
    shape: tuple[int | None, ...]
    unit_axis: int | None = None
    contiguous: bool = False
    divisor: int = 1
    readonly: bool = False

    @property
    def rank(self) -> int:
        return len(self.shape)


@dataclass(frozen=True, slots=True)
class ScalarSpec:
    """A number: a Python `int` or `float` is weak; a NumPy integer a strong int64, a NumPy float itself."""

    type: Scalar


ArgumentSpec = ArraySpec | ScalarSpec


@dataclass(frozen=True, slots=True)
class Signature:
    """`checked`: nothing is assumed of the arguments beyond their specs; indices that only may be used are checked
    one by one."""

    arguments: tuple[ArgumentSpec, ...]
    checked: bool = False


@dataclass(frozen=True, slots=True)
class Shaped:
    """`pyschedule.spec("float32[4096, 4096]")`: stands for an array where there is no data.  C-contiguous,
    and aligned as freshly allocated memory is."""

    dtype: str
    shape: tuple[int, ...]


_SPEC = re.compile(r"\s*(\w+)\s*\[\s*((?:[0-9]+\s*(?:,\s*[0-9]+\s*)*,?)?)\s*\]\s*")


def spec(text: str) -> Shaped:
    """Parses `"dtype[extent, ...]"`; raises `ScheduleError` naming what was given and what is allowed."""
    match = _SPEC.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[1] not in DTYPES:
        raise ScheduleError(
            f"spec: {text!r} is not of the form 'dtype[extent, ...]' with a dtype among {', '.join(DTYPES)}"
        )
    return Shaped(match[1], tuple(int(part) for part in match[2].split(",") if part.strip()))
