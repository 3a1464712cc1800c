"""Calls with arrays that live on a GPU: the same checks as on the CPU, then launches.

Any object with `__cuda_array_interface__`, or `__dlpack__` on a CUDA device, is an array; arrays that the kernel
returns are made by the library of the first argument (PyTorch, CuPy, or Numba's).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pyschedule.ir.arithmetic import numpy_dtype
from pyschedule.ir.signature import ArgumentSpec, ArraySpec, Signature
from pyschedule.ir.types import Scalar
from pyschedule.runtime import binding, cache
from pyschedule.runtime import signature as arguments
from pyschedule.runtime.cancellation import Calls
from pyschedule.runtime.cuda_launch import CudaKernel, DeviceArray, compile_launch_for, device_array
from pyschedule.runtime.warn import logger

if TYPE_CHECKING:
    from pyschedule.codegen.cuda_program import CudaProgram, Launch
    from pyschedule.runtime.lowering import Definition
    from pyschedule.runtime.plan import Plan
    from pyschedule.runtime.specialisations import Specialisations
    from pyschedule.schedule.targets import Target

#: The widest access, which alignment is worth knowing for.
_ACCESS_BYTES = 16


class GpuCalls:
    """The calls of one kernel on the current device."""

    def __init__(
        self,
        definition: Definition,
        specialisations: Specialisations,
        parameters: arguments.Parameters,
        calls: Calls,
    ) -> None:
        self._definition = definition
        self._specialisations = specialisations
        self._parameters = parameters
        self._calls = calls
        self._kernels: dict[tuple[Signature, Target], CudaKernel] = {}

    def call(self, values: tuple[Any, ...], target: Target) -> Any:
        """Runs the kernel; raises before any launch where an argument does not fit."""
        arrays: dict[str, DeviceArray] = {}
        scalars: dict[str, Any] = {}
        specs: list[ArgumentSpec] = []
        for name, value in zip(self._parameters.names, values, strict=True):
            if name in self._parameters.arrays or arguments.is_cuda(value):  # some are only returned
                arrays[name] = device_array(value, name)
                fixed = self._definition.fixed_shape(name)
                arguments.check_block_shape(name, fixed, arrays[name].shape)
                specs.append(device_spec(arrays[name], fixed))
            else:
                number = arguments.as_scalar(value, name)
                arguments.check_range(number, name)
                specs.append(arguments.scalar_spec(number))
                scalars[name] = arguments.passed_scalar(number)
        signature = Signature(tuple(specs))
        plan = self._specialisations.plan(signature, target).plan
        named = {**arrays, **scalars}
        if not binding.hold(plan.assumptions, named):
            signature = replace(signature, checked=True)
            plan = self._specialisations.plan(signature, target).plan
        self._check(plan, arrays, scalars)
        given = dict(zip(self._parameters.names, values, strict=True))
        for output in plan.outputs:
            shape = tuple(int(binding.evaluate(extent, named)) for extent in output.shape)
            given[output.name] = _empty(next((given[name] for name in arrays), None), shape, output.dtype)
            arrays[output.name] = device_array(given[output.name], output.name)
        results = self._kernel(plan, signature, target)(arrays, scalars)
        returned = [
            given[item] if isinstance(item, str) else _number(results[item], plan.results[item])
            for item in plan.returns
        ]
        return None if not returned else returned[0] if len(returned) == 1 else tuple(returned)

    def _check(self, plan: Plan, arrays: dict[str, DeviceArray], scalars: dict[str, Any]) -> None:
        for name in plan.written:
            if arrays[name].readonly:
                raise ValueError(f"{name}: the kernel writes it, and it is read-only")
            for other, array in arrays.items():
                if other != name and _overlap(arrays[name], array):
                    raise ValueError(
                        f"{name}: the kernel writes it, and its memory reaches into that of {other}; pass a copy"
                    )
        for index in range(len(plan.tests)):
            binding.require(plan, index, {**arrays, **scalars})

    def _kernel(self, plan: Plan, signature: Signature, target: Target) -> CudaKernel:
        key = (signature, target)
        kernel = self._kernels.get(key)
        if kernel is None:

            def program(index_bits: int) -> CudaProgram:
                if index_bits == 32 and plan.cuda is not None:
                    return plan.cuda
                return self._specialisations.lowering(signature, target).cuda_program_of(index_bits)

            made = CudaKernel(program, compile_launch=compiled_launch, calls=self._calls, places=plan.polls)
            kernel = self._kernels.setdefault(key, made)
        return kernel


def device_spec(array: DeviceArray, fixed: tuple[int | None, ...] | None) -> ArraySpec:
    """What a GPU kernel specialises by: beside dtype, rank and layout, how far addresses are aligned."""
    rank = len(array.shape)
    expected, contiguous = 1, True
    for extent, stride in zip(reversed(array.shape), reversed(array.strides), strict=True):
        contiguous &= extent == 1 or stride == expected
        expected *= extent
    contiguous |= 0 in array.shape
    if contiguous:
        unit_axis = rank - 1 if rank else None
    else:
        unit_axis = next((axis for axis in reversed(range(rank)) if array.strides[axis] == 1), None)
    size = Scalar(array.dtype).bytes
    divisor = max(1, _ACCESS_BYTES // size)
    if array.pointer % size:
        raise ValueError("an array on the GPU is not aligned to its elements; pass a copy")
    divisor = math.gcd(divisor, array.pointer // size)
    for axis, stride in enumerate(array.strides):
        if axis != unit_axis and array.shape[axis] != 1:
            divisor = math.gcd(divisor, stride)
    return ArraySpec(array.dtype, fixed or (None,) * rank, unit_axis, contiguous, max(1, divisor))


def _span(array: DeviceArray) -> tuple[int, int]:
    """The first byte of an array and the one after its last."""
    if 0 in array.shape:
        return array.pointer, array.pointer
    size = Scalar(array.dtype).bytes
    low = high = 0
    for extent, stride in zip(array.shape, array.strides, strict=True):
        reach = (extent - 1) * stride * size
        low, high = low + min(reach, 0), high + max(reach, 0)
    return array.pointer + low, array.pointer + high + size


def _overlap(one: DeviceArray, other: DeviceArray) -> bool:
    (first, last), (begin, end) = _span(one), _span(other)
    return first < end and begin < last


def _empty(like: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array on the GPU, of the kind that `like` is."""
    if hasattr(like, "new_empty"):  # PyTorch
        import importlib

        return like.new_empty(shape, dtype=getattr(importlib.import_module("torch"), dtype))
    if hasattr(like, "__array_namespace__"):
        return like.__array_namespace__().empty(shape, dtype=numpy_dtype(dtype))
    from numba import cuda

    return cuda.device_array(shape, numpy_dtype(dtype))


def _number(value: Any, scalar: Scalar) -> Any:
    return value.item() if scalar.weak else numpy_dtype(scalar.name).type(value)


# ------------------------------------------------------------------------------------ machine code on disk


def compiled_launch(program: CudaProgram, launch: Launch, target: Target) -> tuple[bytes, str]:
    """The machine code of a launch and its entry's name, from the on-disk cache where it is there."""
    from importlib.metadata import version

    key = cache.digest_of(
        cache.environment_digest(), version("numba-cuda"), program.source, repr(launch), str(target)
    )
    entry = cache.Entry.at(key)
    found = entry.load_binary(launch.function)
    if found is not None:
        logger.info("%s: machine code loaded (cache hit %s)", launch.function, key[:12])
        return found
    made = compile_launch_for(program, launch, target)
    logger.info("%s: compiled for %s (cache miss %s)", launch.function, target, key[:12])
    entry.save_binary(launch.function, *made)
    return made


def check_host(values: tuple[Any, ...], parameters: arguments.Parameters) -> None:
    """`TypeError` where some arrays are on the GPU and others are not."""
    for name, value in zip(parameters.names, values, strict=True):
        if name in parameters.arrays and isinstance(value, np.ndarray):
            raise TypeError(f"{name}: it is a NumPy array, but others are on the GPU; move it there or them here")
