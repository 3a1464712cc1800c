"""Sums of their own for the copies of an unrolled body: how many, of what, and that nothing is lost."""

from __future__ import annotations

import numpy as np
import pytest

from pyschedule import unroll, vectorize
from pyschedule.ir.nodes import Assign, For
from pyschedule.ir.visitors import walk
from tests.support import agrees as agrees_when_called
from tests.support import on_every_target
from tests.transforms.schedules import NARROW, WIDE
from tests.transforms.stages import agrees, counting, details


def total(x):
    s = 0.0
    for k in range(x.shape[0]):
        s += x[k]
    return s


def sums(stage, step):
    """The scalars that the main loop, of this step, adds to."""
    loop = next(
        stmt for stmt in walk(stage.body) if isinstance(stmt, For) and getattr(stmt.step, "value", 0) == step
    )
    return sorted({stmt.target for stmt in loop.body if isinstance(stmt, Assign)})


@pytest.mark.parametrize(("factor", "parts"), [(2, 2), (3, 3), (4, 4), (8, 8), (12, 8)])
def test_copies_add_to_sums_of_their_own(factor, parts):
    lowering = agrees(unroll("k", factor)(total), counting(29))
    assert len(sums(lowering.stages["unroll"], factor)) == parts
    assert f"'s' is summed in {parts} parts (reassociated)" in details(lowering)


@pytest.mark.parametrize("trips", [0, 1, 2, 3, 4, 5, 63, 64, 65, 127, 200])
def test_no_trip_count_loses_a_step(trips):
    for kernel in (unroll("k", 4)(total), vectorize("k", 16)(unroll("k", 4)(total))):
        agrees(kernel, counting(trips))


def test_few_registers_hold_few_sums():
    def four(x):
        a = 0.0
        b = 0.0
        c = 0.0
        d = 0.0
        for k in range(x.shape[0]):
            a += x[k]
            b += x[k] * x[k]
            c = max(c, x[k])
            d -= x[k]
        return a, b, c, d

    kernel = unroll("k", 8)(four)
    for target, parts in ((WIDE, 4), (NARROW, 2)):
        lowering = agrees(kernel, counting(37), target=target)
        assert details(lowering).count("parts (reassociated)") >= 3
        assert f"'a' is summed in {parts} parts" in details(lowering)


def test_what_is_looked_at_stays_whole():
    def running(x, y):
        s = 0.0
        for k in range(x.shape[0]):
            s += x[k]
            y[k] = s

    lowering = agrees(unroll("k", 4)(running), counting(13), np.zeros(13))
    assert "parts" not in details(lowering)


def test_what_is_set_otherwise_stays_whole():
    def restarted(x):
        s = 0.0
        for k in range(x.shape[0]):
            s += x[k]
            s = s * 0.5
        return s

    assert "parts" not in details(agrees(unroll("k", 4)(restarted), counting(13)))


def test_a_sum_under_a_condition_stays_whole():
    def positive(x):
        s = 0.0
        for k in range(x.shape[0]):
            if x[k] > 3:
                s += x[k]
        return s

    assert "parts" not in details(agrees(unroll("k", 4)(positive), counting(13)))


def test_integers_are_left_to_the_compiler():
    def count(x):
        n = 0
        for k in range(x.shape[0]):
            n += 3
        return n

    assert "parts" not in details(agrees(unroll("k", 4)(count), counting(13)))


def test_strict_math_keeps_one_sum():
    x = np.random.default_rng(0).standard_normal(1001)
    lowering = agrees(unroll("k", 4, strict_math=True)(total), x)
    assert "parts" not in details(lowering)


@on_every_target
@pytest.mark.parametrize("trips", [0, 3, 70])
def test_products_and_extrema_too(target, trips):
    def several(x):
        p = np.float32(1.0)
        m = np.float32(-np.inf)
        for k in range(x.shape[0]):
            p *= x[k]
            m = max(m, x[k])
        return p, m

    x = np.where(np.arange(trips) % 7 == 0, -1.0, 1.0).astype(np.float32)
    agrees_when_called(unroll("k", 4)(several), x, target=target)
