"""Strides, contiguity and alignment of accesses."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pyschedule.analysis.access import aligned, contiguous, invariant, stride
from pyschedule.ir.nodes import Array, Dim, Load, Ramp, Store
from pyschedule.ir.types import FLOAT64, INT64, Scalar
from tests.analysis.evaluate import evaluate
from tests.analysis.helpers import array, cmp, f32, ix, load, local, loop, low, minus, op, plus, store, times

A = array("A", 2)
COLUMNS = replace(A, unit_axis=0)
STRIDED = replace(A, unit_axis=None)


def test_a_parameter_moves_by_one_along_its_unit_axis_only() -> None:
    access = load("A", "i", plus("j", 3))
    assert stride(access, A, "j") == 1 and contiguous(access, A, "j")
    assert stride(access, A, "i") is None and not contiguous(access, A, "i")
    assert stride(access, COLUMNS, "i") == 1 and stride(access, COLUMNS, "j") is None
    assert stride(access, STRIDED, "j") is None
    assert stride(access, A, "k") == 0 and invariant(access, "k") and not invariant(access, "j")


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (times("j", 2), 2),
        (minus(9, "j"), -1),
        (minus(plus("j", "k"), "j"), 0),
        (times("j", "s"), None),
        (op("//", "j", 2), None),
        (load("t", "j", dtype=INT64), None),
        (low("j", 5), None),
    ],
)
def test_strides_along_j(index: object, expected: int | None) -> None:
    assert stride(load("x", index), array("x"), "j") == expected  # type: ignore[arg-type]


def test_strides_of_a_local_are_those_of_numpy() -> None:
    tile = local("T", 3, 5, 7)
    where = store("T", (plus("i", 1), times("j", 2), minus("k", "i")), f32(0.0))
    expected = np.zeros((3, 5, 7), np.float32)
    elements = [step // 4 for step in expected.strides]
    assert stride(where, tile, "i") == elements[0] - elements[2]
    assert stride(where, tile, "j") == 2 * elements[1]
    assert stride(where, tile, "k") == 1


def test_a_local_of_unknown_extent_is_known_as_far_as_it_can_be() -> None:
    tile = Array("T", FLOAT64, (ix(4), Dim("A", 0), ix(8)), space="packed")
    access = load("T", "i", "j", "k")
    assert (stride(access, tile, "i"), stride(access, tile, "j"), stride(access, tile, "k")) == (None, 8, 1)


def test_a_mask_counts_for_invariance() -> None:
    access = Load("A", (ix("i"), ix("k")), Scalar("float32"), mask=cmp("<", "j", 3))
    assert not invariant(access, "j")


def test_alignment_of_a_parameter_needs_its_divisor() -> None:
    access = load("A", "i", plus("j", 8))
    assert not aligned(access, A, "j", 8)
    assert aligned(access, replace(A, divisor=8), "j", 8)
    assert aligned(access, replace(A, divisor=16), "j", 8)
    assert not aligned(access, replace(A, divisor=8), "j", 16)
    assert not aligned(load("A", "i", plus("j", 1)), replace(A, divisor=8), "j", 8)
    assert not aligned(load("A", "i", plus("j", "k")), replace(A, divisor=8), "j", 8)
    assert aligned(load("A", "i", plus("j", times("k", 8))), replace(A, divisor=8), "j", 8)
    assert not aligned(load("A", "j", "i"), replace(A, divisor=8), "j", 8)


def test_alignment_reads_the_loops() -> None:
    access = load("A", "i", plus("j", "j_0"))
    wide = replace(A, divisor=8)
    inner = loop("j", 0, 64)
    assert aligned(access, wide, "j", 8, (loop("j_0", 0, Dim("A", 1), step=64), inner))
    assert not aligned(access, wide, "j", 8, (loop("j_0", 0, Dim("A", 1), step=6), inner))
    assert not aligned(access, wide, "j", 8, (loop("j_0", 0, 8, step=8), loop("j", 1, 64)))
    tiled = loop("j", "j_0", low(plus("j_0", 64), Dim("A", 1)))
    own = load("A", "i", "j")
    assert aligned(own, wide, "j", 8, (loop("j_0", 0, Dim("A", 1), step=64), tiled))
    assert not aligned(own, wide, "j", 8, (loop("j_0", 0, Dim("A", 1), step=4), tiled))


def test_alignment_of_a_staged_tile_depends_on_its_rows() -> None:
    access = load("T", "i", "j")
    assert aligned(access, local("T", 6, 64, space="packed"), "j", 16)
    assert aligned(access, local("T", 6, 36, space="shared"), "j", 4)
    assert not aligned(access, local("T", 6, 36, space="shared"), "j", 8)
    assert not aligned(access, local("T", 6, 65, space="packed"), "j", 4)
    assert not aligned(access, local("T", 6, 64, dtype=FLOAT64, space="packed"), "j", 16)
    assert not aligned(access, local("T", 6, 64), "j", 4)  # a thread's own array: no promise


def test_a_vector_index_has_no_stride() -> None:
    access = Store("x", (Ramp(ix("j"), 1, 8),), f32(1.0))
    assert stride(access, array("x"), "j") is None


@pytest.mark.parametrize("extents", [(3, 4), (2, 3, 5)])
def test_stride_is_the_difference_of_addresses(extents: tuple[int, ...]) -> None:
    tile = local("T", *extents)
    indices = [plus(times("i", axis + 1), times("j", 2 - axis)) for axis in range(len(extents))]
    access = load("T", *indices)
    weights = [int(np.prod(extents[axis + 1 :])) for axis in range(len(extents))]

    def address(i: int, j: int) -> int:
        values = {"i": i, "j": j}
        return sum(weight * evaluate(index, values) for weight, index in zip(weights, indices, strict=True))

    assert stride(access, tile, "i") == address(4, 2) - address(3, 2)
    assert stride(access, tile, "j") == address(4, 2) - address(4, 1)
