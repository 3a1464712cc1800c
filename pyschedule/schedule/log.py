"""The transform log: what was done, what was skipped and why, as records that print and tabulate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyschedule.errors import Place
from pyschedule.ir.nodes import Location

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the log, and the lines indented under it.

    `transform`: `"Tiling"`, `"Vectorization"`, `"Unroll"`, ...; `status`: `"Applied"`, `"Skipped"`, `"Warning"` (it
    was applied, and is slow) or `"Note"` (an automatic request that found nothing, a warning of the front end).  A
    skipped record warns unless `silent`, a warning always; `loc` is the decorator's place, `statement` that of what
    stood in the way.
    """

    transform: str
    status: str
    summary: str
    details: tuple[str, ...] = ()
    loc: Location | None = None
    statement: Location | None = None
    silent: bool = False

    def __str__(self) -> str:
        lines = [f"- {self.status} {self.transform}: {self.summary}"]
        if self.status in ("Skipped", "Warning") and self.loc is not None:
            lines[0] += f" [{self.loc}]"
        lines += [f"    {detail}" for detail in self.details]
        return "\n".join(lines)


def skipped(
    transform: str, summary: str, loc: Location | None, place: Place | None = None, *, silent: bool = False
) -> Record:
    """The record of a request that was not carried out; `place` is the statement in the way.  `silent`: nobody
    named a loop or a width, so that finding nothing is a note and no warning."""
    statement = place if isinstance(place, Location) else None
    details = () if statement is None else (f"at {statement}",)
    return Record(transform, "Note" if silent else "Skipped", summary, details, loc, statement, silent)


@dataclass(frozen=True, slots=True)
class Log:
    """The records of a lowering.  `facts` works out what is known of the loops that its directives name
    (`analysis.loop_facts.LoopFacts`, which print as lines of the log)."""

    records: tuple[Record, ...] = field(default=())
    facts: Callable[[], tuple[Any, ...]] | None = field(default=None, compare=False, repr=False)

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __add__(self, more: Log | tuple[Record, ...]) -> Log:
        return Log(self.records + tuple(more), self.facts)

    def __str__(self) -> str:
        return "\n".join(["[Transform Log]", *map(str, self.records)])

    def loops(self) -> tuple[Any, ...]:
        """The facts of the loops that directives name; none where nothing was lowered (a plan from the cache)."""
        return self.facts() if self.facts is not None else ()

    def verbose(self) -> str:
        """The log, then under `[Loops]` how each loop that a directive names counts, how often, and how it may be
        left."""
        facts = self.loops()
        return "\n".join([str(self), *(["", "[Loops]"] if facts else []), *map(str, facts)])

    def to_frame(self) -> pandas.DataFrame:
        """One row a record: transform, status, summary, details, file, line, column."""
        import pandas

        return pandas.DataFrame(
            [
                {
                    "transform": record.transform,
                    "status": record.status,
                    "summary": record.summary,
                    "details": "\n".join(record.details),
                    "file": record.loc.file if record.loc else None,
                    "line": record.loc.line if record.loc else None,
                    "column": record.loc.column + 1 if record.loc else None,
                }
                for record in self.records
            ],
            columns=["transform", "status", "summary", "details", "file", "line", "column"],
        )
