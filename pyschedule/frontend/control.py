"""`continue` made into conditions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyschedule.frontend.surface import (
    Branch,
    Loop,
    Name,
    Number,
    Repeat,
    SetName,
    Skip,
    Unary,
)
from pyschedule.ir.nodes import Location, Stmt
from pyschedule.ir.visitors import Body, rewrite

Fresh = Callable[[str], str]


def _skips(body: Body) -> bool:
    """Whether a body has a `continue` of its own loop."""
    for stmt in body:
        if isinstance(stmt, Skip) or (isinstance(stmt, Branch) and (_skips(stmt.body) or _skips(stmt.orelse))):
            return True
    return False


def without_continue(body: Body, fresh: Fresh) -> Body:
    """The same program with no `Skip` in it: what follows one moves into the other arm of its condition, or,
    where several levels are left at once, is guarded by a flag."""

    def loop(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, (Loop, Repeat)) and _skips(stmt.body):
            return replace(stmt, body=without_skips(stmt.body, stmt.loc, fresh))
        return None

    return rewrite(body, statement=loop)


def without_skips(body: Body, loc: Location | None, fresh: Fresh) -> Body:
    """The body of one loop without its `Skip`s; its end is reached wherever it skipped."""
    if not _skips(body):
        return body
    nested = _nest(body)
    if nested is not None:
        return nested[0]
    flag = fresh("_skip")
    return (SetName(flag, Number(False, None, loc), loc), *_guard(body, flag)[0])


def _nest(body: Body) -> tuple[Body, str] | None:
    """The body without `Skip`, and whether it "never", "always" or "maybe" skips; `None`: nesting will not do."""
    done: list[Stmt] = []
    for position, stmt in enumerate(body):
        if isinstance(stmt, Skip):
            return tuple(done), "always"
        if not isinstance(stmt, Branch) or not (_skips(stmt.body) or _skips(stmt.orelse)):
            done.append(stmt)
            continue
        then, orelse = _nest(stmt.body), _nest(stmt.orelse)
        rest = body[position + 1 :]
        if then is None or orelse is None:
            return None
        if not rest or then[1] == orelse[1] == "always":
            done.append(_branch(stmt, then[0], orelse[0]))
            return tuple(done), then[1] if then[1] == orelse[1] else "maybe"
        if "maybe" in (then[1], orelse[1]):
            return None
        tail = _nest(rest)
        if tail is None:
            return None
        if then[1] == "always":
            done.append(_branch(stmt, then[0], orelse[0] + tail[0]))
        else:
            done.append(_branch(stmt, then[0] + tail[0], orelse[0]))
        return tuple(done), "always" if tail[1] == "always" else "maybe"
    return tuple(done), "never"


def _branch(stmt: Branch, body: Body, orelse: Body) -> Branch:
    if not body and orelse:
        return replace(stmt, test=Unary("not", stmt.test, stmt.loc), body=orelse, orelse=())
    return replace(stmt, body=body, orelse=orelse)


def _guard(body: Body, flag: str) -> tuple[Body, bool]:
    """The body with `flag` set where it skipped, and whether it may skip."""
    done: list[Stmt] = []
    for position, stmt in enumerate(body):
        if isinstance(stmt, Skip):
            done.append(SetName(flag, Number(True, None, stmt.loc), stmt.loc))
            return tuple(done), True
        if not isinstance(stmt, Branch) or not (_skips(stmt.body) or _skips(stmt.orelse)):
            done.append(stmt)
            continue
        done.append(replace(stmt, body=_guard(stmt.body, flag)[0], orelse=_guard(stmt.orelse, flag)[0]))
        rest, _ = _guard(body[position + 1 :], flag)
        if rest:
            done.append(Branch(Unary("not", Name(flag, stmt.loc), stmt.loc), rest, (), stmt.loc))
        return tuple(done), True
    return tuple(done), False
