"""Promotion: the elements that a loop accumulates into live in registers while it runs.

Before:

    for k in range(K):
        for i in range(i_1, min(i_1 + 6, M)):
            C[i] += A[i, k]

After:

    C_acc = register float32[6]
    for i in range(i_1, i_1 + 6): C_acc[i - i_1] = C[i] if 0 < K and i < M else 0
    for k in range(K):
        for i in range(i_1, i_1 + 6):
            if i < M: C_acc[i - i_1] += A[i, k]
    for i in range(i_1, i_1 + 6):
        if 0 < K and i < M: C[i] = C_acc[i - i_1]

The region is the outermost body in which every access to the array has the same form: an affine index of tile
loops of constant size, and of nothing else that changes inside.  Arrays have distinct names and do not overlap
(the runtime checks), so no other access can mean the same element.  What the loop would not touch is left alone
(`reach`): with `K` none above, `C` is neither read nor written.  A half array's accumulator is a float32, rounded
once by the store.  (Scalar replacement: S. Carr, K. Kennedy, *Scalar Replacement in the Presence of
Conditional Control Flow*, Software: Practice and Experience, 1994.)
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from pyschedule.ir import build
from pyschedule.ir.blocks import MatrixProduct
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    BinOp,
    BoolOp,
    Compare,
    Const,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Return,
    Select,
    Stmt,
    Store,
    UnaryOp,
    Var,
    While,
)
from pyschedule.ir.types import Scalar, element_of
from pyschedule.ir.visitors import (
    arrays,
    children,
    contains,
    counters,
    map_children,
    may_break,
    rewrite_expr,
    substitute_expr,
    variables,
    walk,
    walk_expr,
    written_arrays,
    written_variables,
)
from pyschedule.schedule.targets import Target
from pyschedule.transforms import reach
from pyschedule.transforms.nest import (
    Body,
    Names,
    TileForm,
    before,
    guarded,
    map_bodies,
    tile_form,
    with_body,
)
from pyschedule.transforms.reach import Site

Loops = tuple[For | While, ...]

#: What a note says of a tile that is larger than all registers.
_LEFT = "stays in memory, since registers hold"


@dataclass(frozen=True, slots=True)
class _Plan:
    """The tile loops by axis of the accumulator, and the index with the n-th of them as variable `$n`."""

    forms: tuple[TileForm, ...]
    loops: tuple[For, ...]  # of one access, in the order of `forms`
    indices: tuple[Expr, ...]
    members: frozenset[str]  # counters of all tile loops, in all accesses
    guard: Expr  # when an element is touched: tail guards, and tests of `$n`
    reached: Expr  # when any element is


def promote(
    kernel: Kernel, target: Target, only: frozenset[str] | None = None
) -> tuple[Kernel, tuple[str, ...], tuple[str, ...]]:
    """Promotes every array it can (of `only`, if given); returns the kernel, a line for the log each, and which
    arrays have a tile that is larger than all registers, and stays in memory."""
    names = Names(kernel)
    crowded: list[str] = []
    notes: list[str] = []
    declared = arrays(kernel)
    body = kernel.body
    blocks = {stmt.array for stmt in walk(body) if isinstance(stmt, MatrixProduct)}  # stay where it writes them
    for name in sorted(written_arrays(body) - blocks):
        if name in declared and declared[name].space != "register" and (only is None or name in only):
            before = len(notes)
            body = _promote(body, declared[name], target, names, notes)
            crowded += [name] if any(_LEFT in note for note in notes[before:]) else []
    return with_body(kernel, body), tuple(notes), tuple(crowded)


def _promote(body: Body, array: Array, target: Target, names: Names, notes: list[str], around: Loops = ()) -> Body:
    if not _touches(body, array.name):
        return body
    touching = _touching(body, array.name)
    if len(body) > 1 and may_break(body[touching.start : touching.stop]):
        # Where the loop around may be left, registers hold nothing: what stands before and after is promoted alone.
        parts = _between_breaks(body)
        promoted = [_promote(part, array, target, names, notes, around) for part in parts]
        unchanged = all(new is old for new, old in zip(promoted, parts, strict=True))
        return body if unchanged else tuple(stmt for part in promoted for stmt in part)
    declared_deeper = any(
        isinstance(stmt, Alloc) and stmt.array.name == array.name and stmt not in body for stmt in walk(body)
    )
    plan = None if declared_deeper else _plan(body, array, around)
    if plan is not None:
        dtype = _compute_type(body, array)
        size = dtype.bytes * math.prod(form.size for form in plan.forms)
        extents = "x".join(str(form.size) for form in plan.forms) or "1"
        if size <= target.register_bytes:
            notes.append(f"{array.name}: {extents} {dtype} kept in registers")
            return _rewritten(body, array, dtype, plan, names)
        inside: list[str] = []
        new = _in_bodies(body, array, target, names, inside, around)
        if new is not body:
            notes.extend(inside)
            return new
        notes.append(
            f"{array.name}: a tile of {extents} {dtype} {_LEFT} {target.register_bytes} of its {size} bytes"
        )
        return body
    return _in_bodies(body, array, target, names, notes, around)


def _in_bodies(body: Body, array: Array, target: Target, names: Names, notes: list[str], around: Loops) -> Body:
    def inside(stmt: Stmt) -> Stmt:
        loops = (*around, stmt) if isinstance(stmt, (For, While)) else around
        return map_bodies(stmt, lambda part: _promote(part, array, target, names, notes, loops))

    new = tuple(map(inside, body))
    return new if any(one is not other for one, other in zip(new, body, strict=True)) else body


def _touches(body: Body, name: str) -> bool:
    return any(
        (isinstance(stmt, Store) and stmt.array == name)
        or any(isinstance(part, Load) and part.array == name for top in children(stmt) for part in walk_expr(top))
        for stmt in walk(body)
    )


def _touching(body: Body, name: str) -> range:
    """The places of the statements from the first to the last that access an array."""
    found = [place for place, stmt in enumerate(body) if _touches((stmt,), name)]
    return range(found[0], found[-1] + 1)


def _between_breaks(body: Body) -> list[Body]:
    """The body in parts: each statement from which a `break` leads is one, and what stands between two is one."""
    parts: list[list[Stmt]] = [[]]
    for stmt in body:
        if may_break((stmt,)):
            parts += [[stmt], []]
        else:
            parts[-1].append(stmt)
    return [tuple(part) for part in parts if part]


def _compute_type(body: Body, array: Array) -> Scalar:
    found = (site.access for site in reach.sites(body, array.name))
    loads = (element_of(access.dtype) for access in found if isinstance(access, Load))
    stored = element_of(array.dtype)
    return next(loads, Scalar("float32") if stored.is_half else stored)


def _plan(body: Body, array: Array, around: Loops) -> _Plan | None:
    """How the array is accessed in the region, if all accesses agree and a loop accumulates."""
    touching = _touching(body, array.name)
    if contains(body, Return) or may_break(body[touching.start : touching.stop]):
        return None
    changing = written_variables(body)
    inner = counters(body)
    keys: list[tuple[tuple[Expr, ...], tuple[TileForm, ...]]] = []
    tiles: list[tuple[For, ...]] = []
    accumulates = False
    found = reach.sites(body, array.name)
    for site in found:
        used: list[For] = []
        indices: list[Expr] = []
        for index in site.access.indices:
            names = variables(index)
            if names & changing or written_arrays(body) & {
                part.array for part in walk_expr(index) if isinstance(part, Load)
            }:
                return None
            moving = [loop for loop in site.loops if isinstance(loop, For) and loop.var in names]
            if len(moving) > 1 or any(loop in used for loop in moving):
                return None
            if moving:
                index = substitute_expr(index, {moving[0].var: Var(f"${len(used)}")})
                used.append(moving[0])
            indices.append(index)
        forms = [_form(loop, site.guards) for loop in used]
        known = [form for form in forms if form is not None]
        if len(known) != len(forms) or any(
            variables(part) & (inner | changing) for form in known for part in (form.low, form.end)
        ):
            return None
        if not all(_counts(form.low, around) for form in known):
            return None  # what indexes registers is a constant once loops are unrolled
        if any(isinstance(loop, For) and loop.mapping != "serial" for loop in site.loops):
            return None
        accumulates = accumulates or len(site.loops) > len(used)
        keys.append((tuple(indices), tuple(known)))
        tiles.append(tuple(used))
    if not accumulates or any(key != keys[0] for key in keys):
        return None
    indices_, forms_ = keys[0]
    if not all(_unit(index, forms_) for index in indices_):
        return None
    tests = _touched(found, tiles, indices_, array, body, around)
    if tests is None:
        return None
    for form, name in zip(forms_, _places(forms_), strict=True):
        tests = [test for test in tests if test != before(name, form.end, form.step)]
    tails = {test for site in found for test in site.guards}
    each = [test for test in tests if test in tails or any(name.startswith("$") for name in variables(test))]
    members = frozenset(loop.var for used in tiles for loop in used)
    whole = build.all_of([test for test in tests if test not in each])
    return _Plan(forms_, tiles[0], indices_, members, build.all_of(each), whole)


def _counts(expr: Expr, loops: Loops) -> bool:
    """Whether an expression is made of constants and of the counters of these loops."""
    counted = {loop.var for loop in loops if isinstance(loop, For)}
    return all(
        isinstance(part, (BinOp, UnaryOp, Const)) or (isinstance(part, Var) and part.name in counted)
        for part in walk_expr(expr)
    )


def _places(forms: tuple[TileForm, ...]) -> list[Var]:
    """What stands for the counter of each tile loop."""
    return [Var(f"${place}") for place in range(len(forms))]


def _touched(
    found: list[Site],
    tiles: list[tuple[For, ...]],
    indices: tuple[Expr, ...],
    array: Array,
    body: Body,
    around: Loops,
) -> list[Expr] | None:
    """Tests that hold exactly (or, where that is safe, at least) for the elements that some access touches.

    `None` where there are no such tests.
    """
    options: list[tuple[frozenset[Expr], list[Expr], bool]] = []
    loops = tuple(loop for loop in around if isinstance(loop, For))
    for site, used in zip(found, tiles, strict=True):
        renamed = {loop.var: Var(f"${place}") for place, loop in enumerate(used)}
        one = reach.reach(site, renamed, counters(body), written_variables(body), loops)
        tests = list(one.tests)
        safe = one.certain
        if not one.certain:
            # An element may then be copied out and back that the source leaves alone: it has to exist, ...
            tests += [test for test in reach.exists(indices, array.shape) if test not in tests]
            safe = all(reach.harmless(index) for index in indices)
            # ... and, where an analysis of the source may have counted on that, to be this iteration's alone.
            safe = safe and (not one.loose or _apart(indices, used, around))
        options.append((frozenset(tests), tests, safe))
    least = [
        option
        for place, option in enumerate(options)
        if not any(
            other[2] and (other[0] < option[0] or (other[0] == option[0] and earlier < place))
            for earlier, other in enumerate(options)
            if other is not option
        )
    ]
    if not all(safe for _, _, safe in least):
        return None
    common = [test for test in least[0][1] if all(test in tests for tests, _, _ in least)]
    rest = [build.all_of([test for test in tests if test not in common]) for _, tests, _ in least]
    if build.TRUE in rest:
        return common
    either = rest[0]
    for test in rest[1:]:
        either = BoolOp("or", either, test)
    return [*common, either]


def _apart(indices: tuple[Expr, ...], used: tuple[For, ...], around: Loops) -> bool:
    """Whether no two iterations of the loops around, and of the tile, mean one element: each is an index."""
    plain = {part.name for index in indices for part in [_counter_of(index)] if part is not None}
    fixed = [loop for loop in around if isinstance(loop, For) and loop.source and loop.var in plain]
    keys = {(loop.source, loop.ordinal) for loop in fixed}
    keys |= {(loop.source, loop.ordinal) for place, loop in enumerate(used) if f"${place}" in plain}
    return all(isinstance(loop, For) and (loop.source, loop.ordinal) in keys for loop in around)


def _counter_of(index: Expr) -> Var | None:
    """The variable of an index that is one, or one and a constant."""
    if isinstance(index, BinOp) and index.op in ("+", "-") and build.constant(index.right) is not None:
        index = index.left
    return index if isinstance(index, Var) else None


def _form(loop: For, guards: tuple[Expr, ...]) -> TileForm | None:
    """The tile form of a loop; of one that runs in full already, with the end that a tail guard gives it."""
    form = tile_form(loop)
    if form is None or not form.exact:
        return form
    op = "<" if form.step > 0 else ">"
    for test in guards:
        if isinstance(test, Compare) and test.op == op and test.left == loop.counter:
            return dataclasses.replace(form, end=test.right, exact=False)
    return form


def _unit(index: Expr, forms: tuple[TileForm, ...]) -> bool:
    """Whether different values of the tile counter in an index give different elements: it is linear, or counts the
    tile's iterations."""
    from pyschedule.analysis.affine import coefficient

    names = [name for name in variables(index) if name.startswith("$")]
    if names and isinstance(index, BinOp) and index.op == "//":
        step, places = build.constant(index.right), zip(forms, _places(forms), strict=True)
        return any(step == form.step and index.left == build.sub(at, form.low) for form, at in places)
    factors = [coefficient(index, name) for name in names]
    return all(factor is not None and build.constant(factor) for factor in factors)


# ----------------------------------------------------------------------------------------------- rewriting


def _rewritten(body: Body, array: Array, dtype: Scalar, plan: _Plan, names: Names) -> Body:
    """The region with the accumulator: loaded before it, stored after it, where either is needed."""
    touching = _touching(body, array.name)
    private = [stmt for stmt in body if isinstance(stmt, Alloc) and stmt.array.name == array.name]
    accumulator = names.fresh(f"{array.name}_acc")
    inside = tuple(stmt for stmt in body[touching.start : touching.stop] if stmt not in private)
    new = _replace(inside, array.name, accumulator, dtype, plan, ())
    loaded: Body = ()
    if not private and not _overwrites(inside[0], array.name, plan, len(plan.forms)):
        loaded = _transfer(array, accumulator, dtype, plan, names, store=False)
    stored: Body = () if private else _transfer(array, accumulator, dtype, plan, names, store=True)
    declared: Body = ()
    if plan.forms:
        shape = tuple(build.const(form.size) for form in plan.forms)
        declared = (Alloc(Array(accumulator, dtype, shape, space="register")),)
    prefix = tuple(stmt for stmt in body[: touching.start] if stmt not in private)
    return (*prefix, *declared, *loaded, *new, *stored, *body[touching.stop :])


def _element(accumulator: str, dtype: Scalar, plan: _Plan, values: dict[str, Expr]) -> Load | Var:
    if not plan.forms:
        return Var(accumulator, dtype)
    indices = tuple(
        build.floordiv(build.sub(values[f"${place}"], form.low), form.step) for place, form in enumerate(plan.forms)
    )
    return Load(accumulator, indices, dtype)


def _set(target: Load | Var, value: Expr, like: Store | None = None) -> Stmt:
    origin = like.origin if like is not None else None
    loc = like.loc if like is not None else None
    if isinstance(target, Var):
        return Assign(target.name, value, target.vtype, origin=origin, loc=loc)
    return Store(target.array, target.indices, value, origin=origin, loc=loc)


def _transfer(array: Array, accumulator: str, dtype: Scalar, plan: _Plan, names: Names, *, store: bool) -> Body:
    """The loops that load the accumulator from the array, or store it there."""
    fresh = [names.fresh(loop.var) for loop in plan.loops]
    values: dict[str, Expr] = {f"${place}": Var(name) for place, name in enumerate(fresh)}
    indices = tuple(substitute_expr(index, values) for index in plan.indices)
    element = _element(accumulator, dtype, plan, values)
    inside = build.all_of(
        [substitute_expr(plan.guard, values)]
        + [
            before(Var(name), form.end, form.step)
            for name, form in zip(fresh, plan.forms, strict=True)
            if not form.exact
        ]
    )
    body: Body
    if store:
        body = guarded(guarded((Store(array.name, indices, element),), inside), plan.reached)
    else:
        value: Expr = Load(array.name, indices, dtype)
        for test in (inside, plan.reached):
            if test != build.TRUE:
                value = Select(test, value, Const(0.0 if dtype.is_float else 0, dtype), dtype)
        body = (_set(element, value),)
    for name, loop, form in reversed(list(zip(fresh, plan.loops, plan.forms, strict=True))):
        body = (_constant(dataclasses.replace(loop, var=name), form, body),)
    return body


def _constant(loop: For, form: TileForm, body: Body) -> For:
    """The tile loop with all of its iterations."""
    stop = build.add(form.low, form.size * form.step)
    return dataclasses.replace(loop, start=form.low, stop=stop, body=body, max_trip=form.size)


def _overwrites(stmt: Stmt, name: str, plan: _Plan, depth: int) -> bool:
    """Whether a statement sets the whole tile without reading it."""
    if isinstance(stmt, Store):
        return (
            depth == 0
            and stmt.array == name
            and not any(isinstance(part, Load) and part.array == name for part in walk_expr(stmt.value))
        )
    if isinstance(stmt, For) and stmt.var in plan.members:
        first = next((inner for inner in stmt.body if _touches((inner,), name)), None)
        return first is not None and _overwrites(first, name, plan, depth - 1)
    return False


def _replace(
    body: Body,
    name: str,
    accumulator: str,
    dtype: Scalar,
    plan: _Plan,
    guards: tuple[Expr, ...],
) -> Body:
    """The body on the accumulator; tile loops run in full, and what stands in them is guarded instead."""

    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For) and stmt.var in plan.members:
            form = tile_form(stmt)
            if form is None:
                raise TypeError("a tile loop lost its form")
            test = () if form.exact else (before(stmt.counter, form.end, form.step),)
            inner = _replace(stmt.body, name, accumulator, dtype, plan, (*guards, *test))
            result.append(_constant(stmt, form, inner))
            continue
        result.extend(guarded(_replace_one(stmt, name, accumulator, dtype, plan), build.all_of(guards)))
    return _merged(result)


def _replace_one(stmt: Stmt, name: str, accumulator: str, dtype: Scalar, plan: _Plan) -> Body:
    def at(indices: tuple[Expr, ...]) -> Load | Var:
        moving = [(variables(index) & plan.members).pop() for index in indices if variables(index) & plan.members]
        return _element(
            accumulator, dtype, plan, {f"${place}": Var(counter) for place, counter in enumerate(moving)}
        )

    def element(expr: Expr) -> Expr | None:
        return at(expr.indices) if isinstance(expr, Load) and expr.array == name else None

    new: Stmt = map_children(stmt, lambda part: rewrite_expr(part, element))
    if isinstance(new, Store) and new.array == name:
        return (_set(at(new.indices), new.value, new),)
    new = map_bodies(new, lambda part: _replace(part, name, accumulator, dtype, plan, ()))
    return (new,)


def _merged(body: list[Stmt]) -> Body:
    """Neighbouring `if`s on one test become one."""
    result: list[Stmt] = []
    for stmt in body:
        last = result[-1] if result else None
        if (
            isinstance(stmt, If)
            and isinstance(last, If)
            and stmt.test == last.test
            and not (stmt.orelse or last.orelse)
            and not (written_variables(last.body) & variables(stmt.test))
        ):
            result[-1] = dataclasses.replace(last, body=last.body + stmt.body)
            continue
        result.append(stmt)
    return tuple(result)
