"""Which kernel makes a product, by its shape, its layouts and its element type."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from operators.arrays import Operand, same_dtype, supported
from operators.kernels import products as kernels
from operators.plans import Step

#: Element types that products take.
FLOATING = ("float32", "float64", "float16", "bfloat16")
WHOLE_NUMBERS = ("int8", "int32", "int64")
HALVES = ("float16", "bfloat16")

#: Results of at most so many rows are made one by one; B is then not packed.
FEW = 4
#: So are those of at most so many rows, where the columns of B are contiguous: turning B around would cost more.
SOME = 24
#: Up to so many multiplications a product is made from where its operands lie: packing would cost more.
SMALL_WORK = 128**3
#: So it is made for at most so many rows from a B of at most so many bytes: the fewer rows read what is packed, the
#: less packing pays.
READ_IN_PLACE = ((8, 32 << 20), (12, 4 << 20))
#: And for these, where the rows of B do not crowd into few sets of the second cache.  A set recurs every `SETS`
#: bytes; the greatest common divisor with the distance of two rows says in how many of them rows begin.
UNCROWDED = ((24, 8 << 20), (64, 1 << 20))
SETS, CROWDED = 128 << 10, 1 << 20
#: More than `SOME` rows do so up to so many multiplications for a column; or where the processor sees by itself
#: which row of B comes next, as it does up to so many bytes from row to row.
COLUMN_WORK = 48 * 256
FOLLOWED = 2048
#: Up to so many elements a left operand may be read across its rows.
CACHED = 128 * 1024
#: Up to this depth packed columns stay in the second cache: 8 vectors of them; and with A packed as well, 16.
DEPTH = 1536
PACKED_DEPTH = 1280
#: From this depth on 8 vectors of columns are packed at a time, and not 16; for up to `FEW_TILES` rows, where
#: packing is much of the work, from the second one.
NARROW_DEPTH, NARROW_FEW_DEPTH = 768, 256
FEW_TILES = 192
#: What a vector costs in a tile of these forms, and what one alone does: 6 sums are too few for a processor to
#: add to one in each cycle, 8 are enough.  Measured with AVX-512 from 24 x 24 to 128 x 128 and at 24 x 1000.
IN_TILE = {kernels.SMALL: 1.0, kernels.SMALL_THREE: 1.0, kernels.SMALL_TWO: 1.04}
ALONE = {kernels.SMALL: 1.5, kernels.SMALL_THREE: 1.35, kernels.SMALL_TWO: 1.35}
#: From so many multiplications on a matrix unit makes a product, where there is one.
MATRIX_WORK = 32**3
#: Up to so many multiplications each, the products of a batch are made by one kernel.
BATCHED_WORK = 48**3
BATCHED_FORMS = (*kernels.SMALL_TILES, kernels.ROW, kernels.DOTS)


def result_dtype(*operands: tuple[str, Operand | None]) -> np.dtype[Any]:
    """The element type of a product of these (name, array) pairs; `TypeError` where they are of several, or of one
    that products do not take.  int8 makes int32."""
    dtype = same_dtype(*operands)
    supported(dtype, operands[0][0], (*FLOATING, *WHOLE_NUMBERS))
    return np.dtype(np.int32) if dtype == np.int8 else dtype


def is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.name in WHOLE_NUMBERS


def lanes_of(dtype: np.dtype[Any]) -> int:
    """The elements of a vector register in which sums of this type are held."""
    return 64 // max(dtype.itemsize, 4)


@dataclass(frozen=True, slots=True)
class Arranged:
    """A product of matrices as a kernel makes it best: what it is of, and the form of the kernel.

    `flipped`: it is the transposed product, `target.T = right.T @ left.T`.
    """

    left: Operand
    right: Operand
    target: Operand
    form: str
    flipped: bool


def arranged(left: Operand, right: Operand, target: Operand, *, may_flip: bool = True) -> Arranged:
    """How `target = left @ right` is made."""
    rows, columns = target.shape
    flipped = may_flip and (
        (columns < rows and columns <= FEW) or (rows > FEW and target.strides[0] == target.dtype.itemsize)
    )
    if flipped:
        left, right, target = right.T, left.T, target.T
    return Arranged(left, right, target, _form(left, right, target), flipped)


def _form(left: Operand, right: Operand, target: Operand) -> str:
    rows, columns = target.shape
    depth = left.shape[1]
    size = right.dtype.itemsize
    in_rows = columns <= 1 or right.strides[1] == size
    in_depth = depth <= 1 or right.strides[0] == size == left.strides[1]
    if in_depth and (rows <= SOME or columns <= FEW) and not (in_rows and columns > FEW):
        return kernels.DOTS
    if rows <= FEW:
        return kernels.ROW
    if rows * columns * depth >= MATRIX_WORK and kernels.on_matrix_unit(left.dtype.name):
        return kernels.MATRIX_DEEP if depth * size > 2 * PACKED_DEPTH else kernels.MATRIX
    if rows * columns * depth <= (SMALL_WORK if in_rows else SMALL_WORK // 64):
        return _small(rows, columns, target.dtype)
    if in_rows and _read_in_place(rows, right):
        return _small(rows, columns, target.dtype)
    if depth > 1 and left.strides[1] != left.dtype.itemsize and rows * depth > CACHED:
        return kernels.TURNED_DEEP if depth > PACKED_DEPTH else kernels.TURNED
    if left.dtype.name in HALVES:
        return kernels.WIDENED_DEEP if depth > PACKED_DEPTH else kernels.WIDENED
    few = rows <= FEW_TILES
    if depth > DEPTH:
        return kernels.DEEP_FEW if few else kernels.DEEP
    return kernels.NARROW if depth >= (NARROW_FEW_DEPTH if few else NARROW_DEPTH) else kernels.BLOCKED


def _read_in_place(rows: int, right: Operand) -> bool:
    """Whether a product of so many rows, too large for `SMALL_WORK`, reads a B with contiguous rows where it lies.

    Measured with AVX-512 and a second cache of 2 MiB.
    """
    depth, columns = right.shape
    size, stride = right.dtype.itemsize, abs(right.strides[0])
    extent = depth * columns * max(size, 4)  # halves are widened whenever they are read
    if _within(rows, extent, READ_IN_PLACE):
        return True
    if math.gcd(stride, SETS) * depth > CROWDED or not _within(rows, extent, UNCROWDED):
        return False
    if rows <= SOME:
        return True
    return right.dtype.name not in HALVES and (rows * depth <= COLUMN_WORK or stride <= FOLLOWED)


def _within(rows: int, extent: int, limits: tuple[tuple[int, int], ...]) -> bool:
    return any(rows <= most and extent <= size for most, size in limits)


def _small(rows: int, columns: int, dtype: np.dtype[Any]) -> str:
    """The form of `SMALL_TILES` whose tiles fit best.

    Counted in vectors of the result: those of whole tiles, and those left of a row of tiles, which are made one by
    one and cost more each.  The last tile of a column of tiles is made in full, whatever of it there is.
    """
    whole, rest = divmod(columns, lanes_of(dtype))

    def cost(form: str) -> float:
        tall, wide = kernels.SMALL_TILES[form]
        alone = whole % wide + (rest > 0)
        return -(-rows // tall) * tall * ((whole - whole % wide) * IN_TILE[form] + alone * ALONE[form])

    return min(kernels.SMALL_TILES, key=cost)


def product(left: Operand, right: Operand, target: Operand) -> Step:
    """The step of `target = left @ right`, matrices all."""
    plan = arranged(left, right, target)
    make = kernels.integer_product_kernel if is_integer(left.dtype) else kernels.product_kernel
    return Step(make(plan.form, lanes_of(target.dtype)), (plan.left, plan.right, plan.target))


def batched_product(left: Operand, right: Operand, target: Operand) -> Step:
    """The step of `target[i] = left[i] @ right[i]`, for all indices i of the axes before the last two.

    In `left` and `right` such an axis may be missing, or be of extent 1: its one element stands for all then.
    """
    batch = target.shape[:-2]
    if left.shape[:-2] == batch and math.prod(right.shape[:-2]) == 1:  # one matrix for all: rows of one product
        rows = left.reshaped(math.prod(left.shape[:-1]), left.shape[-1])
        results = target.reshaped(math.prod(target.shape[:-1]), target.shape[-1])
        if rows is not None and results is not None:
            return product(rows, _first_matrix(right), results)
    if math.prod(batch) == 1:
        return product(_first_matrix(left), _first_matrix(right), _first_matrix(target))
    left, right, target = _joined(
        left.broadcast(*batch, *left.shape[-2:]), right.broadcast(*batch, *right.shape[-2:]), target
    )
    if target.size == 0:
        return Step(_batched_kernel(target, kernels.SMALL), (left, right, target), target.shape[:-3])
    one = arranged(_first_matrix(left), _first_matrix(right), _first_matrix(target))
    if one.flipped:
        left, right, target = _transposed(right), _transposed(left), _transposed(target)
    if math.prod(one.target.shape) * one.left.shape[1] > BATCHED_WORK:
        kernel = product(one.left, one.right, one.target).kernel
        return Step(kernel, (left, right, target), target.shape[:-2])
    form = one.form if one.form in BATCHED_FORMS else kernels.SMALL
    return Step(_batched_kernel(target, form), (left, right, target), target.shape[:-3])


def _batched_kernel(target: Operand, form: str) -> Any:
    make = kernels.integer_batched_kernel if is_integer(target.dtype) else kernels.batched_kernel
    return make(form, lanes_of(target.dtype))


def _first_matrix(operand: Operand) -> Operand:
    return operand[(0,) * (operand.ndim - 2)] if operand.ndim > 2 else operand


def _transposed(operand: Operand) -> Operand:
    last = operand.ndim - 1
    return operand.permuted(*range(last - 1), last, last - 1)


def _joined(*operands: Operand) -> tuple[Operand, ...]:
    """The operands with as few axes before the last two as views allow, the longest one last."""
    batch = operands[0].shape[:-2]
    groups: list[list[int]] = []
    for axis in range(len(batch)):
        if groups and all(_joins(operand, axis - 1) for operand in operands):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    extents = [math.prod(batch[axis] for axis in group) for group in groups]
    longest = max(range(len(extents)), key=extents.__getitem__)
    order = [axis for axis in range(len(extents)) if axis != longest] + [longest]
    result = []
    for operand in operands:
        view = operand.reshaped(*extents, *operand.shape[-2:])
        assert view is not None  # the axes that are joined follow one another in memory
        result.append(view.permuted(*order, len(extents), len(extents) + 1))
    return tuple(result)


def _joins(operand: Operand, axis: int) -> bool:
    """Whether an axis and the next one are one in memory."""
    (outer, inner), extent = operand.strides[axis : axis + 2], operand.shape[axis + 1]
    return outer == inner * extent
