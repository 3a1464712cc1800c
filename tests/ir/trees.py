"""Random expression trees, for comparing one way of evaluating them with another."""

from __future__ import annotations

from hypothesis import strategies as st

from pyschedule.ir.nodes import BinOp, BoolOp, Call, Compare, Const, Expr, Select, UnaryOp, Var
from pyschedule.ir.types import BOOL, INT64, Scalar

INTEGERS = ("a", "b", "c")
FLOATS = ("x", "y", "z")
COMPARISONS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])


def integers() -> st.SearchStrategy[Expr]:
    """int64 expressions of `a`, `b`, `c`; a division may be by zero."""
    leaves: st.SearchStrategy[Expr] = st.integers(-9, 9).map(lambda value: Const(value, INT64))
    leaves |= st.sampled_from([Var(name) for name in INTEGERS])

    def grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        signs = st.sampled_from(["+", "-", "*", "//", "%", "&", "|", "^"])
        small = st.integers(0, 3).map(lambda value: Const(value, INT64))
        return st.one_of(
            st.builds(BinOp, signs, inner, inner, st.just(INT64)),
            st.builds(BinOp, st.sampled_from(["<<", ">>", "**"]), inner, small, st.just(INT64)),
            st.builds(UnaryOp, st.sampled_from(["-", "~"]), inner),
            st.builds(lambda name, left, right: Call(name, (left, right), INT64), _extrema, inner, inner),
            st.builds(lambda part: Call("abs", (part,), INT64), inner),
            st.builds(Select, _tests(inner, INT64), inner, inner, st.just(INT64)),
        )

    return st.recursive(leaves, grown, max_leaves=12)


def floats(dtype: Scalar) -> st.SearchStrategy[Expr]:
    """Float expressions of `x`, `y`, `z`."""
    values = st.sampled_from([0.5, -2.0, 3.25, 0.1, -0.75, 1e3])
    leaves: st.SearchStrategy[Expr] = values.map(lambda value: Const(value, dtype))
    leaves |= st.sampled_from([Var(name, dtype) for name in FLOATS])

    def grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        signs = st.sampled_from(["+", "-", "*", "/", "//", "%"])
        return st.one_of(
            st.builds(BinOp, signs, inner, inner, st.just(dtype)),
            st.builds(UnaryOp, st.just("-"), inner),
            st.builds(lambda name, left, right: Call(name, (left, right), dtype), _extrema, inner, inner),
            st.builds(Select, _tests(inner, dtype), inner, inner, st.just(dtype)),
        )

    return st.recursive(leaves, grown, max_leaves=12)


_extrema = st.sampled_from(["pmin", "pmax"])


def _tests(inner: st.SearchStrategy[Expr], dtype: Scalar) -> st.SearchStrategy[Expr]:
    compare = st.builds(Compare, COMPARISONS, inner, inner, st.just(dtype))
    return st.one_of(
        compare,
        st.builds(BoolOp, st.sampled_from(["and", "or"]), compare, compare),
        st.builds(UnaryOp, st.just("not"), compare),
        st.just(Const(True, BOOL)),
    )
