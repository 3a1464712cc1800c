"""Operands of a matrix unit, copied into blocks of its order: see `matrix` and `dot_products`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from pyschedule.codegen.simd.halves import features_of
from pyschedule.codegen.simd.memory import element_pointer
from pyschedule.codegen.simd.types import (
    BIT,
    BYTE,
    INT32,
    INT64,
    broadcast,
    call_intrinsic,
    element_bytes,
    intrinsic,
    literal,
)

#: A tile has so many rows, of so many bytes.
ROWS, ROW_BYTES = 16, 64
WORD = 4


def constant(value: int) -> Any:
    return ir.Constant(INT64, value)


def bytes_at(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    return builder.bitcast(element_pointer(context, builder, array_type, array, offset), BYTE.as_pointer())


def advanced(builder: Any, pointer: Any, count: Any) -> Any:
    """A pointer to bytes, moved by so many."""
    return builder.gep(pointer, [constant(count) if isinstance(count, int) else count])


def at_most(builder: Any, value: Any, limit: int) -> Any:
    """`value`, within 0 and `limit`."""
    least, most = constant(0), constant(limit)
    value = builder.select(builder.icmp_signed("<", value, most), value, most)
    return builder.select(builder.icmp_signed("<", value, least), least, value)


def first_lanes(builder: Any, count: Any, lanes: int) -> Any:
    """The mask of the first `count` lanes, a number from 0 to `lanes`."""
    if lanes < 64:
        bits = builder.trunc(builder.not_(builder.shl(constant(-1), count)), ir.IntType(lanes))
    else:
        full = builder.icmp_signed("==", count, constant(64))
        bits = builder.select(full, constant(-1), builder.not_(builder.shl(constant(-1), count)))
    return builder.bitcast(bits, ir.VectorType(BIT, lanes))


def masked_load(builder: Any, pointer: Any, element: Any, mask: Any) -> Any:
    """Elements from an address of bytes, zero where the mask is off."""
    vector = ir.VectorType(element, mask.type.count)
    place = builder.bitcast(pointer, vector.as_pointer())
    args = [place, ir.Constant(INT32, element.width // 8), mask, ir.Constant(vector, None)]
    return call_intrinsic(builder, "masked.load", vector, args, [vector, place.type])


def masked_store(builder: Any, value: Any, pointer: Any, mask: Any) -> None:
    """Writes elements to an address of bytes, where the mask is on."""
    place = builder.bitcast(pointer, value.type.as_pointer())
    args = [value, place, ir.Constant(INT32, value.type.element.width // 8), mask]
    call_intrinsic(builder, "masked.store", ir.VoidType(), args, [value.type, place.type])


def _store(builder: Any, value: Any, pointer: Any) -> None:
    builder.store(value, builder.bitcast(pointer, value.type.as_pointer()), align=1)


def _shuffle(builder: Any, one: Any, other: Any, order: Sequence[int]) -> Any:
    return builder.shuffle_vector(one, other, ir.Constant(ir.VectorType(INT32, len(order)), list(order)))


# ----------------------------------------------------------------------------------------------- packing


def _side_by_side(builder: Any, rows: Sequence[Any]) -> Any:
    """Vectors as one in which lane n of each is beside lane n of the others."""
    if len(rows) == 1:
        return rows[0]
    evens, odds = _side_by_side(builder, rows[::2]), _side_by_side(builder, rows[1::2])
    lanes = evens.type.count
    order = [lane + (lanes if odd else 0) for lane in range(lanes) for odd in (False, True)]
    return _shuffle(builder, evens, odds, order)


def _turned(builder: Any, rows: list[Any]) -> list[Any]:
    """The transpose of 16 vectors of 16 lanes, in four rounds of pairs that swap their halves, quarters, ..."""
    for reach in (8, 4, 2, 1):
        for at in range(ROWS):
            if at & reach:
                continue
            one, other = rows[at], rows[at + reach]
            low = [lane + ROWS - reach if lane & reach else lane for lane in range(ROWS)]
            high = [lane + ROWS if lane & reach else lane + reach for lane in range(ROWS)]
            rows[at], rows[at + reach] = _shuffle(builder, one, other, low), _shuffle(builder, one, other, high)
    return rows


@dataclass(frozen=True, slots=True)
class Held:
    """What becomes of elements as they are packed: they are widened to `size` bytes, and `added` to."""

    size: int
    signed: bool = True
    added: int = 0

    def of(self, builder: Any, value: Any) -> Any:
        """An element, or a vector of them."""
        vector = isinstance(value.type, ir.VectorType)
        element = ir.IntType(8 * self.size)
        kind = ir.VectorType(element, value.type.count) if vector else element
        if kind != value.type:
            value = (builder.sext if self.signed else builder.zext)(value, kind)
        if self.added:
            half = 1 << element.width - 1
            number = ir.Constant(element, (self.added + half) % (2 * half) - half)
            value = builder.add(value, broadcast(builder, number, kind.count if vector else 1))
        return value


class Packer:
    """Writes the code that packs one block of elements of `size` bytes.

    `whole`: the block is there as a whole, and vectors are read without masks.
    """

    def __init__(
        self, builder: Any, size: int, held: Held, group: int, groups: int, width: int, *, whole: bool = False
    ) -> None:
        self.builder, self.element, self.size, self.held = builder, ir.IntType(8 * size), size, held
        self.masked = not whole
        self.group, self.groups, self.width = group, groups, width
        self.depth = group * groups
        self.per_word = WORD // held.size

    def _load(self, pointer: Any, mask: Any) -> Any:
        builder = self.builder
        if self.masked:
            return self.held.of(builder, masked_load(builder, pointer, self.element, mask))
        vector = ir.VectorType(self.element, mask.type.count)
        return self.held.of(builder, builder.load(builder.bitcast(pointer, vector.as_pointer()), align=self.size))

    def from_depth(self, tile: Any, source: Any, lane_step: Any, lanes: Any, depth: Any) -> None:
        """From where the elements of a lane are neighbours."""
        builder = self.builder
        mask = first_lanes(builder, depth, self.depth)
        nothing = ir.Constant(mask.type, None)

        def row(lane: Any) -> Any:
            on = builder.select(builder.icmp_signed("<", lane, lanes), mask, nothing)
            return self._load(advanced(builder, source, builder.mul(lane, lane_step)), on)

        if self.groups == 1:
            with cgutils.for_range(builder, constant(self.width)) as loop:
                place = advanced(builder, tile, builder.mul(loop.index, constant(ROW_BYTES)))
                _store(builder, row(loop.index), place)
            return
        with cgutils.for_range_slice(builder, constant(0), constant(self.width), constant(ROWS)) as (first, _):
            words = ir.VectorType(INT32, ROWS)
            rows = [builder.bitcast(row(builder.add(first, constant(at))), words) for at in range(ROWS)]
            self._store_groups(_turned(builder, rows), tile, first)

    def from_lanes(self, tile: Any, source: Any, depth_step: Any, lanes: Any, depth: Any) -> None:
        """From where the lanes of one depth are neighbours."""
        builder = self.builder

        def group_of(first: Any, number: Any, mask: Any) -> Any:
            """What stands side by side in 16 words."""
            parts = []
            for at in range(self.per_word):
                deep = builder.add(builder.mul(number, constant(self.per_word)), constant(at))
                on = builder.select(builder.icmp_signed("<", deep, depth), mask, ir.Constant(mask.type, None))
                moved = builder.add(builder.mul(deep, depth_step), builder.mul(first, constant(self.size)))
                parts.append(self._load(advanced(builder, source, moved), on))
            return _side_by_side(builder, parts)

        def mask_of(first: Any, lanes_at_once: int) -> Any:
            return first_lanes(builder, at_most(builder, builder.sub(lanes, first), lanes_at_once), lanes_at_once)

        if self.groups > 1:
            at_once = 2 * ROWS if self.width % (2 * ROWS) == 0 else ROWS
            with cgutils.for_range_slice(builder, constant(0), constant(self.width), constant(at_once)) as (
                first,
                _,
            ):
                mask = mask_of(first, at_once)
                with cgutils.for_range(builder, constant(self.groups)) as loop:
                    self._store_group(group_of(first, loop.index, mask), tile, first, loop.index)
            return
        with cgutils.for_range_slice(builder, constant(0), constant(self.width), constant(ROWS)) as (first, _):
            mask = mask_of(first, ROWS)
            words = ir.VectorType(INT32, ROWS)
            rows = [builder.bitcast(group_of(first, constant(at), mask), words) for at in range(ROWS)]
            for lane, value in enumerate(_turned(builder, rows)):
                moved = builder.mul(builder.add(first, constant(lane)), constant(ROW_BYTES))
                _store(builder, value, advanced(builder, tile, moved))

    def one_by_one(self, tile: Any, source: Any, steps: tuple[Any, Any], lanes: Any, depth: Any) -> None:
        """From where no elements are neighbours."""
        builder = self.builder
        with (
            cgutils.for_range(builder, constant(self.width)) as lane_loop,
            cgutils.for_range(builder, constant(self.depth)) as depth_loop,
        ):
            lane, deep = lane_loop.index, depth_loop.index
            exists = builder.and_(builder.icmp_signed("<", lane, lanes), builder.icmp_signed("<", deep, depth))
            before = builder.block
            with builder.if_then(exists):
                moved = builder.add(builder.mul(lane, steps[0]), builder.mul(deep, steps[1]))
                loaded = builder.load(builder.bitcast(advanced(builder, source, moved), self.element.as_pointer()))
                inside = builder.block
            value = builder.phi(self.element)
            value.add_incoming(ir.Constant(self.element, 0), before)
            value.add_incoming(loaded, inside)
            held = self.held.of(builder, value)
            number, within = (operation(deep, constant(self.group)) for operation in (builder.udiv, builder.urem))
            place = builder.add(builder.mul(number, constant(self.width)), lane)
            place = builder.add(builder.mul(place, constant(self.group)), within)
            place = advanced(builder, tile, builder.mul(place, constant(self.held.size)))
            builder.store(held, builder.bitcast(place, held.type.as_pointer()))

    def _store_groups(self, groups: Sequence[Any], tile: Any, first: Any) -> None:
        for number, value in enumerate(groups):
            self._store_group(value, tile, first, constant(number))

    def _store_group(self, value: Any, tile: Any, first: Any, number: Any) -> None:
        """Writes one group of depth for some lanes, from the `first` on."""
        builder = self.builder
        place = builder.add(builder.mul(number, constant(self.width)), first)
        _store(builder, value, advanced(builder, tile, builder.mul(place, constant(WORD))))


@intrinsic
def pack(
    _typing: Any,
    tile: Any,
    place: Any,
    array: Any,
    offset: Any,
    lane_step: Any,
    depth_step: Any,
    lanes: Any,
    depth: Any,
    groups: Any,
    width: Any,
    group: Any,
    zero_point: Any,
) -> Any:
    """Fills the block of `width` lanes that begins at `tile[place]` from `array`, as `ir.nodes.Pack` says.

    Steps count elements.  `groups` of `group` elements of depth make up 64 bytes, in groups of 4 bytes or in one.
    """
    fixed = [literal(item) for item in (groups, width, group, zero_point)]
    if not isinstance(array, types.Array) or None in fixed or tile.dtype.bitwidth < array.dtype.bitwidth:
        return None
    count, lanes_in_all, together, added = fixed

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tile_type, array_type = signature.args[0], signature.args[2]
        size = element_bytes(array_type.dtype)
        target = bytes_at(context, builder, tile_type, args[0], args[1])
        source = bytes_at(context, builder, array_type, args[2], args[3])
        held = Held(element_bytes(tile_type.dtype), array_type.dtype.signed, added)
        masks = "+avx512bw" in features_of(context)  # of lanes of one byte
        packer = Packer(builder, size, held, together, count, lanes_in_all, whole=not masks)
        one, other = ((arg, builder.mul(arg, constant(size))) for arg in args[4:6])
        there = at_most(builder, args[6], lanes_in_all), at_most(builder, args[7], packer.depth)
        one_by_one = partial(packer.one_by_one, target, source, (one[1], other[1]), *there)
        if _is_one(other[0]):
            in_vectors = partial(packer.from_depth, target, source, one[1], *there)
        elif _is_one(one[0]):
            in_vectors = partial(packer.from_lanes, target, source, other[1], *there)
        else:
            in_vectors = one_by_one
        if masks or in_vectors is one_by_one:
            in_vectors()
            return context.get_dummy_value()
        extents = constant(lanes_in_all), constant(packer.depth)
        whole = [builder.icmp_signed("==", count, extent) for count, extent in zip(there, extents, strict=True)]
        with builder.if_else(builder.and_(*whole)) as (then, otherwise):
            with then:
                in_vectors()
            with otherwise:
                one_by_one()
        return context.get_dummy_value()

    integer = types.int64
    return types.none(tile, integer, array, *[integer] * 5, groups, width, group, zero_point), codegen


def _is_one(value: Any) -> bool:
    return isinstance(value, ir.Constant) and value.constant == 1
