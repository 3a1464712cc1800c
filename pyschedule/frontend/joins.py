"""One type for several values: for a name that is given them, a list that holds them, a choice between them.

Python keeps each value as it is.  A kernel needs one type that holds them all, which promotion alone does not
give: there Python's integers adapt, so that `m = -1` and then `m = x[i]` of uint8 elements would make 255 of the
-1.  They adapt here too where all of them are known to fit (`s = 0`), and in sums, whose other operand decides in
Python too (`s = n`, then `s += x[i]`); else the type is wide enough for any.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from pyschedule.frontend.promotion import promote
from pyschedule.ir.nodes import Const, Expr
from pyschedule.ir.types import INT64, Scalar


def fits(value: int | None, type_: Scalar) -> bool:
    """Whether a type holds a Python integer, `None` standing for any: those are taken not to be negative where
    the only wider type would be a float."""
    if value is None:
        return type_.bytes == 8
    info = np.iinfo(type_.name)
    return bool(info.min <= value <= info.max)


def is_python_integer(type_: Scalar) -> bool:
    return type_.weak and type_.is_integer


class Joins:
    """Remembers the Python integers that each key (a name, an array, a result) was given, and which are sums."""

    def __init__(self) -> None:
        self._integers: defaultdict[object, set[int | None]] = defaultdict(set)
        self._sums: set[object] = set()

    def integers(self, key: object) -> set[int | None]:
        """The Python integers given to a key so far, `None` among them for any that is no constant."""
        return self._integers[key]

    def join(
        self, key: object, known: Scalar | None, type_: Scalar, value: Expr | None, sums: bool = False
    ) -> Scalar:
        """The type of a key that was `known` and is given a value.

        `sums`: the value is arithmetic with what the key holds.
        """
        if is_python_integer(type_):
            self._integers[key].add(int(value.value) if isinstance(value, Const) else None)
        if sums and not type_.weak:
            self._sums.add(key)
        if known is None:
            return type_
        return together(promote(known, type_), self._integers[key] if key not in self._sums else set())


def together(joined: Scalar, integers: set[int | None]) -> Scalar:
    """The promoted type of some values, or a wider one where it does not hold the Python integers among them."""
    if joined.weak or not joined.is_integer or all(fits(value, joined) for value in integers):
        return joined
    return promote(INT64, joined)
