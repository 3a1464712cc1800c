"""Kernels made simpler without a change of meaning: expressions (see `algebra`), branches and loops.

for k in range(0, n, 4):                   for k in range(0, n, 4):
    for i in range(k, k + 1):                  x[k] = 1
        stage = i * 1 & 3          →
        if stage == 0 and i < k + 4:
            x[i + 0] = 1
"""

from __future__ import annotations

import dataclasses
from typing import overload

from pyschedule.analysis.induction import max_trip, static_trip
from pyschedule.ir.nodes import (
    Assign,
    Break,
    Const,
    Dim,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Return,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.types import Scalar, Type, element_of, lanes_of
from pyschedule.ir.visitors import (
    Body,
    map_children,
    may_break,
    rewrite_expr,
    substitute,
    variables,
    walk_expr,
    written_variables,
)
from pyschedule.transforms.algebra import negation, simplified, truth_of
from pyschedule.transforms.dead_scalars import without_dead_scalars
from pyschedule.transforms.facts import Facts, has_effect
from pyschedule.transforms.nest import conjuncts

#: What runs the iterations one after the other, or may: one iteration needs no loop.  A loop over the threads
#: of a block says which of them runs its only iteration.
_UNROLLABLE = ("serial", "parallel")


#: Scalars whose value is known at some point of the program.
Scalars = dict[str, Const]


@overload
def simplify(subject: Kernel, *, inline: bool = True) -> Kernel: ...
@overload
def simplify(subject: Body, *, inline: bool = True) -> Body: ...
def simplify(subject: Kernel | Body, *, inline: bool = True) -> Kernel | Body:
    """The kernel, or the body, simplified; the very object given where no rule fires.

    `inline`: a loop of one iteration gives way to its body, and one of none goes (say no while directives have to
    find loops by their names); so do integers that are set and never read.  Of a body alone, scalars that it does
    not assign are taken to be indices.
    """
    if isinstance(subject, Kernel):
        extents = {
            Dim(array.name, axis): extent
            for array in subject.array_params
            for axis, extent in enumerate(array.shape)
            if isinstance(extent, Const)
        }
        facts = Facts(assigned=frozenset(written_variables(subject.body)), extents=extents)
        body = _Simplifier(inline).body(subject.body, facts, {})
        if inline and facts.assigned:
            body = without_dead_scalars(body)
        return subject if body is subject.body else dataclasses.replace(subject, body=body)
    return _Simplifier(inline).body(subject, Facts(assigned=frozenset(written_variables(subject))), {})


@dataclasses.dataclass(frozen=True, slots=True)
class _Simplifier:
    """Its methods are given the scalars whose values are constants there, and leave in that dictionary those that
    are constants afterwards."""

    inline: bool

    def body(self, body: Body, facts: Facts, scalars: Scalars) -> Body:
        result: list[Stmt] = []
        for stmt in body:
            result.extend(self.statement(stmt, facts, scalars))
            if result and isinstance(result[-1], (Break, Return)):
                break  # nothing after it runs
        unchanged = len(result) == len(body) and all(new is old for new, old in zip(result, body, strict=True))
        return body if unchanged else tuple(result)

    def statement(self, stmt: Stmt, facts: Facts, scalars: Scalars) -> Body:
        """What takes the place of a statement."""
        if isinstance(stmt, For):
            return self.loop(stmt, facts, scalars)
        if isinstance(stmt, While):
            return self.while_loop(stmt, facts, scalars)
        new: Stmt = map_children(stmt, lambda part: simplified(_filled(part, scalars), facts))
        if isinstance(new, If):
            return self.branch(new, facts, scalars)
        if isinstance(new, Assign):
            scalars.pop(new.target, None)
            if isinstance(new.value, Const) and _is_exact(new.value, new.vtype):
                scalars[new.target] = new.value
        if isinstance(new, Store) and new.mask is not None:
            truth = truth_of(new.mask)
            if truth is False:
                return ()
            if truth and _as_many_lanes(new):
                new = dataclasses.replace(new, mask=None)
        return (new,)

    def branch(self, stmt: If, facts: Facts, scalars: Scalars) -> Body:
        """`if` with a test that is decided; without anything to do; with an `else` alone.

        In its body the test holds, and need not be tested again.
        """
        truth = truth_of(stmt.test)
        if truth is not None:
            return self.body(stmt.body if truth else stmt.orelse, facts, scalars)
        lasting = [test for test in conjuncts(stmt.test) if facts.is_index(test)]
        others = dict(scalars)
        body = self.body(stmt.body, facts.given(dict.fromkeys(lasting, True)), scalars)
        refuted = {stmt.test: False} if lasting == [stmt.test] else {}
        orelse = self.body(stmt.orelse, facts.given(refuted), others)
        _join(scalars, others, body, orelse)
        if not body and not orelse:
            return () if not has_effect(stmt.test) else (self.replaced(stmt, body=(), orelse=()),)
        if not body:
            return (dataclasses.replace(stmt, test=negation(stmt.test), body=orelse, orelse=()),)
        return (self.replaced(stmt, body=body, orelse=orelse),)

    def while_loop(self, stmt: While, facts: Facts, scalars: Scalars) -> Body:
        for name in written_variables(stmt.body):
            scalars.pop(name, None)
        new: While = map_children(stmt, lambda part: simplified(_filled(part, scalars), facts))
        if truth_of(new.test) is False:
            return ()
        return (self.replaced(new, body=self.body(new.body, facts, dict(scalars))),)

    def loop(self, stmt: For, facts: Facts, scalars: Scalars) -> Body:
        """A loop that never runs, or runs once, or does nothing; else its body with what the loop tells."""
        new: For = map_children(stmt, lambda part: simplified(_filled(part, scalars), facts))
        silent = not any(has_effect(part) for part in (new.start, new.stop, new.step))
        if self.inline and silent and max_trip(new, facts.loops) == 0:
            return ()
        if self.inline and silent and static_trip(new) == 1 and _may_inline(new):
            return self.body(substitute(new.body, {new.var: new.start}), facts, scalars)
        assigned = written_variables(new.body)
        for name in assigned:
            scalars.pop(name, None)
        inner = facts.inside(new, steady=_steady(new, assigned))
        body = self.body(new.body, inner, dict(scalars))
        if silent and not body:
            return ()
        return (self.replaced(new, body=body),)

    @staticmethod
    def replaced(stmt: Stmt, **parts: Body) -> Stmt:
        changed = {name: part for name, part in parts.items() if part is not getattr(stmt, name)}
        return dataclasses.replace(stmt, **changed) if changed else stmt


def _as_many_lanes(stmt: Store) -> bool:
    """Whether the indices alone say how many lanes a store has."""
    lanes = max((lanes_of(index.type) for index in stmt.indices), default=1)
    return stmt.mask is None or lanes >= lanes_of(stmt.mask.type)


def _filled(expr: Expr, scalars: Scalars) -> Expr:
    """The expression with constants in place of the scalars that have them."""
    if not scalars:
        return expr

    def value(part: Expr) -> Expr | None:
        known = scalars.get(part.name) if isinstance(part, Var) else None
        return known if known is None or known.dtype == part.type else Const(known.value, element_of(part.type))

    return rewrite_expr(expr, value)


def _is_exact(value: Const, kind: Type) -> bool:
    """Whether a constant is what a scalar of this type holds, bit for bit."""
    return isinstance(kind, Scalar) and value.dtype.name == kind.name and not kind.is_float


def _join(scalars: Scalars, others: Scalars, body: Body, orelse: Body) -> None:
    """Leaves in `scalars`, which hold at the end of `body`, what holds after either arm of an `if`."""
    if body and isinstance(body[-1], (Break, Return)):
        scalars.clear()
        scalars.update(others)
    elif not (orelse and isinstance(orelse[-1], (Break, Return))):
        for name in [name for name, value in scalars.items() if others.get(name) != value]:
            del scalars[name]


def _steady(loop: For, assigned: set[str]) -> bool:
    """Whether the bounds of a loop mean inside it what they meant on entry."""
    bounds = (loop.start, loop.stop, loop.step)
    return not any(isinstance(part, Load) for bound in bounds for part in walk_expr(bound)) and assigned.isdisjoint(
        name for bound in bounds for name in variables(bound)
    )


def _may_inline(loop: For) -> bool:
    """A body can stand for its loop if it does not leave it, and if the counter's value does not change."""
    if loop.mapping not in _UNROLLABLE or may_break(loop.body):
        return False
    reads_array = any(isinstance(part, Load) for part in walk_expr(loop.start))
    return not reads_array and written_variables(loop.body).isdisjoint(variables(loop.start))
