"""Parallel loops over tiles that are shared out by less than a tile: played share by share, last one first."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from operators.kernels.products import product_kernel
from pyschedule import poll, tile, unroll, vectorize
from pyschedule.codegen.shares import shares_of
from pyschedule.ir import build
from pyschedule.ir.interpreter import run
from pyschedule.ir.nodes import Assign, For, Kernel, Stmt
from pyschedule.ir.types import INT64
from pyschedule.ir.visitors import loops, rewrite

TARGET = "cpu"


def shared_loops(kernel: Kernel) -> list[For]:
    """The parallel loops that are shared out by less than an iteration."""
    every = (loop for loop in loops(kernel.body) if loop.mapping == "parallel")
    return [loop for loop in every if shares_of(loop).step != loop.step]


def in_shares(kernel: Kernel, pieces: int) -> Kernel:
    """The kernel with each parallel loop cut into shares as threads get them, in the opposite order."""

    def cut(stmt: Stmt) -> Stmt | tuple[Stmt, ...] | None:
        if not isinstance(stmt, For) or stmt.mapping != "parallel":
            return None
        shares = shares_of(stmt)
        trips = build.ceildiv(build.sub(stmt.stop, stmt.start), build.constant(shares.step))
        result: list[Stmt] = []
        for piece in reversed(range(pieces)):
            first, last = (
                build.add(stmt.start, build.mul(build.floordiv(build.mul(trips, end), pieces), shares.step))
                for end in (piece, piece + 1)
            )
            loop = dataclasses.replace(stmt, start=first, stop=shares.last, body=shares.body, mapping="serial")
            result += [Assign(shares.last.name, last, INT64), loop]
        return tuple(result)

    return dataclasses.replace(kernel, body=rewrite(kernel.body, cut))


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).integers(-9, 9, shape).astype(np.float32)


def same_in_shares(kernel, *args: np.ndarray, whole: bool | None = False) -> None:
    """The result is the undecorated function's, however many shares there are; `whole`: of whole tiles."""
    lowered = kernel.lower(*args, target=TARGET).stages["unroll"]
    assert whole is None or bool(shared_loops(lowered)) is not whole
    expected = [array.copy() for array in args]
    kernel.python(*expected)
    for pieces in (2, 3):
        given = [array.copy() for array in args]
        arrays = dict(zip((param.name for param in lowered.params), given, strict=True))
        run(in_shares(lowered, pieces), arrays, {})
        for one, other in zip(given, expected, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("form", ["blocked", "narrow", "deep", "deep-few", "turned", "small"])
@pytest.mark.parametrize("rows", [11, 127])
def test_rows_of_a_product_are_shared_out_by_register_tiles(form, rows):
    left = numbers(2, rows).T if form == "turned" else numbers(rows, 2)
    same_in_shares(product_kernel(form, 16), left, numbers(2, 20), numbers(rows, 20))


def test_two_threads_get_as_many_rows_as_register_tiles_allow():
    args = (numbers(127, 3), numbers(3, 8), numbers(127, 8))
    columns, rows = shared_loops(product_kernel("blocked", 16).lower(*args, target=TARGET).stages["unroll"])
    assert (build.constant(columns.step), build.constant(shares_of(columns).step)) == (256, 64)
    assert (build.constant(rows.step), build.constant(shares_of(rows).step)) == (96, 6)


def added(X, Y):
    for i in range(2, X.shape[0]):
        Y[i] += X[i]  # twice would show


SCHEDULES = {
    "plain": tile(i=16, parallel="i.0"),
    "unrolled, with a remainder": lambda kernel: tile(i=16, parallel="i.0")(unroll("i", 4)(kernel)),
    "in lanes, with a masked pass": lambda kernel: tile(i=64, parallel="i.0")(vectorize("i", width=16)(kernel)),
    "in lanes and unrolled": lambda kernel: tile(i=64, parallel="i.0")(
        vectorize("i", width=8)(unroll("i", 2)(kernel))
    ),
    "polled in strips": lambda kernel: tile(i=16, parallel="i.0")(poll(every=64)(kernel)),
    "two levels": tile(i=(32, 8), parallel="i.0"),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("size", [3, 67])
def test_a_loop_cut_and_cut_again(name, size):
    # The masked pass behind lanes may come in two versions, which leave tiles whole.
    same_in_shares(SCHEDULES[name](added), numbers(size), numbers(size), whole=None if "lanes" in name else False)


def test_sizes_that_do_not_divide_each_other_leave_tiles_whole():
    same_in_shares(tile(i=(10, 4), parallel="i.0")(added), numbers(67), numbers(67), whole=True)


def test_what_passes_from_iteration_to_iteration_inside_a_tile_keeps_it_whole():
    @tile(i=8, parallel="i.0")
    def restarted(X, Y):
        for i in range(X.shape[0]):
            if i % 8 == 0:
                Y[i] = X[i]
            else:
                Y[i] = Y[i - 1] + X[i]

    args = (numbers(45), numbers(45))
    stage = restarted.lower(*args, target=TARGET).stages["tiling"]
    assert [(loop.mapping, loop.grain) for loop in loops(stage.body)] == [("parallel", None), ("serial", None)]
    same_in_shares(restarted, *args, whole=True)


def test_a_tile_that_is_written_out_stays_whole():
    """The first of the four ends its inner loop where the tile ends, and by the user's own words."""

    @unroll("i", 4)
    @tile(i=4, parallel="i.0")
    def sums(X, Y):
        for i in range(X.shape[0]):
            Y[i] = 0
            for j in range(i, min(i + 4, X.shape[0])):
                Y[i] += X[j]

    same_in_shares(sums, numbers(19), numbers(19), whole=True)


def test_several_nests_in_one_tile():
    @tile(i=8, parallel="i.0")
    def halves(X, Y):
        for i in range(X.shape[0]):
            total = np.float32(0.0)
            for j in range(X.shape[1]):
                total += X[i, j]
            for j in range(X.shape[1]):
                Y[i, j] = X[i, j] + total

    same_in_shares(halves, numbers(43, 5), numbers(43, 5))
