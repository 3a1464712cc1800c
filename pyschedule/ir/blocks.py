"""The nodes of the loop-nest IR that act on blocks of matrices: what a matrix unit is given, and what it does."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pyschedule.ir.nodes import CHILD, ROLE, Expr, Location, Stmt

#: A field that holds what a statement stands for, statements too: rewritten with it, and never walked into.
MEANING: Final = {ROLE: "meaning"}


@dataclass(frozen=True, slots=True)
class Pack(Stmt):
    """A block of a matrix copied into a buffer, in the order in which a matrix unit reads it.

    The element at lane `l` and depth `d` of the block goes to `tile[*place, d // group, l * group + d % group]`,
    for all `l` and `d` that the last two axes of `tile` hold.  It is the element of `array` at `indices`, moved by
    `l` along the first of `axes` and by `d` along the second, where `l < lanes` and `d < depth`; zero elsewhere.
    """

    tile: str
    place: tuple[Expr, ...] = field(metadata=CHILD)
    array: str
    indices: tuple[Expr, ...] = field(metadata=CHILD)
    axes: tuple[int, int]
    lanes: Expr = field(metadata=CHILD)
    depth: Expr = field(metadata=CHILD)
    group: int
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class MatrixProduct(Stmt):
    """`array[i, j] += sum over d of left[i, d] * right[d, j]`, for a block of `rows` by `columns`.

    The block begins at `indices`, and its rows and columns move along `axes` of the array.  `left` and `right` are
    buffers that `Pack` filled, at `left_place` and `right_place`; the axis behind these counts `steps` of depth.
    Rows of `left` and columns of `right` that `rows` and `columns` leave out are not written.  `fresh`: what
    the block held is overwritten, not added to.  Sums are float32 for halves and int32, which wraps, for integers.
    `loops`: the user's loops that it stands for, as (name, ordinal); `meaning`: the statements that it stands for.
    """

    array: str
    indices: tuple[Expr, ...] = field(metadata=CHILD)
    axes: tuple[int, int]
    rows: Expr = field(metadata=CHILD)
    columns: Expr = field(metadata=CHILD)
    left: str
    left_place: tuple[Expr, ...] = field(metadata=CHILD)
    right: str
    right_place: tuple[Expr, ...] = field(metadata=CHILD)
    steps: Expr = field(metadata=CHILD)
    fresh: bool
    loops: tuple[tuple[str, int], ...] = ()
    meaning: tuple[Stmt, ...] = field(default=(), metadata=MEANING, compare=False)
    loc: Location | None = field(default=None, compare=False)
