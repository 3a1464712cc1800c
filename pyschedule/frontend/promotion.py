"""How types combine: NumPy 2's promotion, with Python's numbers weak."""

from __future__ import annotations

from functools import cache

import numpy as np

from pyschedule.ir.types import BOOL, FLOAT32, FLOAT64, INT64, WEAK_BOOL, WEAK_FLOAT, WEAK_INT, Scalar

_WEAK = {"b": WEAK_BOOL, "i": WEAK_INT, "f": WEAK_FLOAT}
_RANK = {"b": 0, "i": 1, "u": 1, "f": 2}


def held(type_: Scalar) -> Scalar:
    """The type in which a value is computed: strong, and float32 for a half.

    A half keeps its own type up here, so that results have it, and what is returned is rounded to it, once.
    """
    return FLOAT32 if type_.is_half else type_.strong()


@cache
def promote(left: Scalar, right: Scalar) -> Scalar:
    """The type in which two values are combined.

    Two weak types give the weak type of the higher kind.  A weak type adapts to a strong one of its kind or a
    higher kind; where its kind is higher, it counts as int64 or float64.
    """
    if left.weak and right.weak:
        return left if _RANK[left.kind] >= _RANK[right.kind] else right
    if left.weak or right.weak:
        weak, strong = (left, right) if left.weak else (right, left)
        if _RANK[weak.kind] <= _RANK[strong.kind]:
            return strong
        return INT64 if weak.kind == "i" else FLOAT64
    if left == right:
        return left
    for half, other in ((left, right), (right, left)):
        if half.is_half and not other.is_float and other.bytes == 1:
            return half
    return Scalar(np.promote_types(held(left).name, held(right).name).name)


def promote_all(types: list[Scalar]) -> Scalar:
    result = types[0]
    for item in types[1:]:
        result = promote(result, item)
    return result


@cache
def arithmetic(op: str, left: Scalar, right: Scalar) -> Scalar | None:
    """The type of `left op right`, or `None` where NumPy and Python have no such operation.

    Bools: Python's count as integers; `+` and `*` of two NumPy bools are bools (or, and), `-` is refused.
    """
    both = promote(left, right)
    if op in "&|^":
        return None if both.is_float else both
    if op in ("<<", ">>"):
        if both.is_float:
            return None
        return _no_bool(both)
    if op == "/":
        return both if both.is_float else WEAK_FLOAT if both.weak else FLOAT64
    if both == BOOL:
        return BOOL if op in "+*" and op != "**" else None if op == "-" else INT64
    return _no_bool(both)


def _no_bool(type_: Scalar) -> Scalar:
    if type_.kind != "b":
        return type_
    return WEAK_INT if type_.weak else INT64


def comparison(left: Scalar, right: Scalar) -> Scalar:
    """The type in which two values are compared.

    A Python integer against a narrow one is compared exactly, in int64.
    """
    both = promote(left, right)
    if both.is_integer and both.bytes < 8 and left.weak != right.weak:
        return INT64
    return held(both)


def of_math(home: str, both: Scalar) -> Scalar:
    """The type of a float function of arguments that promote to `both`.

    `math` computes in float32 for float32 and halves, and gives a Python float (weak) otherwise, as it does in
    Python; NumPy's twins keep the float type, and for integers give the smallest float type that holds them all.
    """
    if home == "math":
        return FLOAT32 if held(both) == FLOAT32 else WEAK_FLOAT
    if both.is_float:
        return both.strong()
    return Scalar({1: "float16", 2: "float32"}.get(both.bytes, "float64"))
