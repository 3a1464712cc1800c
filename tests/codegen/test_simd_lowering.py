"""Statements of generated code as LLVM instructions: variables as values, and memory that is given back."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numba import float64, njit
from numba.core.runtime import _nrt_python, rtsys

from pyschedule.codegen.simd import FewerPasses, load, scratch, store

OPTIONS: dict[str, Any] = {"error_model": "numpy", "pipeline_class": FewerPasses}


@pytest.fixture
def counted() -> Iterator[None]:
    _nrt_python.memsys_enable_stats()
    yield
    _nrt_python.memsys_disable_stats()


def agree(function: Callable[..., Any], *arguments: tuple[int, ...]) -> None:
    compiled = njit(**OPTIONS)(function)
    for given in arguments:
        assert compiled(*given) == function(*given), given


def test_a_variable_assigned_once_is_read_in_loops_and_branches_behind_it() -> None:
    def function(n: int, m: int) -> int:
        twice = n * 2
        total = 0
        for i in range(n):
            row = i * twice
            for j in range(m):
                if j > i:
                    total += row + j
                else:
                    total -= row * twice
        return total + twice

    agree(function, (0, 3), (3, 0), (4, 7), (7, 4))


def test_a_variable_may_be_assigned_once_in_a_branch_and_read_behind_another() -> None:
    def function(n: int, m: int) -> int:
        if n > m:
            bonus = n * m + 1
        total = 0
        for i in range(n):
            if n > m:
                total = total * 3 + bonus * i
        return total

    agree(function, (5, 0), (6, 2), (3, 9))


def test_variables_take_each_others_values() -> None:
    def function(n: int, m: int) -> int:
        low, high = 1, m
        for _ in range(n):
            kept = low
            low = high
            high = kept + high
        return low * 1000 + high

    agree(function, (0, 2), (1, 2), (9, 5))


def test_a_loop_may_run_zero_times_and_leave_what_was_there() -> None:
    def function(n: int, m: int) -> int:
        last = -1
        for i in range(n):
            last = i
            if i == m:
                break
        return last

    agree(function, (0, 0), (5, 2), (5, 9))


@pytest.mark.parametrize("ending", ["end", "return", "error"])
@pytest.mark.parametrize("where", ["entry", "loop", "branch"])
def test_memory_of_a_call_is_given_back(counted: None, where: str, ending: str) -> None:
    lines = {
        "entry": ["own = scratch(n, float64)", "for i in range(n):", "    store(own, i, x[i] + 1.0)"],
        "loop": ["for i in range(n):", "    own = scratch(n, float64)", "    store(own, i, x[i] + 1.0)"],
        "branch": ["for i in range(n):", "    if i % 2 == 0:", "        own = scratch(i + 1, float64)"],
    }[where]
    if where == "branch":
        lines.append("        store(own, i, x[i] + 1.0)")
    inner = "        " if where == "branch" else "    "
    lines.append(f"{inner}x[i] = load(own, i)")
    lines += {
        "end": [],
        "return": ["    if i == 3:", "        return i"],
        "error": ["    if i == 3:", "        raise IndexError('index is out of range')"],
    }[ending]
    source = "\n".join(["def function(x, n):", *(f"    {line}" for line in lines), "    return -1"])
    names: dict[str, Any] = {"scratch": scratch, "load": load, "store": store, "float64": float64}
    exec(source, names)
    compiled = njit(**OPTIONS)(names["function"])
    compiled(np.zeros(8), 0)
    before = rtsys.get_allocation_stats()
    x = np.arange(8.0)
    if ending == "error":
        with pytest.raises(IndexError):
            compiled(x, 8)
    else:
        assert compiled(x, 8) == {"end": -1, "return": 3}[ending]
    after = rtsys.get_allocation_stats()
    last = 8 if ending == "end" else 4
    step = 2 if where == "branch" else 1
    expected = np.arange(8.0)
    expected[:last:step] += 1
    np.testing.assert_array_equal(x, expected)
    made = {"entry": 1, "loop": last, "branch": last // 2}[where] + 1  # and a note of the argument
    assert after.mi_alloc - before.mi_alloc == made
    assert after.mi_free - before.mi_free == made


def test_arrays_of_the_caller_are_not_counted_and_stay() -> None:
    """A reference that is taken and not given back, or the other way round, would be seen here."""

    def function(x: Any, y: Any, n: int) -> int:
        for i in range(n):
            y[i] = x[i] * 2.0
        return n

    compiled = njit(**OPTIONS)(function)
    x, y = np.arange(5.0), np.zeros(5)
    compiled(x, y, 5)
    before = sys.getrefcount(x), sys.getrefcount(y)
    for _ in range(10):
        compiled(x, y, 5)
    assert (sys.getrefcount(x), sys.getrefcount(y)) == before
    np.testing.assert_array_equal(y, x * 2)
