"""The pipeline: an order of its own, pure, deterministic, with a place for everything it refuses."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pyschedule import nounroll, poll, spec, tile, unroll, vectorize
from pyschedule.ir.nodes import Location
from pyschedule.ir.printer import format_kernel
from pyschedule.schedule.directives import Schedule, Tile, Unroll, Vectorize
from pyschedule.transforms import pipeline
from tests.transforms import kernels
from tests.transforms.schedules import GPU, TARGETS, WIDE
from tests.transforms.stages import applied, buffers, counting, lower, skips

MATRIX = spec("float32[9, 9]")
DECORATORS = {
    "tile": tile(i=(8, 4), j=8, k=4, stage={"B": "k.0"}),
    "vectorize": vectorize("j", width=4),
    "unroll": unroll("i", 2),
    "unroll k": unroll("k", 2),
    "nounroll": nounroll("j"),
}


def decorated(names, function=kernels.gemm):
    for name in names:
        function = DECORATORS[name](function)
    return function


@pytest.mark.parametrize("target", [WIDE, GPU])
def test_decorators_commute(target):
    first = lower(decorated(DECORATORS), MATRIX, MATRIX, MATRIX, target=target)
    for names in list(itertools.permutations(DECORATORS))[::7]:
        other = lower(decorated(names), MATRIX, MATRIX, MATRIX, target=target)
        assert other.stages == first.stages, names
        assert {str(record).partition(" [")[0] for record in other.log} == {
            str(record).partition(" [")[0] for record in first.log
        }


def test_stages_stand_in_the_order_of_the_transforms():
    lowering = lower(decorated(("unroll", "vectorize", "tile")), MATRIX, MATRIX, MATRIX)
    assert tuple(lowering.stages) == pipeline.STAGES == ("source", "tiling", "vectorization", "unroll")
    assert [line.partition(":")[0] for line in applied(lowering)] == ["Tiling", "Vectorization", "Unroll"]


@pytest.mark.parametrize("name", kernels.CASES)
def test_without_directives_a_kernel_is_left_alone(name):
    kernel = kernels.CASES[name].kernel()
    lowered = pipeline.lower(kernel, Schedule(), WIDE, check_stages=True)
    assert lowered.stages["source"] is kernel
    assert lowered.stages["tiling"] is kernel or format_kernel(lowered.stages["tiling"]) != format_kernel(kernel)
    assert not lowered.records


def test_the_input_is_not_changed():
    kernel = kernels.CASES["gemm"].kernel()
    before, text = hash(kernel), format_kernel(kernel)
    schedule = Schedule((Tile(sizes=(("i", (4,)), ("j", (4,)))), Vectorize(loop="j", width=4), Unroll(loop="i")))
    lowered = pipeline.lower(kernel, schedule, WIDE)
    assert lowered.stages["source"] is kernel
    assert (hash(kernel), format_kernel(kernel)) == (before, text)


@pytest.mark.parametrize("target", TARGETS)
def test_lowering_is_deterministic(target):
    kernel = kernels.CASES["gemm_scalar"].kernel()
    schedule = Schedule(
        (Tile(sizes=(("i", (8, 3)), ("j", (4,)), ("k", (5,))), stage=(("A", "k.0"),)), Vectorize(), Unroll())
    )
    one, two = (pipeline.lower(kernel, schedule, target) for _ in range(2))
    assert one.stages == two.stages
    assert [str(record) for record in one.records] == [str(record) for record in two.records]
    assert [format_kernel(stage) for stage in one.stages.values()] == [
        format_kernel(stage) for stage in two.stages.values()
    ]


def test_every_skipped_request_has_the_place_of_its_decorator():
    kernel = tile(i=4, order="i.0 t i.1")(
        vectorize("i", width=4)(
            unroll("t", 2)(poll(every=8)(kernels.gauss_seidel)),
        )
    )
    lowering = lower(kernel, spec("float32[9]"))
    assert len(skips(lowering)) >= 2
    for record in lowering.log:
        assert isinstance(record.loc, Location)
        assert record.loc.file == __file__
        if record.status == "Skipped" and record.transform in ("Tiling", "Vectorization"):
            assert "kernels.py:" in str(record)


def test_directives_of_another_target_do_not_count():
    kernel = tile(i=4, target="cuda")(vectorize("j", width=4, target="cpu")(kernels.transposed))
    cpu = lower(kernel, MATRIX, MATRIX, target=WIDE)
    assert applied(cpu) == ["Vectorization: width=4 on loop 'j'"]
    assert applied(lower(kernel, MATRIX, MATRIX, target=GPU)) == ["Tiling: i=4"]


def test_a_request_that_failed_does_not_keep_others_from_being_carried_out():
    kernel = tile(i=4, j=3, order="j.0 i.0 j.1 i.1")(vectorize("j", width=2)(unroll("i", 2)(kernels.antidiagonal)))
    lowering = lower(kernel, spec("float32[9, 9]"))
    assert [line.partition(":")[0] for line in skips(lowering)][:1] == ["Tiling"]
    assert any(line.startswith("Unroll") for line in applied(lowering))


def test_every_stage_is_checked_where_that_is_asked_for(monkeypatch):
    checked = []
    monkeypatch.setattr(pipeline, "check", lambda kernel: checked.append(kernel))
    kernel = kernels.CASES["gemm"].kernel()
    schedule = Schedule((Tile(sizes=(("i", (4,)),)),))
    pipeline.lower(kernel, schedule, WIDE)
    assert not checked
    lowered = pipeline.lower(kernel, schedule, WIDE, check_stages=True)
    assert all(any(stage is seen for seen in checked) for stage in lowered.stages.values())


def test_notes_of_later_passes_stand_under_the_tiling():
    lowering = lower(tile(i=4, j=4, k=4, stage={"A": "k.0"})(kernels.gemm), MATRIX, MATRIX, MATRIX)
    (record,) = list(lowering.log)
    for line in (
        "order: ",
        "loop 'i.0' runs on the cores",
        "C: 4x4 float32 kept in registers",
        "staged A at 'k.0'",
    ):
        assert any(detail.startswith(line) for detail in record.details), line


def test_a_note_without_tiling_is_silent():
    lowering = lower(vectorize("k", width=4)(kernels.gemm), MATRIX, MATRIX, MATRIX)
    note = next(record for record in lowering.log if record.status == "Note")
    assert note.silent and note.transform == "Mapping"


def test_the_register_tile_of_the_block_form_is_an_inner_size():
    """`unroll(factors=...)` of a tiling that the block form asks for."""
    kernel = kernels.CASES["gemm"].kernel()
    tiles = Tile(sizes=(("i", (8,)), ("j", (8,)), ("k", (8,))), automatic=True)
    lowered = pipeline.lower(kernel, Schedule((tiles, Unroll(factors=(4, 2)))), WIDE, check_stages=True)
    assert buffers(lowered.stages["tiling"], "register") == {"C_acc": "4 x 2 float32"}


def test_counting():
    assert counting(3).tolist() == [-2.25, -0.5, 1.25]


def total_down(x, o):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            o[0] -= x[i, j]


@pytest.mark.parametrize(
    "decorate", [tile(i=4, j=8), tile(order="j i"), unroll("i", 2)], ids=["tile", "order", "jam"]
)
def test_a_sum_whose_steps_change_places_is_logged(decorate):
    arguments = (np.ones((5, 9), np.float32), np.zeros(1, np.float32))
    assert "reassociated" in str(decorate(total_down).lower(*arguments).log)
    integers = tuple(array.astype(np.int64) for array in arguments)
    assert "reassociated" not in str(decorate(total_down).lower(*integers).log)  # exact in any order


def test_a_sum_whose_steps_keep_their_order_says_nothing():
    arguments = (np.ones((5, 9), np.float32), np.zeros(1, np.float32))
    assert "reassociated" not in str(tile(i=4, j=4, order="i.0 i.1 j.0 j.1")(total_down).lower(*arguments).log)
