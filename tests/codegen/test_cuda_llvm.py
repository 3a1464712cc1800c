"""The intrinsics of CUDA source as LLVM, executed on the CPU, against the IR interpreter."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from pyschedule.codegen.numba_cuda import generate
from pyschedule.ir import build as b
from pyschedule.ir import interpreter
from pyschedule.ir.functions import FUNCTIONS
from pyschedule.ir.nodes import (
    BinOp,
    BoolOp,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Kernel,
    Load,
    Ramp,
    Reduce,
    Select,
    Stmt,
    UnaryOp,
)
from pyschedule.ir.types import BOOL, FLOAT32, INT64, Scalar

from . import cuda_on_cpu
from .cuda_support import SM80, load, local, loop, param, store, var
from .test_cuda_arithmetic import FLOATS, INTEGERS, values

pytest.importorskip("numba_cuda", reason="the [cuda] extra is not installed")


def check(forms: list[tuple[Expr, str]], inputs: dict[str, np.ndarray], rtol: float = 0.0) -> None:
    """Evaluates every form for each `t` into an array of its own; compares all with the interpreter."""
    t = var("t")
    lanes = max((form.type.lanes for form, _ in forms if hasattr(form.type, "lanes")), default=1)
    statements: list[Stmt] = []
    arrays = dict(inputs)
    size = next(iter(inputs.values())).size
    for number, (form, dtype) in enumerate(forms):
        place: Expr = Ramp(b.mul(t, lanes), 1, lanes) if hasattr(form.type, "lanes") else t
        statements.append(store(f"Z{number}", place, form))
        arrays[f"Z{number}"] = np.zeros(size, dtype)
    params = tuple(param(name, 1, array.dtype.name, divisor=4) for name, array in arrays.items())
    kernel = Kernel("forms", params, (loop("t", 0, size // lanes, *statements),))
    expected = {name: array.copy() for name, array in arrays.items()}
    interpreter.run(kernel, expected, {})
    with np.errstate(all="ignore"):
        cuda_on_cpu.run(generate(kernel, SM80), arrays)
    for number, (form, _) in enumerate(forms):
        got, wanted = arrays[f"Z{number}"], expected[f"Z{number}"]
        np.testing.assert_allclose(
            got.astype(np.float64), wanted.astype(np.float64), rtol=rtol, err_msg=str(form)[:300]
        )


def operand(name: str, dtype: str, lanes: int) -> Expr:
    t = var("t")
    held = "float32" if Scalar(dtype).is_half else dtype
    return load(name, t if lanes == 1 else Ramp(b.mul(t, lanes), 1, lanes), dtype=held)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers(dtype: str, lanes: int) -> None:
    x, y, scalar = operand("X", dtype, lanes), operand("Y", dtype, lanes), Scalar(dtype)
    count = BinOp("&", y, Const(7, scalar), scalar)
    operators = ("+", "-", "*", "//", "%", "&", "|", "^")
    forms: list[tuple[Expr, str]] = [(BinOp(op, x, y, scalar), dtype) for op in operators]
    forms += [(BinOp(op, x, count, scalar), dtype) for op in ("<<", ">>")]
    forms += [(Compare(op, x, y, scalar), "bool") for op in ["<", "<=", ">", ">=", "==", "!="]]
    forms += [(Call(name, (x, y), scalar), dtype) for name in ("pmin", "pmax", "minimum", "maximum")]
    forms += [(Call("abs", (x,), scalar), dtype), (UnaryOp("-", x), dtype), (UnaryOp("~", x), dtype)]
    forms += [(Select(Compare("<", x, y, scalar), x, y, scalar), dtype)]
    forms += [(Cast(Scalar(target), x), target) for target in ("float32", "float64", "int64", "bool")]
    given = {"X": values(dtype, 0), "Y": values(dtype, 1)}
    given["Y"][given["Y"] == 0] = 5
    check(forms, given)


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats(dtype: str, lanes: int) -> None:
    x, y, scalar = operand("X", dtype, lanes), operand("Y", dtype, lanes), Scalar(dtype)
    forms: list[tuple[Expr, str]] = [(BinOp(op, x, y, scalar), dtype) for op in ["+", "-", "*", "/"]]
    forms += [(Compare(op, x, y, scalar), "bool") for op in ["<", "<=", ">", ">=", "==", "!="]]
    forms += [(Call(name, (x, y), scalar), dtype) for name in ("pmin", "pmax", "minimum", "maximum")]
    forms += [(Call(name, (x,), BOOL), "bool") for name in ("isnan", "isinf", "isfinite")]
    forms += [(Call("abs", (x,), scalar), dtype), (UnaryOp("-", x), dtype)]
    less = Compare("<", x, y, scalar)
    forms += [
        (BoolOp("and", less, UnaryOp("not", Call("isnan", (y,), BOOL))), "bool"),
        (BoolOp("or", less, less), "bool"),
    ]
    forms += [(Cast(Scalar(target), x), target) for target in ("float32", "float64", "bool")]
    forms += [(Cast(Scalar("float16"), x), "float32")]
    check(forms, {"X": values(dtype, 0), "Y": values(dtype, 1)})


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("dtype", FLOATS)
def test_functions_and_floor_division(dtype: str, lanes: int) -> None:
    x, y, scalar = operand("X", dtype, lanes), operand("Y", dtype, lanes), Scalar(dtype)
    rng = np.random.default_rng(3)
    forms: list[tuple[Expr, str]] = [(BinOp(op, x, y, scalar), dtype) for op in ("//", "%", "**")]
    for name, function in FUNCTIONS.items():
        if function.result == "float":
            forms.append((Call(name, (x, y, x)[: function.arity], scalar), dtype))
    given = {"X": rng.uniform(-4, 4, 40).astype(dtype), "Y": rng.choice([-2.5, 3.0, 0.75, -1.0], 40).astype(dtype)}
    given["X"][:4] = [0.0, 1.0, 6.0, -7.5]
    check(forms, given, rtol=1e-5 if dtype == "float32" else 1e-13)


def test_lanes_are_reduced() -> None:
    vector = operand("X", "int64", 4)
    forms: list[tuple[Expr, str]] = [
        (Reduce(op, vector), "int64") for op in ("+", "*", "pmin", "maximum", "&", "^")
    ]
    t = var("t")
    params = (param("X", 1, "int64"), *(param(f"Z{number}", 1, "int64") for number in range(len(forms))))
    body = loop("t", 0, 10, *(store(f"Z{number}", t, form) for number, (form, _) in enumerate(forms)))
    arrays = {"X": values("int64", 1), **{f"Z{number}": np.zeros(10, np.int64) for number in range(len(forms))}}
    expected = {name: array.copy() for name, array in arrays.items()}
    kernel = Kernel("r", params, (body,))
    interpreter.run(kernel, expected, {})
    cuda_on_cpu.run(generate(kernel, SM80), arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parametrize(
    "dtype, lanes", [("float16", 8), ("bfloat16", 8), ("bfloat16", 1), ("float16", 1), ("float16", 2)]
)
def test_halves_are_widened_and_rounded(dtype: str, lanes: int) -> None:
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    rng = np.random.default_rng(4)
    edges = [
        0.0,
        -0.0,
        1 + 2.0**-11,
        1 + 3 * 2.0**-11,
        1 + 2.0**-9,
        65519.0,
        65520.0,
        1e38,
        1e-8,
        np.inf,
        -np.inf,
        np.nan,
    ]
    x = np.concatenate([np.array(edges), rng.standard_normal(52)]).astype(np.float32)
    t = var("t")
    place: Expr = t if lanes == 1 else Ramp(b.mul(t, lanes), 1, lanes)
    twice = BinOp("*", load("H", place), Const(2.0, FLOAT32), FLOAT32)
    body = (store("H", place, load("X", place)), store("Y", place, twice))
    kernel = Kernel(
        "h",
        (param("X", divisor=8), param("H", 1, dtype, divisor=8), param("Y", divisor=8)),
        (loop("t", 0, 64 // lanes, *body),),
    )
    h, y = np.zeros(64, kind), np.zeros(64, np.float32)
    cuda_on_cpu.run(generate(kernel, SM80), {"X": x, "H": h.view(np.uint16), "Y": y})
    with np.errstate(over="ignore"):
        expected = x.astype(kind).astype(np.float32)
    np.testing.assert_array_equal(h.astype(np.float32), expected)
    np.testing.assert_array_equal(y, expected * 2)


@pytest.mark.parametrize("dtype", ["float32", "int8", "bool", "float64", "float16"])
@pytest.mark.parametrize("aligned", [True, False])
def test_masked_accesses_touch_nothing_else(dtype: str, aligned: bool) -> None:
    """Every mask of four lanes; lanes that are off keep what they had."""
    four = Ramp(b.mul(var("t"), 4), 1, 4)
    held = "float32" if Scalar(dtype).is_half else dtype
    mask = load("M", four, dtype="bool")
    body = store("Y", four, load("X", four, dtype=held, mask=mask), mask)
    kernel = Kernel(
        "m",
        (
            param("M", 1, "bool", divisor=16),
            *(param(name, 1, dtype, divisor=16 if aligned else 1) for name in "XY"),
        ),
        (loop("t", 0, 16, body),),
    )
    masks = ((np.arange(64) // 4) >> (np.arange(64) % 4) & 1).astype(np.bool_)
    x = np.arange(1, 65).astype(dtype)
    y = np.full(64, 0 if dtype == "bool" else 77).astype(dtype)
    expected = np.where(masks, x, y)
    words = {name: array.view(np.uint16) if dtype == "float16" else array for name, array in (("X", x), ("Y", y))}
    cuda_on_cpu.run(generate(kernel, SM80), {"M": masks, **words})
    np.testing.assert_array_equal(y, expected)


def test_gathers_scatters_strides_and_ramps() -> None:
    t = var("t")
    four = Ramp(b.mul(t, 4), 1, 4)
    index = load("I", four, dtype="int64")
    body = (
        store("Y", four, load("X", index)),
        store("Z", Ramp(b.mul(t, 8), 2, 4), load("X", BinOp("-", Const(31, INT64), four, INT64))),
        store("W", index, Cast(FLOAT32, four), Compare("<", four, Const(9, INT64), INT64)),
    )
    kernel = Kernel("g", (param("I", 1, "int64"), *(param(name) for name in "XYZW")), (loop("t", 0, 4, *body),))
    rng = np.random.default_rng(5)
    arrays = {
        "I": rng.permutation(32)[:16].astype(np.int64),
        "X": rng.standard_normal(32).astype(np.float32),
        **{name: np.zeros(32, np.float32) for name in "YZW"},
    }
    for bits in (32, 64):
        given = {name: array.copy() for name, array in arrays.items()}
        expected = {name: array.copy() for name, array in arrays.items()}
        interpreter.run(kernel, expected, {})
        cuda_on_cpu.run(generate(kernel, SM80, bits), given)
        for name, array in given.items():
            np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool"])
def test_local_arrays(dtype: str) -> None:
    held = "float32" if Scalar(dtype).is_half else dtype
    s, t = var("s"), var("t")
    rows = (
        local("B", 2, 8, dtype=dtype),
        loop("s", 0, 8, store("B", (1, s), load("X", b.add(b.mul(t, 8), s), dtype=held))),
        store("B", (0, Ramp(b.const(0), 1, 8)), Load("B", (b.const(1), Ramp(b.const(0), 1, 8)), Scalar(held))),
        loop("u", 0, 8, store("Y", b.add(b.mul(t, 8), b.sub(7, var("u"))), load("B", 0, var("u"), dtype=held))),
    )
    kernel = Kernel("l", (param("X", 1, dtype), param("Y", 1, dtype)), (loop("t", 0, 3, *rows),))
    x, y = np.arange(24).astype(dtype), np.zeros(24, dtype)
    words = {name: array.view(np.uint16) if dtype == "float16" else array for name, array in (("X", x), ("Y", y))}
    cuda_on_cpu.run(generate(kernel, SM80), words)
    np.testing.assert_array_equal(y, x.reshape(3, 8)[:, ::-1].reshape(-1))


def test_checked_indices() -> None:
    from .test_cuda_memory import checked

    for lanes in (1, 4):
        kernel = checked(lanes)
        body = tuple(replace(stmt, mapping="serial") for stmt in kernel.body)
        program = generate(replace(kernel, body=body), SM80)
        status = np.zeros(3, np.int64)
        x, y = np.arange(6, dtype=np.float32), np.full(6, -1, np.float32)
        arrays = {"I": np.array([0, -1, 2, -5]), "X": x, "Y": y}
        cuda_on_cpu.run(program, arrays, status=status)
        assert y.tolist() == [0, 1, 2, -1, -1, 5]
        assert status.tolist() == [0, 0, 0]
        y[:] = -1
        cuda_on_cpu.run(program, {"I": np.array([3, 6, 4, -7]), "X": x, "Y": y}, status=status)
        assert status.tolist() == [1, 6, 6]  # the first, of a check that has no place
        assert y.tolist() == [-1, -1, -1, 3, 4, -1]


def test_offsets_of_32_bits_are_unsigned() -> None:
    """An offset above 2**31 elements, from a base address as far below the memory that is there."""
    i, n = var("i"), var("n")
    body = loop("i", 40_000, 40_001, store("Y", (i, n), Const(5.0, FLOAT32)))
    kernel = Kernel("far", (param("Y", 2), n), (body,))
    memory = np.zeros(8, np.float32)
    stride = 1 << 16
    assert 40_000 * stride > 1 << 31
    below = np.ctypeslib.as_array((ctypes.c_float * 1).from_address(memory.ctypes.data - 40_000 * stride * 4))
    far = np.lib.stride_tricks.as_strided(below, (40_001, 8), (stride * 4, 4))
    for bits in (32, 64):
        memory[:] = 0
        cuda_on_cpu.run(generate(kernel, SM80, bits), {"Y": far}, {"n": 3})
        assert memory.tolist() == [0, 0, 0, 5, 0, 0, 0, 0]
