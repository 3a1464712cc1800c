from __future__ import annotations
from dataclasses import dataclass
@dataclass(frozen=True, slots=True)
class Block:
    input_shapes: tuple[tuple[int | None, ...], ...]
    tile_shapes: tuple[tuple[int, ...], ...]
    pad: tuple[tuple[int, ...], ...] | int = 0
def lift(*a): raise NotImplementedError
