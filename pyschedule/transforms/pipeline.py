"""The one place that knows the order of the transforms."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from pyschedule.analysis.dependences import Dependences
from pyschedule.ir.checker import check
from pyschedule.ir.nodes import Kernel
from pyschedule.ir.types import element_of
from pyschedule.schedule.directives import NoUnroll, Poll, Schedule, Tile, Unroll, Vectorize
from pyschedule.schedule.limits import UnrollLimits
from pyschedule.schedule.log import Record
from pyschedule.schedule.targets import Target
from pyschedule.transforms import (
    edge_tiles,
    guarded_reads,
    lane_choice,
    mapping,
    matrix_unit,
    polling,
    prefetching,
    promotion,
    register_limits,
    registers,
    staging,
    statement_order,
    streaming,
    tiling,
    transposition,
    unroll_limits,
    unroll_requests,
    unrolling,
    vectorization,
    versioning,
    widening,
)
from pyschedule.transforms.jamming import Proof
from pyschedule.transforms.simplify import simplify
from pyschedule.transforms.speculation import speculate
from pyschedule.transforms.users_names import in_users_words

STAGES = ("source", "tiling", "vectorization", "unroll")


@dataclass(frozen=True, slots=True)
class Lowered:
    """`stages`: the kernel after each of `STAGES`; `records`: what was done, skipped and why; `crowded`: arrays of
    which a tile was meant for registers, perhaps, and is larger than all of them."""

    stages: dict[str, Kernel]
    records: tuple[Record, ...]
    crowded: tuple[str, ...] = ()

    @property
    def kernel(self) -> Kernel:
        return self.stages["unroll"]


def lower(
    kernel: Kernel,
    schedule: Schedule,
    target: Target,
    *,
    limits: UnrollLimits = UnrollLimits(),  # noqa: B008 - immutable
    check_stages: bool = False,
) -> Lowered:
    """Tiling, then vectorization, then unrolling, whatever order the decorators stand in.

    `limits`: how much an unroll may write out.  `check_stages` runs the structural checker after every pass (tests
    do; a fault is an `InternalError`).
    """
    schedule = schedule.for_target(target.kind)
    lowered = _transformed(kernel, schedule, target, limits, check_stages)

    def again(other: Schedule, machine: Target) -> dict[str, Kernel]:
        return _transformed(kernel, other, machine, limits, check_stages).stages

    # What registers hold is known only of what has become of everything.
    examined = register_limits.examine(lowered.records, lowered.stages, lowered.crowded, schedule, target, again)
    return dataclasses.replace(lowered, records=in_users_words(examined, lowered.stages["source"]))


def _transformed(
    kernel: Kernel, schedule: Schedule, target: Target, limits: UnrollLimits, check_stages: bool
) -> Lowered:
    lowered = _lower(kernel, schedule, target, limits, check_stages)
    # Half arrays must be rounded once; whether registers see to that is known only after tiling.
    repeatedly = widening.rounded_repeatedly(kernel, lowered.stages["tiling"])
    if not repeatedly:
        return lowered
    wide = _lower(widening.widen(kernel, repeatedly), schedule, target, limits, check_stages)
    note = f"accumulated in float32 outside registers: {', '.join(repeatedly)}"
    records = _with_notes(list(wide.records), (note,))
    return Lowered({**wide.stages, "source": kernel}, tuple(records), wide.crowded)


def _lower(kernel: Kernel, schedule: Schedule, target: Target, limits: UnrollLimits, check_stages: bool) -> Lowered:
    verify: Callable[[Kernel], None] = check if check_stages else lambda _: None
    tiles, vectors = schedule.of(Tile), schedule.of(Vectorize)
    unrolls, rolled = schedule.of(Unroll), schedule.of(NoUnroll)
    if any(tile.automatic for tile in tiles):
        lanes = lane_choice.lanes_asked_for(kernel, vectors, target, innermost=True)
        tiles = _register_tiles(kernel, tiles, unrolls, lanes)
    source = kernel
    verify(source)
    dependences = Dependences(source)
    records: list[Record] = []

    # Loops are split and interleaved first: everything below works on pieces.
    if tiles:
        kernel, new = tiling.tile(kernel, tiles, target, dependences)
        records += new
    # Hardware comes before registers: an accumulator may not outlive the thread that owns it.
    block_form = any(tile.automatic for tile in tiles)
    lanes = lane_choice.lanes_asked_for(kernel, vectors, target, innermost=block_form)
    kernel, refused, notes = mapping.map_loops(kernel, tiles, target, dependences, lanes)
    # The matrix unit before promotion and staging: it has registers of its own for sums, and an order for operands.
    kernel, tiles, new = matrix_unit.use_matrix_unit(kernel, tiles, target)
    records += new
    # Promotion before staging: it gives tiles their constant size, which the buffers are padded to.
    # Without directives only halves are promoted: they are rounded once whatever is asked for.
    asked = bool(tiles or vectors or unrolls or target.thread_mapping)
    halves = frozenset(array.name for array in source.array_params if element_of(array.dtype).is_half)
    kernel, kept, crowded = promotion.promote(kernel, target, None if asked else halves)
    notes += kept
    if tiles:
        kernel, skipped, staged = staging.stage(kernel, tiles, target, frozenset(lanes))
        refused += skipped
        notes += staged
    # Loops of one trip stay until the end: directives still have to find them.
    kernel = simplify(kernel, inline=False)
    verify(kernel)
    tiled = kernel
    records = [*_with_notes(records, notes), *refused]

    # Lanes need the loops in their final order, and constant tiles for register vectors.
    kernel, new, widths = vectorization.vectorize(kernel, vectors, target, dependences, innermost=block_form)
    records += new
    kernel = registers.pack_lanes(simplify(kernel, inline=False))
    # Guards of register tiles go once masks have been made of those that lanes needed.
    kernel = simplify(speculate(kernel), inline=False)
    verify(kernel)
    vectorized = kernel

    proof = Proof(tiled, dependences, widths)
    kernel, new = unrolling.unroll(kernel, unrolls, rolled, target, proof, limits)
    records += new
    kernel = simplify(kernel)
    if unrolls and target.copies:
        # While the vectors of a register tile are still counted by loops.
        kernel, tails = edge_tiles.split_tails(kernel)
        records = _with_tails(records, tails)
        kernel = simplify(unrolling.unroll_registers(kernel, target))
        # Copies of a body repeat its tests; one for all of them is made before their order is chosen.
        kernel, labels = versioning.version(kernel)
        if labels:
            kernel = simplify(kernel)
            what = ", ".join(f"'{label}'" for label in labels)
            note = f"versioned: where all tests of indices in loop {what} hold, a copy of its body has none"
            records = _with_notes(records, (note,))
        kernel = guarded_reads.mask_reads(kernel)
        # The copies of a register tile stand one after another now, in the order in which loops were unrolled.
        file = registers.register_file(target, strict_math=kernel.strict_math)
        kernel = statement_order.order_statements(kernel, file)
    # Last: the loops that are hot now are those that must stay as they are.
    kernel, polls = polling.poll(kernel, schedule.of(Poll), target)
    records += [*polls, *unroll_limits.slow_to_compile(kernel, records)]
    if vectors:
        kernel, new = prefetching.prefetch_rows(kernel, target)
        records += new
        kernel, new = streaming.stream(kernel, target)
        records += new
    if vectors and unrolls:
        # Copies are written out, and in their final order; what is streamed has its lanes side by side.
        kernel, new = transposition.transpose_stores(kernel, target)
        records += new
    verify(kernel)
    stages = {"source": source, "tiling": tiled, "vectorization": vectorized, "unroll": kernel}
    return Lowered(stages, tuple(dict.fromkeys(records)), crowded)  # what holds for several pieces is said once


def _with_tails(records: list[Record], loops: tuple[str, ...]) -> list[Record]:
    """What became of the tails of register tiles, with the vectorization of their loops."""
    note = "edge tiles: what is left of a register tile runs one vector at a time, whole tiles without masks"
    vectorized = [f"on loop '{loop}'" for loop in loops]
    return [
        dataclasses.replace(record, details=(*record.details, note))
        if (record.transform, record.status) == ("Vectorization", "Applied")
        and any(words in record.summary for words in vectorized)
        else record
        for record in records
    ]


def _with_notes(records: list[Record], notes: tuple[str, ...]) -> list[Record]:
    """Notes go under the tiling they belong to, or in a record of their own."""
    if not notes:
        return records
    for place, record in enumerate(records):
        if record.transform == "Tiling" and record.status == "Applied":
            unique = tuple(dict.fromkeys(record.details + notes))  # nests of one form have the same to say
            with_notes = dataclasses.replace(record, details=unique)
            return [*records[:place], with_notes, *records[place + 1 :]]
    return [*records, Record("Mapping", "Note", "without tiling", notes, silent=True)]


def _register_tiles(
    kernel: Kernel, tiles: tuple[Tile, ...], unrolls: tuple[Unroll, ...], lanes: dict[str, int]
) -> tuple[Tile, ...]:
    """In the block form `unroll(factors=...)` is the register tile: an inner size of the loops it means.  On a
    loop in lanes it counts vectors."""
    outputs = [source for source, _ in unroll_requests.output_loops(kernel)]
    inner: dict[str, int] = {}
    for directive in unrolls:
        count = min(len(directive.factors), len(outputs))
        if count:
            inner |= dict(zip(outputs[-count:], directive.factors[-count:], strict=True))
    inner = {name: factor * lanes.get(name, 1) for name, factor in inner.items()}
    return tuple(
        dataclasses.replace(
            tile,
            sizes=tuple(
                (name, (*sizes, min(inner[name], sizes[-1])) if name in inner else sizes)
                for name, sizes in tile.sizes
            ),
        )
        if tile.automatic
        else tile
        for tile in tiles
    )
