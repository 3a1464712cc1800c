"""The interpreter on vectors: lane by lane what the scalar kernel does, and no touch of lanes that are off."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyschedule.ir.arithmetic import numpy_dtype
from pyschedule.ir.build import const
from pyschedule.ir.interpreter import run
from pyschedule.ir.nodes import (
    Alloc,
    Assign,
    BinOp,
    BoolOp,
    Broadcast,
    Call,
    Cast,
    Compare,
    Const,
    Dim,
    Expr,
    Origin,
    Ramp,
    Reduce,
    Return,
    Select,
    Stmt,
    Store,
    UnaryOp,
    Var,
)
from pyschedule.ir.types import FLOAT32, FLOAT64, INT64, Scalar, Vector
from pyschedule.ir.visitors import substitute
from tests.ir.nests import I, J, N, array, f32, kernel, less, load, local, loop, op, ramp, store

LANES = 4


def in_lanes(stmt: Stmt, stride: int = 1) -> tuple[Stmt, ...]:
    """A statement over the counter `i` with lanes for it, each store masked by `i < n`."""
    steps = Ramp(I, stride, LANES)
    (vector,) = substitute((stmt,), {"i": steps})
    assert isinstance(vector, Store)
    return (dataclasses.replace(vector, mask=less(steps, N)),)


def elements() -> st.SearchStrategy[Expr]:
    """float64 expressions over the counter `i` and elements near it; `A` has room for i + 2."""
    leaves = st.one_of(
        st.sampled_from([0.5, -1.5, 3.0]).map(lambda number: Const(number, FLOAT64)),
        st.integers(0, 2).map(lambda shift: load("A", op("+", I, const(shift), INT64), dtype=FLOAT64)),
        st.just(load("A", const(1), dtype=FLOAT64)),
        st.just(load("A", op("%", op("*", I, I, INT64), const(5), INT64), dtype=FLOAT64)),
        st.just(Cast(FLOAT64, op("//", I, const(3), INT64))),
    )

    def grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        compare = st.builds(Compare, st.sampled_from(["<", ">=", "!="]), inner, inner, st.just(FLOAT64))
        test = st.one_of(
            compare,
            st.builds(BoolOp, st.sampled_from(["and", "or"]), compare, compare),
            st.builds(UnaryOp, st.just("not"), compare),
        )
        two = st.sampled_from(["pmin", "pmax", "minimum", "maximum", "copysign"])
        return st.one_of(
            st.builds(BinOp, st.sampled_from(["+", "-", "*", "/", "//", "%"]), inner, inner, st.just(FLOAT64)),
            st.builds(lambda name, left, right: Call(name, (left, right), FLOAT64), two, inner, inner),
            st.builds(lambda name, part: Call(name, (part,), FLOAT64), st.sampled_from(["abs", "floor"]), inner),
            st.builds(Select, test, inner, inner, st.just(FLOAT64)),
            st.builds(UnaryOp, st.just("-"), inner),
        )

    return st.recursive(leaves, grown, max_leaves=8)


@given(elements(), st.integers(0, 11), st.sampled_from([1, 2]))
def test_lanes_are_iterations(value: Expr, n: int, stride: int) -> None:
    """Any expression, in lanes with a masked tail, is what the scalar loop computes."""
    source = np.array([1.5, -2.0, np.nan, 0.0, -0.0, 3.0, np.inf, 0.1, 7.0, -1.0, 2.0, 4.0, 8.0, 9.0, 5.0, 6.0])
    source = np.concatenate([source, source])
    stmt = store("y", I, value, origin=Origin(3, (I,)))
    results, traces = [], []
    for body in (
        loop("i", 0, N, stride, stmt),
        loop("i", 0, N, stride * LANES, *in_lanes(stmt, stride)),
    ):
        y = np.full(16, -7.0)
        trace: list[tuple[int, tuple[int, ...]]] = []
        params = [array("A", dtype="float64"), array("y", dtype="float64"), N]
        run(kernel(params, body), {"A": source, "y": y}, {"n": n}, lambda *seen, to=trace: to.append(seen))
        results.append(y)
        traces.append(trace)
    assert np.array_equal(results[0], results[1], equal_nan=True)
    assert traces[0] == traces[1] == [(3, (i,)) for i in range(0, n, stride)]


def test_lanes_that_are_off_are_not_addressed() -> None:
    """A load without its mask is found out, with the statement."""
    tail = less(ramp(I, 4), N)
    good = store("y", ramp(I, 4), load("x", ramp(I, 4), mask=tail), tail)
    bad = store("y", ramp(I, 4), load("x", ramp(I, 4)), tail)
    arrays = {"x": np.arange(6, dtype=np.float32), "y": np.zeros(6, np.float32)}
    run(kernel([array("x"), array("y"), N], loop("i", 0, N, 4, good)), arrays, {"n": 6})
    assert arrays["y"].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(IndexError, match="index 7 is outside axis 0 of x, of extent 6"):
        run(kernel([array("x"), array("y"), N], loop("i", 0, N, 4, bad)), arrays, {"n": 6})


def test_masked_loads_read_zero_where_off() -> None:
    masked = load("x", ramp(0, 4), mask=less(ramp(0, 4), N))
    y = np.full(4, 9, np.float32)
    run(
        kernel([array("x"), array("y"), N], store("y", ramp(0, 4), masked)),
        {"x": np.ones(3, np.float32), "y": y},
        {"n": 2},
    )
    assert y.tolist() == [1, 1, 0, 0]


def test_a_scalar_mask_switches_the_whole_access() -> None:
    off = less(N, N)
    y = np.full(4, 9, np.float32)
    body = store("y", ramp(0, 4), load("x", ramp(100, 4), mask=off)), store("y", 77, f32(1), off)
    run(kernel([array("x"), array("y"), N], *body), {"x": np.ones(3, np.float32), "y": y}, {"n": 2})
    assert y.tolist() == [0, 0, 0, 0]


def test_the_arms_of_a_select_touch_their_own_lanes_only() -> None:
    inside = less(ramp(I, 4), Dim("x", 0))
    value = Select(inside, load("x", ramp(I, 4)), Broadcast(f32(-1), 4), FLOAT32)
    nested = Select(
        less(ramp(I, 4), const(2)), value, Select(inside, load("x", ramp(I, 4)), f32(5), FLOAT32), FLOAT32
    )
    for expr, wanted in ((value, [0, 1, 2, 3, 4, 5, -1, -1]), (nested, [0, 1, 2, 3, 4, 5, 5, 5])):
        y = np.zeros(8, np.float32)
        body = loop("i", 0, 8, 4, store("y", ramp(I, 4), expr))
        run(kernel([array("x"), array("y")], body), {"x": np.arange(6, dtype=np.float32), "y": y})
        assert y.tolist() == wanted


def test_an_arm_within_an_arm_touches_the_lanes_of_both() -> None:
    """The inner test holds where the outer does not: there too, nothing is read."""
    inside, even = (
        less(ramp(0, 8), Dim("x", 0)),
        Compare("==", op("%", ramp(0, 8), const(2), INT64), const(0), INT64),
    )
    inner = Select(even, load("x", ramp(0, 8)), f32(5), FLOAT32)
    y = np.zeros(8, np.float32)
    expr = Select(inside, inner, Broadcast(f32(-1), 8), FLOAT32)
    run(kernel([array("x"), array("y")], store("y", ramp(0, 8), expr)), {"x": np.ones(5, np.float32), "y": y})
    assert y.tolist() == [1, 5, 1, 5, 1, -1, -1, -1]


def test_the_right_side_of_and_touches_open_lanes_only() -> None:
    inside = less(ramp(0, 8), Dim("x", 0))
    positive = Compare("<", f32(0), load("x", ramp(0, 8)), FLOAT32)
    value = Select(BoolOp("and", inside, positive), Broadcast(f32(1), 8), f32(0), FLOAT32)
    outside = Select(BoolOp("or", UnaryOp("not", inside), positive), f32(1), Broadcast(f32(0), 8), FLOAT32)
    x = np.array([1, -1, 2, -2, 3], np.float32)
    for expr, wanted in ((value, [1, 0, 1, 0, 1, 0, 0, 0]), (outside, [1, 0, 1, 0, 1, 1, 1, 1])):
        y = np.zeros(8, np.float32)
        run(kernel([array("x"), array("y")], store("y", ramp(0, 8), expr)), {"x": x, "y": y})
        assert y.tolist() == wanted


def test_gathers_scatters_strides_and_reversals() -> None:
    x = np.arange(20, dtype=np.float32).reshape(4, 5)
    y = np.zeros((5, 4), np.float32)
    column = load("x", ramp(0, 4), I)
    run(
        kernel([array("x", 2), array("y", 2)], loop("i", 0, 5, 1, store("y", (I, ramp(3, 4, -1)), column))),
        {"x": x, "y": y},
    )
    assert np.array_equal(y, x.T[:, ::-1])
    diagonal = store("y", (0, ramp(0, 4)), load("x", ramp(0, 4), ramp(0, 4)))
    run(kernel([array("x", 2), array("y", 2)], diagonal), {"x": x, "y": y})
    assert np.array_equal(y[0], np.diagonal(x))
    again = store("y", (0, Broadcast(const(2), 4)), load("x", 0, ramp(0, 4)))
    run(kernel([array("x", 2), array("y", 2)], again), {"x": x, "y": y})
    assert y[0, 2] == x[0, 3], "the last lane wins, as the last iteration would"


def test_an_index_read_under_a_mask_needs_its_own() -> None:
    """The table's entries behind the mask are never used as an index, and not even read."""
    lut = np.array([0, 0, 2, 0, 1, 0])
    mask = less(ramp(I, 4), N)
    table = load("lut", ramp(I, 4), dtype=INT64, mask=mask)
    read = store("y", ramp(I, 4), load("x", table, mask=mask), mask)
    arrays = {"lut": lut, "x": np.array([5, 6, 7], np.float32), "y": np.zeros(6, np.float32)}
    params = [array("lut", dtype="int64"), array("x"), array("y"), N]
    run(kernel(params, loop("i", 0, N, 4, read)), arrays, {"n": 6})
    assert arrays["y"].tolist() == [5, 5, 7, 5, 6, 5]


def test_checked_index_checks_live_lanes_only() -> None:
    back = Call("checked_index", (op("-", ramp(I, 4), N, INT64), N), INT64)
    mask = less(ramp(I, 4), N)
    y = np.zeros(6, np.float32)
    body = loop("i", 0, N, 4, store("y", ramp(I, 4), load("x", back, mask=mask), mask))
    run(kernel([array("x"), array("y"), N], body), {"x": np.arange(6, dtype=np.float32), "y": y}, {"n": 6})
    assert y.tolist() == [0, 1, 2, 3, 4, 5]
    bare = loop(
        "i", 0, N, 4, store("y", ramp(I, 4), Cast(FLOAT32, Call("checked_index", (ramp(I, 4), N), INT64)), mask)
    )
    with pytest.raises(IndexError):
        run(kernel([array("y"), N], bare), {"y": y}, {"n": 6})


def test_register_arrays_of_vectors() -> None:
    """A 2 x 2 register tile of 4-lane vectors, written whole and in part."""
    lanes = Vector(FLOAT32, 4)
    acc = local("acc", 2, dtype=lanes, space="register")
    part = load("acc", 1, dtype=lanes, mask=less(ramp(0, 4), const(3)))
    body = (
        Alloc(acc),
        store("acc", 0, load("x", ramp(0, 4))),
        store("acc", 1, f32(2)),
        store("acc", 1, load("acc", 0, dtype=lanes), less(ramp(0, 4), const(1))),
        Assign("v", load("acc", 0, dtype=lanes), lanes),
        store("acc", 0, f32(-1)),
        store("y", ramp(0, 4), op("+", part, Var("v", lanes))),
    )
    y = np.zeros(4, np.float32)
    run(kernel([array("x"), array("y")], *body), {"x": np.array([5, 6, 7, 8], np.float32), "y": y})
    assert y.tolist() == [10, 8, 9, 8], "a vector that was read keeps its value when the register is overwritten"


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("+", 8.0), ("*", 60.0), ("pmin", -2.0), ("pmax", 6.0), ("minimum", -2.0), ("maximum", 6.0)],
)
@pytest.mark.parametrize("element", [FLOAT32, INT64, Scalar("int8")])
def test_reductions(name: str, wanted: float, element: Scalar) -> None:
    x = np.array([5, -2, 6, -1, 1, -1, 1, -1], element.name)
    reduce = Reduce(name, load("x", ramp(0, 8), dtype=element))
    made = kernel([array("x", dtype=element.name)], Return((reduce,)), returns=(0,), scalar_results=(element,))
    found = run(made, {"x": x})[0]
    assert found == wanted


def test_reductions_of_bits_and_bools() -> None:
    x = np.array([6, 3, 7, 2])
    for name, wanted in (("&", 2), ("|", 7), ("^", 0)):
        reduce = Reduce(name, load("x", ramp(0, 4), dtype=INT64))
        made = kernel([array("x", dtype="int64")], Return((reduce,)), returns=(0,), scalar_results=(INT64,))
        assert run(made, {"x": x})[0] == wanted
    for name, bound, wanted in (("and", 4, True), ("and", 3, False), ("or", 1, True), ("or", 0, False)):
        test = Reduce(name, less(ramp(0, 4), const(bound)))
        made = kernel([], Return((test,)), returns=(0,), scalar_results=(Scalar("bool"),))
        assert run(made, {})[0] is wanted


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_lanes_are_float32_until_stored(dtype: str) -> None:
    x = np.array([1, 2, 3, 0.1], numpy_dtype(dtype))
    y, z = np.zeros(4, numpy_dtype(dtype)), np.zeros(4, np.float32)
    third = op("/", load("x", ramp(0, 4)), f32(3))
    body = store("y", ramp(0, 4), third), store("z", ramp(0, 4), third)
    run(kernel([array("x", dtype=dtype), array("y", dtype=dtype), array("z")], *body), {"x": x, "y": y, "z": z})
    wanted = x.astype(np.float32) / np.float32(3)
    assert np.array_equal(z, wanted) and np.array_equal(y, wanted.astype(numpy_dtype(dtype)))


def test_views_of_any_stride() -> None:
    base: Any = np.arange(40, dtype=np.float32)
    x, y = base[30:2:-3], np.zeros(20, np.float32)[::2]
    run(
        kernel([array("x"), array("y")], loop("j", 0, 8, 4, store("y", ramp(J, 4), load("x", ramp(J, 4))))),
        {"x": x, "y": y},
    )
    assert np.array_equal(y[:8], x[:8]) and not y[8:].any()
