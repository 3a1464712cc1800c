"""Register tiles: arrays that live in registers need constant indices and, in lanes, whole vectors as elements.

acc = register float32[6, 64]                         acc = register float32x16[6, 4]
acc[i - i_1, j - j_1 : j - j_1 + 16] += ...           acc[i - i_1, (j - j_1) // 16] += ...
"""

from __future__ import annotations

import dataclasses
import math

from pyschedule.analysis.registers import RegisterFile
from pyschedule.ir import build
from pyschedule.ir.nodes import Alloc, Array, Compare, Expr, Kernel, Load, Ramp, Select, Stmt, Store
from pyschedule.ir.types import Vector, element_of, lanes_of
from pyschedule.ir.visitors import children, local_arrays, rewrite, variables, walk, walk_expr
from pyschedule.schedule.targets import Target
from pyschedule.transforms.nest import Body, conjuncts, with_body

Indices = tuple[Expr, ...]


def register_file(target: Target, *, strict_math: bool = False) -> RegisterFile:
    """A target's registers, as the estimate of pressure sees them."""
    return RegisterFile(
        target.register_bytes // target.vector_registers,
        target.mask_registers,
        "vectors" in target.folds,
        "broadcasts" in target.folds,
        contracts=not strict_math,
    )


def accesses_of(body: Body, name: str) -> list[Indices]:
    found: list[Indices] = []
    for stmt in walk(body):
        for top in children(stmt):
            found += [part.indices for part in walk_expr(top) if isinstance(part, Load) and part.array == name]
        if isinstance(stmt, Store) and stmt.array == name:
            found.append(stmt.indices)
    return found


def pack_lanes(kernel: Kernel) -> Kernel:
    """Register arrays that are always accessed by vectors along one axis get vectors as elements."""
    body = kernel.body
    for array in local_arrays(kernel.body).values():
        if array.space == "register" and not isinstance(array.dtype, Vector):
            body = _packed(body, array)
    return with_body(kernel, body)


def _packed(body: Body, array: Array) -> Body:
    accesses = accesses_of(body, array.name)
    if not accesses:
        return body
    places = {
        (axis, index.lanes, index.stride)
        for indices in accesses
        for axis, index in enumerate(indices)
        if isinstance(index, Ramp)
    }
    if len(places) != 1:
        return body
    axis, width, stride = places.pop()
    if stride != 1:
        return body
    if not all(
        isinstance(indices[axis], Ramp) and sum(lanes_of(index.type) > 1 for index in indices) == 1
        for indices in accesses
    ):
        return body
    extent = build.constant(array.shape[axis])
    if extent is None or isinstance(array.dtype, Vector):
        return body
    vtype = Vector(array.dtype, width)
    shape = tuple(
        build.const(-(-extent // width)) if place == axis else size for place, size in enumerate(array.shape)
    )

    def packed(indices: Indices) -> Indices:
        ramp = indices[axis]
        if not isinstance(ramp, Ramp):
            raise TypeError("a register access lost its lanes")
        return (*indices[:axis], build.floordiv(ramp.base, width), *indices[axis + 1 :])

    def expression(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.array == array.name:
            # Lanes beyond a tail hold what nobody reads: no mask is needed.
            return Load(array.name, packed(expr.indices), vtype, loc=expr.loc)
        return None

    def statement(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Alloc) and stmt.array.name == array.name:
            return dataclasses.replace(stmt, array=dataclasses.replace(array, dtype=vtype, shape=shape))
        if isinstance(stmt, Store) and stmt.array == array.name:
            element = Load(array.name, packed(stmt.indices), vtype)
            value = _kept(stmt.value, stmt.mask, element)
            return dataclasses.replace(stmt, indices=element.indices, value=value, mask=None)
        return None

    return rewrite(body, statement, expression)


def _kept(value: Expr, mask: Expr | None, element: Load) -> Expr:
    """What an element gets: the lanes that a condition turns off keep what they had, those beyond a tail need
    not."""
    tests = [] if mask is None else [test for test in conjuncts(mask) if not isinstance(test, Compare)]
    return Select(build.all_of(tests), value, element, element_of(element.type)) if tests else value


def loops_over_registers(body: Body, most: int) -> set[str]:
    """The counters that index a register array of at most so many elements."""
    registers = {
        name
        for name, array in local_arrays(body).items()
        if array.space == "register" and math.prod(build.constant(extent) or 0 for extent in array.shape) <= most
    }
    return {
        counter
        for name in registers
        for indices in accesses_of(body, name)
        for index in indices
        for counter in variables(index)
    }
