"""What many tests need: running a kernel on either target, comparing with plain Python, and slack around arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pyschedule.ir.nodes import Array
from pyschedule.ir.types import element_of
from pyschedule.runtime import binding, hostcode

TARGETS = ("cpu", "cuda")

#: The test runs once a target: compiled on the CPU, and the generated CUDA source in lockstep on NumPy.
on_every_target = pytest.mark.parametrize("target", TARGETS)


def call(kernel: Any, *args: Any, target: str = "cpu") -> Any:
    """The kernel's result on a target; arrays are written in place."""
    return kernel(*args) if target == "cpu" else _in_lockstep(kernel, args)


def _in_lockstep(kernel: Any, args: tuple[Any, ...]) -> Any:
    """Runs the generated CUDA program on NumPy, with its checks for races, bounds and barriers."""
    from pyschedule.codegen import numba_cuda
    from pyschedule.runtime import lockstep

    bound = inspect.signature(kernel.python).bind(*args)
    bound.apply_defaults()
    args = tuple(bound.arguments.values())
    lowering = kernel.lower(*bound.args, **bound.kwargs, target="cuda:sm_80")
    scheduled = lowering.kernel
    given = iter(args)
    values = {param.name: next(given) for param in scheduled.params if param.name not in scheduled.outputs}
    arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
    for array in scheduled.array_params:
        if array.name in scheduled.outputs:
            arrays[array.name] = _output(array, values)
    scalars = {name: value for name, value in values.items() if name not in arrays}
    strides = {name: tuple(step // array.itemsize for step in array.strides) for name, array in arrays.items()}
    program = lowering.cuda_program
    if not program.fits({name: array.shape for name, array in arrays.items()}, strides, scalars):
        program = numba_cuda.generate(scheduled, lowering.target, index_bits=64)
    result = lockstep.run(program, arrays, scalars)
    returned = tuple(result.scalars[at] if isinstance(at, int) else arrays[at] for at in scheduled.returns)
    return returned if len(returned) > 1 else returned[0] if returned else None


def _output(array: Array, values: dict[str, Any]) -> np.ndarray:
    """The array that the runtime would allocate for a result, full of markers."""
    dtype = np.dtype(element_of(array.dtype).name)
    shape = tuple(int(binding.evaluate(hostcode.python_source(extent), values)) for extent in array.shape)
    return np.full(shape, _marker(dtype), dtype)


def sizes_around(*factors: int) -> list[int]:
    """The sizes at which tails go wrong: none, one, beside each factor and its double, and a prime."""
    sizes = {0, 1, 37}
    for factor in factors:
        sizes |= {factor - 1, factor, factor + 1, 2 * factor - 1}
    return sorted(size for size in sizes if size >= 0)


def _marker(dtype: np.dtype[Any]) -> Any:
    return np.nan if dtype.kind == "f" else 77


def _same(left: Any, right: Any) -> bool:
    return bool(np.array_equal(left, right, equal_nan=np.asarray(left).dtype.kind == "f"))


def inside_slack(array: np.ndarray, slack: int = 64) -> tuple[np.ndarray, Callable[[], bool]]:
    """A copy of a C-contiguous array in the middle of markers, and a function: are they all still there?"""
    buffer = np.full(array.size + 2 * slack, _marker(array.dtype), array.dtype)
    view = buffer[slack : slack + array.size].reshape(array.shape)
    view[...] = array
    edges = np.concatenate([buffer[:slack], buffer[buffer.size - slack :]])
    return view, lambda: _same(edges, np.concatenate([buffer[:slack], buffer[buffer.size - slack :]]))


def nan_around(array: np.ndarray) -> np.ndarray:
    """The array as a view inside a larger array of NaNs, so that rows have NaNs behind them too."""
    outer = np.full(tuple(extent + 6 for extent in array.shape), np.nan, array.dtype)
    view = outer[tuple(slice(3, 3 + extent) for extent in array.shape)]
    view[...] = array
    return view


def agrees(kernel: Any, *args: Any, target: str = "cpu", rtol: float = 0.0) -> tuple[Any, ...]:
    """Runs kernel and undecorated function on the same arguments, asserts that all arrays and results agree.

    Exactly, unless `rtol` is given.  The kernel gets contiguous arrays as copies inside slack, which must stay
    intact, and other views as they are.  Returns the arguments after the kernel's run.
    """
    plain = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
    guarded = [
        inside_slack(arg) if isinstance(arg, np.ndarray) and arg.flags.c_contiguous else (arg, lambda: True)
        for arg in args
    ]
    expected = kernel.python(*plain)
    result = call(kernel, *(arg for arg, _ in guarded), target=target)
    assert all(intact() for _, intact in guarded), "something outside the arguments was written"
    for (got, _), wanted in zip(guarded, plain, strict=True):
        if isinstance(wanted, np.ndarray):
            np.testing.assert_allclose(got, wanted, rtol=rtol)
    if expected is not None:
        np.testing.assert_allclose(result, expected, rtol=rtol)
    return tuple(arg for arg, _ in guarded)
