"""The 16-bit floats: held in memory as `uint16` words, computed with as float32.

Widening is exact; narrowing rounds to the nearest, ties to even, once, also from float64.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from pyschedule.codegen.simd.types import (
    INT32,
    INT64,
    constant,
    element_of,
    intrinsic,
    is_float,
    lanes_in,
    lanes_of,
    plain,
    widened,
    with_lanes,
)

_FLOAT = ir.FloatType()
_WORD = ir.IntType(16)


def _has_half_conversion(context: Any) -> bool:
    """Whether one instruction converts between float16 and float32 on the processor compiled for."""
    features = features_of(context)
    return "+f16c" in features or "+fullfp16" in features


def _has_bfloat16_conversion(context: Any) -> bool:
    """Whether one instruction rounds a vector of float32 to bfloat16 on the processor compiled for."""
    return "+avx512bf16" in features_of(context)


def features_of(context: Any) -> list[str]:
    return str(context.codegen().magic_tuple()[2]).split(",")


def _widen_float16(context: Any, builder: Any, words: Any) -> Any:
    lanes = lanes_in(words)
    if _has_half_conversion(context):
        return builder.fpext(builder.bitcast(words, widened(ir.HalfType(), lanes)), widened(_FLOAT, lanes))
    bits = builder.zext(words, widened(INT32, lanes))
    llvm = bits.type
    magnitude = builder.and_(bits, constant(llvm, 0x7FFF))
    # A scale by 2**112 moves the exponent to float32's bias, subnormals included; infinities and NaNs are
    # put right afterwards.
    shifted = builder.bitcast(builder.shl(magnitude, constant(llvm, 13)), widened(_FLOAT, lanes))
    scaled = builder.bitcast(builder.fmul(shifted, constant(shifted.type, 2.0**112)), llvm)
    special = builder.icmp_unsigned(">=", magnitude, constant(llvm, 0x7C00))
    top = builder.or_(builder.shl(magnitude, constant(llvm, 13)), constant(llvm, 0x7F800000))
    sign = builder.shl(builder.and_(bits, constant(llvm, 0x8000)), constant(llvm, 16))
    return builder.bitcast(builder.or_(builder.select(special, top, scaled), sign), widened(_FLOAT, lanes))


def _narrow_float16(context: Any, builder: Any, x: Any) -> Any:
    lanes = lanes_in(x)
    if _has_half_conversion(context):
        return builder.bitcast(builder.fptrunc(x, widened(ir.HalfType(), lanes)), widened(_WORD, lanes))
    bits = builder.bitcast(x, widened(INT32, lanes))
    llvm = bits.type
    magnitude = builder.and_(bits, constant(llvm, 0x7FFFFFFF))
    sign = builder.lshr(builder.and_(bits, constant(llvm, 0x80000000)), constant(llvm, 16))
    # Normal halves: rebias, then round the 13 bits that fall off.
    odd = builder.and_(builder.lshr(magnitude, constant(llvm, 13)), constant(llvm, 1))
    rounded = builder.add(builder.sub(magnitude, constant(llvm, 112 << 23)), constant(llvm, 0xFFF))
    normal = builder.lshr(builder.add(rounded, odd), constant(llvm, 13))
    # Subnormal halves: adding 0.5 leaves their bits, rounded by the addition, at the bottom of the sum.
    half = constant(widened(_FLOAT, lanes), 0.5)
    total = builder.bitcast(builder.fadd(builder.bitcast(magnitude, half.type), half), llvm)
    subnormal = builder.sub(total, constant(llvm, 0x3F000000))
    small = builder.icmp_unsigned("<", magnitude, constant(llvm, 113 << 23))
    huge = builder.icmp_unsigned(">=", magnitude, constant(llvm, 143 << 23))
    nan = builder.icmp_unsigned(">", magnitude, constant(llvm, 0x7F800000))
    value = builder.select(small, subnormal, normal)
    value = builder.select(huge, constant(llvm, 0x7C00), value)
    value = builder.select(nan, constant(llvm, 0x7E00), value)
    return builder.trunc(builder.or_(value, sign), widened(_WORD, lanes))


def _widen_bfloat16(_context: Any, builder: Any, words: Any) -> Any:
    lanes = lanes_in(words)
    bits = builder.shl(builder.zext(words, widened(INT32, lanes)), constant(widened(INT32, lanes), 16))
    return builder.bitcast(bits, widened(_FLOAT, lanes))


class _BFloat(ir.Type):  # type: ignore[misc]  # llvmlite has no hints
    """LLVM's type, which llvmlite has not."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


def _narrow_bfloat16(context: Any, builder: Any, x: Any) -> Any:
    lanes = lanes_in(x)
    if lanes != 16 or not _has_bfloat16_conversion(context):
        return _rounded_to_bfloat16(builder, x)
    # The instruction takes subnormal numbers for zero, and rounds all others as is wanted (Intel 64 and IA-32
    # Architectures Software Developer's Manual, VCVTNEPS2BF16).
    bits = builder.bitcast(x, widened(INT32, lanes))
    exponents = builder.and_(bits, constant(bits.type, 0x7F800000))
    small = builder.bitcast(builder.icmp_unsigned("==", exponents, constant(bits.type, 0)), _WORD)
    with builder.if_else(builder.icmp_unsigned("!=", small, constant(_WORD, 0)), likely=False) as (then, otherwise):
        with then:
            one = _rounded_to_bfloat16(builder, x)
            end_of_one = builder.block
        with otherwise:
            vector = ir.VectorType(_BFloat(), lanes)
            kind = ir.FunctionType(vector, [x.type])
            name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
            convert = cgutils.get_or_insert_function(builder.module, kind, name)
            other = builder.bitcast(builder.call(convert, [x]), one.type)
            end_of_other = builder.block
    words = builder.phi(one.type)
    words.add_incoming(one, end_of_one)
    words.add_incoming(other, end_of_other)
    return words


def _rounded_to_bfloat16(builder: Any, x: Any) -> Any:
    lanes = lanes_in(x)
    bits = builder.bitcast(x, widened(INT32, lanes))
    llvm = bits.type
    high = builder.lshr(bits, constant(llvm, 16))
    bias = builder.add(builder.and_(high, constant(llvm, 1)), constant(llvm, 0x7FFF))
    rounded = builder.lshr(builder.add(bits, bias), constant(llvm, 16))
    nan = builder.fcmp_unordered("uno", x, x)
    return builder.trunc(
        builder.select(nan, builder.or_(high, constant(llvm, 0x40)), rounded), widened(_WORD, lanes)
    )


def _to_float32_by_odd(builder: Any, x: Any) -> Any:
    """A double as the float32 that rounds to 16 bits as the double would: cut off, last bit set if inexact."""
    lanes = lanes_in(x)
    near = builder.fptrunc(x, widened(_FLOAT, lanes))
    back = builder.fpext(near, x.type)
    bits = builder.bitcast(near, widened(INT32, lanes))
    llvm = bits.type
    wide = widened(INT64, lanes)
    low = constant(wide, 0x7FFFFFFFFFFFFFFF)
    above = builder.icmp_unsigned(
        ">", builder.and_(builder.bitcast(back, wide), low), builder.and_(builder.bitcast(x, wide), low)
    )
    cut = builder.select(above, builder.sub(bits, constant(llvm, 1)), bits)
    odd = builder.or_(cut, constant(llvm, 1))
    inexact = builder.fcmp_ordered("!=", back, x)
    return builder.bitcast(builder.select(inexact, odd, bits), near.type)


def _widening(build: Any) -> Any:
    def typed(_typing: Any, words: Any) -> Any:
        words = plain(words)
        if element_of(words) != types.uint16:
            return None

        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return build(context, builder, args[0])

        return with_lanes(types.float32, lanes_of(words))(words), codegen

    return intrinsic(typed)


def _narrowing(build: Any) -> Any:
    def typed(_typing: Any, value: Any) -> Any:
        value = plain(value)
        element = element_of(value)
        if not is_float(element):
            return None

        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            single = _to_float32_by_odd(builder, args[0]) if element == types.float64 else args[0]
            return build(context, builder, single)

        return with_lanes(types.uint16, lanes_of(value))(value), codegen

    return intrinsic(typed)


from_float16 = _widening(_widen_float16)
from_bfloat16 = _widening(_widen_bfloat16)
to_float16 = _narrowing(_narrow_float16)
to_bfloat16 = _narrowing(_narrow_bfloat16)
