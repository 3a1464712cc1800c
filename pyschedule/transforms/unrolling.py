"""Unrolling: full, partial with a remainder, and unroll-and-jam.

    for i in range(N):      unroll("i", 4)     for i in range(0, N // 4 * 4, 4):
        S(i)                                       S(i); S(i + 1); S(i + 2); S(i + 3)
                                               for i_r in range(N // 4 * 4, N):
                                                   S(i_r)

An outer loop's copies share the loops inside it (unroll-and-jam: D. Callahan, S. Carr, K. Kennedy, *Improving
Register Allocation for Subscripted Variables*, PLDI 1990) where `analysis.dependences` finds that legal:

    for i in range(0, M // 2 * 2, 2):
        for j in range(N):
            S(i, j); S(i + 1, j)

Where the target's compiler unrolls better than text does, the request is left on the loop for it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from pyschedule.analysis import access
from pyschedule.analysis.dependences import Dependences
from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.nodes import Alloc, Break, Expr, For, If, Kernel, Return, Stmt, Store, Var, While
from pyschedule.ir.visitors import counters, local_arrays, substitute, variables, walk, written_variables
from pyschedule.schedule import names as loop_names
from pyschedule.schedule.directives import NoUnroll, Unroll
from pyschedule.schedule.log import Record
from pyschedule.schedule.targets import Target
from pyschedule.transforms import bands, unroll_requests
from pyschedule.transforms.copies import renamed_buffers, renamed_counters, renamed_loops, renamed_scalars
from pyschedule.transforms.nest import (
    Body,
    Names,
    expanded,
    first_access,
    live_after,
    replace_statement,
    skeleton,
    tile_form,
    with_body,
)
from pyschedule.transforms.registers import loops_over_registers
from pyschedule.transforms.simplify import simplify

#: One directive makes at most this many copies of a body, and of the statements in it.
MOST_COPIES = 1024
MOST_STATEMENTS = 65536


def unroll(
    kernel: Kernel,
    directives: Sequence[Unroll],
    rolled: Sequence[NoUnroll],
    target: Target,
    dependences: Dependences,
    vector: dict[str, int],
    scalar: Kernel,
) -> tuple[Kernel, tuple[Record, ...]]:
    """Applies the directives, innermost loops first.

    `scalar` is the kernel before vectorization, on which jamming is proved; `vector` the counters in lanes.
    """
    records: list[Record] = []
    kernel = keep_rolled(kernel, rolled, records)
    taken: set[tuple[str, int]] = set()
    for directive in directives:
        records.extend(unroll_requests.refusals_of_names(kernel, directive))
        requests = unroll_requests.requests_of(kernel, dependences.kernel, directive, target)
        requests = unroll_requests.not_taken(requests, directive, taken)
        done: list[tuple[str, int]] = []
        details: list[str] = []
        made = 1  # copies of the innermost body, of which each further loop makes more
        for request in reversed(requests):  # as written, the innermost stands last
            factors: list[int] = []
            for loop in request.loops(kernel):
                try:
                    kernel, factor, how = _unrolled(
                        kernel, loop, request.factor, target, dependences, vector, scalar, made
                    )
                except Unsupported as refusal:
                    if not (directive.loop is None and not directive.factors):
                        records.append(unroll_requests.refused(directive, request, refusal))
                    continue
                factors.append(factor)
                details += [f"loop '{loop.label}': {how}"] if how else []
            if factors:
                done.insert(0, (request.name, max(factors)))
                made *= max(factors)
        if done:
            records.append(
                Record(
                    "Unroll",
                    "Applied",
                    unroll_requests.describe(done),
                    tuple(dict.fromkeys(details)),
                    directive.loc,
                )
            )
        elif not requests and directive.loop is None and not directive.factors:
            records.append(
                Record(
                    "Unroll", "Note", "no loop has a body small enough to unroll", (), directive.loc, silent=True
                )
            )
        if len(requests) < len(directive.factors):
            records.append(unroll_requests.without_loops(directive, len(requests)))
    return kernel, tuple(records)


# ------------------------------------------------------------------------------------------- one loop


def keep_rolled(kernel: Kernel, directives: Sequence[NoUnroll], records: list[Record]) -> Kernel:
    """Marks the loops that must stay rolled, for every later stage and the back end."""
    for directive in directives:
        spec = loop_names.parse(directive.loop)
        found = [
            stmt
            for stmt in walk(kernel.body)
            if isinstance(stmt, (For, While)) and spec is not None and spec.matches(stmt)
        ]
        for loop in found:
            kernel = with_body(kernel, replace_statement(kernel.body, loop, (dataclasses.replace(loop, unroll=1),)))
        if found:
            records.append(
                Record("NoUnroll", "Applied", f"loop '{directive.loop}' stays rolled", (), directive.loc)
            )
        else:
            text = f"no loop '{directive.loop}' is there to keep rolled (was its tiling skipped?)"
            records.append(Record("NoUnroll", "Skipped", text, (), directive.loc))
    return kernel


def _unrolled(
    kernel: Kernel,
    loop: For,
    factor: int | None,
    target: Target,
    dependences: Dependences,
    vector: dict[str, int],
    scalar: Kernel,
    made: int,
) -> tuple[Kernel, int, str]:
    """The kernel with one loop unrolled, by which factor, and a line for the log.

    `made`: how many copies of the body its directive has made already, by loops inside.

    Raises `Unsupported` where it cannot be.
    """
    names = Names(kernel)
    trips = static_trips(loop)
    if factor is None and trips is None:
        offer = f"a factor, as in unroll('{loop.source}', 4), unrolls it partially"
        raise Unsupported(f"its trip count is not known at compile time; {offer}", loop.loc)
    if loop.mapping != "serial":
        raise Unsupported(f"its iterations run on {loop.mapping}", loop.loc)
    exit_ = bands.early_exit(loop.body)
    if exit_ is not None and any(isinstance(stmt, Break) for stmt in _own(loop.body)):
        raise Unsupported(
            "it may be left by a break; copies after the exit could not be shown not to run",
            getattr(exit_, "loc", loop.loc),
        )
    full = trips is not None and (factor is None or factor >= trips)
    copies = trips if full and trips is not None else factor or 1
    if not full and loop.max_trip is not None:
        copies = max(1, min(copies, loop.max_trip))
    _within_budget(loop, copies, made)
    if copies <= 1 and full:
        new: Body = substitute(loop.body, {loop.var: loop.start}) if trips else ()
        return with_body(kernel, replace_statement(kernel.body, loop, new)), copies, ""
    if not target.copies and not _constants_pay(loop):
        marked = dataclasses.replace(loop, unroll=-1 if full else copies)
        return (
            with_body(kernel, replace_statement(kernel.body, loop, (marked,))),
            copies,
            "left to the target's compiler, by loop metadata",
        )
    private = private_scalars(kernel.body, loop)
    how = ""
    jam = False
    if _has_loops(loop.body):
        proof = (loop, scalar, dependences, vector)
        free = not scalar.strict_math
        jam = private is not None and _may_jam(*proof, private, reorder=free)
        how = "copies share the loops inside (unroll-and-jam)" if jam else "plain copies"
        if jam and private is not None and free and not _may_jam(*proof, private, reorder=False):
            how += "; steps of a reduction run in another order (reassociated)"
    if full:
        step = step_of(loop)
        offsets = [build.add(loop.start, place * step) for place in range(copies)]
        body = _copies(loop, offsets, names, private if jam else None)
    else:
        body = _partial(loop, copies, names, private if jam else None)
    return with_body(kernel, replace_statement(kernel.body, loop, body)), copies, how


def static_trips(loop: For) -> int | None:
    form = tile_form(loop)
    return form.size if form is not None and form.exact else None


def step_of(loop: For) -> int:
    step = build.constant(loop.step)
    if not step:
        raise Unsupported("its step is not a constant", loop.loc)
    return step


def _own(body: Body) -> list[Stmt]:
    """The statements of a loop's own level (those under `if` too, those of inner loops not)."""
    found: list[Stmt] = []
    for stmt in body:
        found.append(stmt)
        if isinstance(stmt, If):
            found += _own(stmt.body) + _own(stmt.orelse)
    return found


def _has_loops(body: Body) -> bool:
    return any(isinstance(stmt, (For, While)) for stmt in walk(body))


def _within_budget(loop: For, copies: int, made: int) -> None:
    statements = sum(1 for _ in walk(loop.body)) * copies
    if copies * made > MOST_COPIES:
        raise Unsupported(
            f"{copies * made} copies of its body are more than the limit of {MOST_COPIES} copies a directive",
            loop.loc,
        )
    if statements > MOST_STATEMENTS:
        raise Unsupported(f"{statements} copied statements are more than the limit of {MOST_STATEMENTS}", loop.loc)


def _constants_pay(loop: For) -> bool:
    """Whether copies with the counter a constant fold to something simpler: it is tested, or taken modulo."""
    from pyschedule.ir.nodes import BinOp
    from pyschedule.ir.visitors import children, walk_expr

    for stmt in walk(loop.body):
        if isinstance(stmt, If) and not stmt.tail and loop.var in variables(stmt.test):
            return True
        for top in children(stmt):
            for part in walk_expr(top):
                if isinstance(part, BinOp) and part.op in ("%", "&", "//") and loop.var in variables(part):
                    return True
    return False


def private_scalars(body: Body, loop: For) -> frozenset[str] | None:
    """The scalars that each iteration sets before it reads them, so that copies may have their own; `None` if
    one of these is read after the loop."""
    assigned = written_variables(loop.body)
    private = frozenset(name for name in assigned if first_access(loop.body, name) != "read")
    return None if any(live_after(body, loop, name) for name in private) else private


def _copies(loop: For, values: Sequence[Expr], names: Names, private: frozenset[str] | None) -> Body:
    """The body once for each value of the counter, one after the other; or, where the scalars private to an
    iteration are given, with the loops inside shared."""
    bodies = [simplify(substitute(loop.body, {loop.var: value})) for value in values]
    if private is not None:
        own = [renamed_buffers(renamed_scalars(body, private, names), names) for body in bodies[1:]]
        return _jammed([bodies[0], *own], names)
    result: list[Stmt] = list(bodies[0])
    for body in bodies[1:]:
        result.extend(renamed_counters(body, names))
    return tuple(result)


def _jammed(bodies: Sequence[Body], names: Names) -> Body:
    """Bodies of one shape, statement by statement, with each loop they all have made one."""
    result: list[Stmt] = []
    if any(len(body) != len(bodies[0]) for body in bodies):
        for body in bodies:
            result.extend(body if body is bodies[0] else renamed_loops(body, names))
        return tuple(result)
    for stmts in zip(*bodies, strict=True):
        first = stmts[0]
        if isinstance(first, For) and all(_same_header(first, other) for other in stmts):
            inner = [
                stmt.body if stmt is first else substitute(stmt.body, {stmt.var: Var(first.var)})
                for stmt in stmts
                if isinstance(stmt, For)
            ]
            result.append(dataclasses.replace(first, body=_jammed(inner, names)))
        else:
            for stmt in stmts:
                result.extend((stmt,) if stmt is first else renamed_loops((stmt,), names))
    return tuple(result)


def _same_header(one: For, other: Stmt) -> bool:
    return isinstance(other, For) and (one.start, one.stop, one.step) == (other.start, other.stop, other.step)


def _partial(loop: For, copies: int, names: Names, private: frozenset[str] | None) -> Body:
    """A main loop of `copies` iterations at once, and a remainder loop; right for every trip count, 0 included."""
    step = step_of(loop)
    span = build.sub(loop.stop, loop.start) if step > 0 else build.sub(loop.start, loop.stop)
    trips = build.maximum(build.ceildiv(span, abs(step)), 0)
    whole = build.mul(build.floordiv(trips, copies), copies)
    end = build.add(loop.start, build.mul(whole, step))
    values = [build.add(loop.counter, place * step) for place in range(copies)]
    main = dataclasses.replace(
        loop,
        stop=end,
        step=build.const(step * copies),
        body=_copies(loop, values, names, private),
        max_trip=None if loop.max_trip is None else loop.max_trip // copies,
    )
    rest_name = names.fresh(f"{loop.var}_r")
    rest_body = renamed_counters(substitute(loop.body, {loop.var: Var(rest_name)}), names)
    rest = dataclasses.replace(loop, var=rest_name, start=end, body=rest_body, max_trip=copies - 1)
    return (main, rest)


def _may_jam(
    loop: For,
    scalar: Kernel,
    dependences: Dependences,
    vector: dict[str, int],
    private: frozenset[str],
    *,
    reorder: bool,
) -> bool:
    """Whether the loop may move inside the loops of its body: proved on the nest before vectorization.

    `reorder`: the steps of float reductions may change places.
    """
    from pyschedule.ir.visitors import contains

    if contains(loop.body, While, Return, Break) or not _accumulators_are_apart(loop):
        return False
    found = next((stmt for stmt in walk(scalar.body) if isinstance(stmt, For) and stmt.var == loop.var), None)
    if found is None:
        return False
    inner = _sunk(found)
    if inner is None:
        return False
    candidate = with_body(scalar, replace_statement(scalar.body, found, inner))
    present = {stmt.var for stmt in walk(candidate.body) if isinstance(stmt, For)}
    try:
        conflict = dependences.conflict(
            skeleton(candidate),
            reorder_reductions=reorder,
            vector={counter: width for counter, width in vector.items() if counter in present},
            expanded=(*expanded(dependences.kernel, candidate), *sorted(private)),
        )
    except Unsupported:
        return False
    return conflict is None


def _accumulators_are_apart(loop: For) -> bool:
    """Whether the copies keep different elements in their registers: all copies read theirs before any of them
    writes its own back, so that of two sums into one element (`c[i // 2]`) one would be lost."""
    own, inner = local_arrays(loop.body), counters(loop.body)
    written: dict[str, list[Store]] = {}
    for stmt in walk(loop.body):
        if isinstance(stmt, Store) and stmt.origin is None and stmt.array not in own:
            written.setdefault(stmt.array, []).append(stmt)
    return all(access.apart(stores, loop.var, step_of(loop), inner) for stores in written.values())


def _sunk(loop: For) -> Body | None:
    """The nest with the loop innermost around each statement of its body, one after the other."""
    result: list[Stmt] = []
    number = 0

    def sink(body: Body) -> Body | None:
        nonlocal number
        new: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, For):
                if loop.var in variables(stmt.start) | variables(stmt.stop):
                    return None
                inner = sink(stmt.body)
                if inner is None:
                    return None
                new.append(dataclasses.replace(stmt, body=inner))
            elif isinstance(stmt, Alloc):
                new.append(stmt)
            else:
                number += 1
                counter = f"{loop.var}__{number}"
                copy = substitute((stmt,), {loop.var: Var(counter)})
                new.append(dataclasses.replace(loop, var=counter, body=copy))
        return tuple(new)

    sunk = sink(loop.body)
    if sunk is None:
        return None
    result.extend(sunk)
    return tuple(result)


def unroll_registers(kernel: Kernel, target: Target) -> Kernel:
    """Unrolls the loops of constant trip count that index register arrays: registers have no addresses.

    An array of more elements than there are registers stays in memory; copies would only be many.
    """
    while True:
        counters = loops_over_registers(kernel.body, target.vector_registers)
        loop = next(
            (
                stmt
                for stmt in walk(kernel.body)
                if isinstance(stmt, For)
                and stmt.var in counters
                and stmt.unroll != 1
                and static_trips(stmt) is not None
                and not any(isinstance(inner, For) and inner.var in counters for inner in walk(stmt.body))
            ),
            None,
        )
        if loop is None:
            return kernel
        step, trips = step_of(loop), static_trips(loop) or 0
        offsets = [build.add(loop.start, place * step) for place in range(trips)]
        body = _copies(loop, offsets, Names(kernel), None) if trips else ()
        kernel = with_body(kernel, replace_statement(kernel.body, loop, body))
