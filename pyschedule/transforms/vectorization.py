"""Vectorization: which loop goes into lanes, how wide, whether that is legal, and what becomes of its tail.

    for i in range(N):        vectorize("i", width=8)     for i in range(0, N // 8 * 8, 8):
        y[i] = 2 * x[i]                                       y[i:i+8] = 2 * x[i:i+8]
                                                          if N // 8 * 8 < N:
                                                              y[t:t+8; t+l < N] = 2 * x[t:t+8; t+l < N]

The tail is one masked pass, so that a width over the trip count is all tail.  `lanes` rewrites the body;
legality - iterations in chunks of `width`, all reads of a statement before its writes - is decided by
`analysis.dependences`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from pyschedule.analysis import access as accesses
from pyschedule.analysis.dependences import Dependences
from pyschedule.analysis.induction import max_trip
from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.nodes import Assign, Call, For, If, Kernel, Load, Ramp, Stmt, Store, Var, While
from pyschedule.ir.printer import format_expr
from pyschedule.ir.types import element_of, lanes_of
from pyschedule.ir.visitors import (
    arrays,
    children,
    counters,
    expressions,
    local_arrays,
    read_variables,
    variables,
    walk,
    walk_expr,
    written_variables,
)
from pyschedule.schedule import names as loop_names
from pyschedule.schedule.directives import Vectorize
from pyschedule.schedule.log import Record, skipped
from pyschedule.schedule.targets import Target
from pyschedule.transforms import bands, lanes
from pyschedule.transforms.copies import renamed_counters, renamed_scalars
from pyschedule.transforms.nest import (
    Body,
    Names,
    before,
    expanded,
    live_after,
    own_scalars,
    replace_statement,
    runners,
    skeleton,
    tile_form,
    uncounted,
    with_body,
)


@dataclass(frozen=True, slots=True)
class _Choice:
    """What to vectorize: all loops of one label, how wide, and why (for the log)."""

    loops: tuple[For, ...]
    label: str
    width: int
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Proof:
    """What legality is proved on: the kernel before any loop of it ran in lanes, and the `done` that do by now."""

    scalar: Kernel
    dependences: Dependences
    done: dict[str, int]


def vectorize(
    kernel: Kernel,
    directives: Sequence[Vectorize],
    target: Target,
    dependences: Dependences,
    *,
    innermost: bool = False,
    skipped_tiles: frozenset[str] = frozenset(),
) -> tuple[Kernel, tuple[Record, ...], dict[str, int]]:
    """Applies the directives in turn; `innermost`: a directive without a loop means the innermost one of the
    source (the block form).  Returns the kernel, a record each, and the counters vectorized with their width."""
    records: list[Record] = []
    proof = _Proof(kernel, dependences, {})
    for directive in directives:
        try:
            choice = _choose(kernel, directive, target, proof, innermost)
        except Unsupported as refusal:
            silent = _automatic(directive)
            records.append(skipped("Vectorization", refusal.reason, directive.loc, refusal.place, silent=silent))
            continue
        kernel, record, counters = _apply(kernel, directive, choice, proof, bool(target.thread_mapping))
        records.extend(record)
        proof.done.update(dict.fromkeys(counters, choice.width))
    if directives:
        kernel = _vectorize_copies(kernel, target)
    return kernel, tuple(records), proof.done


def _automatic(directive: Vectorize) -> bool:
    """Whether nobody asked for anything in particular, so that finding nothing is no news."""
    return directive.loop is None and directive.width is None


# ------------------------------------------------------------------------------------------------- choice


def innermost_pieces(kernel: Kernel) -> dict[tuple[str, int], list[For]]:
    """The user's loops in source order, each as its innermost pieces (several where a nest was distributed)."""
    deepest: dict[tuple[str, int], int] = {}
    for stmt in walk(kernel.body):
        if isinstance(stmt, For) and stmt.source:
            key = (stmt.source, stmt.ordinal)
            deepest[key] = max(deepest.get(key, -1), -1 if stmt.piece is None else stmt.piece)
    found: dict[tuple[str, int], list[For]] = {key: [] for key in deepest}
    for stmt in walk(kernel.body):
        if isinstance(stmt, For) and stmt.source:
            key = (stmt.source, stmt.ordinal)
            if deepest[key] == (-1 if stmt.piece is None else stmt.piece):
                found[key].append(stmt)
    return found


def lanes_asked_for(
    kernel: Kernel, directives: Sequence[Vectorize], target: Target, *, innermost: bool
) -> dict[str, int]:
    """The loops that directives name for lanes (or that the block form means), by the user's name, with the
    width: what threads leave room for, and what staging lays out for."""
    pieces = innermost_pieces(kernel)
    wanted: dict[str, int] = {}
    for directive in directives:
        spec = None if directive.loop is None else loop_names.parse(directive.loop)
        groups = [group for key, group in pieces.items() if spec is not None and spec.names(*key)]
        if spec is None and innermost and pieces:
            groups = _from_innermost(list(pieces.values()), directive.width or 1)[:1]
        for group in groups:
            try:
                wanted[group[0].source] = _width(kernel, group, directive, target)
            except Unsupported:
                continue
    return wanted


def _from_innermost(groups: list[list[For]], width: int) -> list[list[For]]:
    """Loops from the innermost outwards; those that cannot fill the lanes come last."""
    inwards = list(reversed(groups))

    def short(group: list[For]) -> bool:
        trips = [max_trip(loop) for loop in group]
        return any(count is not None and count < width for count in trips)

    return sorted(inwards, key=short)


def _choose(kernel: Kernel, directive: Vectorize, target: Target, proof: _Proof, innermost: bool) -> _Choice:
    """Raises `Unsupported` where nothing fits."""
    pieces = innermost_pieces(kernel)
    if directive.loop is not None:
        spec = loop_names.parse(directive.loop)
        if spec is None:
            raise Unsupported(f"{directive.loop!r} is no name of a loop")
        if spec.piece is not None:
            chosen = [stmt for stmt in walk(kernel.body) if isinstance(stmt, For) and spec.matches(stmt)]
        else:
            chosen = [
                loop for (name, number), group in pieces.items() if spec.names(name, number) for loop in group
            ]
        if not chosen:
            for stmt in walk(kernel.body):
                if isinstance(stmt, While) and spec.names(stmt.source, stmt.ordinal):
                    raise Unsupported(uncounted(stmt), stmt.reason_loc or stmt.loc)
            whole = " (the loop was not tiled)" if spec.piece is not None else ""
            raise Unsupported(f"no counted loop '{directive.loop}' is there to vectorize{whole}")
        width = _width(kernel, chosen, directive, target)
        return _Choice(tuple(chosen), spec.source, width, ())
    groups = [group for group in pieces.values() if all(loop.mapping == "serial" for loop in group)]
    if not groups:
        raise Unsupported("no loop is left to run in lanes")
    ranked = (
        _from_innermost(groups, directive.width or 1)
        if innermost
        else sorted(groups, key=lambda group: _cost(kernel, group))
    )
    refusals: list[str] = []
    for group in ranked:
        width = _width(kernel, group, directive, target)
        reason = _refusal(kernel, group, width, proof)
        if reason is None:
            why = "the innermost loop" if innermost else "the loop with most contiguous accesses"
            return _Choice(
                tuple(group), group[0].source, width, (f"chosen: {why} ({_summary(kernel, group)})", *refusals)
            )
        refusals.append(f"not loop '{group[0].source}': {reason}")
    raise Unsupported("; ".join(refusals))


def _width(kernel: Kernel, loops: Sequence[For], directive: Vectorize, target: Target) -> int:
    if directive.width is not None and directive.width & (directive.width - 1):
        raise Unsupported(
            f"width={directive.width} is no power of two; {1 << (directive.width.bit_length() - 1)} is"
        )
    widest = max((size for loop in loops for size in _element_bytes(kernel, loop)), default=4)
    fitting = target.lanes(widest)
    if directive.width is None:
        return fitting
    if not target.copies:  # a GPU's widest access; lanes beyond it would only cost registers
        return min(
            directive.width,
            target.lanes(min((b for loop in loops for b in _stored_bytes(kernel, loop)), default=4)),
        )
    return directive.width


def _element_bytes(kernel: Kernel, loop: For) -> list[int]:
    """Bytes of what is computed with in a loop: a half counts as the float32 it becomes."""
    found = [
        element_of(part.type).bytes
        for stmt in walk(loop.body)
        for top in children(stmt)
        for part in walk_expr(top)
        if isinstance(part, Load)
    ]
    return found or _stored_bytes(kernel, loop)


def _stored_bytes(kernel: Kernel, loop: For) -> list[int]:
    declared = arrays(kernel)
    names = [site.array for site in _sites(loop.body) if site.array in declared]
    return [element_of(declared[name].dtype).bytes for name in names]


def _sites(body: Body) -> list[Load | Store]:
    found: list[Load | Store] = []
    for stmt in walk(body):
        found += [part for top in children(stmt) for part in walk_expr(top) if isinstance(part, Load)]
        if isinstance(stmt, Store):
            found.append(stmt)
    return found


def _kinds(kernel: Kernel, loop: For) -> dict[str, list[str]]:
    """The arrays of a loop's body by how lanes would reach them."""
    declared = arrays(kernel)
    kinds: dict[str, list[str]] = {"contiguous": [], "broadcast": [], "strided or gathered": []}
    for site in _sites(loop.body):
        if site.array not in declared:
            continue
        array = declared[site.array]
        if accesses.invariant(site, loop.var):
            kind = "broadcast"
        elif accesses.contiguous(site, array, loop.var):
            kind = "contiguous"
        else:
            kind = "strided or gathered"
        if site.array not in kinds[kind]:
            kinds[kind].append(site.array)
    return kinds


def _summary(kernel: Kernel, group: Sequence[For]) -> str:
    loop = next((item for item in group if _has_origin(item.body)), group[0])
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in _kinds(kernel, loop).items() if names)


def _cost(kernel: Kernel, group: Sequence[For]) -> tuple[int, int, int]:
    """Fewest gathers, then a parallel loop before a reduction, then most contiguous accesses."""
    gathers = contiguous = 0
    for loop in group:
        kinds = _kinds(kernel, loop)
        gathers += len(kinds["strided or gathered"])
        contiguous += len(kinds["contiguous"])
    reduces = any(bands.is_reduction_loop(loop) for loop in group)
    return gathers, int(reduces), -contiguous


# ---------------------------------------------------------------------------------------------- legality


def _has_origin(body: Body) -> bool:
    return any(isinstance(stmt, (Assign, Store)) and stmt.origin is not None for stmt in walk(body))


def _refusal(kernel: Kernel, loops: Sequence[For], width: int, proof: _Proof) -> str | None:
    """Why the loops may not run in lanes, or `None`.  Loops that only move accumulators need no proof."""
    for loop in loops:
        if loop.mapping != "serial":
            return f"the iterations of loop '{loop.label}' run on {runners(loop)}; give it an inner tile"
    if any(lanes_of(part.type) > 1 for loop in loops for part in expressions(loop.body)):
        return f"what is in loop '{loops[0].source}' runs in lanes already"
    for loop in loops:
        unsure = _checked(loop)
        if unsure is not None:
            return unsure
    vector = {loop.var: width for loop in loops if _has_origin(loop.body)}
    if not vector:
        return None
    present = counters(proof.scalar.body)
    if not vector.keys() <= present:
        return f"loop '{loops[0].source}' is inside of lanes already"
    own = {name for loop in loops for name in own_scalars(kernel.body, loop)}
    own -= {name for loop in loops for name in written_variables(loop.body) - set(own_scalars(kernel.body, loop))}
    try:
        dependences = proof.dependences
        conflict = dependences.conflict(
            skeleton(proof.scalar),
            reorder_reductions=not kernel.strict_math,
            vector={loop: lanes for loop, lanes in proof.done.items() if loop in present} | vector,
            expanded=expanded(dependences.kernel, proof.scalar),
            own=own,
        )
    except Unsupported as refusal:
        return str(refusal)
    return None if conflict is None else str(conflict)


def _checked(loop: For) -> str | None:
    """An index that must be checked in every iteration, and what would make that unnecessary."""
    for part in expressions(loop.body):
        if isinstance(part, Call) and part.function == "checked_index" and loop.var in variables(part):
            index, extent = (format_expr(arg) for arg in part.args)
            reason = (
                f"nothing shows that the index `{index}` stays below `{extent}`: it is checked in every iteration"
            )
            if any(isinstance(inner, Load) for inner in walk_expr(part)):
                return f"{reason}, and two iterations may mean one element"
            return f"{reason}; a loop over `range({extent})`, or a test of the index, needs no check"
    return None


# ------------------------------------------------------------------------------------------- application


def _apply(
    kernel: Kernel, directive: Vectorize, choice: _Choice, proof: _Proof, each_step: bool
) -> tuple[Kernel, list[Record], list[str]]:
    """Vectorizes the loops of a choice, all together if that is legal, else those that may be."""
    records: list[Record] = []
    loops = choice.loops
    together = _refusal(kernel, loops, choice.width, proof)
    if together is not None:
        allowed = []
        for loop in loops:
            reason = _refusal(kernel, [loop], choice.width, proof) if len(loops) > 1 else together
            if reason is None:
                allowed.append(loop)
            else:
                text = f"width={choice.width} on loop '{choice.label}': {reason}"
                record = skipped("Vectorization", text, directive.loc, loop.loc, silent=_automatic(directive))
                records += [record] if record not in records else []
        loops = tuple(allowed)
    summary = f"width={choice.width} on loop '{choice.label}'"
    details = list(choice.reasons)
    done: list[str] = []
    for loop in loops:
        names = Names(kernel)
        try:
            kinds = _summary(kernel, [loop])
            kernel, reduced = _vectorized(kernel, loop, choice.width, names, each_step)
        except Unsupported as refusal:
            text = f"{summary}: {refusal.reason}"
            place = refusal.place or loop.loc
            records.append(skipped("Vectorization", text, directive.loc, place, silent=_automatic(directive)))
            continue
        done.append(loop.var)
        if _has_origin(loop.body) and not choice.reasons:
            details.append(kinds)
        parts = f"{choice.width} elements a step" if each_step else f"{choice.width} partial results"
        details += [f"reduction into '{name}' reassociated: {parts}" for name in reduced]
    if done:
        records.insert(0, Record("Vectorization", "Applied", summary, tuple(dict.fromkeys(details)), directive.loc))
    return kernel, records, done


def _vectorized(kernel: Kernel, loop: For, width: int, names: Names, each_step: bool) -> tuple[Kernel, list[str]]:
    _check_accumulators(loop)
    plan = lanes.plan(loop, loop.body, width, arrays(kernel), names, kernel.strict_math, each_step)
    assigned = {stmt.target for stmt in walk(loop.body) if isinstance(stmt, Assign)}
    for name in sorted(plan.varying & assigned):
        if live_after(kernel.body, loop, name):
            raise Unsupported(f"'{name}' is read after the loop", loop.loc)
    new = (*plan.before(), *_headers(loop, plan, names), *plan.after())
    # A scalar has one type everywhere: where other loops use its name, the vectors get another.
    others = replace_statement(kernel.body, loop, ())
    shared = plan.varying & assigned & (written_variables(others) | read_variables(others))
    new = renamed_scalars(new, shared, names)
    reduced = [item.reduction.name for item in plan.accumulators if not item.reduction.exact]
    return with_body(kernel, replace_statement(kernel.body, loop, new)), reduced


def _check_accumulators(loop: For) -> None:
    """Lanes read what they keep in registers before any of them writes it back: of two registers for one element
    (`c[i + j]`, with `i` a register tile and `j` in lanes) one would be lost."""
    if not _has_origin(loop.body):
        return
    own, inner = local_arrays(loop.body), counters(loop.body)
    written: dict[str, list[Store]] = {}
    for stmt in walk(loop.body):
        if isinstance(stmt, Store) and stmt.origin is None and stmt.array not in own:
            written.setdefault(stmt.array, []).append(stmt)
    for name, stores in written.items():
        if not accesses.apart(stores, loop.var, build.constant(loop.step) or 1, inner):
            raise Unsupported(f"lanes may keep one element of '{name}' in several registers", loop.loc)


def _headers(loop: For, plan: lanes.Lanes, names: Names) -> Body:
    """The loop over full vectors, and the masked pass over what is left."""
    width, step = plan.width, plan.step
    form = tile_form(loop)
    if form is not None and form.exact:
        return _fixed(loop, plan, form.size, names)
    span = build.sub(loop.stop, loop.start) if step > 0 else build.sub(loop.start, loop.stop)
    trips = build.maximum(build.ceildiv(span, abs(step)), 0)
    whole = build.mul(build.floordiv(trips, width), width)
    end = build.add(loop.start, build.mul(whole, step))
    main = dataclasses.replace(
        loop,
        stop=end,
        step=build.const(step * width),
        body=plan.body(loop.body, loop.counter, None),
        max_trip=None if loop.max_trip is None else loop.max_trip // width,
    )
    tail = names.fresh(f"{loop.source}_tail")
    counter = Var(tail)
    mask = before(Ramp(counter, step, width), loop.stop, step)
    masked = _fresh_locals(plan.body(loop.body, counter, mask), names)
    last = If(before(end, loop.stop, step), (Assign(tail, end, counter.vtype), *masked), tail=True)
    return (main, last)


def _fixed(loop: For, plan: lanes.Lanes, size: int, names: Names) -> Body:
    """A loop of a constant trip count: full vectors, and a masked one where the width does not divide it."""
    width, step = plan.width, plan.step
    full = size // width
    result: list[Stmt] = []
    if full:
        end = build.add(loop.start, full * width * step)
        body = plan.body(loop.body, loop.counter, None)
        result.append(dataclasses.replace(loop, stop=end, step=build.const(step * width), body=body, max_trip=full))
    if size % width:
        base = build.add(loop.start, full * width * step)
        mask = before(Ramp(base, step, width), loop.stop, step)
        result.extend(_fresh_locals(plan.body(loop.body, base, mask), names))
    return tuple(result)


def _fresh_locals(body: Body, names: Names) -> Body:
    """The counters of the copy's loops get names of their own."""
    return renamed_counters(body, names)


def _vectorize_copies(kernel: Kernel, target: Target) -> Kernel:
    """The innermost loops of staging copies, where the buffer is written contiguously.  What is read may lie apart
    on a CPU: a tile that is turned around is gathered, and written by whole vectors."""
    from pyschedule.transforms.staging import loops_of_copies

    for loop in loops_of_copies(kernel.body, target.staging_space):
        declared = arrays(kernel)
        sites = _sites(loop.body)
        if (
            loop.mapping not in ("serial", "cooperative")
            or _has_origin(loop.body)
            or any(site.array not in declared for site in sites)
        ):
            continue
        strided = [site for site in sites if not accesses.contiguous(site, declared[site.array], loop.var)]
        if any(isinstance(site, Store) or loop.mapping == "cooperative" for site in strided):
            continue
        width = target.lanes(max(_element_bytes(kernel, loop)))
        form = tile_form(loop)
        if loop.mapping == "cooperative" and (form is None or not form.exact or form.size % width):
            continue  # what is left over would stand outside the loop that threads share
        try:
            kernel, _ = _vectorized(kernel, loop, width, Names(kernel), False)
        except Unsupported:
            continue
    return kernel
