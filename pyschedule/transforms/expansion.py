"""Scalar expansion: a scalar whose life a new loop order cuts in two becomes an array.

Before, as distribution leaves it (wrong: `acc` has lost its values when the second loop starts):

    for i in range(8): acc = 0.0
    for i in range(8): acc += A[i]

After:

    acc_x = local float32[8]
    for i in range(8): acc_x[i] = 0.0
    for i in range(8): acc_x[i] += A[i]

(M. Wolfe, *High Performance Compilers for Parallel Computing*, 1996, section 7.5.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.nodes import Alloc, Array, Assign, Const, Expr, For, Load, Stmt, Store, Var
from pyschedule.ir.types import Type, element_of
from pyschedule.ir.visitors import bodies, counters, expressions, rewrite, variables, walk
from pyschedule.transforms.bands import Band, Unit
from pyschedule.transforms.nest import Body, Names
from pyschedule.transforms.restructure import step_of


def split_scalars(band: Band, new: Body) -> dict[str, tuple[For, ...]]:
    """Scalars of a band whose definition and uses stand in different loops of the new nest, with the source
    loops that enclose all of them (each iteration of which has its own value).

    Raises `Unsupported` where such a scalar carries a value from one iteration to the next.
    """
    where: dict[str, list[Unit]] = {}
    for unit in band.units:
        for name in scalars_of((unit.stmt,)):
            where.setdefault(name, []).append(unit)
    written = {stmt.target for stmt in walk(new) if isinstance(stmt, Assign)}
    result: dict[str, tuple[For, ...]] = {}
    for name, units in where.items():
        if name not in written or not _parted(name, new):
            continue
        shared = units[0].path
        for unit in units[1:]:
            shared = tuple(loop for loop in shared if any(loop.var == other.var for other in unit.path))
        first = units[0]
        if not shared or len(first.path) != len(shared) or not _defines(first.stmt, name):
            raise Unsupported(
                f"'{name}' carries a value between iterations that this order would separate", band.root.loc
            )
        result[name] = shared
    return result


def check_scopes(new: Body) -> None:
    """Raises `Unsupported` where a local array of the band has uses left outside of its scope."""
    for body, place in _declarations(new):
        declared = body[place]
        if isinstance(declared, Alloc):
            name = declared.array.name
            if _uses(body[place + 1 :], name) != _uses(new, name):
                raise Unsupported(f"'{name}' is declared in a loop that this order would part", declared.loc)


def _declarations(body: Body) -> Iterator[tuple[Body, int]]:
    for place, stmt in enumerate(body):
        if isinstance(stmt, Alloc):
            yield body, place
        for inner in bodies(stmt):
            yield from _declarations(inner)


def _uses(body: Body, name: str) -> int:
    loads = sum(isinstance(part, Load) and part.array == name for part in expressions(body))
    return loads + sum(isinstance(stmt, Store) and stmt.array == name for stmt in walk(body))


def scalars_of(body: Body) -> set[str]:
    """The scalars (and counters) that a body reads or writes."""
    names = {stmt.target for stmt in walk(body) if isinstance(stmt, Assign)}
    return names | {part.name for part in expressions(body) if isinstance(part, Var)}


def _defines(stmt: Stmt, name: str) -> bool:
    """Whether the statement sets the scalar without having read it."""
    return isinstance(stmt, Assign) and stmt.target == name and name not in variables(stmt.value)


def _parted(name: str, body: Body) -> bool:
    """Whether the accesses to a scalar stand in bodies of which none contains the definition's siblings: that
    is, whether in some body two different loops (or a loop and a statement before it that is in no loop with
    it) touch it, and the definition is inside one of the loops."""
    touching = [stmt for stmt in body if name in scalars_of((stmt,))]
    if len(touching) == 1 and isinstance(touching[0], For):
        return _parted(name, touching[0].body)
    first = touching[0] if touching else None
    return isinstance(first, For)


def expand(new: Body, scalars: dict[str, tuple[For, ...]], types: dict[str, Type], names: Names) -> Body:
    """Gives each of `scalars` an array: one element an iteration of those loops' pieces that the new nest does
    not share, declared inside the pieces that it does."""
    for name, loops in scalars.items():
        new = _expand_one(new, name, names.fresh(f"{name}_x"), loops, types[name], {})
    return new


def _expand_one(
    body: Body,
    name: str,
    array: str,
    loops: tuple[For, ...],
    vtype: Type,
    shared: dict[tuple[str, int], For],
) -> Body:
    """Descends into the loops shared by all accesses, then declares the array and rewrites below."""
    touching = [stmt for stmt in body if name in scalars_of((stmt,))]
    if len(touching) == 1 and isinstance(touching[0], For):
        loop = touching[0]
        inner = _expand_one(loop.body, name, array, loops, vtype, shared | {(loop.source, loop.ordinal): loop})
        return tuple(dataclasses.replace(loop, body=inner) if stmt is loop else stmt for stmt in body)
    lows: list[tuple[str, int, Expr, int]] = []
    extents: list[Expr] = []
    moving = (counters(body) | {loop.var for loop in loops}) - {around.var for around in shared.values()}
    for loop in loops:
        step = step_of(loop)
        around = shared.get((loop.source, loop.ordinal))
        if around is not None:
            span = abs(build.constant(around.step) or 1) // abs(step)
            if span == 1:
                continue  # the loop's last piece is shared: one value at a time
            lows.append((loop.source, loop.ordinal, around.counter, step))
            extents.append(build.const(span))
        else:
            lows.append((loop.source, loop.ordinal, loop.start, step))
            extents.append(_trips(loop, step))
        if (variables(lows[-1][2]) | variables(extents[-1])) & moving:
            raise Unsupported(
                f"'{name}' would need an array as long as loop '{loop.source}', whose bounds change inside this "
                "order; one in which the loops that they depend on stand outside may do",
                loop.loc,
            )
    first = body.index(touching[0])
    if not extents:  # one value at a time: it may stay a scalar, with a value even where a loop runs no iteration
        dtype = element_of(vtype)
        zero = Assign(name, Const(0.0 if dtype.is_float else 0, dtype), dtype)
        return (*body[:first], zero, *body[first:])
    declared = Alloc(Array(array, element_of(vtype), tuple(extents), space="local"))
    rewritten = _index_scalars(body[first:], name, array, lows, {})
    return (*body[:first], declared, *rewritten)


def _trips(loop: For, step: int) -> Expr:
    span = build.sub(loop.stop, loop.start) if step > 0 else build.sub(loop.start, loop.stop)
    return build.maximum(build.ceildiv(span, abs(step)), 0)


def _index_scalars(
    body: Body,
    name: str,
    array: str,
    lows: list[tuple[str, int, Expr, int]],
    counters: dict[tuple[str, int], Var],
) -> Body:
    """Reads and writes of the scalar become those of its element; `counters` has the innermost piece in scope."""

    def indices() -> tuple[Expr, ...]:
        return tuple(
            build.floordiv(build.sub(counters.get((source, ordinal), low), low), step)
            for source, ordinal, low, step in lows
        )

    result: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For):
            scope = counters | {(stmt.source, stmt.ordinal): stmt.counter}
            result.append(dataclasses.replace(stmt, body=_index_scalars(stmt.body, name, array, lows, scope)))
            continue

        def expression(expr: Expr) -> Expr | None:
            if isinstance(expr, Var) and expr.name == name:
                return Load(array, indices(), expr.vtype, loc=expr.loc)
            return None

        def statement(inner: Stmt) -> Stmt | None:
            if isinstance(inner, Assign) and inner.target == name:
                return Store(array, indices(), inner.value, origin=inner.origin, loc=inner.loc)
            return None

        result.extend(rewrite((stmt,), statement, expression))
    return tuple(result)
