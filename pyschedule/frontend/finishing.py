"""The last touches to an emitted body: unread locals go, and every leaf statement learns its origin."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from pyschedule.ir.nodes import Assign, Expr, For, If, Origin, Stmt, Store, Var, While
from pyschedule.ir.visitors import Body, read_variables, rewrite


def finish(body: Body) -> Body:
    return _numbered(without_unread(body), (), count())


def without_unread(body: Body) -> Body:
    """A body without assignments to locals that nothing reads, and without the conditions and loops that
    this empties.  (Expressions have no effects.)"""
    while True:
        read = read_variables(body)

        def drop(stmt: Stmt, read: set[str] = read) -> Body | None:
            if isinstance(stmt, Assign) and stmt.target not in read:
                return ()
            if isinstance(stmt, For) and not stmt.body:
                return ()
            return () if isinstance(stmt, If) and not stmt.body and not stmt.orelse else None

        smaller = rewrite(body, statement=drop)
        if smaller is body:
            return body
        body = smaller


def _numbered(body: Body, counters: tuple[Expr, ...], numbers: Iterator[int]) -> Body:
    done: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, (Assign, Store)):
            done.append(replace(stmt, origin=Origin(next(numbers), counters)))
        elif isinstance(stmt, For):
            done.append(replace(stmt, body=_numbered(stmt.body, (*counters, Var(stmt.var)), numbers)))
        elif isinstance(stmt, While):
            done.append(replace(stmt, body=_numbered(stmt.body, counters, numbers)))
        elif isinstance(stmt, If):
            body_ = _numbered(stmt.body, counters, numbers)
            done.append(replace(stmt, body=body_, orelse=_numbered(stmt.orelse, counters, numbers)))
        else:
            done.append(stmt)
    return tuple(done)
