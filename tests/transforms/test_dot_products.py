"""Products of integers in vector registers: what they mean, on any machine by the interpreter, and compiled where
there are the instructions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from pyschedule import tile, vectorize
from pyschedule.ir import interpreter
from pyschedule.ir.blocks import MatrixProduct
from pyschedule.ir.visitors import walk
from pyschedule.schedule import targets
from pyschedule.schedule.targets import Target, dot_products, host

FEATURES = {
    "AVX-512 VNNI": ["avx512bw", "avx512vnni"],
    "AVX-512": ["avx512bw"],
    "AVX-VNNI": ["avx2", "avxvnni"],
    "AVX2": ["avx2"],
}
TAILS = [(1, 1, 1), (16, 16, 64), (17, 33, 65), (40, 16, 3), (9, 70, 131), (0, 5, 5), (5, 0, 5), (5, 5, 0)]
INT8, UINT8, INT16 = np.int8, np.uint8, np.int16

Agrees = Callable[..., None]


def target_of(name: str) -> Target:
    """This machine with such instructions and no other unit: it can be lowered for, if not run."""
    unit = dot_products(dict.fromkeys(FEATURES[name], True))
    assert unit is not None
    assert unit.name == name
    return dataclasses.replace(host(), matrix=(unit,))


@pytest.fixture(params=FEATURES)
def agrees(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Agrees:
    """The stages do what the plain function does, and so does the compiled kernel where the machine allows it."""
    target = target_of(request.param)
    there = llvm.get_host_cpu_features()
    runs = all(there.get(feature, False) for feature in FEATURES[request.param])

    def compare(kernel: Any, *args: Any, used: bool = True) -> None:
        expected = [np.copy(arg) for arg in args]
        kernel.python(*expected)
        lowering = kernel.lower(*args, target=target)
        units = {stmt.unit for stmt in walk(lowering.kernel.body) if isinstance(stmt, MatrixProduct)}
        assert units == ({request.param} if used else set()), str(lowering.log)
        results = {}
        for name in ("tiling", "unroll"):
            results[name] = [np.copy(arg) for arg in args]
            arrays = dict(zip(lowering.definition.arrays, results[name], strict=False))
            interpreter.run(lowering.stages[name], arrays)
        if runs:
            results["compiled"] = [np.copy(arg, order="K") for arg in args]
            with monkeypatch.context() as patch:
                patch.setattr(targets, "host", lambda: target)
                kernel.prepared(*results["compiled"])(*results["compiled"])
        for name, given in results.items():
            for one, other in zip(given, expected, strict=True):
                np.testing.assert_array_equal(one, other, err_msg=name)

    return compare


def numbers(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    """All numbers of a type, the extreme ones often."""
    limits = np.iinfo(dtype)
    values = rng.integers(limits.min, limits.max, shape, endpoint=True)
    return np.where(rng.random(shape) < 0.3, limits.min, values).astype(dtype)


SHAPE = {"i": (32, 16), "j": (64, 32), "order": "j.0 i.0 i.1 j.1 k i.2 j.2", "parallel": "i.0"}


@tile(**SHAPE, stage={"A": "i.0", "B": "j.0"})
@vectorize("j", width=16)
def product(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            C[i, j] = 0
            for k in range(A.shape[1]):
                C[i, j] += np.int32(A[i, k]) * np.int32(B[k, j])


@tile(i=48, j=(64, 16), k=40, order="j.0 k.0 i.0 j.1 k.1 i.1 j.2", stage={"A": "i.0", "B": "k.0"}, parallel="i.0")
def update(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += np.int32(A[i, k]) * np.int32(B[k, j])


@pytest.mark.parametrize(("rows", "columns", "depth"), TAILS)
def test_sums_of_bytes_are_exact_at_every_size(agrees: Agrees, rows: int, columns: int, depth: int) -> None:
    rng = np.random.default_rng(rows)
    A, B = numbers(rng, INT8, rows, depth), numbers(rng, INT8, depth, columns)
    agrees(product, A, B, np.full((rows, columns), 7, np.int32))


@pytest.mark.parametrize(
    ("one", "other"), [(UINT8, INT8), (INT8, UINT8), (UINT8, UINT8), (INT16, INT16), (INT8, INT16), (INT16, UINT8)]
)
def test_elements_have_signs_or_none_and_one_byte_or_two(agrees: Agrees, one: Any, other: Any) -> None:
    rng = np.random.default_rng(2)
    A, B = numbers(rng, one, 17, 69), numbers(rng, other, 69, 18)
    with np.errstate(over="ignore"):
        agrees(product, A, B, np.full((17, 18), 7, np.int32))


def test_sums_wrap_as_int32(agrees: Agrees) -> None:
    A, B = np.full((16, 64), -128, INT8), np.full((64, 16), -128, INT8)
    with np.errstate(over="ignore"):
        agrees(update, A, B, np.full((16, 16), 2**31 - 1, np.int32))
        # Wrapped on the way, too: instructions that saturate would not.
        A, B = np.full((1, 140_000), 127, INT8), np.full((140_000, 1), 127, INT8)
        agrees(product, A, B, np.zeros((1, 1), np.int32))


def test_sums_of_int16_wrap_in_each_step(agrees: Agrees) -> None:
    A, B = np.full((16, 64), -128, INT8), np.full((64, 16), -128, INT8)
    with np.errstate(over="ignore"):
        agrees(update, A.astype(INT16) * 256, B.astype(INT16) * 256, np.full((16, 16), -(2**31), np.int32))


@pytest.mark.parametrize("turned", ["A", "B", "both", "strided"])
def test_operands_may_lie_in_any_order(agrees: Agrees, turned: str) -> None:
    rng = np.random.default_rng(3)
    A, B = numbers(rng, INT8, 19, 70), numbers(rng, INT8, 70, 35)
    if turned in ("A", "both"):
        A = np.asfortranarray(A)
    if turned in ("B", "both"):
        B = np.asfortranarray(B)
    if turned == "strided":
        A, B = np.repeat(A, 2, axis=1)[:, ::2], np.repeat(B, 3, axis=1)[:, ::-3]
    agrees(product, A, B, np.zeros((19, 35), np.int32))


def test_the_depth_may_be_cut_and_results_added_to(agrees: Agrees) -> None:
    rng = np.random.default_rng(5)
    A, B = numbers(rng, INT8, 50, 90), numbers(rng, INT8, 90, 50)
    agrees(update, A, B, numbers(rng, np.int32, 50, 50) // 4)


def test_a_result_whose_columns_are_contiguous_is_made_as_its_transpose(agrees: Agrees) -> None:
    A, B = (numbers(np.random.default_rng(6), INT8, 35, 35) for _ in "AB")
    agrees(product, A, B, np.asfortranarray(np.zeros((35, 35), np.int32)))


def test_a_left_operand_that_is_not_staged_is_told_that_it_should_be(agrees: Agrees) -> None:
    @tile(**SHAPE, stage={"B": "j.0"})
    def in_place(A, B, C):
        for i in range(A.shape[0]):
            for j in range(B.shape[1]):
                for k in range(A.shape[1]):
                    C[i, j] += np.int32(A[i, k]) * np.int32(B[k, j])

    A, B, C = np.ones((20, 30), INT8), np.ones((30, 40), INT8), np.zeros((20, 40), np.int32)
    agrees(in_place, A, B, C, used=False)
    log = str(in_place.lower(A, B, C, target=target_of("AVX-512 VNNI")).log)
    reason = "'A' is read in place, and AVX-512 VNNI reads packed rows; stage={'A': ...} at a loop outside the tile"
    assert f"- Note Matrix unit: not used: {reason} would make it possible" in log


def test_the_log_and_the_nest_say_what_is_multiplied_and_how() -> None:
    A, B, C = (np.zeros((64, 64), dtype) for dtype in (INT8, INT8, np.int32))
    lowering = product.lower(A, B, C, target=target_of("AVX-512 VNNI"))
    log = str(lowering.log)
    assert "- Applied Matrix unit: AVX-512 VNNI, 16x32 int32 of 'C' from int8 in loop 'k'" in log
    assert "staged A at 'i.0' as n x n x 1 x 1024 uint8 in packed memory, 128 added to each" in log
    assert "staged B at 'j.0' as n x n x 16 x 128 int8 in packed memory" in log
    assert "matrix_unit()" not in lowering.source
    pairs = str(product.lower(A, B, C, target=target_of("AVX-512")).log)
    assert "staged A at 'i.0' as n x n x 1 x 512 int16 in packed memory" in pairs
    assert "staged B at 'j.0' as n x n x 16 x 64 int16 in packed memory" in pairs


def test_a_unit_that_comes_first_is_used_first() -> None:
    A, B, C = (np.zeros((64, 64), dtype) for dtype in (INT8, INT8, np.int32))
    both = (*target_of("AVX-512").matrix, *target_of("AVX-512 VNNI").matrix)
    target = dataclasses.replace(host(), matrix=both)
    assert "Matrix unit: AVX-512, 16x32" in str(product.lower(A, B, C, target=target).log)
    only_bytes = dataclasses.replace(both[0], types=("int8",))
    target = dataclasses.replace(host(), matrix=(only_bytes, both[1]))
    wide = (np.zeros((64, 64), INT16), np.zeros((64, 64), INT16), C)
    assert "Matrix unit: AVX-512 VNNI, 16x32" in str(product.lower(*wide, target=target).log)
