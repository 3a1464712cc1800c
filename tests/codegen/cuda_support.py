"""Hand-built kernels for the CUDA back end: shorthand, the nests that several files test, and running them in
lockstep beside the IR interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pyschedule.codegen.cuda_program import CudaProgram
from pyschedule.codegen.numba_cuda import generate
from pyschedule.ir import build as b
from pyschedule.ir import interpreter
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Barrier,
    BinOp,
    BoolOp,
    Compare,
    Const,
    Dim,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Ramp,
    Stmt,
    Store,
    Var,
)
from pyschedule.ir.types import FLOAT32, INT64, Scalar
from pyschedule.runtime import lockstep
from pyschedule.schedule.targets import cuda

SM80, SM90 = cuda("sm_80"), cuda("sm_90")


def var(name: str) -> Var:
    return Var(name, INT64)


def _expr(value: Expr | int) -> Expr:
    return b.const(value) if isinstance(value, int) else value


def loop(name: str, start: Expr | int, stop: Expr | int, *body: Stmt, step: int = 1, **fields: Any) -> For:
    return For(name, _expr(start), _expr(stop), b.const(step), body, source=name, **fields)


def param(name: str, rank: int = 1, dtype: str = "float32", unit: int | None = -1, divisor: int = 1) -> Array:
    shape = tuple(Dim(name, axis) for axis in range(rank))
    return Array(name, Scalar(dtype), shape, "global", rank - 1 if unit == -1 else unit, divisor)


def local(name: str, *shape: int, space: str = "local", dtype: str = "float32") -> Alloc:
    return Alloc(Array(name, Scalar(dtype), tuple(map(b.const, shape)), space))


def load(array: str, *indices: Expr | int, dtype: str = "float32", mask: Expr | None = None) -> Load:
    return Load(array, tuple(map(_expr, indices)), Scalar(dtype), mask)


def store(array: str, indices: Expr | int | tuple[Expr | int, ...], value: Expr, mask: Expr | None = None) -> Store:
    places = indices if isinstance(indices, tuple) else (indices,)
    return Store(array, tuple(map(_expr, places)), value, mask)


def f32(value: float) -> Const:
    return Const(value, FLOAT32)


def binary(op: str, left: Expr, right: Expr, dtype: str = "float32") -> BinOp:
    return BinOp(op, left, right, Scalar(dtype))


def elementwise(threads: int = 32, lanes: int = 1, divisor: int = 4, dtype: str = "float32") -> Kernel:
    """`Y = 2 * X + 1`, a block for each `threads * lanes` elements."""
    n, i, t = Dim("X", 0), var("i"), var("t")
    first = b.add(b.mul(i, threads * lanes), b.mul(t, lanes))
    held = "float32" if Scalar(dtype).is_half else dtype
    index: Expr = first if lanes == 1 else Ramp(first, 1, lanes)
    mask = Compare("<", index, n, INT64) if lanes > 1 else None
    value = binary(
        "+",
        binary("*", load("X", index, dtype=held, mask=mask), Const(2, Scalar(held)), held),
        Const(1, Scalar(held)),
        held,
    )
    statement: Stmt = store("Y", index, value, mask)
    if lanes == 1:
        statement = If(b.compare("<", first, n), (statement,))
    nest = loop(
        "i",
        0,
        b.ceildiv(n, threads * lanes),
        loop("t", 0, threads, statement, mapping="thread.x"),
        mapping="block.x",
    )
    return Kernel(
        "elementwise", (param("X", 1, dtype, divisor=divisor), param("Y", 1, dtype, divisor=divisor)), (nest,)
    )


def row_sums(threads: int = 32) -> Kernel:
    """`S[i] = sum(X[i, :])`: a block a row, partial sums in shared memory, added up by one thread."""
    i, t, j, u = var("i"), var("t"), var("j"), var("u")
    partial = load("P", t)
    strided = loop("j", t, Dim("X", 1), store("P", t, binary("+", partial, load("X", i, j))), step=threads)
    body = (
        local("P", threads, space="shared"),
        loop("t", 0, threads, store("P", t, f32(0.0)), strided, mapping="thread.x"),
        Barrier(),
        store("S", i, f32(0.0)),
        loop("u", 0, threads, store("S", i, binary("+", load("S", i), load("P", u)))),
    )
    nest = loop("i", 0, Dim("X", 0), *body, mapping="block.x")
    return Kernel("row_sums", (param("X", 2), param("S", 1)), (nest,))


def sgemm(
    block: tuple[int, int, int] = (128, 128, 8),
    tile: tuple[int, int] = (8, 8),
    lanes: int = 1,
    barriers: tuple[bool, bool] = (True, True),
) -> Kernel:
    """`C = A @ B`: block tiles `(m, n, k)` staged in shared memory, `tile` outputs a thread in registers.

    `lanes` widens the copy of B and the stores of C.  `barriers`: before and after the copies.
    """
    m, n, k = block
    rows, cols = tile
    M, N, K = Dim("C", 0), Dim("C", 1), Dim("A", 1)
    by, bx, ty, tx, k0 = var("by"), var("bx"), var("ty"), var("tx"), var("k0")

    def row(inner: Expr) -> Expr:
        return b.add(b.mul(by, m), b.add(b.mul(ty, rows), inner))

    def col(inner: Expr) -> Expr:
        return b.add(b.mul(bx, n), b.add(b.mul(tx, cols), inner))

    ci, ck, dk, dj = var("ci"), var("ck"), var("dk"), var("dj")
    a_row, a_col, b_row = b.add(b.mul(by, m), ci), b.add(k0, ck), b.add(k0, dk)
    a_inside = b.both(b.compare("<", a_row, M), b.compare("<", a_col, K))
    copy_a = loop(
        "ci",
        0,
        m,
        loop("ck", 0, k, store("As", (ck, ci), load("A", a_row, a_col, mask=a_inside)), mapping="cooperative"),
        mapping="cooperative",
    )
    b_col = b.add(b.mul(bx, n), b.mul(dj, lanes))
    b_index: Expr = Ramp(b_col, 1, lanes) if lanes > 1 else b_col
    s_index: Expr = Ramp(b.mul(dj, lanes), 1, lanes) if lanes > 1 else dj
    b_inside = BoolOp("and", b.compare("<", b_row, K), Compare("<", b_index, N, INT64))
    copy_b = loop(
        "dk",
        0,
        k,
        loop(
            "dj",
            0,
            n // lanes,
            store("Bs", (dk, s_index), load("B", b_row, b_index, mask=b_inside)),
            mapping="cooperative",
        ),
        mapping="cooperative",
    )

    def register_tile(label: str, body: Stmt, columns: int = cols) -> For:
        return loop(f"i{label}", 0, rows, loop(f"j{label}", 0, columns, body, unroll=-1), unroll=-1)

    i, j, kk = var("i2"), var("j2"), var("k1")
    product = binary("*", load("As", kk, b.add(b.mul(ty, rows), i)), load("Bs", kk, b.add(b.mul(tx, cols), j)))
    update = store("acc", (i, j), binary("+", load("acc", i, j), product))
    ei, ej = var("i3"), var("j3")
    out_col = col(b.mul(ej, lanes))
    out_index: Expr = Ramp(out_col, 1, lanes) if lanes > 1 else out_col
    acc_index: Expr = Ramp(b.mul(ej, lanes), 1, lanes) if lanes > 1 else ej
    inside = BoolOp("and", b.compare("<", row(ei), M), Compare("<", out_index, N, INT64))
    write = store("C", (row(ei), out_index), load("acc", ei, acc_index), inside)
    steps: list[Stmt] = [copy_a, copy_b]
    if barriers[0]:
        steps.insert(0, Barrier())
    if barriers[1]:
        steps.append(Barrier())
    steps.append(loop("k1", 0, k, register_tile("2", update), unroll=-1))
    thread = (
        local("acc", rows, cols, space="register"),
        register_tile("1", store("acc", (var("i1"), var("j1")), f32(0.0))),
        loop("k0", 0, K, *steps, step=k),
        register_tile("3", write, cols // lanes),
    )
    threads = loop("ty", 0, m // rows, loop("tx", 0, n // cols, *thread, mapping="thread.x"), mapping="thread.y")
    blocks = loop(
        "by",
        0,
        b.ceildiv(M, m),
        loop(
            "bx",
            0,
            b.ceildiv(N, n),
            local("As", k, m, space="shared"),
            local("Bs", k, n, space="shared"),
            threads,
            mapping="block.x",
        ),
        mapping="block.y",
    )
    arrays = (param("A", 2), param("B", 2, divisor=4), param("C", 2, divisor=4))
    return Kernel("sgemm", arrays, (blocks,))


def copy_layout(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    copy = np.empty_like(value)
    copy[...] = value
    return copy


def agree(
    kernel: Kernel,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    scalars: Mapping[str, Any] | None = None,
    *,
    bits: tuple[int, ...] = (32, 64),
    rtol: float = 0.0,
) -> CudaProgram:
    """Runs the generated source in lockstep, and the interpreter; asserts that arrays and results agree.

    Returns the program of the first of `bits`.
    """
    expected = {name: copy_layout(value) for name, value in arrays.items()}
    wanted = interpreter.run(kernel, expected, dict(scalars or {}))
    first = None
    for width in bits:
        program = generate(kernel, SM80, width)
        first = first or program
        given = {name: copy_layout(value) for name, value in arrays.items()}
        found = lockstep.run(program, given, dict(scalars or {}))
        for name, value in given.items():
            np.testing.assert_allclose(
                value.astype(np.float64) if value.dtype.kind not in "iub" else value,
                expected[name].astype(np.float64) if value.dtype.kind not in "iub" else expected[name],
                rtol=rtol,
                err_msg=f"{name}, {width} bits",
            )
        numbers = [wanted[at] for at, item in enumerate(kernel.returns) if isinstance(item, int)]
        for got, value in zip(found.scalars, numbers, strict=True):
            np.testing.assert_allclose(got, value, rtol=rtol)
    assert first is not None
    return first
