"""Expressions of the IR as Python text that Numba types exactly as the IR does.

The rule that everything here keeps: the text of an expression has, in Numba, the element type of the
expression (`held`: float32 for a half) - so every operand is converted in the text, narrow integers are wrapped
back after each operation, and constants carry their type.  `ExpressionWriter` writes scalars; a back end
overrides its methods for what its target does otherwise, and adds its vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from pyschedule.errors import InternalError
from pyschedule.ir import build, index_checks
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
    Kernel,
    Load,
    Location,
    Ramp,
    Reduce,
    Select,
    UnaryOp,
    Var,
)
from pyschedule.ir.types import BOOL, FLOAT32, FLOAT64, INT64, Scalar, Type, Vector, element_of

#: How tightly an operator binds, loosest first.
CONDITIONAL, OR, AND, NOT, COMPARE, BIT_OR, BIT_XOR, BIT_AND, SHIFT, SUM, PRODUCT, UNARY, ATOM = range(13)

_BINDING: Final = {
    "+": SUM, "-": SUM, "*": PRODUCT, "/": PRODUCT, "&": BIT_AND, "|": BIT_OR, "^": BIT_XOR,
}  # fmt: skip

#: Operators that are functions in the generated text, because Numba's own differ from Python's or NumPy's.
_FUNCTION_OF: Final = {"//": "floordiv", "%": "mod", "<<": "shift_left", ">>": "shift_right", "**": "power"}

#: The same where the result may need more than 64 bits (see `wrapping`).
_WRAPPING: Final = {"+": "wrapping_add", "-": "wrapping_subtract", "*": "wrapping_multiply"}

_CALL_NAMES: Final = {"abs": "absolute", "pow": "power"}

_REDUCTION_NAMES: Final = {
    "+": "reduce_add", "*": "reduce_multiply", "pmin": "reduce_pmin", "pmax": "reduce_pmax",
    "minimum": "reduce_minimum", "maximum": "reduce_maximum", "&": "reduce_and", "|": "reduce_or",
    "^": "reduce_xor", "and": "reduce_and", "or": "reduce_or",
}  # fmt: skip


class Code(NamedTuple):
    """Text, and how tightly its outermost operator binds."""

    text: str
    binding: int = ATOM


@dataclass(frozen=True, slots=True)
class Raw(Expr):
    """An int64 that the back end itself named (a stride, a base offset)."""

    text: str

    @property
    def type(self) -> Type:
        return INT64


def held(dtype: Scalar) -> Scalar:
    """The type in which a value of `dtype` is computed: a half is held as float32."""
    return FLOAT32 if dtype.is_half else dtype.strong()


def held_element(expr: Expr) -> Scalar:
    return held(element_of(expr.type))


def is_vector(expr: Expr) -> bool:
    return isinstance(expr.type, Vector)


class ExpressionWriter:
    """Writes expressions.  `arrays` maps each array in scope to its declaration."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.arrays: dict[str, Array] = {array.name: array for array in kernel.array_params}
        self.contract = not kernel.strict_math
        self._inline = 0
        self._checks: dict[Location, int] | None = None

    # --------------------------------------------------------------------- what a back end may do otherwise

    def use(self, name: str) -> str:
        """`name` of a library, noted so that the module imports it."""
        raise NotImplementedError

    def variable(self, name: str) -> str:
        """The identifier of a scalar parameter, local or counter."""
        raise NotImplementedError

    def load(self, node: Load) -> Code:
        raise NotImplementedError

    def parameter_extent(self, array: Array, axis: int) -> Code:
        raise NotImplementedError

    def dtype_name(self, dtype: Scalar) -> str:
        """The callable that makes a number of this type."""
        return self.use("boolean" if dtype.kind == "b" else dtype.name)

    def constant(self, value: bool | int | float, dtype: Scalar) -> Code:
        """A constant of `dtype` (`held`)."""
        if dtype.kind == "b":
            return Code(str(bool(value)))
        if dtype.is_integer:
            bits = 8 * dtype.bytes
            wrapped = int(value) & ((1 << bits) - 1)
            if dtype.kind == "i" and wrapped >> (bits - 1):
                wrapped -= 1 << bits
            if dtype == INT64:
                return Code(str(wrapped), ATOM if wrapped >= 0 else UNARY)
            return Code(f"{self.dtype_name(dtype)}({wrapped})")
        number = self._float_text(float(value))
        if dtype == FLOAT64:
            return number
        return Code(f"{self.dtype_name(dtype)}({number.text})")

    def _float_text(self, value: float) -> Code:
        if math.isnan(value):
            return Code(self.use("nan"))
        text = self.use("inf") if math.isinf(value) else repr(abs(value))
        return Code(f"-{text}", UNARY) if math.copysign(1.0, value) < 0 else Code(text)

    def convert(self, code: Code, source: Scalar, target: Scalar, vector: bool) -> Code:
        """`code` of element type `source` as `target`; neither is a half."""
        if source == target:
            return code
        if vector or target.kind == "b" or (source.is_float and not target.is_float):
            return Code(f"{self.use('convert')}({code.text}, {self.dtype_name(target)})")
        return Code(f"{self.dtype_name(target)}({code.text})")

    def may_wrap(self, expr: BinOp) -> bool:
        """Whether a sum, difference or product of int64 scalars must not be taken to stay in range."""
        return False

    def function(self, name: str, args: list[str]) -> Code:
        if name == "power" and not self.contract:
            name = "library_power"
        return Code(f"{self.use(name)}({', '.join(args)})")

    def round_to_half(self, code: Code, half: Scalar) -> Code:
        """A float32 (or float64) rounded to a half type and held as float32 again."""
        narrowed = self.function(f"to_{half.name}", [code.text])
        return self.function(f"from_{half.name}", [narrowed.text])

    # ------------------------------------------------------------------------------------------- expressions

    @contextmanager
    def inline(self) -> Iterator[None]:
        """Where an expression is evaluated in its place or not at all: nothing may be computed before it."""
        self._inline += 1
        yield
        self._inline -= 1

    def text(self, expr: Expr, outer: int = CONDITIONAL) -> str:
        """The expression in a place where operators bind as tightly as `outer`."""
        code = self.code(expr)
        return f"({code.text})" if code.binding < outer else code.text

    def converted(self, expr: Expr, dtype: Scalar) -> Code:
        """The expression converted to `dtype` (held)."""
        dtype = held(dtype)
        if isinstance(expr, Const) and (dtype.is_float or not isinstance(expr.value, float)):
            return self.constant(expr.value, dtype)
        return self.convert(self.code(expr), held_element(expr), dtype, is_vector(expr))

    def operand(self, expr: Expr, dtype: Scalar, outer: int) -> str:
        code = self.converted(expr, dtype)
        return f"({code.text})" if code.binding < outer else code.text

    def code(self, expr: Expr) -> Code:
        match expr:
            case Const():
                return self.constant(expr.value, held(expr.dtype))
            case Var():
                return Code(self.variable(expr.name))
            case Raw():
                return Code(expr.text)
            case Dim():
                return self.extent(expr)
            case Load():
                return self.load(expr)
            case BinOp():
                return self.binary(expr)
            case Compare():
                return self.comparison(expr)
            case BoolOp():
                return self.logical(expr)
            case UnaryOp():
                return self.unary(expr)
            case Select():
                return self.select(expr)
            case Cast():
                return self.cast(expr)
            case Call():
                return self.call(expr)
            case Ramp():
                return self.ramp(expr)
            case Broadcast():
                return self.broadcast(expr)
            case Reduce():
                return self.reduce(expr)
        raise InternalError(f"the back end has no text for {type(expr).__name__}")

    def extent(self, expr: Dim) -> Code:
        array = self.arrays[expr.array]
        shape = array.shape[expr.axis]
        if array.space == "global" and not isinstance(shape, Const):
            return self.parameter_extent(array, expr.axis)
        return self.code(shape)

    def binary(self, expr: BinOp) -> Code:
        dtype = held(expr.dtype)
        if self.contract and dtype.is_float and expr.op in "+-" and (fused := self.fused(expr, dtype)):
            return fused
        name = _FUNCTION_OF.get(expr.op)
        if dtype == INT64 and expr.op in _WRAPPING and not is_vector(expr) and self.may_wrap(expr):
            name = _WRAPPING[expr.op]
        if name is not None:
            args = [self.converted(part, dtype).text for part in (expr.left, expr.right)]
            return self.function(name, args)
        op = expr.op
        if dtype.kind == "b":
            op = {"+": "|", "*": "&"}.get(op, op)
        binding = _BINDING[op]
        left = self.operand(expr.left, dtype, binding)
        right = self.operand(expr.right, dtype, binding + 1)
        return self.wrapped(Code(f"{left} {op} {right}", binding), dtype, is_vector(expr))

    def wrapped(self, code: Code, dtype: Scalar, vector: bool) -> Code:
        """The result of an operator, brought back to `dtype` where Numba's operator widens."""
        if vector or not dtype.is_integer or dtype.bytes == 8:
            return code
        return Code(f"{self.dtype_name(dtype)}({code.text})")

    def fused(self, expr: BinOp, dtype: Scalar) -> Code | None:
        """`a * b + c` and its kin as one `muladd`, or `None`."""
        if isinstance(product := expr.right, BinOp) and product.op == "*" and held(product.dtype) == dtype:
            sign, rest = ("-" if expr.op == "-" else ""), self.operand(expr.left, dtype, CONDITIONAL)
            first = self.operand(product.left, dtype, UNARY if sign else CONDITIONAL)
            return self.function("muladd", [sign + first, self.converted(product.right, dtype).text, rest])
        if isinstance(product := expr.left, BinOp) and product.op == "*" and held(product.dtype) == dtype:
            sign = "-" if expr.op == "-" else ""
            rest = sign + self.operand(expr.right, dtype, UNARY if sign else CONDITIONAL)
            factors = [self.converted(part, dtype).text for part in (product.left, product.right)]
            return self.function("muladd", [*factors, rest])
        return None

    def comparison(self, expr: Compare) -> Code:
        parts = [self.operand(part, expr.dtype, BIT_OR) for part in (expr.left, expr.right)]
        return Code(f"{parts[0]} {expr.op} {parts[1]}", COMPARE)

    def logical(self, expr: BoolOp) -> Code:
        binding = AND if expr.op == "and" else OR
        left = self.operand(expr.left, BOOL, binding)
        with self.inline():
            right = self.operand(expr.right, BOOL, binding + 1)
        return Code(f"{left} {expr.op} {right}", binding)

    def unary(self, expr: UnaryOp) -> Code:
        dtype, vector = held_element(expr.operand), is_vector(expr)
        if expr.op == "not" or (expr.op == "~" and dtype.kind == "b"):
            if vector:
                return Code(f"~{self.operand(expr.operand, BOOL, UNARY)}", UNARY)
            return Code(f"not {self.operand(expr.operand, BOOL, NOT)}", NOT)
        if expr.op == "-" and dtype.kind == "u" and not vector:
            zero = self.constant(0, dtype).text
            return self.wrapped(Code(f"{zero} - {self.text(expr.operand, PRODUCT)}", SUM), dtype, False)
        code = Code(f"{expr.op}{self.text(expr.operand, UNARY)}", UNARY)
        if expr.op == "~" and dtype.kind == "u" and not vector:
            return Code(f"{self.dtype_name(dtype)}({code.text})")
        return self.wrapped(code, dtype, vector)

    def select(self, expr: Select) -> Code:
        test = self.operand(expr.test, BOOL, OR)
        with self.inline():
            then = self.operand(expr.then, expr.dtype, OR)
            orelse = self.operand(expr.orelse, expr.dtype, CONDITIONAL)
        return Code(f"{then} if {test} else {orelse}", CONDITIONAL)

    def cast(self, expr: Cast) -> Code:
        if not expr.dtype.is_half:
            return self.converted(expr.operand, expr.dtype)
        return self.round_to_half(self.as_float(expr.operand), expr.dtype)

    def as_float(self, expr: Expr) -> Code:
        """The expression as float32, or as the float64 it is."""
        return self.converted(expr, FLOAT64 if held_element(expr) == FLOAT64 else FLOAT32)

    def call(self, expr: Call) -> Code:
        from pyschedule.ir.functions import FUNCTIONS

        if expr.function == "checked_index":
            return self.checked_index(expr)
        if FUNCTIONS[expr.function].result == "bool":
            return self.function(expr.function, [self.as_float(arg).text for arg in expr.args])
        dtype = held(expr.dtype)
        args = [self.converted(arg, dtype).text for arg in expr.args]
        if dtype == INT64 and expr.function in ("pmin", "pmax") and not is_vector(expr):
            return Code(f"{expr.function[1:]}({', '.join(args)})")
        return self.function(_CALL_NAMES.get(expr.function, expr.function), args)

    def checked_index(self, expr: Call) -> Code:
        return self.function("checked_index", self.check(expr))

    def check(self, expr: Call) -> list[str]:
        """The index, its extent, and the number of the check."""
        if self._checks is None:
            self._checks = index_checks.numbers(self.kernel)
        number = index_checks.UNKNOWN if expr.loc is None else self._checks.get(expr.loc, index_checks.UNKNOWN)
        return [*(self.converted(arg, INT64).text for arg in expr.args), str(number)]

    def ramp(self, expr: Ramp) -> Code:
        base = self.converted(expr.base, INT64).text
        return self.function("ramp", [base, str(expr.stride), str(expr.lanes)])

    def broadcast(self, expr: Broadcast) -> Code:
        return self.function("splat", [self.text(expr.value), str(expr.lanes)])

    def reduce(self, expr: Reduce) -> Code:
        return self.function(_REDUCTION_NAMES[expr.op], [self.text(expr.vector)])


def flat_offset(indices: tuple[Expr, ...], strides: tuple[Expr, ...]) -> Expr:
    """The element offset of an access: the sum of index times stride."""
    total: Expr = build.ZERO
    for index, step in zip(indices, strides, strict=True):
        total = build.add(total, build.mul(index, step))
    return total


def contiguous_strides(shape: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The strides, in elements, of a contiguous array whose last axis is fastest."""
    strides: list[Expr] = []
    step: Expr = build.ONE
    for extent in reversed(shape):
        strides.append(step)
        step = build.mul(step, extent)
    return tuple(reversed(strides))
