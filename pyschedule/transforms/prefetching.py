"""Rows of a nest with several inner loops: while one of them works in the caches, memory brings a row to come.

                                            ahead = max(1, 4096 // (N * 4))
    for i in range(M):                      for i in range(M):
        for j in range(N): s += x[i, j]         for j in range(N):
                                                    s += x[i, j]
                                                    prefetch_for_writing(y[i + ahead, j])
        for j in range(N):              →       for j in range(N):
            y[i, j] = x[i, j] * s                   y[i, j] = x[i, j] * s
                                                    prefetch(x[i + ahead, j])

Only the first loop waits for memory to read, which is idle during the others, and only the last one to write: a
line is read before it is written into.  A processor does not look that far ahead by itself.  It is the next row
where rows are long; short ones pass in less time than memory takes to answer.  T. C. Mowry, M. S. Lam, A. Gupta,
*Design and Evaluation of a Compiler Algorithm for Prefetching*, ASPLOS 1992, has the general method, with the
distance as the time memory takes by the time of an iteration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pyschedule.ir import build
from pyschedule.ir.nodes import Assign, Expr, For, Kernel, Load, Prefetch, Ramp, Stmt, Store, Var
from pyschedule.ir.types import INT64, element_of
from pyschedule.ir.visitors import children, expressions, loops, substitute_expr, variables, walk, walk_expr
from pyschedule.schedule.log import Record
from pyschedule.schedule.targets import Target
from pyschedule.transforms.nest import Body, Names, replace_statement, with_body

#: So many bytes of a row are worked through while memory answers.  Measured with layer normalisation in float32 on
#: an Intel Xeon: rows of 1 KiB take least time 4 rows ahead, of 512 bytes 8, of 3 KiB and of 16 KiB the next.
_BYTES_AHEAD = 4096

#: An array, the axis along which a loop reads it or writes it, and the other indices.
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
        distances: dict[Expr, Expr] = {}
        for write in (True, False):
            for row in dict.fromkeys(row for loop in inner for row, _ in _rows(kernel, loop, write)):
                if outer.var not in {name for index in row[2] for name in variables(index)}:
                    continue
                # The body may have changed meanwhile: what stands there now is found again.
                now = next(loop for loop in loops(kernel.body) if loop.var == outer.var)
                user = _writer(kernel, now, row) if write else _last_reader(kernel, now, row)
                if user is None:
                    continue
                main = _beside(now, user) if write else user
                setting, ahead = _distance(kernel, now, user, row, distances)
                changed = (*main.body, *_prefetches(kernel, now, user, main, row, write, target, ahead))
                rest = (dataclasses.replace(main, body=changed),)
                body = replace_statement(now.body, main, rest)
                kernel = with_body(
                    kernel,
                    replace_statement(kernel.body, now, (*setting, dataclasses.replace(now, body=body))),
                )
                purpose = "to be written in" if write else "for"
                label = f"of loop '{outer.label}'"
                which = f"the next iteration {label}"
                if ahead != build.ONE:
                    which = f"an iteration {label} {_BYTES_AHEAD} bytes further"
                text = f"'{row[0]}' {purpose} {which}, in loop '{main.label}'"
                records.append(Record("Prefetch", "Note", text, (), main.loc, silent=True))
    return kernel, tuple(records)


def _last_reader(kernel: Kernel, outer: For, row: Row) -> For | None:
    """The main loop of the last of several loops of the source that read a row, if nothing in `outer` writes it."""
    if any(isinstance(stmt, Store) and stmt.array == row[0] for loop in loops((outer,)) for stmt in loop.body):
        return None
    readers = _users(kernel, outer, row, write=False)
    if len({(loop.source, loop.ordinal) for loop in readers}) < 2:
        return None
    return _main(readers, readers[-1])


def _writer(kernel: Kernel, outer: For, row: Row) -> For | None:
    """The main loop of the first loop of the source that writes a row, if nothing in `outer` reads it before."""
    writers = _users(kernel, outer, row, write=True)
    if not writers:
        return None
    main = _main(writers, writers[0])
    for stmt in outer.body:
        if any(isinstance(part, Load) and part.array == row[0] for part in expressions((stmt,))):
            return None
        if stmt is main:
            break
    return main


def _users(kernel: Kernel, outer: For, row: Row, *, write: bool) -> list[For]:
    return [
        stmt
        for stmt in outer.body
        if isinstance(stmt, For) and any(found == row for found, _ in _rows(kernel, stmt, write))
    ]


def _main(pieces: Sequence[For], one: For) -> For:
    """Of the pieces of the loop of the source that `one` is a piece of, the one that goes furthest in a step."""
    return max((loop for loop in pieces if (loop.source, loop.ordinal) == (one.source, one.ordinal)), key=_step)


def _beside(outer: For, writer: For) -> For:
    """The loop that prefetches what `writer` will write: one before it, or behind, that makes the same steps and
    has no stores to wait for, else itself."""
    steps = [
        (place, stmt)
        for place, stmt in enumerate(outer.body)
        if isinstance(stmt, For)
        and (stmt.start, stmt.stop, stmt.step) == (writer.start, writer.stop, writer.step)
        and all(isinstance(part, (Assign, Prefetch)) for part in stmt.body)
    ]
    here = next(place for place, stmt in enumerate(outer.body) if stmt is writer)
    before = [stmt for place, stmt in steps if place < here]
    behind = [stmt for place, stmt in steps if place > here]
    return before[-1] if before else behind[0] if behind else writer


def _step(loop: For) -> int:
    return build.constant(loop.step) or 0


def _rows(kernel: Kernel, loop: For, write: bool) -> list[tuple[Row, Expr]]:
    """What a loop over straight statements reads, or writes, by whole vectors along one contiguous axis, and
    where."""
    if not all(isinstance(stmt, (Assign, Store, Prefetch)) for stmt in loop.body):
        return []
    units = {array.name: array.unit_axis for array in kernel.array_params}
    found: list[tuple[Row, Expr]] = []
    sites: list[Load] | list[Store] = _stores(loop.body) if write else _loads(loop.body)
    for site in sites:
        ramps = [axis for axis, index in enumerate(site.indices) if isinstance(index, Ramp)]
        if len(ramps) != 1 or site.mask is not None or units.get(site.array, -1) != ramps[0]:
            continue
        ramp = site.indices[ramps[0]]
        others = (*site.indices[: ramps[0]], *site.indices[ramps[0] + 1 :])
        along = any(loop.var in variables(index) for index in others)
        if isinstance(ramp, Ramp) and ramp.stride == 1 and loop.var in variables(ramp.base) and not along:
            found.append(((site.array, ramps[0], others), ramp.base))
    return found


def _loads(body: Sequence[Stmt]) -> list[Load]:
    parts = [part for stmt in body for top in children(stmt) for part in walk_expr(top)]
    return [part for part in parts if isinstance(part, Load)]


def _stores(body: Sequence[Stmt]) -> list[Store]:
    return [stmt for stmt in walk(tuple(body)) if isinstance(stmt, Store)]


def _distance(kernel: Kernel, outer: For, user: For, row: Row, known: dict[Expr, Expr]) -> tuple[Body, Expr]:
    """How many iterations of `outer` ahead a row is fetched; and what has to stand before `outer` for it, if it is
    not `known` there.

    Where the length of a row is another in each iteration, it is the next.
    """
    length = build.sub(user.stop, user.start)
    inside = {loop.var for loop in loops((outer,))}
    inside |= {stmt.target for stmt in walk(outer.body) if isinstance(stmt, Assign)}
    if inside & set(variables(length)):
        return (), build.ONE
    size = build.maximum(build.mul(length, _bytes(kernel, row[0])), 1)
    ahead = build.maximum(build.floordiv(_BYTES_AHEAD, size), 1)
    if build.constant(ahead) is not None:
        return (), ahead
    if ahead in known:
        return (), known[ahead]
    name = Names(kernel).fresh("ahead")
    known[ahead] = Var(name)
    return (Assign(name, ahead, INT64, loc=outer.loc),), known[ahead]


def _bytes(kernel: Kernel, name: str) -> int:
    return next(element_of(array.dtype).bytes for array in kernel.array_params if array.name == name)


def _prefetches(
    kernel: Kernel, outer: For, user: For, loop: For, row: Row, write: bool, target: Target, ahead: Expr
) -> list[Stmt]:
    """One for each cache line of the row `ahead` that the body of `user` uses of this one, to stand in `loop`."""
    name, axis, others = row
    following = {outer.var: build.add(Var(outer.var), build.mul(ahead, outer.step))}
    places = list(dict.fromkeys(base for found, base in _rows(kernel, user, write) if found == row))
    size = _bytes(kernel, name)
    lines = max(1, target.cache_line // (size * max(1, _step(user) // max(1, len(places)))))
    indices = [substitute_expr(index, following) for index in others]
    here = {} if user is loop else {user.var: Var(loop.var)}
    return [
        Prefetch(name, (*indices[:axis], substitute_expr(place, here), *indices[axis:]), loc=loop.loc, write=write)
        for number, place in enumerate(places)
        if number % lines == 0
    ]
