"""Rows that are read more than once: while the last loop reads one from the caches, the next comes from memory.

    for i in range(M):                      for i in range(M):
        for j in range(N): s += x[i, j]         for j in range(N): s += x[i, j]
        for j in range(N):              →       for j in range(N):
            y[i, j] = x[i, j] * s                   y[i, j] = x[i, j] * s
                                                    prefetch(x[i + 1, j])

Only the first loop waits for memory, which is idle during the others; a processor does not look that far ahead by
itself.  T. C. Mowry, M. S. Lam, A. Gupta, *Design and Evaluation of a Compiler Algorithm for Prefetching*, ASPLOS
1992, has the general method.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pyschedule.ir import build
from pyschedule.ir.nodes import Assign, Expr, For, Kernel, Load, Prefetch, Ramp, Stmt, Store, Var
from pyschedule.ir.types import element_of
from pyschedule.ir.visitors import children, loops, substitute_expr, variables, walk_expr
from pyschedule.schedule.log import Record
from pyschedule.schedule.targets import Target
from pyschedule.transforms.nest import replace_statement, with_body

#: An array, the axis along which a loop reads it, and the other indices.
Row = tuple[str, int, tuple[Expr, ...]]


def prefetch_rows(kernel: Kernel, target: Target) -> tuple[Kernel, tuple[Record, ...]]:
    """Adds the prefetches; and a line for the log about each array."""
    if not target.cache_line:
        return kernel, ()
    records: list[Record] = []
    for outer in list(loops(kernel.body)):
        inner = [stmt for stmt in outer.body if isinstance(stmt, For)]
        if len(inner) < 2:
            continue
        for row in dict.fromkeys(row for loop in inner for row, _ in _rows(kernel, loop)):
            if outer.var not in {name for index in row[2] for name in variables(index)}:
                continue
            # The body may have changed meanwhile: what stands there now is found again.
            now = next(loop for loop in loops(kernel.body) if loop.var == outer.var)
            main = _last_reader(kernel, now, row)
            if main is not None:
                changed = dataclasses.replace(main, body=(*main.body, *_prefetches(kernel, now, main, row, target)))
                kernel = with_body(kernel, replace_statement(kernel.body, main, (changed,)))
                text = f"'{row[0]}' for the next iteration of loop '{outer.label}', in loop '{main.label}'"
                records.append(Record("Prefetch", "Note", text, (), main.loc, silent=True))
    return kernel, tuple(records)


def _last_reader(kernel: Kernel, outer: For, row: Row) -> For | None:
    """The main loop of the last of several loops of the source that read a row, if nothing in `outer` writes it."""
    if any(isinstance(stmt, Store) and stmt.array == row[0] for loop in loops((outer,)) for stmt in loop.body):
        return None
    readers = [
        stmt
        for stmt in outer.body
        if isinstance(stmt, For) and any(found == row for found, _ in _rows(kernel, stmt))
    ]
    if len({(loop.source, loop.ordinal) for loop in readers}) < 2:
        return None
    last = readers[-1].source, readers[-1].ordinal
    return max((loop for loop in readers if (loop.source, loop.ordinal) == last), key=_step)


def _step(loop: For) -> int:
    return build.constant(loop.step) or 0


def _rows(kernel: Kernel, loop: For) -> list[tuple[Row, Expr]]:
    """What a loop over straight statements reads by whole vectors along one contiguous axis, and where."""
    if not all(isinstance(stmt, (Assign, Store, Prefetch)) for stmt in loop.body):
        return []
    units = {array.name: array.unit_axis for array in kernel.array_params}
    found: list[tuple[Row, Expr]] = []
    for load in _loads(loop.body):
        ramps = [axis for axis, index in enumerate(load.indices) if isinstance(index, Ramp)]
        if len(ramps) != 1 or load.mask is not None or units.get(load.array, -1) != ramps[0]:
            continue
        ramp = load.indices[ramps[0]]
        others = (*load.indices[: ramps[0]], *load.indices[ramps[0] + 1 :])
        along = any(loop.var in variables(index) for index in others)
        if isinstance(ramp, Ramp) and ramp.stride == 1 and loop.var in variables(ramp.base) and not along:
            found.append(((load.array, ramps[0], others), ramp.base))
    return found


def _loads(body: Sequence[Stmt]) -> list[Load]:
    parts = [part for stmt in body for top in children(stmt) for part in walk_expr(top)]
    return [part for part in parts if isinstance(part, Load)]


def _prefetches(kernel: Kernel, outer: For, loop: For, row: Row, target: Target) -> list[Stmt]:
    """One for each cache line of the next row that the body reads of this one."""
    name, axis, others = row
    following = {outer.var: build.add(Var(outer.var), outer.step)}
    places = list(dict.fromkeys(base for found, base in _rows(kernel, loop) if found == row))
    size = next(element_of(array.dtype).bytes for array in kernel.array_params if array.name == name)
    lines = max(1, target.cache_line // (size * max(1, _step(loop) // max(1, len(places)))))
    indices = [substitute_expr(index, following) for index in others]
    return [
        Prefetch(name, (*indices[:axis], place, *indices[axis:]), loc=loop.loc)
        for number, place in enumerate(places)
        if number % lines == 0
    ]
