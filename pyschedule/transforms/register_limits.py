"""Register tiles that need more registers than there are: what is said, where, and which tile would fit.

The schedule is carried out as it was asked for: the result is right, and only slow, since the compiler keeps on the
stack what registers do not hold and moves it in each iteration.  A record of status `"Warning"` at the decorator
names the registers needed, those there are, and the nearest request that fits; strict mode does not refuse it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from pyschedule.analysis.registers import RegisterFile
from pyschedule.ir import build
from pyschedule.ir.nodes import For, Kernel
from pyschedule.ir.visitors import local_arrays, walk
from pyschedule.schedule import names as loop_names
from pyschedule.schedule.directives import Directive, Schedule, Tile, Unroll, Vectorize
from pyschedule.schedule.log import Record
from pyschedule.schedule.targets import Target
from pyschedule.transforms import unroll_requests
from pyschedule.transforms.nest import tile_form
from pyschedule.transforms.register_use import Axes, Axis, Loop, Use, axes_of, loops_of, nearest, registers_of, uses
from pyschedule.transforms.registers import register_file

Stages = Mapping[str, Kernel]
#: The stages for another schedule or target.
Again = Callable[[Schedule, Target], Stages]

#: A tile that stays in memory is looked at as if there were so many times the registers.
_TIMES = 4
_BOUNDLESS = 1 << 40


def examine(
    records: tuple[Record, ...],
    stages: Stages,
    crowded: Sequence[str],
    schedule: Schedule,
    target: Target,
    again: Again,
) -> tuple[Record, ...]:
    """The records with a line for each register tile, and one more for what needs more registers than there are.

    `crowded` names the arrays of which a tile was left in memory, being larger than all registers.  On a GPU the
    target's compiler counts (`Lowering.resources`), and nothing is added.
    """
    if not target.copies:
        return records
    return _Examination(stages, schedule, target, again).of(records, crowded)


@dataclasses.dataclass(frozen=True, slots=True)
class _Examination:
    stages: Stages
    schedule: Schedule
    target: Target
    again: Again

    @property
    def file(self) -> RegisterFile:
        return register_file(self.target, strict_math=self.stages["source"].strict_math)

    @property
    def registers(self) -> int:
        return self.target.vector_registers

    def of(self, records: tuple[Record, ...], crowded: Sequence[str]) -> tuple[Record, ...]:
        found = uses(self.stages["unroll"], self.file)
        # Of a loop of the source that stands in several versions the largest counts.
        tiles = {(use.label, use.loc): use for use in reversed(found) if use.is_tile}
        records = _with_lines(records, tuple(self.line(use) for use in reversed(tiles.values())))
        warning = None
        if found and found[0].need > self.registers:
            warning = self.of_tile(found[0], self.stages) or self.of_factor(found[0])
        unrolled = any(not item.automatic for item in self.schedule.of(Unroll))
        if warning is None and unrolled and (crowded or self.large(self.stages)):
            warning = self.of_memory()
        return records if warning is None else (*records, warning)

    def line(self, use: Use) -> str:
        return (
            f"registers in loop '{use.label}': {use.need} of {self.registers} "
            f"(accumulators: {use.held}, other values: {use.need - use.held})"
        )

    # ------------------------------------------------------------------------------------- a tile of registers

    def of_tile(self, use: Use, stages: Stages) -> Record | None:
        """The warning of a register tile; `None` where no decorator made one."""
        axes = axes_of(stages["tiling"], stages["vectorization"], use.arrays) if use.is_tile else {}
        directive = self.maker(loops_of(axes))
        if directive is None:
            return None
        found = nearest(use, axes, self.registers, self.file)
        wanted = self.request(directive, axes, {})
        offer = None if found is None else (self.request(directive, axes, found[0]), found[1])
        return self.record(directive, wanted, use, offer)

    def maker(self, loops: Mapping[Loop, Axis]) -> Tile | Unroll | None:
        """The decorator that made a register tile: of its loops the tiling, else, and in the block form, what
        unrolls them."""
        for tile in self.schedule.of(Tile):
            if not tile.automatic and any(_means(name, loop) for name, _ in tile.sizes for loop in loops):
                return tile
        unrolls = [item for item in self.schedule.of(Unroll) if item.factors or _names_one(item.loop, loops)]
        return unrolls[0] if unrolls and loops else None

    def request(self, directive: Tile | Unroll, axes: Axes, counts: Mapping[Loop, int]) -> str:
        """A register tile as its decorator has it: with so many registers along each loop, else as it is."""
        loops = loops_of(axes)
        counts = {loop: counts.get(loop, axis.count) for loop, axis in loops.items()}
        sizes = {loop: axis.size_of(counts[loop]) for loop, axis in loops.items()}
        if isinstance(directive, Tile):
            return ", ".join(f"{name}={value}" for name, value in self.sizes(sizes))
        if directive.factors:
            outputs = unroll_requests.output_loops(self.stages["source"])[-len(directive.factors) :]
            given = dict(zip(outputs, directive.factors[-len(outputs) :], strict=True))
            return f"factors={[counts.get(loop, factor) for loop, factor in given.items()]}"
        return ", ".join(f"{name}={size}" for (name, _), size in sizes.items())

    def sizes(self, inner: Mapping[Loop, int]) -> Iterator[tuple[str, int | tuple[int, ...]]]:
        """Tile sizes as decorators have them, with other innermost ones; of loops that none of them tiles too."""
        given = [item for tile in self.schedule.of(Tile) for item in tile.sizes]
        for loop, size in inner.items():
            name, outer = next(((name, sizes[:-1]) for name, sizes in given if _means(name, loop)), (loop[0], ()))
            yield name, (*outer, size) if outer else size

    # ----------------------------------------------------------------------------------- a tile left in memory

    def large(self, stages: Stages) -> list[str]:
        """The register arrays of more elements than there are registers: they are memory after all."""
        arrays = local_arrays(stages["vectorization"].body).values()
        elements = {
            array.name: math.prod(build.constant(extent) or 0 for extent in array.shape)
            for array in arrays
            if array.space == "register"
        }
        return [name for name, count in elements.items() if count > self.registers]

    def of_memory(self) -> Record | None:
        """The warning of a tile that was meant for registers and is in memory, as its accumulators alone are more
        than there are.  `None` where not all of its loops are unrolled or in lanes: it was not meant for them."""
        roomy = self.again(self.schedule, dataclasses.replace(self.target, register_bytes=_BOUNDLESS))
        names = self.large(roomy)
        axes = axes_of(roomy["tiling"], roomy["vectorization"], names)
        directive = self.maker(loops_of(axes))
        if directive is None or not self.meant_for_registers(loops_of(axes)):
            return None
        larger = dataclasses.replace(
            self.target,
            register_bytes=self.target.register_bytes * _TIMES,
            vector_registers=self.registers * _TIMES,
        )
        stages = self.again(self.with_counts(axes, self.clipped(axes)), larger)
        found = [use for use in uses(stages["unroll"], self.file) if use.is_tile and set(use.arrays) <= set(names)]
        if not found:
            return None
        use, inner = found[0], axes_of(stages["tiling"], stages["vectorization"], found[0].arrays)
        best = nearest(use, inner, self.registers, self.file)
        offer = None if best is None else (self.request(directive, inner, best[0]), best[1])
        held = registers_of({name: axes[name] for name in use.arrays})
        told = dataclasses.replace(use, need=use.need - use.held + held, held=held)
        left = "; the accumulators stay in memory, and are read and written in each iteration"
        return self.record(directive, self.request(directive, axes, {}), told, offer, left)

    def meant_for_registers(self, loops: Mapping[Loop, Axis]) -> bool:
        """Whether each loop of a tile is unrolled in full or in lanes by request, and one of them unrolled."""
        outputs = unroll_requests.output_loops(self.stages["source"])
        unrolled: set[Loop] = set()
        for directive in self.schedule.of(Unroll):
            count = min(len(directive.factors), len(outputs))
            unrolled |= set(outputs[len(outputs) - count :])
            for loop, axis in loops.items():
                whole = directive.factor is None or directive.factor >= axis.count
                if directive.loop is not None and _means(directive.loop, loop) and whole:
                    unrolled.add(loop)
        lanes = {loop for loop, axis in loops.items() if axis.lanes > 1 or axis.count == 1}
        return bool(unrolled & set(loops)) and set(loops) <= unrolled | lanes

    def clipped(self, axes: Axes) -> dict[Loop, int]:
        """The registers along those loops that must be shorter for the arrays to be looked at as registers."""
        counts = {loop: min(axis.count, self.registers // 2) for loop, axis in loops_of(axes).items()}
        most = self.registers * _TIMES
        while sum(math.prod(counts[axis.loop] for axis in each) for each in axes.values()) > most:
            widest = max(counts, key=lambda loop: (counts[loop], loops_of(axes)[loop].lanes))
            counts[widest] = (counts[widest] + 1) // 2
        return {loop: counts[loop] for loop, axis in loops_of(axes).items() if counts[loop] < axis.count}

    def with_counts(self, axes: Axes, counts: Mapping[Loop, int]) -> Schedule:
        """The schedule with so many registers along some loops of a tile."""
        sizes = {loop: axis.size_of(counts[loop]) for loop, axis in loops_of(axes).items() if loop in counts}
        outputs = unroll_requests.output_loops(self.stages["source"])

        def changed(item: Directive) -> Directive:
            if isinstance(item, Tile):
                shorter = (
                    (name, next((size for loop, size in sizes.items() if _means(name, loop)), given[-1]), given)
                    for name, given in item.sizes
                )
                new = tuple((name, (*given[:-1], size)) for name, size, given in shorter)
                return dataclasses.replace(item, sizes=new)
            if isinstance(item, Unroll) and item.factors:
                count = min(len(item.factors), len(outputs))
                given = zip(outputs[len(outputs) - count :], item.factors[-count:], strict=True)
                return dataclasses.replace(item, factors=tuple(counts.get(loop, factor) for loop, factor in given))
            return item

        return Schedule(tuple(map(changed, self.schedule.directives))) if counts else self.schedule

    # ------------------------------------------------------------------------------- copies and lanes, no tile

    def of_factor(self, use: Use) -> Record | None:
        """The warning of copies, or of lanes, that are too many; `None` where the body alone is too much."""
        asked: list[Unroll | Vectorize] = [item for item in self.schedule.of(Unroll) if item.loop is not None]
        asked += [item for item in self.schedule.of(Vectorize) if item.width is not None]
        for directive in asked:
            now, request = self.factor_of(directive)
            fitting = self.largest(directive, now, use.label)
            if fitting is not None:
                offer = request(fitting[0]), fitting[1]
                return self.record(directive, request(now), use, offer)
        return None

    def factor_of(self, directive: Unroll | Vectorize) -> tuple[int, Callable[[int], str]]:
        """The factor or width that a directive asks for, and how one is written."""
        if isinstance(directive, Vectorize):
            loop = "" if directive.loop is None else f"{directive.loop!r}, "
            return directive.width or 1, lambda width: f"vectorize({loop}width={width})"
        name = directive.loop or ""
        spec = loop_names.parse(name)
        forms = [
            form
            for stmt in walk(self.stages["vectorization"].body)
            if isinstance(stmt, For) and spec is not None and spec.matches(stmt) and (form := tile_form(stmt))
        ]
        trips = max((form.size for form in forms), default=1)
        return directive.factor or trips, lambda factor: f"unroll({name!r}, {factor})"

    def largest(self, directive: Unroll | Vectorize, now: int, label: str) -> tuple[int, int] | None:
        """The largest factor below the present one (for lanes: power of two) with which the loops of a label fit,
        and what they need."""
        lanes = isinstance(directive, Vectorize)
        factors = [1 << power for power in range((now - 1).bit_length())] if lanes else list(range(1, now))

        def need(factor: int) -> int:
            if isinstance(directive, Vectorize):
                changed: Directive = dataclasses.replace(directive, width=factor)
            else:
                changed = dataclasses.replace(directive, factor=factor)
            items = tuple(changed if item is directive else item for item in self.schedule.directives)
            found = uses(self.again(Schedule(items), self.target)["unroll"], self.file)
            return max((use.need for use in found if use.label == label), default=0)

        best = (1, need(1)) if factors else None
        if best is None or best[1] > self.registers:
            return None  # it is not this directive that makes it too many
        low, high = 1, len(factors)  # those before `low` fit, those from `high` on do not
        while low < high:
            middle = (low + high) // 2
            taken = need(factors[middle])
            if taken <= self.registers:
                best, low = (factors[middle], taken), middle + 1
            else:
                high = middle
        return best

    # ------------------------------------------------------------------------------------------- what is said

    def record(
        self, directive: Directive, request: str, use: Use, offer: tuple[str, int] | None, left: str = ""
    ) -> Record:
        fits = "no smaller one fits" if offer is None else f"the nearest that fits is {offer[0]}"
        if offer is not None and offer[1]:  # else its loop holds no vectors any more
            fits += f", with {offer[1]}"
        spilled = left or ", so that some are moved to the stack and back in each iteration"
        summary = (
            f"{request} needs {use.need} vector registers in loop '{use.label}' (accumulators: {use.held}, other "
            f"values: {use.need - use.held}), and there are {self.registers}{spilled}; {fits}"
        )
        if isinstance(directive, Vectorize):  # lanes alone are no tile: what they need is a line of the log
            return Record("Vectorization", "Note", summary, (), directive.loc, silent=True)
        transform = "Tiling" if isinstance(directive, Tile) else "Unroll"
        return Record(transform, "Warning", summary, (), directive.loc)


def _means(name: str, loop: Loop) -> bool:
    spec = loop_names.parse(name)
    return spec is not None and spec.names(*loop)


def _names_one(name: str | None, loops: Mapping[Loop, Axis]) -> bool:
    return name is not None and any(_means(name, loop) for loop in loops)


def _with_lines(records: tuple[Record, ...], lines: tuple[str, ...]) -> tuple[Record, ...]:
    for place, record in enumerate(records):
        if lines and (record.transform, record.status) == ("Tiling", "Applied"):
            more = dataclasses.replace(record, details=record.details + lines)
            return (*records[:place], more, *records[place + 1 :])
    return records
