"""The launches of a program: how each top-level nest is spread over a grid, what it is sized by, its text."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pyschedule.codegen.cuda_host import host_text
from pyschedule.codegen.cuda_loops import KernelWriter
from pyschedule.codegen.cuda_program import GRID_LIMIT, NOT_STARTED, ArrayInfo, CudaProgram, Launch, Workspace
from pyschedule.codegen.cuda_statements import Context, is_mapped, reads, shares_work
from pyschedule.codegen.ptx_names import SHORT
from pyschedule.codegen.ranges import constant_trip
from pyschedule.errors import Unsupported
from pyschedule.ir import index_checks
from pyschedule.ir.build import constant
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    Dim,
    For,
    If,
    Kernel,
    Location,
    Poll,
    Stmt,
)
from pyschedule.ir.types import BOOL, element_of, lanes_of
from pyschedule.ir.visitors import (
    Body,
    arrays,
    contains,
    expressions,
    read_arrays,
    rewrite,
    variable_types,
    variables,
    walk,
    walk_with_loops,
    written_arrays,
    written_variables,
)
from pyschedule.schedule.targets import Target

#: A local array of a single-threaded launch may be this large, in bytes; larger ones live in global memory.
_LOCAL_LIMIT = 16 << 10
_DEFAULT_THREADS = 256


def has_blocks(body: Body) -> bool:
    return any(is_mapped(stmt, "block.") for stmt in walk(body))


@dataclass(frozen=True, slots=True)
class Shape:
    """The mapping of one launch: block loops from the outside in (the chain), the threads of a block."""

    chain: tuple[Stmt, ...]
    inner: Body
    block_loops: tuple[For, ...]
    threads: tuple[int, int, int]


class Planner:
    """Collects launches, parameters and workspaces of one program."""

    def __init__(self, kernel: Kernel, target: Target, narrow: bool) -> None:
        self.kernel = kernel
        self.target = target
        self.narrow = narrow
        self.notes: list[str] = []
        self.launches: list[Launch] = []
        self.functions: list[str] = []
        self.intrinsics: set[str] = set()
        self.workspaces: list[Workspace] = []
        self.arrays = arrays(kernel)
        self.types = variable_types(kernel)
        self.checks = index_checks.numbers(kernel)
        self.function_names: set[str] = set()

    # ----------------------------------------------------------------------------------------- arrays

    def place_arrays(self, groups: list[Body]) -> None:
        """Moves to global memory what is declared at top level, unless one thread alone has use for it."""
        mapped = any(shares_work(group) or has_blocks(group) for group in groups)
        declared = [stmt for group in groups for stmt in group if isinstance(stmt, Alloc)]
        for alloc in declared:
            if mapped or len(groups) > 1 or self._constant_bytes(alloc.array) > _LOCAL_LIMIT:
                self._to_workspace(alloc.array)
        for group in groups:
            for stmt, around in walk_with_loops(group):
                if all(isinstance(loop, For) and loop.mapping == "serial" for loop in around):
                    self._place_unsized(stmt)

    def _place_unsized(self, stmt: Stmt) -> None:
        """Moves a local array of run-time extent to global memory."""
        if not isinstance(stmt, Alloc) or self.arrays[stmt.array.name].space == "global":
            return
        if any(constant(extent) is None for extent in stmt.array.shape):
            self._to_workspace(stmt.array)

    @staticmethod
    def _constant_bytes(array: Array) -> int:
        size = lanes_of(array.dtype) * element_of(array.dtype).bytes
        for extent in array.shape:
            value = constant(extent)
            if value is None:
                return 1 << 62
            size *= value
        return size

    def _to_workspace(self, array: Array) -> None:
        if any(variables(extent) - {param.name for param in self.kernel.scalar_params} for extent in array.shape):
            raise Unsupported(f"the extent of the local array {array.name!r} varies inside the kernel", array.loc)
        shape = tuple(host_text(extent, self.arrays) for extent in array.shape)
        lanes = lanes_of(array.dtype)
        if lanes > 1:
            raise Unsupported(f"the vector array {array.name!r} cannot live in global memory", array.loc)
        self.workspaces.append(Workspace(array.name, element_of(array.dtype).name, shape))
        divisor = max(1, 16 // element_of(array.dtype).bytes) if array.rank == 1 else 1
        placed = replace(
            array,
            space="global",
            unit_axis=array.rank - 1,
            divisor=divisor,
            shape=tuple(Dim(array.name, axis) for axis in range(array.rank)),
        )
        self.arrays[array.name] = placed

    # ---------------------------------------------------------------------------------------- launches

    def launch(self, group: Body, serial: bool) -> None:
        """Adds the launch of a group of statements, mapped if that is possible."""
        if not serial and (shares_work(group) or has_blocks(group)):
            refusal = self._try(group)
            if refusal is not None and contains(group, Poll):
                refusal = self._try_with_other_polls(group)
            if refusal is None:
                return
            self.notes.append(f"one thread runs a nest: {refusal}")
        self._serial(group)

    def _try(self, group: Body) -> Unsupported | None:
        try:
            self._mapped(group)
        except Unsupported as refusal:
            return refusal
        return None

    def _try_with_other_polls(self, group: Body) -> Unsupported | None:
        """The group with all its polls taken together, as barriers that this back end adds ask for; or without
        them: a launch that cannot be stopped once it has begun is better than one of a single thread."""

        def together(stmt: Stmt) -> Stmt | None:
            return replace(stmt, together=True) if isinstance(stmt, Poll) else None

        refusal = self._try(rewrite(group, together))
        if refusal is None:
            return None
        if self._try(rewrite(group, lambda stmt: () if isinstance(stmt, Poll) else None)) is None:
            self.notes.append(f"a nest is not polled: {refusal}")
            return None
        return refusal

    def _writer(self, group: Body, block: tuple[int, int, int]) -> KernelWriter:
        return KernelWriter(
            arrays=dict(self.arrays),
            variable_types=self.types,
            checks=self.checks,
            narrow=self.narrow,
            block=block,
            written=frozenset(written_arrays(group)),
            intrinsics=set(),
            scalar_params=frozenset(param.name for param in self.kernel.scalar_params),
            launch=group,
            result_types=self.kernel.scalar_results,
        )

    def _function_name(self, group: Body) -> str:
        loops = [stmt for stmt in walk(group) if isinstance(stmt, For)]
        wanted = re.sub(
            r"\W",
            "_",
            f"{self.kernel.name}_{loops[0].source or loops[0].var}" if loops else f"{self.kernel.name}_scalars",
        )
        name, number = wanted, 2
        while name in self.function_names:
            name, number = f"{wanted}_{number}", number + 1
        self.function_names.add(name)
        return name

    def _serial(self, group: Body) -> None:
        """One thread runs everything; its shared arrays are its own."""
        for stmt in walk(group):
            self._place_unsized(stmt)
        writer = self._writer(group, (1, 1, 1))
        for name, array in writer.arrays.items():
            if array.space == "shared":
                writer.arrays[name] = replace(array, space="local")
        used = read_arrays(group) | written_arrays(group)
        top = tuple(stmt for stmt in self.kernel.body if isinstance(stmt, Alloc) and stmt.array.name in used)
        writer.declare_all(_local_arrays(top + group, writer.arrays))
        writer.body(group, Context(serial=True))
        self._finish(group, writer, ("1", "1", "1"))

    def _mapped(self, group: Body) -> None:
        (top,) = group if len(group) == 1 else (None,)
        if top is None:
            raise Unsupported("several top-level statements share one launch")
        shape = self._shape(top)
        self._check_private(top)
        writer = self._writer(group, shape.threads)
        writer.declare_all(_local_arrays(group, writer.arrays))
        grids = {"x": "1", "y": "1", "z": "1"}
        for loop in shape.block_loops:
            if constant(loop.start) != 0 or constant(loop.step) != 1:
                raise Unsupported(f"the bounds of the {loop.mapping} loop vary inside it", loop.loc)
            if variables(loop.stop) & {other.var for other in shape.block_loops}:
                raise Unsupported(
                    f"the trip count of the {loop.mapping} loop depends on another block loop", loop.loc
                )
            axis = loop.mapping.removeprefix("block.")
            grids[axis] = host_text(loop.stop, self.arrays)
            if not self.narrow and axis != "x":
                grids[axis] = f"min({GRID_LIMIT}, {grids[axis]})"
        shared = max(writer.static_shared, writer.dynamic_shared)
        if shared > self.target.staging_bytes:
            raise Unsupported(f"{shared} bytes of shared memory a block, of {self.target.staging_bytes}")
        self._chain(writer, shape)
        apart = any(isinstance(stmt, Poll) and not stmt.together for stmt in walk(group))
        if apart and _meets(writer.lines):
            raise Unsupported("threads that meet at barriers cannot leave one by one")
        self._finish(group, writer, (grids["x"], grids["y"], grids["z"]))

    def _chain(self, writer: KernelWriter, shape: Shape) -> None:
        """Writes the block loops and what stands between them, then the work of the block."""
        turns: list[tuple[int, str]] = []
        for stmt in shape.chain:
            writer.note_scalars(expressions((stmt,)))
            if isinstance(stmt, For):
                if self.narrow or stmt.mapping == "block.x":
                    writer.block_loop(stmt)
                else:
                    turns.append(writer.strided_block_loop(stmt))
            elif isinstance(stmt, If):
                writer.line(f"if {writer.expr.value(stmt.test, BOOL).text}:", stmt)
                writer.depth += 1
            else:
                writer.statement(stmt, Context())
        writer.body(shape.inner, Context())
        for depth, text in reversed(turns):
            writer.depth = depth
            if writer.threads_in_block > 1:  # shared memory is used again
                writer.barrier()
            writer.line(text)
        writer.depth = 1

    def _shape(self, top: Stmt) -> Shape:
        """Takes the block loops off a nest, and sizes its block."""
        chain: list[Stmt] = []
        loops: list[For] = []
        body: Body = (top,)
        while True:
            inner = [stmt for stmt in body if has_blocks((stmt,))]
            if not inner:
                break
            rest = [stmt for stmt in body if stmt is not inner[0] and not isinstance(stmt, Alloc)]
            if len(inner) > 1:
                raise Unsupported("two sibling nests are both mapped to blocks", getattr(inner[1], "loc", None))
            stmt = inner[0]
            if any(not isinstance(item, Assign) for item in rest) or (
                rest and rest[-1] in body[body.index(stmt) :]
            ):
                raise Unsupported("statements between two block loops", getattr(rest[0], "loc", None))
            for item in rest:
                if isinstance(item, Assign) and read_arrays((item,)) & written_arrays((top,)):
                    raise Unsupported("a block reads what another may write", item.loc)
            chain.extend(rest)
            if isinstance(stmt, If) and not stmt.orelse and not read_arrays((replace(stmt, body=()),)):
                chain.append(stmt)
                body = stmt.body
                continue
            if not isinstance(stmt, For) or not is_mapped(stmt, "block."):
                raise Unsupported("a loop around a block loop is not mapped to blocks", getattr(stmt, "loc", None))
            if stmt.mapping in {loop.mapping for loop in loops}:
                raise Unsupported(f"two nested loops are mapped to {stmt.mapping}", stmt.loc)
            chain.append(stmt)
            loops.append(stmt)
            body = stmt.body
        return Shape(tuple(chain), body, tuple(loops), self._threads(body))

    def _threads(self, body: Body) -> tuple[int, int, int]:
        """The block's dimensions: the longest loop mapped to each, together at most what a block may have."""
        sizes = {"x": 0, "y": 0, "z": 0}
        for stmt in walk(body):
            if not isinstance(stmt, For) or not is_mapped(stmt, "thread."):
                continue
            axis = stmt.mapping.removeprefix("thread.")
            trip = constant_trip(stmt)
            most = trip if trip is not None else stmt.max_trip
            sizes[axis] = max(sizes[axis], most if most is not None else _DEFAULT_THREADS, 1)
        if not any(sizes.values()):
            mapped = any(is_mapped(stmt, "cooperative") for stmt in walk(body))
            return (_DEFAULT_THREADS if mapped else 1, 1, 1)
        limit = self.target.threads_per_block[1]
        caps = {"x": limit, "y": limit, "z": 64}
        sizes = {axis: min(max(size, 1), caps[axis]) for axis, size in sizes.items()}
        while sizes["x"] * sizes["y"] * sizes["z"] > limit:
            longest = max(sizes, key=lambda axis: sizes[axis])
            sizes[longest] = -(-sizes[longest] // 2)
        return sizes["x"], sizes["y"], sizes["z"]

    def _check_private(self, top: Stmt) -> None:
        """What threads write for themselves must not be read by others through a private variable."""
        whole = (top,)
        for stmt, around in walk_with_loops(whole):
            if not isinstance(stmt, For) or not (is_mapped(stmt, "thread.") or is_mapped(stmt, "cooperative")):
                continue
            if any(isinstance(loop, For) and is_mapped(loop, "thread.") for loop in around) and not is_mapped(
                stmt, "cooperative"
            ):
                continue
            for name in written_variables(stmt.body):
                outside = reads(whole, name) - reads((stmt,), name)
                if outside or _assignments(whole, name) != _assignments((stmt,), name):
                    raise Unsupported(
                        f"the scalar {name!r} leaves loop {stmt.label or stmt.var!r}, which threads run",
                        stmt.loc,
                    )
            declared = {item.array.name for item in walk(stmt.body) if isinstance(item, Alloc)}
            if is_mapped(stmt, "cooperative"):
                continue
            for name in written_arrays(stmt.body) - declared:
                if self.arrays[name].space not in ("global", "shared"):
                    raise Unsupported(
                        f"the array {name!r}, declared around loop {stmt.label or stmt.var!r}, is a thread's own",
                        stmt.loc,
                    )

    # ------------------------------------------------------------------------------------------ output

    def _finish(self, group: Body, writer: KernelWriter, grid: tuple[str, str, str]) -> None:
        name = self._function_name(group)
        if not writer.lines:
            writer.line("pass")
        text = "\n".join(writer.lines)
        start: list[str] = []
        if contains(self.kernel.body, Poll):  # what comes after a launch that was stopped must not begin
            test = writer.stop_test(_meets(writer.lines))
            control, u64, i64 = writer.control_parameter(), writer.use("u64"), writer.use("i64")
            start = [
                f"    if {test}:",
                f"        if {writer.use('load_i64')}({control}, {u64}(1)) == 0:",
                f"            {writer.use('store_i64')}({control}, {u64}(1), {i64}({NOT_STARTED}))",
                "        return",
            ]
        parameters = tuple(writer.parameters.values())
        head = [f"def {name}({', '.join(parameter.name for parameter in parameters)}):"]
        if group[0] is not None and _location(group[0]) is not None:
            place = _location(group[0])
            head.append(
                f'    """From line {place.line if place else 0}; grid ({", ".join(grid)}), block {writer.block}."""'
            )
        u32 = "u32"
        threads = writer.block
        needs_tid = re.search(r"\btid\b", text) is not None
        for axis, size in zip("xyz", threads, strict=True):
            if re.search(rf"\bt{axis}\b", text) or (needs_tid and size > 1):
                writer.use(u32)
                head.append(
                    f"    t{axis} = {u32}(cuda.threadIdx.{axis})" if size > 1 else f"    t{axis} = {u32}(0)"
                )
        if needs_tid:
            writer.use(u32)
            head.append(f"    tid = {_linear(threads)}")
        for axis in "xyz":
            if re.search(rf"\bb{axis}\b", text):
                writer.use(u32)
                head.append(f"    b{axis} = {u32}(cuda.blockIdx.{axis})")
        self.functions.append("\n".join([*head, *start]) + "\n" + text + "\n")
        self.intrinsics |= writer.intrinsics
        self.launches.append(
            Launch(
                function=name,
                grid=grid,
                threads=threads,
                parameters=parameters,
                dynamic_shared=writer.dynamic_shared,
                static_shared=writer.static_shared,
            )
        )

    def program(self, index_bits: int) -> CudaProgram:
        body = self.kernel.body
        written = written_arrays(body)
        infos = tuple(
            ArrayInfo(
                array.name,
                element_of(array.dtype).name,
                array.rank,
                array.name in written,
                array.unit_axis,
                array.divisor,
            )
            for array in self.kernel.array_params
        )
        has_status = any(parameter.kind == "status" for launch in self.launches for parameter in launch.parameters)
        return CudaProgram(
            source=self._source(),
            launches=tuple(self.launches),
            arrays=infos,
            scalars=tuple((param.name, element_of(param.vtype)) for param in self.kernel.scalar_params),
            workspaces=tuple(self.workspaces),
            scalar_results=self.kernel.scalar_results,
            has_status=has_status,
            checks=index_checks.messages(self.kernel),
            strict_math=self.kernel.strict_math,
            index_bits=index_bits,
            notes=tuple(self.notes),
            polls=contains(body, Poll),
        )

    def _source(self) -> str:
        casts = sorted(name for name in self.intrinsics if name in _CASTS)
        others = sorted(self.intrinsics - set(casts))
        text = "\n".join(self.functions)
        lines = [f"# {self.kernel.name}, for {self.target}; generated by pyschedule."]
        if "math." in text:
            lines.append("import math")
            lines.append("")
        lines.append("from numba import cuda")
        if "libdevice." in text:
            lines.append("from numba.cuda import libdevice")
        for name in casts:
            lines.append(f"from numba.cuda.types import {_CASTS[name]} as {name}")
        if others:
            lines.append("")
            lines.append("from pyschedule.codegen.ptx import (")
            lines.extend(f"    {name}," for name in others)
            lines.append(")")
        return "\n".join(lines) + "\n\n\n" + "\n\n".join(self.functions)


_CASTS = {short: long for long, short in SHORT.items() if short not in ("f16", "bf16", "b8")}


def _meets(lines: list[str]) -> bool:
    """Whether a launch has barriers."""
    return any("cuda.syncthreads" in line for line in lines)


def _linear(threads: tuple[int, int, int]) -> str:
    """The number of the thread in its block."""
    x, y, z = threads
    if y == z == 1:
        return "tx"
    if z == 1:
        return f"u32(ty * u32({x}) + tx)"
    first = "tx" if x > 1 else "u32(0)"
    second = "ty" if y > 1 else "u32(0)"
    return f"u32((tz * u32({y}) + {second}) * u32({x}) + {first})"


def _location(stmt: Stmt) -> Location | None:
    loc = getattr(stmt, "loc", None)
    return loc if isinstance(loc, Location) and loc.line else None


def _assignments(body: Body, name: str) -> int:
    return sum(isinstance(stmt, Assign) and stmt.target == name for stmt in walk(body))


def _local_arrays(body: Body, placed: dict[str, Array]) -> list[Array]:
    """The arrays declared in a body, as placed, less those in global memory; each once."""
    found = {stmt.array.name: placed[stmt.array.name] for stmt in walk(body) if isinstance(stmt, Alloc)}
    return [array for array in found.values() if array.space != "global"]
