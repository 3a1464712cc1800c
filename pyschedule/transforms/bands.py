"""Bands: the loops of a nest that tiling may interleave, and the statements in them.

A band starts at a loop and takes in the one loop inside it, and the one inside that, down to where a body has
none or several.  Statements between the loops (an imperfect nest) belong to the band as *units*: a unit is a
statement without loops of the band, and its *path* are the band's loops around it.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyschedule.analysis import reductions
from pyschedule.ir.nodes import Assign, Break, For, If, Return, Stmt, Store, While
from pyschedule.ir.visitors import variables, walk

Body = tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Unit:
    """A statement of a band, and the band's loops around it, outermost first."""

    stmt: Stmt
    path: tuple[For, ...]


@dataclass(frozen=True, slots=True)
class Band:
    root: For
    loops: tuple[For, ...]
    units: tuple[Unit, ...]

    @property
    def reductions(self) -> frozenset[str]:
        """The counters of its loops that a reduction runs over."""
        return frozenset(loop.var for loop in self.loops if is_reduction_loop(loop))


def chain(root: For) -> tuple[For, ...]:
    """The loops from `root` inwards while each body holds exactly one loop, directly."""
    found = [root]
    while True:
        inner = [stmt for stmt in found[-1].body if isinstance(stmt, For) and stmt.source]
        hidden = any(
            isinstance(part, (For, While))
            for stmt in found[-1].body
            if not isinstance(stmt, For)
            for part in walk((stmt,))
        )
        # A loop with a `break` cannot be split, and moves as a whole.
        if len(inner) != 1 or hidden or any(isinstance(stmt, Break) for stmt in _own(inner[0].body)):
            return tuple(found)
        found.append(inner[0])


def _own(body: Body) -> list[Stmt]:
    """The statements of a body's own level: those under `if` too, those of inner loops not."""
    found: list[Stmt] = []
    for stmt in body:
        found.append(stmt)
        if isinstance(stmt, If):
            found += _own(stmt.body) + _own(stmt.orelse)
    return found


def tree(root: For) -> tuple[For, ...]:
    """All loops of a nest that stand directly in one another's bodies, in textual order."""
    found = [root]
    for stmt in root.body:
        if isinstance(stmt, For) and stmt.source:
            found.extend(tree(stmt))
    return tuple(found)


def band_of(root: For, loops: tuple[For, ...]) -> Band:
    members = {loop.var for loop in loops}

    def units(stmt: Stmt, path: tuple[For, ...]) -> list[Unit]:
        if isinstance(stmt, For) and stmt.var in members:
            return [unit for inner in stmt.body for unit in units(inner, (*path, stmt))]
        return [Unit(stmt, path)]

    return Band(root, loops, tuple(units(root, ())))


def is_reduction_loop(loop: For) -> bool:
    """Whether some reduction inside `loop` accumulates over it: its target does not move with the counter, and
    is not set afresh inside the loop."""
    leaves = [stmt for stmt in walk(loop.body) if isinstance(stmt, (Assign, Store))]
    fresh = {stmt.target for stmt in leaves if isinstance(stmt, Assign) and reductions.match(stmt) is None}
    for stmt in leaves:
        found = reductions.match(stmt)
        if found is None:
            continue
        if found.indices is None:
            if found.name not in fresh:
                return True
        elif not any(loop.var in variables(index) for index in found.indices):
            return True
    return False


def early_exit(body: Body) -> Stmt | None:
    """The first `break` that leaves a loop of this body's own level, or `return` anywhere in it."""
    for stmt in body:
        if isinstance(stmt, (Break, Return)):
            return stmt
        if isinstance(stmt, If):
            found = early_exit(stmt.body) or early_exit(stmt.orelse)
            if found is not None:
                return found
        if isinstance(stmt, (For, While)):
            found = next((part for part in walk(stmt.body) if isinstance(part, Return)), None)
            if found is not None:
                return found
    return None
