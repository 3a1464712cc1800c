"""One kernel launch as text: statements, and the mapping of loops to blocks, threads and lanes of work.

A nest is written in one of two ways.  *Mapped*: block loops become block indices, thread loops thread
indices, cooperative nests are shared out, and what stands outside all of them is run by every thread (if it
only computes) or by one (if it writes memory).  *Serial*: one thread runs everything as written.  What the
mapped form cannot express exactly raises `Unsupported`, and the caller falls back on the serial one.
"""

from __future__ import annotations

import keyword
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from pyschedule.codegen import loop_markers
from pyschedule.codegen.cuda_integers import Text, held
from pyschedule.codegen.cuda_memory import Accesses
from pyschedule.codegen.cuda_program import POLL_NUMBERS, Parameter
from pyschedule.codegen.ptx_names import SHORT
from pyschedule.codegen.ranges import NARROW_EXTENT, WIDE_EXTENT, Facts
from pyschedule.errors import InternalError, Unsupported
from pyschedule.ir.build import constant
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    Barrier,
    Break,
    Expr,
    For,
    If,
    Location,
    Poll,
    Return,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.types import BOOL, INT64, Scalar, Type, element_of, lanes_of
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
    return any(_is_barrier(stmt) or is_mapped(stmt, "cooperative") for stmt in walk(tuple(body)))


def shares_work(body: Iterable[Stmt]) -> bool:
    return any(
        _is_barrier(stmt) or is_mapped(stmt, "cooperative") or is_mapped(stmt, "thread.")
        for stmt in walk(tuple(body))
    )


def _is_barrier(stmt: Stmt) -> bool:
    return isinstance(stmt, Barrier) or (isinstance(stmt, Poll) and stmt.together)


@dataclass(frozen=True, slots=True)
class Context:
    """Where a statement stands: `serial` code ignores mappings; `covered` are the thread dimensions whose
    threads have work of their own here; `active` are tests that say which threads do, where a barrier below
    kept them from standing around the whole body; `uniform`: all threads of the block get here."""

    serial: bool = False
    covered: frozenset[str] = frozenset()
    active: tuple[str, ...] = ()
    uniform: bool = True


@dataclass
class StatementWriter(ABC):
    """Writes one launch.  `block` gives the thread dimensions (1 where there are none)."""

    arrays: dict[str, Array]
    variable_types: dict[str, Type]
    narrow: bool
    block: tuple[int, int, int]
    written: frozenset[str]
    intrinsics: set[str]
    checks: Mapping[Location, int] = field(default_factory=dict)
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
    strips: set[str] = field(default_factory=set)
    facts: Facts = field(init=False)
    expr: Accesses = field(init=False)

    def __post_init__(self) -> None:
        self.facts = Facts(self.arrays, NARROW_EXTENT if self.narrow else WIDE_EXTENT)
        self.expr = Accesses(
            self.facts,
            self.narrow,
            self.names,
            self.kinds,
            extent=self.extent_parameter,
            stride=self.stride_parameter,
            pointer=self.pointer,
            status=self.status_parameter,
            checks=self.checks,
            readonly=lambda array: array not in self.written,
            use=self.use,
        )
        self.register_arrays = frozenset(array.name for array in self.arrays.values() if array.space == "register")
        for name, kind in self.variable_types.items():
            self.kinds[name] = SHORT[held(element_of(kind)).name]
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

    def control_parameter(self) -> str:
        return self.parameter("control", Parameter("control", "control", Scalar("uint64")))

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
        size = self._bytes(array)
        count = size // element_of(array.dtype).bytes
        where = "shared" if array.space == "shared" else "local"
        if where == "shared":
            self.static_shared = -(-self.static_shared // 16) * 16 + size
        self.line(f"{name} = cuda.{where}.array({count}, {self._stored(array)}, 16)")

    def declare_all(self, arrays: list[Array]) -> None:
        """All local arrays; the shared ones go to dynamic memory if together they exceed 48 KB."""
        shared = [array for array in arrays if array.space == "shared"]
        sizes = [-(-self._bytes(array) // 16) * 16 for array in shared]
        fits = sum(sizes) <= _STATIC_SHARED_LIMIT
        for array in arrays:
            if fits or array.space != "shared":
                self.declare(array)
        if fits:
            return
        offset = 0
        for array, size in zip(shared, sizes, strict=True):
            item = element_of(array.dtype).bytes
            first, count = offset // item, self._bytes(array) // item
            name = self.names["array " + array.name] = self.fresh(array.name)
            self.line(f"{name} = cuda.shared.array(0, {self._stored(array)}, 16)[{first} : {first + count}]")
            offset += size
        self.dynamic_shared = offset

    def _stored(self, array: Array) -> str:
        """The name of the type that a local array holds."""
        element = element_of(array.dtype)
        return self.use("u16" if element.is_half else "u8" if element == BOOL else SHORT[element.name])

    def _bytes(self, array: Array) -> int:
        count = lanes_of(array.dtype) * element_of(array.dtype).bytes
        for extent in array.shape:
            value = constant(extent)
            if value is None:
                raise Unsupported(f"the local array {array.name!r} has a run-time extent", array.loc)
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
            barriers = one_thread and context.uniform and not context.active and self.threads_in_block > 1
            if barriers:  # what other threads wrote before is complete, and they wait for what this one writes
                self.barrier()
            self.line(f"if {' and '.join(guard)}:")
            self.depth += 1
            inner = replace(context, active=(), uniform=False)
            if one_thread:
                inner = replace(inner, covered=frozenset("xyz"))
            for item in group:
                self.statement(item, inner)
            self.depth -= 1
            if barriers:
                self.barrier()
            wrote = True
            index += len(group)
        if not wrote:
            self.line("pass")

    @property
    def threads_in_block(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    def _missing(self, context: Context) -> list[str]:
        """The thread dimensions of the block whose threads would all do the same here."""
        return [
            axis for axis, size in zip("xyz", self.block, strict=True) if size > 1 and axis not in context.covered
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

    def barrier(self) -> None:
        """All threads of the block meet; twice in a row is once."""
        text = "    " * self.depth + "cuda.syncthreads()"
        if not self.lines or self.lines[-1] != text:
            self.lines.append(text)

    def statement(self, stmt: Stmt, context: Context) -> None:
        self.note_scalars(part for part in expressions((stmt,)))
        if isinstance(stmt, For):
            self.loop(stmt, context)
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
                self.barrier()
        elif isinstance(stmt, Poll):
            self._poll(stmt, context)
        elif isinstance(stmt, Alloc):
            pass
        else:
            raise InternalError(f"CUDA code: no form of {type(stmt).__name__}")

    @abstractmethod
    def loop(self, loop: For, context: Context) -> None:
        """A loop, by its mapping."""

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
            offset = self.expr.offset(array, stmt.indices).text
            if array.space == "global":
                typed = self.expr.typed_text(value_text, SHORT[held(element).name])
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
        self.marker(stmt.unroll)
        self.depth -= 1

    def _return(self, stmt: Return) -> None:
        for position, (value, dtype) in enumerate(zip(stmt.values, self.result_types, strict=True)):
            target = self.parameter("results", Parameter("results_", "results", Scalar("uint64")))
            element = held(dtype)
            offset = position * 8 // element.bytes
            text = self.expr.typed_text(self.expr.value(value, dtype), SHORT[element.name])
            self.line(
                f"{self.use('store_' + SHORT[element.name])}({target}, {self.use('u64')}({offset}), {text})", stmt
            )
        self.line("return", stmt)

    def stop_test(self, together: bool) -> str:
        """The test whether this thread is to stop: all threads of the block at once, or each when it sees it."""
        seen = f"{self.use('stop_requested')}({self.control_parameter()})"
        return f"cuda.syncthreads_or({seen}) != 0" if together else f"{seen} != 0"

    def _poll(self, stmt: Poll, context: Context) -> None:
        together = stmt.together and not context.serial
        if together and not context.uniform:
            raise Unsupported("threads leave together where not all of them come")
        self.line(f"if {self.stop_test(together)}:", stmt)
        self.depth += 1
        if stmt.body:
            self.body(stmt.body, replace(context, active=(), uniform=False))
        told = self.use("i64") + f"({stmt.number})"
        if stmt.values:
            first = sum(place.count("{}") for place in stmt.places[:-1])
            told = f"{self.expr.signed(stmt.values[first]).operand} * {POLL_NUMBERS} + {told}"
        self.line(f"{self.use('store_i64')}({self.control_parameter()}, {self.use('u64')}(1), {told})")
        self.line("return")
        self.depth -= 1

    def marker(self, unroll: int) -> None:
        if unroll != 0:
            self.line(f"{self.use(loop_markers.marker_name(unroll))}()")


def reads(body: Body, name: str) -> int:
    """How often a body reads a variable."""
    return sum(isinstance(part, Var) and part.name == name for part in expressions(body))
