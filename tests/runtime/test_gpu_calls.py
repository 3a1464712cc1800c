"""Calls with GPU arrays, on a machine without a GPU: arrays and launches are replaced by doubles on NumPy."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from pyschedule import tile, unroll, vectorize
from pyschedule.runtime import dispatch, gpu, lockstep
from pyschedule.runtime.cuda_launch import DeviceArray
from pyschedule.schedule import targets


class OnGpu:
    """NumPy memory that says it is on a GPU."""

    def __init__(self, array):
        self.array = array
        self.shape, self.dtype = array.shape, array.dtype

    @property
    def __cuda_array_interface__(self):
        return {**self.array.__array_interface__, "strides": self.array.strides, "version": 3}

    def __array_namespace__(self):
        return OnGpu

    @staticmethod
    def empty(shape, dtype):
        return OnGpu(np.full(shape, 77, dtype))


def memory(array: DeviceArray) -> np.ndarray:
    dtype = np.dtype(array.dtype)
    first, last = gpu._span(array)
    words = (
        np.frombuffer((ctypes.c_char * (last - first)).from_address(first), np.uint8)
        if last > first
        else np.zeros(0)
    )
    return np.ndarray(
        array.shape, dtype, words, array.pointer - first, tuple(step * dtype.itemsize for step in array.strides)
    )


class InLockstep:
    made = 0

    def __init__(self, make_program, compile_launch, calls, places):
        InLockstep.made += 1
        self.make_program = make_program

    def __call__(self, arrays, scalars):
        shapes = {name: array.shape for name, array in arrays.items()}
        strides = {name: array.strides for name, array in arrays.items()}
        program = self.make_program(32)
        if not program.fits(shapes, strides, scalars):
            program = self.make_program(64)
        return lockstep.run(program, {name: memory(array) for name, array in arrays.items()}, scalars).scalars


@pytest.fixture(autouse=True)
def double(monkeypatch):
    monkeypatch.setattr(gpu, "CudaKernel", InLockstep)
    monkeypatch.setattr(dispatch, "device_target", lambda: targets.cuda("sm_90"))


def add(x, y, out):
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = x[i, j] + y[i, j]


def kernel():
    return tile(i=2, j=32)(vectorize("j", 4)(add))


def grids(*dtypes):
    return [(np.arange(5 * 70) % 11).astype(dtype).reshape(5, 70) for dtype in dtypes]


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_arrays_on_a_gpu_run_there(dtype):
    x, y, out = grids(dtype, dtype, dtype)
    for _ in range(2):
        out[...] = 0
        kernel()(OnGpu(x), OnGpu(y), OnGpu(out))
        np.testing.assert_array_equal(out, x + y)


def test_strided_arrays_on_a_gpu():
    x, y, _ = grids("float32", "float32", "float32")
    out = np.zeros((70, 5), np.float32).T
    kernel()(OnGpu(x[::-1]), OnGpu(y), OnGpu(out))
    np.testing.assert_array_equal(out, x[::-1] + y)


def test_a_kernel_is_made_once_a_signature():
    x, y, out = grids("float32", "float32", "float32")
    once = kernel()
    before = InLockstep.made
    for _ in range(3):
        once(OnGpu(x), OnGpu(y), OnGpu(out))
    assert InLockstep.made == before + 1
    once(*(OnGpu(array[:3].copy()) for array in (x, y, out)))
    assert InLockstep.made == before + 1
    once(*(OnGpu(array[:, :64]) for array in (x, y, out)))
    assert InLockstep.made == before + 2


def test_what_a_kernel_returns():
    @unroll("i", 2)
    def doubled(x, n):
        y = np.zeros(x.shape[0], dtype=x.dtype)
        total = 0.0
        for i in range(n):
            y[i] = 2 * x[i]
            total += x[i]
        return y, total, x

    x = OnGpu(np.arange(9, dtype=np.float32))
    y, total, same = doubled(x, 7)
    assert isinstance(y, OnGpu) and same is x
    np.testing.assert_array_equal(y.array, [0, 2, 4, 6, 8, 10, 12, 0, 0])
    assert total == 21 and type(total) is np.float32


def test_the_checks_are_those_of_the_cpu():
    x, y, out = grids("float32", "float32", "float32")
    one = kernel()
    with pytest.raises(ValueError, match=r"^out: .* that of x"):
        one(OnGpu(out), OnGpu(y), OnGpu(out))
    with pytest.raises(ValueError, match=r"^y: axis 0 has extent 4"):
        one(OnGpu(x), OnGpu(y[:4]), OnGpu(out))
    with pytest.raises(TypeError, match=r"^y: it is a NumPy array"):
        one(OnGpu(x), y, OnGpu(out))
    frozen = out.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out: .* read-only"):
        one(OnGpu(x), OnGpu(y), OnGpu(frozen))


def test_specs_of_device_arrays():
    def spec(array):
        return gpu.device_spec(array, None)

    whole = DeviceArray(4096, (5, 8), (8, 1), "float32", False)
    assert spec(whole).contiguous and spec(whole).unit_axis == 1 and spec(whole).divisor == 4
    assert spec(DeviceArray(4100, (5, 8), (8, 1), "float32", False)).divisor == 1
    assert spec(DeviceArray(4096, (5, 6), (6, 1), "float32", False)).divisor == 2
    assert spec(DeviceArray(4096, (5, 8), (16, 1), "float16", False)).divisor == 8
    columns = spec(DeviceArray(4096, (8, 5), (1, 8), "float32", False))
    assert not columns.contiguous and columns.unit_axis == 0 and columns.divisor == 4
    assert spec(DeviceArray(4096, (8, 5), (10, 2), "float32", False)).unit_axis is None


def test_a_call_and_a_lowering_see_the_same_signature():
    x, y, out = grids("float32", "float32", "float32")
    lowering = kernel().lower(OnGpu(x), OnGpu(y), OnGpu(out))
    assert str(lowering.target) == "cuda:sm_90"


def test_machine_code_is_kept_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("PYSCHEDULE_CACHE_DIR", str(tmp_path))
    compiled = []

    def compile_launch(program, launch, target):
        compiled.append(launch.function)
        return b"code", "entry"

    monkeypatch.setattr(gpu, "compile_launch_for", compile_launch)
    x, y, out = grids("float32", "float32", "float32")
    lowering = kernel().lower(OnGpu(x), OnGpu(y), OnGpu(out))
    program = lowering.cuda_program
    (launch,) = program.launches
    for _ in range(2):
        assert gpu.compiled_launch(program, launch, lowering.target) == (b"code", "entry")
    assert compiled == [launch.function]
    (code,) = tmp_path.rglob("*.cubin")
    code.write_bytes(b"c0de")
    assert gpu.compiled_launch(program, launch, lowering.target) == (b"code", "entry")
    assert len(compiled) == 2
