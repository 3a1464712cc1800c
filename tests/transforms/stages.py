"""Lowering decorated kernels for fixed targets, running every stage, and reading what a stage looks like."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from pyschedule import ScheduleWarning, spec
from pyschedule.ir.checker import check
from pyschedule.ir.interpreter import run
from pyschedule.ir.nodes import For, Kernel, Load, Stmt, Store
from pyschedule.ir.printer import format_kernel
from pyschedule.ir.visitors import expressions, local_arrays, loops, walk
from pyschedule.runtime.lowering import Lowering
from pyschedule.schedule.targets import Target
from tests.transforms.schedules import WIDE


def lower(kernel: Any, *args: Any, target: Target = WIDE) -> Lowering:
    """The lowering for arrays and numbers, or for specs; warnings are in its log.  Every stage is well-formed."""
    shaped = [spec(f"{arg.dtype}{list(arg.shape)}") if isinstance(arg, np.ndarray) else arg for arg in args]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)
        lowering: Lowering = kernel.lower(*shaped, target=target)
    for stage in lowering.stages.values():
        check(stage)
    return lowering


def agrees(kernel: Any, *args: Any, target: Target = WIDE, rtol: float = 0.0) -> Lowering:
    """Lowers, runs every stage on copies of the arguments, and asserts that each does what the Python function
    does: bit for bit, or as near as `rtol`."""
    lowering = lower(kernel, *args, target=target)
    same(lowering, *args, rtol=rtol)
    return lowering


def same(lowering: Lowering, *args: Any, rtol: float = 0.0) -> None:
    """Asserts that every stage does what the Python function does with these arguments."""
    expected = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = lowering.definition.parsed.function(*expected)
    for name, stage in lowering.stages.items():
        arrays, results = execute(stage, *args)
        for param, value in zip(stage.params, expected, strict=False):
            if isinstance(value, np.ndarray):
                what = f"{param.name} after {name}:\n{lowering.log}\n{format_kernel(stage)}"
                np.testing.assert_allclose(arrays[param.name], value, rtol=rtol, atol=rtol, err_msg=what)
        if result is not None:
            wanted = result if isinstance(result, tuple) else (result,)
            for got, value in zip(results, wanted, strict=True):
                np.testing.assert_allclose(got, value, rtol=rtol, err_msg=f"the result after {name}")


def execute(
    kernel: Kernel, *args: Any, trace: Callable[[int, tuple[int, ...]], None] | None = None
) -> tuple[dict[str, np.ndarray], tuple[Any, ...]]:
    """The arrays after a run on copies, by name, and what is returned."""
    given = {
        param.name: arg.copy() if isinstance(arg, np.ndarray) else arg
        for param, arg in zip(kernel.params, args, strict=True)
    }
    arrays = {name: value for name, value in given.items() if isinstance(value, np.ndarray)}
    scalars = {name: value for name, value in given.items() if name not in arrays}
    return arrays, run(kernel, arrays, scalars, trace)


def runs(kernel: Kernel, *args: Any) -> list[tuple[int, ...]]:
    """The source's statements, each with the source's counters, in the order in which a stage runs them."""
    found: list[tuple[int, ...]] = []

    def note(statement: int, counters: tuple[int, ...]) -> None:
        found.append((statement, *map(int, counters)))

    execute(kernel, *args, trace=note)
    return found


# ------------------------------------------------------------------------------------------- what a stage has


def nest(kernel: Kernel) -> list[str]:
    """The user's loops in textual order, by label: `["i.0", "j.0", "i.1"]`."""
    return [loop.label for loop in loops(kernel.body) if loop.source]


def mappings(kernel: Kernel) -> dict[str, str]:
    """The loops that are not serial: label → mapping."""
    return {loop.label: loop.mapping for loop in loops(kernel.body) if loop.mapping != "serial"}


def loop_named(kernel: Kernel, label: str) -> For:
    """The first loop of a label."""
    return next(loop for loop in loops(kernel.body) if loop.label == label)


def stores(kernel: Kernel, array: str) -> list[Store]:
    return [stmt for stmt in walk(kernel.body) if isinstance(stmt, Store) and stmt.array == array]


def loads(kernel: Kernel, array: str) -> list[Load]:
    return [part for part in expressions(kernel.body) if isinstance(part, Load) and part.array == array]


def count(kernel: Kernel, kind: type[Stmt]) -> int:
    return sum(isinstance(stmt, kind) for stmt in walk(kernel.body))


def buffers(kernel: Kernel, space: str) -> dict[str, str]:
    """The local arrays of a memory space: name → `"4 x 3 float32"` (`n` for an extent known at run time)."""
    found = {}
    for name, array in local_arrays(kernel.body).items():
        if array.space == space:
            extents = [str(getattr(extent, "value", "n")) for extent in array.shape]
            found[name] = f"{' x '.join(extents)} {array.dtype}"
    return found


def applied(lowering: Lowering) -> list[str]:
    """What the log says was applied: `["Tiling: i=4", "Unroll: ..."]`."""
    return [f"{record.transform}: {record.summary}" for record in lowering.log if record.status == "Applied"]


def skips(lowering: Lowering) -> list[str]:
    return [f"{record.transform}: {record.summary}" for record in lowering.log if record.status == "Skipped"]


def details(lowering: Lowering) -> str:
    """All lines that the log indents under others."""
    return "\n".join(detail for record in lowering.log for detail in record.details)


# ------------------------------------------------------------------------------------------------ arguments


def counting(*shape: int, dtype: str = "float32") -> np.ndarray:
    """Small values of either sign, each row different, whose sums come out exactly."""
    values = np.arange(int(np.prod(shape))).reshape(shape)
    return ((values * 7 % 23 - 9) / (1 if dtype.startswith("int") else 4)).astype(dtype)
