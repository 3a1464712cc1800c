"""Integer locals that are set once replaced by what they stand for, so that bounds and indices stay affine."""

from __future__ import annotations

from collections import Counter

from pyschedule.frontend.folding import fold, live_branches
from pyschedule.frontend.surface import (
    Apply,
    Binary,
    Extent,
    Loop,
    Name,
    Number,
    Repeat,
    SetName,
    Unary,
    assigned,
    names_in,
    names_read,
)
from pyschedule.ir.nodes import Expr, Stmt
from pyschedule.ir.visitors import Body, map_children, rewrite_expr, walk, walk_expr

_INTEGER_OPS = ("+", "-", "*", "//", "%")
_INTEGER_CALLS = ("pmin", "pmax", "abs")


def propagate(body: Body, integers: frozenset[str]) -> Body:
    """The same program, where a local that is assigned once is replaced by its value if that is

    * a constant, or
    * integer arithmetic over extents, integer parameters that are never assigned (`integers`), the counters
      of loops around it (those of `while` loops that count too), and other such locals,

    and every read of it comes after it in the same block, so that the value is the same there.
    """
    return live_branches(_Propagation(body, integers).run(body, {}, frozenset()))


class _Propagation:
    def __init__(self, body: Body, integers: frozenset[str]) -> None:
        self._bindings = Counter(stmt.name for stmt in walk(body) if isinstance(stmt, (SetName, Loop)))
        self._set = {stmt.name for stmt in walk(body) if isinstance(stmt, SetName)}
        self._integers = integers - assigned(body)
        self._reads: Counter[str] = Counter()
        for stmt in walk(body):
            self._count(stmt, self._reads)

    @staticmethod
    def _count(stmt: Stmt, into: Counter[str]) -> None:
        for name in names_read(stmt):
            into[name] += 1

    def run(self, body: Body, values: dict[str, Expr], counters: frozenset[str]) -> Body:
        done: list[Stmt] = []
        values = dict(values)
        for position, stmt in enumerate(body):
            stmt = self._substituted(stmt, values)
            if isinstance(stmt, SetName) and self._is_stable(stmt, body[position + 1 :], counters):
                values[stmt.name] = stmt.value
                continue
            inner = counters
            if isinstance(stmt, Loop) and stmt.name not in self._set:
                inner = counters | {stmt.name}
            elif isinstance(stmt, Repeat) and stmt.counter:
                inner = counters | {stmt.counter}  # it is set behind all that reads it, or before a `break`
            changes = {}
            for name in ("body", "orelse"):
                part = getattr(stmt, name, None)
                if part:
                    changes[name] = self.run(part, values, inner)
            done.append(_replace(stmt, changes) if changes else stmt)
        return tuple(done)

    def _substituted(self, stmt: Stmt, values: dict[str, Expr]) -> Stmt:
        if not values or not names_read(stmt) & values.keys():
            return stmt

        def change(node: Expr) -> Expr | None:
            if isinstance(node, Name) and node.name in values:
                return values[node.name]
            try:
                folded = fold(node)
            except ArithmeticError:
                return None
            return None if folded is node else folded

        result: Stmt = map_children(stmt, lambda part: rewrite_expr(part, change))
        return result

    def _is_stable(self, stmt: SetName, rest: Body, counters: frozenset[str]) -> bool:
        if self._bindings[stmt.name] != 1 or stmt.name in self._integers:
            return False
        later: Counter[str] = Counter()
        for item in walk(rest):
            self._count(item, later)
        if later[stmt.name] != self._reads[stmt.name]:
            return False
        if isinstance(stmt.value, Number):
            return True
        if not self._is_integer(stmt.value, counters):
            return False
        rebound = {item.name for item in walk(rest) if isinstance(item, Loop)}
        return not names_in(stmt.value) & rebound

    def _is_integer(self, expr: Expr, counters: frozenset[str]) -> bool:
        for part in walk_expr(expr):
            if isinstance(part, Number):
                if type(part.value) is not int or part.dtype is not None:
                    return False
            elif isinstance(part, Name):
                if part.name not in self._integers and part.name not in counters:
                    return False
            elif isinstance(part, Binary):
                if part.op not in _INTEGER_OPS:
                    return False
            elif isinstance(part, Unary):
                if part.op != "-":
                    return False
            elif isinstance(part, Apply):
                if part.function not in _INTEGER_CALLS or part.home != "python":
                    return False
            elif not isinstance(part, Extent):
                return False
        return True


def _replace(stmt: Stmt, changes: dict[str, Body]) -> Stmt:
    from dataclasses import replace

    return replace(stmt, **changes)
