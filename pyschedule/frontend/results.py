"""What the front end hands over besides the kernel: remarks, and tests for the runtime to make."""

from __future__ import annotations

from dataclasses import dataclass

from pyschedule.ir.nodes import Expr, Location


@dataclass(frozen=True, slots=True)
class Notice:
    """A remark for the log: the kernel is right as it stands, but may not be what was meant."""

    message: str
    loc: Location | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """`test`, a bool over extents (`Dim`) and scalar parameters, must hold at each call; else `message`."""

    test: Expr
    message: str
    loc: Location | None = None
