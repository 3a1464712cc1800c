"""Skipped requests become warnings, or errors in strict mode; and `PYSCHEDULE_LOG` becomes a log on stderr."""

from __future__ import annotations

import logging
import os
import warnings

from pyschedule.errors import LegalityError, ScheduleWarning
from pyschedule.ir.nodes import Location
from pyschedule.schedule.log import Record

logger = logging.getLogger("pyschedule")
logger.addHandler(logging.NullHandler())

#: The `transform` of records that hold what the front end has to warn of.
FRONTEND = "Frontend"


def configure_logging() -> None:
    """`PYSCHEDULE_LOG=1` (or `info`) and `=debug` write the logger `pyschedule` to stderr."""
    wanted = os.environ.get("PYSCHEDULE_LOG", "").strip().lower()
    if wanted in ("", "0", "off"):
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("pyschedule: %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG if wanted == "debug" else logging.INFO)


def strict_requested() -> bool:
    return os.environ.get("PYSCHEDULE_STRICT", "").strip().lower() not in ("", "0", "off", "false")


def _skipped(records: tuple[Record, ...]) -> list[Record]:
    return [record for record in records if record.status == "Skipped" and not record.silent]


def refuse_if_strict(records: tuple[Record, ...], strict: bool) -> None:
    """With `strict`, or `PYSCHEDULE_STRICT` set, skipped requests are one `LegalityError` that lists them."""
    skipped = _skipped(records)
    if skipped and (strict or strict_requested()):
        raise LegalityError("; ".join(map(_text, skipped)), skipped[0].loc)


def announce(records: tuple[Record, ...], module: str) -> None:
    """One `ScheduleWarning` for each request that was skipped aloud, placed at its decorator, for each that was
    carried out and is slow, and for each warning of the front end."""
    others = (record for record in records if record.transform == FRONTEND or record.status == "Warning")
    for record in (*_skipped(records), *others):
        place = record.loc or record.statement
        where = "" if place is None else f"{place}: "
        file, line = ("<unknown>", 1) if place is None else (place.file, place.line)
        warnings.warn_explicit(where + _text(record), ScheduleWarning, file, line, module=module)


def _text(record: Record) -> str:
    text = record.summary
    if record.transform != FRONTEND:
        text = f"{'Skipped ' if record.status == 'Skipped' else ''}{record.transform}: {text}"
    if record.statement is not None and str(record.statement) not in text:
        text += f" (in the way: {_short(record.statement, record.loc)})"
    said = ("", f"at {record.statement}")
    details = [detail for detail in record.details if detail.strip() not in said]
    return "\n    ".join([text, *details])


def _short(place: Location, beside: Location | None) -> str:
    """A position; without its file where the text names that already."""
    if beside is not None and beside.file == place.file:
        return f"line {place.line}, column {place.column + 1}"
    return str(place)
