"""The buffer of a staged tile: its axes, the loops that fill it, and which element a read means (see `staging`)."""

from __future__ import annotations

from dataclasses import dataclass

from pyschedule.analysis.affine import coefficient
from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.nodes import Array, Dim, Expr, For, Load, Var
from pyschedule.ir.types import element_of
from pyschedule.ir.visitors import (
    substitute_expr,
    variables,
    walk_expr,
)
from pyschedule.schedule.targets import Target
from pyschedule.transforms import reach
from pyschedule.transforms.nest import Names, tile_form


@dataclass(frozen=True, slots=True)
class Read:
    """A load of the staged array, and the loops around it: all of the kernel's, outermost first."""

    load: Load
    loops: tuple[For, ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of the buffer: how long, the loop that fills it, and the index in the array's tile it stands for.

    `read`: the index expression of a read; `fill`: the same over the filling loop's counter.
    """

    extent: Expr
    loop: For
    read: Expr
    position: int
    sources: frozenset[str]  # the user's names of the loops that move along it
    dim: int  # the array's axis


@dataclass(frozen=True, slots=True)
class Buffer:
    axes: tuple[Axis, ...]
    source: tuple[Expr, ...]  # the array's indices over the counters of the filling loops
    inside: Expr  # whether that element exists


def buffer_of(
    read: Read,
    inner: tuple[For, ...],
    array: Array,
    target: Target,
    names: Names,
    lanes: frozenset[str],
    changing: set[str],
    *,
    checked: bool,
) -> Buffer:
    """The buffer for one read.  `changing`: scalars written in the body; `checked`: not all of what the loops range
    over is read, so that the copy must look whether an element exists."""
    counters = {loop.var: loop for loop in inner}
    axes: list[Axis] = []
    source: list[Expr] = []
    tests: list[Expr] = []
    halo = False
    for place, index in enumerate(read.load.indices):
        if any(isinstance(part, Load) for part in walk_expr(index)):
            raise Unsupported(f"'{array.name}' is read at an index that is itself read", read.load.loc)
        if variables(index) & changing or (checked and not reach.harmless(index)):
            raise Unsupported(f"'{array.name}' is read at an index that the copy could not tell", read.load.loc)
        moving = [counters[name] for name in counters if name in variables(index)]
        if not moving:
            source.append(index)
            tests += reach.exists((index,), (Dim(array.name, place),)) if checked else []
            continue
        window = len(moving) > 1 or not isinstance(index, Var)
        if not window:
            split, overruns = _panels(moving[0], inner, read, target, names, place)
            value: Expr = split[-1].loop.counter
        else:
            split, value = _window(index, moving, inner, names, place)
            overruns = halo = True
        axes.extend(split)
        source.append(value)
        if window or checked:
            tests.append(build.compare(">=", value, build.ZERO))  # `x + r - 1` starts before the array
        if overruns or checked:
            tests.append(build.compare("<", value, Dim(array.name, place)))
    if not axes:
        raise Unsupported(f"'{array.name}' is read at one place")
    # Lanes want their elements side by side, whatever loop comes inside them; else the loops' order counts, or
    # where an axis belongs to several loops (a window) the array's own in memory.
    axes.sort(key=lambda axis: (bool(axis.sources & lanes), axis.dim == array.unit_axis if halo else axis.position))
    if target.staging_widens and element_of(array.dtype).is_half and not any(axis.sources & lanes for axis in axes):
        # Halves are widened by whole vectors, from where they lie side by side.
        axes.sort(key=lambda axis: axis.dim == array.unit_axis)
    return Buffer(tuple(axes), tuple(source), build.all_of(tests))


def _panels(
    last: For, inner: tuple[For, ...], read: Read, target: Target, names: Names, dim: int
) -> tuple[list[Axis], bool]:
    """The axes of an index that is one counter: an axis a piece of its loop where panels are wanted, else one.

    Also whether the copy runs past the loop's end, to fill whole tiles.
    """
    pieces = [loop for loop in inner if (loop.source, loop.ordinal) == (last.source, last.ordinal)]
    step = build.constant(last.step)
    if step is None or step < 1:
        raise Unsupported(f"loop '{last.source}' does not count upwards by a constant", last.loc)
    whole = [loop for loop in read.loops if (loop.source, loop.ordinal) == (last.source, last.ordinal)]
    longest = build.sub(whole[0].stop, whole[0].start)
    base = pieces[0].start
    total = _span(pieces[0])
    form = tile_form(pieces[0])
    exact = form is not None and form.exact
    if not target.staging_panels:
        if total is None:
            raise Unsupported(f"the tile along loop '{last.source}' has no constant size", last.loc)
        counter = names.fresh(last.var)
        fill = For(counter, base, build.add(base, total), build.const(step), (), source="", loc=last.loc)
        whole_tile = build.const(-(-total // step))
        index = build.floordiv(build.sub(last.counter, base), step)
        return [Axis(whole_tile, fill, index, read.loops.index(last), frozenset({last.source}), dim)], True
    axes: list[Axis] = []
    own = frozenset({last.source})
    renamed: dict[str, Expr] = {}
    for place, loop in enumerate(pieces):
        counter = names.fresh(loop.var)
        stride = build.constant(loop.step) or 1
        extent: Expr
        start, stop = substitute_expr(loop.start, renamed), substitute_expr(loop.stop, renamed)
        low = loop.start
        if place:
            # Whole panels are filled, so that reads past the loop's end find zeros.
            span = build.const(build.constant(pieces[place - 1].step) or 1)
            stop = build.add(start, span)
            extent = build.const(-(-(build.constant(span) or 1) // stride))
        elif exact and total is not None:
            extent = build.const(-(-total // stride))
        elif total is not None:
            extent = (
                build.ceildiv(build.minimum(longest, total), stride)
                if len(whole) > 1
                else build.const(-(-total // stride))
            )
            extent = build.maximum(extent, 0)
        else:
            extent = build.maximum(build.ceildiv(longest, stride), 0)
        fill = For(counter, start, stop, build.const(stride), (), source="", loc=loop.loc)
        position = read.loops.index(loop)
        index = build.floordiv(build.sub(loop.counter, low), stride)
        moved_by = own if place == len(pieces) - 1 else frozenset()
        axes.append(Axis(extent, fill, index, position, moved_by, dim))
        renamed[loop.var] = Var(counter)
    return axes, exact or len(pieces) > 1


def _span(first: For) -> int | None:
    """How far the counter of a piece moves at most, in values: from the piece around it, or a constant range."""
    form = tile_form(first)
    return None if form is None else form.size * form.step


def _window(
    index: Expr, moving: list[For], inner: tuple[For, ...], names: Names, place: int
) -> tuple[list[Axis], Expr]:
    """One axis for an index of several counters (`x + r`): from its smallest value over the tile, as far as it
    goes."""
    reach = 0
    lows: dict[str, Expr] = {}
    for loop in moving:
        pieces = [other for other in inner if (other.source, other.ordinal) == (loop.source, loop.ordinal)]
        span = _span(pieces[0])
        step = build.constant(loop.step)
        symbolic = coefficient(index, loop.var)
        factor = None if symbolic is None else build.constant(symbolic)
        if span is None or step is None or step < 1 or factor is None or factor < 0:
            raise Unsupported(f"its window along loop '{loop.source}' has no constant size", loop.loc)
        reach += factor * (span - step)
        lows[loop.var] = pieces[0].start
    base = substitute_expr(index, lows)
    counter = names.fresh("x")
    extent = build.const(reach + 1)
    fill = For(counter, base, build.add(base, reach + 1), build.ONE, (), source="", loc=moving[0].loc)
    moved_by = frozenset(loop.source for loop in moving)
    return [Axis(extent, fill, build.sub(index, base), place, moved_by, place)], Var(counter)


def filling_order(buffer: Buffer, array: Array) -> tuple[Axis, ...]:
    """The axes in the order of the loops that fill the buffer.

    Memory is read fastest from its beginning to its end, and the order in which a buffer in the caches is written
    matters less: a row goes to all its panels before the next is read.  The buffer's last axis stays innermost, so
    that whole vectors are written; where the array's unit-stride axis is another one, the tile is turned around.
    """
    last = array.rank - 1
    unit = last if array.unit_axis is None else array.unit_axis
    slowest_first = [dim for dim in range(array.rank) if dim != unit]
    if unit == 0:
        slowest_first.reverse()
    places = {dim: place for place, dim in enumerate((*slowest_first, unit))}
    *outer, inner = buffer.axes
    return (*sorted(outer, key=lambda axis: places[axis.dim]), inner)


def shape_of(buffer: Buffer) -> tuple[object, ...]:
    """What two reads must share to use one buffer: extents, and the elements they stand for."""
    fills = {axis.loop.var: Var(f"${place}") for place, axis in enumerate(buffer.axes)}
    return (
        tuple(axis.extent for axis in buffer.axes),
        tuple(substitute_expr(index, fills) for index in buffer.source),
        tuple(
            (substitute_expr(axis.loop.start, fills), substitute_expr(axis.loop.stop, fills))
            for axis in buffer.axes
        ),
    )
