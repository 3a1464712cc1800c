"""Loads and stores at (array, element offset): scalars, contiguous vectors, strided ones, gathers.

Offsets and strides count elements from the array's data pointer, are int64 and may be negative; nothing is
checked and nothing wraps around.  Addresses need the alignment of one element only.  A masked access reads
zero in lanes that are off and never touches their addresses.  `array` is a NumPy array or a pointer (`stack`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import register_jitable
from numba.np import arrayobj

from pyschedule.codegen.simd.types import (
    BIT,
    BYTE,
    INT32,
    INT64,
    VectorType,
    broadcast,
    call_intrinsic,
    constant,
    element_bytes,
    element_of,
    intrinsic,
    lanes_of,
    literal,
    llvm_element,
    plain,
    reverse,
    storage_element,
    widened,
)

Codegen = Any
MASK = types.boolean


def _compiled_where_called(function: Callable[..., Any]) -> Any:
    return register_jitable(function)


def _is_array(numba_type: Any) -> bool:
    return isinstance(numba_type, (types.Array, types.CPointer))


def _is_integer(numba_type: Any) -> bool:
    return isinstance(plain(numba_type), types.Integer)


def _is_mask(numba_type: Any) -> bool:
    return isinstance(numba_type, VectorType) and numba_type.element == MASK


def _data(context: Any, builder: Any, array_type: Any, array: Any) -> Any:
    if isinstance(array_type, types.CPointer):
        return array
    return context.make_array(array_type)(context, builder, array).data


def element_pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    return builder.gep(_data(context, builder, array_type, array), [offset])


def _vector_pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, lanes: int) -> Any:
    pointer = element_pointer(context, builder, array_type, array, offset)
    return builder.bitcast(pointer, ir.VectorType(storage_element(array_type.dtype), lanes).as_pointer())


def _from_storage(builder: Any, element: Any, value: Any) -> Any:
    if llvm_element(element) == BIT:
        return builder.icmp_unsigned("!=", value, constant(value.type, 0))
    return value


def to_storage(builder: Any, element: Any, value: Any) -> Any:
    if llvm_element(element) == BIT:
        return builder.zext(value, widened(BYTE, value.type.count if isinstance(value.type, ir.VectorType) else 1))
    return value


# --------------------------------------------------------------------------------------- contiguous accesses


@intrinsic
def stride(_typing: Any, array: Any, axis: Any) -> Any:
    """The stride of one axis in elements."""
    index = literal(axis)
    if not isinstance(array, types.Array) or index is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type = signature.args[0]
        strides = context.make_array(array_type)(context, builder, args[0]).strides
        size = context.get_abi_sizeof(context.get_data_type(array_type.dtype))
        value = builder.extract_value(strides, index)
        quotient = builder.sdiv(value, ir.Constant(value.type, size))
        quotient.flags.append("exact")
        return quotient

    return types.int64(array, axis), codegen


@intrinsic
def load(_typing: Any, array: Any, offset: Any) -> Any:
    """One element."""
    if not _is_array(array) or not _is_integer(offset):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type = signature.args[0]
        value = builder.load(element_pointer(context, builder, array_type, *args))
        return _from_storage(builder, array_type.dtype, value)

    return array.dtype(array, types.int64), codegen


@intrinsic
def load_vector(_typing: Any, array: Any, offset: Any, lanes: Any) -> Any:
    """`lanes` neighbours."""
    width = literal(lanes)
    if not _is_array(array) or not _is_integer(offset) or width is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type = signature.args[0]
        element = array_type.dtype
        value = builder.load(_vector_pointer(context, builder, array_type, args[0], args[1], width))
        value.align = element_bytes(element)
        return _from_storage(builder, element, value)

    return VectorType(array.dtype, width)(array, types.int64, lanes), codegen


def _masked_load(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, mask: Any) -> Any:
    element = array_type.dtype
    lanes = mask.type.count
    pointer = _vector_pointer(context, builder, array_type, array, offset, lanes)
    vector = ir.VectorType(storage_element(element), lanes)
    args = [pointer, ir.Constant(INT32, element_bytes(element)), mask, constant(vector, 0)]
    value = call_intrinsic(builder, "masked.load", vector, args, [vector, pointer.type])
    return _from_storage(builder, element, value)


@intrinsic
def load_masked(_typing: Any, array: Any, offset: Any, mask: Any) -> Any:
    """Neighbours, as many as the mask has lanes."""
    if not _is_array(array) or not _is_integer(offset) or not _is_mask(mask):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _masked_load(context, builder, signature.args[0], *args)

    return VectorType(array.dtype, mask.lanes)(array, types.int64, mask), codegen


@intrinsic
def store(_typing: Any, array: Any, offset: Any, value: Any) -> Any:
    """One element, or a vector of neighbours.  The value has the element type."""
    if not _is_array(array) or not _is_integer(offset) or element_of(value) != array.dtype:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, _, value_type = signature.args
        lanes = lanes_of(value_type)
        stored = to_storage(builder, array_type.dtype, args[2])
        if lanes == 1:
            builder.store(stored, element_pointer(context, builder, array_type, args[0], args[1]))
        else:
            pointer = _vector_pointer(context, builder, array_type, args[0], args[1], lanes)
            builder.store(stored, pointer, align=element_bytes(array_type.dtype))
        return context.get_dummy_value()

    return types.none(array, types.int64, plain(value)), codegen


def _masked_store(
    context: Any, builder: Any, array_type: Any, array: Any, offset: Any, value: Any, mask: Any
) -> Any:
    element = array_type.dtype
    lanes = mask.type.count
    pointer = _vector_pointer(context, builder, array_type, array, offset, lanes)
    stored = to_storage(builder, element, value)
    args = [stored, pointer, ir.Constant(INT32, element_bytes(element)), mask]
    call_intrinsic(builder, "masked.store", ir.VoidType(), args, [stored.type, pointer.type])


def storable(array: Any, offset: Any, value: Any, mask: Any) -> bool:
    return (
        _is_array(array)
        and _is_integer(offset)
        and _is_mask(mask)
        and element_of(value) == array.dtype
        and lanes_of(value) in (1, mask.lanes)
    )


@intrinsic
def store_masked(_typing: Any, array: Any, offset: Any, value: Any, mask: Any) -> Any:
    """Writes the lanes that are on of a vector of neighbours; a scalar value goes to each of them."""
    if not storable(array, offset, value, mask):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type, _, _, mask_type = signature.args
        value = broadcast(builder, args[2], mask_type.lanes)
        _masked_store(context, builder, array_type, args[0], args[1], value, args[3])
        return context.get_dummy_value()

    return types.none(array, types.int64, plain(value), mask), codegen


# ---------------------------------------------------------------------------- gathers, scatters and strides


class _VectorGep(ir.Instruction):  # type: ignore[misc]
    """`getelementptr` of one base and a vector of offsets, which llvmlite's builder cannot type."""

    def __init__(self, builder: Any, base: Any, offsets: Any) -> None:
        pointers = ir.VectorType(base.type, offsets.type.count)
        super().__init__(builder.block, pointers, "getelementptr", [base, offsets])
        builder._insert(self)

    def descr(self, buffer: Any) -> None:
        base, offsets = self.operands
        buffer.append(
            f"getelementptr {base.type.pointee}, ptr {base.get_reference()}, "
            f"{offsets.type} {offsets.get_reference()}\n"
        )


def _pointers(context: Any, builder: Any, array_type: Any, array: Any, offsets: Any) -> Any:
    return _VectorGep(builder, _data(context, builder, array_type, array), offsets)


def _gather(context: Any, builder: Any, array_type: Any, array: Any, offsets: Any, mask: Any) -> Any:
    element = array_type.dtype
    vector = ir.VectorType(storage_element(element), offsets.type.count)
    pointers = _pointers(context, builder, array_type, array, offsets)
    args = [pointers, ir.Constant(INT32, element_bytes(element)), mask, constant(vector, 0)]
    value = call_intrinsic(builder, "masked.gather", vector, args, [vector, pointers.type])
    return _from_storage(builder, element, value)


def _scatter(context: Any, builder: Any, array_type: Any, array: Any, offsets: Any, value: Any, mask: Any) -> None:
    element = array_type.dtype
    stored = to_storage(builder, element, value)
    pointers = _pointers(context, builder, array_type, array, offsets)
    args = [stored, pointers, ir.Constant(INT32, element_bytes(element)), mask]
    call_intrinsic(builder, "masked.scatter", ir.VoidType(), args, [stored.type, pointers.type])


def _all_on(lanes: int) -> Any:
    return constant(ir.VectorType(BIT, lanes), 1)


def _ramp(builder: Any, base: Any, step: Any, lanes: int) -> Any:
    indices = ir.Constant(ir.VectorType(INT64, lanes), list(range(lanes)))
    scaled = builder.mul(indices, broadcast(builder, step, lanes))
    return builder.add(broadcast(builder, base, lanes), scaled)


def _constant_of(value: Any) -> int | None:
    return value.constant if isinstance(value, ir.Constant) and isinstance(value.constant, int) else None


def _uniform_load(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, mask: Any) -> Any:
    """One element in the lanes that are on, read only where there is such a lane."""
    lanes = mask.type.count
    element = storage_element(array_type.dtype)
    before = builder.block
    with builder.if_then(call_intrinsic(builder, "vector.reduce.or", BIT, [mask], [mask.type])):
        loaded = builder.load(element_pointer(context, builder, array_type, array, offset))
        inside = builder.block
    value = builder.phi(element)
    value.add_incoming(constant(element, 0), before)
    value.add_incoming(loaded, inside)
    vector = broadcast(builder, value, lanes)
    return _from_storage(builder, array_type.dtype, builder.select(mask, vector, constant(vector.type, 0)))


def _strided_load(context: Any, builder: Any, array_type: Any, args: Any, lanes: int, mask: Any) -> Any:
    array, offset, step = args
    fixed = _constant_of(step)
    if fixed == 0:
        return _uniform_load(context, builder, array_type, array, offset, mask)
    if fixed == 1:
        return _masked_load(context, builder, array_type, array, offset, mask)
    if fixed == -1:
        first = builder.sub(offset, ir.Constant(INT64, lanes - 1))
        return reverse(builder, _masked_load(context, builder, array_type, array, first, reverse(builder, mask)))
    return _gather(context, builder, array_type, array, _ramp(builder, offset, step, lanes), mask)


@intrinsic
def load_strided(_typing: Any, array: Any, offset: Any, step: Any, lanes: Any) -> Any:
    """The elements at `offset, offset + step, ...`."""
    width = literal(lanes)
    if not _is_array(array) or not _is_integer(offset) or not _is_integer(step) or width is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _strided_load(context, builder, signature.args[0], args[:3], width, _all_on(width))

    return VectorType(array.dtype, width)(array, types.int64, types.int64, lanes), codegen


@intrinsic
def load_strided_masked(_typing: Any, array: Any, offset: Any, step: Any, mask: Any) -> Any:
    """The elements at `offset, offset + step, ...` of the lanes that are on."""
    if not _is_array(array) or not _is_integer(offset) or not _is_integer(step) or not _is_mask(mask):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _strided_load(context, builder, signature.args[0], args[:3], mask.lanes, args[3])

    return VectorType(array.dtype, mask.lanes)(array, types.int64, types.int64, mask), codegen


@intrinsic
def store_strided_masked(_typing: Any, array: Any, offset: Any, step: Any, value: Any, mask: Any) -> Any:
    """Writes lane n, where it is on, at `offset + n * step`; of lanes at one address the last one stays."""
    if not storable(array, offset, value, mask) or not _is_integer(step):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_type = signature.args[0]
        array_value, first, step_value, stored, on = args
        lanes = mask.lanes
        stored = broadcast(builder, stored, lanes)
        fixed = _constant_of(step_value)
        if fixed == 1:
            _masked_store(context, builder, array_type, array_value, first, stored, on)
        elif fixed == -1:
            last = builder.sub(first, ir.Constant(INT64, lanes - 1))
            stored, on = reverse(builder, stored), reverse(builder, on)
            _masked_store(context, builder, array_type, array_value, last, stored, on)
        else:
            offsets = _ramp(builder, first, step_value, lanes)
            _scatter(context, builder, array_type, array_value, offsets, stored, on)
        return context.get_dummy_value()

    return types.none(array, types.int64, types.int64, plain(value), mask), codegen


@intrinsic
def gather_masked(_typing: Any, array: Any, offsets: Any, mask: Any) -> Any:
    """The elements at a vector of offsets, of the lanes that are on."""
    if not _is_array(array) or element_of(offsets) != types.int64 or not _is_mask(mask):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _gather(context, builder, signature.args[0], *args)

    return VectorType(array.dtype, mask.lanes)(array, offsets, mask), codegen


@intrinsic
def gather(_typing: Any, array: Any, offsets: Any) -> Any:
    """The elements at a vector of offsets."""
    if not _is_array(array) or element_of(offsets) != types.int64 or lanes_of(offsets) == 1:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _gather(context, builder, signature.args[0], args[0], args[1], _all_on(offsets.lanes))

    return VectorType(array.dtype, offsets.lanes)(array, offsets), codegen


@intrinsic
def scatter_masked(_typing: Any, array: Any, offsets: Any, value: Any, mask: Any) -> Any:
    """Writes each lane that is on at its offset; of lanes at one address the last one stays."""
    if element_of(offsets) != types.int64 or not storable(array, types.int64, value, mask):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_value, where, stored, on = args
        stored = broadcast(builder, stored, mask.lanes)
        _scatter(context, builder, signature.args[0], array_value, where, stored, on)
        return context.get_dummy_value()

    return types.none(array, offsets, plain(value), mask), codegen


# -------------------------------------------------------------------------------------------- scratch memory


@intrinsic
def stack(_typing: Any, dtype: Any, count: Any) -> Any:
    """A pointer to `count` elements in the function's stack frame, 64-byte aligned, contents undefined.

    One piece of memory a call of the function, wherever the expression stands.
    """
    length = literal(count)
    if not isinstance(dtype, types.NumberClass) or length is None:
        return None
    element = dtype.dtype

    def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(storage_element(element), length))
            memory.align = 64
        return builder.bitcast(memory, storage_element(element).as_pointer())

    return types.CPointer(element)(dtype, count), codegen


# ------------------------------------------------------------------------------------------------- vectors


@intrinsic
def ramp(_typing: Any, base: Any, step: Any, lanes: Any) -> Any:
    """The int64 vector `base, base + step, ...`."""
    width = literal(lanes)
    if not _is_integer(base) or not _is_integer(step) or width is None:
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return _ramp(builder, args[0], args[1], width)

    return VectorType(types.int64, width)(types.int64, types.int64, lanes), codegen


@intrinsic
def splat(_typing: Any, value: Any, lanes: Any) -> Any:
    """A scalar in all lanes."""
    width = literal(lanes)
    value = plain(value)
    if width is None or lanes_of(value) != 1 or not isinstance(value, (types.Number, types.Boolean)):
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return broadcast(builder, args[0], width)

    return VectorType(value, width)(value, lanes), codegen


@intrinsic
def head(_typing: Any, count: Any, lanes: Any) -> Any:
    """The mask whose first `count` lanes are on (none where `count <= 0`)."""
    width = literal(lanes)
    if not _is_integer(count) or width is None:
        return None

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        zero, full = ir.Constant(INT64, 0), ir.Constant(INT64, width)
        number = builder.select(builder.icmp_signed("<", args[0], full), args[0], full)
        number = builder.select(builder.icmp_signed("<", number, zero), zero, number)
        if width < 64 and sys.byteorder == "little":  # lane 0 is bit 0
            # From the bits of an integer, not from a comparison: LLVM moves comparisons to where their results are
            # used. In a loop each costs an instruction and a vector register; bits stay in a register for masks.
            bits = builder.not_(builder.shl(ir.Constant(INT64, -1), number))
            return builder.bitcast(builder.trunc(bits, ir.IntType(width)), ir.VectorType(BIT, width))
        indices = ir.Constant(ir.VectorType(INT32, width), list(range(width)))
        return builder.icmp_unsigned("<", indices, broadcast(builder, builder.trunc(number, INT32), width))

    return VectorType(MASK, width)(types.int64, lanes), codegen


@intrinsic
def scratch(_typing: Any, count: Any, dtype: Any) -> Any:
    """A one-dimensional array of `count` elements (none where negative), 64-byte aligned, contents undefined.

    `MemoryError` where there is no room.
    """
    if not _is_integer(count) or not isinstance(dtype, types.NumberClass):
        return None
    array_type = types.Array(dtype.dtype, 1, "C")

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        zero, size = ir.Constant(INT64, 0), ir.Constant(INT64, element_bytes(array_type.dtype))
        number = builder.select(builder.icmp_signed("<", args[0], zero), zero, args[0])
        product = builder.smul_with_overflow(number, size)
        # What overflows is more than there can be: no allocation of so many bytes succeeds.
        most = ir.Constant(INT64, (1 << 63) - 1)
        size_in_bytes = builder.select(builder.extract_value(product, 1), most, builder.extract_value(product, 0))
        owner = context.nrt.meminfo_alloc_aligned(builder, size_in_bytes, ir.Constant(INT32, 64))
        array = arrayobj.make_array(array_type)(context, builder)
        arrayobj.populate_array(
            array,
            data=builder.bitcast(context.nrt.meminfo_data(builder, owner), array.data.type),
            shape=cgutils.pack_array(builder, [number], ty=INT64),
            strides=cgutils.pack_array(builder, [size], ty=INT64),
            itemsize=size,
            meminfo=owner,
        )
        return array._getvalue()

    return array_type(count, dtype), codegen
