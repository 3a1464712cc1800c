"""Mathematical functions of scalars and vectors, in the float type of their arguments.

What the processor has no instruction for is the C library's function, called lane by lane, or in float32 one of
`elementary`, on all lanes at once.  A vector gets, bit for bit, what its lanes would get as scalars.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from pyschedule.codegen.simd import elementary
from pyschedule.codegen.simd.arithmetic import call_library, compare, elementwise, magnitude
from pyschedule.codegen.simd.faults import raise_index_fault
from pyschedule.codegen.simd.types import (
    BIT,
    broadcast,
    call_intrinsic,
    constant,
    element_of,
    intrinsic,
    is_float,
    lanes_in,
    lanes_of,
    lanewise,
    plain,
)


def _floats(operand: Any) -> bool:
    return is_float(element_of(operand))


def _machine(name: str, arity: int = 1) -> Any:
    """A function that LLVM has, on whole vectors."""

    def build(builder: Any, _element: Any, *args: Any) -> Any:
        return call_intrinsic(builder, name, args[0].type, list(args))

    return _of_floats(build, arity)


def _library(name: str, arity: int = 1) -> Any:
    def build(builder: Any, _element: Any, *args: Any) -> Any:
        return lanewise(builder, lambda *lane: call_library(builder, name, *lane), *args)

    return _of_floats(build, arity)


def _own(name: str) -> Any:
    """A function that `elementary` has for float32; of float64 it is the library's."""

    def build(builder: Any, element: Any, x: Any) -> Any:
        if element == types.float32:
            return getattr(elementary, name)(builder, x)
        return lanewise(builder, lambda lane: call_library(builder, name, lane), x)

    return _of_floats(build, 1)


def _of_floats(build: Any, arity: int) -> Any:
    typed = elementwise(build, accept=_floats)
    if arity == 1:
        return intrinsic(lambda _typing, x: typed(x))
    return intrinsic(lambda _typing, x, y: typed(x, y))


sqrt = _machine("sqrt")
floor = _machine("floor")
ceil = _machine("ceil")
trunc = _machine("trunc")
copysign = _machine("copysign", 2)

exp = _own("exp")
exp2 = _library("exp2")
expm1 = _library("expm1")
log = _library("log")
log2 = _library("log2")
log10 = _library("log10")
log1p = _library("log1p")
sin = _library("sin")
cos = _library("cos")
tan = _library("tan")
asin = _library("asin")
acos = _library("acos")
atan = _library("atan")
sinh = _library("sinh")
cosh = _library("cosh")
tanh = _own("tanh")
asinh = _library("asinh")
acosh = _library("acosh")
atanh = _library("atanh")
erf = _own("erf")
erfc = _library("erfc")
cbrt = _library("cbrt")
gamma = _library("tgamma")
lgamma = _library("lgamma")
atan2 = _library("atan2", 2)
hypot = _library("hypot", 2)
fmod = _library("fmod", 2)
remainder = _library("remainder", 2)


def _integer_power(builder: Any, element: Any, base: Any, exponent: Any) -> Any:
    """By squaring, wrapping; 0 for a negative exponent unless the base is 1 or -1."""
    llvm = base.type
    zero, one = constant(llvm, 0), constant(llvm, 1)
    entry = builder.block
    loop = builder.append_basic_block("power")
    done = builder.append_basic_block("power.end")
    start = exponent
    negative: Any = None
    if element.signed:
        negative = builder.icmp_signed("<", exponent, zero)
        start = builder.select(negative, builder.and_(exponent, one), exponent)
    builder.branch(loop)
    builder.position_at_end(loop)
    result, square, left = builder.phi(llvm), builder.phi(llvm), builder.phi(llvm)
    odd = builder.trunc(left, BIT)
    product = builder.select(odd, builder.mul(result, square), result)
    rest = builder.lshr(left, one)
    squared = builder.mul(square, square)
    for phi, first, after in ((result, one, product), (square, base, squared), (left, start, rest)):
        phi.add_incoming(first, entry)
        phi.add_incoming(after, loop)
    builder.cbranch(builder.icmp_unsigned("==", rest, zero), done, loop)
    builder.position_at_end(done)
    if negative is None:
        return product
    unit = builder.or_(builder.icmp_signed("==", base, one), builder.icmp_signed("==", base, constant(llvm, -1)))
    return builder.select(builder.and_(negative, builder.not_(unit)), zero, product)


def _power(builder: Any, element: Any, x: Any, y: Any) -> Any:
    if is_float(element):
        return lanewise(builder, lambda a, b: call_library(builder, "pow", a, b), x, y)
    return lanewise(builder, lambda a, b: _integer_power(builder, element, a, b), x, y)


def _library_power(builder: Any, element: Any, x: Any, y: Any) -> Any:
    def call(base: Any, exponent: Any) -> Any:
        result = call_library(builder, "pow", base, exponent)
        set.add(result.attributes, "nobuiltin")  # llvmlite's own list of attributes lacks it
        return result

    return lanewise(builder, call, x, y) if is_float(element) else _power(builder, element, x, y)


_typed_power, _typed_library_power = elementwise(_power), elementwise(_library_power)
power = intrinsic(lambda _typing, x, y: _typed_power(x, y))
#: The C library's `pow` whatever the arguments: LLVM makes `x * x` of `pow(x, 2)` and `exp2(x)` of `pow(2, x)`,
#: which may differ in the last bit.
library_power = intrinsic(lambda _typing, x, y: _typed_library_power(x, y))


def _classified(build: Any) -> Any:
    """A test of floats; `build` gets the value."""
    typed = elementwise(build, lambda _element: types.boolean, accept=_floats)
    return intrinsic(lambda _typing, x: typed(x))


def _against_infinity(op: str) -> Any:
    def build(builder: Any, element: Any, x: Any) -> Any:
        return compare(builder, element, op, magnitude(builder, element, x), constant(x.type, float("inf")))

    return build


isnan = _classified(lambda builder, _element, x: builder.fcmp_unordered("uno", x, x))
isinf = _classified(_against_infinity("=="))
isfinite = _classified(_against_infinity("<"))


# ---------------------------------------------------------------------------------------- checked indices


def _check(context: Any, builder: Any, index: Any, extent: Any, number: Any, mask: Any) -> Any:
    """`index`, counted from the end where negative; `IndexFault` where a lane that is on is out of range."""
    lanes = lanes_in(index)
    extents = broadcast(builder, extent, lanes)
    negative = builder.icmp_signed("<", index, constant(index.type, 0))
    explicit = builder.select(negative, builder.add(index, extents), index)
    outside = builder.icmp_unsigned(">=", explicit, extents)
    if mask is not None:
        outside = builder.and_(outside, mask)
    any_outside = outside
    if lanes > 1:
        any_outside = call_intrinsic(builder, "vector.reduce.or", BIT, [outside], [outside.type])
    with cgutils.if_unlikely(builder, any_outside):
        given = index
        if lanes > 1:
            bits = builder.bitcast(outside, ir.IntType(lanes))
            first = call_intrinsic(builder, "cttz", bits.type, [bits, BIT(1)], [bits.type])
            given = builder.extract_element(index, first)
        raise_index_fault(context, builder, number, given, extent)
    return explicit


def _typed_index(index: Any, extent: Any) -> Any:
    index, extent = plain(index), plain(extent)
    return (index, extent, types.int64) if element_of(index) == types.int64 and extent == types.int64 else None


@intrinsic
def checked_index(_typing: Any, index: Any, extent: Any, number: Any) -> Any:
    """A Python index (or a vector of them) as an offset from the front; raises an `IndexFault` with `number`."""
    operands = _typed_index(index, extent)
    if operands is None:
        return None

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        index, extent, number = args
        return _check(context, builder, index, extent, number, None)

    return operands[0](*operands), codegen


@intrinsic
def checked_index_masked(_typing: Any, index: Any, extent: Any, number: Any, mask: Any) -> Any:
    """As `checked_index`, of the lanes that are on; the others may hold anything."""
    operands = _typed_index(index, extent)
    if operands is None or lanes_of(mask) not in (1, lanes_of(index)):
        return None

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        index, extent, number, mask = args
        return _check(context, builder, index, extent, number, broadcast(builder, mask, lanes_in(index)))

    return operands[0](*operands, mask), codegen
