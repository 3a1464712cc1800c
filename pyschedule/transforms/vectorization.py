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
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from pyschedule.analysis import access as accesses
from pyschedule.analysis.dependences import Dependences
from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.nodes import Assign, Call, For, If, Kernel, Load, Ramp, Stmt, Store, Var
from pyschedule.ir.printer import format_expr
from pyschedule.ir.types import lanes_of
from pyschedule.ir.visitors import (
    arrays,
    counters,
    expressions,
    local_arrays,
    read_variables,
    variables,
    walk,
    walk_expr,
    written_variables,
)
from pyschedule.schedule.directives import Vectorize
from pyschedule.schedule.log import Record, skipped
from pyschedule.schedule.targets import Target
from pyschedule.transforms import lanes, matrix_unit
from pyschedule.transforms.copies import renamed_counters, renamed_scalars
from pyschedule.transforms.lane_choice import (
    Choice,
    accessed,
    automatic,
    choose,
    element_bytes,
    has_origin,
    innermost_pieces,
    ways,
)
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
    with_body,
)


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
) -> tuple[Kernel, tuple[Record, ...], dict[str, int]]:
    """Applies the directives in turn; `innermost`: a directive without a loop means the innermost one of the
    source (the block form).  Returns the kernel, a record each, and the counters vectorized with their width."""
    records: list[Record] = []
    proof = _Proof(kernel, dependences, {})
    for directive in directives:
        if matrix_unit.takes(kernel, directive.loop, innermost_pieces(kernel)):
            text = f"loop '{directive.loop}' is the matrix unit's: its tiles are the lanes"
            records.append(Record("Vectorization", "Note", text, (), directive.loc, silent=True))
            continue
        try:
            choices = choose(kernel, directive, target, innermost, functools.partial(_refusal, proof))
        except Unsupported as refusal:
            silent = automatic(directive)
            records.append(skipped("Vectorization", refusal.reason, directive.loc, refusal.place, silent=silent))
            continue
        for choice in choices:
            kernel, record, counters = _apply(kernel, directive, choice, proof, bool(target.thread_mapping))
            records.extend(record)
            proof.done.update(dict.fromkeys(counters, choice.width))
    if directives:
        kernel = _vectorize_copies(kernel, target)
    return kernel, tuple(records), proof.done


# ---------------------------------------------------------------------------------------------- legality


def _refusal(proof: _Proof, kernel: Kernel, loops: Sequence[For], width: int) -> str | None:
    """Why the loops may not run in lanes, or `None`.  Loops that only move accumulators need no proof."""
    for loop in loops:
        if loop.mapping != "serial":
            return f"the iterations of loop '{loop.label}' run on {runners(loop)}; give it an inner tile"
    if any(lanes_of(part.type) > 1 for loop in loops for part in expressions(loop.body)):
        return f"what is in loop '{loops[0].source}' runs in lanes already"
    if any(matrix_unit.products(loop.body) for loop in loops):
        return f"the matrix unit multiplies inside loop '{loops[0].source}'"
    for loop in loops:
        unsure = _checked(loop, proof.dependences.kernel)
        if unsure is not None:
            return unsure
    vector = {loop.var: width for loop in loops if has_origin(loop.body)}
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
    if conflict is None:
        return None
    return _kept_in_memory(loops, conflict.name, dependences.kernel) or str(conflict)


def _checked(loop: For, source: Kernel) -> str | None:
    """An index that must be checked in every iteration, and what would make that unnecessary."""
    for part in expressions(loop.body):
        if isinstance(part, Call) and part.function == "checked_index" and loop.var in variables(part):
            index, extent = (format_expr(arg) for arg in _as_written(part, source).args)
            reason = (
                f"nothing shows that the index `{index}` stays below `{extent}`: it is checked in every iteration"
            )
            if any(isinstance(inner, Load) for inner in walk_expr(part)):
                written = (index for stmt in walk(loop.body) if isinstance(stmt, Store) for index in stmt.indices)
                if any(part in walk_expr(index) for index in written):
                    return f"{reason}, and two iterations may mean one element"
                return f"{reason}; a test whether `0 <= {index}` and `{index} < {extent}` makes that unnecessary"
            return f"{reason}; a loop over `range({extent})`, or a test of the index, needs no check"
    return None


def _kept_in_memory(loops: Sequence[For], name: str, source: Kernel) -> str | None:
    """Why an element that all iterations add to is not in a register, where an index that is the same in all of
    them is what keeps it in memory."""
    for check in (part for loop in loops for part in expressions(loop.body)):
        if isinstance(check, Call) and check.function == "checked_index":
            index, extent = (format_expr(arg) for arg in _as_written(check, source).args)
            if extent.startswith(f"{name}."):
                return (
                    f"nothing shows that the index `{index}` stays below `{extent}` where '{name}' is reached: it "
                    f"is checked in every iteration, so that '{name}' cannot be summed in a register; a scalar "
                    f"that is summed in the loop and stored after it, or a loop over `range({extent})`, needs "
                    f"no check"
                )
    return None


def _as_written(check: Call, source: Kernel) -> Call:
    """The check of an index as it was before a transform made the index that of a copy."""
    found = (
        part
        for part in expressions(source.body)
        if isinstance(part, Call) and part.function == "checked_index" and part.loc == check.loc
    )
    return next((part for part in found if part.args[1] == check.args[1]), check)


# ------------------------------------------------------------------------------------------- application


def _apply(
    kernel: Kernel, directive: Vectorize, choice: Choice, proof: _Proof, each_step: bool
) -> tuple[Kernel, list[Record], list[str]]:
    """Vectorizes the loops of a choice, all together if that is legal, else those that may be."""
    if choice.width == 1:
        summary, notes = f"width=1 on loop '{choice.label}'", ("one lane: the loop stays as it is",)
        return kernel, [Record("Vectorization", "Applied", summary, notes, directive.loc)], []
    records: list[Record] = []
    loops = choice.loops
    together = _refusal(proof, kernel, loops, choice.width)
    if together is not None:
        allowed = []
        for loop in loops:
            reason = _refusal(proof, kernel, [loop], choice.width) if len(loops) > 1 else together
            if reason is None:
                allowed.append(loop)
            else:
                text = f"width={choice.width} on loop '{choice.label}': {reason}"
                record = skipped("Vectorization", text, directive.loc, loop.loc, silent=automatic(directive))
                records += [record] if record not in records else []
        loops = tuple(allowed)
    summary = f"width={choice.width} on loop '{choice.label}'"
    details = [*choice.reasons, *choice.notes]
    done: list[str] = []
    for loop in loops:
        names = Names(kernel)
        try:
            kinds = ways(kernel, [loop])
            kernel, reduced = _vectorized(kernel, loop, choice.width, names, each_step)
        except Unsupported as refusal:
            text = f"{summary}: {refusal.reason}"
            place = refusal.place or loop.loc
            records.append(skipped("Vectorization", text, directive.loc, place, silent=automatic(directive)))
            continue
        done.append(loop.var)
        if has_origin(loop.body) and not choice.reasons:
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
    if not has_origin(loop.body):
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
        sites = accessed(loop.body)
        if (
            loop.mapping not in ("serial", "cooperative")
            or has_origin(loop.body)
            or any(site.array not in declared for site in sites)
        ):
            continue
        strided = [site for site in sites if not accesses.contiguous(site, declared[site.array], loop.var)]
        if any(isinstance(site, Store) or loop.mapping == "cooperative" for site in strided):
            continue
        width = target.lanes(max(element_bytes(kernel, loop)))
        form = tile_form(loop)
        if loop.mapping == "cooperative" and (form is None or not form.exact or form.size % width):
            continue  # what is left over would stand outside the loop that threads share
        try:
            kernel, _ = _vectorized(kernel, loop, width, Names(kernel), False)
        except Unsupported:
            continue
    return kernel
