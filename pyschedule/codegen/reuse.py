"""Which loads of a straight run of statements read the same element again, and may be named once.

LLVM would find them too; naming them first makes the text shorter to read and several times faster to compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyschedule.ir.nodes import Array, Assign, BoolOp, Expr, Load, Select, Stmt, Store
from pyschedule.ir.visitors import children, variables, walk_expr


def runs(body: tuple[Stmt, ...]) -> Iterator[tuple[Stmt, ...]]:
    """A body cut into runs of assignments and stores, and single other statements."""
    run: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, (Assign, Store)):
            run.append(stmt)
            continue
        if run:
            yield tuple(run)
            run = []
        yield (stmt,)
    if run:
        yield tuple(run)


def certain_loads(expr: Expr) -> Iterator[Load]:
    """The loads that evaluating `expr` does whatever the values are, inner ones first."""
    if isinstance(expr, Select):
        yield from certain_loads(expr.test)
        return
    if isinstance(expr, BoolOp):
        yield from certain_loads(expr.left)
        return
    for part in children(expr):
        yield from certain_loads(part)
    if isinstance(expr, Load):
        yield expr


class Reuse:
    """The loads of one run that are worth a name, forgotten as stores and assignments change what they read.

    `in_memory` tells whether an access goes to memory (rather than to a variable).  A store to a parameter may
    change every parameter; a store to a local array that array only.
    """

    def __init__(
        self, run: tuple[Stmt, ...], arrays: dict[str, Array], in_memory: Callable[[Load | Store], bool]
    ) -> None:
        self._arrays = arrays
        self._in_memory = in_memory
        self._names: dict[Load, str] = {}
        self._repeated: list[set[Load]] = [set() for _ in run]
        self._plan(run)
        self._at = -1

    def _plan(self, run: tuple[Stmt, ...]) -> None:
        """Finds, for each statement, the loads that it does first and that are done again while they hold."""
        first: dict[Load, int] = {}
        for at, stmt in enumerate(run):
            for part in children(stmt):
                for load in certain_loads(part):
                    if not self._in_memory(load):
                        continue
                    if load in first:
                        self._repeated[first[load]].add(load)
                    else:
                        first[load] = at
            for load in [load for load in first if self._changes(stmt, load)]:
                del first[load]

    def _changes(self, stmt: Stmt, load: Load) -> bool:
        """Whether `load` may have another value after `stmt`."""
        if isinstance(stmt, Assign):
            return stmt.target in variables(load)
        if not isinstance(stmt, Store):
            return True
        read = {part.array for part in walk_expr(load) if isinstance(part, Load)}
        if not self._in_memory(stmt):  # a variable: read by an index, at most
            return stmt.array in read
        if self._arrays[stmt.array].space == "global":
            return any(self._arrays[name].space == "global" for name in read)
        return stmt.array in read

    def advance(self, previous: Stmt | None) -> None:
        """Moves on to the next statement."""
        self._at += 1
        if previous is not None:
            for load in [load for load in self._names if self._changes(previous, load)]:
                del self._names[load]

    def known(self, load: Load) -> str | None:
        return self._names.get(load)

    def worth_a_name(self, load: Load) -> bool:
        return load in self._repeated[self._at]

    def remember(self, load: Load, name: str) -> None:
        self._names[load] = name
