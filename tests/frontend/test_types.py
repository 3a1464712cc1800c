"""Types as NumPy 2 has them, with Python's numbers weak; reductions and extremes as Python has them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pyschedule.errors import FrontendError
from pyschedule.frontend.build import Built
from pyschedule.ir.nodes import Assign, BinOp, Call, Compare, If, Load, Store
from pyschedule.ir.types import BOOL, FLOAT32, FLOAT64, INT64, WEAK_FLOAT, Scalar
from pyschedule.ir.visitors import expressions, walk
from tests.frontend.execution import agrees, built, nest

NAN = math.nan


def types_of(function, *args) -> dict[str, str]:
    return {s.target: str(s.vtype) for s in walk(built(function, *args).kernel.body) if isinstance(s, Assign)}


def result_type(result: Built) -> Scalar:
    return result.kernel.scalar_results[0].strong()


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8", "int16", "bool"])
@pytest.mark.parametrize("literal", [0, 0.0])
def test_a_literal_takes_the_type_of_the_elements_it_sums(dtype: str, literal: float) -> None:
    def total(x, start):
        s = start
        for i in range(len(x)):
            s += x[i]
        return s

    x = np.array([3, 1, 0, 1], dtype)
    agrees(total, x, literal)


def test_a_float32_sum_is_a_float32_sum() -> None:
    def total(x):
        s = 0.0
        for i in range(len(x)):
            s += x[i] * 0.1
        return s

    x = np.linspace(0, 1, 50, dtype=np.float32)
    assert types_of(total, x) == {"s": "float32"}
    agrees(total, x)
    assert types_of(total, x.astype(np.float64)) == {"s": "float64"}


def test_halves_load_as_float32_and_round_on_the_store() -> None:
    def dot(x, y, out):
        s = 0.0
        for i in range(len(x)):
            s += x[i] * y[i]
        out[0] = s

    x = np.full(4096, 1, np.float16)
    kernel = built(dot, x, x, x).kernel
    loads = [e for e in expressions(kernel.body) if isinstance(e, Load)]
    assert {load.dtype for load in loads} == {FLOAT32}
    assert types_of(dot, x, x, x) == {"s": "float32"}
    assert kernel.array_params[0].dtype == Scalar("float16")
    out = np.zeros(1, np.float16)
    from tests.frontend.execution import interpreted

    interpreted(built(dot, x, x, out), x, x, out)
    assert out[0] == 4096  # a float16 sum stops at 2048


def test_results_of_halves_are_halves() -> None:
    def f(x, y, z, half):
        s = 0.0
        for i in range(len(x)):
            s += x[i] * y[i]
        filled = np.full(2, x[0])
        return s, x[0] + 1, max(x[0], y[0]), x[0] * z[0], half * 2, np.sqrt(x[0]), filled[0], x[0] / 3.0

    x, z = np.array([0.1, 0.2, 0.3], np.float16), np.array([3, 4], np.int8)
    results = built(f, x, x, z, np.float16(0.5)).kernel.scalar_results
    assert [result.name for result in results] == ["float16"] * len(results)
    assert types_of(f, x, x, z, np.float16(0.5)) == {"s": "float32"}
    others = {"float32": "float32", "int16": "float32", "int64": "float64", "bool": "float16"}
    for other, common in others.items():
        assert built(f, x, x, z.astype(other), np.float16(1)).kernel.scalar_results[3].name == common


def test_numpys_functions_of_small_integers_give_small_floats() -> None:
    def f(x):
        return np.sqrt(x[0]), math.sqrt(x[0])

    for dtype, root in (("int8", "float16"), ("uint16", "float32"), ("int32", "float64"), ("bool", "float16")):
        x = np.ones(1, dtype)
        results = built(f, x).kernel.scalar_results
        assert [result.name for result in results] == [root, "float64"]
        assert f(x)[0].dtype == root


def test_fixed_width_integers_wrap_and_python_integers_are_64_bits() -> None:
    def f(a, b, n):
        s = a[0]
        for i in range(len(a)):
            s = s * a[i] + b[i]
        return s, n * n, a[1] * 3

    agrees(f, np.array([100, 90, 80], np.int8), np.array([5, 6, 7], np.int8), 10**9)
    agrees(f, np.array([2**31 - 1, 9, 8], np.int32), np.array([5, 6, 7], np.int32), np.int32(3))


@pytest.mark.parametrize("op", ["+", "-", "*", "/", "//", "%"])
@pytest.mark.parametrize("left", ["int8", "int32", "uint32", "int64", "float32", "float64"])
@pytest.mark.parametrize("right", ["int16", "int64", "float32", "python int", "python float"])
def test_mixed_arithmetic_promotes_as_numpy(op: str, left: str, right: str) -> None:
    a = np.array([7], left)
    scalar = {"python int": 3, "python float": 2.5}.get(right)
    if scalar is None:
        agrees(_OF_ELEMENTS[op], a, np.array([3], right))
    else:
        agrees(_OF_SCALARS[op], a, scalar)


def _plus(a, b):
    return a[0] + b[0]


def _minus(a, b):
    return a[0] - b[0]


def _times(a, b):
    return a[0] * b[0]


def _over(a, b):
    return a[0] / b[0]


def _floor(a, b):
    return a[0] // b[0]


def _rest(a, b):
    return a[0] % b[0]


def _plus_(a, b):
    return a[0] + b


def _minus_(a, b):
    return a[0] - b


def _times_(a, b):
    return a[0] * b


def _over_(a, b):
    return a[0] / b


def _floor_(a, b):
    return a[0] // b


def _rest_(a, b):
    return a[0] % b


_OF_ELEMENTS = {"+": _plus, "-": _minus, "*": _times, "/": _over, "//": _floor, "%": _rest}
_OF_SCALARS = {"+": _plus_, "-": _minus_, "*": _times_, "/": _over_, "//": _floor_, "%": _rest_}


def test_scalars_python_is_weak_numpy_is_strong() -> None:
    def f(x, a):
        return x[0] * a

    x = np.ones(1, np.float32)
    for a in (3, 2.5, True, np.float32(2.5), np.float64(2.5), np.int64(3), np.bool_(True)):
        agrees(f, x, a)


def test_division_of_integers_is_float64() -> None:
    def f(n):
        return n / 2, n // 2, n % 4, -n // 2, (-n) % 4

    for n in (7, -7, 0):
        agrees(f, n)


def test_bits_and_bools() -> None:
    def f(n, x, out):
        out[0] = (n & 6) | (n ^ 3) << 2 >> 1
        out[1] = ~n
        out[2] = (x[0] > 0) + (x[1] > 0) + 1
        count = 0
        for i in range(len(x)):
            count += x[i] > 0
        out[3] = count
        out[4] = (x[0] > 0) & (x[1] < 5) | (n == 3)
        out[5] = not n
        out[6] = True + True
        out[7] = -(n > 2)

    agrees(f, 5, np.array([1.0, -2.0, 3.0]), np.zeros(8, np.int64))


def test_and_or_give_the_deciding_value() -> None:
    def f(x, y):
        return x or y, x and y, (x and y) or 7, not x

    for x in (0, 3):
        for y in (0, 5):
            agrees(f, x, y)


def test_truth_and_short_circuits() -> None:
    def f(x, n, out):
        for i in range(n):
            if (i < len(x) and x[i] and not x[i] < 0) or n == 100:
                out[i] = 1
            elif i > 2:
                out[i] = 2

    agrees(f, np.array([1.0, 0.0, -1.0]), 5, np.zeros(5))


def test_chained_comparisons_and_conditional_expressions() -> None:
    def f(x, out):
        for i in range(len(x)):
            out[i] = 1 if 0 <= x[i] < 2 != i else x[i] * 0.5

    agrees(f, np.linspace(-1, 3, 9, dtype=np.float32), np.zeros(9, np.float32))


def test_a_narrow_integer_is_compared_exactly() -> None:
    def f(x):
        return x[0] < 300, x[0] > -1, x[0] == 200

    agrees(f, np.array([200], np.uint8))


@pytest.mark.parametrize("values", [[1.0, 3.0, 2.0], [NAN, 1.0, 2.0], [1.0, NAN, 0.5], [0.0, -0.0, 0.0]])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_extremes_mean_what_python_does_with_a_nan(values: list[float], dtype: str) -> None:
    def by_max(x):
        m = x[0]
        for i in range(len(x)):
            m = max(m, x[i])
        return m

    def by_if(x, m):
        for i in range(len(x)):
            if x[i] > m[0]:
                m[0] = x[i]
            if m[1] > x[i]:
                m[1] = x[i]

    def by_conditional(x):
        m = x[0]
        for i in range(len(x)):
            m = x[i] if x[i] < m else m
        return m

    def numpys(x):
        m = x[0]
        n = x[0]
        for i in range(len(x)):
            m = np.maximum(m, x[i])
            n = np.minimum(x[i], n)
        return m, n

    x = np.array(values, dtype)
    for function in (by_max, by_conditional, numpys):
        agrees(function, x)
        assert "if" not in nest(function, x).split()
    agrees(by_if, x, np.array([-1, 9], dtype))
    assert not any(isinstance(s, If) for s in walk(built(by_if, x, x).kernel.body))


def test_which_updates_become_an_extreme() -> None:
    def strict(x, m):
        if x > m:
            m = x
        return m

    def loose(x, m):
        if x >= m:
            m = x
        return m

    def another(x, m, k):
        if x > m:
            m = k
        return m

    def branches(kernel):
        return sum(isinstance(s, If) for s in walk(kernel.body))

    assert branches(built(strict, 1.0, 2.0).kernel) == 0
    assert branches(built(loose, 1, 2).kernel) == 0
    assert branches(built(loose, 1.0, 2.0).kernel) == 1  # on a tie, -0.0 may replace 0.0
    assert branches(built(another, 1.0, 2.0, 3.0).kernel) == 1
    assert math.copysign(1, agrees(loose, -0.0, 0.0)) == -1
    call = next(e for e in expressions(built(strict, 1.0, 2.0).kernel.body) if isinstance(e, Call))
    assert call.function == "pmax" and [arg.name for arg in call.args] == ["m_value", "x"]


def test_max_of_several() -> None:
    def f(a, b, c):
        return max(a, b, c), min(a, b, c, 1.5)

    for args in ((1.0, 2.0, 3.0), (NAN, 2.0, 3.0), (3.0, NAN, 1.0)):
        agrees(f, *args)


def test_math_keeps_float32_and_numpy_twins_agree() -> None:
    def ours(x):
        return math.sqrt(x[0])

    x = np.array([2.0], np.float32)
    assert result_type(built(ours, x)) == FLOAT32
    assert result_type(built(ours, x.astype(np.float64))) == FLOAT64
    assert built(ours, x.astype(np.int32)).kernel.scalar_results == (WEAK_FLOAT,)  # a Python float

    def twins(x, out):
        out[0] = np.exp(x[0]) + np.sqrt(x[0]) + np.arctan2(x[0], x[1]) + np.tanh(x[1])
        out[1] = np.abs(-x[0]) + np.hypot(x[0], x[1]) + np.where(x[0] > 0, x[1], 5.0) + np.square(x[1])
        out[2] = np.power(x[0], 2) + np.floor(x[1]) + np.log1p(x[0])

    agrees(twins, np.array([2.0, 1.5]), np.zeros(3), rtol=1e-12)

    def pythons(a, b):
        return (
            math.floor(a) + math.ceil(b) + math.trunc(a),
            math.log(a, 2),
            math.pow(a, b) + math.fabs(-a) + math.fmod(a, b) + math.copysign(a, -b),
            math.isnan(a) or math.isinf(b),
            abs(-3) + abs(a),
            math.erf(a) + math.exp(b),
        )

    agrees(pythons, 2.5, 1.25, rtol=1e-12)


def test_conversions() -> None:
    def f(x, n):
        return (
            int(x[0]),
            float(n),
            bool(n),
            np.float32(x[0]),
            np.int32(x[1]),
            int(x[1]) // 2,
            float("inf"),
            -float("inf"),
        )

    agrees(f, np.array([2.75, -2.75]), 3)

    def rounded(x, out):
        out[0] = np.float16(x[0])
        out[1] = np.uint8(x[1])

    agrees(rounded, np.array([0.1, 77.0]), np.zeros(2))


def test_powers() -> None:
    def f(x, n, a):
        return x[0] ** 2, n**3, 2**-1, n**-1, a**0.5, x[0] ** n

    agrees(f, np.array([1.5], np.float32), 3, 2.0, rtol=1e-6)


def test_stores_convert_to_the_element() -> None:
    def f(a, b, x):
        for i in range(3):
            a[i] = x[i] * 1.5
            b[i] += x[i]

    agrees(f, np.zeros(3, np.int32), np.array([10, 20, 30], np.int16), np.array([1.5, 2.5, -3.5]))


def test_a_list_display_takes_the_type_of_what_it_holds() -> None:
    def f(x):
        row = [0.0 for _ in range(3)]
        ints = [0] * 3
        for i in range(3):
            row[i] = x[i] * 2
            ints[i] += i
        return row[0] + row[2], ints[2] / 2, ints[1]

    x = np.array([0.1, 0.2, 0.3], np.float32)
    agrees(f, x)
    from pyschedule.ir.nodes import Alloc

    dtypes = {s.array.name: str(s.array.dtype) for s in walk(built(f, x).kernel.body) if isinstance(s, Alloc)}
    assert dtypes == {"row": "float32", "ints": "int64"}


def test_a_variable_joins_all_its_assignments() -> None:
    def f(x, n):
        t = 0
        if n > 2:
            t = x[0]
        elif n < 2:
            t = n / 2
        return t

    assert types_of(f, np.zeros(1, np.float32), 3) == {"t": "float32"}
    assert types_of(f, np.zeros(1), 3) == {"t": "float64"}
    agrees(f, np.ones(1), 1)


def test_bool_arrays() -> None:
    def f(mask, x, out):
        for i in range(len(x)):
            if mask[i] and not mask[0]:
                out[i] = x[i]
            mask[i] = x[i] > 1

    agrees(f, np.array([False, True, True]), np.arange(3.0), np.zeros(3))
    compares = [
        e
        for e in expressions(built(f, np.zeros(1, bool), np.zeros(1), np.zeros(1)).kernel.body)
        if isinstance(e, Compare)
    ]
    assert {c.dtype for c in compares} == {FLOAT64}
    assert all(c.type == BOOL for c in compares)


def test_numpy_scalar_constants_are_strong() -> None:
    half = np.float32(0.5)
    wide = np.float64(0.5)
    count = np.int32(3)

    def f(x):
        return x[0] * half, x[0] * wide, count + 1

    agrees(f, np.ones(1, np.float32))


def test_index_arithmetic_is_folded_and_placed() -> None:
    def f(x):
        for i in range(2 * 3 - 1):
            x[i + 2 + 3 - 5] = 1.0

    kernel = built(f, np.zeros(9)).kernel
    store = next(s for s in walk(kernel.body) if isinstance(s, Store))
    assert nest(f, np.zeros(9)).splitlines()[-1].strip().startswith("x[i] = 1.0")
    assert store.loc is not None

    def g(x, n):
        x[n * 2 + 1] = n - 1

    store = next(s for s in walk(built(g, np.zeros(9), 2).kernel.body) if isinstance(s, Store))
    assert isinstance(store.value, BinOp) and store.value.loc is not None and store.value.dtype == INT64


@pytest.mark.parametrize(
    ("source", "args", "says"),
    [
        ("x[1.0 * a] = 1", (np.zeros(3), 1.0), "an index must be an integer"),
        ("x[a > 0] = 1", (np.zeros(3), 1), "an index must be an integer"),
        ("for i in range(a): x[i] = 1", (np.zeros(3), 1.5), "the stop of 'range' must be an integer"),
        ("x[0] = a & 1", (np.zeros(3), 1.5), "no '&' of a float64"),
        ("x[0] = ~a", (np.zeros(3), 1.5), "no '~' of a float64"),
        ("x[0] = (x[1] > 0) - (x[2] > 0)", (np.zeros(3), 1), "no '-' of a bool"),
        ("x[0] = x[1] + 300", (np.zeros(3, np.uint8), 1), "300 does not fit uint8"),
        ("x[0] = a.shape[3]", (np.zeros(3), np.zeros(2)), "there is no axis 3"),
        ("s = a - 1\n    for i in range(0, 5, s): x[i] = 1", (np.zeros(3), 1), None),
    ],
)
def test_what_only_types_can_refuse(tmp_path, source: str, args: tuple, says: str | None) -> None:
    path = tmp_path / "kernel.py"
    path.write_text(f"def f(x, a):\n    {source}\n")
    space: dict = {}
    exec(compile(path.read_text(), str(path), "exec"), space)
    if says is None:
        assert built(space["f"], *args).checks[0].message == "f(): the step of 'range' is zero"
        return
    with pytest.raises(FrontendError) as caught:
        built(space["f"], *args)
    assert says in str(caught.value) and "instead: " in str(caught.value) and "kernel.py:2:" in str(caught.value)


def test_arguments_are_refused_by_name() -> None:
    def f(A, n):
        for i in range(n):
            A[i, 0] = 1

    with pytest.raises(TypeError, match=r"argument 'A' of f.* must be an array"):
        built(f, 3, 3)
    with pytest.raises(TypeError, match=r"argument 'n' of f.* must be a number"):
        built(f, np.zeros((2, 2)), np.zeros(2))
    with pytest.raises(TypeError, match=r"f\(\) takes 2 arguments \(A, n\), not 1"):
        built(f, np.zeros((2, 2)))
    with pytest.raises(TypeError, match=r"argument 'A' of f.* has 3 axes, the kernel indexes 2"):
        built(f, np.zeros((2, 2, 2)), 3)

    from pyschedule.frontend.build import build
    from pyschedule.frontend.parser import parse
    from pyschedule.ir.signature import ArraySpec, ScalarSpec, Signature

    readonly = ArraySpec("float32", (None, 7), 1, readonly=True)
    with pytest.raises(ValueError, match=r"argument 'A' of f.* is read-only"):
        build(parse(f), Signature((readonly, ScalarSpec(INT64))))


def test_a_spec_shapes_its_array() -> None:
    from pyschedule.frontend.build import build
    from pyschedule.frontend.parser import parse
    from pyschedule.ir.build import const
    from pyschedule.ir.nodes import Dim
    from pyschedule.ir.signature import ArraySpec, Signature

    def f(A):
        for i in range(A.shape[0]):
            for j in range(A.shape[1]):
                A[i, j] = 0

    built_ = build(parse(f), Signature((ArraySpec("float16", (None, 7), 1, False, 8),)))
    (array,) = built_.kernel.array_params
    assert (array.shape, array.unit_axis, array.divisor) == ((Dim("A", 0), const(7)), 1, 8)
    (loop,) = built_.kernel.body
    assert loop.body[0].max_trip == 7 and loop.max_trip is None


def test_an_argument_has_its_own_type_until_it_is_assigned() -> None:
    def widened(x, n):
        for i in range(n):
            x[i] += n // 2
        n = n * 2.5
        x[0] = n
        return n

    def widened_in_a_loop(x, n):
        for i in range(3):
            x[i] = n / 2
            n = n * 0.5
        return n

    for n in (0, 3, 5):
        agrees(widened, np.zeros(9), n)
        agrees(widened_in_a_loop, np.zeros(9), n)


def test_square_of_a_python_integer_is_numpys_integer() -> None:
    def squares(x, n):
        x[0] = np.square(n)
        x[1] = np.square(x[0])
        s = x[2] + np.square(3)
        return np.square(n), s

    n, s = agrees(squares, np.ones(4, np.float32), 5)
    assert np.asarray(s).dtype == np.float64  # a float32 and a strong int64
    assert n == 25
