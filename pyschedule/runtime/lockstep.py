"""CUDA programs without a GPU: the generated source itself, run block by block on NumPy.

All threads of a block go through the source in lockstep: a local is a vector with one entry a thread, control
flow that differs between threads runs under a mask.  This is how tests run CUDA kernels.  Beyond results it
checks what a GPU does not: accesses out of bounds, misaligned vector accesses, barriers that some threads do
not reach, races in shared memory and between threads and blocks in global memory, and variables whose type
Numba would have to guess.

It is an executor for small sizes: a launch of a few thousand threads takes well under a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyschedule.codegen.cuda_program import STATUS_WORDS, CudaProgram, Launch
from pyschedule.runtime.lockstep_interpreter import Function, functions_of
from pyschedule.runtime.lockstep_memory import (
    BarrierDivergenceError,
    Buffer,
    Clock,
    Control,
    LockstepError,
    MisalignedError,
    OutOfBoundsError,
    RaceError,
    Word,
    global_buffer,
    poison,
    stored_dtype,
)

__all__ = [
    "BarrierDivergenceError",
    "LockstepError",
    "MisalignedError",
    "OutOfBoundsError",
    "RaceError",
    "Result",
    "run",
]


@dataclass(frozen=True, slots=True)
class Result:
    """`scalars`: the kernel's scalar results, in order.  `blocks`: how many blocks ran, in all launches.  `left`:
    word 1 of the control array, not 0 where the program was stopped.  `looks`: how often blocks looked at it."""

    scalars: tuple[Any, ...]
    blocks: int
    left: int = 0
    looks: int = 0


def run(
    program: CudaProgram,
    arrays: Mapping[str, NDArray[Any]],
    scalars: Mapping[str, Any] | None = None,
    stop_at: int | None = None,
) -> Result:
    """Runs a program on NumPy arrays, in place; a program that polls is stopped at its `stop_at`-th look.

    Raises `IndexError` where a checked index is out of range, `ValueError` where the arguments do not fit the
    program (see `CudaProgram.fits`), and the `LockstepError`s where the code is at fault.
    """
    values = dict(scalars or {})
    shapes = {info.name: arrays[info.name].shape for info in program.arrays}
    strides = {
        info.name: tuple(step // arrays[info.name].itemsize for step in arrays[info.name].strides)
        for info in program.arrays
    }
    for info in program.arrays:
        info.check(shapes[info.name], strides[info.name])
    if not program.fits(shapes, strides, values):
        raise ValueError("these arguments need a program of index_bits=64")
    bindings = program.bindings(shapes, values)
    buffers = {info.name: global_buffer(info.name, arrays[info.name], info.dtype) for info in program.arrays}
    for workspace in program.workspaces:
        shape = tuple(max(0, _evaluate(text, bindings)) for text in workspace.shape)
        memory = np.empty(shape, stored_dtype(workspace.dtype))
        poison(memory)
        buffers[workspace.name] = Buffer(workspace.name, memory.reshape(-1))
        shapes[workspace.name] = shape
        strides[workspace.name] = tuple(
            int(np.prod(shape[axis + 1 :], dtype=np.int64)) for axis in range(len(shape))
        )
    status = Word("status", np.zeros(STATUS_WORDS, np.int64))
    results = Word("results", np.zeros(8 * max(1, len(program.scalar_results)), np.uint8))
    control = Control(stop_at)
    functions = functions_of(program.source)
    blocks = 0
    with np.errstate(all="ignore"):
        for launch in program.launches:
            arguments = [
                _argument(parameter, buffers, shapes, strides, values, status, results, control)
                for parameter in launch.parameters
            ]
            blocks += _launch(functions[launch.function], launch, arguments, bindings, buffers)
    program.raise_for_status(status.data.tolist())
    found = tuple(
        results.data[8 * n :].view(stored_dtype_of(dtype.name))[0] for n, dtype in enumerate(program.scalar_results)
    )
    return Result(found, blocks, int(control.data[1]), control.looks)


def stored_dtype_of(dtype: str) -> np.dtype[Any]:
    """The type of a scalar result: as it is computed (halves as float32)."""
    from pyschedule.runtime.lockstep_ops import held_dtype

    return held_dtype(dtype)


def _evaluate(text: str, bindings: Mapping[str, Any]) -> int:
    return int(eval(text, {"__builtins__": {}}, {**bindings, "min": min, "max": max}))


def _argument(
    parameter: Any,
    buffers: Mapping[str, Buffer],
    shapes: Mapping[str, tuple[int, ...]],
    strides: Mapping[str, tuple[int, ...]],
    scalars: Mapping[str, Any],
    status: Word,
    results: Word,
    control: Control,
) -> Any:
    if parameter.kind == "pointer":
        return buffers[parameter.array]
    if parameter.kind == "status":
        return status
    if parameter.kind == "results":
        return results
    if parameter.kind == "control":
        return control
    dtype = np.dtype(parameter.type.name)
    if parameter.kind == "extent":
        return dtype.type(shapes[parameter.array][parameter.axis])
    if parameter.kind == "stride":
        return dtype.type(strides[parameter.array][parameter.axis])
    return dtype.type(scalars[parameter.array])


def _launch(
    function: Function,
    launch: Launch,
    arguments: list[Any],
    bindings: Mapping[str, Any],
    buffers: Mapping[str, Buffer],
) -> int:
    grid = launch.grid_size(bindings)
    if 0 in grid:
        return 0
    for buffer in buffers.values():
        buffer.start_launch()
    clock = Clock(launch.threads_per_block)
    number = 0
    for z in range(grid[2]):
        for y in range(grid[1]):
            for x in range(grid[0]):
                clock.next_block(number)
                function.run_block(arguments, launch.threads, (x, y, z), grid, clock)
                number += 1
    return number
