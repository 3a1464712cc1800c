"""Expressions in CUDA source: every operator and function, scalars and lanes, against the IR interpreter."""

from __future__ import annotations

import numpy as np
import pytest

from pyschedule.codegen.numba_cuda import generate
from pyschedule.ir import build as b
from pyschedule.ir.functions import FUNCTIONS
from pyschedule.ir.nodes import (
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
    Kernel,
    Ramp,
    Reduce,
    Select,
    UnaryOp,
    Var,
)
from pyschedule.ir.types import BOOL, FLOAT32, INT64, Scalar, Vector, lanes_of
from pyschedule.runtime import cuda_toolchain

from .cuda_support import SM80, agree, load, loop, param, store, var

FLOATS = ("float32", "float64")
INTEGERS = ("int64", "int32", "int8", "uint8", "uint64")


def values(dtype: str, seed: int) -> np.ndarray:
    """Edge cases in every combination of two, then random ones; 40 in all."""
    rng = np.random.default_rng(seed)
    if dtype in (*FLOATS, "float16"):
        edges = [0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan]
        rest = rng.standard_normal(40) * 3
    elif dtype == "bool":
        edges, rest = [0, 1], rng.integers(0, 2, 40)
    else:
        info = np.iinfo(dtype)
        edges = [0, 1, 3, 7, info.max, info.min]
        rest = rng.integers(max(-100, info.min), min(100, info.max), 40)
    mixed = [x for x in edges for _ in edges] if seed == 0 else [x for _ in edges for x in edges]
    return np.concatenate([np.array(mixed), rest])[:40].astype(dtype)


def pointwise(expr: Expr, inputs: dict[str, str], output: str) -> Kernel:
    """`Z[t] = expr`, over loads `X[t]`, `Y[t]`; where `expr` has lanes, `t` counts groups of them."""
    lanes = lanes_of(expr.type)
    t = var("t")
    place: Expr = t if lanes == 1 else Ramp(b.mul(t, lanes), 1, lanes)
    nest = loop("t", 0, b.floordiv(Dim("Z", 0), lanes), store("Z", place, expr), mapping="thread.x")
    params = (*(param(name, 1, dtype) for name, dtype in inputs.items()), param("Z", 1, output))
    return Kernel("pointwise", params, (nest,))


def operand(name: str, dtype: str, lanes: int) -> Expr:
    held = "float32" if Scalar(dtype).is_half else dtype
    t = var("t")
    return load(name, t if lanes == 1 else Ramp(b.mul(t, lanes), 1, lanes), dtype=held)


def check(expr: Expr, inputs: dict[str, str], output: str, rtol: float = 0.0, divides: bool = False) -> None:
    arrays = {name: values(dtype, seed) for seed, (name, dtype) in enumerate(inputs.items())}
    if divides:  # the interpreter raises for zero
        arrays["Y"][arrays["Y"] == 0] = 5
    arrays["Z"] = np.zeros(40, output)
    agree(pointwise(expr, inputs, output), arrays, rtol=rtol)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_operators_mean_what_the_interpreter_says(dtype: str, lanes: int) -> None:
    x, y = operand("X", dtype, lanes), operand("Y", dtype, lanes)
    scalar = Scalar(dtype)
    operators = ["+", "-", "*", "//", "%"] + (["/"] if scalar.is_float else ["&", "|", "^"])
    for op in operators:
        if scalar.is_float and op in ("//", "%"):
            continue  # by finite values, below
        check(BinOp(op, x, y, scalar), {"X": dtype, "Y": dtype}, dtype, divides=op in ("//", "%"))


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats_divide_down(dtype: str, lanes: int) -> None:
    rng = np.random.default_rng(5)
    for op in ("//", "%"):
        expr = BinOp(op, operand("X", dtype, lanes), operand("Y", dtype, lanes), Scalar(dtype))
        y = rng.choice([-2.5, 3.0, 0.75, -1.0], 40).astype(dtype)
        arrays = {"X": values(dtype, 7) - 1, "Y": y, "Z": np.zeros(40, dtype)}
        arrays["X"][~np.isfinite(arrays["X"])] = -7.0
        agree(pointwise(expr, {"X": dtype, "Y": dtype}, dtype), arrays)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("op", ["<<", ">>"])
@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8"])
def test_shifts_by_less_than_the_width(dtype: str, op: str, lanes: int) -> None:
    count = BinOp("&", operand("Y", dtype, lanes), Const(7, Scalar(dtype)), Scalar(dtype))
    check(BinOp(op, operand("X", dtype, lanes), count, Scalar(dtype)), {"X": dtype, "Y": dtype}, dtype)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", [*FLOATS, "int64", "uint8", "int32"])
def test_comparisons_selects_and_tests(dtype: str, lanes: int) -> None:
    x, y = operand("X", dtype, lanes), operand("Y", dtype, lanes)
    scalar, inputs = Scalar(dtype), {"X": dtype, "Y": dtype}
    for op in ("<", "<=", ">", ">=", "==", "!="):
        check(Compare(op, x, y, scalar), inputs, "bool")
    less, more = Compare("<", x, y, scalar), Compare(">", x, Const(0, scalar), scalar)
    check(Select(less, x, y, scalar), inputs, dtype)
    check(BoolOp("and", less, more), inputs, "bool")
    check(BoolOp("or", less, UnaryOp("not", more)), inputs, "bool")
    if scalar.is_float:
        for name in ("isnan", "isinf", "isfinite"):
            check(Call(name, (x,), BOOL), inputs, "bool")


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", [*FLOATS, "int64", "int32", "uint8"])
def test_extremes_treat_nan_as_python_and_numpy_do(dtype: str, lanes: int) -> None:
    x, y = operand("X", dtype, lanes), operand("Y", dtype, lanes)
    for name in ("pmin", "pmax", "minimum", "maximum"):
        check(Call(name, (x, y), Scalar(dtype)), {"X": dtype, "Y": dtype}, dtype)
    check(Call("abs", (x,), Scalar(dtype)), {"X": dtype, "Y": dtype}, dtype)
    check(UnaryOp("-", x), {"X": dtype, "Y": dtype}, dtype)


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_functions(dtype: str, lanes: int) -> None:
    rtol = 1e-6 if dtype == "float32" else 1e-13
    for name, function in FUNCTIONS.items():
        if function.result != "float" or name == "fma":
            continue
        args = (operand("X", dtype, lanes), operand("Y", dtype, lanes))[: function.arity]
        check(Call(name, args, Scalar(dtype)), {"X": dtype, "Y": dtype}, dtype, rtol)


@pytest.mark.parametrize("lanes", [1, 4])
def test_conversions(lanes: int) -> None:
    for source in ("float32", "float64", "int64", "int8", "uint8", "bool", "float16"):
        for target in ("float32", "float64", "int64", "int32", "bool"):
            if source in FLOATS and Scalar(target).is_integer:
                continue  # of what is out of range, nothing is promised
            check(Cast(Scalar(target), operand("X", source, lanes)), {"X": source}, target)
    rounded = Cast(Scalar("float16"), operand("X", "float32", lanes))
    check(rounded, {"X": "float32"}, "float32")
    whole = BinOp("+", operand("X", "int8", lanes), Const(0, INT64), INT64)
    check(Cast(FLOAT32, whole), {"X": "int8"}, "float32")


@pytest.mark.parametrize("op", ["+", "*", "pmin", "pmax", "minimum", "maximum"])
def test_lanes_are_reduced_to_one(op: str) -> None:
    t = var("t")
    vector = load("X", Ramp(b.mul(t, 4), 1, 4), dtype="int64")
    kernel = Kernel(
        "r",
        (param("X", 1, "int64"), param("Z", 1, "int64")),
        (loop("t", 0, Dim("Z", 0), store("Z", t, Reduce(op, vector)), mapping="thread.x"),),
    )
    agree(kernel, {"X": values("int64", 1), "Z": np.zeros(10, np.int64)})


def test_vector_locals_broadcasts_and_ramps() -> None:
    t = var("t")
    kind = Vector(FLOAT32, 4)
    index = Ramp(b.mul(t, 4), 1, 4)
    body = (
        Assign("v", load("X", index), kind),
        Assign("v", BinOp("*", Var("v", kind), Broadcast(Cast(FLOAT32, t), 4), FLOAT32), kind),
        Assign("n", BinOp("//", index, Const(3, INT64), INT64), Vector(INT64, 4)),
        store("Z", index, BinOp("+", Var("v", kind), Var("n", Vector(INT64, 4)), FLOAT32)),
    )
    kernel = Kernel("v", (param("X"), param("Z")), (loop("t", 0, 5, *body, mapping="thread.x"),))
    agree(kernel, {"X": np.arange(20, dtype=np.float32), "Z": np.zeros(20, np.float32)})


def test_index_arithmetic_is_exact_where_it_is_negative() -> None:
    """`X[i - 3]` under a guard, floor divisions of negative numbers, and a bound below zero."""
    i, n = var("i"), Dim("X", 0)
    before = b.sub(i, 3)
    quotient = b.floordiv(b.sub(i, 7), 4)
    rest = b.mod(b.sub(i, 7), 4)
    value = Select(b.compare(">=", before, 0), load("X", before, dtype="int64"), Const(-1, INT64), INT64)
    body = (
        store("Z", i, BinOp("+", value, BinOp("*", quotient, Const(1000, INT64), INT64), INT64)),
        store("R", i, rest),
    )
    nest = loop("i", 0, n, *body, mapping="thread.x")
    short = loop("k", 1, b.sub(n, 5), store("R", var("k"), Const(99, INT64)))
    kernel = Kernel("k", (param("X", 1, "int64"), param("Z", 1, "int64"), param("R", 1, "int64")), (nest, short))
    for size in (0, 1, 4, 5, 6, 8, 11):
        agree(kernel, {name: np.arange(size, dtype=np.int64) for name in "XZR"})


@pytest.mark.parametrize(
    "start, stop, step", [(9, -1, -4), (2, 6, 2), (1, 10, 3), (3, 3, 1), (5, 2, 1), (-5, 6, 1)]
)
def test_loops_of_any_start_and_step(start: int, stop: int, step: int) -> None:
    i = var("i")
    place = b.add(i, 5)
    for mapping in ("serial", "thread.x", "cooperative", "block.x"):
        nest = loop("i", start, stop, store("Z", place, Cast(FLOAT32, i)), step=step, mapping=mapping)
        agree(Kernel("k", (param("Z"),), (nest,)), {"Z": np.full(20, -1, np.float32)})


def test_loops_with_run_time_bounds() -> None:
    i, lo, hi, step = (var(name) for name in ("i", "lo", "hi", "step"))
    from pyschedule.ir.nodes import For

    nest = For("i", lo, hi, step, (store("Z", b.add(i, 10), Cast(FLOAT32, i)),), source="i")
    kernel = Kernel("k", (param("Z"), lo, hi, step), (nest,))
    for given in ((0, 5, 1), (-3, 4, 2), (7, -7, -3), (4, 4, 1), (5, 1, 2)):
        agree(kernel, {"Z": np.full(20, -1, np.float32)}, dict(zip(("lo", "hi", "step"), given, strict=True)))


@pytest.mark.parametrize("dtype", ["float32", "int64", "uint8", "bool", "bfloat16"])
def test_every_form_is_typed_by_numba(dtype: str) -> None:
    """Numba and NVVM accept what lockstep runs: each operator, function and conversion, scalars and lanes."""
    held = Scalar("float32" if Scalar(dtype).is_half else dtype)
    statements = []
    for lanes in (1, 4):
        t = var("t")
        place: Expr = t if lanes == 1 else Ramp(b.mul(t, 4), 1, 4)
        x = load("X", place, dtype=held.name)
        forms: list[Expr] = [BoolOp("or", x, UnaryOp("not", x))] if dtype == "bool" else []
        if dtype != "bool":
            operators = ("+", "//", "%", "/", "**") if held.is_float else ("-", "//", "%", "<<", ">>", "^")
            forms += [BinOp(op, x, x, held) for op in operators]
            forms += [Call(name, (x, x), held) for name in ("pmin", "maximum")]
            forms += [
                Select(Compare("<", x, Const(3, held), held), x, UnaryOp("-", x), held),
                Call("abs", (x,), held),
            ]
        if held.is_float:
            forms += [Call(name, (x,) * FUNCTIONS[name].arity, held) for name in ("exp", "erf", "atan2", "fma")]
        forms += [Cast(Scalar("int32"), x), Cast(Scalar("float16"), x)]
        mask = Compare("<", place, Const(3, INT64), INT64)
        statements += [store("X", place, Cast(held, form), mask) for form in forms]
    kernel = Kernel("k", (param("X", 1, dtype, divisor=8),), (loop("t", 0, 64, *statements, mapping="thread.x"),))
    program = generate(kernel, SM80)
    assert not program.notes
    assert ".entry" in cuda_toolchain.compile_ptx(program, program.launches[0], SM80)
