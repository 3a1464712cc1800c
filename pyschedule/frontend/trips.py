"""Where loops end: what a counted `while` leaves in its counter, whether `!=` meets its bound, and whether bounds
are too far apart for a count of 64 bits."""

from __future__ import annotations

from typing import Final

import numpy as np

from pyschedule.frontend import surface
from pyschedule.frontend.promotion import held
from pyschedule.ir import build
from pyschedule.ir.nodes import BinOp, Compare, Dim, Expr
from pyschedule.ir.types import INT64, Scalar
from pyschedule.ir.visitors import variables

_INT64: Final = (-(1 << 63), (1 << 63) - 1)
_FAR: Final = 1 << 61


def constant_step(increment: surface.SetName) -> int:
    """The step of a counted loop, from the last statement of its body."""
    value = increment.value
    if not isinstance(value, surface.Binary) or not isinstance(value.right, surface.Number):
        raise TypeError("this is no counted loop")
    step = int(value.right.value)
    return step if value.op == "+" else -step


def final_value(start: Expr, stop: Expr, step: int) -> Expr:
    """What a counted `while` leaves in its counter; `start` where it has no iterations."""
    if step == 1:
        return build.maximum(start, stop)
    if step == -1:
        return build.minimum(start, stop)
    distance = build.sub(stop, start) if step > 0 else build.sub(start, stop)
    trip = build.maximum(build.ceildiv(distance, abs(step)), 0)
    return build.add(start, build.mul(trip, step))


def last(start: Expr, stop: Expr, step: Expr) -> tuple[Expr, Expr] | None:
    """The test whether a `range` has anything, and its last number then; `None` where the step is not known."""
    by = build.constant(step)
    if not by:
        return None
    runs = build.compare("<" if by > 0 else ">", start, stop)
    if abs(by) == 1:
        return runs, build.sub(stop, by)
    distance = build.sub(stop, start) if by > 0 else build.sub(start, stop)
    return runs, build.add(start, build.mul(build.sub(build.ceildiv(distance, abs(by)), 1), by))


def meets(start: Expr, stop: Expr, step: int) -> bool:
    """Whether steps from `start` hit `stop` for certain, which `!=` waits for."""
    first, last = build.constant(start), build.constant(stop)
    if first is not None and last is not None:
        return (last - first) % step == 0 and (last - first) * step >= 0
    return abs(step) == 1 and _is_size(build.sub(stop, start) if step > 0 else build.sub(start, stop))


def distance(start: Expr, stop: Expr) -> Expr | None:
    """`stop - start` where that may be no int64, which loops count in; else `None`."""
    (low, high), (least, most) = _range(start), _range(stop)
    fits = least - high >= _INT64[0] and most - low <= _INT64[1]
    return None if fits else BinOp("-", stop, start, INT64)


def is_countable(span: Expr) -> Expr:
    """The test, for a host that computes without wrapping, that a distance is an int64."""
    above = Compare(">=", span, build.const(_INT64[0]), INT64)
    return build.both(above, Compare("<=", span, build.const(_INT64[1]), INT64))


def _range(bound: Expr) -> tuple[int, int]:
    """What a bound can be: extents, and what is made of them, are far from the ends of int64."""
    value = build.constant(bound)
    if value is not None:
        return value, value
    return _INT64 if variables(bound) else (-_FAR, _FAR)


def never_wraps(counter: Scalar, op: str, step: int, bound: Expr, bound_type: Scalar) -> bool:
    """Whether a counter of fewer than 64 bits passes its bound before the ends of its type: in steps of one up to a
    value that the type holds."""
    info = np.iinfo(counter.name)
    value = build.constant(bound)
    within = held(bound_type) == counter or (value is not None and info.min <= value <= info.max)
    return within and (op, step) in (("<", 1), (">", -1))


def _is_size(expr: Expr) -> bool:
    """An extent, or products and sums of extents and positive constants: never below zero."""
    if isinstance(expr, BinOp) and expr.op in ("+", "*", "//", "%"):
        return _is_size(expr.left) and _is_size(expr.right)
    return isinstance(expr, Dim) or (build.constant(expr) or 0) > 0
