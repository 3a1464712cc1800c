"""Random kernels with wild indices, and a way to run one while every access is watched."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Mapping

from pyschedule.analysis.bounds import PLAIN, SHIFT, Bounds
from pyschedule.analysis.sites import accesses
from pyschedule.ir.nodes import (
    Array,
    Assign,
    BoolOp,
    Break,
    Dim,
    Expr,
    For,
    If,
    Load,
    Return,
    Select,
    Stmt,
    Store,
    Var,
)
from pyschedule.ir.types import INT64
from pyschedule.ir.visitors import Body, map_children
from tests.analysis.evaluate import evaluate
from tests.analysis.helpers import array, cmp, ix, load, loop, low, minus, op, plus, store, when

NX, NY = Dim("x", 0), Dim("y", 0)
#: The parameters of the kernels that `random_body` makes.
PARAMS: tuple[Array | Var, ...] = (array("x", dtype=INT64), array("y", dtype=INT64), Var("n", INT64))


def random_body(seed: int) -> Body:
    maker = Maker(seed)
    return (Assign("s", ix(maker.rng.randint(0, 2)), INT64), *maker.body([], 3))


class LeaveError(Exception):
    """The loop, or the kernel, was left."""


class Watched:
    """Runs a kernel over arrays of small integers and notes every index with its decision."""

    def __init__(
        self, body: Body, bounds: Bounds, values: Mapping[str, int], data: Mapping[str, list[int]]
    ) -> None:
        self.values = dict(values)
        self.data = data
        self.decisions = {id(access): one for access, one in zip(accesses(body), bounds.decisions, strict=True)}
        # Decisions of the accesses outside their arrays, and of those on the wrong side of zero.
        self.outside: set[str] = set()
        self.misread: set[str] = set()

    def start(self, body: Body) -> None:
        with contextlib.suppress(LeaveError):
            self.run(body)

    def run(self, body: Body) -> None:
        for stmt in body:
            self.step(stmt)

    def step(self, stmt: Stmt) -> None:
        if isinstance(stmt, For):
            counts = range(self.value(stmt.start), self.value(stmt.stop), self.value(stmt.step))
            with contextlib.suppress(StopIteration):
                for count in counts:
                    self.values[stmt.var] = count
                    self.run(stmt.body)
        elif isinstance(stmt, If):
            self.run(stmt.body if self.value(stmt.test) else stmt.orelse)
        elif isinstance(stmt, Assign):
            self.values[stmt.target] = self.value(stmt.value)
        elif isinstance(stmt, Store):
            value = self.value(stmt.value)
            at = self.watched(stmt)
            if at is not None:
                self.data[stmt.array][at] = value
        elif isinstance(stmt, Break):
            raise StopIteration
        elif isinstance(stmt, Return):
            raise LeaveError

    def watched(self, access: Load | Store) -> int | None:
        """Where the access goes; `None`: outside, which is noted, and the run goes on as if it were zero."""
        (index,) = access.indices
        (decision,) = self.decisions[id(access)]
        extent = self.values[f"{access.array}.shape[0]"]
        at = self.value(index)
        if not -extent <= at < extent:
            self.outside.add(decision)
            return None
        if (decision == PLAIN and at < 0) or (decision == SHIFT and at >= 0):
            self.misread.add(decision)
        return at % extent

    def value(self, expr: Expr) -> int:
        if isinstance(expr, Load):
            at = self.watched(expr)
            return 0 if at is None else self.data[expr.array][at]
        if isinstance(expr, BoolOp):
            left = self.value(expr.left)
            return left if bool(left) == (expr.op == "or") else self.value(expr.right)
        if isinstance(expr, Select):
            return self.value(expr.then if self.value(expr.test) else expr.orelse)
        parts = {f"#{n}": self.value(part) for n, part in enumerate(_parts(expr))}
        return int(evaluate(_with_parts(expr, parts), {**self.values, **parts}))


def _parts(expr: Expr) -> list[Expr]:
    names = ("left", "right", "operand")
    found = [getattr(expr, name) for name in names if hasattr(expr, name)]
    return found + list(getattr(expr, "args", ()))


def _with_parts(expr: Expr, parts: Mapping[str, int]) -> Expr:
    names = iter(parts)
    changed: Expr = map_children(expr, lambda _: Var(next(names)))
    return changed


class Maker:
    """Random kernels over integer arrays `x`, `y` and an argument `n`."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names = itertools.count()

    def index(self, scope: list[str], depth: int = 1) -> Expr:
        pick = self.rng.random()
        if depth == 0 or pick < 0.3:
            return ix(self.rng.choice(scope)) if scope and self.rng.random() < 0.75 else self.leaf()
        inner = self.index(scope, depth - 1)
        if pick < 0.6:
            return plus(inner, self.rng.randint(-2, 2))
        if pick < 0.68:
            return op(self.rng.choice(["//", "%"]), inner, self.rng.choice([2, 3]))
        if pick < 0.76:
            return low(inner, minus(NX, 1))
        if pick < 0.84:
            return minus(self.leaf(), inner)
        if pick < 0.9:
            return Select(self.test(scope), inner, self.index(scope, 0), INT64)
        if pick < 0.95:
            return plus(inner, self.index(scope, 0))
        return load(self.rng.choice("xy"), self.index(scope, 0), dtype=INT64)

    def leaf(self) -> Expr:
        return self.rng.choice([NX, NY, ix("n"), ix(self.rng.randint(-2, 4)), ix("s")])

    def test(self, scope: list[str]) -> Expr:
        pick = self.rng.random()
        if pick < 0.2:
            word = self.rng.choice(["and", "or"])
            return BoolOp(word, self.test(scope), self.test(scope))
        symbol = self.rng.choice(["<", "<=", ">", ">=", "==", "!="])
        return cmp(symbol, self.index(scope), self.leaf())

    def body(self, scope: list[str], depth: int, inside: bool = False) -> Body:
        return tuple(self.statement(scope, depth, inside) for _ in range(self.rng.randint(1, 2)))

    def statement(self, scope: list[str], depth: int, inside: bool) -> Stmt:
        pick = self.rng.random()
        if depth and pick < 0.5:
            name = f"i{next(self.names)}"
            step = self.rng.choice([1, 1, 1, 2, -1, -2])
            ends = self.index(scope, 1), self.index(scope, 1)
            return loop(name, *ends, *self.body([*scope, name], depth - 1, True), step=step)
        if depth and pick < 0.65:
            orelse = self.body(scope, depth - 1, inside) if self.rng.random() < 0.3 else ()
            return when(self.test(scope), *self.body(scope, depth - 1, inside), orelse=orelse)
        if pick < 0.7:
            leave: Stmt = Break() if inside and self.rng.random() < 0.7 else Return(())
            return when(self.test(scope), leave)
        if pick < 0.8:
            return Assign("s", self.index(scope), INT64)
        value = load("x", self.index(scope, 2), dtype=INT64) if self.rng.random() < 0.5 else ix(1)
        return store(self.rng.choice("xy"), [self.index(scope, 2)], value)
