"""Products of blocks of matrices on a matrix unit: Intel AMX, whose 8 registers each hold a tile of 16 x 64 bytes.

A tile is read from memory row by row.  `pack` writes blocks in the order in which tiles are read: 16 rows of 64
bytes of depth for the left operand; for the right one 16 groups of 4 bytes of depth, each for all columns side by
side.  (Intel 64 and IA-32 Architectures Optimization Reference Manual, chapter on Intel AMX.)  A left operand whose
rows have that order in memory is read there.

The unit is set up before the loops around products and released behind them: that takes as long as some twenty of
its instructions, and tiles that are left in use cost time at every switch of threads.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from pyschedule.codegen.simd.matrix_packing import (
    ROW_BYTES,
    ROWS,
    WORD,
    Held,
    Packer,
    advanced,
    at_most,
    bytes_at,
    constant,
)
from pyschedule.codegen.simd.types import BIT, BYTE, INT64, element_bytes, intrinsic, literal

_TILES = 8
#: The first tile of the left operand, and of the right one.
_LEFT, _RIGHT = 4, 6
_VOID = ir.VoidType()

#: The instruction for two element types; halves are held as 16-bit words.
_INSTRUCTIONS = {
    (types.int8, types.int8): "tdpbssd",
    (types.int8, types.uint8): "tdpbsud",
    (types.uint8, types.int8): "tdpbusd",
    (types.uint8, types.uint8): "tdpbuud",
    (types.uint16, types.uint16): "tdpbf16ps",
}


def _unit(builder: Any, name: str, *args: Any) -> None:
    """An instruction of the unit.  Tiles are numbers."""
    values = [ir.Constant(BYTE, arg) if isinstance(arg, int) else arg for arg in args]
    kind = ir.FunctionType(_VOID, [value.type for value in values])
    builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), values)


#: Where the table that sets the unit up says how many bytes a row of the first tile has, and how many rows it has.
_BYTES_AT, _ROWS_AT = 16, 48


def _configuration(builder: Any) -> Any:
    """The address of the table that says that all tiles are whole: 64 bytes, the palette first."""
    table = bytearray(64)
    table[0] = 1
    for tile in range(_TILES):
        table[_BYTES_AT + 2 * tile], table[_ROWS_AT + tile] = ROW_BYTES, ROWS
    value = cgutils.make_bytearray(table)
    name = "pyschedule.tiles"
    known = builder.module.globals.get(name)
    constant = known or cgutils.global_constant(builder.module, name, value)
    return builder.bitcast(constant, BYTE.as_pointer())


@intrinsic
def set_up_matrix_unit(_typing: Any) -> Any:
    """Makes all tiles whole: before `matrix_product`, which leaves them so."""

    def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        _unit(builder, "ldtilecfg", _configuration(builder))
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def release_matrix_unit(_typing: Any) -> Any:
    """Tells the system that no tile is in use."""

    def codegen(context: Any, builder: Any, _signature: Any, _args: Any) -> Any:
        _unit(builder, "tilerelease")
        return context.get_dummy_value()

    return types.none(), codegen


@intrinsic
def begins_at_lines(_typing: Any, array: Any, axis: Any) -> Any:
    """Whether all rows along an axis begin at multiples of 64 bytes: no row of a tile is in two lines of the cache
    then."""
    unit = literal(axis)
    if not isinstance(array, types.Array) or unit is None:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = context.make_array(signature.args[0])(context, builder, args[0])
        places = builder.ptrtoint(found.data, INT64)
        for at in range(signature.args[0].ndim):
            if at != unit:
                places = builder.or_(places, builder.extract_value(found.strides, at))
        return builder.icmp_unsigned("==", builder.and_(places, constant(ROW_BYTES - 1)), constant(0))

    return types.boolean(array, axis), codegen


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
    there: Any,
    there_offset: Any,
    there_step: Any,
    lies_there: Any,
    right: Any,
    right_offset: Any,
    depth: Any,
    height: Any,
    width: Any,
    fresh: Any,
    passing: Any,
) -> Any:
    """Adds a product to the block of `rows` by `columns` at `array[offset]`, its rows `step` elements apart.

    `left` and `right` are packed: `height` rows and `width` columns, and `depth` elements of each.  `lies_there`:
    the left operand is in `there` instead, row by row, `there_step` elements from one to the next, and no more than
    `rows` of them.  `fresh`: nothing is added to.  `passing`: as `ir.blocks.MatrixProduct` has it, 0 for neither, 1
    for the left operand, 2 for the right one.
    """
    fixed = [literal(item) for item in (height, width, fresh, passing)]
    known = literal(lies_there)
    instruction = _INSTRUCTIONS.get((left.dtype, right.dtype))
    if instruction is None or None in fixed:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        block_rows, block_columns, is_fresh, passes = fixed
        size = element_bytes(kinds[5].dtype)
        target = bytes_at(context, builder, kinds[0], args[0], args[1])
        row_bytes = builder.mul(args[2], constant(WORD))
        first = bytes_at(context, builder, kinds[5], args[5], args[6])
        second = bytes_at(context, builder, kinds[11], args[11], args[12])
        one = _Left(
            first, constant(ROW_BYTES), constant(block_rows * ROW_BYTES), block_rows, size, passes == 1, None
        )
        if known != 0:
            lies = args[10] if known is None else ir.Constant(BIT, 1)
            begins = bytes_at(context, builder, kinds[7], args[7], args[8])
            apart = builder.mul(args[9], constant(size))
            one = replace(
                one,
                place=builder.select(lies, begins, one.place),
                row=builder.select(lies, apart, one.row),
                step=builder.select(lies, constant(ROW_BYTES), one.step),
                lies=lies,
            )
        other = _Right(second, block_columns, passes == 2)
        multiply = _Multiplier(builder, instruction, one, other, args[13], bool(is_fresh))
        whole = builder.and_(
            builder.icmp_signed(">=", args[3], constant(block_rows)),
            builder.icmp_signed(">=", args[4], constant(block_columns)),
        )
        with builder.if_else(whole) as (then, otherwise):
            with then:
                multiply.whole(target, row_bytes)
            with otherwise:
                multiply.in_part(target, row_bytes, args[3], args[4])
        return context.get_dummy_value()

    integer = types.int64
    where = lies_there if known is not None else types.boolean
    operands = (left, integer, there, integer, integer, where, right, integer, integer)
    return types.none(array, *[integer] * 4, *operands, height, width, fresh, passing), codegen


@dataclass(frozen=True, slots=True)
class _Left:
    """A left operand of so many `rows`, its elements of `size` bytes.  There are `row` bytes from one row to the
    next, and `step` from one tile of depth to the next; `lies`: it is not packed (`None`: it is)."""

    place: Any
    row: Any
    step: Any
    rows: int
    size: int
    passing: bool
    lies: Any | None


@dataclass(frozen=True, slots=True)
class _Right:
    """A packed right operand of so many `columns`."""

    place: Any
    columns: int
    passing: bool


@dataclass(frozen=True, slots=True)
class _Group:
    """Tiles of sums that are made together: `down` by `along` of them, from a row and a column of the block on.

    Where a part of the block is there, `rows` and `columns` say how many of the group's, one or more.  There may be
    nothing for a second tile down or along then: it repeats the first one's sums, and is not stored.
    """

    row: int
    column: int
    down: int
    along: int
    rows: Any = None
    columns: Any = None


class _Multiplier:
    """Writes the code of one product, two by two tiles of sums at a time (as far as there are two)."""

    def __init__(self, builder: Any, instruction: str, left: _Left, right: _Right, depth: Any, fresh: bool) -> None:
        self.builder, self.instruction, self.left, self.right = builder, instruction, left, right
        self.depth, self.fresh, self.deep = depth, fresh, ROW_BYTES // left.size

    def whole(self, target: Any, row_bytes: Any) -> None:
        """The product for a block that is there as a whole."""
        for group in self._groups():
            self._tiles(group, target, row_bytes)

    def in_part(self, target: Any, row_bytes: Any, rows: Any, columns: Any) -> None:
        """The product for a block of which a part is there: tiles with fewer rows, or shorter ones."""
        builder = self.builder
        for group in self._groups():
            here = [
                at_most(builder, builder.sub(count, constant(first)), number * ROWS)
                for count, first, number in ((rows, group.row, group.down), (columns, group.column, group.along))
            ]
            some = [builder.icmp_signed(">", count, constant(0)) for count in here]
            with builder.if_then(builder.and_(*some)):
                part = replace(group, rows=here[0], columns=here[1])
                self._set_up(part)
                self._tiles(part, target, row_bytes)
        _unit(builder, "ldtilecfg", _configuration(builder))

    def _groups(self) -> Iterator[_Group]:
        rows, columns = self.left.rows, self.right.columns
        down = 2 if rows % (2 * ROWS) == 0 else 1
        along = 2 if columns % (2 * ROWS) == 0 else 1
        for row, column in itertools.product(range(0, rows, down * ROWS), range(0, columns, along * ROWS)):
            yield _Group(row, column, down, along)

    def _set_up(self, part: _Group) -> None:
        """Gives the tiles of a part their rows, and these their bytes."""
        builder = self.builder
        with builder.goto_entry_block():
            table = builder.alloca(ir.ArrayType(BYTE, 64))
            table.align = 64
        place = builder.bitcast(table, BYTE.as_pointer())
        vector = ir.VectorType(INT64, 8).as_pointer()
        whole = builder.load(builder.bitcast(_configuration(builder), vector), align=1)
        builder.store(whole, builder.bitcast(place, vector), align=64)

        def extent(count: Any, second: int) -> Any:
            """The rows, or columns, of the first tile or the second."""
            one = at_most(builder, count, ROWS)
            if not second:
                return one
            more = builder.sub(count, constant(ROWS))
            return builder.select(builder.icmp_signed(">", more, constant(0)), more, one)

        def put(offset: int, value: Any) -> None:
            builder.store(builder.trunc(value, BYTE), advanced(builder, place, offset))

        for i, j in itertools.product(range(part.down), range(part.along)):
            high, wide = extent(part.rows, i), builder.mul(extent(part.columns, j), constant(WORD))
            for tile in (i * part.along + j, _LEFT + i):
                put(_ROWS_AT + tile, high)
            for tile in (i * part.along + j, _RIGHT + j):
                put(_BYTES_AT + 2 * tile, wide)
        _unit(builder, "ldtilecfg", place)

    def _tiles(self, group: _Group, target: Any, row_bytes: Any) -> None:
        builder = self.builder
        down, along = group.down, group.along
        lower, further = self._second(group.rows), self._second(group.columns)
        moved = builder.mul(row_bytes, constant(group.row))
        first = advanced(builder, target, builder.add(moved, constant(group.column * WORD)))
        # Tiles 0 to 3 are the sums, 4 and 5 rows of the left operand, 6 and 7 columns of the right one.
        sums = {(i, j): i * along + j for i in range(down) for j in range(along)}

        def place_of(i: int, j: int) -> Any:
            one = builder.mul(row_bytes, lower) if i else constant(0)
            other = builder.mul(further, constant(WORD)) if j else constant(0)
            return advanced(builder, first, builder.add(one, other))

        for (i, j), tile in sums.items():
            if self.fresh:
                _unit(builder, "tilezero", tile)
            else:
                _unit(builder, "tileloadd64", tile, place_of(i, j), row_bytes)

        left = self.left
        left_first = advanced(builder, left.place, builder.mul(left.row, constant(group.row)))
        right_row = constant(self.right.columns * WORD)
        right_first = advanced(builder, self.right.place, group.column * WORD)

        def step(number: Any, one: Any, one_row: Any) -> None:
            other = advanced(builder, right_first, builder.mul(number, builder.mul(right_row, constant(ROWS))))
            for j in range(along):
                place = advanced(builder, other, builder.mul(further, constant(WORD))) if j else other
                _unit(builder, _load_of(self.right.passing), _RIGHT + j, place, right_row)
            for i in range(down):
                place = advanced(builder, one, builder.mul(one_row, lower)) if i else one
                _unit(builder, _load_of(left.passing), _LEFT + i, place, one_row)
                for j in range(along):
                    _unit(builder, self.instruction, sums[i, j], _LEFT + i, _RIGHT + j)

        steps = builder.udiv(self.depth, constant(self.deep))
        rest = builder.urem(self.depth, constant(self.deep))
        some = builder.icmp_signed(">", rest, constant(0))
        all_steps = builder.add(steps, builder.zext(some, INT64))
        if left.lies is not None:
            all_steps = builder.select(left.lies, steps, all_steps)
        with cgutils.for_range(builder, all_steps) as loop:
            step(loop.index, advanced(builder, left_first, builder.mul(loop.index, left.step)), left.row)
        if left.lies is not None:
            # What is left of the depth is no whole tile in memory, and what lies behind it may be anything.
            with builder.if_then(builder.and_(left.lies, some)):
                source = advanced(builder, left_first, builder.mul(steps, constant(ROW_BYTES)))
                step(steps, self._copied(group, source, rest), constant(ROW_BYTES))
        for (i, j), tile in sums.items():
            there = [
                builder.icmp_signed(">", count, constant(ROWS))
                for count, second in ((group.rows, i), (group.columns, j))
                if second and count is not None
            ]
            with ExitStack() as stack:
                for test in there:
                    stack.enter_context(builder.if_then(test))
                _unit(builder, "tilestored64", tile, place_of(i, j), row_bytes)

    def _second(self, count: Any) -> Any:
        """How far the second tile is from the first, in rows or columns."""
        if count is None:
            return constant(ROWS)
        builder = self.builder
        return builder.select(builder.icmp_signed(">", count, constant(ROWS)), constant(ROWS), constant(0))

    def _copied(self, group: _Group, source: Any, depth: Any) -> Any:
        """Rows of the left operand, with zeros behind so much of depth."""
        builder = self.builder
        high = group.down * ROWS
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(BYTE, high * ROW_BYTES))
            memory.align = ROW_BYTES
        place = builder.bitcast(memory, BYTE.as_pointer())
        packer = Packer(builder, self.left.size, Held(self.left.size), self.deep, 1, high)
        packer.from_depth(place, source, self.left.row, constant(high) if group.rows is None else group.rows, depth)
        return place


def _load_of(passing: bool) -> str:
    """The instruction that loads a tile; what is not read again soon need not stay in the first cache."""
    return "tileloaddt164" if passing else "tileloadd64"
