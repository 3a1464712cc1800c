"""What all operators have in common: remembered plans, kinds of arrays, `out`, threads, and what they show."""

from __future__ import annotations

import gc
import inspect
import pickle
import threading
import weakref
from typing import Any

import numpy as np
import pytest

import operators
from operators import operator as calls
from operators.arrays import Operand, filled, new, result_of
from operators.foreign import CUDA, SPEC
from operators.operator import operator
from operators.plans import Plan, Step, copy, written_out
from pyschedule import spec, vectorize


@vectorize("i", 4)
def scaled(x, y, factor):
    for i in range(y.shape[0]):
        y[i] = x[i] * factor


@vectorize("i", 4)
def summed(x, z, y):
    for i in range(y.shape[0]):
        y[i] = x[i] + z[i]


PLANNED: list[str] = []


@operator("x", "z", "out", in_place="z")
def mixed(x: Any, z: Any = None, factor: float = 2.0, *, out: Any = None) -> Plan:
    """`factor * x + z`, for one axis."""
    PLANNED.append(f"{x.shape} {factor}")
    result = result_of(out, x.shape, x.dtype)
    if z is None:
        main = Step(scaled, (x, result, factor))
        return Plan((main,), main, result)
    apart = new(x.shape, x.dtype)
    main = Step(scaled, (x, apart, factor))
    if z is not result:
        return Plan((main, Step(summed, (apart, z, result))), main, result)
    more = new(x.shape, x.dtype)
    return Plan((main, Step(summed, (apart, z, more)), Step(copy, (more, result))), main, result)


@pytest.fixture(autouse=True)
def fresh():
    PLANNED.clear()


def numbers(count, dtype=np.float32):
    return np.arange(1, count + 1, dtype=dtype)


# ---------------------------------------------------------------------------------------------------- the plan


def test_a_plan_is_made_once_for_a_layout_and_the_values_of_the_rest():
    x = numbers(21)
    for _ in range(3):
        np.testing.assert_array_equal(mixed(x), 2 * x)
        np.testing.assert_array_equal(mixed(x + 1), 2 * (x + 1))
    assert len(PLANNED) == 1
    np.testing.assert_array_equal(mixed(x, factor=3.0), 3 * x)
    np.testing.assert_array_equal(mixed(x, factor=3), 3 * x)  # an int is another type for a kernel
    np.testing.assert_array_equal(mixed(x[::2]), 2 * x[::2])
    np.testing.assert_array_equal(mixed(x[:9]), 2 * x[:9])
    np.testing.assert_array_equal(mixed(x.astype(np.float64)), 2 * x)
    assert len(PLANNED) == 6


def test_in_c_order_the_strides_of_axes_of_one_element_do_not_matter():
    memory = numbers(6)
    usual, odd = memory[:1], np.lib.stride_tricks.as_strided(memory, (1,), (12,))
    assert usual.strides != odd.strides and odd.flags.c_contiguous
    for x in (usual, odd):
        assert mixed(x) == 2 * x
    assert PLANNED == ["(1,) 2.0"]


@pytest.mark.parametrize("odd_first", [False, True])
def test_results_do_not_depend_on_the_strides_of_axes_of_one_element(odd_first):
    def both(x):
        """An array of such a shape in C order, twice: as it is, and with strides that lead nowhere."""
        odd = tuple(
            x.itemsize if extent == 1 else stride for extent, stride in zip(x.shape, x.strides, strict=True)
        )
        views = [x, np.lib.stride_tricks.as_strided(x, x.shape, odd)]
        assert odd != x.strides and views[1].flags.c_contiguous
        return views[::-1] if odd_first else views

    width = 37 + odd_first  # no plan is known
    row, matrix, image = (numbers(rows * width).reshape(rows, width) for rows in (1, width, 8))
    out = np.zeros((1, width), np.float32)
    for x, target in zip(both(row), both(out), strict=True):
        assert np.allclose(operators.matmul(x, matrix, out=target), row @ matrix, rtol=1e-4)
        assert np.array_equal(out, target)
        assert np.allclose(operators.matmul(matrix, x.T), matrix @ row.T, rtol=1e-4)
    pair = np.stack([matrix, -matrix])
    for x in both(pair[:, None]):
        assert np.allclose(operators.matmul(x, matrix), pair[:, None] @ matrix, rtol=1e-4)
    weight = numbers(16).reshape(2, 8, 1, 1)
    expected = np.einsum("fc,ncy->nfy", weight[:, :, 0, 0], image[None])
    for x in both(image[None, :, None, :]):
        assert np.allclose(operators.conv2d(x, weight)[:, :, 0], expected, rtol=1e-4)


def test_arrays_of_one_shape_that_lie_otherwise_have_plans_of_their_own():
    memory = numbers(90)
    for x in (memory[:30], memory[::3], memory[:60:2], memory[29::-1]):
        assert np.array_equal(mixed(x), 2 * x)
    assert len(PLANNED) == 4


def test_plans_are_forgotten_before_they_are_too_many(monkeypatch):
    monkeypatch.setattr(calls, "_REMEMBERED", 3)
    x = numbers(5)
    for factor in range(10):
        np.testing.assert_array_equal(mixed(x, factor=float(factor)), factor * x)
    mixed(x, factor=9.0)
    assert len(PLANNED) == 10
    mixed(x, factor=0.0)
    assert len(PLANNED) == 11


def test_a_plan_keeps_no_array_alive():
    x, z = numbers(5), numbers(5)
    result = mixed(x, z)
    kept = [weakref.ref(array) for array in (x, z, result)]
    del x, z, result
    gc.collect()
    assert not any(ref() is not None for ref in kept)


def test_an_argument_that_cannot_be_remembered_is_planned_each_time():
    class Odd(float):
        __hash__ = None

    for _ in range(2):
        np.testing.assert_array_equal(mixed(numbers(5), factor=Odd(2)), 2 * numbers(5))
    assert len(PLANNED) == 2


def test_calls_from_threads_while_plans_are_forgotten(monkeypatch):
    monkeypatch.setattr(calls, "_REMEMBERED", 4)
    mixed(numbers(3))
    wrong = []

    def work(offset):
        for turn in range(60):
            x = numbers(1 + (turn * 7 + offset) % 9)
            if not np.array_equal(mixed(x, out=None), 2 * x):
                wrong.append((turn, offset))

    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_an_operator_is_a_function_of_its_parameters():
    assert list(inspect.signature(operators.matmul).parameters) == ["a", "b", "out"]
    assert operators.matmul.__doc__.startswith("`a @ b`")
    assert pickle.loads(pickle.dumps(operators.matmul)) is operators.matmul
    with pytest.raises(TypeError, match="missing"):
        operators.matmul(np.ones((2, 2)))
    with pytest.raises(TypeError, match="unexpected"):
        operators.matmul(np.ones((2, 2)), np.ones((2, 2)), transposed=True)
    with pytest.raises(TypeError, match="positional"):
        operators.matmul(np.ones((2, 2)), np.ones((2, 2)), np.ones((2, 2)))
    with pytest.raises(ValueError, match="not all of"):
        operator("x", "nothing")(lambda x: None)


def test_the_text_of_a_plan_reads_as_its_steps():
    x = Operand(np.ones((4, 6), np.float32), "x")
    result = new((6, 2), np.float32)
    main = Step(print, (x.T[:, 1:3], result, 7))
    done = []
    run = written_out(Plan((main,), main, result), ["x"], SPEC, [lambda *given: done.append(given)], None)
    assert run(np.ones((4, 6), np.float32)).shape == (6, 2)
    ((view, written, number),) = done
    assert view.shape == (6, 2) and view.strides == (4, 24) and number == 7 and written.shape == (6, 2)


# --------------------------------------------------------------------------------------------------- operands


def test_views_have_the_layout_that_a_call_makes():
    array = np.arange(120, dtype=np.float32).reshape(4, 5, 6)
    operand = Operand(array, "x")
    pairs = [
        (operand.T, array.T),
        (operand[1], array[1]),
        (operand[:, None, ::-2], array[:, None, ::-2]),
        (operand[..., 2], array[..., 2]),
        (operand.reshaped(20, 6), array.reshape(20, 6)),
        (operand[0, :1].broadcast(3, 6), np.broadcast_to(array[0, :1], (3, 6))),
        (operand.permuted(2, 0, 1), array.transpose(2, 0, 1)),
    ]
    assert operand.T.reshaped(120) is None
    for view, wanted in pairs:
        done = []
        main = Step(done, (view,))
        written_out(Plan((main,), main, view), ["x"], SPEC, [done.append], None)(array)
        assert view.shape == wanted.shape and view.strides == wanted.strides
        np.testing.assert_array_equal(done[0], wanted)


def test_one_call_for_each_index():
    array = np.arange(24.0).reshape(2, 3, 4)
    operand, done = Operand(array, "x"), []
    main = Step(done, (operand, operand.permuted(0, 2, 1)), over=(2,))
    written_out(Plan((main,), main, operand), ["x"], SPEC, [lambda *given: done.append(given)], None)(array)
    assert [(one.shape, other.shape) for one, other in done] == [((3, 4), (4, 3))] * 2
    np.testing.assert_array_equal(done[1][0], array[1])


# --------------------------------------------------------------------------------------------------------- out


def test_out_is_written_and_returned():
    x = numbers(9)
    out = np.full(9, np.nan, np.float32)
    assert mixed(x, out=out) is out
    np.testing.assert_array_equal(out, 2 * x)


@pytest.mark.parametrize("shift", [-2, -1, 0, 1, 2])
def test_out_may_overlap_an_input(shift):
    buffer = numbers(30)
    x, out = buffer[5:20], buffer[5 + shift : 20 + shift]
    expected, rest = 2 * x, buffer.copy()
    assert mixed(x, out=out) is out
    np.testing.assert_array_equal(out, expected)
    rest[5 + shift : 20 + shift] = expected
    np.testing.assert_array_equal(buffer, rest)


def test_out_may_be_the_argument_that_is_updated():
    x, z = numbers(9), numbers(9)
    assert mixed(x, z, out=z) is z
    np.testing.assert_array_equal(z, 3 * x)
    assert mixed(z, z, out=z) is z
    np.testing.assert_array_equal(z, 9 * x)


def test_an_output_that_cannot_be_written_is_refused_before_anything_is():
    x = numbers(4)
    frozen = np.zeros(4, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out: .*read-only"):
        mixed(x, out=frozen)
    folded = np.lib.stride_tricks.as_strided(np.zeros(9, np.float32), (4,), (0,))
    with pytest.raises(ValueError, match=r"^out: .*overlap"):
        mixed(x, out=folded)
    for wrong, kind in ((np.zeros(5, np.float32), ValueError), (np.zeros(4), TypeError)):
        with pytest.raises(kind, match=r"^out"):
            mixed(x, out=wrong)
        assert not wrong.any()


# ------------------------------------------------------------------------------------------------------- kinds


class Plain(np.ndarray):
    """A subclass, as memory maps are."""


def test_subclasses_of_numpy_arrays_are_numpy_arrays():
    x = numbers(5)
    for _ in range(2):
        result = mixed(x.view(Plain))
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, 2 * x)
    out = np.zeros(5, np.float32).view(Plain)
    assert mixed(x, out=out) is out and out[0] == 2
    with pytest.raises(TypeError, match=r"^x: a masked array"):
        mixed(np.ma.masked_array(x))


@pytest.mark.parametrize("wrong", [[1.0, 2.0], 3.0, np.float32(3), None, "x", {}])
def test_what_is_no_array_is_named(wrong):
    with pytest.raises(TypeError, match=r"^x: an array is needed, not"):
        mixed(wrong)
    if wrong is not None:
        with pytest.raises(TypeError, match=r"^z: an array is needed, not"):
            mixed(numbers(2), wrong)


def test_arrays_that_are_not_aligned_are_named():
    odd = np.zeros(21, np.uint8)[1:].view(np.float32)
    with pytest.raises(ValueError, match=r"^x: .*aligned"):
        mixed(odd)


class OnGpu:
    """NumPy memory that says it is on a GPU."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    @property
    def __cuda_array_interface__(self):
        return {**self.array.__array_interface__, "strides": self.array.strides, "version": 3}

    def __getitem__(self, index):
        return OnGpu(self.array[index])

    @property
    def T(self):  # noqa: N802
        return OnGpu(self.array.T)

    def __array_namespace__(self):
        return OnGpu

    @staticmethod
    def empty(shape, dtype):
        return OnGpu(np.full(shape, 77, dtype))

    @staticmethod
    def asarray(array):
        return OnGpu(array.copy())


def test_arrays_on_a_gpu_are_handed_to_the_kernels_as_they_are():
    a, b = OnGpu(np.ones((5, 7), np.float32)), OnGpu(np.ones((9, 7), np.float32))
    ((kernel, arguments),), result = operators.gemm.steps(a, b, alpha=2.0, trans_b=True)
    assert arguments[0] is a and arguments[1].shape == (7, 9) and arguments[2] is result
    assert isinstance(result, OnGpu) and result.shape == (5, 9)
    assert "scaled_product" in repr(kernel)
    with pytest.raises(TypeError, match=r"^b is an array of NumPy, but a is one of a GPU"):
        operators.matmul(a, np.ones((7, 2), np.float32))


def test_an_overlap_on_a_gpu_is_refused_before_anything_is_written():
    x = OnGpu(numbers(9))
    assert CUDA.overlap(OnGpu(x.array[:5]), OnGpu(x.array[4:])) and CUDA.overlap(x, OnGpu(x.array[::-1]))
    assert not CUDA.overlap(OnGpu(x.array[:5]), OnGpu(x.array[5:])) and not CUDA.overlap(x, OnGpu(x.array[:0]))
    with pytest.raises(ValueError, match=r"^out: it overlaps"):
        mixed(x, out=x)
    np.testing.assert_array_equal(x.array, numbers(9))


# ------------------------------------------------------------------------------------------------ looking inside


def test_specs_are_for_looking_only():
    x = spec("float32[100]")
    assert "Applied Vectorization" in str(mixed.lower(x).log)
    assert mixed.lower(x, x, target="cuda:sm_80").stages["unroll"]
    for call in (mixed, mixed.python, mixed.steps):
        with pytest.raises(TypeError, match="holds no data"):
            call(x)
    with pytest.raises(TypeError, match=r"^z is an array of NumPy, but x is one of spec"):
        mixed.lower(x, numbers(100))


def test_a_lowering_allocates_nothing_of_the_size_of_the_result():
    vast = spec("float32[1000000, 1000000]")
    assert operators.matmul.lower(vast, vast).stages["tiling"]


def test_plain_python_follows_the_same_plan():
    x, z = numbers(7), numbers(7)
    np.testing.assert_array_equal(mixed.python(x, z), 3 * x)
    assert mixed.python(x, out=x) is x
    np.testing.assert_array_equal(x, 2 * z)


def test_filled_arrays():
    operand = filled((2, 3), np.float32, 1.5)
    main = Step(print, ())
    run = written_out(Plan((), main, operand), ["x"], CUDA, [], None)
    np.testing.assert_array_equal(run(OnGpu(numbers(3))).array, np.full((2, 3), 1.5))
