"""Bounds of array indices: kernels are run with every access watched, and must do as the analysis said."""

from __future__ import annotations

import itertools

import pytest

from pyschedule.analysis.bounds import CHECK, PLAIN, SHIFT, WRAP, Bounds, analyse
from pyschedule.ir.build import FALSE
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    BoolOp,
    Break,
    Cast,
    Dim,
    Kernel,
    Load,
    Return,
    Select,
    Var,
    While,
)
from pyschedule.ir.printer import format_expr
from pyschedule.ir.types import INT32, INT64, Scalar
from tests.analysis.evaluate import evaluate
from tests.analysis.helpers import (
    array,
    assign,
    cmp,
    f32,
    gemm,
    ix,
    kernel,
    load,
    local,
    loop,
    minus,
    plus,
    store,
    times,
    when,
)
from tests.analysis.watched import PARAMS, Watched, random_body

X, Y = array("x"), array("y")
NX, NY = Dim("x", 0), Dim("y", 0)
N = Var("n", INT64)
ONE = f32(1.0)
UINT8 = Scalar("uint8")


def decided(bounds: Bounds) -> list[str]:
    return [decision for one in bounds.decisions for decision in one]


def conditions(bounds: Bounds) -> list[str]:
    return [format_expr(one.test) for one in bounds.preconditions]


# ----------------------------------------------------------------------------------------- known kernels


def test_gemm_needs_its_shapes_to_agree_and_nothing_else() -> None:
    bounds = analyse(gemm())
    assert set(decided(bounds)) == {PLAIN}
    places = {(one.array, one.axis): one for one in bounds.preconditions}
    assert set(places) == {("B", 0), ("C", 0), ("C", 1)}
    inner = places["B", 0]
    assert format_expr(inner.test) == "A.shape[0] <= 0 or B.shape[1] <= 0 or A.shape[1] <= B.shape[0]"
    assert inner.message == (
        "B: axis 0 has extent {B.shape[0]}, but the loop reads index A.shape[1] - 1 "
        "(A.shape[1] = {A.shape[1]}) at kernel.py:8:5"
    )


@pytest.mark.parametrize("sizes", list(itertools.product((0, 2, 3), repeat=4)))
def test_the_preconditions_of_gemm_are_exact(sizes: tuple[int, ...]) -> None:
    rows, inner, b_rows, columns = sizes
    values = {"A.shape[0]": rows, "A.shape[1]": inner, "B.shape[0]": b_rows, "B.shape[1]": columns}
    values |= {"C.shape[0]": 2, "C.shape[1]": 3}
    holds = all(evaluate(one.test, values) for one in analyse(gemm()).preconditions)
    runs = rows > 0 and columns > 0 and inner > 0
    assert holds == (not runs or (inner <= b_rows and rows <= 2 and columns <= 3))


def test_a_constant_negative_index_counts_from_the_end() -> None:
    bounds = analyse(kernel([X], store("x", [-1], ONE)))
    assert decided(bounds) == [SHIFT] and conditions(bounds) == ["x.shape[0] > 0"]


def test_an_index_that_starts_below_zero_wraps() -> None:
    bounds = analyse(kernel([X], loop("i", 0, NX, store("x", [minus("i", 1)], ONE))))
    assert decided(bounds) == [WRAP] and bounds.preconditions == ()
    guarded = loop("i", 0, NX, when(cmp(">", "i", 0), store("x", [minus("i", 1)], ONE)))
    assert decided(analyse(kernel([X], guarded))) == [PLAIN]


def test_a_window_needs_its_halo() -> None:
    read = load("x", plus("i", "r"))
    nest = loop("i", 0, NY, loop("r", 0, 3, store("y", ["i"], read)))
    bounds = analyse(kernel([X, Y], nest))
    assert decided(bounds) == [PLAIN, PLAIN]
    assert conditions(bounds) == ["y.shape[0] <= 0 or y.shape[0] + 1 < x.shape[0]"]


def test_a_scalar_argument_bounds_a_loop() -> None:
    bounds = analyse(kernel([X, N], loop("i", 0, N, store("x", ["i"], ONE))))
    assert conditions(bounds) == ["n <= x.shape[0]"]
    assert "index n - 1 (n = {n})" in bounds.preconditions[0].message
    backwards = analyse(kernel([X], loop("i", minus(NX, 1), -1, store("x", ["i"], ONE), step=-1)))
    assert decided(backwards) == [PLAIN] and backwards.preconditions == ()


def test_a_product_of_arguments_is_one_unknown_extent() -> None:
    shape = array("A", 2)
    size = times(Dim("A", 0), Dim("A", 1))
    bounds = analyse(kernel([shape, X], loop("i", 0, size, store("x", ["i"], ONE))))
    assert conditions(bounds) == ["A.shape[0] * A.shape[1] <= x.shape[0]"]


def test_data_are_checked_where_they_index() -> None:
    table = array("lut", dtype=INT64)
    index = load("lut", "r", dtype=INT64)
    bounds = analyse(kernel([X, table], loop("r", 0, Dim("lut", 0), store("x", [index], ONE))))
    assert decided(bounds) == [CHECK, PLAIN] and bounds.preconditions == ()


def test_data_within_a_guard_are_not_checked() -> None:
    table = array("lut", dtype=INT64)

    def index() -> Load:
        return load("lut", "r", dtype=INT64)

    inside = BoolOp("and", cmp("<=", 0, index()), cmp("<", index(), NX))
    guarded = loop("r", 0, Dim("lut", 0), when(inside, store("x", [index()], ONE)))
    assert set(decided(analyse(kernel([X, table], guarded)))) == {PLAIN}
    # Not any more once the table was written in between.
    spoilt = when(inside, store("lut", ["r"], ix(99)), store("x", [index()], ONE))
    nest = loop("r", 0, Dim("lut", 0), spoilt)
    assert decided(analyse(kernel([X, table], nest))) == [PLAIN, PLAIN, PLAIN, CHECK, PLAIN]


def test_a_narrow_type_bounds_an_index() -> None:
    image = array("image", dtype=UINT8)
    index = load("image", "r", dtype=UINT8)
    bins = local("bins", 256)
    nest = loop("r", 0, Dim("image", 0), store("bins", [index], ONE))
    assert set(decided(analyse(kernel([image], Alloc(bins), nest)))) == {PLAIN}
    short = Alloc(local("bins", 255))
    assert decided(analyse(kernel([image], short, nest))) == [CHECK, PLAIN]


def test_a_comparison_of_narrow_integers_is_understood() -> None:
    table = array("lut", dtype=INT32)

    def index() -> Load:
        return load("lut", "r", dtype=INT32)

    ok = BoolOp("and", cmp(">=", index(), 0, INT32), cmp("<", index(), 10, INT32))
    nest = loop("r", 0, Dim("lut", 0), when(ok, store("x", [Cast(INT64, index())], ONE)))
    fixed = Array("x", Scalar("float32"), (ix(10),), unit_axis=0)
    assert set(decided(analyse(kernel([fixed, table], nest)))) == {PLAIN}


def test_what_comes_after_a_break_refuses_nothing() -> None:
    stop = when(cmp("<", load("y", "i"), f32(0.0), Scalar("float32")), Break())
    nest = loop("i", 0, 100, stop, store("x", ["i"], ONE))
    bounds = analyse(kernel([X, Y], nest))
    assert bounds.preconditions == () and decided(bounds) == [CHECK, CHECK]
    bounded = loop("i", 0, 100, when(cmp(">=", "i", NX), Break()), store("x", ["i"], ONE))
    assert decided(analyse(kernel([X], bounded))) == [PLAIN]


def test_a_data_dependent_guard_refuses_nothing() -> None:
    positive = cmp(">", load("y", "i"), f32(0.0), Scalar("float32"))
    nest = loop("i", 0, NY, when(positive, store("x", ["i"], ONE)))
    bounds = analyse(kernel([X, Y], nest))
    assert decided(bounds) == [PLAIN, CHECK] and bounds.preconditions == ()
    # But what the rest of the kernel requires is known there too.
    always = loop("j", 0, NY, store("x", ["j"], ONE))
    bounds = analyse(kernel([X, Y], nest, always))
    assert decided(bounds) == [PLAIN, PLAIN, PLAIN] and conditions(bounds) == ["y.shape[0] <= x.shape[0]"]


def test_what_comes_after_a_return_refuses_nothing() -> None:
    leave = when(cmp("<", load("y", 0), f32(0.0), Scalar("float32")), Return(()))
    bounds = analyse(kernel([X, Y], leave, store("x", [5], ONE)))
    assert [one.array for one in bounds.preconditions] == ["y"] and decided(bounds) == [PLAIN, CHECK]


def test_a_while_loop_is_known_by_its_test() -> None:
    advance = assign("p", plus("p", 1), INT64)
    inside = While(cmp("<", "p", NX), (store("x", ["p"], ONE), advance))
    assert decided(analyse(kernel([X], assign("p", ix(0), INT64), inside))) == [CHECK]
    both = BoolOp("and", cmp(">=", "p", 0), cmp("<", "p", NX))
    inside = While(both, (store("x", ["p"], ONE), advance, store("x", ["p"], ONE)))
    assert decided(analyse(kernel([X], assign("p", ix(0), INT64), inside))) == [PLAIN, CHECK]


def test_short_circuits_guard() -> None:
    safe = BoolOp("and", cmp("<", "i", NX), cmp(">", load("x", "i"), f32(0.0), Scalar("float32")))
    nest = loop("i", 0, NY, when(safe, store("y", ["i"], ONE)))
    bounds = analyse(kernel([X, Y], nest))
    assert bounds.preconditions == () and set(decided(bounds)) == {PLAIN}
    # Where the left side of an `or` is false the right side runs: for every i that is not below the extent.
    unsafe = BoolOp("or", cmp("<", "i", NX), cmp(">", load("x", "i"), f32(0.0), Scalar("float32")))
    bounds = analyse(kernel([X, Y], loop("i", 0, NY, when(unsafe, store("y", ["i"], ONE)))))
    assert conditions(bounds) == ["y.shape[0] <= x.shape[0]"]


def test_a_conditional_index_is_understood() -> None:
    clamped = Select(cmp("<", "i", NX), ix("i"), minus(NX, 1), INT64)
    nest = loop("i", 0, NY, store("y", ["i"], load("x", clamped)))
    bounds = analyse(kernel([X, Y], nest))
    assert set(decided(bounds)) == {PLAIN}
    assert conditions(bounds) == ["y.shape[0] <= 0 or x.shape[0] > 0"]


def test_scalars_are_followed() -> None:
    body = (
        assign("m", NX, INT64),
        loop("i", 0, Var("m"), assign("p", minus(Var("m"), plus("i", 1)), INT64), store("x", ["p"], ONE)),
    )
    assert decided(analyse(kernel([X], *body))) == [PLAIN]
    counting = (
        assign("p", ix(0), INT64),
        loop("i", 0, NX, store("x", ["p"], ONE), assign("p", plus("p", 1), INT64)),
    )
    assert decided(analyse(kernel([X], *counting))) == [CHECK]
    branches = (
        assign("p", ix(0), INT64),
        when(cmp("<", N, 3), assign("p", ix(1), INT64)),
        store("x", ["p"], ONE),
    )
    assert decided(analyse(kernel([X, N], *branches))) == [CHECK]


def test_an_index_that_is_always_outside_is_a_false_precondition() -> None:
    body = Alloc(local("t", 4)), store("t", [4], ONE)
    bounds = analyse(kernel([], *body))
    assert [one.test for one in bounds.preconditions] == [FALSE]
    assert bounds.preconditions[0].message == "t: axis 0 has extent 4, but the loop writes index 4"


def test_the_extent_of_an_output_is_that_of_its_shape() -> None:
    out = Array("out", Scalar("float32"), (NX,), unit_axis=0)
    body = loop("i", 0, Dim("out", 0), store("out", ["i"], load("x", "i")))
    bounds = analyse(Kernel("k", (X, out), (body,), outputs=("out",)))
    assert bounds.preconditions == () and set(decided(bounds)) == {PLAIN}


@pytest.mark.parametrize("seed", range(120))
def test_the_analysis_says_what_happens(seed: int) -> None:
    body = random_body(seed)
    bounds = analyse(kernel(PARAMS, *body))
    for x, y, n in itertools.product((0, 1, 3, 4), (0, 2, 5), (-1, 0, 3)):
        values = {"x.shape[0]": x, "y.shape[0]": y, "n": n}
        accepted = all(evaluate(one.test, values) for one in bounds.preconditions)
        data = {"x": [seed % 3] * x, "y": [1, -1, 2, 0, 3][:y]}
        run = Watched(body, bounds, values, data)
        run.start(body)
        if accepted:
            assert run.outside <= {CHECK} and not run.misread, values
        else:  # an exact refusal: there is a mistake to refuse
            assert run.outside, values


def test_what_takes_isl_too_long_is_checked_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever question the quota runs out in."""
    whole = analyse(gemm())
    seen: set[str] = set()
    for quota in (3000, 5000, 10_000, 20_000, 40_000, 80_000):
        monkeypatch.setattr("pyschedule.analysis.bounds._MOST_OPERATIONS", quota)
        monkeypatch.setattr("pyschedule.analysis.bounds._FEWEST_OPERATIONS", 100)
        found = analyse(gemm())
        asked = [{(one.array, one.axis) for one in result.preconditions} for result in (found, whole)]
        assert asked[0] <= asked[1]
        assert SHIFT not in decided(found)  # nothing is always negative
        seen.update(decided(found))
    assert {CHECK, PLAIN} <= seen
