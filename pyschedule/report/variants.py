"""A kernel with less and less of its schedule: what each transform is worth."""

from __future__ import annotations

from typing import Any, Final

from pyschedule.schedule.directives import Directive, NoUnroll, Poll, Schedule, Tile, Unroll, Vectorize

#: The steps in the pipeline's order, each with the directives that it adds.
_STEPS: Final[tuple[tuple[str, tuple[type[Directive], ...]], ...]] = (
    ("+tiling", (Tile,)),
    ("+vectorization", (Vectorize,)),
    ("+unroll", (Unroll, NoUnroll, Poll)),
)


def variants(kernel: Any, target_kind: str = "cpu") -> dict[str, Any]:
    """`naive`, `+tiling`, `+tiling+vectorization`, `+tiling+vectorization+unroll`: name → kernel.

    Each has the kernel's own directives up to that step.  `naive` is the same nest with none of them,
    compiled by the same back end.  A step that adds nothing to this kernel is left out.
    """
    directives = kernel.schedule.for_target(target_kind).directives
    removable = tuple(kind for _, kinds in _STEPS for kind in kinds)
    kept = [item for item in directives if not isinstance(item, removable)]
    result = {"naive": kernel.with_schedule(Schedule(tuple(kept)))}
    name = ""
    allowed: tuple[type[Directive], ...] = ()
    for step, kinds in _STEPS:
        if not any(isinstance(item, kinds) for item in directives):
            continue
        name, allowed = name + step, allowed + kinds
        chosen = tuple(item for item in directives if item in kept or isinstance(item, allowed))
        result[name] = kernel.with_schedule(Schedule(chosen))
    return result
