"""The matrix product: three loops, and a schedule for each target."""

from __future__ import annotations

from typing import Any

from operators.arrays import full, result_of, same_dtype, shape_of
from operators.kernels.products import clear_kernel, gemm_kernel, gemm_kernel_float64, scale_kernel
from operators.operator import Operator, Plan, Step


@Operator
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

    a: (M, K), b: (K, N), c: (M, N) or `None`; the result, (M, N) and of the inputs' dtype, is `out` where that
    is given.  `beta=0` never reads `c`.  `TypeError` for mixed dtypes, `ValueError` for shapes that disagree.
    """
    same_dtype(("a", a), ("b", b), ("c", c))
    left, right = (a.T if trans_a else a), (b.T if trans_b else b)
    rows, depth = shape_of(left, "a", 2)
    depth_of_b, columns = shape_of(right, "b", 2)
    if depth != depth_of_b:
        raise ValueError(f"a is {(rows, depth)} and b is {(depth_of_b, columns)}: the inner extents disagree")
    if c is not None and shape_of(c, "c", 2) != (rows, columns):
        raise ValueError(f"c: shape {(rows, columns)} is needed, not {tuple(c.shape)}")
    result = result_of(a, out, (rows, columns))
    steps: list[Step] = []
    if alpha != 1.0:
        scaled = full(a, (rows, depth), 0.0)
        steps.append(Step(scale_kernel, (left, scaled, alpha)))
        left = scaled
    if c is not None and beta != 0.0:
        steps.append(Step(scale_kernel, (c, result, beta)))
    elif out is not None:
        steps.append(Step(clear_kernel, (result,)))
    kernel = gemm_kernel_float64 if str(a.dtype) in ("float64", "int64", "uint64") else gemm_kernel
    product = Step(kernel, (left, right, result))
    return Plan((*steps, product), main=product, result=result)
