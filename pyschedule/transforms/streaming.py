"""Arrays that are written once and not read: where one is too large for the caches, its stores go around them.

    for i in range(M):                      for i in range(M):
        for j in range(0, N, 16):               for j in range(0, N, 16):
            y[i, j:j+16] = f(x[i, j:j+16])  →       y[i, j:j+16] = f(x[i, j:j+16])  # around the caches from 48 MiB

A line that is stored into is read first and written back later; what goes around the caches is only written.  The
next reader then waits for memory, which it would have done anyway, so how large an array is decides at run time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    Expr,
    For,
    Kernel,
    Load,
    Prefetch,
    Ramp,
    Return,
    Stmt,
    Store,
    While,
)
from pyschedule.ir.types import element_of, lanes_of
from pyschedule.ir.visitors import expressions, variables, walk, walk_with_loops
from pyschedule.schedule.log import Record
from pyschedule.schedule.targets import Target
from pyschedule.transforms.nest import replace_statement, with_body

#: Bytes that a store around the caches has at least.
_LEAST = 16


def stream(kernel: Kernel, target: Target) -> tuple[Kernel, tuple[Record, ...]]:
    """Marks the stores; and a line for the log about each array."""
    if not target.stream_bytes or any(isinstance(stmt, Return) for stmt in _but_last(kernel.body)):
        return kernel, ()
    read = {part.array for part in expressions(kernel.body) if isinstance(part, Load)}
    read |= {stmt.array.name for stmt in walk(kernel.body) if isinstance(stmt, Alloc)}
    records: list[Record] = []
    for array in kernel.array_params:
        if array.name in read or array.unit_axis is None:
            continue
        stores, loops = _stores(kernel, array)
        for stmt in stores:
            marked = dataclasses.replace(stmt, stream=target.stream_bytes)
            kernel = with_body(kernel, replace_statement(kernel.body, stmt, (marked,)))
        if stores:
            size = f"{target.stream_bytes >> 20} MiB"
            text = f"'{array.name}' around the caches where it has {size} or more, in loop '{loops[0].label}'"
            records.append(Record("Streaming", "Note", text, (), loops[0].loc, silent=True))
    return kernel, tuple(records)


def _but_last(body: tuple[Stmt, ...]) -> list[Stmt]:
    """All statements but the one at the end."""
    return [stmt for stmt in walk(body) if stmt is not body[-1]]


def _stores(kernel: Kernel, array: Array) -> tuple[list[Store], list[For]]:
    """The stores of whole vectors into an array, and the loops that make them, if one statement of the source is
    the only one that writes it, line by line, and never two times to one element (as far as counters tell)."""
    found: list[Store] = []
    loops: list[For] = []
    statements: set[int | None] = set()
    for stmt, around in walk_with_loops(kernel.body):
        if not isinstance(stmt, Store) or stmt.array != array.name:
            continue
        statements.add(None if stmt.origin is None else stmt.origin.statement)
        row = _row(stmt, array)
        if len(statements) > 1 or None in statements or row is None or not _moves(stmt, around):
            return [], []
        found.append(stmt)
        loop = around[-1] if around else None
        if isinstance(loop, For) and loop not in loops and _fills_lines(loop, array):
            loops.append(loop)
    return (found, loops) if loops else ([], [])


def _row(store: Store, array: Array) -> tuple[Ramp, tuple[Expr, ...]] | None:
    """Where a store of a vector along the contiguous axis is there, and in which row."""
    unit = array.unit_axis or 0
    ramp, others = store.indices[unit], (*store.indices[:unit], *store.indices[unit + 1 :])
    if not isinstance(ramp, Ramp) or ramp.stride != 1 or any(lanes_of(index.type) > 1 for index in others):
        return None
    return (ramp, others) if ramp.lanes * element_of(array.dtype).bytes >= _LEAST else None


def _moves(store: Store, around: Sequence[For | While]) -> bool:
    """Whether each loop around a store takes it to other elements."""
    moving = {name for index in store.indices for name in variables(index)}
    for loop in reversed(around):
        if isinstance(loop, While) or loop.var not in moving:
            return False
        moving |= variables(loop.start)  # of the tile whose elements the loop runs over
    return True


def _fills_lines(loop: For, array: Array) -> bool:
    """Whether a loop over straight statements stores whole vectors into one row, one behind the other."""
    if not all(isinstance(stmt, (Assign, Store, Prefetch)) for stmt in loop.body):
        return False
    stores = [stmt for stmt in loop.body if isinstance(stmt, Store) and stmt.array == array.name]
    rows = [row for row in (_row(stmt, array) for stmt in stores) if row is not None]
    along = all(loop.var in variables(ramp.base) for ramp, _ in rows)
    one = len({others for _, others in rows}) == 1 and not any(loop.var in variables(other) for other in rows[0][1])
    return along and one and all(stmt.mask is None for stmt in stores)
