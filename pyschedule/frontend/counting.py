"""`while` loops that count, brought to one form; for the others, why they do not.

A counted `while` has a test that compares its counter with a bound that stays the same, and adds the same constant
to the counter on every path through its body:

    while i < n and ok:            while i < n:
        if x[i] == 0:                  if not ok:
            i += 1                         i = i
            continue                       break
        i += 1                ->       if not x[i] == 0:
        y[i] = 1                           y[i + 1] = 1
                                       i = i + 1

It means the same whatever the types are, provided that the counter and the bound are integers (`Kinds` knows).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from pyschedule.frontend.control import Fresh, without_skips
from pyschedule.frontend.flow import is_endless
from pyschedule.frontend.folding import fold, refold
from pyschedule.frontend.kinds import INTEGER, WIDE, Kinds
from pyschedule.frontend.source import Source
from pyschedule.frontend.surface import (
    Binary,
    Branch,
    Comparison,
    Element,
    Give,
    Leave,
    Logic,
    Loop,
    Name,
    Number,
    Repeat,
    SetElement,
    SetName,
    Skip,
    Unary,
    assigned,
    elements_in,
    names_in,
    place_of,
)
from pyschedule.ir.nodes import Expr, Location, Stmt
from pyschedule.ir.visitors import Body, map_children, rewrite, rewrite_expr, walk, walk_expr

_FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}
_NEGATED: Final = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!="}
_PLAIN: Final = "write it as 'while i < n:' with one 'i += 1' at the end, or as a 'for' loop"


class _No(Exception):
    """Why a loop does not count, ending with what would make it, and the place in the way."""

    def __init__(self, reason: str, loc: Location | None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.loc = loc


@dataclass(frozen=True, slots=True)
class _Test:
    """One part of a loop's condition: `counter op stop`."""

    counter: str
    op: str
    stop: Expr
    loc: Location | None


def count(body: Body, text: Source, kinds: Kinds, fresh: Fresh) -> Body:
    """The same program, with each `Repeat` that counts in the form that `surface.Repeat` describes, and a
    `reason` for each that does not.  `continue` is gone from the counted ones."""

    def loop(stmt: Stmt) -> Stmt | None:
        return _Counting(stmt, text, kinds, fresh).result() if isinstance(stmt, Repeat) else None

    return rewrite(body, statement=loop)


def has_counted(body: Body) -> bool:
    return any(isinstance(stmt, Repeat) and stmt.counter for stmt in walk(body))


class _Counting:
    """One loop.  `while True` with `if c: break` first is looked at as `while not c`."""

    def __init__(self, loop: Repeat, text: Source, kinds: Kinds, fresh: Fresh) -> None:
        self.loop = loop
        self.text = text
        self.kinds = kinds
        self.fresh = fresh
        self.test, self.body = loop.test, loop.body
        if is_endless(loop) and loop.body and isinstance(loop.body[0], Branch):
            first = loop.body[0]
            if len(first.body) == 1 and isinstance(first.body[0], Leave):
                self.test = Unary("not", first.test, first.loc)
                self.body = (*first.orelse, *loop.body[1:])

    def result(self) -> Repeat:
        parts = list(_conjuncts(self.test))
        tests = [(at, test) for at, part in enumerate(parts) for test in _tests(part, self.kinds)]
        # The counter that directives know the loop by comes first: its reason is the one to tell.
        tests.sort(key=lambda item: item[1].counter != self.loop.source)
        refusal: _No | None = None
        for at, test in tests:
            if test.counter not in assigned(self.body):
                continue
            try:
                return self._counted(parts, at, test)
            except _No as no:
                refusal = refusal or no
        if refusal is None:
            name = self.loop.source or "i"
            what = self.text.text(place_of(self.test)) or "its test"
            refusal = _No(f"`{what}` does not compare a counter '{name}' with a bound; {_PLAIN}", self.loop.loc)
        return replace(self.loop, reason=refusal.reason, reason_loc=refusal.loc)

    def _counted(self, parts: list[Expr], at: int, test: _Test) -> Repeat:
        self._check_bound(test)
        paths = _Paths(test.counter, self.kinds)
        body, end = paths.run(self.body, (0, None))
        step, where = paths.step(end)
        self._check_step(test, step, where)
        others = (*parts[:at], *parts[at + 1 :])
        for part in parts[:at]:
            if any(isinstance(item, Element) or _may_fail(item) for item in walk_expr(part)):
                shown = self.text.text(test.loc) or f"the test of '{test.counter}'"
                raise _No(f"`{shown}` stands behind a test that reads an element; write it first", test.loc)
        if others:
            stays = others[0] if len(others) == 1 else Logic("and", others, place_of(self.test))
            place = place_of(stays) or self.loop.loc
            leave = (_leaving(test.counter, 0, place), Leave(place))
            body = (Branch(Unary("not", stays, place), leave, (), place), *body)
        counter = Name(test.counter, test.loc)
        increment = SetName(test.counter, Binary("+", counter, Number(step, paths.dtype, where), where), where)
        return replace(
            self.loop,
            test=Comparison(test.op, counter, test.stop, test.loc),
            body=(*without_skips(body, self.loop.loc, self.fresh), increment),
            counter=test.counter,
        )

    def _check_bound(self, test: _Test) -> None:
        counter, stop = test.counter, test.stop
        if self.kinds.of(Name(counter)) not in (WIDE, INTEGER):
            raise _No(f"counter '{counter}' is no integer; start it from 'int(...)', and add integers", test.loc)
        changed = {stmt.name: stmt for stmt in walk(self.body) if isinstance(stmt, (SetName, Loop))}
        for name in sorted(names_in(stop) & changed.keys()):
            where = place_of(changed[name])
            raise _No(
                f"the bound `{name}` changes in the body{_line(where)}; keep the bound in a local that the loop "
                "does not assign",
                where,
            )
        for stmt in walk(self.body):
            if isinstance(stmt, SetElement) and stmt.array in elements_in(stop):
                raise _No(
                    f"the bound is read from '{stmt.array}', which the body writes{_line(stmt.loc)}; keep the "
                    "bound in a local set before the loop",
                    stmt.loc,
                )
        if self.kinds.of(stop) not in (WIDE, INTEGER):
            shown = self.text.text(place_of(stop)) or "its bound"
            raise _No(f"the bound `{shown}` is no integer; take 'int(...)' of it before the loop", place_of(stop))

    def _check_step(self, test: _Test, step: int, place: Location | None) -> None:
        towards = {"<": step > 0, "<=": step > 0, ">": step < 0, ">=": step < 0, "!=": step != 0}
        if not towards[test.op]:
            raise _No(
                f"counter '{test.counter}' moves by {step}{_line(place)}, not towards its bound under "
                f"'{test.op}'; turn the comparison or the step round",
                place,
            )


# ------------------------------------------------------------------------------------------------- tests


def _conjuncts(test: Expr) -> Iterator[Expr]:
    """The parts of a condition that all must hold, in order."""
    if isinstance(test, Logic) and test.op == "and":
        for part in test.parts:
            yield from _conjuncts(part)
    elif isinstance(test, Unary) and test.op == "not" and isinstance(test.operand, Logic):
        inner = test.operand
        if inner.op == "or":
            for part in inner.parts:
                yield from _conjuncts(Unary("not", part, place_of(part)))
        else:
            yield test
    elif isinstance(test, Unary) and test.op == "not" and isinstance(test.operand, Unary):
        if test.operand.op == "not":
            yield from _conjuncts(test.operand.operand)
        else:
            yield test
    else:
        yield test


def _tests(part: Expr, kinds: Kinds) -> Iterator[_Test]:
    """What a part says of names that may be counters, `i + 4 <= n` as `i <= n - 4`."""
    if isinstance(part, Name):
        yield _Test(part.name, "!=", Number(0, None, part.loc), part.loc)
        return
    negated = isinstance(part, Unary) and part.op == "not"
    inner = part.operand if isinstance(part, Unary) and negated else part
    if not isinstance(inner, Comparison):
        return
    op = inner.op if not negated else _NEGATED.get(inner.op, "")
    if op not in _FLIPPED:
        return
    for side, stop, turned in ((inner.left, inner.right, op), (inner.right, inner.left, _FLIPPED[op])):
        if isinstance(side, Name):
            yield _Test(side.name, turned, stop, inner.loc)
        elif isinstance(side, Binary) and side.op in "+-" and kinds.of(side) == kinds.of(stop) == WIDE:
            left, right, sign = side.left, side.right, 1 if side.op == "+" else -1
            if sign > 0 and isinstance(left, Number):
                left, right = right, left
            if isinstance(left, Name) and isinstance(right, Number) and type(right.value) is int:
                with suppress(ArithmeticError):  # a bound beyond 64 bits
                    yield _Test(left.name, turned, _plus(stop, -sign * right.value), inner.loc)


def _may_fail(expr: Expr) -> bool:
    """A division, which Python stops at where its divisor is zero."""
    return isinstance(expr, Binary) and expr.op in ("/", "//", "%", "**", "<<", ">>")


def _plus(expr: Expr, number: int) -> Expr:
    if number == 0:
        return expr
    loc = place_of(expr)
    return fold(Binary("+" if number > 0 else "-", expr, Number(abs(number), None, loc), loc))


# ------------------------------------------------------------------------------------------------- paths

#: How far the counter has moved since the top of the body, and where it last did.
_Moved = tuple[int, "Location | None"]


class _Paths:
    """Takes the increments of a counter out of a body; what is read behind one is read plus its step."""

    def __init__(self, name: str, kinds: Kinds) -> None:
        self.name = name
        self.kinds = kinds
        self.ends: list[_Moved] = []
        self.dtype: str | None = None  # of a step that is NumPy's: it makes the counter so

    def run(self, body: Body, moved: _Moved | None) -> tuple[Body, _Moved | None]:
        """The body without increments, and how far the counter is at its end; `None`: that is not reached."""
        done: list[Stmt] = []
        for stmt in body:
            if moved is None:
                break
            new, moved = self._step(stmt, moved)
            done.extend(new)
        return tuple(done), moved

    def step(self, end: _Moved | None) -> _Moved:
        """The step that all paths take, and where."""
        ends = [*self.ends, *([] if end is None else [end])]
        if not ends:
            raise _No("every path leaves the loop in its first iteration; write an 'if'", None)
        for other in ends[1:]:
            if other[0] != ends[0][0]:
                raise self._differ(ends[0], other)
        return ends[-1]

    def _differ(self, one: _Moved, other: _Moved) -> _No:
        def told(moved: _Moved) -> str:
            return f"{moved[0]}{_line(moved[1])}" if moved[0] else "none"

        return _No(
            f"counter '{self.name}' takes different steps on different paths: {told(one)} and {told(other)}; "
            f"take one step on each path to the end of the body and to each 'continue'",
            other[1] or one[1],
        )

    def _step(self, stmt: Stmt, moved: _Moved) -> tuple[Body, _Moved | None]:
        if isinstance(stmt, SetName) and stmt.name == self.name:
            return (), (moved[0] + self._increment(stmt), stmt.loc)
        stmt = map_children(stmt, lambda part: self._shifted(part, moved[0]))
        if isinstance(stmt, Skip):
            self.ends.append(moved)
            return (stmt,), None
        if isinstance(stmt, Leave):
            return (_leaving(self.name, moved[0], stmt.loc), stmt), None
        if isinstance(stmt, Give):
            return (stmt,), None
        if isinstance(stmt, Branch):
            body, then = self.run(stmt.body, moved)
            orelse, other = self.run(stmt.orelse, moved)
            if then is not None and other is not None and then[0] != other[0]:
                raise self._differ(then, other)
            after = other if then is None or (other is not None and then == moved) else then
            return (replace(stmt, body=body, orelse=orelse),), after
        if isinstance(stmt, (Loop, Repeat)):
            for inner in walk((stmt,)):
                if isinstance(inner, (SetName, Loop)) and inner.name == self.name:
                    raise _No(
                        f"counter '{self.name}' is written by an inner loop{_line(inner.loc)}; give that loop a "
                        "counter of its own",
                        inner.loc,
                    )
            inside = rewrite(stmt.body, expression=lambda part: self._plus(part, moved[0]))
            return (replace(stmt, body=inside),), moved
        return (stmt,), moved

    def _increment(self, stmt: SetName) -> int:
        """`c` of `name = name + c`, `name = c + name` or `name = name - c`."""
        value = stmt.value
        if isinstance(value, Binary) and value.op in "+-":
            sides = [(value.left, value.right)] + ([(value.right, value.left)] if value.op == "+" else [])
            for left, right in sides:
                if not isinstance(left, Name) or left.name != self.name:
                    continue
                if isinstance(right, Number) and type(right.value) is int:
                    self.dtype = self.dtype or right.dtype
                    return right.value if value.op == "+" else -right.value
                raise _No(
                    f"the step of counter '{self.name}' is no constant{_line(stmt.loc)}; use a constant of the "
                    "module or the closure, or a 'for' loop over 'range'",
                    stmt.loc,
                )
        raise _No(
            f"counter '{self.name}' is written in the body{_line(stmt.loc)}; only add a constant to it, or count "
            "with a local of its own",
            stmt.loc,
        )

    def _shifted(self, expr: Expr, offset: int) -> Expr:
        return rewrite_expr(expr, lambda part: self._plus(part, offset)) if offset else expr

    def _plus(self, part: Expr, offset: int) -> Expr | None:
        """For `rewrite`: the counter as it stood at the top of the body, plus what it has moved since."""
        if offset and isinstance(part, Name) and part.name == self.name:
            return _plus(part, offset)
        try:
            return refold(part) if offset else None
        except ArithmeticError:
            return None


def _leaving(name: str, offset: int, loc: Location | None) -> SetName:
    """What a counter is when the loop is left early."""
    return SetName(name, _plus(Name(name, loc), offset), loc)


def _line(loc: Location | None) -> str:
    return "" if loc is None else f" (line {loc.line})"
