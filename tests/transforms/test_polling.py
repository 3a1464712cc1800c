"""Polls in nests: results stay the same on both targets, checks come often enough, and never in the hot loop."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pyschedule import nounroll, poll, tile, unroll, vectorize
from pyschedule.ir.build import const
from pyschedule.ir.interpreter import POLLED
from pyschedule.ir.nodes import (
    Assign,
    Barrier,
    Break,
    For,
    If,
    Kernel,
    Location,
    Poll,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.printer import format_kernel
from pyschedule.ir.types import INT64
from pyschedule.ir.visitors import contains, loops, walk
from pyschedule.runtime import lockstep
from pyschedule.schedule import targets
from pyschedule.transforms import meeting
from tests.ir.nests import N, f32, less, load, loop, store
from tests.support import agrees, on_every_target
from tests.transforms import stages

SIZES = (0, 1, 2, 6, 7, 8, 37)


def forwards(seen, out, n):
    for k in range(n):
        seen[k] += 1
        out[0] = (out[0] * 3 + k) % 1009


def stepped(seen, out, n):
    for k in range(2, n, 3):
        seen[k] += 1
        out[0] = (out[0] * 3 + k) % 1009


def backwards(seen, out, n):
    for k in range(n - 1, -1, -2):
        seen[k] += 1
        out[0] = (out[0] * 3 + k) % 1009


def left(seen, out, n):
    for k in range(n):
        if k == 11:
            break
        seen[k] += 1
        if k > 20 and out[0] % 2 == 0:
            break
        out[0] = (out[0] * 3 + k) % 1009
    out[1] = 5


def continued(seen, out, n):
    for k in range(n):
        seen[k] += 1
        if k % 3 == 0:
            continue
        out[0] = (out[0] * 3 + k) % 1009


def nested(seen, out, n):
    for i in range(n):
        out[1] += i
        for k in range(i):
            if k == 9:
                break
            seen[k] += 1
            out[0] = (out[0] * 3 + k) % 1009


def siblings(seen, out, n):
    for i in range(3):
        for k in range(n):
            seen[k] += 1
        for k in range(n - 1, -1, -1):
            out[0] = (out[0] * 3 + k) % 1009


def constant(seen, out, n):
    for i in range(36):
        for k in range(10):
            seen[i] += 1
            out[0] = (out[0] * 3 + k) % 1009


def extents(seen, out, n):
    for k in range(1, seen.shape[0], 4):
        seen[k] += 1
    for k in range(seen.shape[0] - 1, 0, -3):
        out[0] = (out[0] * 3 + k) % 1009


def uncounted(seen, out, n):
    x = n
    while x > 1:
        seen[out[1]] += 1
        out[1] += 1
        if x % 2 == 0:
            x //= 2
        else:
            x = 3 * x + 1
        if x == 1:
            break


def returning(seen, out, n):
    for k in range(n):
        seen[k] += 1
        if k == 25:
            return
    out[0] = 1


NESTS = (forwards, stepped, backwards, left, continued, nested, siblings, constant, extents, uncounted, returning)


def arguments(n):
    return np.zeros(200, np.int64), np.zeros(2, np.int64), n


@on_every_target
@pytest.mark.parametrize("every", [1, 7])
@pytest.mark.parametrize("nest", NESTS, ids=lambda nest: nest.__name__)
def test_results_are_the_same(nest, every, target):
    polled = poll(every=every)(nest)
    for n in SIZES:
        agrees(polled, *arguments(n), target=target)


@pytest.mark.parametrize("every", [1, 3, 8, 50])
@pytest.mark.parametrize("nest", NESTS, ids=lambda nest: nest.__name__)
def test_checks_come_often_enough(nest, every):
    """Between two checks run at most `every` iterations of each innermost loop, in each stage's own order."""
    for n in SIZES:
        lowering = stages.agrees(poll(every=every)(nest), *arguments(n))
        hot = {stmt.origin.statement: 0 for stmt in _hot_statements(lowering.stages["source"])}
        most = 0

        def note(statement, counters, hot=hot):
            nonlocal most
            if statement == POLLED:
                hot.update(dict.fromkeys(hot, 0))
            elif statement in hot:
                hot[statement] += 1
                most = max(most, hot[statement])

        stages.execute(lowering.kernel, *arguments(n), trace=note)
        assert most <= every, format_kernel(lowering.kernel)


def _hot_statements(kernel: Kernel) -> list[Store]:
    innermost = [
        loop for loop in walk(kernel.body) if isinstance(loop, (For, While)) and not contains(loop.body, For, While)
    ]
    return [stmt for loop in innermost for stmt in walk(loop.body) if isinstance(stmt, Store)]


def hot_loops(kernel: Kernel) -> list[For]:
    return [loop for loop in loops(kernel.body) if not contains(loop.body, For, While)]


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80"])
@pytest.mark.parametrize(
    "nest", [forwards, stepped, backwards, left, nested, siblings], ids=lambda nest: nest.__name__
)
def test_the_hot_loop_is_what_it_was(nest, target):
    """But for its bounds, and for the note that a `break` leaves."""
    with_polls = poll()(nest).lower(*arguments(5), target=target).kernel
    other_target = "cuda" if target == "cpu" else "cpu"
    without = poll(target=other_target)(nest).lower(*arguments(5), target=target).kernel
    assert contains(with_polls.body, Poll)
    strips = [hot for hot in hot_loops(with_polls) if not hot.var.endswith("_q")]  # the last one may stand apart
    for one, other in zip(strips, hot_loops(without), strict=True):
        assert not contains(one.body, Poll)
        assert (one.step, one.unroll, one.source) == (other.step, other.unroll, other.source)
        if not contains(other.body, Break):
            assert one.body == other.body


def test_poll_every_iteration_is_a_check_in_the_loop():
    kernel = poll(every=1)(forwards).lower(*arguments(5)).kernel
    (loop,) = loops(kernel.body)
    assert isinstance(loop.body[0], Poll)


def test_a_break_leaves_both_loops():
    text = format_kernel(poll(every=8)(left).lower(*arguments(5)).kernel)
    assert text.count("k_left = True") == 2
    assert "        if k_left:\n            k_gone = True\n            break" in text
    assert "if not k_gone and max(n, 0) // 8 * 8 < n:" in text


def test_short_nests_get_no_checks():
    def short(y):
        for i in range(64):
            for k in range(64):
                y[i] += k

    lowering = poll()(short).lower(np.zeros(64))
    assert not contains(lowering.kernel.body, Poll)
    assert "- Applied Poll: every=4096: no loop runs longer than that" in str(lowering.log)
    assert contains(poll(every=4095)(short).lower(np.zeros(64)).kernel.body, Poll)


def test_a_constant_trip_count_is_cut_into_equal_strips():
    def fixed(y):
        for k in range(100_000):
            y[k % 7] = k

    kernel = poll()(fixed).lower(np.zeros(7, np.int64)).kernel
    outer, _ = loops(kernel.body)
    assert outer.step.value == 4000, "25 strips"
    assert "min" not in format_kernel(kernel)
    agrees(poll()(fixed), np.zeros(7, np.int64))


@on_every_target
@pytest.mark.parametrize(
    ("start", "stop", "step"),
    [
        (2**63 - 40, 2**63 - 1, 3),
        (2**63 - 40, 2**63 - 1, 1),
        (-(2**63) + 40, -(2**63), -3),
        (0, 2**62, 2**58),
        (2**62, -(2**60), -(2**58)),
        (5, 5, 2),
        (9, 5, 2),
        (5, 9, -2),
    ],
)
def test_ranges_that_end_where_int64_does(start, stop, step, target):
    def walk_along(seen, a, b, s):
        n = 0
        for k in range(a, b, s):
            seen[n] = k
            n += 1  # noqa: SIM113

    def fixed_step(seen, a, b):
        n = 0
        for k in range(a, b, step):
            seen[n] = k
            n += 1  # noqa: SIM113

    agrees(poll(every=4)(walk_along), np.zeros(64, np.int64), start, stop, step, target=target)
    agrees(poll(every=4)(fixed_step), np.zeros(64, np.int64), start, stop, target=target)


@on_every_target
def test_bounds_are_evaluated_once(target):
    def grows(seen, limits):
        n = limits[0]
        for k in range(n):
            seen[k] += 1
            limits[0] = 3
            n = 2
        for k in range(limits[1]):
            seen[k] += 1
            limits[1] += 5

    agrees(poll(every=4)(grows), np.zeros(40, np.int64), np.array([20, 20]), target=target)


def test_hints_stay_on_the_inner_loop():
    def recurrence(y):
        for k in range(1, y.shape[0]):
            y[k] += y[k - 1]

    for decorator, hint in ((nounroll("k"), 1), (unroll("k", 4), 4)):
        lowering = poll()(decorator(recurrence)).lower(np.zeros(9), target="cuda:sm_80")
        outer, inner = list(loops(lowering.kernel.body))[:2]
        assert (outer.unroll, inner.unroll) == (0, hint)


# ------------------------------------------------------------------------------- with the other transforms


def product(A, B, C):
    for i in range(C.shape[0]):
        for j in range(C.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


def sums(A, y):
    for i in range(A.shape[0]):
        for k in range(A.shape[1]):
            y[i] += A[i, k]


SCHEDULES = {
    "tiled": tile(i=8, j=16, k=8),
    "vectorized": lambda function: vectorize("j", 8)(tile(i=(8, 2), j=(32, 8), k=16)(function)),
    "full": lambda function: unroll("i")(
        vectorize("j", 8)(tile(i=(12, 6), j=(32, 16), k=16, stage={"B": "k.0"}, parallel="i.0")(function))
    ),
    "staged": tile(i=(16, 2), j=(16, 2), k=8, stage={"A": "k.0", "B": "k.0"}),
}


def matrices(m, k, n):
    rng = np.random.default_rng(7)
    return [rng.integers(-4, 5, shape).astype(np.float32) for shape in ((m, k), (k, n), (m, n))]


@on_every_target
@pytest.mark.parametrize("every", [5, 64])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_products_with_all_transforms(schedule, every, target):
    polled = poll(every=every)(SCHEDULES[schedule](product))
    for shape in ((1, 1, 1), (7, 40, 9), (33, 17, 34), (5, 0, 3)):
        agrees(polled, *matrices(*shape), target=target)


def test_registers_are_put_back_before_a_kernel_is_left():
    kernel = vectorize("k", 8)(poll(every=16)(sums)).lower(np.zeros((3, 99)), np.zeros(3)).kernel
    inner = next(stmt for stmt in walk(kernel.body) if isinstance(stmt, Poll) and "'k'" in stmt.places[-1])
    assert any(isinstance(stmt, Store) and stmt.array == "y" for stmt in walk(inner.body)), format_kernel(kernel)


def test_results_of_the_source_are_not_stored_before_they_are_there():
    def means(A, y):
        for i in range(A.shape[0]):
            total = 0.0
            for k in range(A.shape[1]):
                total += A[i, k]
            y[i] = total / A.shape[1]

    kernel = poll()(means).lower(np.zeros((3, 99)), np.zeros(3)).kernel
    assert all(not stmt.body for stmt in walk(kernel.body) if isinstance(stmt, Poll))


# ----------------------------------------------------------------------------------------- stopping on a GPU


def stopped(kernel, *args, at, index_bits=32):
    """The program in lockstep, asked to stop at the `at`-th look at its control array."""
    from pyschedule.codegen import numba_cuda

    lowering = kernel.lower(*args, target="cuda:sm_80")
    program = numba_cuda.generate(lowering.kernel, targets.cuda("sm_80"), index_bits)
    arrays = {p.name: a for p, a in zip(lowering.kernel.params, args, strict=True) if isinstance(a, np.ndarray)}
    scalars = {p.name: a for p, a in zip(lowering.kernel.params, args, strict=True) if p.name not in arrays}
    return lockstep.run(program, arrays, scalars, stop_at=at)


def test_one_thread_stops_at_a_strip():
    seen, out, n = arguments(100)
    result = stopped(poll(every=16)(forwards), seen, out, n, at=4)
    assert result.left == 32 * 65536 + 1, "the 4th look, the 1st being the launch's own, is before the third strip"
    assert (seen[:32] == 1).all()
    assert not seen[32:].any()


def test_launches_behind_the_one_that_was_stopped_do_nothing():
    def two(x, y):
        for i in range(1, x.shape[0]):
            x[i] = x[i - 1] + 1
        for i in range(1, y.shape[0]):
            y[i] = y[i - 1] + 1

    x, y = np.zeros(64, np.int64), np.zeros(64, np.int64)
    result = stopped(poll(every=16)(two), x, y, at=3)
    assert np.count_nonzero(x) == 16
    assert not y.any()
    assert result.left == 17 * 65536 + 1, "the second launch does not change what the first has told"
    x[:] = 0
    assert stopped(poll(every=16)(two), x, y, at=1).left == 65535
    assert not x.any()


@pytest.mark.parametrize("at", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("index_bits", [32, 64])
def test_threads_that_share_barriers_leave_together(at, index_bits):
    """Only every other thread sees the request at first: no barrier may be reached by the rest alone."""
    A, B, C = matrices(37, 200, 40)
    polled = poll(every=16)(SCHEDULES["staged"](product))
    result = stopped(polled, A, B, C, at=at, index_bits=index_bits)
    assert result.left != 0
    full = np.zeros_like(C)
    product(A, B, full)
    whole = matrices(37, 200, 40)[2] + A @ B
    start = matrices(37, 200, 40)[2]
    changed = C != start
    assert changed.any() == (at > 2)
    assert not np.array_equal(C, whole)


def in_block(*body: Stmt) -> tuple[Stmt, ...]:
    """A nest of 4 blocks of 8 threads that meet at a barrier in the end."""
    threads = loop("t", 0, 8, 1, *body, Barrier(), mapping="thread.x")
    return (loop("b", 0, 4, 1, threads, mapping="block.x"),)


CHECK = Poll(1, ("loop 'k' at {} of {}",), (Var("k"), N))
LOOP = "loop 'k'"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ((loop("k", 0, N, 1, CHECK),), None),
        ((If(less(N, const(5)), (CHECK,)),), None),
        ((loop("k", 0, Var("t"), 1, CHECK),), "`for k in range(t)` may differ from thread to thread"),
        ((If(less(Var("t"), const(5)), (CHECK,)),), "`if t < 5` may differ"),
        ((Assign("m", Var("t"), INT64), loop("k", 0, Var("m"), 1, CHECK)), "`for k in range(m)` may differ"),
        ((loop("k", 0, load("L", Var("b")), 1, CHECK),), "`for k in range(L[b])` may differ"),
        ((While(less(N, const(5)), (CHECK,)),), "its turns may differ"),
        ((loop("k", 0, N, 1, CHECK, If(less(Var("t"), const(5)), (Break(),))),), "some threads may leave"),
        (
            (loop("k", 0, N, 1, loop("l", 0, N, 1, CHECK), If(less(N, const(5)), (Break(),))),),
            "some threads may leave",
        ),
    ],
)
def test_threads_leave_together_or_the_check_is_left_out_and_it_is_said(body, reason):
    place = Location("file.py", 3, 1)
    left, records = meeting.leave_together(in_block(*body), place)
    polls = [stmt for stmt in walk(left) if isinstance(stmt, Poll)]
    if reason is None:
        assert [stmt.together for stmt in polls] == [True]
        assert records == []
        return
    assert polls == []
    (record,) = records
    assert (record.status, record.loc) == ("Skipped", place)
    assert record.summary.startswith(f"{LOOP}: ")
    assert reason in record.summary


def test_threads_that_never_meet_leave_one_by_one():
    alone = loop("t", 0, 8, 1, loop("k", 0, Var("t"), 1, CHECK), mapping="thread.x")
    (left,), records = meeting.leave_together((alone,), None)
    assert left is alone
    assert records == []
    beside = loop("b", 0, 4, 1, store("y", Var("b"), f32(1)), alone, mapping="block.x")
    assert meeting.leave_together((beside,), None)[1], "one thread writes for all: the others wait for it"


def random_nest(rng: random.Random) -> str:
    """A function of one to three loops with breaks, continues and branches, which counts its iterations."""
    depth = rng.randint(1, 3)
    lines, indent = ["def nest(seen, out, n):", "    t = 0"], "    "
    for level in range(depth):
        step = rng.choice([1, 1, 2, 3, -1, -2])
        low, high = (
            rng.choice(["0", "1", "2"]),
            rng.choice(["n", "n - 1", "5", "7", *(["v0 + 2"] if level else [])]),
        )
        bounds = f"{low}, {high}, {step}" if step > 0 else f"{high}, {low}, {step}"
        lines.append(f"{indent}for v{level} in range({bounds}):")
        indent += "    "
        if rng.random() < 0.4:
            lines += [
                f"{indent}if v{level} == {rng.randint(2, 6)}:",
                f"{indent}    {rng.choice(['break', 'continue'])}",
            ]
        if rng.random() < 0.3:
            lines += [f"{indent}if out[0] % 3 == 1:", f"{indent}    out[1] += v{level}"]
        if level + 1 < depth and rng.random() < 0.3:
            lines.append(f"{indent}out[1] += 1")
    lines += [f"{indent}seen[t] += 1", f"{indent}t += 1", f"{indent}out[0] = (out[0] * 3 + v{depth - 1}) % 1009"]
    return "\n".join(lines)


@on_every_target
@pytest.mark.parametrize("seed", range(6))
def test_random_nests(seed, target, tmp_path):
    import importlib.util

    rng = random.Random(seed)
    for number in range(4):
        file = tmp_path / f"nest_{number}.py"
        file.write_text(random_nest(rng) + "\n")
        made = importlib.util.spec_from_file_location(f"nest_{seed}_{number}", file)
        module = importlib.util.module_from_spec(made)
        made.loader.exec_module(module)
        polled = poll(every=rng.choice([1, 2, 3, 5, 100]))(module.nest)
        for n in (0, 1, 9):
            agrees(polled, np.zeros(2000, np.int64), np.zeros(2, np.int64), n, target=target)


@pytest.mark.parametrize("others", [(), (unroll("i", 4),), (unroll("k", 4),), (vectorize("i", 4),)])
@pytest.mark.parametrize("size", [64, (64, 4)])
def test_a_long_loop_inside_a_loop_over_many_registers_is_checked(size, others):
    def averages(a, o, n):
        for i in range(a.shape[0]):
            for k in range(n):
                o[i] = max(o[i], a[i]) - 1

    kernel = tile(i=size)(averages)
    for decorate in others:
        kernel = decorate(kernel)
    a, o = np.arange(70.0), np.zeros(70)
    lowering = stages.agrees(poll(every=1000)(kernel), a, o, 9)
    innermost = [
        loop for loop in loops(lowering.kernel.body) if loop.source == "k" and not contains(loop.body, For)
    ]
    assert innermost and "loop 'k' in strips of" in str(lowering.log)
    assert all(strip.max_trip is not None and strip.max_trip <= 1000 for strip in innermost)
