"""Hand-built kernels: shorthand to build them, and running them compiled and interpreted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pyschedule.codegen.numba_cpu import generate
from pyschedule.ir import build, interpreter
from pyschedule.ir.arithmetic import numpy_dtype
from pyschedule.ir.nodes import Array, BinOp, Compare, Dim, Expr, For, Kernel, Load, Ramp, Stmt, Var
from pyschedule.ir.types import INT64, Scalar, element_of, with_lanes
from pyschedule.schedule.targets import host

LANES = 8


def array(name: str, dtype: str, rank: int = 1, unit_axis: int | None = -1) -> Array:
    axis = rank - 1 if unit_axis == -1 else unit_axis
    return Array(name, Scalar(dtype), tuple(Dim(name, at) for at in range(rank)), unit_axis=axis)


def held(dtype: Scalar) -> Scalar:
    return Scalar("float32") if dtype.is_half else dtype


def load(source: Array, *indices: Expr, mask: Expr | None = None) -> Load:
    element = held(element_of(source.dtype))
    return Load(source.name, indices, with_lanes(element, 1), mask)


def serial(var: str, stop: Expr | int, *body: Stmt, step: int = 1, start: Expr | int = 0, **fields: Any) -> For:
    return For(var, _expr(start), _expr(stop), build.const(step), body, source=var, **fields)


def _expr(value: Expr | int) -> Expr:
    return build.const(value) if isinstance(value, int) else value


def lanes_from(base: Expr, lanes: int = LANES, stride: int = 1) -> Ramp:
    return Ramp(base, stride, lanes)


def below(index: Expr, bound: Expr) -> Compare:
    return Compare("<", index, bound, INT64)


def binary(op: str, left: Expr, right: Expr, dtype: str) -> BinOp:
    return BinOp(op, left, right, Scalar(dtype))


def source_of(kernel: Kernel, parallel: bool = False) -> str:
    return generate(kernel, host(), parallel=parallel).source


def compiled(kernel: Kernel, parallel: bool = False) -> Any:
    program = generate(kernel, host(), parallel=parallel)
    space: dict[str, Any] = {"__name__": "generated"}
    exec(compile(program.source, f"<{program.entry}>", "exec"), space)
    return space[program.entry]


def as_words(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """What the runtime passes for an array: a half as its words."""
    return value.view(np.uint16) if value.dtype.name in ("float16", "bfloat16") else value


def call(function: Any, kernel: Kernel, arrays: Mapping[str, Any], scalars: Mapping[str, Any]) -> Any:
    return function(
        *(
            as_words(arrays[param.name]) if isinstance(param, Array) else scalars[param.name]
            for param in kernel.params
        )
    )


def agree(
    kernel: Kernel,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    scalars: Mapping[str, Any] | None = None,
    *,
    rtol: float = 0.0,
    parallel: bool = False,
    function: Any = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Runs compiled code on `arrays` in place and the interpreter on copies; asserts that all arrays agree."""
    expected = {name: copy_layout(value) for name, value in arrays.items()}
    results = interpreter.run(kernel, expected, scalars or {})
    function = compiled(kernel, parallel) if function is None else function
    got = call(function, kernel, arrays, scalars or {})
    for name, value in arrays.items():
        same(name, value, expected[name], rtol)
    wanted = [results[at] for at, item in enumerate(kernel.returns) if isinstance(item, int)]
    if kernel.scalar_results:
        same("results", np.array(got), np.array(wanted), rtol)
    return expected


def copy_layout(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    copy = np.empty_like(value)
    copy[...] = value
    return copy


def same(name: str, got: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], rtol: float) -> None:
    if got.dtype.kind not in "fV" or rtol == 0.0:
        left, right = got, wanted
        if got.dtype.kind in "fV":
            left, right = got.astype(np.float64), wanted.astype(np.float64)
        np.testing.assert_array_equal(left, right, err_msg=name)
        return
    np.testing.assert_allclose(
        got.astype(np.float64), wanted.astype(np.float64), rtol=rtol, atol=1e-30, err_msg=name
    )


def samples(dtype: str, count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Values where arithmetic goes wrong first, then random ones."""
    rng = np.random.default_rng(seed)
    kind = Scalar(dtype).kind
    numpy = numpy_dtype(dtype)
    if kind == "b":
        return rng.integers(0, 2, count).astype(numpy)
    if kind == "f":
        edges = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, np.inf, -np.inf, np.nan, 3.0, 1e-3, 100.0]
        values = np.concatenate([rng.permutation(edges), rng.standard_normal(count) * 8.0])
        return values[:count].astype(numpy)
    info = np.iinfo(numpy)
    edge = [info.min, info.max, 0, 1, 2, 3, 7, info.max - 1, info.min + 1]
    near = rng.integers(max(info.min, -9), 10, count)
    wide = rng.integers(info.min, info.max, count, dtype=numpy)
    pool = np.concatenate([np.array(edge, dtype=numpy), near.astype(numpy), wide])
    return rng.permutation(pool)[:count]


__all__ = [
    "LANES", "Scalar", "Var", "agree", "array", "as_words", "below", "binary", "call", "compiled", "copy_layout",
    "held", "lanes_from", "load", "samples", "serial", "source_of",
]  # fmt: skip
