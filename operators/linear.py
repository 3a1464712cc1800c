"""The linear layer: a product, a bias and an activation in one pass over the result."""

from __future__ import annotations

import math
from typing import Any

from operators import activations
from operators.arrays import Operand, new, require_dtype, require_shape
from operators.kernels import products as kernels
from operators.operator import operator
from operators.plans import Plan, Step, copy
from operators.products import BATCHED_WORK, arranged, is_integer, lanes_of, result_dtype


@operator("x", "weight", "bias")
def linear(x: Any, weight: Any, bias: Any = None, *, activation: str | None = None) -> Plan:
    """`activation(x @ weight.T + bias)`; names as PyTorch's, for x: (..., K), weight: (N, K) or (K,).

    bias: (N,), of the result's dtype; with a weight of one axis the result loses its last one, and bias has none.
    activation: `"relu"`, `"gelu"` (by erf), `"gelu_tanh"`, `"silu"` or `None`; integers take `"relu"` alone.  The
    dtypes are those of `matmul`.  `TypeError` for mixed dtypes, `ValueError` for shapes that disagree.
    """
    number = activations.number_of(activation)
    dtype = result_dtype(("x", x), ("weight", weight))
    require_dtype(bias, "bias", dtype, f" with x of {x.dtype}")
    if is_integer(dtype) and number not in (activations.NONE, activations.RELU):
        raise ValueError(f"activation: {activation!r} is not for {x.dtype}; there are 'relu' and None")
    if x.ndim == 0:
        raise ValueError("x: one dimension at least is needed")
    if weight.ndim not in (1, 2):
        raise ValueError(f"weight: 1 or 2 dimensions are needed, not {weight.ndim} (shape {weight.shape})")
    if x.shape[-1] != weight.shape[-1]:
        raise ValueError(
            f"x is {x.shape} and weight is {weight.shape}: their last extents, {x.shape[-1]} and "
            f"{weight.shape[-1]}, must be the same"
        )
    require_shape(bias, "bias", weight.shape[:-1])
    result = new((*x.shape[:-1], *weight.shape[:-1]), dtype)
    matrix: Operand = weight[None] if weight.ndim == 1 else weight
    row = bias[None] if bias is not None and weight.ndim == 1 else bias
    steps = _steps(x, matrix, row, result[..., None] if weight.ndim == 1 else result, number)
    return Plan(steps if result.size else (), steps[-1], result)


def _steps(x: Operand, weight: Operand, bias: Operand | None, result: Operand, activation: int) -> tuple[Step, ...]:
    count, depth, features = math.prod(x.shape[:-1]), x.shape[-1], weight.shape[0]
    before: tuple[Step, ...] = ()
    over: tuple[int, ...] = ()
    rows, results = x.reshaped(count, depth), result.reshaped(count, features)
    row = new((0,), result.dtype) if bias is None else bias
    if rows is None and math.prod(x.shape[-2:]) * features > BATCHED_WORK:  # a view of many matrices of rows
        over = x.shape[:-2]
        rows, results = x, result
        weight, row = weight.broadcast(*over, *weight.shape), row.broadcast(*over, *row.shape)
    elif rows is None:
        apart = new(x.shape, x.dtype)
        before = (Step(copy, (x, apart)),)
        rows = apart.reshaped(count, depth)
    assert rows is not None and results is not None  # what is new is contiguous
    first = (0,) * len(over)
    one = arranged(rows[first], weight[first].T, results[first], may_flip=False)
    make = kernels.integer_linear_kernel if is_integer(x.dtype) else kernels.linear_kernel
    kernel = make(activation, bias is not None, one.form, lanes_of(result.dtype))
    return (*before, Step(kernel, (rows, weight, row, results), over))
