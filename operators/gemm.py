"""The matrix product: three loops, and a schedule for each target."""

from __future__ import annotations

from typing import Any

from operators.arrays import new, result_of, same_dtype, shape_of
from operators.kernels.products import clear_kernel, gemm_kernel, gemm_kernel_float64, scale_kernel
from operators.operator import operator
from operators.plans import Plan, Step


@operator("a", "b", "c", "out")
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
        raise ValueError(f"c: shape {(rows, columns)} is needed, not {c.shape}")
    result = result_of(out, (rows, columns), a.dtype)
    steps: list[Step] = []
    if alpha != 1.0:
        scaled = new((rows, depth), a.dtype)
        steps.append(Step(scale_kernel, (left, scaled, alpha)))
        left = scaled
    if c is not None and beta != 0.0:
        steps.append(Step(scale_kernel, (c, result, beta)))
    else:
        steps.append(Step(clear_kernel, (result,)))
    kernel = gemm_kernel_float64 if a.dtype.name in ("float64", "int64", "uint64") else gemm_kernel
    product = Step(kernel, (left, right, result))
    return Plan((*steps, product), main=product, result=result)
