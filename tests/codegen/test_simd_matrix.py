"""Blocks for a matrix unit: packed from any layout, on any machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numba import njit

from pyschedule.codegen.simd import begins_at_lines, matrix_product, pack, release_matrix_unit, set_up_matrix_unit
from pyschedule.schedule.targets import host

WIDTH = 48
VALID = [(48, 64), (47, 63), (1, 1), (17, 33), (0, 5), (5, 0), (60, 99)]


def packed(source: np.ndarray, group: int, lanes: int, depth: int) -> np.ndarray:
    """What a block is: lanes by depth with zeros around, in groups of depth."""
    whole = np.zeros((WIDTH, 64 // source.itemsize), source.dtype)
    lanes, depth = min(lanes, WIDTH), min(depth, whole.shape[1])
    whole[:lanes, :depth] = source[:lanes, :depth]
    return whole.reshape(WIDTH, -1, group).swapaxes(0, 1).reshape(-1)


def packer(groups: int, group: int, layout: str) -> Any:
    """Packs from where the elements of a lane, those of one depth, or none are neighbours."""
    if layout == "depth":

        @njit
        def from_depth(tile, array, offset, step, lanes, depth):
            pack(tile, 0, array, offset, step, 1, lanes, depth, groups, WIDTH, group)

        return from_depth
    if layout == "lanes":

        @njit
        def from_lanes(tile, array, offset, step, lanes, depth):
            pack(tile, 0, array, offset, 1, step, lanes, depth, groups, WIDTH, group)

        return from_lanes

    @njit
    def one_by_one(tile, array, offset, step, lanes, depth):
        pack(tile, 0, array, offset, step, 2, lanes, depth, groups, WIDTH, group)

    return one_by_one


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("layout", ["depth", "lanes", "neither"])
@pytest.mark.parametrize("dtype", [np.int8, np.uint16])
def test_a_block_is_packed_with_zeros_around_from_any_layout(layout: str, dtype: Any, whole: bool) -> None:
    depth_of_tile = 64 // np.dtype(dtype).itemsize
    group = depth_of_tile if whole else 4 // np.dtype(dtype).itemsize
    run = packer(depth_of_tile // group, group, layout)
    rng = np.random.default_rng(1)
    for lanes, depth in VALID:
        # Nothing but the elements that are there is in memory: what is read beyond would be an error of a checker.
        source = rng.integers(1, 100, (max(lanes, 1), max(depth, 1))).astype(dtype)
        memory, step = {
            "depth": (source.ravel(), source.shape[1]),
            "lanes": (source.T.ravel(), source.shape[0]),
            "neither": (np.repeat(source, 2, axis=1).ravel(), 2 * source.shape[1]),
        }[layout]
        tile = np.full(WIDTH * depth_of_tile, 77, dtype)
        run(tile, memory, 0, step, lanes, depth)
        np.testing.assert_array_equal(tile, packed(source, group, lanes, depth), err_msg=f"{lanes} {depth}")


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


@pytest.mark.skipif(host().matrix is None, reason="this machine has no matrix unit, or may not use it")
def test_a_block_in_part_leaves_what_is_around_it() -> None:
    @njit
    def add(result, offset, rows, columns, left, right, steps):
        set_up_matrix_unit()
        matrix_product(
            result, offset, 70, rows, columns, left, 0, left, 0, 0, 0, right, 0, 64 * steps, 48, 32, 0, 0
        )
        release_matrix_unit()

    rng = np.random.default_rng(2)
    left, right = (rng.integers(-128, 128, (3, width * 64)).astype(np.int8) for width in (48, 32))
    # The left block lies row by row, the right one in groups of four of depth.
    sides = left.reshape(3, 48, 64).astype(int), right.reshape(3, 16, 32, 4).astype(int)
    for rows, columns, steps in [(48, 32, 3), (47, 31, 2), (1, 1, 1), (16, 17, 0), (0, 5, 1)]:
        result = rng.integers(-9, 9, (60, 70)).astype(np.int32)
        expected = result.copy()
        product = np.einsum("srk,skc->rc", sides[0][:steps], sides[1].swapaxes(2, 3).reshape(3, 64, 32)[:steps])
        expected[4 : 4 + rows, 5 : 5 + columns] += product[:rows, :columns].astype(np.int32)
        add(result.reshape(-1), 4 * 70 + 5, rows, columns, left.reshape(-1), right.reshape(-1), steps)
        np.testing.assert_array_equal(result, expected, err_msg=f"{rows} {columns} {steps}")
