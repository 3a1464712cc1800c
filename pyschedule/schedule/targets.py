"""The targets, as tables of facts.  Passes read the table; they never ask which target it is."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from pyschedule.errors import ScheduleError
from pyschedule.ir.types import Scalar


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """What multiplies tiles of matrices: of `rows` rows, of `row_bytes` bytes each.

    A tile of `rows` rows by a depth of `row_bytes` bytes is multiplied with one of that depth by `rows` columns,
    and the products are added to a tile of 32-bit sums.  In the second tile the elements of four bytes of depth
    stand side by side.  `types`: what it multiplies; halves are summed in float32, integers in int32.

    Registers may hold the tiles, or vector registers parts of them, for an instruction that multiplies groups of
    four bytes and adds up each.  `in_place`: it reads a left tile from where its rows lie.  `unlike_signs`: of two
    operands of one byte it takes one with signs and one without.  `least_bytes`: of an element.
    """

    name: str
    rows: int
    row_bytes: int
    types: tuple[str, ...]
    in_place: bool = True
    unlike_signs: bool = False
    least_bytes: int = 1

    def depth(self, element_bytes: int) -> int:
        """How deep a tile is, in elements."""
        return self.row_bytes // element_bytes

    def operands(self, left: Scalar, right: Scalar) -> tuple[Scalar, Scalar, int]:
        """The types in which it takes two operands, and what is added to each element of the left one for that."""
        if max(left.bytes, right.bytes, self.least_bytes) > min(left.bytes, right.bytes):
            return Scalar("int16"), Scalar("int16"), 0
        if self.unlike_signs and left.bytes == 1 and left == right:
            return (Scalar("uint8"), right, 128) if left.name == "int8" else (Scalar("int8"), right, -128)
        return left, right, 0


@dataclass(frozen=True, slots=True)
class Target:
    """`kind`: `"cpu"` or `"cuda"`.  `arch`: the host's CPU name, or `"sm_90a"`.

    `vector_bytes`, `vector_registers`: one SIMD register's size and their number (on a GPU: the widest
    access, and 32-bit registers a thread).  `mask_registers`: masks have registers of their own.  `folds`: what an
    instruction reads from memory as an operand, without a register: `"vectors"`, `"broadcasts"` (one element for
    all lanes).  `copies`: unrolled copies are written out as text (else loop
    metadata asks the back end's compiler for them).  `parallel_mapping`: what runs the outermost tiles.
    `thread_mapping`: what runs the tiles below them; empty where there are no hardware threads below.
    `staging_space`: where a staged tile lives; `staging_bytes`: how much may live there; `staging_panels`: it is
    laid out panel by panel in the order the innermost tiles read it (else row by row, so that the threads of a
    warp read neighbours); `staging_widens`: halves are widened once, by the copy.
    `cache_line`: bytes that memory hands over at once; 0 where no prefetches are wanted.
    `stream_bytes`: of an array of so many bytes, written row by row, the caches keep little until it is read: its
    stores may go around them; 0 where none should.
    `register_bytes`: what all registers of a thread hold.
    `threads_per_block`: (preferred, largest).
    `matrix`: what multiplies tiles of matrices; the first that takes the elements does.
    """

    kind: str
    arch: str
    vector_bytes: int
    vector_registers: int
    copies: bool
    parallel_mapping: tuple[str, ...]
    thread_mapping: tuple[str, ...]
    staging_space: str
    staging_bytes: int
    register_bytes: int
    staging_panels: bool = False
    staging_widens: bool = False
    mask_registers: bool = False
    folds: tuple[str, ...] = ()
    cache_line: int = 0
    stream_bytes: int = 0
    cores: int = 1
    threads_per_block: tuple[int, int] = (1, 1)
    compute_capability: tuple[int, int] | None = None
    matrix: tuple[MatrixUnit, ...] = ()

    def lanes(self, element_bytes: int) -> int:
        return max(1, self.vector_bytes // element_bytes)

    def __str__(self) -> str:
        return f"{self.kind}:{self.arch}"


#: Measured with an Intel Xeon whose last cache is shared by many cores, normalising rows and then summing the
#: result: at 32 MiB the sum loses more by stores around the caches than these gain, from 48 MiB on it does not.
_STREAM_BYTES = 48 << 20


@cache
def host() -> Target:
    """The CPU this process runs on: vector width from the features LLVM reports."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    wide = features.get("avx512f", False)
    avx = features.get("avx2", False)
    return Target(
        kind="cpu",
        arch=llvm.get_host_cpu_name(),
        vector_bytes=64 if wide else 32 if avx else 16,
        vector_registers=32 if wide or features.get("neon", False) else 16,
        copies=True,
        parallel_mapping=("parallel",),
        thread_mapping=(),
        staging_space="packed",
        staging_bytes=1 << 30,
        register_bytes=(64 * 32) if wide else 32 * 16 if avx else 16 * (32 if features.get("neon", False) else 16),
        staging_panels=True,
        staging_widens=True,
        mask_registers=wide,
        folds=("vectors", "broadcasts") if wide else ("vectors",) if avx else (),
        cache_line=64,
        stream_bytes=_STREAM_BYTES if features.get("sse2", False) else 0,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        matrix=_matrix_units(features),
    )


#: `arch_prctl` asks the kernel for registers that a process may not use unless it asks (Linux, Documentation/arch/
#: x86/xstate.rst); 18 are the data of AMX tiles.
_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


def amx(features: Mapping[str, bool]) -> MatrixUnit | None:
    """The unit of a processor with these features, by LLVM's names (Intel 64 and IA-32 Architectures Software
    Developer's Manual, volume 1, chapter "Programming with Intel AMX")."""
    types = [
        *(["int8", "uint8"] if features.get("amx-int8", False) else []),
        *(["bfloat16"] if features.get("amx-bf16", False) else []),
    ]
    # Operands are packed with masks of 64 lanes of one byte.
    whole = features.get("amx-tile", False) and features.get("avx512bw", False)
    return MatrixUnit("AMX", 16, 64, tuple(types)) if types and whole else None


def dot_products(features: Mapping[str, bool]) -> MatrixUnit | None:
    """The instructions of a processor with these features that add up products of groups of integers in vectors.

    Those of VNNI take groups of four bytes too, one operand with signs and the other without, and add without
    saturation; without VNNI there are pairs of int16 (VPMADDWD), which bytes are widened to as they are packed.
    (Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2: VPDPBUSD, VPDPWSSD, VPMADDWD.)
    """
    for registers, without, fused, name in (
        ("avx512bw", "AVX-512", "avx512vnni", "AVX-512 VNNI"),
        ("avx2", "AVX2", "avxvnni", "AVX-VNNI"),
    ):
        if features.get(registers, False):
            vnni = features.get(fused, False)
            return MatrixUnit(
                name if vnni else without,
                rows=16,
                row_bytes=64,
                types=("int8", "uint8", "int16"),
                in_place=False,
                unlike_signs=vnni,
                least_bytes=1 if vnni else 2,
            )
    return None


def _matrix_units(features: Mapping[str, bool]) -> tuple[MatrixUnit, ...]:
    """What the processor has and the compiler may use."""
    chosen = os.environ.get("NUMBA_CPU_FEATURES")
    if chosen is not None:
        features = {name: on and f"+{name}" in chosen.split(",") for name, on in features.items()}
    elif os.environ.get("NUMBA_CPU_NAME"):
        return ()  # Numba then compiles for the features that a processor of that name has
    tiles, dots = amx(features), dot_products(features)
    if tiles is not None and not _tiles_are_allowed():
        tiles = None
    return tuple(unit for unit in (tiles, dots) if unit is not None)


def _tiles_are_allowed() -> bool:
    """Whether the system lets this process use the registers of AMX."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    try:
        refused = ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
    except (OSError, AttributeError):
        return False
    return not refused


#: Shared memory a block may use, bytes, by compute capability (CUDA C++ Programming Guide, technical
#: specifications per compute capability).
_SHARED_BYTES = {
    (7, 0): 96 << 10,
    (7, 5): 64 << 10,
    (8, 0): 163 << 10,
    (8, 6): 99 << 10,
    (8, 7): 163 << 10,
    (8, 9): 99 << 10,
    (9, 0): 227 << 10,
    (10, 0): 227 << 10,
    (12, 0): 99 << 10,
}


@cache
def cuda(arch: str = "sm_80") -> Target:
    """A GPU by its architecture name, `"sm_80"`, `"sm_90"`, `"sm_90a"`, ...; needs no GPU."""
    digits = arch.removeprefix("sm_").rstrip("af")
    if not arch.startswith("sm_") or not digits.isdigit() or len(digits) < 2:
        raise ScheduleError(
            f"target: {arch!r} is no GPU architecture; write for example 'cuda:sm_80' or 'cuda:sm_90a'"
        )
    capability = (int(digits[:-1]), int(digits[-1]))
    if capability not in _SHARED_BYTES:
        known = ", ".join(f"sm_{major}{minor}" for major, minor in _SHARED_BYTES)
        raise ScheduleError(f"target: {arch!r} is not known; known are {known} (and sm_90a)")
    return Target(
        kind="cuda",
        arch=arch,
        vector_bytes=16,
        vector_registers=255,
        copies=False,
        parallel_mapping=("block.x", "block.y", "block.z"),
        thread_mapping=("thread.x", "thread.y", "thread.z"),
        staging_space="shared",
        staging_bytes=_SHARED_BYTES[capability],
        register_bytes=255 * 4,
        threads_per_block=(256, 1024),
        compute_capability=capability,
    )


def resolve(target: str | Target | None) -> Target:
    """`None` or `"cpu"`: this machine; `"cuda"` or `"cuda:sm_90a"`: that GPU."""
    if isinstance(target, Target):
        return target
    if target is None or target == "cpu":
        return host()
    if target == "cuda":
        return cuda()
    if isinstance(target, str) and target.startswith("cuda:"):
        return cuda(target.removeprefix("cuda:"))
    raise ScheduleError(f"target: {target!r} is not a target; allowed are 'cpu', 'cuda' and 'cuda:sm_XY'")
