"""Layer normalisation over the trailing axes: two passes for the statistics, one for the result."""

from __future__ import annotations

import math
from typing import Any

from operators.arrays import filled, result_of, rows_of, same_dtype
from operators.kernels.normalisations import layer_norm_kernel
from operators.operator import operator
from operators.plans import Plan, Step


@operator("x", "weight", "bias", "out")
def layer_norm(
    x: Any,
    normalized_shape: int | tuple[int, ...],
    weight: Any = None,
    bias: Any = None,
    eps: float = 1e-5,
    *,
    out: Any = None,
) -> Plan:
    """`x` normalised over its trailing axes, which must be `normalized_shape`; names and defaults as PyTorch's.

    weight, bias: of `normalized_shape`, or `None` for ones and zeros.  The variance is the mean of squared
    deviations from the mean, so that a large mean does not cancel.
    """
    trailing = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    same_dtype(("x", x), ("weight", weight), ("bias", bias))
    if not trailing or x.shape[-len(trailing) :] != trailing:
        raise ValueError(f"normalized_shape={trailing} must be the trailing shape of x, which is {x.shape}")
    for name, array in (("weight", weight), ("bias", bias)):
        if array is not None and array.shape != trailing:
            raise ValueError(f"{name}: shape {trailing} is needed, not {array.shape}")
    width = math.prod(trailing)
    result = result_of(out, x.shape, x.dtype)
    main = Step(
        layer_norm_kernel,
        (
            rows_of(x, width),
            filled((width,), x.dtype, 1.0) if weight is None else rows_of(weight, None),
            filled((width,), x.dtype, 0.0) if bias is None else rows_of(bias, None),
            rows_of(result, width),
            float(eps),
        ),
    )
    return Plan((main,) if math.prod(result.shape) else (), main=main, result=result)
