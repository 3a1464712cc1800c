"""Reports as tables: a line a shape, a column a library, and the ratio of ours to the best of the others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

OURS = "pyschedule"
LIMIT = "copy"
ONE_CORE = ", one core"


@dataclass(frozen=True)
class Table:
    """`rate` is what a cell shows of a row of the report; `apart`: the last columns are differences of time, not
    ratios."""

    title: str
    rate: Callable[[Any], float]
    digits: int = 1
    apart: bool = False
    note: str = ""


def lines(table: Table, frame: Any) -> list[str]:
    """The table in Markdown, its columns padded so that it can be read as it is."""
    names = list(dict.fromkeys(frame["variant"]))
    own = [name for name in names if name.startswith(OURS)]
    peers = [name for name in names if name not in own]
    compared = [name for name in own if not name.endswith(ONE_CORE)]
    short = [name.removeprefix(OURS).strip(" ,") or "ours" for name in compared]
    alone = any(name.endswith(ONE_CORE) for name in own)
    header = ["shape", *names]
    if peers:
        header += [f"{name} - best, µs" if table.apart else f"{name} / best" for name in short]
    header += [f"{name} / {LIMIT}" for name in short if LIMIT in peers]
    header += [f"{name} / one core" for name in short if alone]
    cells = [header]
    for label, group in frame.groupby(["operator", "shape", "dtype"], sort=False):
        rows = {row.variant: row for row in group.itertuples()}
        times = {name: row.time_s for name, row in rows.items()}
        best = min((times[name] for name in peers if name in times and name != LIMIT), default=math.nan)
        line = [_label(frame, label)]
        line += [_number(table.rate(rows[name]), table.digits) if name in rows else "-" for name in names]
        for name in compared if peers else ():
            mine = times.get(name, math.nan)
            line.append(_number((mine - best) * 1e6, 2) if table.apart else _number(best / mine, 3))
        if LIMIT in peers:
            line += [_number(times.get(LIMIT, math.nan) / times.get(name, math.nan), 3) for name in compared]
        if alone:
            line += [_number(times[name + ONE_CORE] / times[name], 2) for name in compared]
        cells.append(line)
    return [f"## {table.title}", "", *([table.note, ""] if table.note else []), *_aligned(cells), ""]


def _label(frame: Any, label: tuple[str, str, str]) -> str:
    """What tells one row of the table from the others."""
    columns = ("operator", "shape", "dtype")
    shown = [
        text for name, text in zip(columns, label, strict=True) if name == "shape" or frame[name].nunique() > 1
    ]
    return " ".join(shown)


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    text = ["| " + " | ".join(_pad(row, widths)) + " |" for row in cells]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return [text[0], "| " + " | ".join(rule) + " |", *text[1:]]


def _pad(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
