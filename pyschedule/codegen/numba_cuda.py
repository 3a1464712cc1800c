"""Kernels as `numba.cuda` source: `generate` plans the launches, `cuda_plan` and what it imports write each.

Every top-level statement of the kernel that is a loop becomes one launch, in order; runs of other statements
become one single-threaded launch.  Scalars that only depend on extents and arguments are computed wherever
they are read.  Where scalars flow from one top-level statement to another, or out of the kernel, all of it is
one single-threaded launch: always right, and slow, which a note says.

Arrays that are declared at top level, or whose extent is known only at run time, live in global memory
(`Workspace`), so that they outlive a launch.
"""

from __future__ import annotations

from pyschedule.codegen.cuda_normal import normalised
from pyschedule.codegen.cuda_plan import Planner, has_blocks
from pyschedule.codegen.cuda_program import CudaProgram
from pyschedule.codegen.cuda_statements import shares_work
from pyschedule.ir.nodes import (
    Alloc,
    Assign,
    Call,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Return,
    Stmt,
    Var,
)
from pyschedule.ir.types import element_of, lanes_of
from pyschedule.ir.visitors import (
    Body,
    contains,
    read_variables,
    substitute,
    substitute_expr,
    walk,
    walk_expr,
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
    body = normalised(_without_final_return(kernel.body))
    body, hoisted = _replicated_scalars(kernel, body)
    groups = _groups(body)
    single = _why_single(kernel, body, groups, hoisted)
    planner = Planner(kernel, target, index_bits == 32)
    if single and (len(groups) > 1 or any(shares_work(group) or has_blocks(group) for group in groups)):
        planner.notes.append(f"one thread runs the whole kernel: {single}")
    if single:
        groups = [body]
    planner.place_arrays(groups)
    for group in groups:
        group = tuple(stmt for stmt in group if not isinstance(stmt, Alloc))
        if group:
            planner.launch(group, serial=bool(single))
    return planner.program(index_bits)


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
        if isinstance(stmt, For) or (isinstance(stmt, If) and has_blocks((stmt,))):
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
