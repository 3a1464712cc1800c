"""Speculation: a register tile's tail is computed in full, from addresses that exist, and stored only in part.

Before:

    if i < M:                                      # a tail guard
        acc[i - i_1] = acc[i - i_1] + A[i, k] * b

After - rows beyond the end repeat the last one, and the guarded store at the end of the tile drops them:

    acc[i - i_1] = acc[i - i_1] + A[min(i, M - 1), k] * b

It fires for tail guards `counter < end` over statements that write registers only.  A tile has a first
iteration that exists (or, on a GPU, the block has), so `end - 1` is a valid value of the counter, and what runs
is that iteration once more: its tests, indices and values.  Staging buffers are padded and need no clamp, nor does
a read that asks itself whether its element exists, as `A[i - 1] if i - 1 >= 0 and i - 1 < A.shape[0] else 0` does:
rows beyond the end are then what it makes of them.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

from pyschedule.analysis.affine import difference
from pyschedule.ir import build
from pyschedule.ir.nodes import (
    Array,
    Assign,
    Compare,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Ramp,
    Select,
    Stmt,
    Store,
    Var,
)
from pyschedule.ir.visitors import (
    arrays,
    expressions,
    loops,
    map_children,
    rewrite,
    variables,
    walk,
    walk_expr,
)
from pyschedule.transforms.nest import Body, conjuncts, first_access, margin_of, margins_within, with_body

_PADDED = ("packed", "shared", "register")


def speculate(kernel: Kernel) -> Kernel:
    declared = arrays(kernel)
    reads = Counter(_reads(kernel.body))
    every = {loop.var: loop for loop in loops(kernel.body)}

    def statement(stmt: Stmt) -> Body | None:
        if not isinstance(stmt, If) or not stmt.tail or stmt.orelse:
            return None
        limits = _limits(stmt.test)
        if limits is None or not _only_registers(stmt.body, declared, reads):
            return None
        if not _reaches_only_valid(stmt.body, limits, every):
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


def _reaches_only_valid(body: Body, limits: dict[str, Expr], loops: dict[str, For]) -> bool:
    """Whether what the body reads is valid with the counters clamped: no other counter in it has a range that
    grows with a clamped one, and no vector starts at one."""
    depends: dict[str, set[str]] = {}

    def sources(name: str) -> set[str]:
        if name not in depends:
            loop = loops.get(name)
            depends[name] = set()
            if loop is not None:
                direct = variables(loop.start) | variables(loop.stop)
                depends[name] = direct.union(*(sources(other) for other in direct))
        return depends[name]

    used = set(_reads(body))
    if any(sources(name) & set(limits) for name in used - set(limits)):
        return False
    return not any(isinstance(part, Ramp) and variables(part.base) & set(limits) for part in expressions(body))


def _asks_itself(expr: Select, counters: set[str]) -> bool:
    """Whether a read happens only where its element exists, as far as the counters move it."""
    load, tests = expr.then, conjuncts(expr.test)
    if not isinstance(load, Load) or any(isinstance(part, Load) for test in tests for part in walk_expr(test)):
        return False
    if variables(expr.orelse) & counters or (load.mask is not None and variables(load.mask) & counters):
        return False
    margins = [margin for test in tests if (margin := margin_of(test)) is not None]
    return all(
        any(difference(margin, limit) == 0 for margin in margins)
        for axis, index in enumerate(load.indices)
        if variables(index) & counters
        for limit in margins_within(load, axis)
    )


def _clamped(body: Body, limits: dict[str, Expr], declared: dict[str, Array]) -> Body:
    """The body of the iteration at the clamped counters; registers keep their own indices."""

    def clamp(expr: Expr) -> Expr:
        if isinstance(expr, Var):
            return limits.get(expr.name, expr)
        if isinstance(expr, Load):
            array = declared.get(expr.array)
            if array is not None and array.space in _PADDED:
                return expr
        if isinstance(expr, Select) and _asks_itself(expr, set(limits)):
            return expr
        return map_children(expr, clamp)  # type: ignore[no-any-return]

    def visit(stmts: Body) -> Body:
        result: list[Stmt] = []
        for stmt in stmts:
            if isinstance(stmt, (Store, Assign)):
                stmt = dataclasses.replace(stmt, value=clamp(stmt.value))
            elif isinstance(stmt, If):
                stmt = dataclasses.replace(
                    stmt, test=clamp(stmt.test), body=visit(stmt.body), orelse=visit(stmt.orelse)
                )
            result.append(stmt)
        return tuple(result)

    return visit(body)
