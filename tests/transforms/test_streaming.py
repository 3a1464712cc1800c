"""Stores around the caches: which are marked, and that machine code stores the same, wherever an array begins."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from pyschedule import tile, unroll, vectorize
from pyschedule.ir.nodes import Store
from pyschedule.ir.printer import format_kernel
from pyschedule.ir.visitors import walk
from pyschedule.runtime.lowering import Lowering
from pyschedule.schedule.targets import host
from tests.codegen.cpu_support import as_words, compiled
from tests.transforms.schedules import GPU, WIDE
from tests.transforms.stages import agrees, counting, lower

#: What streams from the first byte on, on this machine.
HERE = dataclasses.replace(host(), stream_bytes=1)


def doubled(X, Y):
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            Y[i, j] = X[i, j] + X[i, j]


def streamed(lowering: Lowering) -> set[str]:
    return {stmt.array for stmt in stores(lowering) if stmt.stream}


def stores(lowering: Lowering) -> list[Store]:
    return [stmt for stmt in walk(lowering.stages["unroll"].body) if isinstance(stmt, Store)]


def rows(count: int, width: int, dtype: str = "float32"):
    return counting(count, width).astype(dtype), np.zeros((count, width), dtype)


def test_all_stores_into_an_array_that_is_only_written_are_marked():
    lowering = agrees(tile(i=4)(unroll("j", 2)(vectorize("j")(doubled))), *rows(5, 43))
    assert len(stores(lowering)) == 4  # two copies, what is left of them, and the tail
    assert {stmt.stream for stmt in stores(lowering)} == {48 << 20}
    assert "around the caches from 48 MiB" in format_kernel(lowering.stages["unroll"])
    assert "'Y' around the caches where it has 48 MiB or more, in loop 'j'" in lowering.log.verbose()


def test_what_is_read_again_or_written_twice_stays_in_the_caches():
    def squared_after(X, Y):
        for i in range(X.shape[0]):
            for j in range(X.shape[1]):
                Y[i, j] = X[i, j] + X[i, j]
            for j in range(X.shape[1]):
                Y[i, j] = Y[i, j] * Y[i, j]

    def cleared_first(X, Y):
        for i in range(X.shape[0]):
            for j in range(X.shape[1]):
                Y[i, j] = 0.0
            for j in range(X.shape[1]):
                Y[i, j] = X[i, j]

    def again_and_again(X, Y):
        for _t in range(2):
            for i in range(X.shape[0]):
                for j in range(X.shape[1]):
                    Y[i, j] = X[i, j]

    def in_place(X):
        for i in range(X.shape[0]):
            for j in range(X.shape[1]):
                X[i, j] = X[i, j] + 1.0

    for kernel in (squared_after, cleared_first, again_and_again):
        assert not streamed(agrees(vectorize("j")(kernel), *rows(5, 43)))
    assert not streamed(agrees(vectorize("j")(in_place), rows(5, 43)[0]))


def test_parts_of_lines_stay_in_the_caches():
    def selected(X, Y):
        for i in range(X.shape[0]):
            for j in range(X.shape[1]):
                if X[i, j] > 0.5:
                    Y[i, j] = X[i, j]

    def down_columns(X, Y):
        for j in range(0, X.shape[1] // 64 * 64, 64):
            for i in range(X.shape[0]):
                for l in range(64):
                    Y[i, j + l] = X[i, j + l]

    assert not streamed(agrees(vectorize("j")(selected), *rows(5, 43)))
    assert not streamed(agrees(unroll("l")(vectorize("l", 16)(down_columns)), *rows(5, 128)))
    assert not streamed(agrees(vectorize("j", 2)(doubled), *rows(5, 43)))  # 8 bytes
    assert not streamed(agrees(unroll("j", 4)(doubled), *rows(5, 43)))


def test_some_kernels_and_targets_have_none():
    def left_early(X, Y):
        for i in range(X.shape[0]):
            if X[i, 0] < 0.0:
                return
            for j in range(X.shape[1]):
                Y[i, j] = X[i, j]

    assert not streamed(agrees(vectorize("j")(left_early), *rows(5, 43)))
    assert not streamed(lower(vectorize("j", 4)(doubled), *rows(5, 43), target=GPU))
    assert not streamed(
        lower(vectorize("j")(doubled), *rows(5, 43), target=dataclasses.replace(WIDE, stream_bytes=0))
    )


def placed(array: np.ndarray, offset: int, padding: int) -> tuple[np.ndarray, np.ndarray]:
    """A copy at `offset` bytes behind an aligned address, rows `padding` bytes apart, and the memory around it."""
    count, width = array.shape
    stride = width * array.itemsize + padding
    memory = np.full(count * stride + 256, 0x5A, np.uint8)
    start = -memory.ctypes.data % 64 + 64 + offset
    view = np.ndarray(array.shape, array.dtype, memory, start, (stride, array.itemsize))
    view[...] = array
    return view, memory


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int8"])
def test_every_offset_and_width_stores_what_it_should(dtype):
    size = np.dtype(dtype).itemsize
    kernel = unroll("j", 2)(vectorize("j")(doubled))
    X, Y = rows(3, 8, dtype)
    lowering = lower(kernel, X, Y, target=HERE)
    assert streamed(lowering) == {"Y"} and "fence()" in lowering.source
    run = compiled(lowering.kernel)
    for width in (0, 1, 2048 // size, 2048 // size + 16 // size, 2048 // size + 61):
        X, _ = rows(3, width, dtype)
        for offset in (0, size, 16, 48):
            for padding in (0, 16, 3 * size):
                out, memory = placed(np.zeros_like(X), offset, padding)
                wanted, expected = placed(np.zeros_like(X), offset, padding)
                with np.errstate(over="ignore"):
                    wanted[...] = X + X
                run(as_words(X), as_words(out))
                np.testing.assert_array_equal(out, wanted)
                shift = -memory.ctypes.data % 64, -expected.ctypes.data % 64
                length = len(memory) - 64
                np.testing.assert_array_equal(
                    memory[shift[0] : shift[0] + length], expected[shift[1] : shift[1] + length]
                )


def test_every_scalar_goes_to_all_lanes_of_a_tail():
    def filled(Y):
        for i in range(Y.shape[0]):
            for j in range(Y.shape[1]):
                Y[i, j] = 3.0

    _, Y = rows(3, 524)
    lowering = lower(vectorize("j")(filled), Y, target=HERE)
    assert streamed(lowering) == {"Y"}
    compiled(lowering.kernel)(Y)
    assert (Y == 3.0).all()


def test_threads_end_with_a_fence_each():
    kernel = tile(i=2, parallel="i.0")(vectorize("j")(doubled))
    X, Y = rows(7, 524)
    lowering = lower(kernel, X, Y, target=dataclasses.replace(HERE, cores=2))
    first, second = lowering.source.split("@njit")[1:]
    assert "fence()" in first and "fence()" not in second
    compiled(lowering.kernel, parallel=True)(X, Y)
    np.testing.assert_array_equal(Y, X + X)


def test_a_large_array_in_a_call():
    X, Y = np.ones((3 << 10, 4100), np.float32), np.empty((3 << 10, 4100), np.float32)
    assert Y.nbytes > host().stream_bytes
    unroll("j", 4)(vectorize("j")(doubled))(X, Y)
    np.testing.assert_array_equal(Y, X + X)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_a_single_row_may_end_anywhere(dtype):
    def doubled_row(x, y):
        for i in range(x.shape[0]):
            y[i] = x[i] + x[i]

    full = np.ones(2200, dtype)
    lowering = lower(unroll("i", 2)(vectorize("i")(doubled_row)), full, full, target=HERE)
    assert streamed(lowering) == {"y"}
    run = compiled(lowering.kernel)
    for length in range(2100, 2136):
        y, memory = placed(np.full((1, 2200), 7, dtype), 16, 0)
        before = memory.copy()
        run(full[:length], y[0, :length])
        assert (y[0, :length] == 2).all() and (y[0, length:] == 7).all()
        y[...] = 7
        np.testing.assert_array_equal(memory, before)
