"""A kernel with less and less of its schedule: what each transform is worth."""

from __future__ import annotations

from typing import Any, Final

from pyschedule.kernel import schedule_function
from pyschedule.schedule.directives import BlockForm, Directive, NoUnroll, Poll, Schedule, Tile, Unroll, Vectorize

#: The steps in the pipeline's order, each with the directives that it adds.
_STEPS: Final[tuple[tuple[str, tuple[type[Directive], ...]], ...]] = (
    ("+tiling", (Tile, BlockForm)),
    ("+vectorization", (Vectorize,)),
    ("+unroll", (Unroll, NoUnroll, Poll)),
)


def variants(kernel: Any, schedule: Schedule) -> dict[str, Any]:
    """`naive`, `+tiling`, `+tiling+vectorization`, `+tiling+vectorization+unroll`: name → kernel.

    Each has the directives of `schedule` (the kernel's, for one target) up to that step.  `naive` is the same
    nest with none of them, compiled by the same back end.  A step that adds nothing is left out; so is the
    `naive` of a block form, whose body means one tile and nothing without it.
    """
    result = {} if schedule.of(BlockForm) else {"naive": schedule_function(kernel.python, ())}
    name = ""
    allowed: tuple[type[Directive], ...] = ()
    for step, kinds in _STEPS:
        if any(isinstance(item, kinds) for item in schedule.directives):
            name, allowed = name + step, allowed + kinds
            chosen = tuple(item for item in schedule.directives if isinstance(item, allowed))
            result[name] = schedule_function(kernel.python, chosen)
    return result
