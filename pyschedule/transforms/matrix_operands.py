"""The operands of a matrix unit: staged as blocks, in the order in which it reads them, or read where they lie
(see `matrix_unit`)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass

from pyschedule.analysis.affine import coefficient
from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.blocks import Pack
from pyschedule.ir.nodes import Array, Expr, For, Kernel, Load, Stmt, Var
from pyschedule.ir.types import Scalar
from pyschedule.ir.visitors import (
    arrays,
    expressions,
    loops,
    rewrite,
    substitute_expr,
    variables,
    walk_expr,
    written_arrays,
    written_variables,
)
from pyschedule.schedule.targets import Target
from pyschedule.transforms import reach
from pyschedule.transforms.nest import Body, Names, TileForm, guarded
from pyschedule.transforms.staging_buffers import Axis, Read, buffer_of


@dataclass(frozen=True, slots=True)
class Lanes:
    """What an operand's rows or columns count: the innermost piece of their loop, and its form as a tile."""

    loop: For
    form: TileForm


@dataclass(frozen=True, slots=True)
class Layout:
    """How an operand is packed: as elements of `dtype`, each with `zero_point` added; tiles of `depth`, `group`
    elements of it side by side."""

    dtype: Scalar
    depth: int
    group: int
    zero_point: int = 0


@dataclass(frozen=True, slots=True)
class Operand:
    """A staged operand: its buffer, where its blocks begin there, and the copy that fills it."""

    buffer: Array
    place: tuple[Expr, ...]
    copy: Body
    there: InPlace | None = None

    @property
    def array(self) -> str:
        return self.buffer.name

    def spared(self, there: InPlace) -> Operand:
        """The same, for products that may also read the operand where it lies."""

        def without(stmt: Stmt) -> Stmt:
            return dataclasses.replace(stmt, spare=True) if isinstance(stmt, Pack) else stmt

        return dataclasses.replace(self, copy=rewrite(self.copy, without), there=there)


@dataclass(frozen=True, slots=True)
class InPlace:
    """A left operand that is read where it lies: the array, where its block begins, and the axes along which rows
    and depth move."""

    array: str
    place: tuple[Expr, ...]
    axes: tuple[int, int]


def in_place(load: Load, array: Array, moving: tuple[For, For], inner: Collection[str], written: str) -> InPlace:
    """A left operand as it is read where it lies, its rows and depth being counted by the loops `moving`.

    `inner`: the counters of all loops that become one product; `written`: the array that holds its sums.  Raises
    `Unsupported` where the operand's elements have another order than the unit's.
    """
    name = load.array
    staged = would_be_staged(name)
    if name == written:
        raise Unsupported(f"'{name}' is also written", load.loc)
    axes = []
    for loop in moving:
        along = [axis for axis, index in enumerate(load.indices) if loop.var in variables(index)]
        factor = coefficient(load.indices[along[0]], loop.var) if len(along) == 1 else None
        if factor is None or build.constant(factor) != 1:
            raise Unsupported(f"'{name}' is read at an index that does not count up with its loop", load.loc)
        axes += along
    row, depth = axes
    others = [index for axis, index in enumerate(load.indices) if axis not in axes]
    if row == depth or any(variables(index) & set(inner) for index in others):
        raise Unsupported(f"'{name}' is read at an index that is more than the counter of a loop", load.loc)
    if any(isinstance(part, Load) for index in load.indices for part in walk_expr(index)):
        raise Unsupported(f"'{name}' is read at an index that is read itself", load.loc)
    unit_axis = array.unit_axis if array.space == "global" else array.rank - 1
    if array.space == "register" or depth != unit_axis:
        raise Unsupported(
            f"'{name}' is read in place, where the depth of the product is not contiguous; {staged}", load.loc
        )
    starts: dict[str, Expr] = {loop.var: loop.start for loop in moving}
    return InPlace(name, tuple(substitute_expr(index, starts) for index in load.indices), (row, depth))


def would_be_staged(name: str) -> str:
    return f"stage={{'{name}': ...}} at a loop outside the tile would make it possible"


def pack_operand(
    kernel: Kernel,
    read: Read,
    place: For,
    lanes: Lanes,
    depth_loop: For,
    layout: Layout,
    target: Target,
    names: Names,
) -> Operand:
    """The buffer of an operand and its copy, at the beginning of the loop `place`.

    Raises `Unsupported` where the operand cannot be staged there.
    """
    load, name, form = read.load, read.load.array, lanes.form
    array = arrays(kernel)[name]
    depth, group = layout.depth, layout.group
    if name in written_arrays(kernel.body):
        raise Unsupported(f"'{name}' is also written", load.loc)
    at = [
        next((axis for axis, index in enumerate(load.indices) if index == loop.counter), -1)
        for loop in (lanes.loop, depth_loop)
    ]
    inner = tuple(loop for loop in read.loops[read.loops.index(place) + 1 :])
    moving = {loop.var for loop in inner}
    if -1 in at or any(variables(index) & moving for axis, index in enumerate(load.indices) if axis not in at):
        raise Unsupported(f"'{name}' is read at an index that is more than the counter of a loop", load.loc)
    scope = {loop.var for loop in read.loops} - moving
    if any(site.access not in _factors(read) for site in reach.sites(place.body, name)):
        raise Unsupported(f"'{name}' is also read elsewhere in loop '{place.label}'", load.loc)
    touched = reach.runs_when(place.body, name, read.loops, scope)
    if touched is None:
        raise Unsupported(f"not all of '{name}' that its loops range over is read", load.loc)
    changing = written_variables(place.body)
    buffer = buffer_of(read, inner, array, target, names, frozenset(), changing, checked=False)
    lane_axis, depth_axis = (next(axis for axis in buffer.axes if axis.dim == dim and axis.sources) for dim in at)
    others = [axis for axis in buffer.axes if axis is not lane_axis and axis is not depth_axis]
    others.sort(key=lambda axis: (axis.dim == at[1], axis.position))  # lanes, then depth, each outermost first
    known = scope | {axis.loop.var for axis in buffer.axes} | {param.name for param in kernel.scalar_params}
    bounds = [form.end] + [part for axis in buffer.axes for part in (axis.extent, axis.loop.start, axis.loop.stop)]
    if any(variables(part) - known or isinstance(one, Load) for part in bounds for one in walk_expr(part)):
        raise Unsupported(f"the bounds of the tile of '{name}' change inside loop '{place.label}'", place.loc)
    shape = (*(axis.extent for axis in others), build.ceildiv(depth_axis.extent, depth))
    width = form.size
    tile = Array(
        names.fresh(f"{name}_tile"),
        layout.dtype,
        (*shape, build.const(depth // group), build.const(width * group)),
        space=target.staging_space,
    )
    step = Var(names.fresh(f"{depth_loop.var}_step"))
    below = build.add(depth_axis.loop.start, build.mul(step, depth))
    first = lane_axis.loop.start
    source = list(load.indices)
    source[at[0]], source[at[1]] = first, below
    whole: Expr = build.const(width) if form.exact else build.minimum(width, build.sub(form.end, first))
    pack = Pack(
        tile.name,
        (*map(_filled, others), step),
        name,
        tuple(source),
        (at[0], at[1]),
        whole,
        build.minimum(depth, build.sub(depth_axis.loop.stop, below)),
        group,
        zero_point=layout.zero_point,
        loc=load.loc,
    )
    count = build.ceildiv(build.sub(depth_axis.loop.stop, depth_axis.loop.start), depth)
    steps = For(step.name, build.ZERO, count, build.ONE, (), loc=depth_loop.loc)
    # Memory is read from its beginning to its end: all lanes of one depth before the next, or the other way round.
    lane_loops = [axis.loop for axis in others if axis.dim == at[0]]
    depth_loops = [*(axis.loop for axis in others if axis.dim == at[1]), steps]
    last = array.rank - 1
    unit_axis = last if array.unit_axis is None else array.unit_axis
    order = [*depth_loops, *lane_loops] if unit_axis == at[0] else [*lane_loops, *depth_loops]
    outermost = "parallel" if any(loop.mapping == "parallel" for loop in loops(place.body)) else "serial"
    copy: Body = (pack,)
    for loop in reversed(order):
        mapping = outermost if loop is order[0] else "serial"
        copy = (dataclasses.replace(loop, body=copy, source="", mapping=mapping),)
    return Operand(tile, tuple(axis.read for axis in others), guarded(copy, touched))


def _filled(axis: Axis) -> Expr:
    step = build.constant(axis.loop.step) or 1
    return build.floordiv(build.sub(axis.loop.counter, axis.loop.start), step)


def _factors(read: Read) -> list[Load]:
    """The loads of the innermost statement around a read."""
    return [part for part in expressions(read.loops[-1].body) if isinstance(part, Load)]
