"""Layer normalisation over the trailing axes."""

from __future__ import annotations

from typing import Any

from operators.arrays import result_of
from operators.kernels.normalisations import layer_norm_kernel
from operators.operator import operator
from operators.parameters import float_of
from operators.plans import Plan, Step
from operators.rows import Rows, checked_shape


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
    """`(x - mean) / sqrt(variance + eps) * weight + bias` over the trailing axes; names and defaults as PyTorch's.

    normalized_shape: the trailing shape of x, or its last extent.  weight, bias: of that shape, or `None` for ones
    and zeros.  The result has the shape of x.  float32, float64, float16 or bfloat16, all of one kind; statistics
    of halves are float32, and the result is rounded once.  The variance is the mean of squared deviations, so that
    a mean that is large beside them does not cancel.

    `TypeError` for mixed or other dtypes, and for what is no integer or number; `ValueError` where shapes disagree.
    """
    trailing = checked_shape(x, normalized_shape, weight=weight, bias=bias)
    eps = float_of(eps, "eps")
    result = result_of(out, x.shape, x.dtype)
    rows = Rows(x, trailing)
    main = Step(
        layer_norm_kernel,
        (
            rows.read(x),
            rows.parameter(weight, 1.0, x),
            rows.parameter(bias, 0.0, x),
            rows.written(result),
            eps,
        ),
    )
    return Plan((*rows.before, main, *rows.after) if result.size else (), main, result)
