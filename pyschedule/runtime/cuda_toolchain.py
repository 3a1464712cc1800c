"""From a CUDA program's source to PTX, machine code, disassembly and resource figures, with no GPU or driver.

All tools come from pip (the `[cuda]` extra): Numba's CUDA front end and NVVM for PTX, nvJitLink for machine
code, `nvdisasm` for its text.  Whatever is missing is named, with the command that installs it.
"""

from __future__ import annotations

import importlib.util
import linecache
import re
import subprocess
import sysconfig
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from pyschedule.codegen.cuda_program import CudaProgram, Launch, Parameter
from pyschedule.schedule.targets import Target

#: What each tool needs: (module that shows whether it is there, the package that brings it).
_NEEDS: Final = {
    "numba_cuda": "numba-cuda",
    "cuda.bindings": "cuda-bindings",
    "nvidia": "nvidia-cuda-nvcc",
}


class CudaToolsMissingError(RuntimeError):
    """A part of the CUDA toolchain is not installed; the message says what to install."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not installed; CUDA targets need it: pip install 'pyschedule[cuda]'")


@dataclass(frozen=True, slots=True)
class Resources:
    """What one launch uses on one multiprocessor.

    `spill_loads` and `spill_stores` are bytes, as is `stack`.  `shared_bytes` is what the block asks for,
    static and dynamic, without what the system reserves.  `occupancy` is resident warps over the most there
    can be; `limited_by` names what bounds it: `"registers"`, `"shared"`, `"threads"` or `"blocks"`.
    """

    registers: int
    spill_loads: int
    spill_stores: int
    stack: int
    shared_bytes: int
    threads: int
    blocks_per_sm: int
    occupancy: float
    limited_by: str


@dataclass(frozen=True, slots=True)
class Linked:
    """What nvJitLink says of the function it made."""

    registers: int
    spill_loads: int
    spill_stores: int
    stack: int
    log: str


def _check_tools() -> None:
    for module, package in _NEEDS.items():
        try:
            found = importlib.util.find_spec(module) is not None
        except ModuleNotFoundError:
            found = False
        if not found:
            raise CudaToolsMissingError(package)


# ------------------------------------------------------------------------------------------------- PTX


def load_source(program: CudaProgram, filename: str = "") -> dict[str, Any]:
    """Executes the program's source and returns its namespace; tracebacks can show its lines."""
    _check_tools()
    filename = filename or f"<pyschedule cuda {program.launches[0].function if program.launches else 'empty'}>"
    namespace: dict[str, Any] = {"__name__": "pyschedule_generated_cuda"}
    exec(compile(program.source, filename, "exec"), namespace)
    lines = program.source.splitlines(keepends=True)
    linecache.cache[filename] = (len(program.source), None, lines, filename)
    return namespace


def signature(parameters: tuple[Parameter, ...]) -> tuple[Any, ...]:
    """The Numba types of a launch's parameters."""
    from numba.cuda import types

    return tuple(
        types.boolean if parameter.type.name == "bool" else getattr(types, parameter.type.name)
        for parameter in parameters
    )


def _capability(target: Target) -> tuple[Any, ...]:
    if target.compute_capability is None:
        raise ValueError(f"target {target} is no GPU")
    suffix = target.arch[len(target.arch.rstrip("af")) :]
    return (*target.compute_capability, suffix) if suffix else target.compute_capability


def compile_ptx(program: CudaProgram, launch: Launch, target: Target, filename: str = "") -> str:
    """The PTX of one launch.  `strict_math` programs are compiled without contraction to fused operations.

    Raises `RuntimeError` with NVVM's log where it refuses the program.
    """
    function = load_source(program, filename)[launch.function]
    from numba import cuda

    from pyschedule.codegen.loop_markers import nvvm_hook

    try:
        with nvvm_hook({"fma": 0} if program.strict_math else {}):
            text, _ = cuda.compile_ptx(
                function,
                signature(launch.parameters),
                cc=_capability(target),
                launch_bounds=launch.threads_per_block,
            )
    except Exception as error:
        missing = _missing_library(error)
        if missing:
            raise CudaToolsMissingError(missing) from error
        log = _compilers_log(error)
        if log:
            raise RuntimeError(f"NVVM refused {launch.function} for {target}: {log}") from error
        raise
    return str(text)


def _compilers_log(error: Exception) -> str:
    """What NVVM wrote about a program that it refused, or nothing.

    Numba asks for the log of programs that were compiled alone; that of the others is where the error came from.
    """
    place = error.__traceback__
    while place is not None:
        unit: Any = place.tb_frame.f_locals.get("self")
        if type(unit).__name__ == "CompilationUnit" and hasattr(unit, "get_log"):
            return str(unit.get_log()).strip()
        place = place.tb_next
    return ""


def _missing_library(error: Exception) -> str:
    """The pip package of a library that the loader did not find, or nothing."""
    if type(error).__name__ != "DynamicLibNotFoundError":
        return ""
    text = str(error)
    for word, package in (
        ("nvrtc", "nvidia-cuda-nvrtc"),
        ("nvvm", "nvidia-nvvm"),
        ("nvJitLink", "nvidia-nvjitlink"),
    ):
        if word.lower() in text.lower():
            return package
    return "nvidia-cuda-nvcc"


def entry_name(ptx: str) -> str:
    """The name under which a module exports its kernel."""
    found = re.search(r"\.visible\s+\.entry\s+([\w$]+)", ptx)
    if found is None:
        raise ValueError("the PTX has no entry point")
    return found[1]


# ----------------------------------------------------------------------------------------- machine code


def cubin(ptx: str, arch: str) -> tuple[bytes, Linked]:
    """Machine code for `arch`, and what the assembler says of it; raises `RuntimeError` with its log."""
    _check_tools()
    try:
        from cuda.bindings import nvjitlink
    except ImportError as error:
        raise CudaToolsMissingError("cuda-bindings") from error

    options = [f"-arch={arch}", "-verbose", "-O3"]
    try:
        handle = nvjitlink.create(len(options), options)
    except Exception as error:
        missing = _missing_library(error)
        if missing:
            raise CudaToolsMissingError(missing) from error
        raise
    data = ptx.encode()
    try:
        try:
            nvjitlink.add_data(handle, nvjitlink.InputType.PTX, data, len(data), "kernel")
            nvjitlink.complete(handle)
        except Exception as error:
            log = bytearray(nvjitlink.get_error_log_size(handle))
            nvjitlink.get_error_log(handle, log)
            raise RuntimeError(f"nvJitLink refused the PTX for {arch}: {log.decode().strip(chr(0))}") from error
        code = bytearray(nvjitlink.get_linked_cubin_size(handle))
        nvjitlink.get_linked_cubin(handle, code)
        info = bytearray(nvjitlink.get_info_log_size(handle))
        nvjitlink.get_info_log(handle, info)
    finally:
        nvjitlink.destroy(handle)
    return bytes(code), _linked(info.decode().strip("\0"))


def _linked(log: str) -> Linked:
    def number(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found[1]) if found else 0

    return Linked(
        registers=number(r"Used (\d+) registers"),
        spill_loads=number(r"(\d+) bytes spill loads"),
        spill_stores=number(r"(\d+) bytes spill stores"),
        stack=number(r"(\d+) bytes stack frame"),
        log=log,
    )


@cache
def _tool(name: str) -> str:
    from cuda import pathfinder

    path = pathfinder.find_nvidia_binary_utility(name)
    if path is None:
        beside = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "bin" / name
        if not beside.exists():
            raise CudaToolsMissingError(f"nvidia-cuda-{name}")
        path = str(beside)
    return str(path)


def sass(code: bytes) -> str:
    """The text of machine code, as `nvdisasm -c` writes it."""
    _check_tools()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(code)
        done = subprocess.run([_tool("nvdisasm"), "-c", str(path)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"nvdisasm: {done.stderr.strip()}")
    return done.stdout


# -------------------------------------------------------------------------------------------- resources


@dataclass(frozen=True, slots=True)
class Multiprocessor:
    """Limits of one multiprocessor (CUDA C++ Programming Guide, technical specifications per compute
    capability).  `shared` is the memory that blocks can have in all; each block costs `reserved` more."""

    warps: int
    blocks: int
    shared: int
    reserved: int = 1024
    registers: int = 65_536
    register_unit: int = 256
    shared_unit: int = 128


_MULTIPROCESSORS: Final = {
    (7, 0): Multiprocessor(64, 32, 96 << 10, reserved=0, shared_unit=256),
    (7, 5): Multiprocessor(32, 16, 64 << 10, reserved=0, shared_unit=256),
    (8, 0): Multiprocessor(64, 32, 164 << 10),
    (8, 6): Multiprocessor(48, 16, 100 << 10),
    (8, 7): Multiprocessor(48, 16, 164 << 10),
    (8, 9): Multiprocessor(48, 24, 100 << 10),
    (9, 0): Multiprocessor(64, 32, 228 << 10),
    (10, 0): Multiprocessor(64, 32, 228 << 10),
    (12, 0): Multiprocessor(48, 24, 100 << 10),
}


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(target: Target, threads: int, registers: int, shared_bytes: int) -> tuple[int, float, str]:
    """Resident blocks a multiprocessor, the share of its warps they fill, and what limits them.

    A warp's registers are given in units of 256, a block's shared memory in units of 128 bytes plus 1 KB that
    the system keeps (compute capability 8.0 and later).
    """
    if target.compute_capability is None:
        raise ValueError(f"target {target} is no GPU")
    limits = _MULTIPROCESSORS[target.compute_capability]
    warps = -(-threads // 32)
    by: dict[str, int] = {"blocks": limits.blocks, "threads": limits.warps // warps}
    if registers:
        warps_by_registers = limits.registers // _up(registers * 32, limits.register_unit)
        # Each of the four partitions holds whole warps.
        by["registers"] = (warps_by_registers // 4 * 4) // warps
    asked = _up(shared_bytes + limits.reserved, limits.shared_unit)
    if asked:
        by["shared"] = limits.shared // asked
    reason = min(by, key=lambda name: by[name])
    blocks = by[reason]
    return blocks, blocks * warps / limits.warps, reason


def resources(launch: Launch, linked: Linked, target: Target) -> Resources:
    """The figures of one launch from what the assembler said of it."""
    shared = launch.static_shared + launch.dynamic_shared
    blocks, share, reason = occupancy(target, launch.threads_per_block, linked.registers, shared)
    return Resources(
        registers=linked.registers,
        spill_loads=linked.spill_loads,
        spill_stores=linked.spill_stores,
        stack=linked.stack,
        shared_bytes=shared,
        threads=launch.threads_per_block,
        blocks_per_sm=blocks,
        occupancy=share,
        limited_by=reason,
    )


def numba_cuda() -> ModuleType:
    """`numba.cuda`, or `CudaToolsMissingError`."""
    _check_tools()
    from numba import cuda

    module: ModuleType = cuda
    return module
