"""Every schedule of the operators' kernels as threads run it: compiled, and with the result of one thread."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import numpy as np
import operators
from numba import get_num_threads, set_num_threads
from operators.kernels import convolutions, normalisations, products
from pyschedule.runtime import binding

assert get_num_threads() == 2
binding.PARALLEL_WORK = 0  # each call is worth threads
rng = np.random.default_rng(0)

def numbers(*shape):
    return rng.standard_normal(shape).astype(np.float32)

def same(kernel, *arrays, **options):
    results = []
    for threads in (1, 2):
        set_num_threads(threads)
        out = np.full_like(arrays[-1], options.get("start", np.nan))
        kernel(*arrays[:-1], out, *options.get("more", ()))
        results.append(out)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-5)
    return results[1]

def main(case):
    if case in ("blocked", "narrow", "deep", "deep-few", "turned", "turned-deep", "small", "row", "dots"):
        for m, n, k in ((1, 1, 1), (13, 300, 70), (200, 70, 1100)):
            A, B = numbers(m, k), numbers(k, n)
            C = same(products.product_kernel(case, 16), A, B, np.empty((m, n), np.float32))
            np.testing.assert_allclose(C, A.astype(np.float64) @ B, rtol=1e-4, atol=1e-3)
    elif case in ("matrix", "matrix-deep"):
        for m, n, k in ((1, 1, 1), (13, 300, 70), (200, 530, 2100)):
            A, B = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((m, k), (k, n)))
            C = same(products.integer_product_kernel(case, 16), A, B, np.empty((m, n), np.int32), start=7)
            np.testing.assert_array_equal(C, (A.astype(float) @ B.astype(float)).astype(int))
    elif case == "convolution":
        for filters in (40, 140):  # those that one part of the image is copied for, and more
            X, W = numbers(2, 5, 20, 17), numbers(filters, 5, 3, 3)
            one = operators.conv2d(X, W, padding=1)
            out = np.empty_like(one)
            for layout in ("NCHW", "NHWC"):
                if layout == "NHWC":
                    X = np.ascontiguousarray(X.transpose(0, 2, 3, 1))
                    out = np.empty((2, 20, 17, filters), np.float32)
                for threads in (1, 2):
                    set_num_threads(threads)
                    operators.conv2d(X, W, padding=1, layout=layout, out=out)
                    turned = out if layout == "NCHW" else out.transpose(0, 3, 1, 2)
                    np.testing.assert_allclose(turned, one, rtol=1e-4, atol=1e-4)
    elif case == "depthwise":
        X, W, bias = numbers(2, 40, 20, 17), numbers(40, 3, 3), numbers(40)
        kernel = convolutions.depthwise_by_channels((3, 3), (1, 1), (1, 1), 0)
        same(kernel, X, W, bias, np.empty_like(X), more=(1, 1))
        same(convolutions.padding_kernel(True), X, np.empty((2, 40, 22, 19), np.float32), more=(1, 1))
        same(convolutions.padding_kernel(False), X, np.empty((2, 40, 22, 19), np.float32), more=(1, 1))
    else:
        X, weight, bias = numbers(70, 50), numbers(50), numbers(50)
        same(normalisations.layer_norm_kernel, X, weight, bias, np.empty_like(X), more=(1e-5,))
        same(normalisations.rms_norm_kernel, X, weight, np.empty_like(X), more=(1e-5,))
    print("done")
"""
CASES = (
    *("blocked", "narrow", "deep", "deep-few", "turned", "turned-deep", "small", "row", "dots"),
    *("matrix", "matrix-deep", "convolution", "depthwise", "norms"),
)


@pytest.mark.parametrize("case", CASES)
def test_two_threads_compute_what_one_does(case, tmp_path):
    file = tmp_path / "script.py"
    file.write_text(SCRIPT + f"\n\nmain({case!r})\n")
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "NUMBA_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, str(file)], env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["done"]
