"""What a matrix unit does, played out with NumPy: the part of the interpreter for statements on blocks.

Blocks are checked against their arrays as single elements are.  A matrix unit may take the subnormal numbers of a
half type for zero; here they count.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pyschedule.errors import InternalError
from pyschedule.ir.blocks import MatrixProduct, Pack
from pyschedule.ir.evaluation import Env, Evaluate, Expressions
from pyschedule.ir.nodes import Expr
from pyschedule.ir.printer import headline
from pyschedule.ir.types import INT64

Values = np.ndarray[Any, Any]


def pack(compiler: Expressions, stmt: Pack) -> Evaluate:
    """Fills a block of a buffer."""
    place, start = (_indices(compiler, indices) for indices in (stmt.place, stmt.indices))
    lanes, depth = (compiler.value(part, INT64) for part in (stmt.lanes, stmt.depth))
    text = headline(stmt)

    def fill(env: Env) -> None:
        block = env[stmt.tile][place(env)]
        if block.ndim != 2:
            raise InternalError(f"`{text}` fills no block of two axes")
        groups, width = block.shape[0], block.shape[1] // stmt.group
        whole = np.full((width, groups * stmt.group), stmt.zero_point, block.dtype)
        valid = (max(0, min(lanes(env), width)), max(0, min(depth(env), groups * stmt.group)))
        if all(valid):
            values = _block(env[stmt.array], start(env), stmt.axes, valid, text)
            whole[: valid[0], : valid[1]] = values.astype(np.int64) + stmt.zero_point if stmt.zero_point else values
        block[...] = whole.reshape(width, groups, stmt.group).swapaxes(0, 1).reshape(block.shape)

    return fill


def product(compiler: Expressions, stmt: MatrixProduct) -> Evaluate:
    """Multiplies blocks, packed or (the left one) where they lie, and adds to a block of the result."""
    packed = (stmt.copied, stmt.copied_place) if stmt.copied else (stmt.left, stmt.left_place)
    places = (packed[1], stmt.right_place, stmt.indices)
    left_place, right_place, start = (_indices(compiler, indices) for indices in places)
    rows, columns, depth = (compiler.value(part, INT64) for part in (stmt.rows, stmt.columns, stmt.depth))
    text = headline(stmt)

    def multiply(env: Env) -> None:
        count = depth(env)
        memory = env[stmt.array]
        wide = np.int64 if memory.dtype.kind == "i" else np.float32
        block = _block(memory, start(env), stmt.axes, (rows(env), columns(env)), text)
        # Depth in the rows of both, for tile after tile of the unit.
        step = env[stmt.right].shape[-2] * (4 // env[stmt.right].dtype.itemsize)
        right = _all_depth(env[stmt.right][right_place(env)], step, count, text)
        if stmt.left_axes is None or stmt.copied:
            left = _all_depth(env[packed[0]][left_place(env)], step, count, text)
        else:
            left = _block(env[stmt.left], left_place(env), stmt.left_axes, (rows(env), count), text)
        total: Values = np.zeros((len(left), len(right)), wide)
        for first in range(0, count, step):
            one, other = (side[:, first : first + step].astype(wide) for side in (left, right))
            total = total + np.matmul(np.subtract(one, wide(stmt.zero_point)), other.T)
        old = 0 if stmt.fresh else block.astype(wide)
        block[...] = (total[: block.shape[0], : block.shape[1]] + old).astype(memory.dtype)

    return multiply


def _indices(compiler: Expressions, indices: tuple[Expr, ...]) -> Evaluate:
    parts = [compiler.value(index, INT64) for index in indices]
    return lambda env: tuple(part(env) for part in parts)


def _all_depth(packed: Values, step: int, count: int, text: str) -> Values:
    """So many elements of depth of an operand that is packed in steps, as lanes by depth."""
    steps = -(-count // step)
    if steps > len(packed):
        raise InternalError(f"`{text}` takes {steps} steps of {len(packed)}")
    width = packed.shape[1] * packed.shape[2] // step
    whole = [_unpacked(block, step) for block in packed[:steps]]
    return np.concatenate(whole, axis=1)[:, :count] if whole else np.zeros((width, 0), packed.dtype)


def _unpacked(packed: Values, depth: int) -> Values:
    """A packed block as lanes by depth."""
    groups, width = packed.shape
    return packed.reshape(groups, width * groups // depth, depth // groups).swapaxes(0, 1).reshape(-1, depth)


def _block(
    memory: Values, start: tuple[int, ...], axes: tuple[int, int], extents: tuple[int, int], text: str
) -> Values:
    """A view of a block of an array, as lanes by depth (or rows by columns); `IndexError` where it is outside."""
    along = dict(zip(axes, extents, strict=True))
    for axis, (first, extent) in enumerate(zip(start, memory.shape, strict=True)):
        last = first + along.get(axis, 1) - 1
        if first < 0 or last >= extent:
            raise IndexError(f"`{text}` reaches {first} to {last} of {extent} along axis {axis}")
    chosen = tuple(
        slice(first, first + along[axis]) if axis in along else first for axis, first in enumerate(start)
    )
    view = memory[chosen]
    return view if axes[0] < axes[1] else view.T
