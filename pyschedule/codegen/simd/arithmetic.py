"""Arithmetic of scalars and vectors with NumPy's meaning, and the Python operators of vectors.

Every function here takes scalars and vectors alike (a scalar among vectors is meant in every lane), wants
operands of one element type, and does to a lane exactly what it does to a scalar.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import lower_builtin

from pyschedule.codegen.simd.types import (
    INT32,
    INT64,
    VectorType,
    broadcast,
    call_intrinsic,
    common_lanes,
    constant,
    element_of,
    intrinsic,
    is_float,
    is_signed,
    is_value,
    lanes_in,
    lanes_of,
    lanewise,
    llvm_element,
    plain,
    scalar_type,
    widened,
    with_lanes,
)

Build = Callable[..., Any]  # (builder, element, *LLVM values) -> LLVM value


def elementwise(
    build: Build, result: Callable[[Any], Any] | None = None, accept: Callable[[Any], bool] = is_value
) -> Any:
    """The typing and code of a function of values of one element type; `result` maps it to the result's."""

    def typed(*operands: Any) -> Any:
        operands = tuple(map(plain, operands))
        element = element_of(operands[0])
        if not all(is_value(item) and element_of(item) == element for item in operands) or not accept(operands[0]):
            return None
        lanes = common_lanes(*operands)

        def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return build(builder, element, *(broadcast(builder, arg, lanes) for arg in args))

        return with_lanes(element if result is None else result(element), lanes)(*operands), codegen

    return typed


def _unary(build: Build, result: Callable[[Any], Any] | None = None) -> Any:
    typed = elementwise(build, result)
    return intrinsic(lambda _typing, x: typed(x))


def _binary(build: Build, result: Callable[[Any], Any] | None = None) -> Any:
    typed = elementwise(build, result)
    return intrinsic(lambda _typing, x, y: typed(x, y))


# ------------------------------------------------------------------------------------------ building blocks


def choose(builder: Any, test: Any, then: Any, orelse: Any) -> Any:
    return builder.select(test, then, orelse)


def integer_compare(builder: Any, element: Any, op: str, x: Any, y: Any) -> Any:
    return (builder.icmp_signed if is_signed(element) else builder.icmp_unsigned)(op, x, y)


def compare(builder: Any, element: Any, op: str, x: Any, y: Any) -> Any:
    if not is_float(element):
        return integer_compare(builder, element, op, x, y)
    return (builder.fcmp_unordered if op == "!=" else builder.fcmp_ordered)(op, x, y)


def magnitude(builder: Any, element: Any, x: Any) -> Any:
    if is_float(element):
        return call_intrinsic(builder, "fabs", x.type, [x])
    if not is_signed(element):
        return x
    return choose(builder, builder.icmp_signed("<", x, constant(x.type, 0)), builder.neg(x), x)


def _fixed(value: Any) -> int | None:
    """The value of a constant integer (in all lanes)."""
    number = value.constant if isinstance(value, ir.Constant) else None
    if isinstance(number, list) and number and isinstance(value.type, ir.VectorType):
        first = number[0]
        number = first.constant if isinstance(first, ir.Constant) else first
    return number if isinstance(number, int) else None


def _safe_divisor(builder: Any, element: Any, y: Any) -> tuple[Any, Any, Any]:
    """`y` with 1 where dividing would trap, and where it is 0, and where it is -1 (of signed integers)."""
    one = constant(y.type, 1)
    is_zero = builder.icmp_unsigned("==", y, constant(y.type, 0))
    if not is_signed(element):
        return choose(builder, is_zero, one, y), is_zero, None
    is_minus_one = builder.icmp_signed("==", y, constant(y.type, -1))
    return choose(builder, builder.or_(is_zero, is_minus_one), one, y), is_zero, is_minus_one


def _floor_parts(builder: Any, x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Truncating quotient and remainder, and where flooring differs; `y` is neither 0 nor -1."""
    quotient, remainder = builder.sdiv(x, y), builder.srem(x, y)
    inexact = builder.icmp_signed("!=", remainder, constant(x.type, 0))
    opposite = builder.icmp_signed("<", builder.xor(remainder, y), constant(x.type, 0))
    return quotient, remainder, builder.and_(inexact, opposite)


def _integer_floordiv(builder: Any, element: Any, x: Any, y: Any) -> Any:
    fixed = _fixed(y)
    zero = constant(x.type, 0)
    if fixed and fixed > 0 and fixed & (fixed - 1) == 0:
        shift = constant(x.type, fixed.bit_length() - 1)
        return builder.ashr(x, shift) if is_signed(element) else builder.lshr(x, shift)
    if not is_signed(element):
        if fixed:
            return builder.udiv(x, y)
        safe, is_zero, _ = _safe_divisor(builder, element, y)
        return choose(builder, is_zero, zero, builder.udiv(x, safe))
    if fixed and fixed > 0:
        quotient, _, lower = _floor_parts(builder, x, y)
        return choose(builder, lower, builder.sub(quotient, constant(x.type, 1)), quotient)
    safe, is_zero, is_minus_one = _safe_divisor(builder, element, y)
    quotient, _, lower = _floor_parts(builder, x, safe)
    quotient = choose(builder, lower, builder.sub(quotient, constant(x.type, 1)), quotient)
    return choose(builder, is_zero, zero, choose(builder, is_minus_one, builder.neg(x), quotient))


def _integer_mod(builder: Any, element: Any, x: Any, y: Any) -> Any:
    fixed = _fixed(y)
    zero = constant(x.type, 0)
    if fixed and fixed > 0 and fixed & (fixed - 1) == 0:
        return builder.and_(x, constant(x.type, fixed - 1))
    if not is_signed(element):
        if fixed:
            return builder.urem(x, y)
        safe, is_zero, _ = _safe_divisor(builder, element, y)
        return choose(builder, is_zero, zero, builder.urem(x, safe))
    safe = y
    if not fixed or fixed < 0:
        safe, _, _ = _safe_divisor(builder, element, y)
    _, remainder, lower = _floor_parts(builder, x, safe)
    return choose(builder, lower, builder.add(remainder, safe), remainder)


def _float_divmod(builder: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Quotient before flooring is repaired, and the remainder with the divisor's sign, as Python defines them."""
    remainder = lanewise(builder, lambda a, b: call_library(builder, "fmod", a, b), x, y)
    zero = constant(x.type, 0.0)
    nonzero = builder.fcmp_unordered("!=", remainder, zero)
    opposite = builder.xor(builder.fcmp_ordered("<", y, zero), builder.fcmp_ordered("<", remainder, zero))
    moved = builder.and_(nonzero, opposite)
    signed_zero = call_intrinsic(builder, "copysign", x.type, [zero, y])
    modulus = choose(builder, nonzero, remainder, signed_zero)
    modulus = choose(builder, moved, builder.fadd(remainder, y), modulus)
    exact = builder.fdiv(builder.fsub(x, remainder), y)
    return choose(builder, moved, builder.fsub(exact, constant(x.type, 1.0)), exact), modulus


def _float_floordiv(builder: Any, x: Any, y: Any) -> Any:
    quotient, _ = _float_divmod(builder, x, y)
    zero = constant(x.type, 0.0)
    floored = call_intrinsic(builder, "floor", x.type, [quotient])
    late = builder.fcmp_ordered(">", builder.fsub(quotient, floored), constant(x.type, 0.5))
    rounded = choose(builder, late, builder.fadd(floored, constant(x.type, 1.0)), floored)
    ratio = builder.fdiv(x, y)
    whole = choose(
        builder,
        builder.fcmp_unordered("!=", quotient, zero),
        rounded,
        call_intrinsic(builder, "copysign", x.type, [zero, ratio]),
    )
    return choose(builder, builder.fcmp_ordered("==", y, zero), ratio, whole)


def call_library(builder: Any, name: str, *args: Any) -> Any:
    """The C library's function of one float type: `exp` of a double is `exp`, of a float `expf`."""
    from numba.core import cgutils

    llvm = args[0].type
    function_type = ir.FunctionType(llvm, [llvm] * len(args))
    symbol = name + ("f" if isinstance(llvm, ir.FloatType) else "")
    function = cgutils.get_or_insert_function(builder.module, function_type, symbol)
    return builder.call(function, args)


def add(builder: Any, element: Any, x: Any, y: Any) -> Any:
    return builder.fadd(x, y) if is_float(element) else builder.add(x, y)


def subtract(builder: Any, element: Any, x: Any, y: Any) -> Any:
    return builder.fsub(x, y) if is_float(element) else builder.sub(x, y)


def multiply(builder: Any, element: Any, x: Any, y: Any) -> Any:
    return builder.fmul(x, y) if is_float(element) else builder.mul(x, y)


def _divide(builder: Any, _element: Any, x: Any, y: Any) -> Any:
    return builder.fdiv(x, y)


def _floordiv(builder: Any, element: Any, x: Any, y: Any) -> Any:
    return _float_floordiv(builder, x, y) if is_float(element) else _integer_floordiv(builder, element, x, y)


def _mod(builder: Any, element: Any, x: Any, y: Any) -> Any:
    return _float_divmod(builder, x, y)[1] if is_float(element) else _integer_mod(builder, element, x, y)


def _negate(builder: Any, element: Any, x: Any) -> Any:
    return builder.fneg(x) if is_float(element) else builder.neg(x)


def _shift(builder: Any, element: Any, x: Any, count: Any, left: bool) -> Any:
    """A count of the width or more (or a negative one) shifts everything out, as in NumPy."""
    width = int(element.bitwidth)
    top = constant(x.type, width - 1)
    inside = builder.icmp_unsigned("<=", count, top)
    bounded = choose(builder, inside, count, top)
    if not left and is_signed(element):
        return builder.ashr(x, bounded)
    return choose(builder, inside, (builder.shl if left else builder.lshr)(x, bounded), constant(x.type, 0))


# ------------------------------------------------------------------------------------- scalars and vectors

floordiv = _binary(_floordiv)
mod = _binary(_mod)
shift_left = _binary(lambda builder, element, x, y: _shift(builder, element, x, y, True))
shift_right = _binary(lambda builder, element, x, y: _shift(builder, element, x, y, False))
absolute = _unary(magnitude)
#: Integers that wrap: Numba's operators promise LLVM that they do not.
wrapping_add, wrapping_subtract, wrapping_multiply = _binary(add), _binary(subtract), _binary(multiply)


def _pmin(builder: Any, element: Any, x: Any, y: Any) -> Any:
    """Python's `min(x, y)`: `y if y < x else x`."""
    return choose(builder, compare(builder, element, "<", y, x), y, x)


def _pmax(builder: Any, element: Any, x: Any, y: Any) -> Any:
    return choose(builder, compare(builder, element, ">", y, x), y, x)


def _numpy_extreme(op: str) -> Build:
    """NumPy's: the first operand where it wins, ties or is NaN."""

    def build(builder: Any, element: Any, x: Any, y: Any) -> Any:
        first = compare(builder, element, op, x, y)
        if is_float(element):
            first = builder.or_(first, builder.fcmp_unordered("uno", x, x))
        return choose(builder, first, x, y)

    return build


_minimum = _numpy_extreme("<=")
_maximum = _numpy_extreme(">=")

pmin = _binary(_pmin)
pmax = _binary(_pmax)
minimum = _binary(_minimum)
maximum = _binary(_maximum)


@intrinsic
def select(_typing: Any, test: Any, then: Any, orelse: Any) -> Any:
    """`then if test else orelse`, lane by lane; both are evaluated."""
    operands = tuple(map(plain, (test, then, orelse)))
    element = element_of(operands[1])
    if element_of(operands[0]) != types.boolean or element_of(operands[2]) != element:
        return None
    lanes = common_lanes(*operands)

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.select(*(broadcast(builder, arg, lanes) for arg in args))

    return with_lanes(element, lanes)(*operands), codegen


def _multiply_add(name: str) -> Any:
    def build(builder: Any, _element: Any, x: Any, y: Any, z: Any) -> Any:
        return call_intrinsic(builder, name, x.type, [x, y, z])

    typed = elementwise(build, accept=lambda operand: is_float(element_of(operand)))
    return intrinsic(lambda _typing, x, y, z: typed(x, y, z))


#: `x * y + z` rounded once, always.
fma = _multiply_add("fma")
#: `x * y + z` in one instruction where the machine has one, else in two.
muladd = _multiply_add("fmuladd")


# ----------------------------------------------------------------------------------------------- reductions


def _bits(name: str) -> Build:
    return lambda builder, _element, x, y: getattr(builder, name)(x, y)


def _reduction(build: Build) -> Any:
    """Halves folded onto one another until one lane is left: the same tree on every machine."""

    def typed(_typing: Any, vector: Any) -> Any:
        if not isinstance(vector, VectorType):
            return None

        def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            value = args[0]
            extra: list[Any] = []
            while (lanes := lanes_in(value)) > 1:
                if lanes % 2:
                    extra.append(builder.extract_element(value, ir.Constant(INT32, lanes - 1)))
                half = lanes // 2
                undefined = ir.Constant(value.type, ir.Undefined)

                def part(first: int, value: Any = value, half: int = half, undefined: Any = undefined) -> Any:
                    if half == 1:
                        return builder.extract_element(value, ir.Constant(INT32, first))
                    order = ir.Constant(ir.VectorType(INT32, half), list(range(first, first + half)))
                    return builder.shuffle_vector(value, undefined, order)

                value = build(builder, vector.element, part(0), part(half))
            for item in extra:
                value = build(builder, vector.element, value, item)
            return value

        return vector.element(vector), codegen

    return intrinsic(typed)


reduce_add = _reduction(add)
reduce_multiply = _reduction(multiply)
reduce_pmin = _reduction(_pmin)
reduce_pmax = _reduction(_pmax)
reduce_minimum = _reduction(_minimum)
reduce_maximum = _reduction(_maximum)
reduce_and = _reduction(_bits("and_"))
reduce_or = _reduction(_bits("or_"))
reduce_xor = _reduction(_bits("xor"))


# ------------------------------------------------------------------------------- Python operators of vectors


def _register(python: Any, build: Build, arity: int, result: Callable[[Any], Any] | None = None) -> None:
    typed = elementwise(build, result)

    class VectorOperator(AbstractTemplate):  # type: ignore[misc]
        key = python

        def generic(self, args: Any, _kws: Any) -> Any:
            if len(args) != arity or not any(isinstance(arg, VectorType) for arg in args):
                return None
            found = typed(*args)
            return None if found is None else signature(found[0].return_type, *found[0].args)

    infer_global(python)(VectorOperator)

    def lowered(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return typed(*sig.args)[1](context, builder, sig, args)

    patterns = (
        [(VectorType,)]
        if arity == 1
        else [(VectorType, VectorType), (VectorType, types.Any), (types.Any, VectorType)]
    )
    for pattern in patterns:
        lower_builtin(python, *pattern)(lowered)


def _is_boolean(_element: Any) -> Any:
    return types.boolean


for _python, _build in (
    (operator.add, add),
    (operator.sub, subtract),
    (operator.mul, multiply),
    (operator.truediv, _divide),
    (operator.and_, _bits("and_")),
    (operator.or_, _bits("or_")),
    (operator.xor, _bits("xor")),
):
    _register(_python, _build, 2)
for _python, _symbol in (
    (operator.lt, "<"),
    (operator.le, "<="),
    (operator.gt, ">"),
    (operator.ge, ">="),
    (operator.eq, "=="),
    (operator.ne, "!="),
):
    _register(
        _python,
        lambda builder, element, x, y, op=_symbol: compare(builder, element, op, x, y),
        2,
        _is_boolean,
    )
_register(operator.neg, _negate, 1)
_register(operator.invert, lambda builder, _element, x: builder.not_(x), 1)


# ---------------------------------------------------------------------------------------------- conversions


def _float_to_integer(builder: Any, x: Any, element: Any) -> Any:
    """C's conversion on x86-64 and what NumPy gives there: through int64, wrapped to the width."""
    llvm = llvm_element(element)
    lanes = lanes_in(x)
    if isinstance(element, types.Integer) and not element.signed and element.bitwidth == 64:
        limit = constant(x.type, 2.0**63)
        large = builder.fcmp_ordered(">=", x, limit)
        reduced = choose(builder, large, builder.fsub(x, limit), x)
        whole = builder.fptosi(reduced, widened(INT64, lanes))
        flipped = builder.xor(whole, constant(whole.type, -(2**63)))
        return choose(builder, large, flipped, whole)
    through = INT64 if element.bitwidth == 64 or (not element.signed and element.bitwidth == 32) else INT32
    whole = builder.fptosi(x, widened(through, lanes))
    return whole if llvm == through else builder.trunc(whole, widened(llvm, lanes))


def convert_value(builder: Any, source: Any, target: Any, x: Any) -> Any:
    """`x` of element type `source` as `target`, as `astype` converts."""
    if source == target:
        return x
    llvm = widened(llvm_element(target), lanes_in(x))
    if isinstance(target, types.Boolean):
        return compare(builder, source, "!=", x, constant(x.type, 0.0 if is_float(source) else 0))
    if is_float(source):
        if not is_float(target):
            return _float_to_integer(builder, x, target)
        return (builder.fpext if target.bitwidth > source.bitwidth else builder.fptrunc)(x, llvm)
    if is_float(target):
        return (builder.sitofp if is_signed(source) else builder.uitofp)(x, llvm)
    have, want = scalar_type(x.type).width, scalar_type(llvm).width
    if have == want:
        return x
    if have > want:
        return builder.trunc(x, llvm)
    return (builder.sext if is_signed(source) else builder.zext)(x, llvm)


@intrinsic
def convert(_typing: Any, value: Any, dtype: Any) -> Any:
    """`value.astype(dtype)`; `dtype` is a Numba number type."""
    value = plain(value)
    if not isinstance(dtype, types.NumberClass) or not is_value(value):
        return None
    source, target = element_of(value), dtype.dtype

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return convert_value(builder, source, target, args[0])

    return with_lanes(target, lanes_of(value))(value, dtype), codegen


__all__ = [
    "absolute", "convert", "floordiv", "fma", "maximum", "minimum", "mod", "muladd", "pmax", "pmin",
    "reduce_add", "reduce_and", "reduce_maximum", "reduce_minimum", "reduce_multiply", "reduce_or",
    "reduce_pmax", "reduce_pmin", "reduce_xor", "select", "shift_left", "shift_right",
]  # fmt: skip
