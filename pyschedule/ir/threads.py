"""Rules about the threads of a GPU's block: what may differ between them, and where it must not."""

from __future__ import annotations

from collections.abc import Iterator

from pyschedule.ir.nodes import (
    Alloc,
    Assign,
    Barrier,
    Break,
    Expr,
    For,
    If,
    Load,
    Poll,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.printer import headline
from pyschedule.ir.survey import Survey
from pyschedule.ir.visitors import Body, bodies, children, walk, walk_expr


def barriers_are_uniform(found: Survey) -> Iterator[str]:
    """All threads of a block reach the same barriers, and share out the same cooperative loops.

    So no test and no bound around one may depend on what differs between threads: their counters, scalars
    computed from these, elements of arrays that each thread has for itself.
    """
    shared_work = any(loop.mapping == "cooperative" for loop, _ in found.all(For))
    meeting = any(poll.together for poll, _ in found.all(Poll))
    if shared_work or meeting or found.nodes[Barrier]:
        private = {name for name, array in found.arrays.items() if array.space in ("local", "register")}
        differing = _Differing(private)
        while True:  # what is assigned late in a loop is read early in it: until nothing new differs
            before = len(differing.names)
            differing.sentences.clear()
            differing.body(found.kernel.body, apart=False, threads=False)
            if len(differing.names) == before:
                break
        yield from differing.sentences


class _Differing:
    """`names`: the variables that differ between threads, of those that were seen; only grows."""

    def __init__(self, private: set[str]) -> None:
        self.private = private
        self.names: set[str] = set()
        self.sentences: list[str] = []

    def differs(self, expr: Expr) -> bool:
        return any(
            (isinstance(part, Var) and part.name in self.names)
            or (isinstance(part, Load) and part.array in self.private)
            for part in walk_expr(expr)
        )

    def body(self, body: Body, apart: bool, threads: bool) -> None:
        """`apart`: only some threads may be here; `threads`: inside a loop over threads."""
        for stmt in body:
            differs = threads and any(self.differs(part) for part in children(stmt))
            match stmt:
                case Barrier():
                    if apart:
                        self.sentences.append("a barrier is where only some threads may come")
                case Poll():
                    if stmt.together and apart:
                        self.sentences.append("threads leave together where only some of them may come")
                case Assign():
                    if differs or apart:
                        self.names.add(stmt.target)
                case For():
                    self._loop(stmt, apart, threads, differs)
                case If() | While():
                    if isinstance(stmt, While) and (differs or apart) and _meets(stmt.body):
                        self.sentences.append(f"threads part in `{headline(stmt)}`, which has a barrier")
                    for inner in bodies(stmt):
                        self.body(inner, apart or differs, threads)

    def _loop(self, stmt: For, apart: bool, threads: bool, differs: bool) -> None:
        if stmt.mapping.startswith("thread"):
            self.names.add(stmt.var)
            self.body(stmt.body, apart or differs, True)
            return
        if differs:
            self.names.add(stmt.var)
        if stmt.mapping == "cooperative":
            if apart or differs:
                self.sentences.append(f"only some threads may share out `{headline(stmt)}`")
            if threads and any(self.differs(part) for part in _reads(stmt.body)):
                self.sentences.append(f"what one thread does for all in `{headline(stmt)}` depends on which")
            directly = len(stmt.body) == 1 and _is_cooperative(stmt.body[0])
            self.body(stmt.body, apart or not directly, threads)  # a nest is shared out as a whole
            return
        if _meets(stmt.body) and _leaves_early(stmt.body, self):
            self.sentences.append(f"only some threads may leave `{headline(stmt)}`, which has a barrier")
        self.body(stmt.body, apart or differs, threads)


def _meets(body: Body) -> bool:
    """Whether a body has a barrier, or a poll that is one."""
    return any(isinstance(stmt, Barrier) or (isinstance(stmt, Poll) and stmt.together) for stmt in walk(body))


def _is_cooperative(stmt: Stmt) -> bool:
    return isinstance(stmt, For) and stmt.mapping == "cooperative"


def _reads(body: Body) -> Iterator[Expr]:
    """The expressions of a body, without those that read what the body itself assigns."""
    written = {stmt.target for stmt in walk(body) if isinstance(stmt, Assign)}
    for stmt in walk(body):
        for part in children(stmt):
            if not any(isinstance(inner, Var) and inner.name in written for inner in walk_expr(part)):
                yield part


def _leaves_early(body: Body, differing: _Differing, apart: bool = False) -> bool:
    """Whether a `break` of the loop with this body stands under a test that differs between threads."""
    for stmt in body:
        if isinstance(stmt, Break) and apart:
            return True
        if isinstance(stmt, If):
            inner = apart or differing.differs(stmt.test)
            if any(_leaves_early(arm, differing, inner) for arm in bodies(stmt)):
                return True
    return False


def private_arrays_are_written_by_one_thread(found: Survey) -> Iterator[str]:
    """A local or register array that threads write is declared inside the loops over them."""
    if any(loop.mapping.startswith("thread") for loop, _ in found.all(For)):
        yield from _private_writes(found, found.kernel.body, set(), set())


def _private_writes(found: Survey, body: Body, outside: set[str], here: set[str]) -> Iterator[str]:
    """`outside`: private arrays declared outside the innermost loop over threads; `here`: inside it."""
    here = set(here)
    for stmt in body:
        if isinstance(stmt, Alloc) and stmt.array.space in ("local", "register"):
            here.add(stmt.array.name)
        elif isinstance(stmt, Store) and stmt.array in outside and stmt.array not in here:
            yield f"all threads write {stmt.array}, which each should have for itself, in `{headline(stmt)}`"
        threads = isinstance(stmt, For) and stmt.mapping.startswith("thread")
        for inner in bodies(stmt):
            yield from _private_writes(
                found, inner, outside | here if threads else outside, set() if threads else here
            )
