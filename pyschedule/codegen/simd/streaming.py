"""Stores that go around the caches (non-temporal ones).

A line that is stored into is first read from memory, into a cache, and written back when another needs its place.
What goes around the caches is collected in a buffer until a line is full, and written once: of three transfers of a
copy two are left.  Whoever reads the array next gets it from memory, so it must be too large for the caches to have
kept it anyway.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from pyschedule.codegen.simd.memory import element_pointer, storable, to_storage
from pyschedule.codegen.simd.types import (
    INT32,
    INT64,
    VectorType,
    broadcast,
    call_intrinsic,
    element_bytes,
    intrinsic,
    literal,
    plain,
)

#: The alignment that such stores need: LLVM makes smaller ones of a larger vector.
_ALIGNMENT = 16
#: Rows of fewer bytes have too many lines that are shared with the next row, and filled in two parts.
_SHORT_ROW = 2048


def _is_aligned(builder: Any, value: Any) -> Any:
    return builder.icmp_unsigned("==", builder.and_(value, INT64(_ALIGNMENT - 1)), INT64(0))


@intrinsic
def streams(_typing: Any, array: Any, axis: Any, least: Any) -> Any:
    """Whether stores along an axis of stride 1 may go around the caches: the array has at least so many bytes, its
    rows along the axis are no short ones, and all of them begin and end at aligned addresses."""
    unit, size = literal(axis), literal(least)
    if not isinstance(array, types.Array) or unit is None or size is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type = signature.args[0]
        found = context.make_array(array_type)(context, builder, args[0])
        width = element_bytes(array_type.dtype)
        row = builder.extract_value(found.shape, unit)
        result = builder.and_(
            builder.icmp_signed(">=", found.nitems, INT64(-(-size // width))),
            builder.icmp_signed(">=", row, INT64(_SHORT_ROW // width)),
        )
        distances = [builder.extract_value(found.strides, at) for at in range(array_type.ndim) if at != unit]
        if distances:
            distances.append(builder.mul(row, INT64(width)))
        for place in (builder.ptrtoint(found.data, INT64), *distances):
            result = builder.and_(result, _is_aligned(builder, place))
        return result

    return types.boolean(array, axis, least), codegen


def _around_caches(builder: Any, value: Any, pointer: Any) -> None:
    place = builder.bitcast(pointer, value.type.as_pointer())
    store = builder.store(value, place, align=_ALIGNMENT)
    store.set_metadata("nontemporal", builder.module.add_metadata([INT32(1)]))


def _streamed(builder: Any, pointer: Any, streamed: Any) -> Any:
    """Whether a vector is stored around the caches: where that is wanted, and its address allows it."""
    return builder.and_(streamed, _is_aligned(builder, builder.ptrtoint(pointer, INT64)))


@intrinsic
def store_streaming(_typing: Any, array: Any, offset: Any, value: Any, streamed: Any) -> Any:
    """A vector of neighbours; around the caches where `streamed`, at addresses that allow it."""
    if not isinstance(array, types.Array) or not isinstance(value, VectorType) or value.element != array.dtype:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type = signature.args[0]
        stored = to_storage(builder, array_type.dtype, args[2])
        pointer = element_pointer(context, builder, array_type, args[0], args[1])
        with builder.if_else(_streamed(builder, pointer, args[3])) as (around, through):
            with around:
                _around_caches(builder, stored, pointer)
            with through:
                place = builder.bitcast(pointer, stored.type.as_pointer())
                builder.store(stored, place, align=element_bytes(array_type.dtype))
        return context.get_dummy_value()

    return types.none(array, types.int64, value, types.boolean), codegen


@intrinsic
def store_masked_streaming(_typing: Any, array: Any, offset: Any, value: Any, mask: Any, streamed: Any) -> Any:
    """The lanes that are on of a vector of neighbours; where `streamed`, parts with all of theirs on go around the
    caches.

    A line of which one part is stored through them must be fetched, whole, when the rest was around them.
    """
    if not isinstance(array, types.Array) or not storable(array, offset, value, mask):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, lanes = signature.args[0], signature.args[3].lanes
        stored = to_storage(builder, array_type.dtype, broadcast(builder, args[2], lanes))
        pointer = element_pointer(context, builder, array_type, args[0], args[1])
        bits = ir.IntType(lanes)
        part = _ALIGNMENT // element_bytes(array_type.dtype)
        # The lanes that are left for a store through the caches, a bit each.
        left = cgutils.alloca_once_value(builder, builder.bitcast(args[3], bits))
        with builder.if_then(_streamed(builder, pointer, args[4])):
            for first in range(0, lanes, part):
                these = bits(((1 << part) - 1) << first)
                on = builder.and_(builder.load(left), these)
                with builder.if_then(builder.icmp_unsigned("==", on, these)):
                    which = ir.Constant(ir.VectorType(INT32, part), list(range(first, first + part)))
                    piece = builder.shuffle_vector(stored, ir.Constant(stored.type, ir.Undefined), which)
                    _around_caches(builder, piece, builder.gep(pointer, [INT64(first)]))
                    builder.store(builder.and_(builder.load(left), bits(~these.constant)), left)
        rest = builder.load(left)
        with builder.if_then(builder.icmp_unsigned("!=", rest, bits(0))):
            place = builder.bitcast(pointer, stored.type.as_pointer())
            mask = builder.bitcast(rest, args[3].type)
            given = [stored, place, INT32(element_bytes(array_type.dtype)), mask]
            call_intrinsic(builder, "masked.store", ir.VoidType(), given, [stored.type, place.type])
        return context.get_dummy_value()

    return types.none(array, types.int64, plain(value), mask, types.boolean), codegen


@intrinsic
def fence(_typing: Any) -> Any:
    """What was stored around the caches is in memory before anything that is stored after this."""

    def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.none(), codegen
