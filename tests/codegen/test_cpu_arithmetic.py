"""Compiled arithmetic does what the interpreter does: every element type, as scalars and in lanes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pyschedule.ir.functions import FUNCTIONS
from pyschedule.ir.nodes import (
    BinOp,
    BoolOp,
    Call,
    Cast,
    Compare,
    Const,
    Dim,
    Expr,
    Kernel,
    Load,
    Ramp,
    Select,
    Store,
    UnaryOp,
    Var,
)
from pyschedule.ir.types import BOOL, DTYPES, FLOAT32, FLOAT64, INT64, Scalar
from pyschedule.ir.visitors import rewrite_expr
from tests.codegen.cpu_support import (
    LANES,
    agree,
    array,
    below,
    call,
    compiled,
    held,
    load,
    samples,
    serial,
    source_of,
)

NUMBERS = [name for name in DTYPES if name != "bool"]
FLOATS = ["float32", "float64"]
INTEGERS = [name for name in NUMBERS if not Scalar(name).is_float]
I = Var("i")
COUNT = 45


def elementwise(
    results: dict[str, tuple[str, Expr]], inputs: dict[str, str], lanes: int, strict: bool = True
) -> Kernel:
    """`name[i] = expression` for each result (name → dtype, expression over `I`), one or more lanes a step."""
    arrays = [array(name, dtype) for name, dtype in inputs.items()]
    arrays += [array(name, dtype) for name, (dtype, _) in results.items()]
    stop = Dim(arrays[0].name, 0)
    index: Expr = I if lanes == 1 else Ramp(I, 1, lanes)
    mask = None if lanes == 1 else below(index, stop)
    body = [Store(name, (index,), _in_lanes(expr, lanes, stop), mask) for name, (_, expr) in results.items()]
    return Kernel("elementwise", tuple(arrays), (serial("i", stop, *body, step=lanes),), strict_math=strict)


def _in_lanes(expr: Expr, lanes: int, stop: Expr) -> Expr:
    """The expression with `I` in lanes, its loads masked by the bound."""
    if lanes == 1:
        return expr
    index = Ramp(I, 1, lanes)

    def change(part: Expr) -> Expr | None:
        if part == I:
            return index
        if isinstance(part, Load):
            return replace(part, mask=below(index, stop))
        if part == index:
            return part
        return None

    expr = rewrite_expr(expr, lambda part: change(part) if part == I else None)
    return rewrite_expr(expr, lambda part: change(part) if isinstance(part, Load) else None)


def check(results: dict[str, tuple[str, Expr]], inputs: dict[str, str], lanes: int, rtol: float = 0.0) -> None:
    kernel = elementwise(results, inputs, lanes)
    data = {name: samples(dtype, COUNT, seed) for seed, (name, dtype) in enumerate(inputs.items())}
    for name, (dtype, _) in results.items():
        data[name] = samples(dtype, COUNT, 99)
    agree(kernel, data, rtol=rtol)


def element(name: str, dtype: str) -> Expr:
    return load(array(name, dtype), I)


@pytest.mark.parametrize("lanes", [1, LANES])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integer_operators_wrap_and_floor(dtype: str, lanes: int) -> None:
    a, b = element("a", dtype), element("b", dtype)
    kind = Scalar(dtype)
    bits = 8 * kind.bytes
    count = BinOp("&", b, Const(bits - 1, kind), kind)
    odd = BinOp("|", b, Const(1, kind), kind)
    results: dict[str, tuple[str, Expr]] = {
        f"r{number}": (dtype, BinOp(op, a, count if op in ("<<", ">>") else odd if op in ("//", "%") else b, kind))
        for number, op in enumerate(["+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>"])
    }
    for number, divisor in enumerate([1, 3, 4, 7, 64]):
        results[f"q{number}"] = (dtype, BinOp("//", a, Const(divisor, kind), kind))
        results[f"m{number}"] = (dtype, BinOp("%", a, Const(divisor, kind), kind))
    results["p"] = (dtype, BinOp("**", a, BinOp("&", b, Const(7, kind), kind), kind))
    results["n"] = (dtype, UnaryOp("-", a))
    results["v"] = (dtype, UnaryOp("~", a))
    results["c"] = (dtype, BinOp("+", BinOp("*", a, Const(3, kind), kind), Const(1, kind), kind))
    for function in ("pmin", "pmax", "minimum", "maximum"):
        results[function] = (dtype, Call(function, (a, b), kind))
    results["abs"] = (dtype, Call("abs", (a,), kind))
    check(results, {"a": dtype, "b": dtype}, lanes)


@pytest.mark.parametrize("lanes", [1, LANES])
@pytest.mark.parametrize("dtype", FLOATS)
def test_float_operators(dtype: str, lanes: int) -> None:
    a, b = element("a", dtype), element("b", dtype)
    kind = Scalar(dtype)
    results: dict[str, tuple[str, Expr]] = {
        f"r{number}": (dtype, BinOp(op, a, b, kind)) for number, op in enumerate(["+", "-", "*", "/", "//", "%"])
    }
    results["n"] = (dtype, UnaryOp("-", a))
    results["c"] = (dtype, BinOp("-", BinOp("*", a, Const(0.1, kind), kind), Const(1, kind), kind))
    for function in ("pmin", "pmax", "minimum", "maximum", "copysign"):
        results[function] = (dtype, Call(function, (a, b), kind))
    for function in ("abs", "sqrt", "floor", "ceil", "trunc"):
        results[function] = (dtype, Call(function, (a,), kind))
    for function in ("isnan", "isinf", "isfinite"):
        results[function] = ("bool", Call(function, (a,), BOOL))
    check(results, {"a": dtype, "b": dtype}, lanes)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", FLOATS)
def test_mathematical_functions(dtype: str, lanes: int) -> None:
    a, b = element("a", dtype), element("b", dtype)
    kind = Scalar(dtype)
    one = [name for name, item in FUNCTIONS.items() if item.arity == 1 and item.result == "float"]
    two = [name for name, item in FUNCTIONS.items() if item.arity == 2 and item.result == "float"]
    results: dict[str, tuple[str, Expr]] = {name: (dtype, Call(name, (a,), kind)) for name in one}
    results |= {name: (dtype, Call(name, (a, b), kind)) for name in two}
    results["fma"] = (dtype, Call("fma", (a, b, a), kind))
    positive = BinOp("+", Call("abs", (a,), kind), Const(0.25, kind), kind)
    results["pow"] = (dtype, Call("pow", (positive, b), kind))
    results["power"] = (dtype, BinOp("**", positive, b, kind))
    check(results, {"a": dtype, "b": dtype}, lanes, rtol=3e-6 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_lanes_get_bit_for_bit_what_scalars_get(dtype: str) -> None:
    a, b = element("a", "float32"), element("b", "float32")
    results: dict[str, tuple[str, Expr]] = {
        name: ("float32", Call(name, (a,), FLOAT32)) for name in ("exp", "tanh", "sin", "log1p", "erf", "expm1")
    }
    results["fused"] = ("float32", BinOp("+", BinOp("*", a, b, FLOAT32), a, FLOAT32))
    outputs = []
    for lanes in (1, LANES):
        kernel = elementwise(results, {"a": "float32", "b": "float32"}, lanes, strict=False)
        data = {name: samples("float32", COUNT, seed) for seed, name in enumerate([*"ab", *results])}
        call(compiled(kernel), kernel, data, {})
        outputs.append(data)
    for name in results:
        np.testing.assert_array_equal(outputs[0][name], outputs[1][name], err_msg=name)


@pytest.mark.parametrize("lanes", [1, LANES])
@pytest.mark.parametrize("dtype", [*NUMBERS, "bool"])
def test_comparisons_and_choices(dtype: str, lanes: int) -> None:
    a, b = element("a", dtype), element("b", dtype)
    kind = held(Scalar(dtype))
    results: dict[str, tuple[str, Expr]] = {
        f"r{number}": ("bool", Compare(op, a, b, kind))
        for number, op in enumerate(["<", "<=", ">", ">=", "==", "!="])
    }
    less, equal = Compare("<", a, b, kind), Compare("==", a, b, kind)
    results["all"] = ("bool", BoolOp("and", less, UnaryOp("not", equal)))
    results["any"] = ("bool", BoolOp("or", less, equal))
    results["one"] = (dtype, Select(less, a, b, kind))
    results["two"] = (dtype, Select(BoolOp("or", less, equal), Const(1, kind), a, kind))
    check(results, {"a": dtype, "b": dtype}, lanes)


@pytest.mark.parametrize("lanes", [1, LANES])
@pytest.mark.parametrize("source", DTYPES)
def test_conversions_are_those_of_astype(source: str, lanes: int) -> None:
    value = element("a", source)
    kind = Scalar(source)
    if kind.is_float:  # C leaves a conversion out of range undefined
        bounded = Call(
            "pmax",
            (Call("pmin", (value, Const(100.0, held(kind))), held(kind)), Const(0.0, held(kind))),
            held(kind),
        )
        value = Select(Call("isnan", (value,), BOOL), Const(0.0, held(kind)), bounded, held(kind))
    results: dict[str, tuple[str, Expr]] = {f"to_{name}": (name, Cast(Scalar(name), value)) for name in DTYPES}
    results |= {f"st_{name}": (name, value) for name in DTYPES}
    check(results, {"a": source}, lanes)


@pytest.mark.parametrize("lanes", [1, LANES])
def test_mixed_operands_are_converted_to_the_operators_type(lanes: int) -> None:
    n, u, f, s = element("n", "int64"), element("u", "uint64"), element("f", "float32"), element("s", "int8")
    results: dict[str, tuple[str, Expr]] = {
        "iu": ("uint64", BinOp("+", n, u, Scalar("uint64"))),
        "ui": ("int64", BinOp("*", u, n, Scalar("int64"))),
        "fs": ("float32", BinOp("*", f, s, FLOAT32)),
        "fd": ("float64", BinOp("+", f, Const(0.1, FLOAT64), FLOAT64)),
        "ff": ("float32", BinOp("+", f, Const(0.1, Scalar("float64", weak=True)), FLOAT32)),
        "si": ("bool", Compare("<", s, n, Scalar("int64"))),
        "sd": ("float64", BinOp("/", s, n, FLOAT64)),
    }
    check(results, {"n": "int64", "u": "uint64", "f": "float32", "s": "int8"}, lanes)


@pytest.mark.parametrize("lanes", [1, LANES])
def test_boolean_operators(lanes: int) -> None:
    a, b = element("a", "bool"), element("b", "bool")
    results: dict[str, tuple[str, Expr]] = {
        f"r{number}": ("bool", BinOp(op, a, b, BOOL)) for number, op in enumerate("&|^")
    }
    results["n"] = ("bool", UnaryOp("not", a))
    results["v"] = ("bool", UnaryOp("~", a))
    results["s"] = ("int32", BinOp("+", a, b, Scalar("int32")))
    check(results, {"a": "bool", "b": "bool"}, lanes)


def test_a_shift_by_the_width_or_more_leaves_nothing() -> None:
    a, b = element("a", "int32"), element("b", "int32")
    kind = Scalar("int32")
    results: dict[str, tuple[str, Expr]] = {
        "l": ("int32", BinOp("<<", a, BinOp("&", b, Const(63, kind), kind), kind)),
        "r": ("int32", BinOp(">>", a, BinOp("&", b, Const(63, kind), kind), kind)),
    }
    for lanes in (1, LANES):
        check(results, {"a": "int32", "b": "int32"}, lanes)


def test_strict_math_contracts_nothing_and_free_math_does() -> None:
    a, b = element("a", "float64"), element("b", "float64")
    fused = {"r": ("float64", BinOp("+", BinOp("*", a, b, FLOAT64), Const(1.0, FLOAT64), FLOAT64))}
    strict = source_of(elementwise(fused, {"a": "float64", "b": "float64"}, 1))
    free = source_of(elementwise(fused, {"a": "float64", "b": "float64"}, 1, strict=False))
    assert "muladd" not in strict and '"fastmath": False' in strict
    assert "muladd" in free and '"fastmath": {"contract"}' in free


@pytest.mark.parametrize("lanes", [1, LANES])
def test_dividing_an_integer_by_zero_gives_zero_and_no_trap(lanes: int) -> None:
    a = element("a", "int64")
    zero = BinOp("-", a, a, INT64)
    results: dict[str, tuple[str, Expr]] = {
        "q": ("int64", BinOp("//", a, Const(0, INT64), INT64)),
        "m": ("int64", BinOp("%", a, zero, INT64)),
        "r": ("int64", BinOp("//", a, zero, INT64)),
    }
    kernel = elementwise(results, {"a": "int64"}, lanes)
    data = {name: samples("int64", COUNT, seed) for seed, name in enumerate(["a", *results])}
    call(compiled(kernel), kernel, data, {})
    assert not any(data[name].any() for name in results)


def test_the_smallest_integer_divided_by_minus_one_wraps() -> None:
    a = element("a", "int64")
    results: dict[str, tuple[str, Expr]] = {
        "q": ("int64", BinOp("//", a, Const(-1, INT64), INT64)),
        "m": ("int64", BinOp("%", a, Const(-1, INT64), INT64)),
    }
    for lanes in (1, LANES):
        check(results, {"a": "int64"}, lanes)
