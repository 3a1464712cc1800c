"""Expressions that the host evaluates at a launch: grids and the extents of workspaces, as plain Python."""

from __future__ import annotations

from pyschedule.errors import Unsupported
from pyschedule.ir.nodes import Array, BinOp, Call, Cast, Compare, Const, Dim, Expr, Select, Var
from pyschedule.ir.types import INT64


def host_text(expr: Expr, placed: dict[str, Array]) -> str:
    """An int64 expression over extents and scalar arguments as plain Python, for the host."""
    if isinstance(expr, Const):
        return repr(int(expr.value))
    if isinstance(expr, Var):
        return expr.name
    if isinstance(expr, Dim):
        shape = placed[expr.array].shape[expr.axis]
        return f"{expr.array}_shape{expr.axis}" if isinstance(shape, Dim) else host_text(shape, placed)
    if isinstance(expr, BinOp) and expr.op in ("+", "-", "*", "//", "%", "<<", ">>", "&", "|", "^"):
        return f"({host_text(expr.left, placed)} {expr.op} {host_text(expr.right, placed)})"
    if isinstance(expr, Call) and expr.function in ("pmin", "pmax", "minimum", "maximum"):
        name = "min" if expr.function in ("pmin", "minimum") else "max"
        return f"{name}({', '.join(host_text(arg, placed) for arg in expr.args)})"
    if isinstance(expr, Cast) and expr.dtype == INT64 and expr.operand.type == INT64:
        return host_text(expr.operand, placed)
    if isinstance(expr, Select):
        return _select(expr, placed)
    raise Unsupported(f"a launch cannot be sized by {type(expr).__name__}")


def _select(expr: Select, placed: dict[str, Array]) -> str:
    test = expr.test
    if not isinstance(test, Compare):
        raise Unsupported("a launch cannot be sized by a test that is no comparison")
    left, right = host_text(test.left, placed), host_text(test.right, placed)
    return f"({host_text(expr.then, placed)} if {left} {test.op} {right} else {host_text(expr.orelse, placed)})"
