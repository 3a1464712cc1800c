"""Small kernels in IR, written by hand, and short ways to write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyschedule.ir.build import const
from pyschedule.ir.nodes import (
    Array,
    BinOp,
    Compare,
    Const,
    Dim,
    Expr,
    For,
    Kernel,
    Load,
    Origin,
    Ramp,
    Stmt,
    Store,
    Var,
)
from pyschedule.ir.types import FLOAT32, FLOAT64, INT64, Scalar, Type, with_lanes

I, J, K, N = Var("i"), Var("j"), Var("k"), Var("n")


def array(name: str, rank: int = 1, dtype: str = "float32", **kwargs: Any) -> Array:
    """A parameter of run-time extents."""
    return Array(name, Scalar(dtype), tuple(Dim(name, axis) for axis in range(rank)), **kwargs)


def local(name: str, *shape: Expr | int, dtype: Type = FLOAT32, space: str = "local") -> Array:
    return Array(name, dtype, tuple(const(part) if isinstance(part, int) else part for part in shape), space)


def load(name: str, *indices: Expr | int, dtype: Type = FLOAT32, mask: Expr | None = None) -> Load:
    return Load(name, tuple(map(as_expr, indices)), dtype, mask)


def store(name: str, indices: Any, value: Expr, mask: Expr | None = None, origin: Origin | None = None) -> Store:
    indices = indices if isinstance(indices, tuple) else (indices,)
    return Store(name, tuple(map(as_expr, indices)), value, mask, origin)


def loop(var: str, start: Expr | int, stop: Expr | int, step: Expr | int, *body: Stmt, **kwargs: Any) -> For:
    kwargs = {"source": var} | kwargs
    return For(var, as_expr(start), as_expr(stop), as_expr(step), body, **kwargs)


def as_expr(value: Expr | int) -> Expr:
    return const(value) if isinstance(value, int) else value


def f32(value: float) -> Const:
    return Const(value, FLOAT32)


def f64(value: float) -> Const:
    return Const(value, FLOAT64)


def op(sign: str, left: Expr, right: Expr, dtype: Scalar = FLOAT32) -> BinOp:
    return BinOp(sign, left, right, dtype)


def less(left: Expr, right: Expr) -> Compare:
    return Compare("<", left, right, INT64)


def ramp(base: Expr | int, lanes: int, stride: int = 1) -> Ramp:
    return Ramp(as_expr(base), stride, lanes)


def vector(dtype: Scalar, lanes: int) -> Type:
    return with_lanes(dtype, lanes)


def kernel(params: Sequence[Array | Var], *body: Stmt, **kwargs: Any) -> Kernel:
    return Kernel("f", tuple(params), body, **kwargs)


def gemm(mapping: str = "serial") -> Kernel:
    """`C[i, j] += A[i, k] * B[k, j]`, as the front end would write it."""
    product = op("*", load("A", I, K), load("B", K, J))
    update = store("C", (I, J), op("+", load("C", I, J), product), origin=Origin(0, (I, J, K)))
    nest = loop("k", 0, Dim("A", 1), 1, update)
    nest = loop("j", 0, Dim("B", 1), 1, nest)
    nest = loop("i", 0, Dim("A", 0), 1, nest, mapping=mapping)
    return Kernel("gemm", (array("A", 2), array("B", 2), array("C", 2)), (nest,))
