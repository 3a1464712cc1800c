"""Which loop goes into lanes, and how many of them: the one that is named, or those with the best accesses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyschedule.analysis import access as accesses
from pyschedule.analysis.induction import max_trip
from pyschedule.errors import Unsupported
from pyschedule.ir.nodes import Assign, For, Kernel, Load, Store, While
from pyschedule.ir.types import element_of
from pyschedule.ir.visitors import arrays, children, walk, walk_expr
from pyschedule.schedule import names as loop_names
from pyschedule.schedule.directives import Vectorize
from pyschedule.schedule.targets import Target
from pyschedule.transforms import bands, matrix_unit
from pyschedule.transforms.nest import Body, uncounted

#: Why these loops of a kernel may not run in lanes of a width, or `None`.
Refusal = Callable[[Kernel, Sequence[For], int], str | None]


@dataclass(frozen=True, slots=True)
class Choice:
    """What to vectorize: all loops of one label, how wide, and why (for the log)."""

    loops: tuple[For, ...]
    label: str
    width: int
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()


def automatic(directive: Vectorize) -> bool:
    """Whether nobody asked for anything in particular, so that finding nothing is no news."""
    return directive.loop is None and directive.width is None


def has_origin(body: Body) -> bool:
    return any(isinstance(stmt, (Assign, Store)) and stmt.origin is not None for stmt in walk(body))


def innermost_pieces(kernel: Kernel) -> dict[tuple[str, int], list[For]]:
    """The user's loops in source order, each as its innermost pieces (several where a nest was distributed)."""
    deepest: dict[tuple[str, int], int] = {}
    for stmt in walk(kernel.body):
        if isinstance(stmt, For) and stmt.source:
            key = (stmt.source, stmt.ordinal)
            deepest[key] = max(deepest.get(key, -1), -1 if stmt.piece is None else stmt.piece)
    found: dict[tuple[str, int], list[For]] = {key: [] for key in deepest}
    for stmt in walk(kernel.body):
        if isinstance(stmt, For) and stmt.source:
            key = (stmt.source, stmt.ordinal)
            if deepest[key] == (-1 if stmt.piece is None else stmt.piece):
                found[key].append(stmt)
    # What is left around a product of the matrix unit are tiles, however far inside they are.
    kept = {key: [loop for loop in group if not matrix_unit.makes(loop)] for key, group in found.items()}
    return {key: group for key, group in kept.items() if group}


def lanes_asked_for(
    kernel: Kernel, directives: Sequence[Vectorize], target: Target, *, innermost: bool
) -> dict[str, int]:
    """The loops that directives name for lanes (or that the block form means), by the user's name, with the
    width: what threads leave room for, and what staging lays out for."""
    pieces = innermost_pieces(kernel)
    wanted: dict[str, int] = {}
    for directive in directives:
        spec = None if directive.loop is None else loop_names.parse(directive.loop)
        groups = [group for key, group in pieces.items() if spec is not None and spec.names(*key)]
        if spec is None and innermost and pieces:
            groups = _from_innermost(list(pieces.values()), directive.width or 1)[:1]
        for group in groups:
            try:
                wanted[group[0].source], _ = _width(kernel, group, directive, target)
            except Unsupported:
                continue
    return wanted


def _from_innermost(groups: list[list[For]], width: int) -> list[list[For]]:
    """Loops from the innermost outwards; those that cannot fill the lanes come last."""
    inwards = list(reversed(groups))

    def short(group: list[For]) -> bool:
        trips = [max_trip(loop) for loop in group]
        return any(count is not None and count < width for count in trips)

    return sorted(inwards, key=short)


def choose(
    kernel: Kernel, directive: Vectorize, target: Target, innermost: bool, refusal: Refusal
) -> tuple[Choice, ...]:
    """What a directive means: the loops of its name, or those that it chooses, of which none is inside of another.

    `refusal` says why loops may not run in lanes of a width.  Raises `Unsupported` where nothing fits.
    """
    pieces = innermost_pieces(kernel)
    if directive.loop is not None:
        return (_named(kernel, directive, directive.loop, pieces, target),)
    groups = [group for group in pieces.values() if all(loop.mapping == "serial" for loop in group)]
    if not groups:
        raise Unsupported("no loop is left to run in lanes")
    ranked = (
        _from_innermost(groups, directive.width or 1)
        if innermost
        else sorted(groups, key=lambda group: _cost(kernel, group))
    )
    chosen: list[Choice] = []
    others: list[str] = []
    for place, group in enumerate(ranked):
        taken = [other for choice in chosen for other in choice.loops]
        if any(_nested(loop, other) for loop in group for other in taken):
            continue
        width, notes = _width(kernel, group, directive, target)
        reason = refusal(kernel, group, width)
        if reason is None and chosen and _cost(kernel, group)[0]:
            reason = f"lanes would not pay ({ways(kernel, group)})"
        if reason is not None:
            others.append(f"not {_described(group)}: {reason}")
            continue
        lanes = (tuple(group), group[0].source, width)
        if innermost:
            kinds = ways(kernel, group)
            return (Choice(*lanes, (f"chosen: the innermost loop ({kinds})", *notes, *others)),)
        worse = [
            f"rather than {_described(other)} ({_ranking(kernel, other)})"
            for other in ranked[place + 1 :]
            if any(_nested(loop, one) for loop in group for one in other)
        ]
        why = f"chosen: {_described(group)} ({_ranking(kernel, group)})"
        chosen.append(Choice(*lanes, (why, *worse, *notes)))
    if not chosen:
        raise Unsupported("; ".join(others))
    return (dataclasses.replace(chosen[0], reasons=(*chosen[0].reasons, *others)), *chosen[1:])


def _named(
    kernel: Kernel,
    directive: Vectorize,
    name: str,
    pieces: dict[tuple[str, int], list[For]],
    target: Target,
) -> Choice:
    spec = loop_names.parse(name)
    if spec is None:
        raise Unsupported(f"{name!r} is no name of a loop")
    if spec.piece is not None:
        chosen = [stmt for stmt in walk(kernel.body) if isinstance(stmt, For) and spec.matches(stmt)]
    else:
        chosen = [loop for key, group in pieces.items() if spec.names(*key) for loop in group]
    if not chosen:
        for stmt in walk(kernel.body):
            if isinstance(stmt, While) and spec.names(stmt.source, stmt.ordinal):
                raise Unsupported(uncounted(stmt), stmt.reason_loc or stmt.loc)
        whole = " (the loop was not tiled)" if spec.piece is not None else ""
        raise Unsupported(f"no counted loop '{name}' is there to vectorize{whole}")
    width, notes = _width(kernel, chosen, directive, target)
    return Choice(tuple(chosen), spec.source, width, (), notes)


def _nested(loop: For, other: For) -> bool:
    """Whether one of the loops is the other, or is in it."""
    return any(stmt is other for stmt in walk((loop,))) or any(stmt is loop for stmt in walk((other,)))


def _described(group: Sequence[For]) -> str:
    at = "" if group[0].loc is None else f" of line {group[0].loc.line}"
    return f"loop '{group[0].source}'{at}"


def _ranking(kernel: Kernel, group: Sequence[For]) -> str:
    """What `_cost` counts, in words."""
    parts = [ways(kernel, group) or "no arrays"]
    parts += ["a reduction"] if any(bands.is_reduction_loop(loop) for loop in group) else []
    return "; ".join(parts)


def _width(
    kernel: Kernel, loops: Sequence[For], directive: Vectorize, target: Target
) -> tuple[int, tuple[str, ...]]:
    """How many lanes, and a line for the log where that is not what was to be expected."""
    if directive.width is not None and directive.width & (directive.width - 1):
        raise Unsupported(
            f"width={directive.width} is no power of two; {1 << (directive.width.bit_length() - 1)} is"
        )
    widest = max((size for loop in loops for size in element_bytes(kernel, loop)), default=4)
    fitting = target.lanes(widest)
    if directive.width is None:
        trips = [max_trip(loop) for loop in loops]
        most = max((count for count in trips if count is not None), default=0)
        enough = max(2, 1 << (most - 1).bit_length()) if most else 2
        if None in trips or enough >= fitting:
            return fitting, ()
        iterations = f"{most} iteration{'s' * (most != 1)}"
        return enough, (f"{enough} lanes of {fitting}: loop '{loops[0].label}' has at most {iterations}",)
    if not target.copies:  # a GPU's widest access; lanes beyond it would only cost registers
        narrowest = target.lanes(min((b for loop in loops for b in _stored_bytes(kernel, loop)), default=4))
        return min(directive.width, narrowest), ()
    return directive.width, ()


def element_bytes(kernel: Kernel, loop: For) -> list[int]:
    """Bytes of what is computed with in a loop: a half counts as the float32 it becomes."""
    found = [
        element_of(part.type).bytes
        for stmt in walk(loop.body)
        for top in children(stmt)
        for part in walk_expr(top)
        if isinstance(part, Load)
    ]
    return found or _stored_bytes(kernel, loop)


def _stored_bytes(kernel: Kernel, loop: For) -> list[int]:
    declared = arrays(kernel)
    names = [site.array for site in accessed(loop.body) if site.array in declared]
    return [element_of(declared[name].dtype).bytes for name in names]


def accessed(body: Body) -> list[Load | Store]:
    found: list[Load | Store] = []
    for stmt in walk(body):
        found += [part for top in children(stmt) for part in walk_expr(top) if isinstance(part, Load)]
        if isinstance(stmt, Store):
            found.append(stmt)
    return found


def _kinds(kernel: Kernel, loop: For) -> dict[str, list[str]]:
    """The arrays of a loop's body by how lanes would reach them."""
    declared = arrays(kernel)
    kinds: dict[str, list[str]] = {"contiguous": [], "broadcast": [], "strided or gathered": []}
    for site in accessed(loop.body):
        if site.array not in declared:
            continue
        array = declared[site.array]
        if accesses.invariant(site, loop.var):
            kind = "broadcast"
        elif accesses.contiguous(site, array, loop.var):
            kind = "contiguous"
        else:
            kind = "strided or gathered"
        text = site.array + _WHERE.get(array.space, "")
        if text not in kinds[kind]:
            kinds[kind].append(text)
    return kinds


#: What is said of arrays that a transform made.
_WHERE = {"register": " in registers", "packed": " staged", "shared": " staged"}


def ways(kernel: Kernel, group: Sequence[For]) -> str:
    loop = next((item for item in group if has_origin(item.body)), group[0])
    return "; ".join(f"{kind}: {', '.join(names)}" for kind, names in _kinds(kernel, loop).items() if names)


def _cost(kernel: Kernel, group: Sequence[For]) -> tuple[int, int, int]:
    """Fewest gathers, then a parallel loop before a reduction, then most contiguous accesses."""
    gathers = contiguous = 0
    for loop in group:
        kinds = _kinds(kernel, loop)
        gathers += len(kinds["strided or gathered"])
        contiguous += len(kinds["contiguous"])
    reduces = any(bands.is_reduction_loop(loop) for loop in group)
    return gathers, int(reduces), -contiguous
