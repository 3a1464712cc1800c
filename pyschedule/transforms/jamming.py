"""Unroll-and-jam: the copies of an outer loop's body share the loops inside it.

    for i in range(0, M, 2):            for i in range(0, M, 2):
        for j in range(N): S(i, j)          for j in range(N):
        for j in range(N): S(i + 1, j)  →       S(i, j); S(i + 1, j)

D. Callahan, S. Carr, K. Kennedy, *Improving Register Allocation for Subscripted Variables*, PLDI 1990.  It is legal
where the loop may move inside those of its body, which `analysis.dependences` is asked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from pyschedule.analysis import access
from pyschedule.analysis.dependences import Dependences
from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.nodes import Alloc, Break, For, Kernel, Return, Stmt, Store, Var, While
from pyschedule.ir.visitors import (
    contains,
    counters,
    local_arrays,
    substitute,
    variables,
    walk,
    written_variables,
)
from pyschedule.transforms.copies import renamed_loops
from pyschedule.transforms.nest import (
    Body,
    Names,
    expanded,
    first_access,
    live_after,
    replace_statement,
    skeleton,
    with_body,
)


@dataclass(frozen=True, slots=True)
class Proof:
    """On what jamming is proved: the nest before vectorization, the source's dependences, the counters in lanes."""

    scalar: Kernel
    dependences: Dependences
    vector: dict[str, int]


def private_scalars(body: Body, loop: For) -> frozenset[str] | None:
    """The scalars that each iteration sets before it reads them, so that copies may have their own; `None` if
    one of these is read after the loop."""
    assigned = written_variables(loop.body)
    private = frozenset(name for name in assigned if first_access(loop.body, name) != "read")
    return None if any(live_after(body, loop, name) for name in private) else private


def may_jam(loop: For, proof: Proof, private: frozenset[str], *, reorder: bool) -> bool:
    """Whether the loop may move inside the loops of its body.  `reorder`: the steps of float reductions may change
    places."""
    scalar = proof.scalar
    if contains(loop.body, While, Return, Break) or not _accumulators_are_apart(loop):
        return False
    found = next((stmt for stmt in walk(scalar.body) if isinstance(stmt, For) and stmt.var == loop.var), None)
    inner = None if found is None else _sunk(found)
    if found is None or inner is None:
        return False
    candidate = with_body(scalar, replace_statement(scalar.body, found, inner))
    present = counters(candidate.body)
    try:
        conflict = proof.dependences.conflict(
            skeleton(candidate),
            reorder_reductions=reorder,
            vector={counter: width for counter, width in proof.vector.items() if counter in present},
            expanded=(*expanded(proof.dependences.kernel, candidate), *sorted(private)),
        )
    except Unsupported:
        return False
    return conflict is None


def jammed(copies: Sequence[Body], names: Names) -> Body:
    """Bodies of one shape, statement by statement, with each loop they all have made one."""
    result: list[Stmt] = []
    if any(len(body) != len(copies[0]) for body in copies):
        for body in copies:
            result.extend(body if body is copies[0] else renamed_loops(body, names))
        return tuple(result)
    for stmts in zip(*copies, strict=True):
        first = stmts[0]
        if isinstance(first, For) and all(_same_header(first, other) for other in stmts):
            inner = [
                stmt.body if stmt is first else substitute(stmt.body, {stmt.var: Var(first.var)})
                for stmt in stmts
                if isinstance(stmt, For)
            ]
            result.append(dataclasses.replace(first, body=jammed(inner, names)))
        else:
            for stmt in stmts:
                result.extend((stmt,) if stmt is first else renamed_loops((stmt,), names))
    return tuple(result)


def _same_header(one: For, other: Stmt) -> bool:
    return isinstance(other, For) and (one.start, one.stop, one.step) == (other.start, other.stop, other.step)


def _accumulators_are_apart(loop: For) -> bool:
    """Whether the copies keep different elements in their registers: all copies read theirs before any of them
    writes its own back, so that of two sums into one element (`c[i // 2]`) one would be lost."""
    own, inner = local_arrays(loop.body), counters(loop.body)
    written: dict[str, list[Store]] = {}
    for stmt in walk(loop.body):
        if isinstance(stmt, Store) and stmt.origin is None and stmt.array not in own:
            written.setdefault(stmt.array, []).append(stmt)
    step = build.constant(loop.step)
    return not written or (
        step is not None and all(access.apart(stores, loop.var, step, inner) for stores in written.values())
    )


def _sunk(loop: For) -> Body | None:
    """The nest with the loop innermost around each statement of its body, one after the other."""
    number = 0

    def sink(body: Body) -> Body | None:
        nonlocal number
        new: list[Stmt] = []
        for stmt in body:
            if isinstance(stmt, For):
                if loop.var in variables(stmt.start) | variables(stmt.stop):
                    return None
                inner = sink(stmt.body)
                if inner is None:
                    return None
                new.append(dataclasses.replace(stmt, body=inner))
            elif isinstance(stmt, Alloc):
                new.append(stmt)
            else:
                number += 1
                counter = f"{loop.var}__{number}"
                copy = substitute((stmt,), {loop.var: Var(counter)})
                new.append(dataclasses.replace(loop, var=counter, body=copy))
        return tuple(new)

    return sink(loop.body)
