"""Which surface expressions are integers, as far as that shows before anything is typed."""

from __future__ import annotations

from typing import Final

from pyschedule.frontend.surface import (
    OF_FILL,
    Apply,
    Binary,
    Conditional,
    Convert,
    Element,
    Extent,
    Loop,
    Name,
    Number,
    SetName,
    Unary,
)
from pyschedule.ir.nodes import Array, Expr, Var
from pyschedule.ir.types import INT64, element_of
from pyschedule.ir.visitors import Body, walk

#: An integer of 64 bits, one of fewer, and anything else (a uint64 among them: no int64 holds them all).
WIDE: Final = "wide"
INTEGER: Final = "integer"
OTHER: Final = "other"

_OPERATORS: Final = ("+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>")
_CALLS: Final = ("pmin", "pmax", "abs")
_NARROW: Final = ("int8", "int16", "int32", "uint8", "uint16", "uint32")


class Kinds:
    """The kinds of all names of a body, for parameters as given: a name is what all that is given to it is."""

    def __init__(self, body: Body, params: tuple[Array | Var, ...]) -> None:
        self._elements = {
            param.name: _of_dtype(element_of(param.dtype).name) for param in params if isinstance(param, Array)
        }
        self._names = {
            param.name: WIDE if param.vtype == INT64 else OTHER for param in params if isinstance(param, Var)
        }
        assignments = [stmt for stmt in walk(body) if isinstance(stmt, SetName)]
        for stmt in walk(body):
            if isinstance(stmt, (SetName, Loop)):
                self._names.setdefault(stmt.name, WIDE)
        changed = True
        while changed:  # kinds only fall
            changed = False
            for stmt in assignments:
                kind = _both(self._names[stmt.name], self.of(stmt.value))
                if kind != self._names[stmt.name]:
                    self._names[stmt.name], changed = kind, True

    def of(self, expr: Expr) -> str:
        """`WIDE`, `INTEGER` or `OTHER`."""
        match expr:
            case Number(value=value, dtype=dtype):
                return _of_dtype(dtype or "int64") if type(value) is int else OTHER
            case Extent():
                return WIDE
            case Name(name=name):
                return self._names.get(name, OTHER)
            case Element(array=array):
                return self._elements.get(array, OTHER)
            case Binary(op=op, left=left, right=right) if op in _OPERATORS:
                return _both(self.of(left), self.of(right))
            case Unary(op="-" | "~", operand=operand):
                return self.of(operand)
            case Apply(function=function, home="python", args=args) if function in _CALLS:
                return _all([self.of(arg) for arg in args])
            case Convert(dtype=dtype, operand=operand):
                return self.of(operand) if dtype == OF_FILL else _of_dtype(dtype)
            case Conditional(then=then, orelse=orelse):
                return _both(self.of(then), self.of(orelse))
        return OTHER


def _of_dtype(name: str) -> str:
    return WIDE if name == "int64" else INTEGER if name in _NARROW else OTHER


def _both(one: str, other: str) -> str:
    return _all([one, other])


def _all(kinds: list[str]) -> str:
    return OTHER if OTHER in kinds else INTEGER if INTEGER in kinds else WIDE
