"""The interpreter on scalars: arithmetic to the bit, bounds, control flow, what a wrong kernel gets."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyschedule.errors import InternalError
from pyschedule.ir.arithmetic import numpy_dtype, wrap
from pyschedule.ir.functions import FUNCTIONS
from pyschedule.ir.interpreter import run
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    BinOp,
    BoolOp,
    Break,
    Call,
    Cast,
    Const,
    Dim,
    Expr,
    If,
    Location,
    Origin,
    Return,
    Select,
    UnaryOp,
    Var,
    While,
)
from pyschedule.ir.types import BOOL, DTYPES, FLOAT32, FLOAT64, INT64, WEAK_FLOAT, Scalar
from tests.ir.nests import I, J, N, array, f32, f64, gemm, kernel, less, load, local, loop, op, store

A = np.ndarray[Any, Any]


def value(expr: Expr, type_: Scalar | None = None, **scalars: float) -> Any:
    """An expression of scalar parameters, run."""
    types = {name: INT64 if isinstance(number, int) else FLOAT64 for name, number in scalars.items()}
    result = type_ or expr.type
    assert isinstance(result, Scalar)
    params = [Var(name, type_) for name, type_ in types.items()]
    return run(kernel(params, Return((expr,)), returns=(0,), scalar_results=(result,)), {}, scalars)[0]


@pytest.mark.parametrize(("m", "k", "n"), [(5, 7, 3), (1, 1, 1), (0, 4, 4), (4, 0, 3), (2, 3, 0)])
@pytest.mark.parametrize("mapping", ["serial", "parallel", "block.x", "thread.x"])
def test_gemm_is_the_sum_in_order(m: int, k: int, n: int, mapping: str) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.random((m, k), np.float32), rng.random((k, n), np.float32)
    c, wanted = np.ones((m, n), np.float32), np.ones((m, n), np.float32)
    for x in range(k):
        wanted = wanted + a[:, x : x + 1] * b[x]
    run(gemm(mapping), {"A": a, "B": b, "C": c})
    assert np.array_equal(c, wanted)


def test_each_instance_runs_once_and_the_trace_says_which() -> None:
    seen: list[tuple[int, tuple[int, ...]]] = []
    arrays = {"A": np.ones((2, 3), np.float32), "B": np.ones((3, 4), np.float32), "C": np.ones((2, 4), np.float32)}
    run(gemm(), arrays, trace=lambda statement, counters: seen.append((statement, counters)))
    assert seen == [(0, (i, j, k)) for i in range(2) for j in range(4) for k in range(3)]


# ---------------------------------------------------------------------------------------------- arithmetic


@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.sampled_from("+-*&|^"))
def test_int64_wraps_as_numpy_does(a: int, b: int, sign: str) -> None:
    with np.errstate(all="ignore"):
        wanted = eval(f"np.int64(a) {sign} np.int64(b)", {"np": np, "a": a, "b": b})
    assert value(BinOp(sign, Var("a"), Var("b"), INT64), a=a, b=b) == wanted


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "uint8", "uint16", "uint32", "uint64", "int64"])
def test_integers_of_every_width_wrap(dtype: str) -> None:
    largest = int(np.iinfo(dtype).max)
    element = Scalar(dtype)
    total = BinOp("+", load("x", 0, dtype=element), Const(1, element), element)
    x, y = np.array([largest], dtype), np.zeros(1, dtype)
    run(kernel([array("x", dtype=dtype), array("y", dtype=dtype)], store("y", 0, total)), {"x": x, "y": y})
    assert y[0] == np.iinfo(dtype).min


@pytest.mark.parametrize("a", range(-7, 8))
@pytest.mark.parametrize("b", [-4, -1, 1, 3])
def test_division_floors(a: int, b: int) -> None:
    for element in (INT64, Scalar("int32"), FLOAT64):
        for sign, wanted in (("//", a // b), ("%", a % b)):
            found = value(BinOp(sign, Var("a"), Var("b"), element), a=a, b=b)
            assert found == wanted


def test_dividing_by_zero_raises_for_integers_and_not_for_floats() -> None:
    for element in (INT64, Scalar("int8")):
        with pytest.raises(ZeroDivisionError):
            value(BinOp("//", Var("a"), Var("b"), element), a=3, b=0)
    assert value(BinOp("/", Var("a"), Var("b"), FLOAT64), a=3, b=0) == math.inf


@pytest.mark.parametrize("count", [0, 1, 62, 63, 64, 70])
@pytest.mark.parametrize("a", [1, -1, 5, -(2**63)])
def test_shifts_wrap_and_saturate(a: int, count: int) -> None:
    assert value(BinOp("<<", Var("a"), Var("n"), INT64), a=a, n=count) == wrap(a << count)
    assert value(BinOp(">>", Var("a"), Var("n"), INT64), a=a, n=count) == a >> count


def test_negative_shifts_and_powers_raise() -> None:
    for sign in ("<<", ">>", "**"):
        with pytest.raises(ValueError, match="negative"):
            value(BinOp(sign, Var("a"), Var("n"), INT64), a=2, n=-1)


def test_operands_are_converted_before_the_operation() -> None:
    """16777217 is no float32: the sum of float32s loses it, that of float64s does not."""
    assert value(op("+", Var("a"), Const(1, INT64), FLOAT32), a=16777216) == np.float32(16777216)
    assert value(op("+", Var("a"), Const(1, INT64), FLOAT64), a=16777216) == 16777217
    assert value(BinOp("*", Const(0.1, WEAK_FLOAT), Const(1, INT64), FLOAT32)) == np.float32(0.1)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_loads_and_stores(dtype: str) -> None:
    kept = "float32" if Scalar(dtype).is_half else dtype
    x, y = np.array([0, 1, 1, 0], numpy_dtype(dtype)), np.zeros(4, numpy_dtype(dtype))
    copy = loop("i", 0, Dim("x", 0), 1, store("y", I, load("x", I, dtype=Scalar(kept))))
    run(kernel([array("x", dtype=dtype), array("y", dtype=dtype)], copy), {"x": x, "y": y})
    assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize(("dtype", "half"), [("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)])
def test_halves_compute_in_float32_and_round_once(dtype: str, half: Any) -> None:
    """1 + eps/2 + eps/2: a sum rounded at each step would lose both halves of the last bit."""
    eps = float(ml_dtypes.finfo(half).eps)
    x, y = np.array([1, eps / 2, eps / 2], half), np.zeros(1, half)
    total = op("+", op("+", load("x", 0), load("x", 1)), load("x", 2))
    run(kernel([array("x", dtype=dtype), array("y", dtype=dtype)], store("y", 0, total)), {"x": x, "y": y})
    assert float(y[0]) == 1 + eps
    assert value(Cast(Scalar(dtype), Var("a", FLOAT64)), a=1 + eps / 4) == np.float32(1)
    assert type(value(Cast(Scalar(dtype), Var("a", FLOAT64)), a=0.1)) is np.float32


@pytest.mark.parametrize("target", DTYPES)
@pytest.mark.parametrize("number", [0, 1, 3, -2, 200, 2.75, -0.5])
def test_casts_are_astype(target: str, number: float) -> None:
    source = np.asarray(number)
    kept = "float32" if Scalar(target).is_half else target
    wanted = source.astype(numpy_dtype(target)).astype(kept)
    assert value(Cast(Scalar(target), Var("a", INT64 if isinstance(number, int) else FLOAT64)), a=number) == wanted


def test_min_and_max_treat_a_nan_as_python_does_and_minimum_as_numpy_does() -> None:
    nan = math.nan
    for name, python in (("pmin", min), ("pmax", max)):
        for a, b in ((nan, 1.0), (1.0, nan), (1.0, 2.0), (2.0, 1.0)):
            found = value(Call(name, (Var("a", FLOAT64), Var("b", FLOAT64)), FLOAT64), a=a, b=b)
            assert np.array_equal(found, python(a, b), equal_nan=True)
    for name in ("minimum", "maximum"):
        assert math.isnan(value(Call(name, (Var("a", FLOAT64), Var("b", FLOAT64)), FLOAT64), a=1.0, b=nan))


_PYTHON: dict[str, Any] = {name: getattr(math, name, None) for name in FUNCTIONS if hasattr(math, name)} | {
    "exp2": lambda x: 2.0**x,
    "abs": abs,
    "pmin": min,
    "pmax": max,
    "minimum": min,
    "maximum": max,
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS.keys() - {"checked_index", "fma"}))
def test_every_function_is_its_python_namesake(name: str) -> None:
    at = {"acosh": 1.75, "asin": 0.5, "acos": 0.5, "atanh": 0.5}.get(name, 2.625)
    names = ("a", "b")[: FUNCTIONS[name].arity]
    dtype = BOOL if FUNCTIONS[name].result == "bool" else FLOAT64
    call = Call(name, tuple(Var(part, FLOAT64) for part in names), dtype)
    scalars = dict(zip(names, (at, -1.5), strict=False))
    assert value(call, **scalars) == pytest.approx(_PYTHON[name](*scalars.values()), rel=1e-14)
    assert type(value(call, **scalars)) is (bool if dtype == BOOL else np.float64)


_F32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(_F32, _F32, _F32)
def test_fma_of_float32_rounds_once(a: float, b: float, c: float) -> None:
    call = Call("fma", tuple(Cast(FLOAT32, Var(name, FLOAT64)) for name in "abc"), FLOAT32)
    found = float(value(call, a=a, b=b, c=c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if math.isinf(found):
        assert abs(exact) >= Fraction(float(np.finfo(np.float32).max))
        return
    below, above = (float(np.nextafter(np.float32(found), np.float32(end))) for end in (-math.inf, math.inf))
    for other in (below, above):
        if math.isfinite(other):
            assert abs(Fraction(found) - exact) <= abs(Fraction(other) - exact)


def test_fma_of_float32_is_not_fooled_by_a_tie() -> None:
    """97 * 172961 is 2**24 + 1, halfway between two float32s; what is added is lost to float64."""
    call = Call("fma", tuple(Cast(FLOAT32, Var(name, FLOAT64)) for name in "abc"), FLOAT32)
    assert value(call, a=97.0, b=172961.0, c=2.0**-40) == 16777218
    assert value(call, a=97.0, b=172961.0, c=0.0) == 16777216
    assert value(call, a=97.0, b=172961.0, c=-(2.0**-40)) == 16777216


def test_fma_of_float64_rounds_once() -> None:
    call = Call("fma", tuple(Var(name, FLOAT64) for name in "abc"), FLOAT64)
    a = 1 + 2.0**-30
    assert value(call, a=a, b=a, c=-(1 + 2.0**-29)) == 2.0**-60
    assert value(call, a=1e308, b=10.0, c=0.0) == math.inf


def test_bool_operators_stop_early() -> None:
    """`i < n and A[i] > 0` touches no element when `i` is n."""
    element = load("A", I, dtype=INT64)
    test = BoolOp("and", less(I, Dim("A", 0)), less(Const(0, INT64), element))
    body = loop("i", 0, 5, 1, If(test, (store("y", I, Const(1, INT64)),)))
    y = np.zeros(5, np.int64)
    run(kernel([array("A", dtype="int64"), array("y", dtype="int64")], body), {"A": np.array([3, -1, 2]), "y": y})
    assert y.tolist() == [1, 0, 1, 0, 0]
    assert value(UnaryOp("not", BoolOp("or", less(Var("a"), Var("b")), less(Var("b"), Var("a")))), a=1, b=1) is True
    assert value(UnaryOp("~", less(Var("a"), Var("b"))), a=1, b=2) is False


def test_a_select_evaluates_one_arm() -> None:
    safe = Select(less(I, Dim("A", 0)), load("A", I), f32(-1), FLOAT32)
    y = np.zeros(4, np.float32)
    body = loop("i", 0, 4, 1, store("y", I, safe))
    run(kernel([array("A"), array("y")], body), {"A": np.ones(2, np.float32), "y": y})
    assert y.tolist() == [1, 1, -1, -1]


# ------------------------------------------------------------------------------------------ control flow


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(-4, 4).filter(bool))
def test_loops_are_ranges(start: int, stop: int, step: int) -> None:
    seen: list[int] = []
    body = loop("i", start, stop, step, Assign("x", I, INT64, Origin(0, (I,))))
    run(kernel([], body), {}, trace=lambda _, counters: seen.append(counters[0]))
    assert seen == list(range(start, stop, step))


def test_bounds_are_evaluated_once() -> None:
    grow = Assign("n", op("+", N, Const(1, INT64), INT64), INT64)
    made = kernel([N], loop("i", 0, N, 1, grow), Return((N,)), returns=(0,), scalar_results=(INT64,))
    assert run(made, {}, {"n": 3}) == (6,)


def test_break_leaves_the_innermost_loop_and_return_the_kernel() -> None:
    count = Assign("n", op("+", N, Const(1, INT64), INT64), INT64)
    inner = loop("j", 0, 10, 1, If(less(Const(2, INT64), J), (Break(),)), count)
    leave = If(less(Const(7, INT64), N), (Return((N,)),))
    made = kernel(
        [N], loop("i", 0, 10, 1, inner, leave), Return((Const(-1, INT64),)), returns=(0,), scalar_results=(INT64,)
    )
    assert run(made, {}, {"n": 0}) == (9,)


def test_while_runs_until_its_test_fails() -> None:
    half = Assign("n", op("//", N, Const(2, INT64), INT64), INT64)
    more = Assign("s", op("+", Var("s"), Const(1, INT64), INT64), INT64)
    made = kernel(
        [N], Assign("s", Const(0, INT64), INT64), While(less(Const(0, INT64), N), (half, more)),
        Return((Var("s"),)), returns=(0,), scalar_results=(INT64,),
    )  # fmt: skip
    assert [run(made, {}, {"n": n})[0] for n in (0, 1, 2, 1000)] == [0, 1, 2, 10]


def test_results_come_in_the_order_of_returns() -> None:
    y = np.zeros(3)
    made = kernel(
        [array("y", dtype="float64")], Return((f64(0.5), Const(7, INT64))),
        returns=(1, "y", 0), scalar_results=(FLOAT32, INT64),
    )  # fmt: skip
    first, second, third = run(made, {"y": y})
    assert first == 7 and second is y and third == np.float32(0.5) and type(third) is np.float32


# ---------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize("index", [-1, 3])
@pytest.mark.parametrize("access", ["load", "store"])
def test_an_index_out_of_bounds_names_the_statement(index: int, access: str) -> None:
    place = Location("k.py", 12, 4)
    stmt = store("y", index if access == "store" else 0, load("x", index if access == "load" else 0))
    stmt = stmt.__class__(stmt.array, stmt.indices, stmt.value, loc=place)
    arrays = {"x": np.zeros(3, np.float32), "y": np.zeros(3, np.float32)}
    with pytest.raises(
        IndexError, match=r"k.py:12:5: index (-1|3) is outside axis 0 of [xy], of extent 3, in `y\["
    ):
        run(kernel([array("x"), array("y")], stmt), arrays)
    assert not arrays["y"].any()


@pytest.mark.parametrize(("index", "wanted"), [(0, 0), (2, 2), (-1, 2), (-3, 0)])
def test_checked_index_is_pythons(index: int, wanted: int) -> None:
    call = Call("checked_index", (Var("a"), Var("b")), INT64)
    assert value(call, a=index, b=3) == wanted
    for outside in (3, -4):
        with pytest.raises(IndexError, match="out of bounds"):
            value(call, a=outside, b=3)


def test_local_arrays_start_as_garbage_each_time() -> None:
    """The second iteration does not see what the first one wrote."""
    body = loop(
        "i", 0, 2, 1,
        Alloc(local("t", 1)), store("y", I, load("t", 0)), store("t", 0, f32(1)),
    )  # fmt: skip
    y = np.zeros(2, np.float32)
    run(kernel([array("y")], body), {"y": y})
    assert np.isnan(y).all()


def test_a_name_without_a_value_is_an_internal_error() -> None:
    with pytest.raises(InternalError, match="x is used before it has a value"):
        run(kernel([array("y")], store("y", 0, Var("x", FLOAT32))), {"y": np.zeros(1, np.float32)})


def test_a_kernel_must_return_its_scalars() -> None:
    with pytest.raises(InternalError, match="without its 1 scalar results"):
        run(kernel([], returns=(0,), scalar_results=(INT64,)), {})


def test_arguments_must_fit() -> None:
    square = Array("y", FLOAT32, (Dim("y", 0), Dim("y", 0)))
    made = kernel([square, N])
    with pytest.raises(TypeError, match="lacks its argument y"):
        run(made, {}, {"n": 1})
    with pytest.raises(TypeError, match="lacks its argument n"):
        run(made, {"y": np.zeros((2, 2), np.float32)})
    with pytest.raises(TypeError, match="y is float64 of rank 2, not float32 of rank 2"):
        run(made, {"y": np.zeros((2, 2))}, {"n": 1})
    with pytest.raises(ValueError, match=r"y.shape\[1\] is 3, and y.shape\[0\] is 2"):
        run(made, {"y": np.zeros((2, 3), np.float32)}, {"n": 1})
