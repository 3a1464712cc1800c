"""The LLVM text that NVVM gets, run on the CPU.

Lockstep runs the generated Python; this runs what Numba and the intrinsics of `codegen.ptx` make of it, for
programs of a single thread.  Pointers lose their pointee types (NVVM's LLVM is old), names of libdevice are
bound to the C library's functions.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import re
from collections.abc import Mapping
from typing import Any

import llvmlite.binding as llvm
import numpy as np

from pyschedule.codegen.cuda_program import CudaProgram
from pyschedule.runtime import cuda_toolchain

from .cuda_support import SM80

_POINTER = re.compile(
    r"(?:<[^<>]*>|\{[^{}]*\}|\[[^\[\]]*\]|\bi\d+|\bfloat|\bdouble|\bhalf|\bptr)( addrspace\(\d+\))?\*"
)
_CTYPES = {"uint64": ctypes.c_uint64, "uint32": ctypes.c_uint32, "int64": ctypes.c_int64, "float32": ctypes.c_float,
           "float64": ctypes.c_double}  # fmt: skip


def llvm_text(program: CudaProgram) -> str:
    """What NVVM would get for the program's only launch."""
    from numba.cuda.cudadrv import nvvm

    texts: list[str] = []

    def capture(llvmir: Any, **options: Any) -> bytes:
        texts.extend([llvmir] if isinstance(llvmir, str) else llvmir)
        return b""

    original = nvvm.compile_ir
    nvvm.compile_ir = capture
    try:
        cuda_toolchain.compile_ptx(program, program.launches[0], SM80)
    finally:
        nvvm.compile_ir = original
    (text,) = texts
    return text


def with_opaque_pointers(text: str) -> str:
    lines = []
    for line in text.splitlines():
        if line.startswith(("!", "target ", "@llvm.used", '@"llvm.used"')) or "call void asm sideeffect" in line:
            continue
        line = re.sub(r", ![\w.]+ !\d+", "", line)
        while (new := _POINTER.sub(lambda match: "ptr" + (match[1] or ""), line)) != line:
            line = new
        lines.append(line)
    return "\n".join(lines)


def run(
    program: CudaProgram,
    arrays: Mapping[str, np.ndarray],
    scalars: Mapping[str, Any] | None = None,
    status: np.ndarray | None = None,
) -> None:
    """Runs a program of one launch of one thread, in place."""
    (launch,) = program.launches
    assert launch.grid == ("1", "1", "1")
    assert launch.threads == (1, 1, 1)
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(with_opaque_pointers(llvm_text(program)))
    module.verify()
    library = ctypes.CDLL(ctypes.util.find_library("m"))
    entry = next(function.name for function in module.functions if not function.is_declaration)
    for function in module.functions:
        if function.name.startswith("__nv_"):
            address = ctypes.cast(getattr(library, function.name.removeprefix("__nv_")), ctypes.c_void_p).value
            llvm.add_symbol(function.name, address)
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    values: list[Any] = []
    for parameter in launch.parameters:
        if parameter.kind == "pointer":
            values.append(arrays[parameter.array].ctypes.data)
        elif parameter.kind == "extent":
            values.append(arrays[parameter.array].shape[parameter.axis])
        elif parameter.kind == "stride":
            array = arrays[parameter.array]
            values.append(array.strides[parameter.axis] // array.itemsize)
        elif parameter.kind == "status" and status is not None:
            values.append(status.ctypes.data)
        else:
            values.append((scalars or {})[parameter.array])
    kinds = [_CTYPES[parameter.type.name] for parameter in launch.parameters]
    ctypes.CFUNCTYPE(None, *kinds)(engine.get_function_address(entry))(*values)
