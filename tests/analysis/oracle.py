"""What a nest does, found by running it on symbols: the oracle of the dependence tests.

Memory maps a location to what it holds: the write that it comes from, and the steps of reductions added since.
A run records, for every statement instance, the values it read.  Two nests mean the same exactly when every
instance reads the same, and the arrays end the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyschedule.analysis.reductions import match
from pyschedule.ir.nodes import (
    Assign,
    BinOp,
    BoolOp,
    Call,
    Compare,
    Const,
    Dim,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Select,
    Store,
    UnaryOp,
    Var,
)
from pyschedule.ir.visitors import Body

Location = tuple[str, tuple[Any, ...]]
#: A base value (a write's instance, or its location) and the steps since, as a sorted tuple.
Held = tuple[Any, tuple[Any, ...]]

_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
}


@dataclass
class Run:
    """`regroup`: steps of reductions are unordered.  `lanes`: counter → lanes that run in lockstep.
    `threads`: counters of loops whose iterations run last first, scalars that they write being their own."""

    kernel: Kernel
    extents: Mapping[tuple[str, int], int] = field(default_factory=dict)
    regroup: bool = True
    lanes: Mapping[str, int] = field(default_factory=dict)
    threads: frozenset[str] = frozenset()
    memory: dict[Location, Held] = field(default_factory=dict)
    reads: dict[Any, Any] = field(default_factory=dict)
    repeated: bool = False

    def __post_init__(self) -> None:
        self.execute(self.kernel.body, [({}, -1)])

    @property
    def meaning(self) -> tuple[Any, ...]:
        arrays = {array.name for array in self.kernel.array_params}
        final = {place: held for place, held in self.memory.items() if place[0] in arrays}
        return self.repeated, self.reads, final

    # Every statement runs for a list of environments: one (of number -1), or one a lane.  A scalar that a lane
    # writes is that lane's own, until the chunk ends.

    def execute(self, body: Body, lanes: list[tuple[dict[str, int], int]]) -> None:
        for stmt in body:
            if isinstance(stmt, For):
                self.loop(stmt, lanes)
            elif isinstance(stmt, If):
                taken = [lane for lane in lanes if self.value(stmt.test, lane, set())]
                self.execute(stmt.body, taken)
                self.execute(stmt.orelse, [lane for lane in lanes if lane not in taken])
            elif isinstance(stmt, (Assign, Store)):
                self.step(stmt, lanes)

    def loop(self, stmt: For, lanes: list[tuple[dict[str, int], int]]) -> None:
        if not lanes:
            return
        ranges = [
            range(*(self.value(bound, lane, set()) for bound in (stmt.start, stmt.stop, stmt.step)))
            for lane in lanes
        ]
        width = 1 if stmt.var in self.threads else self.lanes.get(stmt.var)
        if width is not None:
            (env, _), values = lanes[0], list(ranges[0])
            if stmt.var in self.threads:
                values.reverse()
            for first in range(0, len(values), width):
                chunk = [
                    ({**env, stmt.var: value}, number) for number, value in enumerate(values[first : first + width])
                ]
                self.execute(stmt.body, chunk)
                self.memory = {place: held for place, held in self.memory.items() if place[0][-1] != "@"}
            return
        for number in range(max(map(len, ranges))):
            self.execute(
                stmt.body,
                [
                    ({**env, stmt.var: span[number]}, lane)
                    for (env, lane), span in zip(lanes, ranges, strict=True)
                    if number < len(span)
                ],
            )

    def step(self, stmt: Assign | Store, lanes: list[tuple[dict[str, int], int]]) -> None:
        assert stmt.origin is not None
        update = match(stmt)
        pending: list[tuple[Location, Held | None, Any]] = []
        for lane in lanes:
            instance = (stmt.origin.statement, tuple(self.value(c, lane, set()) for c in stmt.origin.counters))
            seen: set[Any] = set()
            place = self.place(stmt, lane, seen)
            if isinstance(stmt, Assign):
                own = (f"{stmt.target}@", (lane[1],))
                steps_free = update is not None and (update.exact or self.regroup)
                if lane[1] >= 0 and (not steps_free or own in self.memory):
                    place = own
            if update is not None and (update.exact or self.regroup):
                self.value(update.value, lane, seen)
                base, steps = self.memory.get(place, (place, ()))
                if steps and steps[-1][0] != update.op:
                    base = (base, steps)
                pending.append((place, None, (update.op, instance)))
                seen.add(("base", base))
            else:
                self.value(stmt.value, lane, seen)
                pending.append((place, (instance, ()), None))
            self.repeated = self.repeated or instance in self.reads
            self.reads[instance] = frozenset(seen)
        written = [place for place, _, _ in pending]
        if len(set(written)) < len(written) and any(new is not None for _, new, _ in pending):
            self.repeated = True  # two lanes write one location at once
        for place, new, step in pending:
            base, steps = self.memory.get(place, (place, ()))
            if new is not None:
                self.memory[place] = new
            elif steps and steps[-1][0] != step[0]:  # another operation: no longer free to move
                self.memory[place] = ((base, steps), (step,))
            else:
                self.memory[place] = (base, tuple(sorted((*steps, step))))

    def place(self, stmt: Assign | Store, lane: tuple[dict[str, int], int], seen: set[Any]) -> Location:
        if isinstance(stmt, Assign):
            return (stmt.target, ())
        return (stmt.array, tuple(self.value(index, lane, seen) for index in stmt.indices))

    def value(self, expr: Expr, lane: tuple[dict[str, int], int], seen: set[Any]) -> Any:
        """An integer, or what a location holds; everything read is added to `seen`."""
        env = lane[0]
        if isinstance(expr, Const):
            return expr.value
        if isinstance(expr, Dim):
            return self.extents[expr.array, expr.axis]
        if isinstance(expr, Var) and expr.name in env:
            return env[expr.name]
        if isinstance(expr, (Var, Load)):
            place: Location = (
                (expr.name, ())
                if isinstance(expr, Var)
                else (expr.array, tuple(self.value(index, lane, seen) for index in expr.indices))
            )
            own = (f"{place[0]}@", (lane[1],))
            held = self.memory.get(own if own in self.memory else place, (place, ()))
            seen.add((place, held))
            return held
        if isinstance(expr, (BinOp, Compare)):
            return self._apply(expr.op, self.value(expr.left, lane, seen), self.value(expr.right, lane, seen))
        if isinstance(expr, BoolOp):
            left = self.value(expr.left, lane, seen)
            return left if bool(left) != (expr.op == "and") else self.value(expr.right, lane, seen)
        if isinstance(expr, UnaryOp):
            operand = self.value(expr.operand, lane, seen)
            return (not operand) if expr.op == "not" else -operand
        if isinstance(expr, Select):
            arm = expr.then if self.value(expr.test, lane, seen) else expr.orelse
            return self.value(arm, lane, seen)
        assert isinstance(expr, Call)
        args = [self.value(arg, lane, seen) for arg in expr.args]
        return {"pmin": min, "pmax": max}[expr.function](args) if _numbers(*args) else tuple(args)

    @staticmethod
    def _apply(op: str, left: Any, right: Any) -> Any:
        if _numbers(left, right) and op in _ARITHMETIC:
            return _ARITHMETIC[op](left, right)
        if op in ("<", "<=", ">", ">=", "==", "!="):  # a test of data: some answer that depends on the data
            return zlib.crc32(repr((op, left, right)).encode()) % 2 == 0
        return (op, left, right)


def _numbers(*values: Any) -> bool:
    return all(isinstance(value, (int, float)) for value in values)
