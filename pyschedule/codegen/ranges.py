"""Facts about int64 expressions that decide how code computes them: an interval, and a divisor.

Intervals are sound, not tight: `Facts.interval` contains every value that the expression can take, so that
whatever is computed in 32 unsigned bits on its say-so is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import gcd

from pyschedule.ir.build import add, constant, floordiv, maximum, sub
from pyschedule.ir.nodes import Array as ArrayNode
from pyschedule.ir.nodes import BinOp, Broadcast, Call, Const, Dim, Expr, For, Ramp, Select, UnaryOp, Var

Interval = tuple[int, int]

INT64_RANGE: Interval = (-(1 << 63), (1 << 63) - 1)
#: What an array's extent can be: in 32-bit programs (`CudaProgram.fits` sees to it), and at all.
NARROW_EXTENT: Interval = (0, (1 << 31) - 1)
WIDE_EXTENT: Interval = (0, (1 << 47))


def _clamped(low: int, high: int) -> Interval:
    """What wraps can be anything."""
    if low < INT64_RANGE[0] or high > INT64_RANGE[1]:
        return INT64_RANGE
    return low, high


def fits_u32(interval: Interval) -> bool:
    return interval[0] >= 0 and interval[1] < 1 << 32


@dataclass(slots=True)
class Facts:
    """`intervals` and `divisors` of the variables in scope; `arrays` gives the extents of all arrays."""

    arrays: dict[str, ArrayNode]
    extent: Interval
    intervals: dict[str, Interval] = field(default_factory=dict)
    divisors: dict[str, int] = field(default_factory=dict)

    def interval(self, expr: Expr) -> Interval:
        if isinstance(expr, Const):
            return (int(expr.value), int(expr.value))
        if isinstance(expr, Var):
            return self.intervals.get(expr.name, INT64_RANGE)
        if isinstance(expr, Dim):
            shape = self.arrays[expr.array].shape[expr.axis]
            return self.extent if isinstance(shape, Dim) else self.interval(shape)
        if isinstance(expr, BinOp):
            return self._binary(expr)
        if isinstance(expr, UnaryOp) and expr.op == "-":
            low, high = self.interval(expr.operand)
            return _clamped(-high, -low)
        if isinstance(expr, Select):
            (a, b), (c, d) = self.interval(expr.then), self.interval(expr.orelse)
            return min(a, c), max(b, d)
        if isinstance(expr, Call):
            return self._call(expr)
        if isinstance(expr, Broadcast):
            return self.interval(expr.value)
        if isinstance(expr, Ramp):
            low, high = self.interval(expr.base)
            span = (expr.lanes - 1) * expr.stride
            return _clamped(low + min(0, span), high + max(0, span))
        return INT64_RANGE

    def _binary(self, expr: BinOp) -> Interval:
        (a, b), (c, d) = self.interval(expr.left), self.interval(expr.right)
        if expr.op == "+":
            return _clamped(a + c, b + d)
        if expr.op == "-":
            return _clamped(a - d, b - c)
        if expr.op == "*":
            products = (a * c, a * d, b * c, b * d)
            return _clamped(min(products), max(products))
        if expr.op == "//" and c > 0:
            quotients = (a // c, a // d, b // c, b // d)
            return min(quotients), max(quotients)
        if expr.op == "%" and c > 0:
            return (a, b) if a >= 0 and b < c else (0, d - 1)
        if expr.op == "&" and (a >= 0 or c >= 0):
            return 0, min(high for low, high in ((a, b), (c, d)) if low >= 0)
        if expr.op == ">>" and a >= 0 and c >= 0:
            return 0, b
        return INT64_RANGE

    def _call(self, expr: Call) -> Interval:
        if expr.function in ("pmin", "minimum", "pmax", "maximum") and expr.dtype.is_integer:
            (a, b), (c, d) = (self.interval(arg) for arg in expr.args)
            pick = min if expr.function in ("pmin", "minimum") else max
            return pick(a, c), pick(b, d)
        if expr.function == "checked_index":
            return 0, max(0, self.interval(expr.args[1])[1] - 1)
        if expr.function == "abs" and expr.dtype.is_integer:
            low, high = self.interval(expr.args[0])
            largest = max(abs(low), abs(high))
            return (0, largest) if largest <= INT64_RANGE[1] else INT64_RANGE
        return INT64_RANGE

    def divisor(self, expr: Expr) -> int:
        """A number that divides every value of the expression; 0 where it is always 0."""
        if isinstance(expr, Const):
            return abs(int(expr.value))
        if isinstance(expr, Var):
            return self.divisors.get(expr.name, 1)
        if isinstance(expr, Dim):
            shape = self.arrays[expr.array].shape[expr.axis]
            return 1 if isinstance(shape, Dim) else self.divisor(shape)
        if isinstance(expr, BinOp) and expr.op in "+-":
            return gcd(self.divisor(expr.left), self.divisor(expr.right))
        if isinstance(expr, BinOp) and expr.op == "*":
            return self.divisor(expr.left) * self.divisor(expr.right)
        if isinstance(expr, Call) and expr.function in ("pmin", "pmax", "minimum", "maximum"):
            return gcd(self.divisor(expr.args[0]), self.divisor(expr.args[1]))
        if isinstance(expr, Select):
            return gcd(self.divisor(expr.then), self.divisor(expr.orelse))
        return 1

    def enter(self, loop: For) -> None:
        """Records what is known of a loop's counter inside its body."""
        start, stop = self.interval(loop.start), self.interval(loop.stop)
        step = constant(loop.step)
        if step is None:
            self.intervals[loop.var] = INT64_RANGE
            return
        if step > 0:
            high = max(start[0], stop[1] - 1)
            if loop.max_trip is not None:
                high = min(high, start[1] + max(0, loop.max_trip - 1) * step)
            self.intervals[loop.var] = _clamped(start[0], high)
        else:
            low = min(start[1], stop[0] + 1)
            if loop.max_trip is not None:
                low = max(low, start[0] + max(0, loop.max_trip - 1) * step)
            self.intervals[loop.var] = _clamped(low, start[1])
        self.divisors[loop.var] = gcd(self.divisor(loop.start), abs(step))


def constant_trip(loop: For) -> int | None:
    """The trip count, where it is a constant: start may be an expression if stop is the same one plus a number."""
    step, span = constant(loop.step), constant(sub(loop.stop, loop.start))
    if not step or span is None:
        return None
    return len(range(0, span, step))


def trip_count(loop: For) -> Expr | None:
    """The trip count as an int64 expression that is 0 or more; `None` where the step is not constant."""
    step = constant(loop.step)
    if not step:
        return None
    span = sub(loop.stop, loop.start) if step > 0 else sub(loop.start, loop.stop)
    count = floordiv(add(span, abs(step) - 1), abs(step)) if abs(step) > 1 else span
    if isinstance(count, Call) and count.function == "pmax" and constant(count.args[1]) == 0:
        return count
    return maximum(count, 0)
