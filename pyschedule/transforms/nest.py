"""What every transform of a nest needs: fresh names, the tile form of a loop, guards, replacing a statement."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pyschedule.ir import build
from pyschedule.ir.blocks import MatrixProduct, Pack, TransposedStores
from pyschedule.ir.nodes import (
    Assign,
    BoolOp,
    Break,
    Broadcast,
    Call,
    Compare,
    Const,
    Dim,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.types import BOOL, INT64
from pyschedule.ir.visitors import (
    arrays,
    bodies,
    children,
    contains,
    may_break,
    rewrite,
    variable_types,
    variables,
    walk,
    walk_expr,
    written_variables,
)

Body = tuple[Stmt, ...]


class Names:
    """Names that nothing in a kernel has yet.  Asking for a taken one gives `name_b`, `name_c`, ..."""

    def __init__(self, kernel: Kernel) -> None:
        self._taken = set(variable_types(kernel)) | set(arrays(kernel)) | {kernel.name}

    def fresh(self, name: str) -> str:
        candidate, number = name, 1
        while candidate in self._taken:
            number += 1
            candidate = f"{name}_{chr(96 + number)}" if number <= 26 else f"{name}_{number}"
        self._taken.add(candidate)
        return candidate


@dataclass(frozen=True, slots=True)
class TileForm:
    """A loop seen as a tile: at most `size` iterations from `low` by the constant `step`, while before `end`.

    `exact`: it always runs all `size` of them, so that no guard is needed.
    """

    low: Expr
    size: int
    step: int
    end: Expr
    exact: bool


def tile_form(loop: For) -> TileForm | None:
    """The tile form of `range(low, low + c, step)` or `range(low, min(low + c, end), step)`, else `None`."""
    step = build.constant(loop.step)
    if step is None:
        return None
    closer = "pmin" if step > 0 else "pmax"
    stop = loop.stop
    candidates = list(stop.args) if isinstance(stop, Call) and stop.function == closer else [stop]
    for place, candidate in enumerate(candidates):
        span = build.constant(build.sub(candidate, loop.start))
        if span is None:
            continue
        size = max(0, -(-span // step))
        if len(candidates) == 1:
            return TileForm(loop.start, size, step, stop, exact=True)
        return TileForm(loop.start, size, step, candidates[1 - place], exact=False)
    return None


def exact_trips(loop: For) -> int | None:
    """How often a loop runs, where that is a constant by the form of a tile; `None` where it is not."""
    form = tile_form(loop)
    return form.size if form is not None and form.exact else None


def uncounted(loop: While) -> str:
    """Why a `while` is no loop that counts."""
    why = f": {loop.reason}" if loop.reason else ""
    return f"loop '{loop.source}' is a while loop whose trip count is not known on entry{why}"


def trip_count(loop: For) -> Expr:
    """The number of iterations as an expression, for a step of either sign, constant or not."""
    stride = build.constant(loop.step)
    if stride is None:  # ceil(a / b) is -(-a // b)
        behind = build.floordiv(build.sub(loop.start, loop.stop), loop.step)
        return build.maximum(build.sub(0, behind), 0)
    span = build.sub(loop.stop, loop.start) if stride > 0 else build.sub(loop.start, loop.stop)
    return build.maximum(build.ceildiv(span, abs(stride)), 0)


def with_lasting_bounds(loop: For, names: Names) -> tuple[Body, For]:
    """The loop with bounds that mean the same after it has run, for who asks again, and the statements before it
    that see to it."""
    assigned = written_variables(loop.body)
    held: list[Stmt] = []
    bounds: dict[str, Expr] = {}
    for name in ("start", "stop", "step"):
        bound: Expr = getattr(loop, name)
        if any(isinstance(part, Load) for part in walk_expr(bound)) or variables(bound) & assigned:
            kept = names.fresh(f"{loop.var}_{name}")
            held.append(Assign(kept, bound, INT64, loc=loop.loc))
            bounds[name] = Var(kept)
    return tuple(held), dataclasses.replace(loop, **bounds) if bounds else loop  # type: ignore[arg-type]


def noting_breaks(body: Body, left: str) -> Body:
    """The body of a loop in which every `break` that leaves this loop first sets the flag `left`."""
    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Break):
            result += [Assign(left, build.TRUE, BOOL, loc=stmt.loc), stmt]
        elif isinstance(stmt, If):
            result.append(map_bodies(stmt, lambda part: noting_breaks(part, left) if may_break(part) else part))
        else:
            result.append(stmt)
    return tuple(result)


def runners(loop: For) -> str:
    """What runs the iterations of a loop, in words."""
    return "the cores" if loop.mapping == "parallel" else loop.mapping


def before(value: Expr, end: Expr, step: int) -> Expr:
    """`value` has not reached `end` in the direction of `step`."""
    return build.compare("<" if step > 0 else ">", value, end)


def clip(value: Expr, end: Expr, step: int) -> Expr:
    """The nearer of the two in the direction of `step`."""
    return build.minimum(value, end) if step > 0 else build.maximum(value, end)


def conjuncts(test: Expr) -> list[Expr]:
    if isinstance(test, BoolOp) and test.op == "and":
        return conjuncts(test.left) + conjuncts(test.right)
    return [test]


def margin_of(test: Expr) -> Expr | None:
    """What a comparison of indices, one by the order of integers, says is at least 0."""
    if not isinstance(test, Compare) or test.dtype.name != "int64" or test.op not in ("<", "<=", ">", ">="):
        return None
    small, large = (test.left, test.right) if test.op[0] == "<" else (test.right, test.left)
    return build.sub(build.sub(large, small), 0 if test.op.endswith("=") else 1)


def margins_within(load: Load, axis: int) -> tuple[Expr, Expr]:
    """What is at least 0 where a read is neither before its array along an axis nor behind it."""
    index = load.indices[axis]
    return index, build.sub(build.sub(Dim(load.array, axis), index), 1)


def is_zero(expr: Expr) -> bool:
    """Whether an expression is the constant 0, in all lanes, and not -0.0."""
    value = expr.value if isinstance(expr, Broadcast) else expr
    return isinstance(value, Const) and value.value == 0 and str(value.value) != "-0.0"


def guarded(body: Body, test: Expr) -> Body:
    """The body under a tail guard, merged with one that is all there is."""
    if test == build.TRUE or not body:
        return body
    first = body[0]
    if len(body) == 1 and isinstance(first, If) and first.tail and not first.orelse:
        return (dataclasses.replace(first, test=build.both(test, first.test)),)
    return (If(test, body, tail=True),)


def map_bodies(stmt: Stmt, function: Callable[[Body], Body]) -> Stmt:
    """The statement with `function` applied to the bodies directly under it; itself where nothing changed."""
    if isinstance(stmt, If):
        then, orelse = function(stmt.body), function(stmt.orelse)
        if then is stmt.body and orelse is stmt.orelse:
            return stmt
        return dataclasses.replace(stmt, body=then, orelse=orelse)
    inner = getattr(stmt, "body", None)
    if inner is None:
        return stmt
    new = function(inner)
    return stmt if new is inner else dataclasses.replace(stmt, body=new)  # type: ignore[call-arg]


def replace_statement(body: Body, old: Stmt, new: Body) -> Body:
    """The body with one statement (found by identity, at any depth) replaced by several."""
    for place, stmt in enumerate(body):
        if stmt is old:
            return body[:place] + new + body[place + 1 :]
        inner = map_bodies(stmt, lambda part: replace_statement(part, old, new))
        if inner is not stmt:
            return (*body[:place], inner, *body[place + 1 :])
    return body


def innermost_loops(body: Body) -> list[For | While]:
    """The loops with no loop in them."""
    found = (stmt for stmt in walk(body) if isinstance(stmt, (For, While)))
    return [loop for loop in found if not contains(loop.body, For, While)]


def with_body(kernel: Kernel, body: Body) -> Kernel:
    return kernel if body is kernel.body else dataclasses.replace(kernel, body=body)


def expanded(source: Kernel, kernel: Kernel) -> tuple[str, ...]:
    """The scalars of the source that have become something else: arrays, or accumulators."""
    return tuple(sorted(written_variables(source.body) - written_variables(kernel.body)))


def skeleton(kernel: Kernel) -> Kernel:
    """The kernel without what transforms added (copies into buffers, loads of accumulators): the statements of
    the source, at the times at which they now run."""

    def drop(stmt: Stmt) -> Stmt | Body | None:
        if isinstance(stmt, (Pack, MatrixProduct)):
            return stmt.meaning if isinstance(stmt, MatrixProduct) else ()
        if isinstance(stmt, TransposedStores):
            return stmt.body
        if isinstance(stmt, (Assign, Store)) and stmt.origin is None:
            return ()
        if isinstance(stmt, (For, If)) and not stmt.body and not getattr(stmt, "orelse", ()):
            return ()
        return None

    return with_body(kernel, rewrite(kernel.body, drop))


def leaves(body: Body) -> Iterable[Assign | Store]:
    return (stmt for stmt in walk(body) if isinstance(stmt, (Assign, Store)))


def first_access(body: Body, name: str) -> str | None:
    """How a body meets a scalar first: `"read"`, `"written"` (for certain, before any read), or not at all."""
    for stmt in body:
        if any(name in variables(part) for part in children(stmt)):
            return "read"
        if isinstance(stmt, Assign) and stmt.target == name:
            return "written"
        if isinstance(stmt, If):
            ways = {first_access(stmt.body, name), first_access(stmt.orelse, name)}
            if "read" in ways:
                return "read"
            if ways == {"written"}:
                return "written"
        elif "read" in {first_access(inner, name) for inner in bodies(stmt)}:
            return "read"
    return None


def live_after(body: Body, place: Stmt, name: str) -> bool:
    """Whether the scalar's value at the end of the statement `place` (found by identity) may be read later."""
    path = _path(body, place)
    if not path:
        return True  # not a statement of this body any more: nothing is known of what follows it
    for level, (siblings, position) in enumerate(reversed(path)):
        how = first_access(siblings[position + 1 :], name)
        if how is not None:
            return how == "read"
        around = path[len(path) - 2 - level] if level < len(path) - 1 else None
        if around is not None and isinstance(around[0][around[1]], (For, While)):
            how = first_access(siblings, name)  # the next iteration of the loop around
            if how == "read":
                return True
    return False


def own_scalars(body: Body, loop: For) -> tuple[str, ...]:
    """The scalars that every iteration of a loop (found by identity in `body`) sets before it reads them, and that
    nothing reads afterwards: each iteration might as well have its own."""
    return tuple(
        name
        for name in sorted(written_variables(loop.body))
        if first_access(loop.body, name) != "read" and not live_after(body, loop, name)
    )


def _path(body: Body, place: Stmt) -> list[tuple[Body, int]]:
    for position, stmt in enumerate(body):
        if stmt is place:
            return [(body, position)]
        for inner in bodies(stmt):
            found = _path(inner, place)
            if found:
                return [(body, position), *found]
    return []
