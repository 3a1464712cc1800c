"""Whole programs: control flow, results, threads, loop hints, names, and the text itself."""

from __future__ import annotations

import concurrent.futures
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyschedule.codegen.numba_cpu import generate
from pyschedule.errors import InternalError
from pyschedule.ir import build, interpreter
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    BinOp,
    Break,
    Broadcast,
    Call,
    Compare,
    Const,
    Dim,
    If,
    Kernel,
    Load,
    Location,
    Reduce,
    Return,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.types import FLOAT32, FLOAT64, INT64, Scalar, Vector
from pyschedule.schedule.targets import cuda, host
from tests.codegen.cpu_support import (
    agree,
    array,
    below,
    call,
    compiled,
    lanes_from,
    load,
    samples,
    serial,
    source_of,
)

I, J, K, N = Var("i"), Var("j"), Var("k"), Var("n")


def parallel(var: str, stop: Any, *body: Stmt, **fields: Any) -> Any:
    return serial(var, stop, *body, mapping="parallel", **fields)


def matmul(strict: bool = False, **fields: Any) -> Kernel:
    a, b, c = array("A", "float32", 2), array("B", "float32", 2), array("C", "float32", 2)
    value = BinOp("+", load(c, I, J), BinOp("*", load(a, I, K), load(b, K, J), FLOAT32), FLOAT32)
    inner = serial("k", Dim("A", 1), Store("C", (I, J), value), **fields)
    outer = {"unroll": 1} if fields else {}  # LLVM may write the loops around it out, too
    body = serial("i", Dim("A", 0), serial("j", Dim("B", 1), inner, **outer), **outer)
    return Kernel("matmul", (a, b, c), (body,), strict_math=strict)


# ------------------------------------------------------------------------------------------ control flow


@pytest.mark.parametrize("step", [1, 3, -1, -4])
def test_loops_of_any_start_stop_and_step(step: int) -> None:
    y = array("y", "int64")
    count = Assign("c", build.add(Var("c"), 1), INT64)
    loop = serial("i", Var("stop"), Store("y", (Var("c"),), I), count, start=Var("start"), step=step)
    kernel = Kernel(
        "visit",
        (y, Var("start"), Var("stop")),
        (Assign("c", build.ZERO, INT64), loop, Return((Var("c"),))),
        returns=(0,),
        scalar_results=(INT64,),
    )
    function = compiled(kernel)
    for start, stop in ((0, 0), (2, 9), (9, -1), (-3, 5), (5, 5), (7, 2)):
        agree(kernel, {"y": np.full(20, -7)}, {"start": start, "stop": stop}, function=function)


def test_branches_breaks_whiles_and_early_returns() -> None:
    x = array("x", "float64")
    value = load(x, I)
    negative = Compare("<", value, Const(0.0, FLOAT64), FLOAT64)
    large = Compare(">", value, Const(10.0, FLOAT64), FLOAT64)
    huge = Compare(">", value, Const(99.0, FLOAT64), FLOAT64)
    s, c = Var("s", FLOAT64), Var("c")
    add = Assign("s", BinOp("+", s, value, FLOAT64), FLOAT64)
    kernel = Kernel(
        "control",
        (x,),
        (
            Assign("s", Const(0.0, FLOAT64), FLOAT64),
            Assign("c", build.ZERO, INT64),
            serial("i", Dim("x", 0),
                   If(negative, (Break(),),
                      (If(huge, (Return((s, build.const(-1))),), (If(large, (), (add,)),)),)),
                   Assign("c", build.add(c, 1), INT64)),
            While(Compare("<", c, build.const(10), INT64), (Assign("c", build.mul(build.add(c, 1), 2), INT64),)),
            Return((s, c)),
        ),
        returns=(0, 1),
        scalar_results=(FLOAT64, INT64),
    )  # fmt: skip
    function = compiled(kernel)
    for values in ([], [1.0, 2.0], [1.0, 11.0, 2.0, -1.0, 5.0], [3.0, 100.0, 1.0]):
        agree(kernel, {"x": np.array(values)}, function=function)
    assert "elif " in source_of(kernel)


def test_a_kernel_without_arrays_and_one_without_anything() -> None:
    kernel = Kernel("twice", (N,), (Return((build.mul(N, 2),)),), returns=(0,), scalar_results=(INT64,))
    assert compiled(kernel)(21) == (42,)
    assert compiled(Kernel("nothing", (), ()))() is None


def test_a_scalar_keeps_its_type_over_assignments() -> None:
    x = array("x", "float32")
    s = Var("s", FLOAT32)
    kernel = Kernel(
        "total",
        (x,),
        (
            Assign("s", Const(0, Scalar("int64", weak=True)), FLOAT32),
            serial("i", Dim("x", 0), Assign("s", BinOp("+", s, load(x, I), FLOAT32), FLOAT32)),
            Return((s,)),
        ),
        returns=(0,),
        scalar_results=(FLOAT32,),
        strict_math=True,
    )
    data = samples("float32", 400)
    agree(kernel, {"x": data[np.isfinite(data)]})


def test_names_that_the_module_needs_are_free_for_the_user() -> None:
    """A user may call things `load`, `np`, `range`, `int64`, `None_` or `i.0`; and twice the same."""
    a, b = array("load", "float32"), array("np", "float32")
    i0 = Var("i.0")
    body = serial(
        "i.0",
        Dim("load", 0),
        Assign("range", load(a, i0), FLOAT32),
        Assign("int64", BinOp("+", Var("range", FLOAT32), Var("lambda", FLOAT32), FLOAT32), FLOAT32),
        Store("np", (i0,), Var("int64", FLOAT32)),
    )
    kernel = Kernel("stride", (a, b, Var("lambda", FLOAT32)), (body,))
    data = {"load": samples("float32", 20), "np": np.zeros(20, np.float32)}
    agree(kernel, data, {"lambda": np.float32(2.5)})


# ----------------------------------------------------------------------------------------------- threads


def shared_work(unit: str = "packed") -> Kernel:
    """Rows of x, doubled by way of a buffer of each thread and a table that all threads read."""
    x, y = array("x", "float32", 2), array("y", "float32", 2)
    table = Array("table", FLOAT32, (Dim("x", 1),), space="local")
    row = Array("row", FLOAT32, (Dim("x", 1),), space=unit)
    fill = serial("t", Dim("x", 1), Store("table", (Var("t"),), Var("t")))
    gain = Assign("g", BinOp("+", load(x, I, build.ZERO), Var("offset", FLOAT32), FLOAT32), FLOAT32)
    first = serial("j", Dim("x", 1), Store("row", (J,), BinOp("*", load(x, I, J), Var("g", FLOAT32), FLOAT32)))
    second = serial(
        "k", Dim("x", 1),
        Store("y", (I, K), BinOp("+", Load("row", (K,), FLOAT32), Load("table", (K,), FLOAT32), FLOAT32)),
    )  # fmt: skip
    loop = parallel("i", Dim("x", 0), Alloc(row), gain, first, second)
    return Kernel("rows", (x, y, Var("offset", FLOAT32)), (Alloc(table), fill, loop), strict_math=True)


def test_a_parallel_loop_with_private_scalars_private_buffers_and_a_shared_one() -> None:
    kernel = shared_work()
    program = generate(kernel, host(), parallel=True)
    assert program.parallel and "on_threads(" in program.source
    function = compiled(kernel, parallel=True)
    for rows in (0, 1, 2, 3, 17, 64):
        data = {"x": samples("float32", rows * 5).reshape(rows, 5), "y": np.zeros((rows, 5), np.float32)}
        agree(kernel, data, {"offset": np.float32(0.5)}, function=function)


def test_without_threads_the_same_loop_is_plain() -> None:
    program = generate(shared_work(), host(), parallel=False)
    assert not program.parallel and "on_threads" not in program.source


@pytest.mark.parametrize("step", [1, 3, -2])
def test_threads_run_each_iteration_once(step: int) -> None:
    y = array("y", "int64")
    loop = parallel("i", Var("stop"), Store("y", (I,), build.add(load(y, I), 1)), start=Var("start"), step=step)
    outer = serial("r", 3, loop)
    kernel = Kernel("count", (y, Var("start"), Var("stop")), (outer,))
    function = compiled(kernel, parallel=True)
    for start, stop in ((0, 40), (3, 4), (5, 5), (39, 0), (1, 38)):
        agree(kernel, {"y": np.zeros(40, np.int64)}, {"start": start, "stop": stop}, function=function)


def test_a_thread_gets_neighbouring_iterations() -> None:
    from numba import get_num_threads, set_num_threads

    text = source_of(shared_work(), parallel=True)
    assert "first = start + trips * piece // pieces * step" in text
    before = get_num_threads()
    try:
        set_num_threads(1)
        kernel = shared_work()
        data = {"x": samples("float32", 35).reshape(7, 5), "y": np.zeros((7, 5), np.float32)}
        agree(kernel, data, {"offset": np.float32(0.5)}, parallel=True)
    finally:
        set_num_threads(before)


@pytest.mark.parametrize("case", ["read after", "carried", "left early", "register"])
def test_a_parallel_loop_that_threads_cannot_run_stays_on_one_thread(case: str) -> None:
    x, y = array("x", "int64"), array("y", "int64")
    last = Assign("s", load(x, I), INT64)
    keep = Store("y", (I,), Var("s"))
    before: tuple[Stmt, ...] = (Assign("s", build.ZERO, INT64),)
    after: tuple[Stmt, ...] = ()
    body: tuple[Stmt, ...] = (last, keep)
    acc = Array("acc", Vector(INT64, 4), (build.ONE,), space="register")
    if case == "read after":
        after = (Store("y", (build.ZERO,), Var("s")),)
    elif case == "carried":
        body = (keep, last)
    elif case == "left early":
        body = (last, keep, If(Compare("==", Var("s"), build.const(3), INT64), (Break(),)))
    else:
        before = (Alloc(acc), Store("acc", (build.ZERO,), Broadcast(build.const(5), 4)))
        body = (
            last,
            Store("y", (I,), build.add(Var("s"), Reduce("+", Load("acc", (build.ZERO,), Vector(INT64, 4))))),
        )
    kernel = Kernel("stay", (x, y), (*before, parallel("i", Dim("x", 0), *body), *after))
    assert "stays on one thread" in source_of(kernel, parallel=True)
    agree(kernel, {"x": np.array([4, 1, 3, 2, 9]), "y": np.zeros(5, np.int64)}, parallel=True)


def test_a_scalar_of_the_same_name_in_two_nests_is_private_in_both() -> None:
    x, y = array("x", "int64"), array("y", "int64")
    first = parallel("i", Dim("x", 0), Assign("s", load(x, I), INT64), Store("y", (I,), Var("s")))
    second = parallel("j", Dim("x", 0), Assign("s", load(y, J), INT64), Store("y", (J,), build.mul(Var("s"), 3)))
    kernel = Kernel("twice", (x, y), (first, second))
    assert source_of(kernel, parallel=True).count("on_threads(") == 2
    agree(kernel, {"x": np.arange(9), "y": np.zeros(9, np.int64)}, parallel=True)


def nested_work(*inner: Stmt, **fields: Any) -> Kernel:
    """Groups of rows, each with a buffer that one parallel loop fills and another reads, inside a third."""
    x, y = array("x", "float32", 3), array("y", "float32", 3)
    row = Array("row", FLOAT32, (Dim("x", 2),), space="packed")
    fill = parallel("t", Dim("x", 2), Store("row", (Var("t"),), load(x, N, build.ZERO, Var("t"))))
    value = BinOp("+", Load("row", (J,), FLOAT32), load(x, N, I, J), FLOAT32)
    use = parallel("i", Dim("x", 1), serial("j", Dim("x", 2), Store("y", (N, I, J), value)), *inner)
    return Kernel("groups", (x, y), (parallel("n", Dim("x", 0), Alloc(row), fill, use, **fields),))


def test_threads_share_the_outer_of_two_parallel_loops_or_the_inner_one_if_the_outer_is_short() -> None:
    source = source_of(nested_work(), parallel=True)
    assert "if keep_busy(len(range(0, x_n0, 1))):" in source
    # Each function is written once, and called in two places: on threads, and by the thread of an outer iteration.
    assert [
        source.count(text) for text in ("def groups_i(", "on_threads(groups_i,", "on_this_thread(groups_i,")
    ] == [1] * 3
    assert [source.count(text) for text in ("def groups_n(", "(groups_n,", "def groups_t(")] == [1] * 3
    function = compiled(nested_work(), parallel=True)
    for groups in (0, 1, 2, 3, 8, 13):
        x = samples("float32", groups * 12).reshape(groups, 3, 4)
        agree(nested_work(), {"x": x, "y": np.zeros_like(x)}, function=function)


def test_what_threads_run_becomes_machine_code_with_the_program_that_starts_them_and_never_alone() -> None:
    function = compiled(nested_work(), parallel=True)
    x = samples("float32", 24).reshape(2, 3, 4)
    agree(nested_work(), {"x": x, "y": np.zeros_like(x)}, function=function)
    (types,) = function.signatures
    assert "pieces." in function.inspect_llvm(types)
    work = {name: value for name, value in function.py_func.__globals__.items() if name.startswith("groups_")}
    assert set(work) == {"groups_n", "groups_t", "groups_i"}
    assert not any(part.overloads for part in work.values())


@pytest.mark.parametrize("groups", [1, 2])
def test_an_error_in_nested_parallel_loops_is_raised_by_the_call(groups: int) -> None:
    x, y = array("x", "int64", 2), array("y", "int64", 2)
    at = Call("checked_index", (load(x, N, I), Dim("y", 1)), INT64)
    inner = parallel("i", Dim("x", 1), Store("y", (N, I), load(x, N, at)))
    kernel = Kernel("take", (x, y), (parallel("n", Dim("x", 0), inner),))
    function = compiled(kernel, parallel=True)
    data: dict[str, Any] = {"x": np.zeros((groups, 5), np.int64), "y": np.ones((groups, 5), np.int64)}
    call(function, kernel, data, {})
    np.testing.assert_array_equal(data["y"], 0)
    data["x"][groups - 1, 4] = 9
    with pytest.raises(IndexError, match=r"-1, 9, 5"):
        call(function, kernel, data, {})


def test_an_index_error_of_a_thread_is_raised_by_the_call() -> None:
    where, x, y = array("where", "int64"), array("x", "float32"), array("y", "float32")
    at = Call("checked_index", (load(where, I), Dim("x", 0)), INT64)
    kernel = Kernel("take", (where, x, y), (parallel("i", Dim("y", 0), Store("y", (I,), load(x, at))),))
    function = compiled(kernel, parallel=True)
    data: dict[str, Any] = {"where": np.arange(20) % 5, "x": samples("float32", 5), "y": np.zeros(20, np.float32)}
    call(function, kernel, data, {})
    np.testing.assert_array_equal(data["y"], data["x"][data["where"]])
    for place in (0, 19):
        data["where"] = np.arange(20) % 5
        data["where"][place] = 77
        with pytest.raises(IndexError, match=r"-1, 77, 5"):
            call(function, kernel, data, {})


def test_a_kernel_called_from_several_python_threads() -> None:
    kernel = shared_work()
    function = compiled(kernel)
    x = samples("float32", 500).reshape(100, 5)

    def once(seed: int) -> np.ndarray[Any, Any]:
        data = {"x": x + np.float32(seed), "y": np.zeros_like(x)}
        for _ in range(20):
            call(function, kernel, data, {"offset": np.float32(seed)})
        return data["y"]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        together = list(pool.map(once, range(8)))
    for seed, result in enumerate(together):
        np.testing.assert_array_equal(result, once(seed))


# -------------------------------------------------------------------------------------------- loop hints


def fused_in_loops(assembly: str) -> int:
    """How many scalar multiply-adds or multiplications the hot loop has."""
    return len(re.findall(r"\bv?f?n?m?(?:madd|mul|add)\d*ss\b", assembly))


@pytest.mark.parametrize(("unroll", "copies"), [(1, {1}), (5, {6, 9}), (0, None)])
def test_a_loop_is_unrolled_as_asked_in_machine_code(unroll: int, copies: set[int] | None) -> None:
    function = compiled(matmul(unroll=unroll))
    data = [samples("float32", 6 * 7).reshape(6, 7) for _ in range(3)]
    data = [np.nan_to_num(item, posinf=1, neginf=1) for item in data]
    a, b, c = data[0], np.ascontiguousarray(data[1].T), np.zeros((6, 6), np.float32)
    function(a, b, c)
    np.testing.assert_allclose(c, a @ b, rtol=1e-4, atol=1e-3)
    (assembly,) = function.inspect_asm().values()
    found = len(re.findall(r"v?fn?madd\w+|v?mulss|v?mulps", assembly.split("cpython")[0]))
    if copies is not None:
        assert found in copies
    assert "loop hint" not in assembly


def test_a_full_unroll_leaves_no_loop() -> None:
    x, y = array("x", "float64"), array("y", "float64")
    function = {}
    for unroll in (1, -1):
        value = BinOp("/", load(x, I), Const(3.0, FLOAT64), FLOAT64)
        kernel = Kernel("third", (x, y), (serial("i", 5, Store("y", (I,), value), unroll=unroll),))
        function[unroll] = compiled(kernel)
        data = {"x": samples("float64", 5), "y": np.zeros(5)}
        agree(kernel, data, function=function[unroll])
    rolled, flat = ("".join(function[unroll].inspect_asm().values()) for unroll in (1, -1))
    assert rolled.count("divsd") == 1 and "divpd" not in rolled
    assert flat.count("divsd") + 2 * flat.count("divpd") >= 4


def test_a_hint_holds_in_a_while_loop_and_behind_a_branch() -> None:
    x = array("x", "float64")
    c, s = Var("c"), Var("s", FLOAT64)
    positive = Compare(">", load(x, c), Const(0.0, FLOAT64), FLOAT64)
    step = If(positive, (Assign("s", BinOp("/", s, load(x, c), FLOAT64), FLOAT64),))
    loop = While(below(c, Dim("x", 0)), (step, Assign("c", build.add(c, 1), INT64)), unroll=1)
    kernel = Kernel(
        "quotient", (x,),
        (Assign("c", build.ZERO, INT64), Assign("s", Const(1.0, FLOAT64), FLOAT64), loop, Return((s,))),
        returns=(0,), scalar_results=(FLOAT64,),
    )  # fmt: skip
    function = compiled(kernel)
    agree(kernel, {"x": np.array([2.0, -1.0, 4.0])}, function=function)
    assert "".join(function.inspect_asm().values()).count("divsd") == 1


# --------------------------------------------------------------------------------------------- the text


def test_the_text_is_deterministic_and_says_lines_and_loops() -> None:
    where = Location("/somewhere/kernels.py", 12, 8)
    x = array("x", "float32")
    store = Store("x", (I,), Const(1.0, FLOAT32), loc=Location("/somewhere/kernels.py", 13, 12))
    kernel = Kernel(
        "ones", (x,), (serial("i", Dim("x", 0), store, loc=where),), loc=Location("/somewhere/kernels.py", 11, 0)
    )
    text = source_of(kernel)
    assert text == source_of(kernel)
    assert "# line 12, loop i" in text and "# line 13" in text
    assert "(kernels.py, line 11)" in text and "/somewhere" not in text


def test_the_golden_text_of_a_product() -> None:
    text = source_of(matmul())
    assert text.endswith("""

@njit(**OPTIONS)
def matmul(A, B, C):
    A_n0 = A.shape[0]
    B_n1 = B.shape[1]
    A_n1 = A.shape[1]
    C_s0 = stride(C, 0)
    A_s0 = stride(A, 0)
    B_s0 = stride(B, 0)
    for i in range(A_n0):  # loop i
        for j in range(B_n1):  # loop j
            for k in range(A_n1):  # loop k
                store(C, i * C_s0 + j, muladd(load(A, i * A_s0 + k), load(B, k * B_s0 + j), load(C, i * C_s0 + j)))
""")


def test_a_load_done_again_is_named_until_a_store_may_change_it() -> None:
    """z may be y: what was read of y before a store to z is read again after it; a local array is its own."""
    y, z = array("y", "float64"), array("z", "float64")
    t = Array("t", FLOAT64, (build.const(2),), space="local")
    here, there = (build.ZERO,), (build.ONE,)
    first, second = load(y, *here), load(y, *there)
    local = Load("t", here, FLOAT64)
    body = (
        Alloc(t),
        Store("t", here, BinOp("*", first, first, FLOAT64)),
        Store("t", there, BinOp("+", first, second, FLOAT64)),
        Store("z", here, BinOp("+", BinOp("+", first, local, FLOAT64), second, FLOAT64)),
        Store("z", there, BinOp("+", BinOp("+", first, local, FLOAT64), local, FLOAT64)),
        Assign("n", build.ONE, INT64),
        Assign("s", load(y, N), FLOAT64),
        Assign("n", build.ZERO, INT64),
        Store("z", there, BinOp("+", BinOp("+", load(y, N), Var("s", FLOAT64), FLOAT64), second, FLOAT64)),
    )
    kernel = Kernel("again", (y, z), body, strict_math=True)
    text = source_of(kernel)
    assert text.count("load(y, 0)") == 2 and text.count("load(t, 0)") == 1
    shared = np.array([3.0, 5.0])
    expected = shared.copy()
    function = compiled(kernel)
    interpreter.run(kernel, {"y": expected, "z": expected})
    function(shared, shared)
    np.testing.assert_array_equal(shared, expected)


def test_a_load_under_a_scalar_mask_is_not_named_for_others() -> None:
    x, y = array("x", "int64"), array("y", "int64")
    inside = below(I, build.const(3))
    body = (
        Store("y", (I,), load(x, I), inside),
        Store("y", (build.add(I, 1),), build.add(Load("x", (I,), INT64, inside), Load("x", (I,), INT64, inside))),
        Store("y", (build.add(I, 1),), load(x, I), inside),
    )
    kernel = Kernel("masked", (x, y), (serial("i", 8, *body),))
    agree(kernel, {"x": np.arange(5, 13), "y": np.zeros(9, np.int64)})


def test_a_gpu_target_is_refused() -> None:
    with pytest.raises(InternalError, match="CPU back end"):
        generate(matmul(), cuda("sm_80"), parallel=False)


def test_the_words_are_those_that_the_library_has() -> None:
    from pyschedule.codegen import simd, words

    assert set(simd.__all__) - {"VectorType"} == words.SIMD_NAMES


def test_generating_text_does_not_import_numba() -> None:
    code = (
        "import sys, pyschedule.codegen.numba_cpu as back; "
        "print([name for name in ('numba', 'llvmlite', 'sympy', 'pandas', 'islpy') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_module_is_found_in_numbas_cache_by_the_next_process(tmp_path: Path) -> None:
    kernel = shared_work()
    program = generate(kernel, host(), parallel=True, cache=True)
    file = tmp_path / "generated_rows.py"
    file.write_text(program.source)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import numpy as np, generated_rows as g\n"
        "x = np.ones((4, 3), np.float32); y = np.zeros((4, 3), np.float32)\n"
        "g.rows(x, y, np.float32(1)); print(y[3].tolist(), sum(g.rows.stats.cache_hits.values()))\n"
    )
    outputs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path.cwd())
        for _ in range(2)
    ]
    assert [item.stdout.strip() for item in outputs] == ["[2.0, 3.0, 4.0] 0", "[2.0, 3.0, 4.0] 1"]


def test_the_source_is_importable_from_a_file(tmp_path: Path) -> None:
    program = generate(matmul(), host(), parallel=False)
    file = tmp_path / "generated_matmul.py"
    file.write_text(program.source)
    spec = importlib.util.spec_from_file_location("generated_matmul", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    c = np.zeros((2, 2), np.float32)
    getattr(module, program.entry)(np.eye(2, dtype=np.float32), np.ones((2, 2), np.float32), c)
    np.testing.assert_array_equal(c, np.ones((2, 2)))


def test_the_register_tile_of_a_product_has_no_spills(lanes: int = 16) -> None:
    """6 rows of 64 columns: 24 multiply-adds a step, and nothing of the stack in that loop."""
    rows = 6 if host().vector_registers >= 32 else 4
    width = host().lanes(4)
    vectors = 4 if host().vector_registers >= 32 else 2
    a, b, c = array("A", "float32", 2), array("B", "float32", 2), array("C", "float32", 2)
    vector = Vector(FLOAT32, width)
    acc = Array("acc", vector, (build.const(rows), build.const(vectors)), space="register")
    spots = [(build.const(i), build.const(j)) for i in range(rows) for j in range(vectors)]
    columns = [lanes_from(build.const(width * j), width) for j in range(vectors)]

    def step(i: int, j: int) -> Stmt:
        spot = (build.const(i), build.const(j))
        product = BinOp("*", load(a, build.const(i), K), load(b, K, columns[j]), FLOAT32)
        return Store("acc", spot, BinOp("+", Load("acc", spot, vector), product, FLOAT32))

    tile = [(i, j) for i in range(rows) for j in range(vectors)]
    kernel = Kernel(
        "tile",
        (a, b, c),
        (
            Alloc(acc),
            *(Store("acc", spot, Const(0.0, FLOAT32)) for spot in spots),
            serial("k", Dim("A", 1), *(step(i, j) for i, j in tile)),
            *(
                Store("C", (build.const(i), columns[j]), Load("acc", (build.const(i), build.const(j)), vector))
                for i, j in tile
            ),
        ),
    )
    rng = np.random.default_rng(0)
    data = [rng.standard_normal(shape, dtype=np.float32) for shape in ((rows, 33), (33, width * vectors))]
    out = np.zeros((rows, width * vectors), np.float32)
    function = compiled(kernel)
    function(*data, out)
    np.testing.assert_allclose(out, data[0] @ data[1], rtol=1e-4, atol=1e-4)
    loop = hottest_loop("".join(function.inspect_asm().values()))
    assert sum("fmadd" in line or "fmla" in line for line in loop) % (rows * vectors) == 0
    assert not any("(%rsp" in line for line in loop)


def hottest_loop(assembly: str) -> list[str]:
    """The lines between a label and a jump back to it, of the loop with most multiply-adds."""
    lines = assembly.splitlines()
    labels: dict[str, int] = {}
    best: list[str] = []
    for number, line in enumerate(lines):
        if head := re.match(r"(\.LBB\w+):", line):
            labels[head[1]] = number
        jump = re.match(r"\s+j\w+\s+(\.LBB\w+)", line)
        if jump and jump[1] in labels:
            body = lines[labels[jump[1]] + 1 : number]
            if sum("fmadd" in item for item in body) > sum("fmadd" in item for item in best):
                best = body
    assert best, "no loop with multiply-adds"
    return best
