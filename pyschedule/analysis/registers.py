"""How many vector registers the body of a loop needs: an estimate from live ranges, before any code exists.

Counted are floats and vectors; scalars of integers live in other registers.  A value takes as many registers
as its bytes fill, a scalar float one.  Held all the time are the elements of register arrays, scalars that go
around the loop, and what the loop only reads (constants and invariants).  On top of these come, statement by
statement, the locals and the elements that are loaded before and used again, and the operands that the
expression keeps at once.  What an instruction can read from memory needs none, if it is used once; nor does the
result of `a = a + x * y`, which is left in `a`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pyschedule.ir.build import constant
from pyschedule.ir.nodes import (
    Assign,
    BinOp,
    Broadcast,
    Call,
    Const,
    Expr,
    If,
    Load,
    Ramp,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.types import BOOL, Type, Vector, element_of, lanes_of
from pyschedule.ir.visitors import Body, children, local_arrays, walk, walk_expr


@dataclass(frozen=True, slots=True)
class RegisterFile:
    """Registers for values of `bytes` each.  `masks`: masks have registers of their own.  `folds_vectors` and
    `folds_broadcasts`: an instruction can read a vector, or one element for all lanes, from memory.  `contracts`:
    a product and a sum are one instruction."""

    bytes: int
    masks: bool = False
    folds_vectors: bool = True
    folds_broadcasts: bool = True
    contracts: bool = True


def pressure(body: Body, file: RegisterFile, registers: Collection[str] = ()) -> int:
    """The most registers of a file that are live at once in the body of an innermost loop.

    `registers` names arrays held in registers that are declared outside; those declared in the body as
    `"register"` are known, and an array that is only ever indexed by constants is taken for one.
    """
    return _estimate(body, file, registers).total()


def accumulators(body: Body, file: RegisterFile, registers: Collection[str] = ()) -> int:
    """How many of the registers hold elements of register arrays, or scalars that go around the loop."""
    estimate = _estimate(body, file, registers)
    return estimate.elements() + sum(estimate.around()[0])


def _estimate(body: Body, file: RegisterFile, registers: Collection[str]) -> _Estimate:
    leaves = tuple(_leaves(body))
    lanes = any(lanes_of(value.type) > 1 for stmt in leaves for value in _values(stmt))
    accesses = tuple(one for stmt in leaves for one in _accesses(stmt))
    return _Estimate(leaves, file, _register_arrays(body, accesses, registers), lanes, accesses)


@dataclass(frozen=True, slots=True)
class _Estimate:
    leaves: Sequence[Stmt]
    file: RegisterFile
    arrays: frozenset[str]
    lanes: bool  # some statement computes vectors
    accesses: tuple[Load | Store, ...]

    def total(self) -> int:
        ranges = [*self._locals(), *self._shared_loads()]
        shared = {part for part, first, last in ranges if isinstance(part, Load) and first < last}
        begins: dict[int, list[Expr]] = {}
        ends: dict[int, list[Expr]] = {}
        for part, first, last in ranges:
            if first < last:
                begins.setdefault(first + 1, []).append(part)
                ends.setdefault(last + 1, []).append(part)
        most = live = 0
        loaded: set[Expr] = set()
        for place, stmt in enumerate(self.leaves):
            for part in ends.get(place, ()):
                live -= self.size_of(part)
                loaded.discard(part)
            for part in begins.get(place, ()):
                live += self.size_of(part)
                if isinstance(part, Load):
                    loaded.add(part)
            need = max((_Need(self, loaded, shared).of(value, stmt) for value in _values(stmt)), default=0)
            most = max(most, live + need)
        return self._held() + most

    def size(self, type_: Type) -> int:
        """Registers that a value takes; none for a scalar that is no float, nor for a mask with its own."""
        if isinstance(type_, Vector):
            return 0 if self.file.masks and element_of(type_) == BOOL else -(-type_.bytes // self.file.bytes)
        return 1 if element_of(type_).is_float else 0

    def size_of(self, part: Expr) -> int:
        """Registers of a value: among vectors an integer that is loaded is spread over the lanes."""
        spread = self.lanes and isinstance(part, Load) and element_of(part.type) != BOOL
        return max(self.size(part.type), int(spread))

    def elements(self) -> int:
        found: dict[tuple[str, tuple[Expr, ...]], int] = {}
        for access in self.accesses:
            if access.array in self.arrays:
                kind = access.value.type if isinstance(access, Store) else access.type
                key = access.array, access.indices
                found[key] = max(1, self.size(kind), found.get(key, 0))
        return sum(found.values())

    def _held(self) -> int:
        """Accumulators, scalars that go around, constants and invariants."""
        constants = {
            part
            for stmt in self.leaves
            for value in _values(stmt)
            for part in _read(value)
            if isinstance(part, Const) and part.dtype.is_float
        }
        return self.elements() + self._masks() + len(constants) + sum(map(sum, self.around()))

    def around(self) -> tuple[list[int], list[int]]:
        """The registers of the variables that hold from one iteration to the next: those that the body writes, and
        those that it only reads."""
        names = {stmt.target for stmt in self.leaves if isinstance(stmt, Assign)}
        first_write: dict[str, int] = {}
        found: dict[str, int] = {}
        for place, stmt in enumerate(self.leaves):
            for part in (part for value in _values(stmt) for part in _read(value) if isinstance(part, Var)):
                if part.name not in names or first_write.get(part.name, place) >= place:
                    found[part.name] = self.size(part.type)
            if isinstance(stmt, Assign):
                first_write.setdefault(stmt.target, place)
        written = [size for name, size in found.items() if name in names]
        return written, [size for name, size in found.items() if name not in names]

    def _masks(self) -> int:
        """Masks of accesses, where they take vector registers: most are those of a tail, and do not change."""
        masks = {access.mask for access in self.accesses if access.mask is not None}
        return sum(self.size(mask.type) for mask in masks)

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


@dataclass(frozen=True, slots=True)
class _Need:
    """Registers to evaluate an expression (Sethi and Ullman's numbers), beside those of the values in `loaded`.
    What is `shared` has to stay in a register once it is loaded."""

    within: _Estimate
    loaded: Collection[Expr]
    shared: Collection[Expr]

    def of(self, value: Expr, stmt: Stmt) -> int:
        """For the value of a statement; an update of a register leaves the result there."""
        if not isinstance(value, (BinOp, Call)) or not any(_is_target(part, stmt) for part in children(value)):
            return self.expression(value)
        others = [part for part in self.operands(value) if not _is_target(part, stmt)]
        return self.together(value, others, beside=1)

    def expression(self, expr: Expr) -> int:
        if isinstance(expr, (Const, Var)) or expr in self.loaded:
            return 0
        if isinstance(expr, Load):
            # A mask that is a vector is widened to the lanes of each access.
            mask = 0 if expr.mask is None else self.within.size(expr.mask.type)
            return 0 if expr.array in self.within.arrays else self.within.size_of(expr) + mask
        if isinstance(expr, Broadcast):
            return self.expression(expr.value)
        return max(self.within.size(expr.type), self.together(expr, self.operands(expr)))

    def operands(self, expr: Expr) -> list[Expr]:
        """What one instruction reads: for a sum with a product in it the factors too, where they are one."""
        parts = list(children(expr))
        if self.within.file.contracts and isinstance(expr, BinOp) and expr.op in "+-" and expr.dtype.is_float:
            product = next((part for part in parts if isinstance(part, BinOp) and part.op == "*"), None)
            if product is not None:
                parts.remove(product)
                parts += children(product)
        return parts

    def together(self, expr: Expr, parts: Sequence[Expr], beside: int = 0) -> int:
        """Operands of one instruction: dearest first, so that the fewest results wait.  One may stay in memory if
        another is in a register; so many `beside` these are."""
        foldable = (part for part in parts if len(parts) + beside > 1 and self.folds(part, lanes_of(expr.type)))
        folded = next(foldable, None)
        needs = [(self.expression(part), part) for part in parts if part is not folded]
        most = waiting = 0
        for need, part in sorted(needs, key=lambda item: -item[0]):
            if need:
                most = max(most, waiting + need)
                waiting += self.within.size_of(part)
        return most

    def folds(self, part: Expr, lanes: int) -> bool:
        if isinstance(part, Broadcast):
            part = part.value
        if not isinstance(part, Load) or part.mask is not None or part.array in self.within.arrays:
            return False
        if part in self.shared or part in self.loaded:
            return False
        file, vectors = self.within.file, [index for index in part.indices if lanes_of(index.type) > 1]
        if not vectors:
            return file.folds_broadcasts if lanes > 1 else file.folds_vectors
        return file.folds_vectors and all(isinstance(index, Ramp) and index.stride == 1 for index in vectors)


def _is_target(part: Expr, stmt: Stmt) -> bool:
    """Whether an expression is what a statement writes."""
    if isinstance(stmt, Store):
        return isinstance(part, Load) and (part.array, part.indices) == (stmt.array, stmt.indices)
    return isinstance(stmt, Assign) and isinstance(part, Var) and part.name == stmt.target


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


def _register_arrays(body: Body, accesses: Collection[Load | Store], given: Collection[str]) -> frozenset[str]:
    declared = {name for name, array in local_arrays(body).items() if array.space == "register"}
    constants: dict[str, bool] = {}
    for access in accesses:
        if constants.get(access.array, True):
            fixed = bool(access.indices) and all(constant(index) is not None for index in access.indices)
            constants[access.array] = fixed
    return frozenset({*given, *declared, *(name for name, fixed in constants.items() if fixed)})
