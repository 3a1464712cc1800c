"""Indices made explicit: the kernel does what Python's indexing does, and no index is negative any more."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pyschedule.analysis.bounds import CHECK
from pyschedule.ir import interpreter
from pyschedule.ir.build import add, const
from pyschedule.ir.nodes import Call, Dim, Load, Select, Store
from pyschedule.ir.types import FLOAT32, INT32, INT64, Scalar
from pyschedule.transforms.indexing import make_explicit
from tests.analysis.evaluate import evaluate
from tests.analysis.helpers import array, cmp, f32, gemm, ix, kernel, load, loop, minus, plus, store, when
from tests.analysis.watched import PARAMS, Watched, random_body

X, NX = array("x"), Dim("x", 0)


def test_a_kernel_without_negative_indices_is_left_alone() -> None:
    source = gemm()
    explicit, bounds = make_explicit(source)
    assert explicit is source and len(bounds.preconditions) == 3


def test_each_kind_of_index() -> None:
    shifted, _ = make_explicit(kernel([X], store("x", [-1], f32(1.0))))
    assert shifted.body == (store("x", [minus(NX, 1)], f32(1.0)),)
    wrapped, _ = make_explicit(kernel([X], loop("i", 0, NX, store("x", [minus("i", 1)], f32(1.0)))))
    index = minus("i", 1)
    expected = Select(cmp("<", index, 0), add(index, NX), index, INT64)
    assert wrapped.body == (loop("i", 0, NX, store("x", [expected], f32(1.0))),)


def test_data_are_checked() -> None:
    table = array("lut", dtype=INT32)
    nest = loop("r", 0, Dim("lut", 0), store("x", [load("lut", "r", dtype=INT32)], f32(1.0)))
    explicit, bounds = make_explicit(kernel([X, table], nest), assume=True)
    (store_,) = (stmt for stmt in explicit.body[0].body if isinstance(stmt, Store))  # type: ignore[attr-defined]
    assert isinstance(store_.indices[0], Call) and store_.indices[0].function == "checked_index"
    assert store_.indices[0].args[1] == NX and bounds.preconditions == bounds.assumptions == ()
    lut, x = np.array([0, -1, 1], np.int32), np.zeros(4, np.float32)
    interpreter.run(explicit, {"x": x, "lut": lut})
    assert x.tolist() == [1, 1, 0, 1]
    with pytest.raises(IndexError):
        interpreter.run(explicit, {"x": x, "lut": np.array([4], np.int32)})


def test_an_index_inside_an_index_is_made_explicit_too() -> None:
    table = array("lut", dtype=INT64)
    inner = load("lut", -1, dtype=INT64)
    explicit, _ = make_explicit(kernel([X, table], store("x", [inner], f32(1.0))))
    expected = Call("checked_index", (load("lut", minus(Dim("lut", 0), 1), dtype=INT64), NX), INT64)
    assert explicit.body == (store("x", [expected], f32(1.0)),)


def test_what_only_may_run_is_assumed_to_fit_where_that_is_allowed() -> None:
    test = cmp(">", load("x", "i"), f32(0.0), FLOAT32)
    nest = loop("i", 0, NX, when(test, store("y", ["i"], f32(1.0))))
    source = kernel([X, array("y")], nest)
    explicit, bounds = make_explicit(source, assume=True)
    (one,) = bounds.assumptions
    assert explicit is source and bounds.preconditions == ()
    for x, y in itertools.product(range(4), repeat=2):
        assert bool(evaluate(one.test, {"x.shape[0]": x, "y.shape[0]": y})) == (x <= y)
    explicit, bounds = make_explicit(source)
    assert explicit is not source and bounds.preconditions == bounds.assumptions == ()


def test_the_messages_take_the_arguments() -> None:
    _, bounds = make_explicit(kernel([X, array("y")], loop("i", 0, Dim("y", 0), _copy())))
    (one,) = bounds.preconditions
    text = one.message.format(x=np.zeros(3), y=np.zeros(5))
    assert text == (
        "x: axis 0 has extent 3, but the loop reads index y.shape[0] + 1 (y.shape[0] = 5) at kernel.py:4:5"
    )


def _copy() -> Store:
    return store("y", ["i"], Load("x", (plus("i", 2),), array("x").dtype, loc=load("x", 0, line=4).loc))


def test_matrix_product_wraps_as_numpy_does() -> None:
    shape = array("A", 2)
    rolled = store("x", ["i"], load("A", minus("i", 2), plus(const(-1), 0)))
    explicit, _ = make_explicit(kernel([shape, X], loop("i", 0, 3, rolled)))
    a, x = np.arange(12, dtype=np.float32).reshape(3, 4), np.zeros(3, np.float32)
    interpreter.run(explicit, {"A": a, "x": x})
    assert x.tolist() == [a[i - 2, -1] for i in range(3)]


@pytest.mark.parametrize("assume", [False, True])
@pytest.mark.parametrize("seed", range(60))
def test_random_kernels_index_as_python_does(seed: int, assume: bool) -> None:
    """For all arguments of which what is asked holds; an index is never outside where it is not checked."""
    body = random_body(seed)
    source = kernel(PARAMS, *body)
    explicit, bounds = make_explicit(source, assume=assume)
    assert assume or not bounds.assumptions
    for x, y, n in itertools.product((0, 1, 4), (0, 3), (-1, 0, 3)):
        values = {"x.shape[0]": x, "y.shape[0]": y, "n": n}
        if not all(evaluate(one.test, values) for one in (*bounds.preconditions, *bounds.assumptions)):
            continue
        data = {"x": [2, 0, -1, 1][:x], "y": [1, 3, 0][:y]}
        arrays = {name: np.array(row, np.int64) for name, row in data.items()}
        watched = Watched(body, bounds, values, data)
        watched.start(body)
        if watched.outside:
            assert watched.outside == {CHECK}
            with pytest.raises(IndexError):
                interpreter.run(explicit, arrays, {"n": n})
        else:
            interpreter.run(explicit, arrays, {"n": n})
            assert {name: array_.tolist() for name, array_ in arrays.items()} == data


def test_index_of_a_constant_is_an_expression_of_the_extent() -> None:
    explicit, bounds = make_explicit(kernel([X], store("x", [ix(-3)], f32(0.0))))
    x = np.ones(5, np.float32)
    interpreter.run(explicit, {"x": x})
    assert x.tolist() == [1, 1, 0, 1, 1]
    assert not evaluate(bounds.preconditions[0].test, {"x.shape[0]": 2})


@pytest.mark.parametrize(
    ("dtype", "assumed"), [("uint8", 1), ("int8", 1), ("uint16", 1), ("int32", 0), ("int64", 0)]
)
def test_small_integers_as_indices_are_assumed_to_fit_their_table(dtype: str, assumed: int) -> None:
    """A table of 256 entries has one for each uint8; one for each int32 nobody has."""
    codes = array("codes", dtype=Scalar(dtype))
    nest = loop("r", 0, Dim("codes", 0), store("x", [load("codes", "r", dtype=Scalar(dtype))], f32(1.0)))
    _, bounds = make_explicit(kernel([X, codes], nest), assume=True)
    assert len(bounds.assumptions) == assumed
    for one in bounds.assumptions:
        reach = int(max(np.iinfo(dtype).max + 1, -np.iinfo(dtype).min))
        for extent in (reach - 1, reach):
            holds = evaluate(one.test, {"x.shape[0]": extent, "codes.shape[0]": 5})
            assert bool(holds) == (extent == reach)
