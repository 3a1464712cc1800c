"""Value types of the loop-nest IR: scalars (perhaps weak, as Python literals are) and SIMD vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number.

    `weak` marks the type of a Python `int`, `float` or `bool`, which adapts to the other operand as
    NumPy 2 (NEP 50) lets Python scalars adapt.  A weak float computes as float64, a weak integer as int64.
    """

    name: str
    weak: bool = False

    @property
    def kind(self) -> str:
        """`"b"` (bool), `"i"`, `"u"` (integers) or `"f"` (floats)."""
        return _KINDS[self.name]

    @property
    def bytes(self) -> int:
        return _BYTES[self.name]

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def is_half(self) -> bool:
        """A 16-bit float: stored as such, computed with in float32."""
        return self.name in ("float16", "bfloat16")

    def strong(self) -> Scalar:
        return Scalar(self.name) if self.weak else self

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Vector:
    """`lanes` values of one scalar type, held in SIMD registers (CPU) or a 128-bit access (GPU)."""

    element: Scalar
    lanes: int

    @property
    def bytes(self) -> int:
        return self.element.bytes * self.lanes

    def __str__(self) -> str:
        return f"{self.element}x{self.lanes}"


Type = Scalar | Vector

_BYTES: Final = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "uint8": 1,
    "uint16": 2,
    "uint32": 4,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}
_KINDS: Final = {
    name: "b" if name == "bool" else "u" if name.startswith("u") else "i" if name.startswith("int") else "f"
    for name in _BYTES
}
DTYPES: Final = tuple(_BYTES)

BOOL: Final = Scalar("bool")
INT64: Final = Scalar("int64")
INT32: Final = Scalar("int32")
FLOAT32: Final = Scalar("float32")
FLOAT64: Final = Scalar("float64")
WEAK_INT: Final = Scalar("int64", weak=True)
WEAK_FLOAT: Final = Scalar("float64", weak=True)
WEAK_BOOL: Final = Scalar("bool", weak=True)


def element_of(type_: Type) -> Scalar:
    return type_.element if isinstance(type_, Vector) else type_


def lanes_of(type_: Type) -> int:
    return type_.lanes if isinstance(type_, Vector) else 1


def with_lanes(type_: Type, lanes: int) -> Type:
    """The same element type in `lanes` lanes; one lane is the scalar itself."""
    element = element_of(type_)
    return element if lanes == 1 else Vector(element, lanes)
