"""Loops on blocks and threads, shared work, what runs in one thread, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pyschedule.codegen.cuda_program import CudaProgram
from pyschedule.codegen.numba_cuda import generate
from pyschedule.errors import Unsupported
from pyschedule.ir import build as b
from pyschedule.ir import interpreter
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    Barrier,
    Break,
    Cast,
    Compare,
    Const,
    Dim,
    Expr,
    For,
    If,
    Kernel,
    Return,
    Stmt,
    Var,
    While,
)
from pyschedule.ir.types import FLOAT32, FLOAT64, INT64, Scalar
from pyschedule.ir.visitors import rewrite
from pyschedule.runtime import lockstep

from .cuda_support import (
    SM80,
    agree,
    binary,
    elementwise,
    f32,
    load,
    local,
    loop,
    param,
    row_sums,
    sgemm,
    store,
    var,
)

RNG = np.random.default_rng(2)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def test_elementwise_at_every_size() -> None:
    kernel = elementwise(8)
    for n in (0, 1, 7, 8, 9, 15, 37):
        agree(kernel, {"X": normal(n), "Y": np.zeros(n, np.float32)})
    (launch,) = generate(kernel, SM80).launches
    assert launch.threads == (8, 1, 1)
    assert launch.grid_size({"X_shape0": 17}) == (3, 1, 1)
    assert launch.grid_size({"X_shape0": 0}) == (0, 1, 1)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (5, 70), (2, 31), (1, 1)])
def test_row_sums_with_partial_sums_in_shared_memory(shape: tuple[int, int]) -> None:
    program = agree(row_sums(16), {"X": normal(*shape), "S": np.zeros(shape[0], np.float32)}, rtol=1e-5)
    assert not program.notes


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize(
    "m, n, k", [(1, 4, 1), (16, 16, 4), (17, 20, 5), (5, 36, 11), (0, 4, 4), (4, 0, 4), (4, 4, 0)]
)
def test_sgemm_with_staged_tiles(m: int, n: int, k: int, lanes: int) -> None:
    arrays = {"A": normal(m, k), "B": normal(k, n), "C": np.full((m, n), np.nan, np.float32)}
    program = agree(sgemm((16, 16, 4), (4, 4), lanes), arrays, rtol=2e-5)
    assert not program.notes
    assert program.launches[0].threads == (4, 4, 1)
    assert program.launches[0].static_shared == 2 * 16 * 4 * 4


@pytest.mark.parametrize("before, after", [(False, True), (True, False), (False, False)])
def test_a_missing_barrier_is_a_race(before: bool, after: bool) -> None:
    program = generate(sgemm((16, 16, 4), (4, 4), barriers=(before, after)), SM80)
    arrays = {"A": normal(16, 8), "B": normal(8, 16), "C": np.zeros((16, 16), np.float32)}
    with pytest.raises(lockstep.RaceError):
        lockstep.run(program, arrays)


def test_more_shared_memory_than_48_kb_is_dynamic() -> None:
    t = var("t")

    def staged(count: int) -> Kernel:
        body = (
            local("S", count, space="shared"),
            local("T", 8, space="shared", dtype="float64"),
            loop("t", 0, 8, store("S", b.add(t, count - 8), load("X", t)), mapping="thread.x"),
            loop("v", 0, 8, store("T", var("v"), Const(2.0, FLOAT64)), mapping="thread.x"),
            Barrier(),
            loop(
                "u",
                0,
                8,
                store(
                    "Y",
                    var("u"),
                    binary(
                        "*",
                        load("S", b.sub(count - 1, var("u"))),
                        Cast(FLOAT32, load("T", var("u"), dtype="float64")),
                    ),
                ),
                mapping="thread.x",
            ),
        )
        return Kernel("s", (param("X"), param("Y")), (loop("i", 0, 1, *body, mapping="block.x"),))

    arrays = {"X": normal(8), "Y": np.zeros(8, np.float32)}
    small, large = agree(staged(1000), arrays), agree(staged(20_000), arrays)
    assert (small.launches[0].dynamic_shared, small.launches[0].static_shared) == (0, 4064)
    assert (large.launches[0].dynamic_shared, large.launches[0].static_shared) == (80_064, 0)
    too_large = generate(staged(50_000), SM80)
    assert "shared memory" in too_large.notes[0]
    assert too_large.launches[0].threads == (1, 1, 1)


def thread_tile(trip: Expr | int, most: int | None, *, meets: bool) -> Kernel:
    """`Y[i, t] = 2 * X[i, t]` for `t < trip` through shared memory, the barrier inside the thread loop."""
    i, t, c = var("i"), var("t"), var("c")
    copy = loop("c", 0, 8, store("S", c, load("X", i, c)), mapping="cooperative")
    write = store("Y", (i, t), binary("+", load("S", t), load("S", t)))
    inner = (Barrier(), copy, Barrier(), write) if meets else (store("Y", (i, t), load("X", i, t)),)
    threads = loop("t", 0, trip, *inner, mapping="thread.x", max_trip=most)
    nest = loop("i", 0, Dim("X", 0), local("S", 8, space="shared"), threads, mapping="block.x")
    return Kernel("k", (param("X", 2), param("Y", 2), var("n")), (nest,))


@pytest.mark.parametrize("meets", [False, True])
@pytest.mark.parametrize("n", [0, 1, 5, 8])
def test_thread_loops_of_run_time_length(n: int, meets: bool) -> None:
    """Threads without an iteration still reach the barriers and help with the copies."""
    arrays = {"X": normal(3, 8), "Y": np.zeros((3, 8), np.float32)}
    for most in (8, None):
        program = generate(thread_tile(var("n"), most, meets=meets), SM80)
        assert not program.notes
        assert program.launches[0].threads == (most or 256, 1, 1)
        out = np.zeros((3, 8), np.float32)
        lockstep.run(program, {"X": arrays["X"], "Y": out}, {"n": n})
        expected = np.zeros((3, 8), np.float32)
        expected[:, :n] = arrays["X"][:, :n] * (2 if meets else 1)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("meets", [False, True])
def test_a_thread_loop_longer_than_a_block_goes_round(meets: bool) -> None:
    t, n = var("t"), 2500
    body = (Barrier(), store("Y", t, load("X", t))) if meets else (store("Y", t, load("X", t)),)
    kernel = Kernel("k", (param("X"), param("Y")), (loop("t", 0, n, *body, mapping="thread.x"),))
    program = generate(kernel, SM80)
    assert program.launches[0].threads == (1024, 1, 1)
    x, y = normal(n), np.zeros(n, np.float32)
    lockstep.run(program, {"X": x, "Y": y})
    np.testing.assert_array_equal(x, y)


def test_three_dimensions_of_threads_are_at_most_1024() -> None:
    i, j, k = var("i"), var("j"), var("k")
    body = store("Y", (i, j, k), load("X", i, j, k))
    nest = loop(
        "i",
        0,
        5,
        loop("j", 0, 40, loop("k", 0, 30, body, mapping="thread.x"), mapping="thread.y"),
        mapping="thread.z",
    )
    kernel = Kernel("k", (param("X", 3), param("Y", 3)), (nest,))
    program = agree(kernel, {"X": normal(5, 40, 30), "Y": np.zeros((5, 40, 30), np.float32)})
    x, y, z = program.launches[0].threads
    assert 512 <= x * y * z <= 1024


def test_phases_of_different_width_share_a_block() -> None:
    """What a phase leaves out of the block's dimensions is run once, not once a thread."""
    i, j, s = var("i"), var("j"), var("s")
    body = (
        loop(
            "i", 0, 4, loop("j", 0, 8, store("Y", (i, j), load("X", i, j)), mapping="thread.x"), mapping="thread.y"
        ),
        Barrier(),
        loop("s", 0, 8, store("Y", (0, s), binary("+", load("Y", 0, s), f32(1.0))), mapping="thread.x"),
        Barrier(),
        store("Y", (1, 1), binary("+", load("Y", 1, 1), f32(10.0))),
    )
    kernel = Kernel("k", (param("X", 2), param("Y", 2)), (loop("b", 0, 1, *body, mapping="block.x"),))
    program = agree(kernel, {"X": normal(4, 8), "Y": np.zeros((4, 8), np.float32)})
    assert program.launches[0].threads == (8, 4, 1)
    assert "if ty == u32(0):" in program.source


def test_cooperative_nests_of_any_shape() -> None:
    i, j, k = var("i"), var("j"), var("k")
    for a, c, d in ((1, 1, 1), (3, 5, 7), (2, 0, 4), (16, 16, 2)):
        body = loop(
            "i",
            0,
            a,
            loop(
                "j",
                0,
                c,
                loop("k", 0, d, store("Y", (i, j, k), load("X", i, j, k)), mapping="cooperative"),
                mapping="cooperative",
            ),
            mapping="cooperative",
        )
        kernel = Kernel("k", (param("X", 3), param("Y", 3)), (body,))
        agree(kernel, {"X": normal(a, c, d), "Y": np.zeros((a, c, d), np.float32)})
    free = loop(
        "i",
        0,
        Dim("X", 0),
        loop("j", 0, Dim("X", 1), store("Y", (i, j), load("X", i, j)), mapping="cooperative", max_trip=6),
        mapping="cooperative",
    )
    kernel = Kernel("k", (param("X", 2), param("Y", 2)), (free,))
    for shape in ((0, 3), (4, 6), (90, 5), (7, 1)):
        assert not agree(kernel, {"X": normal(*shape), "Y": np.zeros(shape, np.float32)}).notes


def test_grids_of_more_than_65535_rows_use_the_64_bit_program() -> None:
    i = var("i")
    nest = loop(
        "i",
        0,
        Dim("Y", 0),
        loop("j", 0, 2, store("Y", i, binary("+", load("Y", i), f32(1.0))), mapping="serial"),
        mapping="block.y",
    )
    kernel = Kernel("tall", (param("Y"),), (nest,))
    shapes, strides = {"Y": (70_000,)}, {"Y": (1,)}
    assert not generate(kernel, SM80).fits(shapes, strides, {})
    wide = generate(kernel, SM80, 64)
    assert wide.launches[0].grid_size({"Y_shape0": 70_000}) == (1, 65_535, 1)
    shorter = replace(wide, launches=(replace(wide.launches[0], grid=("1", "min(3, Y_shape0)", "1")),))
    y = np.zeros(8, np.float32)
    lockstep.run(shorter, {"Y": y})
    assert (y == 2).all()


# --------------------------------------------------------------------------------------- one thread, scalars


def test_scalars_of_extents_are_computed_where_they_are_read() -> None:
    i, half = var("i"), Var("half", INT64)
    body = (
        Assign("half", b.floordiv(Dim("X", 0), 2), INT64),
        loop("i", 0, half, store("Y", i, load("X", i)), mapping="block.x"),
        loop("j", half, Dim("X", 0), store("Y", var("j"), f32(7.0)), mapping="block.x"),
    )
    program = agree(Kernel("k", (param("X"), param("Y")), body), {"X": normal(9), "Y": np.zeros(9, np.float32)})
    assert len(program.launches) == 2
    assert not program.notes


def test_scalars_that_flow_between_statements_make_one_thread_of_it() -> None:
    i, total = var("i"), Var("total", FLOAT32)
    body = (
        Assign("total", f32(0.0), FLOAT32),
        loop("i", 0, Dim("X", 0), Assign("total", binary("+", total, load("X", i)), FLOAT32)),
        loop("j", 0, Dim("X", 0), store("Y", var("j"), binary("/", load("X", var("j")), total)), mapping="block.x"),
    )
    program = agree(Kernel("k", (param("X"), param("Y")), body), {"X": normal(9), "Y": np.zeros(9, np.float32)})
    (launch,) = program.launches
    assert launch.grid == ("1", "1", "1")
    assert "'total'" in program.notes[0]


def results_kernel() -> Kernel:
    """The sum of `X` up to the first element below -2, where that is (-1: nowhere), and whether there is one."""
    i, s = var("i"), Var("s", FLOAT32)
    yes, no = Const(True, Scalar("bool")), Const(False, Scalar("bool"))
    body = (
        Assign("s", f32(0.0), FLOAT32),
        loop(
            "i",
            0,
            Dim("X", 0),
            If(Compare("<", load("X", i), f32(-2.0), FLOAT32), (Return((s, i, yes)),)),
            Assign("s", binary("+", s, load("X", i)), FLOAT32),
        ),
        Return((s, b.const(-1), no)),
    )
    results = (FLOAT32, INT64, Scalar("bool"))
    return Kernel("k", (param("X"),), body, returns=(0, 1, 2), scalar_results=results)


def test_scalar_results_and_early_returns() -> None:
    for x in (np.array([1, 2, 3], np.float32), np.array([1, -3, 5], np.float32), np.zeros(0, np.float32)):
        agree(results_kernel(), {"X": x})


def test_breaks_and_whiles_in_each_thread() -> None:
    t, n = var("t"), Var("n", INT64)
    body = (
        Assign("n", load("X", t, dtype="int64"), INT64),
        Assign("steps", b.const(0), INT64),
        While(
            Compare("!=", n, Const(1, INT64), INT64),
            (
                If(
                    Compare("==", b.mod(n, 2), Const(0, INT64), INT64),
                    (Assign("n", b.floordiv(n, 2), INT64),),
                    (Assign("n", b.add(b.mul(n, 3), 1), INT64),),
                ),
                Assign("steps", b.add(Var("steps", INT64), 1), INT64),
                If(Compare(">", Var("steps", INT64), Const(20, INT64), INT64), (Break(),)),
            ),
        ),
        loop(
            "q",
            0,
            9,
            If(Compare(">", b.mul(var("q"), 3), t, INT64), (Break(),)),
            store("Z", (t, var("q")), Var("steps", INT64)),
        ),
        store("Y", t, Var("steps", INT64)),
    )
    kernel = Kernel(
        "collatz",
        (param("X", 1, "int64"), param("Y", 1, "int64"), param("Z", 2, "int64")),
        (loop("t", 0, Dim("X", 0), *body, mapping="thread.x"),),
    )
    size = 30
    agree(kernel, {"X": np.arange(1, size + 1), "Y": np.zeros(size, np.int64), "Z": np.zeros((size, 9), np.int64)})


def test_an_array_between_two_nests_lives_in_global_memory() -> None:
    i, j = var("i"), var("j")
    temp = Alloc(Array("T", FLOAT32, (b.mul(Dim("X", 0), 2),), "local"))
    body = (
        temp,
        loop("i", 0, Dim("X", 0), store("T", b.mul(i, 2), load("X", i)), mapping="block.x"),
        loop("j", 0, Dim("X", 0), store("Y", j, load("T", b.mul(j, 2))), mapping="block.x"),
    )
    program = agree(Kernel("k", (param("X"), param("Y")), body), {"X": normal(9), "Y": np.zeros(9, np.float32)})
    assert [(space.name, space.shape) for space in program.workspaces] == [("T", ("(X_shape0 * 2)",))]
    assert not program.notes


def test_a_small_array_of_one_thread_stays_its_own() -> None:
    body = (
        local("T", 4),
        loop("i", 0, 4, store("T", var("i"), load("X", var("i")))),
        loop("j", 0, 4, store("Y", var("j"), load("T", b.sub(3, var("j"))))),
        Return(()),
    )
    kernel = Kernel("k", (param("X"), param("Y")), (loop("o", 0, 1, *body[:3]),))
    assert not agree(kernel, {"X": normal(4), "Y": np.zeros(4, np.float32)}).workspaces


def refused(body: tuple[Stmt, ...], word: str) -> CudaProgram:
    """A kernel that has to fall back on one thread, for a reason that has `word` in it; still right."""
    kernel = Kernel("k", (param("X"), param("Y")), body)
    program = generate(kernel, SM80)
    assert len(program.notes) == 1
    assert word in program.notes[0]
    assert program.launches[0].threads == (1, 1, 1)
    plain = rewrite(body, lambda stmt: replace(stmt, mapping="serial") if isinstance(stmt, For) else None)
    arrays = {"X": normal(8), "Y": np.zeros(8, np.float32)}
    expected = {name: value.copy() for name, value in arrays.items()}
    interpreter.run(replace(kernel, body=plain), expected, {})
    lockstep.run(program, arrays)
    np.testing.assert_array_equal(arrays["Y"], expected["Y"])
    return program


def test_what_threads_cannot_share_runs_in_one() -> None:
    i, t, s = var("i"), var("t"), Var("s", FLOAT32)
    total = Assign("s", binary("+", s, load("X", t)), FLOAT32)
    refused(
        (
            loop(
                "i",
                0,
                1,
                Assign("s", f32(0.0), FLOAT32),
                loop("t", 0, 8, total, mapping="thread.x"),
                store("Y", 0, s),
                mapping="block.x",
            ),
        ),
        "'s'",
    )
    private = (
        local("P", 8),
        loop("t", 0, 8, store("P", t, load("X", t)), mapping="thread.x"),
        loop("u", 0, 8, store("Y", var("u"), load("P", b.sub(7, var("u")))), mapping="thread.x"),
    )
    refused((loop("i", 0, 1, *private, mapping="block.x"),), "'P'")
    outer = loop(
        "r", 0, 2, loop("i", 0, 8, store("Y", i, binary("+", load("Y", i), load("X", i))), mapping="block.x")
    )
    refused((outer,), "around a block loop")
    siblings = (store("Y", 0, f32(1.0)), loop("t", 0, 8, store("Y", t, load("Y", 0)), mapping="block.y"))
    refused((loop("i", 0, 1, *siblings, mapping="block.x"),), "between two block loops")
    twice = loop(
        "i",
        0,
        4,
        loop("t", 0, 2, store("Y", b.add(b.mul(i, 2), t), f32(1.0)), mapping="thread.x"),
        mapping="thread.x",
    )
    refused((twice,), "nested loops")
    uneven = loop("i", 0, 4, loop("t", 0, i, store("Y", t, load("X", t)), mapping="block.x"), mapping="block.y")
    refused((uneven,), "depends on another block loop")
    one = (Assign("s", load("X", 0), FLOAT32), store("Y", 0, s))
    nest = loop(
        "i",
        0,
        1,
        If(Compare("<", b.const(0), Dim("X", 0), INT64), one),
        loop("t", 1, 8, store("Y", t, s), mapping="thread.x"),
        mapping="block.x",
    )
    refused((nest,), "needed by all")


def test_a_barrier_below_a_test_that_differs_is_refused_not_hung() -> None:
    t = var("t")
    body = If(b.compare("<", t, 4), (Barrier(), store("Y", t, load("X", t))))
    refused((loop("t", 0, 8, body, mapping="thread.x"),), "differs")


def test_what_has_no_cuda_form_at_all_is_unsupported() -> None:
    i = var("i")
    varying = Alloc(Array("T", FLOAT32, (b.add(i, 1),), "local"))
    kernel = Kernel("k", (param("X"),), (loop("i", 0, 4, varying, store("T", 0, load("X", i))),))
    with pytest.raises(Unsupported, match="'T'"):
        generate(kernel, SM80)


def test_the_source_is_deterministic_and_says_where_lines_come_from() -> None:
    first, second = generate(sgemm(), SM80), generate(sgemm(), SM80)
    assert first == second
    compile(first.source, "generated", "exec")
