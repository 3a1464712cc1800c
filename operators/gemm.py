"""The general matrix product of BLAS: two factors, what is added, and a number for each."""

from __future__ import annotations

from typing import Any

import numpy as np

from operators.arrays import Operand, new, require_dtype, result_of, shape_of
from operators.kernels import products as kernels
from operators.operator import operator
from operators.parameters import flag_of
from operators.plans import Plan, Step, copy
from operators.products import arranged, is_integer, lanes_of, product, result_dtype


@operator("a", "b", "c", "out", in_place="c")
def gemm(
    a: Any,
    b: Any,
    c: Any = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
    out: Any = None,
) -> Plan:
    """`alpha * op(a) @ op(b) + beta * c`, where `op` transposes on request.

    op(a): (M, K), op(b): (K, N).  c: (M, N), (1, N), (N,), (M, 1), (1, 1), (1,) or (), repeated to (M, N).  The
    dtypes are those of `matmul`; `c` and `out` have the result's.  The sum is rounded once.  `beta=0` never reads
    `c`, `alpha=0` neither factor.  `out` may be `c`, and may overlap anything.  `TypeError` for mixed dtypes,
    `ValueError` for shapes that disagree.
    """
    dtype = result_dtype(("a", a), ("b", b))
    require_dtype(c, "c", dtype, f" with a of {a.dtype}")
    left = a.T if flag_of(trans_a, "trans_a") else a
    right = b.T if flag_of(trans_b, "trans_b") else b
    rows, depth = shape_of(left, "a", 2)
    depth_of_b, columns = shape_of(right, "b", 2)
    if depth != depth_of_b:
        of_a, of_b = ("a, transposed," if trans_a else "a"), ("b, transposed," if trans_b else "b")
        raise ValueError(
            f"{of_a} is {(rows, depth)} and {of_b} is {(depth_of_b, columns)}: the first must have as many "
            f"columns, {depth}, as the second has rows, {depth_of_b}"
        )
    added = None if c is None else _added(c, rows, columns)
    factors = _number(alpha, "alpha", dtype), _number(beta, "beta", dtype)
    result = result_of(out, (rows, columns), dtype)
    if factors[0] == 0:
        left, right = left[:, :0], right[:0]
    if factors[1] == 0:
        added = None
    steps = _integer_steps if is_integer(dtype) else _floating_steps
    made = steps(left, right, added, result, *factors)
    return Plan(made if result.size else (), made[0], result)


def _added(c: Operand, rows: int, columns: int) -> Operand:
    """`c` with two axes, each of the result's extent or of 1; `ValueError` where that cannot be."""
    if c.ndim > 2 or any(
        extent not in (1, whole) for extent, whole in zip(reversed(c.shape), (columns, rows), strict=False)
    ):
        raise ValueError(
            f"c: shape {c.shape} cannot be repeated to the result's, {(rows, columns)}; two axes at most, each of "
            "that extent or of 1, are needed"
        )
    return c[(None,) * (2 - c.ndim)] if c.ndim < 2 else c


def _number(value: Any, name: str, dtype: np.dtype[Any]) -> Any:
    try:
        number = float(value + 0)  # no text
        if is_integer(dtype):
            if int(value) != number:
                raise ValueError(f"{name}: a whole number is needed for {dtype}, not {value!r}")
            return int(value)
    except (OverflowError, TypeError):
        raise TypeError(f"{name}: a number is needed, not {value!r}") from None
    return number


def _floating_steps(
    left: Operand, right: Operand, added: Operand | None, result: Operand, alpha: float, beta: float
) -> tuple[Step, ...]:
    if added is None and alpha == 1:
        return (product(left, right, result),)
    one = arranged(left, right, result)
    how = one.form, lanes_of(result.dtype)
    if added is None:
        return (Step(kernels.scaled_product_kernel(*how), (one.left, one.right, one.target, alpha)),)
    if added is result:
        return (Step(kernels.updated_product_kernel(*how), (one.left, one.right, one.target, alpha, beta)),)
    if one.flipped:
        added = added.T
    shape = {
        (False, False): kernels.WHOLE,
        (True, False): kernels.SAME_ROWS,
        (False, True): kernels.SAME_COLUMNS,
        (True, True): kernels.NUMBER,
    }[added.shape[0] != one.target.shape[0], added.shape[1] != one.target.shape[1]]
    kernel = kernels.product_sum_kernel(*how, shape)
    return (Step(kernel, (one.left, one.right, added, one.target, alpha, beta)),)


def _integer_steps(
    left: Operand, right: Operand, added: Operand | None, result: Operand, alpha: int, beta: int
) -> tuple[Step, ...]:
    if added is None and alpha == 1:
        return (product(left, right, result),)
    apart = new(result.shape, result.dtype)
    main = product(left, right, apart)
    if added is None:
        added, beta = apart, 0
    before = () if added is result else (Step(copy, (added, result)),)
    return (main, *before, Step(kernels.integer_sum_kernel, (apart, result, alpha, beta)))
