"""Versioning: tiles in which every test of an index holds get a copy of the body without tests.

Before - windows over an image with imagined zeros around it, two columns at a time:

    for x_0 in range(0, Q, 2):
        for s in range(3):
            if x_0 + s >= 1 and x_0 + s <= W:
                acc[0] += X[x_0 + s - 1] * w[s]
            if min(x_0 + 1, Q - 1) + s >= 1 and min(x_0 + 1, Q - 1) + s <= W:
                acc[1] += X[min(x_0 + 1, Q - 1) + s - 1] * w[s]
        ...

After - one test for all of the tile, of the outermost of its elements, before loops in which it does not change:

    for x_0 in range(0, Q, 2):
        if x_0 + 2 <= Q and 1 <= x_0 and x_0 + 3 <= W:
            for s in range(3):
                acc[0] += X[x_0 + s - 1] * w[s]
                acc[1] += X[x_0 + s] * w[s]
            ...
        else:
            as before

It fires for the innermost loops that write memory, where no compiler takes the tests out: they change in the
hottest part of the body, or clamps (see `speculation`) hide from copies of a body that they read the same.
Conditions without an `else`, choices between something read and nothing read, and clamps go, where they are linear
in counters and extents; of a loop inside, the iteration that is worst for a test counts.  Masks of lanes stay, and
tests of data.  (Loop versioning.  Index-set splitting, M. Griebl, P. Feautrier, C. Lengauer, International Journal
of Parallel Programming 28(6), 2000, tells the tiles apart before the loop instead.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from pyschedule.analysis.affine import Affine, Term, affine, expression, mentions
from pyschedule.ir import build
from pyschedule.ir.nodes import Call, Expr, For, If, Kernel, Load, Location, Select, Stmt, Store, While
from pyschedule.ir.types import INT64
from pyschedule.ir.visitors import (
    arrays,
    bodies,
    children,
    map_children,
    rewrite,
    rewrite_expr,
    variables,
    walk,
    walk_expr,
    written_variables,
)
from pyschedule.transforms.copies import renamed_counters
from pyschedule.transforms.facts import Facts
from pyschedule.transforms.nest import Body, Names, conjuncts, map_bodies, margin_of, with_body
from pyschedule.transforms.unroll_limits import operations

Loops = tuple[For, ...]
#: An expression, what may stand for it, and a number: where that is at least 0.
Known = tuple[Expr, Expr, Expr]

#: A body of more operations is not copied.
_MOST_OPERATIONS = 4096


def version(kernel: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel with such copies, and the labels of the loops whose bodies have them."""
    versions = _Versions(kernel)
    kernel = with_body(kernel, versions.visit(kernel.body, ()))
    return kernel, tuple(dict.fromkeys(versions.labels))


class _Versions:
    def __init__(self, kernel: Kernel) -> None:
        self.labels: list[str] = []
        self._choices: list[If] = []
        self._names = Names(kernel)
        self._facts = Facts(assigned=frozenset(written_variables(kernel.body)))
        self._registers = {name for name, array in arrays(kernel).items() if array.space == "register"}

    def visit(self, body: Body, around: Loops) -> Body:
        """The body, which stands in the loops `around`, with the copies in it."""
        if around and not self._writes_in_loops(body):
            return self._versioned(body, around)
        new = tuple(
            self._unswitched(map_bodies(stmt, lambda part, stmt=stmt: self._inside(part, stmt, around)))  # type: ignore[misc]
            for stmt in body
        )
        return new if any(one is not other for one, other in zip(new, body, strict=True)) else body

    def _unswitched(self, stmt: Stmt) -> Stmt:
        """A loop all of whose body has versions, with the choice before it where it does not change in the loop.

        What does not change in the loop of one version is then worked out for that one alone.
        """
        if not isinstance(stmt, For) or stmt.mapping != "serial" or len(stmt.body) != 1:
            return stmt
        choice = next((made for made in self._choices if made is stmt.body[0]), None)
        if choice is None or stmt.var in variables(choice.test):
            return stmt
        inside, general = (dataclasses.replace(stmt, body=part) for part in (choice.body, choice.orelse))
        return self._choice(choice.test, (inside,), renamed_counters((general,), self._names), stmt.loc)

    def _choice(self, test: Expr, then: Body, orelse: Body, loc: Location | None) -> If:
        self._choices.append(If(test, then, orelse, loc=loc))
        return self._choices[-1]

    def _inside(self, part: Body, stmt: Stmt, around: Loops) -> Body:
        if isinstance(stmt, While) or not part:
            return part
        return self.visit(part, (*around, stmt) if isinstance(stmt, For) else around)

    def _writes_in_loops(self, body: Body) -> bool:
        """Whether a loop of the body writes memory (or is no counted one)."""
        loops = (stmt for stmt in walk(body) if isinstance(stmt, (For, While)))
        return any(
            isinstance(loop, While)
            or any(isinstance(stmt, Store) and stmt.array not in self._registers for stmt in walk(loop.body))
            for loop in loops
        )

    def _versioned(self, body: Body, around: Loops) -> Body:
        if operations(body) > _MOST_OPERATIONS or not _is_worth(body, around):
            return body
        clamps, enough = self._known(body, around, _clamps)
        inside = _replaced(body, clamps)
        tests, more = self._known(inside, around, lambda stmt, _: _tests(stmt))
        if not enough and not more:
            return body
        self.labels.append(around[-1].label)
        general = renamed_counters(body, self._names)
        test = _all_positive([*enough, *more])
        return (self._choice(test, _replaced(inside, tests), general, around[-1].loc),)

    def _known(
        self, body: Body, around: Loops, find: Callable[[Stmt, set[str]], Iterator[Known]]
    ) -> tuple[dict[Expr, Expr], list[Affine]]:
        """What may stand for which expressions of the body, and what must be at least 0 for that."""
        values: dict[Expr, Expr] = {}
        forms: list[Affine] = []
        for stmt, inner in _with_loops(body):
            for expr, value, margin in find(stmt, {loop.var for loop in (*around, *inner)}):
                form = None if expr in values else self._worst(margin, inner)
                if form is not None:
                    values[expr] = value
                    forms.append(form)
        return values, forms

    def _worst(self, margin: Expr, inner: Loops) -> Affine | None:
        """The least value of an index in the loops inside; `None` where it cannot be told."""
        form = affine(margin) if self._facts.is_index(margin) else None
        for loop in reversed(inner):
            if form is None or any(mentions(term, loop.var) for term, _ in form.without(loop.var).terms):
                return None
            factor = form.coefficient(loop.var)
            if factor:
                end = loop.start if factor > 0 else build.sub(loop.stop, 1)
                counts_up = (build.constant(loop.step) or 0) > 0
                limit = affine(end) if counts_up and self._facts.is_index(end) else None
                form = None if limit is None else form.without(loop.var) + limit.scaled(factor)
        return form


def _with_loops(body: Body, inner: Loops = ()) -> Iterator[tuple[Stmt, Loops]]:
    """All statements, each with the loops of the body around it."""
    for stmt in body:
        yield stmt, inner
        for part in bodies(stmt):
            yield from _with_loops(part, (*inner, stmt) if isinstance(stmt, For) else inner)


def _is_worth(body: Body, around: Loops) -> bool:
    """Whether a test or a clamp changes in the innermost loops, of those that stay loops; or, where the body has
    none, whether there is a clamp."""
    outer = {loop.var for loop in around}
    rolled = [stmt for stmt in walk(body) if isinstance(stmt, For) and stmt.unroll != -1]
    if not rolled:
        inner = {stmt.var for stmt in walk(body) if isinstance(stmt, For)}
        clamped = any(True for stmt in walk(body) for _ in _clamps(stmt, outer | inner))
        return clamped or _changes(body, {around[-1].var} | inner)
    hottest = [loop for loop in rolled if not any(one in rolled for one in walk(loop.body))]
    return any(
        _changes(loop.body, {loop.var} | {one.var for one in walk(loop.body) if isinstance(one, For)})
        for loop in hottest
    )


def _changes(body: Body, counters: set[str]) -> bool:
    return any(
        variables(margin) & counters
        for stmt in walk(body)
        for _, _, margin in (*_clamps(stmt, counters), *_tests(stmt))
    )


# ----------------------------------------------------------------------------------------- tests and clamps


def _clamps(stmt: Stmt, counters: set[str]) -> Iterator[Known]:
    """Minima and maxima of an index that counters move and a limit: the index, where it is within the limit."""
    for part in _parts(stmt):
        if not isinstance(part, Call) or part.function not in ("pmin", "pmax") or part.type != INT64:
            continue
        moved = [bool(variables(arg) & counters) for arg in part.args]
        if sorted(moved) == [False, True]:
            index, limit = part.args if moved[0] else reversed(part.args)
            yield part, index, build.sub(limit, index) if part.function == "pmin" else build.sub(index, limit)


def _tests(stmt: Stmt) -> Iterator[Known]:
    """Comparisons of indices that guard something."""
    for condition in _conditions(stmt):
        for test in conjuncts(condition):
            margin = margin_of(test)
            if margin is not None and all(part.type == INT64 for part in children(test)):
                yield test, build.TRUE, margin


def _conditions(stmt: Stmt) -> Iterator[Expr]:
    if isinstance(stmt, If) and not stmt.orelse:
        yield stmt.test
    for part in _parts(stmt):
        if isinstance(part, Select) and _reads(part.then) and not _reads(part.orelse):
            yield part.test


def _parts(stmt: Stmt) -> Iterator[Expr]:
    """The expressions of a statement; not the bounds of a loop, which are worked out once."""
    if not isinstance(stmt, For):
        for top in children(stmt):
            yield from walk_expr(top)


def _reads(expr: Expr) -> bool:
    return any(isinstance(part, Load) for part in walk_expr(expr))


# ------------------------------------------------------------------------------------------------ rewriting


def _all_positive(forms: list[Affine]) -> Expr:
    """That all of them are at least 0: of those that differ in a number alone, the smallest is looked at."""
    least: dict[frozenset[tuple[Term, int]], Affine] = {}
    for form in forms:
        key = frozenset(form.terms)
        if key not in least or form.constant < least[key].constant:
            least[key] = form
    tests = []
    for form in least.values():
        added = Affine(max(form.constant, 0), tuple(item for item in form.terms if item[1] > 0))
        taken = Affine(max(-form.constant, 0), tuple((term, -factor) for term, factor in form.terms if factor < 0))
        tests.append(build.compare("<=", expression(taken), expression(added)))
    return build.all_of(tests)


def _replaced(body: Body, values: dict[Expr, Expr]) -> Body:
    """The body with values in place of expressions (not in the bounds of loops)."""

    def statement(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, For):
            return None
        new: Stmt = map_children(stmt, lambda part: rewrite_expr(part, values.get))
        return None if new is stmt else new

    return rewrite(body, statement) if values else body
