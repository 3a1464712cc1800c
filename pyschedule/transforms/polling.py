"""Polling: checks for cancellation where they cost nothing, outside the innermost loops.

The nest is taken as it stands after all other transforms; an iteration is one turn of an innermost loop, be it
of one element, of sixteen lanes or of four copies.  Between two checks run at most `every` of them:

* what is known to run no more than `every` iterations gets no check;
* a loop of longer bodies checks at the head of its body, as often as needed;
* any other loop is cut into strips.  `poll(every=4096)` makes of

      for k in range(n):
          acc = acc * 0.999 + x[k]

  the nest

      for k_p in range(0, n, 4096):
          poll()
          for k in range(k_p, min(k_p + 4096, n)):
              acc = acc * 0.999 + x[k]

  so that the hot loop is what it was.  A `break` leaves both loops.

A `while` that does not count is checked by a counter of its turns.  Loops that blocks or threads of a GPU run are
left whole: the checks are in what each thread runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Final

from pyschedule.analysis.induction import max_trip, static_trip
from pyschedule.ir import build
from pyschedule.ir.nodes import (
    Alloc,
    Assign,
    Barrier,
    BinOp,
    Break,
    Call,
    Compare,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Poll,
    Return,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.types import INT64
from pyschedule.ir.visitors import (
    Loops,
    bodies,
    contains,
    loops,
    read_arrays,
    read_variables,
    variables,
    walk,
    walk_expr,
    written_arrays,
    written_variables,
)
from pyschedule.schedule.directives import Poll as Request
from pyschedule.schedule.log import Record
from pyschedule.schedule.targets import Target
from pyschedule.transforms import meeting, strips
from pyschedule.transforms.copies import renamed_counters
from pyschedule.transforms.nest import Body, Names, map_bodies, replace_statement, tile_form, with_body
from pyschedule.transforms.registers import loops_over_registers

#: Strips of a loop that threads share are at most about this many innermost iterations long, so that there are
#: strips enough to share.
_SHARED_STRIP: Final = 1024
#: Between these lies how many threads a loop over threads has: the more, the fewer iterations each of them runs.
_FEW_THREADS: Final = 32
_MANY_THREADS: Final = 1024


def poll(kernel: Kernel, requests: tuple[Request, ...], target: Target) -> tuple[Kernel, list[Record]]:
    """The kernel with checks, numbered from 1, and what to say of them."""
    if not requests:
        return kernel, []
    request = requests[0]  # there is one: `resolve` refuses a second
    placing = _Placing(kernel, request.every, target)
    body = placing.body(kernel.body, ())
    records: list[Record] = []
    if target.thread_mapping:
        body, records = meeting.leave_together(body, request.loc)
    body = _numbered(body)
    polled = with_body(kernel, body)
    every = f"every={request.every}"
    if contains(body, Poll):
        notes = tuple(dict.fromkeys(placing.notes))
        return polled, [Record("Poll", "Applied", every, notes, request.loc), *records]
    if not records:
        reason = f"{every}: no loop runs longer than that"
        records = [Record("Poll", "Applied", reason, (), request.loc)]
    return polled, records


# ----------------------------------------------------------------------------------------------- placement


class _Placing:
    """Goes through a body from the outside in, and puts the checks where they are needed."""

    def __init__(self, kernel: Kernel, every: int, target: Target) -> None:
        self.every = every
        self.last_apart = target.copies
        self.names = Names(kernel)
        self.notes: list[str] = []
        self.straight = _straight(kernel, target.vector_registers)

    def body(self, body: Body, around: Loops, after: Body = ()) -> Body:
        """The body with checks.  `after`: the stores behind the loops around that put back what registers keep."""
        result: list[Stmt] = []
        for position, stmt in enumerate(body):
            behind = _put_back(stmt, body[position + 1 :]) if isinstance(stmt, (For, While)) else ()
            result += self.statement(stmt, around, (*behind, *after))
        same = len(result) == len(body) and all(one is other for one, other in zip(result, body, strict=True))
        return body if same else tuple(result)

    def statement(self, stmt: Stmt, around: Loops, after: Body) -> Body:
        if isinstance(stmt, If):
            return (map_bodies(stmt, lambda part: self.body(part, around, after)),)
        if isinstance(stmt, For):
            return self.loop(stmt, around, after)
        return self.uncounted(stmt, around, after) if isinstance(stmt, While) else (stmt,)

    def loop(self, loop: For, around: Loops, after: Body) -> Body:
        trips = _share(loop, _counting(around))
        inner = self.iterations(loop.body, (*around, loop))
        if trips is not None and inner is not None and trips * max(1, inner) <= self.every:
            return (loop,)
        if loop.mapping == "cooperative":
            return (loop,)
        if loop.var in self.straight:  # what is in it may be long
            body = self.body(loop.body, (*around, loop), after)
            return (loop if body is loop.body else dataclasses.replace(loop, body=body),)
        if inner is not None and inner <= self.every and loop.mapping in ("serial", "parallel"):
            return self.strips(loop, self.every // max(1, inner), around, after)
        body = self.body(loop.body, (*around, loop), after if loop.mapping == "serial" else ())
        loop = loop if body is loop.body else dataclasses.replace(loop, body=body)
        if _is_sure_to_poll(body, (*around, loop)) or (loop.mapping not in ("serial", "parallel") and trips == 1):
            return (loop,)
        # A turn in which the checks inside are not reached must be counted too.
        rest = self.iterations(_unpolled(body), (*around, loop))
        if rest is None or loop.mapping != "serial":
            return self.strips(loop, 1, around, after)
        if trips is not None and trips * max(1, rest) <= self.every:
            return (loop,)
        return self.strips(loop, self.every // max(1, rest), around, after)

    def iterations(self, body: Body, around: Loops) -> int | None:
        return _iterations(body, _counting(around), self.straight)

    def uncounted(self, loop: While, around: Loops, after: Body) -> Body:
        """Checks a `while` once in so many turns, by a counter: a power of two, so that the test is cheap."""
        body = self.body(loop.body, (*around, loop), after)
        run = self.iterations(_unpolled(body), around)
        often = 1 if run is None else max(1, self.every // max(1, run))
        often = 1 << (often.bit_length() - 1)
        turn = Var(self.names.fresh(f"{loop.source or 'while'}_turns"))
        check: Stmt = self.check(loop, around, turn, after)
        if often > 1:
            check = If(Compare("==", BinOp("&", turn, build.const(often - 1), INT64), build.ZERO, INT64), (check,))
        count = Assign(turn.name, build.add(turn, 1), INT64)
        return (
            Assign(turn.name, build.ZERO, INT64),
            dataclasses.replace(loop, body=(check, count, *body)),
        )

    def strips(self, loop: For, size: int, around: Loops, after: Body) -> Body:
        """The loop with a check before each `size` iterations of it."""
        if loop.mapping == "parallel":
            inner = self.iterations(loop.body, (*around, loop))
            size = 1 if inner is None else min(size, max(1, _SHARED_STRIP // max(1, inner)))

        def check(at: Expr) -> Poll:
            return self.check(loop, around, at, after)

        made, length = strips.cut(loop, size, check, _counting(around), self.names, last_apart=self.last_apart)
        if length > 1:
            self.notes.append(f"loop '{_label(loop)}' in strips of {length}")
        return made

    def check(self, loop: For | While, around: Loops, at: Expr, after: Body) -> Poll:
        """A check in a loop whose counter is `at`.  It is numbered later."""
        places: list[str] = []
        values: list[Expr] = []
        enclosing = [item for item in around if isinstance(item, For)]
        for item in (*enclosing, loop):
            if isinstance(item, While):
                named = f"loop '{item.source}'" if item.source else "the while loop"
                line = f" of line {item.loc.line}" if item.loc is not None and not item.source else ""
                places.append(f"{named}{line} in iteration {{}}")
                values.append(at)
                continue
            values.append(at if item is loop else item.counter)
            known = not any(isinstance(part, Load) for part in walk_expr(item.stop))
            known = known and not variables(item.stop) & (
                written_variables(item.body) | written_variables(loop.body)
            )
            to = " down to {}" if (build.constant(item.step) or 1) < 0 else " of {}"
            places.append(f"loop '{_label(item)}' at {{}}" + (to if known else ""))
            values += [item.stop] if known else []
        return Poll(0, tuple(places), tuple(values), renamed_counters(after, self.names))


def _label(loop: For) -> str:
    name = loop.label or loop.var
    return name if loop.ordinal == 1 else f"{name}#{loop.ordinal}"


def _least(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def _most_trips(loop: For, around: tuple[For, ...]) -> int | None:
    """How often a loop runs at most; a loop of far steps runs only a few times in all of int64."""
    found = static_trip(loop)
    if found is None:
        found = max_trip(loop, around)
    step = build.constant(loop.step)
    if step:
        found = _least(found, -(-(1 << 64) // abs(step))) if abs(step) > 1 << 32 else found
    return found


def _share(loop: For, around: tuple[For, ...]) -> int | None:
    """The iterations of a loop that one core, block or thread runs at most."""
    trips = _most_trips(loop, around)
    unit = loop.mapping.partition(".")[0]
    if unit == "block":
        return 1
    if unit == "cooperative":
        return 1 if trips is None else -(-trips // _FEW_THREADS)
    if unit == "thread":
        return None if trips is None else 1 if trips <= _MANY_THREADS else -(-trips // _FEW_THREADS)
    return trips


def _straight(kernel: Kernel, registers: int) -> frozenset[str]:
    """The counters of loops that are straight-line code in the end: those that the compiler unrolls in full, by
    request or because they count through an array of registers."""
    through = loops_over_registers(kernel.body, registers)
    return frozenset(
        loop.var
        for loop in loops(kernel.body)
        if loop.unroll == -1
        or (loop.unroll != 1 and loop.var in through and loop.mapping == "serial" and static_trip(loop) is not None)
    )


def _unpolled(body: Body) -> Body:
    return tuple(stmt for stmt in body if not contains((stmt,), Poll))


def _iterations(body: Body, around: tuple[For, ...], straight: frozenset[str]) -> int | None:
    """The innermost iterations of one run of a body at most, 0 where it has no loop; `None`: not known."""
    total = 0
    for stmt in body:
        if isinstance(stmt, While):
            return None
        if isinstance(stmt, For):
            trips, inner = _share(stmt, around), _iterations(stmt.body, (*around, stmt), straight)
            if trips is None or inner is None:
                return None
            total += inner if stmt.var in straight else trips * max(1, inner)
        elif not isinstance(stmt, Poll):
            parts = [_iterations(inner, around, straight) for inner in bodies(stmt)]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            total += max(known, default=0)
    return total


def _counting(loops: Loops) -> tuple[For, ...]:
    return tuple(loop for loop in loops if isinstance(loop, For))


def _is_sure_to_poll(body: Body, around: Loops) -> bool:
    """Whether a run of the body comes by a check whatever happens."""
    for stmt in body:
        if isinstance(stmt, Poll):
            return True
        if isinstance(stmt, For) and _runs(stmt, around) and _is_sure_to_poll(stmt.body, (*around, stmt)):
            return True
        if isinstance(stmt, If) and all(_is_sure_to_poll(arm, around) for arm in (stmt.body, stmt.orelse)):
            return True
        if contains((stmt,), Break, Return):
            return False
    return False


def _runs(loop: For, around: Loops) -> bool:
    """Whether the loop certainly has an iteration: by its constant trip count, or as a piece of a loop around it,
    as `range(i_0, min(i_0 + 64, n))` is inside `range(0, n, 64)`."""
    trips, form = static_trip(loop), tile_form(loop)
    if trips is not None:
        return trips > 0
    if form is None or form.size < 1:
        return False
    return any(
        outer.counter == loop.start
        and (build.constant(outer.step) or 0) * form.step > 0
        and form.end in (outer.stop, *(outer.stop.args if isinstance(outer.stop, Call) else ()))
        and (not isinstance(outer.stop, Call) or outer.stop.function == ("pmin" if form.step > 0 else "pmax"))
        for outer in _counting(around)
    )


def _put_back(loop: Stmt, siblings: Body) -> Body:
    """What behind a loop puts back into memory what a transform keeps in registers meanwhile.

    All of it where it stands on nothing that the statements of the source between would compute, else what there
    is before the first of these.
    """
    kept: list[Stmt] = []
    leading: int | None = None
    skipped_over: set[str] = set()
    for stmt in siblings:
        if _is_bookkeeping(stmt):
            kept.append(stmt)
            continue
        leading = len(kept) if leading is None else leading
        skipped_over |= _written((stmt,))
        if contains((stmt,), Break, Return, Barrier) or isinstance(stmt, Alloc):
            break  # behind it comes something else
    if _read(kept) & skipped_over - _written((loop,)) - _written(kept):
        kept = kept[:leading]
    return tuple(kept) if any(isinstance(stmt, Store) for stmt in walk(tuple(kept))) else ()


def _is_bookkeeping(stmt: Stmt) -> bool:
    """Whether a statement holds nothing of the source, only copies between memory and registers."""
    inside = list(walk((stmt,)))
    leaves = [item for item in inside if isinstance(item, (Assign, Store))]
    plain = all(
        isinstance(item, (Assign, Store, If)) or (isinstance(item, For) and item.mapping == "serial")
        for item in inside
    )
    return plain and bool(leaves) and all(leaf.origin is None for leaf in leaves)


def _written(body: Iterable[Stmt]) -> set[str]:
    return written_variables(tuple(body)) | written_arrays(tuple(body))


def _read(body: Iterable[Stmt]) -> set[str]:
    return read_variables(tuple(body)) | read_arrays(tuple(body))


def _numbered(body: Body) -> Body:
    """The body with its polls numbered in textual order."""
    polls = [stmt for stmt in walk(body) if isinstance(stmt, Poll)]
    for number, stmt in enumerate(polls, 1):
        body = replace_statement(body, stmt, (dataclasses.replace(stmt, number=number),))
    return body
