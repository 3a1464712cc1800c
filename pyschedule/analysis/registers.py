"""How many vector registers the body of a loop needs: an estimate from live ranges, before any code exists.

Counted are floats and vectors; scalars of integers live in other registers.  A value takes as many registers
as its bytes fill, a scalar float one.  Held all the time are the elements of register arrays, scalars that go
around the loop, and what the loop only reads (constants and invariants).  On top of these come, statement by
statement, the locals and the elements that are loaded before and used again, and the operands that the
expression keeps at once; the last of them may stay in memory, as an operand of the instruction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pyschedule.ir.build import constant
from pyschedule.ir.nodes import Assign, Broadcast, Const, Expr, If, Load, Stmt, Store, Var, While
from pyschedule.ir.types import Type, Vector, element_of
from pyschedule.ir.visitors import Body, children, local_arrays, walk, walk_expr


def pressure(body: Body, vector_bytes: int, registers: Collection[str] = ()) -> int:
    """The most registers of `vector_bytes` that are live at once in the body of an innermost loop.

    `registers` names arrays held in registers that are declared outside; those declared in the body as
    `"register"` are known, and an array that is only ever indexed by constants is taken for one.
    """
    return _Estimate(tuple(_leaves(body)), vector_bytes, _register_arrays(body, registers)).total()


@dataclass(frozen=True, slots=True)
class _Estimate:
    leaves: Sequence[Stmt]
    vector_bytes: int
    arrays: frozenset[str]

    def total(self) -> int:
        ranges = [*self._locals(), *self._shared_loads()]
        shared = {part for part, _, _ in ranges if isinstance(part, Load)}
        most = 0
        for place, stmt in enumerate(self.leaves):
            live = sum(self.size(part.type) for part, first, last in ranges if first < place <= last)
            loaded = {part for part, first, last in ranges if part in shared and first < place <= last}
            need = max((self.need(value, loaded) for value in _values(stmt)), default=0)
            most = max(most, live + need)
        return self._held() + most

    def size(self, type_: Type) -> int:
        """Registers that a value takes; none for a scalar that is no float."""
        if isinstance(type_, Vector):
            return -(-type_.bytes // self.vector_bytes)
        return 1 if element_of(type_).is_float else 0

    def need(self, expr: Expr, loaded: Collection[Expr]) -> int:
        """Registers to evaluate an expression, its result included (Sethi and Ullman's number)."""
        if isinstance(expr, (Const, Var)) or expr in loaded:
            return 0
        if isinstance(expr, Load):
            masked = 0 if expr.mask is None else self.size(expr.mask.type)
            return 0 if expr.array in self.arrays else self.size(expr.type) + masked
        if isinstance(expr, Broadcast) and isinstance(expr.value, (Const, Var)):
            return 0
        parts = [(self.need(part, loaded), part) for part in children(expr)]
        # Dearest first, so that the fewest results wait; a load comes last and is not waited for.
        parts.sort(key=lambda item: (isinstance(item[1], Load), -item[0]))
        most, waiting = self.size(expr.type), 0
        for number, (need, part) in enumerate(parts):
            folded = number > 0 and isinstance(part, Load) and part.mask is None and part is parts[-1][1]
            if need and not folded:
                most = max(most, waiting + need)
                waiting += self.size(part.type)
        return most

    def _held(self) -> int:
        """Accumulators, scalars that go around, constants and invariants."""
        elements: dict[tuple[str, tuple[Expr, ...]], int] = {}
        for access in (one for stmt in self.leaves for one in _accesses(stmt)):
            if access.array in self.arrays:
                kind = access.value.type if isinstance(access, Store) else access.type
                key = access.array, access.indices
                elements[key] = max(1, self.size(kind), elements.get(key, 0))
        constants = {
            part
            for stmt in self.leaves
            for value in _values(stmt)
            for part in _read(value)
            if isinstance(part, Const) and part.dtype.is_float
        }
        written = {stmt.target for stmt in self.leaves if isinstance(stmt, Assign)}
        first_write: dict[str, int] = {}
        around: dict[str, int] = {}
        for place, stmt in enumerate(self.leaves):
            for value in _values(stmt):
                for part in _read(value):
                    fresh = isinstance(part, Var) and first_write.get(part.name, place) >= place
                    if isinstance(part, Var) and (part.name not in written or fresh):
                        around[part.name] = self.size(part.type)
            if isinstance(stmt, Assign):
                first_write.setdefault(stmt.target, place)
        return sum(elements.values()) + len(constants) + sum(around.values())

    def _locals(self) -> Iterator[tuple[Expr, int, int]]:
        """Locals that are written before they are read: from the first writing to the last reading."""
        first: dict[str, tuple[int, Type]] = {}
        last: dict[str, int] = {}
        around: set[str] = set()
        for place, stmt in enumerate(self.leaves):
            for value in _values(stmt):
                for part in _read(value):
                    if isinstance(part, Var):
                        last[part.name] = place
                        if part.name not in first:
                            around.add(part.name)
            if isinstance(stmt, Assign):
                first.setdefault(stmt.target, (place, stmt.vtype))
        for name, (place, type_) in first.items():
            if name in last and name not in around:
                yield Var(name, type_), place, last[name]

    def _shared_loads(self) -> Iterator[tuple[Expr, int, int]]:
        """Loads that several statements have in common, with no store to the array between them."""
        ranges: dict[Load, tuple[int, int]] = {}
        for place, stmt in enumerate(self.leaves):
            for value in _values(stmt):
                for part in _read(value):
                    if isinstance(part, Load) and part.array not in self.arrays:
                        ranges[part] = ranges.get(part, (place, place))[0], place
            if isinstance(stmt, Store):
                for load in [one for one in ranges if one.array == stmt.array]:
                    yield load, *ranges.pop(load)
        for load, (first, last) in ranges.items():
            yield load, first, last


def _leaves(body: Body) -> Iterator[Stmt]:
    """The statements that compute, in textual order."""
    return (stmt for stmt in walk(body) if isinstance(stmt, (Assign, Store, If, While)))


def _values(stmt: Stmt) -> list[Expr]:
    """The expressions of a statement that are computed in vector registers."""
    if isinstance(stmt, (Assign, Store)):
        return [stmt.value]
    return [stmt.test] if isinstance(stmt, (If, While)) else []


def _read(expr: Expr) -> Iterator[Expr]:
    """`expr` and the expressions in it, short of addresses."""
    yield expr
    if isinstance(expr, Load):
        if expr.mask is not None:
            yield from _read(expr.mask)
        return
    for part in children(expr):
        yield from _read(part)


def _accesses(stmt: Stmt) -> Iterator[Load | Store]:
    if isinstance(stmt, Store):
        yield stmt
    for child in children(stmt):
        yield from (part for part in walk_expr(child) if isinstance(part, Load))


def _register_arrays(body: Body, given: Collection[str]) -> frozenset[str]:
    declared = {name for name, array in local_arrays(body).items() if array.space == "register"}
    constants: dict[str, bool] = {}
    for access in (one for stmt in walk(body) for one in _accesses(stmt)):
        fixed = bool(access.indices) and all(constant(index) is not None for index in access.indices)
        constants[access.array] = constants.get(access.array, True) and fixed
    return frozenset({*given, *declared, *(name for name, fixed in constants.items() if fixed)})
