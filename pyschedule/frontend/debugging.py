"""What a kernel may say only while it is debugged: prints and breakpoints, which `PYSCHEDULE_DEBUG` allows."""

from __future__ import annotations

import ast
import os
from typing import Any, Final, TypeVar

_FUNCTIONS: Final = ("print", "breakpoint", "pprint", "set_trace")
_METHODS: Final = ("set_trace", "breakpoint", "pprint")
_MODULES: Final = ("pdb", "ipdb", "pudb", "debugpy", "bdb", "pprint")

REMEDY: Final = "run with PYSCHEDULE_DEBUG=1, which runs kernels as plain Python and allows this"


def is_debugging() -> bool:
    """Whether kernels that are made now run as plain Python, for a debugger or a print."""
    return any(
        os.environ.get(name, "").strip().lower() not in ("", "0", "off", "false")
        for name in ("PYSCHEDULE_DEBUG", "NUMBA_DISABLE_JIT")
    )


def is_for_debugging(node: ast.stmt) -> bool:
    """`print(...)`, `breakpoint()`, `import pdb`, `pdb.set_trace()` and their like: no part of the computation."""
    if isinstance(node, ast.Import):
        return all(item.name in _MODULES for item in node.names)
    if isinstance(node, ast.ImportFrom):
        return node.module in _MODULES
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Call):
        return False
    called = node.value.func
    if isinstance(called, ast.Name):
        return called.id in _FUNCTIONS
    return isinstance(called, ast.Attribute) and called.attr in _METHODS


def without_debugging(nodes: list[ast.stmt]) -> list[ast.stmt]:
    """Statements without those that are there for debugging only; the given ones stay as they are."""
    return [_stripped(node) for node in nodes if not is_for_debugging(node)]


N = TypeVar("N", ast.stmt, ast.match_case)


def _stripped(node: N) -> N:
    changes: dict[str, Any] = {}
    for name in ("body", "orelse"):
        inner = getattr(node, name, None)
        if isinstance(inner, list) and inner:
            nothing = [] if name == "orelse" else [ast.copy_location(ast.Pass(), inner[0])]
            changes[name] = without_debugging(inner) or nothing
    if isinstance(node, ast.Match):
        changes["cases"] = [_stripped(case) for case in node.cases]
    if not changes:
        return node
    new = type(node)(**{name: changes.get(name, value) for name, value in ast.iter_fields(node)})
    return ast.copy_location(new, node) if isinstance(node, ast.stmt) else new
