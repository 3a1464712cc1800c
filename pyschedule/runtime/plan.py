"""What a call needs to know of a lowered kernel: plain data, kept in memory and, as JSON, in the on-disk cache."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from pyschedule.ir.nodes import Location
from pyschedule.ir.types import Scalar
from pyschedule.schedule.log import Record


@dataclass(frozen=True, slots=True)
class Check:
    """A test (Python source over `A.shape[0]` and scalar names) that must hold before the kernel runs."""

    test: str
    arrays: tuple[str, ...]
    scalars: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Output:
    """An array that the runtime allocates; its extents are Python source, as in `Check`."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    scalars: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProgramText:
    """One variant of the generated code: a module's text, and the function in it to call."""

    source: str
    entry: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`params`: the entry's parameters in order, outputs included.  `halves`: those passed as 16-bit words.
    `returns` and `results` are `Kernel.returns` and `Kernel.scalar_results`.  `work` estimates the innermost
    iterations of a call.  `parallel` is absent where no loop runs in parallel.  `records` are the log."""

    name: str
    target: str
    params: tuple[str, ...]
    written: tuple[str, ...]
    halves: tuple[str, ...]
    outputs: tuple[Output, ...]
    returns: tuple[str | int, ...]
    results: tuple[Scalar, ...]
    checks: tuple[Check, ...]
    work: str
    work_reads_scalars: bool
    records: tuple[Record, ...]
    serial: ProgramText
    parallel: ProgramText | None

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> Plan:
        """The inverse of `to_json`; `TypeError`, `KeyError` or `ValueError` for anything else."""
        data = dict(data)
        parallel = data["parallel"]
        data |= {
            "params": tuple(data["params"]),
            "written": tuple(data["written"]),
            "halves": tuple(data["halves"]),
            "returns": tuple(data["returns"]),
            "outputs": tuple(Output(**_tuples(item, "shape", "scalars")) for item in data["outputs"]),
            "results": tuple(Scalar(**item) for item in data["results"]),
            "checks": tuple(Check(**_tuples(item, "arrays", "scalars")) for item in data["checks"]),
            "records": tuple(_record(item) for item in data["records"]),
            "serial": ProgramText(**data["serial"]),
            "parallel": None if parallel is None else ProgramText(**parallel),
        }
        return Plan(**data)


def _tuples(item: dict[str, Any], *names: str) -> dict[str, Any]:
    return item | {name: tuple(item[name]) for name in names}


def _record(item: dict[str, Any]) -> Record:
    places = {name: None if item[name] is None else Location(**item[name]) for name in ("loc", "statement")}
    return Record(**(_tuples(item, "details") | places))
