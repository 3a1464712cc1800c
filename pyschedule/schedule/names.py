"""How directives call loops: `j` (every loop of that name), `j#2` (the second in source order), `j.1` (a piece)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyschedule.ir.nodes import For, While

_NAME = re.compile(r"^([^\W\d]\w*)(?:#([1-9]\d*))?(?:\.(\d+))?$")


@dataclass(frozen=True, slots=True)
class LoopSpec:
    """A parsed name: `ordinal` and `piece` are `None` where the user did not say."""

    source: str
    ordinal: int | None = None
    piece: int | None = None

    def names(self, source: str, ordinal: int) -> bool:
        """Whether this means the loop `source`, the `ordinal`-th of its name."""
        return self.source == source and self.ordinal in (None, ordinal)

    def matches(self, loop: For | While) -> bool:
        """Whether this means that loop; a name without a piece means all pieces of the loop."""
        if not self.names(loop.source, loop.ordinal):
            return False
        return self.piece is None or (isinstance(loop, For) and loop.piece == self.piece)


def parse(name: str) -> LoopSpec | None:
    """`None` where the text is no name of a loop."""
    match = _NAME.match(name)
    if match is None:
        return None
    return LoopSpec(match[1], int(match[2]) if match[2] else None, int(match[3]) if match[3] else None)
