"""IR expressions over extents and scalar arguments, as Python source that the host evaluates before a call.

Preconditions, the shapes of outputs and the estimate of a call's work are such expressions.  Their text is kept
in the on-disk cache, so that a cached kernel needs none of the analyses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from pyschedule.errors import Unsupported
from pyschedule.ir.nodes import (
    BinOp,
    BoolOp,
    Call,
    Cast,
    Compare,
    Const,
    Dim,
    Expr,
    For,
    Kernel,
    Load,
    Select,
    Stmt,
    Store,
    UnaryOp,
    Var,
    While,
)
from pyschedule.ir.visitors import bodies, expressions, substitute_expr, variables, walk, walk_expr

#: What the text may name besides arrays and scalars.  The prefix keeps clear of the user's names.
HELPERS: Final[Mapping[str, Any]] = {
    "_ps_min": lambda a, b: b if b < a else a,
    "_ps_max": lambda a, b: b if b > a else a,
    "_ps_abs": abs,
    "_ps_int": int,
    "_ps_float": float,
    "_ps_bool": bool,
    "_ps_math": math,
    "_ps_trips": lambda start, stop, step: len(range(start, stop, step)) if step else 0,
}

_FUNCTIONS: Final = {
    "pmin": "_ps_min",
    "pmax": "_ps_max",
    "minimum": "_ps_min",
    "maximum": "_ps_max",
    "abs": "_ps_abs",
    "sqrt": "_ps_math.sqrt",
    "floor": "_ps_math.floor",
    "ceil": "_ps_math.ceil",
    "trunc": "_ps_math.trunc",
}
_CASTS: Final = {"b": "_ps_bool", "i": "_ps_int", "u": "_ps_int", "f": "_ps_float"}

#: Trip counts in one estimate grow with the depth of the nest; past this length it is not worth evaluating.
_LONGEST_ESTIMATE: Final = 4000


def python_source(expr: Expr) -> str:
    """The expression as Python; `Unsupported` for loads, vectors and functions that hosts do not evaluate.

    `Dim("A", 0)` reads `A.shape[0]`.
    """
    match expr:
        case Const(value):
            return repr(value) if not isinstance(value, float) or math.isfinite(value) else f'_ps_float("{value}")'
        case Var(name):
            return name
        case Dim(array, axis):
            return f"{array}.shape[{axis}]"
        case BinOp(op, left, right) | Compare(op, left, right) | BoolOp(op, left, right):
            return f"({python_source(left)} {op} {python_source(right)})"
        case UnaryOp(op, operand):
            return f"({op} {python_source(operand)})"
        case Select(test, then, orelse):
            return f"({python_source(then)} if {python_source(test)} else {python_source(orelse)})"
        case Cast(dtype, operand):
            return f"{_CASTS[dtype.kind]}({python_source(operand)})"
        case Call(function, args) if function in _FUNCTIONS:
            return f"{_FUNCTIONS[function]}({', '.join(map(python_source, args))})"
    raise Unsupported(f"{type(expr).__name__} is no expression of extents and scalar arguments")


def names(expr: Expr) -> tuple[set[str], set[str]]:
    """The arrays whose extents, and the scalars whose values, an expression reads."""
    return {part.array for part in walk_expr(expr) if isinstance(part, Dim)}, variables(expr)


#: What an innermost iteration counts that meets an element of an array which no other meets.  Where all elements
#: are met again, as in a product of matrices, they wait in registers and caches, and an iteration counts 1.
_STREAMED: Final = 4


def work_estimate(kernel: Kernel) -> tuple[str, bool]:
    """The work of a call at most, in innermost iterations of a product, as Python, and whether it reads scalars.

    A bound that depends on outer counters counts at its larger end; a trip count read from memory, or of a
    `while`, counts as endless (so that such kernels run in parallel where they can).
    """
    scalars = {param.name for param in kernel.scalar_params}
    try:
        text = _work(kernel.body, {}, frozenset(scalars))
    except Unsupported:
        text = None
    if text is None or len(text) > _LONGEST_ESTIMATE:
        return '_ps_float("inf")', False
    return text, any(_mentions(text, name) for name in scalars)


def _mentions(text: str, name: str) -> bool:
    padded = "".join(char if char.isalnum() or char in "_." else " " for char in text)
    return name in padded.split()


def _work(body: tuple[Stmt, ...], ranges: dict[str, tuple[Expr, Expr]], scalars: frozenset[str]) -> str | None:
    """The iterations of the loops in a body (`None`: it has no loop)."""
    parts: list[str] = []
    for stmt in body:
        if isinstance(stmt, While):
            raise Unsupported("the trips of a while loop are not known")
        if isinstance(stmt, For):
            parts.append(_loop_work(stmt, ranges, scalars))
            continue
        parts += [part for inner in bodies(stmt) if (part := _work(inner, ranges, scalars)) is not None]
    return " + ".join(parts) if parts else None


def _loop_work(loop: For, ranges: dict[str, tuple[Expr, Expr]], scalars: frozenset[str]) -> str:
    counts: list[str] = []
    for end in (0, 1):
        values = {name: both[end] for name, both in ranges.items()}
        start, stop, step = (_at(part, values, scalars) for part in (loop.start, loop.stop, loop.step))
        text = f"_ps_trips({python_source(start)}, {python_source(stop)}, {python_source(step)})"
        if text not in counts:
            counts.append(text)
    trips = counts[0] if len(counts) == 1 else f"_ps_max({', '.join(counts)})"
    low = {name: both[0] for name, both in ranges.items()}
    high = {name: both[1] for name, both in ranges.items()}
    inner = _work(
        loop.body,
        {**ranges, loop.var: (_at(loop.start, low, scalars), _at(loop.stop, high, scalars))},
        scalars,
    )
    if inner is not None:
        return f"{trips} * ({inner})"
    return f"{trips} * {_STREAMED}" if _streams(loop, {*ranges, loop.var}) else trips


def _streams(loop: For, counters: set[str]) -> bool:
    """Whether an iteration reads or writes an element that has the counters of all loops around it for indices."""
    accesses: list[Load | Store] = [part for part in expressions(loop.body) if isinstance(part, Load)]
    accesses += [stmt for stmt in walk(loop.body) if isinstance(stmt, Store)]
    return any(counters <= {name for index in access.indices for name in variables(index)} for access in accesses)


def _at(expr: Expr, values: dict[str, Expr], scalars: frozenset[str]) -> Expr:
    expr = substitute_expr(expr, values)
    if any(isinstance(part, Load) for part in walk_expr(expr)) or not variables(expr) <= scalars:
        raise Unsupported("a trip count depends on values in memory")
    return expr
