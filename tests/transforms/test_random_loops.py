"""Random nests of loops under random directives: every stage of the lowering does what the Python function does.

Each draw is a program, directives and a target from a seed that is the test's name: run
`pytest tests/transforms/test_random_loops.py --random-loops 5000` for thousands, and `-k "loops-57-"` for one.  All
stages are executed by the interpreter; some programs are compiled for this CPU, and some run in lockstep as CUDA.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

from pyschedule import ScheduleWarning
from pyschedule.frontend import build
from pyschedule.ir.interpreter import run
from pyschedule.ir.nodes import Kernel
from pyschedule.ir.printer import format_kernel
from pyschedule.ir.signature import ArraySpec, ScalarSpec, Signature
from pyschedule.ir.types import WEAK_INT
from pyschedule.kernel import schedule_function
from pyschedule.transforms import indexing, pipeline
from tests.support import call
from tests.transforms.random_loops import (
    Arguments,
    Program,
    copied,
    random_directives,
    random_program,
)
from tests.transforms.schedules import TARGETS, describe

#: How often the stages of a draw are run, each time with other arguments.
TRIALS = 4


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    count = metafunc.config.getoption("--random-loops")
    if "number" in metafunc.fixturenames:
        metafunc.parametrize("number", range(count), ids=[f"loops-{number}-" for number in range(count)])
    if "compiled" in metafunc.fixturenames:
        metafunc.parametrize("compiled", range(max(3, count // 40)))


def test_every_stage_of_random_loops_does_what_python_does(number: int) -> None:
    rng = random.Random(f"loops {number}")
    program = random_program(rng, str(number))
    schedule = random_directives(rng, program)
    target = rng.choice(TARGETS)
    lowered = pipeline.lower(kernel_of(program), schedule, target, check_stages=True)
    about = f"{program.text}{describe(schedule)}\non {target}\n" + "\n".join(map(str, lowered.records))
    for _ in range(TRIALS):
        arguments = program.arguments(rng)
        if arguments is None:
            continue
        expected, results = plain(program, arguments)
        before: Kernel | None = None
        for stage, kernel in lowered.stages.items():
            if before is None or kernel.body is not before.body:
                got, got_results = interpreted(
                    kernel, arguments, f"after {stage}: {about}\n{format_kernel(kernel)}"
                )
                given = f"a = {arguments['a']}, b = {arguments['b']}"
                agree(
                    (got, got_results),
                    (expected, results),
                    f"after {stage}, {given}: {about}\n{format_kernel(kernel)}",
                )
            before = kernel


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_machine_code_and_lockstep_do_what_python_does(target: str, compiled: int) -> None:
    rng = random.Random(f"compiled loops {compiled}")
    program = random_program(rng, f"{target} {compiled}")
    schedule = random_directives(rng, program)
    while not schedule.directives:
        schedule = random_directives(rng, program)
    kernel: Any = schedule_function(program.function, schedule.directives)
    for _ in range(TRIALS if target == "cpu" else 2):
        arguments = program.arguments(rng)
        if arguments is None:
            continue
        expected, results = plain(program, arguments)
        given = copied(arguments)
        about = f"{program.text}{describe(schedule)}\n on {target}, a = {given['a']}, b = {given['b']}"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScheduleWarning)
            try:
                result = call(kernel, *given.values(), target=target)
            except Exception as error:
                error.add_note(about)
                raise
        agree((given, _tuple(result)), (expected, results), about)


def test_the_draws_are_what_they_should_be() -> None:
    """All kinds of loops and of directives are among them, and most are carried out."""
    kinds: Counter[str] = Counter()
    for number in range(60):
        rng = random.Random(f"loops {number}")
        program = random_program(rng, str(number))
        words = [word for word in ("while", "break", "continue", "if stage", "-1)") if word in program.text]
        words += [type(item).__name__ for item in random_directives(rng, program).directives]
        kinds.update(set(words))
    rare = ("while", "break", "continue", "if stage", "-1)", "Tile", "Vectorize", "NoUnroll", "Poll")
    assert all(kinds[word] >= 4 for word in rare), kinds
    assert kinds["Unroll"] >= 40


# ---------------------------------------------------------------------------------------------------- helpers


def kernel_of(program: Program) -> Kernel:
    array = {rank: ArraySpec("int64", (None,) * rank, unit_axis=rank - 1, contiguous=True) for rank in range(1, 5)}
    signature = Signature(
        (array[program.depth + 1], array[1], array[1], ScalarSpec(WEAK_INT), ScalarSpec(WEAK_INT))
    )
    return indexing.make_explicit(build.build(program.parsed, signature, None, False).kernel)[0]


def plain(program: Program, arguments: Arguments) -> tuple[Arguments, tuple[Any, ...]]:
    own = copied(arguments)
    results = program.function(**own)
    assert own["count"].max(initial=0) <= 1
    return own, _tuple(results)


def interpreted(kernel: Kernel, arguments: Arguments, about: str) -> tuple[Arguments, tuple[Any, ...]]:
    own = copied(arguments)
    arrays = {name: value for name, value in own.items() if isinstance(value, np.ndarray)}
    scalars = {name: value for name, value in own.items() if name not in arrays}
    try:
        return own, run(kernel, arrays, scalars)
    except Exception as error:
        error.add_note(about)
        raise


def agree(got: tuple[Arguments, tuple[Any, ...]], expected: tuple[Arguments, tuple[Any, ...]], about: str) -> None:
    for name in ("count", "x", "y"):
        assert np.array_equal(got[0][name], expected[0][name]), f"{name} {about}"
    assert tuple(map(int, got[1])) == expected[1], f"the results {about}"


def _tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)
