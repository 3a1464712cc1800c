"""A kernel as sets of statement instances in isl: which run, and in which order.

An instance of a statement is named by the values of the counters around it *in the source* (`Origin`), so that
the models of two nests, one made from the other, speak of the same instances.  Time is a vector: for every
loop around a statement its place in the text and the number of the iteration, then the place of the statement;
an instance runs before another exactly when its vector is lexicographically smaller, for steps of either sign.

    for i in range(N):          S0[i] -> [0, i, 0, 0, 0]
        s = 0                   S1[i, k] -> [0, i, 1, k, 0]
        for k in range(K): s += A[i, k]

Modelled are loops whose step is a constant and whose bounds are affine in outer counters, extents, integer
arguments and locals that hold such a value, with `min`, `max`, `//` and `%` of constants.  An affine test bounds
the instances; under any other test an instance *may* run.  `while`, `break`, and a `return` that is not the
end raise `Unsupported`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import islpy as isl

from pyschedule.analysis.quasiaffine import (
    TRUE,
    Formula,
    Linear,
    Parameters,
    Quasi,
    add,
    at_most_zero,
    atom,
    below,
    both,
    condition,
    constant,
    equal,
    formula_symbols,
    quasi,
    scale,
    substitute,
    substitute_formula,
)
from pyschedule.analysis.reductions import Reduction, match
from pyschedule.errors import Unsupported
from pyschedule.ir.blocks import TransposedStores
from pyschedule.ir.build import constant as constant_of
from pyschedule.ir.nodes import (
    Alloc,
    Assign,
    Barrier,
    Break,
    Expr,
    For,
    If,
    Kernel,
    Return,
    Store,
    While,
)
from pyschedule.ir.printer import format_expr
from pyschedule.ir.visitors import Body, local_arrays, walk, written_variables

#: The statement number of the reads that a `return` makes.
RETURN = -1


@dataclass(frozen=True, slots=True)
class Loop:
    """`counter` and `trip` are the atoms of the counter's value and of the iteration's number from 0."""

    node: For
    counter: str
    trip: str
    start: Quasi
    stop: Quasi
    step: int


@dataclass(frozen=True, slots=True)
class Guard:
    """A test that is not affine: evaluated inside the first `depth` loops, at `places`."""

    test: Expr
    depth: int
    places: tuple[int, ...]
    scope: dict[str, Quasi]


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One leaf of the nest: a statement as it stands in one place.

    `places` has one entry more than `loops`.  `scope` holds the affine names there, in terms of counters.
    `update` is the reduction step that the leaf is (for `if x > m: m = x`, that of the whole `if`).
    """

    statement: int
    node: Assign | Store | Return
    loops: tuple[Loop, ...]
    places: tuple[int, ...]
    inside: Formula
    guards: tuple[Guard, ...]
    counters: tuple[Quasi, ...]
    scope: dict[str, Quasi]
    update: Reduction | None = None

    def time(self, guard: int | None = None) -> list[Linear]:
        """The vector at which the leaf, or its `guard`-th test, is evaluated."""
        depth, places = len(self.loops), self.places
        if guard is not None:
            depth, places = self.guards[guard].depth, self.guards[guard].places
        entries: list[Linear] = []
        for place, loop in zip(places, self.loops[:depth], strict=False):
            entries += [constant(place), atom(loop.trip)]
        return [*entries, constant(places[depth])]


@dataclass(slots=True)
class Model:
    """All occurrences of a nest, and their instances and times as isl maps (built when first asked for).

    `declared`: local array → the loops around its `Alloc`.  `temporaries`: scalars assigned by statements that
    are not the source's.  `end`: a place in the text after all others.
    """

    kernel: Kernel
    parameters: Parameters
    context: isl.Context
    occurrences: tuple[Occurrence, ...]
    declared: dict[str, tuple[For, ...]]
    temporaries: frozenset[str]
    end: int
    _kept: tuple[int, ...] = ()
    _times: dict[object, isl.Map] = field(default_factory=dict)

    def __post_init__(self) -> None:
        width = max((2 * len(item.loops) + 1 for item in self.occurrences), default=1)
        seen: list[set[Linear]] = [set() for _ in range(width)]
        for item in self.occurrences:
            for guard in (None, *range(len(item.guards))):
                for position, entry in enumerate(_padded(item.time(guard), width)):
                    seen[position].add(entry)
        # A component that is the same for all decides nothing.
        self._kept = tuple(
            position
            for position in range(width)
            if position == 0 or len(seen[position]) > 1 or any(entry.terms for entry in seen[position])
        )

    @property
    def width(self) -> int:
        """Components of the (shortened) time vectors."""
        return len(self._kept)

    def component(self, depth: int) -> int:
        """Which component of the time vectors counts the iterations of the loops at a depth."""
        return self._kept.index(2 * depth + 1)

    def of(self, statement: int) -> tuple[Occurrence, ...]:
        return tuple(item for item in self.occurrences if item.statement == statement)

    def statements(self) -> set[int]:
        return {item.statement for item in self.occurrences}

    def when(self, occurrence: Occurrence, guard: int | None = None) -> isl.Map:
        """Instances of one occurrence → time."""
        key = (id(occurrence), guard)
        if key not in self._times:
            self._times[key] = self._read(occurrence, guard)
        return self._times[key]

    def schedule(self, statement: int, guard: int | None = None) -> isl.Map:
        """All instances of a statement → time."""
        key = (statement, guard)
        if key not in self._times:
            first, *more = (self.when(item, guard) for item in self.of(statement))
            for item in more:
                first = first.union(item)
            self._times[key] = first
        return self._times[key]

    def after_all(self) -> list[Linear]:
        return [constant(self.end)] + [constant(0)] * (self.width - 1)

    def shortened(self, time: Sequence[Linear]) -> list[Linear]:
        padded = _padded(time, max(self._kept) + 1)
        return [padded[position] for position in self._kept]

    def first_component(self, statement: int, guard: int | None = None) -> set[int]:
        """The places of a statement's occurrences (or what surrounds them) in the outermost body."""
        return {item.time(guard)[0].constant for item in self.of(statement)}

    def _read(self, occurrence: Occurrence, guard: int | None) -> isl.Map:
        values, facts = _iterations(occurrence)
        names = [f"x{place}" for place in range(len(occurrence.counters))]
        facts += [
            equal(atom(name), substitute(value, values))
            for name, value in zip(names, occurrence.counters, strict=True)
        ]
        formula = both(*facts, self.parameters.context())
        time = self.shortened(occurrence.time(guard))
        bound = {str(entry) for entry in time} | set(names) | set(self.parameters.names.values())
        free = sorted(set(formula_symbols(formula)) - bound)
        return isl.Map(
            f"{self.parameters.declaration()}{{ S[{', '.join(names)}] -> [{', '.join(map(str, time))}] : "
            + (f"exists ({', '.join(free)} : {formula})" if free else str(formula))
            + " }",
            self.context,
        )


def _padded(time: Sequence[Linear], width: int) -> list[Linear]:
    return [*time, *[constant(0)] * (width - len(time))]


def _iterations(occurrence: Occurrence) -> tuple[dict[str, Linear], list[Formula]]:
    """The counters' values by iteration numbers, where these are linear, and what holds for both."""
    values: dict[str, Linear] = {}
    facts: list[Formula] = []
    for loop in occurrence.loops:
        number = atom(loop.trip)
        value = add(substitute(loop.start, values), scale(number, loop.step))
        facts.append(at_most_zero(scale(number, -1)))
        if isinstance(value, Linear):
            values[loop.counter] = value
        else:
            facts.append(equal(atom(loop.counter), value))
        here = values.get(loop.counter) or atom(loop.counter)
        stop = substitute(loop.stop, values)
        facts.append(below(here, stop) if loop.step > 0 else below(stop, here))
    facts.append(substitute_formula(occurrence.inside, values))
    return values, facts


def model(kernel: Kernel, parameters: Parameters | None = None, context: isl.Context | None = None) -> Model:
    """The model of a scalar nest.  Models to be compared share `parameters` and `context`.

    Statements without an `Origin` are taken for the source's own, numbered in textual order, where no
    statement of the kernel has one.  Raises `Unsupported`, with the place, for what is not modelled.
    """
    parameters = Parameters() if parameters is None else parameters
    walker = _Walker(kernel, parameters)
    return Model(
        kernel,
        parameters,
        isl.Context() if context is None else context,
        tuple(walker.occurrences),
        walker.declared,
        frozenset(walker.temporaries),
        len(kernel.body) + len(list(walk(kernel.body))) + 1,
    )


# ------------------------------------------------------------------------------------------------ the walk


@dataclass(frozen=True, slots=True)
class _Here:
    """Where the walk stands: the loops and places around, and what is known to hold."""

    loops: tuple[Loop, ...] = ()
    places: tuple[int, ...] = ()
    inside: Formula = TRUE
    guards: tuple[Guard, ...] = ()
    update: Reduction | None = None


class _Walker:
    def __init__(self, kernel: Kernel, parameters: Parameters) -> None:
        self.parameters = parameters
        self.occurrences: list[Occurrence] = []
        self.declared: dict[str, tuple[For, ...]] = {}
        self.temporaries: set[str] = set()
        self.locals = local_arrays(kernel.body)
        self.loops = 0
        self.numbered = not any(
            isinstance(stmt, (Assign, Store)) and stmt.origin is not None for stmt in walk(kernel.body)
        )
        self.last = kernel.body[-1] if kernel.body else None
        scope: dict[str, Quasi] = {
            param.name: parameters.named(param.name)
            for param in kernel.scalar_params
            if str(param.vtype) == "int64"
        }
        self.body(kernel.body, scope, _Here(), iter(range(1 << 30)))

    def body(self, body: Body, scope: dict[str, Quasi], here: _Here, places: Iterator[int]) -> None:
        """Walks statements in order; `scope` is updated in place, `places` numbers the text of one loop body."""
        for stmt in body:
            if isinstance(stmt, (Assign, Store)):
                self.leaf(stmt, scope, here, next(places))
            elif isinstance(stmt, For):
                self.loop(stmt, scope, here, next(places))
            elif isinstance(stmt, If):
                self.branch(stmt, scope, here, places)
            elif isinstance(stmt, TransposedStores):
                self.body(stmt.body, scope, here, places)
            elif isinstance(stmt, Alloc):
                self.declared[stmt.array.name] = tuple(loop.node for loop in here.loops)
            elif isinstance(stmt, Return):
                if stmt is not self.last:
                    raise Unsupported("a return before the end of the kernel is not analysed", stmt.loc)
                if stmt.values:
                    self.occurrences.append(
                        Occurrence(RETURN, stmt, (), (next(places),), TRUE, (), (), dict(scope))
                    )
            elif isinstance(stmt, While):
                raise Unsupported("a while loop that does not count is not analysed", stmt.loc)
            elif isinstance(stmt, Break):
                raise Unsupported("a loop that may be left early is not analysed", stmt.loc)
            elif not isinstance(stmt, Barrier):
                raise Unsupported(f"{type(stmt).__name__} is not analysed")

    def leaf(self, stmt: Assign | Store, scope: dict[str, Quasi], here: _Here, place: int) -> None:
        value = None
        if isinstance(stmt, Assign) and str(stmt.vtype) == "int64":
            value = quasi(stmt.value, scope, self.parameters)
        origin = stmt.origin
        if origin is not None or self.numbered:
            counters = self.counters(stmt, scope, here)
            places = (*here.places, place)
            inside, guards = here.inside, here.guards
            if isinstance(stmt, Store) and stmt.mask is not None:
                formula, exact = condition(stmt.mask, scope, self.parameters)
                inside = both(inside, formula)
                if not exact:
                    guards = (*guards, Guard(stmt.mask, len(here.loops), places, dict(scope)))
            self.occurrences.append(
                Occurrence(
                    len(self.occurrences) if origin is None else origin.statement,
                    stmt,
                    here.loops,
                    places,
                    inside,
                    guards,
                    counters,
                    dict(scope),
                    here.update or match(stmt),
                )
            )
        elif isinstance(stmt, Assign):
            self.temporaries.add(stmt.target)
        elif stmt.array not in self.locals:
            raise Unsupported(f"a store to '{stmt.array}' belongs to no statement of the source", stmt.loc)
        if isinstance(stmt, Assign):
            if value is None:
                scope.pop(stmt.target, None)
            else:
                scope[stmt.target] = value

    def counters(self, stmt: Assign | Store, scope: dict[str, Quasi], here: _Here) -> tuple[Quasi, ...]:
        if stmt.origin is None:
            return tuple(atom(loop.counter) for loop in here.loops)
        result = []
        for expr in stmt.origin.counters:
            value = quasi(expr, scope, self.parameters)
            if value is None:
                raise Unsupported(f"the source's counter {format_expr(expr)} is not affine", stmt.loc)
            result.append(value)
        return tuple(result)

    def loop(self, stmt: For, scope: dict[str, Quasi], here: _Here, place: int) -> None:
        step = constant_of(stmt.step)
        if not step:
            raise Unsupported(f"the step of loop '{stmt.label}' is not a constant", stmt.loc)
        start, stop = (quasi(bound, scope, self.parameters) for bound in (stmt.start, stmt.stop))
        if start is None or stop is None:
            bound = stmt.start if start is None else stmt.stop
            raise Unsupported(f"the bound {format_expr(bound)} of loop '{stmt.label}' is not affine", stmt.loc)
        loop = Loop(stmt, f"c{self.loops}", f"t{self.loops}", start, stop, step)
        self.loops += 1
        written = written_variables(stmt.body)
        for name in written:
            scope.pop(name, None)
        inner = {**scope, stmt.var: atom(loop.counter)}
        around = _Here((*here.loops, loop), (*here.places, place), here.inside, here.guards)
        self.body(stmt.body, inner, around, iter(range(1 << 30)))

    def branch(self, stmt: If, scope: dict[str, Quasi], here: _Here, places: Iterator[int]) -> None:
        place = next(places)
        update = match(stmt)
        for body, positive in ((stmt.body, True), (stmt.orelse, False)):
            formula, exact = condition(stmt.test, scope, self.parameters, positive)
            guards = here.guards
            if not exact:
                guard = Guard(stmt.test, len(here.loops), (*here.places, place), dict(scope))
                guards = (*guards, guard)
            inner = _Here(here.loops, here.places, both(here.inside, formula), guards, update)
            self.body(body, dict(scope), inner, places)
        for name in written_variables(stmt.body) | written_variables(stmt.orelse):
            scope.pop(name, None)
