"""The CPU back end: a kernel at any stage as the text of a Python module that Numba compiles.

Every array access is an element offset from the array's data pointer, spelled out (`i*A_s0 + k`): strides are
read once at entry, in elements, and nothing is bounds-checked.  Vector expressions become the functions and
operators of `codegen.simd`.  A parallel loop becomes three functions: the loop over a contiguous range of
iterations, a small driver that shares the ranges among threads, and the call of the driver.

Half arrays are received as `uint16` arrays; `Array.dtype` says what the words mean.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace

from pyschedule.codegen import outline
from pyschedule.codegen.cpu_memory import MemoryWriter
from pyschedule.codegen.emitter import INDENT
from pyschedule.codegen.names import Names
from pyschedule.codegen.program import Program
from pyschedule.codegen.shares import Shares, shares_of
from pyschedule.codegen.words import NUMBA_NAMES, SIMD_NAMES
from pyschedule.errors import InternalError
from pyschedule.ir.nodes import Array, Const, For, Kernel, Poll, Return, Var
from pyschedule.ir.visitors import contains, loops
from pyschedule.schedule.targets import Target

_MATH_NAMES = frozenset({"inf", "nan"})
_OWN_NAMES = frozenset({"OPTIONS", "PART", "np"})


def generate(kernel: Kernel, target: Target, *, parallel: bool, cache: bool = False) -> Program:
    """The module for `kernel`.

    `parallel` gives the iterations of `For(mapping="parallel")` to threads; otherwise they run in order.
    `cache` makes Numba keep the machine code beside the file that the text is imported from.
    """
    if target.kind != "cpu":
        raise InternalError(f"the CPU back end was asked for {target}")
    module = _Module(kernel, target, parallel, cache)
    module.write()
    return Program(module.text(), module.entry, module.threaded)


class _Module:
    """The functions of one kernel, and the names they share."""

    def __init__(self, kernel: Kernel, target: Target, parallel: bool, cache: bool) -> None:
        self.kernel = kernel
        self.target = target
        self.parallel = parallel
        self.cache = cache
        self.names = Names(NUMBA_NAMES | SIMD_NAMES | _MATH_NAMES | _OWN_NAMES)
        self.entry = self.names.fresh(kernel.name)
        self.used: set[str] = set()
        self.functions: list[str] = []
        self.threaded = False
        self.live_after = outline.live_after(kernel) if parallel else {}
        self.outlined: dict[str, str] = {}  # the functions of parallel loops, by the loops' counters
        self._shares: dict[str, Shares] = {}

    def shares_of(self, loop: For) -> Shares:
        """How a parallel loop is shared out: decided once, so that its body is the same wherever it is written."""
        if loop.var not in self._shares:
            self._shares[loop.var] = shares_of(loop)
        return self._shares[loop.var]

    @property
    def control(self) -> str:
        """The name of the control array of the call."""
        return self.names.of("local", "control")

    def write(self) -> None:
        entry = CpuWriter(self, in_thread=False)
        params = [entry.parameter(param) for param in self.kernel.params]
        if contains(self.kernel.body, Poll):
            params.append(self.control)
        entry.body(self.kernel.body)
        entry.fence()
        self.functions.append(entry.definition(self.entry, params))

    def text(self) -> str:
        origin = ""
        if self.kernel.loc is not None:
            file = self.kernel.loc.file.replace("\\", "/").rsplit("/", 1)[-1]
            origin = f" ({file}, line {self.kernel.loc.line})"
        imports = []
        if self.threaded:
            self.used.add("get_num_threads")
        if math := sorted(self.used & _MATH_NAMES):
            imports += [f"from math import {', '.join(math)}", ""]
        if "np" in self.used:
            imports += ["import numpy as np"]
        imports.append(f"from numba import {', '.join(sorted(self.used & NUMBA_NAMES | {'njit'}))}")
        self.used.add("FewerPasses")
        if words := sorted(self.used & SIMD_NAMES):
            imports += ["", "from pyschedule.codegen.simd import (", *(f"{INDENT}{word}," for word in words), ")"]
        fastmath = "False" if self.kernel.strict_math else '{"contract"}'
        options = [
            "OPTIONS = {",
            f'{INDENT}"nogil": True,',
            f'{INDENT}"error_model": "numpy",',
            f'{INDENT}"boundscheck": False,',
            f'{INDENT}"fastmath": {fastmath},',
            f'{INDENT}"cache": {self.cache},',
            f'{INDENT}"pipeline_class": FewerPasses,',
            "}",
        ]
        if self.threaded:  # machine code from Numba's cache calls into the library of the threads
            options += ['PART = OPTIONS | {"cache": False}  # becomes machine code with what calls it']
            options += ["", "get_num_threads()  # starts the threads"]
        header = f'"""The kernel {self.kernel.name}{origin} as Numba source for {self.target}."""'
        parts = ["\n".join([header, "", *imports, "", *options]), *self.functions]
        return "\n\n\n".join(parts) + "\n"


class CpuWriter(MemoryWriter):
    """Writes one function of the module."""

    def __init__(self, module: _Module, *, in_thread: bool) -> None:
        super().__init__(module.kernel, module.names, module.used)
        self.module = module
        self.in_thread = in_thread
        self.shared = outline.shared_arrays(module.kernel) if module.parallel and not in_thread else frozenset()

    def parameter(self, param: Array | Var) -> str:
        return self.array(param.name) if isinstance(param, Array) else self.variable(param.name)

    def definition(self, name: str, params: list[str]) -> str:
        """The text of the whole function."""
        lines = [*self.prologue(), *self.lines] or [f"{INDENT}pass"]
        options = "PART" if self.in_thread else "OPTIONS"
        return "\n".join([f"@njit(**{options})", f"def {name}({', '.join(params)}):", *lines])

    def loop(self, stmt: For) -> None:
        if stmt.mapping != "parallel" or not self.module.parallel:
            self.on_this_thread(stmt)
            return
        reason = outline.obstacle(stmt, self.kernel, self.arrays, self.module.live_after[stmt.var])
        if reason is not None:
            self.line(f"# loop {stmt.label} stays on one thread: {reason}")
            self.on_this_thread(stmt)
            return
        self.module.threaded = True
        shares = self.module.shares_of(stmt)
        work, arguments = self.outlined(stmt, shares)
        start, stop, step = self.index(stmt.start), self.index(stmt.stop), self.index(shares.step)
        trips = f"len(range({start}, {stop}, {step}))"
        given = ", ".join([start, trips, step, *arguments])
        if self.in_thread:  # the threads share a loop around this one
            call = f"{self.use('on_this_thread')}({work}, ({given}))"
            self.line(call, self.place(stmt.loc, f"loop {stmt.label}"))
            self.leave_with_others(stmt)
            return
        if not any(inner.mapping == "parallel" for inner in loops(stmt.body)):
            self.launch(stmt, work, trips, given)
            return
        self.line(f"if {self.use('keep_busy')}({trips}):")
        with self.indented():
            self.launch(stmt, work, trips, given)
        self.line("else:")
        with self.indented(), self.memory_here():
            self.line(f"{self.variable(shares.last.name)} = {stop}")
            self.on_this_thread(replace(stmt, body=shares.body))

    def on_this_thread(self, stmt: For) -> None:
        with self.matrix_unit_around(stmt):
            super().loop(stmt)

    def matrix_unit_around(self, stmt: For) -> AbstractContextManager[None]:
        """The matrix unit set up for a loop; not where threads share one inside, each with a unit set up."""
        shared = self.module.parallel and any(inner.mapping == "parallel" for inner in loops(stmt.body))
        return self.matrix_unit(*(() if shared else (stmt,)))

    def launch(self, stmt: For, work: str, trips: str, given: str) -> None:
        """The loop on all threads."""
        call = f"{self.use('on_threads')}({work}, {trips}, ({given}))"
        self.line(call, self.place(stmt.loc, f"loop {stmt.label} on threads"))
        self.leave_with_others(stmt)

    def leave_with_others(self, stmt: For) -> None:
        if contains(stmt.body, Poll):
            self.line(f"if {self.module.control}[1]:", "some thread has left")
            self.leave()

    def poll(self, stmt: Poll) -> None:
        control = self.module.control
        self.line(f"if {self.use('stop_requested')}({control}):")
        with self.indented():
            self.body(stmt.body)
            self.line(f"if {self.use('first_to_leave')}({control}, {stmt.number}):")
            with self.indented():
                for place, value in enumerate(stmt.values, 2):
                    self.line(f"{control}[{place}] = {self.text(value)}")
                if not stmt.values:
                    self.line("pass")
        self.leave()

    def leave(self) -> None:
        """Ends the function, its results being of no use any more."""
        with self.indented():
            if self.in_thread:
                self.release_matrix_unit()
                self.line("return")
            else:
                self.give_back(Return(tuple(Const(0, dtype) for dtype in self.kernel.scalar_results)))

    def give_back(self, stmt: Return) -> None:
        self.fence()
        self.release_matrix_unit()
        super().give_back(stmt)

    def outlined(self, stmt: For, shares: Shares) -> tuple[str, list[str]]:
        """Writes the function of one piece of a parallel loop into the module, once: its name, and the arguments
        that it takes behind the piece and the range."""
        module = self.module
        outer = outline.captured(stmt, self.arrays)
        arguments = [*map(self.array, outer.arrays), *map(self.variable, outer.scalars)]
        if contains(stmt.body, Poll):
            arguments.append(module.control)
        if (work := module.outlined.get(stmt.var)) is None:
            work = module.names.fresh(f"{module.entry}_{stmt.label or stmt.var}".replace(".", "_"))
            module.outlined[stmt.var] = work
            writer = CpuWriter(module, in_thread=True)
            writer.arrays = dict(self.arrays)
            writer.adopt(self, outer.scalars)
            own = writer.piece(stmt, shares)
            module.functions.append(writer.definition(work, [*own, *arguments]))
        return work, arguments

    def piece(self, stmt: For, shares: Shares) -> list[str]:
        """The neighbouring iterations of a parallel loop that are one thread's; the parameters that say which."""
        names = [
            self.module.names.of("local", name) for name in ("piece", "pieces", "start", "trips", "step", "first")
        ]
        piece, pieces, start, trips, step, first = names
        last = self.variable(shares.last.name)
        self.line(f"{first} = {start} + {trips} * {piece} // {pieces} * {step}")
        self.line(f"{last} = {start} + {trips} * ({piece} + 1) // {pieces} * {step}")
        self.enter(replace(stmt, step=shares.step, max_trip=None))
        header = f"for {self.variable(stmt.var)} in range({first}, {last}, {self.index(stmt.step)}):"
        with self.matrix_unit_around(stmt):
            self.line(header, self.place(stmt.loc, f"loop {stmt.label}"))
            self.looped(shares.body, stmt.unroll)
        self.fence()
        return names[:5]
