"""What directives call loops, pieces and arrays, held against the function they stand on.

`directives` checks what can be checked without the function; this module checks the rest, at decoration time:
that every name exists, that `order` lists every piece of its nest once, and that no two directives contradict
each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pyschedule.errors import ScheduleError
from pyschedule.ir.nodes import Location, Stmt
from pyschedule.ir.visitors import bodies, walk
from pyschedule.schedule.directives import (
    BlockForm,
    Directive,
    NoUnroll,
    Poll,
    Schedule,
    Tile,
    Unroll,
    Vectorize,
)
from pyschedule.schedule.names import LoopSpec, parse


class NamedLoop(Protocol):
    """A loop of the user's function (`frontend.parser.LoopName`): the n-th of its name."""

    @property
    def name(self) -> str: ...
    @property
    def ordinal(self) -> int: ...
    @property
    def loc(self) -> Location | None: ...


# ------------------------------------------------------------------------------------------------- checks


_Key = tuple[str, int]  # a loop: its name and ordinal
Sizes = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Function:
    """What the checks know of the function."""

    name: str
    loops: tuple[NamedLoop, ...]
    nests: tuple[tuple[_Key, ...], ...]
    arrays: tuple[str, ...]
    complete: bool

    def listed(self) -> str:
        if not self.loops:
            return f"{self.name!r} has no loop"
        counts: dict[str, int] = {}
        for loop in self.loops:
            counts[loop.name] = counts.get(loop.name, 0) + 1
        texts = []
        for loop in self.loops:
            text = loop.name if counts[loop.name] == 1 else f"{loop.name}#{loop.ordinal}"
            texts.append(f"{text!r} (line {loop.loc.line})" if loop.loc is not None else repr(text))
        return f"the loops of {self.name!r} are {', '.join(texts)}"


def check(
    schedule: Schedule,
    function: str,
    loops: Sequence[NamedLoop],
    nests: Iterable[Iterable[_Key]],
    arrays: Iterable[str],
    kind: str | None = None,
    block_sizes: Sizes = (),
) -> None:
    """Raises `ScheduleError`, with the decorator's place, what was given and what is allowed.

    `nests` groups the loops, as (name, ordinal), by the outermost loop that holds them; `arrays` are the names
    that `stage` may use.  As decorators are applied one by one, a loop without sizes may still get some: without
    a `kind` only what no further decorator can mend is an error.  With the `kind` of a target the schedule is
    held to be complete; `block_sizes` is then the tiling that the block form amounts to.
    """
    known = _Function(
        function, tuple(loops), tuple(tuple(nest) for nest in nests), tuple(arrays), complete=kind is not None
    )
    for one in ("cpu", "cuda") if kind is None else (kind,):
        _check_target(schedule.for_target(one), known, block_sizes)


def loop_nests(body: tuple[Stmt, ...]) -> Iterator[tuple[_Key, ...]]:
    """The loops of a body grouped by the outermost one, as `check` wants them; of the IR, or of the front end's
    tree, whose loops have a `source` and an `ordinal` too."""
    for stmt in body:
        if getattr(stmt, "source", ""):
            yield tuple(
                (inner.source, inner.ordinal)  # type: ignore[attr-defined]
                for inner in walk((stmt,))
                if getattr(inner, "source", "")
            )
        else:
            for inner_body in bodies(stmt):
                yield from loop_nests(inner_body)


def _check_target(schedule: Schedule, function: _Function, block_sizes: Sizes) -> None:
    sizes = _every_loop_is_tiled_once(schedule, function, block_sizes)
    _one_of_each_setting(schedule)
    for tile in schedule.of(Tile):
        _order_lists_every_piece_once(tile, function, sizes)
        for array, piece in tile.stage:
            if array not in function.arrays:
                allowed = ", ".join(map(repr, function.arrays)) or "none"
                raise ScheduleError(
                    f"tile: stage names the array {array!r}, which {function.name!r} does not have; "
                    f"its arrays are {allowed}",
                    tile.loc,
                )
            _pieces_of(piece, f"tile: stage of {array!r}", function, sizes, tile.loc)
        for name in tile.parallel:
            _pieces_of(name, "tile: parallel", function, sizes, tile.loc)
    _vectorize_names_each_loop_once(schedule, function, sizes)
    _unroll_names_each_loop_once(schedule, function, sizes)


def _resolve(text: str, what: str, function: _Function, loc: Location | None) -> tuple[LoopSpec, list[_Key]]:
    spec = parse(text)
    if spec is None:
        raise ScheduleError(
            f"{what}: {text!r} is not a loop name; write for example 'j', 'j#2' or 'j.1'; {function.listed()}",
            loc,
        )
    keys = [(loop.name, loop.ordinal) for loop in function.loops if spec.names(loop.name, loop.ordinal)]
    if not keys:
        count = sum(loop.name == spec.source for loop in function.loops)
        if count:
            raise ScheduleError(
                f"{what}: there is no loop {text!r}: {count} loop{'s' * (count > 1)} of {function.name!r} "
                f"{'are' if count > 1 else 'is'} named {spec.source!r}; {function.listed()}",
                loc,
            )
        raise ScheduleError(f"{what}: there is no loop {text!r}; {function.listed()}", loc)
    return spec, keys


def _every_loop_is_tiled_once(schedule: Schedule, function: _Function, block_sizes: Sizes) -> dict[_Key, int]:
    """The number of sizes of each tiled loop."""
    sizes: dict[_Key, int] = {}
    for name, counts in block_sizes:
        spec = parse(name)
        for loop in function.loops:
            if spec is not None and spec.names(loop.name, loop.ordinal):
                sizes[loop.name, loop.ordinal] = len(counts)
    from_blocks = set(sizes)
    for tile in schedule.of(Tile):
        for name, counts in tile.sizes:
            spec, keys = _resolve(name, "tile", function, tile.loc)
            if spec.piece is not None:
                raise ScheduleError(
                    f"tile: {name!r} is a piece; give the sizes of all its levels at once, "
                    f"as in {spec.source}=(outer, inner)",
                    tile.loc,
                )
            for key in keys:
                if key in from_blocks:
                    raise ScheduleError(
                        f"tile: the loop {name!r} is tiled by tile_shapes already; drop its size here",
                        tile.loc,
                    )
                if key in sizes:
                    raise ScheduleError(
                        f"tile: the loop {name!r} is tiled twice; give all its sizes at once, outermost first",
                        tile.loc,
                    )
                sizes[key] = len(counts)
    return sizes


def _one_of_each_setting(schedule: Schedule) -> None:
    """No two orders, parallel pieces, stages of one array, block forms, polls, automatic requests."""
    seen: set[str] = set()

    def once(what: str, directive: Directive) -> None:
        if what in seen:
            raise ScheduleError(f"{what} is given twice, by two decorators; keep one", directive.loc)
        seen.add(what)

    for directive in schedule.directives:
        match directive:
            case BlockForm():
                once("tile: tile_shapes", directive)
            case Tile():
                if directive.order:
                    once("tile: order", directive)
                if directive.parallel:
                    once("tile: parallel", directive)
                for array, _ in directive.stage:
                    once(f"tile: stage of {array!r}", directive)
            case Vectorize(loop=None):
                once("vectorize without a loop", directive)
            case Unroll(loop=None):
                once("unroll without a loop", directive)
            case Poll():
                once("poll", directive)


def _labels(key: _Key, function: _Function, sizes: dict[_Key, int]) -> list[int | None] | None:
    """The pieces of a loop (`[None]`: it is whole); `None` where a further decorator may tile it."""
    levels = sizes.get(key)
    if levels is not None:
        return list(range(levels + 1))
    return [None] if function.complete else None


def _pieces_of(
    text: str,
    what: str,
    function: _Function,
    sizes: dict[_Key, int],
    loc: Location | None,
    whole: bool = False,
) -> list[tuple[_Key, int | None]]:
    """The pieces that `text` names.  With `whole`, a tiled loop may also be called by its plain name, which
    then stands for its innermost piece."""
    spec, keys = _resolve(text, what, function, loc)
    result: list[tuple[_Key, int | None]] = []
    for key in keys:
        labels = _labels(key, function, sizes)
        if labels is None or spec.piece in labels:
            result.append((key, spec.piece))
        elif whole and spec.piece is None:
            result.append((key, labels[-1]))
    if not result:
        labels = _labels(keys[0], function, sizes) or []
        if labels == [None]:
            raise ScheduleError(
                f"{what}: {text!r} is a piece of a loop that is not tiled; call it {spec.source!r}", loc
            )
        pieces = ", ".join(repr(f"{spec.source}.{label}") for label in labels)
        raise ScheduleError(f"{what}: {text!r} is not a piece; the pieces of {spec.source!r} are {pieces}", loc)
    return result


def _order_lists_every_piece_once(tile: Tile, function: _Function, sizes: dict[_Key, int]) -> None:
    if not tile.order:
        return
    listed: dict[tuple[_Key, int | None], str] = {}
    for text in tile.order:
        for piece in _pieces_of(text, "tile: order", function, sizes, tile.loc):
            if piece in listed:
                raise ScheduleError(
                    f"tile: order={' '.join(tile.order)!r} lists {text!r} twice; every piece stands there once",
                    tile.loc,
                )
            listed[piece] = text
    _pieces_stand_from_the_outermost(tile, listed)
    named = {key for key, _ in listed}
    missing: list[str] = []
    for nest in function.nests:
        if named.isdisjoint(nest):
            continue
        for key in nest:
            labels = _labels(key, function, sizes)
            if labels is None:
                labels = [] if key in named else [None]
            for label in labels:
                text = key[0] if label is None else f"{key[0]}.{label}"
                if (key, label) not in listed and text not in missing:
                    missing.append(text)
    if missing:
        raise ScheduleError(
            f"tile: order={' '.join(tile.order)!r} must list every piece of the nest once; "
            f"missing: {', '.join(map(repr, missing))}",
            tile.loc,
        )


def _pieces_stand_from_the_outermost(tile: Tile, listed: dict[tuple[_Key, int | None], str]) -> None:
    """`i.1` counts within what `i.0` chose: it cannot run around it."""
    for key in dict.fromkeys(key for key, _ in listed):
        levels = {text: level or 0 for (loop, level), text in listed.items() if loop == key}
        outwards = sorted(levels, key=levels.__getitem__)
        wrong = next((pair for pair in zip(levels, outwards, strict=True) if pair[0] != pair[1]), None)
        if wrong is not None:
            places = iter(outwards)
            right = " ".join(next(places) if text in levels else text for text in tile.order)
            raise ScheduleError(
                f"tile: order={' '.join(tile.order)!r} puts {wrong[0]!r} around {wrong[1]!r}, of which it is a "
                f"part; the pieces of a loop stand in the order of their numbers, as in order={right!r}",
                tile.loc,
            )


def _vectorize_names_each_loop_once(schedule: Schedule, function: _Function, sizes: dict[_Key, int]) -> None:
    seen: set[_Key] = set()
    for directive in schedule.of(Vectorize):
        if directive.loop is None:
            continue
        for key, _ in _pieces_of(directive.loop, "vectorize", function, sizes, directive.loc, whole=True):
            if key in seen:
                raise ScheduleError(
                    f"vectorize: the loop {directive.loop!r} is vectorized by two decorators; keep one",
                    directive.loc,
                )
            seen.add(key)


def _unroll_names_each_loop_once(schedule: Schedule, function: _Function, sizes: dict[_Key, int]) -> None:
    unrolled: dict[tuple[_Key, int | None], str] = {}
    for directive in schedule.of(Unroll):
        if len(directive.factors) > len(function.loops):
            raise ScheduleError(
                f"unroll: factors={list(directive.factors)} names {len(directive.factors)} loops; "
                f"{function.listed()}",
                directive.loc,
            )
        if directive.loop is None:
            continue
        for piece in _pieces_of(directive.loop, "unroll", function, sizes, directive.loc, whole=True):
            if piece in unrolled:
                raise ScheduleError(
                    f"unroll: the loop {directive.loop!r} is unrolled by two decorators; keep one",
                    directive.loc,
                )
            unrolled[piece] = directive.loop
    rolled: set[tuple[_Key, int | None]] = set()
    for stay in schedule.of(NoUnroll):
        spec, _ = _resolve(stay.loop, "nounroll", function, stay.loc)
        for piece in _pieces_of(stay.loop, "nounroll", function, sizes, stay.loc, whole=True):
            if piece in rolled:
                raise ScheduleError(f"nounroll: the loop {stay.loop!r} is given twice; keep one", stay.loc)
            rolled.add(piece)
        for (key, label), text in unrolled.items():
            if spec.names(*key) and spec.piece in (None, label):
                raise ScheduleError(
                    f"nounroll: the loop {stay.loop!r} is to stay rolled, but unroll({text!r}) asks to unroll it; "
                    f"keep one",
                    stay.loc,
                )
