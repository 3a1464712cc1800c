"""Staging: the tile of an array that a loop's body reads is copied once into fast contiguous memory.

Before, with `stage={"B": "k.0"}`:

    for k_0 in range(0, K, 384):
        for j_1 in range(0, N, 64):
            for k_1 in range(k_0, min(k_0 + 384, K)):
                for j_2 in range(j_1, j_1 + 64):
                    ... B[k_1, j_2] ...

After - panel by panel, in the order in which the loops read it, so that the reads are one stream:

    for k_0 in range(0, K, 384):
        B_tile = packed float32[ceil(N / 64), 384, 64]
        for j_1 ...: for k_1 ...: for j_2 in range(j_1, j_1 + 64):
            B_tile[(j_1 - 0) // 64, k_1 - k_0, j_2 - j_1] = B[k_1, j_2] if j_2 < B.shape[1] else 0
        for j_1 ...: ... B_tile[(j_1 - 0) // 64, k_1 - k_0, j_2 - j_1] ...

On a GPU the buffer is shared memory, laid out row by row, filled by all threads of the block between two
barriers.  The buffer is padded to whole tiles, so that reads of it need no guard.  Packing into panels is
described in K. Goto, R. van de Geijn, *Anatomy of High-Performance Matrix Multiplication*, ACM TOMS 34(3), 2008.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence

from pyschedule.analysis.affine import difference
from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Barrier,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Select,
    Store,
)
from pyschedule.ir.types import Scalar, element_of
from pyschedule.ir.visitors import (
    arrays,
    bodies,
    children,
    local_arrays,
    loops,
    rewrite,
    variables,
    walk,
    walk_expr,
    written_arrays,
    written_variables,
)
from pyschedule.schedule import names as loop_names
from pyschedule.schedule.directives import Tile
from pyschedule.schedule.log import Record, skipped
from pyschedule.schedule.targets import Target
from pyschedule.transforms import reach
from pyschedule.transforms.nest import (
    Body,
    Names,
    conjuncts,
    guarded,
    is_zero,
    margin_of,
    margins_within,
    replace_statement,
    tile_form,
    with_body,
)
from pyschedule.transforms.staging_buffers import Axis, Buffer, Read, buffer_of, filling_order, shape_of


def stage(
    kernel: Kernel, directives: Sequence[Tile], target: Target, lanes: frozenset[str] = frozenset()
) -> tuple[Kernel, tuple[Record, ...], tuple[str, ...]]:
    """Stages what was asked for; in the block form, what is read again and again and fits.

    `lanes`: the user's names of loops that will run in SIMD lanes; what they index comes last in a panel.
    Returns the kernel, the refused requests, and lines for the log.
    """
    refused: list[Record] = []
    notes: list[str] = []
    named = {array for directive in directives for array, _ in directive.stage}
    for directive in directives:
        for array, label in directive.stage:
            try:
                kernel = _stage_at(kernel, array, label, target, notes, lanes)
            except Unsupported as refusal:
                summary = f"stage={{'{array}': '{label}'}}: {refusal.reason}"
                refused.append(skipped("Staging", summary, directive.loc, refusal.place))
        if directive.automatic:
            kernel = _automatic(kernel, target, notes, lanes, named)
    return kernel, tuple(refused), tuple(notes)


def _automatic(
    kernel: Kernel, target: Target, notes: list[str], lanes: frozenset[str], named: Collection[str]
) -> Kernel:
    """Every array that is only read and not `named` by a directive, at the innermost loop over whole tiles around
    its reads, where it fits and some loop inside reads the tile again."""
    written = written_arrays(kernel.body)
    for array in kernel.array_params:
        if array.name in written or array.name in named:
            continue
        reads = _reads(kernel.body, array.name)
        outer = [loop for read in reads for loop in read.loops if loop.piece == 0 and loop.mapping == "serial"]
        if not outer:
            outer = [loop for read in reads for loop in read.loops if loop.piece == 0]
        if not outer:
            continue
        place = outer[-1]
        try:
            kernel = _stage_at(kernel, array.name, place.label, target, notes, lanes, reuse=True)
        except Unsupported as refusal:
            notes.append(f"{array.name} is read in place: {refusal.reason}")
    return kernel


def _reads(body: Body, name: str, loops: tuple[For, ...] = ()) -> list[Read]:
    found: list[Read] = []
    for stmt in body:
        for top in children(stmt):
            found += [Read(part, loops) for part in walk_expr(top) if isinstance(part, Load) and part.array == name]
        around = (*loops, stmt) if isinstance(stmt, For) else loops
        for inner in bodies(stmt):
            found += _reads(inner, name, around)
    return found


def _stage_at(
    kernel: Kernel,
    name: str,
    label: str,
    target: Target,
    notes: list[str],
    lanes: frozenset[str],
    reuse: bool = False,
) -> Kernel:
    """Raises `Unsupported` with the reason where the tile cannot be staged there."""
    array = arrays(kernel)[name]
    spec = loop_names.parse(label)
    places = [
        loop for loop in walk(kernel.body) if isinstance(loop, For) and spec is not None and spec.matches(loop)
    ]
    places = [loop for loop in places if _reads(loop.body, name)]
    if not places:
        raise Unsupported(f"no loop '{label}' has reads of '{name}' in it")
    if name in written_arrays(kernel.body):
        raise Unsupported(f"'{name}' is also written")
    names = Names(kernel)
    for place in places:
        reads = [read for read in _reads(kernel.body, name) if place in read.loops]
        inner = [_inner_loops(read, place) for read in reads]
        if reuse and not any(_read_again(read, loops) for read, loops in zip(reads, inner, strict=True)):
            raise Unsupported("every element of its tile is used once")
        dtype = element_of(array.dtype)
        if target.staging_widens and dtype.is_half:
            dtype = Scalar("float32")
        scope = {loop.var for loop in reads[0].loops[: reads[0].loops.index(place) + 1]}
        threads = {loop.var for loop in reads[0].loops if loop.mapping.startswith("thread")}
        # Elements that no read would reach may not exist.  (What is so for one thread only is for axes to test.)
        touched = reach.runs_when(place.body, name, reads[0].loops, scope - threads)
        changing = written_variables(place.body)
        buffers = [
            buffer_of(read, loops, array, target, names, lanes, changing, checked=touched is None)
            for read, loops in zip(reads, inner, strict=True)
        ]
        first = buffers[0]
        if any(shape_of(buffer) != shape_of(first) for buffer in buffers):
            raise Unsupported(f"reads of '{name}' differ in more than their loops", reads[1].load.loc)
        size = _bytes(first, dtype)
        taken = _staged_bytes(kernel, target)
        if size is not None and size + taken > target.staging_bytes:
            room = f"{target.staging_bytes} bytes of {target.staging_space} memory"
            beside = f", of which {taken} are staged already" if taken else ""
            raise Unsupported(f"its tile of {size} bytes does not fit the {room}{beside}")
        if size is None and target.staging_space == "shared":
            raise Unsupported("its tile has no constant size")
        moving = {loop.var for read in reads for loop in read.loops} - scope
        if any(variables(axis.extent) & moving for axis in first.axes):
            raise Unsupported("the size of its tile changes inside the loop", place.loc)
        counters = scope | {axis.loop.var for axis in first.axes} | {param.name for param in kernel.scalar_params}
        bounds = [bound for axis in first.axes for bound in (axis.loop.start, axis.loop.stop)]
        if any(variables(bound) - counters for bound in bounds):
            raise Unsupported("the bounds of its tile change inside the loop", place.loc)
        guard = build.both(touched or build.TRUE, _common_guard(place, name, scope - threads))
        if target.thread_mapping:
            _threads_meet(kernel, reads[0].loops, place)
            copied = (*first.source, first.inside, guard, *bounds)
            if any(variables(part) & threads for part in copied):
                raise Unsupported("each thread reads a tile of its own", place.loc)
        copy_name = names.fresh(f"{name}_tile")
        tile = Array(copy_name, dtype, tuple(axis.extent for axis in first.axes), space=target.staging_space)
        new = _with_copy(place, tile, first, array, reads, buffers, target, guard, zeros=touched is None)
        kernel = with_body(kernel, replace_statement(kernel.body, place, (new,)))
        shape = " x ".join(str(build.constant(axis.extent) or "n") for axis in first.axes)
        notes.append(f"staged {name} at '{label}' as {shape} {dtype} in {target.staging_space} memory")
    return kernel


def _common_guard(place: For, name: str, scope: set[str]) -> Expr:
    """The tail guards around every read in the place's body that hold for all of one iteration of it."""
    around: list[list[Expr]] = []

    def visit(body: Body, tests: list[Expr]) -> None:
        for stmt in body:
            if any(
                isinstance(part, Load) and part.array == name for top in children(stmt) for part in walk_expr(top)
            ):
                around.append(tests)
            own = conjuncts(stmt.test) if isinstance(stmt, If) and stmt.tail else []
            for inner in bodies(stmt):
                visit(inner, tests + own)

    visit(place.body, [])
    common = [test for test in around[0] if all(test in tests for tests in around)] if around else []
    return build.all_of([test for test in dict.fromkeys(common) if variables(test) <= scope])


def _threads_meet(kernel: Kernel, path: tuple[For, ...], place: For) -> None:
    """Raises `Unsupported` unless all threads of a block reach the place equally often: its barriers need all."""
    differing = {loop.var for loop in path if loop.mapping.startswith("thread")}
    for loop in path[: path.index(place) + 1]:
        if loop.mapping.startswith("thread"):
            form = tile_form(loop)
            if form is None or not form.exact:
                raise Unsupported("threads of a block would reach its copy at different times", loop.loc)
        elif (variables(loop.start) | variables(loop.stop)) & differing:
            raise Unsupported("threads of a block would reach its copy at different times", loop.loc)
    for stmt in walk(kernel.body):
        if isinstance(stmt, If) and any(part is place for part in walk((stmt,))):
            raise Unsupported("its copy would stand under a condition", stmt.loc)


def _read_again(read: Read, inner: tuple[For, ...]) -> bool:
    """Whether some loop inside reads the same element in each of its iterations, or windows overlap."""
    counters = {loop.var for loop in inner}
    if any(len(variables(index) & counters) > 1 for index in read.load.indices):
        return True
    moving = {name for index in read.load.indices for name in variables(index)}
    moved = {(loop.source, loop.ordinal) for loop in read.loops if loop.var in moving}
    return any((loop.source, loop.ordinal) not in moved for loop in inner)


def _inner_loops(read: Read, place: For) -> tuple[For, ...]:
    """The loops whose iterations share one tile: those inside the place, and the threads of the block."""
    where = read.loops.index(place)
    return tuple(
        loop
        for depth, loop in enumerate(read.loops)
        if depth > where or (depth < where and loop.mapping.startswith("thread"))
    )


def _staged_bytes(kernel: Kernel, target: Target) -> int:
    """What is staged already (an upper bound of what is live at once)."""
    total = 0
    for stmt in walk(kernel.body):
        if isinstance(stmt, Alloc) and stmt.array.space == target.staging_space:
            extents = [build.constant(extent) for extent in stmt.array.shape]
            total += math.prod(extent or 0 for extent in extents) * element_of(stmt.array.dtype).bytes
    return total if target.staging_space == "shared" else 0


def _bytes(buffer: Buffer, dtype: Scalar) -> int | None:
    extents = [build.constant(axis.extent) for axis in buffer.axes]
    if any(extent is None for extent in extents):
        return None
    return math.prod(extent or 0 for extent in extents) * dtype.bytes


# -------------------------------------------------------------------------------------------- the copy


def _with_copy(
    place: For,
    tile: Array,
    buffer: Buffer,
    array: Array,
    reads: list[Read],
    buffers: list[Buffer],
    target: Target,
    guard: Expr,
    *,
    zeros: bool,
) -> For:
    """The loop with the copy before its body, and its reads turned to the buffer.

    `zeros`: the copy looks whether an element exists, and holds a zero where none does.
    """
    elements = {id(read.load): buffer for read, buffer in zip(reads, buffers, strict=True)}
    body = _turn(place.body, array.name, tile, elements, zeros)
    indices = tuple(_filled(axis) for axis in buffer.axes)
    load = Load(array.name, buffer.source, element_of(reads[0].load.dtype))
    shared = target.staging_space == "shared"
    inside = build.both(guard, buffer.inside) if shared else buffer.inside
    value: Expr = load if inside == build.TRUE else Select(inside, load, _zero(load.dtype), element_of(load.dtype))
    copy: Body = (Store(tile.name, indices, value),)
    # Where the loops inside run on the cores, so does the copy: no two iterations fill the same element.
    outermost = "parallel" if any(loop.mapping == "parallel" for loop in loops(body)) else "serial"
    order = buffer.axes if shared else filling_order(buffer, array)
    for axis in reversed(order):
        mapping = "cooperative" if shared else outermost if axis is order[0] else "serial"
        copy = (dataclasses.replace(axis.loop, body=copy, source="", mapping=mapping),)
    # Barriers need every thread, so that there the guard is the value's.
    if shared and len(body) > 1 and isinstance(body[0], Alloc) and isinstance(body[1], Barrier):
        copy = (Barrier(), *copy)  # the copy that stands here already has the same two barriers around it
        body = (body[0], *body[2:])
    else:
        copy = (Barrier(), *copy, Barrier()) if shared else guarded(copy, guard)
    return dataclasses.replace(place, body=(Alloc(tile), *copy, *body))


def _zero(dtype: object) -> Const:
    scalar = element_of(dtype)  # type: ignore[arg-type]
    return Const(0.0 if scalar.is_float else 0, scalar)


def _filled(axis: Axis) -> Expr:
    step = build.constant(axis.loop.step) or 1
    return build.floordiv(build.sub(axis.loop.counter, axis.loop.start), step)


def _turn(body: Body, name: str, tile: Array, elements: dict[int, Buffer], zeros: bool) -> Body:
    """The body with its reads from the buffer; with `zeros` in it nobody asks again whether an element exists:
    `A[i] if 0 <= i and i < A.shape[0] else 0` is an element of the buffer."""
    turned: list[tuple[Load, Load]] = []

    def expression(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.array == name and id(expr) in elements:
            indices = tuple(axis.read for axis in elements[id(expr)].axes)
            turned.append((Load(tile.name, indices, expr.dtype, loc=expr.loc), expr))
            return turned[-1][0]
        if zeros and isinstance(expr, Select) and is_zero(expr.orelse):
            source = next((old for new, old in turned if new is expr.then), None)
            tests = conjuncts(expr.test)
            left = [test for test in tests if source is None or not _asks_for(source, test)]
            if not left:
                return expr.then
            return dataclasses.replace(expr, test=build.all_of(left)) if len(left) < len(tests) else None
        return None

    return rewrite(body, expression=expression)


def _asks_for(load: Load, test: Expr) -> bool:
    """Whether a test says of an index of a load that it is not below the array, or not behind it."""
    margin = margin_of(test)
    return margin is not None and any(
        difference(margin, within) == 0
        for axis in range(len(load.indices))
        for within in margins_within(load, axis)
    )


def loops_of_copies(body: Body, space: str) -> list[For]:
    """The innermost loops of the copies: those that fill a buffer, and have no name of the user's."""
    buffers = {name for name, array in local_arrays(body).items() if array.space == space}
    return [
        stmt
        for stmt in walk(body)
        if isinstance(stmt, For)
        and not stmt.source
        and len(stmt.body) == 1
        and isinstance(stmt.body[0], Store)
        and stmt.body[0].array in buffers
    ]
