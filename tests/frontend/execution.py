"""Runs what the front end builds, and the plain function beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pyschedule.frontend.build import Block, Built, Check, build
from pyschedule.frontend.parser import parse
from pyschedule.ir import checker, interpreter
from pyschedule.ir.build import add, compare
from pyschedule.ir.nodes import Array, Dim, Expr, Kernel, Load, Return, Select, Stmt, Store, UnaryOp, Var
from pyschedule.ir.printer import format_kernel
from pyschedule.ir.signature import ArraySpec, ScalarSpec, Signature
from pyschedule.ir.types import BOOL, INT64, WEAK_BOOL, WEAK_FLOAT, WEAK_INT, Scalar
from pyschedule.ir.visitors import arrays, rewrite


def signature_of(*args: Any) -> Signature:
    """As the runtime sees arguments: extents free; Python's numbers weak, NumPy's integers int64."""
    specs: list[ArraySpec | ScalarSpec] = []
    for arg in args:
        if isinstance(arg, np.ndarray):
            unit = arg.ndim - 1 if arg.ndim and arg.strides[-1] == arg.itemsize else None
            specs.append(ArraySpec(arg.dtype.name, (None,) * arg.ndim, unit, bool(arg.flags.c_contiguous)))
        elif isinstance(arg, np.generic):
            specs.append(ScalarSpec(INT64 if arg.dtype.kind in "iu" else Scalar(arg.dtype.name)))
        else:
            specs.append(ScalarSpec({bool: WEAK_BOOL, int: WEAK_INT, float: WEAK_FLOAT}[type(arg)]))
    return Signature(tuple(specs))


def built(function: Callable[..., Any], *args: Any, block: Block | None = None) -> Built:
    result = build(parse(function), signature_of(*args), block)
    checker.check(explicit(result.kernel))
    return result


def nest(function: Callable[..., Any], *args: Any, block: Block | None = None) -> str:
    """The kernel as text, without its first line."""
    return format_kernel(built(function, *args, block=block).kernel).partition("\n")[2].rstrip()


def explicit(kernel: Kernel) -> Kernel:
    """Python's negative indices, worked out when they are met: the interpreter wants indices in bounds."""
    shapes = {name: array.shape for name, array in arrays(kernel).items()}

    def indices(node: Load | Store) -> tuple[Expr, ...]:
        return tuple(
            Select(compare("<", index, 0), add(index, extent), index, INT64)
            for index, extent in zip(node.indices, shapes[node.array], strict=True)
        )

    def expression(expr: Expr) -> Expr | None:
        if isinstance(expr, Load):
            return Load(expr.array, indices(expr), expr.dtype, None, expr.loc)
        return None

    def statement(stmt: Stmt) -> Stmt | None:
        return Store(stmt.array, indices(stmt), stmt.value, origin=stmt.origin) if isinstance(stmt, Store) else None

    import dataclasses

    return dataclasses.replace(kernel, body=rewrite(kernel.body, statement, expression))


def _extent(expr: Expr, given: dict[str, Any]) -> int:
    """An extent of a result, for the arguments given."""
    if isinstance(expr, Dim):
        return int(given[expr.array].shape[expr.axis])
    if isinstance(expr, Var):
        return int(given[expr.name])
    if hasattr(expr, "value"):
        return int(expr.value)
    if isinstance(expr, UnaryOp):
        return -_extent(expr.operand, given)
    values = [_extent(part, given) for part in getattr(expr, "args", None) or (expr.left, expr.right)]  # type: ignore[attr-defined]
    operations: dict[str, Callable[[int, int], int]] = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "//": lambda a, b: a // b,
        "%": lambda a, b: a % b,
        "pmin": min,
        "pmax": max,
    }
    return operations[getattr(expr, "op", None) or expr.function](*values)  # type: ignore[attr-defined]


def _apart(given: dict[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    held = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    return held, {name: value for name, value in given.items() if name not in held}


def holds(check: Check, kernel: Kernel, given: dict[str, Any]) -> bool:
    params = tuple(param for param in kernel.params if param.name not in kernel.outputs)
    body = (Return((check.test,)),)
    return bool(interpreter.run(Kernel("check", params, body, (), (0,), (BOOL,)), *_apart(given))[0])


def interpreted(result: Built, *args: Any) -> Any:
    """What the kernel returns, as Python would have it; arrays among the arguments are written in place."""
    kernel = explicit(result.kernel)
    given = dict(zip((param.name for param in kernel.params), args, strict=False))
    for check in result.checks:
        if not holds(check, kernel, given):
            raise ValueError(check.message)
    for param in kernel.params:
        if isinstance(param, Array) and param.name in kernel.outputs:
            shape = tuple(_extent(extent, given) for extent in param.shape)
            given[param.name] = np.full(shape, 77, np.dtype(str(param.dtype)))
    values = interpreter.run(kernel, *_apart(given))
    return None if not values else values[0] if len(values) == 1 else values


def agrees(function: Callable[..., Any], *args: Any, rtol: float = 0.0) -> Any:
    """Asserts that kernel and function write and return the same; gives what the kernel returns."""
    plain = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
    ours = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
    with np.errstate(all="ignore"):
        expected = function(*plain)
    got = interpreted(built(function, *args), *ours)
    for one, other in zip(ours, plain, strict=True):
        if isinstance(other, np.ndarray):
            np.testing.assert_allclose(one, other, rtol=rtol)
    if expected is None:
        assert got is None
    elif isinstance(expected, tuple):
        for one, other in zip(got, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=rtol)
    else:
        np.testing.assert_allclose(got, expected, rtol=rtol)
        if isinstance(expected, np.generic | np.ndarray):
            assert np.asarray(got).dtype == expected.dtype, (np.asarray(got).dtype, expected.dtype)
    return got
