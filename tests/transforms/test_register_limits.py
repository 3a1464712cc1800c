"""What is said of register tiles that need more registers than there are, by the tables of fixed targets."""

from __future__ import annotations

import dataclasses
import inspect
import warnings

import numpy as np
import pytest

from pyschedule import ScheduleWarning, inspect_loop_transforms, spec, tile, unroll, vectorize
from pyschedule.runtime.warn import announce
from pyschedule.schedule import targets
from pyschedule.schedule.directives import Schedule, Unroll, Vectorize
from pyschedule.transforms import pipeline
from pyschedule.transforms.register_use import uses
from pyschedule.transforms.registers import register_file
from tests.transforms import kernels

#: CPUs by their tables, whatever this machine has.
AVX512 = dataclasses.replace(
    targets.host(), arch="avx512", vector_bytes=64, vector_registers=32, register_bytes=64 * 32,
    mask_registers=True, folds=("vectors", "broadcasts"),
)  # fmt: skip
AVX2 = dataclasses.replace(
    AVX512, arch="avx2", vector_bytes=32, vector_registers=16, register_bytes=32 * 16, mask_registers=False,
    folds=("vectors",),
)  # fmt: skip
NEON = dataclasses.replace(
    AVX2, arch="neon", vector_bytes=16, vector_registers=32, register_bytes=16 * 32, folds=()
)
MATRIX = spec("float32[1000, 1000]")


def product(**sizes):
    return tile(**sizes)(vectorize("j")(unroll("i")(kernels.gemm)))


def warning_of(kernel, *args, target=AVX512):
    """The text of the one warning of registers in the log, or none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        log = kernel.lower(*args, target=target).log
    found = [record for record in log if record.status == "Warning"]
    assert len(found) <= 1
    return found[0].summary if found else None


@pytest.mark.parametrize(
    "target, dtype, rows, columns, need, nearest",
    [
        (AVX512, "float32", 4, 64, 21, None),
        (AVX512, "float32", 6, 64, 29, None),
        (AVX512, "float32", 8, 32, 19, None),
        (AVX512, "float32", 14, 32, 31, None),
        (AVX512, "float32", 8, 48, 28, None),
        (AVX512, "float32", 24, 16, 25, None),
        (AVX512, "float32", 30, 16, 31, None),
        (AVX512, "float32", 31, 16, 32, None),
        (AVX512, "float32", 32, 16, 33, "i=31, j=16, with 32"),
        (AVX512, "float32", 15, 32, 33, "i=14, j=32, with 31"),
        (AVX512, "float32", 10, 48, 34, "i=9, j=48, with 31"),
        (AVX512, "float32", 12, 64, 53, "i=9, j=48, with 31"),
        (AVX512, "float32", 24, 32, 51, "i=14, j=32, with 31"),
        (AVX512, "float32", 32, 256, 521, "i=14, j=32, with 31"),
        (AVX512, "float64", 6, 32, 29, None),
        (AVX512, "float64", 14, 16, 31, None),
        (AVX512, "float64", 14, 32, 61, "i=14, j=16, with 31"),
        (AVX2, "float32", 6, 16, 15, None),
        (AVX2, "float32", 8, 16, 19, "i=6, j=16, with 15"),
        (AVX2, "float32", 4, 8, 7, None),
    ],
)
def test_the_registers_needed_and_the_nearest_tile_that_fits(target, dtype, rows, columns, need, nearest):
    matrix = spec(f"{dtype}[1000, 1000]")
    kernel = product(i=rows, j=columns)
    said = warning_of(kernel, matrix, matrix, matrix, target=target)
    registers = target.vector_registers
    if nearest is None:
        assert said is None
        lines = str(kernel.lower(matrix, matrix, matrix, target=target).log)
        assert f"registers in loop 'k': {need} of {registers} (accumulators: " in lines
        return
    assert said.startswith(f"i={rows}, j={columns} needs {need} vector registers in loop 'k' (accumulators: ")
    assert f"and there are {registers}" in said and said.endswith(f"the nearest that fits is {nearest}")
    offered = eval(f"dict({nearest.partition(', with')[0]})")
    assert warning_of(product(**offered), matrix, matrix, matrix, target=target) is None


def test_the_warning_stands_at_the_tile_and_names_all_of_its_sizes():
    kernel = tile(i=(192, 15), j=(2048, 32), k=512, order="j.0 k.0 i.0 j.1 i.1 k.1 i.2 j.2", stage={"B": "k.0"})(
        vectorize("j")(unroll("i")(unroll("k", 2)(kernels.gemm)))
    )
    (line,) = _lines(test_the_warning_stands_at_the_tile_and_names_all_of_its_sizes, "tile(i=(192")
    log = kernel.lower(MATRIX, MATRIX, MATRIX, target=AVX512).log
    (record,) = [record for record in log if record.status == "Warning"]
    assert record.transform == "Tiling" and record.loc.line == line and record.loc.file == __file__
    assert "i=(192, 15), j=(2048, 32) needs 33" in record.summary and "i=(192, 14), j=(2048, 32)" in record.summary
    with pytest.warns(ScheduleWarning) as caught:
        announce(log.records, "tests")
    (warning,) = caught
    assert warning.filename == __file__ and warning.lineno == line
    assert str(warning.message).startswith(f"{record.loc}: Tiling: i=(192, 15)")


@pytest.mark.parametrize(
    "target, rows, columns, fits",
    [
        (AVX2, 6, 16, True), (AVX2, 7, 16, False), (AVX2, 4, 24, True), (AVX2, 14, 8, True), (AVX2, 15, 8, False),
        (NEON, 8, 12, True), (NEON, 6, 16, True), (NEON, 7, 16, False), (NEON, 30, 4, True), (NEON, 31, 4, False),
    ],
)  # fmt: skip
def test_whole_tiles_have_no_masks_to_keep(target, rows, columns, fits):
    """Extents that are constants and multiples of the tile's."""
    M, N = 2 * rows, 2 * columns

    def gemm(A, B, C):
        for i in range(M):
            for j in range(N):
                for k in range(64):
                    C[i, j] += A[i, k] * B[k, j]

    kernel = tile(i=rows, j=columns)(vectorize("j")(unroll("i")(gemm)))
    shapes = f"float32[{M}, 64]", f"float32[64, {N}]", f"float32[{M}, {N}]"
    assert (warning_of(kernel, *map(spec, shapes), target=target) is None) == fits


def _lines(function, text):
    source, first = inspect.getsourcelines(function)
    return [first + number for number, line in enumerate(source) if text in line and "_lines" not in line]


def test_copies_without_a_tile_are_warned_of_at_the_unroll():
    def rows(A, x, y):
        for i in range(A.shape[0]):
            s = 0.0
            for k in range(A.shape[1]):
                s += A[i, k] * x[k]
            y[i] = s

    vector = spec("float32[1000]")
    said = warning_of(unroll("i", 40)(vectorize("k")(rows)), MATRIX, vector, vector)
    assert said.startswith("unroll('i', 40) needs 41 vector registers in loop 'k' (accumulators: 40, ")
    assert said.endswith("the nearest that fits is unroll('i', 31), with 32")
    for factor, fits in ((31, True), (32, False)):
        again = warning_of(unroll("i", factor)(vectorize("k")(rows)), MATRIX, vector, vector)
        assert (again is None) == fits


@tile(input_shapes=[(64, 64), (64, 64)], tile_shapes=[(32, 32), (32, 32)])
@vectorize(width=16)
@unroll(factors=[8, 8])
def in_blocks(A_block, B_block):
    C_tile = [[0.0 for _ in range(32)] for _ in range(32)]
    for i in range(32):
        for j in range(32):
            for k in range(32):
                C_tile[i][j] += A_block[i][k] * B_block[k][j]
    return C_tile


def test_in_the_block_form_the_factors_are_the_tile():
    matrix = spec("float32[64, 64]")
    said = warning_of(in_blocks, matrix, matrix)
    assert said.startswith("factors=[8, 8] needs 73 vector registers in loop 'k.1' (accumulators: 64, ")
    assert said.endswith("the nearest that fits is factors=[5, 5], with 31")
    text = inspect_loop_transforms(in_blocks, matrix, matrix, target=AVX512)
    assert text.startswith("[Transform Log]\n- Applied Tiling: (32, 32)\n")


def test_a_tile_that_nobody_meant_for_registers_draws_no_warning():
    for kernel in (tile(i=32, j=32, k=32)(kernels.gemm), tile(i=32, j=64)(vectorize("j")(kernels.gemm)),
                   tile(i=32, j=64)(vectorize("j")(unroll("i", 4)(kernels.gemm)))):  # fmt: skip
        assert warning_of(kernel, MATRIX, MATRIX, MATRIX) is None


def test_lanes_that_take_too_many_registers_are_a_line_of_the_log():
    kernel = vectorize("i", width=1024)(doubled)
    vector = spec("float32[5000]")
    log = kernel.lower(vector, vector, target=AVX512).log
    (record,) = [record for record in log if record.status == "Note" and "registers" in record.summary]
    assert record.silent and "vectorize('i', width=256), with 17" in record.summary


def doubled(x, y):
    for i in range(x.shape[0]):
        y[i] = 2 * x[i]


def test_a_gpus_registers_are_left_to_its_compiler():
    kernel = tile(i=(128, 8), j=(128, 8), k=16)(unroll("i")(unroll("j")(kernels.gemm)))
    log = str(kernel.lower(MATRIX, MATRIX, MATRIX, target="cuda:sm_80").log)
    assert "registers in loop" not in log and "Warning" not in log


@pytest.mark.parametrize("strict", [False, True])
def test_a_tile_that_spills_is_carried_out_in_strict_mode_too(monkeypatch, strict):
    """The result is right: strict mode refuses what cannot be shown to be safe, not what is slow."""
    lanes, registers = targets.host().lanes(4), targets.host().vector_registers
    monkeypatch.setenv("PYSCHEDULE_STRICT", "1" if strict else "0")
    M, N, K = registers, lanes, 3

    def small(A, B, C):
        for i in range(M):
            for j in range(N):
                for k in range(K):
                    C[i, j] += A[i, k] * B[k, j]

    kernel = tile(i=registers, j=lanes, strict=strict)(vectorize("j")(unroll("i")(small)))
    rng = np.random.default_rng(0)
    a, b, c = (rng.integers(-9, 9, shape).astype(np.float32) for shape in ((M, K), (K, N), (M, N)))
    expected = c + a @ b
    with pytest.warns(ScheduleWarning, match=f"and there are {registers}"):
        kernel(a, b, c)
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("name", sorted(kernels.CASES))
def test_automatic_choices_need_no_more_registers_than_there_are(name):
    kernel = kernels.CASES[name].kernel()
    needs = []
    for chosen in ((), (Vectorize(), Unroll())):
        lowered = pipeline.lower(kernel, Schedule(chosen), AVX2)
        needs.append(max((use.need for use in uses(lowered.kernel, register_file(AVX2))), default=0))
        assert not [record for record in lowered.records if record.status == "Warning"]
    assert needs[1] <= max(AVX2.vector_registers, needs[0])
