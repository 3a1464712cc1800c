"""Products of blocks of matrices on a matrix unit: Intel AMX, whose 8 registers each hold a tile of 16 x 64 bytes.

A tile is read from memory row by row.  `pack` writes blocks in the order in which tiles are read: 16 rows of 64
bytes of depth for the left operand; for the right one 16 groups of 4 bytes of depth, each for all columns side by
side.  (Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on Intel AMX.)

The unit is set up and released by each product: tiles that are left in use cost time at every switch of threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from pyschedule.codegen.simd.memory import element_pointer
from pyschedule.codegen.simd.types import BIT, BYTE, INT32, INT64, call_intrinsic, element_bytes, intrinsic, literal

#: A tile has so many rows, of so many bytes.
ROWS, ROW_BYTES = 16, 64
_TILES = 8
_WORD = 4
_VOID = ir.VoidType()

#: The instruction for two element types; halves are held as 16-bit words.
_INSTRUCTIONS = {
    (types.int8, types.int8): "tdpbssd",
    (types.int8, types.uint8): "tdpbsud",
    (types.uint8, types.int8): "tdpbusd",
    (types.uint8, types.uint8): "tdpbuud",
    (types.uint16, types.uint16): "tdpbf16ps",
}


def _number(value: int) -> Any:
    return ir.Constant(INT64, value)


def _unit(builder: Any, name: str, *args: Any) -> None:
    """An instruction of the unit.  Tiles are numbers."""
    values = [ir.Constant(BYTE, arg) if isinstance(arg, int) else arg for arg in args]
    kind = ir.FunctionType(_VOID, [value.type for value in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), values)


def _bytes_at(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    return builder.bitcast(element_pointer(context, builder, array_type, array, offset), BYTE.as_pointer())


def _moved(builder: Any, pointer: Any, count: Any) -> Any:
    """A pointer to bytes, moved by so many."""
    return builder.gep(pointer, [_number(count) if isinstance(count, int) else count])


def _at_most(builder: Any, value: Any, limit: int) -> Any:
    """`value`, within 0 and `limit`."""
    least, most = _number(0), _number(limit)
    value = builder.select(builder.icmp_signed("<", value, most), value, most)
    return builder.select(builder.icmp_signed("<", value, least), least, value)


def _first(builder: Any, count: Any, lanes: int) -> Any:
    """The mask of the first `count` lanes, a number from 0 to `lanes`."""
    if lanes < 64:
        bits = builder.trunc(builder.not_(builder.shl(_number(-1), count)), ir.IntType(lanes))
    else:
        full = builder.icmp_signed("==", count, _number(64))
        bits = builder.select(full, _number(-1), builder.not_(builder.shl(_number(-1), count)))
    return builder.bitcast(bits, ir.VectorType(BIT, lanes))


def _load(builder: Any, pointer: Any, element: Any, mask: Any) -> Any:
    """Elements from an address of bytes, zero where the mask is off."""
    vector = ir.VectorType(element, mask.type.count)
    place = builder.bitcast(pointer, vector.as_pointer())
    args = [place, ir.Constant(INT32, element.width // 8), mask, ir.Constant(vector, None)]
    return call_intrinsic(builder, "masked.load", vector, args, [vector, place.type])


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


class _Packer:
    """Writes the code that packs one block."""

    def __init__(self, builder: Any, element: Any, size: int, group: int, groups: int, width: int) -> None:
        self.builder, self.element, self.size = builder, element, size
        self.group, self.groups, self.width = group, groups, width
        self.depth = group * groups
        self.per_word = _WORD // size

    def from_depth(self, tile: Any, source: Any, lane_step: Any, lanes: Any, depth: Any) -> None:
        """From where the elements of a lane are neighbours."""
        builder = self.builder
        mask = _first(builder, depth, self.depth)
        nothing = ir.Constant(mask.type, None)

        def row(lane: Any) -> Any:
            on = builder.select(builder.icmp_signed("<", lane, lanes), mask, nothing)
            return _load(builder, _moved(builder, source, builder.mul(lane, lane_step)), self.element, on)

        if self.groups == 1:
            with cgutils.for_range(builder, _number(self.width)) as loop:
                place = _moved(builder, tile, builder.mul(loop.index, _number(ROW_BYTES)))
                _store(builder, row(loop.index), place)
            return
        with cgutils.for_range_slice(builder, _number(0), _number(self.width), _number(ROWS)) as (first, _):
            words = ir.VectorType(INT32, ROWS)
            rows = [builder.bitcast(row(builder.add(first, _number(at))), words) for at in range(ROWS)]
            self._store_groups(_turned(builder, rows), tile, first)

    def from_lanes(self, tile: Any, source: Any, depth_step: Any, lanes: Any, depth: Any) -> None:
        """From where the lanes of one depth are neighbours."""
        builder = self.builder

        def group_of(first: Any, number: Any, mask: Any) -> Any:
            """What stands side by side in 16 words."""
            parts = []
            for at in range(self.per_word):
                deep = builder.add(builder.mul(number, _number(self.per_word)), _number(at))
                on = builder.select(builder.icmp_signed("<", deep, depth), mask, ir.Constant(mask.type, None))
                moved = builder.add(builder.mul(deep, depth_step), builder.mul(first, _number(self.size)))
                parts.append(_load(builder, _moved(builder, source, moved), self.element, on))
            return _side_by_side(builder, parts)

        def mask_of(first: Any, lanes_at_once: int) -> Any:
            return _first(builder, _at_most(builder, builder.sub(lanes, first), lanes_at_once), lanes_at_once)

        if self.groups > 1:
            at_once = 2 * ROWS if self.width % (2 * ROWS) == 0 else ROWS
            with cgutils.for_range_slice(builder, _number(0), _number(self.width), _number(at_once)) as (first, _):
                mask = mask_of(first, at_once)
                with cgutils.for_range(builder, _number(self.groups)) as loop:
                    self._store_group(group_of(first, loop.index, mask), tile, first, loop.index)
            return
        with cgutils.for_range_slice(builder, _number(0), _number(self.width), _number(ROWS)) as (first, _):
            mask = mask_of(first, ROWS)
            words = ir.VectorType(INT32, ROWS)
            rows = [builder.bitcast(group_of(first, _number(at), mask), words) for at in range(ROWS)]
            for lane, value in enumerate(_turned(builder, rows)):
                moved = builder.mul(builder.add(first, _number(lane)), _number(ROW_BYTES))
                _store(builder, value, _moved(builder, tile, moved))

    def one_by_one(self, tile: Any, source: Any, steps: tuple[Any, Any], lanes: Any, depth: Any) -> None:
        """From where no elements are neighbours."""
        builder = self.builder
        pointer = self.element.as_pointer()
        with (
            cgutils.for_range(builder, _number(self.width)) as lane_loop,
            cgutils.for_range(builder, _number(self.depth)) as depth_loop,
        ):
            lane, deep = lane_loop.index, depth_loop.index
            exists = builder.and_(builder.icmp_signed("<", lane, lanes), builder.icmp_signed("<", deep, depth))
            before = builder.block
            with builder.if_then(exists):
                moved = builder.add(builder.mul(lane, steps[0]), builder.mul(deep, steps[1]))
                loaded = builder.load(builder.bitcast(_moved(builder, source, moved), pointer))
                inside = builder.block
            value = builder.phi(self.element)
            value.add_incoming(ir.Constant(self.element, 0), before)
            value.add_incoming(loaded, inside)
            number, within = (operation(deep, _number(self.group)) for operation in (builder.udiv, builder.urem))
            place = builder.add(builder.mul(number, _number(self.width)), lane)
            place = builder.add(builder.mul(place, _number(self.group)), within)
            place = _moved(builder, tile, builder.mul(place, _number(self.size)))
            builder.store(value, builder.bitcast(place, pointer))

    def _store_groups(self, groups: Sequence[Any], tile: Any, first: Any) -> None:
        for number, value in enumerate(groups):
            self._store_group(value, tile, first, _number(number))

    def _store_group(self, value: Any, tile: Any, first: Any, number: Any) -> None:
        """Writes one group of depth for some lanes, from the `first` on."""
        builder = self.builder
        place = builder.add(builder.mul(number, _number(self.width)), first)
        _store(builder, value, _moved(builder, tile, builder.mul(place, _number(_WORD))))


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
) -> Any:
    """Fills the block of `width` lanes that begins at `tile[place]` from `array`, as `ir.nodes.Pack` says.

    Steps count elements.  `groups` of `group` elements of depth make up 64 bytes, in groups of 4 bytes or in one.
    """
    fixed = [literal(item) for item in (groups, width, group)]
    if not isinstance(array, types.Array) or None in fixed or array.dtype != tile.dtype:
        return None
    count, lanes_in_all, together = fixed

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        tile_type, array_type = signature.args[0], signature.args[2]
        size = element_bytes(array_type.dtype)
        target = _bytes_at(context, builder, tile_type, args[0], args[1])
        source = _bytes_at(context, builder, array_type, args[2], args[3])
        packer = _Packer(builder, ir.IntType(8 * size), size, together, count, lanes_in_all)
        one, other = ((arg, builder.mul(arg, _number(size))) for arg in args[4:6])
        there = _at_most(builder, args[6], lanes_in_all), _at_most(builder, args[7], packer.depth)
        if _is_one(other[0]):
            packer.from_depth(target, source, one[1], *there)
        elif _is_one(one[0]):
            packer.from_lanes(target, source, other[1], *there)
        else:
            packer.one_by_one(target, source, (one[1], other[1]), *there)
        return context.get_dummy_value()

    integer = types.int64
    return types.none(tile, integer, array, *[integer] * 5, groups, width, group), codegen


def _is_one(value: Any) -> bool:
    return isinstance(value, ir.Constant) and value.constant == 1


# ---------------------------------------------------------------------------------------------- products


def _configuration(builder: Any) -> Any:
    """The address of what says that all tiles are whole: 64 bytes, the palette first, the rows' bytes from byte 16
    and the rows from byte 48 on."""
    table = bytearray(64)
    table[0] = 1
    for tile in range(_TILES):
        table[16 + 2 * tile], table[48 + tile] = ROW_BYTES, ROWS
    value = cgutils.make_bytearray(table)
    name = "pyschedule.tiles"
    known = builder.module.globals.get(name)
    constant = known or cgutils.global_constant(builder.module, name, value)
    return builder.bitcast(constant, BYTE.as_pointer())


@intrinsic
def matrix_product(
    _typing: Any,
    array: Any,
    offset: Any,
    step: Any,
    rows: Any,
    columns: Any,
    left: Any,
    left_offset: Any,
    right: Any,
    right_offset: Any,
    steps: Any,
    height: Any,
    width: Any,
    fresh: Any,
) -> Any:
    """Adds a product to the block of `rows` by `columns` at `array[offset]`, whose rows are `step` elements apart.

    `left` and `right` hold `height` rows and `width` columns, `steps` tiles deep; `fresh`: nothing is added to.
    """
    fixed = [literal(item) for item in (height, width, fresh)]
    instruction = _INSTRUCTIONS.get((left.dtype, right.dtype))
    if instruction is None or None in fixed:
        return None
    block_rows, block_columns, is_fresh = fixed

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        target = _bytes_at(context, builder, kinds[0], args[0], args[1])
        row_bytes = builder.mul(args[2], _number(_WORD))
        first = _bytes_at(context, builder, kinds[5], args[5], args[6])
        second = _bytes_at(context, builder, kinds[7], args[7], args[8])
        multiply = _Multiplier(builder, instruction, first, second, args[9], block_rows, block_columns)
        whole = builder.and_(
            builder.icmp_signed(">=", args[3], _number(block_rows)),
            builder.icmp_signed(">=", args[4], _number(block_columns)),
        )
        _unit(builder, "ldtilecfg", _configuration(builder))
        with builder.if_else(whole) as (then, otherwise):
            with then:
                multiply.into(target, row_bytes, bool(is_fresh))
            with otherwise:
                _in_part(builder, multiply, target, row_bytes, args[3], args[4], bool(is_fresh))
        _unit(builder, "tilerelease")
        return context.get_dummy_value()

    integer = types.int64
    return (
        types.none(array, *[integer] * 4, left, integer, right, integer, integer, height, width, fresh),
        codegen,
    )


class _Multiplier:
    """Writes the code of one product, two by two tiles of sums at a time (as far as there are two)."""

    def __init__(
        self, builder: Any, instruction: str, left: Any, right: Any, steps: Any, rows: int, columns: int
    ) -> None:
        self.builder, self.instruction, self.steps = builder, instruction, steps
        self.left, self.right, self.rows, self.columns = left, right, rows, columns

    def into(self, target: Any, row_bytes: Any, fresh: bool) -> None:
        """Adds the whole product to a block in memory."""
        builder = self.builder
        down = 2 if self.rows % (2 * ROWS) == 0 else 1
        along = 2 if self.columns % (2 * ROWS) == 0 else 1
        for row, column in itertools.product(
            range(0, self.rows, down * ROWS), range(0, self.columns, along * ROWS)
        ):
            moved = builder.mul(row_bytes, _number(row))
            place = _moved(builder, target, builder.add(moved, _number(column * _WORD)))
            self._tiles(place, row_bytes, row, column, down, along, fresh)

    def _tiles(
        self, target: Any, row_bytes: Any, row: int, column: int, down: int, along: int, fresh: bool
    ) -> None:
        builder = self.builder
        # Tiles 0 to 3 are the sums, 4 and 5 rows of the left operand, 6 and 7 columns of the right one.
        sums = {(i, j): i * along + j for i in range(down) for j in range(along)}

        def each_sum(operation: Callable[[int, Any], None]) -> None:
            for (i, j), tile in sums.items():
                moved = builder.add(builder.mul(row_bytes, _number(i * ROWS)), _number(j * ROWS * _WORD))
                operation(tile, _moved(builder, target, moved))

        if fresh:
            each_sum(lambda tile, _: _unit(builder, "tilezero", tile))
        else:
            each_sum(lambda tile, place: _unit(builder, "tileloadd64", tile, place, row_bytes))
        stride = _number(self.columns * _WORD)
        with cgutils.for_range(builder, self.steps) as loop:
            left = _moved(builder, self.left, builder.mul(loop.index, _number(self.rows * ROW_BYTES)))
            right = _moved(builder, self.right, builder.mul(loop.index, _number(ROWS * self.columns * _WORD)))
            for j in range(along):
                place = _moved(builder, right, (column + j * ROWS) * _WORD)
                _unit(builder, "tileloadd64", 6 + j, place, stride)
            for i in range(down):
                place = _moved(builder, left, (row + i * ROWS) * ROW_BYTES)
                _unit(builder, "tileloadd64", 4 + i, place, _number(ROW_BYTES))
                for j in range(along):
                    _unit(builder, self.instruction, sums[i, j], 4 + i, 6 + j)
        each_sum(lambda tile, place: _unit(builder, "tilestored64", tile, place, row_bytes))


def _in_part(
    builder: Any, multiply: _Multiplier, target: Any, row_bytes: Any, rows: Any, columns: Any, fresh: bool
) -> None:
    """The product for a block of which a part is there, by way of one that is whole."""
    with builder.goto_entry_block():
        memory = builder.alloca(ir.ArrayType(BYTE, multiply.rows * multiply.columns * _WORD))
        memory.align = ROW_BYTES
    whole = builder.bitcast(memory, BYTE.as_pointer())
    whole_row = _number(multiply.columns * _WORD)
    rows = _at_most(builder, rows, multiply.rows)

    def each_row(move: Callable[[Any, Any, Any], None]) -> None:
        with cgutils.for_range(builder, rows) as loop:
            here = _moved(builder, target, builder.mul(loop.index, row_bytes))
            there = _moved(builder, whole, builder.mul(loop.index, whole_row))
            for column in range(0, multiply.columns, ROWS):
                left = _at_most(builder, builder.sub(columns, _number(column)), ROWS)
                move(_moved(builder, here, column * _WORD), _moved(builder, there, column * _WORD), left)

    def copied_in(here: Any, there: Any, count: Any) -> None:
        _store(builder, _load(builder, here, INT32, _first(builder, count, ROWS)), there)

    def copied_out(here: Any, there: Any, count: Any) -> None:
        vector = ir.VectorType(INT32, ROWS)
        value = builder.load(builder.bitcast(there, vector.as_pointer()), align=_WORD)
        place = builder.bitcast(here, vector.as_pointer())
        args = [value, place, ir.Constant(INT32, _WORD), _first(builder, count, ROWS)]
        call_intrinsic(builder, "masked.store", _VOID, args, [vector, place.type])

    if not fresh:
        each_row(copied_in)
    multiply.into(whole, whole_row, fresh)
    each_row(copied_out)
