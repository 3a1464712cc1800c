"""Records name what the user named: no name that a transform made up is in them."""

from __future__ import annotations

import random
import re

import pytest

from pyschedule import tile, unroll, vectorize
from pyschedule.ir.nodes import For
from pyschedule.ir.visitors import arrays, loops, variable_types
from pyschedule.kernel import schedule_function
from pyschedule.schedule.log import Record
from pyschedule.transforms.users_names import in_users_words
from tests.analysis.helpers import gemm
from tests.transforms.kernels import CASES, random_sizes
from tests.transforms.schedules import GPU, WIDE, random_schedule
from tests.transforms.stages import counting, details, lower, skips


def made_up(lowering):
    """The names that only a transform's kernel has."""
    source = lowering.stages["source"]
    users = {loop.source for loop in loops(source.body)} | set(arrays(source))
    users |= set(variable_types(source)) - {loop.var for loop in loops(source.body)}
    every = [kernel for stage in lowering.stages.values() for kernel in (variable_types(stage), arrays(stage))]
    return {name for names in every for name in names} - users - {"lanes", "x"}  # words of the log, too


@pytest.mark.parametrize("name", sorted(CASES))
def test_no_record_of_a_random_schedule_has_a_name_that_a_transform_made(name):
    case = CASES[name]
    for trial in range(3):
        rng = random.Random(f"names {name} {trial}")
        schedule = random_schedule(rng, case)
        kernel = schedule_function(case.function, schedule.directives)
        arguments = case.arguments(case.dtypes[0], random_sizes(rng), trial)
        lowering = lower(kernel, *arguments.values(), target=rng.choice([WIDE, GPU]))
        words = set(re.findall(r"[A-Za-z_]\w*", str(lowering.log)))
        assert not words & made_up(lowering), str(lowering.log)


def test_an_index_into_a_staged_copy_is_the_one_that_was_written():
    def scatter(table, h):
        for i in range(table.shape[0]):
            h[table[i]] += 1

    kernel = tile(i=4, stage={"table": "i.0"})(vectorize("i", 2)(scatter))
    lowering = lower(kernel, counting(9, dtype="int64"), counting(30))
    assert any("the index `table[i]` stays below `h.shape[0]`" in text for text in skips(lowering)), skips(lowering)


def test_registers_and_staged_copies_are_told_from_the_arrays_they_hold():
    def product(A, B, C):
        for i in range(A.shape[0]):
            for j in range(B.shape[1]):
                for k in range(A.shape[1]):
                    C[i, j] += A[i, k] * B[k, j]

    kernel = tile(i=4, j=8, k=4, stage={"B": "k.0"})(vectorize("j", 8)(unroll("i")(product)))
    text = details(lower(kernel, counting(9, 9), counting(9, 9), counting(9, 9)))
    assert "contiguous: C in registers, B staged; broadcast: A" in text
    assert "C: 4x8 float32 kept in registers" in text


def test_names_of_files_and_names_that_the_user_chose_are_left_as_they_are():
    source = gemm()
    assert any(isinstance(stmt, For) for stmt in source.body)
    texts = ("at /k_x/A_1/i_2.py:3", "'C_acc' and 'k_1', A_b[i_2]", "C_accumulated, A_bc, B.k_1, my-k_1")
    (record,) = in_users_words([Record("Tiling", "Applied", texts[1], texts)], source)
    assert record.summary == "'C' and 'k', A[i]"
    assert record.details == (texts[0], "'C' and 'k', A[i]", texts[2])
