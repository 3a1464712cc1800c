"""The operators as PyTorch's custom operators, `torch.ops.pyschedule.matmul` and so on, for `torch.compile`.

Importing this module registers them; nothing else in the package imports PyTorch.  They compute what the functions
of the same names do, on the CPU and on GPUs, without `out`.  They have no gradient: where an input requires one, a
backward pass raises `RuntimeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn import functional

import operators
from operators.windows import pads_of, pair_of

Tensor = Any


def _wide(tensor: Tensor) -> Any:
    """The dtype of a product's result."""
    return torch.int32 if tensor.dtype == torch.int8 else tensor.dtype


def _fake_matmul(a: Tensor, b: Tensor) -> Tensor:
    return a.new_empty(torch.matmul(a, b).shape, dtype=_wide(a))


def _fake_gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    trans_a: bool = False,
    trans_b: bool = False,
) -> Tensor:
    rows, columns = a.shape[1 if trans_a else 0], b.shape[0 if trans_b else 1]
    return a.new_empty((rows, columns), dtype=_wide(a))


def _fake_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: str | None = None) -> Tensor:
    return x.new_empty((*x.shape[:-1], *weight.shape[:-1]), dtype=_wide(x))


def _fake_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    layout: str = "NCHW",
    activation: str | None = None,
) -> Tensor:
    last = layout == "NHWC"
    images = x.permute(0, 3, 1, 2) if last else x
    top, bottom, left, right = padding if len(padding) == 4 else (padding[0], padding[0], padding[1], padding[1])
    wide = functional.pad(images, (left, right, top, bottom))
    result = functional.conv2d(wide, weight, None, stride, 0, dilation, groups)
    batch, filters, height, width = result.shape
    return x.new_empty((batch, height, width, filters) if last else (batch, filters, height, width))


def _fake_norm(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty(x.shape)


def _registered(schema: str, compute: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    """The custom operator of this schema; `compute` and `fake` take its arguments by their names."""
    name, _, parameters = schema.partition("(")
    custom = torch.library.custom_op(f"pyschedule::{name}", compute, mutates_args=(), schema=f"({parameters}")
    custom.register_fake(fake)
    return custom


matmul = _registered("matmul(Tensor a, Tensor b) -> Tensor", lambda a, b: operators.matmul(a, b), _fake_matmul)

gemm = _registered(
    "gemm(Tensor a, Tensor b, Tensor? c=None, float alpha=1.0, float beta=1.0, bool trans_a=False, "
    "bool trans_b=False) -> Tensor",
    lambda a, b, c=None, alpha=1.0, beta=1.0, trans_a=False, trans_b=False: operators.gemm(
        a, b, c, alpha=alpha, beta=beta, trans_a=trans_a, trans_b=trans_b
    ),
    _fake_gemm,
)

linear = _registered(
    "linear(Tensor x, Tensor weight, Tensor? bias=None, str? activation=None) -> Tensor",
    lambda x, weight, bias=None, activation=None: operators.linear(x, weight, bias, activation=activation),
    _fake_linear,
)

layer_norm = _registered(
    "layer_norm(Tensor x, SymInt[] normalized_shape, Tensor? weight=None, Tensor? bias=None, float eps=1e-5) "
    "-> Tensor",
    lambda x, normalized_shape, weight=None, bias=None, eps=1e-5: operators.layer_norm(
        x, tuple(normalized_shape), weight, bias, eps
    ),
    _fake_norm,
)

rms_norm = _registered(
    "rms_norm(Tensor x, SymInt[] normalized_shape, Tensor? weight=None, float? eps=None) -> Tensor",
    lambda x, normalized_shape, weight=None, eps=None: operators.rms_norm(x, tuple(normalized_shape), weight, eps),
    _fake_norm,
)


def _compute_conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    layout: str = "NCHW",
    activation: str | None = None,
) -> Tensor:
    numbers = tuple(stride), tuple(padding), tuple(dilation)
    return operators.conv2d(x, weight, bias, *numbers, groups, layout=layout, activation=activation)


_conv2d = _registered(
    "conv2d(Tensor x, Tensor weight, Tensor? bias=None, SymInt[] stride=[1, 1], SymInt[] padding=[0, 0], "
    'SymInt[] dilation=[1, 1], SymInt groups=1, str layout="NCHW", str? activation=None) -> Tensor',
    _compute_conv2d,
    _fake_conv2d,
)


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    activation: str | None = None,
) -> Tensor:
    """`torch.ops.pyschedule.conv2d`, which takes lists of numbers alone, with all that `operators.conv2d` takes."""
    strides, dilations = pair_of(stride, "stride", 1), pair_of(dilation, "dilation", 1)
    reach = (dilations[0] * (weight.shape[2] - 1) + 1, dilations[1] * (weight.shape[3] - 1) + 1)
    pads = pads_of(padding, reach, strides)
    return _conv2d(x, weight, bias, strides, pads, dilations, groups, layout, activation)
