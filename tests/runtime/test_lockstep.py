"""The lockstep executor by itself, on source written by hand: masks, memory checks, races."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyschedule.codegen.cuda_program import ArrayInfo, CudaProgram, Launch, Parameter
from pyschedule.ir.types import Scalar
from pyschedule.runtime import lockstep

_HEAD = "\n".join(
    f"from numba.cuda.types import {long} as {short}"
    for short, long in {"u32": "uint32", "u64": "uint64", "i64": "int64", "f32": "float32", "u8": "uint8"}.items()
)


def program(body: str, threads: int = 4, blocks: int = 1, dtype: str = "float32") -> CudaProgram:
    """A kernel over arrays `X` and `Y` with `tx` and `bx` set."""
    lines = ["tx = u32(cuda.threadIdx.x)", "bx = u32(cuda.blockIdx.x)", *body.strip("\n").splitlines()]
    source = _HEAD + "\n\ndef kernel(X, Y):\n" + "\n".join("    " + line for line in lines) + "\n"
    pointers = tuple(Parameter(name, "pointer", Scalar("uint64"), name) for name in "XY")
    launch = Launch("kernel", (str(blocks), "1", "1"), (threads, 1, 1), pointers)
    arrays = tuple(ArrayInfo(name, dtype, 1, name == "Y", 0) for name in "XY")
    return CudaProgram(source, (launch,), arrays, ())


def run(body: str, size: int = 8, **options: Any) -> list[float]:
    made = program(body, **options)
    dtype = made.arrays[0].dtype
    y = np.zeros(size, dtype)
    lockstep.run(made, {"X": np.arange(size, dtype=dtype), "Y": y})
    return y.tolist()


def test_branches_that_differ() -> None:
    body = """
v = f32(1.0)
if tx < u32(2):
    v = load_f32(X, tx)
else:
    if tx == u32(3):
        v = f32(9.0)
store_f32(Y, tx, v)
"""
    assert run(body)[:4] == [0, 1, 1, 9]


def test_loops_of_different_length_with_breaks() -> None:
    body = """
n = i64(0)
k = u32(0)
while k < tx:
    if k == u32(2):
        break
    n = n + 1
    k = u32(k + u32(1))
for j in range(i64(tx)):
    if j == 1:
        break
    n = n + 10
store_i64(Y, tx, n)
"""
    assert run(body, dtype="int64")[:4] == [0, 11, 12, 12]


def test_ranges_of_either_direction() -> None:
    body = """
n = i64(0)
for j in range(i64(tx), i64(-2), i64(-2)):
    n = n * 10 + j + 5
store_i64(Y, tx, n)
"""
    assert run(body, dtype="int64")[:4] == [5, 64, 75, 864]


def test_returns_leave_the_other_threads() -> None:
    assert run("if tx == u32(1):\n    return\nstore_f32(Y, tx, f32(5.0))")[:4] == [5, 0, 5, 5]


def test_what_is_not_needed_is_not_evaluated() -> None:
    """Neither by `and`, nor by a conditional expression, nor by a mask."""
    assert run("store_f32(Y, tx, load_f32(X, tx + u32(6)) if tx < u32(2) else f32(-1.0))")[:4] == [6, 7, -1, -1]
    body = "if tx < u32(2) and load_f32(X, tx + u32(6)) > f32(6.5):\n    store_f32(Y, tx, f32(1.0))"
    assert run(body)[:4] == [0, 1, 0, 0]
    masked = "store_f32x4(Y, u32(0), load_f32x4_masked(X, u32(4), vlt(ramp4(i64(0), i64(1)), splat4(i64(2)))))"
    assert run(masked, threads=1)[:4] == [4, 5, 0, 0]


@pytest.mark.parametrize("offset", ["u32(8)", "i64(-1)", "u32(tx + u32(6))"])
def test_accesses_out_of_bounds(offset: str) -> None:
    for body in (f"v = load_f32(X, {offset})", f"store_f32(Y, {offset}, f32(1.0))"):
        with pytest.raises(lockstep.OutOfBoundsError):
            run(body)


def test_gaps_of_a_view_are_out_of_bounds() -> None:
    made = program("v = load_f32(X, u32(1))", threads=1)
    object.__setattr__(made.arrays[0], "unit_axis", None)
    with pytest.raises(lockstep.OutOfBoundsError):
        lockstep.run(made, {"X": np.zeros(8, np.float32)[::2], "Y": np.zeros(4, np.float32)})


def test_local_and_shared_arrays_have_bounds() -> None:
    for space in ("local", "shared"):
        with pytest.raises(lockstep.OutOfBoundsError):
            run(f"A = cuda.{space}.array(4, f32, 16)\nA[u64(tx + u32(1))] = f32(1.0)")


def test_a_misaligned_vector() -> None:
    with pytest.raises(lockstep.MisalignedError):
        run("v = load_f32x4(X, u32(1))", threads=1)
    assert run("store_f32x4(Y, u32(0), load_f32x4_unaligned(X, u32(1)))", threads=1)[:4] == [1, 2, 3, 4]


SHARED = "S = cuda.shared.array(8, f32, 16)\n"


def test_threads_meet_through_shared_memory() -> None:
    body = SHARED + "S[u64(tx)] = load_f32(X, tx)\ncuda.syncthreads()\nstore_f32(Y, tx, S[u64(u32(3) - tx)])"
    assert run(body)[:4] == [3, 2, 1, 0]


@pytest.mark.parametrize(
    "body",
    [
        "S[u64(tx)] = f32(1.0)\nv = S[u64(u32(3) - tx)]",  # read of another's write
        "v = S[u64(u32(3) - tx)]\nS[u64(tx)] = f32(1.0)",  # write over what another read
        "S[u64(tx)] = f32(1.0)\nS[u64(u32(3) - tx)] = f32(2.0)",  # write over another's write
        "S[u64(0)] = f32(1.0)",  # all at once, even of one value
        "if tx == u32(0):\n    S[u64(1)] = f32(1.0)\nif tx == u32(1):\n    v = S[u64(1)]",
    ],
)
def test_races_in_shared_memory(body: str) -> None:
    with pytest.raises(lockstep.RaceError):
        run(SHARED + body)
    ordered = SHARED + body.replace("\n", "\ncuda.syncthreads()\n") if "if" not in body else ""
    if ordered and "u64(0)" not in body:
        run(ordered)


def test_reading_the_same_word_is_no_race() -> None:
    body = SHARED + "if tx == u32(0):\n    S[u64(0)] = f32(4.0)\ncuda.syncthreads()\nstore_f32(Y, tx, S[u64(0)])"
    assert run(body)[:4] == [4, 4, 4, 4]


def test_races_in_global_memory() -> None:
    with pytest.raises(lockstep.RaceError):
        run("store_f32(Y, u32(0), f32(1.0))")
    with pytest.raises(lockstep.RaceError):
        run("store_f32(Y, tx, f32(1.0))", blocks=2)
    with pytest.raises(lockstep.RaceError):  # a barrier orders the threads of a block, not blocks
        first, second = (
            "if bx == u32(0):\n    store_f32(Y, tx, f32(1.0))",
            "if bx == u32(1):\n    v = load_f32(Y, tx)",
        )
        run(f"{first}\ncuda.syncthreads()\n{second}", blocks=2)
    run("store_f32(Y, tx, f32(1.0))\ncuda.syncthreads()\nv = load_f32(Y, u32(3) - tx)")


def test_memory_promised_constant_must_be() -> None:
    with pytest.raises(lockstep.RaceError, match="constant"):
        run("store_f32(Y, tx, f32(1.0))\nv = ldg_f32(Y, tx)")


def test_barriers_that_some_threads_miss() -> None:
    with pytest.raises(lockstep.BarrierDivergenceError):
        run("if tx < u32(2):\n    cuda.syncthreads()")
    with pytest.raises(lockstep.BarrierDivergenceError):
        run("for j in range(i64(tx)):\n    cuda.syncthreads()")
    run("for j in range(u64(3)):\n    cuda.syncthreads()")


@pytest.mark.parametrize(
    "body",
    [
        "v = i64(1) + u64(1)",  # Numba makes a float of it
        "v = f32(1.0) + 1",
        "v = u32(1)\nv = i64(2)",
        "v = f32(1.0) if tx < u32(2) else 1.0",
        "A = cuda.local.array(4, f32, 16)\nA[u64(0)] = 1.0",
        "v = vadd(splat4(f32(1.0)), splat4(1.0))",
        "v = unknown_name",
        "v = [1, 2]",
    ],
)
def test_what_numba_would_type_otherwise_is_an_error(body: str) -> None:
    with pytest.raises(lockstep.LockstepError):
        run(body)


def test_small_integers_wrap_as_on_the_gpu() -> None:
    assert run("store_i64(Y, tx, i64(u32(u32(0) - u32(1))))", dtype="int64")[0] == 2**32 - 1
    assert run("store_i64(Y, tx, i64(u32(7) - u32(8)))", dtype="int64")[0] == -1
    assert run("store_i64(Y, tx, i64(u8(300)))", dtype="int64")[0] == 44


def test_memory_nobody_wrote_shows() -> None:
    assert np.isnan(run("A = cuda.local.array(2, f32, 16)\nstore_f32(Y, tx, A[u64(0)])")[0])
    assert np.isnan(run(SHARED + "store_f32(Y, tx, S[u64(5)])")[0])


def test_arguments_are_checked() -> None:
    made = program("store_f32(Y, tx, f32(1.0))")
    with pytest.raises(ValueError, match="'X'"):
        lockstep.run(made, {"X": np.zeros((2, 2), np.float32), "Y": np.zeros(4, np.float32)})
    with pytest.raises(TypeError, match="'X'"):
        lockstep.run(made, {"X": np.zeros(4), "Y": np.zeros(4, np.float32)})
    frozen = np.zeros(4, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(lockstep.LockstepError, match="only read"):
        lockstep.run(made, {"X": np.zeros(4, np.float32), "Y": frozen})


def test_slack_beside_the_array_stays_as_it_is() -> None:
    outer = np.full(16, 7.0, np.float32)
    lockstep.run(program("store_f32(Y, tx, f32(1.0))"), {"X": np.zeros(4, np.float32), "Y": outer[6:10]})
    assert outer.tolist() == [7.0] * 6 + [1.0] * 4 + [7.0] * 6
