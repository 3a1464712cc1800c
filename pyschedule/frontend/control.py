"""`continue` made into conditions, and `while` loops that count recognised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pyschedule.frontend.surface import (
    Binary,
    Branch,
    Comparison,
    Element,
    Leave,
    Loop,
    Name,
    Number,
    Repeat,
    SetName,
    Skip,
    Unary,
    assigned,
    names_in,
    reads,
)
from pyschedule.ir.nodes import Expr, Stmt
from pyschedule.ir.visitors import Body, rewrite, walk, walk_expr

Fresh = Callable[[str], str]


def _skips(body: Body) -> bool:
    """Whether a body has a `continue` of its own loop."""
    for stmt in body:
        if isinstance(stmt, Skip) or (isinstance(stmt, Branch) and (_skips(stmt.body) or _skips(stmt.orelse))):
            return True
    return False


def has_break(body: Body) -> bool:
    """Whether a body has a `break` of its own loop."""
    for stmt in body:
        if isinstance(stmt, Leave):
            return True
        if isinstance(stmt, Branch) and (has_break(stmt.body) or has_break(stmt.orelse)):
            return True
    return False


def without_continue(body: Body, fresh: Fresh) -> Body:
    """The same program with no `Skip` in it: what follows one moves into the other arm of its condition, or,
    where several levels are left at once, is guarded by a flag."""

    def loop(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, (Loop, Repeat)) and _skips(stmt.body):
            nested = _nest(stmt.body)
            if nested is not None:
                return replace(stmt, body=nested[0])
            flag = fresh("_skip")
            unset = SetName(flag, Number(False, None, stmt.loc), stmt.loc)
            return replace(stmt, body=(unset, *_guard(stmt.body, flag)[0]))
        return None

    return rewrite(body, statement=loop)


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


# ------------------------------------------------------------------------------------- counted `while`


@dataclass(frozen=True, slots=True)
class Counted:
    """`while counter < stop: body; counter += step`, seen as a loop.

    `stop` is exclusive once `inclusive` (`<=`, `>=`) is accounted for; `unequal` marks `!=`, which counts
    only where the distance is a known multiple of the step.  `body` is without the increment; `None` where
    the increment stands among statements that read the counter after it.
    """

    counter: str
    stop: Expr
    step: int
    inclusive: bool
    unequal: bool
    body: Body | None


_FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}


def counted(loop: Repeat) -> Counted | None:
    """The loop's counting form, if its text has one.  Whether the counter and bound are integers is the
    caller's to check, once types are known."""
    test = loop.test
    if not isinstance(test, Comparison) or test.op not in _FLIPPED:
        return None
    sides = ((test.left, test.right, test.op), (test.right, test.left, _FLIPPED[test.op]))
    for side, stop, op in sides:
        if isinstance(side, Name):
            form = _counted_by(loop, side.name, stop, op)
            if form is not None:
                return form
    return None


def _counted_by(loop: Repeat, name: str, stop: Expr, op: str) -> Counted | None:
    steps = {_increment(stmt, name) for stmt in walk(loop.body) if isinstance(stmt, SetName) and stmt.name == name}
    if len(steps) != 1 or any(isinstance(stmt, Loop) and stmt.name == name for stmt in walk(loop.body)):
        return None
    (step,) = steps
    if not step or (op in ("<", "<=") and step < 0) or (op in (">", ">=") and step > 0):
        return None
    changed = assigned(loop.body)
    if names_in(stop) & changed or any(isinstance(part, Element) for part in walk_expr(stop)):
        return None  # the bound is not the same each time it is looked at
    body = _without_increment(loop.body, name)
    if body is None and not _increments_once(loop.body, name):
        return None
    if body is not None and name in assigned(body):
        return None
    return Counted(name, stop, step, op in ("<=", ">="), op == "!=", body)


def _increment(stmt: SetName, name: str) -> int | None:
    """`c` of `name = name + c` or `name = name - c`."""
    value = stmt.value
    if isinstance(value, Binary) and value.op in "+-":
        for left, right in ((value.left, value.right), (value.right, value.left)):
            if (
                isinstance(left, Name)
                and left.name == name
                and isinstance(right, Number)
                and type(right.value) is int
            ):
                if value.op == "-" and left is not value.left:
                    return None
                return right.value if value.op == "+" else -right.value
    return None


def _increments_once(body: Body, name: str) -> bool:
    """Whether every iteration passes the one assignment to a name, unless it leaves the loop before."""
    sets = [stmt for stmt in walk(body) if isinstance(stmt, SetName) and stmt.name == name]
    return len(sets) == 1 and any(stmt is sets[0] for stmt in body)


def _without_increment(body: Body, name: str) -> Body | None:
    """The body without its one increment a path; `None` where a path lacks it, or reads the counter after it."""
    if not body:
        return None
    for position, stmt in enumerate(body):
        rest = body[position + 1 :]
        if isinstance(stmt, SetName) and stmt.name == name:
            if name in reads(rest) or name in assigned(rest) or has_break(rest):
                return None
            return body[:position] + rest
    last = body[-1]
    if isinstance(last, Branch):
        then, orelse = _without_increment(last.body, name), _without_increment(last.orelse, name)
        if then is not None and orelse is not None:
            return (*body[:-1], replace(last, body=then, orelse=orelse))
    return None
