"""What NVVM and the assembler make of generated CUDA source, read from PTX and from machine code."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from pyschedule import spec, tile, unroll, vectorize
from pyschedule.codegen import loop_markers
from pyschedule.codegen.cuda_program import CudaProgram
from pyschedule.codegen.numba_cuda import generate
from pyschedule.errors import InternalError
from pyschedule.ir import build as b
from pyschedule.ir.nodes import Dim, Kernel
from pyschedule.runtime import cuda_toolchain
from pyschedule.runtime.cuda_toolchain import Resources
from pyschedule.schedule.targets import cuda

from .cuda_support import SM80, SM90, binary, elementwise, load, loop, param, row_sums, sgemm, store, var

pytest.importorskip("numba_cuda", reason="the [cuda] extra is not installed")

_INSTRUCTION = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.a-z]*)([^;]*);")
_LABEL = re.compile(r"^\s*(\.L_[\w.]+):")


@cache
def machine_code(program: CudaProgram, arch: str) -> tuple[str, str, Resources]:
    """PTX, machine code as text, and the resources of a program's only launch."""
    target = cuda(arch)
    (launch,) = program.launches
    ptx = cuda_toolchain.compile_ptx(program, launch, target)
    code, linked = cuda_toolchain.cubin(ptx, arch)
    return ptx, cuda_toolchain.sass(code), cuda_toolchain.resources(launch, linked, target)


def instructions(sass: str) -> list[str]:
    return [match[2] for line in sass.splitlines() if (match := _INSTRUCTION.match(line))]


def loops(sass: str) -> list[list[str]]:
    """The instructions between each backward branch and its target."""
    found: list[tuple[str, str]] = []
    labels: dict[str, int] = {}
    for line in sass.splitlines():
        if label := _LABEL.match(line):
            labels[label[1]] = len(found)
        elif match := _INSTRUCTION.match(line):
            found.append((match[2], match[3]))
    result = []
    for place, (operation, rest) in enumerate(found):
        target = re.search(r"\.L_[\w.]+", rest)
        if operation.startswith("BRA") and target and labels.get(target[0], place) < place:
            result.append([name for name, _ in found[labels[target[0]] : place + 1]])
    return result


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_three_nests_become_machine_code_without_spills(arch: str) -> None:
    for kernel in (elementwise(128, 4), row_sums(), sgemm(lanes=4)):
        program = generate(kernel, cuda(arch))
        assert not program.notes
        _, _, used = machine_code(program, arch)
        assert used.spill_loads == used.spill_stores == used.stack == 0, kernel.name
        assert 0 < used.registers <= 255
        assert used.occupancy > 0


@pytest.mark.parametrize(
    "dtype, lanes", [("float32", 4), ("float64", 2), ("float16", 8), ("bfloat16", 8), ("int8", 16)]
)
def test_aligned_lanes_are_one_128_bit_access(dtype: str, lanes: int) -> None:
    _, sass, _ = machine_code(generate(elementwise(64, lanes, 16, dtype), SM90), "sm_90")
    names = instructions(sass)
    assert any(name.startswith("LDG.E.128") for name in names)
    assert any(name.startswith("STG.E.128") for name in names)


def test_unaligned_lanes_are_not() -> None:
    _, sass, _ = machine_code(generate(elementwise(64, 4, 1), SM90), "sm_90")
    assert not [name for name in instructions(sass) if ".128" in name]


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_the_inner_loop_of_sgemm_is_multiply_adds(arch: str) -> None:
    """512 of them a step of 8, from registers and 128-bit reads of shared memory; no local memory."""
    program = generate(sgemm(lanes=4), cuda(arch))
    _, sass, used = machine_code(program, arch)
    body = max(loops(sass), key=lambda names: sum(name.startswith("FFMA") for name in names))
    fused = sum(name.startswith("FFMA") for name in body)
    assert fused == 512
    assert fused / len(body) > 0.78
    assert sum(name.startswith("LDS") for name in body) == sum(name.startswith("LDS.128") for name in body) == 32
    assert not [name for name in body if name.startswith(("LDL", "STL"))]
    assert used.registers <= 168


def marked(unroll: int, trip: int | None) -> Kernel:
    """`Y[t] = sum of X[j * 128 + t]`, each thread for itself, the loop over `j` unrolled as asked."""
    t, j = var("t"), var("j")
    stop = Dim("X", 0) if trip is None else trip
    add = store("Y", t, binary("+", load("Y", t), load("X", b.add(b.mul(j, 128), t))))
    body = loop("t", 0, 128, loop("j", 0, stop, add, unroll=unroll), mapping="thread.x")
    return Kernel("marked", (param("X"), param("Y")), (body,))


def loads_in_loops(kernel: Kernel) -> list[int]:
    _, sass, _ = machine_code(generate(kernel, SM90), "sm_90")
    found = [sum(name.startswith("LDG.E.CONSTANT") for name in body) for body in loops(sass)]
    return [count for count in found if count]


def test_unroll_requests_reach_machine_code() -> None:
    assert loads_in_loops(marked(1, 16)) == [1], "stays rolled"
    assert loads_in_loops(marked(-1, 16)) == [], "no loop is left"
    assert 4 in loads_in_loops(marked(4, 64))
    assert loads_in_loops(marked(1, None)) == [1], "stays rolled, of run-time length"
    assert 8 in loads_in_loops(marked(8, None))


def test_markers_leave_no_trace_and_are_never_lost() -> None:
    ptx, _, _ = machine_code(generate(marked(4, 64), SM90), "sm_90")
    assert "pyschedule.unroll" not in ptx
    marker = f'  call void asm sideeffect "{loop_markers.marker_text(4)}", ""()'
    placed = loop_markers.place_markers(f"{marker}\n  br label %a\n}}\n")
    assert "br label %a, !llvm.loop !910000" in placed
    assert '!{!"llvm.loop.unroll.count", i32 4}' in placed
    with pytest.raises(InternalError, match="not followed by a branch"):
        loop_markers.place_markers(f"{marker}\n  ret void\n}}\n")
    with pytest.raises(InternalError, match="two markers"):
        loop_markers.place_markers(f"{marker}\n{marker}\n  br label %a\n}}\n")


def test_an_unknown_release_of_the_front_end_is_refused_where_markers_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import numba_cuda

    monkeypatch.setattr(numba_cuda, "__version__", "9.9.9")
    program = generate(marked(4, 32), SM90)
    with pytest.raises(InternalError, match=r"9\.9\.9"):
        cuda_toolchain.compile_ptx(program, program.launches[0], SM90)


def test_strict_math_is_not_contracted() -> None:
    from dataclasses import replace

    kernel = elementwise(64)
    _, sass, _ = machine_code(generate(kernel, SM90), "sm_90")
    assert any(name.startswith("FFMA") for name in instructions(sass))
    _, sass, _ = machine_code(generate(replace(kernel, strict_math=True), SM90), "sm_90")
    names = instructions(sass)
    assert not any(name.startswith("FFMA") for name in names)
    assert any(name.startswith("FADD") for name in names)


def test_64_bit_programs_and_dynamic_shared_memory_compile() -> None:
    for program in (generate(sgemm(lanes=4), SM80, 64), generate(row_sums(16_000 // 16), SM80)):
        _, _, used = machine_code(program, "sm_80")
        assert used.stack == 0
    big = generate(sgemm((128, 128, 64), (8, 8), 4), SM80)
    assert big.launches[0].dynamic_shared == 65_536
    ptx, _, used = machine_code(big, "sm_80")
    assert used.shared_bytes == 65_536
    assert np.isclose(used.occupancy, 16 / 64)
    assert ".extern .shared" in ptx


@tile(i=(128, 8), j=(128, 8), k=16, stage={"A": "k.0", "B": "k.0"})
@unroll("i")
@unroll("j")
def product_of_staged_tiles(A, B, C):
    for i in range(C.shape[0]):
        for j in range(C.shape[1]):
            for k in range(B.shape[0]):
                C[i, j] += A[i, k] * B[k, j]


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("lanes", [0, 4, 8])
def test_eight_neighbouring_halves_are_one_access(arch: str, lanes: int) -> None:
    """NVVM joins eight accesses of its type `half` into an "unsupported operation"; halves are integers to it."""
    kernel = vectorize("j", lanes)(product_of_staged_tiles) if lanes else product_of_staged_tiles
    matrix = spec("float16[256, 256]")
    lowering = kernel.lower(matrix, matrix, matrix, target=f"cuda:{arch}")
    ptx = lowering.ptx()
    assert re.search(r"ld\.shared\.(v4\.[ub]32|v2\.[ub]64)", ptx) and "cvt.f32.f16" in ptx
    used = lowering.resources()
    assert used.spill_loads == used.spill_stores == 0
