"""Accesses: tails that touch nothing beyond, any stride, gathers, halves, local arrays of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pyschedule.ir import build
from pyschedule.ir.arithmetic import numpy_dtype
from pyschedule.ir.index_checks import UNKNOWN
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    BinOp,
    BoolOp,
    Broadcast,
    Call,
    Compare,
    Const,
    Dim,
    Expr,
    If,
    Kernel,
    Load,
    Ramp,
    Reduce,
    Return,
    Select,
    Store,
    Var,
)
from pyschedule.ir.types import DTYPES, FLOAT32, FLOAT64, INT64, Scalar, Vector
from tests.codegen.cpu_support import (
    LANES,
    agree,
    array,
    as_words,
    below,
    call,
    compiled,
    held,
    lanes_from,
    load,
    samples,
    serial,
    source_of,
)

I, J = Var("i"), Var("j")
SIZES = [0, 1, LANES - 1, LANES, LANES + 1, 2 * LANES - 1, 37]


def in_slack(values: np.ndarray[Any, Any], marker: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    buffer = np.full(values.size + 64, marker, values.dtype)
    view = buffer[32 : 32 + values.size]
    view[...] = values
    return view, buffer


# ------------------------------------------------------------------------------------------------- tails


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_masked_tail_writes_nothing_beyond(dtype: str) -> None:
    x, y = array("x", dtype), array("y", dtype)
    stop = Dim("y", 0)
    index = lanes_from(I)
    mask = below(index, stop)
    value = load(x, index, mask=mask)
    kernel = Kernel("copy", (x, y), (serial("i", stop, Store("y", (index,), value, mask), step=LANES),))
    function = compiled(kernel)
    for size in SIZES:
        source, _ = in_slack(samples(dtype, size), 1)
        target, buffer = in_slack(np.zeros(size, numpy_dtype(dtype)), 1)
        function(as_words(source), as_words(target))
        np.testing.assert_array_equal(as_words(target), as_words(source))
        edges = np.concatenate([buffer[:32], buffer[32 + size :]])
        assert np.all(edges.astype(np.float64) == 1)


@pytest.mark.parametrize("op", ["<", "<=", ">", ">="])
def test_a_mask_from_a_bound_in_any_spelling(op: str) -> None:
    y = array("y", "int32")
    stop = Var("n")
    index = build.add(lanes_from(I), 2)
    test = Compare(op, index, stop, INT64) if op in ("<", "<=") else Compare(op, stop, index, INT64)
    mask = BoolOp("and", test, below(index, Dim("y", 0)))
    body = serial("i", Dim("y", 0), Store("y", (index,), Const(1, Scalar("int32")), mask), step=LANES)
    kernel = Kernel("bounded", (y, Var("n")), (body,))
    function = compiled(kernel)
    for count in (-5, 0, 1, 2, 3, 9, 10, 11, 29, 30, 31, 2**40):
        agree(kernel, {"y": np.zeros(30, np.int32)}, {"n": count}, function=function)


def test_the_mask_of_a_bound_needs_no_vector_of_counters() -> None:
    x = array("x", "float32")
    index = lanes_from(I)
    kernel = Kernel(
        "zero",
        (x,),
        (
            serial(
                "i", Dim("x", 0), Store("x", (index,), Const(0.0, FLOAT32), below(index, Dim("x", 0))), step=LANES
            ),
        ),
    )
    assert f"head(x_n0 - i, {LANES})" in source_of(kernel)


@pytest.mark.parametrize("lanes", [2, 8, 16, 63, 64])
def test_the_mask_of_a_bound_has_as_many_lanes_on(lanes: int) -> None:
    x = array("x", "int8")
    start = Var("start")
    index = lanes_from(start, lanes)
    store = Store("x", (index,), Const(1, Scalar("int8")), below(index, Var("stop")))
    kernel = Kernel("ones", (x, start, Var("stop")), (store,))
    function = compiled(kernel)
    for count in (-(2**63), -1, 0, 1, lanes - 1, lanes, lanes + 1, 2**32 + 1, 2**63 - 1):
        data = np.zeros(lanes, np.int8)
        function(data, 0, count)
        np.testing.assert_array_equal(data, np.arange(lanes) < count)


# ------------------------------------------------------------------------------------------------- strides


@pytest.mark.parametrize("step", [1, -1, 2, -3])
@pytest.mark.parametrize("dtype", ["float32", "int8", "float16", "bool"])
def test_arrays_of_any_stride(dtype: str, step: int) -> None:
    unit = 0 if step == 1 else None
    x, y = array("x", dtype, unit_axis=unit), array("y", dtype, unit_axis=unit)
    stop = Dim("y", 0)
    scalar = Kernel("copy", (x, y), (serial("i", stop, Store("y", (I,), load(x, I))),))
    index = lanes_from(I)
    mask = below(index, stop)
    masked = Store("y", (index,), load(x, index, mask=mask), mask)
    vector = Kernel("copy", (x, y), (serial("i", stop, masked, step=LANES),))
    for kernel in (scalar, vector):
        function = compiled(kernel)
        for size in (0, 1, 21):
            source = samples(dtype, 64)[:: abs(step)][:size][:: step // abs(step)]
            back = np.zeros(64, numpy_dtype(dtype))
            target = back[:: abs(step)][:size][:: step // abs(step)]
            function(as_words(source), as_words(target))
            np.testing.assert_array_equal(as_words(target), as_words(source))
            outside = back.copy()
            outside[:: abs(step)][:size] = 0
            assert not as_words(outside).any()


@pytest.mark.parametrize("unit_axis", [None, 0, 1])
@pytest.mark.parametrize("masked", [False, True])
def test_lanes_along_either_axis_of_a_matrix(unit_axis: int | None, masked: bool) -> None:
    x, y = array("x", "float64", 2, unit_axis), array("y", "float64", 2, unit_axis)
    rows, columns = Dim("x", 0), Dim("x", 1)
    index = lanes_from(I)
    mask = below(index, rows) if masked else None
    value = load(x, index, J, mask=mask)
    body = serial("j", columns, serial("i", rows, Store("y", (index, J), value, mask), step=LANES))
    kernel = Kernel("copy", (x, y), (body,))
    shape = (19 if masked else 16, 5)
    base = np.arange(4.0 * shape[0] * shape[1]).reshape(2 * shape[0], 2 * shape[1])
    x_value = {
        None: base[::2, ::-2],
        0: np.asfortranarray(base[: shape[0], : shape[1]]),
        1: base[: shape[0], : shape[1]],
    }
    y_value = {None: np.zeros_like(base)[::-2, ::2], 0: np.zeros(shape, order="F"), 1: np.zeros(shape)}
    agree(kernel, {"x": x_value[unit_axis], "y": y_value[unit_axis]})


def test_a_diagonal_and_a_reversed_vector() -> None:
    x, y = array("x", "float32", 2), array("y", "float32")
    index = lanes_from(I)
    back = BinOp("-", Broadcast(build.sub(Dim("y", 0), 1), LANES), index, INT64)
    stores = Store("y", (index,), BinOp("+", load(x, index, index), load(x, index, back), FLOAT32))
    kernel = Kernel("diagonal", (x, y), (serial("i", Dim("y", 0), stores, step=LANES),))
    agree(kernel, {"x": samples("float32", 576).reshape(24, 24), "y": np.zeros(24, np.float32)})


def test_a_uniform_element_among_lanes_is_read_once() -> None:
    x, y, z = array("x", "float32"), array("y", "float32"), array("z", "float32")
    index = lanes_from(I)
    mask = below(index, Dim("y", 0))
    value = BinOp("*", load(x, build.ZERO), load(y, index, mask=mask), FLOAT32)
    masked = Load("x", (build.ONE,), FLOAT32, mask)
    body = serial("i", Dim("y", 0), Store("z", (index,), BinOp("+", value, masked, FLOAT32), mask), step=LANES)
    kernel = Kernel("scale", (x, y, z), (body,), strict_math=True)
    for size in (0, 5, 16):
        agree(kernel, {"x": samples("float32", 2), "y": samples("float32", size), "z": np.zeros(size, np.float32)})


# ------------------------------------------------------------------------------------- gathers and scatters


@pytest.mark.parametrize("dtype", ["float32", "float64", "int16", "bool", "bfloat16", "uint64"])
def test_gathers_of_lanes_that_are_on(dtype: str) -> None:
    table, where, y = array("table", dtype), array("where", "int64"), array("y", dtype)
    index = lanes_from(I)
    mask = below(index, Dim("y", 0))
    value = load(table, load(where, index, mask=mask), mask=mask)
    kernel = Kernel(
        "gather", (table, where, y), (serial("i", Dim("y", 0), Store("y", (index,), value, mask), step=LANES),)
    )
    function = compiled(kernel)
    for size in SIZES:
        positions, buffer = in_slack(np.arange(size, dtype=np.int64)[::-1] % 9, 10**12)
        data = {"table": samples(dtype, 9), "where": positions, "y": samples(dtype, size, 3)}
        agree(kernel, data, function=function)
        assert np.all(buffer[:32] == 10**12)


def test_of_lanes_scattered_to_one_place_the_last_stays() -> None:
    where, y = array("where", "int64"), array("y", "int64")
    index = lanes_from(I)
    mask = below(index, Dim("where", 0))
    store = Store("y", (load(where, index, mask=mask),), index, mask)
    kernel = Kernel("scatter", (where, y), (serial("i", Dim("where", 0), store, step=LANES),))
    for size in (0, 3, 8, 29):
        agree(kernel, {"where": np.arange(size, dtype=np.int64) ** 2 % 7, "y": np.full(7, -1, np.int64)})


def test_an_indirect_index_of_two_axes() -> None:
    table, where, y = array("table", "float32", 2), array("where", "int64"), array("y", "float32")
    index = lanes_from(I)
    value = load(table, load(where, index), BinOp("%", index, Const(4, INT64), INT64))
    kernel = Kernel(
        "gather", (table, where, y), (serial("i", Dim("y", 0), Store("y", (index,), value), step=LANES),)
    )
    data = {
        "table": samples("float32", 20).reshape(5, 4),
        "where": np.arange(16) * 3 % 5,
        "y": np.zeros(16, np.float32),
    }
    agree(kernel, data)


# ------------------------------------------------------------------------------------- lanes that do not run


def test_a_choice_in_lanes_reads_nothing_for_the_arm_not_taken() -> None:
    """The indices of lanes that do not take an arm point far outside: reading them would fault."""
    where, x, y = array("where", "int64"), array("x", "float32"), array("y", "float32")
    index = lanes_from(I)
    at = load(where, index)
    test = BoolOp("and", Compare(">=", at, build.ZERO, INT64), Compare("<", at, Dim("x", 0), INT64))
    value = Select(test, load(x, at), Const(-1.0, FLOAT32), FLOAT32)
    guarded = BoolOp("and", test, Compare(">", load(x, at), Const(0.0, FLOAT32), FLOAT32))
    other = Select(guarded, Const(2.0, FLOAT32), Const(3.0, FLOAT32), FLOAT32)
    either = BoolOp("or", BoolOp("or", below(at, build.ZERO), Compare(">=", at, Dim("x", 0), INT64)),
                    Compare(">", load(x, at), Const(0.0, FLOAT32), FLOAT32))  # fmt: skip
    third = Select(either, Const(10.0, FLOAT32), Const(20.0, FLOAT32), FLOAT32)
    total = BinOp("+", BinOp("+", value, other, FLOAT32), third, FLOAT32)
    kernel = Kernel("choose", (where, x, y), (serial("i", Dim("y", 0), Store("y", (index,), total), step=LANES),))
    positions = np.array([0, 5, 10**12, -(10**12), 3, 6, 2**61, 1] * 2, np.int64)
    agree(kernel, {"where": positions, "x": samples("float32", 6), "y": np.zeros(16, np.float32)})


def test_a_scalar_choice_between_vectors_and_a_uniform_load_of_no_lane() -> None:
    x, y = array("x", "float32"), array("y", "float32")
    index = lanes_from(I)
    far = build.const(10**12)
    never = Compare("<", index, build.ZERO, INT64)
    uniform = Select(never, load(x, far), Const(1.0, FLOAT32), FLOAT32)
    scalar_test = Compare("<", I, Const(8, INT64), INT64)
    value = Select(scalar_test, load(x, index), Const(7.0, FLOAT32), FLOAT32)
    total = BinOp("+", value, uniform, FLOAT32)
    kernel = Kernel("choose", (x, y), (serial("i", Dim("y", 0), Store("y", (index,), total), step=LANES),))
    agree(kernel, {"x": samples("float32", 8), "y": np.zeros(16, np.float32)})


def test_scalar_masks_guard_loads_and_stores() -> None:
    x, y = array("x", "int64"), array("y", "int64")
    inside = below(I, Dim("x", 0))
    value = build.add(Load("x", (I,), INT64, inside), 5)
    kernel = Kernel(
        "guarded", (x, y), (serial("i", 10, Store("y", (I,), value), Store("x", (I,), build.const(3), inside)),)
    )
    agree(kernel, {"x": np.arange(4), "y": np.zeros(10, np.int64)})


def test_short_circuit_tests_read_nothing_beyond() -> None:
    x = array("x", "int64")
    far = build.mul(I, 10**12)
    test = BoolOp("and", below(I, build.ONE), Compare(">", load(x, far), build.ZERO, INT64))
    other = BoolOp("or", Compare(">", I, build.ZERO, INT64), Compare(">", load(x, far), build.ZERO, INT64))
    count = Assign("c", build.add(Var("c"), 1), INT64)
    kernel = Kernel(
        "count",
        (x,),
        (
            Assign("c", build.ZERO, INT64),
            serial("i", 5, If(test, (count,)), If(other, (count,))),
            Return((Var("c"),)),
        ),
        returns=(0,),
        scalar_results=(INT64,),
    )
    agree(kernel, {"x": np.array([4])})


# ---------------------------------------------------------------------------------------------- reductions


@pytest.mark.parametrize("lanes", [2, 8, 16, 6])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8", "bool"])
def test_horizontal_reductions(dtype: str, lanes: int) -> None:
    kind = Scalar(dtype)
    ops = ["and", "or"] if dtype == "bool" else ["+", "*", "pmin", "pmax", "minimum", "maximum"]
    if kind.is_integer:
        ops += ["&", "|", "^"]
    x, y = array("x", dtype), array("y", dtype)
    body = tuple(
        Store("y", (build.const(at),), Reduce(op, load(x, Ramp(build.ZERO, 1, lanes)))) for at, op in enumerate(ops)
    )
    kernel = Kernel("reduce", (x, y), body)
    data = samples(dtype, lanes)
    if kind.is_float:
        data = np.resize(np.array([2.0, 0.5, -1.0, 4.0, -0.25, 3.0], dtype), lanes)  # exact in any order
    agree(kernel, {"x": data, "y": np.zeros(len(ops), dtype)})


def test_a_sum_in_lanes_with_a_masked_tail() -> None:
    x = array("x", "float32")
    index = lanes_from(I)
    vector = Vector(FLOAT32, LANES)
    total = Var("t", vector)
    kernel = Kernel(
        "total",
        (x,),
        (
            Assign("t", Const(0.0, FLOAT32), vector),
            serial("i", Dim("x", 0),
                   Assign("t", BinOp("+", total, load(x, index, mask=below(index, Dim("x", 0))), FLOAT32), vector),
                   step=LANES),
            Return((Reduce("+", total),)),
        ),
        returns=(0,),
        scalar_results=(FLOAT32,),
    )  # fmt: skip
    function = compiled(kernel)
    for size in SIZES:
        assert function(np.arange(size, dtype=np.float32)) == (size * (size - 1) / 2,)


# -------------------------------------------------------------------------------------------- local arrays


def _through_a_buffer(buffer: Array, dtype: str, rows: Expr, *, outside: bool = False) -> Kernel:
    """y[i, :] = reversed x[i, :], by way of a local array declared in the loop (or before it)."""
    x, y = array("x", dtype, 2), array("y", dtype, 2)
    columns = Dim("x", 1)
    fill = serial("j", columns, Store("b", (J,), load(x, I, J)))
    index = build.sub(build.sub(columns, 1), Var("k"))
    drain = serial("k", columns, Store("y", (I, Var("k")), Load("b", (index,), held(Scalar(dtype)))))
    alloc = Alloc(buffer)
    loop = serial("i", rows, *(() if outside else (alloc,)), fill, drain)
    return Kernel("reverse", (x, y), (alloc, loop) if outside else (loop,))


@pytest.mark.parametrize("space", ["local", "packed"])
@pytest.mark.parametrize("dtype", ["float32", "bool", "bfloat16", "int16"])
def test_local_arrays_on_the_stack_and_on_the_heap(space: str, dtype: str) -> None:
    for extent in (build.const(7), build.const(5000), Dim("x", 1), build.add(Dim("x", 1), I)):
        buffer = Array("b", Scalar(dtype), (extent,), space=space)
        kernel = _through_a_buffer(buffer, dtype, Dim("x", 0))
        data = {"x": samples(dtype, 21).reshape(3, 7), "y": np.zeros((3, 7), numpy_dtype(dtype))}
        agree(kernel, data)


def test_where_local_memory_comes_from() -> None:
    small = Array("b", FLOAT32, (build.const(7),), space="local")
    assert "b = stack(float32, 7)" in source_of(_through_a_buffer(small, "float32", Dim("x", 0)))
    large = Array("b", FLOAT32, (Dim("x", 1),), space="packed")
    text = source_of(_through_a_buffer(large, "float32", Dim("x", 0)))
    assert text.index("b = scratch(x_n1, float32)") < text.index("for i in")
    growing = Array("b", FLOAT32, (build.add(Dim("x", 1), I),), space="local")
    text = source_of(_through_a_buffer(growing, "float32", Dim("x", 0)))
    assert text.index("for i in") < text.index("b = scratch(x_n1 + i, float32)")


def test_packed_memory_is_aligned_to_a_cache_line() -> None:
    from numba import int64, njit

    from pyschedule.codegen.simd import scratch

    function = njit(lambda count: scratch(count, int64))
    for count in (0, 1, 77, 1000):
        memory = function(count)
        assert memory.size == count and memory.ctypes.data % 64 == 0


def test_registers_are_variables_where_every_index_is_constant() -> None:
    vector = Vector(FLOAT32, LANES)
    x, y = array("x", "float32"), array("y", "float32")
    acc = Array("acc", vector, (build.const(2), build.const(2)), space="register")
    spots = [(build.const(i), build.const(j)) for i in range(2) for j in range(2)]
    tile = [lanes_from(build.add(build.mul(I, 4 * LANES), at * LANES)) for at in range(4)]
    body = (
        Alloc(acc),
        *(Store("acc", spot, load(x, index)) for spot, index in zip(spots, tile, strict=True)),
        *(
            Store("acc", spot, BinOp("*", Load("acc", spot, vector), Const(2.0, FLOAT32), FLOAT32))
            for spot in spots
        ),
        *(Store("y", (index,), Load("acc", spot, vector)) for spot, index in zip(spots, tile, strict=True)),
    )
    kernel = Kernel("twice", (x, y), (serial("i", 3, *body),))
    text = source_of(kernel)
    assert "acc_1_0 = load_vector(x" in text and "stack" not in text
    agree(kernel, {"x": samples("float32", 12 * LANES), "y": np.zeros(12 * LANES, np.float32)})


def test_registers_with_a_running_index_are_memory() -> None:
    vector = Vector(FLOAT64, 4)
    x, y = array("x", "float64"), array("y", "float64")
    acc = Array("acc", vector, (build.const(3),), space="register")
    fill = serial("i", 3, Store("acc", (I,), load(x, Ramp(build.mul(I, 4), 1, 4))))
    element = Load("acc", (build.sub(build.const(2), J),), vector)
    plus_one = BinOp("+", element, Const(1.0, FLOAT64), FLOAT64)
    drain = serial("j", 3, Store("y", (Ramp(build.mul(J, 4), 1, 4),), plus_one))
    clear = Store("acc", (build.ONE,), Const(5.0, FLOAT64))
    agree(Kernel("memory", (x, y), (Alloc(acc), fill, clear, drain)), {"x": np.arange(12.0), "y": np.zeros(12)})


def test_two_arrays_of_one_name_in_scopes_of_their_own() -> None:
    y = array("y", "int64")
    first = Array("t", INT64, (build.const(3),), space="local")
    second = Array("t", INT64, (build.const(5), build.const(2)), space="local")
    one, two = (Load("t", (build.ONE,), INT64), Load("t", (build.ONE, build.ONE), INT64))
    kernel = Kernel(
        "scopes",
        (y,),
        (
            serial("i", 2, Alloc(first), Store("t", (build.ONE,), I), Store("y", (I,), one)),
            serial("j", 2, Alloc(second), Store("t", (build.ONE, build.ONE), build.mul(J, 7)),
                   Store("y", (build.add(J, 2),), two)),
        ),
    )  # fmt: skip
    agree(kernel, {"y": np.zeros(4, np.int64)})


# ------------------------------------------------------------------------------------------ checked indices


@pytest.mark.parametrize("lanes", [1, LANES])
def test_checked_indices_count_from_the_end_and_raise(lanes: int) -> None:
    where, x, y = array("where", "int64"), array("x", "float32"), array("y", "float32")
    index: Expr = I if lanes == 1 else lanes_from(I)
    mask = None if lanes == 1 else below(index, Dim("y", 0))
    at = Call("checked_index", (load(where, index, mask=mask), Dim("x", 0)), INT64)
    store = Store("y", (index,), load(x, at, mask=mask), mask)
    kernel = Kernel("indexed", (where, x, y), (serial("i", Dim("y", 0), store, step=lanes),))
    function = compiled(kernel)
    table = samples("float32", 5)
    good, buffer = in_slack(np.array([0, 4, -1, -5, 2, -3, 1, 3, 0, -2]), 10**9)
    data = {"where": good, "x": table, "y": np.zeros(10, np.float32)}
    call(function, kernel, data, {})
    np.testing.assert_array_equal(data["y"], table[good])
    assert buffer[0] == 10**9
    for wrong in (5, -6, 2**62):
        data["where"] = good.copy()
        data["where"][9] = wrong
        with pytest.raises(IndexError) as caught:
            call(function, kernel, data, {})
        assert caught.value.args == (UNKNOWN, wrong, 5)


def test_an_index_of_an_arm_that_is_not_taken_is_not_checked() -> None:
    where, x, y = array("where", "int64"), array("x", "float32"), array("y", "float32")
    for lanes in (1, LANES):
        index: Expr = I if lanes == 1 else lanes_from(I)
        raw = load(where, index)
        at = Call("checked_index", (raw, Dim("x", 0)), INT64)
        value = Select(below(raw, Dim("x", 0)), load(x, at), Const(9.0, FLOAT32), FLOAT32)
        kernel = Kernel("arms", (where, x, y), (serial("i", Dim("y", 0), Store("y", (index,), value), step=lanes),))
        data = {
            "where": np.array([0, 70, 3, 10**9, 1, 2, 5, 4]),
            "x": samples("float32", 5),
            "y": np.zeros(8, np.float32),
        }
        call(compiled(kernel), kernel, data, {})
        np.testing.assert_array_equal(
            data["y"], [v if w < 5 else 9 for w in data["where"] for v in [data["x"][w % 5]]]
        )


def test_a_vector_stored_as_one_element_is_refused() -> None:
    from pyschedule.errors import InternalError

    y = array("y", "float32")
    kernel = Kernel("wrong", (y,), (Store("y", (build.ZERO,), Broadcast(Const(1.0, FLOAT32), 4)),))
    with pytest.raises(InternalError, match="one element of y"):
        source_of(kernel)
