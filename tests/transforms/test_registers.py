"""Register tiles: arrays of vectors where lanes read them along one axis."""

from __future__ import annotations

import pytest

from pyschedule import tile, vectorize
from pyschedule.ir.nodes import Alloc, Array, For, Load, Ramp, Store, Var
from pyschedule.ir.types import FLOAT32, Vector, lanes_of
from pyschedule.ir.visitors import expressions, local_arrays
from pyschedule.transforms.registers import accesses_of, pack_lanes
from tests.analysis.helpers import array, f32, ix, kernel, local, minus
from tests.transforms import kernels
from tests.transforms.stages import agrees, buffers, counting


def registers(lowering):
    return buffers(lowering.stages["vectorization"], "register")


@pytest.mark.parametrize("size, width, vectors", [(8, 4, 2), (8, 8, 1), (6, 4, 2), (3, 4, 1), (16, 4, 4)])
def test_a_tile_whose_columns_run_in_lanes_keeps_vectors(size, width, vectors):
    lowering = agrees(tile(i=3, j=size)(vectorize("j", width=width)(kernels.gemm)), *[counting(9, 9)] * 3)
    assert registers(lowering) == {"C_acc": f"3 x {vectors} float32x{width}"}


def test_rows_in_lanes_are_packed_along_their_own_axis():
    lowering = agrees(tile(i=8, j=3)(vectorize("i", width=4)(kernels.gemm)), *[counting(9, 9)] * 3)
    assert registers(lowering) == {"C_acc": "2 x 3 float32x4"}


def test_every_access_to_packed_registers_is_a_whole_vector():
    stage = agrees(tile(i=2, j=8)(vectorize("j", width=4)(kernels.gemm)), *[counting(9, 9)] * 3).stages[
        "vectorization"
    ]
    packed = local_arrays(stage.body)["C_acc"]
    assert packed.dtype == Vector(FLOAT32, 4)
    assert all(lanes_of(index.type) == 1 for indices in accesses_of(stage.body, "C_acc") for index in indices)
    loads = [part for part in expressions(stage.body) if isinstance(part, Load) and part.array == "C_acc"]
    assert loads and all(load.type == Vector(FLOAT32, 4) and load.mask is None for load in loads)


def test_a_reduction_in_lanes_leaves_the_tile_scalar():
    lowering = agrees(tile(i=2, j=3)(vectorize("k", width=4)(kernels.gemm)), *[counting(9, 9)] * 3)
    assert registers(lowering)["C_acc"] == "2 x 3 float32"


def with_accesses(*indices):
    """A kernel with a register array `acc` of 8 elements, stored to at each of the indices."""
    acc = local("acc", 8, space="register")
    body = tuple(Store("acc", (index,), f32(1.0)) for index in indices)
    loop = For("i", ix(0), ix(8), ix(4), (For("j", ix("i"), ix(8), ix(4), body),))
    return kernel([array("A")], Alloc(acc), loop)


def test_arrays_that_are_read_in_several_ways_are_left_alone():
    ramp = Ramp(minus("j", "i"), 1, 4)
    for other in (minus("j", "i"), Ramp(minus("j", "i"), 2, 4), Ramp(minus("j", "i"), 1, 2)):
        mixed = with_accesses(ramp, other)
        assert pack_lanes(mixed) is mixed
    packed = pack_lanes(with_accesses(ramp, ramp))
    found = local_arrays(packed.body)["acc"]
    assert (found.dtype, found.shape) == (Vector(FLOAT32, 4), (ix(2),))


def test_memory_is_not_packed():
    stage = kernel(
        [array("A")],
        Alloc(Array("acc", FLOAT32, (ix(8),), space="local")),
        For("j", ix(0), ix(8), ix(4), (Store("acc", (Ramp(Var("j"), 1, 4),), f32(1.0)),)),
    )
    assert pack_lanes(stage) is stage


def test_a_kernel_without_registers_is_the_very_object():
    plain = kernels.CASES["gemm"].kernel()
    assert pack_lanes(plain) is plain
