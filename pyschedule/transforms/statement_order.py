"""The order of the copies of a register tile: the one in which fewest values wait in registers.

Before, rows inside columns, 6 + 1 values beside the accumulators; after, columns inside rows, 2 + 1:

    acc[0, 0] += A[i, k] * B[k, j:j+16]           acc[0, 0] += A[i, k] * B[k, j:j+16]
    acc[1, 0] += A[i + 1, k] * B[k, j:j+16]       acc[0, 1] += A[i, k] * B[k, j+16:j+32]
    ...                                           acc[1, 0] += A[i + 1, k] * B[k, j:j+16]
    acc[5, 0] += A[i + 5, k] * B[k, j:j+16]       acc[1, 1] += A[i + 1, k] * B[k, j+16:j+32]
    acc[0, 1] += A[i, k] * B[k, j+16:j+32]        ...
    ...                                           acc[5, 1] += A[i + 5, k] * B[k, j+16:j+32]

It fires for innermost loops in which every statement writes an element of a register array and reads no other
element of one: the updates of one element stay in their order, and no value changes.  Compilers keep to the text
where registers are short.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from itertools import permutations

from pyschedule.analysis.registers import RegisterFile, pressure
from pyschedule.ir import build
from pyschedule.ir.nodes import Call, For, Kernel, Load, Stmt, Store
from pyschedule.ir.visitors import children, local_arrays, walk_expr
from pyschedule.transforms.nest import Body, innermost_loops, replace_statement, with_body

#: Arrays of more axes are left as they are: the orders to try grow with the factorial.
_MOST_AXES = 4

Element = tuple[str, tuple[int, ...]]


def order_statements(kernel: Kernel, file: RegisterFile) -> Kernel:
    """Puts the statements of register tiles in the order of the least pressure; where it is the best, the one
    they have."""
    registers = frozenset(name for name, array in local_arrays(kernel.body).items() if array.space == "register")
    if not registers:
        return kernel
    for loop in innermost_loops(kernel.body):
        body = best_order(loop.body, registers, file)
        if body is not loop.body and isinstance(loop, For):
            new = dataclasses.replace(loop, body=body)
            kernel = with_body(kernel, replace_statement(kernel.body, loop, (new,)))
    return kernel


def best_order(body: Body, registers: frozenset[str], file: RegisterFile) -> Body:
    """The statements in the order that needs fewest registers; the very body where there is no choice."""
    return min(orders(body, registers), key=lambda order: pressure(order, file, registers))


def orders(body: Body, registers: frozenset[str]) -> Iterator[Body]:
    """The body, and the other orders to choose from: the axes of the tile within one another in each way."""
    yield body
    elements = [element_of(stmt, registers) for stmt in body]
    known = [element for element in elements if element is not None]
    if len(known) < len(elements) or len({len(place) for _, place in known}) != 1:
        return
    done: Counter[Element] = Counter()
    step = []
    for element in known:
        step.append(done[element])
        done[element] += 1
    arrays = {name: number for number, name in enumerate(dict.fromkeys(name for name, _ in known))}
    axes = len(known[0][1])
    if axes > _MOST_AXES:
        return
    for order in permutations(range(axes)):
        keys = [
            (at, tuple(place[axis] for axis in order), arrays[name])
            for at, (name, place) in zip(step, known, strict=True)
        ]
        places = sorted(range(len(body)), key=keys.__getitem__)
        if places != list(range(len(body))):
            yield tuple(body[place] for place in places)


def element_of(stmt: Stmt, registers: frozenset[str]) -> Element | None:
    """The element that a statement writes, where it depends on no other and nothing depends on it but its own
    updates."""
    if not isinstance(stmt, Store) or stmt.array not in registers:
        return None
    place = [build.constant(index) for index in stmt.indices]
    known = tuple(index for index in place if index is not None)
    if len(known) < len(place):
        return None
    for part in (part for child in children(stmt) for part in walk_expr(child)):
        if isinstance(part, Call) and part.function == "checked_index":
            return None  # which of two errors comes first is the source's business
        other = isinstance(part, Load) and part.array in registers
        if other and isinstance(part, Load) and (part.array, part.indices) != (stmt.array, stmt.indices):
            return None
    return stmt.array, known
