"""Products of blocks of integer matrices by the instructions of vector registers that add up products of groups.

Both operands are packed as for a matrix unit (see `matrix`).  While the depth runs, a few rows by one or two
vectors of columns stay in registers, and each step takes four bytes of depth: a vector of the right operand holds
them for its columns, side by side, and those of a row of the left one are sent to all lanes.

    VPDPBUSD  sum += a[0] * b[0] + ... + a[3] * b[3]    bytes, one operand with signs and the other without
    VPDPWSSD  sum += a[0] * b[0] + a[1] * b[1]          int16
    VPMADDWD  a[0] * b[0] + a[1] * b[1]                 int16, without VNNI

None saturates, so that sums are those of int32, which wrap.  Where both operands of one byte have signs, or
neither has, 128 has been added to each element of the left one, or taken from it.  What that adds to a sum is the
same in all rows of the block, 128 times the sum of a column of the right operand: it is computed once, and taken
from what sums begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from pyschedule.codegen.simd.matrix_packing import (
    ROW_BYTES,
    WORD,
    advanced,
    at_most,
    bytes_at,
    constant,
    first_lanes,
    masked_load,
    masked_store,
)
from pyschedule.codegen.simd.types import INT32, broadcast, element_bytes, intrinsic, literal

#: Sums that are made at once, by the lanes of a register: as many as leave half of the registers to operands, and
#: enough for instructions that take four or five cycles, of which two begin in each.
_SUMS = {16: 16, 8: 8}
#: The groups of four bytes in a row of a tile.
_GROUPS = ROW_BYTES // WORD


@intrinsic
def dot_products(
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
    depth: Any,
    height: Any,
    width: Any,
    fresh: Any,
    zero_point: Any,
    lanes: Any,
    fused: Any,
) -> Any:
    """Adds a product to the block of `rows` by `columns` at `array[offset]`, its rows `step` elements apart.

    `left` and `right` are packed: `height` rows and `width` columns, and `depth` elements of each; `zero_point` has
    been added to each element of `left`.  `fresh`: nothing is added to.  `lanes`: the words of a register.
    `fused`: there are instructions that multiply and add to a sum at once (VNNI).
    """
    fixed = [literal(item) for item in (height, width, fresh, zero_point, lanes, fused)]
    if None in fixed:
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kinds = signature.args
        block_rows, block_columns, is_fresh, zero, words, is_fused = fixed
        target, one, other = (bytes_at(context, builder, kinds[at], args[at], args[at + 1]) for at in (0, 5, 7))
        unsigned = not kinds[5].dtype.signed, not kinds[7].dtype.signed
        size = element_bytes(kinds[5].dtype)
        multiply = _multiplication(builder, size, unsigned, words, bool(is_fused))
        block = _Block(one, other, block_rows, block_columns, args[9], size, zero)
        _Writer(builder, multiply, block, words).write(target, args[2], args[3], args[4], bool(is_fresh))
        return context.get_dummy_value()

    integer = types.int64
    operands = (left, integer, right, integer, integer)
    return types.none(array, *[integer] * 4, *operands, height, width, fresh, zero_point, lanes, fused), codegen


def _multiplication(
    builder: Any, size: int, unsigned: tuple[bool, bool], lanes: int, fused: bool
) -> Callable[[Any, Any, Any], Any]:
    """The function that adds the products of groups to sums, all of them vectors of 32-bit words."""
    bits, pair = lanes * 32, {16: "avx512.pmaddw.d.512", 8: "avx2.pmadd.wd"}[lanes]

    def call(name: str, *values: Any) -> Any:
        kind = ir.FunctionType(ir.VectorType(INT32, lanes), [value.type for value in values])
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), values)

    def add(total: Any, one: Any, other: Any) -> Any:
        if size == 1:  # the first one has no signs
            return call(f"avx512.vpdpbusd.{bits}", total, *((one, other) if unsigned[0] else (other, one)))
        if fused:
            return call(f"avx512.vpdpwssd.{bits}", total, one, other)
        pairs = ir.VectorType(ir.IntType(16), 2 * lanes)
        return builder.add(total, call(pair, builder.bitcast(one, pairs), builder.bitcast(other, pairs)))

    return add


@dataclass(frozen=True, slots=True)
class _Block:
    """Packed operands at two addresses, of so many rows and columns, with elements of `size` bytes."""

    left: Any
    right: Any
    rows: int
    columns: int
    depth: Any
    size: int
    zero_point: int


class _Writer:
    """Writes the code of one product, in vectors of so many lanes."""

    def __init__(self, builder: Any, multiply: Callable[[Any, Any, Any], Any], block: _Block, lanes: int) -> None:
        self.builder, self.multiply, self.block = builder, multiply, block
        self.lanes, self.vector = lanes, ir.VectorType(INT32, lanes)

    def write(self, target: Any, step: Any, rows: Any, columns: Any, fresh: bool) -> None:
        """Adds to the block at `target`, or (`fresh`) writes it: as much of it as `rows` and `columns` say."""
        builder, block, lanes = self.builder, self.block, self.lanes
        row_bytes = builder.mul(step, constant(WORD))
        rows, columns = at_most(builder, rows, block.rows), at_most(builder, columns, block.columns)

        def strip(column: Any, vectors: int) -> None:
            right = advanced(builder, block.right, builder.mul(column, constant(WORD)))
            here = builder.sub(columns, column)
            masks = [
                first_lanes(builder, at_most(builder, builder.sub(here, constant(at * lanes)), lanes), lanes)
                for at in range(vectors)
            ]
            place = advanced(builder, target, builder.mul(column, constant(WORD)))
            starts = self._starts(right, vectors)
            down = _SUMS[lanes] // vectors
            with cgutils.for_range_slice(builder, constant(0), rows, constant(down)) as (row, _):
                left = advanced(builder, block.left, builder.mul(row, constant(ROW_BYTES)))
                sums = [self._sums(starts) for _ in range(down)]
                self._multiplied(left, right, sums)
                at = advanced(builder, place, builder.mul(row, row_bytes))
                self._stored(at, row_bytes, builder.sub(rows, row), sums, masks, fresh)

        with cgutils.for_range_slice(builder, constant(0), columns, constant(2 * lanes)) as (column, _):
            more = builder.icmp_signed(">", builder.sub(columns, column), constant(lanes))
            with builder.if_else(more) as (then, otherwise):
                with then:
                    strip(column, 2)
                with otherwise:
                    strip(column, 1)

    def _sums(self, starts: Sequence[Any]) -> list[Any]:
        """Variables for one row of sums."""
        builder = self.builder
        found = [cgutils.alloca_once(builder, self.vector) for _ in starts]
        for place, start in zip(found, starts, strict=True):
            builder.store(start, place)
        return found

    def _starts(self, right: Any, vectors: int) -> list[Any]:
        """What sums begin with: zero, less what the zero point adds to them."""
        builder, zero = self.builder, ir.Constant(self.vector, None)
        if not self.block.zero_point:
            return [zero] * vectors
        word = ir.Constant(INT32, (self.block.zero_point & 0xFF) * 0x01010101)
        points = broadcast(builder, word, self.lanes)
        sums = self._sums([zero] * vectors)

        def add(_left: Any, place: Any) -> None:
            for at, total in enumerate(sums):
                other = self._vector(place, at)
                builder.store(self.multiply(builder.load(total), points, other), total)

        self._over_depth(self.block.left, right, add)
        return [builder.neg(builder.load(total)) for total in sums]

    def _multiplied(self, left: Any, right: Any, sums: Sequence[Sequence[Any]]) -> None:
        builder = self.builder

        def add(one: Any, other: Any) -> None:
            columns = [self._vector(other, at) for at in range(len(sums[0]))]
            for number, row in enumerate(sums):
                place = builder.bitcast(advanced(builder, one, number * ROW_BYTES), INT32.as_pointer())
                word = broadcast(builder, builder.load(place, align=WORD), self.lanes)
                for total, column in zip(row, columns, strict=True):
                    builder.store(self.multiply(builder.load(total), word, column), total)

        self._over_depth(left, right, add)

    def _vector(self, place: Any, number: int) -> Any:
        builder = self.builder
        at = advanced(builder, place, number * self.lanes * WORD)
        return builder.load(builder.bitcast(at, self.vector.as_pointer()), align=WORD)

    def _over_depth(self, left: Any, right: Any, add: Callable[[Any, Any], None]) -> None:
        """Writes `add` for each group of four bytes of depth: a row's of whole tiles, and then those of a part."""
        builder, block = self.builder, self.block
        group_bytes = block.columns * WORD
        groups = builder.udiv(
            builder.add(block.depth, constant(WORD // block.size - 1)), constant(WORD // block.size)
        )
        steps, rest = (operation(groups, constant(_GROUPS)) for operation in (builder.udiv, builder.urem))

        def tile(number: Any) -> tuple[Any, Any]:
            one = advanced(builder, left, builder.mul(number, constant(block.rows * ROW_BYTES)))
            return one, advanced(builder, right, builder.mul(number, constant(_GROUPS * group_bytes)))

        with cgutils.for_range(builder, steps) as loop:
            one, other = tile(loop.index)
            for group in range(_GROUPS):
                add(advanced(builder, one, group * WORD), advanced(builder, other, group * group_bytes))
        one, other = tile(steps)
        with cgutils.for_range(builder, rest) as loop:
            moved = [builder.mul(loop.index, constant(apart)) for apart in (WORD, group_bytes)]
            add(advanced(builder, one, moved[0]), advanced(builder, other, moved[1]))

    def _stored(
        self,
        place: Any,
        row_bytes: Any,
        rows: Any,
        sums: Sequence[Sequence[Any]],
        masks: Sequence[Any],
        fresh: bool,
    ) -> None:
        """Adds sums to so many rows at an address, or writes them there."""
        builder = self.builder
        for number, row in enumerate(sums):
            with builder.if_then(builder.icmp_signed(">", rows, constant(number))):
                at = advanced(builder, place, builder.mul(row_bytes, constant(number)))
                for vector, (total, mask) in enumerate(zip(row, masks, strict=True)):
                    there = advanced(builder, at, vector * self.lanes * WORD)
                    value = builder.load(total)
                    if not fresh:
                        value = builder.add(value, masked_load(builder, there, INT32, mask))
                    masked_store(builder, value, there, mask)
