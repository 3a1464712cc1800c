"""What the user calls the variables of a kernel.

Two loops over `i` have counters of their own, and where `i` is read after its loop, what it is then is a variable
beside the counter: the front end calls them `i_2` and `i_value`.
"""

from __future__ import annotations

import dataclasses
import re

from pyschedule.ir.nodes import Assign, Expr, Kernel, Stmt, Var
from pyschedule.ir.visitors import (
    Body,
    loops,
    read_variables,
    rewrite,
    rewrite_expr,
    variable_types,
    written_variables,
)

_VALUE = re.compile(r"(\w+)_value(?:_\d+)?")


def value_name(name: str) -> str:
    """What the front end calls the variable of a name that a counter or a parameter has already."""
    return f"{name}_value"


def is_users(name: str, kernel: Kernel) -> bool:
    """Whether the user's function has this name; of a kernel without a text all names are the user's."""
    return not kernel.source or re.search(rf"(?<!\w){re.escape(name)}(?!\w)", kernel.source) is not None


def users_names(kernel: Kernel) -> dict[str, str]:
    """The user's names of the variables of a kernel as the front end builds it, where they are others."""
    names = {name: match[1] for name, match in _made(kernel).items()}
    return names | {loop.var: loop.source for loop in loops(kernel.body) if loop.source and loop.var != loop.source}


def renamed(expr: Expr, names: dict[str, str]) -> Expr:
    """The expression with other names for its variables."""
    return rewrite_expr(expr, lambda part: _renamed(part, names))


def _renamed(part: Expr, names: dict[str, str]) -> Expr | None:
    if isinstance(part, Var) and part.name in names:
        return dataclasses.replace(part, name=names[part.name])
    return None


def displayed(kernel: Kernel) -> Kernel:
    """The kernel, at any stage, with the user's names where nothing else has them: for people to read.

    A variable beside a counter is called as the counter, where no loop of that counter reads or assigns it.
    """
    taken = {param.name for param in kernel.params} | written_variables(kernel.body)
    names: dict[str, str] = {}
    for name, match in _made(kernel).items():
        around = [loop.body for loop in loops(kernel.body) if loop.var == match[1]]
        if match[1] not in taken and not any(name in _variables(body) for body in around):
            names[name] = match[1]
    if not names:
        return kernel

    def statement(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Assign) and stmt.target in names:
            return dataclasses.replace(stmt, target=names[stmt.target])
        return None

    body = rewrite(kernel.body, statement, lambda part: _renamed(part, names))
    return dataclasses.replace(kernel, body=body)


def _made(kernel: Kernel) -> dict[str, re.Match[str]]:
    """The variables that stand for one of the user's whose name was taken."""
    named = {loop.source for loop in loops(kernel.body)} | {param.name for param in kernel.params}
    found = ((name, _VALUE.fullmatch(name)) for name in variable_types(kernel))
    return {name: match for name, match in found if match and match[1] in named and not is_users(name, kernel)}


def _variables(body: Body) -> set[str]:
    return read_variables(body) | written_variables(body)
