"""Register tiles against machine code: a tile draws a warning exactly where the compiler runs out of registers.

Machine code is made for this machine, so that what is expected is counted with this machine's table; what a table
with AVX-512 says is held where nothing is compiled, in `tests/transforms/test_register_limits.py`.
"""

from __future__ import annotations

import re
import warnings

import numpy as np
import pytest

from pyschedule import ScheduleWarning, spec, tile, unroll, vectorize
from pyschedule.schedule.targets import host
from tests.codegen.machine_loops import of_cpu, vector_spills, vector_stores

ARITHMETIC = re.compile(r"fm(?:add|la)|v?(?:add|mul)[ps][sd]")
#: Tiles as rows and vectors of columns, and whether they need more than 32 registers.
TILES = [
    (4, 4, False), (6, 4, False), (8, 2, False), (14, 2, False), (8, 3, False), (24, 1, False),
    (30, 1, False), (31, 1, False), (7, 4, True), (15, 2, True), (32, 1, True), (12, 4, True),
]  # fmt: skip


def hot_loop(lowering):
    """The innermost loop of machine code with most arithmetic."""
    loops = of_cpu(lowering.asm()).innermost
    return max(loops, key=lambda loop: sum(bool(ARITHMETIC.search(one)) for one in loop))


def warned(kernel, *args):
    """The lowering, and the warnings of registers that it draws."""
    lowering = kernel.lower(*args)
    return lowering, [record for record in lowering.log if record.status == "Warning"]


def product(rows, columns, depth=64, *, strict_math=False):
    """A product of constant extents, two tiles high and wide: without tails there is little to compile."""
    M, N, K = 2 * rows, 2 * columns, depth

    def gemm(A, B, C):
        for i in range(M):
            for j in range(N):
                for k in range(K):
                    C[i, j] += A[i, k] * B[k, j]

    scheduled = tile(i=rows, j=columns, strict_math=strict_math)(vectorize("j")(unroll("i")(gemm)))
    return scheduled, [(M, K), (K, N), (M, N)]


def gemm_tails(A, B, C):
    M, K = A.shape
    _, N = B.shape
    for i in range(M):
        for j in range(N):
            for k in range(K):
                C[i, j] += A[i, k] * B[k, j]


def agrees_with_the_machine(kernel, *args):
    lowering, records = warned(kernel, *args)
    loop = hot_loop(lowering)
    assert bool(vector_stores(loop)) == bool(records), "\n".join([str(lowering.log), *loop])
    assert records or len(vector_spills(loop)) <= 1  # a mask may be read from the stack
    return records


@pytest.mark.parametrize("rows, vectors, too_many", TILES)
def test_a_tile_draws_a_warning_where_the_hot_loop_moves_accumulators(rows, vectors, too_many):
    dtype = "float64" if (rows + vectors) % 2 else "float32"
    scheduled, shapes = product(rows, vectors * host().lanes(np.dtype(dtype).itemsize))
    records = agrees_with_the_machine(scheduled, *(spec(f"{dtype}[{m}, {n}]") for m, n in shapes))
    if host().vector_registers == 32 and host().mask_registers:
        assert bool(records) == too_many


@pytest.mark.parametrize("rows, vectors", [(9, 3), (31, 1)])
def test_a_product_that_is_not_contracted_needs_a_register_more(rows, vectors):
    scheduled, shapes = product(rows, vectors * host().lanes(4), strict_math=True)
    agrees_with_the_machine(scheduled, *(spec(f"float32[{m}, {n}]") for m, n in shapes))


@pytest.mark.parametrize("rows, vectors", [(6, 4)])
def test_tails_of_run_time_extents_change_nothing(rows, vectors):
    """Masks of tails live in registers of their own, or are counted."""
    scheduled = tile(i=rows, j=vectors * host().lanes(4))(vectorize("j")(unroll("i")(gemm_tails)))
    agrees_with_the_machine(scheduled, *[spec("float32[100, 100]")] * 3)


@pytest.mark.parametrize("rows, vectors", [(8, 3), (10, 3)])
def test_a_convolution_is_judged_as_a_product_is(rows, vectors):
    columns = vectors * host().lanes(4)
    O, P, C = 2 * rows, 2 * columns, 4

    def convolution(X, W, Y):
        for o in range(O):
            for x in range(P):
                for c in range(C):
                    for s in range(3):
                        Y[o, x] += X[c, x + s] * W[o, c, s]

    scheduled = tile(o=rows, x=columns, order="o.0 x.0 c s o.1 x.1")(vectorize("x")(unroll("o")(convolution)))
    shapes = f"float32[{C}, {P + 2}]", f"float32[{O}, {C}, 3]", f"float32[{O}, {P}]"
    agrees_with_the_machine(scheduled, *map(spec, shapes))


@pytest.mark.parametrize("copies", [8, 40])
def test_copies_of_a_loop_that_sums_are_judged_without_a_tile(copies):
    N, K = 2 * copies, 256

    def rows(A, x, y):
        for i in range(N):
            s = 0.0
            for k in range(K):
                s += A[i, k] * x[k]
            y[i] = s

    lowering, records = warned(
        unroll("i", copies)(vectorize("k")(rows)),
        *map(spec, (f"float32[{N}, {K}]", f"float32[{K}]", f"float32[{N}]")),
    )
    assert bool(vector_spills(hot_loop(lowering))) == bool(records) == (copies > host().vector_registers)


def test_a_stencil_of_many_copies_needs_few_registers():
    def smooth(X, Y):
        for i in range(32):
            for j in range(256):
                Y[i, j] = X[i, j] + X[i, j + 1] + X[i + 1, j] + X[i + 1, j + 1] + X[i + 2, j] + X[i + 2, j + 1]

    lowering, records = warned(
        unroll("i", 8)(vectorize("j")(smooth)), spec("float32[34, 257]"), spec("float32[32, 256]")
    )
    assert not records and not vector_spills(hot_loop(lowering))


def test_a_tile_that_spills_computes_what_the_function_means():
    scheduled, shapes = product(7, 4 * host().lanes(4), depth=9)
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-8, 9, shape).astype(np.float32) for shape in shapes)
    expected = c + a @ b
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        scheduled(a, b, c)
    np.testing.assert_array_equal(c, expected)
