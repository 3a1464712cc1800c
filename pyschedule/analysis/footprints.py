"""Which elements a statement instance reads and writes, as isl maps.

Scalars are arrays of rank 0.  An index that is not affine may be any: the access has a spare dimension for it,
and is a *may* access.  So is one under a test that is not affine.  A read in an arm of a conditional
expression, or behind an `and`, happens where its test allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import islpy as isl

from pyschedule.analysis.polyhedral import Model, Occurrence
from pyschedule.analysis.quasiaffine import (
    TRUE,
    Formula,
    Linear,
    Quasi,
    at_most_zero,
    atom,
    both,
    condition,
    equal,
    quasi,
    scale,
)
from pyschedule.analysis.reductions import Reduction
from pyschedule.errors import Unsupported
from pyschedule.ir.nodes import Assign, BoolOp, Expr, Load, Location, Return, Select, Store, Var
from pyschedule.ir.visitors import children, walk, walk_expr, written_variables


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One access of a statement.

    `element` maps its instances, `tag[counters..., spare dimensions...]`, to `memory[indices]`.  `update`: the
    access is part of this reduction step - its write, or its read of the accumulator.  `guard`: it is made by
    the statement's `guard`-th test.  `must`: wherever the instance exists, the access is made.
    `occurrence` is `None` for what the caller reads after the kernel.  Accesses of equal `place` are made by
    one statement, at one point of it, to one element.
    """

    tag: str
    name: str
    writes: bool
    element: isl.Map
    spare: int
    must: bool
    occurrence: Occurrence | None
    guard: int | None
    update: Reduction | None
    indices: tuple[Expr, ...]
    loc: Location | None
    place: object

    @property
    def statement(self) -> int | None:
        return None if self.occurrence is None else self.occurrence.statement

    def time(self, model: Model, occurrence: Occurrence | None = None) -> isl.Map:
        """Instances → time in a nest (in one of its occurrences of the statement, where one is given)."""
        if self.occurrence is None:
            memory = self.element.domain()
            end = ", ".join(map(str, model.after_all()))
            return isl.Map.from_domain_and_range(memory, isl.Set(f"{{ [{end}] }}", model.context))
        if occurrence is None:
            when = model.schedule(self.occurrence.statement, self.guard)
        else:
            when = model.when(occurrence, self.guard)
        if self.spare:
            when = when.add_dims(isl.dim_type.in_, self.spare)
        return when.set_tuple_name(isl.dim_type.in_, self.tag)


@dataclass(frozen=True, slots=True)
class _Read:
    name: str
    indices: tuple[Expr, ...]
    inside: Formula
    loc: Location | None


def footprints(model: Model) -> dict[str, list[Access]]:
    """All accesses by name, of names that are written somewhere; the source's model only.

    Raises `Unsupported` where the model's instances are not named by its own counters.
    """
    return _Collector(model).collect()


class _Collector:
    def __init__(self, model: Model) -> None:
        self.model = model
        body = model.kernel.body
        stores = {stmt.array for stmt in walk(body) if isinstance(stmt, Store)}
        self.written = stores | written_variables(body)
        self.memory = {name: f"m{number}" for number, name in enumerate(sorted(self.written))}
        self.result: dict[str, list[Access]] = {name: [] for name in sorted(self.written)}
        self.count = 0

    def collect(self) -> dict[str, list[Access]]:
        for item in self.model.occurrences:
            if item.counters != tuple(atom(loop.counter) for loop in item.loops):
                raise Unsupported("this nest is not the source of its statements", item.node.loc)
            self.statement(item)
        for array in self.model.kernel.array_params:
            if array.name in self.written:
                self.live_out(array.name, array.rank)
        return self.result

    def statement(self, item: Occurrence) -> None:
        node, update = item.node, item.update
        guarded = update is not None and bool(item.guards) and self._is_step_of_guard(item)
        exprs: list[Expr] = []
        if isinstance(node, Store):
            exprs += node.indices
        if isinstance(node, Return):
            exprs += node.values
        else:
            exprs.append(node.value if update is None else update.value)
        self.reads(item, exprs, item.scope, None)
        for number, guard in enumerate(item.guards):
            own = update.name if update is not None and guarded and number == len(item.guards) - 1 else None
            self.reads(item, [guard.test], guard.scope, number, own)
        if isinstance(node, Return):
            return
        name, indices = (node.target, ()) if isinstance(node, Assign) else (node.array, node.indices)
        if update is not None:
            last = len(item.guards) - 1 if guarded else None
            self.add(item, name, indices, item.scope, False, last, update)
        self.add(item, name, indices, item.scope, True, None, update)

    def _is_step_of_guard(self, item: Occurrence) -> bool:
        """Whether the reduction step is `if x > m: m = x`, whose test reads the accumulator."""
        update = item.update
        return update is not None and any(
            (isinstance(part, Var) and part.name == update.name)
            or (isinstance(part, Load) and part.array == update.name)
            for part in walk_expr(item.guards[-1].test)
        )

    def reads(
        self,
        item: Occurrence,
        exprs: list[Expr],
        scope: dict[str, Quasi],
        guard: int | None,
        own: str | None = None,
    ) -> None:
        seen: set[object] = set()
        for expr in exprs:
            for read in self.loads(expr, TRUE, scope):
                key = (read.name, read.indices, read.inside)
                if read.name in self.written and read.name != own and key not in seen:
                    seen.add(key)
                    self.add(item, read.name, read.indices, scope, False, guard, None, read)

    def loads(self, expr: Expr, inside: Formula, scope: dict[str, Quasi]) -> Iterator[_Read]:
        parameters = self.model.parameters
        if isinstance(expr, Var):
            yield _Read(expr.name, (), inside, expr.loc)
        elif isinstance(expr, (Select, BoolOp)):
            test = expr.test if isinstance(expr, Select) else expr.left
            yield from self.loads(test, inside, scope)
            arms: tuple[tuple[Expr, bool], ...]
            if isinstance(expr, Select):
                arms = ((expr.then, True), (expr.orelse, False))
            else:
                arms = ((expr.right, expr.op == "and"),)
            for arm, positive in arms:
                formula, _ = condition(test, scope, parameters, positive)
                yield from self.loads(arm, both(inside, formula), scope)
        elif isinstance(expr, Load):
            within = inside
            if expr.mask is not None:
                yield from self.loads(expr.mask, inside, scope)
                within = both(inside, condition(expr.mask, scope, parameters)[0])
            yield _Read(expr.array, expr.indices, within, expr.loc)
            for index in expr.indices:
                yield from self.loads(index, within, scope)
        else:
            for part in children(expr):
                yield from self.loads(part, inside, scope)

    def add(
        self,
        item: Occurrence,
        name: str,
        indices: tuple[Expr, ...],
        scope: dict[str, Quasi],
        writes: bool,
        guard: int | None,
        update: Reduction | None,
        read: _Read | None = None,
    ) -> None:
        parameters = self.model.parameters
        counters = [loop.counter for loop in item.loops]
        spare: list[str] = []
        facts: list[Formula] = [] if read is None else [read.inside]
        outputs: list[str] = []
        for axis, index in enumerate(indices):
            value = quasi(index, scope, parameters)
            if isinstance(value, Linear):
                outputs.append(str(value))
                continue
            outputs.append(f"e{axis}")
            if value is not None:
                facts.append(equal(atom(f"e{axis}"), value))
            else:
                spare.append(f"u{axis}")
                facts.append(equal(atom(f"e{axis}"), atom(f"u{axis}")))
                facts.append(at_most_zero(scale(atom(f"u{axis}"), -1)))
        tag = f"a{self.count}"
        self.count += 1
        element = isl.Map(
            f"{parameters.declaration()}{{ {tag}[{', '.join(counters + spare)}] -> "
            f"{self.memory[name]}[{', '.join(outputs)}] : {both(*facts, parameters.context())} }}",
            self.model.context,
        )
        loc = (read.loc if read is not None else None) or item.node.loc
        must = not item.guards and not spare
        place = (item.statement, guard, name, indices, TRUE if read is None else read.inside)
        self.result[name].append(
            Access(tag, name, writes, element, len(spare), must, item, guard, update, indices, loc, place)
        )

    def live_out(self, name: str, rank: int) -> None:
        tag = f"a{self.count}"
        self.count += 1
        axes = ", ".join(f"e{axis}" for axis in range(rank))
        element = isl.Map(f"{{ {tag}[{axes}] -> {self.memory[name]}[{axes}] }}", self.model.context)
        self.result[name].append(
            Access(tag, name, False, element, 0, True, None, None, None, (), self.model.kernel.loc, tag)
        )
