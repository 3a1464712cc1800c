"""The transform log: what was done, what was skipped and why, as records that print and tabulate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyschedule.errors import Place
from pyschedule.ir.nodes import Location

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the log, and the lines indented under it.

    `transform`: `"Tiling"`, `"Vectorization"`, `"Unroll"`, ...; `status`: `"Applied"`, `"Skipped"` or
    `"Note"` (an automatic request that found nothing, a warning of the front end).  A skipped record warns
    unless `silent`; `loc` is the decorator's place, `statement` that of what stood in the way.
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
        if self.status == "Skipped" and self.loc is not None:
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
    records: tuple[Record, ...] = field(default=())

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    def __add__(self, more: Log | tuple[Record, ...]) -> Log:
        return Log(self.records + tuple(more))

    def __str__(self) -> str:
        return "\n".join(["[Transform Log]", *map(str, self.records)])

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
