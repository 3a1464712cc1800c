"""Random kernels under random schedules: every stage of the lowering means what the Python function means.

Each case is a kernel of `kernels`, a schedule and a target drawn from a seed that is the test's name: run
`pytest tests/transforms/test_random_schedules.py --random-schedules 100` for a hundred schedules a kernel, and
`-k "gemm-57"` with it for one of them.

The stages are executed by the interpreter on arrays of every size from none to more than a tile.  Sums of the
values come out exactly in any order (`kernels` sees to that), so that results are compared bit by bit; with
`strict_math` the values are any floats, since then no sum may be reassociated.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

from pyschedule.ir.interpreter import Trace, run
from pyschedule.ir.nodes import Assign, Kernel, Store
from pyschedule.ir.printer import format_kernel
from pyschedule.ir.visitors import walk
from pyschedule.transforms import pipeline
from tests.transforms.kernels import CASES, Case, random_sizes
from tests.transforms.schedules import TARGETS, describe, random_schedule

#: How often a schedule's stages are run, each time at other sizes.
TRIALS = 3

Arguments = dict[str, Any]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "number" in metafunc.fixturenames:
        count = metafunc.config.getoption("--random-schedules")
        pairs = [(name, number) for number in range(count) for name in CASES]
        metafunc.parametrize("name, number", pairs, ids=[f"{name}-{number}" for name, number in pairs])


def test_every_stage_means_what_the_function_means(name: str, number: int) -> None:
    case = CASES[name]
    rng = random.Random(f"{name}-{number}")
    dtype = rng.choice(case.dtypes)
    strict_math = rng.random() < 0.15
    target = rng.choice(TARGETS)
    schedule = random_schedule(rng, case)
    kernel = case.kernel(dtype, strict_math=strict_math)
    lowered = pipeline.lower(kernel, schedule, target, check_stages=True)
    rough = strict_math and "float16" not in (param.dtype for param in case.params) and dtype != "float16"
    for trial in range(TRIALS):
        sizes = random_sizes(rng)
        arguments = case.arguments(dtype, sizes, trial, rough=rough)
        about = f"{name} of {dtype} at {sizes} on {target}\n{describe(schedule)}\n"
        about += "\n".join(map(str, lowered.records))
        expected, results = plain(case, arguments)
        for stage, nest in lowered.stages.items():
            message = f"after {stage}: {about}\n{format_kernel(nest)}"
            got, got_results = interpreted(nest, arguments, message)
            for array, value in expected.items():
                agree(case, got[array], value, f"{array} {message}")
            agree(case, np.asarray(got_results), np.asarray(results), f"the result {message}")
        every_instance_runs_once(kernel, lowered.stages["tiling"], arguments, about)


def plain(case: Case, arguments: Arguments) -> tuple[Arguments, tuple[Any, ...]]:
    """The arrays, and what is returned, after the Python function."""
    own = copied(arguments)
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = case.function(**own)
    return {name: value for name, value in own.items() if isinstance(value, np.ndarray)}, result or ()


def interpreted(
    kernel: Kernel, arguments: Arguments, message: str = "", trace: Trace | None = None
) -> tuple[Arguments, tuple[Any, ...]]:
    own = copied(arguments)
    arrays = {name: value for name, value in own.items() if isinstance(value, np.ndarray)}
    scalars = {name: value for name, value in own.items() if name not in arrays}
    try:
        results = run(kernel, arrays, scalars, trace)
    except Exception as error:
        error.add_note(message)
        raise
    return arrays, results


def copied(arguments: Arguments) -> Arguments:
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}


def agree(case: Case, got: np.ndarray, expected: np.ndarray, message: str) -> None:
    if case.exact:
        np.testing.assert_array_equal(got, expected, message)
    else:
        np.testing.assert_allclose(got, expected, 1e-9, 1e-9, err_msg=message)


def every_instance_runs_once(source: Kernel, tiled: Kernel, arguments: Arguments, about: str) -> None:
    """Tiling runs the source's statement instances, each once, and none besides."""
    expected, got = instances(source, arguments), instances(tiled, arguments)
    own = {stmt.origin.statement for stmt in walk(source.body) if isinstance(stmt, (Assign, Store)) and stmt.origin}
    for instance, times in got.items():
        if instance[0] not in own:
            continue  # a copy into or out of a shadow of a half array
        assert times == expected[instance], (
            f"instance {instance} ran {times} times and not {expected[instance]}: {about}\n{format_kernel(tiled)}"
        )
    missing = expected.keys() - got.keys()
    assert not missing, f"instances {sorted(missing)[:3]} never ran: {about}\n{format_kernel(tiled)}"


def instances(kernel: Kernel, arguments: Arguments) -> Counter[tuple[int, tuple[int, ...]]]:
    found: Counter[tuple[int, tuple[int, ...]]] = Counter()

    def note(statement: int, counters: tuple[int, ...]) -> None:
        found[statement, tuple(map(int, counters))] += 1

    interpreted(kernel, arguments, trace=note)
    return found
