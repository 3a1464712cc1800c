"""The printed nest of known kernels at each stage, against text kept in `tests/golden`.

`make golden` writes the files anew; what changed is then read in the diff.  Kernels are lowered for fixed
targets, so that the text is the same on every machine.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from pathlib import Path

import pytest

from pyschedule import ScheduleWarning, spec, tile, unroll, vectorize
from pyschedule.ir.printer import format_kernel
from pyschedule.schedule import targets

GOLDEN = Path(__file__).parent / "golden"

#: A CPU with AVX-512, by its table and not by what this machine has.
CPU = dataclasses.replace(
    targets.host(),
    arch="golden",
    vector_bytes=64,
    vector_registers=32,
    register_bytes=64 * 32,
    mask_registers=True,
    folds=("vectors", "broadcasts"),
    cache_line=64,
    stream_bytes=48 << 20,
    cores=4,
)
TARGETS = {"cpu": CPU, "cuda": targets.resolve("cuda:sm_80")}


def gemm(A, B, C):
    M, K = A.shape
    _, N = B.shape
    for i in range(M):
        for j in range(N):
            for k in range(K):
                C[i, j] += A[i, k] * B[k, j]


def row_sums(A, out):
    for i in range(A.shape[0]):
        total = 0.0
        for j in range(A.shape[1]):
            total += A[i, j]
        out[i] = total


def shifted_copy(A, B):
    for i in range(A.shape[0]):
        B[i, 0] = A[i, 0]
        for j in range(1, A.shape[1]):
            B[i, j] = A[i, j] + A[i, j - 1]


def layer_norm(X, Y):
    M, N = X.shape
    for i in range(M):
        mean = 0.0
        for j in range(N):
            mean += X[i, j]
        mean = mean / N
        variance = 0.0
        for j in range(N):
            deviation = X[i, j] - mean
            variance += deviation * deviation
        scale = 1.0 / (variance / N + 1e-5) ** 0.5
        for j in range(N):
            Y[i, j] = (X[i, j] - mean) * scale


def conv2d(X, W, Y):
    N, O, P, Q = Y.shape
    _, C, R, S = W.shape
    for n in range(N):
        for o in range(O):
            for y in range(P):
                for x in range(Q):
                    for c in range(C):
                        for r in range(R):
                            for s in range(S):
                                Y[n, o, y, x] += X[n, c, y + r, x + s] * W[o, c, r, s]


def prefix(x):
    for i in range(1, x.shape[0]):
        x[i] = x[i] + x[i - 1]


@tile(input_shapes=[(64, 64), (64, 64)], tile_shapes=[(16, 16), (16, 16)])
@vectorize(width=8, dtype="half")
@unroll(factors=[4, 4])
def gemm_tiled(A_block, B_block):
    C_tile = [[0.0 for _ in range(16)] for _ in range(16)]
    for i in range(16):
        for j in range(16):
            for k in range(16):
                C_tile[i][j] += A_block[i][k] * B_block[k][j]
    return C_tile


MATRIX, VECTOR = spec("float32[100, 100]"), spec("float32[100]")
IMAGE, WINDOWS, RESULT = spec("float32[1, 8, 20, 20]"), spec("float32[16, 8, 3, 3]"), spec("float32[1, 16, 18, 18]")
HALF = spec("float16[64, 64]")

full_cpu = tile(i=(192, 6), j=(2048, 64), k=384, order="j.0 k.0 i.0 j.1 i.1 k.1 i.2 j.2", stage={"B": "k.0"})(
    vectorize("j", width=16)(unroll("i")(gemm))
)
full_cuda = tile(i=(128, 8), j=(128, 8), k=16, stage={"A": "k.0", "B": "k.0"})(
    vectorize("j", width=4)(unroll("i")(unroll("j")(gemm)))
)

direct_conv2d = tile(o=4, x=16, order="n o.0 y x.0 c r s o.1 x.1")(vectorize("x")(unroll("o")(conv2d)))

CASES = {
    "gemm_plain": (tile(order="i j k")(gemm), (MATRIX,) * 3, "cpu"),
    "gemm_interchanged": (tile(order="k i j")(gemm), (MATRIX,) * 3, "cpu"),
    "gemm_one_level": (tile(i=32, j=32, k=32)(gemm), (MATRIX,) * 3, "cpu"),
    "gemm_full": (full_cpu, (MATRIX,) * 3, "cpu"),
    "gemm_full_cuda": (full_cuda, (MATRIX,) * 3, "cuda"),
    "gemm_vectorized_reduction": (vectorize("k", width=8)(gemm), (MATRIX,) * 3, "cpu"),
    "gemm_block_form": (gemm_tiled, (HALF, HALF), "cpu"),
    "gemm_block_form_cuda": (gemm_tiled, (HALF, HALF), "cuda"),
    "conv2d": (direct_conv2d, (IMAGE, WINDOWS, RESULT), "cpu"),
    "layer_norm": (vectorize("j")(unroll("j", 2)(layer_norm)), (MATRIX, MATRIX), "cpu"),
    "row_sums": (tile(i=8)(vectorize("j", width=8)(row_sums)), (MATRIX, VECTOR), "cpu"),
    "shifted_copy": (tile(i=8, j=16)(vectorize("j", width=8)(shifted_copy)), (MATRIX, MATRIX), "cpu"),
    "prefix_refused": (vectorize("i", width=8)(prefix), (VECTOR,), "cpu"),
    "unroll_partial": (unroll("i", 4)(row_sums), (MATRIX, VECTOR), "cpu"),
}


def printed(kernel, arguments, target) -> str:
    """The log and every stage as text, without what depends on the folder or on this file's lines."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        lowering = kernel.lower(*arguments, target=TARGETS[target])
    parts = [str(lowering.log)]
    before = None
    for name, stage in lowering.stages.items():
        text = format_kernel(stage)
        parts.append(f"--- {name}\n" + (text if text != before else "(as before)"))
        before = text
    whole = "\n\n".join(part.rstrip() for part in parts) + "\n"
    return re.sub(r"[^\s\[(']*test_golden\.py:\d+(:\d+)?", "test_golden.py", whole)


@pytest.mark.parametrize("name", CASES)
def test_printed_nest(name, refresh_golden):
    file = GOLDEN / f"{name}.txt"
    text = printed(*CASES[name])
    if refresh_golden:
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(text)
    assert file.exists(), f"{file.name} is missing: run make golden"
    assert text == file.read_text(), f"{file.name} differs: if that is meant, run make golden and read the diff"


def test_lowering_is_deterministic():
    kernel, arguments, target = CASES["gemm_full"]
    assert printed(kernel, arguments, target) == printed(kernel, arguments, target)
    sources = {kernel.lower(*arguments, target=TARGETS[target]).source for _ in range(2)}
    assert len(sources) == 1


def test_every_golden_file_belongs_to_a_case():
    assert {file.stem for file in GOLDEN.glob("*.txt")} == set(CASES)
