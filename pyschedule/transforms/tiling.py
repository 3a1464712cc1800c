"""The `tile` directives: which loops, in which order, and whether that is legal.

    for i in range(M):                       for i_0 in range(0, M, 32):
        for j in range(N):      tile(            for j_0 in range(0, N, 8):
            C[i, j] = A[j, i]   i=32, j=8)           for i_1 in range(i_0, min(i_0 + 32, M)):
                                                         for j_1 in range(j_0, min(j_0 + 8, N)):
                                                             C[i_1, j_1] = A[j_1, i_1]

`restructure` builds the nest; here the order is chosen or read, and `analysis.dependences` decides.  Without
an explicit order a nest that may not be interleaved is strip-mined in place, which is always legal.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pyschedule.analysis.conflicts import Conflict
from pyschedule.analysis.dependences import Dependences
from pyschedule.errors import Place, ScheduleError, Unsupported
from pyschedule.ir.nodes import For, Kernel, Load, Stmt, While
from pyschedule.ir.visitors import (
    variable_types,
    variables,
    walk,
    walk_expr,
    written_arrays,
    written_variables,
)
from pyschedule.schedule import names as loop_names
from pyschedule.schedule.directives import Tile
from pyschedule.schedule.log import Record, skipped
from pyschedule.schedule.targets import Target
from pyschedule.transforms import bands
from pyschedule.transforms.bands import Band
from pyschedule.transforms.expansion import check_scopes, expand, scalars_of, split_scalars
from pyschedule.transforms.nest import (
    Body,
    Names,
    first_access,
    live_after,
    replace_statement,
    uncounted,
    with_body,
)
from pyschedule.transforms.restructure import (
    Piece,
    Sizes,
    default_order,
    in_place_order,
    pieces_of,
    restructure,
    static_trips,
)


@dataclass(slots=True)
class _Outcome:
    """What became of the directives, gathered while the nests are rebuilt."""

    details: list[str] = field(default_factory=list)
    refusals: list[Record] = field(default_factory=list)
    tiled: set[str] = field(default_factory=set)


def tile(
    kernel: Kernel, directives: Sequence[Tile], target: Target, dependences: Dependences
) -> tuple[Kernel, tuple[Record, ...]]:
    """Applies the `tile` directives, joined into one; returns the new kernel, and records."""
    directive = joined(directives)
    sizes = _sizes(kernel, directive)
    order = [_spec(word, directive) for word in directive.order]
    if not directive.sizes and not order:
        return kernel, ()
    outcome = _Outcome()
    kernel = _tile_nests(kernel, directive, sizes, order, target, dependences, outcome)
    applied: tuple[Record, ...] = ()
    if outcome.tiled:
        details = tuple(dict.fromkeys(outcome.details))
        applied = (Record("Tiling", "Applied", describe(directive), details, directive.loc),)
    return kernel, (*applied, *outcome.refusals)


def joined(directives: Sequence[Tile]) -> Tile:
    """Several directives on different loops are one; the place is the first one's."""
    if len(directives) == 1:
        return directives[0]
    return dataclasses.replace(
        directives[0],
        sizes=tuple(pair for directive in directives for pair in directive.sizes),
        order=next((directive.order for directive in directives if directive.order), ()),
        stage=tuple(pair for directive in directives for pair in directive.stage),
        parallel=next((directive.parallel for directive in directives if directive.parallel), ()),
        automatic=any(directive.automatic for directive in directives),
        display=next((directive.display for directive in directives if directive.display), "")
        if sum(bool(directive.sizes) for directive in directives) == 1
        else "",
    )


def describe(directive: Tile) -> str:
    """The directive as the log writes it: `i=(192, 6), k=384`."""
    if directive.display:
        return directive.display
    sizes = ", ".join(
        f"{name}={sizes[0] if len(sizes) == 1 else '(' + ', '.join(map(str, sizes)) + ')'}"
        for name, sizes in directive.sizes
    )
    if sizes:
        return sizes
    return f"order={' '.join(directive.order)}" if directive.order else "no loops"


def _spec(word: str, directive: Tile) -> loop_names.LoopSpec:
    spec = loop_names.parse(word)
    if spec is None:
        raise ScheduleError(f"tile: {word!r} is no name of a loop", directive.loc)
    return spec


def _sizes(kernel: Kernel, directive: Tile) -> Sizes:
    """Counter → sizes; a size over a known trip count is the trip count."""
    sizes: Sizes = {}
    for name, given in directive.sizes:
        spec = _spec(name, directive)
        for loop in walk(kernel.body):
            if isinstance(loop, For) and spec.names(loop.source, loop.ordinal) and loop.source:
                trips = static_trips(loop)
                sizes[loop.var] = given if trips is None else tuple(min(size, max(trips, 1)) for size in given)
    return sizes


def _tile_nests(
    kernel: Kernel,
    directive: Tile,
    sizes: Sizes,
    order: list[loop_names.LoopSpec],
    target: Target,
    dependences: Dependences,
    outcome: _Outcome,
) -> Kernel:
    """Rebuilds, innermost bands first, every band that holds a loop of the directive."""
    for root, members in _roots(kernel.body, sizes, order, directive):
        band = bands.band_of(root, members)
        try:
            new = _best(kernel, band, directive, sizes, order, target, dependences, outcome)
        except Unsupported as refusal:
            outcome.refusals.append(_refused(directive, refusal.reason, refusal.place))
            continue
        kernel = new
        outcome.tiled.add(root.var)
    for stmt in walk(kernel.body):
        if isinstance(stmt, While) and any(
            _spec(name, directive).names(stmt.source, stmt.ordinal) for name, _ in directive.sizes
        ):
            outcome.refusals.append(_refused(directive, uncounted(stmt), stmt.reason_loc or stmt.loc))
    return kernel


def _refused(directive: Tile, reason: str, place: Place | None) -> Record:
    return skipped("Tiling", f"{describe(directive)}: {reason}", directive.loc, place)


def _roots(
    body: Body, sizes: Sizes, order: list[loop_names.LoopSpec], directive: Tile
) -> list[tuple[For, tuple[For, ...]]]:
    """The bands to rebuild: the outermost loop of each and its loops, inner bands before those around them."""

    def wanted(loop: For) -> bool:
        return loop.var in sizes or any(spec.names(loop.source, loop.ordinal) for spec in order)

    found: list[tuple[For, tuple[For, ...]]] = []
    for stmt in body:
        if isinstance(stmt, For) and stmt.source:
            nest = bands.tree(stmt)
            hit = [loop for loop in nest if wanted(loop)]
            if order and hit:
                root = stmt if stmt in hit or len(_direct(stmt, hit)) > 1 else None
                if root is not None:
                    _check_complete(nest, hit, directive)
                    found.append((root, nest))
                    continue
            elif any(loop.var in sizes for loop in bands.chain(stmt)):
                members = bands.chain(stmt)
                found.extend(_roots(members[-1].body, sizes, order, directive))
                found.append((stmt, members))
                continue
        for inner in (getattr(stmt, "body", ()), getattr(stmt, "orelse", ())):
            found.extend(_roots(inner, sizes, order, directive))
    return found


def _direct(root: For, hit: list[For]) -> list[Stmt]:
    return [stmt for stmt in root.body if isinstance(stmt, For) and any(loop in hit for loop in bands.tree(stmt))]


def _check_complete(nest: Iterable[For], hit: list[For], directive: Tile) -> None:
    missing = [loop.source for loop in nest if loop not in hit]
    if missing:
        raise ScheduleError(
            f"tile: order={' '.join(directive.order)!r} must list every piece of the nest once; "
            f"loop '{missing[0]}' is missing",
            directive.loc,
        )


def _explicit(band: Band, sizes: Sizes, order: list[loop_names.LoopSpec], directive: Tile) -> list[Piece]:
    """The order the user wrote, as pieces of this band."""
    everything = pieces_of(band, sizes)
    result: list[Piece] = []
    for spec in order:
        result += [
            piece
            for piece in everything
            if spec.names(piece.loop.source, piece.loop.ordinal)
            and (piece.level == spec.piece if piece.count else spec.piece is None)
        ]
    listed = {(piece.loop.var, piece.level) for piece in result}
    missing = [piece.label for piece in everything if (piece.loop.var, piece.level) not in listed]
    if missing or len(listed) != len(result):
        raise ScheduleError(
            f"tile: order={' '.join(directive.order)!r} must list every piece of the nest once: "
            f"{' '.join(dict.fromkeys(piece.label for piece in everything))}",
            directive.loc,
        )
    return result


def _best(
    kernel: Kernel,
    band: Band,
    directive: Tile,
    sizes: Sizes,
    order: list[loop_names.LoopSpec],
    target: Target,
    dependences: Dependences,
    outcome: _Outcome,
) -> Kernel:
    """The first order that is legal: the user's, or the default ones from the most to the least ambitious.

    Raises `Unsupported` with the reason where none is.
    """
    for loop in band.loops:
        exit_ = bands.early_exit(loop.body)
        if exit_ is not None:
            raise Unsupported(
                f"loop '{loop.source}' may be left early (at {getattr(exit_, 'loc', None)})", loop.loc
            )
    if order:
        pieces = _explicit(band, sizes, order, directive)
        new, conflict = _attempt(kernel, band, sizes, pieces, dependences, outcome)
        if new is None:
            raise Unsupported(conflict)
        outcome.details.append("order: " + " ".join(directive.order))
        return new
    hardware, registers = bool(target.thread_mapping), directive.automatic
    first = next(place for place, loop in enumerate(band.loops) if loop.var in sizes)
    attempts: list[tuple[Band, Callable[[Band, Sizes], list[Piece]]]] = [
        (band, lambda part, given: default_order(part, given, hardware, registers_only=registers))
    ]
    if first:
        inner = bands.band_of(band.loops[first], band.loops[first:])
        attempts.append((inner, lambda part, given: default_order(part, given, hardware, registers_only=registers)))
    reasons: list[str] = []
    for part, choose in attempts:
        pieces = choose(part, sizes)
        if [piece.loop.var for piece in pieces] == [piece.loop.var for piece in in_place_order(part, sizes)]:
            break
        new, reason = _attempt(kernel, part, sizes, pieces, dependences, outcome)
        if new is not None:
            outcome.details.append("order: " + " ".join(piece.label for piece in pieces))
            return new
        reasons.append(reason)
    pieces = in_place_order(band, sizes)
    body = restructure(band, sizes, pieces, Names(kernel))
    for reason in reasons[:1]:
        outcome.details.append(f"strip-mined in place, since interleaving is not legal: {reason}")
    outcome.details.append("order: " + " ".join(piece.label for piece in pieces))
    return with_body(kernel, replace_statement(kernel.body, band.root, body))


def _attempt(
    kernel: Kernel,
    band: Band,
    sizes: Sizes,
    pieces: list[Piece],
    dependences: Dependences,
    outcome: _Outcome,
) -> tuple[Kernel | None, str]:
    """The kernel with the band in that order, or `None` and why not."""
    try:
        _bounds_are_fixed(band)
        names = Names(kernel)
        body = restructure(band, sizes, pieces, names)
        check_scopes(body)
        scalars = split_scalars(band, body)
    except Unsupported as refusal:
        return None, str(refusal)
    for name in sorted(scalars):
        if live_after(kernel.body, band.root, name):
            return None, f"'{name}' is read after the loops, and this order would keep a value for each iteration"
    candidate = with_body(kernel, replace_statement(kernel.body, band.root, body))
    own = _kept_in_one_unit(kernel, band)

    def conflict(reorder: bool) -> Conflict | None:
        return dependences.conflict(candidate, reorder_reductions=reorder, expanded=tuple(scalars), own=own)

    found = conflict(not kernel.strict_math)
    if found is not None:
        return None, str(found)
    if not kernel.strict_math:
        moved = conflict(False)  # legal only by the permission to reassociate: that is said
        if moved is not None:
            outcome.details.append(f"reduction into '{moved.name}' reassociated: its steps run in another order")
    if scalars:
        body = expand(body, scalars, variable_types(kernel), names)
        candidate = with_body(kernel, replace_statement(kernel.body, band.root, body))
    return candidate, ""


def _kept_in_one_unit(kernel: Kernel, band: Band) -> list[str]:
    """The scalars that one unit sets before it reads them, and nothing else reads: order does not touch them."""
    found: list[str] = []
    for name in sorted(written_variables((band.root,))):
        touching = [unit.stmt for unit in band.units if name in scalars_of((unit.stmt,))]
        set_first = len(touching) == 1 and first_access((touching[0],), name) != "read"
        if set_first and not live_after(kernel.body, band.root, name):
            found.append(name)
    return found


def _bounds_are_fixed(band: Band) -> None:
    """Bounds of the band's loops must not change inside it: else the pieces could not be interleaved."""
    scalars = written_variables((band.root,))
    stored = written_arrays((band.root,))
    for loop in band.loops:
        for bound in (loop.start, loop.stop):
            moving = sorted(variables(bound) & scalars) or sorted(
                part.array for part in walk_expr(bound) if isinstance(part, Load) and part.array in stored
            )
            if moving:
                raise Unsupported(
                    f"the bound of loop '{loop.source}' reads '{moving[0]}', which the nest changes", loop.loc
                )
