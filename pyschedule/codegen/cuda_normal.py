"""Loops that count from zero by one, and index sums without what cancels.

Tiling leaves `for i in range(i_0, i_0 + 64, 8)` and indices such as `i - i_0`.  Here the counter becomes the
number of the iteration, and `i_0 + 8 * number` is written into its uses, where `i_0` cancels: what is left of
an index into a tile are the numbers themselves, which is what addresses are made of, and constants once the
loop is unrolled.
"""

from __future__ import annotations

from dataclasses import replace

from pyschedule.codegen.ranges import constant_trip, trip_count
from pyschedule.ir.build import add, const, constant, mul, sub, wrapped
from pyschedule.ir.nodes import BinOp, Const, Expr, For, Stmt
from pyschedule.ir.types import INT64, lanes_of
from pyschedule.ir.visitors import Body, rewrite, rewrite_expr, substitute, variables, written_variables


def normalised(body: Body) -> Body:
    """A body in which mapped loops, and serial ones of constant trip count, run from 0 by 1.

    A loop is left as it is where its step is not constant, or its body assigns a variable of its start.
    """
    return rewrite(_counted(body), expression=_collected_sum)


def _counted(body: Body) -> Body:
    result: list[Stmt] = []
    for stmt in body:
        new = stmt
        if isinstance(stmt, For):
            new = _from_zero(stmt)
        inner = {name: _counted(part) for name in ("body", "orelse") if (part := getattr(new, name, ()))}
        result.append(replace(new, **inner) if inner else new)
    return tuple(result)


def _from_zero(loop: For) -> For:
    step = constant(loop.step)
    if not step or (constant(loop.start) == 0 and step == 1):
        return loop
    trip = constant_trip(loop)
    if trip is None and loop.mapping in ("serial", "parallel"):
        return loop
    if variables(loop.start) & written_variables(loop.body):
        return loop
    count = const(trip) if trip is not None else trip_count(loop)
    if count is None:
        return loop
    value = linear(add(loop.start, mul(loop.counter, step)))
    return replace(
        loop,
        start=const(0),
        stop=rewrite_expr(count, _collected_sum),
        step=const(1),
        body=substitute(loop.body, {loop.var: value}),
        max_trip=trip if trip is not None else loop.max_trip,
    )


def _is_sum(expr: Expr) -> bool:
    return isinstance(expr, BinOp) and expr.dtype == INT64 and expr.op in ("+", "-") and lanes_of(expr.type) == 1


def _collected_sum(expr: Expr) -> Expr | None:
    if not _is_sum(expr):
        return None
    collected = linear(expr)
    return collected if collected != expr else None


def linear(expr: Expr) -> Expr:
    """An int64 sum with like terms collected, in the order of their first appearance, the constant last."""
    terms: dict[Expr, int] = {}
    offset = wrapped(_collect(expr, 1, terms))
    result: Expr | None = None
    negative: list[Expr] = []
    for term, factor in terms.items():
        if factor > 0:
            part = mul(term, wrapped(factor))
            result = part if result is None else add(result, part)
        elif factor < 0:
            negative.append(mul(term, wrapped(-factor)))
    total: Expr = const(offset) if result is None else result
    for part in negative:
        total = sub(total, part)
    return total if result is None else add(total, offset)


def _collect(expr: Expr, factor: int, terms: dict[Expr, int]) -> int:
    """Adds `factor * expr` to `terms`; returns its constant part."""
    value = constant(expr) if isinstance(expr, Const) and expr.type == INT64 else None
    if value is not None:
        return factor * value
    if isinstance(expr, BinOp) and expr.dtype == INT64 and lanes_of(expr.type) == 1:
        if expr.op in ("+", "-"):
            sign = 1 if expr.op == "+" else -1
            return _collect(expr.left, factor, terms) + _collect(expr.right, sign * factor, terms)
        if expr.op == "*":
            for one, other in ((expr.left, expr.right), (expr.right, expr.left)):
                scale = constant(one)
                if scale is not None and one.type == INT64:
                    return _collect(other, factor * scale, terms)
    if expr.type != INT64:  # converted by the sum it stands in
        expr = BinOp("+", expr, const(0), INT64)
    terms[expr] = terms.get(expr, 0) + factor
    return 0
