"""Short constructors of IR, so that a test shows the loop nest and little else."""

from __future__ import annotations

from collections.abc import Sequence

from pyschedule.ir.build import const
from pyschedule.ir.nodes import (
    Array,
    Assign,
    BinOp,
    Call,
    Compare,
    Const,
    Dim,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Location,
    Stmt,
    Store,
    Var,
)
from pyschedule.ir.types import FLOAT32, INT64, Scalar

Number = Expr | int | str


def at(line: int) -> Location:
    return Location("kernel.py", line, 4)


def ix(value: Number) -> Expr:
    """An index expression: an int is a constant, a str an int64 variable."""
    if isinstance(value, int):
        return const(value)
    return Var(value, INT64) if isinstance(value, str) else value


def op(symbol: str, left: Number, right: Number, dtype: Scalar = INT64) -> BinOp:
    return BinOp(symbol, ix(left), ix(right), dtype)


def plus(left: Number, right: Number) -> BinOp:
    return op("+", left, right)


def minus(left: Number, right: Number) -> BinOp:
    return op("-", left, right)


def times(left: Number, right: Number) -> BinOp:
    return op("*", left, right)


def low(left: Number, right: Number) -> Call:
    return Call("pmin", (ix(left), ix(right)), INT64)


def cmp(symbol: str, left: Number, right: Number, dtype: Scalar = INT64) -> Compare:
    return Compare(symbol, ix(left), ix(right), dtype)


def f32(value: float) -> Const:
    return Const(value, FLOAT32)


def var(name: str, dtype: Scalar = FLOAT32) -> Var:
    return Var(name, dtype)


def load(array: str, *indices: Number, dtype: Scalar = FLOAT32, line: int = 0) -> Load:
    return Load(array, tuple(ix(index) for index in indices), dtype, loc=at(line) if line else None)


def store(array: str, indices: Sequence[Number], value: Expr, line: int = 0) -> Store:
    return Store(array, tuple(ix(index) for index in indices), value, loc=at(line) if line else None)


def assign(target: str, value: Expr, dtype: Scalar = FLOAT32) -> Assign:
    return Assign(target, value, dtype)


def loop(
    name: str, start: Number, stop: Number, *body: Stmt, step: Number = 1, max_trip: int | None = None
) -> For:
    return For(name, ix(start), ix(stop), ix(step), tuple(body), source=name, max_trip=max_trip)


def when(test: Expr, *body: Stmt, orelse: Sequence[Stmt] = ()) -> If:
    return If(test, tuple(body), tuple(orelse))


def array(name: str, rank: int = 1, dtype: Scalar = FLOAT32) -> Array:
    """A parameter of run-time extents, last axis of unit stride."""
    return Array(name, dtype, tuple(Dim(name, axis) for axis in range(rank)), unit_axis=rank - 1)


def local(name: str, *shape: int, dtype: Scalar = FLOAT32, space: str = "local") -> Array:
    return Array(name, dtype, tuple(const(extent) for extent in shape), space=space, unit_axis=len(shape) - 1)


def kernel(params: Sequence[Array | Var], *body: Stmt, name: str = "kernel") -> Kernel:
    return Kernel(name, tuple(params), tuple(body))


def gemm_body() -> tuple[Stmt, ...]:
    """`for i: for j: for k: C[i, j] += A[i, k] * B[k, j]` over `M, K = A.shape` and `N = B.shape[1]`."""
    product = BinOp("*", load("A", "i", "k", line=8), load("B", "k", "j", line=8), FLOAT32)
    update = store("C", ("i", "j"), BinOp("+", load("C", "i", "j", line=8), product, FLOAT32), line=8)
    inner = loop("k", 0, Dim("A", 1), update)
    return (loop("i", 0, Dim("A", 0), loop("j", 0, Dim("B", 1), inner)),)


def gemm() -> Kernel:
    return kernel((array("A", 2), array("B", 2), array("C", 2)), *gemm_body(), name="gemm")
