"""Statements of the IR as the text of Python functions: what the back ends share.

`Emitter` writes the body of one function.  A back end subclasses it, overrides what its target does otherwise,
and assembles the module.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pyschedule.codegen.expressions import ExpressionWriter
from pyschedule.errors import InternalError
from pyschedule.ir.blocks import MatrixProduct, Pack, TransposedStores
from pyschedule.ir.nodes import (
    Alloc,
    Assign,
    Barrier,
    Break,
    For,
    If,
    Kernel,
    Load,
    Location,
    Poll,
    Prefetch,
    Return,
    Stmt,
    Store,
    While,
)
from pyschedule.ir.visitors import variables, walk_expr, written_variables

INDENT = "    "


class Emitter(ExpressionWriter):
    """Writes statements into `lines`, each with the user's line in a comment where it changes."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self.lines: list[str] = []
        self.depth = 1
        self._line_shown: int | None = None

    # ------------------------------------------------------------------------------------------------- lines

    def line(self, text: str, comment: str = "") -> None:
        self.lines.append(f"{INDENT * self.depth}{text}{f'  # {comment}' if comment else ''}")

    @contextmanager
    def indented(self) -> Iterator[None]:
        self.depth += 1
        yield
        self.depth -= 1

    def place(self, loc: Location | None, *more: str) -> str:
        """The comment for a statement at `loc`: its line, unless the statement before had it too."""
        parts = list(more)
        if loc is not None and loc.line != self._line_shown:
            parts.insert(0, f"line {loc.line}")
            self._line_shown = loc.line
        return ", ".join(parts)

    # -------------------------------------------------------------------------------------------- statements

    def block(self, body: tuple[Stmt, ...]) -> None:
        """An indented body (never an empty one)."""
        with self.indented():
            before = len(self.lines)
            self.body(body)
            if len(self.lines) == before:
                self.line("pass")

    def body(self, body: tuple[Stmt, ...]) -> None:
        """Statements at the present depth, in a scope of their own."""
        outer = dict(self.arrays)
        self.statements(body)
        self.arrays = outer

    def statements(self, body: tuple[Stmt, ...]) -> None:
        for stmt in merged_tests(body):
            self.statement(stmt)

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Assign():
                self.assign(stmt)
            case Store():
                self.store(stmt)
            case Alloc():
                self.arrays[stmt.array.name] = stmt.array
                self.alloc(stmt)
            case If():
                self.branch(stmt)
            case For():
                self.loop(stmt)
            case While():
                self.while_loop(stmt)
            case Break():
                self.line("break", self.place(stmt.loc))
            case Return():
                self.give_back(stmt)
            case Barrier():
                self.barrier()
            case Prefetch():
                self.prefetch(stmt)
            case Pack():
                self.pack(stmt)
            case MatrixProduct():
                self.matrix_product(stmt)
            case TransposedStores():
                self.transposed_stores(stmt)
            case Poll():
                self.poll(stmt)
            case _:
                raise InternalError(f"the back end has no text for {type(stmt).__name__}")

    def assign(self, stmt: Assign) -> None:
        raise NotImplementedError

    def store(self, stmt: Store) -> None:
        raise NotImplementedError

    def alloc(self, stmt: Alloc) -> None:
        raise NotImplementedError

    def barrier(self) -> None:
        """Nothing, where there is one thread."""

    def prefetch(self, stmt: Prefetch) -> None:
        """Nothing, where no hints are taken."""

    def pack(self, stmt: Pack) -> None:
        raise NotImplementedError

    def matrix_product(self, stmt: MatrixProduct) -> None:
        raise NotImplementedError

    def transposed_stores(self, stmt: TransposedStores) -> None:
        """One after the other, where nothing is transposed."""
        self.statements(stmt.body)

    def poll(self, stmt: Poll) -> None:
        raise NotImplementedError

    def branch(self, stmt: If) -> None:
        self.line(f"if {self.test(stmt)}:", self.place(stmt.loc))
        self.block(stmt.body)
        while len(stmt.orelse) == 1 and isinstance(inner := stmt.orelse[0], If):
            stmt = inner
            with self.inline():
                self.line(f"elif {self.test(stmt)}:", self.place(stmt.loc))
            self.block(stmt.body)
        if stmt.orelse:
            self.line("else:")
            self.block(stmt.orelse)

    def test(self, stmt: If) -> str:
        return self.text(stmt.test)

    def loop(self, stmt: For) -> None:
        """A loop on this thread."""
        counter = self.variable(stmt.var)
        label = f"loop {stmt.label}" if stmt.label else ""
        self.line(f"for {counter} in {self.range_text(stmt)}:", self.place(stmt.loc, *([label] if label else [])))
        self.looped(stmt.body, stmt.unroll)

    def range_text(self, stmt: For) -> str:
        start, stop, step = (self.text(part) for part in (stmt.start, stmt.stop, stmt.step))
        if step != "1":
            return f"range({start}, {stop}, {step})"
        return f"range({stop})" if start == "0" else f"range({start}, {stop})"

    def looped(self, body: tuple[Stmt, ...], unroll: int) -> None:
        """The body of a loop, and the hint to the compiler behind it."""
        self.block(body)
        hint = self.unroll_hint(unroll)
        if hint and not (body and isinstance(body[-1], (Break, Return))):
            with self.indented():
                self.line(hint)

    def unroll_hint(self, unroll: int) -> str:
        """The statement that asks the compiler for `For.unroll`; `""` where nothing is asked."""
        if unroll == 0:
            return ""
        if unroll == 1:
            return f"{self.use('stay_rolled')}()"
        if unroll == -1:
            return f"{self.use('unroll_fully')}()"
        return f"{self.use('unroll_by')}({unroll})"

    def while_loop(self, stmt: While) -> None:
        label = f"loop {stmt.source}" if stmt.source else ""
        with self.inline():
            self.line(f"while {self.text(stmt.test)}:", self.place(stmt.loc, *([label] if label else [])))
        self.looped(stmt.body, stmt.unroll)

    def give_back(self, stmt: Return) -> None:
        """`return`, with the kernel's scalar results as a tuple."""
        if not self.kernel.scalar_results:
            self.line("return", self.place(stmt.loc))
            return
        values = [
            self.converted(value, dtype).text
            for value, dtype in zip(stmt.values, self.kernel.scalar_results, strict=True)
        ]
        self.line(f"return ({', '.join(values)},)", self.place(stmt.loc))


def merged_tests(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """A body in which neighbours `if t: a` and `if t: b` are one `if t: a b`, where `a` cannot change `t`."""
    result: list[Stmt] = []
    for stmt in body:
        last = result[-1] if result else None
        if (
            isinstance(stmt, If)
            and isinstance(last, If)
            and stmt.test == last.test
            and not (stmt.orelse or last.orelse)
            and not any(isinstance(part, Load) for part in walk_expr(stmt.test))
            and not variables(stmt.test) & written_variables(last.body)
        ):
            result[-1] = replace(last, body=last.body + stmt.body)
        else:
            result.append(stmt)
    return tuple(result) if len(result) < len(body) else body
