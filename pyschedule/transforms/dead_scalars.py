"""Assignments of integers that nothing reads any more, once constants stand where they were read.

stage = 0                                  y[k] = x[k]
y[k] = x[k]                         →      y[k + 1] = x[k + 1] + 1
stage = 1
y[k + 1] = x[k + 1] + 1
"""

from __future__ import annotations

import dataclasses

from pyschedule.ir.nodes import Assign, Break, Const, For, If, Return, Stmt, While
from pyschedule.ir.visitors import Body, children, read_variables, variables, walk
from pyschedule.transforms.facts import has_effect

Live = frozenset[str]


def without_dead_scalars(body: Body) -> Body:
    """The body without assignments that are overwritten, or forgotten, before they are read: of scalars that are
    somewhere set to a constant integer (or bool). ."""
    candidates = frozenset(
        stmt.target
        for stmt in walk(body)
        if isinstance(stmt, Assign) and isinstance(stmt.value, Const) and not stmt.value.dtype.is_float
    )
    return _Liveness(candidates).body(body, frozenset(), frozenset())[0] if candidates else body


class _Liveness:
    """Goes backwards, with the candidates that are read later: at this place, and where a `break` leads."""

    def __init__(self, candidates: Live) -> None:
        self.candidates = candidates
        self.done: dict[tuple[int, Live, Live], tuple[Body, Live]] = {}

    def body(self, body: Body, after: Live, left: Live) -> tuple[Body, Live]:
        """What is left of a body, and what it wants on entry."""
        key = id(body), after, left
        if key not in self.done:
            result: list[Stmt] = []
            live = after
            for stmt in reversed(body):
                kept, live = self.statement(stmt, live, left)
                result.extend(kept)
            unchanged = len(result) == len(body) and all(
                a is b for a, b in zip(reversed(result), body, strict=True)
            )
            self.done[key] = body if unchanged else tuple(reversed(result)), live
        return self.done[key]

    def statement(self, stmt: Stmt, after: Live, left: Live) -> tuple[Body, Live]:
        if isinstance(stmt, Assign) and stmt.target in self.candidates:
            if stmt.target not in after and not has_effect(stmt.value):
                return (), after
            return (stmt,), after - {stmt.target} | self.read(stmt)
        if isinstance(stmt, Break):
            return (stmt,), left
        if isinstance(stmt, Return):
            return (stmt,), self.read(stmt)
        if isinstance(stmt, If):
            body, wanted = self.body(stmt.body, after, left)
            orelse, wanted_else = self.body(stmt.orelse, after, left)
            if not body and not orelse and not has_effect(stmt.test):
                return (), after
            return (_with(stmt, body, orelse),), wanted | wanted_else | self.read(stmt)
        if isinstance(stmt, (For, While)):
            again = after | (self.read(stmt) if isinstance(stmt, While) else frozenset())
            # What the body wants on entry is wanted at its end too, for the next iteration.
            again |= self.body(stmt.body, again, after)[1]
            body, wanted = self.body(stmt.body, again, after)
            if isinstance(stmt, For) and stmt.body and not body and not any(map(has_effect, children(stmt))):
                return (), after
            return (_with(stmt, body),), again | wanted | self.read(stmt)
        return (stmt,), after | self.candidates & read_variables((stmt,))

    def read(self, stmt: Stmt) -> Live:
        return self.candidates.intersection(*[set().union(*map(variables, children(stmt)))])


def _with(stmt: For | While | If, body: Body, orelse: Body = ()) -> Stmt:
    if body is stmt.body and (not isinstance(stmt, If) or orelse is stmt.orelse):
        return stmt
    if isinstance(stmt, If):
        return dataclasses.replace(stmt, body=body, orelse=orelse)
    return dataclasses.replace(stmt, body=body)
