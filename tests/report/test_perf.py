"""The report: its columns and rows, what it counts, and that it catches what is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

import pyschedule
from pyschedule import spec, tile, unroll, vectorize
from pyschedule.report import Case, perf_report
from pyschedule.report.counting import count
from pyschedule.report.measure import interleaved
from pyschedule.report.progress import silent
from pyschedule.report.variants import variants

COLUMNS = [
    "operator",
    "shape",
    "dtype",
    "target",
    "variant",
    "time_s",
    "speedup",
    "gflops",
    "pct_peak",
    "gbytes_s",
    "pct_bandwidth",
    "rel_error",
]


@tile(i=8, j=16)
@vectorize("j", width=8)
@unroll("i", 2)
def product(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


@tile(i=8)
def lower_triangle(A, B):
    for i in range(A.shape[0]):
        for j in range(i + 1):
            B[i, j] = A[i, j] * 2.0 + 1.0


@vectorize("i")
def total(x):
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i]
    return s


def matrices(m=17, k=9, n=33, dtype=np.float32):
    rng = np.random.default_rng(1)
    return (
        rng.standard_normal((m, k)).astype(dtype),
        rng.standard_normal((k, n)).astype(dtype),
        np.zeros((m, n), dtype),
    )


def matmul(A, B, C):
    np.matmul(A, B, out=C)


def test_one_row_a_variant_and_the_columns_promised():
    A, B, C = matrices()
    frame = perf_report(product, A, B, C, peers={"numpy": matmul}, rounds=3)
    assert list(frame.columns) == COLUMNS
    assert frame.variant.tolist() == [
        "naive",
        "+tiling",
        "+tiling+vectorization",
        "+tiling+vectorization+unroll",
        "numpy",
    ]
    assert set(frame.operator) == {"product"} and set(frame.dtype) == {"float32"} and set(frame.target) == {"cpu"}
    assert (frame.time_s > 0).all() and frame.speedup[0] == 1
    np.testing.assert_allclose(frame.gflops * frame.time_s, 2 * 17 * 9 * 33 / 1e9)
    assert (frame.rel_error < 1e-5).all()
    assert (C == 0).all(), "the arguments are left as they were"


def test_several_cases_and_a_kernel_that_returns_its_result():
    cases = [
        Case(product, matrices(), operator="gemm", shape="17x9x33"),
        Case(total, (np.ones(100, np.float64),), peers={"numpy": np.sum}),
    ]
    frame = pyschedule.perf_report(cases, rounds=2)
    assert frame.operator.tolist() == ["gemm"] * 4 + ["total"] * 3
    assert frame["shape"][0] == "17x9x33"
    assert frame.variant.tolist()[4:] == ["naive", "+vectorization", "numpy"]
    assert frame.rel_error[4:].tolist() == [0, 0, 0]


def test_a_wrong_peer_is_found_before_anything_is_timed():
    def wrong(A, B, C):
        np.matmul(A, B, out=C)
        C[0, 0] += 1

    with pytest.raises(ValueError, match="wrong"):
        perf_report(product, *matrices(), peers={"wrong": wrong}, rounds=2)


def test_a_nan_in_the_result_is_found():
    def poisoned(A, B, C):
        np.matmul(A, B, out=C)
        C[3, 3] = np.nan

    with pytest.raises(ValueError, match="poisoned"):
        perf_report(product, *matrices(), peers={"poisoned": poisoned}, rounds=2)


def test_work_is_counted_from_the_nest():
    A, B, C = matrices()
    work = count(product.lower(A, B, C).stages["source"], (A, B, C))
    assert work.flops == 2 * 17 * 9 * 33
    assert work.bytes_moved == A.nbytes + B.nbytes + 2 * C.nbytes
    square = np.zeros((10, 10))
    work = count(lower_triangle.lower(square, square.copy()).stages["source"], (square, square))
    assert work.flops == 2 * 55
    assert work.bytes_moved == 2 * square.nbytes


def test_zero_extents_count_nothing():
    A, B, C = matrices(0, 3, 4)
    assert count(product.lower(A, B, C).stages["source"], (A, B, C)).flops == 0


def test_variants_add_the_directives_in_the_order_of_the_pipeline():
    arguments = matrices()
    found = variants(product, product.lower(*arguments).definition.schedule)
    lowered = [kernel.lower(*arguments).definition.schedule.directives for kernel in found.values()]
    assert list(map(len, lowered)) == [0, 1, 2, 3]


def test_timing_is_interleaved_and_prepared():
    calls = []
    runs = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    times = interleaved(runs, lambda: calls.append("-"), rounds=3, seconds=9, progress=silent)
    assert "".join(calls) == "-a-b" * 3
    assert set(times) == {"a", "b"} and all(not math.isnan(value) for value in times.values())
    calls.clear()
    interleaved(runs, lambda: None, rounds=9, seconds=-1, progress=silent)
    assert calls == ["a", "b"]


def test_an_operator_stands_for_the_kernel_that_does_its_work():
    from operators import gemm

    a, b = np.ones((9, 7), np.float32), np.ones((7, 5), np.float32)
    frame = perf_report(gemm, a, b, rounds=2)
    assert set(frame["operator"]) == {"gemm"}
    assert frame["variant"][0] == "naive" and frame["variant"].iloc[-1] == "+tiling+vectorization+unroll"
    with pytest.raises(ValueError, match="gemm does nothing with these arguments"):
        perf_report(gemm, np.ones((0, 7), np.float32), b)


@pytest.mark.parametrize(
    ("kernel", "arguments", "rounds", "error", "message"),
    [
        (lambda x: x, (np.ones(3),), 2, TypeError, "needs a kernel"),
        (lower_triangle, (spec("float64[3,3]"), spec("float64[3,3]")), 2, TypeError, "argument 1 is a spec"),
        (lower_triangle, (np.ones((3, 3)), np.ones((3, 3))), 0, ValueError, "rounds must be a positive"),
        (lower_triangle, (np.ones((3, 3)),), 2, TypeError, "missing a required argument"),
    ],
)
def test_a_wrong_report_is_refused_before_anything_is_timed(kernel, arguments, rounds, error, message):
    with pytest.raises(error, match=message):
        perf_report(kernel, *arguments, rounds=rounds)
