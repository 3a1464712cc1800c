"""Calls that are made again and again go a shorter way: it must do what the long one does, or not be taken."""

from __future__ import annotations

import ctypes
import gc
import math
import pickle
import sys
import threading
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from llvmlite import ir

import operators
from pyschedule import OverlapError, Shortcuts, tile, unroll, vectorize
from pyschedule.runtime import shortcut_code, shortcuts

pytestmark = pytest.mark.skipif(not Shortcuts.usable(), reason="this Python lays out objects otherwise")

#: More calls than are made before one is noted.
ENOUGH = 40


def made_kernel() -> Any:
    """A new kernel, which has noted no call yet."""

    @vectorize("j", 4)
    def add(x, y, out):
        for i in range(out.shape[0]):
            for j in range(out.shape[1]):
                out[i, j] = x[i, j] + y[i, j]

    return add


def is_shortened(kernel: Any) -> bool:
    return type(kernel._state.by_position) is type(len)


def random(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(len(shape)).integers(-9, 9, shape).astype(dtype)


def called_often(function: Any, *args: Any, **kwargs: Any) -> None:
    for _ in range(ENOUGH):
        function(*args, **kwargs)


@pytest.fixture
def add():
    kernel = made_kernel()
    x, y, out = random(5, 7), random(5, 7), random(5, 7)
    assert not is_shortened(kernel)
    called_often(kernel, x, y, out)
    assert is_shortened(kernel)
    return kernel


# ------------------------------------------------------------------------------------------------------ kernels


def test_it_reads_and_writes_the_arrays_of_each_call(add):
    for begin in range(3):
        x, y, out = random(5, 7) + begin, random(5, 7) * begin, np.zeros((5, 7), np.float32)
        assert add(x, y, out) is None
        assert np.array_equal(out, x + y)


@pytest.mark.parametrize(
    "change",
    [
        lambda x: random(6, 7),
        lambda x: random(5, 14)[:, ::2],
        lambda x: random(7, 5).T,
        lambda x: x[::-1],
        lambda x: random(5, 7, dtype=np.float64),
        lambda x: random(5, 7, dtype=np.int32),
        lambda x: random(5, 7, dtype=np.float16),
        lambda x: x.astype(x.dtype.newbyteorder()).astype(x.dtype),
    ],
)
def test_arrays_of_other_layouts_are_not_taken_for_those_that_are_noted(add, change):
    x, y, out = random(5, 7), random(5, 7), np.zeros((5, 7), np.float32)
    other = change(x)
    for _ in range(ENOUGH):
        out[:] = 0
        add(other, y, out)
        assert np.allclose(out, other[:5].astype(np.float64) + y)
    out[:] = 0
    add(x, y, out)
    assert np.array_equal(out, x + y)


@pytest.mark.parametrize("wrong", [None, 3, "x", [[1.0]], object(), np.float32(1)])
def test_what_is_no_array_is_refused_as_ever(add, wrong):
    x, out = random(5, 7), random(5, 7)
    before = out.copy()
    with pytest.raises((TypeError, ValueError)) as short:
        add(x, wrong, out)
    with pytest.raises((TypeError, ValueError)) as long:
        made_kernel()(x, wrong, out)
    assert str(short.value) == str(long.value)
    assert np.array_equal(out, before)


def test_errors_of_calls_are_those_of_the_long_way(add):
    x, y, out = random(5, 7), random(5, 7), random(5, 7)
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        add(x, y)
    with pytest.raises(TypeError, match="takes 3 positional arguments but 4 were given"):
        add(x, y, out, out)
    with pytest.raises(ValueError, match=r"^y: axis 0"):
        add(x, y[:3], out)
    unaligned = np.frombuffer(b"x" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(5, 7)
    with pytest.raises(ValueError, match="not aligned"):
        add(unaligned, y, out)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        add(x, y, out)


def test_overlaps_are_refused(add):
    x, memory = random(5, 7), np.zeros(100, np.float32)
    out = memory[:35].reshape(5, 7)
    called_often(add, x, memory[35:70].reshape(5, 7), out)
    called_often(add, x, x, out)
    called_often(add, x, x, random(5, 7))
    own = random(5, 7)
    with pytest.raises(OverlapError, match=r"^out: .*overlaps x"):
        add(own, x, own)
    before = memory.copy()
    for start in (0, 1, 34):
        with pytest.raises(OverlapError, match=r"^out: .*overlaps y"):
            add(x, memory[start : start + 35].reshape(5, 7), out)
    with pytest.raises(OverlapError, match=r"^out: .*overlaps x"):
        add(out, x, out)
    assert np.array_equal(memory, before)


def test_keywords_go_the_long_way(add):
    x, y, out = random(5, 7), random(5, 7), np.zeros((5, 7), np.float32)
    add(x, out=out, y=y)
    assert np.array_equal(out, x + y)


def test_many_layouts_in_turn(add):
    for _ in range(ENOUGH):
        for size in range(1, 14):
            x, y, out = random(size, 7), random(size, 7), np.zeros((size, 7), np.float32)
            add(x, y, out)
            assert np.array_equal(out, x + y)


def test_zero_extents(add):
    for shape in ((0, 7), (5, 0), (0, 0)):
        x, out = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        called_often(add, x, x, out)


def test_kernels_that_return_an_array_or_nothing():
    @vectorize("i", 4)
    def scaled(x, out):
        for i in range(x.shape[0]):
            out[i] = 2 * x[i]
        return out

    x, out = random(9), random(9)
    called_often(scaled, x, out)
    assert is_shortened(scaled)
    references = sys.getrefcount(out)
    results = [scaled(x, out) for _ in range(10)]
    assert all(result is out for result in results) and sys.getrefcount(out) == references + 10
    assert np.array_equal(out, 2 * random(9))


def test_numbers_are_passed_as_they_are_given():
    @unroll("i", 2)
    def shifted(x, out, offset, scale, yes):
        for i in range(x.shape[0]):
            if yes:
                out[i] = scale * x[i] + offset

    x, out = random(9, dtype=np.float64), np.zeros(9)
    called_often(shifted, x, out, 3, 0.5, True)
    assert is_shortened(shifted)
    for offset, scale, yes in (
        (3, 0.5, True),
        (1000 + 3, 0.5, True),
        (3, -2.25, True),
        (3.0, 0.5, 1),
        (3, 0.5, False),
    ):
        out[:] = -1
        shifted(x, out, offset, scale, yes)
        assert np.array_equal(out, scale * x + offset if yes else np.full(9, -1.0))
    with pytest.raises((TypeError, ValueError, OverflowError)):
        shifted(x, out, 2**70, 0.5, True)


def test_zeros_of_either_sign_and_what_is_no_number_are_told_apart():
    @unroll("i", 2)
    def scaled(x, out, factor):
        for i in range(x.shape[0]):
            out[i] = x[i] * factor

    x, out = np.ones(5), np.zeros(5)
    for known in (0.0, -0.0, math.nan, math.inf):
        called_often(scaled, x, out, known)
    assert is_shortened(scaled)
    for factor in ("0.0", "-0.0", "nan", "inf", "-inf"):
        scaled(x, out, float(factor))
        assert np.array_equal(out, x * float(factor), equal_nan=True)
        assert np.array_equal(np.signbit(out), np.signbit(x * float(factor)))


def test_calls_that_allocate_check_or_return_numbers_are_never_noted():
    @vectorize
    def doubled(x):
        y = np.zeros(x.shape[0], dtype=x.dtype)
        for i in range(x.shape[0]):
            y[i] = 2 * x[i]
        return y

    @unroll("i", 2)
    def total(x):
        found = 0.0
        for i in range(x.shape[0]):
            found += x[i]
        return found

    @unroll("i", 2)
    def gathered(x, places, out):
        for i in range(out.shape[0]):
            out[i] = x[places[i]]

    x, out = random(9, dtype=np.float64), np.zeros(9)
    for kernel, args in ((doubled, (x,)), (total, (x,)), (gathered, (x, np.arange(9), out))):
        called_often(kernel, *args)
        assert not is_shortened(kernel)
    with pytest.raises(IndexError):
        gathered(x, np.full(9, 9), out)


def test_threads_share_what_is_noted():
    kernel = made_kernel()
    failures: list[Any] = []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(300):
            shape = (int(rng.integers(1, 12)), 7)
            x, y, out = (rng.random(shape).astype(np.float32) for _ in range(3))
            kernel(x, y, out)
            if not np.array_equal(out, x + y):
                failures.append(shape)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_kernel_and_its_shortcuts_go_when_nobody_has_them():
    kernel = made_kernel()
    called_often(kernel, random(5, 7), random(5, 7), random(5, 7))
    assert is_shortened(kernel)
    gone = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert gone() is None


def test_no_array_of_a_caller_is_kept():
    class Watched(np.ndarray):
        pass

    kernel = made_kernel()
    x, y, out = random(5, 7), random(5, 7), random(5, 7)
    gone = [weakref.ref(array) for array in (x, y, out)]
    called_often(kernel, x, y, out)
    for _ in range(ENOUGH):
        operators.matmul(x, y.T, out=out[:, :5])
    del x, y, out
    gc.collect()
    assert [array() for array in gone] == [None] * 3


# ---------------------------------------------------------------------------------------------------- operators


def forms() -> list[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]:
    half = ml_dtypes.bfloat16
    return [
        ("matmul", operators.matmul, (random(6, 9), random(9, 4)), {}),
        ("matmul of views", operators.matmul, (random(9, 6).T, random(9, 8)[:, ::2]), {}),
        ("matmul of vectors", operators.matmul, (random(9), random(9, 4)), {}),
        ("matmul of batches", operators.matmul, (random(3, 6, 9), random(3, 9, 4)), {}),
        ("matmul of int8", operators.matmul, (random(6, 9, dtype=np.int8), random(9, 4, dtype=np.int8)), {}),
        ("matmul of bfloat16", operators.matmul, (random(6, 9, dtype=half), random(9, 4, dtype=half)), {}),
        ("gemm", operators.gemm, (random(6, 9), random(4, 9), random(4)), {"trans_b": True, "alpha": 0.5}),
        ("linear", operators.linear, (random(6, 9), random(4, 9)), {"activation": "relu"}),
        ("linear, biased", operators.linear, (random(6, 9), random(4, 9), random(4)), {}),
        ("conv2d", operators.conv2d, (random(1, 3, 9, 8), random(5, 3, 3, 3)), {"padding": 1}),
        (
            "conv2d, NHWC",
            operators.conv2d,
            (random(1, 9, 8, 3), random(5, 3, 3, 3)),
            {"layout": "NHWC", "stride": (2, 1)},
        ),
        ("conv2d, depthwise", operators.conv2d, (random(1, 4, 9, 8), random(4, 1, 3, 3)), {"groups": 4}),
        ("layer_norm", operators.layer_norm, (random(6, 9), 9, random(9)), {}),
        ("rms_norm", operators.rms_norm, (random(6, 9), (9,)), {"eps": 1e-3}),
    ]


@pytest.mark.parametrize(
    "name, operator, args, options", forms(), ids=lambda item: item if isinstance(item, str) else ""
)
@pytest.mark.parametrize("with_out", [False, True])
def test_operators_do_what_they_did(name, operator, args, options, with_out):
    first = operator(*args, **options)
    if with_out and name.startswith("linear"):
        return  # which has no out
    out = {"out": np.empty_like(first)} if with_out else {}
    results = []
    for _ in range(2 * ENOUGH):
        if with_out:
            out["out"].fill(-1)
        results.append(operator(*args, **options, **out))
        assert np.array_equal(results[-1], first)
    if with_out:
        assert all(result is out["out"] for result in results)
    else:
        assert len({result.ctypes.data for result in results}) == len(results)
        assert all(type(result) is np.ndarray and result.flags.c_contiguous for result in results)
    changed = tuple(item[::-1].copy() if isinstance(item, np.ndarray) else item for item in args)
    expected = operator.python(*changed, **options)
    assert np.allclose(
        np.asarray(operator(*changed, **options, **out), np.float64), np.asarray(expected, np.float64), rtol=1e-2
    )


def shortened(operator: Any) -> bool:
    return type(operator.__globals__["_way"]) is type(len)


def test_all_operators_have_a_shorter_way():
    for _, operator, args, options in forms():
        called_often(operator, *args, **options)
        assert shortened(operator), operator.__name__


def test_out_that_overlaps_still_gives_the_right_result():
    a, b, out = random(50, 50), random(50, 50), random(50, 50)  # more than a tile of registers
    called_often(operators.matmul, a, b, out=out)
    for other in ("a", "b"):
        given = {"a": a.copy(), "b": b.copy()}
        assert np.array_equal(operators.matmul(**given, out=given[other]), a @ b)
        assert np.array_equal(given[other], a @ b)


def test_gemm_updates_c_in_place_and_apart():
    a, b, c, out = random(8, 8), random(8, 8), random(8, 8), random(8, 8)
    for _ in range(2 * ENOUGH):
        assert np.array_equal(operators.gemm(a, b, c, out=out), a @ b + c)
        same = c.copy()
        assert operators.gemm(a, b, same, out=same) is same
        assert np.array_equal(same, a @ b + c)


def test_options_that_differ_are_told_apart():
    x = random(6, 300)
    for _ in range(ENOUGH):
        for eps in (1e-5, 1e-3, 1.0):
            got = operators.layer_norm(x, (int("300"),), eps=float(str(eps)))
            wide = x.astype(np.float64)
            centred = wide - wide.mean(1, keepdims=True)
            assert np.allclose(got, centred / np.sqrt((centred**2).mean(1, keepdims=True) + eps), atol=1e-5)


def test_what_compiled_code_raises_reaches_the_caller(monkeypatch):
    """The description of an exception, as Numba leaves it where memory for a copy is short."""
    text = pickle.dumps((MemoryError, ("no room",), None))
    held = ctypes.create_string_buffer(text, len(text))
    info = shortcuts._ExceptionInfo(ctypes.addressof(held), len(text))
    module = ir.Module("raises")
    kind = ir.FunctionType(shortcut_code.I32, [shortcut_code.PTR, shortcut_code.PTR.as_pointer()])
    b = ir.IRBuilder(ir.Function(module, kind, "raises").append_basic_block())
    b.store(b.inttoptr(shortcut_code.I64(ctypes.addressof(info)), shortcut_code.PTR), b.function.args[1])
    b.ret(shortcut_code.I32(1))
    address = shortcut_code.compiled(module, "raises")
    monkeypatch.setattr(shortcuts, "_thunk", lambda compiled: address)
    kernel = made_kernel()
    x, y, out = random(5, 7), random(5, 7), random(5, 7)
    with pytest.raises(MemoryError, match=r"^no room$"):
        called_often(kernel, x, y, out)
    with pytest.raises(SystemError, match="status 7"):
        shortcuts._failed(7, 0)


def test_two_arities():
    @tile(i=4)
    @unroll("i", 2)
    def one(x):
        for i in range(x.shape[0]):
            x[i] += 1.0

    x = np.zeros(9)
    called_often(one, x)
    assert is_shortened(one)
    one(x)
    assert (x == ENOUGH + 1).all()
