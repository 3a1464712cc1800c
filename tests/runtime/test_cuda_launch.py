"""Launching, with a double in place of the driver: the lockstep executor would be one too, but here the
arguments and their order are what is looked at."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyschedule.codegen.numba_cuda import generate
from pyschedule.errors import KernelCancelled, KernelTimeout
from pyschedule.ir.build import const
from pyschedule.ir.nodes import For, Kernel, Poll
from pyschedule.runtime.cancellation import Calls
from pyschedule.runtime.cuda_launch import CudaKernel, DeviceArray, device_array, is_device_array
from pyschedule.schedule.targets import Target, cuda
from tests.codegen.cuda_support import SM80, elementwise, load, loop, param, store, var
from tests.codegen.test_cuda_mapping import results_kernel
from tests.codegen.test_cuda_memory import checked


class FakeDriver:
    """Records launches; memory is numbered, and reads give what `answers` holds."""

    def __init__(self, answers: dict[int, bytes] | None = None) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.loaded: list[tuple[bytes, str, int]] = []
        self.allocated: list[tuple[int, bool]] = []
        self.answers = answers or {}

    def target(self) -> Target:
        return cuda("sm_90")

    def load(self, code: bytes, entry: str, dynamic_shared: int) -> Any:
        self.loaded.append((code, entry, dynamic_shared))
        return entry

    def launch(self, kernel: Any, grid: Any, block: Any, shared: int, arguments: list[Any], stream: Any) -> None:
        self.launches.append((kernel, grid, block, shared, arguments, stream))

    def allocate(self, size: int, stream: Any, zero: bool) -> tuple[int, Any]:
        self.allocated.append((size, zero))
        return 4096 * len(self.allocated), len(self.allocated)

    def read(self, memory: Any, size: int, stream: Any) -> bytes:
        return self.answers.get(memory, bytes(size))


def made(kernel: Kernel, driver: FakeDriver) -> CudaKernel:
    return CudaKernel(
        lambda bits: generate(kernel, SM80, bits),
        driver,
        lambda program, launch, target: (launch.function.encode(), f"{launch.function}_{program.index_bits}"),
    )


def on_device(*shape: int, pointer: int = 1 << 20, dtype: str = "float32", strides: Any = None) -> DeviceArray:
    steps = strides or tuple(int(np.prod(shape[axis + 1 :])) for axis in range(len(shape)))
    return DeviceArray(pointer, shape, steps, dtype, False)


def test_grid_block_and_arguments() -> None:
    driver = FakeDriver()
    launch = made(elementwise(32), driver)
    for _ in range(2):
        assert launch({"X": on_device(100, pointer=64), "Y": on_device(100, pointer=1024)}, {}, stream="s") == ()
    assert len(driver.loaded) == 1, "compiled and loaded once"
    kernel, grid, block, shared, arguments, stream = driver.launches[1]
    assert (kernel, grid, block, shared, stream) == ("elementwise_i_32", (4, 1, 1), (32, 1, 1), 0, "s")
    parameters = launch.program(32).launches[0].parameters
    named = {parameter.name: value for parameter, value in zip(parameters, arguments, strict=True)}
    assert named == {"X_shape0": 100, "X": 64, "Y": 1024}
    assert named["X"].dtype == np.uint64
    assert named["X_shape0"].dtype == np.uint32


def test_nothing_is_launched_for_nothing() -> None:
    driver = FakeDriver()
    made(elementwise(32), driver)({"X": on_device(0), "Y": on_device(0)}, {})
    assert driver.launches == []


def test_large_arguments_take_the_64_bit_program() -> None:
    driver = FakeDriver()
    launch = made(elementwise(32), driver)
    launch({"X": on_device(1 << 33), "Y": on_device(1 << 33)}, {})
    assert driver.launches[0][0] == "elementwise_i_64"
    assert driver.launches[0][4][0].dtype == np.int64


def test_arguments_of_another_layout_or_type_are_refused() -> None:
    launch = made(elementwise(32), FakeDriver())
    with pytest.raises(ValueError, match=r"'X'.*stride of 1"):
        launch({"X": on_device(8, strides=(2,)), "Y": on_device(8)}, {})
    with pytest.raises(TypeError, match="'Y': expected float32"):
        launch({"X": on_device(8), "Y": on_device(8, dtype="float64")}, {})


def test_the_status_word_raises() -> None:
    arrays = {"I": on_device(4, dtype="int64"), "X": on_device(4), "Y": on_device(4)}
    driver = FakeDriver()
    made(checked(), driver)(arrays, {})
    assert driver.allocated == [(24, True)]
    words = np.array([1, -7, 4], np.int64).tobytes()
    with pytest.raises(IndexError, match="index -7 is out of bounds for an axis of extent 4"):
        made(checked(), FakeDriver({1: words}))(arrays, {})


def test_an_empty_array_gets_memory_that_a_checked_index_may_read() -> None:
    driver = FakeDriver()
    made(checked(), driver)({"I": on_device(4, dtype="int64"), "X": on_device(0, pointer=0), "Y": on_device(4)}, {})
    arguments = driver.launches[0][4]
    assert 0 not in [int(value) for value in arguments if value.dtype == np.uint64]


def test_scalar_results_come_back_in_their_types() -> None:
    answer = np.float32(2.5).tobytes() + bytes(4) + np.int64(-1).tobytes() + b"\1" + bytes(7)
    driver = FakeDriver({1: answer})
    results = made(results_kernel(), driver)({"X": on_device(3)}, {})
    assert results == (np.float32(2.5), np.int64(-1), np.bool_(True))


def test_scalars_are_passed_by_value() -> None:
    n = var("n")
    kernel = Kernel(
        "k", (param("X"), n), (loop("i", 0, n, store("X", var("i"), load("X", var("i"))), mapping="block.x"),)
    )
    driver = FakeDriver()
    made(kernel, driver)({"X": on_device(8)}, {"n": 5})
    assert driver.launches[0][1] == (5, 1, 1)
    made(kernel, driver)({"X": on_device(8)}, {"n": -3})
    assert len(driver.launches) == 1


class OnGpu:
    def __init__(self, **interface: Any) -> None:
        self.__cuda_array_interface__ = {"version": 3, "data": (256, False), "strides": None, **interface}


def test_the_cuda_array_interface() -> None:
    array = device_array(OnGpu(shape=(3, 4), typestr="<f2"), "A")
    assert (array.pointer, array.shape, array.strides, array.dtype) == (256, (3, 4), (4, 1), "float16")
    turned = device_array(OnGpu(shape=(3, 4), typestr="<i8", strides=(8, 24), data=(512, True)), "A")
    assert (turned.strides, turned.dtype, turned.readonly) == ((1, 3), "int64", True)
    with pytest.raises(ValueError, match=r"'A'.*multiples of 4"):
        device_array(OnGpu(shape=(3,), typestr="<f4", strides=(6,)), "A")
    with pytest.raises(TypeError, match="'A'"):
        device_array(np.zeros(3), "A")
    assert is_device_array(OnGpu(shape=(3,), typestr="<f4"))
    assert not is_device_array(np.zeros(3))


# ---------------------------------------------------------------------------------------- calls that are stopped


class PollingDriver(FakeDriver):
    """A GPU that works until it is asked to stop, or for so many looks at its event.

    When asked it reports poll 1 at 4096; `busy` is called at each look.
    """

    def __init__(self, looks: int | None, busy: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self.words = np.zeros(2, np.int64)
        self.given: list[int] = []
        self.returned = 0
        self.looks = looks
        self.busy = busy

    def control(self) -> tuple[Any, int]:
        self.words[:] = 0
        return self.words, 0xC000

    def release(self, words: Any, address: int) -> None:
        assert words is self.words
        self.returned += 1

    def record(self, stream: Any) -> Any:
        return "event"

    def reached(self, event: Any) -> bool:
        self.busy()
        if self.words[0]:
            self.words[1] = 4096 * 65536 + 1
            return True
        if self.looks is None:
            return False
        self.looks -= 1
        return self.looks < 0


def polling(driver: PollingDriver, calls: Calls) -> CudaKernel:
    nest = elementwise(32)
    check = Poll(1, ("loop 'k' at {} of {}",), (const(0), const(9)))
    (launch,) = nest.body
    assert isinstance(launch, For)
    polled = dataclasses.replace(nest, body=(dataclasses.replace(launch, body=(check, *launch.body)),))
    return CudaKernel(
        lambda bits: generate(polled, SM80, bits),
        driver,
        lambda program, launch, target: (launch.function.encode(), launch.function),
        calls,
        (check.places,),
    )


ARRAYS = {"X": on_device(100, pointer=64), "Y": on_device(100, pointer=1024)}


def test_a_kernel_that_polls_is_given_its_control_array_and_waited_for() -> None:
    driver = PollingDriver(looks=3)
    assert polling(driver, Calls("k"))(ARRAYS, {}) == ()
    (launched,) = driver.launches
    assert launched[4].count(np.uint64(0xC000)) == 1
    assert driver.looks == -1, "waited until the event was reached"
    assert driver.returned == 1


def test_cancel_reaches_a_gpu() -> None:
    calls = Calls("k")
    driver = PollingDriver(looks=None, busy=calls.cancel)
    with pytest.raises(KernelCancelled, match="k was cancelled in loop 'k' at 4096 in one of its threads"):
        polling(driver, calls)(ARRAYS, {})
    assert driver.returned == 1


def test_a_timeout_reaches_a_gpu() -> None:
    calls = Calls("k")
    with pytest.raises(KernelTimeout, match=r"k was stopped after 0.05 s, in loop 'k' at 4096"), calls.within(0.05):
        polling(PollingDriver(looks=None), calls)(ARRAYS, {})


def test_ctrl_c_reaches_a_gpu() -> None:
    pressed: list[None] = []

    def press() -> None:
        if not pressed:
            pressed.append(None)
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="k was interrupted in loop 'k' at 4096"):
        polling(PollingDriver(looks=None, busy=press), Calls("k"))(ARRAYS, {})


def test_a_call_that_the_gpu_ends_first_is_not_lost() -> None:
    calls = Calls("k")
    driver = PollingDriver(looks=0)
    driver.busy = lambda: None

    def late(event: Any) -> bool:
        calls.cancel()
        return True

    driver.reached = late  # type: ignore[method-assign]
    assert polling(driver, calls)(ARRAYS, {}) == ()


def test_a_launch_that_is_refused_is_an_error_after_those_before_it_have_ended() -> None:
    driver = PollingDriver(looks=None)

    def refuse(*args: Any) -> None:
        driver.looks = 2
        raise RuntimeError("no launch")

    driver.launch = refuse  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="no launch"):
        polling(driver, Calls("k"))(ARRAYS, {})
    assert driver.looks == -1
