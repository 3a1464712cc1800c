"""The decorators: `tile`, `vectorize`, `unroll`, `nounroll`, `poll`.

Each takes a plain Python function, or a kernel that another decorator made, and returns a new
`ScheduledKernel`; the transforms run in their own order, whatever order the decorators stand in.  Each also takes
`target="cpu"` or `"cuda"` (the directive holds for that target only), `strict=True` (what cannot be proved safe
is a `LegalityError`, not a warning) and `strict_math=True` (no reassociation or contraction of floats).
"""

from __future__ import annotations

import difflib
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pyschedule.errors import ScheduleError
from pyschedule.ir.nodes import Location
from pyschedule.kernel import ScheduledKernel, schedule_function
from pyschedule.schedule.directives import (
    BlockForm,
    Directive,
    NoUnroll,
    Poll,
    Tile,
    Unroll,
    Vectorize,
    dtype_of,
    extents_of,
    integer,
    pad_of,
    pairs,
    positive,
    sizes_of,
    words,
)

Decorator = Callable[[Any], ScheduledKernel]
Sizes = int | Sequence[int]


def tile(
    loops: Mapping[str, Sizes] | None = None,
    /,
    *,
    order: str | Sequence[str] | None = None,
    stage: Mapping[str, str] | None = None,
    parallel: str | Sequence[str] | None = None,
    input_shapes: Sequence[Sequence[int | None]] | None = None,
    tile_shapes: Sequence[Sequence[int]] | None = None,
    pad: int | Sequence[Sequence[int]] | None = None,
    target: str | None = None,
    strict: bool = False,
    strict_math: bool = False,
    **sizes: Sizes,
) -> Decorator:
    """Splits each named loop, outermost size first: `tile(i=64, j=(256, 8))` makes of

        for i in range(M):
            for j in range(N):

    the nest (without the guards of sizes that do not divide)

        for i.0 in range(0, M, 64):
            for j.0 in range(0, N, 256):
                for j.1 in range(j.0, j.0 + 256, 8):
                    for i.1 in range(i.0, i.0 + 64):
                        for j.2 in range(j.1, j.1 + 8):

    A loop whose name cannot be a keyword here stands in a dict: `tile({"j#2": 8, "order": 4}, i=64)`.

    `order` lists all pieces, outermost first; `stage={"B": "j.0"}` copies the tile of `B` used inside `j.0` into
    fast memory; `parallel="i.0"` shares that loop's iterations among threads.  Of loops inside one another, as in
    `parallel="j.0 i.0"`, they share the first that has enough for all of them, else the last.

    With `input_shapes` and `tile_shapes` the function speaks of one tile of each input and is lifted to the
    whole arrays; `pad` adds that many zeros around windowed axes.

    Raises `ScheduleError` for sizes, names or shapes that make no sense.
    """
    loc = _place()
    sizes = _named_sizes(loops, sizes, loc)
    shapes = {"input_shapes": input_shapes, "tile_shapes": tile_shapes, "pad": pad}
    _meant(sizes, ("order", "stage", "parallel", "target", "strict", "strict_math", *shapes), loc)
    try:
        common = _common(target, strict, strict_math, loc)
        forms: list[Directive] = []
        if any(value is not None for value in shapes.values()):
            forms.append(_block_form(input_shapes, tile_shapes, pad, common, loc))
        stages_nothing = stage is None or (isinstance(stage, Mapping) and not stage)
        if sizes or order is not None or not stages_nothing or parallel is not None:
            forms.append(_tile(sizes, order, stage, parallel, common, loc))
    except ScheduleError as error:
        names = {"order": order, "stage": stage, "parallel": parallel, "target": target, "strict": strict}
        error.args = (str(error) + _sizes_of_a_loop({**names, "strict_math": strict_math, **shapes}),)
        raise
    if not forms:
        raise ScheduleError(
            "tile needs at least one loop with its sizes, as in tile(i=64), an order, a stage or a parallel loop",
            loc,
        )
    return _decorator(*forms)


def vectorize(
    loop: Any = None,
    width: int | None = None,
    dtype: Any = None,
    *,
    target: str | None = None,
    strict: bool = False,
    strict_math: bool = False,
    **loops: Any,
) -> Any:
    """Maps the innermost piece of a loop to SIMD lanes: after `vectorize("j", width=8)`

        for j in range(N):
            y[j] = 2 * x[j]

    handles eight elements a step, and the rest under a mask.  Without a loop or a width they are chosen from
    strides, alignment and dependences, and the log says why.  `dtype` (such as `"half"`) names the element type
    that the lanes hold.

    Raises `ScheduleError` for a width that is not a positive integer, or a loop that is not there.
    """
    loc = _place()
    _by_position(loops, "vectorize", loc)
    if callable(loop):  # written without parentheses
        return _decorator(Vectorize(loc=loc))(loop)
    return _decorator(
        Vectorize(
            loop=_loop_name(loop, "vectorize", loc),
            width=None if width is None else positive(width, "vectorize: width", loc),
            dtype=dtype_of(dtype, "vectorize: dtype", loc),
            **_common(target, strict, strict_math, loc),
        )
    )


def unroll(
    loop: Any = None,
    factor: int | None = None,
    *,
    factors: Sequence[int] | None = None,
    target: str | None = None,
    strict: bool = False,
    strict_math: bool = False,
    **loops: Any,
) -> Any:
    """Unrolls a loop: `unroll("i", 4)` makes of

        for i in range(n):
            y[i] = 2 * x[i]

    a loop over steps of four copies and a loop for the remainder; `unroll("i")` unrolls fully.  `factors` go to
    the innermost loops that are not reductions, in source order: a register tile.  Without a loop and factors
    the choice is automatic, from register pressure and body size.

    Raises `ScheduleError` for a factor that is not a positive integer, or a loop that is not there.
    """
    loc = _place()
    _by_position(loops, "unroll", loc)
    if callable(loop):  # written without parentheses
        return _decorator(Unroll(loc=loc))(loop)
    if factors is not None and (loop is not None or factor is not None):
        raise ScheduleError("unroll takes a loop with its factor, or factors, not both", loc)
    if factor is not None and loop is None:
        raise ScheduleError(f"unroll: factor {factor!r} needs a loop, as in unroll('i', {factor!r})", loc)
    if factors is not None and (isinstance(factors, str) or not isinstance(factors, Sequence) or not factors):
        raise ScheduleError(f"unroll: factors must be a list of positive integers, not {factors!r}", loc)
    return _decorator(
        Unroll(
            loop=_loop_name(loop, "unroll", loc),
            factor=None if factor is None else positive(factor, "unroll: factor", loc),
            factors=tuple(positive(item, "unroll: factors", loc) for item in factors or ()),
            **_common(target, strict, strict_math, loc),
        )
    )


def nounroll(loop: str, *, target: str | None = None, strict: bool = False, strict_math: bool = False) -> Decorator:
    """Leaves a loop rolled through every later stage, the back end's compiler included.

    One turn of the loop in machine code is one iteration (of the piece that is named, where the loop is tiled), or
    one vector where `vectorize` put it in lanes.  Copies that `unroll` makes of a loop around it have rolled loops
    each, or share one.  What only fills or copies memory may become a call that does so.

    Raises `ScheduleError` for a loop that is not there, or that another decorator unrolls.
    """
    loc = _place()
    name = _loop_name(loop, "nounroll", loc)
    if name is None:
        raise ScheduleError("nounroll needs the name of a loop, as in nounroll('k')", loc)
    return _decorator(NoUnroll(loop=name, **_common(target, strict, strict_math, loc)))


def poll(
    function: Any = None,
    *,
    every: int = 4096,
    target: str | None = None,
    strict: bool = False,
    strict_math: bool = False,
) -> Any:
    """Checks for cancellation once per `every` innermost iterations, outside the hot loop: it makes of

        for k in range(n):
            acc = acc * 0.999 + x[k]

    a loop over strips, which checks, and a loop over the iterations of a strip, which does not.  Calls can then be
    stopped by Ctrl-C, by `kernel.cancel()` from another thread, and by `kernel(..., timeout=seconds)`.

    Raises `ScheduleError` where `every` is not a positive integer.
    """
    loc = _place()
    if callable(function):  # written without parentheses
        return _decorator(Poll(loc=loc))(function)
    if function is not None:
        raise ScheduleError(f"poll takes no loop; write poll(every={function!r}) for the iterations", loc)
    return _decorator(Poll(every=positive(every, "poll: every", loc), **_common(target, strict, strict_math, loc)))


# ------------------------------------------------------------------------------------------------- helpers


def _decorator(*directives: Directive) -> Decorator:
    def decorate(function: Any) -> ScheduledKernel:
        return schedule_function(function, directives)

    return decorate


def _place() -> Location:
    """Where the caller's caller calls: the decorator's expression."""
    frame = sys._getframe(2)
    code = frame.f_code
    position = next(itertools.islice(code.co_positions(), frame.f_lasti // 2, None), (None,) * 4)
    line, end_line, column, end_column = position
    line = line or frame.f_lineno
    return Location(code.co_filename, line, column or 0, end_line or line, end_column or 0)


def _common(target: Any, strict: Any, strict_math: Any, loc: Location) -> dict[str, Any]:
    if target not in (None, "cpu", "cuda"):
        raise ScheduleError(f"target must be 'cpu', 'cuda' or None (both), not {target!r}", loc)
    for name, value in (("strict", strict), ("strict_math", strict_math)):
        if not isinstance(value, bool):
            raise ScheduleError(f"{name} must be True or False, not {value!r}", loc)
    return {"target": target, "strict": strict, "strict_math": strict_math, "loc": loc}


def _by_position(loops: dict[str, Any], what: str, loc: Location) -> None:
    """Only `tile` takes its loops as keywords."""
    for name, value in loops.items():
        raise ScheduleError(
            f"{what}: {name}={value!r} is no argument; a loop is named by a string, "
            f"as in {what}('{name}', {value!r})",
            loc,
        )


def _loop_name(loop: Any, what: str, loc: Location) -> str | None:
    if loop is not None and not isinstance(loop, str):
        raise ScheduleError(f"{what}: a loop is named by a string, as in {what}('i'), not {loop!r}", loc)
    return loop


def _named_sizes(loops: Any, sizes: dict[str, Any], loc: Location) -> dict[str, Any]:
    """The sizes of the loops in a dict and of those given as keywords."""
    if loops is None:
        return sizes
    if not isinstance(loops, Mapping) or not all(isinstance(name, str) for name in loops):
        raise ScheduleError(
            f"tile: the loops are given as keywords, as in tile(i=64), or in a dict, as in tile({{'i': 64}}), "
            f"not as {loops!r}",
            loc,
        )
    twice = [name for name in loops if name in sizes]
    if twice:
        raise ScheduleError(f"tile: the loop {twice[0]!r} has sizes in the dict and as a keyword; keep one", loc)
    return {**loops, **sizes}


def _meant(sizes: dict[str, Any], arguments: Iterable[str], loc: Location) -> None:
    """A keyword that is no size and nearly the name of an argument is a slip."""
    for name, value in sizes.items():
        near = difflib.get_close_matches(name, arguments, 1, 0.75)
        values = value if isinstance(value, (tuple, list)) else (value,)
        if near and not all(integer(item) is not None for item in values):
            text = f"tile: there is no argument {name!r}; {near[0]}={value!r} may be what was meant"
            raise ScheduleError(text, loc)


def _sizes_of_a_loop(settings: dict[str, Any]) -> str:
    """What to say of an argument that is refused and looks like the sizes of a loop of its name."""
    for name, value in settings.items():
        values = value if isinstance(value, (tuple, list)) else (value,)
        if values and all(integer(item) is not None for item in values):
            return f"; the sizes of a loop named {name!r} go into a dict, as in tile({{{name!r}: {value!r}}})"
    return ""


def _tile(
    sizes: dict[str, Any], order: Any, stage: Any, parallel: Any, common: dict[str, Any], loc: Location
) -> Tile:
    shared = words(parallel, "tile: parallel", loc)
    if parallel is not None and not shared:
        raise ScheduleError(f"tile: parallel={parallel!r} names no loop", loc)
    pieces = words(order, "tile: order", loc)
    if order is not None and not pieces:
        raise ScheduleError(f"tile: order={order!r} lists no loop", loc)
    return Tile(
        sizes=tuple((name, sizes_of(value, f"tile: the size of {name!r}", loc)) for name, value in sizes.items()),
        order=pieces,
        stage=pairs(stage, "tile: stage", loc),
        parallel=shared,
        **common,
    )


def _block_form(input_shapes: Any, tile_shapes: Any, pad: Any, common: dict[str, Any], loc: Location) -> BlockForm:
    for name, value in (("input_shapes", input_shapes), ("tile_shapes", tile_shapes)):
        if value is None:
            raise ScheduleError(f"tile: the block form needs {name} too", loc)
    inputs = extents_of(input_shapes, "tile: input_shapes", loc, free=True)
    tiles = extents_of(tile_shapes, "tile: tile_shapes", loc, free=False)
    if len(inputs) != len(tiles):
        raise ScheduleError(
            f"tile: input_shapes has {len(inputs)} shapes and tile_shapes {len(tiles)}; give one of each an input",
            loc,
        )
    for number, (whole, part) in enumerate(zip(inputs, tiles, strict=True), 1):
        if len(whole) != len(part):
            raise ScheduleError(
                f"tile: input {number} has shape {whole} but tile shape {part}; both need the same rank", loc
            )
    padding = 0 if pad is None else pad_of(pad, "tile: pad", loc)
    if not isinstance(padding, int):
        ranks, given = [len(shape) for shape in inputs], [len(row) for row in padding]
        if ranks != given:
            raise ScheduleError(
                f"tile: pad has {given} values for inputs of rank {ranks}; give one value an axis of each input",
                loc,
            )
    checked = tuple(tuple(extent or 1 for extent in shape) for shape in tiles)
    return BlockForm(input_shapes=inputs, tile_shapes=checked, pad=padding, **common)
