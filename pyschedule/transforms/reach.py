"""Reach: whether an access would run at all, told where a transform moves it out of its loops and conditions.

    for i in range(N):
        for k in range(K):
            if i > 0 and A[k] > 0:
                s[i - 1] += A[k]          reaches s[i - 1] only if 0 < K, i > 0, and some A[k] > 0

An address that the source never touches may not exist, or belong to another thread.  What stands around an
access is its *path*; of its steps those that do not move inside the region (`i > 0`, and `0 < K` of the loop)
can be tested in advance, the others (`A[k] > 0`) cannot.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from pyschedule.ir import build
from pyschedule.ir.nodes import BinOp, BoolOp, Call, Expr, For, If, Load, Select, Store, While
from pyschedule.ir.visitors import (
    children,
    counters,
    substitute_expr,
    variables,
    walk_expr,
    written_variables,
)
from pyschedule.transforms import bands
from pyschedule.transforms.algebra import negation
from pyschedule.transforms.facts import has_effect
from pyschedule.transforms.nest import Body, before, conjuncts


@dataclass(frozen=True, slots=True)
class Condition:
    """A test around an access; `tail` as in `If`."""

    test: Expr
    tail: bool = False


#: `None`: something that may leave the loop before the access.
Step = For | While | Condition | None


@dataclass(frozen=True, slots=True)
class Site:
    """A load or store, and what is around it, outermost first."""

    access: Load | Store
    path: tuple[Step, ...]

    @property
    def loops(self) -> tuple[For | While, ...]:
        return tuple(step for step in self.path if isinstance(step, (For, While)))

    @property
    def guards(self) -> tuple[Expr, ...]:
        """The tail guards around it."""
        return tuple(step.test for step in self.path if isinstance(step, Condition) and step.tail)


def sites(body: Body, name: str, path: tuple[Step, ...] = ()) -> list[Site]:
    """All accesses of a body to an array, in textual order."""
    found: list[Site] = []
    for stmt in body:
        for top in children(stmt):
            found += [Site(load, path + steps) for load, steps in _loads(top, ()) if load.array == name]
        if isinstance(stmt, Store) and stmt.array == name:
            found.append(Site(stmt, path))
        if isinstance(stmt, If):
            tests = tuple(Condition(test, stmt.tail) for test in conjuncts(stmt.test))
            found += sites(stmt.body, name, path + tests)
            found += sites(stmt.orelse, name, (*path, Condition(negation(stmt.test))))
        elif isinstance(stmt, (For, While)):
            found += sites(stmt.body, name, (*path, stmt))
        if bands.early_exit((stmt,)) is not None:
            path = (*path, None)
    return found


def _loads(expr: Expr, path: tuple[Step, ...]) -> Iterator[tuple[Load, tuple[Step, ...]]]:
    """The loads of an expression; arms of a conditional one, and what `and` and `or` come to second, have paths."""
    if isinstance(expr, Select):
        yield from _loads(expr.test, path)
        yield from _loads(expr.then, (*path, Condition(expr.test)))
        yield from _loads(expr.orelse, (*path, Condition(negation(expr.test))))
        return
    if isinstance(expr, BoolOp):
        yield from _loads(expr.left, path)
        reached = expr.left if expr.op == "and" else negation(expr.left)
        yield from _loads(expr.right, (*path, Condition(reached)))
        return
    if isinstance(expr, Load):
        yield expr, path
    for part in children(expr):
        yield from _loads(part, path)


@dataclass(frozen=True, slots=True)
class Reach:
    """When an access runs: `tests` must hold; they are all there is if `certain`.  `loose`: what is missing are
    tests of counters that move in the region, by which an analysis may have told iterations apart."""

    tests: tuple[Expr, ...]
    certain: bool
    loose: bool


def reach(
    site: Site,
    renamed: Mapping[str, Expr],
    moving: Collection[str],
    changing: Collection[str],
    loops: tuple[For, ...],
) -> Reach:
    """What of a site's path can be tested before the region.

    `renamed`: the counters of tile loops, of which every value is looked at, and what stands for them;
    `moving`: those of all loops of the region; `changing`: scalars that it writes; `loops`: those around it.
    """
    tests: list[Expr] = []
    certain, loose = True, False
    around = loops
    for step in site.path:
        test = _test(step, around, renamed, changing)
        around = (*around, step) if isinstance(step, For) else around
        if test == build.TRUE:
            continue
        names = set() if test is None else variables(test)
        if test is None or not harmless(test) or names & set(changing):
            certain = False
        elif (names & set(moving)) - set(renamed):
            certain, loose = False, True
        else:
            tests.append(substitute_expr(test, renamed))
    return Reach(tuple(dict.fromkeys(tests)), certain, loose)


def _test(
    step: Step, around: tuple[For, ...], renamed: Mapping[str, Expr], changing: Collection[str]
) -> Expr | None:
    if isinstance(step, Condition):
        return step.test
    if not isinstance(step, For):
        return None
    if step.var in renamed:
        return build.TRUE
    count = build.constant(step.step)
    return None if not count else _has_iterations(step, count, around, changing)


def _has_iterations(loop: For, step: int, around: tuple[For, ...], changing: Collection[str]) -> Expr:
    """That a loop runs at all.  A tile does that starts where the loop over tiles stands, and ends no earlier."""
    outer = next((one for one in around if one.counter == loop.start), None)
    if outer is not None and (build.constant(outer.step) or 0) * step > 0:
        ends = _limits(outer.stop, step)
        spans = [build.constant(build.sub(limit, loop.start)) for limit in _limits(loop.stop, step)]
        fixed = not any(isinstance(part, Load) for end in ends for part in walk_expr(end)) and not any(
            variables(end) & set(changing) for end in ends
        )
        if fixed and all(
            limit in ends if span is None else span * step > 0
            for limit, span in zip(_limits(loop.stop, step), spans, strict=True)
        ):
            return build.TRUE
    return before(loop.start, loop.stop, step)


def _limits(stop: Expr, step: int) -> list[Expr]:
    """The ends of which a loop stops at the first that it comes to."""
    if isinstance(stop, Call) and stop.function == ("pmin" if step > 0 else "pmax"):
        return [limit for part in stop.args for limit in _limits(part, step)]
    return [stop]


def harmless(test: Expr) -> bool:
    """Whether a test may be evaluated where the source does not: it reads no memory, and cannot fail."""
    if has_effect(test) or any(isinstance(part, Load) for part in walk_expr(test)):
        return False
    partial = ("/", "//", "%", "**", "<<", ">>")
    operations = (part for part in walk_expr(test) if isinstance(part, BinOp) and part.op in partial)
    return all(build.constant(part.right) for part in operations)


def runs_when(body: Body, name: str, loops: tuple[For, ...], scope: Collection[str]) -> Expr | None:
    """When the accesses of a body to an array run, for all values of the loops that index them; `None` where the
    counters of `scope` do not tell.

    `loops` are those around the body.  Tail guards are left out: a tile has an iteration that is inside.
    """
    options: list[Expr] = []
    for site in sites(body, name):
        path = tuple(step for step in site.path if not (isinstance(step, Condition) and step.tail))
        names = {part for index in site.access.indices for part in variables(index)}
        fors = [loop for loop in site.loops if isinstance(loop, For)]
        keys = {(loop.source, loop.ordinal) for loop in fors if loop.var in names}
        indexing = {loop.var: loop.counter for loop in fors if (loop.source, loop.ordinal) in keys}
        found = reach(Site(site.access, path), indexing, counters(body), written_variables(body), loops)
        if not found.certain or any(variables(test) - set(scope) for test in found.tests):
            return None
        options.append(build.all_of(found.tests))
    either: Expr = build.FALSE
    for option in dict.fromkeys(options):
        either = option if either == build.FALSE else BoolOp("or", either, option)
    return build.TRUE if build.TRUE in options else either


def exists(indices: tuple[Expr, ...], extents: tuple[Expr, ...]) -> list[Expr]:
    """That an element is one of the array's."""
    tests: list[Expr] = []
    for index, extent in zip(indices, extents, strict=True):
        tests += [build.compare("<=", 0, index), build.compare("<", index, extent)]
    return [test for test in tests if test != build.TRUE]
