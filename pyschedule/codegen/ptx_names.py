"""The names of the memory intrinsics that generated CUDA source calls, as one grammar.

`shared_load_f16x8_masked` is a load of eight halves from a shared array under a mask.  Two readers share the
grammar: `ptx` builds the Numba intrinsic of a name, `runtime.lockstep` its NumPy twin.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pyschedule.ir.types import Scalar

#: Functions that libdevice calls otherwise.
LIBDEVICE_NAMES: Final = {"gamma": "tgamma"}

#: IR dtype → the short name used in generated source; `b8` is a bool stored as one byte.
SHORT: Final = {
    "bool": "b8",
    "int8": "i8",
    "int16": "i16",
    "int32": "i32",
    "int64": "i64",
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "uint64": "u64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
}
LONG: Final = {short: long for long, short in SHORT.items()}

_NAME = re.compile(
    r"^(?:(?P<space>shared|local)_)?(?P<action>load|ldg|store|gather|ldg_gather|scatter)"
    r"_(?P<dtype>" + "|".join(LONG) + r")(?:x(?P<lanes>\d+))?(?P<unaligned>_unaligned)?(?P<masked>_masked)?$"
)


@dataclass(frozen=True, slots=True)
class MemoryName:
    """One memory intrinsic.

    Arguments: `(base, offset)`, then the value of a store, then the mask where `masked`.  `base` is a `uint64`
    address for space `"global"`, else an array.  Offsets count elements; `u32` ones are unsigned.  A `gather`
    or `scatter` takes a vector of offsets (and so carries its lanes).  `aligned` promises that the access is
    aligned to its own size or to 16 bytes, whichever is less.  `readonly` promises that nothing writes the
    array during the launch.
    """

    space: str
    writes: bool
    dtype: str
    lanes: int
    indexed: bool = False
    readonly: bool = False
    aligned: bool = True
    masked: bool = False

    @property
    def scalar(self) -> Scalar:
        return Scalar(self.dtype)

    def __str__(self) -> str:
        prefix = "" if self.space == "global" else self.space + "_"
        if self.writes:
            action = "scatter" if self.indexed else "store"
        elif self.readonly:
            action = "ldg_gather" if self.indexed else "ldg"
        else:
            action = "gather" if self.indexed else "load"
        lanes = f"x{self.lanes}" if self.lanes > 1 else ""
        tail = ("" if self.aligned else "_unaligned") + ("_masked" if self.masked else "")
        return f"{prefix}{action}_{SHORT[self.dtype]}{lanes}{tail}"


def parse(name: str) -> MemoryName | None:
    """The intrinsic that `name` stands for, or `None` where it is not a memory intrinsic."""
    match = _NAME.match(name)
    if match is None:
        return None
    action = match["action"]
    return MemoryName(
        space=match["space"] or "global",
        writes=action in ("store", "scatter"),
        dtype=LONG[match["dtype"]],
        lanes=int(match["lanes"] or 1),
        indexed=action.endswith("gather") or action == "scatter",
        readonly=action.startswith("ldg"),
        aligned=match["unaligned"] is None,
        masked=match["masked"] is not None,
    )
