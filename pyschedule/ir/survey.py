"""One walk over a kernel that gathers what the checker's rules ask about."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pyschedule.ir.blocks import MatrixProduct, Pack, TransposedStores
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    Broadcast,
    Dim,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Poll,
    Prefetch,
    Ramp,
    Reduce,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.types import Type, Vector, lanes_of
from pyschedule.ir.visitors import (
    Body,
    Loops,
    arrays,
    block_reads,
    block_writes,
    children,
    variable_types,
    written_variables,
)

Node = TypeVar("Node")


@dataclass(slots=True)
class Survey:
    """`statements`: each with the loops around it.  `nodes`: class → its nodes, each with its statement.
    `unbound` and `undeclared`: names that no value or array can have reached, each with the statement.
    `meetings`: the different numbers of lanes of two vectors that meet in one operation."""

    kernel: Kernel
    arrays: dict[str, Array]
    types: dict[str, Type]
    statements: list[tuple[Stmt, Loops]] = field(default_factory=list)
    nodes: dict[type, list[tuple[Any, Stmt]]] = field(default_factory=lambda: defaultdict(list))
    unbound: list[tuple[str, Stmt]] = field(default_factory=list)
    undeclared: list[tuple[str, Stmt]] = field(default_factory=list)
    meetings: list[tuple[int, int, Stmt]] = field(default_factory=list)

    def all(self, kind: type[Node]) -> list[tuple[Node, Stmt]]:
        """The nodes of one class, each with the statement it is in (a statement: itself)."""
        return self.nodes[kind]

    @property
    def has_vectors(self) -> bool:
        """Whether any rule about lanes can be broken at all."""
        types = (*self.types.values(), *(array.dtype for array in self.arrays.values()))
        return bool(self.nodes[Ramp] or self.nodes[Broadcast] or any(isinstance(type_, Vector) for type_ in types))


def survey(kernel: Kernel) -> Survey:
    found = Survey(kernel, arrays(kernel), variable_types(kernel))
    bound = {param.name for param in kernel.scalar_params}
    _body(found, kernel.body, (), bound, {array.name for array in kernel.array_params})
    return found


def _body(found: Survey, body: Body, loops: Loops, bound: set[str], declared: set[str]) -> None:
    """`bound`: the variables that may have a value here (grows); `declared`: the arrays in scope."""
    declared = set(declared)
    for stmt in body:
        found.statements.append((stmt, loops))
        found.nodes[type(stmt)].append((stmt, stmt))
        if isinstance(stmt, While):  # its test sees what the last iteration assigned
            bound |= written_variables(stmt.body)
        for expr in children(stmt):
            _expr(found, expr, stmt, bound, declared)
        if isinstance(stmt, (Assign, Store)) and stmt.origin is not None:
            for expr in stmt.origin.counters:
                _expr(found, expr, stmt, bound, declared)
        match stmt:
            case Assign():
                bound.add(stmt.target)
            case Alloc():
                declared.add(stmt.array.name)
            case Store() | Prefetch():
                if stmt.array not in declared:
                    found.undeclared.append((stmt.array, stmt))
            case Pack() | MatrixProduct():
                for name in (*block_reads(stmt), *block_writes(stmt)):
                    if name not in declared:
                        found.undeclared.append((name, stmt))
            case TransposedStores():
                _body(found, stmt.body, loops, bound, declared)
            case For():
                bound |= written_variables(stmt.body)
                inside = bound | {stmt.var}
                _body(found, stmt.body, (*loops, stmt), inside, declared)
            case While():
                _body(found, stmt.body, (*loops, stmt), bound, declared)
            case Poll():  # its body is the last thing that is done
                _body(found, stmt.body, loops, set(bound), declared)
            case If():
                other = set(bound)
                _body(found, stmt.body, loops, bound, declared)
                _body(found, stmt.orelse, loops, other, declared)
                bound |= other


def _expr(found: Survey, expr: Expr, stmt: Stmt, bound: set[str], declared: set[str]) -> int:
    """Notes an expression and all in it; returns its lanes."""
    found.nodes[type(expr)].append((expr, stmt))
    if isinstance(expr, Var):
        if expr.name not in bound:
            found.unbound.append((expr.name, stmt))
        return lanes_of(expr.vtype)
    if isinstance(expr, (Dim, Load)) and expr.array not in declared:
        found.undeclared.append((expr.array, stmt))
    lanes = lanes_of(expr.dtype) if isinstance(expr, Load) else 1
    for part in children(expr):
        more = _expr(found, part, stmt, bound, declared)
        if more != lanes and more != 1:
            if lanes != 1:
                found.meetings.append((min(lanes, more), max(lanes, more), stmt))
            lanes = more
    if isinstance(expr, (Ramp, Broadcast)):
        return expr.lanes
    return 1 if isinstance(expr, Reduce) else lanes
