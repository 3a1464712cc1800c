"""A loop cut into strips: an inner loop of some of its iterations, and a loop around it that goes from strip to
strip and does something before each.

The iterations are the same, in the same order; a `break` leaves both loops; bounds are evaluated once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

from pyschedule.analysis.induction import static_trip
from pyschedule.ir import build
from pyschedule.ir.nodes import (
    Assign,
    BinOp,
    Break,
    Call,
    Compare,
    Const,
    Dim,
    Expr,
    For,
    If,
    Select,
    Stmt,
    UnaryOp,
    Var,
    While,
)
from pyschedule.ir.types import BOOL, INT64
from pyschedule.ir.visitors import contains, may_break, substitute
from pyschedule.transforms.copies import renamed_counters
from pyschedule.transforms.nest import Body, Names, clip, noting_breaks, trip_count, with_lasting_bounds
from pyschedule.transforms.nest import before as before_end
from pyschedule.transforms.unroll_limits import operations

#: No extent is larger: no address has more bits.
_LARGEST_EXTENT: Final = 1 << 47
#: So many operations make a small body.
_SMALL: Final = 64
#: Sums of two numbers below this are int64.
_FAR: Final = 1 << 61

#: Makes the statement that stands before a strip, given its first value of the counter.
Before = Callable[[Expr], Stmt]


def cut(
    loop: For, size: int, before: Before, around: tuple[For, ...], names: Names, *, last_apart: bool
) -> tuple[tuple[Stmt, ...], int]:
    """The loop in strips of about `size` iterations, and how many they have; with 1, no loop is added.

        for k in range(n):                    for k_p in range(0, n, 4096):
            y[k] = x[k]              ->           before(k_p)
                                                  for k in range(k_p, min(k_p + 4096, n)):
                                                      y[k] = x[k]

    Where the trip count is a constant, `size` becomes one that divides it, if there is one near.  A step that is
    known only at run time makes the outer loop count iterations.  With `last_apart` the last strip of a small loop,
    if it is shorter, stands behind the others: compilers make a better loop of those of a constant length.
    """
    step, trips = build.constant(loop.step), static_trip(loop)
    if step is not None:
        size = min(size, _FAR // abs(step))
    if size <= 1:
        return (dataclasses.replace(loop, body=(before(loop.counter), *loop.body)),), 1
    size = _even_size(size, trips)
    outer = Var(names.fresh(f"{loop.var}_p"))
    settling, loop = with_lasting_bounds(loop, names)
    if step is None:
        return (*settling, *_by_number(loop, size, before, outer, names)), size
    span, end = step * size, loop.stop
    stop = build.add(outer, span)
    if trips is None or trips % size:
        near = max(_magnitude(loop.start, around), _magnitude(end, around)) < _FAR
        first = build.constant(loop.start)
        counts_up = step == 1 and first is not None and first >= 0  # so that the distance is an int64
        if last_apart and (near or counts_up) and _is_small(loop):
            return (*settling, *_last_apart(loop, size, before, outer, names)), size
        if near:
            stop = clip(stop, end, step)
        else:  # the end of the last strip may be no int64
            left = build.sub(end, outer) if step > 0 else build.sub(outer, end)
            stop = Select(build.compare(">", left, abs(span)), stop, end, INT64)
    return (
        *settling,
        _nest(loop, size, before, outer, loop.start, end, build.const(span), outer, stop, names),
    ), size


def _is_small(loop: For) -> bool:
    """Whether a second copy of the body costs nothing to speak of, and the ends of strips do."""
    inner = contains(loop.body, For, While)
    return loop.mapping == "serial" and not inner and operations(loop.body) <= _SMALL


def _last_apart(loop: For, size: int, before: Before, outer: Var, names: Names) -> Body:
    """Strips of `size` iterations, and one behind them of what is left.

    for k in range(n):                    for k_p in range(0, n // 4096 * 4096, 4096):
        y[k] = x[k]              ->           before(k_p)
                                              for k in range(k_p, k_p + 4096):
                                                  y[k] = x[k]
                                          if n // 4096 * 4096 < n:
                                              before(n // 4096 * 4096)
                                              for k_q in range(n // 4096 * 4096, n):
                                                  y[k_q] = x[k_q]
    """
    step = build.constant(loop.step) or 1
    whole = build.mul(build.floordiv(trip_count(loop), size), size)
    middle = build.add(loop.start, build.mul(whole, step))
    last = names.fresh(f"{loop.var}_q")
    body = renamed_counters(substitute(loop.body, {loop.var: Var(last)}), names)
    rest = dataclasses.replace(loop, var=last, start=middle, body=body, max_trip=size - 1)
    test = before_end(middle, loop.stop, step)
    strip = build.add(outer, step * size)
    nest = _nest(loop, size, before, outer, loop.start, middle, build.const(step * size), outer, strip, names)
    if not may_break(loop.body):
        return (nest, If(test, (before(middle), rest)))
    left = names.fresh(f"{loop.var}_gone")
    nest = dataclasses.replace(nest, body=noting_breaks(nest.body, left))
    stayed = build.both(UnaryOp("not", Var(left, BOOL)), test)
    return (Assign(left, build.FALSE, BOOL), nest, If(stayed, (before(middle), rest)))


def _by_number(loop: For, size: int, before: Before, number: Var, names: Names) -> Body:
    """Strips of a loop whose step is known only at run time: the outer loop counts iterations."""
    ahead = Compare(">", loop.step, build.ZERO, INT64)
    distance = Select(ahead, build.sub(loop.stop, loop.start), build.sub(loop.start, loop.stop), INT64)
    stride = Select(ahead, loop.step, UnaryOp("-", loop.step), INT64)
    trips = build.maximum(build.floordiv(build.sub(build.add(distance, stride), 1), stride), 0)
    total = Var(names.fresh(f"{loop.var}_trips"))

    def value(iteration: Expr) -> Expr:
        return build.add(loop.start, build.mul(iteration, loop.step))

    whole = build.compare(">", build.sub(total, number), size)
    stop = Select(whole, value(build.add(number, size)), loop.stop, INT64)
    nest = _nest(loop, size, before, number, build.ZERO, total, build.const(size), value(number), stop, names)
    return (Assign(total.name, trips, INT64), nest)


def _nest(
    loop: For,
    size: int,
    before: Before,
    outer: Var,
    start: Expr,
    stop: Expr,
    step: Expr,
    first: Expr,
    last: Expr,
    names: Names,
) -> For:
    """The two loops: `outer` from `start`, and inside it `loop` from `first`."""
    strip = size if loop.max_trip is None else min(loop.max_trip, size)
    inner = dataclasses.replace(loop, start=first, stop=last, mapping="serial", max_trip=strip)
    return dataclasses.replace(
        loop,
        var=outer.name,
        start=start,
        stop=stop,
        step=step,
        body=(before(first), *_left_together(inner, names)),
        unroll=0,
        max_trip=None if loop.max_trip is None else -(-loop.max_trip // size),
    )


def _even_size(size: int, trips: int | None) -> int:
    """A size near `size` at which strips have no odd ends: one that divides the trip count where one does, by
    the largest power of two, else a multiple of 16."""
    if trips is not None:
        fitting = [part for part in range(max(2, size // 2), size + 1) if trips % part == 0]
        if fitting:
            return max(fitting, key=lambda part: (part & -part, part))
    return size - size % 16 if size >= 64 else size


def _magnitude(expr: Expr, around: tuple[For, ...]) -> int:
    """A number that the absolute value of `expr` does not exceed; `2 * _FAR` where none is known."""
    known = 2 * _FAR
    if isinstance(expr, Const):
        return abs(int(expr.value))
    if isinstance(expr, Dim):
        return _LARGEST_EXTENT
    if isinstance(expr, Var):
        loop = next((item for item in around if item.var == expr.name), None)
        if loop is None:
            return known
        return max(_magnitude(bound, around) for bound in (loop.start, loop.stop))
    if isinstance(expr, Call) and expr.function in ("pmin", "pmax", "minimum", "maximum"):
        return max(_magnitude(arg, around) for arg in expr.args)
    if isinstance(expr, BinOp) and expr.dtype == INT64:
        left, right = _magnitude(expr.left, around), _magnitude(expr.right, around)
        if max(left, right) >= _FAR:
            return known
        if expr.op in ("+", "-"):
            return left + right
        if expr.op == "*":
            return left * right
        if expr.op in ("//", "%") and (build.constant(expr.right) or 0) > 0:
            return max(left, right)
    return known


# ------------------------------------------------------------------------------------------------- breaks


def _left_together(inner: For, names: Names) -> Body:
    """The inner loop; where a `break` leaves it, the loop of strips around it is left too."""
    if not may_break(inner.body):
        return (inner,)
    left = Var(names.fresh(f"{inner.var}_left"), BOOL)
    return (
        Assign(left.name, build.FALSE, BOOL),
        dataclasses.replace(inner, body=noting_breaks(inner.body, left.name)),
        If(left, (Break(),)),
    )
