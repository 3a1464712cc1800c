"""Unrolling: full, partial with a remainder, and unroll-and-jam.

    for i in range(N):      unroll("i", 4)     for i in range(0, N // 4 * 4, 4):
        S(i)                                       S(i); S(i + 1); S(i + 2); S(i + 3)
                                               for i_r in range(N // 4 * 4, N):
                                                   S(i_r)

`written_out` makes the copies, `jamming` lets those of an outer loop share the loops inside, `unroll_limits` says
how many there may be, and which are better left to the target's compiler.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyschedule.errors import Unsupported
from pyschedule.ir.nodes import For, Kernel, While
from pyschedule.ir.visitors import contains, may_break, substitute, walk
from pyschedule.schedule import names as loop_names
from pyschedule.schedule.directives import NoUnroll, Unroll
from pyschedule.schedule.limits import UnrollLimits
from pyschedule.schedule.log import Record, skipped
from pyschedule.schedule.targets import Target
from pyschedule.transforms import partial_sums, unroll_limits, unroll_requests, written_out
from pyschedule.transforms.jamming import Proof, may_jam, private_scalars
from pyschedule.transforms.nest import Body, Names, exact_trips, replace_statement, runners, tile_form, with_body
from pyschedule.transforms.registers import loops_over_registers
from pyschedule.transforms.unroll_limits import left_to_compiler
from pyschedule.transforms.unroll_requests import NothingToWriteOut, Request

#: What a loop is in machine code; the units of a GPU run one iteration each.
_LOOPS = ("serial", "parallel", "cooperative")


def unroll(
    kernel: Kernel,
    directives: Sequence[Unroll],
    rolled: Sequence[NoUnroll],
    target: Target,
    proof: Proof,
    limits: UnrollLimits,
) -> tuple[Kernel, tuple[Record, ...]]:
    """Applies the directives, given in the order of their loops: of nested loops the inner one first, then
    `factors`, and last those that choose for themselves.  The records are in the order of the directives."""
    rolled_records: list[Record] = []
    kernel = keep_rolled(kernel, rolled, rolled_records)
    taken: set[tuple[str, int]] = set()
    records: dict[int, list[Record]] = {}
    for place, directive in sorted(
        enumerate(directives), key=lambda item: (item[1].automatic, item[1].loop is None, -item[0])
    ):
        requests = unroll_requests.requests_of(kernel, proof.dependences.kernel, directive, target)
        requests = unroll_requests.not_taken(requests, directive, taken)
        unroller = _Unroller(kernel, target, proof, limits)
        refusals = unroll_requests.refusals_of_names(kernel, directive)
        records[place] = [*refusals, *unroller.carry_out(directive, requests)]
        kernel = unroller.kernel
    return kernel, tuple(rolled_records + [record for place in sorted(records) for record in records[place]])


def keep_rolled(kernel: Kernel, directives: Sequence[NoUnroll], records: list[Record]) -> Kernel:
    """Marks the loops that must stay rolled, for every later stage and the back end."""
    for directive in directives:
        spec = loop_names.parse(directive.loop)
        found = [
            stmt
            for stmt in walk(kernel.body)
            if isinstance(stmt, (For, While)) and spec is not None and spec.matches(stmt)
        ]
        for loop in found:
            kernel = with_body(kernel, replace_statement(kernel.body, loop, (dataclasses.replace(loop, unroll=1),)))
        units = [loop.mapping for loop in found if isinstance(loop, For) and loop.mapping not in _LOOPS]
        if found and len(units) == len(found):
            where = ", ".join(dict.fromkeys(units))
            reason = f"loop '{directive.loop}' is no loop here: its iterations run on {where}"
            text = f"{reason}; target='cpu' asks it of the CPU only"
            records.append(skipped("NoUnroll", text, directive.loc))
        elif found:
            records.append(
                Record("NoUnroll", "Applied", f"loop '{directive.loop}' stays rolled", (), directive.loc)
            )
        else:
            text = f"no loop '{directive.loop}' is there to keep rolled (was its tiling skipped?)"
            records.append(skipped("NoUnroll", text, directive.loc))
    return kernel


# ----------------------------------------------------------------------------------------------- one directive


@dataclass(slots=True)
class _Unroller:
    """Carries out the requests of one directive, each on the kernel that the one before left."""

    kernel: Kernel
    target: Target
    proof: Proof
    limits: UnrollLimits
    #: Copies of the innermost body, of which each further loop makes more.
    made: int = 1

    def carry_out(self, directive: Unroll, requests: Sequence[Request]) -> Iterator[Record]:
        done: list[tuple[str, int]] = []
        details: list[str] = [note for request in requests for note in request.notes]
        elsewhere: list[tuple[Request, Unsupported]] = []
        for request in reversed(requests):  # as written, the innermost stands last
            factors: list[int] = []
            for loop in request.loops(self.kernel):
                try:
                    factor, how = self.unrolled(loop, request.factor)
                except NothingToWriteOut as refusal:
                    elsewhere.append((request, refusal))
                    continue
                except Unsupported as refusal:
                    if not directive.automatic:
                        yield unroll_requests.refused(directive, request, refusal)
                    continue
                factors.append(factor)
                details += [f"loop '{loop.label}': {how}"] if how else []
            if factors:
                done.insert(0, (request.name, max(factors)))
                self.made *= max(factors)
        # A name stands for the loops of several nests: where one was what was meant, the others are no news.
        if done:
            details += [unroll_requests.left_rolled(request, refusal) for request, refusal in reversed(elsewhere)]
        elif not directive.automatic:
            yield from (unroll_requests.refused(directive, request, refusal) for request, refusal in elsewhere)
        if done:
            summary, unique = unroll_requests.describe(done), tuple(dict.fromkeys(details))
            yield Record("Unroll", "Applied", summary, unique, directive.loc)
        elif not requests and directive.automatic:
            notes = tuple(unroll_requests.why_not(self.kernel, self.target))
            summary = "no loop has a body small enough to unroll"
            yield Record("Unroll", "Note", summary, notes, directive.loc, silent=True)
        if len(requests) < len(directive.factors):
            yield unroll_requests.without_loops(directive, len(requests))

    def unrolled(self, loop: For, factor: int | None) -> tuple[int, str]:
        """Unrolls one loop; by which factor, and a line for the log.

        Raises `Unsupported` where it cannot be.
        """
        trips = exact_trips(loop)
        form = tile_form(loop)
        if factor is None and trips is None and form is not None and form.size > 1:
            # All of a tile: the last one, which may be cut, is left to the remainder.
            copies, how = self.unrolled(loop, form.size)
            return copies, "; ".join(filter(None, (how, "a tile that is cut stays rolled")))
        if factor is None and trips is None:
            offer = f"a factor, as in unroll('{loop.source}', 4), unrolls it partially"
            raise NothingToWriteOut(f"its trip count is not known at compile time; {offer}", loop.loc)
        if loop.mapping != "serial":
            raise NothingToWriteOut(f"its iterations run on {runners(loop)}; unroll a loop inside it", loop.loc)
        full = trips is not None and (factor is None or factor >= trips)
        copies = trips if full and trips is not None else factor or 1
        if not full and loop.max_trip is not None:
            copies = max(1, min(copies, loop.max_trip))
        unroll_limits.check(self.limits, loop, copies, self.made)
        if full and copies == 0:
            return self.replace(loop, (), copies)
        if full and copies == 1 and not may_break(loop.body):
            return self.replace(loop, substitute(loop.body, {loop.var: loop.start}), copies)
        if left_to_compiler(self.kernel, loop, copies, self.target):
            marked = dataclasses.replace(loop, unroll=-1 if full else copies)
            return self.replace(loop, (marked,), copies, "left to the target's compiler, by loop metadata")
        private, how = self.shared_loops(loop)
        write = written_out.in_full if full else written_out.in_part
        names = Names(self.kernel)
        body = write(loop, copies, names, private)
        if not self.kernel.strict_math:
            body, sums = partial_sums.split(body, names, self.target)
            how = "; ".join((*((how,) if how else ()), *sums))
        return self.replace(loop, body, copies, how)

    def replace(self, loop: For, body: Body, copies: int, how: str = "") -> tuple[int, str]:
        self.kernel = with_body(self.kernel, replace_statement(self.kernel.body, loop, body))
        return copies, how

    def shared_loops(self, loop: For) -> tuple[frozenset[str] | None, str]:
        """The scalars private to each copy where the copies may share the loops inside (else `None`), and a line
        for the log."""
        if not contains(loop.body, For, While):
            return None, ""
        private = private_scalars(self.kernel.body, loop)
        reorder = not self.proof.scalar.strict_math
        if private is None or not may_jam(loop, self.proof, private, reorder=reorder):
            return None, "plain copies"
        how = "copies share the loops inside (unroll-and-jam)"
        if reorder and not may_jam(loop, self.proof, private, reorder=False):
            how += "; steps of a reduction run in another order (reassociated)"
        return private, how


# ------------------------------------------------------------------------------------------------- registers


def unroll_registers(kernel: Kernel, target: Target) -> Kernel:
    """Unrolls the loops of constant trip count that index register arrays: registers have no addresses.

    An array of more elements than there are registers stays in memory; copies would only be many.
    """
    while True:
        over = loops_over_registers(kernel.body, target.vector_registers)
        loop = next(
            (
                stmt
                for stmt in walk(kernel.body)
                if isinstance(stmt, For)
                and stmt.var in over
                and stmt.unroll != 1
                and exact_trips(stmt) is not None
                and not any(isinstance(inner, For) and inner.var in over for inner in walk(stmt.body))
            ),
            None,
        )
        if loop is None:
            return kernel
        body = written_out.in_full(loop, exact_trips(loop) or 0, Names(kernel), None)
        kernel = with_body(kernel, replace_statement(kernel.body, loop, body))
