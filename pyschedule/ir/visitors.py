"""Walking and rewriting, written once for all nodes from the roles their fields declare."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from pyschedule.ir.blocks import MatrixProduct, Pack
from pyschedule.ir.nodes import ROLE, Alloc, Array, Assign, Break, Expr, For, Kernel, Load, Stmt, Store, Var, While
from pyschedule.ir.types import INT64, Type

Body = tuple[Stmt, ...]


@cache
def _fields(kind: Any) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The names of the fields of a class that hold expressions, of those that hold statements, and of those that
    hold what it stands for."""
    fields = dataclasses.fields(kind)
    children, bodies, meanings = (
        tuple(item.name for item in fields if item.metadata.get(ROLE) == role)
        for role in ("child", "body", "meaning")
    )
    return children, bodies, meanings


@cache
def _backwards(kind: Any) -> tuple[str, ...]:
    return _fields(kind)[0][::-1]


def _expression_fields(node: Any) -> tuple[str, ...]:
    return _fields(node.__class__)[0]


def _last_expression_first(node: Any) -> tuple[str, ...]:
    return _backwards(node.__class__)


def _body_fields(node: Any) -> tuple[str, ...]:
    return _fields(node.__class__)[1]


def _meaning_fields(node: Any) -> tuple[str, ...]:
    return _fields(node.__class__)[2]


def children(node: Any) -> Iterator[Expr]:
    """The expressions directly under a node (an expression, a statement, an `Array` or an `Origin`)."""
    for name in _expression_fields(node):
        value = getattr(node, name)
        if isinstance(value, tuple):
            yield from value
        elif value is not None:
            yield value
    if isinstance(node, Alloc):
        yield from node.array.shape


def bodies(node: Stmt) -> Iterator[Body]:
    for name in _body_fields(node):
        yield getattr(node, name)


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """`expr` and all expressions in it, parents first."""
    waiting = [expr]
    while waiting:
        part = waiting.pop()
        yield part
        for name in _last_expression_first(part):
            value = getattr(part, name)
            if value.__class__ is tuple:
                waiting += value[::-1]
            elif value is not None:
                waiting.append(value)


def walk(body: Body) -> Iterator[Stmt]:
    """All statements of a body, in textual order, parents first."""
    for stmt in body:
        yield stmt
        for inner in bodies(stmt):
            yield from walk(inner)


Loops = tuple[For | While, ...]


def walk_with_loops(body: Body, around: Loops = ()) -> Iterator[tuple[Stmt, Loops]]:
    """As `walk`, each statement with the loops around it, outermost first."""
    for stmt in body:
        yield stmt, around
        inner_loops = (*around, stmt) if isinstance(stmt, (For, While)) else around
        for inner in bodies(stmt):
            yield from walk_with_loops(inner, inner_loops)


def expressions(body: Body) -> Iterator[Expr]:
    """Every expression in a body, those inside others included (not those of `Origin`s)."""
    for stmt in walk(body):
        for part in children(stmt):
            yield from walk_expr(part)


def loops(body: Body) -> Iterator[For]:
    return (stmt for stmt in walk(body) if isinstance(stmt, For))


def map_children(node: Any, function: Callable[[Expr], Expr]) -> Any:
    """The node with `function` applied to the expressions directly under it; itself where nothing changed."""
    changes: dict[str, Any] = {}
    for name in _expression_fields(node):
        value = getattr(node, name)
        if isinstance(value, tuple):
            new: Any = tuple(function(item) for item in value)
            if any(one is not other for one, other in zip(new, value, strict=True)):
                changes[name] = new
        elif value is not None:
            new = function(value)
            if new is not value:
                changes[name] = new
    if isinstance(node, (Assign, Store)) and node.origin is not None:
        origin = map_children(node.origin, function)
        if origin is not node.origin:
            changes["origin"] = origin
    if isinstance(node, Alloc):
        array = map_children(node.array, function)
        if array is not node.array:
            changes["array"] = array
    return dataclasses.replace(node, **changes) if changes else node


def rewrite_expr(expr: Expr, function: Callable[[Expr], Expr | None]) -> Expr:
    """Bottom-up: `function` sees each expression after its parts, and returns its replacement or `None`."""
    expr = map_children(expr, lambda part: rewrite_expr(part, function))
    replacement = function(expr)
    return expr if replacement is None else replacement


def rewrite(
    body: Body,
    statement: Callable[[Stmt], Stmt | Body | None] | None = None,
    expression: Callable[[Expr], Expr | None] | None = None,
) -> Body:
    """Bottom-up over a body.

    `expression` is applied to all expressions (those of origins and shapes too); `statement` sees each
    statement after its parts and returns its replacement, several, or `None` to keep it.
    """
    result: list[Stmt] = []
    changed = False
    for stmt in body:
        new = stmt
        if expression is not None:
            new = map_children(new, lambda part: rewrite_expr(part, expression))
        inner = {name: rewrite(getattr(new, name), statement, expression) for name in _body_fields(new)}
        inner |= {name: rewrite(getattr(new, name), None, expression) for name in _meaning_fields(new)}
        inner = {name: value for name, value in inner.items() if value is not getattr(new, name)}
        if inner:
            new = dataclasses.replace(new, **inner)
        replacement = statement(new) if statement is not None else None
        if replacement is None:
            replacement = new
        if isinstance(replacement, tuple):
            result.extend(replacement)
            changed = True
        else:
            result.append(replacement)
            changed = changed or replacement is not stmt
    return tuple(result) if changed else body


def substitute_expr(expr: Expr, values: Mapping[str, Expr]) -> Expr:
    """`expr` with variables replaced by expressions."""
    return rewrite_expr(expr, lambda node: values.get(node.name) if isinstance(node, Var) else None)


def substitute(body: Body, values: Mapping[str, Expr]) -> Body:
    """A body with variables replaced by expressions, in origins too."""
    return rewrite(body, expression=lambda node: values.get(node.name) if isinstance(node, Var) else None)


def variables(expr: Expr) -> set[str]:
    return {part.name for part in walk_expr(expr) if isinstance(part, Var)}


def read_variables(body: Body) -> set[str]:
    """The variables that a body reads anywhere."""
    return {part.name for part in expressions(body) if isinstance(part, Var)}


def written_variables(body: Body) -> set[str]:
    """The scalar locals that a body assigns (not loop counters)."""
    return {stmt.target for stmt in walk(body) if isinstance(stmt, Assign)}


def counters(body: Body) -> set[str]:
    return {loop.var for loop in loops(body)}


def read_arrays(body: Body) -> set[str]:
    loaded = {part.array for part in expressions(body) if isinstance(part, Load)}
    return loaded.union(*(block_reads(stmt) for stmt in walk(body)))


def written_arrays(body: Body) -> set[str]:
    return {stmt.array for stmt in walk(body) if isinstance(stmt, Store)}.union(*map(block_writes, walk(body)))


def block_reads(stmt: Stmt) -> tuple[str, ...]:
    """The arrays of which a statement reads blocks."""
    if isinstance(stmt, MatrixProduct):
        operands = (stmt.left, stmt.right, stmt.copied) if stmt.copied else (stmt.left, stmt.right)
        return operands if stmt.fresh else (stmt.array, *operands)
    return (stmt.array,) if isinstance(stmt, Pack) else ()


def block_writes(stmt: Stmt) -> tuple[str, ...]:
    """The arrays of which a statement writes blocks."""
    return (stmt.array,) if isinstance(stmt, MatrixProduct) else (stmt.tile,) if isinstance(stmt, Pack) else ()


def with_blocks_of(stmt: Stmt, names: Mapping[str, str]) -> Stmt:
    """The statement on blocks of other arrays, by their present names; itself where none is renamed."""
    fields = ("tile", "array") if isinstance(stmt, Pack) else ("array", "left", "right", "copied")
    if not isinstance(stmt, (Pack, MatrixProduct)) or not any(getattr(stmt, name) in names for name in fields):
        return stmt
    changed: dict[str, Any] = {name: names.get(getattr(stmt, name), getattr(stmt, name)) for name in fields}
    return dataclasses.replace(stmt, **changed)


def local_arrays(body: Body) -> dict[str, Array]:
    return {stmt.array.name: stmt.array for stmt in walk(body) if isinstance(stmt, Alloc)}


def arrays(kernel: Kernel) -> dict[str, Array]:
    """All arrays of a kernel by name: parameters and locals."""
    return {array.name: array for array in kernel.array_params} | local_arrays(kernel.body)


def variable_types(kernel: Kernel) -> dict[str, Type]:
    """The type of every scalar parameter, local and counter."""
    types: dict[str, Type] = {param.name: param.vtype for param in kernel.scalar_params}
    for stmt in walk(kernel.body):
        if isinstance(stmt, Assign):
            types[stmt.target] = stmt.vtype
        elif isinstance(stmt, For):
            types[stmt.var] = INT64
    return types


def contains(body: Body, *kinds: type[Stmt]) -> bool:
    return any(isinstance(stmt, kinds) for stmt in walk(body))


def may_break(body: Body) -> bool:
    """Whether a `break` in a body leaves the loop that the body belongs to."""
    return any(
        isinstance(stmt, Break)
        or (not isinstance(stmt, (For, While)) and any(may_break(inner) for inner in bodies(stmt)))
        for stmt in body
    )
