"""The work of a nest: floating-point operations and compulsory traffic, counted from the source stage."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyschedule.errors import Unsupported
from pyschedule.ir import visitors
from pyschedule.ir.blocks import TransposedStores
from pyschedule.ir.nodes import BinOp, Call, Const, Dim, Expr, For, If, Kernel, Load, Stmt, UnaryOp, Var, While
from pyschedule.ir.types import element_of

_INTEGER: Final[Mapping[str, Callable[[int, int], int]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
}
_EXTREMES: Final[Mapping[str, Callable[[int, int], int]]] = {
    "pmin": min,
    "minimum": min,
    "pmax": max,
    "maximum": max,
}


@dataclass(frozen=True, slots=True)
class Work:
    """`flops`: additions, multiplications, divisions and calls on floats, each one operation; an `if` counts
    with the larger of its two arms.  `bytes_moved`: every array that is read counts once, every array that is
    written once more: what a perfect cache would move.  `None`: not countable from the nest."""

    flops: int | None
    bytes_moved: int | None


def count(kernel: Kernel, arguments: tuple[Any, ...]) -> Work:
    """The work of one call; `arguments` (arrays, specs or numbers) stand for the kernel's own parameters."""
    names = [param.name for param in kernel.params if param.name not in kernel.outputs]
    given = dict(zip(names, arguments, strict=True))
    shapes = {name: tuple(map(int, arg.shape)) for name, arg in given.items() if _is_array(arg)}
    values = {name: int(arg) for name, arg in given.items() if not _is_array(arg) and hasattr(arg, "__index__")}
    try:
        for array in kernel.array_params:
            if array.name not in shapes:
                shapes[array.name] = tuple(_evaluate(extent, values, shapes) for extent in array.shape)
    except Unsupported:
        return Work(None, None)
    try:
        flops: int | None = _count_body(kernel.body, values, shapes)
    except Unsupported:
        flops = None
    return Work(flops, _traffic(kernel, shapes))


def _is_array(argument: Any) -> bool:
    return getattr(argument, "shape", ()) != ()


def _traffic(kernel: Kernel, shapes: Mapping[str, tuple[int, ...]]) -> int:
    read, written = visitors.read_arrays(kernel.body), visitors.written_arrays(kernel.body)
    moved = 0
    for array in kernel.array_params:
        elements = 1
        for extent in shapes[array.name]:
            elements *= extent
        moved += elements * element_of(array.dtype).bytes * ((array.name in read) + (array.name in written))
    return moved


def _count_body(body: tuple[Stmt, ...], values: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> int:
    return sum(_count_statement(stmt, values, shapes) for stmt in body)


def _count_statement(stmt: Stmt, values: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> int:
    if isinstance(stmt, While):
        raise Unsupported("the trip count of a loop that does not count is not known", stmt.loc)
    own = sum(_operations(expr) for expr in visitors.children(stmt) if not isinstance(stmt, For))
    if isinstance(stmt, If):
        return own + max(_count_body(stmt.body, values, shapes), _count_body(stmt.orelse, values, shapes))
    if isinstance(stmt, TransposedStores):
        return _count_body(stmt.body, values, shapes)
    if isinstance(stmt, For):
        trips = range(*(_evaluate(bound, values, shapes) for bound in (stmt.start, stmt.stop, stmt.step)))
        if not trips:
            return 0
        if not _bounds_use(stmt.body, stmt.var):
            return len(trips) * _count_body(stmt.body, {**values, stmt.var: trips[0]}, shapes)
        return sum(_count_body(stmt.body, {**values, stmt.var: index}, shapes) for index in trips)
    return own


def _bounds_use(body: tuple[Stmt, ...], name: str) -> bool:
    """Whether a loop in the body has a bound that needs this counter (or a local, which may hang on it)."""
    return any(
        not visitors.variables(bound) <= visitors.counters(body)
        and name in visitors.variables(bound) | visitors.written_variables(body)
        for loop in visitors.loops(body)
        for bound in (loop.start, loop.stop, loop.step)
    )


def _operations(expr: Expr) -> int:
    """The float operations of one expression; those of index arithmetic are integers and do not count."""
    if isinstance(expr, Load):
        return 0
    own = isinstance(expr, (BinOp, Call, UnaryOp)) and element_of(expr.type).is_float
    return int(own) + sum(_operations(part) for part in visitors.children(expr))


def _evaluate(expr: Expr, values: Mapping[str, int], shapes: Mapping[str, tuple[int, ...]]) -> int:
    if isinstance(expr, Const):
        return int(expr.value)
    if isinstance(expr, Var) and expr.name in values:
        return values[expr.name]
    if isinstance(expr, Dim) and expr.array in shapes:
        return shapes[expr.array][expr.axis]
    if isinstance(expr, BinOp) and expr.op in _INTEGER:
        return _INTEGER[expr.op](_evaluate(expr.left, values, shapes), _evaluate(expr.right, values, shapes))
    if isinstance(expr, UnaryOp) and expr.op == "-":
        return -_evaluate(expr.operand, values, shapes)
    if isinstance(expr, Call) and expr.function in _EXTREMES:
        return _EXTREMES[expr.function](*(_evaluate(arg, values, shapes) for arg in expr.args))
    raise Unsupported("a loop's bound is not an integer expression of arguments and counters")
