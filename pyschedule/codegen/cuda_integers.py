"""IR expressions as the text of generated CUDA Python.

Integers decide the quality of the code, so an int64 expression is written in one of three ways:

* *exact*: its value, as `u32` where its interval fits 32 unsigned bits, else as `i64`.  For bounds, tests,
  divisions, and whatever is stored;
* *modulo 2**32*: sums, differences and products of `u32`, wrapped once.  For offsets into global arrays, which
  are known to lie in range whatever the intermediate values;
* *modulo 2**64*: the same in `u64`, for offsets into shared and local arrays and in 64-bit programs: NVVM can
  then see that consecutive constant offsets are neighbours, and joins their accesses.

Numba's arithmetic on small integers is done in 64 bits, which is why exact and modular texts are wrapped in a
cast where their width matters.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyschedule.codegen.ptx_names import SHORT
from pyschedule.codegen.ranges import INT64_RANGE, Facts, fits_u32
from pyschedule.errors import InternalError
from pyschedule.ir import index_checks
from pyschedule.ir.nodes import (
    BinOp,
    Broadcast,
    Call,
    Const,
    Dim,
    Expr,
    Location,
    Ramp,
    Select,
    UnaryOp,
    Var,
)
from pyschedule.ir.types import BOOL, INT64, Scalar, element_of, lanes_of

OPERATION: Final = {
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "//": "floordiv",
    "%": "mod",
    "**": "pow",
    "&": "and",
    "|": "or",
    "^": "xor",
    "<<": "shl",
    ">>": "shr",
}
COMPARISON: Final = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
TESTS: Final = ("isnan", "isinf", "isfinite")
EXTREMES: Final = ("pmin", "pmax", "minimum", "maximum")
RING: Final = ("+", "-", "*")


@dataclass(frozen=True, slots=True)
class Text:
    """Generated text; `kind` is the short name of its Numba type, `"literal"` for an integer literal."""

    text: str
    kind: str
    atom: bool = False

    @property
    def operand(self) -> str:
        return self.text if self.atom else f"({self.text})"


def held(scalar: Scalar) -> Scalar:
    """The type a value is computed in: halves are held as float32."""
    return Scalar("float32") if scalar.is_half else scalar.strong()


def as_ramp(expr: Expr) -> Ramp | None:
    """A vector of equidistant integers as one `Ramp`: a `Ramp` plus, minus or times scalars."""
    from pyschedule.ir.build import add, constant, mul, sub

    if isinstance(expr, Ramp):
        return expr
    if not isinstance(expr, BinOp) or expr.dtype != INT64:
        return None
    left, right = expr.left, expr.right
    if isinstance(left, Broadcast):
        left = left.value
    if isinstance(right, Broadcast):
        right = right.value
    if lanes_of(left.type) > 1 and lanes_of(right.type) > 1:
        return None
    if lanes_of(left.type) > 1:
        ramp = as_ramp(left)
        if ramp is not None and expr.op == "+":
            return Ramp(add(ramp.base, right), ramp.stride, ramp.lanes)
        if ramp is not None and expr.op == "-":
            return Ramp(sub(ramp.base, right), ramp.stride, ramp.lanes)
        factor = constant(right)
        if ramp is not None and expr.op == "*" and factor is not None:
            return Ramp(mul(ramp.base, factor), ramp.stride * factor, ramp.lanes)
        return None
    ramp = as_ramp(right)
    if ramp is None:
        return None
    if expr.op == "+":
        return Ramp(add(left, ramp.base), ramp.stride, ramp.lanes)
    if expr.op == "-":
        return Ramp(sub(left, ramp.base), -ramp.stride, ramp.lanes)
    factor = constant(left)
    if expr.op == "*" and factor is not None:
        return Ramp(mul(ramp.base, factor), ramp.stride * factor, ramp.lanes)
    return None


class Integers(ABC):
    """Writes integer expressions; what it needs of the kernel around them comes in through the constructor.

    `kinds` maps variables to the short name of their Numba type.  `extent(array, axis)` and
    `stride(array, axis)` return the name of a kernel parameter, and note that it is used; `pointer(array)`
    the text that stands for the array; `use(name)` notes an intrinsic.  `narrow` programs compute global
    offsets modulo 2**32.
    """

    def __init__(
        self,
        facts: Facts,
        narrow: bool,
        names: dict[str, str],
        kinds: dict[str, str],
        extent: Callable[[str, int], str],
        stride: Callable[[str, int], str],
        pointer: Callable[[str], str],
        status: Callable[[], str],
        checks: Mapping[Location, int],
        readonly: Callable[[str], bool],
        use: Callable[[str], str],
    ) -> None:
        self.facts = facts
        self.narrow = narrow
        self.names = names
        self.kinds = kinds
        self.extent = extent
        self.stride = stride
        self.pointer = pointer
        self.status = status
        self.checks = checks
        self.readonly = readonly
        self.use = use
        self.offset_kind = "u32" if narrow else "i64"

    @abstractmethod
    def vector(self, expr: Expr, lanes: int) -> Text:
        """A vector expression, in the type that its own element type is held in."""

    @abstractmethod
    def choice(self, expr: Select, then: Text, orelse: Text, kind: str) -> Text:
        """`then if test else orelse`."""

    @abstractmethod
    def call(self, expr: Call) -> Text:
        """A function of scalars."""

    # ------------------------------------------------------------------------------------ conversions

    def cast(self, text: Text, kind: str) -> Text:
        """`text` as a value of `kind`; literals get their type, the same type is left alone."""
        if text.kind == kind:
            return text
        if kind == "i64" and text.kind == "literal":
            return Text(text.text, "i64", text.atom)
        if kind == "b8":
            return Text(f"{text.operand} != {self.cast(Text('0', 'literal', True), text.kind).text}", "b8")
        return Text(f"{self.use(kind)}({text.text})", kind, True)

    def value(self, expr: Expr, dtype: Scalar) -> Text:
        """A scalar or vector expression, converted to `dtype` (held as float32 where it is a half)."""
        dtype = held(dtype)
        kind = SHORT[dtype.name]
        source = held(element_of(expr.type))
        lanes = lanes_of(expr.type)
        if lanes > 1:
            vector = self.vector(expr, lanes)
            return vector if source == dtype else Text(f"{self.use('cast_' + kind)}({vector.text})", kind, True)
        return self.cast(self.scalar(expr), kind)

    def scalar(self, expr: Expr) -> Text:
        """A scalar expression in its own type (int64: `u32` or `i64`)."""
        if isinstance(expr, Const):
            return self._constant(expr)
        element = held(element_of(expr.type))
        if element == INT64:
            return self.exact(expr)
        method = getattr(self, "_scalar_" + type(expr).__name__.lower(), None)
        if method is None:
            raise InternalError(f"CUDA code: no scalar form of {type(expr).__name__}")
        text: Text = method(expr)
        return text

    def _constant(self, expr: Const) -> Text:
        dtype = held(expr.dtype)
        if dtype == BOOL:
            return Text(str(bool(expr.value)), "b8", True)
        if dtype.is_float:
            number = float(expr.value)
            text = repr(number) if math.isfinite(number) else f"math.{number!s}".replace("-", "")
            if not math.isfinite(number) and number < 0:
                text = "-" + text
            if dtype.name == "float64":
                return Text(text, "f64", number >= 0)
            return Text(f"{self.use('f32')}({text})", "f32", True)
        if dtype == INT64:
            return Text(str(int(expr.value)), "literal", int(expr.value) >= 0)
        kind = SHORT[dtype.name]
        return Text(f"{self.use(kind)}({int(expr.value)})", kind, True)

    # ------------------------------------------------------------------------------- integers, exactly

    def exact(self, expr: Expr) -> Text:
        """The value of an int64 scalar expression: of kind `u32`, `i64` or `literal` (`u64` for a counter)."""
        if isinstance(expr, Const):
            return self._constant(expr)
        if held(element_of(expr.type)) != INT64:
            return self.cast(self.scalar(expr), "i64")
        if isinstance(expr, Var):
            return Text(self.names[expr.name], self.kinds[expr.name], True)
        if isinstance(expr, Dim):
            return self._dim(expr)
        if isinstance(expr, BinOp):
            return self._exact_binary(expr)
        if isinstance(expr, UnaryOp):
            operator = "~" if expr.op == "~" else "-"
            return Text(f"{operator}{self.signed(expr.operand).operand}", "i64")
        if isinstance(expr, Select):
            kind = "u32" if all(fits_u32(self.facts.interval(arm)) for arm in (expr.then, expr.orelse)) else "i64"
            return self.choice(expr, self.as_kind(expr.then, kind), self.as_kind(expr.orelse, kind), kind)
        if isinstance(expr, Call):
            return self._exact_call(expr)
        method: Callable[[Expr], Text] = getattr(self, "_scalar_" + type(expr).__name__.lower())
        return method(expr)

    def as_kind(self, expr: Expr, kind: str) -> Text:
        """The exact value as `u32` (its interval must fit) or `i64`."""
        return self.cast(self.exact(expr), kind)

    def signed(self, expr: Expr) -> Text:
        return self.as_kind(expr, "i64")

    def _dim(self, expr: Dim) -> Text:
        shape = self.facts.arrays[expr.array].shape[expr.axis]
        if not isinstance(shape, Dim):
            return self.exact(shape)
        return Text(self.extent(expr.array, expr.axis), self.offset_kind, True)

    def _exact_binary(self, expr: BinOp) -> Text:
        parts = (self.facts.interval(expr.left), self.facts.interval(expr.right))
        whole = self.facts.interval(expr)
        small = all(held(element_of(part.type)) == INT64 for part in (expr.left, expr.right))
        if small and expr.op in RING and fits_u32(whole):
            return Text(f"{self.use('u32')}({self.modular(expr, 'u32').text})", "u32", True)
        if small and fits_u32(parts[0]) and fits_u32(parts[1]):
            left, right = (self.as_kind(part, "u32") for part in (expr.left, expr.right))
            if (expr.op in ("//", "%") and parts[1][0] > 0) or expr.op in ("&", "|", "^"):
                return Text(f"{self.use('u32')}({left.operand} {expr.op} {right.operand})", "u32", True)
        left, right = (self.value(part, INT64) for part in (expr.left, expr.right))
        if expr.op in ("<<", ">>", "//", "%"):
            name = self.use("v" + OPERATION[expr.op])
            texts = [
                part.text if part.kind == "i64" else f"{self.use('i64')}({part.text})" for part in (left, right)
            ]
            return Text(f"{name}({', '.join(texts)})", "i64", True)
        if expr.op in RING and whole == INT64_RANGE:  # it may wrap; Numba's signed operators promise not to
            left, right = (self.cast(part, "u64") for part in (left, right))
            return Text(f"{self.use('i64')}({left.operand} {expr.op} {right.operand})", "i64", True)
        return Text(f"{left.operand} {expr.op} {right.operand}", "i64")

    def _exact_call(self, expr: Call) -> Text:
        if expr.function == "checked_index":
            i64 = self.use("i64")
            index, extent = (f"{i64}({self.signed(arg).text})" for arg in expr.args)
            args = ", ".join([self.status(), index, extent, self.check_number(expr)])
            return Text(f"{self.use('checked_index')}({args})", "i64", True)
        if expr.function in EXTREMES and all(held(element_of(arg.type)) == INT64 for arg in expr.args):
            kind = "u32" if all(fits_u32(self.facts.interval(arg)) for arg in expr.args) else "i64"
            args = ", ".join(self.typed_text(self.as_kind(arg, kind), kind) for arg in expr.args)
            return Text(f"{self.use(expr.function)}({args})", kind, True)
        return self.call(expr)

    def check_number(self, expr: Call) -> str:
        """The number of a check of an index, as it is told where the check fails."""
        number = index_checks.UNKNOWN if expr.loc is None else self.checks.get(expr.loc, index_checks.UNKNOWN)
        return f"{self.use('i64')}({number})"

    def typed_text(self, text: Text, kind: str) -> str:
        """Text whose Numba type is exactly `kind`: bare integer literals are wrapped, for intrinsics."""
        if kind == "i64" and text.text.lstrip("-").isdigit():
            return f"{self.use('i64')}({text.text})"
        return text.text

    # ------------------------------------------------------------------------------ integers, modulo 2**n

    def modular(self, expr: Expr, kind: str) -> Text:
        """`expr` modulo 2**32 (`u32`) or 2**64 (`u64`), not yet cut down to that width."""
        width = 32 if kind == "u32" else 64
        if isinstance(expr, Const):
            return Text(f"{self.use(kind)}({int(expr.value) % (1 << width)})", kind, True)
        is_ring = isinstance(expr, BinOp) and expr.dtype == INT64 and expr.op in RING
        if is_ring and isinstance(expr, BinOp):
            left, right = self.modular(expr.left, kind), self.modular(expr.right, kind)
            first = left.text if expr.op == "+" or left.atom else left.operand
            if expr.op == "-" and isinstance(expr.left, BinOp):
                first = left.text
            second = right.operand if expr.op in "-*" else right.text
            first = left.operand if expr.op == "*" else first
            return Text(f"{first} {expr.op} {second}", kind)
        return self.cast(self.exact(expr), kind)
