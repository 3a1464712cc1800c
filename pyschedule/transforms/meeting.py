"""Polls in blocks of threads: threads that meet at barriers leave together, or not at all.

A thread that has left would be missed at the next barrier.  Where a block has barriers, its threads therefore
decide as one at each poll, which is a barrier itself: all of them must come to it, at the same time.
"""

from __future__ import annotations

import dataclasses

from pyschedule.ir.nodes import Barrier, For, Load, Location, Poll, Stmt, Store, While
from pyschedule.ir.printer import headline
from pyschedule.ir.visitors import bodies, children, may_break, variables, walk, walk_expr, written_variables
from pyschedule.schedule.log import Record, skipped
from pyschedule.transforms.nest import Body, replace_statement


def leave_together(body: Body, loc: Location | None) -> tuple[Body, list[Record]]:
    """The body, in which the polls of threads that meet at barriers are taken together.

    A poll that not all threads of the block come to at the same time is taken out, and said so.
    """
    records: list[Record] = []
    result: list[Stmt] = []
    for stmt in body:
        new: Body = (stmt,)
        if _threads_meet(new):
            own = _differing(stmt)
            for poll in [item for item in walk(new) if isinstance(item, Poll)]:
                reason, place = _obstacle(_path(new, poll), own)
                if not reason:
                    new = replace_statement(new, poll, (dataclasses.replace(poll, together=True),))
                    continue
                new = replace_statement(new, poll, ())
                summary = (
                    f"{poll.places[-1].partition(' at ')[0]}: {reason}, and the block's threads meet at barriers; "
                    "without a staged tile they do not"
                )
                records.append(skipped("Poll", summary, loc, place))
        result += new
    return tuple(result), records


def _threads_meet(body: Body) -> bool:
    """Whether the threads of a block wait for one another: at barriers, before and after what they share out, or
    where one of them writes for all."""
    for stmt in walk(body):
        if isinstance(stmt, Barrier) or (isinstance(stmt, For) and stmt.mapping == "cooperative"):
            return True
    threads = any(isinstance(stmt, For) and stmt.mapping.startswith("thread") for stmt in walk(body))
    return threads and _writes_outside_threads(body)


def _writes_outside_threads(body: Body) -> bool:
    for stmt in body:
        if isinstance(stmt, For) and stmt.mapping.startswith("thread"):
            continue
        if isinstance(stmt, Store) or any(_writes_outside_threads(inner) for inner in bodies(stmt)):
            return True
    return False


def _differing(stmt: Stmt) -> set[str]:
    """The variables that may differ between the threads of a block."""
    found: set[str] = set()
    for loop in walk((stmt,)):
        if isinstance(loop, For) and loop.mapping.startswith(("thread", "cooperative")):
            found |= {loop.var} | written_variables(loop.body)
    for loop in walk((stmt,)):  # serial counters whose bounds differ
        if isinstance(loop, For) and _reads(loop, found):
            found.add(loop.var)
    return found


def _reads(stmt: Stmt, names: set[str]) -> bool:
    return any(variables(part) & names for part in children(stmt))


def _obstacle(path: tuple[Stmt, ...], own: set[str]) -> tuple[str, Location | None]:
    """Why not all threads of a block are at a poll at the same time, given what stands around it."""
    for stmt in path:
        loc: Location | None = getattr(stmt, "loc", None)
        if isinstance(stmt, While):
            return "its turns may differ from thread to thread", loc
        if _reads(stmt, own) or any(isinstance(part, Load) for top in children(stmt) for part in walk_expr(top)):
            return f"`{_head(stmt)}` may differ from thread to thread", loc
        if isinstance(stmt, For) and may_break(stmt.body):
            return f"some threads may leave `{_head(stmt)}` early", loc
    return "", None


def _head(stmt: Stmt) -> str:
    return headline(stmt).partition(":  #")[0].rstrip(":")


def _path(body: Body, wanted: Stmt) -> tuple[Stmt, ...]:
    """The statements around one (found by identity), outermost first."""
    for stmt in body:
        if stmt is wanted:
            return ()
        for inner in bodies(stmt):
            if any(item is wanted for item in walk(inner)):
                return (stmt, *_path(inner, wanted))
    return ()
