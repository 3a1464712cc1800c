"""The printer: its text is Python where it can be, and always says what the IR says."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyschedule.ir.arithmetic import wrap
from pyschedule.ir.interpreter import run
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    Barrier,
    BoolOp,
    Break,
    Broadcast,
    Call,
    Cast,
    Const,
    Dim,
    Expr,
    If,
    Reduce,
    Return,
    Select,
    UnaryOp,
    Var,
    While,
)
from pyschedule.ir.printer import format_body, format_expr, format_kernel, format_stmt
from pyschedule.ir.types import BOOL, FLOAT32, FLOAT64, INT64, Scalar, Vector
from tests.ir import trees
from tests.ir.nests import I, J, K, N, array, f32, gemm, kernel, less, load, local, loop, op, ramp, store


class Wrapping(int):
    """An integer that wraps as int64 does: Python's own arithmetic, but for that."""


def _wrapping(name: str) -> Any:
    return lambda *args: Wrapping(wrap(getattr(int, name)(*map(int, args))))


_BINARY = ("add", "sub", "mul", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift", "pow")
for _name in (*_BINARY, "neg", "invert", "abs"):
    setattr(Wrapping, f"__{_name}__", _wrapping(f"__{_name}__"))
    if _name in _BINARY:
        setattr(Wrapping, f"__r{_name}__", _wrapping(f"__r{_name}__"))


class _Typed(ast.NodeTransformer):
    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return node if isinstance(node.value, bool) else ast.Call(ast.Name("number", ast.Load()), [node], [])


def evaluated(expr: Expr, number: Any, names: dict[str, Any]) -> Any:
    """What Python makes of the printed text, its literals turned to `number`."""
    tree = ast.fix_missing_locations(_Typed().visit(ast.parse(format_expr(expr), mode="eval")))
    with np.errstate(all="ignore"):
        return eval(compile(tree, "printed", "eval"), {"number": number, **names})


def interpreted(expr: Expr, values: dict[str, Any]) -> Any:
    element = expr.type
    assert isinstance(element, Scalar)
    params = [Var(name, element if name in trees.FLOATS else INT64) for name in values]
    return run(kernel(params, Return((expr,)), returns=(0,), scalar_results=(element,)), {}, values)[0]


_INTS = st.fixed_dictionaries({name: st.integers(-50, 50) for name in trees.INTEGERS})
_FLOATS = st.fixed_dictionaries(
    {name: st.sampled_from([0.0, -0.0, 1.5, -3.0, 1e-3, float("inf"), float("nan")]) for name in trees.FLOATS}
)


@given(trees.integers(), _INTS)
def test_an_integer_expression_prints_as_python_of_the_same_value(expr: Expr, values: dict[str, int]) -> None:
    names = {name: Wrapping(value) for name, value in values.items()}
    try:
        wanted = evaluated(expr, Wrapping, names)
    except ZeroDivisionError:
        with pytest.raises(ZeroDivisionError):
            interpreted(expr, values)
        return
    assert interpreted(expr, values) == wanted


@given(st.sampled_from([FLOAT32, FLOAT64]).flatmap(trees.floats), _FLOATS)
def test_a_float_expression_prints_as_python_of_the_same_value(expr: Expr, values: dict[str, float]) -> None:
    number = np.float32 if expr.type == FLOAT32 else np.float64
    wanted = evaluated(expr, number, {name: number(value) for name, value in values.items()})
    found = interpreted(expr, values)
    assert type(found) is number
    assert np.array_equal(found, wanted, equal_nan=True)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (op("*", op("+", I, J, INT64), K, INT64), "(i + j) * k"),
        (op("+", I, op("*", J, K, INT64), INT64), "i + j * k"),
        (op("-", I, op("-", J, K, INT64), INT64), "i - (j - k)"),
        (op("**", UnaryOp("-", I), op("**", J, K, INT64), INT64), "(-i) ** j ** k"),
        (op("**", Const(-2, INT64), UnaryOp("-", J), INT64), "(-2) ** -j"),
        (BoolOp("and", BoolOp("or", less(I, J), less(J, K)), UnaryOp("not", less(I, K))),
         "(i < j or j < k) and not i < k"),
        (UnaryOp("not", BoolOp("or", less(I, J), less(J, K))), "not (i < j or j < k)"),
        (Select(less(I, J), I, Select(less(J, K), J, K, INT64), INT64), "i if i < j else j if j < k else k"),
        (op("+", Select(less(I, J), I, J, INT64), K, INT64), "(i if i < j else j) + k"),
        (Call("pmin", (I, Call("maximum", (J, K), INT64)), INT64), "min(i, np.maximum(j, k))"),
        (Cast(FLOAT32, Dim("A", 1)), "float32(A.shape[1])"),
        (Const(1, FLOAT32), "1.0"),
        (Const(True, BOOL), "True"),
        (Const(float("-inf"), FLOAT32), "-inf"),
        (load("A", I, ramp(J, 16)), "A[i, j:j+16]"),
        (load("A", ramp(J, 16, 2)), "A[j:j+32:2]"),
        (load("A", ramp(J, 16, -1)), "A[ramp(j, -1, 16)]"),
        (load("A", ramp(0, 4)), "A[0:4]"),
        (load("A", ramp(op("+", J, Const(4, INT64), INT64), 8)), "A[j + 4 : j + 12]"),
        (load("A", ramp(J, 4), mask=less(ramp(J, 4), N)), "A[j:j+4; ramp(j, 1, 4) < n]"),
        (load("s"), "s[()]"),
        (Select(less(ramp(J, 4), N), load("A", ramp(J, 4)), f32(0), FLOAT32),
         "np.where(ramp(j, 1, 4) < n, A[j:j+4], 0.0)"),
        (Reduce("+", Broadcast(f32(1), 4)), "sum(broadcast(1.0, 4))"),
        (Reduce("pmax", Var("v", Vector(FLOAT32, 4))), "max(v)"),
    ],
)  # fmt: skip
def test_expressions(expr: Expr, text: str) -> None:
    assert format_expr(expr) == text


def test_an_update_prints_as_one_only_where_it_continues_its_target() -> None:
    c = load("C", I)
    masked = load("C", ramp(I, 4), mask=less(ramp(I, 4), N))
    x = Var("x", FLOAT32)
    assert format_stmt(store("C", I, op("-", c, op("-", x, x)))) == "C[i] -= x - x"
    assert format_stmt(store("C", I, op("+", x, c))) == "C[i] = x + C[i]"
    assert format_stmt(store("C", J, op("+", c, x))) == "C[j] = C[i] + x"
    assert format_stmt(Assign("x", op("*", x, c), FLOAT32)) == "x *= C[i]"
    mask = masked.mask
    assert format_stmt(store("C", ramp(I, 4), op("+", masked, x), mask)) == "C[i:i+4; ramp(i, 1, 4) < n] += x"
    assert format_stmt(store("C", ramp(I, 4), op("+", masked, x))).startswith("C[i:i+4] = C[i:i+4;")


def test_a_kernel_prints_like_python() -> None:
    body = (
        Assign("M", Dim("A", 0), INT64),
        loop(
            *("i_0", 0, Dim("A", 0), 192),
            Alloc(local("acc", 6, 4, dtype=Vector(FLOAT32, 16), space="register")),
            loop("k", 0, N, 1, store("acc", (0, 0), f32(0)), unroll=4),
            Barrier(),
            If(less(I, N), (Break(),), (If(less(J, N), (), (Return(()),)),)),
            source="i",
            piece=0,
            mapping="parallel",
        ),
        While(less(N, I), (Assign("n", op("+", N, N, INT64), INT64),), "n", unroll=1),
        loop("j_2", 5, 0, -1, source="j", ordinal=2, unroll=-1),
        Return((N,)),
    )
    wanted = """\
def f(A: float32[M, :], B: float32[A.shape[1], 3], n: int64) -> A, int64:  # strict math
    M = A.shape[0]
    for i_0 in range(0, A.shape[0], 192):  # i.0, parallel
        acc = register float32x16[6, 4]
        for k in range(n):  # unroll 4
            acc[0, 0] = 0.0
        barrier()
        if i < n:
            break
        elif j < n:
            pass
        else:
            return
    while n < i:  # nounroll
        n += n
    for j_2 in range(5, 0, -1):  # j#2, unroll
        pass
    return n"""
    b = Array("B", FLOAT32, (Dim("A", 1), Const(3, INT64)))
    made = kernel([array("A", 2), b, N], *body, returns=("A", 0), scalar_results=(INT64,), strict_math=True)
    assert format_kernel(made) == wanted


def test_bodies_are_indented_and_printing_is_deterministic() -> None:
    assert format_body((), 2) == "        pass"
    assert format_body((Break(), Barrier()), 1) == "    break\n    barrier()"
    assert format_kernel(gemm()) == format_kernel(gemm())
    assert "                C[i, j] += A[i, k] * B[k, j]" in format_kernel(gemm()).splitlines()
