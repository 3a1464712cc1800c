"""No operator's own schedule draws a warning, of which its user can make nothing, on a CPU that it is made for."""

from __future__ import annotations

import dataclasses
import warnings

import ml_dtypes
import numpy as np
import pytest

import operators
from pyschedule import ScheduleWarning
from tests.transforms.schedules import WIDE

#: 32 vector registers of 64 bytes, and registers for masks.
MADE_FOR = dataclasses.replace(WIDE, mask_registers=True, folds=("vectors", "broadcasts"))

DTYPES = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
LAYOUTS = ("NCHW", "NHWC")
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
each_layout = pytest.mark.parametrize("layout", LAYOUTS)


def lowered(operator, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("error", ScheduleWarning)
        log = operator.lower(*args, target=MADE_FOR, **options).log
    assert not [record for record in log if record.status in ("Skipped", "Warning")], str(log)


def convolved(dtype, layout, channels, size, window, groups=1, **options):
    height, width = (size * options.get("stride", 1) + side - 1 for side in window)
    shape = (1, channels, height, width) if layout == "NCHW" else (1, height, width, channels)
    filters = np.zeros((32, channels // groups, *window), dtype)
    lowered(operators.conv2d, np.zeros(shape, dtype), filters, groups=groups, layout=layout, **options)


@each_dtype
def test_products(dtype):
    for m, n, k in ((1, 70, 90), (40, 24, 40), (130, 520, 300)):
        a, b = np.zeros((m, k), dtype), np.zeros((n, k), dtype)
        lowered(operators.matmul, a, b.T)
        lowered(operators.gemm, a, b.T.copy(), np.zeros(n, dtype), alpha=2.0)
        lowered(operators.linear, a, b, np.zeros(n, dtype), activation="gelu")


@each_dtype
def test_norms(dtype):
    for rows, columns in ((3, 5), (4, 768)):
        x, w = np.zeros((rows, columns), dtype), np.zeros(columns, dtype)
        lowered(operators.layer_norm, x, columns, w, w)
        lowered(operators.rms_norm, x, columns, w)


@each_layout
@each_dtype
def test_convolutions(dtype, layout):
    for channels, size, window, options in (
        (3, 9, (7, 7), {"stride": 2}),
        (16, 14, (3, 3), {"padding": 1, "activation": "gelu_tanh"}),
        (32, 9, (1, 1), {}),
        (32, 9, (3, 3), {"groups": 4, "dilation": 2}),
    ):
        convolved(dtype, layout, channels, size, window, **options)


#: Extents that each number of rows or columns in registers divides; windows that are read in place, written out,
#: high, flat, or neither.
DEPTHWISE = (
    (28, (3, 3), {"padding": 1}),
    (32, (5, 5), {}),
    (30, (5, 3), {}),
    (28, (6, 4), {}),
    (32, (3, 5), {"stride": 2}),
    (28, (1, 1), {}),
    (28, (1, 5), {}),
    (20, (7, 7), {"dilation": 2}),
)


@each_layout
@pytest.mark.parametrize("dtype", [np.float32, np.float16], ids=["float32", "float16"])
def test_depthwise_convolutions(dtype, layout):
    for size, window, options in DEPTHWISE:
        convolved(dtype, layout, 32, size, window, groups=32, **options)
