"""Speculation: a register tile's tail is computed in full, from addresses that exist, and stored only in part.

Before:

    if i < M:                                      # a tail guard
        acc[i - i_1] = acc[i - i_1] + A[i, k] * b

After - rows beyond the end repeat the last one, and the guarded store at the end of the tile drops them:

    acc[i - i_1] = acc[i - i_1] + A[min(i, M - 1), k] * b

It fires for tail guards `counter < end` over statements that write registers only.  A tile has a first
iteration that exists (or, on a GPU, the block has), so `end - 1` is a valid value of the counter.  Staging
buffers are padded and need no clamp.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

from pyschedule.ir import build
from pyschedule.ir.nodes import Array, Assign, Compare, Expr, If, Kernel, Load, Ramp, Stmt, Store, Var
from pyschedule.ir.visitors import (
    arrays,
    expressions,
    map_children,
    rewrite,
    rewrite_expr,
    substitute_expr,
    variables,
    walk,
)
from pyschedule.transforms.nest import Body, conjuncts, first_access, with_body

_PADDED = ("packed", "shared", "register")


def speculate(kernel: Kernel) -> Kernel:
    declared = arrays(kernel)
    reads = Counter(_reads(kernel.body))

    def statement(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, If) or not stmt.tail or stmt.orelse:
            return None
        limits = _limits(stmt.test)
        if limits is None or not _only_registers(stmt.body, declared, reads):
            return None
        return _clamped(stmt.body, limits, declared)

    return with_body(kernel, rewrite(kernel.body, statement))


def _reads(body: Body) -> Iterator[str]:
    return (part.name for part in expressions(body) if isinstance(part, Var))


def _limits(test: Expr) -> dict[str, Expr] | None:
    """Counter → its value within the end, for a conjunction of `counter < end` (or `> end`)."""
    limits: dict[str, Expr] = {}
    for part in conjuncts(test):
        if not isinstance(part, Compare) or not isinstance(part.left, Var) or part.op not in ("<", ">"):
            return None
        counter = part.left
        if part.op == "<":
            limits[counter.name] = build.minimum(counter, build.add(part.right, -1))
        else:
            limits[counter.name] = build.maximum(counter, build.add(part.right, 1))
    return limits


def _only_registers(body: Body, declared: dict[str, Array], reads: Counter[str]) -> bool:
    """Whether the body writes register arrays, and scalars that it sets itself and nobody else reads."""
    inside = Counter(_reads(body))
    for stmt in walk(body):
        if isinstance(stmt, Store):
            array = declared.get(stmt.array)
            if array is None or array.space != "register":
                return False
        elif isinstance(stmt, Assign):
            if first_access(body, stmt.target) != "written" or reads[stmt.target] != inside[stmt.target]:
                return False
        elif not isinstance(stmt, If):
            return False
    return True


def _clamped(body: Body, limits: dict[str, Expr], declared: dict[str, Array]) -> Body:
    def clamp(expr: Expr) -> Expr | None:
        if not isinstance(expr, Load):
            return None
        array = declared.get(expr.array)
        if array is not None and array.space in _PADDED:
            return None
        indices = tuple(
            substitute_expr(index, {name: limits[name] for name in variables(index) & set(limits)})
            for index in expr.indices
        )
        if any(isinstance(index, Ramp) and variables(index.base) & set(limits) for index in expr.indices):
            return expr
        return dataclasses.replace(expr, indices=indices)

    def visit(stmts: Body) -> Body:
        result: list[Stmt] = []
        for stmt in stmts:
            new: Stmt = map_children(stmt, lambda part: rewrite_expr(part, clamp))
            if isinstance(new, Store):  # a register's own indices are in range
                new = dataclasses.replace(new, indices=stmt.indices) if isinstance(stmt, Store) else new
            if isinstance(new, If):
                new = dataclasses.replace(new, body=visit(new.body), orelse=visit(new.orelse))
            result.append(new)
        return tuple(result)

    return visit(body)
