"""A loop written out: one copy of its body an iteration, or a main loop of several copies and a remainder.

The copies after an early exit do not run, nor does the remainder:

    for i in range(n):          i_left = False
        if x[i] < 0: break      for i in range(0, n // 2 * 2, 2):
        S(i)                        if x[i] < 0: i_left = True; break
                            →       S(i)
                                    if x[i + 1] < 0: i_left = True; break
                                    S(i + 1)
                                if not i_left:
                                    for i_r in range(n // 2 * 2, n): ...
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.nodes import Assign, Break, Expr, For, If, Stmt, UnaryOp, Var
from pyschedule.ir.types import BOOL
from pyschedule.ir.visitors import may_break, substitute
from pyschedule.transforms.copies import renamed_buffers, renamed_counters, renamed_scalars
from pyschedule.transforms.jamming import jammed
from pyschedule.transforms.nest import Body, Names, noting_breaks, trip_count, with_lasting_bounds
from pyschedule.transforms.simplify import simplify


def in_full(loop: For, trips: int, names: Names, private: frozenset[str] | None) -> Body:
    """The body once for each of the iterations of a constant number.

    A `break` leaves a loop: the copies of a body with one stand in a loop of one iteration, unless all that can be
    left are those after the last.  `private`: the scalars of an iteration, where copies share the loops inside.
    """
    body = _copies(loop, [_value(loop.start, place, loop.step) for place in range(trips)], names, private)
    if body and isinstance(body[-1], Break) and not may_break(body[:-1]):
        return body[:-1]
    if not may_break(body):
        return body
    once = names.fresh(f"{loop.var}_once")
    return (For(once, build.ZERO, build.ONE, build.ONE, body, max_trip=1, loc=loop.loc),)


def in_part(loop: For, copies: int, names: Names, private: frozenset[str] | None) -> Body:
    """A main loop of `copies` iterations at once, and a remainder loop; right for every trip count, 0 included.

    Raises `Unsupported` where a step of the main loop is no 64-bit integer.
    """
    held, loop = with_lasting_bounds(loop, names)
    stride = build.constant(loop.step)
    if stride is not None and abs(stride) * copies >= 1 << 62:
        raise Unsupported(f"{copies} steps of {stride} exceed 64 bits; a smaller factor may do", loop.loc)
    whole = build.mul(build.floordiv(trip_count(loop), copies), copies)
    end = build.add(loop.start, build.mul(whole, loop.step))
    main = dataclasses.replace(
        loop,
        stop=end,
        step=build.mul(loop.step, copies),
        body=_copies(loop, [_value(loop.counter, place, loop.step) for place in range(copies)], names, private),
        max_trip=None if loop.max_trip is None else loop.max_trip // copies,
    )
    rest_name = names.fresh(f"{loop.var}_r")
    rest_body = renamed_counters(substitute(loop.body, {loop.var: Var(rest_name)}), names)
    rest = dataclasses.replace(loop, var=rest_name, start=end, body=rest_body, max_trip=copies - 1)
    if not may_break(loop.body):
        return (*held, main, rest)
    left = names.fresh(f"{loop.var}_left")
    main = dataclasses.replace(main, body=noting_breaks(main.body, left))
    stayed = UnaryOp("not", Var(left, BOOL))
    return (*held, Assign(left, build.FALSE, BOOL), main, If(stayed, (rest,), loc=loop.loc))


def _value(first: Expr, place: int, step: Expr) -> Expr:
    return build.add(first, build.mul(step, place))


def _copies(loop: For, values: Sequence[Expr], names: Names, private: frozenset[str] | None) -> Body:
    """The body once for each value of the counter, one after the other; or, where the scalars private to an
    iteration are given, with the loops inside shared."""
    if not values:
        return ()
    bodies = [simplify(substitute(loop.body, {loop.var: value})) for value in values]
    if private is not None:
        own = [renamed_buffers(renamed_scalars(body, private, names), names) for body in bodies[1:]]
        return jammed([bodies[0], *own], names)
    result: list[Stmt] = []
    for place, body in enumerate(bodies):
        result.extend(renamed_counters(body, names) if place else body)
        if result and isinstance(result[-1], Break):
            break  # a copy that always leaves is the last one
    return tuple(result)
