"""Copies of a body that may stand beside the original: its counters and buffers get names of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from pyschedule.ir.nodes import Alloc, Assign, Expr, For, Load, Stmt, Store, Var
from pyschedule.ir.visitors import counters, local_arrays, rewrite, substitute, with_blocks_of
from pyschedule.transforms.nest import Body, Names


def renamed_counters(body: Body, names: Names) -> Body:
    """The body with fresh counters and local arrays (scalar locals are shared: each copy sets them anew)."""
    return renamed_buffers(renamed_loops(body, names), names)


def renamed_loops(body: Body, names: Names) -> Body:
    """The body with counters of its own."""
    fresh = {old: names.fresh(old) for old in sorted(counters(body))}
    if not fresh:
        return body
    body = substitute(body, {old: Var(new) for old, new in fresh.items()})
    return rewrite(
        body, lambda stmt: dataclasses.replace(stmt, var=fresh[stmt.var]) if isinstance(stmt, For) else None
    )


def renamed_buffers(body: Body, names: Names) -> Body:
    """The body with local arrays of its own."""
    buffers = {old: names.fresh(old) for old in local_arrays(body)}
    if not buffers:
        return body

    def statement(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Alloc):
            own = dataclasses.replace(stmt.array, name=buffers[stmt.array.name])
            return dataclasses.replace(stmt, array=own)
        if isinstance(stmt, Store) and stmt.array in buffers:
            return dataclasses.replace(stmt, array=buffers[stmt.array])
        return with_blocks_of(stmt, buffers)

    def expression(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.array in buffers:
            return dataclasses.replace(expr, array=buffers[expr.array])
        return None

    return rewrite(body, statement, expression)


def renamed_scalars(body: Body, scalars: Iterable[str], names: Names) -> Body:
    """The body with scalars of its own in place of `scalars`."""
    fresh = {old: names.fresh(old) for old in sorted(scalars)}

    def statement(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Assign) and stmt.target in fresh:
            return dataclasses.replace(stmt, target=fresh[stmt.target])
        return None

    def expression(expr: Expr) -> Expr | None:
        if isinstance(expr, Var) and expr.name in fresh:
            return dataclasses.replace(expr, name=fresh[expr.name])
        return None

    return rewrite(body, statement, expression) if fresh else body
