"""Launching CUDA programs on a GPU, through `cuda.core`.

Takes any object with `__cuda_array_interface__` or `__dlpack__`, compiles a launch the first time a device
needs it, and launches on the stream that is given (the default stream otherwise).  After a program that checks
indices, its status word is read back, which waits for the stream.

A program that polls is waited for, so that Ctrl-C, timeouts and `cancel` can reach it.

This module has not run on a GPU yet: its tests replace the driver with a double.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from pyschedule.codegen.cuda_program import STATUS_WORDS, CudaProgram, Launch, Parameter
from pyschedule.ir.types import Scalar
from pyschedule.runtime import cuda_toolchain
from pyschedule.runtime.cancellation import Calls, Control, Interrupts, Places, wait
from pyschedule.schedule import targets
from pyschedule.schedule.targets import Target

_STATIC_LIMIT: Final = 48 << 10
_NUMPY_NAMES: Final = {"<f2": "float16", "<f4": "float32", "<f8": "float64", "|b1": "bool"}


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """What a launch needs of an array on the GPU.  `strides` count elements; `owner` keeps the memory alive."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    readonly: bool
    owner: Any = field(compare=False, default=None)


class Driver(Protocol):
    """The part of a GPU driver that launches need; tests put a double in its place."""

    def target(self) -> Target: ...
    def load(self, code: bytes, entry: str, dynamic_shared: int) -> Any: ...
    def launch(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        arguments: list[Any],
        stream: Any,
    ) -> None: ...
    def allocate(self, size: int, stream: Any, zero: bool) -> tuple[int, Any]: ...
    def read(self, memory: Any, size: int, stream: Any) -> bytes: ...
    def control(self) -> tuple[NDArray[np.int64], int]: ...
    def release(self, words: NDArray[np.int64], address: int) -> None: ...
    def record(self, stream: Any) -> Any: ...
    def reached(self, event: Any) -> bool: ...


# ------------------------------------------------------------------------------------------------ arrays


def is_device_array(value: Any) -> bool:
    """Whether a value lives on a GPU (a NumPy array has `__dlpack__` too, and does not)."""
    if hasattr(value, "__cuda_array_interface__"):
        return True
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and int(device()[0]) in (2, 13)


def device_array(value: Any, name: str) -> DeviceArray:
    """The memory of an argument; raises `TypeError` naming it where it is no array on a GPU."""
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_interface(value, interface, name)
    if is_device_array(value):
        return _from_dlpack(value, name)
    raise TypeError(f"argument {name!r}: expected an array on a GPU, got {type(value).__name__}")


def _from_interface(value: Any, interface: Mapping[str, Any], name: str) -> DeviceArray:
    text = interface["typestr"]
    dtype = _NUMPY_NAMES.get(text) or np.dtype(text).name
    size = Scalar(dtype).bytes
    shape = tuple(int(extent) for extent in interface["shape"])
    strides = interface.get("strides")
    if strides is None:
        steps, step = [], 1
        for extent in reversed(shape):
            steps.append(step)
            step *= extent
        elements = tuple(reversed(steps))
    else:
        if any(stride % size for stride in strides):
            raise ValueError(f"argument {name!r}: strides {tuple(strides)} are no multiples of {size} bytes")
        elements = tuple(int(stride) // size for stride in strides)
    pointer, readonly = interface["data"]
    return DeviceArray(int(pointer or 0), shape, elements, dtype, bool(readonly), value)


def _from_dlpack(value: Any, name: str) -> DeviceArray:
    """Through `cuda.core`, whose views read the DLPack capsule (bfloat16 comes this way)."""
    from cuda.core.utils import StridedMemoryView

    view = StridedMemoryView.from_dlpack(value, stream_ptr=-1)
    shape = tuple(int(extent) for extent in view.shape)
    strides = view.strides
    if strides is None:
        strides = tuple(int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape)))
    return DeviceArray(
        int(view.ptr), shape, tuple(map(int, strides)), str(np.dtype(view.dtype).name), bool(view.readonly), view
    )


# ---------------------------------------------------------------------------------------------- launching


@dataclass(slots=True)
class _Loaded:
    launch: Launch
    kernel: Any


class CudaKernel:
    """A CUDA program with its loaded machine code.

    `make_program(index_bits)` generates it: the 32-bit program first; the 64-bit one only when a call's
    arguments need it.  `compile_launch(program, launch, target)` returns machine code and its entry's name
    (the default compiles; a cache may stand in).  Calls of a program that polls are among `calls`, `places` says
    where its polls are; such a call waits until the GPU has ended it.
    """

    def __init__(
        self,
        make_program: Callable[[int], CudaProgram],
        driver: Driver | None = None,
        compile_launch: Callable[[CudaProgram, Launch, Target], tuple[bytes, str]] | None = None,
        calls: Calls | None = None,
        places: Places = (),
    ) -> None:
        self._make_program = make_program
        self._driver = driver
        self._compile = compile_launch or compile_launch_for
        self._calls = calls or Calls("the kernel")
        self._places = places
        self._programs: dict[int, CudaProgram] = {}
        self._loaded: dict[tuple[int, str], list[_Loaded]] = {}
        self._lock = threading.Lock()

    @property
    def driver(self) -> Driver:
        if self._driver is None:
            self._driver = CoreDriver()
        return self._driver

    def program(self, index_bits: int) -> CudaProgram:
        with self._lock:
            if index_bits not in self._programs:
                self._programs[index_bits] = self._make_program(index_bits)
            return self._programs[index_bits]

    def __call__(
        self, arrays: Mapping[str, DeviceArray], scalars: Mapping[str, Any], stream: Any = None
    ) -> tuple[Any, ...]:
        """Launches; returns the scalar results.  Raises `IndexError` for a checked index out of range, and what
        `Calls.settle` raises of a call that was stopped."""
        shapes = {name: array.shape for name, array in arrays.items()}
        strides = {name: array.strides for name, array in arrays.items()}
        program = self.program(32)
        for info in program.arrays:
            info.check(shapes[info.name], strides[info.name])
            if arrays[info.name].dtype != info.dtype:
                raise TypeError(f"argument {info.name!r}: expected {info.dtype}, got {arrays[info.name].dtype}")
        if not program.fits(shapes, strides, scalars):
            program = self.program(64)
        driver = self.driver
        bindings = program.bindings(shapes, scalars)
        pointers = {name: array.pointer for name, array in arrays.items()}
        kept: list[Any] = []
        empty = [name for name, array in arrays.items() if 0 in array.shape]
        if empty:  # a checked index of an empty array reads (and never writes) its element 0
            address, memory = driver.allocate(16, stream, True)
            kept.append(memory)
            pointers.update(dict.fromkeys(empty, address))
        for workspace in program.workspaces:
            values = {**bindings, "min": min, "max": max}
            shape = tuple(max(0, int(eval(text, {"__builtins__": {}}, values))) for text in workspace.shape)
            size = int(np.prod(shape, dtype=np.int64)) * Scalar(workspace.dtype).bytes
            pointers[workspace.name], memory = driver.allocate(max(16, size), stream, False)
            kept.append(memory)
            shapes[workspace.name] = shape
            strides[workspace.name] = tuple(
                int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))
            )
        status = driver.allocate(8 * STATUS_WORDS, stream, True) if program.has_status else (0, None)
        results = (
            driver.allocate(8 * len(program.scalar_results), stream, True) if program.scalar_results else (0, None)
        )
        launches = self._load(program)

        def launch(control: int) -> None:
            for loaded in launches:
                grid = loaded.launch.grid_size(bindings)
                if 0 in grid:
                    continue
                arguments = [
                    argument(parameter, pointers, shapes, strides, scalars, status[0], results[0], control)
                    for parameter in loaded.launch.parameters
                ]
                driver.launch(
                    loaded.kernel, grid, loaded.launch.threads, loaded.launch.dynamic_shared, arguments, stream
                )

        control = None
        if program.polls:
            control = self._watched(launch, stream)
        else:
            launch(0)
        if program.has_status:
            words = driver.read(status[1], 8 * STATUS_WORDS, stream)
            program.raise_for_status(np.frombuffer(words, np.int64).tolist())
        if control is not None:
            self._calls.settle(control)
        if not program.scalar_results:
            return ()
        data = driver.read(results[1], 8 * len(program.scalar_results), stream)
        return tuple(
            np.frombuffer(data, _result_dtype(dtype), 1, 8 * position)[0]
            for position, dtype in enumerate(program.scalar_results)
        )

    def _watched(self, launch: Callable[[int], None], stream: Any) -> Control:
        """Launches with a control array, and waits until the GPU is done with it."""
        driver = self.driver
        words, address = driver.control()
        control = self._calls.control(self._places, words)
        with self._calls.registered(control), Interrupts(control):
            try:
                launch(address)
            finally:  # also where some launches were refused: those before them may run
                wait(control, _event(driver, driver.record(stream)))
        told = Control(self._places, control.timeout, words.copy())  # as the array is used again
        told.reason = control.reason
        driver.release(words, address)
        return told

    def _load(self, program: CudaProgram) -> list[_Loaded]:
        target = self.driver.target()
        key = (program.index_bits, str(target))
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = [self._load_one(program, launch, target) for launch in program.launches]
            return self._loaded[key]

    def _load_one(self, program: CudaProgram, launch: Launch, target: Target) -> _Loaded:
        code, entry = self._compile(program, launch, target)
        return _Loaded(launch, self.driver.load(code, entry, launch.dynamic_shared))


def _event(driver: Driver, event: Any) -> Callable[[float], bool]:
    """Asks whether the GPU has come to an event, ever less often."""
    pause = 1e-5

    def reached(seconds: float) -> bool:
        nonlocal pause
        if driver.reached(event):
            return True
        time.sleep(min(seconds, pause))
        pause = min(2 * pause, 1e-3)
        return False

    return reached


def _result_dtype(dtype: Scalar) -> np.dtype[Any]:
    return np.dtype(np.float32) if dtype.is_half else np.dtype(dtype.name)


def argument(
    parameter: Parameter,
    pointers: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    strides: Mapping[str, tuple[int, ...]],
    scalars: Mapping[str, Any],
    status: int,
    results: int,
    control: int = 0,
) -> Any:
    """One argument as a NumPy scalar of the type the kernel takes."""
    if parameter.kind == "pointer":
        return np.uint64(pointers[parameter.array])
    if parameter.kind in ("status", "results", "control"):
        return np.uint64({"status": status, "results": results, "control": control}[parameter.kind])
    dtype = np.dtype(parameter.type.name).type
    if parameter.kind == "extent":
        return dtype(shapes[parameter.array][parameter.axis])
    if parameter.kind == "stride":
        return dtype(strides[parameter.array][parameter.axis])
    return dtype(scalars[parameter.array])


def compile_launch_for(program: CudaProgram, launch: Launch, target: Target) -> tuple[bytes, str]:
    """Machine code and the entry's name, through the installed toolchain."""
    ptx = cuda_toolchain.compile_ptx(program, launch, target)
    code, _ = cuda_toolchain.cubin(ptx, target.arch)
    return code, cuda_toolchain.entry_name(ptx)


class CoreDriver:
    """The real driver: the current device, through `cuda.core`."""

    def __init__(self) -> None:
        try:
            from cuda.core import Device
        except ImportError as error:
            raise cuda_toolchain.CudaToolsMissingError("cuda-core") from error
        self._device = Device()
        self._device.set_current()
        self._controls: list[tuple[NDArray[np.int64], int]] = []

    def target(self) -> Target:
        major, minor = self._device.compute_capability
        return targets.cuda(f"sm_{major}{minor}")

    def load(self, code: bytes, entry: str, dynamic_shared: int) -> Any:
        from cuda.core import ObjectCode

        kernel = ObjectCode.from_cubin(code).get_kernel(entry)
        if dynamic_shared > _STATIC_LIMIT:
            from cuda.bindings import driver

            attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            (error,) = driver.cuKernelSetAttribute(
                attribute, dynamic_shared, driver.CUkernel(int(kernel.handle)), self._device.device_id
            )
            if int(error):
                raise RuntimeError(f"the device refuses {dynamic_shared} bytes of shared memory a block: {error}")
        return kernel

    def _stream(self, stream: Any) -> Any:
        return self._device.default_stream if stream is None else stream

    def launch(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        arguments: list[Any],
        stream: Any,
    ) -> None:
        from cuda.core import LaunchConfig, launch

        launch(self._stream(stream), LaunchConfig(grid=grid, block=block, shmem_size=shared), kernel, *arguments)

    def allocate(self, size: int, stream: Any, zero: bool) -> tuple[int, Any]:
        where = self._stream(stream)
        memory = self._device.allocate(size, stream=where)
        if zero:
            memory.fill(0, stream=where)
        return int(memory.handle), memory

    def read(self, memory: Any, size: int, stream: Any) -> bytes:
        from cuda.bindings import driver

        self._stream(stream).sync()
        data = np.empty(size, np.uint8)
        (error,) = driver.cuMemcpyDtoH(data.ctypes.data, int(memory.handle), size)
        if int(error):
            raise RuntimeError(f"reading {size} bytes from the device failed: {error}")
        return data.tobytes()

    def control(self) -> tuple[NDArray[np.int64], int]:
        """A control array of zeros in memory of the host that the device reaches, and its address there."""
        try:
            words, address = self._controls.pop()
        except IndexError:
            words, address = self._mapped()
        words[:] = 0
        return words, address

    def release(self, words: NDArray[np.int64], address: int) -> None:
        """Takes back a control array that no launch uses any more."""
        self._controls.append((words, address))

    @staticmethod
    def _mapped() -> tuple[NDArray[np.int64], int]:
        """Such an array, which stays for the life of the process: there are as many as calls at one time."""
        from cuda.bindings import driver

        size = 64
        flags = driver.CU_MEMHOSTALLOC_DEVICEMAP | driver.CU_MEMHOSTALLOC_PORTABLE
        error, memory = driver.cuMemHostAlloc(size, flags)
        if int(error):
            raise RuntimeError(f"the device gives no memory of the host that both can reach: {error}")
        error, address = driver.cuMemHostGetDevicePointer(memory, 0)
        if int(error):
            raise RuntimeError(f"the device cannot reach memory of the host: {error}")
        held = (ctypes.c_int64 * 2).from_address(int(memory))
        words: NDArray[np.int64] = np.ctypeslib.as_array(held)
        return words, int(address)

    def record(self, stream: Any) -> Any:
        """An event behind what was launched so far."""
        return self._stream(stream).record()

    def reached(self, event: Any) -> bool:
        return bool(event.is_done)
