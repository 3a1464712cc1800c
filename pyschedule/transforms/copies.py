"""Copies of a body that may stand beside the original: its counters and buffers get names of their own."""

from __future__ import annotations

import dataclasses

from pyschedule.ir.nodes import Alloc, Expr, For, Load, Stmt, Store, Var
from pyschedule.ir.visitors import counters, local_arrays, rewrite, substitute
from pyschedule.transforms.nest import Body, Names


def renamed_counters(body: Body, names: Names) -> Body:
    """The body with fresh counters and local arrays (scalar locals are shared: each copy sets them anew)."""
    fresh = {old: names.fresh(old) for old in sorted(counters(body))}
    buffers = {old: names.fresh(old) for old in local_arrays(body)}
    if not fresh and not buffers:
        return body

    def statement(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, For):
            return dataclasses.replace(stmt, var=fresh[stmt.var])
        if isinstance(stmt, Alloc):
            return dataclasses.replace(stmt, array=dataclasses.replace(stmt.array, name=buffers[stmt.array.name]))
        if isinstance(stmt, Store) and stmt.array in buffers:
            return dataclasses.replace(stmt, array=buffers[stmt.array])
        return None

    def expression(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.array in buffers:
            return dataclasses.replace(expr, array=buffers[expr.array])
        return None

    body = substitute(body, {old: Var(new) for old, new in fresh.items()})
    return rewrite(body, statement, expression)
