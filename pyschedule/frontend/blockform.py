"""The block form: a body that speaks of one tile of each input, lifted to the whole arrays.

    for i in range(128):                            for i in range(A.shape[0]):
        for j in range(128):                            for j in range(B.shape[1]):
            for k in range(128):             →              for k in range(A.shape[1]):
                C[i][j] += A[i][k] * B[k][j]                    C[i, j] += A[i, k] * B[k, j]

Only bounds change: those of loops whose counter indexes an axis of an input, and the extents of local arrays
that such loops index.  The tiling that `tile_shapes` asks for is left to the transforms (`tile_sizes`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyschedule.errors import ScheduleError
from pyschedule.frontend.parser import Parsed
from pyschedule.frontend.promotion import promote_all
from pyschedule.frontend.results import Check, Notice
from pyschedule.frontend.spans import Axes, Axis, Group, Spans, group_loops, tile_size
from pyschedule.frontend.surface import (
    DEFAULT,
    JOINED,
    OF_FILL,
    Apply,
    Binary,
    Branch,
    Comparison,
    Conditional,
    Element,
    Extent,
    Give,
    Logic,
    Loop,
    Name,
    NewArray,
    Number,
    Repeat,
    SetElement,
)
from pyschedule.ir import build as ir
from pyschedule.ir.nodes import Dim, Expr, Location, Stmt
from pyschedule.ir.signature import ArraySpec, Signature
from pyschedule.ir.types import Scalar
from pyschedule.ir.visitors import Body, expressions, rewrite, walk


@dataclass(frozen=True, slots=True)
class Block:
    """`input_shapes` has an extent an axis for each array parameter in order (`None`: left free), and
    `tile_shapes` the tile of it.  `pad` zeros surround the axes that a window slides along (an integer), or
    each axis as given (a tuple an input)."""

    input_shapes: tuple[tuple[int | None, ...], ...]
    tile_shapes: tuple[tuple[int, ...], ...]
    pad: tuple[tuple[int, ...], ...] | int = 0


@dataclass(frozen=True, slots=True)
class Lifted:
    """`dtypes`: those of the results.  The rest as in `build.Built`."""

    body: Body
    dtypes: tuple[tuple[str, str], ...]
    tile_sizes: tuple[tuple[str, tuple[int, ...]], ...]
    notices: tuple[Notice, ...]
    checks: tuple[Check, ...]


def lift(parsed: Parsed, body: Body, block: Block, signature: Signature) -> Lifted:
    """The body over the whole arrays.

    Raises `ScheduleError` for shapes that do not fit the function or each other, for a loop whose bound is
    not the tile's, and for an index along a tiled axis that no loop can be lifted over.
    """
    axes = axes_of(parsed, block)
    spans = group_loops(parsed, body, axes, block.pad if isinstance(block.pad, int) else None)
    checks = tuple(_agreements(parsed, spans))
    lifted = _lifted(body, spans)
    if any(axis.pad for axis in spans.axes.values()):
        lifted = _padded(parsed, lifted, spans.axes)
    return Lifted(
        lifted,
        tuple(_result_dtypes(parsed, body, signature)),
        _tile_sizes(parsed, spans),
        tuple(_divisor_notices(body, spans)),
        checks,
    )


# --------------------------------------------------------------------------------------------- shapes


def axes_of(parsed: Parsed, block: Block) -> Axes:
    """Every axis of every input; refuses shapes that do not suit the function."""
    if len(block.input_shapes) != len(parsed.arrays) or len(block.tile_shapes) != len(parsed.arrays):
        raise ScheduleError(
            f"{parsed.name}() has {len(parsed.arrays)} array parameters ({', '.join(parsed.arrays)}); input_shapes "
            f"has {len(block.input_shapes)} shapes and tile_shapes {len(block.tile_shapes)}",
            parsed.loc,
        )
    ranks = dict(parsed.ranks)
    axes: Axes = {}
    for position, name in enumerate(parsed.arrays):
        shape, tile = block.input_shapes[position], block.tile_shapes[position]
        rank = ranks.get(name, len(shape))
        if not len(shape) == len(tile) == rank:
            raise ScheduleError(
                f"'{name}' has {rank} axes in {parsed.name}(); its input shape is {shape}, its tile {tile}",
                parsed.loc,
            )
        pads = block.pad[position] if not isinstance(block.pad, int) and position < len(block.pad) else (0,) * rank
        if len(pads) != rank or any(pad < 0 for pad in pads):
            raise ScheduleError(f"the pad {pads} of '{name}' does not fit its {rank} axes", parsed.loc)
        for axis, (extent, size, pad) in enumerate(zip(shape, tile, pads, strict=True)):
            if size < 1 or (extent is not None and extent < 0):
                raise ScheduleError(
                    f"the tile {tile} of '{name}' {shape} has an extent that is no size", parsed.loc
                )
            axes[name, axis] = Axis(name, axis, extent, size, pad)
    return axes


def _agreements(parsed: Parsed, spans: Spans) -> Iterator[Check]:
    """A loop over axes of several inputs spans them all: their extents agree, now or at each call; and there is
    room for a window that slides along one."""
    for group in spans.groups:
        if not group.stops:
            continue
        first_axis, first = group.stops[0]
        larger = f"'{group.name}' has no room: the window that slides along {first_axis.text} is larger than it is"
        if isinstance(first, Number) and first.value < 0:
            raise ScheduleError(f"the loop over {larger}", group.loc)
        if not isinstance(first, (Number, Extent)):
            yield Check(ir.compare(">=", _ir(first), 0), f"{parsed.name}(): the loop over {larger}", group.loc)
        for axis, stop in group.stops[1:]:
            if stop == first:
                continue
            message = f"the loop over '{group.name}' spans {first_axis.text} and {axis.text}, which differ"
            if isinstance(stop, Number) and isinstance(first, Number):
                raise ScheduleError(f"{message}: {first.value} and {stop.value}", group.loc)
            yield Check(ir.compare("==", _ir(first), _ir(stop)), f"{parsed.name}(): {message}", group.loc)


def _ir(expr: Expr) -> Expr:
    """Extent arithmetic of the surface tree in the IR."""
    if isinstance(expr, Number):
        return ir.const(int(expr.value))
    if isinstance(expr, Extent):
        return Dim(expr.array, expr.axis)
    if isinstance(expr, Binary):
        left, right = _ir(expr.left), _ir(expr.right)
        return {"+": ir.add, "-": ir.sub, "*": ir.mul, "//": ir.floordiv}[expr.op](left, right)
    if isinstance(expr, Apply) and expr.function == "pmin":
        return ir.minimum(_ir(expr.args[0]), _ir(expr.args[1]))
    raise TypeError(f"no extent arithmetic: {expr!r}")


# --------------------------------------------------------------------------------------------- lifting


def _lifted(body: Body, spans: Spans) -> Body:
    done: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Loop):
            group = spans.of_loop[id(stmt)]
            stmt = replace(stmt, stop=group.stop if group.stops else stmt.stop, body=_lifted(stmt.body, spans))
        elif isinstance(stmt, NewArray) and stmt.like is None:
            stmt = replace(stmt, shape=tuple(_lifted_shape(stmt, spans)))
        elif isinstance(stmt, Branch):
            stmt = replace(stmt, body=_lifted(stmt.body, spans), orelse=_lifted(stmt.orelse, spans))
        elif isinstance(stmt, Repeat):
            stmt = replace(stmt, body=_lifted(stmt.body, spans))
        done.append(stmt)
    return tuple(done)


def _lifted_shape(stmt: NewArray, spans: Spans) -> Iterator[Expr]:
    for axis, extent in enumerate(stmt.shape):
        group = spans.of_axis.get((stmt.name, axis))
        yield (group.extent(extent) if group is not None and group.stops and isinstance(extent, Number) else extent)


def _padded(parsed: Parsed, body: Body, axes: Axes) -> Body:
    """Loads from padded inputs, moved by the padding and zero outside of the input."""

    def load(node: Expr) -> Expr | None:
        if not isinstance(node, Element):
            return None
        indices, inside = list(node.indices), list[Expr]()
        for position, index in enumerate(node.indices):
            axis = axes.get((node.array, position))
            if axis is None or axis.pad == 0:
                continue
            moved = Binary("-", index, Number(axis.pad), node.loc)
            indices[position] = moved
            inside.append(Comparison(">=", moved, Number(0), node.loc))
            inside.append(Comparison("<", moved, axis.whole, node.loc))
        if not inside:
            return None
        test = Logic("and", tuple(inside), node.loc)
        return Conditional(test, replace(node, indices=tuple(indices)), Number(0), node.loc)

    for stmt in walk(body):
        if isinstance(stmt, SetElement) and any(
            axes.get((stmt.array, n), _UNPADDED).pad for n in range(len(stmt.indices))
        ):
            raise ScheduleError(f"'{stmt.array}' is padded, and {parsed.name}() writes to it", stmt.loc)
    return rewrite(body, expression=load)


_UNPADDED = Axis("", 0, None, 1, 0)


def _result_dtypes(parsed: Parsed, body: Body, signature: Signature) -> Iterator[tuple[str, str]]:
    """The inputs' common dtype, for results that ask for none of their own."""
    inputs = [spec.dtype for spec in signature.arguments if isinstance(spec, ArraySpec)]
    common = inputs[0] if len(set(inputs)) == 1 else _common(inputs)
    returned = {
        value.name
        for stmt in walk(body)
        if isinstance(stmt, Give)
        for value in stmt.values
        if isinstance(value, Name)
    }
    for stmt in walk(body):
        if isinstance(stmt, NewArray) and stmt.name in returned and stmt.dtype in (JOINED, OF_FILL, DEFAULT):
            yield stmt.name, common


def _common(dtypes: list[str]) -> str:
    return promote_all([Scalar(dtype) for dtype in dtypes]).name


# ----------------------------------------------------------------------------------- tiles and notices


def _tile_sizes(parsed: Parsed, spans: Spans) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """One entry a loop name where all loops of the name have one tile size, else one a loop (`j#2`)."""
    sizes: dict[tuple[str, int], int] = {}
    for loop, group in _lifted_loops(spans):
        size = tile_size(loop, group)
        stop = group.stop
        first = loop.start.value if isinstance(loop.start, Number) else 0
        step = loop.step.value if isinstance(loop.step, Number) else 1
        trip = len(range(int(first), int(stop.value), int(step))) if isinstance(stop, Number) else None
        if loop.source and (trip is None or size < trip):
            sizes[loop.source, loop.ordinal] = size
    result: dict[str, tuple[int, ...]] = {}
    for loop_name in parsed.loops:
        name, ordinal = loop_name.name, loop_name.ordinal
        if (name, ordinal) not in sizes:
            continue
        alike = {sizes.get((other.name, other.ordinal)) for other in parsed.loops if other.name == name}
        result[name if len(alike) == 1 else f"{name}#{ordinal}"] = (sizes[name, ordinal],)
    return tuple(result.items())


def _lifted_loops(spans: Spans) -> Iterator[tuple[Loop, Group]]:
    for group in spans.groups:
        if group.stops and group.is_tiled:
            for loop in group.loops:
                yield loop, group


def _divisor_notices(body: Body, spans: Spans) -> Iterator[Notice]:
    """A division by a tile's extent is a likely slip: the loop that it goes with runs over the whole axis."""
    tiles: dict[int, Axis] = {}
    for loop, group in _lifted_loops(spans):
        for window in group.windows:
            if window.axis.is_tiled and window.axis.tile > 1:
                tiles.setdefault(tile_size(loop, group), window.axis)
                tiles.setdefault(window.axis.tile, window.axis)
    seen: set[Location | None] = set()
    for node in expressions(body):
        if not isinstance(node, Binary) or node.op not in ("/", "*"):
            continue
        for part in (node.right,) if node.op == "/" else (node.left, node.right):
            for size, axis in tiles.items():
                wanted = float(size) if node.op == "/" else 1.0 / size
                if isinstance(part, Number) and part.value == wanted and node.loc not in seen:
                    seen.add(node.loc)
                    width = "an axis of free extent" if axis.extent is None else f"a {axis.extent}-wide axis"
                    yield Notice(
                        f"divides by the tile extent {size} of {width}; only loop bounds are lifted: write "
                        f"{axis.text} for the whole extent",
                        node.loc,
                    )
