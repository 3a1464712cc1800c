"""Looking inside: stages, log, source and machine code of a lowering, on either target and without a GPU."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

from pyschedule import ScheduleError, inspect_loop_transforms, nounroll, spec, tile, unroll, vectorize
from pyschedule.ir.nodes import Kernel

ROOT = Path(__file__).parent.parent.parent
MATRIX, ROW = spec("float32[32, 32]"), spec("float32[32]")


@tile(i=(192, 6), j=(2048, 64), k=384)
@vectorize("j", width=16)
@unroll("i")
def product(A, B, C):
    M, K = A.shape
    _, N = B.shape
    for i in range(M):
        for j in range(N):
            for k in range(K):
                C[i, j] += A[i, k] * B[k, j]


@tile(input_shapes=[(64, 64), (64, 64)], tile_shapes=[(16, 16), (16, 16)])
@vectorize(width=8, dtype="half")
@unroll(factors=[4, 4])
def product_of_tiles(A_block, B_block):
    C_tile = [[0.0 for _ in range(16)] for _ in range(16)]
    for i in range(16):
        for j in range(16):
            for k in range(16):
                C_tile[i][j] += A_block[i][k] * B_block[k][j]
    return C_tile


def polynomial(x, y):
    for i in range(x.shape[0]):
        s = x[i]
        for k in range(8):
            s = s * x[i] + 1.0
        y[i] = s


def dot(x, y, out):
    s = 0.0
    for k in range(x.shape[0]):
        s += x[k] * y[k]
    out[0] = s


def headlines(log: object) -> list[str]:
    return [line for line in str(log).splitlines() if not line.startswith(" ")]


# ---------------------------------------------------------------------------------------------------- text


def test_the_first_lines_of_a_nest_s_log():
    lines = headlines(product.lower(MATRIX, MATRIX, MATRIX, target="cpu").log)
    assert lines == [
        "[Transform Log]",
        "- Applied Tiling: i=(192, 6), j=(2048, 64), k=384",
        "- Applied Vectorization: width=16 on loop 'j'",
        "- Applied Unroll: factors=[6] on loops 'i'",
    ]


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_80"])
def test_the_first_lines_of_a_block_form_s_log(target):
    lines = headlines(product_of_tiles.lower(target=target).log)
    assert lines == [
        "[Transform Log]",
        "- Applied Tiling: (16, 16)",
        "- Applied Vectorization: width=8 on loop 'k'",
        "- Applied Unroll: factors=[4,4] on loops 'i','j'",
    ]


def test_inspecting_shows_the_log_and_then_the_nest():
    text = inspect_loop_transforms(product, MATRIX, MATRIX, MATRIX, target="cpu")
    log, nest = text.split("\n\n")
    assert log == str(product.lower(MATRIX, MATRIX, MATRIX, target="cpu").log)
    assert nest.startswith("def product(A: float32[:, :], B: float32[:, :], C: float32[:, :]):\n    for ")
    for label in ("i.0", "j.0", "k.0", "i.1", "j.1", "k.1"):
        assert re.search(rf"  # {re.escape(label)}\b", nest), label


def test_arrays_and_specs_give_the_same():
    array = np.zeros((32, 32), np.float32)
    assert (
        inspect_loop_transforms(product, array, array, array)
        == inspect_loop_transforms(product, MATRIX, MATRIX, MATRIX)
        == inspect_loop_transforms(product, *[spec("float32[7, 9]")] * 3)
    )


# ------------------------------------------------------------------------------------------------ lowering


def test_stages_by_name():
    stages = product.lower(MATRIX, MATRIX, MATRIX, target="cpu").stages
    assert list(stages) == ["source", "tiling", "vectorization", "unroll"]
    assert all(isinstance(kernel, Kernel) for kernel in stages.values())


def test_the_log_is_a_frame():
    kernel = unroll("j")(tile(k=8)(product.python))
    with pytest.warns(UserWarning, match="Skipped Unroll"):
        frame = kernel.lower(MATRIX, MATRIX, MATRIX).log.to_frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame.columns) == ["transform", "status", "summary", "details", "file", "line", "column"]
    assert list(frame["transform"]) == ["Tiling", "Unroll"]
    assert list(frame["status"]) == ["Applied", "Skipped"]
    assert set(frame["file"]) == {__file__}
    assert frame["line"].nunique() == 1 and (frame["column"] > 1).all()


@pytest.mark.parametrize("target", ["cpu", "cuda:sm_90"])
def test_the_source_is_python_with_the_user_s_line_numbers(target):
    source = product.lower(MATRIX, MATRIX, MATRIX, target=target).source
    compile(source, "generated", "exec")
    first = inspect.getsourcelines(product.python)[1]
    body = inspect.getsource(product.python).splitlines()
    assert "numba" in source
    for place, line in enumerate(body):
        if line.strip().startswith(("for ", "C[i, j]")):
            assert f"# line {first + place}" in source, line


def test_the_source_does_not_depend_on_the_hash_seed():
    code = (
        "from tests.contract.test_inspect_lowering import *\n"
        "for target in ('cpu', 'cuda:sm_90'):\n"
        "    print(product.lower(MATRIX, MATRIX, MATRIX, target=target).source)\n"
        "    print(product_of_tiles.lower(target=target).source)\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "7")
    }
    assert len(outputs) == 1 and len(outputs.pop()) > 1000


@pytest.mark.parametrize("text", ["float32", "float32[-1]", "float33[3]", "float32[3", "float32[n]", 3, None])
def test_a_spec_that_is_none(text):
    with pytest.raises(ScheduleError, match="is not of the form"):
        spec(text)


@pytest.mark.parametrize("target", ["gpu", "cuda:90", "cuda:sm_11", "", 3])
def test_a_target_that_is_none(target):
    with pytest.raises(ScheduleError, match="target"):
        product.lower(MATRIX, MATRIX, MATRIX, target=target)


# -------------------------------------------------------------------------------------------- machine code


def count(text: str, operation: str) -> int:
    return len(re.findall(operation, text))


@pytest.mark.parametrize(("nest", "args"), [(polynomial, (ROW, ROW)), (dot, (ROW, ROW, spec("float32[1]")))])
def test_nounroll_is_obeyed_by_the_cpu_s_compiler(nest, args):
    operation = r"\bv?(?:mul|fmadd\w*|add)[ps]s\b|\bfmul|\bfmadd"
    plain = tile(order="i k" if nest is polynomial else "k")(nest).lower(*args, target="cpu").asm()
    rolled = nounroll("k")(nest).lower(*args, target="cpu").asm()
    assert 0 < count(rolled, operation) < count(plain, operation)


@pytest.mark.parametrize(("nest", "args"), [(polynomial, (ROW, ROW)), (dot, (ROW, ROW, spec("float32[1]")))])
def test_nounroll_is_obeyed_by_the_gpu_s_assembler(nest, args):
    pytest.importorskip("numba_cuda", reason="the [cuda] extra is not installed")
    rolled = nounroll("k")(nest).lower(*args, target="cuda:sm_90")
    assert count(rolled.sass(), r"\bF(?:FMA|MUL|ADD)\b") == 1
    plain = tile(order="i k" if nest is polynomial else "k")(nest).lower(*args, target="cuda:sm_90")
    assert count(plain.sass(), r"\bF(?:FMA|MUL|ADD)\b") > 4


def test_a_gpu_s_code_for_an_architecture_with_accelerated_features():
    pytest.importorskip("numba_cuda", reason="the [cuda] extra is not installed")
    lowering = product.lower(MATRIX, MATRIX, MATRIX, target="cuda:sm_90a")
    assert ".target sm_90a" in lowering.ptx()
    assert "EXIT" in lowering.sass()
    found = lowering.resources()
    assert 0 < found.registers <= 255
    assert found.spill_loads == found.spill_stores == 0
    assert found.shared_bytes == 0
    assert 0 < found.occupancy <= 1


def test_what_belongs_to_the_other_target_says_which():
    cpu = product.lower(MATRIX, MATRIX, MATRIX, target="cpu")
    for method in (cpu.ptx, cpu.sass, cpu.resources):
        with pytest.raises(TypeError, match="target='cuda'"):
            method()
    with pytest.raises(TypeError, match="target='cpu'"):
        product.lower(MATRIX, MATRIX, MATRIX, target="cuda:sm_80").asm()
