"""Facts of control flow on the surface tree: definite assignment and live variables."""

from __future__ import annotations

from pyschedule.frontend.source import Source
from pyschedule.frontend.surface import (
    Branch,
    Give,
    Leave,
    Loop,
    Name,
    NewArray,
    Number,
    Repeat,
    SetName,
    Skip,
    arrays_in,
    names_read,
)
from pyschedule.ir.nodes import Stmt
from pyschedule.ir.visitors import Body, children, walk_expr

Names = frozenset[str]


def always_runs(loop: Loop) -> bool:
    """Whether constants show that the loop has an iteration."""
    bounds = [part.value for part in (loop.start, loop.stop, loop.step) if isinstance(part, Number)]
    return len(bounds) == 3 and bounds[2] != 0 and bool(range(*map(int, bounds)))


def is_endless(loop: Repeat) -> bool:
    """`while True`."""
    return isinstance(loop.test, Number) and bool(loop.test.value)


def _meet(*states: Names | None) -> Names | None:
    """What holds on every path that joins here; `None` is a path that does not arrive."""
    present = [state for state in states if state is not None]
    return frozenset.intersection(*present) if present else None


class DefiniteAssignment:
    """Refuses a read of a name that some path has not assigned, as Python would when it takes that path."""

    def __init__(self, source: Source, arrays: set[str]) -> None:
        self._source = source
        self._arrays = arrays
        self._exits: list[tuple[list[Names], list[Names]]] = []  # a loop: states at `break`, at `continue`

    def check(self, body: Body, params: tuple[str, ...]) -> bool:
        """Whether the end of the body can be reached.  Raises `FrontendError`."""
        return self._run(body, frozenset(params)) is not None

    def _run(self, body: Body, have: Names | None) -> Names | None:
        for stmt in body:
            if have is None:
                return None  # what follows a jump never runs
            have = self._step(stmt, have)
        return have

    def _step(self, stmt: Stmt, have: Names) -> Names | None:
        self._check_reads(stmt, have)
        if isinstance(stmt, (SetName, NewArray)):
            return have | {stmt.name}
        if isinstance(stmt, Branch):
            return _meet(self._run(stmt.body, have), self._run(stmt.orelse, have))
        if isinstance(stmt, Loop):
            end, leaves, skips = self._loop(stmt.body, have | {stmt.name})
            return _meet(end, *leaves, *skips) if always_runs(stmt) else have
        if isinstance(stmt, Repeat):
            _, leaves, _ = self._loop(stmt.body, have)
            return _meet(*leaves) if is_endless(stmt) else have
        if isinstance(stmt, Leave):
            self._exits[-1][0].append(have)
            return None
        if isinstance(stmt, Skip):
            self._exits[-1][1].append(have)
            return None
        return None if isinstance(stmt, Give) else have

    def _loop(self, body: Body, have: Names) -> tuple[Names | None, list[Names], list[Names]]:
        self._exits.append(([], []))
        end = self._run(body, have)
        leaves, skips = self._exits.pop()
        return end, leaves, skips

    def _check_reads(self, stmt: Stmt, have: Names) -> None:
        for part in children(stmt):
            for node in walk_expr(part):
                if isinstance(node, Name) and node.name not in have:
                    raise self._source.refusal(
                        node.loc,
                        f"'{node.name}' may be read before it has a value",
                        f"give it one first, as in '{node.name} = 0'",
                    )
        for array, loc in arrays_in(stmt):
            if array in self._arrays and array not in have:
                raise self._source.refusal(
                    loc, f"the array '{array}' may be used before it is made", "make it before, on every path"
                )


class Liveness:
    """The names whose values may still be read after each loop of a body without `continue`.

    `after[id(loop)]` holds them for `Loop` and `Repeat` nodes; the nodes must outlive this object.
    """

    def __init__(self, body: Body) -> None:
        self.after: dict[int, Names] = {}
        self._run(body, frozenset(), frozenset())

    def _run(self, body: Body, live: Names, leaving: Names) -> Names:
        """The names live before `body`, given those live after it and those live where `break` leads."""
        for stmt in reversed(body):
            live = self._step(stmt, live, leaving)
        return live

    def _step(self, stmt: Stmt, live: Names, leaving: Names) -> Names:
        reads = frozenset(names_read(stmt))
        if isinstance(stmt, SetName):
            return (live - {stmt.name}) | reads
        if isinstance(stmt, Give):
            return reads
        if isinstance(stmt, Leave):
            return leaving
        if isinstance(stmt, Branch):
            return self._run(stmt.body, live, leaving) | self._run(stmt.orelse, live, leaving) | reads
        if isinstance(stmt, (Loop, Repeat)):
            self.after[id(stmt)] = live
            bound = frozenset({stmt.name}) if isinstance(stmt, Loop) else frozenset()
            again = live if isinstance(stmt, Loop) else live | reads
            while True:  # what the next iteration reads is live at the end of this one
                before = self._run(stmt.body, again, live) - bound
                if before <= again:
                    return live | before | reads
                again |= before
        return live | reads


def escaping_loops(body: Body, live: Liveness) -> set[int]:
    """The `Loop`s whose counter is read after them, or assigned in their body: what the user's name is then is a
    local beside the counter."""
    found: set[int] = set()

    def visit(stmts: Body) -> set[str]:
        """The names that these statements assign as locals."""
        names: set[str] = set()
        for stmt in stmts:
            if isinstance(stmt, SetName):
                names.add(stmt.name)
            elif isinstance(stmt, Branch):
                names |= visit(stmt.body) | visit(stmt.orelse)
            elif isinstance(stmt, (Loop, Repeat)):
                inner = visit(stmt.body)
                if isinstance(stmt, Loop) and (stmt.name in live.after[id(stmt)] or stmt.name in inner):
                    found.add(id(stmt))
                    inner.add(stmt.name)
                names |= inner
        return names

    visit(body)
    return found
