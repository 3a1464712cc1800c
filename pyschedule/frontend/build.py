"""`Parsed` and a call signature → the typed loop-nest IR."""

from __future__ import annotations

from dataclasses import dataclass

from pyschedule.frontend.arguments import bind
from pyschedule.frontend.blockform import Block, axes_of, lift
from pyschedule.frontend.control import Fresh, without_continue
from pyschedule.frontend.counting import count, has_counted
from pyschedule.frontend.emission import Emitter
from pyschedule.frontend.finishing import finish
from pyschedule.frontend.kinds import Kinds
from pyschedule.frontend.parser import Parsed
from pyschedule.frontend.propagation import propagate
from pyschedule.frontend.results import Check, Notice
from pyschedule.ir.nodes import Kernel, Var
from pyschedule.ir.signature import Signature
from pyschedule.ir.types import INT64
from pyschedule.ir.visitors import Body

__all__ = ["Block", "Built", "Check", "Notice", "build"]


@dataclass(frozen=True, slots=True)
class Built:
    """A kernel for one signature.

    `tile_sizes`: in the block form, the tile size of each loop that was lifted over a tiled dimension.
    `notices` are remarks for the log.  `checks` are tests over extents and scalar parameters that the
    runtime makes before a call: a false one is a `ValueError` with its message.  `body` is the front end's tree,
    lifted in the block form.
    """

    kernel: Kernel
    tile_sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    notices: tuple[Notice, ...] = ()
    checks: tuple[Check, ...] = ()
    body: Body = ()


def build(parsed: Parsed, signature: Signature, block: Block | None = None, strict_math: bool = False) -> Built:
    """The kernel of a parsed function for one signature, its body raw: indices may be negative, as in Python.

    Raises `TypeError` and `ValueError` naming the argument where the signature does not suit the function,
    `FrontendError` where the types do not work out, `ScheduleError` where the block form does not fit.
    """
    if block is not None:
        axes_of(parsed, block)
    params = bind(parsed, signature, block)
    integers = frozenset(param.name for param in params if isinstance(param, Var) and param.vtype == INT64)
    fresh = _fresh_names(parsed.names)
    body = propagate(parsed.body, integers)
    body = without_continue(count(body, parsed.text, Kinds(body, params), fresh), fresh)
    if has_counted(body):
        body = propagate(body, integers)  # now what is computed from their counters too
    checks: tuple[Check, ...] = ()
    notices: tuple[Notice, ...] = ()
    tile_sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    dtypes: dict[str, str] = {}
    if block is not None:
        lifted = lift(parsed, body, block, signature)
        body, dtypes = lifted.body, dict(lifted.dtypes)
        checks, notices, tile_sizes = lifted.checks, lifted.notices, lifted.tile_sizes
    emitted = Emitter(parsed, body, params, signature, dtypes).run()
    kernel = Kernel(
        name=parsed.name,
        params=(*params, *emitted.outputs),
        body=finish(emitted.body),
        outputs=tuple(array.name for array in emitted.outputs),
        returns=emitted.returns,
        scalar_results=emitted.scalar_results,
        strict_math=strict_math,
        loc=parsed.loc,
        source=parsed.source,
    )
    return Built(kernel, tile_sizes, notices, (*checks, *emitted.checks), body)


def _fresh_names(taken: frozenset[str]) -> Fresh:
    """Gives names that the function does not have, each once."""
    used = set(taken)

    def fresh(base: str) -> str:
        name, number = base, 1
        while name in used:
            number += 1
            name = f"{base}_{number}"
        used.add(name)
        return name

    return fresh
