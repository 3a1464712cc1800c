"""Widening: a half array that is accumulated into across memory gets a float32 shadow, rounded once at the end.

Before, where the tiles of `k` stand outside those of `C` (each round of `k_0` would round `C` again):

    for k_0 ...: for i ...: C[i] += ...                  (C is float16)

After:

    C_wide = local float32[C.shape[0]]
    for i ...: C_wide[i] = C[i]
    for k_0 ...: for i ...: C_wide[i] += ...
    for i ...: C[i] = C_wide[i]

Where the accumulator stays in registers from the first step of the reduction to the last, nothing is needed:
the store rounds once anyway.
"""

from __future__ import annotations

import dataclasses

from pyschedule.analysis import reductions
from pyschedule.ir import build
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    Expr,
    For,
    Kernel,
    Load,
    Origin,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.types import FLOAT32, element_of
from pyschedule.ir.visitors import rewrite, variables, walk, walk_with_loops
from pyschedule.transforms.nest import Body, Names


def rounded_repeatedly(source: Kernel, tiled: Kernel) -> tuple[str, ...]:
    """The half arrays that `tiled` stores to inside a loop over which the source accumulates into them."""
    halves = {array.name for array in source.array_params if element_of(array.dtype).is_half}
    summed: dict[str, set[tuple[str, int]]] = {}
    for stmt, around in walk_with_loops(source.body):
        found = reductions.match(stmt) if isinstance(stmt, Store) and stmt.array in halves else None
        if found is None or found.indices is None:
            continue
        for loop in around:
            if isinstance(loop, While) or not any(loop.var in variables(index) for index in found.indices):
                summed.setdefault(found.name, set()).add((loop.source, loop.ordinal))
    result = {
        stmt.array
        for stmt, around in walk_with_loops(tiled.body)
        if isinstance(stmt, Store)
        and stmt.array in summed
        and any((loop.source, loop.ordinal) in summed[stmt.array] for loop in around)
    }
    return tuple(sorted(result))


def widen(kernel: Kernel, names_of_arrays: tuple[str, ...]) -> Kernel:
    """The source kernel with a float32 shadow for each of these parameters."""
    names = Names(kernel)
    body = kernel.body
    before: list[Stmt] = []
    after: list[Stmt] = []
    number = 1 + max(
        (stmt.origin.statement for stmt in walk(body) if isinstance(stmt, (Assign, Store)) and stmt.origin),
        default=0,
    )
    for array in kernel.array_params:
        if array.name not in names_of_arrays:
            continue
        shadow = Array(names.fresh(f"{array.name}_wide"), FLOAT32, array.shape, space="local")
        before.append(Alloc(shadow))
        if array.name not in kernel.outputs:  # those have no value yet
            before += _transfer(array, array.name, shadow.name, number, names)
        after += _transfer(array, shadow.name, array.name, number + 1, names)
        number += 2
        body = _renamed(body, array.name, shadow.name)
    return dataclasses.replace(kernel, body=(*before, *body, *after))


def _transfer(array: Array, source: str, target: str, number: int, names: Names) -> Body:
    counters = [names.fresh(f"w_{axis}") for axis in range(array.rank)]
    at: tuple[Expr, ...] = tuple(Var(counter) for counter in counters)
    body: Stmt = Store(target, at, Load(source, at, FLOAT32), origin=Origin(number, at))
    for counter, extent in reversed(list(zip(counters, array.shape, strict=True))):
        body = For(counter, build.ZERO, extent, build.ONE, (body,))
    return (body,)


def _renamed(body: Body, old: str, new: str) -> Body:
    def statement(stmt: Stmt) -> Stmt | None:
        return dataclasses.replace(stmt, array=new) if isinstance(stmt, Store) and stmt.array == old else None

    def expression(expr: Expr) -> Expr | None:
        return dataclasses.replace(expr, array=new) if isinstance(expr, Load) and expr.array == old else None

    return rewrite(body, statement, expression)
