"""The text of a function: its tree, the places of its nodes, and refusals that show the offending line."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pyschedule.errors import FrontendError
from pyschedule.ir.nodes import Location


@dataclass(frozen=True, slots=True)
class Source:
    """`lines` are those of the definition, decorators included; `first` is the line number of the first."""

    file: str
    first: int
    lines: tuple[str, ...]

    def line(self, number: int) -> str:
        index = number - self.first
        return self.lines[index].rstrip("\n") if 0 <= index < len(self.lines) else ""

    def text(self, where: Location | None) -> str:
        """What stands at a place, if that is within one line."""
        if where is None or where.line != where.end_line:
            return ""
        return self.line(where.line).encode()[where.column : where.end_column].decode(errors="ignore")

    def place(self, node: Any) -> Location:
        """The location of an `ast` node of `tree`."""
        return Location(
            self.file,
            node.lineno + self.first - 2,
            node.col_offset,
            (node.end_lineno or node.lineno) + self.first - 2,
            node.end_col_offset or node.col_offset,
        )

    def refusal(self, where: Location | None, what: str, instead: str) -> FrontendError:
        """The error for `what` stands at `where`: the line, a caret under the text, and what to write."""
        text = what
        line = self.line(where.line) if where is not None else ""
        if where is not None and line.strip():
            start = _characters(line, where.column)
            end = _characters(line, where.end_column) if where.end_line == where.line else len(line)
            text += f"\n    {line}\n    {' ' * start}{'^' * max(1, end - start)}"
        return FrontendError(f"{text}\n  instead: {instead}", where)


def _characters(line: str, column: int) -> int:
    """`ast` counts columns in UTF-8 bytes, a caret in characters."""
    return len(line.encode()[:column].decode(errors="ignore"))


def read_source(function: Any) -> tuple[FunctionType, Source, ast.FunctionDef]:
    """The plain function behind any wrappers, its text, and its definition's tree.

    Raises `FrontendError` where there is no text to read (a function typed into a bare prompt or made by
    `exec`), and where the function is a lambda, a method bound to an object, a generator or a coroutine.
    """
    plain = inspect.unwrap(function)
    if not isinstance(plain, FunctionType):
        raise FrontendError(f"{function!r} is not a Python function; decorate a function defined with 'def'")
    code = plain.__code__
    here = Location(code.co_filename, code.co_firstlineno, 0)
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError) as error:
        raise FrontendError(
            f"the source of '{plain.__name__}' cannot be read; define the kernel in a file or a notebook cell",
            here,
        ) from error
    source = Source(code.co_filename, max(first, 1), tuple(lines))
    if plain.__name__ == "<lambda>":
        raise source.refusal(here, "a kernel cannot be a lambda", "a function defined with 'def'")
    # A leading `if` takes the indentation of a nested definition, so that columns stay those of the file.
    indented = lines[0][:1] in " \t"
    text = ("if 1:\n" if indented else "\n") + "".join(lines)
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise FrontendError(f"the source of '{plain.__name__}' does not stand on its own lines", here) from error
    body = tree.body[0].body if isinstance(tree.body[0], ast.If) else tree.body
    definition = body[0]
    if isinstance(definition, ast.AsyncFunctionDef):
        raise source.refusal(source.place(definition), "a kernel cannot be 'async'", "a plain 'def'")
    if not isinstance(definition, ast.FunctionDef):
        raise source.refusal(here, "a kernel cannot be a lambda", "a function defined with 'def'")
    return plain, source, definition


def definition_text(source: Source, definition: ast.FunctionDef) -> str:
    """The function without its decorators, dedented."""
    skip = definition.lineno - 2
    return textwrap.dedent("".join(source.lines[skip:]))
