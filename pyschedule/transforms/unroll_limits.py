"""How much an unroll may write out, and what of it is better left to the target's compiler."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyschedule.errors import Unsupported
from pyschedule.ir.nodes import BinOp, Compare, Const, Dim, Expr, For, If, Kernel, Load, Ramp, Stmt, Var, While
from pyschedule.ir.types import lanes_of
from pyschedule.ir.visitors import Body, children, may_break, variables, walk, walk_expr
from pyschedule.schedule.limits import VARIABLE, UnrollLimits
from pyschedule.schedule.log import Record
from pyschedule.schedule.targets import Target
from pyschedule.transforms.nest import exact_trips
from pyschedule.transforms.registers import loops_over_registers

#: So many copied operations cost a compiler nothing to speak of; more are written out only where that pays.
_FEW_OPERATIONS = 128
#: LLVM unrolls what it is told to up to so many instructions (`pragma-unroll-threshold`), and says nothing of more.
_COMPILERS_LIMIT = 16384
#: So many operations of a kernel take a compiler ten seconds or so (measured: 4731 of a product under three unrolls
#: 13 s, 1427 of it 3 s, on one core of a virtual machine with AVX-512).
_LONG_TO_COMPILE = 4000
#: Operators that may fold once a counter is a constant, or a constant away from a multiple of the step.
_FOLDING = ("%", "&", "//", ">>")


def check(limits: UnrollLimits, loop: For, copies: int, made: int) -> None:
    """Raises `Unsupported` where so many copies of a loop's body, in which an inner loop of the same directive has
    been made `made` copies of already, are over a limit."""
    counts = {
        "copies": copies * made,
        "blocks": copies * sum(map(_blocks, walk(loop.body)), 1),
        "operations": copies * operations(loop.body),
    }
    for name, count in counts.items():
        most: int = getattr(limits, name)
        if count > most:
            what = "copies of its body" if name == "copies" else f"copied {name}"
            raise Unsupported(
                f"{count} {what} are more than the limit of {most} a directive; a smaller factor, or "
                f"{VARIABLE}={name}={count}, makes it possible",
                loop.loc,
            )


def slow_to_compile(kernel: Kernel, applied: Sequence[Record]) -> tuple[Record, ...]:
    """A warning where the unrolls of a kernel, each within its limits, together make what takes long to compile.

    Nested ones multiply: of three loops by 8 there are 512 copies, and those in the remainders.
    """
    count = operations(kernel.body)
    made = [record for record in applied if (record.transform, record.status) == ("Unroll", "Applied")]
    if count <= _LONG_TO_COMPILE or not made:
        return ()
    summary = (
        f"the copies of all unrolls together are {count} operations, more than the {_LONG_TO_COMPILE} that compile "
        f"in about ten seconds; the first call of each signature waits for that, later ones and other processes "
        f"load it from the cache; a smaller factor of one of the loops makes fewer"
    )
    return (Record("Unroll", "Warning", summary, (), made[0].loc),)


def _blocks(stmt: Stmt) -> int:
    """The basic blocks that a statement adds."""
    if isinstance(stmt, If):
        return 3 if stmt.orelse else 2
    return 3 if isinstance(stmt, (For, While)) else 0


def operations(body: Body) -> int:
    """Statements, and what they compute: constants, names and lane numbers cost nothing."""
    free = (Const, Var, Dim, Ramp)
    return sum(1 + sum(not isinstance(part, free) for part in _parts(stmt)) for stmt in walk(body))


def left_to_compiler(kernel: Kernel, loop: For, copies: int, target: Target) -> bool:
    """Whether the target's compiler should make the copies: they are as good as those in text, and cost less.

    Copies are written out where their constants fold, where registers need constant indices, where the loop may be
    left (of such loops compilers unroll only some), around other loops (which compilers do not share among copies,
    unless none of them stays), and where they are few and the target's text is cheap.
    """
    if may_break(loop.body) or _constants_pay(loop):
        return False
    inner = [stmt for stmt in walk(loop.body) if isinstance(stmt, (For, While))]
    if not target.copies:
        return all(stmt.unroll == -1 for stmt in inner)
    over_registers = loops_over_registers(kernel.body, target.vector_registers)
    written_out = {
        stmt.var: trips
        for stmt in inner
        if isinstance(stmt, For) and (trips := _trips_over(stmt, over_registers)) is not None
    }
    if len(written_out) < len(inner) or loop.var in over_registers:
        return False
    return _FEW_OPERATIONS < copies * _written_out(loop.body, written_out) <= _COMPILERS_LIMIT


def _trips_over(loop: For, over_registers: set[str]) -> int | None:
    """How many copies are made of a loop because it counts registers, which must be; `None` where none are."""
    if loop.var not in over_registers or loop.unroll == 1:
        return None
    return exact_trips(loop)


def _written_out(body: Body, trips: dict[str, int]) -> int:
    """The operations of a body once its loops are written out."""
    total = 0
    for stmt in body:
        if isinstance(stmt, For) and stmt.var in trips:
            total += trips[stmt.var] * _written_out(stmt.body, trips)
        else:
            total += operations((stmt,))
    return total


def _constants_pay(loop: For) -> bool:
    """Whether copies with the counter a constant fold to something simpler: it is compared with a constant, or
    taken modulo one."""
    return any(
        isinstance(part, (BinOp, Compare))
        and lanes_of(part.type) == 1
        and ((isinstance(part, BinOp) and part.op in _FOLDING) or _settled(part, loop.var))
        and loop.var in variables(part)
        for stmt in walk(loop.body)
        for part in _parts(stmt)
    )


def _settled(expr: Expr, counter: str) -> bool:
    """Whether a comparison depends on nothing but the counter."""
    return isinstance(expr, Compare) and all(
        not isinstance(part, (Dim, Load)) and (not isinstance(part, Var) or part.name == counter)
        for part in walk_expr(expr)
    )


def _parts(stmt: Stmt) -> Iterator[Expr]:
    return (part for top in children(stmt) for part in walk_expr(top))
