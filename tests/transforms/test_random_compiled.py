"""A few of the random schedules from decorators to machine code, on this CPU."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest

from pyschedule import ScheduleWarning
from pyschedule.kernel import schedule_function
from tests.support import inside_slack
from tests.transforms.kernels import CASES, random_sizes
from tests.transforms.schedules import describe, random_schedule
from tests.transforms.test_random_schedules import agree, plain

#: One of each kind of kernel; compiling takes a second or two each.
NAMES = (
    "gemm",
    "lower_product",
    "layer_norm",
    "row_extrema",
    "masked_sums",
    "several_elements",
    "branches_in_place",
    "strides",
    "perhaps_no_element",
    "recurrence",
    "heat",
    "read_where_it_exists",
)


@pytest.mark.parametrize("name", NAMES)
def test_compiled_code_means_what_the_function_means(name: str) -> None:
    case = CASES[name]
    rng = random.Random(f"compiled {name}")
    dtype = rng.choice([dtype for dtype in case.dtypes if dtype != "float16"])
    schedule = random_schedule(rng, case)
    while len(schedule.directives) < 2:
        schedule = random_schedule(rng, case)
    kernel = schedule_function(case.function, schedule.directives)
    for trial in range(6):
        arguments = case.arguments(dtype, random_sizes(rng), trial)
        expected, _ = plain(case, arguments)
        guarded = {name: inside_slack(value) for name, value in arguments.items() if isinstance(value, np.ndarray)}
        got = arguments | {name: view for name, (view, _) in guarded.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ScheduleWarning)
            kernel(*got.values())
        assert all(intact() for _, intact in guarded.values()), f"written outside: {name}\n{describe(schedule)}"
        for array, value in expected.items():
            agree(case, np.asarray(got[array]), value, f"{array} of {name}, {dtype}\n{describe(schedule)}")
