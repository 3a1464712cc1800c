"""Local arrays on the surface tree: where they may be used, under which names, and with how many indices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from pyschedule.frontend.source import Source
from pyschedule.frontend.surface import (
    OF_ARRAY,
    Element,
    Extent,
    Give,
    Name,
    NewArray,
    RankIs,
    SetElement,
    arrays_in,
)
from pyschedule.ir.nodes import Expr, Location, Stmt
from pyschedule.ir.visitors import Body, bodies, children, rewrite, walk, walk_expr

Names = frozenset[str]


def check_array_scopes(source: Source, body: Body, visible: Names = frozenset()) -> None:
    """A local array lives in the block that makes it.  Refuses a use outside, and a second array of a name
    that is still in use."""
    made = {stmt.name for stmt in walk(body) if isinstance(stmt, NewArray)}
    for stmt in body:
        for array, loc in arrays_in(stmt):
            if array in made and array not in visible:
                raise source.refusal(
                    loc,
                    f"the array '{array}' is used outside of the block that makes it",
                    "make it before that block",
                )
        if isinstance(stmt, NewArray):
            if stmt.name in visible:
                raise source.refusal(
                    stmt.loc,
                    f"the array '{stmt.name}' is made a second time",
                    "a loop that sets its elements",
                )
            visible |= {stmt.name}
        if isinstance(stmt, Give):
            for value in stmt.values:
                if isinstance(value, Name) and value.name in made and value.name not in visible:
                    raise source.refusal(
                        value.loc,
                        f"the array '{value.name}' is returned outside of the block that makes it",
                        "make it at the top of the function",
                    )
        for inner in bodies(stmt):
            check_array_scopes(source, inner, visible)


def ranks(source: Source, body: Body) -> dict[str, int]:
    """How many axes the body gives to each array; refuses two answers for one array."""
    found: dict[str, int] = {}

    def uses(array: str, rank: int, loc: Location | None, what: str) -> None:
        if found.setdefault(array, rank) != rank:
            raise source.refusal(
                loc,
                f"'{array}' has {what} here and {found[array]} elsewhere",
                f"an index for every axis of '{array}', everywhere; rows and blocks are not values in a kernel",
            )

    for stmt in walk(body):
        if isinstance(stmt, RankIs):
            uses(stmt.array, stmt.rank, stmt.loc, _count(stmt.rank, "axis", "axes"))
        elif isinstance(stmt, NewArray) and stmt.like is None:
            uses(stmt.name, len(stmt.shape), stmt.loc, _count(len(stmt.shape), "axis", "axes"))
        elif isinstance(stmt, SetElement):
            uses(stmt.array, len(stmt.indices), stmt.loc, _count(len(stmt.indices), "index", "indices"))
        for part in children(stmt):
            for node in walk_expr(part):
                if isinstance(node, Element):
                    uses(node.array, len(node.indices), node.loc, _count(len(node.indices), "index", "indices"))
    return found


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"


def distinct_arrays(body: Body, fresh: Callable[[str], str]) -> Body:
    """The same program with a name of its own for every local array (two blocks may each make a `row`)."""
    made = Counter(stmt.name for stmt in walk(body) if isinstance(stmt, NewArray))
    return body if all(count == 1 for count in made.values()) else _distinct(body, fresh, set())


def _distinct(body: Body, fresh: Callable[[str], str], seen: set[str]) -> Body:
    done: list[Stmt] = []
    for position, stmt in enumerate(body):
        if isinstance(stmt, NewArray) and stmt.name in seen:
            new = fresh(stmt.name)
            rest = _renamed(body[position + 1 :], stmt.name, new)
            return (*done, replace(stmt, name=new), *_distinct(rest, fresh, seen))
        if isinstance(stmt, NewArray):
            seen.add(stmt.name)
        changes = {
            name: _distinct(value, fresh, seen)
            for name in ("body", "orelse")
            if (value := getattr(stmt, name, None))
        }
        done.append(_replace(stmt, **changes) if changes else stmt)
    return tuple(done)


S = TypeVar("S", bound=Stmt)


def _replace(stmt: S, **changes: Body) -> S:
    return replace(stmt, **changes)


def _renamed(body: Body, old: str, new: str) -> Body:
    """A body with one array under another name."""

    def expression(node: Expr) -> Expr | None:
        if isinstance(node, (Element, Extent)) and node.array == old:
            return replace(node, array=new)
        return replace(node, name=new) if isinstance(node, Name) and node.name == old else None

    def statement(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, (SetElement, RankIs)) and stmt.array == old:
            return replace(stmt, array=new)
        if isinstance(stmt, NewArray) and (stmt.like == old or stmt.dtype == OF_ARRAY + old):
            return replace(
                stmt,
                like=new if stmt.like == old else stmt.like,
                dtype=OF_ARRAY + new if stmt.dtype == OF_ARRAY + old else stmt.dtype,
            )
        return None

    return rewrite(body, statement, expression)
