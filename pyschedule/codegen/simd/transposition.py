"""Vectors stored the other way round: lane n of each of them goes to row n, where they are neighbours.

    a0 a1 a2 a3         a0 b0 a1 b1         a0 b0 c0 d0
    b0 b1 b2 b3    →    a2 b2 a3 b3    →    a1 b1 c1 d1
    c0 c1 c2 c3         c0 d0 c1 d1         a2 b2 c2 d2
    d0 d1 d2 d3         c2 d2 c3 d3         a3 b3 c3 d3

Each step interleaves pairs of vectors, in units that double.  (D. Fraser, "Array permutation by index-digit
permutation", Journal of the ACM 23(2), 1976, has transpositions as such steps.)  As long as a unit is smaller than
16 bytes, it stays in its 16 bytes: that is one instruction a result with all instruction sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types

from pyschedule.codegen.simd.memory import element_pointer, storable, to_storage
from pyschedule.codegen.simd.types import (
    INT32,
    INT64,
    VectorType,
    broadcast,
    call_intrinsic,
    constant,
    element_bytes,
    intrinsic,
    literal,
)

#: Bytes within which instructions interleave at no further cost.
_PART = 16
#: Elements of so many bytes have masked stores wherever vectors have.
_MASKED = 4


@intrinsic
def store_transposed(_typing: Any, array: Any, offset: Any, step: Any, values: Any, mask: Any, count: Any) -> Any:
    """Writes lane n, where it is on, of the m-th of `values` at `offset + n * step + m`, for `m < count`.

    All vectors have a power of two of lanes, and are no more than these.  `mask` is `None` where all lanes are on.
    """
    if not isinstance(values, types.UniTuple) or not isinstance(values.dtype, VectorType):
        return None
    lanes, number = values.dtype.lanes, values.count
    on = VectorType(types.boolean, lanes) if isinstance(mask, types.NoneType) else mask
    if not storable(array, offset, values.dtype, on) or on.lanes != lanes or lanes & (lanes - 1) or number > lanes:
        return None
    fixed = literal(count)
    whole = fixed is not None and fixed >= number
    size = element_bytes(array.dtype)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array_value, place, step_value, values_value, on, wanted = args
        vectors = (builder.extract_value(values_value, at) for at in range(number))
        stored = [to_storage(builder, array.dtype, vector) for vector in vectors]
        rows = _transposed(builder, stored, max(1, _PART // size))
        width = rows[0].type.count
        first = _first(builder, constant(INT64, number) if whole else _limited(builder, wanted, number), width)
        for lane, row in enumerate(rows):
            pointer = element_pointer(context, builder, array, array_value, place)
            place = builder.add(place, step_value)
            if not isinstance(mask, types.NoneType):
                is_on = builder.extract_element(on, constant(INT32, lane))
                _masked(builder, row, pointer, builder.select(is_on, first, constant(first.type, 0)), size)
            elif whole and (number == width or size < _MASKED):
                _in_pieces(builder, row, number, pointer, size)
            else:
                _masked(builder, row, pointer, first, size)
        return context.get_dummy_value()

    given = count if fixed is not None else types.int64
    return types.none(array, types.int64, types.int64, values, mask, given), codegen


def _limited(builder: Any, value: Any, most: int) -> Any:
    """`value`, within 0 and `most`."""
    least, limit = constant(INT64, 0), constant(INT64, most)
    value = builder.select(builder.icmp_signed("<", value, limit), value, limit)
    return builder.select(builder.icmp_signed("<", value, least), least, value)


def _first(builder: Any, count: Any, width: int) -> Any:
    """The mask whose first `count` lanes are on."""
    lanes = ir.Constant(ir.VectorType(INT32, width), list(range(width)))
    return builder.icmp_signed("<", lanes, broadcast(builder, builder.trunc(count, INT32), width))


def _masked(builder: Any, row: Any, pointer: Any, mask: Any, size: int) -> None:
    pointer = builder.bitcast(pointer, row.type.as_pointer())
    args = [row, pointer, constant(INT32, size), mask]
    call_intrinsic(builder, "masked.store", ir.VoidType(), args, [row.type, pointer.type])


def _in_pieces(builder: Any, row: Any, number: int, pointer: Any, size: int) -> None:
    """The first `number` elements, as vectors of a power of two each."""
    start = 0
    while start < number:
        length = 1 << ((number - start).bit_length() - 1)
        piece = row if length == row.type.count else _shuffled(builder, row, None, range(start, start + length))
        to = builder.gep(pointer, [constant(INT64, start)])
        builder.store(piece, builder.bitcast(to, piece.type.as_pointer()), align=size)
        start += length


@dataclass(frozen=True, slots=True)
class _Part:
    """A vector on its way: its value (`None`: anything), and the row that each of its elements belongs to."""

    value: Any
    rows: tuple[int, ...]


def _transposed(builder: Any, vectors: list[Any], part: int) -> list[Any]:
    """Row n has the n-th lanes of all vectors, followed by anything up to a power of two."""
    lanes = vectors[0].type.count
    width = 1 << (len(vectors) - 1).bit_length()
    every = tuple(range(lanes))
    # Each group of neighbouring vectors, as those that hold its units: what it has of a row.
    groups = [[_Part(vector, every)] for vector in [*vectors, *[None] * (width - len(vectors))]]
    unit = 1
    while len(groups) > 1:
        low, high = _orders(lanes, unit, part if unit < part <= lanes else lanes)
        pairs = zip(groups[::2], groups[1::2], strict=True)
        groups = [
            [_picked(builder, *both, order) for both in zip(*pair, strict=True) for order in (low, high)]
            for pair in pairs
        ]
        unit *= 2
    found = {row: (one, one.rows.index(row)) for one in groups[0] for row in one.rows}
    places = (found[row] for row in every)
    return [_shuffled(builder, one.value, None, range(start, start + width)) for one, start in places]


def _orders(lanes: int, unit: int, block: int) -> tuple[list[int], list[int]]:
    """The lanes of two vectors behind one another, interleaved by units: those of the first halves of all blocks,
    and those of the second halves."""
    low, high = (
        [
            other + start + at
            for first in range(0, lanes, block)
            for start in range(first + half, first + half + block // 2, unit)
            for other in (0, lanes)
            for at in range(unit)
        ]
        for half in (0, block // 2)
    )
    return low, high


def _picked(builder: Any, left: _Part, right: _Part, order: list[int]) -> _Part:
    rows = left.rows + right.rows
    picked = tuple(rows[at] for at in order)
    if left.value is None:
        return _Part(None, picked)
    return _Part(_shuffled(builder, left.value, right.value, order), picked)


def _shuffled(builder: Any, one: Any, other: Any, order: Sequence[int]) -> Any:
    """Lanes of two vectors behind one another; `None` for the other: anything."""
    places = ir.Constant(ir.VectorType(INT32, len(order)), list(order))
    return builder.shuffle_vector(one, ir.Constant(one.type, ir.Undefined) if other is None else other, places)
