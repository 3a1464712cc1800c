"""How a parallel loop over tiles is shared out among threads: by whole tiles, or finer.

With tiles of 96 rows, 127 rows are two tiles, and one of two threads would have three quarters of the work.  Where
the iterations inside a tile may run at once too (`For.grain`, which `transforms.mapping` has proved), each thread
gets as many steps of the loops inside as any other, and cuts its own share into tiles:

    for i_0 in range(0, N, 96):                            for i_0 in range(first, last, 96):
        for i_1 in range(i_0, min(i_0 + 96, N), 6): ...  →     for i_1 in range(i_0, min(i_0 + 96, N, last), 6): ...

`first` and `last` are multiples of 6 here, counted from the loop's start, so that no step of the loop over `i_1`
is cut: results are those of one thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pyschedule.ir import build
from pyschedule.ir.nodes import Assign, Expr, For, If, Load, Poll, Stmt, Store, Var
from pyschedule.ir.visitors import (
    Body,
    block_writes,
    bodies,
    children,
    local_arrays,
    loops,
    rewrite,
    rewrite_expr,
    variables,
    walk,
    walk_expr,
    written_variables,
)


@dataclass(frozen=True, slots=True)
class Shares:
    """Shares begin at multiples of `step` values, and end at `last`, where tiles in `body`, the loop's, end too."""

    step: Expr
    body: Body
    last: Var


def shares_of(loop: For) -> Shares:
    """How a parallel loop is shared out.

    By less than an iteration only if what the source computes, and what is written to memory that other threads
    see, stands in the loops that go through the tile: those of the same name, up to the tile's end.  Outside them
    the tile's end, as an expression, must not occur: it could be the user's own there, of the same looks.
    """
    last = Var(f"{loop.var} last")  # no name that a kernel has
    return _fine(loop, last) or Shares(loop.step, loop.body, last)


def _fine(loop: For, last: Var) -> Shares | None:
    size = build.constant(loop.step)
    if loop.grain is None or size is None or size % loop.grain:
        return None
    end = build.minimum(build.add(loop.counter, size), loop.stop)
    if variables(loop.stop) & written_variables(loop.body):
        return None
    tile = _Tile(loop, end, frozenset(local_arrays(loop.body)))
    steps = tile.steps(loop.body)
    if steps is None:
        return None
    step = math.lcm(loop.grain, *steps)
    if size % step:
        return None
    nearer = build.minimum(end, last)
    body = rewrite(loop.body, expression=lambda expr: nearer if expr == end else None)
    return Shares(build.const(step), body, last)


@dataclass(frozen=True, slots=True)
class _Tile:
    """One iteration of the loop, its end, and the arrays that are declared in it."""

    loop: For
    end: Expr
    own: frozenset[str]

    def steps(self, body: Body) -> set[int] | None:
        """The steps of the loops through the tile; `None` where something stands outside them that must not."""
        found: set[int] = set()
        for stmt in body:
            inside = self._steps_of(stmt)
            if inside is None:
                return None
            found |= inside
        return found

    def _steps_of(self, stmt: Stmt) -> set[int] | None:
        rest = self._rest(stmt)
        if self._goes_through(stmt) or rest:
            inside = rest or (stmt,)
            every = [build.constant(loop.step) or 0 for loop in loops(inside) if self._goes_through(loop)]
            sound = all(map(self._moves_along, walk(inside))) and all(step > 0 for step in every)
            return set(every) if sound else None
        if isinstance(stmt, (Assign, Store)) and stmt.origin is not None:
            return None
        if any(name not in self.own for name in _written(stmt)):
            return None
        if not self._moves_along(stmt) or (not _fills(stmt) and any(map(self._ends, children(stmt)))):
            return None
        found: set[int] = set()
        for inner in bodies(stmt):
            steps = self.steps(inner)
            if steps is None:
                return None
            found |= steps
        return found

    def _ends(self, expr: Expr) -> bool:
        """Whether an expression speaks of the tile's end."""
        return any(part == self.end for part in walk_expr(expr))

    def _is_piece(self, stmt: Stmt) -> bool:
        own = (self.loop.source, self.loop.ordinal)
        return isinstance(stmt, For) and bool(stmt.source) and (stmt.source, stmt.ordinal) == own

    def _goes_through(self, stmt: Stmt) -> bool:
        return isinstance(stmt, For) and self._is_piece(stmt) and self._ends(stmt.stop)

    def _rest(self, stmt: Stmt) -> Body:
        """The masked pass behind a loop in lanes, without what sets its counter; `()`: it is none."""
        if isinstance(stmt, If) and stmt.tail and not stmt.orelse and self._ends(stmt.test):
            first, *others = stmt.body
            if isinstance(first, Assign) and first.origin is None:
                return tuple(others)
        return ()

    def _moves_along(self, stmt: Stmt) -> bool:
        """Whether a statement does the same in tiles that begin elsewhere: it takes the counter for where the tile
        begins, in the bounds of loops and in arrays that hold one tile, and for nothing else."""
        if self._is_piece(stmt) or _fills(stmt) or isinstance(stmt, Poll):  # a poll says how far the call has come
            return True
        own = isinstance(stmt, Store) and stmt.array in self.own
        tops = (stmt.value,) if isinstance(stmt, Store) and own else children(stmt)
        others = (rewrite_expr(top, self._relative) for top in tops)
        return all(part != self.loop.counter for top in others for part in walk_expr(top))

    def _relative(self, expr: Expr) -> Expr | None:
        relative = expr == self.end or (isinstance(expr, Load) and expr.array in self.own)
        return build.ZERO if relative else None


def _written(stmt: Stmt) -> tuple[str, ...]:
    """The arrays that a statement itself writes."""
    return (stmt.array,) if isinstance(stmt, Store) else block_writes(stmt)


def _fills(stmt: Stmt) -> bool:
    """Whether a statement is a loop of a copy: of a tile, whole or what is read of it."""
    return isinstance(stmt, For) and not stmt.source
