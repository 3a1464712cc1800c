"""Each sentence of "a kernel is plain Python first": the kernel does what the function does."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.frontend.execution import agrees, built, nest

SCALE = 2.5
OFFSET = 3
USE_BIAS = False
TABLE = (4, 7, 9)


def test_gemm_is_three_loops_over_extents() -> None:
    def gemm(A, B, C):
        M, K = A.shape
        _, N = B.shape
        for i in range(M):
            for j in range(N):
                for k in range(K):
                    C[i, j] += A[i, k] * B[k, j]

    A, B, C = np.ones((3, 5), np.float32), np.ones((5, 2), np.float32), np.zeros((3, 2), np.float32)
    agrees(gemm, A, B, C)
    agrees(gemm, np.ones((3, 0)), np.ones((0, 2)), np.ones((3, 2)))
    assert nest(gemm, A, B, C) == (
        "    for i in range(A.shape[0]):\n"
        "        for j in range(B.shape[1]):\n"
        "            for k in range(A.shape[1]):\n"
        "                C[i, j] += A[i, k] * B[k, j]"
    )


@pytest.mark.parametrize(
    "bounds", [(0, 6, 1), (2, 6, 2), (1, 10, 3), (9, -1, -4), (5, 2, 1), (3, 3, 1), (0, 5, -1)]
)
def test_ranges_of_any_start_stop_and_step(bounds: tuple[int, int, int]) -> None:
    def visits(out, a, b, c):
        for i in range(a, b, c):
            out[i] += i + 1

    agrees(visits, np.zeros(12, np.int64), *bounds)


def test_constant_ranges_know_their_trip_count() -> None:
    def visits(out):
        for i in range(9, -1, -4):
            out[i] = i

    (loop,) = built(visits, np.zeros(10)).kernel.body
    assert loop.max_trip == 3
    agrees(visits, np.zeros(10))


@pytest.mark.parametrize("n", [0, 1, 7])
def test_a_counted_while_is_a_for(n: int) -> None:
    def total(x, n):
        s = 0.0
        i = 0
        while i < n:
            s += x[i]
            i += 1
        return s

    x = np.arange(10.0)
    agrees(total, x, n)
    assert "for i in range(n):" in nest(total, x, n)
    assert "while" not in nest(total, x, n)


@pytest.mark.parametrize("n", [-3, 0, 1, 2, 9, 10])
def test_the_counter_of_a_while_keeps_its_last_value(n: int) -> None:
    def up(n, a):
        i = a
        while n >= i:
            i += 3
        return i

    def down(n, a):
        i = n
        while i > a:
            i -= 2
        return i

    for start in (-4, 0, 5):
        agrees(up, n, start)
        agrees(down, n, start)
    assert "while" not in nest(up, n, 0) + nest(down, n, 0)


def test_a_while_left_early_keeps_its_counter() -> None:
    def find(x, n):
        i = 0
        while i < n:
            if x[i] < 0:
                break
            i += 1
        return i

    for at in range(6):
        x = np.ones(5)
        x[at : at + 1] = -1
        agrees(find, x, 5)
    assert "for i in range(n):" in nest(find, np.ones(5), 5)


def test_a_while_that_does_not_count_stays_one() -> None:
    def collatz(n):
        steps = 0
        while n != 1:
            n = n // 2 if n % 2 == 0 else 3 * n + 1
            steps += 1
        return steps

    def moving(n):
        i = 0
        while i < n:
            i += 1
            if i % 2 == 0:
                n -= 1
        return i

    def floats(h):
        x = 0.0
        count = 0
        while x < 1.0:
            x += h
            count += 1
        return count

    def skipping(x, n):
        s = 0.0
        i = 0
        while i < n:
            i += 1
            if x[i - 1] < 0:
                continue
            s += x[i - 1]
        return s

    assert agrees(collatz, 7) == 16
    agrees(moving, 9)
    agrees(floats, 0.25)
    agrees(skipping, np.array([1.0, -2.0, 3.0]), 3)
    agrees(skipping, np.array([1.0, -2.0, 3.0]), 0)
    assert "for i in range(n):" in nest(skipping, np.ones(3), 3)
    assert "while" in nest(moving, 9)
    assert "while" in nest(floats, 0.25)


def test_unequal_counts_only_where_it_is_proved() -> None:
    def exact():
        s = 0
        i = 0
        while i != 12:
            s += i
            i += 3
        return s

    def unknown(n):
        s = 0
        i = 0
        while i != n:
            s += i
            i += 1
        return s

    assert agrees(exact) == 18
    agrees(unknown, 5)
    assert "while" not in nest(exact)
    assert "while" in nest(unknown, 5)


def test_continue_becomes_conditions() -> None:
    def one(x):
        s = 0
        for i in range(10):
            if i > 3:
                continue
            s += i
        return s + x[0]

    def several(x, y):
        for i in range(len(x)):
            if x[i] > 0:
                if x[i] > 2:
                    if x[i] > 4:
                        continue
                    y[i] += 100
                y[i] += 10
            elif x[i] < -2:
                continue
            y[i] += 1

    agrees(one, np.zeros(1, np.int64))
    assert "_skip" not in nest(one, np.zeros(1, np.int64))
    agrees(several, np.arange(-5.0, 7.0), np.zeros(12))


def test_continue_in_a_while_that_increments_on_every_path_counts() -> None:
    def odd(n):
        s = 0
        i = 0
        while i < n:
            if i % 2 == 0:
                i += 1
                continue
            s += i
            i += 1
        return s

    assert agrees(odd, 10) == 25
    assert "while" not in nest(odd, 10)


def test_break_leaves_the_innermost_loop() -> None:
    def first(x, out):
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                if x[i, j] < 0:
                    break
                out[i] += 1
            out[i] *= 2

    agrees(first, np.array([[1.0, -1, 1], [1, 1, 1], [-1, 1, 1]]), np.zeros(3, np.int32))


def test_counters_after_their_loop_and_under_assignment() -> None:
    def after(n):
        i = -7
        for i in range(n):
            pass
        return i

    def changed(n, out):
        for i in range(n):
            i = i * 2
            out[i] = i

    def nested(n, out):
        j = 0
        for i in range(n):
            for j in range(i):
                out[0] += j
            out[1] += j
        return j

    def reused(x):
        s = 0.0
        for j in range(len(x)):
            s += x[j]
        for j in range(len(x)):
            s += x[j] * j
        return s

    for n in (0, 1, 4):
        agrees(after, n)
        agrees(changed, n, np.zeros(8))
        agrees(nested, n, np.zeros(2))
    agrees(reused, np.arange(5.0))
    loops = [line for line in nest(reused, np.arange(5.0)).splitlines() if "for" in line]
    assert [line.split("#")[0].strip() for line in loops] == [
        "for j in range(x.shape[0]):",
        "for j_2 in range(x.shape[0]):",
    ]


def test_loops_are_named_with_their_ordinal() -> None:
    def f(x, n):
        for j in range(3):
            x[j] += 1
        i = 0
        while i < n:
            for j in range(2):
                x[j] += 1
            i += 1

    from pyschedule.frontend.parser import parse
    from pyschedule.ir.visitors import loops

    parsed = parse(f)
    assert [(loop.name, loop.ordinal) for loop in parsed.loops] == [("j", 1), ("i", 1), ("j", 2)]
    kernel = built(f, np.zeros(4), 2).kernel
    assert [(loop.source, loop.ordinal) for loop in loops(kernel.body)] == [("j", 1), ("i", 1), ("j", 2)]
    assert len({loop.var for loop in loops(kernel.body)}) == 3


def test_early_and_scalar_returns() -> None:
    def sign(x):
        if x > 0:
            return 1
        if x < 0:
            return -1
        return 0

    def stop(x, n):
        if n == 0:
            return
        x[0] = n

    def two(x):
        return x[0] + 1, 2

    for value in (-2.0, 0.0, 3.5):
        agrees(sign, value)
    agrees(stop, np.zeros(1), 0)
    agrees(stop, np.zeros(1), 4)
    agrees(two, np.ones(1))


def test_arrays_are_returned_whether_given_or_made() -> None:
    def make(A, n):
        C = np.zeros((A.shape[0], n + 1), np.float32)
        for i in range(A.shape[0]):
            C[i, n] = A[i]
        return C, A, n

    A = np.arange(3, dtype=np.float32)
    agrees(make, A, 2)
    kernel = built(make, A, 2).kernel
    assert kernel.outputs == ("C",) and kernel.returns == ("C", "A", 0)
    assert [param.name for param in kernel.params] == ["A", "n", "C"]


def test_a_bare_result_may_be_an_array_or_a_number() -> None:
    def same(x):
        return x

    assert agrees(same, 3) == 3
    agrees(same, np.arange(3.0))


def test_local_arrays() -> None:
    def f(x, out):
        n = len(x)
        a = np.zeros(n)
        b = np.ones((2, n), dtype=np.int32)
        c = np.full(3, 7)
        d = [0.25, 0.5, 0.25]
        e = [[1, 2], [3, 4]]
        g = [k * k for k in range(4)]
        h = [0.0] * 4
        m = [[0.0] * 3 for _ in range(2)]
        z = np.zeros_like(x)
        q = np.empty(n, x.dtype)
        for i in range(n):
            a[i] = x[i] * 2
            q[i] = x[i]
            for r in range(2):
                b[r, i] += r
                m[r][1] += x[i]
            h[i % 4] += a[i] * d[i % 3]
            z[i] = e[i % 2][1] + g[i % 4]
        for i in range(n):
            out[i] = a[i] + b[1, i] + c[0] + h[i % 4] + m[1][1] + z[i] + q[i]

    agrees(f, np.arange(6.0), np.zeros(6))


def test_two_blocks_may_each_make_an_array_of_one_name() -> None:
    def f(x):
        for i in range(3):
            row = np.zeros(2)
            row[i % 2] += i
            x[i] = row[0]
        for i in range(3):
            row = [5, 6, 7]
            x[i] += row[i]

    agrees(f, np.zeros(3))


def test_shapes_whole_unpacked_and_subscripted() -> None:
    def f(A, out):
        shape = A.shape
        M, N = shape
        C = np.zeros(A.shape)
        D = np.ones(shape)
        out[0] = M * 100 + N * 10 + A.shape[-1] + len(A)
        out[1] = C[0, 0] + D[M - 1, N - 1] + shape[1]

    agrees(f, np.zeros((2, 3)), np.zeros(2))


def test_constants_come_from_module_and_closure() -> None:
    width = 4

    def f(x):
        for i in range(width):
            x[i] = x[i] * SCALE + OFFSET + TABLE[1] + math.pi * np.e
            if USE_BIAS:
                x[i] += 1000

    from pyschedule.frontend.parser import parse

    agrees(f, np.arange(4.0))
    constants = dict(parse(f).constants)
    assert constants["SCALE"] == 2.5 and constants["width"] == 4 and constants["TABLE"] == (4, 7, 9)
    assert "if" not in nest(f, np.arange(4.0))


def test_integer_locals_set_once_are_propagated() -> None:
    def conv(x, w, y, stride):
        (H,) = x.shape
        R = w.shape[0]
        out = (H - R) // stride + 1
        for h in range(out):
            base = h * stride
            for r in range(R):
                row = base + r
                y[h] += x[row] * w[r]

    args = (np.arange(7.0), np.arange(3.0), np.zeros(3), 2)
    agrees(conv, *args)
    assert nest(conv, *args) == (
        "    for h in range((x.shape[0] - w.shape[0]) // stride + 1):\n"
        "        for r in range(w.shape[0]):\n"
        "            y[h] += x[h * stride + r] * w[r]"
    )


def test_indices_keep_pythons_meaning() -> None:
    def f(x, y):
        for i in range(3):
            y[i] = x[-1] + x[i - 3] + x[-1 - i]

    text = nest(f, np.zeros(5), np.zeros(3))
    assert "x[-1]" in text
    agrees(f, np.arange(5.0), np.zeros(3))


def test_zero_dimensional_arrays() -> None:
    def f(x, s):
        for i in range(len(x)):
            s[()] += x[i]

    agrees(f, np.arange(4.0), np.array(1.0))


def test_assignments_together_and_in_chains() -> None:
    def f(x, n):
        a, b = 0, 1
        for _ in range(n):
            a, b = b, a + b
        x[0], x[1] = x[1], x[0]
        i, x[2] = 1, 9.0
        s = c = d = a + 0.5
        s += 1
        return a, b, s + c, d + i

    for n in (0, 1, 9):
        agrees(f, np.array([1.0, 2.0, 3.0]), n)


def test_a_parameter_may_be_reassigned() -> None:
    def f(x, n):
        n = n // 2
        for i in range(n):
            x[i] = n
        for n in range(2):
            x[n] += 1

    agrees(f, np.zeros(6), 9)


def test_annotations_docstrings_defaults_and_keyword_only_parameters() -> None:
    def f(x: np.ndarray, a: float = 2.0, *, b=1) -> None:
        """Says something."""
        t: float = a
        u: int  # noqa: F842
        for i in range(len(x)):
            x[i] = t + b

    from pyschedule.frontend.parser import parse

    assert parse(f).params == ("x", "a", "b")
    assert "Says" in parse(f).source


def test_decorators_and_wrappers_are_skipped() -> None:
    import functools

    def decorate(function):
        @functools.wraps(function)
        def wrapper(*args):
            return function(*args)

        return wrapper

    @decorate
    @decorate
    def f(x):
        x[0] = 1

    from pyschedule.frontend.parser import parse

    assert parse(f).name == "f"
    assert parse(f).source.startswith("def f(x):")


def test_positions_are_those_of_the_file() -> None:
    def f(x):
        for i in range(3):
            x[i] = i

    kernel = built(f, np.zeros(3)).kernel
    (loop,) = kernel.body
    first = f.__code__.co_firstlineno
    assert loop.loc is not None and (loop.loc.line, loop.loc.column, loop.loc.file) == (first + 1, 8, __file__)
    assert loop.body[0].loc.line == first + 2


def test_every_leaf_statement_knows_its_origin() -> None:
    from pyschedule.ir.nodes import Assign, Store, Var
    from pyschedule.ir.visitors import walk

    def f(x):
        C = np.zeros((2, 2))
        s = 0.0
        for i in range(2):
            for j in range(2):
                s += C[i, j]
            x[i] = s

    kernel = built(f, np.zeros(2)).kernel
    leaves = [stmt for stmt in walk(kernel.body) if isinstance(stmt, (Assign, Store))]
    assert [leaf.origin.statement for leaf in leaves] == list(range(len(leaves)))
    inner = next(leaf for leaf in leaves if isinstance(leaf, Assign) and len(leaf.origin.counters) == 2)
    assert inner.origin.counters == (Var("i"), Var("j"))


def test_building_is_quick() -> None:
    import time

    from pyschedule.frontend.build import build
    from pyschedule.frontend.parser import parse
    from tests.frontend.execution import signature_of

    def gemm(A, B, C):
        M, K = A.shape
        _, N = B.shape
        for i in range(M):
            for j in range(N):
                for k in range(K):
                    C[i, j] += A[i, k] * B[k, j]

    signature = signature_of(*[np.zeros((2, 2))] * 3)
    times = []
    for _ in range(5):
        begin = time.process_time()
        build(parse(gemm), signature)
        times.append(time.process_time() - begin)
    assert min(times) < 0.1  # some milliseconds; the bound only catches a blow-up
