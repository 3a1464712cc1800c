"""Mapping: which loops the hardware runs - threads of a CPU, blocks and threads of a GPU.

The outermost tiles go to the target's `parallel_mapping`, the tiles below them to its `thread_mapping`.  A loop
is mapped only where no dependence crosses its iterations; a nest without tiles is given them on a target that
has hardware threads, since there a serial loop runs in one thread.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

from pyschedule.analysis.dependences import Dependences
from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.nodes import Alloc, Assign, Call, Expr, For, Kernel, Load, Stmt, Var
from pyschedule.ir.visitors import local_arrays, loops, read_arrays, rewrite, variables, walk_expr, written_arrays
from pyschedule.schedule import names as loop_names
from pyschedule.schedule.directives import Tile
from pyschedule.schedule.log import Record
from pyschedule.schedule.targets import Target
from pyschedule.transforms import bands
from pyschedule.transforms.nest import (
    Body,
    Names,
    before,
    clip,
    expanded,
    guarded,
    map_bodies,
    own_scalars,
    replace_statement,
    skeleton,
    tile_form,
    with_body,
)
from pyschedule.transforms.restructure import Piece, restructure


def map_loops(
    kernel: Kernel,
    directives: Sequence[Tile],
    target: Target,
    dependences: Dependences,
    lanes: Mapping[str, int],
) -> tuple[Kernel, tuple[Record, ...], tuple[str, ...]]:
    """Maps what may run in parallel; `lanes` has the width asked for, by the user's names of loops.

    Returns the kernel, refused requests, and lines for the log.
    """
    refused: list[Record] = []
    notes: list[str] = []
    asked = [(directive, name) for directive in directives for name in directive.parallel]
    if target.thread_mapping:
        kernel = _hardware(kernel, target, dependences, lanes, notes)
        refused = [record for one, name in asked for record in _not_mapped(kernel, one, name, dependences)]
        return kernel, tuple(refused), tuple(notes)
    for directive, name in asked:
        spec = loop_names.parse(name)
        chosen = [loop for loop in loops(kernel.body) if spec is not None and spec.matches(loop)]
        for loop in chosen:
            fine = _finer(kernel, loop, dependences)
            reason = None if fine is not None else _crosses(kernel, loop, dependences)
            if reason is None:
                kernel = _mapped(kernel, {loop.var: target.parallel_mapping[0]}, fine)
                notes.append(f"loop '{loop.label}' runs on the cores")
            else:
                summary = f"parallel='{name}': {reason}"
                refused.append(Record("Parallelization", "Skipped", summary, (), directive.loc, loop.loc))
        if not chosen:
            refused.append(_not_there(directive, name))
    if not asked and directives:
        for stmt in kernel.body:
            if isinstance(stmt, For):
                kernel = _outermost_tile(kernel, stmt, target, dependences, notes)
    return kernel, tuple(refused), tuple(notes)


def _not_mapped(kernel: Kernel, directive: Tile, name: str, dependences: Dependences) -> list[Record]:
    """Refusals of the loops that `parallel` names and that neither blocks nor threads run."""
    spec = loop_names.parse(name)
    chosen = [loop for loop in loops(kernel.body) if spec is not None and spec.matches(loop)]
    if not chosen:
        return [_not_there(directive, name)]
    records: list[Record] = []
    settled = {(loop.source, loop.ordinal) for loop in chosen if loop.mapping != "serial"}
    for loop in chosen:
        if (loop.source, loop.ordinal) not in settled:
            settled.add((loop.source, loop.ordinal))
            reason = _crosses(kernel, loop, dependences) or "blocks and threads run other loops of its nest"
            summary = f"parallel='{name}': {reason}"
            records.append(Record("Parallelization", "Skipped", summary, (), directive.loc, loop.loc))
    return records


def _not_there(directive: Tile, name: str) -> Record:
    return Record("Parallelization", "Skipped", f"parallel='{name}': its loop was not tiled", (), directive.loc)


def _crosses(kernel: Kernel, loop: For, dependences: Dependences) -> str | None:
    """Why the iterations of a loop may not run at once, or `None`."""
    if bands.early_exit(loop.body) is not None:
        return f"loop '{loop.source}' may be left early"
    try:
        conflict = dependences.conflict(
            skeleton(kernel),
            reorder_reductions=not kernel.strict_math,
            parallel=(loop.var,),
            expanded=expanded(dependences.kernel, kernel),
            own=own_scalars(kernel.body, loop),
        )
    except Unsupported as refusal:
        return str(refusal)
    return None if conflict is None else str(conflict)


def _finer(kernel: Kernel, loop: For, dependences: Dependences) -> int | None:
    """The `grain` of a loop over tiles: so small might its tiles be, each a step of the loops that go through them,
    and all run at once.  Tiles of the size that they have may so too, then."""
    size = build.constant(loop.step)
    inner = [
        (part, form)
        for part in loops(loop.body)
        if (part.source, part.ordinal) == (loop.source, loop.ordinal)
        and (form := tile_form(part)) is not None
        and form.low == loop.counter
    ]
    spans = {form.size * form.step for _, form in inner}
    if size is None or size <= 0 or spans != {size} or any(form.exact for _, form in inner):
        return None
    grain = math.lcm(*(form.step for _, form in inner))
    if grain >= size or size % grain:
        return None
    smaller = {part.var: clip(build.add(loop.counter, grain), form.end, 1) for part, form in inner}

    def cut(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For) or stmt.var not in smaller:
            return None
        return dataclasses.replace(stmt, stop=smaller[stmt.var], max_trip=None)

    fine = dataclasses.replace(loop, step=build.const(grain), body=rewrite(loop.body, cut), max_trip=None)
    nest = with_body(kernel, replace_statement(kernel.body, loop, (fine,)))
    return grain if _crosses(nest, fine, dependences) is None else None


def _mapped(kernel: Kernel, mapping: dict[str, str], grain: int | None = None) -> Kernel:
    def visit(body: Body) -> Body:
        result: list[Stmt] = []
        for stmt in body:
            inner = map_bodies(stmt, visit)
            if isinstance(inner, For) and inner.var in mapping:
                inner = dataclasses.replace(inner, mapping=mapping[inner.var], grain=grain)
            result.append(inner)
        return tuple(result) if any(a is not b for a, b in zip(result, body, strict=True)) else body

    return with_body(kernel, visit(kernel.body))


def _outermost_tile(
    kernel: Kernel, root: For, target: Target, dependences: Dependences, notes: list[str]
) -> Kernel:
    """The outermost loop over tiles that may run in parallel, if the nest has one."""
    loop: For | None = root
    while loop is not None:
        if loop.piece == 0:
            fine = _finer(kernel, loop, dependences)
            if fine is not None or _crosses(kernel, loop, dependences) is None:
                notes.append(f"loop '{loop.label}' runs on the cores")
                return _mapped(kernel, {loop.var: target.parallel_mapping[0]}, fine)
        inner = [stmt for stmt in loop.body if isinstance(stmt, For)]
        loop = inner[0] if len(inner) == 1 else None
    return kernel


# ------------------------------------------------------------------------------------- blocks and threads


def _hardware(
    kernel: Kernel, target: Target, dependences: Dependences, lanes: Mapping[str, int], notes: list[str]
) -> Kernel:
    for stmt in kernel.body:
        if isinstance(stmt, For):
            kernel = _map_nest(kernel, stmt, target, dependences, lanes, notes)
    return kernel


def _map_nest(
    kernel: Kernel,
    root: For,
    target: Target,
    dependences: Dependences,
    lanes: Mapping[str, int],
    notes: list[str],
) -> Kernel:
    """One top-level nest: blocks, then threads.  Where it may not run in parallel it is left to one thread."""
    chain = [
        loop
        for loop in _outer_loops(root)
        if not _shares_locals(kernel, loop) and _crosses(kernel, loop, dependences) is None
    ]
    outer = _prefix(_outer_loops(root), chain)
    if not outer:
        shared = _shares_locals(kernel, root)
        reason = f"its iterations share '{shared[0]}'" if shared else _crosses(kernel, root, dependences)
        notes.append(f"the nest over '{root.source}' runs in one thread: {reason}")
        return kernel
    if not any(loop.piece is not None for loop in outer):
        return _map_untiled(kernel, outer, target, lanes, notes)
    blocks, inner = _levels(outer)
    blocks = blocks[: len(target.parallel_mapping)]
    threads: list[For] = []
    count = 1
    # Pieces below the middle ones are what one thread does itself, where the middle ones fit.
    middle = [loop for loop in inner if loop.piece == 1 and (loop.max_trip or 0) <= target.threads_per_block[1]]
    for loop in reversed(middle or inner):
        trips = loop.max_trip
        if trips is None or len(threads) == len(target.thread_mapping):
            continue
        if count * trips > target.threads_per_block[1]:
            continue
        if any(other.source == loop.source and other.ordinal == loop.ordinal for other in threads):
            continue
        threads.append(loop)
        count *= trips
    mapping = {loop.var: name for loop, name in zip(reversed(blocks), target.parallel_mapping, strict=False)}
    mapping |= {loop.var: name for loop, name in zip(threads, target.thread_mapping, strict=False)}
    notes.append(
        "mapped " + ", ".join(f"'{loop.label}' to {mapping[loop.var]}" for loop in outer if loop.var in mapping)
    )
    kernel = _mapped(kernel, mapping)
    return _uniform(kernel, {loop.var for loop in threads})


def _shares_locals(kernel: Kernel, loop: For) -> list[str]:
    """The local arrays that the loop's iterations use together: each thread would have its own."""
    declared = local_arrays(kernel.body)
    inside = local_arrays(loop.body)
    used = read_arrays(loop.body) | written_arrays(loop.body)
    return sorted(name for name in used if name in declared and name not in inside)


def _reads_nothing(stmt: Assign) -> bool:
    return not any(isinstance(part, (Load, Var, Call)) for part in walk_expr(stmt.value))


def _levels(outer: list[For]) -> tuple[list[For], list[For]]:
    """The loops over whole tiles, whose bounds a launch can evaluate, and the tiles' pieces right inside them."""
    blocks: list[For] = []
    place = 0
    while place < len(outer) and outer[place].piece in (0, None):
        loop = outer[place]
        if (variables(loop.start) | variables(loop.stop)) & {other.var for other in outer}:
            break
        blocks.append(loop)
        place += 1
    inner: list[For] = []
    while place < len(outer) and outer[place].piece not in (0, None):
        inner.append(outer[place])
        place += 1
    return blocks, inner


def _outer_loops(root: For) -> list[For]:
    """The loops from the root inwards while each body is nothing but one loop."""
    found = [root]
    while len(found[-1].body) == 1 and isinstance(found[-1].body[0], For):
        found.append(found[-1].body[0])
    return found


def _prefix(every: list[For], parallel: list[For]) -> list[For]:
    result: list[For] = []
    for loop in every:
        if loop not in parallel:
            break
        result.append(loop)
    return result


def _map_untiled(
    kernel: Kernel, outer: list[For], target: Target, lanes: Mapping[str, int], notes: list[str]
) -> Kernel:
    """The innermost of (at most as many as there are block axes) parallel loops is cut into blocks of threads,
    each thread with as many iterations as lanes were asked for."""
    outer = outer[: len(target.parallel_mapping)]
    counters = {loop.var for loop in outer}
    if any(variables(bound) & counters for loop in outer for bound in (loop.start, loop.stop)):
        outer = outer[:1]
    loop = outer[-1]
    threads = target.threads_per_block[0]
    width = lanes.get(loop.source, 1) if loop.source else 1
    sizes = (threads * width,) if width == 1 else (threads * width, width)
    pieces = [Piece(loop, level, len(sizes)) for level in range(len(sizes) + 1)]
    new = restructure(bands.band_of(loop, (loop,)), {loop.var: sizes}, pieces, Names(kernel))
    kernel = with_body(kernel, replace_statement(kernel.body, loop, new))
    block = new[0]
    if not isinstance(block, For) or not isinstance(block.body[0], For):
        raise TypeError("strip-mining gave no two loops")
    thread = block.body[0]
    blocks = [*outer[:-1], block]
    mapping = {part.var: name for part, name in zip(reversed(blocks), target.parallel_mapping, strict=False)}
    mapping[thread.var] = target.thread_mapping[0]
    notes.append(f"loop '{loop.source}' cut into blocks of {threads} threads")
    return _uniform(_mapped(kernel, mapping), {thread.var})


def _uniform(kernel: Kernel, threads: set[str]) -> Kernel:
    """Thread loops run all their iterations, so that every thread reaches every barrier; what stands in them is
    guarded instead.  A finer piece of the same loop needs no guard: its own end stops it."""

    def visit(body: Body) -> Body:
        result: list[Stmt] = []
        for stmt in body:
            stmt = map_bodies(stmt, visit)
            form = tile_form(stmt) if isinstance(stmt, For) and stmt.var in threads else None
            if isinstance(stmt, For) and form is not None and not form.exact:
                test = before(stmt.counter, form.end, form.step)
                stop = build.add(form.low, form.size * form.step)
                stmt = dataclasses.replace(
                    stmt, stop=stop, body=_guarded_leaves(stmt.body, stmt, test), max_trip=form.size
                )
            result.append(stmt)
        # The other nests, which come next, must still be found by identity.
        return body if all(new is old for new, old in zip(result, body, strict=True)) else tuple(result)

    return with_body(kernel, visit(kernel.body))


def _guarded_leaves(body: Body, thread: For, test: Expr) -> Body:
    """The body with what it does guarded; neighbours share a guard, so that a scalar is set and read under one."""
    result: list[Stmt] = []
    under: list[Stmt] = []

    def unguarded(*stmts: Stmt) -> None:
        result.extend(guarded(tuple(under), test))
        under.clear()
        result.extend(stmts)

    for stmt in body:
        if isinstance(stmt, For):
            finer = bool(stmt.source) and (stmt.source, stmt.ordinal) == (thread.source, thread.ordinal)
            if not finer:
                stmt = dataclasses.replace(stmt, body=_guarded_leaves(stmt.body, thread, test))
            unguarded(stmt)
        elif isinstance(stmt, Alloc) or (isinstance(stmt, Assign) and stmt.origin is None and _reads_nothing(stmt)):
            unguarded(stmt)
        else:
            if isinstance(stmt, Assign) and _reads_nothing(stmt):
                # Harmless, and gives the scalar a value in every thread; but no iteration of the source.
                unguarded(dataclasses.replace(stmt, origin=None))
            under.append(stmt)
    unguarded()
    return tuple(result)
