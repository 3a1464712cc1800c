"""Widening: half arrays that are accumulated into are rounded once, whatever the tiles are."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pyschedule import tile, unroll, vectorize
from pyschedule.transforms.widening import rounded_repeatedly, widen
from tests.support import call, on_every_target
from tests.transforms import kernels
from tests.transforms.schedules import GPU, WIDE
from tests.transforms.stages import buffers, counting, details, execute, lower

#: Sums of these lose a bit at almost every rounding to a half.
ROUGH = (np.random.default_rng(3).standard_normal((70, 70)) * 3).astype(np.float16)


def gemm_in_float32(A, B, C):
    return (C.astype(np.float32) + A.astype(np.float32) @ B.astype(np.float32)).astype(np.float16)


SCHEDULES = {
    "rows": tile(i=4),
    "sums outermost": tile(i=4, k=8, order="k.0 i.0 i.1 j k.1"),
    "sums between": tile(i=16, j=(16, 4), k=16),
    "lanes along the sum": vectorize("k", width=8),
    "copies of the sum": unroll("k", 4),
    "interchange": tile(order="k i j"),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("target", [WIDE, GPU])
def test_a_product_of_halves_is_rounded_once(name, target):
    A, B, C = ROUGH[:9, :], ROUGH[:, :7], ROUGH[:9, :7]
    lowering = lower(SCHEDULES[name](kernels.gemm), A, B, C, target=target)
    for stage in ("tiling", "vectorization", "unroll"):
        arrays, _ = execute(lowering.stages[stage], A.copy(), B.copy(), C.copy())
        difference = np.abs(arrays["C"].astype(np.float64) - gemm_in_float32(A, B, C).astype(np.float64))
        # One unit in the last place at most: float32 sums in another order may round to the neighbour.
        assert (difference <= np.spacing(np.abs(arrays["C"])).astype(np.float64)).all(), (stage, lowering.log)
        assert (difference > 0).mean() < 0.1


def test_rounding_at_every_step_would_be_seen():
    A, B, C = ROUGH[:9, :], ROUGH[:, :7], ROUGH[:9, :7].copy()
    arrays, _ = execute(kernels.CASES["gemm"].kernel("float16"), A.copy(), B.copy(), C.copy())
    assert (arrays["C"] != gemm_in_float32(A, B, C)).mean() > 0.1


def test_a_shadow_is_made_only_where_registers_do_not_hold_the_sum():
    kernel = kernels.CASES["gemm"].kernel("float16")
    inside = lower(tile(i=4)(kernels.gemm), ROUGH, ROUGH, ROUGH).stages["tiling"]
    outside = lower(tile(order="k i j")(kernels.gemm), ROUGH, ROUGH, ROUGH)
    assert rounded_repeatedly(kernel, inside) == ()
    assert "accumulated in float32 outside registers: C" in details(outside)
    assert buffers(outside.stages["tiling"], "local") == {"C_wide": "n x n float32"}


def test_the_source_stage_stays_the_users():
    outside = lower(tile(order="k i j")(kernels.gemm), ROUGH, ROUGH, ROUGH)
    assert outside.stages["source"] == kernels.CASES["gemm"].kernel("float16") or not buffers(
        outside.stages["source"], "local"
    )


def test_what_is_not_accumulated_is_not_widened():
    kernel = kernels.CASES["total"].kernel("float16")
    widened = widen(kernel, ("s",))
    assert [array.name for array in widened.array_params] == ["A", "s"]
    arrays, _ = execute(widened, np.ones(4096, np.float16), np.zeros(1, np.float16))
    assert arrays["s"][0] == 4096
    assert execute(kernel, np.ones(4096, np.float16), np.zeros(1, np.float16))[0]["s"][0] == 2048

    def copy(x, y):
        for i in range(x.shape[0]):
            y[i] = x[i]

    plain = lower(tile(i=4)(copy), *[counting(9, dtype="float16")] * 2)
    assert not buffers(plain.stages["tiling"], "local")


def test_floats_are_left_alone():
    lowering = lower(tile(order="k i j")(kernels.gemm), *[counting(9, 9)] * 3)
    assert not buffers(lowering.stages["tiling"], "local")


def second_sum(x, o):
    o[0] = 1
    for i in range(len(x)):
        o[1] += x[i]


def row_sums(x, o):
    for j in range(x.shape[1]):
        for i in range(x.shape[0]):
            o[i] += x[i, j]


@on_every_target
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_sums_that_stay_in_memory_are_rounded_once(dtype, target):
    # Rounded at every step, the sum of ones would stop at 2048, or at 256.
    o = np.zeros(2, dtype)
    call(vectorize("i", 8)(second_sum), np.ones(4096, dtype), o, target=target)
    assert o.astype(float).tolist() == [1, 4096]
    o = np.zeros(3, dtype)
    call(unroll("j", 4)(row_sums), np.ones((3, 4096), dtype), o, target=target)
    assert o.astype(float).tolist() == [4096] * 3
