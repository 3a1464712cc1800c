"""From isl's sets and expressions back to expressions of the IR."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

from pyschedule.analysis.quasiaffine import Extreme, Floor, Linear, Parameters, Quasi
from pyschedule.errors import Unsupported
from pyschedule.ir.build import FALSE, TRUE, ZERO, add, const, floordiv, maximum, minimum, mod, mul, sub
from pyschedule.ir.nodes import BinOp, BoolOp, Compare, Dim, Expr, Select, UnaryOp
from pyschedule.ir.types import INT64

_NEGATED = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "=="}


def meanings(parameters: Parameters) -> dict[str, Expr]:
    """What each isl parameter stands for, by its name there."""
    found: dict[str, Expr] = {}
    for key, name in parameters.names.items():
        if isinstance(key, Expr):
            found[name] = key
        elif isinstance(key, tuple):  # an operation on others, which stand before it
            op, left, right = key
            found[name] = BinOp(op, _from_quasi(left, found), _from_quasi(right, found), INT64)
        else:
            raise Unsupported(f"the parameter {key!r} has no expression")
    return found


def _from_quasi(value: Quasi, names: Mapping[str, Expr]) -> Expr:
    if isinstance(value, Extreme):
        parts = [_from_quasi(part, names) for part in value.parts]
        return reduce(minimum if value.op == "min" else maximum, parts)
    total: Expr = const(0)
    for symbol, factor in value.terms:
        total = add(total, mul(_from_atom(symbol, names), factor))
    return add(total, value.constant)


def _from_atom(symbol: str | Floor, names: Mapping[str, Expr]) -> Expr:
    if isinstance(symbol, Floor):
        numerator: Linear = symbol.numerator
        return floordiv(_from_quasi(numerator, names), symbol.divisor)
    return names[symbol]


def negated(test: Expr) -> Expr:
    """`not test`, pushed inwards to the comparisons."""
    if test in (TRUE, FALSE):
        return FALSE if test == TRUE else TRUE
    if isinstance(test, BoolOp):
        return BoolOp("or" if test.op == "and" else "and", negated(test.left), negated(test.right))
    if isinstance(test, Compare):
        if test.op == "==" and isinstance(test.left, Dim) and test.right == ZERO:
            return Compare(">", test.left, ZERO, test.dtype)  # an extent is never negative
        return Compare(_NEGATED[test.op], test.left, test.right, test.dtype)
    return UnaryOp("not", test)


def from_set(condition: Any, context: Any, names: Mapping[str, Expr]) -> Expr:
    """A set of parameter values as a test, which may take `context` for granted."""
    import islpy as isl

    if condition.is_empty():
        return FALSE
    if context.is_subset(condition):
        return TRUE
    build = isl.AstBuild.from_context(context)
    return from_ast(build.expr_from_set(condition.gist(context)), names)


def from_ast(expr: Any, names: Mapping[str, Expr]) -> Expr:
    """An isl AST expression; its operators on integers are exact, without overflow."""
    import islpy as isl

    kind = expr.get_type()
    if kind == isl.ast_expr_type.id:
        return names[expr.id_get_id().get_name()]
    if kind == isl.ast_expr_type.int:
        return const(expr.int_get_val().to_python())
    op = str(expr.op_get_type()).rpartition(".")[2]
    args = [from_ast(expr.op_get_arg(number), names) for number in range(expr.op_get_n_arg())]
    if op in _COMPARISONS:
        return _comparison(_COMPARISONS[op], *args)
    if op in ("and_", "and_then", "or_", "or_else"):
        return reduce(partial(BoolOp, op.partition("_")[0]), args)
    if op in ("select", "cond"):
        test, then, orelse = args
        return Select(test, then, orelse, INT64)
    if op == "minus":
        return sub(const(0), args[0])
    function = _ARITHMETIC.get(op)
    if function is None:
        raise Unsupported(f"isl's operation {op!r} has no expression")
    return reduce(function, args)


def _comparison(op: str, left: Expr, right: Expr) -> Expr:
    """With constants moved so that `x >= 1` reads `x > 0`, and `x >= y + 1` reads `x > y`."""
    if op == ">=" and right == const(1):
        return Compare(">", left, const(0), INT64)
    if op in (">=", "<=") and isinstance(right, BinOp) and right.op == ("+" if op == ">=" else "-"):
        if right.right == const(1):
            return Compare(op[0], left, right.left, INT64)
        return Compare(op, left, right, INT64)
    if op == ">=" and isinstance(left, BinOp) and left.op == "-" and left.right == const(1):
        return Compare(">", left.left, right, INT64)
    return Compare(op, left, right, INT64)


#: `pdiv` is division of a nonnegative number, `zdiv_r` a remainder compared with zero only, and `div` exact:
#: floor division and Python's remainder agree with all of them.
_ARITHMETIC: dict[str, Callable[[Expr, Expr], Expr]] = {
    "add": add,
    "sub": sub,
    "mul": mul,
    "div": floordiv,
    "fdiv_q": floordiv,
    "pdiv_q": floordiv,
    "pdiv_r": mod,
    "zdiv_r": mod,
    "min": minimum,
    "max": maximum,
}
