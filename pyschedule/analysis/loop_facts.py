"""What is known of the loops that directives name: how they count, how often, and how they may be left.

For the verbose log.  All of it is worked out when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pyschedule.errors import Unsupported
from pyschedule.ir.build import constant
from pyschedule.ir.nodes import Break, For, Kernel, Location, Return, Stmt, While
from pyschedule.ir.printer import format_expr
from pyschedule.ir.visitors import Body, bodies, walk


@dataclass(frozen=True, slots=True)
class LoopFacts:
    """How a loop of the source counts: `counter` goes from `start` by `step` while it is `comparison` than `bound`.

    `comparison` is `"<"`, `">"`, or empty where the step's sign is known at run time only.  `trip_count` is a sympy
    expression, exact over the integers; `None` where there is no closed form (`reason` says why), as for a loop
    that does not count, which has no `counter`, and a `test` instead.  `exits` are the ways out before the end:
    `"break"` or `"return"`, and where.
    """

    name: str
    loc: Location | None = None
    counter: str = ""
    start: str = ""
    step: str = ""
    bound: str = ""
    comparison: str = ""
    trip_count: Any = None
    exits: tuple[tuple[str, Location | None], ...] = ()
    test: str = ""
    reason: str = ""

    @property
    def trips(self) -> int | None:
        """The trip count where it is a constant."""
        count = self.trip_count
        return int(count) if count is not None and count.is_Integer else None

    def __str__(self) -> str:
        lines = [f"- loop '{self.name}' [{self.loc}]" if self.loc is not None else f"- loop '{self.name}'"]
        if not self.counter:
            lines.append(f"    while {self.test}: {self.reason}")
        else:
            towards = f"{self.counter} {self.comparison or '< or >'} {self.bound}"
            lines.append(f"    counter {self.counter}, from {self.start}, step {self.step}, while {towards}")
            lines.append(f"    trip count: {self._count()}")
        lines += [f"    may be left early: {kind} [{loc}]" for kind, loc in self.exits]
        return "\n".join(lines)

    def _count(self) -> str:
        if self.trip_count is None:
            return f"no closed form: {self.reason}"
        return f"{self.trip_count} (constant)" if self.trips is not None else str(self.trip_count)


def loop_facts(kernel: Kernel, annotated: Callable[[str, int], bool]) -> tuple[LoopFacts, ...]:
    """The facts of the loops of a source nest that directives name, in source order.

    `annotated(source, ordinal)` says whether one does.
    """
    seen: set[tuple[str, int]] = set()
    facts: list[LoopFacts] = []
    for stmt in walk(kernel.body):
        if not isinstance(stmt, (For, While)) or not stmt.source or (stmt.source, stmt.ordinal) in seen:
            continue
        seen.add((stmt.source, stmt.ordinal))
        if annotated(stmt.source, stmt.ordinal):
            facts.append(facts_of(stmt))
    return tuple(facts)


def facts_of(loop: For | While) -> LoopFacts:
    """The facts of one loop of a source nest."""
    name = loop.source if loop.ordinal == 1 else f"{loop.source}#{loop.ordinal}"
    exits = tuple(_exits(loop.body))
    if isinstance(loop, While):
        reason = loop.reason or "its trip count is not known on entry"
        return LoopFacts(name, loop.loc, exits=exits, test=format_expr(loop.test), reason=reason)
    from pyschedule.ir.algebra import trip_count  # sympy: heavy, and needed by few

    step = constant(loop.step)
    comparison = "" if step is None else "<" if step > 0 else ">"
    trip, reason = None, ""
    try:
        trip = trip_count(loop)
    except Unsupported as unsupported:
        reason = unsupported.reason
    return LoopFacts(
        name,
        loop.loc,
        loop.source,
        format_expr(loop.start),
        format_expr(loop.step),
        format_expr(loop.stop),
        comparison,
        trip,
        exits,
        reason=reason,
    )


def _exits(body: Body, inner: bool = False) -> Iterator[tuple[str, Location | None]]:
    """The ways out of a loop before its end: its own `break`s, and every `return`."""
    stmt: Stmt
    for stmt in body:
        if isinstance(stmt, Return):
            yield "return", stmt.loc
        elif isinstance(stmt, Break) and not inner:
            yield "break", stmt.loc
        for part in bodies(stmt):
            yield from _exits(part, inner or isinstance(stmt, (For, While)))
