"""Blocks for a matrix unit: packed from any layout, on any machine."""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from numba import njit

from pyschedule.codegen.simd import (
    begins_at_lines,
    dot_products,
    matrix_packing,
    matrix_product,
    pack,
    release_matrix_unit,
    set_up_matrix_unit,
)
from pyschedule.schedule.targets import host

WIDTH = 48
VALID = [(48, 64), (47, 63), (1, 1), (17, 33), (0, 5), (5, 0), (60, 99)]


def packed(source: np.ndarray, held: np.dtype[Any], added: int, group: int, lanes: int, depth: int) -> np.ndarray:
    """What a block is: lanes by depth with zeros around, `added` to all of them, in groups of depth."""
    whole = np.zeros((WIDTH, 64 // held.itemsize), np.int64)
    lanes, depth = min(lanes, WIDTH), min(depth, whole.shape[1])
    whole[:lanes, :depth] = source[:lanes, :depth]
    return (whole + added).astype(held).reshape(WIDTH, -1, group).swapaxes(0, 1).reshape(-1)


def packer(groups: int, group: int, layout: str, added: int) -> Any:
    """Packs from where the elements of a lane, those of one depth, or none are neighbours."""
    if layout == "depth":

        @njit
        def from_depth(tile, array, offset, step, lanes, depth):
            pack(tile, 0, array, offset, step, 1, lanes, depth, groups, WIDTH, group, added)

        return from_depth
    if layout == "lanes":

        @njit
        def from_lanes(tile, array, offset, step, lanes, depth):
            pack(tile, 0, array, offset, 1, step, lanes, depth, groups, WIDTH, group, added)

        return from_lanes

    @njit
    def one_by_one(tile, array, offset, step, lanes, depth):
        pack(tile, 0, array, offset, step, 2, lanes, depth, groups, WIDTH, group, added)

    return one_by_one


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("layout", ["depth", "lanes", "neither"])
@pytest.mark.parametrize(
    ("dtype", "held", "added"),
    [
        (np.int8, np.int8, 0),
        (np.uint16, np.uint16, 0),
        (np.int8, np.uint8, 128),
        (np.uint8, np.int8, -128),
        (np.int8, np.int16, 0),
        (np.uint8, np.int16, 0),
    ],
)
def test_a_block_is_packed_with_zeros_around_from_any_layout(
    dtype: Any, held: Any, added: int, layout: str, whole: bool
) -> None:
    check_packing(dtype, np.dtype(held), added, layout, whole)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("layout", ["depth", "lanes"])
@pytest.mark.parametrize(("dtype", "held", "added"), [(np.int8, np.uint8, 128), (np.uint8, np.int16, 0)])
def test_a_block_is_packed_so_too_where_bytes_have_no_masks(
    monkeypatch: pytest.MonkeyPatch, dtype: Any, held: Any, added: int, layout: str, whole: bool
) -> None:
    monkeypatch.setattr(matrix_packing, "features_of", lambda _context: ["+avx2"])
    check_packing(dtype, np.dtype(held), added, layout, whole)


def check_packing(dtype: Any, held: np.dtype[Any], added: int, layout: str, whole: bool) -> None:
    depth_of_tile = 64 // held.itemsize
    group = depth_of_tile if whole else 4 // held.itemsize
    run = packer(depth_of_tile // group, group, layout, added)
    rng = np.random.default_rng(1)
    limits = np.iinfo(dtype)
    for lanes, depth in VALID:
        # Nothing but the elements that are there is in memory: what is read beyond would be an error of a checker.
        shape = (max(lanes, 1), max(depth, 1))
        source = rng.integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)
        memory, step = {
            "depth": (source.ravel(), source.shape[1]),
            "lanes": (source.T.ravel(), source.shape[0]),
            "neither": (np.repeat(source, 2, axis=1).ravel(), 2 * source.shape[1]),
        }[layout]
        tile = np.full(WIDTH * depth_of_tile, 77, held)
        run(tile, memory, 0, step, lanes, depth)
        expected = packed(source, held, added, group, lanes, depth)
        np.testing.assert_array_equal(tile, expected, err_msg=f"{lanes} {depth}")


def test_rows_begin_at_lines_of_the_cache_or_they_do_not() -> None:
    @njit
    def last(array):
        return begins_at_lines(array, 1)

    @njit
    def first(array):
        return begins_at_lines(array, 0)

    memory = np.zeros(4096 + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :][:4096]
    rows = memory.view(np.uint16).reshape(16, 128)
    assert last(rows)
    assert last(rows[::-3, 32:])
    assert first(rows.T)
    assert not last(rows[:, 1:])
    assert not last(memory[:3600].view(np.uint16).reshape(15, 120))


FEATURES = llvm.get_host_cpu_features()
TILES = any(unit.name == "AMX" for unit in host().matrix)
#: What multiplies blocks in vectors: the feature, the lanes of a register, and whether it also adds to a sum.
VECTORS = {"avx512vnni": (16, 1), "avx512bw": (16, 0), "avxvnni": (8, 1), "avx2": (8, 0)}
#: The types of the operands, by what multiplies them.
UNITS = [
    pytest.param(
        *("tiles", np.int8, np.int8),
        marks=pytest.mark.skipif(not TILES, reason="this machine has no matrix unit, or may not use it"),
    ),
    *(
        pytest.param(
            *(feature, *kinds),
            marks=pytest.mark.skipif(not FEATURES.get(feature, False), reason=f"this machine has no {feature}"),
        )
        for feature, (_, fused) in VECTORS.items()
        for kinds in ((np.uint8, np.int8), (np.int8, np.uint8), (np.int16, np.int16))
        if fused or kinds[0] == np.int16
    ),
]


def adder(how: str, added: int) -> Any:
    if how == "tiles":

        @njit
        def on_tiles(result, offset, rows, columns, left, right, depth):
            set_up_matrix_unit()
            matrix_product(result, offset, 70, rows, columns, left, 0, left, 0, 0, 0, right, 0, depth, 48, 32, 0, 0)
            release_matrix_unit()

        return on_tiles
    lanes, fused = VECTORS[how]

    @njit
    def in_vectors(result, offset, rows, columns, left, right, depth):
        dot_products(result, offset, 70, rows, columns, left, 0, right, 0, depth, 48, 32, 0, added, lanes, fused)

    return in_vectors


@pytest.mark.parametrize(("how", "one", "other"), UNITS)
def test_a_block_in_part_leaves_what_is_around_it(how: str, one: Any, other: Any) -> None:
    """The extreme numbers are among those that are multiplied, so that sums wrap and none may saturate."""
    rng = np.random.default_rng(2)
    deep, group = 64 // np.dtype(one).itemsize, 4 // np.dtype(one).itemsize
    left, right = (
        rng.choice([np.iinfo(kind).min, np.iinfo(kind).max, 3], (3, width * deep)).astype(kind)
        for kind, width in ((one, 48), (other, 32))
    )
    # The left block lies row by row, the right one in groups of four bytes of depth.
    rows_of = left.reshape(3, 48, deep).swapaxes(0, 1).reshape(48, -1).astype(int)
    columns_of = right.reshape(3, 16, 32, group).swapaxes(2, 3).reshape(-1, 32).astype(int)
    for added in (0,) if how == "tiles" or one == np.int16 else (0, 128 if one == np.uint8 else -128):
        add = adder(how, added)
        for rows, columns, depth in [
            (48, 32, 3 * deep),
            (47, 31, 2 * deep),
            (1, 1, deep),
            (16, 17, 0),
            (0, 5, deep),
        ]:
            result = rng.integers(-9, 9, (60, 70)).astype(np.int32)
            expected = result.copy()
            product = (rows_of - added)[:rows, :depth] @ columns_of[:depth, :columns]
            expected[4 : 4 + rows, 5 : 5 + columns] += product.astype(np.int32)
            add(result.reshape(-1), 4 * 70 + 5, rows, columns, left.reshape(-1), right.reshape(-1), depth)
            np.testing.assert_array_equal(result, expected, err_msg=f"{added} {rows} {columns} {depth}")
