"""Random nests, randomly rearranged: the analysis and the symbolic run must agree, in both directions."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

import pytest

from pyschedule.analysis.dependences import Dependences
from pyschedule.ir import build
from pyschedule.ir.nodes import (
    Assign,
    BinOp,
    BoolOp,
    Compare,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Origin,
    Select,
    Stmt,
    Store,
    Var,
)
from pyschedule.ir.types import FLOAT32, INT64
from pyschedule.ir.visitors import Body, loops, substitute, variables
from tests.analysis.helpers import array
from tests.analysis.oracle import Run


class _Maker:
    """One random source nest; `data`: with tests and choices that depend on data."""

    def __init__(self, seed: int, data: bool = False) -> None:
        self.data = data
        self.random = random.Random(seed)
        self.statements = 0
        self.names = 0

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}_{self.names}"

    def kernel(self) -> Kernel:
        body: Body = tuple(self.loop(1, ()) for _ in range(self.random.choice((1, 1, 2))))
        if self.random.random() < 0.2:
            body = (*body, self.leaf(()))
        return Kernel("random", (array("A", 1), array("B", 2)), body)

    def loop(self, depth: int, outer: tuple[str, ...]) -> For:
        name = self.fresh("ijk"[depth - 1])
        start, stop = self.bounds(outer)
        step = self.random.choice((1, 1, 1, 2, -1))
        if step < 0:
            start, stop = build.sub(stop, 1), build.sub(start, 1)
        around = (*outer, name)
        body: list[Stmt] = []
        for _ in range(self.random.choice((1, 1, 2, 3))):
            deeper = depth < 3 and self.random.random() < (0.75 if depth == 1 else 0.3)
            body.append(self.loop(depth + 1, around) if deeper else self.guarded(around))
        return For(name, start, stop, build.const(step), tuple(body), source=name)

    def bounds(self, outer: tuple[str, ...]) -> tuple[Expr, Expr]:
        start, stop = build.const(self.random.choice((0, 0, 1))), build.const(self.random.choice((2, 3, 4)))
        if outer and self.random.random() < 0.2:
            return Var(outer[-1]), build.const(4)
        if outer and self.random.random() < 0.2:
            return start, build.add(Var(outer[-1]), 1)
        return start, stop

    def guarded(self, around: tuple[str, ...]) -> Stmt:
        leaf = self.leaf(around)
        if self.data and self.random.random() < 0.4:
            first, second = self.read(around), self.read(around)
            orelse = (self.leaf(around),) if self.random.random() < 0.3 else ()
            return If(Compare("<", first, second, FLOAT32), (leaf, self.leaf(around)), orelse)
        if self.random.random() < 0.15:
            test = build.compare(self.random.choice(("<", ">=", "==", "!=")), Var(around[-1]), 1)
            return If(test, (leaf,))
        return leaf

    def leaf(self, around: tuple[str, ...]) -> Stmt:
        origin = Origin(self.statements, tuple(Var(name) for name in around))
        self.statements += 1
        value = self.read(around)
        if self.random.random() < 0.3:
            target: Expr = Var("s", FLOAT32)
        else:
            target = self.element(around)
        style = self.random.random()
        if style < 0.4:
            value = BinOp(self.random.choice("+++*"), target, value, FLOAT32)
        if isinstance(target, Var):
            return Assign("s", value, FLOAT32, origin)
        assert isinstance(target, Load)
        return Store(target.array, target.indices, value, None, origin)

    def read(self, around: tuple[str, ...]) -> Expr:
        if self.data and self.random.random() < 0.3:
            left = build.compare(self.random.choice(("<", ">=")), Var(around[-1]), 2) if around else build.TRUE
            right = Compare("<", self.element(around), self.element(around), FLOAT32)
            test = self.random.choice((left, right, BoolOp("and", left, right), BoolOp("or", left, right)))
            return Select(test, self.element(around), self.element(around), FLOAT32)
        return Var("s", FLOAT32) if self.random.random() < 0.3 else self.element(around)

    def element(self, around: tuple[str, ...]) -> Expr:
        if self.random.random() < 0.6:
            return Load("A", (self.index(around),), FLOAT32)
        return Load("B", (self.index(around), self.index(around)), FLOAT32)

    def index(self, around: tuple[str, ...]) -> Expr:
        if not around or self.random.random() < 0.15:
            return build.const(self.random.choice((0, 1)))
        index: Expr = Var(self.random.choice(around))
        style = self.random.random()
        if style < 0.15:
            index = build.mul(index, 2)
        elif style < 0.25:
            index = build.floordiv(index, 2)
        elif style < 0.35:
            index = BinOp("-", index, Var(self.random.choice(around)), INT64)
        return build.add(index, self.random.choice((0, 0, 0, 1, -1)))

    # ---------------------------------------------------------------------------------- rearrangements

    def rearranged(self, kernel: Kernel) -> Kernel:
        body = kernel.body
        for _ in range(self.random.choice((1, 1, 2, 3))):
            chosen = self.random.choice(list(loops(body)))
            body = self.replace(body, chosen, self.random.choice(self.rewrites())(chosen))
        return dataclasses.replace(kernel, body=body)

    def replace(self, body: Body, old: For, new: Body) -> Body:
        result: list[Stmt] = []
        for stmt in body:
            if stmt is old:
                result.extend(new)
            elif isinstance(stmt, For):
                result.append(dataclasses.replace(stmt, body=self.replace(stmt.body, old, new)))
            else:
                result.append(stmt)
        return tuple(result)

    def rewrites(self) -> tuple[Callable[[For], Body], ...]:
        return (self.reverse, self.strip, self.distribute, self.permute, self.interchange, self.spoil)

    def renamed(self, loop: For) -> For:
        name = self.fresh(loop.var)
        return dataclasses.replace(loop, var=name, body=substitute(loop.body, {loop.var: Var(name)}))

    def reverse(self, loop: For) -> Body:
        if build.constant(loop.step) != 1:
            return (loop,)
        start, stop = build.sub(loop.stop, 1), build.sub(loop.start, 1)
        return (dataclasses.replace(loop, start=start, stop=stop, step=build.const(-1)),)

    def strip(self, loop: For) -> Body:
        step = build.constant(loop.step) or 1
        size, outer = self.random.choice((2, 3)), self.fresh(loop.var)
        clip = build.minimum if step > 0 else build.maximum
        end = clip(build.add(Var(outer), size * step), loop.stop)
        inner = dataclasses.replace(loop, start=Var(outer), stop=end)
        return (For(outer, loop.start, loop.stop, build.const(size * step), (inner,), source=loop.source),)

    def distribute(self, loop: For) -> Body:
        return tuple(self.renamed(dataclasses.replace(loop, body=(stmt,))) for stmt in loop.body)

    def permute(self, loop: For) -> Body:
        return (dataclasses.replace(loop, body=tuple(self.random.sample(loop.body, len(loop.body)))),)

    def interchange(self, loop: For) -> Body:
        inner = loop.body[0]
        if len(loop.body) != 1 or not isinstance(inner, For):
            return (loop,)
        if loop.var in variables(inner.start) | variables(inner.stop):
            return (loop,)
        return (dataclasses.replace(inner, body=(dataclasses.replace(loop, body=inner.body),)),)

    def spoil(self, loop: For) -> Body:
        """Drops, or repeats, some iterations."""
        if self.random.random() < 0.8:
            return (loop,)
        return (dataclasses.replace(loop, stop=build.sub(loop.stop, 1)),)


@pytest.mark.parametrize("block", range(4))
def test_a_rearranged_nest_is_refused_exactly_when_it_reads_or_leaves_other_values(block: int) -> None:
    legal = refused = 0
    for seed in range(block * 30, block * 30 + 30):
        maker = _Maker(seed)
        source = maker.kernel()
        dependences = Dependences(source)
        for regroup in (True, False):
            new = maker.rearranged(source)
            found = dependences.conflict(new, reorder_reductions=regroup)
            same = Run(source, regroup=regroup).meaning == Run(new, regroup=regroup).meaning
            assert (found is None) == same, (seed, regroup, str(found))
            assert found is None or found.kind != "unsupported", str(found)
            legal, refused = legal + same, refused + (not same)
    assert legal > 5 and refused > 5


@pytest.mark.parametrize("block", range(2))
def test_what_is_allowed_under_tests_of_data_computes_the_same(block: int) -> None:
    allowed = refused = 0
    for seed in range(2000 + block * 25, 2025 + block * 25):
        maker = _Maker(seed, data=True)
        source = maker.kernel()
        new = maker.rearranged(source)
        found = Dependences(source).conflict(new, reorder_reductions=True)
        same = Run(source).meaning == Run(new).meaning
        assert found is not None or same, seed
        allowed, refused = allowed + (found is None), refused + (not same)
    assert allowed > 3 and refused > 3


@pytest.mark.parametrize("block", range(2))
@pytest.mark.parametrize("how", ["lanes", "threads"])
def test_iterations_that_are_allowed_to_run_at_once_compute_the_same(block: int, how: str) -> None:
    allowed = 0
    for seed in range(1000 + block * 30, 1030 + block * 30):
        maker = _Maker(seed, data=seed % 2 == 1)
        source = maker.kernel()
        new = maker.rearranged(source)
        loop, width = maker.random.choice(list(loops(new.body))).var, maker.random.choice((2, 3, 4))
        dependences, regroup = Dependences(source), seed % 3 > 0
        if how == "lanes":
            found = dependences.conflict(new, reorder_reductions=regroup, vector={loop: width})
            run = Run(new, regroup=regroup, lanes={loop: width})
        else:
            found = dependences.conflict(new, reorder_reductions=regroup, parallel=[loop])
            run = Run(new, regroup=regroup, threads=frozenset({loop}))
        if found is None:
            allowed += 1
            assert Run(source, regroup=regroup).meaning == run.meaning, (seed, loop, width)
    assert allowed > 3
