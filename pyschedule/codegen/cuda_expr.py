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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyschedule.codegen.cuda_ranges import Facts, fits_u32
from pyschedule.codegen.ptx_names import SHORT, MemoryName
from pyschedule.errors import InternalError, Unsupported
from pyschedule.ir.nodes import (
    Array,
    BinOp,
    BoolOp,
    Broadcast,
    Call,
    Cast,
    Compare,
    Const,
    Dim,
    Expr,
    Load,
    Ramp,
    Reduce,
    Select,
    UnaryOp,
    Var,
)
from pyschedule.ir.types import BOOL, INT64, Scalar, Vector, element_of, lanes_of

_OPERATION: Final = {
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
_COMPARISON: Final = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_TESTS: Final = ("isnan", "isinf", "isfinite")
_EXTREMES: Final = ("pmin", "pmax", "minimum", "maximum")
_RING: Final = ("+", "-", "*")


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


class Expressions:
    """Writes expressions; what it needs of the kernel around them comes in through the constructor.

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
        self.readonly = readonly
        self.use = use
        self.offset_kind = "u32" if narrow else "i64"

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
            return self._choose(expr, self.as_kind(expr.then, kind), self.as_kind(expr.orelse, kind), kind)
        if isinstance(expr, Call):
            return self._exact_call(expr)
        method = getattr(self, "_scalar_" + type(expr).__name__.lower())
        text: Text = method(expr)
        return text

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
        if small and expr.op in _RING and fits_u32(whole):
            return Text(f"{self.use('u32')}({self.modular(expr, 'u32').text})", "u32", True)
        if small and fits_u32(parts[0]) and fits_u32(parts[1]):
            left, right = (self.as_kind(part, "u32") for part in (expr.left, expr.right))
            if (expr.op in ("//", "%") and parts[1][0] > 0) or expr.op in ("&", "|", "^"):
                return Text(f"{self.use('u32')}({left.operand} {expr.op} {right.operand})", "u32", True)
        left, right = (self.value(part, INT64) for part in (expr.left, expr.right))
        if expr.op in ("<<", ">>", "//", "%"):
            name = self.use("v" + _OPERATION[expr.op])
            return Text(f"{name}({self.use('i64')}({left.text}), {self.use('i64')}({right.text}))", "i64", True)
        return Text(f"{left.operand} {expr.op} {right.operand}", "i64")

    def _exact_call(self, expr: Call) -> Text:
        if expr.function == "checked_index":
            index, extent = (self.signed(arg).text for arg in expr.args)
            i64 = self.use("i64")
            return Text(
                f"{self.use('checked_index')}({self.status()}, {i64}({index}), {i64}({extent}))", "i64", True
            )
        if expr.function in _EXTREMES and all(held(element_of(arg.type)) == INT64 for arg in expr.args):
            kind = "u32" if all(fits_u32(self.facts.interval(arg)) for arg in expr.args) else "i64"
            args = ", ".join(self._typed(self.as_kind(arg, kind), kind) for arg in expr.args)
            return Text(f"{self.use(expr.function)}({args})", kind, True)
        return self._scalar_call(expr)

    def _typed(self, text: Text, kind: str) -> str:
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
        is_ring = isinstance(expr, BinOp) and expr.dtype == INT64 and expr.op in _RING
        if is_ring and isinstance(expr, BinOp):
            left, right = self.modular(expr.left, kind), self.modular(expr.right, kind)
            first = left.text if expr.op == "+" or left.atom else left.operand
            if expr.op == "-" and isinstance(expr.left, BinOp):
                first = left.text
            second = right.operand if expr.op in "-*" else right.text
            first = left.operand if expr.op == "*" else first
            return Text(f"{first} {expr.op} {second}", kind)
        return self.cast(self.exact(expr), kind)

    # ------------------------------------------------------------------------------------ other scalars

    def _scalar_var(self, expr: Var) -> Text:
        return Text(self.names[expr.name], SHORT[held(element_of(expr.vtype)).name], True)

    def _scalar_binop(self, expr: BinOp) -> Text:
        kind = SHORT[held(expr.dtype).name]
        left, right = self.value(expr.left, expr.dtype), self.value(expr.right, expr.dtype)
        if held(expr.dtype) == BOOL:
            name = {"+": "vor", "*": "vand", "&": "vand", "|": "vor", "^": "vxor"}.get(expr.op)
            if name is None:
                raise Unsupported(f"{expr.op!r} of two bools has no CUDA form", expr.loc)
            return Text(f"{self.use(name)}({left.text}, {right.text})", "b8", True)
        if expr.op in ("<<", ">>", "//", "%"):
            name = "v" + _OPERATION[expr.op]
            return Text(f"{self.use(name)}({left.text}, {right.text})", kind, True)
        if expr.dtype.is_float and expr.op == "**":
            return self._libdevice("pow", (left, right), kind)
        text = Text(f"{left.operand} {expr.op} {right.operand}", kind)
        if expr.dtype.is_integer:  # Numba computes small integers in 64 bits
            return Text(f"{self.use(kind)}({text.text})", kind, True)
        return text

    def _scalar_compare(self, expr: Compare) -> Text:
        if expr.dtype == INT64:
            sides = (expr.left, expr.right)
            small = all(fits_u32(self.facts.interval(side)) for side in sides)
            kind = "u32" if small and all(held(element_of(side.type)) == INT64 for side in sides) else "i64"
            left, right = (self.as_kind(side, kind) for side in sides)
        else:
            left, right = self.value(expr.left, expr.dtype), self.value(expr.right, expr.dtype)
        return Text(f"{left.operand} {expr.op} {right.operand}", "b8")

    def _scalar_boolop(self, expr: BoolOp) -> Text:
        left, right = self.value(expr.left, BOOL), self.value(expr.right, BOOL)
        return Text(f"{left.operand} {expr.op} {right.operand}", "b8")

    def _scalar_unaryop(self, expr: UnaryOp) -> Text:
        kind = SHORT[held(element_of(expr.type)).name]
        operand = self.value(expr.operand, element_of(expr.type))
        if expr.op == "not":
            return Text(f"not {operand.operand}", "b8")
        if kind == "b8":
            return Text(f"not {operand.operand}", "b8")
        text = f"{expr.op}{operand.operand}"
        if element_of(expr.type).is_integer:
            return Text(f"{self.use(kind)}({text})", kind, True)
        return Text(text, kind)

    def _choose(self, expr: Select, then: Text, orelse: Text, kind: str) -> Text:
        test = self.value(expr.test, BOOL)
        return Text(f"{then.operand} if {test.operand} else {orelse.operand}", kind)

    def _scalar_select(self, expr: Select) -> Text:
        kind = SHORT[held(expr.dtype).name]
        return self._choose(expr, self.value(expr.then, expr.dtype), self.value(expr.orelse, expr.dtype), kind)

    def _scalar_cast(self, expr: Cast) -> Text:
        kind = SHORT[held(expr.dtype).name]
        operand = self.value(expr.operand, held(expr.dtype))
        if expr.dtype.is_half:
            return Text(f"{self.use('round_' + SHORT[expr.dtype.name])}({operand.text})", "f32", True)
        return Text(operand.text, kind, operand.atom)

    def _scalar_call(self, expr: Call) -> Text:
        kind = SHORT[held(expr.dtype).name]
        if expr.function in _TESTS:
            source = held(element_of(expr.args[0].type))
            argument = self._typed(self.value(expr.args[0], source), SHORT[source.name])
            return Text(f"{self.use('v' + expr.function)}({argument})", "b8", True)
        args = tuple(self.value(arg, expr.dtype) for arg in expr.args)
        texts = ", ".join(self._typed(arg, kind) for arg in args)
        if expr.function in _EXTREMES:
            return Text(f"{self.use(expr.function)}({texts})", kind, True)
        if expr.function == "abs":
            return Text(f"{self.use('vabs')}({texts})", kind, True)
        if not expr.dtype.is_float:
            raise InternalError(f"CUDA code: {expr.function} of {expr.dtype}")
        return self._libdevice(expr.function, args, kind)

    def _libdevice(self, function: str, args: tuple[Text, ...], kind: str) -> Text:
        name = function + ("f" if kind == "f32" else "")
        return Text(f"libdevice.{name}({', '.join(arg.text for arg in args)})", kind, True)

    def _scalar_reduce(self, expr: Reduce) -> Text:
        element = held(element_of(expr.vector.type))
        operation = {"and": "and", "or": "or"}.get(expr.op) or _OPERATION.get(expr.op) or expr.op
        vector = self.value(expr.vector, element)
        if lanes_of(expr.vector.type) == 1:
            return vector
        return Text(f"{self.use('reduce_' + operation)}({vector.text})", SHORT[element.name], True)

    def _scalar_load(self, expr: Load) -> Text:
        return self.load(expr)

    # ------------------------------------------------------------------------------------------ vectors

    def vector(self, expr: Expr, lanes: int) -> Text:
        """A vector expression, in the type that its own element type is held in."""
        element = held(element_of(expr.type))
        kind = SHORT[element.name]
        if lanes_of(expr.type) == 1:
            scalar = self.value(expr, element)
            return Text(f"{self.use(f'splat{lanes}')}({self._typed(scalar, kind)})", kind, True)
        if isinstance(expr, Var):
            return Text(self.names[expr.name], kind, True)
        if isinstance(expr, Load):
            return self.load(expr)
        if isinstance(expr, Broadcast):
            return self.vector(expr.value, lanes)
        if isinstance(expr, Ramp):
            i64 = self.use("i64")
            base = self.signed(expr.base).text
            return Text(f"{self.use(f'ramp{lanes}')}({i64}({base}), {i64}({expr.stride}))", "i64", True)
        method = getattr(self, "_vector_" + type(expr).__name__.lower(), None)
        if method is None:
            raise InternalError(f"CUDA code: no vector form of {type(expr).__name__}")
        text: Text = method(expr, lanes)
        return text

    def lanes(self, expr: Expr, dtype: Scalar, lanes: int) -> str:
        """`expr` in `lanes` lanes of `dtype`."""
        if lanes_of(expr.type) == 1:
            kind = SHORT[held(dtype).name]
            return f"{self.use(f'splat{lanes}')}({self._typed(self.value(expr, dtype), kind)})"
        return self.value(expr, dtype).text

    def _apply(self, name: str, kind: str, *args: str) -> Text:
        return Text(f"{self.use(name)}({', '.join(args)})", kind, True)

    def _vector_binop(self, expr: BinOp, lanes: int) -> Text:
        kind = SHORT[held(expr.dtype).name]
        operation = _OPERATION[expr.op]
        if held(expr.dtype) == BOOL:
            operation = {"add": "or", "mul": "and"}.get(operation, operation)
        if operation == "pow" and not expr.dtype.is_float:
            raise Unsupported("'**' of integer vectors has no CUDA form", expr.loc)
        sides = (self.lanes(side, expr.dtype, lanes) for side in (expr.left, expr.right))
        return self._apply("v" + operation, kind, *sides)

    def _vector_compare(self, expr: Compare, lanes: int) -> Text:
        sides = (self.lanes(side, expr.dtype, lanes) for side in (expr.left, expr.right))
        return self._apply("v" + _COMPARISON[expr.op], "b8", *sides)

    def _vector_boolop(self, expr: BoolOp, lanes: int) -> Text:
        sides = (self.lanes(side, BOOL, lanes) for side in (expr.left, expr.right))
        return self._apply("v" + expr.op, "b8", *sides)

    def _vector_unaryop(self, expr: UnaryOp, lanes: int) -> Text:
        element = held(element_of(expr.type))
        name = "vneg" if expr.op == "-" else "vnot" if expr.op == "not" else "vinv"
        return self._apply(name, SHORT[element.name], self.lanes(expr.operand, element, lanes))

    def _vector_select(self, expr: Select, lanes: int) -> Text:
        then, orelse = (self.lanes(arm, expr.dtype, lanes) for arm in (expr.then, expr.orelse))
        return self._apply("vselect", SHORT[held(expr.dtype).name], self.lanes(expr.test, BOOL, lanes), then, orelse)

    def _vector_cast(self, expr: Cast, lanes: int) -> Text:
        value = self.lanes(expr.operand, held(expr.dtype), lanes)
        if expr.dtype.is_half:
            return self._apply("round_" + SHORT[expr.dtype.name], "f32", value)
        return Text(value, SHORT[expr.dtype.name], True)

    def _vector_call(self, expr: Call, lanes: int) -> Text:
        if expr.function == "checked_index":
            index = self.lanes(expr.args[0], INT64, lanes)
            extent = f"{self.use('i64')}({self.signed(expr.args[1]).text})"
            return self._apply("checked_index", "i64", self.status(), index, extent)
        if expr.function in _TESTS:
            element = held(element_of(expr.args[0].type))
            return self._apply("v" + expr.function, "b8", self.lanes(expr.args[0], element, lanes))
        args = (self.lanes(arg, expr.dtype, lanes) for arg in expr.args)
        return self._apply("v" + expr.function, SHORT[held(expr.dtype).name], *args)

    # ------------------------------------------------------------------------------------------- memory

    def _strides(self, array: Array) -> list[int | str | None]:
        """Per axis: the stride of a local array as a number, `None` for the unit axis of a parameter, else the
        name of the stride parameter."""
        if array.space == "global":
            return [
                None if axis == array.unit_axis else self.stride(array.name, axis) for axis in range(array.rank)
            ]
        strides: list[int | str | None] = []
        step = lanes_of(array.dtype)
        for extent in reversed(array.shape):
            strides.append(step)
            value = self.facts.interval(extent)
            step *= value[1]
        return strides[::-1]

    def _offset(self, array: Array, indices: tuple[Expr, ...]) -> Text:
        """The element offset of a scalar access (or of a vector's first lane)."""
        strides = self._strides(array)
        if array.space != "global":
            return self._sum([(index, stride) for index, stride in zip(indices, strides, strict=True)], "u64")
        if not self.narrow:
            return self._sum([(index, stride) for index, stride in zip(indices, strides, strict=True)], "u64")
        rest: list[tuple[Expr, int | str | None]] = []
        constants: list[tuple[Expr, int | str | None]] = []
        for index, stride in zip(indices, strides, strict=True):
            if stride is None:
                fixed, moving = self._split_constant_part(index)
                constants.extend((part, None) for part in fixed)
                rest.extend((part, None) for part in moving)
            else:
                rest.append((index, stride))
        if not constants:
            return self._sum(rest, "u32")
        if not rest:
            return self._sum(constants, "u64")
        narrow = self._sum(rest, "u32")
        return Text(f"{self.use('u64')}({narrow.text}) + {self._sum(constants, 'u64').text}", "u64")

    def _split_constant_part(self, index: Expr) -> tuple[list[Expr], list[Expr]]:
        """The terms of a sum over unrolled counters alone, which become immediate offsets, and the others.

        Both parts must be non-negative, so that either is exact by itself; else all is one part.
        """
        terms = _terms(index)
        fixed = [term for term in terms if self._is_unrolled(term)]
        moving = [term for term in terms if not self._is_unrolled(term)]
        low = sum(self.facts.interval(term)[0] for term in moving)
        if not fixed or low < 0 or any(self.facts.interval(term)[0] < 0 for term in fixed):
            return [], [index]
        return fixed, moving

    def _is_unrolled(self, term: Expr) -> bool:
        from pyschedule.ir.visitors import walk_expr

        leaves = [part for part in walk_expr(term) if not isinstance(part, BinOp)]
        return all(
            isinstance(leaf, Const) or (isinstance(leaf, Var) and self.kinds.get(leaf.name) == "u64")
            for leaf in leaves
        )

    def _sum(self, parts: list[tuple[Expr, int | str | None]], kind: str) -> Text:
        """`sum(index * stride)` modulo 2**32 or 2**64, cut down to that width."""
        terms: list[str] = []
        for index, stride in parts:
            if isinstance(index, Const) and (index.value == 0 or stride == 0):
                continue
            text = self.modular(index, kind)
            if stride is None or stride == 1:
                terms.append(text.text)
            elif isinstance(stride, int):
                terms.append(f"{text.operand} * {self.use(kind)}({stride})")
            else:
                factor = stride if self.offset_kind == kind else f"{self.use(kind)}({stride})"
                terms.append(f"{text.operand} * {factor}")
        if not terms:
            return Text(f"{self.use(kind)}(0)", kind, True)
        total = " + ".join(terms)
        if kind == "u64":
            return Text(total, kind)
        if len(terms) == 1 and total.isidentifier():
            return Text(total, kind, True)
        return Text(f"{self.use(kind)}({total})", kind, True)

    def _element_bytes(self, array: Array) -> int:
        return element_of(array.dtype).bytes

    def _is_aligned(self, array: Array, indices: tuple[Expr, ...], lanes: int) -> bool:
        """Whether consecutive lanes from these indices start at a multiple of their size (at most 16 bytes)."""
        size = self._element_bytes(array)
        need = min(16, lanes * size) // size
        if need <= 1:
            return True
        for axis, index in enumerate(indices):
            if array.space == "global":
                unit = 1 if axis == array.unit_axis else array.divisor
            else:
                stride = self._strides(array)[axis]
                unit = stride if isinstance(stride, int) else 1
            if (self.facts.divisor(index) * unit) % need:
                return False
        return array.space != "global" or array.divisor % need == 0

    def access(
        self, array: Array, indices: tuple[Expr, ...], lanes: int, writes: bool, masked: bool
    ) -> tuple[MemoryName, str]:
        """The intrinsic and the offset of a vector access."""
        space = "global" if array.space == "global" else "shared" if array.space == "shared" else "local"
        readonly = space == "global" and not writes and self.readonly(array.name)
        dtype = element_of(array.dtype).name
        vectors = [axis for axis, index in enumerate(indices) if lanes_of(index.type) > 1]
        unit = array.unit_axis if array.space == "global" else array.rank - 1
        ramps = {axis: as_ramp(indices[axis]) for axis in vectors}
        bases = tuple(
            ramp.base if (ramp := ramps.get(axis)) is not None else index for axis, index in enumerate(indices)
        )
        if len(vectors) <= 1 and not isinstance(array.dtype, Vector):
            axis = vectors[0] if vectors else None
            ramp = ramps[axis] if axis is not None else None
            contiguous = ramp is not None and ramp.stride == 1 and axis == unit
            if contiguous:
                aligned = self._is_aligned(array, bases, lanes)
                name = MemoryName(space, writes, dtype, lanes, False, readonly, aligned, masked)
                return name, self._offset(array, bases).text
        if isinstance(array.dtype, Vector) and not vectors:
            name = MemoryName(space, writes, dtype, lanes, False, readonly, True, masked)
            return name, self._offset(array, indices).text
        name = MemoryName(space, writes, dtype, 1, True, readonly, True, masked)
        return name, self._vector_offsets(array, indices, lanes)

    def _vector_offsets(self, array: Array, indices: tuple[Expr, ...], lanes: int) -> str:
        """Offsets lane by lane, in int64."""
        i64 = self.use("i64")
        total = ""
        for index, stride in zip(indices, self._strides(array), strict=True):
            part = self.lanes(index, INT64, lanes)
            if stride is not None and stride != 1:
                part = f"{self.use('vmul')}({part}, {self.use(f'splat{lanes}')}({i64}({stride})))"
            total = f"{self.use('vadd')}({total}, {part})" if total else part
        return total

    def load(self, expr: Load) -> Text:
        array = self.facts.arrays[expr.array]
        lanes = lanes_of(expr.type)
        kind = SHORT[held(element_of(array.dtype)).name]
        base = self.pointer(array.name)
        mask = expr.mask
        if lanes == 1:
            offset = self._offset(array, expr.indices)
            space = "global" if array.space == "global" else "shared" if array.space == "shared" else "local"
            if array.space == "global":
                dtype = element_of(array.dtype).name
                name = MemoryName(space, False, dtype, 1, readonly=self.readonly(array.name))
                text = Text(f"{self.use(str(name))}({base}, {offset.text})", kind, True)
            else:
                text = self._from_storage(array, f"{base}[{offset.text}]")
            if mask is None:
                return text
            zero = self._constant(Const(0, held(element_of(array.dtype))))
            test = self.value(mask, BOOL)
            return Text(f"{text.text} if {test.operand} else {self.cast(zero, kind).text}", kind)
        memory, offset_text = self.access(array, expr.indices, lanes, False, mask is not None)
        args = [base, offset_text]
        if mask is not None:
            args.append(self.lanes(mask, BOOL, lanes))
        return Text(f"{self.use(str(memory))}({', '.join(args)})", kind, True)

    def _from_storage(self, array: Array, text: str) -> Text:
        dtype = element_of(array.dtype)
        if dtype.is_half:
            return Text(f"{self.use('widen_' + SHORT[dtype.name])}({text})", "f32", True)
        if dtype == BOOL:
            return Text(f"{text} != {self.use('u8')}(0)", "b8")
        return Text(text, SHORT[dtype.name], True)

    def to_storage(self, array: Array, value: Text) -> str:
        """The text to assign to an element of a local or shared array."""
        dtype = element_of(array.dtype)
        if dtype.is_half:
            return f"{self.use('narrow_' + SHORT[dtype.name])}({value.text})"
        if dtype == BOOL:
            return f"{self.use('u8')}({value.text})"
        return value.text


def _terms(expr: Expr) -> list[Expr]:
    """The terms of a sum (differences stay whole)."""
    if isinstance(expr, BinOp) and expr.op == "+" and expr.dtype == INT64:
        return _terms(expr.left) + _terms(expr.right)
    return [expr]
