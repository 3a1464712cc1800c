"""Sums of their own for the copies of an unrolled body, so that one addition need not wait for the one before.

    for j in range(0, n, 2):        s_2 = 0.0
        s += x[j]                   for j in range(0, n, 2):
        s += x[j + 1]          →        s += x[j]
                                        s_2 += x[j + 1]
                                    s += s_2

An addition of floats takes about four cycles, of which a core can begin two in each: eight sums keep it busy.
Floats are regrouped, as lanes regroup them; integers are left to the target's compiler, which may do the same.
"""

from __future__ import annotations

import dataclasses
from typing import Final

from pyschedule.analysis import reductions
from pyschedule.analysis.reductions import Reduction
from pyschedule.ir.nodes import Assign, Broadcast, Expr, For, Stmt, Store, Var
from pyschedule.ir.types import Vector, element_of
from pyschedule.ir.visitors import substitute_expr
from pyschedule.schedule.targets import Target
from pyschedule.transforms.nest import Body, Names

#: Additions that a core has under way at once, at most.
_IN_FLIGHT: Final = 8


def split(body: Body, names: Names, target: Target) -> tuple[Body, tuple[str, ...]]:
    """The statements with the loops among them adding to several sums each; and a line for the log about each."""
    result: list[Stmt] = []
    notes: list[str] = []
    for stmt in body:
        if isinstance(stmt, For) and stmt.mapping == "serial":
            steps = _steps(stmt.body)
            most = min(_IN_FLIGHT, target.vector_registers // (2 * max(1, len(steps))))
            before: list[Stmt] = []
            after: list[Stmt] = []
            loop_body = list(stmt.body)
            for name, places in steps.items():
                sums = min(len(places), most)
                if sums < 2:
                    continue
                first, last = _spread(loop_body, name, places, [names.fresh(name) for _ in range(sums - 1)])
                before += first
                after += last
                notes.append(f"'{name}' is summed in {sums} parts (reassociated)")
            result += [*before, dataclasses.replace(stmt, body=tuple(loop_body)), *after]
        else:
            result.append(stmt)
    return (tuple(result), tuple(notes)) if notes else (body, ())


def _steps(body: Body) -> dict[str, list[int]]:
    """Where a straight body adds to a scalar float that it does not look at otherwise, for each that it adds to
    more than once."""
    if not all(isinstance(stmt, (Assign, Store)) for stmt in body):
        return {}
    found: dict[str, list[int]] = {}
    kinds: dict[str, set[tuple[str, object]]] = {}
    for place, stmt in enumerate(body):
        step = _step(stmt)
        if step is not None and isinstance(stmt, Assign):
            found.setdefault(step.name, []).append(place)
            kinds.setdefault(step.name, set()).add((step.op, stmt.vtype))
    writes = [stmt.target for stmt in body if isinstance(stmt, Assign)]
    return {
        name: places
        for name, places in found.items()
        if len(places) > 1
        and len(kinds[name]) == 1
        and writes.count(name) == len(places)
        and reductions.reader(body, name) is None
    }


def _step(stmt: Stmt) -> Reduction | None:
    step = reductions.match(stmt) if isinstance(stmt, Assign) else None
    if step is None or step.indices is not None or not isinstance(stmt, Assign):
        return None
    return step if step.dtype.is_float and element_of(stmt.vtype) == step.dtype else None


def _spread(body: list[Stmt], name: str, places: list[int], others: list[str]) -> tuple[list[Stmt], list[Stmt]]:
    """Gives the steps to `name` and the `others` in turn; what sets these first, and what adds them up."""
    first = body[places[0]]
    step = _step(first)
    assert isinstance(first, Assign) and step is not None
    vtype = first.vtype
    for number, place in enumerate(places):
        own = number % (len(others) + 1)
        stmt = body[place]
        if own and isinstance(stmt, Assign):
            value = substitute_expr(stmt.value, {name: Var(others[own - 1], vtype)})
            body[place] = dataclasses.replace(stmt, target=others[own - 1], value=value)
    zero: Expr = reductions.identity(step.op, step.dtype)
    if isinstance(vtype, Vector):
        zero = Broadcast(zero, vtype.lanes)
    before: list[Stmt] = [Assign(other, zero, vtype) for other in others]
    after: list[Stmt] = []
    parts = [name, *others]
    while len(parts) > 1:  # by halves, so that few additions wait for one another
        half = (len(parts) + 1) // 2
        for one, other in zip(parts, parts[half:], strict=False):
            value = reductions.combine(step.op, Var(one, vtype), Var(other, vtype), step.dtype)
            after.append(Assign(one, value, vtype))
        parts = parts[:half]
    return before, after
