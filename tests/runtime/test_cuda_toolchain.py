"""The CUDA toolchain: figures by formula, and what it says when a part is missing."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

from pyschedule.codegen.cuda_program import Launch
from pyschedule.runtime import cuda_toolchain
from pyschedule.runtime.cuda_toolchain import CudaToolsMissingError, Linked, entry_name, occupancy, resources
from pyschedule.schedule.targets import cuda, host


@pytest.mark.parametrize(
    "arch, threads, registers, shared, blocks, limit",
    [
        ("sm_80", 256, 32, 0, 8, "threads"),  # 64 warps, 8 a block
        ("sm_80", 256, 128, 0, 2, "registers"),  # 4,096 registers a warp: 16 warps
        ("sm_80", 256, 255, 0, 1, "registers"),
        ("sm_80", 1024, 65, 0, 0, "registers"),  # 28 warps of registers, 32 in a block: it does not launch
        ("sm_80", 256, 40, 48 << 10, 3, "shared"),  # 49 KB of 164 each
        ("sm_90", 256, 40, 48 << 10, 4, "shared"),  # 49 KB of 228
        ("sm_86", 256, 32, 0, 6, "threads"),  # 48 warps
        ("sm_86", 32, 16, 0, 16, "blocks"),
        ("sm_89", 32, 16, 0, 24, "blocks"),
        ("sm_80", 33, 32, 0, 32, "blocks"),  # a part of a warp counts whole; both limits are 32
    ],
)
def test_occupancy(arch: str, threads: int, registers: int, shared: int, blocks: int, limit: str) -> None:
    found, share, reason = occupancy(cuda(arch), threads, registers, shared)
    assert (found, reason) == (blocks, limit)
    warps = 48 if arch in ("sm_86", "sm_89") else 64
    assert share == blocks * -(-threads // 32) / warps


def test_a_cpu_has_no_occupancy() -> None:
    with pytest.raises(ValueError, match="no GPU"):
        occupancy(host(), 32, 32, 0)


def test_resources_add_up_shared_memory() -> None:
    launch = Launch("k", ("1", "1", "1"), (16, 16, 1), (), dynamic_shared=64 << 10, static_shared=0)
    used = resources(launch, Linked(96, 8, 4, 16, ""), cuda("sm_90"))
    assert (used.threads, used.shared_bytes, used.spill_loads, used.spill_stores, used.stack) == (
        256,
        65536,
        8,
        4,
        16,
    )
    assert (used.blocks_per_sm, used.limited_by) == (2, "registers")


def test_what_the_assembler_says_is_read() -> None:
    log = "info : 48 bytes stack frame, 12 bytes spill stores, 20 bytes spill loads\ninfo : Used 77 registers"
    linked = cuda_toolchain._linked(log)
    assert (linked.registers, linked.spill_stores, linked.spill_loads, linked.stack) == (77, 12, 20, 48)


def test_the_entry_is_found() -> None:
    assert entry_name("//\n.visible .entry _ZN6kernel(\n") == "_ZN6kernel"
    with pytest.raises(ValueError, match="entry"):
        entry_name("//")


def test_missing_tools_are_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec

    def find_spec(name: str, *args: Any) -> Any:
        return None if name == "numba_cuda" else real(name, *args)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with pytest.raises(CudaToolsMissingError, match=r"numba-cuda.*pip install 'pyschedule\[cuda\]'"):
        cuda_toolchain.cubin("", "sm_80")


def test_ptx_that_is_refused_raises_with_the_log() -> None:
    pytest.importorskip("cuda.bindings")
    with pytest.raises(RuntimeError, match="sm_80"):
        cuda_toolchain.cubin(".version 8.0\n.target sm_80\n.address_size 64\nnonsense\n", "sm_80")


def test_what_nvvm_refuses_comes_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba_cuda", reason="the [cuda] extra is not installed")
    from numba.cuda.cudadrv import nvvm

    from pyschedule import spec, tile

    def scale(x: Any, y: Any) -> None:
        for i in range(x.shape[0]):
            y[i] = 2 * x[i]

    whole = nvvm.CompilationUnit.compile

    def with_nonsense(unit: Any) -> bytes:
        unit.add_module(b"define void @nonsense( { ret }")
        return bytes(whole(unit))

    monkeypatch.setattr(nvvm.CompilationUnit, "compile", with_nonsense)
    lowering = tile(i=32)(scale).lower(spec("float32[64]"), spec("float32[64]"), target="cuda:sm_80")
    with pytest.raises(RuntimeError, match=r"NVVM refused scale\w* for cuda:sm_80: .+ expected type"):
        lowering.ptx()
