"""Where counted `while` loops end: what they leave in their counter, and whether `!=` meets its bound."""

from __future__ import annotations

import numpy as np

from pyschedule.frontend import surface
from pyschedule.frontend.promotion import held
from pyschedule.ir import build
from pyschedule.ir.nodes import BinOp, Dim, Expr
from pyschedule.ir.types import Scalar


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


def meets(start: Expr, stop: Expr, step: int) -> bool:
    """Whether steps from `start` hit `stop` for certain, which `!=` waits for."""
    first, last = build.constant(start), build.constant(stop)
    if first is not None and last is not None:
        return (last - first) % step == 0 and (last - first) * step >= 0
    return abs(step) == 1 and _is_size(build.sub(stop, start) if step > 0 else build.sub(start, stop))


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
