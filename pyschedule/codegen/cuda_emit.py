"""One kernel launch as text: statements, and the mapping of loops to blocks, threads and lanes of work.

A nest is written in one of two ways.  *Mapped*: block loops become block indices, thread loops thread
indices, cooperative nests are shared out, and what stands outside all of them is run by every thread (if it
only computes) or by one (if it writes memory).  *Serial*: one thread runs everything as written.  What the
mapped form cannot express exactly raises `Unsupported`, and the caller falls back on the serial one.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from pyschedule.codegen import loop_markers
from pyschedule.codegen.cuda_expr import Expressions, Text, held
from pyschedule.codegen.cuda_program import Parameter
from pyschedule.codegen.cuda_ranges import NARROW_EXTENT, WIDE_EXTENT, Facts, constant_trip, fits_u32, trip_count
from pyschedule.codegen.ptx_names import SHORT
from pyschedule.errors import InternalError, Unsupported
from pyschedule.ir.build import constant
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    Barrier,
    Break,
    Const,
    Expr,
    For,
    If,
    Load,
    Return,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.types import BOOL, INT64, Scalar, element_of, lanes_of
from pyschedule.ir.visitors import (
    Body,
    expressions,
    variables,
    walk,
    walk_expr,
    written_arrays,
    written_variables,
)

_RESERVED: Final = frozenset(
    {"cuda", "libdevice", "math", "range", "min", "max", "status", "results", "True", "False", "None"}
    | {"tx", "ty", "tz", "bx", "by", "bz", "tid", "splat", "ramp", "types", *SHORT.values()}
)
#: Full unrolling is asked for by itself where a register array is indexed and the loop is at most this long.
_REGISTER_UNROLL_LIMIT: Final = 64
#: A cooperative nest of constant size is unrolled up to this many rounds.
_ROUNDS_UNROLLED: Final = 16
_STATIC_SHARED_LIMIT: Final = 48 << 10


def is_mapped(loop: Stmt, prefix: str) -> bool:
    return isinstance(loop, For) and loop.mapping.startswith(prefix)


def synchronises(body: Iterable[Stmt]) -> bool:
    """Whether all threads of a block must reach what is in a body."""
    return any(isinstance(stmt, Barrier) or is_mapped(stmt, "cooperative") for stmt in walk(tuple(body)))


def shares_work(body: Iterable[Stmt]) -> bool:
    return any(
        isinstance(stmt, Barrier) or is_mapped(stmt, "cooperative") or is_mapped(stmt, "thread.")
        for stmt in walk(tuple(body))
    )


@dataclass(frozen=True, slots=True)
class Context:
    """Where a statement stands: `serial` code ignores mappings; `covered` are the thread dimensions whose
    threads have work of their own here; `active` are tests that say which threads do, where a barrier below
    kept them from standing around the whole body; `uniform`: all threads of the block get here."""

    serial: bool = False
    covered: frozenset[str] = frozenset()
    active: tuple[str, ...] = ()
    uniform: bool = True


@dataclass(slots=True)
class KernelWriter:
    """Writes one launch.  `block` gives the thread dimensions (1 where there are none)."""

    arrays: dict[str, Array]
    variable_types: dict[str, Scalar]
    narrow: bool
    block: tuple[int, int, int]
    written: frozenset[str]
    intrinsics: set[str]
    scalar_params: frozenset[str] = frozenset()
    launch: Body = ()
    result_types: tuple[Scalar, ...] = ()
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    parameters: dict[str, Parameter] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    static_shared: int = 0
    dynamic_shared: int = 0
    register_arrays: frozenset[str] = frozenset()
    used: set[str] = field(default_factory=set)
    last_line: int = 0
    thread_varying: set[str] = field(default_factory=set)
    facts: Facts = field(init=False)
    expr: Expressions = field(init=False)

    def __post_init__(self) -> None:
        self.facts = Facts(self.arrays, NARROW_EXTENT if self.narrow else WIDE_EXTENT)
        self.expr = Expressions(
            self.facts,
            self.narrow,
            self.names,
            self.kinds,
            extent=self.extent_parameter,
            stride=self.stride_parameter,
            pointer=self.pointer,
            status=self.status_parameter,
            readonly=lambda array: array not in self.written,
            use=self.use,
        )
        self.register_arrays = frozenset(
            array.name for array in self.arrays.values() if array.space == "register"
        )
        for name, kind in self.variable_types.items():
            self.kinds[name] = SHORT[held(kind).name]
            self.names[name] = self.fresh(name)

    # ----------------------------------------------------------------------------------------- names

    def fresh(self, wanted: str) -> str:
        name = "".join(letter if letter.isalnum() or letter == "_" else "_" for letter in wanted)
        if not name or name[0].isdigit():
            name = "_" + name
        while name in self.used or name in _RESERVED or keyword.iskeyword(name):
            name += "_"
        self.used.add(name)
        return name

    def use(self, name: str) -> str:
        self.intrinsics.add(name)
        return name

    def parameter(self, key: str, made: Parameter) -> str:
        if key not in self.parameters:
            self.parameters[key] = replace(made, name=self.fresh(made.name))
        return self.parameters[key].name

    def extent_parameter(self, array: str, axis: int) -> str:
        kind = Scalar("uint32") if self.narrow else INT64
        return self.parameter(
            f"extent {array} {axis}", Parameter(f"{array}_shape{axis}", "extent", kind, array, axis)
        )

    def stride_parameter(self, array: str, axis: int) -> str:
        kind = Scalar("uint32") if self.narrow else INT64
        return self.parameter(
            f"stride {array} {axis}", Parameter(f"{array}_stride{axis}", "stride", kind, array, axis)
        )

    def pointer(self, array: str) -> str:
        if self.arrays[array].space == "global":
            return self.parameter(f"pointer {array}", Parameter(array, "pointer", Scalar("uint64"), array))
        return self.names["array " + array]

    def status_parameter(self) -> str:
        return self.parameter("status", Parameter("status_word", "status", Scalar("uint64")))

    def note_scalars(self, exprs: Iterable[Expr]) -> None:
        """Makes parameters of the scalar arguments that are read."""
        for expr in exprs:
            if isinstance(expr, Var) and expr.name in self.scalar_params and expr.name not in self.parameters:
                kind = held(element_of(expr.vtype))
                self.parameters[expr.name] = Parameter(self.names[expr.name], "scalar", kind, expr.name)

    # ----------------------------------------------------------------------------------------- lines

    def line(self, text: str, stmt: Stmt | None = None) -> None:
        """Adds a line, with the user's line number where that changes."""
        loc = getattr(stmt, "loc", None)
        note = ""
        if loc is not None and loc.line and loc.line != self.last_line:
            note = f"  # line {loc.line}"
            self.last_line = loc.line
        self.lines.append("    " * self.depth + text + note)

    # ---------------------------------------------------------------------------------------- arrays

    def declare(self, array: Array) -> None:
        """A local array at the head of the function: memory is hoisted, lifetimes are not."""
        name = self.fresh(array.name)
        self.names["array " + array.name] = name
        element = element_of(array.dtype)
        count = lanes_of(array.dtype)
        for extent in array.shape:
            value = constant(extent)
            if value is None:
                raise Unsupported(f"the local array {array.name!r} has a run-time extent", array.loc)
            count *= value
        count = max(count, 1)
        stored = "u16" if element.is_half else "u8" if element == BOOL else SHORT[element.name]
        dtype = self.use(stored)
        size = count * element.bytes
        if array.space != "shared":
            self.line(f"{name} = cuda.local.array({count}, {dtype}, 16)")
            return
        start = -(-self.static_shared // 16) * 16
        self.static_shared = start + size
        self.line(f"{name} = cuda.shared.array({count}, {dtype}, 16)")

    def declare_all(self, body: Body) -> None:
        """All `Alloc`s of a body; shared ones go to dynamic memory if together they exceed 48 KB."""
        arrays = [stmt.array for stmt in walk(body) if isinstance(stmt, Alloc)]
        shared = [array for array in arrays if array.space == "shared"]
        sizes = [-(-self._bytes(array) // 16) * 16 for array in shared]
        if sum(sizes) <= _STATIC_SHARED_LIMIT:
            for array in arrays:
                self.declare(array)
            return
        for array in arrays:
            if array.space != "shared":
                self.declare(array)
        offset = 0
        for array, size in zip(shared, sizes, strict=True):
            element = element_of(array.dtype)
            stored = self.use("u16" if element.is_half else "u8" if element == BOOL else SHORT[element.name])
            name = self.fresh(array.name)
            self.names["array " + array.name] = name
            first = offset // element.bytes
            count = self._bytes(array) // element.bytes
            self.line(f"{name} = cuda.shared.array(0, {stored}, 16)[{first} : {first + count}]")
            offset += size
        self.dynamic_shared = offset

    def _bytes(self, array: Array) -> int:
        count = lanes_of(array.dtype) * element_of(array.dtype).bytes
        for extent in array.shape:
            value = constant(extent)
            if value is None:
                raise Unsupported(f"the shared array {array.name!r} has a run-time extent", array.loc)
            count *= value
        return max(count, 16)

    # ------------------------------------------------------------------------------------ statements

    def body(self, stmts: Body, context: Context) -> None:
        """Writes statements; neighbours that need the same guard share it."""
        index = 0
        wrote = False
        while index < len(stmts):
            stmt = stmts[index]
            if isinstance(stmt, Alloc):
                index += 1
                continue
            guard = self._guard(stmt, context)
            if not guard:
                self.statement(stmt, context)
                wrote = True
                index += 1
                continue
            group = [stmt]
            while index + len(group) < len(stmts) and self._guard(stmts[index + len(group)], context) == guard:
                group.append(stmts[index + len(group)])
            if guard != context.active:
                self._check_one_thread(group)
            one_thread = guard != context.active
            barriers = one_thread and context.uniform and not context.active and self._threads() > 1
            if barriers:  # what other threads wrote before is complete, and they wait for what this one writes
                self.line("cuda.syncthreads()")
            self.line(f"if {' and '.join(guard)}:")
            self.depth += 1
            inner = replace(context, active=(), uniform=False)
            if one_thread:
                inner = replace(inner, covered=frozenset("xyz"))
            for item in group:
                self.statement(item, inner)
            self.depth -= 1
            if barriers:
                self.line("cuda.syncthreads()")
            wrote = True
            index += len(group)
        if not wrote:
            self.line("pass")

    def _threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    def _missing(self, context: Context) -> list[str]:
        """The thread dimensions of the block whose threads would all do the same here."""
        return [
            axis
            for axis, size in zip("xyz", self.block, strict=True)
            if size > 1 and axis not in context.covered
        ]

    def _guard(self, stmt: Stmt, context: Context) -> tuple[str, ...]:
        """The tests under which a statement runs that shares no work itself; empty where every thread runs it."""
        if context.serial or isinstance(stmt, Alloc) or shares_work((stmt,)):
            return ()
        shared_memory = {
            name for name in written_arrays((stmt,)) if self.arrays[name].space in ("global", "shared")
        }
        tests = context.active
        if shared_memory:
            tests += tuple(f"t{axis} == {self.use('u32')}(0)" for axis in self._missing(context))
        return tests

    def _check_one_thread(self, group: list[Stmt]) -> None:
        """A statement that one thread runs must not compute what the others need."""
        assigned = written_variables(tuple(group))
        needed = sorted(name for name in assigned if reads(self.launch, name) > reads(tuple(group), name))
        if needed:
            raise Unsupported(
                f"{', '.join(needed)}: computed by one thread, needed by all", getattr(group[0], "loc", None)
            )

    def statement(self, stmt: Stmt, context: Context) -> None:
        self.note_scalars(part for part in expressions((stmt,)))
        if isinstance(stmt, For):
            self._loop(stmt, context)
        elif isinstance(stmt, Assign):
            self._assign(stmt, context)
        elif isinstance(stmt, Store):
            self._store(stmt)
        elif isinstance(stmt, If):
            self._if(stmt, context)
        elif isinstance(stmt, While):
            self._while(stmt, context)
        elif isinstance(stmt, Break):
            self.line("break", stmt)
        elif isinstance(stmt, Return):
            self._return(stmt)
        elif isinstance(stmt, Barrier):
            if not context.serial:
                if not context.uniform:
                    raise Unsupported("a barrier that not all threads of the block reach")
                self.line("cuda.syncthreads()")
        elif isinstance(stmt, Alloc):
            pass
        else:
            raise InternalError(f"CUDA code: no form of {type(stmt).__name__}")

    def _assign(self, stmt: Assign, context: Context) -> None:
        if context.covered or variables(stmt.value) & self.thread_varying:
            self.thread_varying.add(stmt.target)
        target = self.names[stmt.target]
        lanes = lanes_of(stmt.vtype)
        element = element_of(stmt.vtype)
        if lanes > 1:
            self.line(f"{target} = {self.expr.lanes(stmt.value, element, lanes)}", stmt)
            return
        if held(element) == INT64 and stmt.target not in self.facts.intervals:
            self.facts.intervals[stmt.target] = (-(1 << 63), (1 << 63) - 1)
        self.line(f"{target} = {self.typed(self.expr.value(stmt.value, element), element)}", stmt)

    def typed(self, text: Text, dtype: Scalar) -> str:
        """An integer literal that starts a variable gets its cast, so that the variable has one type."""
        kind = SHORT[held(dtype).name]
        if kind == "i64" and text.text.lstrip("-").isdigit():
            return f"{self.use('i64')}({text.text})"
        return text.text

    def _store(self, stmt: Store) -> None:
        array = self.arrays[stmt.array]
        element = element_of(array.dtype)
        lanes = max([lanes_of(array.dtype), *(lanes_of(index.type) for index in stmt.indices)])
        if stmt.mask is not None and lanes == 1:
            lanes = lanes_of(stmt.mask.type)
        base = self.pointer(array.name)
        tests = [f"{self.expr.value(stmt.mask, BOOL).operand}"] if stmt.mask is not None and lanes == 1 else []
        mask = stmt.mask if lanes > 1 else None
        mask_text = self.expr.lanes(mask, BOOL, lanes) if mask is not None else ""
        for index in stmt.indices:
            for part in walk_expr(index):
                if getattr(part, "function", "") == "checked_index":
                    given, extent = part.args  # type: ignore[attr-defined]
                    i64 = self.use("i64")
                    limit = f"{i64}({self.expr.signed(extent).text})"
                    if lanes_of(given.type) > 1:
                        test = f"{self.use('in_range')}({self.expr.lanes(given, INT64, lanes)}, {limit})"
                        mask_text = f"{self.use('vand')}({mask_text}, {test})" if mask_text else test
                    else:
                        tests.append(f"{self.use('in_range')}({i64}({self.expr.signed(given).text}), {limit})")
        if tests:
            self._note_bad_indices(stmt)
            self.line(f"if {' and '.join(tests)}:", stmt)
            self.depth += 1
        if lanes > 1:
            value = self.expr.lanes(stmt.value, element, lanes)
            name, offset = self.expr.access(array, stmt.indices, lanes, True, bool(mask_text))
            tail = f", {mask_text}" if mask_text else ""
            self.line(f"{self.use(str(name))}({base}, {offset}, {value}{tail})", stmt)
        else:
            value_text = self.expr.value(stmt.value, element)
            offset = self.expr._offset(array, stmt.indices).text
            if array.space == "global":
                typed = self.expr._typed(value_text, SHORT[held(element).name])
                self.line(f"{self.use('store_' + SHORT[element.name])}({base}, {offset}, {typed})", stmt)
            else:
                self.line(f"{base}[{offset}] = {self.expr.to_storage(array, value_text)}", stmt)
        if tests:
            self.depth -= 1

    def _note_bad_indices(self, stmt: Store) -> None:
        """Sets the status word for an index out of range, before the store is skipped."""
        for index in stmt.indices:
            if any(getattr(part, "function", "") == "checked_index" for part in walk_expr(index)) and (
                lanes_of(index.type) == 1
            ):
                self.line(f"_ = {self.expr.exact(index).text}", stmt)

    def _if(self, stmt: If, context: Context) -> None:
        work = shares_work(stmt.body) or shares_work(stmt.orelse)
        if work and not context.serial and variables(stmt.test) & self.thread_varying:
            raise Unsupported("threads share work below a test that differs between them", stmt.loc)
        self.line(f"if {self.expr.value(stmt.test, BOOL).text}:", stmt)
        self.depth += 1
        self.body(stmt.body, context)
        self.depth -= 1
        if stmt.orelse:
            self.line("else:")
            self.depth += 1
            self.body(stmt.orelse, context)
            self.depth -= 1

    def _while(self, stmt: While, context: Context) -> None:
        if not context.serial and shares_work(stmt.body):
            raise Unsupported("threads share work below a while loop", stmt.loc)
        self.line(f"while {self.expr.value(stmt.test, BOOL).text}:", stmt)
        self.depth += 1
        self.body(stmt.body, context)
        self._marker(stmt.unroll)
        self.depth -= 1

    def _return(self, stmt: Return) -> None:
        for position, (value, dtype) in enumerate(zip(stmt.values, self.result_types, strict=True)):
            target = self.parameter("results", Parameter("results_", "results", Scalar("uint64")))
            element = held(dtype)
            offset = position * 8 // element.bytes
            text = self.expr._typed(self.expr.value(value, dtype), SHORT[element.name])
            self.line(f"{self.use('store_' + SHORT[element.name])}({target}, {self.use('u64')}({offset}), {text})", stmt)
        self.line("return", stmt)

    # ----------------------------------------------------------------------------------------- loops

    def _marker(self, unroll: int) -> None:
        if unroll != 0:
            self.line(f"{self.use(loop_markers.marker_name(unroll))}()")

    def _loop(self, loop: For, context: Context) -> None:
        if context.serial or loop.mapping in ("serial", "parallel"):
            self._serial_loop(loop, context)
        elif loop.mapping.startswith("thread."):
            self._thread_loop(loop, context)
        elif loop.mapping == "cooperative":
            self._cooperative(loop, context)
        else:
            raise Unsupported(f"the {loop.mapping} loop {loop.label or loop.var!r} is inside other work", loop.loc)

    def _unroll_of(self, loop: For) -> int:
        """What the loop asks for; a short constant loop that indexes registers is unrolled in any case."""
        if loop.unroll != 0:
            return loop.unroll
        trip = constant_trip(loop)
        if trip is None or trip > _REGISTER_UNROLL_LIMIT:
            return 0
        for stmt in walk(loop.body):
            if isinstance(stmt, Store) and stmt.array in self.register_arrays:
                if any(loop.var in variables(index) for index in stmt.indices):
                    return -1
        for part in expressions(loop.body):
            if isinstance(part, Load) and part.array in self.register_arrays:
                if any(loop.var in variables(index) for index in part.indices):
                    return -1
        return 0

    def _bound(self, expr: Expr, kind: str, name: str, body: Body) -> str:
        """A loop's stop as text that can be evaluated again: a name or a number."""
        if kind == "u32" and self.facts.interval(expr)[0] < 0:
            text = Text(f"{self.use('u32')}({self.use('pmax')}({self._i64(expr)}, {self.use('i64')}(0)))", "u32", True)
        else:
            text = self.expr.as_kind(expr, kind)
        changes = variables(expr) & (written_variables(body))
        if not changes and (text.text.isidentifier() or isinstance(expr, Const)):
            return text.text
        stop = self.fresh(name + "_stop")
        self.line(f"{stop} = {self.typed(text, INT64) if kind == 'i64' else text.text}")
        return stop

    def _i64(self, expr: Expr) -> str:
        return f"{self.use('i64')}({self.expr.signed(expr).text})"

    def _counts_in_u32(self, loop: For) -> bool:
        step = constant(loop.step)
        if step is None or step <= 0:
            return False
        return self.facts.interval(loop.start)[0] >= 0 and (
            max(self.facts.interval(loop.stop)[1], self.facts.interval(loop.start)[1]) + step < 1 << 32
        )

    def _serial_loop(self, loop: For, context: Context) -> None:
        work = not context.serial and shares_work(loop.body)
        bounds = variables(loop.start) | variables(loop.stop) | variables(loop.step)
        if work and bounds & self.thread_varying and synchronises(loop.body):
            raise Unsupported(f"threads meet in loop {loop.label or loop.var!r}, whose bounds differ between them", loop.loc)
        name = self.names[loop.var]
        trip = constant_trip(loop)
        counts = self._counts_in_u32(loop)
        unroll = self._unroll_of(loop)
        if bounds & self.thread_varying:
            self.thread_varying.add(loop.var)
        if trip is not None:
            start, stop, step = constant(loop.start) or 0, constant(loop.stop) or 0, constant(loop.step) or 1
            kind = "u64" if min(start, stop) >= 0 and step > 0 else "i64"
            cast = f"{self.use('u64')}({{}})" if kind == "u64" else "{}"
            numbers = [stop] if (start, step) == (0, 1) else [start, stop] if step == 1 else [start, stop, step]
            head = f"for {name} in range({', '.join(cast.format(number) for number in numbers)}):"
        elif counts:
            kind = "u32"
            stop_text = self._bound(loop.stop, "u32", name, loop.body)
            self.line(f"{name} = {self.expr.as_kind(loop.start, 'u32').text}", loop)
            head = f"while {name} < {stop_text}:"
        else:
            kind = "i64"
            texts = [self._i64(part) for part in (loop.start, loop.stop, loop.step)]
            head = f"for {name} in range({', '.join(texts)}):"
        self.kinds[loop.var] = kind
        self.facts.enter(loop)
        self.line(head, loop)
        self.depth += 1
        self.body(loop.body, context)
        if kind == "u32":
            step_text = self.expr.as_kind(loop.step, "u32").text
            self.line(f"{name} = {self.use('u32')}({name} + {step_text})")
        self._marker(unroll)
        self.depth -= 1

    def block_loop(self, loop: For) -> None:
        """The counter of a block loop from the block's index; written once, at the head of the kernel."""
        axis = loop.mapping.removeprefix("block.")
        self._place_counter(loop, f"b{axis}")

    def _place_counter(self, loop: For, position: str) -> None:
        """`var = start + position * step`, where `position` is the number of the iteration, a `u32`."""
        name = self.names[loop.var]
        self.facts.enter(loop)
        kind = "u32" if fits_u32(self.facts.interval(loop.counter)) else "i64"
        start, step = constant(loop.start), constant(loop.step)
        cast = self.use(kind)
        if start == 0 and step == 1:
            text = position if kind == "u32" else f"{cast}({position})"
        else:
            scaled = position if step == 1 else f"{position} * {cast}({step})" if kind == "u32" else f"{cast}({position}) * {step}"
            first = self.expr.as_kind(loop.start, kind)
            text = f"{cast}({scaled})" if start == 0 else f"{cast}({first.operand} + {scaled})"
        self.kinds[loop.var] = kind
        if text != name:
            self.line(f"{name} = {text}", loop)

    def _thread_loop(self, loop: For, context: Context) -> None:
        axis = loop.mapping.removeprefix("thread.")
        if axis in context.covered:
            raise Unsupported(f"two nested loops are mapped to {loop.mapping}", loop.loc)
        if not context.uniform and synchronises(loop.body):
            raise Unsupported("threads meet below a test that differs between them", loop.loc)
        size = self.block["xyz".index(axis)]
        trip = constant_trip(loop)
        most = trip if trip is not None else loop.max_trip
        count = trip_count(loop)
        if count is None:
            raise Unsupported(f"the step of the {loop.mapping} loop is not constant", loop.loc)
        self.thread_varying.add(loop.var)
        meets = synchronises(loop.body)
        inner = replace(context, covered=context.covered | {axis}, uniform=context.uniform and meets)
        position = f"t{axis}"
        if trip == size:
            self._place_counter(loop, position)
            self.body(loop.body, inner)
            return
        limit = self._bound(count, "u32", self.names[loop.var] + "_trips", loop.body) if (
            self.facts.interval(count)[1] < 1 << 32
        ) else None
        if limit is None:
            raise Unsupported(f"the {loop.mapping} loop may have 2**32 iterations or more", loop.loc)
        if most is not None and most <= size:
            if meets:
                self._place_counter(loop, position)
                self.body(loop.body, replace(inner, active=(*context.active, f"{position} < {limit}")))
                return
            self.line(f"if {position} < {limit}:", loop)
            self.depth += 1
            self._place_counter(loop, position)
            self.body(loop.body, inner)
            self.depth -= 1
            return
        turn = self.fresh(self.names[loop.var] + "_turn")
        u32 = self.use("u32")
        if meets:  # all threads go through the same rounds, whether or not they have an iteration in each
            self.line(f"{turn} = {u32}(0)", loop)
            self.line(f"while {turn} < {limit}:")
            self.depth += 1
            mine = self.fresh(self.names[loop.var] + "_mine")
            self.line(f"{mine} = {u32}({turn} + {position})")
            self._place_counter(loop, mine)
            self.body(loop.body, replace(inner, active=(*context.active, f"{mine} < {limit}")))
        else:
            self.line(f"{turn} = {position}", loop)
            self.line(f"while {turn} < {limit}:")
            self.depth += 1
            self._place_counter(loop, turn)
            self.body(loop.body, inner)
        self.line(f"{turn} = {u32}({turn} + {u32}({size}))")
        self.depth -= 1

    def _cooperative(self, loop: For, context: Context) -> None:
        if not context.uniform:
            raise Unsupported("a cooperative nest that not all threads of the block reach", loop.loc)
        nest = [loop]
        while len(nest[-1].body) == 1 and is_mapped(nest[-1].body[0], "cooperative"):
            nest.append(nest[-1].body[0])  # type: ignore[arg-type]
        body = nest[-1].body
        if any(is_mapped(stmt, "cooperative") or is_mapped(stmt, "thread.") for stmt in walk(body)):
            raise Unsupported("a cooperative nest is not perfect", loop.loc)
        read = {part.name for part in expressions((loop,)) if isinstance(part, Var)}
        if read & self.thread_varying:
            raise Unsupported(
                f"a cooperative nest depends on {', '.join(sorted(read & self.thread_varying))}, which is a thread's own",
                loop.loc,
            )
        extents, limits = self._cooperative_extents(nest)
        total = 1
        constant_total = all(isinstance(extent, int) for extent in extents)
        threads = self._threads()
        u32 = self.use("u32")
        inner = Context(covered=frozenset("xyz"), uniform=False)
        self.thread_varying.update(item.var for item in nest)
        turn = self.fresh("turn")
        if constant_total:
            for extent in extents:
                total *= int(extent)
            rounds = -(-total // threads) if total else 0
            if rounds == 0:
                return
            if rounds > 1:
                counter = self.fresh("round")
                self.line(f"for {counter} in range({self.use('u64')}({rounds})):", loop)
                self.depth += 1
                self.line(f"{turn} = {u32}(tid + {u32}({counter}) * {u32}({threads}))")
            else:
                self.line(f"{turn} = tid", loop)
            guarded = total % threads != 0
            if guarded:
                self.line(f"if {turn} < {u32}({total}):")
                self.depth += 1
            self._cooperative_body(nest, extents, limits, turn, body, inner)
            if guarded:
                self.depth -= 1
            if rounds > 1:
                self._marker(-1 if rounds <= _ROUNDS_UNROLLED else 0)
                self.depth -= 1
            return
        product = " * ".join(f"{u32}({extent})" if isinstance(extent, int) else extent for extent in extents)
        total_name = self.fresh("turns")
        self.line(f"{total_name} = {u32}({product})", loop)
        self.line(f"{turn} = tid")
        self.line(f"while {turn} < {total_name}:")
        self.depth += 1
        self._cooperative_body(nest, extents, limits, turn, body, inner)
        self.line(f"{turn} = {u32}({turn} + {u32}({threads}))")
        self.depth -= 1

    def _cooperative_extents(self, nest: list[For]) -> tuple[list[int | str], list[str | None]]:
        """Per loop: how far its number runs (a constant wherever one bounds it), and, where that is more than
        the trip count, the name of the trip count."""
        extents: list[int | str] = []
        limits: list[str | None] = []
        counters = {item.var for item in nest}
        for item in nest:
            trip, count = constant_trip(item), trip_count(item)
            if trip is not None:
                extents.append(trip)
                limits.append(None)
                continue
            if count is None or (variables(count) & counters):
                raise Unsupported(f"the trip count of the cooperative loop {item.label or item.var!r} varies", item.loc)
            if self.facts.interval(count)[1] >= 1 << 32:
                raise Unsupported(f"the cooperative loop {item.label or item.var!r} may be too long", item.loc)
            limit = self._bound(count, "u32", self.names[item.var] + "_trips", ())
            if item.max_trip is not None:
                extents.append(item.max_trip)
                limits.append(limit)
            else:
                extents.append(limit)
                limits.append(None)
        if sum(isinstance(extent, str) for extent in extents) > 1:
            raise Unsupported("a cooperative nest with two unbounded loops", nest[0].loc)
        return extents, limits

    def _cooperative_body(
        self,
        nest: list[For],
        extents: list[int | str],
        limits: list[str | None],
        turn: str,
        body: Body,
        inner: Context,
    ) -> None:
        """Splits the number of the turn into one number a loop, innermost fastest, and writes the body."""
        u32 = self.use("u32")
        positions: list[str] = [""] * len(nest)
        rest = turn
        for level in range(len(nest) - 1, 0, -1):
            extent = extents[level]
            size = f"{u32}({extent})" if isinstance(extent, int) else extent
            positions[level] = self.fresh(self.names[nest[level].var] + "_turn")
            self.line(f"{positions[level]} = {u32}({rest} % {size})")
            outer = self.fresh("rest") if level > 1 else self.fresh(self.names[nest[0].var] + "_turn")
            self.line(f"{outer} = {u32}({rest} // {size})")
            rest = outer
        positions[0] = rest
        tests = [f"{position} < {limit}" for position, limit in zip(positions, limits, strict=True) if limit]
        if tests:
            self.line(f"if {' and '.join(tests)}:")
            self.depth += 1
        for item, position in zip(nest, positions, strict=True):
            self._place_counter(item, position)
        self.body(body, inner)
        if tests:
            self.depth -= 1


def reads(body: Body, name: str) -> int:
    """How often a body reads a variable."""
    return sum(isinstance(part, Var) and part.name == name for part in expressions(body))
