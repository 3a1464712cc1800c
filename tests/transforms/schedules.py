"""Random schedules for a function, of every kind of directive, such as its decorators would accept."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

from pyschedule.schedule.directives import Directive, NoUnroll, Schedule, Tile, Unroll, Vectorize
from pyschedule.schedule.targets import Target, cuda, host
from tests.transforms.kernels import Case

#: Two CPUs by their tables, whatever this machine has, and a GPU.
WIDE = dataclasses.replace(
    host(), arch="wide", vector_bytes=64, vector_registers=32, register_bytes=2048, stream_bytes=48 << 20, cores=4
)
NARROW = dataclasses.replace(WIDE, arch="narrow", vector_bytes=16, vector_registers=16, register_bytes=256)
GPU = cuda("sm_80")
TARGETS: tuple[Target, ...] = (WIDE, NARROW, GPU)

_Sizes = tuple[tuple[str, tuple[int, ...]], ...]


def random_schedule(rng: random.Random, case: Case) -> Schedule:
    """A schedule that the decorators would take; may be empty, and often asks for what is not legal."""
    loops = list(dict.fromkeys(loop.name for loop in case.parsed.loops))
    arrays = list(case.parsed.arrays)
    while True:
        schedule = Schedule(tuple(_directives(rng, loops, arrays)))
        if case.accepts(schedule):
            return schedule


def _directives(rng: random.Random, loops: list[str], arrays: list[str]) -> Iterator[Directive]:
    sizes: _Sizes = ()
    if rng.random() < 0.8:
        sizes = tuple((loop, _sizes(rng)) for loop in loops if rng.random() < 0.7)
    if sizes:
        yield from _tiles(rng, loops, arrays, sizes)
    elif rng.random() < 0.3:
        yield Tile(order=tuple(rng.sample(loops, len(loops))))
    pieces = loops + [f"{loop}.{rng.randint(0, len(given))}" for loop, given in sizes]
    if rng.random() < 0.7:
        yield Vectorize(loop=rng.choice([None, *pieces]), width=rng.choice([None, 2, 4, 8]))
    if rng.random() < 0.15:
        yield Vectorize(loop=rng.choice(loops), width=rng.choice([None, 2, 4, 8]))
    kind = rng.random()
    if kind < 0.5:
        yield Unroll(loop=rng.choice(pieces), factor=rng.choice([None, 2, 3, 4]))
    elif kind < 0.6:
        yield Unroll(factors=tuple(rng.choice([2, 3, 4]) for _ in range(rng.randint(1, min(2, len(loops))))))
    elif kind < 0.7:
        yield Unroll()
    if rng.random() < 0.2 and not 0.5 <= kind < 0.6:  # `factors` and a name may not mean the same loop
        yield Unroll(loop=rng.choice(loops), factor=rng.choice([2, 3, 4]))
    if rng.random() < 0.1:
        yield NoUnroll(loop=rng.choice(loops))


def _sizes(rng: random.Random) -> tuple[int, ...]:
    outer = rng.choice([1, 2, 3, 4, 5, 8, 16, 48])
    if rng.random() < 0.5:
        return (outer,)
    inner = rng.randint(1, outer)
    return (outer, inner) if rng.random() < 0.8 else (outer, inner, rng.randint(1, inner))


def _tiles(rng: random.Random, loops: list[str], arrays: list[str], sizes: _Sizes) -> Iterator[Tile]:
    stage: tuple[tuple[str, str], ...] = ()
    if rng.random() < 0.5:
        chosen = rng.sample(arrays, rng.randint(1, min(2, len(arrays))))
        stage = tuple((array, f"{rng.choice(sizes)[0]}.{rng.choice([0, 0, 1])}") for array in chosen)
    order = _order(rng, loops, dict(sizes)) if rng.random() < 0.35 else ()
    pieces = (f"{rng.choice(sizes)[0]}.{rng.choice([0, 0, 1])}" for _ in range(rng.choice([1, 1, 2])))
    parallel = tuple(dict.fromkeys(pieces)) if rng.random() < 0.2 else ()
    automatic = not order and rng.random() < 0.1  # as the block form asks
    if len(sizes) > 1 and rng.random() < 0.2:  # two decorators are one
        yield Tile(sizes=sizes[:1])
        sizes = sizes[1:]
    yield Tile(sizes=sizes, order=order, stage=stage, parallel=parallel, automatic=automatic)


def _order(rng: random.Random, loops: list[str], sizes: dict[str, tuple[int, ...]]) -> tuple[str, ...]:
    """All pieces, the levels of each loop from the outside in, else in any order."""
    left = [
        [f"{loop}.{level}" for level in range(len(sizes[loop]) + 1)] if loop in sizes else [loop] for loop in loops
    ]
    order: list[str] = []
    while left:
        pieces = rng.choice(left)
        order.append(pieces.pop(0))
        left = [rest for rest in left if rest]
    return tuple(order)


def describe(schedule: Schedule) -> str:
    """The schedule as the decorators that would make it, for the message of a test that fails."""
    lines: list[str] = []
    for item in schedule.directives:
        shown = {
            field.name: value
            for field in dataclasses.fields(item)
            if (value := getattr(item, field.name)) not in (None, (), "", False)
        }
        given = dict(shown.pop("sizes", ()))
        if "order" in shown:
            shown["order"] = " ".join(shown["order"])
        if "stage" in shown:
            shown["stage"] = dict(shown["stage"])
        text = ", ".join(f"{name}={value!r}" for name, value in (given | shown).items())
        lines.append(f"@{type(item).__name__.lower()}({text})")
    return "\n".join(lines) or "(no directives)"
