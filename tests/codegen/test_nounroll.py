"""`nounroll` in machine code: one iteration of the loop a turn, on the CPU and on GPUs; and what asks for the
contrary gets it.

What is counted are the multiplications of each innermost loop: the kernels multiply once an iteration.

`nounroll` says more than `#pragma nounroll` does in Clang, which leaves LLVM's vectorizer free to do several
iterations at once (and a loop of eight may be gone altogether): a loop under it is a loop in machine code, and
each turn is one iteration.  Lanes are had by asking for them: `vectorize` with `nounroll` makes each turn one
vector.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyschedule import nounroll, tile, unroll, vectorize
from pyschedule.codegen import numba_cpu
from pyschedule.ir import build
from pyschedule.ir.nodes import Assign, BinOp, Break, Compare, Const, For, If, Kernel, Load, Return, Store, Var
from pyschedule.ir.types import FLOAT64, INT64
from pyschedule.runtime.compiler import assembly
from pyschedule.runtime.plan import ProgramText
from pyschedule.schedule.targets import host
from tests.codegen import cpu_support, machine_loops
from tests.codegen.machine_loops import Code

#: Multiplications of floats, fused or not, on x86, Arm and GPUs.
MULTIPLIES = r"(?i)^(v?mul[sp][sd]|vfn?madd|fn?mul|fn?madd|fmla|ffma)"
X, Y = np.ones(99), np.ones(99)
A, R = np.ones((64, 64), np.float32), np.ones(64, np.float32)


def on_cpu(kernel: Any, *args: Any) -> Code:
    return machine_loops.of_cpu(kernel.lower(*args, target="cpu").asm())


def on_gpu(kernel: Any, arch: str, *args: Any) -> Code:
    return machine_loops.of_gpu(kernel.lower(*args, target=f"cuda:{arch}").sass())


# ------------------------------------------------------------------------------------------------------ kernels


def scaled(x, y):
    for k in range(x.shape[0]):
        y[k] = x[k] * 1.5


def eight(x, y):
    for k in range(8):
        y[k] = x[k] * 1.5


def filtered(x, y):
    s = 0.0
    for k in range(x.shape[0]):
        s = s * 0.99 + x[k]
    y[0] = s


def eight_filtered(x, y):
    s = 0.0
    for k in range(8):
        s = s * 0.99 + x[k]
    y[0] = s


def squares(x, y):
    s = 0.0
    for k in range(x.shape[0]):
        s += x[k] * x[k]
    y[0] = s


def by_threes(x, y):
    for k in range(x.shape[0] - 1, 0, -3):
        y[k] = x[k] * 1.5


def until_negative(x, y):
    s = 0.0
    for k in range(8):
        if x[k] < 0.0:
            break
        s = s * 0.99 + x[k]
    y[0] = s


def without_negative(x, y):
    s = 0.0
    for k in range(x.shape[0]):
        if x[k] < 0.0:
            continue
        s = s * 0.99 + x[k]
    y[0] = s


def counted_while(x, y):
    s = 0.0
    k = 0
    while k < 8:
        s = s * 0.99 + x[k]
        k += 1
    y[0] = s


def while_of_two_tests(x, y):
    s = 0.0
    k = 0
    while k < 8 and s < 10.0:
        s = s * 0.99 + x[k]
        k += 1
    y[0] = s


CPU_KERNELS = [
    scaled,
    eight,
    filtered,
    eight_filtered,
    squares,
    by_threes,
    until_negative,
    without_negative,
    counted_while,
    while_of_two_tests,
]


@pytest.mark.parametrize("function", CPU_KERNELS)
def test_on_the_cpu_each_turn_is_one_iteration(function):
    code = on_cpu(nounroll("k")(function), X, Y)
    assert code.turns(MULTIPLIES) == [1]
    assert code.count(MULTIPLIES) == 1


@pytest.mark.parametrize("function", [scaled, eight, filtered, eight_filtered, squares, until_negative])
def test_without_it_llvm_makes_copies(function):
    """Else the tests above would prove nothing."""
    code = on_cpu(vectorize(target="cuda")(function), X, Y)
    assert code.count(MULTIPLIES) > 1
    if function is not until_negative:  # of which it writes out the first iteration alone
        assert code.turns(MULTIPLIES) != [1]


def test_a_loop_that_only_fills_memory_becomes_a_call():
    """It is rolled as far as one can be: nobody made copies of its body."""

    def clear(x, y):
        for k in range(x.shape[0]):
            y[k] = 0.0

    def copy(x, y):
        for k in range(x.shape[0]):
            y[k] = x[k]

    for function, name in ((clear, "memset"), (copy, "mem(cpy|move)")):
        code = on_cpu(nounroll("k")(function), X, Y)
        assert code.count(name) == 1 or code.innermost


# ----------------------------------------------------------------------------------------- with other directives


def rows(A, R):
    for i in range(A.shape[0]):
        s = np.float32(0)
        for k in range(A.shape[1]):
            s = s * np.float32(0.5) + A[i, k]
        R[i] = s


def rows_of_eight(A, R):
    for i in range(A.shape[0]):
        s = np.float32(0)
        for k in range(8):
            s = s * np.float32(0.5) + A[i, k]
        R[i] = s


def row_squares(A, R):
    for i in range(A.shape[0]):
        for k in range(A.shape[1]):
            R[i] += A[i, k] * A[i, k]


def test_in_an_unrolled_outer_loop_the_request_travels_with_the_copies():
    """Jammed, the one loop does an iteration of each copy a turn; in plain copies each has a loop of its own."""
    code = on_cpu(unroll("i", 4)(nounroll("k")(rows)), A, R)
    assert 4 in code.turns(MULTIPLIES) and set(code.turns(MULTIPLIES)) <= {1, 4}

    def from_the_diagonal(A, R):
        for i in range(A.shape[0]):
            s = np.float32(0)
            for k in range(i, A.shape[1]):
                s = s * np.float32(0.5) + A[i, k]
            R[i] = s

    kernel = unroll("i", 3)(nounroll("k")(from_the_diagonal))
    copies = [loop.unroll for loop in _loops(kernel.lower(A, R, target="cpu").kernel, "k")]
    assert copies == [1] * 4
    assert set(on_cpu(kernel, A, R).turns(MULTIPLIES)) == {1}


def _loops(kernel: Kernel, source: str) -> list[For]:
    from pyschedule.ir.visitors import loops

    return [loop for loop in loops(kernel.body) if loop.source == source]


def test_a_piece_of_a_tile_stays_rolled():
    code = on_cpu(tile(k=16)(nounroll("k.1")(filtered)), X, Y)
    assert set(code.turns(MULTIPLIES)) == {1}


def test_the_main_loop_of_an_unrolled_loop_is_not_unrolled_again_where_its_inner_piece_stays_rolled():
    code = on_cpu(tile(k=16)(unroll("k.0", 2)(nounroll("k.1")(filtered))), X, Y)
    assert set(code.turns(MULTIPLIES)) == {1}


@pytest.mark.parametrize("function", [scaled, squares])
def test_in_lanes_each_turn_is_one_vector(function):
    code = on_cpu(vectorize("k", width=4)(nounroll("k")(function)), X, Y)
    turns = code.turns(MULTIPLIES)  # a loop for each way to store
    assert set(turns) == {1}
    assert code.count(MULTIPLIES) == len(turns) + 1  # and one for the tail, under a mask
    assert max(on_cpu(vectorize("k", width=4)(function), X, Y).turns(MULTIPLIES)) > 1


# -------------------------------------------------------------------------------------------------------- GPUs


def rows_while(A, R):
    for i in range(A.shape[0]):
        s = np.float32(0)
        k = 0
        while k < A.shape[1]:
            s = s * np.float32(0.5) + A[i, k]
            k += 1
        R[i] = s


def rows_until_negative(A, R):
    for i in range(A.shape[0]):
        s = np.float32(0)
        for k in range(8):
            if A[i, k] < 0:
                break
            s = s * np.float32(0.5) + A[i, k]
        R[i] = s


def rows_in_place(A, R):
    for i in range(A.shape[0]):
        s = R[i]
        for k in range(A.shape[1]):
            s = s * np.float32(0.5) + A[i, k]
            A[i, k] = s


GPU_KERNELS = [rows, rows_of_eight, row_squares, rows_while, rows_until_negative, rows_in_place]
on_both_gpus = pytest.mark.parametrize("arch", ["sm_80", "sm_90"])


@pytest.fixture
def toolchain():
    pytest.importorskip("numba_cuda", reason="the [cuda] extra is not installed")


@on_both_gpus
@pytest.mark.parametrize("function", GPU_KERNELS)
def test_on_a_gpu_each_turn_is_one_iteration(arch, function, toolchain):
    code = on_gpu(nounroll("k")(function), arch, A, R)
    assert code.count(MULTIPLIES) == 1
    assert code.turns(MULTIPLIES) == [1]


@pytest.mark.parametrize("function", [rows, rows_of_eight, rows_until_negative])
def test_without_it_the_gpus_compiler_makes_copies(function, toolchain):
    code = on_gpu(vectorize(target="cpu")(function), "sm_90", A, R)
    assert code.count(MULTIPLIES) > 1


@on_both_gpus
def test_on_a_gpu_with_other_directives(arch, toolchain):
    jammed = on_gpu(tile(i=4)(unroll("i.1", 4)(nounroll("k")(rows))), arch, A, R)
    assert jammed.turns(MULTIPLIES) == [4]
    piece = on_gpu(tile(k=16)(nounroll("k.1")(rows)), arch, A, R)
    assert piece.turns(MULTIPLIES) == [1]
    # 128 bits at a time: four elements in one turn, squared and added.
    in_lanes = on_gpu(vectorize("k", width=4)(nounroll("k")(row_squares)), arch, A, R)
    assert in_lanes.turns(r"^LDG\S*\.128") == [1]


def test_without_it_the_gpus_compiler_makes_copies_of_lanes(toolchain):
    code = on_gpu(vectorize("k", width=4)(row_squares), "sm_80", A, R)
    assert max(code.turns(r"^LDG\S*\.128")) > 1


# ----------------------------------------------------------------------------------- the contrary, on the CPU


def marked(unroll: int, stop: int | None, *, stores: bool = False, leaves: bool = False) -> Code:
    """`for k in range(stop): s = s * 0.99 + x[k]`, or `x[k] = x[k] * 0.99`, with what it asks of LLVM; `leaves`:
    before it `if s < 0: break`."""
    array = cpu_support.array("x", "float64")
    element = Load("x", (Var("k"),), FLOAT64)

    def times(value):
        return BinOp("*", value, Const(0.99, FLOAT64), FLOAT64)

    s = Var("s", FLOAT64)
    step = Store("x", (Var("k"),), times(element))
    if not stores:
        step = Assign("s", BinOp("+", times(s), element, FLOAT64), FLOAT64)
    end = Var("n") if stop is None else build.const(stop)
    leave = If(Compare("<", s, Const(0.0, FLOAT64), FLOAT64), (Break(),))
    loop = For("k", build.ZERO, end, build.ONE, (leave, step) if leaves else (step,), source="k", unroll=unroll)
    body = (Assign("s", Const(0.0, FLOAT64), FLOAT64), loop, Return((s,)))
    kernel = Kernel("marked", (array, Var("n", INT64)), body, returns=(0,), scalar_results=(FLOAT64,))
    program = numba_cpu.generate(kernel, host(), parallel=False)
    return machine_loops.of_cpu(assembly(kernel, ProgramText(program.source, program.entry)))


@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize("copies", [2, 7, 16, 64])
def test_llvm_makes_as_many_copies_as_it_is_asked_for(copies, stores):
    """With a remainder of fewer iterations; lanes of LLVM's own would spoil the count."""
    assert max(marked(copies, None, stores=stores).turns(MULTIPLIES)) == copies
    assert max(marked(copies, 1000, stores=stores).turns(MULTIPLIES)) == copies


@pytest.mark.parametrize("trips", [8, 1000])
def test_llvm_writes_a_loop_out_that_it_is_asked_to(trips):
    code = marked(-1, trips)
    assert code.innermost == []
    assert trips - 1 <= code.count(MULTIPLIES) <= trips  # the first is 0.0 * 0.99


def test_llvm_makes_copies_of_a_loop_with_a_break_too():
    assert marked(4, None, leaves=True).turns(MULTIPLIES) == [4]
    code = marked(-1, 50, leaves=True)
    assert code.count(MULTIPLIES) >= 49
