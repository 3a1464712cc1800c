"""From a decorated function and a call signature to a scheduled kernel: the rooms called in order.

Everything heavy (isl, sympy, networkx) is imported from here on and only when a kernel is really lowered; a
kernel that comes from the on-disk cache never gets here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyschedule.ir import index_checks, nodes
from pyschedule.ir.nodes import Array, For, Kernel
from pyschedule.ir.printer import format_expr
from pyschedule.ir.signature import Shaped, Signature
from pyschedule.ir.types import element_of
from pyschedule.ir.visitors import loops, walk, written_arrays
from pyschedule.runtime import hostcode
from pyschedule.runtime.plan import Output, Plan, ProgramText, Test
from pyschedule.runtime.warn import FRONTEND, logger
from pyschedule.schedule import resolve
from pyschedule.schedule.directives import BlockForm, Directive, Poll, Schedule, Tile, Vectorize
from pyschedule.schedule.limits import UnrollLimits
from pyschedule.schedule.log import Log, Record
from pyschedule.schedule.names import parse
from pyschedule.schedule.targets import Target

if TYPE_CHECKING:
    import networkx

    from pyschedule.analysis.bounds import Precondition
    from pyschedule.codegen.cuda_program import CudaProgram
    from pyschedule.codegen.program import Program
    from pyschedule.frontend.parser import Parsed
    from pyschedule.frontend.results import Check
    from pyschedule.runtime.cuda_toolchain import Linked, Resources


@dataclass(frozen=True, slots=True)
class Definition:
    """What a kernel is made of: the function as parsed, and everything its decorators say."""

    parsed: Parsed
    schedule: Schedule

    @property
    def arrays(self) -> tuple[str, ...]:
        return self.parsed.arrays

    def check(self, kind: str | None = None, block_sizes: resolve.Sizes = ()) -> None:
        """Raises `ScheduleError` where the directives do not fit the function; see `resolve.check`."""
        parsed = self.parsed
        names = (*parsed.arrays, *parsed.locals)
        nests = resolve.loop_nests(parsed.body)
        resolve.check(self.schedule, parsed.name, parsed.loops, nests, names, kind, block_sizes)

    def ordered(self, kind: str) -> Schedule:
        """The directives for a target, by the loops they name: the order of decorators has no meaning.

        Those that choose their loops come last, when what is asked for by name is done.
        """
        places = {(loop.name, loop.ordinal): place for place, loop in enumerate(self.parsed.loops)}

        def place(directive: Directive) -> int:
            loops = [name for name, _ in directive.sizes] if isinstance(directive, Tile) else []
            loops += [getattr(directive, "loop", None) or ""]
            specs = [spec for loop in loops if (spec := parse(loop)) is not None]
            found = [where for loop, where in places.items() if any(spec.names(*loop) for spec in specs)]
            return min(found, default=len(places))

        return Schedule(tuple(sorted(self.schedule.for_target(kind).directives, key=place)))

    @property
    def block_form(self) -> BlockForm | None:
        forms = self.schedule.of(BlockForm)
        return forms[0] if forms else None

    def fixed_shape(self, name: str) -> tuple[int | None, ...] | None:
        """The extents of an array that `input_shapes` fixes; `None` where there is no block form."""
        form = self.block_form
        return None if form is None else dict(zip(self.arrays, form.input_shapes, strict=True)).get(name)

    def implied_arguments(self) -> tuple[Shaped, ...]:
        """Stand-ins for the arguments, where the directives say all of them: fixed `input_shapes`, a
        `vectorize(dtype=...)`, and no scalar without a default.  Else nothing."""
        form = self.block_form
        dtypes = {item.dtype for item in self.schedule.of(Vectorize) if item.dtype is not None}
        if form is None or len(dtypes) != 1:
            return ()
        shapes = [tuple(extent for extent in shape if extent is not None) for shape in form.input_shapes]
        if [len(shape) for shape in shapes] != [len(shape) for shape in form.input_shapes]:
            return ()
        if self.parsed.params[: len(shapes)] != self.arrays:
            return ()
        return tuple(Shaped(dtypes.copy().pop(), shape) for shape in shapes)


class Lowering:
    """What became of a kernel for one signature and one target.

    `stages` maps `"source"`, `"tiling"`, `"vectorization"` and `"unroll"` to the IR after that stage, and
    `log` holds the records of what was done, skipped and why.  `preconditions` are what the arguments of a call
    must satisfy; those that do not satisfy the `assumptions` have a lowering of their own.  Generated and compiled
    code is made when asked for: `source`, `asm()` (CPU), `ptx()`, `sass()` and `resources()` (GPU; no GPU is
    needed).
    """

    def __init__(
        self,
        definition: Definition,
        signature: Signature,
        target: Target,
        stages: Mapping[str, Kernel],
        log: Log,
        preconditions: tuple[Precondition | Check, ...],
        assumptions: tuple[Precondition, ...] = (),
    ) -> None:
        self.definition = definition
        self.signature = signature
        self.target = target
        self.stages = MappingProxyType(dict(stages))
        self.log = log
        self.preconditions = preconditions
        self.assumptions = assumptions

    def __repr__(self) -> str:
        return f"<Lowering of {self.kernel.name} for {self.target}>"

    @property
    def kernel(self) -> Kernel:
        """The IR after the last stage."""
        return self.stages["unroll"]

    @property
    def runs_in_parallel(self) -> bool:
        return any(isinstance(loop, For) and loop.mapping == "parallel" for loop in loops(self.kernel.body))

    @cached_property
    def cuda_program(self) -> CudaProgram:
        """The generated CUDA program; `TypeError` on another target."""
        self._needs("cuda")
        return self.cuda_program_of(32)

    def cuda_program_of(self, index_bits: int) -> CudaProgram:
        """The CUDA program with offsets of 32 bits, for arguments that fit them, or of 64."""
        from pyschedule.codegen import numba_cuda

        return numba_cuda.generate(self.kernel, self.target, index_bits)

    @cached_property
    def source(self) -> str:
        """The generated Numba module."""
        if self.target.kind == "cuda":
            return self.cuda_program.source
        return self.cpu_program(parallel=self.runs_in_parallel).source

    def graph(self, stage: str = "source") -> networkx.DiGraph[Any]:
        """The loops and statements of a stage: what contains what, trip counts, and, for the source, the
        dependences with their distances (see `ir.graph`)."""
        from pyschedule.analysis.dependences import Dependences
        from pyschedule.errors import Unsupported
        from pyschedule.ir.graph import loop_graph

        kernel = self.stages[stage]
        if stage != "source":
            return loop_graph(kernel)
        try:
            return loop_graph(kernel, Dependences(kernel).edges())
        except Unsupported:  # no affine nest: the loops alone
            return loop_graph(kernel)

    def cpu_program(self, *, parallel: bool, cache: bool = False) -> Program:
        from pyschedule.codegen import numba_cpu

        return numba_cpu.generate(self.kernel, self.target, parallel=parallel, cache=cache)

    def asm(self) -> str:
        """The assembly of the serial variant, compiled now; `TypeError` on a GPU's target."""
        self._needs("cpu")
        from pyschedule.runtime.compiler import assembly

        program = self.cpu_program(parallel=False)
        return assembly(self.kernel, ProgramText(program.source, program.entry))

    @cached_property
    def _ptx(self) -> dict[str, str]:
        """The PTX of each launch, by the name of its function."""
        from pyschedule.runtime import cuda_toolchain

        program = self.cuda_program
        return {one.function: cuda_toolchain.compile_ptx(program, one, self.target) for one in program.launches}

    @cached_property
    def _machine_code(self) -> dict[str, tuple[bytes, Linked]]:
        from pyschedule.runtime import cuda_toolchain

        return {name: cuda_toolchain.cubin(text, self.target.arch) for name, text in self._ptx.items()}

    def ptx(self) -> str:
        """The PTX of all launches; `TypeError` on a CPU's target."""
        return "\n".join(self._ptx.values())

    def sass(self) -> str:
        """The machine code of all launches, disassembled; `TypeError` on a CPU's target."""
        self._needs("cuda")
        from pyschedule.runtime import cuda_toolchain

        return "\n".join(cuda_toolchain.sass(code) for code, _ in self._machine_code.values())

    def resources(self, function: str | None = None) -> Resources:
        """Registers, spills, shared bytes and occupancy of one launch, by default the one with most registers.

        `TypeError` on a CPU's target, `ValueError` for a function that is not among the launches.
        """
        program = self.cuda_program
        from pyschedule.runtime import cuda_toolchain

        found = {
            launch.function: cuda_toolchain.resources(launch, self._machine_code[launch.function][1], self.target)
            for launch in program.launches
        }
        if function is None:
            return max(found.values(), key=lambda item: item.registers)
        if function not in found:
            raise ValueError(f"there is no launch {function!r}; there are {', '.join(found)}")
        return found[function]

    def _needs(self, kind: str) -> None:
        if self.target.kind != kind:
            raise TypeError(f"this is the lowering for {self.target}; ask for lower(..., target={kind!r})")


def lower(definition: Definition, signature: Signature, target: Target) -> Lowering:
    """Builds, lifts and transforms the kernel; raises what the rooms raise, each with its place."""
    from pyschedule.analysis.loop_facts import loop_facts
    from pyschedule.frontend import build
    from pyschedule.frontend.blockform import Block
    from pyschedule.transforms import indexing, pipeline

    began = time.perf_counter()
    parsed = definition.parsed
    schedule = definition.ordered(target.kind)
    form = definition.block_form
    if form is None:
        definition.check(target.kind)
    block = None if form is None else Block(form.input_shapes, form.tile_shapes, form.pad)
    built = build.build(parsed, signature, block, definition.schedule.strict_math)
    kernel, bounds = indexing.make_explicit(built.kernel, assume=not signature.checked)
    if form is not None:
        definition.check(target.kind, built.tile_sizes)
        schedule = _with_block_tiles(form, schedule, built.tile_sizes)
    lowered = pipeline.lower(kernel, schedule, target, limits=UnrollLimits.read(os.environ))
    records = (*lowered.records, *_other_dtypes(kernel, schedule), *_notices(built.notices))
    records += tuple(map(_assumed, bounds.assumptions))
    logger.info("%s: lowered for %s in %.0f ms", parsed.name, target, (time.perf_counter() - began) * 1e3)
    for record in records:
        logger.debug("%s: %s", parsed.name, record)
    tests: tuple[Precondition | Check, ...] = (*built.checks, *bounds.preconditions)
    log = Log(records, partial(loop_facts, lowered.stages["source"], schedule.annotates))
    return Lowering(definition, signature, target, lowered.stages, log, tests, bounds.assumptions)


def _with_block_tiles(
    form: BlockForm,
    schedule: Schedule,
    tile_sizes: tuple[tuple[str, tuple[int, ...]], ...],
) -> Schedule:
    """The schedule with the tiling that `tile_shapes` asks for, which is known only now."""
    shapes = [str(shape) for shape in form.tile_shapes]
    display = shapes[0] if len(set(shapes)) == 1 else ", ".join(shapes)
    others = tuple(item for item in schedule.directives if not isinstance(item, BlockForm))
    if not tile_sizes:
        return Schedule(others)
    tiles = Tile(sizes=tile_sizes, display=display, automatic=True, loc=form.loc, strict=form.strict)
    return Schedule((*others, tiles))


def _other_dtypes(kernel: Kernel, schedule: Schedule) -> tuple[Record, ...]:
    """A `dtype` that no array has: lanes hold what the arrays do, and this is said rather than ignored."""
    held = {element_of(array.dtype).name: None for array in kernel.array_params}
    return tuple(
        Record(
            "Vectorization",
            "Skipped",
            f"dtype={item.dtype}: lanes hold the arrays' elements, which are {', '.join(held) or 'none'}",
            loc=item.loc,
        )
        for item in schedule.of(Vectorize)
        if item.dtype is not None and item.dtype not in held
    )


def _notices(notices: tuple[Any, ...]) -> tuple[Record, ...]:
    return tuple(Record(FRONTEND, "Note", notice.message, loc=notice.loc) for notice in notices)


def _assumed(assumption: Precondition) -> Record:
    text = (
        f"{format_expr(assumption.test)} is assumed, so that '{assumption.array}' is not left along axis "
        f"{assumption.axis}; for other arguments there is a version that checks each index"
    )
    return Record("Bounds", "Note", text, loc=assumption.loc, silent=True)


# -------------------------------------------------------------------------------------------------- plans


def plan_of(lowering: Lowering, *, cache: bool) -> Plan:
    """What calls need of a lowering.  `cache` lets Numba keep a CPU's machine code beside the module."""
    kernel = lowering.kernel
    written = written_arrays(lowering.stages["source"].body) | written_arrays(kernel.body)
    plan = Plan(
        name=kernel.name,
        target=str(lowering.target),
        params=tuple(param.name for param in kernel.params),
        written=tuple(
            array.name
            for array in kernel.array_params
            if array.name in written and array.name not in kernel.outputs
        ),
        halves=tuple(array.name for array in kernel.array_params if element_of(array.dtype).is_half),
        outputs=tuple(map(_output, _outputs(kernel))),
        returns=kernel.returns,
        results=kernel.scalar_results,
        tests=tuple(map(_test, lowering.preconditions)),
        assumptions=assumed_of(lowering),
        records=lowering.log.records,
        polled=bool(lowering.definition.schedule.for_target(lowering.target.kind).of(Poll)),
        polls=tuple(stmt.places for stmt in walk(kernel.body) if isinstance(stmt, nodes.Poll)),
        checks=index_checks.messages(kernel),
    )
    if lowering.target.kind == "cuda":
        return replace(plan, cuda=lowering.cuda_program)
    serial = lowering.cpu_program(parallel=False, cache=cache)
    parallel = lowering.cpu_program(parallel=True, cache=cache) if lowering.runs_in_parallel else None
    work, work_reads_scalars = hostcode.work_estimate(lowering.stages["source"])
    return replace(
        plan,
        work=work,
        work_reads_scalars=work_reads_scalars,
        serial=ProgramText(serial.source, serial.entry),
        parallel=None if parallel is None else ProgramText(parallel.source, parallel.entry),
    )


def _outputs(kernel: Kernel) -> list[Array]:
    by_name = {array.name: array for array in kernel.array_params}
    return [by_name[name] for name in kernel.outputs]


def _output(array: Array) -> Output:
    scalars: set[str] = set()
    for extent in array.shape:
        scalars |= hostcode.names(extent)[1]
    return Output(
        array.name,
        element_of(array.dtype).name,
        tuple(map(hostcode.python_source, array.shape)),
        tuple(sorted(scalars)),
    )


def assumed_of(lowering: Lowering) -> tuple[Test, ...]:
    """What a lowering assumes of arguments."""
    return tuple(map(_test, lowering.assumptions))


def _test(precondition: Precondition | Check) -> Test:
    arrays, scalars = map(sorted, hostcode.names(precondition.test))
    message = precondition.message
    if not hasattr(precondition, "array"):  # one of the front end's, whose message is plain text
        actual = [f"{name} is {{{name}.shape}}" for name in arrays]
        actual += [f"{name} is {{{name}}}" for name in scalars]
        message = f"{message.replace('{', '{{').replace('}', '}}')} ({', '.join(actual)})"
    return Test(hostcode.python_source(precondition.test), tuple(arrays), tuple(scalars), message)
