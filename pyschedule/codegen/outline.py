"""Which parallel loops can be moved into a function of their own, and what that function needs from outside."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyschedule.ir.blocks import TransposedStores
from pyschedule.ir.nodes import (
    Array,
    Assign,
    Break,
    Dim,
    Expr,
    For,
    If,
    Kernel,
    Poll,
    Return,
    Stmt,
    While,
)
from pyschedule.ir.types import Vector
from pyschedule.ir.visitors import (
    Body,
    children,
    contains,
    counters,
    expressions,
    local_arrays,
    loops,
    may_break,
    read_arrays,
    read_variables,
    variable_types,
    variables,
    walk_expr,
    written_arrays,
    written_variables,
)

Live = frozenset[str]
_NONE: Live = frozenset()


def live_before(body: Body) -> Live:
    """The scalars whose values a body may read from before it."""
    return _Liveness().before(body, _NONE, _NONE)


def live_after(kernel: Kernel) -> dict[str, Live]:
    """The scalars that are read after each loop, by its counter (in a later iteration of a loop around it too)."""
    found: dict[str, Live] = {}
    liveness = _Liveness()

    def visit(body: Body, after: Live, after_loop: Live) -> None:
        for position, stmt in enumerate(body):
            later = liveness.before(body[position + 1 :], after, after_loop)
            if isinstance(stmt, If):
                visit(stmt.body, later, after_loop)
                visit(stmt.orelse, later, after_loop)
            elif isinstance(stmt, For):
                found[stmt.var] = later
                visit(stmt.body, later | liveness.in_loop(stmt.body, later), later)
            elif isinstance(stmt, While):
                visit(stmt.body, liveness.before((stmt,), later, after_loop), later)

    visit(kernel.body, _NONE, _NONE)
    return found


class _Liveness:
    """Live scalars before bodies.  What a statement reads is kept: it is looked at once for each loop around it."""

    def __init__(self) -> None:
        self._reads: dict[int, tuple[Stmt, Live]] = {}

    def before(self, body: Body, after: Live, after_loop: Live) -> Live:
        """Those that a body may read from before it, given those read after it (and after the loop around it, where
        a `break` goes)."""
        live = after
        for stmt in reversed(body):
            live = self._before(stmt, live, after_loop)
        return live

    def in_loop(self, body: Body, after: Live) -> Live:
        """Those live where a trip of a loop begins.  One trip tells: what is live before a statement is what it
        reads, and part of what is live after it, so a second trip adds nothing."""
        return self.before(body, after, after) | after

    def _before(self, stmt: Stmt, after: Live, after_loop: Live) -> Live:
        reads = self._read_by(stmt)
        match stmt:
            case Assign():
                return after - {stmt.target} | reads
            case If():
                arms = (self.before(arm, after, after_loop) for arm in (stmt.body, stmt.orelse))
                return reads.union(*arms)
            case For():
                return reads | self.in_loop(stmt.body, after) - {stmt.var} | after
            case While():
                return self.in_loop(stmt.body, after | reads) | after | reads
            case Break():
                return after_loop
            case Return():
                return reads
            case TransposedStores():
                return reads | self.before(stmt.body, after, after_loop)
            case Poll():
                return after | reads | self.before(stmt.body, _NONE, _NONE)
        return after | reads

    def _read_by(self, stmt: Stmt) -> Live:
        known = self._reads.get(id(stmt))
        if known is None:
            reads = frozenset(name for part in children(stmt) for name in variables(part))
            known = self._reads[id(stmt)] = stmt, reads  # the statement is kept, and with it its identity
        return known[1]


@dataclass(frozen=True, slots=True)
class Captured:
    """What a loop's body uses of the function around it, in a fixed order."""

    arrays: tuple[str, ...]
    scalars: tuple[str, ...]


def captured(loop: For, arrays: Mapping[str, Array]) -> Captured:
    """`arrays`: those in scope at the loop."""
    own = local_arrays(loop.body)
    used = read_arrays(loop.body) | written_arrays(loop.body)
    exprs: list[Expr] = [*expressions(loop.body), *walk_expr(loop.step)]
    used |= {part.array for part in exprs if isinstance(part, Dim)}
    scalars = read_variables(loop.body) | variables(loop.step)
    # The strides of a buffer come from its extents, which may be those of arrays that the loop does not touch.
    for name in sorted(used - set(own)):
        if arrays[name].space != "global":
            for extent in arrays[name].shape:
                scalars |= variables(extent)
                used |= {part.array for part in walk_expr(extent) if isinstance(part, Dim)}
    outer = tuple(name for name in arrays if name in used and name not in own)
    scalars -= written_variables(loop.body) | counters(loop.body) | {loop.var}
    return Captured(outer, tuple(sorted(scalars)))


def obstacle(loop: For, kernel: Kernel, arrays: Mapping[str, Array], after: Live) -> str | None:
    """Why the iterations of a parallel loop cannot be handed to threads by this back end, or `None`."""
    assigned = written_variables(loop.body)
    if carried := sorted(assigned & (after | live_before(loop.body))):
        return f"{', '.join(carried)} is not private to an iteration"
    if contains(loop.body, Return) or may_break(loop.body):
        return "it can be left early"
    outer = captured(loop, arrays)
    types = variable_types(kernel)
    if vectors := [name for name in outer.scalars if isinstance(types.get(name), Vector)]:
        return f"{', '.join(vectors)} is a vector"
    if registers := [name for name in outer.arrays if arrays[name].space == "register"]:
        return f"{', '.join(registers)} lives in registers"
    return None


def shared_arrays(kernel: Kernel) -> frozenset[str]:
    """Local arrays that a parallel loop uses but does not declare: threads must reach them."""
    found: set[str] = set()
    for loop in loops(kernel.body):
        if loop.mapping == "parallel":
            found |= (read_arrays(loop.body) | written_arrays(loop.body)) - set(local_arrays(loop.body))
    return frozenset(found)
