"""Normalisation by the root of the mean square, over the trailing axes."""

from __future__ import annotations

from typing import Any

import numpy as np

from operators.arrays import result_of
from operators.kernels.normalisations import rms_norm_kernel
from operators.operator import operator
from operators.parameters import float_of
from operators.plans import Plan, Step
from operators.rows import Rows, checked_shape


@operator("x", "weight", "out")
def rms_norm(
    x: Any,
    normalized_shape: int | tuple[int, ...],
    weight: Any = None,
    eps: float | None = None,
    *,
    out: Any = None,
) -> Plan:
    """`x / sqrt(mean of x * x + eps) * weight` over the trailing axes; names and defaults as PyTorch's.

    normalized_shape: the trailing shape of x, or its last extent.  weight: of that shape, or `None` for ones.
    eps: `None` for the distance from 1 to the next number of the dtype of x.  The result has the shape of x.
    float32, float64, float16 or bfloat16, all of one kind; squares of halves are summed in float32, and the result
    is rounded once.

    `TypeError` for mixed or other dtypes, and for what is no integer or number; `ValueError` where shapes disagree.
    """
    trailing = checked_shape(x, normalized_shape, weight=weight)
    eps = _epsilon(x.dtype) if eps is None else float_of(eps, "eps")
    result = result_of(out, x.shape, x.dtype)
    rows = Rows(x, trailing)
    main = Step(rms_norm_kernel, (rows.read(x), rows.parameter(weight, 1.0, x), rows.written(result), eps))
    return Plan((*rows.before, main, *rows.after) if result.size else (), main, result)


def _epsilon(dtype: np.dtype[Any]) -> float:
    if dtype.name != "bfloat16":
        return float(np.finfo(dtype).eps)
    import ml_dtypes

    return float(ml_dtypes.finfo(dtype).eps)
