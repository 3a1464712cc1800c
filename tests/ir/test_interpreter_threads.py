"""The interpreter on a GPU's loops: barriers in step, shared and private memory, work shared out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyschedule.errors import InternalError
from pyschedule.ir import build
from pyschedule.ir.build import const
from pyschedule.ir.checker import check, problems
from pyschedule.ir.interpreter import run
from pyschedule.ir.nodes import Alloc, Assign, Barrier, Dim, Expr, If, Kernel, Origin, Select, Stmt, Var
from pyschedule.ir.types import FLOAT32, INT64
from pyschedule.ir.visitors import rewrite
from tests.ir.nests import I, N, array, f32, kernel, less, load, local, loop, op, store

T, S = Var("t"), Var("s")


def minus(left: Expr, right: Expr | int) -> Expr:
    return build.sub(left, right)


def reversal(*between: Stmt) -> Kernel:
    """Each thread puts one element into shared memory and takes its mirror image out."""
    body = loop(
        "t", 0, 8, 1,
        store("buf", T, load("x", T)),
        *between,
        store("y", T, load("buf", minus(const(7), T))),
        mapping="thread.x",
    )  # fmt: skip
    return kernel([array("x"), array("y")], Alloc(local("buf", 8, space="shared")), body)


def test_threads_wait_for_one_another_at_a_barrier() -> None:
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    check(reversal(Barrier()))
    run(reversal(Barrier()), {"x": x, "y": y})
    assert np.array_equal(y, x[::-1])


def test_a_missing_barrier_shows_as_garbage() -> None:
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    run(reversal(), {"x": x, "y": y})
    assert np.isnan(y).any()


def staged_gemm() -> Kernel:
    """Blocks of 4 x 4, 2 x 2 elements a thread, A and B staged 3 columns deep, all of it with tails."""
    i_0, j_0, i_1, j_1, i, j, k_0, k = (Var(name) for name in ["i_0", "j_0", "i_1", "j_1", "i", "j", "k_0", "k"])
    c, d, e, f = (Var(name) for name in ["c", "d", "e", "f"])
    rows, columns, depth = Dim("A", 0), Dim("B", 1), Dim("A", 1)
    end = build.minimum
    add = build.add

    def element(name: str, row: Expr, column: Expr) -> Expr:
        inside = build.both(less(row, Dim(name, 0)), less(column, Dim(name, 1)))
        return Select(inside, load(name, row, column), f32(0), FLOAT32)

    fill_a = loop(
        "c", i_0, add(i_0, 4), 1,
        loop("d", k_0, add(k_0, 3), 1, store("At", (minus(c, i_0), minus(d, k_0)), element("A", c, d)),
             mapping="cooperative"),
        mapping="cooperative",
    )  # fmt: skip
    fill_b = loop(
        "e", k_0, add(k_0, 3), 1,
        loop("f", j_0, add(j_0, 4), 1, store("Bt", (minus(e, k_0), minus(f, j_0)), element("B", e, f)),
             mapping="cooperative"),
        mapping="cooperative",
    )  # fmt: skip
    product = op("*", load("At", minus(i, i_0), minus(k, k_0)), load("Bt", minus(k, k_0), minus(j, j_0)))
    own = minus(i, i_1), minus(j, j_1)
    step = store("acc", own, op("+", load("acc", *own), product), origin=Origin(0, (i, j, k)))
    ii, jj = Var("ii"), Var("jj")
    start = (minus(ii, i_1), minus(jj, j_1))
    iii, jjj = Var("iii"), Var("jjj")
    last = (minus(iii, i_1), minus(jjj, j_1))

    def tile(row: Var, column: Var, body: Stmt) -> Stmt:
        inner = loop(column.name, j_1, end(add(j_1, 2), columns), 1, body)
        return loop(row.name, i_1, end(add(i_1, 2), rows), 1, inner)

    thread = (
        Alloc(local("acc", 2, 2, space="register")),
        tile(ii, jj, store("acc", start, f32(0))),
        loop(
            "k_0", 0, depth, 3,
            Alloc(local("At", 4, 3, space="shared")),
            Alloc(local("Bt", 3, 4, space="shared")),
            Barrier(), fill_a, fill_b, Barrier(),
            loop("k", k_0, end(add(k_0, 3), depth), 1, tile(i, j, step)),
        ),
        tile(iii, jjj, store("C", (iii, jjj), load("acc", *last))),
    )  # fmt: skip
    nest = loop("j_1", j_0, end(add(j_0, 4), columns), 2, *thread, mapping="thread.x")
    nest = loop("i_1", i_0, end(add(i_0, 4), rows), 2, nest, mapping="thread.y")
    nest = loop("j_0", 0, columns, 4, nest, mapping="block.x")
    nest = loop("i_0", 0, rows, 4, nest, mapping="block.y")
    return kernel([array("A", 2), array("B", 2), array("C", 2)], nest)


def _run_gemm(made: Kernel, m: int, n: int, k: int, trace: Any = None) -> bool:
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    c = np.full((m, n), np.nan, np.float32)
    run(made, {"A": a, "B": b, "C": c}, trace=trace)
    return np.array_equal(c, a @ b)


@pytest.mark.parametrize(("m", "n", "k"), [(4, 4, 3), (5, 7, 4), (1, 1, 1), (9, 3, 8), (6, 6, 0), (0, 4, 2)])
def test_a_staged_gemm_runs_with_tails(m: int, n: int, k: int) -> None:
    seen: list[tuple[int, ...]] = []
    check(staged_gemm())
    assert _run_gemm(staged_gemm(), m, n, k, lambda _, counters: seen.append(counters))
    assert sorted(seen) == [(x, y, z) for x in range(m) for y in range(n) for z in range(k)]


@pytest.mark.parametrize("dropped", [0, 1])
def test_each_barrier_of_a_staged_gemm_is_needed(dropped: int) -> None:
    """Without the first, a tile is overwritten while others read it; without the second, read too early."""
    barriers = iter(range(2))

    def without(stmt: Stmt) -> tuple[Stmt, ...] | None:
        return () if isinstance(stmt, Barrier) and next(barriers) == dropped else None

    made = staged_gemm()
    body = rewrite(made.body, statement=without)
    assert not _run_gemm(kernel(list(made.params), *body), 8, 8, 9)


def test_cooperative_iterations_run_once_each_whatever_the_number_of_threads() -> None:
    """A triangular nest, so that threads cannot count by multiplying extents."""
    seen: list[tuple[int, ...]] = []
    for threads in (1, 2, 3, 7, 40):
        share = store("y", I, f32(1), origin=Origin(0, (I, S)))
        nest = loop("i", 0, 5, 1, loop("s", 0, I, 1, share, mapping="cooperative"), mapping="cooperative")
        made = kernel([array("y")], loop("t", 0, threads, 1, nest, mapping="thread.x"))
        seen.clear()
        run(made, {"y": np.zeros(5, np.float32)}, trace=lambda _, counters: seen.append(counters))
        assert sorted(seen) == [(i, s) for i in range(5) for s in range(i)]


def test_threads_have_scalars_of_their_own() -> None:
    """What one thread leaves in a scalar, the next does not see; what stood there before all, each does."""
    s = Var("s", FLOAT32)
    body = (
        Assign("s", f32(10), FLOAT32),
        loop(
            "t", 0, 4, 1,
            Assign("s", op("+", s, f32(1)), FLOAT32), Barrier(), store("y", T, s),
            mapping="thread.x",
        ),
    )  # fmt: skip
    for stmts in (body, rewrite(body, statement=lambda stmt: () if isinstance(stmt, Barrier) else None)):
        y = np.zeros(4, np.float32)
        run(kernel([array("y")], *stmts), {"y": y})
        assert y.tolist() == [11] * 4


def test_threads_that_part_at_a_barrier_are_found_out() -> None:
    parted = loop("t", 0, 4, 1, If(less(T, N), (Barrier(),)), mapping="thread.x")
    with pytest.raises(InternalError, match="part at a barrier"):
        run(kernel([N], parted), {}, {"n": 2})
    run(kernel([N], parted), {}, {"n": 4})
    run(kernel([N], parted), {}, {"n": 0})
    two = loop("t", 0, 4, 1, If(less(T, N), (Barrier(),), (Barrier(),)), mapping="thread.x")
    with pytest.raises(InternalError, match="part at a barrier"):
        run(kernel([N], two), {}, {"n": 2})


def test_barriers_count_in_loops_and_branches_that_all_threads_take() -> None:
    n_rounds = loop("i", 0, N, 1, store("buf", T, f32(1)), If(less(const(0), N), (Barrier(),)), Barrier())
    made = kernel([N], Alloc(local("buf", 4, space="shared")), loop("t", 0, 4, 1, n_rounds, mapping="thread.x"))
    assert problems(made) == []
    run(made, {}, {"n": 3})


def test_a_barrier_outside_threads_does_nothing() -> None:
    y = np.zeros(1, np.float32)
    run(kernel([array("y")], Barrier(), loop("i", 0, 2, 1, Barrier(), store("y", 0, f32(3)))), {"y": y})
    assert y[0] == 3


def test_shared_memory_is_new_in_each_block_and_kept_within_one() -> None:
    """The second block finds garbage again; the second round of a block finds what the first left."""
    b = Var("b")
    at = op("+", op("*", b, const(2), INT64), I, INT64)
    body = loop(
        "b", 0, 2, 1,
        loop(
            "t", 0, 1, 1,
            loop(
                "i", 0, 2, 1,
                Alloc(local("buf", 1, space="shared")),
                store("y", at, load("buf", 0)),
                store("buf", 0, f32(5)),
            ),
            mapping="thread.x",
        ),
        mapping="block.x",
    )  # fmt: skip
    y = np.zeros(4, np.float32)
    run(kernel([array("y")], body), {"y": y})
    assert np.array_equal(y, np.array([np.nan, 5, np.nan, 5], np.float32), equal_nan=True)
