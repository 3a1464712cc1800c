"""The matrix product with NumPy's rules: vectors, matrices, and batches of matrices that are broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np

from operators.arrays import Operand, result_of
from operators.operator import operator
from operators.plans import Plan
from operators.products import batched_product, result_dtype


@operator("a", "b", "out")
def matmul(a: Any, b: Any, *, out: Any = None) -> Plan:
    """`a @ b` as `numpy.matmul` has it, for a: (..., M, K), b: (..., K, N), or (K,) either.

    The axes before the last two are broadcast.  Views of all kinds are read where they lie: transposed, strided,
    reversed, repeated.  float32, float64, float16 and bfloat16 (summed in float32, rounded once), int32 and int64
    keep their dtype; int8 makes int32.  `out`, of the result's shape and dtype, is written and returned; it may
    overlap `a` and `b`.  `TypeError` for mixed dtypes and kinds of array, `ValueError` for shapes that disagree.
    """
    dtype = result_dtype(("a", a), ("b", b))
    for name, array in (("a", a), ("b", b)):
        if array.ndim == 0:
            raise ValueError(f"{name}: one dimension at least is needed; multiply by a number with *")
    left: Operand = a[None] if a.ndim == 1 else a
    right: Operand = b[:, None] if b.ndim == 1 else b
    if left.shape[-1] != right.shape[-2]:
        of_b = "the length of b" if b.ndim == 1 else "the last but one of b"
        raise ValueError(
            f"a is {a.shape} and b is {b.shape}: the last extent of a, {left.shape[-1]}, and {of_b}, "
            f"{right.shape[-2]}, must be the same"
        )
    try:
        batch = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    except ValueError:
        raise ValueError(
            f"a is {a.shape} and b is {b.shape}: the extents before the last two, {left.shape[:-2]} and "
            f"{right.shape[:-2]}, must be the same, or 1, from the last on"
        ) from None
    shape = (*batch, *left.shape[-2:-1][: a.ndim - 1], *right.shape[-1:][: b.ndim - 1])
    result = result_of(out, shape, dtype)
    target = result if b.ndim > 1 else result[..., None]
    target = target if a.ndim > 1 else target[..., None, :]
    main = batched_product(left, right, target)
    return Plan((main,) if target.size else (), main, result, scalar=not shape and out is None)
