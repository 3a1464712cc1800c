"""Kernels as `numba.cuda` source: `generate` plans the launches, `cuda_emit` writes each.

Every top-level statement of the kernel that is a loop becomes one launch, in order; runs of other statements
become one single-threaded launch.  Scalars that only depend on extents and arguments are computed wherever
they are read.  Where scalars flow from one top-level statement to another, or out of the kernel, all of it is
one single-threaded launch: always right, and slow, which a note says.

Arrays that are declared at top level, or whose extent is known only at run time, live in global memory
(`Workspace`), so that they outlive a launch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pyschedule.codegen.cuda_emit import Context, KernelWriter, is_mapped, reads, shares_work
from pyschedule.codegen.cuda_program import GRID_LIMIT, ArrayInfo, CudaProgram, Launch, Workspace
from pyschedule.codegen.cuda_ranges import constant_trip, trip_count
from pyschedule.codegen.ptx_names import SHORT
from pyschedule.errors import InternalError, Unsupported
from pyschedule.ir.build import constant
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    BinOp,
    Call,
    Const,
    Dim,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Location,
    Return,
    Select,
    Stmt,
    Var,
)
from pyschedule.ir.types import Scalar, element_of, lanes_of
from pyschedule.ir.visitors import (
    Body,
    arrays,
    contains,
    expressions,
    read_arrays,
    read_variables,
    rewrite,
    substitute,
    substitute_expr,
    variable_types,
    variables,
    walk,
    walk_expr,
    walk_with_loops,
    written_arrays,
    written_variables,
)
from pyschedule.schedule.targets import Target

#: A local array of a single-threaded launch may be this large, in bytes; larger ones live in global memory.
_LOCAL_LIMIT = 16 << 10
_DEFAULT_THREADS = 256


def generate(kernel: Kernel, target: Target, index_bits: int = 32) -> CudaProgram:
    """The CUDA program of a kernel.

    `index_bits=32` gives the fast form, valid for the arguments that `CudaProgram.fits` accepts; 64 is valid
    for all.  Raises `Unsupported` for what has no CUDA form even in a single thread.
    """
    body = _without_final_return(kernel.body)
    body, hoisted = _replicated_scalars(kernel, body)
    groups = _groups(body)
    single = _why_single(kernel, body, groups, hoisted)
    planner = _Planner(kernel, target, index_bits == 32)
    if single and (len(groups) > 1 or any(shares_work(group) or _has_blocks(group) for group in groups)):
        planner.notes.append(f"one thread runs the whole kernel: {single}")
    if single:
        groups = [body]
    planner.place_arrays(groups)
    for group in groups:
        group = tuple(stmt for stmt in group if not isinstance(stmt, Alloc))
        if group:
            planner.launch(group, serial=bool(single))
    return planner.program(index_bits)


def _has_blocks(body: Body) -> bool:
    return any(is_mapped(stmt, "block.") for stmt in walk(body))


def _without_final_return(body: Body) -> Body:
    if body and isinstance(body[-1], Return) and not body[-1].values:
        return body[:-1]
    return body


def _is_uniform(expr: Expr, known: set[str]) -> bool:
    """Whether an expression only depends on extents, constants and the variables `known`."""
    for part in walk_expr(expr):
        if isinstance(part, Load) or (isinstance(part, Var) and part.name not in known):
            return False
        if isinstance(part, Call) and part.function == "checked_index":
            return False
    return lanes_of(expr.type) == 1


def _replicated_scalars(kernel: Kernel, body: Body) -> tuple[Body, dict[str, Expr]]:
    """Top-level scalars that every launch can compute for itself are written into their uses."""
    counts: dict[str, int] = {}
    for stmt in walk(body):
        if isinstance(stmt, Assign):
            counts[stmt.target] = counts.get(stmt.target, 0) + 1
    known = {param.name for param in kernel.scalar_params if param.name not in counts}
    values: dict[str, Expr] = {}
    rest: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Assign) and counts[stmt.target] == 1 and _is_uniform(stmt.value, known | set(values)):
            from pyschedule.ir.nodes import Cast

            value = substitute_expr(stmt.value, values)
            values[stmt.target] = value if value.type == stmt.vtype else Cast(element_of(stmt.vtype), value)
            continue
        rest.append(stmt)
    return (substitute(tuple(rest), values) if values else body), values


def _groups(body: Body) -> list[Body]:
    """The top-level statements as launches: each loop by itself, other statements in runs."""
    groups: list[Body] = []
    run: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, For) or (isinstance(stmt, If) and _has_blocks((stmt,))):
            if run:
                groups.append(tuple(run))
                run = []
            groups.append((stmt,))
        else:
            run.append(stmt)
    if run:
        groups.append(tuple(run))
    return groups


def _why_single(kernel: Kernel, body: Body, groups: list[Body], hoisted: dict[str, Expr]) -> str:
    """Why the kernel must be one single-threaded launch, or nothing."""
    if kernel.scalar_results:
        return "it returns scalars"
    if contains(body, Return):
        return "it returns early"
    params = {param.name for param in kernel.scalar_params}
    for index, group in enumerate(groups):
        written = written_variables(group)
        for other_index, other in enumerate(groups):
            flow = (written & (read_variables(other) | written_variables(other))) if other_index != index else set()
            if flow:
                return f"scalar {min(flow)!r} is used by several of its top-level statements"
        if written & params:
            return f"it assigns its argument {min(written & params)!r}"
    return ""


@dataclass(frozen=True, slots=True)
class _Shape:
    """The mapping of one launch: block loops from the outside in (the chain), the threads of a block."""

    chain: tuple[Stmt, ...]
    inner: Body
    block_loops: tuple[For, ...]
    threads: tuple[int, int, int]


class _Planner:
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
        self.types = {name: kind for name, kind in variable_types(kernel).items()}
        self.function_names: set[str] = set()

    # ----------------------------------------------------------------------------------------- arrays

    def place_arrays(self, groups: list[Body]) -> None:
        """Moves to global memory what is declared at top level, or is too large or unknown in size."""
        for group in groups:
            for stmt in group:
                if not isinstance(stmt, Alloc):
                    continue
                users = sum(
                    stmt.array.name in read_arrays(other) | written_arrays(other)
                    for other in groups
                )
                alone = users <= 1 and len(groups) == 1 and self._constant_bytes(stmt.array) <= _LOCAL_LIMIT
                if not alone or self._mapped_anywhere(groups):
                    self._to_workspace(stmt.array)
        for group in groups:
            for stmt, around in walk_with_loops(group):
                if isinstance(stmt, Alloc) and stmt.array.name in self.arrays and self._is_local(stmt.array.name):
                    if any(constant(extent) is None for extent in stmt.array.shape) and not any(
                        isinstance(loop, For) and loop.mapping != "serial" for loop in around
                    ):
                        self._to_workspace(stmt.array)

    def _mapped_anywhere(self, groups: list[Body]) -> bool:
        return any(shares_work(group) or _has_blocks(group) for group in groups)

    def _is_local(self, name: str) -> bool:
        return self.arrays[name].space != "global"

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
        shape = tuple(_text(extent, self.arrays) for extent in array.shape)
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
        if not serial and (shares_work(group) or _has_blocks(group)):
            try:
                self._mapped(group)
                return
            except Unsupported as refusal:
                self.notes.append(f"one thread runs a nest: {refusal}")
        self._serial(group)

    def _writer(self, group: Body, block: tuple[int, int, int]) -> KernelWriter:
        return KernelWriter(
            arrays=dict(self.arrays),
            variable_types=self.types,  # type: ignore[arg-type]
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
        wanted = re.sub(r"\W", "_", f"{self.kernel.name}_{loops[0].source or loops[0].var}" if loops else f"{self.kernel.name}_scalars")
        name, number = wanted, 2
        while name in self.function_names:
            name, number = f"{wanted}_{number}", number + 1
        self.function_names.add(name)
        return name

    def _serial(self, group: Body) -> None:
        writer = self._writer(group, (1, 1, 1))
        shared_as_local = {
            name: replace(array, space="local")
            for name, array in writer.arrays.items()
            if array.space == "shared" and self._constant_bytes(array) <= _LOCAL_LIMIT
        }
        writer.arrays.update(shared_as_local)
        if shared_as_local:
            group = rewrite(
                group,
                lambda stmt: replace(stmt, array=shared_as_local[stmt.array.name])
                if isinstance(stmt, Alloc) and stmt.array.name in shared_as_local
                else None,
            )
        writer.declare_all(_local_allocs(group, writer.arrays))
        for name, stmt in self._top_allocs().items():
            if name not in {"array"} and writer.arrays[name].space != "global" and "array " + name not in writer.names:
                if name in read_arrays(group) | written_arrays(group):
                    writer.declare(stmt)
        writer.body(group, Context(serial=True))
        self._finish(group, writer, ("1", "1", "1"))

    def _top_allocs(self) -> dict[str, Array]:
        return {stmt.array.name: stmt.array for stmt in self.kernel.body if isinstance(stmt, Alloc)}

    def _mapped(self, group: Body) -> None:
        (top,) = group if len(group) == 1 else (None,)
        if top is None:
            raise Unsupported("several top-level statements share one launch")
        shape = self._shape(top)
        self._check_private(top)
        writer = self._writer(group, shape.threads)
        writer.declare_all(_local_allocs(group, writer.arrays))
        grids = {"x": "1", "y": "1", "z": "1"}
        for loop in shape.block_loops:
            axis = loop.mapping.removeprefix("block.")
            count = trip_count(loop)
            if count is None:
                raise Unsupported(f"the step of the {loop.mapping} loop is not constant", loop.loc)
            count = _outermost(count, {item.var: item for item in shape.block_loops})
            grids[axis] = _text(count, self.arrays)
        self._chain(writer, shape)
        if not self.narrow:
            grids = {
                axis: text if axis == "x" else f"min({GRID_LIMIT}, {text})" for axis, text in grids.items()
            }
        self._finish(group, writer, (grids["x"], grids["y"], grids["z"]))

    def _chain(self, writer: KernelWriter, shape: _Shape) -> None:
        """Writes the block loops and what stands between them, then the work of the block."""
        tail: list[tuple[int, str]] = []
        closing: list[str] = []
        for stmt in shape.chain:
            writer.note_scalars(expressions((stmt,)))
            if isinstance(stmt, For):
                axis = stmt.mapping.removeprefix("block.")
                count = trip_count(stmt)
                if count is None:
                    raise InternalError("CUDA code: a block loop without a trip count")
                varies = bool(variables(count) & {loop.var for loop in shape.block_loops})
                position = f"b{axis}"
                if not self.narrow and axis != "x":
                    position = writer.fresh(f"{writer.names[stmt.var]}_block")
                    limit = writer._bound(count, "i64", writer.names[stmt.var] + "_blocks", ())
                    i64 = writer.use("i64")
                    writer.line(f"{position} = {i64}(b{axis})", stmt)
                    writer.line(f"while {position} < {limit}:")
                    writer.depth += 1
                    tail.append((writer.depth, f"{position} = {i64}({position} + {i64}(cuda.gridDim.{axis}))"))
                elif varies:
                    limit = writer._bound(count, "i64", writer.names[stmt.var] + "_blocks", ())
                    writer.line(f"if {writer.use('i64')}({position}) < {limit}:", stmt)
                    writer.depth += 1
                if not self.narrow and axis != "x":
                    writer.facts.enter(stmt)
                    writer.kinds[stmt.var] = "i64"
                    start = writer.expr.signed(stmt.start).operand
                    writer.line(f"{writer.names[stmt.var]} = {writer.use('i64')}({start} + {position} * {writer.expr.signed(stmt.step).operand})")
                else:
                    writer.block_loop(stmt)
            elif isinstance(stmt, If):
                writer.line(f"if {writer.expr.value(stmt.test, Scalar('bool')).text}:", stmt)
                writer.depth += 1
            else:
                writer.statement(stmt, Context())
        writer.body(shape.inner, Context())
        for depth, text in reversed(tail):
            writer.depth = depth
            if writer._threads() > 1:
                writer.line("cuda.syncthreads()")
            writer.line(text)
        writer.depth = 1
        del closing

    def _shape(self, top: Stmt) -> _Shape:
        """Takes the block loops off a nest, and sizes its block."""
        chain: list[Stmt] = []
        loops: list[For] = []
        body: Body = (top,)
        while True:
            inner = [stmt for stmt in body if _has_blocks((stmt,))]
            if not inner:
                break
            rest = [stmt for stmt in body if stmt is not inner[0] and not isinstance(stmt, Alloc)]
            if len(inner) > 1:
                raise Unsupported("two sibling nests are both mapped to blocks", getattr(inner[1], "loc", None))
            stmt = inner[0]
            if any(not isinstance(item, Assign) for item in rest) or (rest and rest[-1] in body[body.index(stmt):]):
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
        return _Shape(tuple(chain), body, tuple(loops), self._threads(body))

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
                    raise Unsupported(f"the scalar {name!r} leaves the loop {stmt.label or stmt.var!r}, whose iterations are threads", stmt.loc)
            declared = {item.array.name for item in walk(stmt.body) if isinstance(item, Alloc)}
            if is_mapped(stmt, "cooperative"):
                continue
            for name in written_arrays(stmt.body) - declared:
                if self.arrays[name].space not in ("global", "shared"):
                    raise Unsupported(f"the array {name!r}, declared outside loop {stmt.label or stmt.var!r}, would be each thread's own", stmt.loc)

    # ------------------------------------------------------------------------------------------ output

    def _finish(self, group: Body, writer: KernelWriter, grid: tuple[str, str, str]) -> None:
        name = self._function_name(group)
        text = "\n".join(writer.lines)
        parameters = tuple(writer.parameters.values())
        head = [f"def {name}({', '.join(parameter.name for parameter in parameters)}):"]
        if group[0] is not None and _location(group[0]) is not None:
            place = _location(group[0])
            head.append(f'    """From line {place.line if place else 0}; grid ({", ".join(grid)}), block {writer.block}."""')
        u32 = "u32"
        threads = writer.block
        needs_tid = re.search(r"\btid\b", text) is not None
        for axis, size in zip("xyz", threads, strict=True):
            if re.search(rf"\bt{axis}\b", text) or (needs_tid and size > 1):
                writer.use(u32)
                head.append(f"    t{axis} = {u32}(cuda.threadIdx.{axis})" if size > 1 else f"    t{axis} = {u32}(0)")
        if needs_tid:
            writer.use(u32)
            head.append(f"    tid = {_linear(threads)}")
        for axis in "xyz":
            if re.search(rf"\bb{axis}\b", text):
                writer.use(u32)
                head.append(f"    b{axis} = {u32}(cuda.blockIdx.{axis})")
        self.functions.append("\n".join(head) + "\n" + text + "\n")
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
            ArrayInfo(array.name, element_of(array.dtype).name, array.rank, array.name in written)
            for array in self.kernel.array_params
        )
        has_status = any(
            parameter.kind == "status" for launch in self.launches for parameter in launch.parameters
        )
        return CudaProgram(
            source=self._source(),
            launches=tuple(self.launches),
            arrays=infos,
            scalars=tuple((param.name, element_of(param.vtype)) for param in self.kernel.scalar_params),
            workspaces=tuple(self.workspaces),
            scalar_results=self.kernel.scalar_results,
            has_status=has_status,
            strict_math=self.kernel.strict_math,
            index_bits=index_bits,
            notes=tuple(self.notes),
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


def _local_allocs(body: Body, placed: dict[str, Array]) -> Body:
    """The declarations in a body, less those that were moved to global memory, as a flat body."""
    return tuple(
        stmt for stmt in walk(body) if isinstance(stmt, Alloc) and placed[stmt.array.name].space != "global"
    )


def _outermost(count: Expr, loops: dict[str, For]) -> Expr:
    """A trip count that depends on outer block counters, bounded by what does not: by `max_trip` there."""
    names = variables(count) & set(loops)
    if not names:
        return count
    raise Unsupported("the trip count of a block loop depends on another block loop", loops[min(names)].loc)


def _text(expr: Expr, placed: dict[str, Array]) -> str:
    """An int64 expression over extents and scalar arguments as plain Python, for the host."""
    if isinstance(expr, Const):
        return repr(int(expr.value))
    if isinstance(expr, Var):
        return expr.name
    if isinstance(expr, Dim):
        shape = placed[expr.array].shape[expr.axis]
        return f"{expr.array}_shape{expr.axis}" if isinstance(shape, Dim) else _text(shape, placed)
    if isinstance(expr, BinOp) and expr.op in ("+", "-", "*", "//", "%", "<<", ">>", "&", "|", "^"):
        return f"({_text(expr.left, placed)} {expr.op} {_text(expr.right, placed)})"
    if isinstance(expr, Call) and expr.function in ("pmin", "pmax", "minimum", "maximum"):
        name = "min" if expr.function in ("pmin", "minimum") else "max"
        return f"{name}({', '.join(_text(arg, placed) for arg in expr.args)})"
    if isinstance(expr, Select):
        return _select_text(expr, placed)
    raise Unsupported(f"a launch cannot be sized by {type(expr).__name__}")


def _select_text(expr: Select, placed: dict[str, Array]) -> str:
    from pyschedule.ir.nodes import Compare

    test = expr.test
    if not isinstance(test, Compare):
        raise Unsupported("a launch cannot be sized by a test that is no comparison")
    left, right = _text(test.left, placed), _text(test.right, placed)
    return f"({_text(expr.then, placed)} if {left} {test.op} {right} else {_text(expr.orelse, placed)})"
