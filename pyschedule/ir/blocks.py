"""The nodes of the loop-nest IR that act on blocks of matrices: what a matrix unit is given, and what it does; and
blocks of results that are stored the other way round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pyschedule.ir.nodes import BODY, CHILD, ROLE, Expr, If, Location, Stmt, Store

#: A field that holds what a statement stands for, statements too: rewritten with it, and never walked into.
MEANING: Final = {ROLE: "meaning"}


@dataclass(frozen=True, slots=True)
class Pack(Stmt):
    """A block of a matrix copied into a buffer, in the order in which a matrix unit reads it.

    The element at lane `l` and depth `d` of the block goes to `tile[*place, d // group, l * group + d % group]`,
    for all `l` and `d` that the last two axes of `tile` hold.  It is the element of `array` at `indices`, moved by
    `l` along the first of `axes` and by `d` along the second, where `l < lanes` and `d < depth`; zero elsewhere.
    `zero_point` is added to all of them, and they are converted to the type of `tile`, which holds each.
    `spare`: every product that reads the block reads it from `array` where that lies well, and it may be left out.
    """

    tile: str
    place: tuple[Expr, ...] = field(metadata=CHILD)
    array: str
    indices: tuple[Expr, ...] = field(metadata=CHILD)
    axes: tuple[int, int]
    lanes: Expr = field(metadata=CHILD)
    depth: Expr = field(metadata=CHILD)
    group: int
    spare: bool = False
    zero_point: int = 0
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class MatrixProduct(Stmt):
    """`array[i, j] += sum over d of left[i, d] * right[d, j]`, for a block of `rows` by `columns`.

    The block begins at `indices`, and its rows and columns move along `axes` of the array.  `right` is a buffer
    that `Pack` filled, at `right_place`; the axis behind that counts steps of depth, each of a tile of the unit.
    `left` is such a buffer too, or an array that is read where it lies: its block begins at `left_place` then, and
    its rows and depth move along `left_axes`, the second one contiguous.  `copied` is a buffer that holds the same,
    at `copied_place`, to be read where the array does not lie well: its rows begin anywhere in lines of the cache.
    `depth` counts elements; `height` is how many rows a whole block has.
    Rows and columns that `rows` and `columns` leave out are not written, nor read where they lie.  `fresh`: what
    the block held is overwritten, not added to.  Sums are float32 for halves and int32, which wraps, for integers.
    `zero_point` has been added to each element of a packed `left`, and is not part of the sums.
    `unit` makes it, by its name in the target's table.
    `loops`: the user's loops that it stands for, as (name, ordinal); `meaning`: the statements that it stands for.
    `passing` is a hint: `"left"` or `"right"`, of which the next product takes another block, while it takes the
    same one of the other operand.
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
    depth: Expr = field(metadata=CHILD)
    height: int
    fresh: bool
    left_axes: tuple[int, int] | None = None
    copied: str = ""
    copied_place: tuple[Expr, ...] = field(default=(), metadata=CHILD)
    passing: str = ""
    zero_point: int = 0
    unit: str = "AMX"
    loops: tuple[tuple[str, int], ...] = ()
    meaning: tuple[Stmt, ...] = field(default=(), metadata=MEANING, compare=False)
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class TransposedStores(Stmt):
    """Stores of vectors to neighbours along the array's unit axis, whose lanes lie apart: a block of rows.

        Y[i:i+16, x] = a
        Y[i:i+16, x + 1] = b
        if x + 2 < N:
            Y[i:i+16, x + 2] = c

    It means its `body`: two stores at least and at most as many as a vector has lanes, each under one test or none.
    They differ in their values and, by one from each to the next, in the index along the unit axis.  A back end may
    compute all values first, transpose them in registers, and store the rows: `Y[i, x : x + 3]` and so on.
    `count`: of the stores so many, from the first on, have tests that hold (perhaps more than there are); `None`:
    no store has a test.
    """

    body: tuple[Stmt, ...] = field(metadata=BODY)
    count: Expr | None = field(default=None, metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)

    @property
    def stores(self) -> tuple[Store, ...]:
        """The stores, without their tests."""
        inner = (stmt.body[0] if isinstance(stmt, If) else stmt for stmt in self.body)
        return tuple(stmt for stmt in inner if isinstance(stmt, Store))
