"""Accesses in CUDA source: layouts, lanes, masks, halves, and when an access may be 128 bits wide."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pyschedule.codegen.numba_cuda import generate
from pyschedule.codegen.ptx_names import SHORT, MemoryName, parse
from pyschedule.ir import build as b
from pyschedule.ir.nodes import Array, Assign, BinOp, Call, Compare, Const, Dim, Expr, Kernel, Ramp, Var
from pyschedule.ir.types import FLOAT32, INT64, Scalar, Vector
from pyschedule.runtime import lockstep

from .cuda_support import SM80, agree, elementwise, f32, load, local, loop, param, store, var

RNG = np.random.default_rng(1)


def numpy_dtype(dtype: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)


@pytest.mark.parametrize(
    "dtype, lanes",
    [("float32", 4), ("float32", 8), ("float64", 2), ("float16", 8), ("bfloat16", 8), ("int32", 4), ("int8", 8)],
)
def test_lanes_with_a_masked_tail(dtype: str, lanes: int) -> None:
    kernel = elementwise(4, lanes, 16, dtype)
    for n in (0, 1, lanes - 1, lanes, 4 * lanes + 1, 37):
        x = (RNG.standard_normal(n) * 9).astype(numpy_dtype(dtype))
        agree(kernel, {"X": x, "Y": np.zeros_like(x)})
    assert f"ldg_{SHORT[dtype]}x{lanes}_masked" in generate(kernel, SM80).source


@pytest.mark.parametrize("divisor, aligned", [(1, False), (2, False), (4, True), (16, True)])
def test_128_bits_need_a_proof_of_alignment(divisor: int, aligned: bool) -> None:
    source = generate(elementwise(8, 4, divisor), SM80).source
    assert ("store_f32x4_masked(" in source) is aligned
    assert ("store_f32x4_unaligned_masked(" in source) is not aligned


def rows(lanes: int, offset: int, divisor: int) -> Kernel:
    """`Y[i, j] = X[i, j + offset]`, lanes along `j`."""
    i, j = var("i"), var("j")
    index = Ramp(b.mul(j, lanes), 1, lanes)
    source = Ramp(b.add(b.mul(j, lanes), offset), 1, lanes)
    body = loop("j", 0, b.floordiv(Dim("Y", 1), lanes), store("Y", (i, index), load("X", i, source)))
    nest = loop("i", 0, Dim("Y", 0), body, mapping="thread.x")
    return Kernel("rows", (param("X", 2, divisor=divisor), param("Y", 2, divisor=divisor)), (nest,))


def test_alignment_follows_rows_offsets_and_strides() -> None:
    base = np.arange(64, dtype=np.float32)
    assert "ldg_f32x4(" in generate(rows(4, 0, 4), SM80).source
    assert "ldg_f32x4_unaligned(" in generate(rows(4, 1, 4), SM80).source
    assert "ldg_f32x4_unaligned(" in generate(rows(4, 0, 1), SM80).source
    wide = np.zeros((7, 8), np.float32)
    agree(
        rows(4, 1, 4),
        {"X": base[:63].reshape(7, 9)[:, :9].copy().repeat(1, 0)[:, :8].copy(), "Y": wide[:, :4].copy()},
    )
    odd = base[:35].reshape(7, 5)
    with pytest.raises(ValueError, match=r"'X'.*multiple of 4"):
        lockstep.run(generate(rows(4, 0, 4), SM80), {"X": odd, "Y": np.zeros((7, 5), np.float32)})
    agree(rows(4, 0, 1), {"X": odd, "Y": np.zeros((7, 5), np.float32)})


def test_a_misaligned_base_is_caught() -> None:
    base = np.zeros(64, np.float32)
    shifted = base[1:33]
    with pytest.raises(lockstep.MisalignedError):
        lockstep.run(generate(elementwise(8, 4, 4), SM80), {"X": shifted, "Y": np.zeros(32, np.float32)})


def test_any_strides_and_axes() -> None:
    i, j = var("i"), var("j")
    body = store("Y", (i, j), BinOp("+", load("X", i, j), load("X", i, j), FLOAT32))
    nest = loop("i", 0, Dim("X", 0), loop("j", 0, Dim("X", 1), body, mapping="thread.x"), mapping="block.x")
    data = np.arange(60, dtype=np.float32).reshape(6, 10)
    for unit, view in ((0, data.T), (None, data[::2, ::3]), (1, data[1:4, 2:9])):
        kernel = Kernel("k", (param("X", 2, unit=unit), param("Y", 2)), (nest,))
        for bits in (32, 64):
            out = np.full(view.shape, np.nan, np.float32)
            lockstep.run(generate(kernel, SM80, bits), {"X": view, "Y": out})
            np.testing.assert_array_equal(out, 2 * view)


def test_negative_strides_need_64_bits() -> None:
    i = var("i")
    kernel = Kernel(
        "k",
        (param("X", 1, unit=None), param("Y", 1, unit=None)),
        (loop("i", 0, Dim("X", 0), store("Y", i, load("X", i)), mapping="thread.x"),),
    )
    x, y = np.arange(8, dtype=np.float32)[::-1], np.zeros(8, np.float32)
    with pytest.raises(ValueError, match="index_bits=64"):
        lockstep.run(generate(kernel, SM80), {"X": x, "Y": y})
    lockstep.run(generate(kernel, SM80, 64), {"X": x, "Y": y})
    np.testing.assert_array_equal(y, x)
    with pytest.raises(ValueError, match="stride of 1"):
        lockstep.run(generate(elementwise(), SM80), {"X": x, "Y": y})


def test_fits_knows_how_far_32_bits_reach() -> None:
    program = generate(elementwise(), SM80)
    inside, outside = {"X": (1 << 30,), "Y": (1 << 30,)}, {"X": (1 << 31,), "Y": (8,)}
    unit = {"X": (1,), "Y": (1,)}
    assert program.fits(inside, unit, {})
    assert not program.fits(outside, unit, {})
    assert program.fits(inside, {"X": (4,), "Y": (1,)}, {})
    assert not program.fits(inside, {"X": (5,), "Y": (1,)}, {})
    assert not program.fits(inside, {"X": (-1,), "Y": (1,)}, {})
    assert generate(elementwise(), SM80, 64).fits(outside, unit, {})


def test_gathers_and_scatters() -> None:
    t = var("t")
    four = Ramp(b.mul(t, 4), 1, 4)
    index = load("I", four, dtype="int64")
    spread = Ramp(b.mul(t, 8), 2, 4)
    body = (
        store("Y", four, load("X", index)),
        store("Z", spread, load("X", BinOp("-", Const(31, INT64), four, INT64))),
        store("W", BinOp("*", four, Const(2, INT64), INT64), f32(1.0), Compare("<", four, Const(9, INT64), INT64)),
    )
    arrays = {
        "I": RNG.permutation(32)[:16].astype(np.int64),
        "X": RNG.standard_normal(32).astype(np.float32),
        **{name: np.zeros(size, np.float32) for name, size in (("Y", 16), ("Z", 32), ("W", 32))},
    }
    params = (param("I", 1, "int64"), *(param(name) for name in "XYZW"))
    agree(Kernel("g", params, (loop("t", 0, 4, *body, mapping="thread.x"),)), arrays)


def test_two_axes_with_lanes() -> None:
    t = var("t")
    four = Ramp(t, 1, 4)
    kernel = Kernel(
        "d", (param("X", 2), param("Y", 2)), (loop("t", 0, 4, store("Y", (four, t), load("X", four, four))),)
    )
    agree(kernel, {"X": RNG.standard_normal((8, 8)).astype(np.float32), "Y": np.zeros((8, 8), np.float32)})


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "bool", "int8", "float64"])
@pytest.mark.parametrize("space", ["shared", "local", "register"])
def test_local_arrays_of_every_kind(dtype: str, space: str) -> None:
    """Written by scalars, read by lanes, and the other way round."""
    t, s, r = var("t"), var("s"), var("r")
    held = "float32" if Scalar(dtype).is_half else dtype
    body = (
        loop("s", 0, 8, store("B", s, load("X", b.add(b.mul(t, 8), s), dtype=held))),
        loop("r", 0, 2, store("D", Ramp(b.mul(r, 4), 1, 4), load("B", Ramp(b.mul(r, 4), 1, 4), dtype=held))),
        loop("u", 0, 8, store("Y", b.add(b.mul(t, 8), b.sub(7, var("u"))), load("D", var("u"), dtype=held))),
    )
    inner = (local("B", 8, space=space, dtype=dtype), local("D", 8, space=space, dtype=dtype), *body)
    nest = loop("t", 0, 3, *inner, mapping="thread.x" if space != "shared" else "block.x")
    x = (RNG.standard_normal(24) * 3).astype(numpy_dtype(dtype))
    kernel = Kernel("l", (param("X", 1, dtype), param("Y", 1, dtype)), (nest,))
    program = agree(kernel, {"X": x, "Y": np.zeros_like(x)})
    assert not program.notes


def test_arrays_of_vectors_in_registers() -> None:
    t, kind = var("t"), Vector(FLOAT32, 4)
    array = Array("acc", kind, (b.const(2),), "register")
    from pyschedule.ir.nodes import Alloc, Load

    body = (
        Alloc(array),
        loop(
            "a",
            0,
            2,
            store("acc", var("a"), load("X", Ramp(b.add(b.mul(t, 8), b.mul(var("a"), 4)), 1, 4))),
            unroll=-1,
        ),
        Assign("v", Load("acc", (b.const(1),), kind), kind),
        store("Y", Ramp(b.mul(t, 4), 1, 4), BinOp("+", Load("acc", (b.const(0),), kind), Var("v", kind), FLOAT32)),
    )
    kernel = Kernel("v", (param("X"), param("Y")), (loop("t", 0, 3, *body, mapping="thread.x"),))
    agree(kernel, {"X": np.arange(24, dtype=np.float32), "Y": np.zeros(12, np.float32)})


def test_halves_round_to_nearest_even_once() -> None:
    t = var("t")
    for dtype in ("float16", "bfloat16"):
        kernel = Kernel(
            "h", (param("X"), param("Y", 1, dtype)), (loop("t", 0, Dim("X", 0), store("Y", t, load("X", t))),)
        )
        x = np.array(
            [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-9, 1e38, -1e-30, np.inf, np.nan, 65520.0], np.float32
        )
        x = np.concatenate([x, RNG.standard_normal(50).astype(np.float32)])
        out = np.zeros(x.size, numpy_dtype(dtype))
        lockstep.run(generate(kernel, SM80), {"X": x, "Y": out})
        with np.errstate(over="ignore"):
            expected = x.astype(out.dtype)
        np.testing.assert_array_equal(out.astype(np.float32), expected.astype(np.float32))


def checked(lanes: int = 1) -> Kernel:
    """`Y[I[t]] = X[I[t]]`, indices checked, negative ones from the end."""
    t = var("t")
    place: Expr = t if lanes == 1 else Ramp(b.mul(t, lanes), 1, lanes)
    given = load("I", place, dtype="int64")
    index = Call("checked_index", (given, Dim("X", 0)), INT64)
    nest = loop("t", 0, b.floordiv(Dim("I", 0), lanes), store("Y", index, load("X", index)), mapping="thread.x")
    return Kernel("checked", (param("I", 1, "int64"), param("X"), param("Y")), (nest,))


@pytest.mark.parametrize("lanes", [1, 4])
def test_checked_indices(lanes: int) -> None:
    program = generate(checked(lanes), SM80)
    assert program.has_status
    x = np.arange(6, dtype=np.float32)
    y = np.full(6, -1, np.float32)
    lockstep.run(program, {"I": np.array([0, -1, 2, -6 + 1]), "X": x, "Y": y})
    assert y.tolist() == [0, 1, 2, -1, -1, 5]
    for wrong in (6, -7, 10**9):
        y[:] = -1
        with pytest.raises(IndexError):
            lockstep.run(program, {"I": np.array([3, wrong, 4, 5]), "X": x, "Y": y})
        assert y.tolist() == [-1, -1, -1, 3, 4, 5], "the store out of range was left out, element 0 intact"


def test_names_of_intrinsics_read_back() -> None:
    for space in ("global", "shared", "local"):
        for writes in (False, True):
            for lanes, indexed in ((1, False), (8, False), (1, True)):
                for aligned, masked in ((True, False), (False, True), (True, True)):
                    if not aligned and lanes == 1:
                        continue
                    readonly = space == "global" and not writes and masked
                    name = MemoryName(space, writes, "bfloat16", lanes, indexed, readonly, aligned, masked)
                    assert parse(str(name)) == name
    assert parse("vadd") is None
    assert parse("load_f31") is None
