"""Inputs that broke systems of this kind: small programs with known answers, each on every target.

`agrees` runs a kernel on copies of its arguments inside slack of markers, compares with the undecorated
function, and checks that the slack is as it was.  The right answers below are written out once more, so that
an undecorated function that is wrong itself does not pass.
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

import operators
from pyschedule import (
    FrontendError,
    LegalityError,
    ScheduleError,
    ScheduleWarning,
    inspect_loop_transforms,
    tile,
    unroll,
    vectorize,
)
from tests.support import TARGETS, agrees, call, inside_slack, nan_around, on_every_target, sizes_around

INT = np.int64

#: For a test in which skipping the request is a right answer too.
a_refusal_will_do = pytest.mark.a_refusal_will_do


@pytest.fixture(autouse=True)
def requests_are_carried_out(request, recwarn):
    """A request that is skipped on the CPU fails the test; what is asked of a CPU's lanes a GPU may well skip."""
    on_cpu = "target" not in request.fixturenames or request.getfixturevalue("target") == "cpu"
    yield
    skipped = [str(warning.message) for warning in recwarn if issubclass(warning.category, ScheduleWarning)]
    if on_cpu and request.node.get_closest_marker("a_refusal_will_do") is None:
        assert not skipped, "\n".join(skipped)


# ------------------------------------------------------------------------------------------ tiling and tails


def count_up(c):
    for i in range(c.shape[0]):
        c[i] += 1


@on_every_target
def test_case_01_nested_splits_that_do_not_divide_run_every_point_once(target):
    (c,) = agrees(tile(i=(48, 32))(count_up), np.zeros(100, INT), target=target)
    assert c.tolist() == [1] * 100


@on_every_target
@pytest.mark.parametrize("sizes", [(48, 32), (7, 3), (5, 5), (64, 2)])
def test_case_01_sweep(target, sizes):
    kernel = tile(i=sizes)(count_up)
    for n in sizes_around(*sizes):
        (c,) = agrees(kernel, np.zeros(n, INT), target=target)
        assert c.tolist() == [1] * n, n


def plus_one(a, b):
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            b[i, j] = a[i, j] + 1


@on_every_target
def test_case_02_tile_above_the_extent_is_the_extent(target):
    a = np.arange(4.0).reshape(2, 2)
    _, b = agrees(tile(i=4)(plus_one), a, np.full((2, 2), -7.0), target=target)
    assert (b == a + 1).all()


@on_every_target
@pytest.mark.parametrize("n, decorate", [(1, tile(i=64)), (3, vectorize("j", width=8)), (3, tile(i=8, j=(64, 5)))])
def test_case_02_tiny_extents(target, n, decorate):
    a = np.arange(float(n * n)).reshape(n, n)
    _, b = agrees(decorate(plus_one), a, np.full((n, n), -7.0), target=target)
    assert (b == a + 1).all()


def evens(out):
    for i in range(2, 6, 2):
        out[i] = i


def thirds(out):
    for i in range(1, 10, 3):
        out[i] += i


def downwards(out):
    for i in range(9, -1, -4):
        out[i] += i


STEPPED = [
    (evens, 8, [0, 0, 2, 0, 4, 0, 0, 0]),
    (thirds, 10, [0, 1, 0, 0, 4, 0, 0, 7, 0, 0]),
    (downwards, 10, [0, 1, 0, 0, 0, 5, 0, 0, 0, 9]),
]


@on_every_target
@pytest.mark.parametrize("decorate", [unroll("i"), unroll("i", 2), tile(i=2), vectorize("i", width=2)])
@pytest.mark.parametrize("body, n, expected", STEPPED)
def test_case_03_steps_other_than_one(target, decorate, body, n, expected):
    (out,) = agrees(decorate(body), np.zeros(n, INT), target=target)
    assert out.tolist() == expected


def clear_row(f):
    for y in range(f.shape[1]):
        f[0, y] = 0


@on_every_target
def test_case_04_last_vector_of_a_row_writes_nothing_past_it(target):
    buf = np.full((2, 32), -7.0)
    call(vectorize("y", width=8)(clear_row), buf[:, :10], target=target)
    expected = np.full((2, 32), -7.0)
    expected[0, :10] = 0
    assert (buf == expected).all()


@on_every_target
def test_case_04_sweep(target):
    kernel = vectorize("y", width=8)(clear_row)
    for n in sizes_around(8):
        buf = np.full((2, 32), -7.0)
        call(kernel, buf[:, :n], target=target)
        assert (buf[0, :n] == 0).all() and (buf[0, n:] == -7).all() and (buf[1] == -7).all(), n


def double_in_place(x):
    for i in range(x.shape[0]):
        x[i] = x[i] * 2 + 1


@on_every_target
def test_case_05_tail_of_an_update_in_place_updates_each_once(target):
    kernel = vectorize("i", width=4)(double_in_place)
    (x,) = agrees(kernel, np.arange(10.0), target=target)
    assert x.tolist() == [1, 3, 5, 7, 9, 11, 13, 15, 17, 19]
    for n in sizes_around(4):
        (x,) = agrees(kernel, np.arange(float(n)), target=target)
        assert (x == 2 * np.arange(n) + 1).all(), n


def copy(x, y):
    for i in range(x.shape[0]):
        y[i] = x[i]


def copy_three(x, y):
    for i in range(3, 3):
        y[i] = x[i]
    for i in range(5, 2):
        y[i] = x[i]


@on_every_target
@pytest.mark.parametrize(
    "decorate", [tile(i=32), tile(i=32, parallel="i.0"), vectorize("i", width=4), unroll("i", 4)]
)
def test_case_06_zero_trips_launch_nothing(target, decorate):
    _, y = agrees(decorate(copy), np.zeros(0), np.zeros(0), target=target)
    assert y.shape == (0,)


@on_every_target
@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)])
def test_case_06_zero_extents_in_two_dimensions(target, shape):
    kernel = tile(i=2, j=(4, 2))(vectorize("j", width=2)(plus_one))
    _, b = agrees(kernel, np.zeros(shape), np.zeros(shape), target=target)
    assert b.shape == shape


@on_every_target
@pytest.mark.parametrize("decorate", [tile(i=2), vectorize("i", width=2), unroll("i"), unroll("i", 2)])
def test_case_06_empty_ranges(target, decorate):
    _, y = agrees(decorate(copy_three), np.ones(8), np.full(8, -7.0), target=target)
    assert (y == -7).all()


def twice(x, y):
    for i in range(x.shape[0]):
        y[i] = 2 * x[i]


@on_every_target
def test_case_07_the_three_transforms_together_with_a_guard(target):
    kernel = tile(i=16)(vectorize("i", width=4)(unroll("i", 2)(twice)))
    for n in range(71) if target == "cpu" else (0, 1, 15, 16, 17, 37, 70):
        _, y = agrees(kernel, np.arange(float(n)), np.full(n, math.nan), target=target)
        assert (y == 2 * np.arange(n)).all(), n


@on_every_target
def test_case_07_each_point_is_written_once(target):
    kernel = tile(i=16)(vectorize("i", width=4)(unroll("i", 2)(count_up)))
    for n in (0, 1, 3, 4, 5, 7, 15, 16, 17, 31, 37):
        (c,) = agrees(kernel, np.zeros(n, INT), target=target)
        assert c.tolist() == [1] * n, n


# ------------------------------------------------------------------------------------------------ vectorising


def total(v, out):
    for k in range(v.shape[0]):
        out[0] += v[k]


@on_every_target
def test_case_08_a_reduction_in_lanes_keeps_every_lane(target):
    kernel = vectorize("k", width=8)(total)
    for n in (128, 130, *sizes_around(8)):
        _, out = agrees(kernel, np.ones(n, np.float32), np.zeros(1, np.float32), target=target)
        assert out[0] == n


def add_from_one(x, y, z):
    for i in range(1, x.shape[0]):
        z[i] = x[i] + y[i]


@on_every_target
def test_case_09_a_loop_that_starts_at_one(target):
    kernel = vectorize("i", width=8)(add_from_one)
    _, _, z = agrees(kernel, np.arange(13.0), np.ones(13), np.full(13, -1.0), target=target)
    assert z.tolist() == [-1.0, *map(float, range(2, 14))]


def histogram(lut, dst):
    for r in range(lut.shape[0]):
        dst[lut[r]] += 1


@a_refusal_will_do
@on_every_target
def test_case_10_an_indirect_store_counts_equal_indices_and_reads_no_further(target):
    buffer = np.array([0, 0, 2, 0, 1, 0, 10**9, 10**9])
    dst = np.zeros(4, INT)
    kernel = vectorize("r", width=4)(histogram)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(kernel, buffer[:6], dst, target=target)
    assert dst.tolist() == [4, 1, 1, 0]
    assert buffer[6:].tolist() == [10**9, 10**9]
    for warning in caught:
        if issubclass(warning.category, ScheduleWarning):
            assert "dst" in str(warning.message)


def copy_matrix(x, y):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j]


@on_every_target
def test_case_11_wide_accesses_at_an_odd_address(target):
    base = np.arange(64, dtype=np.float32)
    kernel = vectorize("i", width=4)(copy)
    for start in range(1, 6):
        y = np.full(12, np.nan, np.float32)
        call(kernel, base[start : start + 12], y, target=target)
        assert (y == base[start : start + 12]).all()


@on_every_target
def test_case_11_wide_accesses_in_rows_of_an_odd_length(target):
    x = np.arange(64, dtype=np.float32)[:35].reshape(7, 5)
    y = np.full((7, 5), np.nan, np.float32)
    call(vectorize("j", width=4)(copy_matrix), x, y, target=target)
    assert (y == x).all()


# -------------------------------------------------------------------------------------------------- unrolling

LAST = 2


def keep_last(out):
    for i in range(LAST + 1):
        out[0] = i


@on_every_target
@pytest.mark.parametrize("decorate", [unroll("i"), unroll("i", 4), unroll("i", 2)])
def test_case_12_the_last_iteration_is_not_dropped(target, decorate):
    (out,) = agrees(decorate(keep_last), np.array([-1]), target=target)
    assert out.tolist() == [2]


def sum_until_negative(a):
    s = 0
    c = 0
    for i in range(9):
        if a[i] < 0:
            break
        s += a[i]
        c += 1
    return s, c


@a_refusal_will_do
@on_every_target
@pytest.mark.parametrize("decorate", [unroll("i", 4), unroll("i"), tile(i=4), vectorize("i", width=4)])
def test_case_13_nothing_runs_after_an_early_exit(target, decorate):
    kernel = decorate(sum_until_negative)
    a = np.array([1, 2, 3, 4, 5, -1, 7, 8, 9])
    assert call(kernel, a, target=target) == (15, 5)
    log = str(kernel.lower(a, target=target).log)
    assert "Applied" in log or "Skipped" in log


def sum_with_continue():
    s = 0
    for i in range(10):
        if i > 3:
            continue
        s += i
    return s


@on_every_target
@pytest.mark.parametrize("decorate", [unroll("i"), unroll("i", 3), unroll("i", 4)])
def test_case_14_continue_inside_an_unrolled_loop(target, decorate):
    kernel = decorate(sum_with_continue)
    assert call(kernel, target=target) == 6
    assert "Applied Unroll" in inspect_loop_transforms(kernel, target=target)


def stages(base, p, q):
    for k in range(10):
        p[k] = (base + k) & 3
        q[k] = (1 + k) % 3


def stages_from_base(base, p, q):
    for k in range(base, base + 10):
        p[k - base] = k & 3
        q[k - base] = (1 + k) % 3


@on_every_target
@pytest.mark.parametrize(
    "decorate", [unroll("k", 4), unroll("k", 3), unroll("k"), tile(k=4), vectorize("k", width=4)]
)
def test_case_15_a_stage_index_with_a_run_time_base_is_not_folded(target, decorate):
    kernel, shifted = decorate(stages), decorate(stages_from_base)
    for base in range(8):
        _, p, q = agrees(kernel, base, np.zeros(10, INT), np.zeros(10, INT), target=target)
        assert p.tolist() == [(base + k) & 3 for k in range(10)]
        assert q.tolist() == [1, 2, 0, 1, 2, 0, 1, 2, 0, 1]
        _, p, q = agrees(shifted, base, np.zeros(10, INT), np.zeros(10, INT), target=target)
        assert p.tolist() == [(base + k) & 3 for k in range(10)]
        assert q.tolist() == [(1 + base + k) % 3 for k in range(10)]


@a_refusal_will_do
def test_case_16_a_full_unroll_of_a_run_time_count_is_not_ignored():
    kernel = unroll("i")(twice)
    with pytest.warns(ScheduleWarning, match="(?i)unroll"):
        kernel.lower(np.zeros(5), np.zeros(5))
    text = inspect_loop_transforms(kernel, np.zeros(5), np.zeros(5))
    assert "- Skipped Unroll: " in text and "test_loops.py" in text
    with pytest.raises(LegalityError):
        unroll("i", strict=True)(twice).lower(np.zeros(5), np.zeros(5))


# -------------------------------------------------------------------------------- reordering and dependences


def triangle(A, B, C):
    for i in range(A.shape[0]):
        for j in range(i + 1):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[j, k]


@a_refusal_will_do
@on_every_target
def test_case_17_a_bound_that_depends_on_the_loop_it_is_swapped_with(target):
    A = (np.arange(30.0) % 5).reshape(10, 3)
    B = (np.arange(30.0) % 7).reshape(10, 3)
    kernel = tile(i=4, j=4, order="i.0 j.0 j.1 i.1 k")(triangle)
    _, _, C = agrees(kernel, A, B, np.zeros((10, 10)), target=target)
    assert (C == np.tril(A @ B.T)).all()
    assert C.sum() == 960
    assert C[-1].tolist() == [11, 38, 16, 29, 28, 20, 47, 11, 38, 16]
    log = str(kernel.lower(A, B, C, target=target).log)
    assert "Applied Tiling" in log or ("Skipped Tiling" in log and "bound" in log)


def smooth(A):
    for m in range(3):
        for i in range(4):
            A[i] = A[i + 1] + 2


@a_refusal_will_do
@on_every_target
def test_case_18_an_anti_dependence_refuses_the_interchange(target):
    kernel = tile(order="i m")(smooth)
    with pytest.warns(ScheduleWarning, match=r"test_loops\.py:\d+") as caught:
        (A,) = agrees(kernel, np.array([10.0, 20, 30, 40, 50]), target=target)
    assert A.tolist() == [46, 56, 54, 52, 50]
    assert any("(m=0, i=1)" in str(warning.message) for warning in caught), "the iterations that conflict are shown"
    with pytest.raises(LegalityError):
        tile(order="i m", strict=True)(smooth).lower(np.zeros(5), target=target)


def transpose_add(dst, src, Mx):
    for j in range(4):
        for i in range(4):
            dst[4 * i + j] = src[4 * j + i] + Mx[i, j]


def test_case_19_two_arguments_that_are_the_same_array():
    Mx = np.arange(16.0).reshape(4, 4)
    kernel = tile(order="i j")(transpose_add)
    v = np.arange(16.0) ** 2
    before = v.copy()
    try:
        kernel(v, v, Mx)
    except ValueError as error:
        assert "dst" in str(error) or "src" in str(error)
        assert (v == before).all()
    else:
        assert v.tolist() == [0, 6, 14, 24, 5, 30, 51, 69, 12, 45, 110, 146, 21, 62, 135, 240]


def test_case_19_overlapping_views():
    kernel = vectorize("i", width=4)(copy)
    v, expected = np.arange(17.0), np.arange(17.0)
    copy(expected[:-1], expected[1:])
    before = v.copy()
    try:
        kernel(v[:-1], v[1:])
    except ValueError as error:
        assert "x" in str(error) and "y" in str(error)
        assert (v == before).all()
    else:
        assert (v == expected).all()


def total_of(x, y):
    for i in range(x.shape[0]):
        y[0] += x[i]


@a_refusal_will_do
@on_every_target
def test_case_20_a_parallel_loop_that_accumulates_into_one_element(target):
    kernel = tile(i=64, parallel="i.0")(total_of)
    x = np.ones(1000)
    for _ in range(100 if target == "cpu" else 2):
        y = np.zeros(2)
        call(kernel, x, y, target=target)
        assert y.tolist() == [1000, 0]


# ------------------------------------------------------------------------------------------- index arithmetic


def floors(q, r):
    for i in range(-5, 6):
        q[i + 5] = i // 4
        r[i + 5] = i % 4


@on_every_target
@pytest.mark.parametrize("decorate", [tile(i=3), unroll("i"), unroll("i", 3), vectorize("i", width=4)])
def test_case_21_division_floors(target, decorate):
    q, r = agrees(decorate(floors), np.zeros(11, INT), np.zeros(11, INT), target=target)
    assert q.tolist() == [-2, -1, -1, -1, -1, 0, 0, 0, 0, 1, 1]
    assert r.tolist() == [3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1]


def alternate(a, out):
    for i in range(5):
        out[i] = a[1 - i % 2]


@on_every_target
@pytest.mark.parametrize(
    "decorate", [tile(i=2), unroll("i", 2), unroll("i", 4), unroll("i"), vectorize("i", width=4)]
)
def test_case_22_the_sign_of_a_modulo_term(target, decorate):
    _, out = agrees(decorate(alternate), np.array([7, 9]), np.zeros(5, INT), target=target)
    assert out.tolist() == [9, 7, 9, 7, 9]


# --------------------------------------------------------------------------------- shared memory, pipelining


def product(A, B, C):
    M, K = A.shape
    _, N = B.shape
    for i in range(M):
        for j in range(N):
            for k in range(K):
                C[i, j] += A[i, k] * B[k, j]


def staged_product():
    return tile(i=4, j=4, k=4, stage={"A": "k.0", "B": "k.0"})(product)


@on_every_target
def test_case_23_tiled_product_of_sizes_that_are_no_multiples(target):
    A, B = nan_around(np.arange(35.0).reshape(5, 7)), nan_around(np.arange(21.0).reshape(7, 3))
    _, _, C = agrees(staged_product(), A, B, np.zeros((5, 3)), target=target)
    assert (C == A @ B).all()
    assert C[0].tolist() == [273, 294, 315] and C[-1].tolist() == [2037, 2254, 2471]


@on_every_target
def test_case_23_sweep(target):
    kernel = staged_product()
    sizes = range(1, 10) if target == "cpu" else (1, 3, 4, 5, 9)
    for m in sizes:
        for n in sizes:
            for k in sizes:
                A = nan_around(np.arange(float(m * k)).reshape(m, k))
                B = nan_around(np.arange(float(k * n)).reshape(k, n) - 3)
                C, intact = inside_slack(np.zeros((m, n)))
                call(kernel, A, B, C, target=target)
                assert (C == A @ B).all() and intact(), (m, n, k)


def delayed_sum(S, A, acc):
    for k in range(A.shape[0]):
        for j in range(A.shape[1]):
            acc[j] += S[j]
            S[j] = A[k, j]


@a_refusal_will_do
@on_every_target
@pytest.mark.parametrize(
    "decorate", [tile(k=2, stage={"A": "k.0"}), tile(order="j k"), vectorize("j", width=4), unroll("k", 2)]
)
def test_case_24_a_buffer_that_is_used_and_then_refilled(target, decorate):
    arguments = (np.arange(4.0), np.arange(32.0).reshape(8, 4), np.zeros(4))
    _, _, acc = agrees(decorate(delayed_sum), *arguments, target=target)
    assert acc.tolist() == [84, 92, 100, 108]


# -------------------------------------------------------------------------------------------------- operators


def test_case_25_an_inner_dimension_of_zero():
    a, b = np.zeros((3, 0)), np.zeros((0, 2))
    assert (operators.gemm(a, b, out=np.full((3, 2), np.nan)) == 0).all()
    c = np.full((3, 2), 5.0)
    assert (operators.gemm(a, b, c, alpha=1, beta=1) == 5).all()
    assert (operators.gemm(a, b, c, beta=0.5) == 2.5).all()
    assert (c == 5).all()


def test_case_26_beta_zero_never_reads_what_the_output_held():
    a, b = np.arange(35.0).reshape(5, 7), np.arange(21.0).reshape(7, 3)
    out = np.full((5, 3), np.nan)
    result = operators.gemm(a, b, np.full((5, 3), np.nan), alpha=1, beta=0, out=out)
    assert result is out and (out == a @ b).all()
    a[2, 3] = np.nan
    got = operators.gemm(a, b)
    assert np.isnan(got[2]).all() and not np.isnan(np.delete(got, 2, axis=0)).any()


def sum_along(x, out):
    for i in range(x.shape[0]):
        s = 0.0
        for j in range(x.shape[1]):
            s += x[i, j]
        out[i] = s


@on_every_target
def test_case_27_halves_accumulate_in_float32(target):
    x = np.array([[32000.0] * 4 + [-32000.0] * 4], np.float16)
    for decorate in (tile(i=1), vectorize("j", width=4), unroll("j", 2)):
        out = np.full(1, np.nan, np.float16)
        call(decorate(sum_along), x, out, target=target)
        assert out.tolist() == [0.0]
    ones, out = np.ones((1, 4096), np.float16), np.full(1, np.nan, np.float16)
    call(vectorize("j", width=8)(sum_along), ones, out, target=target)
    assert out.tolist() == [4096.0]


def test_case_27_halves_in_the_product():
    got = operators.gemm(np.ones((1, 4096), np.float16), np.ones((4096, 1), np.float16))
    assert got.dtype == np.float16 and got.tolist() == [[4096.0]]


def test_case_28_convolution_with_an_extent_a_stride_and_a_dilation_per_axis():
    x = np.arange(99.0).reshape(1, 1, 9, 11)
    w = np.arange(1.0, 7.0).reshape(1, 1, 2, 3)
    y = operators.conv2d(x, w, stride=(2, 1), dilation=(1, 4), padding=(0, 1))
    assert y.shape == (1, 1, 4, 5)
    assert y[0, 0, 0].tolist() == [205, 265, 286, 307, 163]
    assert y[0, 0, -1].tolist() == [1261, 1651, 1672, 1693, 955]
    assert y.sum() == 16916


def test_case_29_layer_norm_of_a_large_mean_does_not_cancel():
    x = np.array([[40000, 40001, 40002, 40003]], np.float32)
    np.testing.assert_allclose(operators.layer_norm(x, 4)[0], [-1.34164, -0.44721, 0.44721, 1.34164], atol=1e-3)
    for mean, first in ((0, -1.3416), (100, -1.3415), (1000, -1.3415), (10000, -1.3313)):
        row = (mean + 0.001 * np.arange(16)).astype(np.float32)[None]
        assert operators.layer_norm(row, (16,))[0, 0] == pytest.approx(first, abs=1e-3)


def largest(x):
    m = -math.inf
    for i in range(x.shape[0]):
        m = max(m, x[i])
    return m


def smallest(x):
    m = math.inf
    for i in range(x.shape[0]):
        m = min(m, x[i])
    return m


def summed(x):
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i]
    return s


def multiplied(x):
    p = 1.0
    for i in range(x.shape[0]):
        p *= x[i]
    return p


FOLDS = [
    (largest, -1 - np.arange(13.0), -1),
    (smallest, -1 - np.arange(13.0), -13),
    (summed, -1 - np.arange(13.0), -91),
    (multiplied, 1 + np.arange(13.0), 6227020800),
]


@on_every_target
@pytest.mark.parametrize("decorate", [tile(i=32), vectorize("i", width=4), unroll("i", 4)])
@pytest.mark.parametrize("body, x, expected", FOLDS)
def test_case_30_masked_lanes_are_neutral_for_the_reduction(target, decorate, body, x, expected):
    assert call(decorate(body), x, target=target) == expected


# ------------------------------------------------------------------------------------ memory layout of arguments

FROZEN = np.arange(8.0)[::-1]
FROZEN.setflags(write=False)


def twice_the_frozen(y):
    for i in range(8):
        y[i] = 2 * FROZEN[i]


@on_every_target
def test_case_31_negative_strides(target):
    kernel = vectorize("i", width=4)(twice)
    x, y = np.arange(8.0)[::-1], np.empty(8)[::-1]
    call(kernel, x, y, target=target)
    assert y.tolist() == [14, 12, 10, 8, 6, 4, 2, 0]
    for n in sizes_around(4):
        y = np.full(n, np.nan)[::-1]
        call(kernel, np.arange(float(n))[::-1], y, target=target)
        assert (y == 2 * np.arange(float(n))[::-1]).all(), n


def test_case_31_a_frozen_global_array_is_right_or_refused():
    y = np.empty(8)[::-1]
    try:
        kernel = vectorize("i", width=4)(twice_the_frozen)
        kernel(y)
    except FrontendError as error:
        assert "FROZEN" in str(error)
    else:
        assert y.tolist() == [14, 12, 10, 8, 6, 4, 2, 0]


def test_the_targets_are_both_here():
    assert set(TARGETS) == {"cpu", "cuda"}


def test_a_malformed_request_is_a_schedule_error():
    with pytest.raises(ScheduleError, match="q"):
        tile(q=4)(twice).lower(np.zeros(4), np.zeros(4))
