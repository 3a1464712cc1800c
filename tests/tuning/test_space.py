"""The space of candidates: legal, never empty, always in the same order."""

from __future__ import annotations

from itertools import islice, pairwise

import numpy as np
import pytest

from operators.kernels.products import gemm_kernel
from pyschedule import spec, tile, unroll, vectorize
from pyschedule.kernel import schedule_function
from pyschedule.tuning.space import Candidate, Space, space_of, with_sizes


@tile(i=(32, 4), j=(64, 16), k=24)
@vectorize("j", width=8)
@unroll("i")
def product(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


@tile(i=64)
def twice(x, y):
    for i in range(x.shape[0]):
        y[i] = 2 * x[i]


@tile(i=8, j=8)
def lower_triangle(A, B):
    for i in range(A.shape[0]):
        for j in range(i + 1):
            B[i, j] = A[i, j] + 1.0


@vectorize("i")
def untiled(x, y):
    for i in range(x.shape[0]):
        y[i] = 2 * x[i]


def space(kernel, *shapes, target="cpu", dtype="float32"):
    arguments = tuple(spec(f"{dtype}[{shape}]") for shape in shapes)
    return space_of(kernel.lower(*arguments, target=target), arguments)


def products(m=1000, k=1000, n=1000, **options):
    return space(product, f"{m},{k}", f"{k},{n}", f"{m},{n}", **options)


def test_every_candidate_is_legal():
    found = list(products())
    assert len(found) > 100 and len(set(found)) == len(found)
    for candidate in found:
        sizes = dict(candidate.sizes)
        assert list(sizes) == ["i", "j", "k"] and list(map(len, sizes.values())) == [2, 2, 1]
        assert all(inner <= outer for levels in sizes.values() for outer, inner in pairwise(levels))
        assert all(size >= 1 for levels in sizes.values() for size in levels)
        assert all(size % 8 == 0 for size in sizes["j"])


def test_halves_doubles_and_multiples_of_the_lanes():
    near = [candidate.describe() for candidate in products().neighbours(products().original)]
    assert near == [
        "i=(16, 4), j=(64, 16), k=24",
        "i=(64, 4), j=(64, 16), k=24",
        "i=(32, 2), j=(64, 16), k=24",
        "i=(32, 8), j=(64, 16), k=24",
        "i=(32, 4), j=(32, 16), k=24",
        "i=(32, 4), j=(128, 16), k=24",
        "i=(32, 4), j=(64, 8), k=24",
        "i=(32, 4), j=(64, 24), k=24",
        "i=(32, 4), j=(64, 16), k=12",
        "i=(32, 4), j=(64, 16), k=48",
    ]


def test_the_order_is_always_the_same_and_starts_with_the_original():
    first, second = list(products()), list(products())
    assert first == second
    assert first[0].describe() == "i=(32, 4), j=(64, 16), k=24"


@pytest.mark.parametrize("dtype, size", [("float32", 4), ("float64", 8), ("float16", 4)])
def test_the_register_tile_fits_the_registers(dtype, size):
    # 255 registers of 4 bytes a thread, whatever machine this runs on.
    found = [dict(candidate.sizes) for candidate in products(target="cuda:sm_80", dtype=dtype)]
    tiles = [size * sizes["i"][1] * sizes["j"][1] for sizes in found]
    assert max(tiles) <= 1020 < 4 * max(tiles)


def test_a_tile_that_never_was_one_of_registers_need_not_fit():
    wide = schedule_function(product.python, tile(i=64, j=64)(product.python)._schedule.directives)
    found = list(space(wide, "1000,1000", "1000,1000", "1000,1000", target="cuda:sm_80"))
    assert Candidate((("i", (128,)), ("j", (128,)))) in found


def test_without_a_reduction_there_is_no_register_tile():
    assert not space(twice, "1000", "1000").accumulators


def test_of_the_sizes_that_cover_a_loop_there_is_one():
    assert [dict(one.sizes)["i"] for one in space(twice, "100", "100")] == [(64,), (32,), (128,), (16,)]
    assert [dict(one.sizes)["i"] for one in space(twice, "1000", "1000")] == [(64,), (32,), (128,), (16,), (256,)]


@pytest.mark.parametrize("extent", [0, 1, 3])
def test_it_is_never_empty(extent):
    assert next(iter(products(extent, extent, extent))) == products().original
    assert next(iter(space(twice, extent, extent))).describe() == "i=64"


def test_a_loop_whose_length_is_not_known_has_all_sizes():
    assert len(list(space(lower_triangle, "9,9", "9,9"))) == 4 * 5  # i: 2, 4, 8 and 16, which covers 9


def test_a_kernel_without_tiles_is_refused():
    with pytest.raises(ValueError, match=r"'untiled' tiles no loop.*@tile"):
        space(untiled, "10", "10")


def test_only_the_target_s_own_tiles_change():
    found = space(gemm_kernel, "512,512", "512,512", "512,512", target="cpu")
    candidate = next(islice(found, 1, None))
    before = gemm_kernel._schedule
    after = with_sizes(before, "cpu", candidate)
    changed = [(old, new) for old, new in zip(before.directives, after, strict=True) if old != new]
    assert len(changed) == 1 and changed[0][0].target == "cpu"
    assert changed[0][1].sizes == candidate.sizes and changed[0][1].order == changed[0][0].order


@pytest.mark.parametrize("steps", range(1, 4))
def test_candidates_compute_what_the_original_does(steps):
    rng = np.random.default_rng(steps)
    A, B = rng.standard_normal((37, 19), np.float32), rng.standard_normal((19, 41), np.float32)
    candidate = list(products(37, 19, 41))[-steps]
    kernel = schedule_function(product.python, with_sizes(product._schedule, "cpu", candidate))
    C = np.zeros((37, 41), np.float32)
    kernel(A, B, C)
    np.testing.assert_allclose(C, A @ B, rtol=1e-4, atol=1e-4)


def test_an_original_that_breaks_a_rule_is_in_the_space():
    original = Candidate((("i", (4, 8)),))
    found = Space(original, (((4, 8), (4, 8)),))
    assert [one.describe() for one in found] == ["i=(4, 8)", "i=(8, 8)", "i=(4, 4)", "i=(8, 4)"]
