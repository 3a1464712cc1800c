"""Edge tiles: the tail of a register tile is made one vector at a time, and whole tiles need no masks.

Before, with 64 columns of the result in registers:

    for k in range(K):
        for j_1 in range(j_0, j_0 + 64, 16):
            acc[(j_1 - j_0) // 16] += a[k] * b[k, j_1:j_1+16; lanes < N]

After - four vectors where there are four, else as many as there are:

    if j_0 + 64 <= N:
        for k in range(K):
            for j_1 in range(j_0, j_0 + 64, 16):
                acc[(j_1 - j_0) // 16] += a[k] * b[k, j_1:j_1+16]
    else:
        for j_e in range(j_0, N, 16):
            for k in range(K):
                acc_b[0] += a[k] * b[k, j_e:j_e+16; lanes < N]

Where no loop but those over registers has masks (b is a staged copy, padded), a whole tile keeps the masks of its
stores, and serves as long as each of its vectors has a column.

It fires where every statement of the tile stands in a loop over its vectors, and no vector of the tile needs
another one: the loop over them may then stand around all of the others.  (Full and partial tiles are told apart
in the same way by polyhedral compilers, for example C. Ancourt, F. Irigoin, *Scanning Polyhedra with DO Loops*,
PPoPP 1991.)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyschedule.analysis.sites import accesses
from pyschedule.ir import build
from pyschedule.ir.nodes import (
    Alloc,
    Assign,
    Compare,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Ramp,
    Stmt,
    Store,
    Var,
)
from pyschedule.ir.types import Vector
from pyschedule.ir.visitors import (
    children,
    counters,
    loops,
    read_variables,
    rewrite,
    substitute,
    substitute_expr,
    variables,
    walk,
    walk_expr,
    written_arrays,
    written_variables,
)
from pyschedule.transforms.algebra import simplified
from pyschedule.transforms.copies import renamed_counters
from pyschedule.transforms.facts import Facts
from pyschedule.transforms.nest import (
    Body,
    Names,
    conjuncts,
    exact_trips,
    first_access,
    innermost_loops,
    map_bodies,
    replace_statement,
    tile_form,
    with_body,
)

Access = Load | Store


@dataclass(frozen=True, slots=True)
class _Tile:
    """A register tile with loops over its vectors, `lanes` elements each, from `start` while before `end`.

    `axes`: the axis of each register array that counts the vectors.
    """

    loops: tuple[For, ...]
    start: Expr
    size: int
    lanes: int
    end: Expr
    axes: dict[str, int]

    @property
    def counters(self) -> frozenset[str]:
        return frozenset(loop.var for loop in self.loops)


def split_tails(kernel: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel with its register tiles split into whole and edge tiles, and its other tiles into whole ones and
    masked ones; and the user's names of the loops of register tiles whose tails these are."""
    names: list[str] = []
    for part in _tile_bodies(kernel.body):
        tile = _tile(part, kernel)
        if tile is None:
            continue
        edge = (_edge(part, tile, Names(kernel)),)
        if _masks_are_hot(tile, part):
            new = _two(tile, _whole(part, tile), edge)
        else:  # as long as there is something in each vector
            last = build.add(tile.start, tile.size - tile.lanes)
            new = If(build.compare("<", last, tile.end), part, edge, loc=tile.loops[0].loc)
        kernel = with_body(kernel, _with_tail_replaced(kernel.body, part, new))
        names.append(tile.loops[0].source)
    return _with_whole_vectors(kernel), tuple(dict.fromkeys(names))


def _with_whole_vectors(kernel: Kernel) -> Kernel:
    """The kernel with a version without masks of the loops over vectors that have some:

    for j in range(j_0, j_0 + 64, 16):               if j_0 + 64 <= N:
        b[j - j_0] = a[j:j+16; lanes < N]                for j in range(j_0, j_0 + 64, 16): b[j - j_0] = a[j:j+16]
                                                     else: ...
    """
    for loop in innermost_loops(kernel.body):
        lanes = build.constant(loop.step) if isinstance(loop, For) else None
        if not isinstance(loop, For) or lanes is None or lanes < 2:
            continue
        form = tile_form(loop)
        ends = _ends(loop, lanes)
        if form is None or not form.exact or form.size < 2 or len(ends) != 1:
            continue
        end = ends.pop()
        if not _stays(end, written_variables(loop.body) | {loop.var}):
            continue
        tile = _Tile((loop,), loop.start, form.size * lanes, lanes, end, {})
        masked = renamed_counters((loop,), Names(kernel))
        new = _two(tile, _whole((loop,), tile), masked)
        kernel = with_body(kernel, replace_statement(kernel.body, loop, (new,)))
    return kernel


def _two(tile: _Tile, whole: Body, other: Body) -> If:
    return If(build.compare("<=", build.add(tile.start, tile.size), tile.end), whole, other, loc=tile.loops[0].loc)


# --------------------------------------------------------------------------------------------- finding tiles


def _tile_bodies(body: Body) -> list[Body]:
    """What follows the first declaration of vector registers in each body, that included."""
    found: list[Body] = []

    def visit(stmts: Body) -> Body:
        for place, stmt in enumerate(stmts):
            if isinstance(stmt, Alloc) and _holds_vectors(stmt):
                found.append(stmts[place:])
                return stmts
            map_bodies(stmt, visit)
        return stmts

    visit(body)
    return found


def _holds_vectors(stmt: Alloc) -> bool:
    return stmt.array.space == "register" and isinstance(stmt.array.dtype, Vector)


def _with_tail_replaced(body: Body, part: Body, new: Stmt) -> Body:
    """The body with the statements `part`, the last of some body in it, replaced by one."""
    for stmt in part[1:]:
        body = replace_statement(body, stmt, ())
    return replace_statement(body, part[0], (new,))


def _tile(part: Body, kernel: Kernel) -> _Tile | None:
    """The tile that the statements are, where its vectors may be made one after the other."""
    allocated = {stmt.array.name: stmt for stmt in part if isinstance(stmt, Alloc)}
    if not all(_holds_vectors(stmt) for stmt in allocated.values()):
        return None
    if not all(isinstance(stmt, (Alloc, Assign, Store, If, For)) for stmt in walk(part)):
        return None
    if len(allocated) != sum(isinstance(stmt, Alloc) for stmt in walk(part)):
        return None
    over = _loops_over_vectors(part, frozenset(allocated))
    if not over:
        return None
    first, form = over[0], tile_form(over[0])
    lanes = build.constant(first.step)
    if form is None or lanes is None or lanes < 2 or form.size < 2:
        return None
    if any((loop.start, loop.stop, loop.step) != (first.start, first.stop, first.step) for loop in over):
        return None
    ends = {end for loop in over for end in _ends(loop, lanes)}
    axes = _axes(over, allocated.keys(), lanes)
    if len(ends) != 1 or axes is None:
        return None
    tile = _Tile(tuple(over), first.start, form.size * lanes, lanes, ends.pop(), axes)
    return tile if _may_run_in_turn(part, tile, kernel) else None


def _loops_over_vectors(part: Body, registers: frozenset[str]) -> list[For]:
    """The outermost loops whose counters index the registers by steps of more than one."""
    return [
        stmt
        for stmt in walk(part)
        if isinstance(stmt, For)
        and (build.constant(stmt.step) or 0) > 1
        and (form := tile_form(stmt)) is not None
        and form.exact
        and any(
            stmt.var in variables(index)
            for access in accesses(stmt.body)
            if access.array in registers
            for index in access.indices
        )
    ]


def _tests(body: Body) -> Iterable[Expr]:
    """The conditions of masks and of guards of tails, one by one."""
    for stmt in walk(body):
        if isinstance(stmt, If) and stmt.tail:
            yield from conjuncts(stmt.test)
    for access in accesses(body):
        if access.mask is not None:
            yield from conjuncts(access.mask)


def _ends(loop: For, lanes: int) -> set[Expr]:
    """Before what the lanes of a loop must stay, by its masks."""
    return {
        test.right
        for test in _tests(loop.body)
        if isinstance(test, Compare) and test.op == "<" and test.left == Ramp(loop.counter, 1, lanes)
    }


def _stays(end: Expr, changing: set[str]) -> bool:
    """Whether an end means the same wherever it is asked for."""
    return not variables(end) & changing and not any(isinstance(part, Load) for part in walk_expr(end))


def _axes(over: Sequence[For], registers: Iterable[str], lanes: int) -> dict[str, int] | None:
    """The axis of each register array that counts the vectors of all the loops."""
    axes: dict[str, int] = {}
    for loop in over:
        for access in accesses(loop.body):
            if access.array not in registers:
                continue
            along = [axis for axis, index in enumerate(access.indices) if loop.var in variables(index)]
            if len(along) != 1 or axes.setdefault(access.array, along[0]) != along[0]:
                return None
            index = access.indices[along[0]]
            values = [
                build.constant(
                    simplified(substitute_expr(index, {loop.var: build.add(loop.start, place * lanes)}), Facts())
                )
                for place in (0, 1)
            ]
            if values != [0, 1]:
                return None
    return axes if axes.keys() == set(registers) else None


# ------------------------------------------------------------------------------------------------- legality


def _may_run_in_turn(part: Body, tile: _Tile, kernel: Kernel) -> bool:
    """Whether the vectors may be made one after the other: all that is written belongs to one of them."""
    inside = [stmt for loop in tile.loops for stmt in walk(loop.body)]
    writes = [stmt for stmt in walk(part) if isinstance(stmt, (Assign, Store))]
    if sum(isinstance(stmt, (Assign, Store)) for stmt in inside) != len(writes):
        return False  # something is written once for all vectors
    arrays, scalars = written_arrays(part), written_variables(part)
    within = {id(stmt) for stmt in inside}
    for stmt in walk(part):
        if id(stmt) in within:
            continue
        around = [inner for top in children(stmt) for inner in walk_expr(top)]
        if any(isinstance(inner, Load) and inner.array in arrays for inner in around):
            return False
        if any(isinstance(inner, Var) and inner.name in scalars for inner in around):
            return False
    changing = counters(part) | scalars
    if variables(tile.start) & changing or not _stays(tile.end, changing):
        return False
    outside = _read_elsewhere(part, kernel)
    if scalars & outside:
        return False
    for loop in tile.loops:
        if any(first_access(loop.body, name) == "read" for name in scalars):
            return False
        for access in accesses(loop.body):
            if access.array in arrays and access.array not in tile.axes and not _own_columns(access, loop, tile):
                return False
    return _one_axis_each(tile, arrays)


def _read_elsewhere(part: Body, kernel: Kernel) -> set[str]:
    rest = kernel.body
    for stmt in part:
        rest = replace_statement(rest, stmt, ())
    return read_variables(rest)


def _own_columns(access: Access, loop: For, tile: _Tile) -> bool:
    """Whether an access meets elements of the vector's own columns alone."""
    along = [index for index in access.indices if loop.var in variables(index)]
    return along == [Ramp(loop.counter, 1, tile.lanes)]


def _one_axis_each(tile: _Tile, arrays: set[str]) -> bool:
    """Whether the columns are the same axis in all accesses of each array that is written."""
    axes: dict[str, set[int]] = {}
    for loop in tile.loops:
        for access in accesses(loop.body):
            if access.array in arrays:
                axes.setdefault(access.array, set()).update(
                    axis for axis, index in enumerate(access.indices) if loop.var in variables(index)
                )
    return all(len(found) == 1 for found in axes.values())


# -------------------------------------------------------------------------------------------- the two versions


def _masks_are_hot(tile: _Tile, part: Body) -> bool:
    """Whether there are masks in loops that run more often than registers are counted."""
    often = [loop for loop in loops(part) if exact_trips(loop) is None]
    inside = {id(stmt) for loop in often for stmt in walk(loop.body)}
    return any(id(loop) in inside and _ends(loop, tile.lanes) for loop in tile.loops)


def _whole(part: Body, tile: _Tile) -> Body:
    """The tile without masks and guards for its columns."""

    def holds(test: Expr) -> bool:
        left, right = (test.left, test.right) if isinstance(test, Compare) and test.op == "<" else (None, None)
        return right == tile.end and isinstance(left, Ramp) and left in columns

    columns = {Ramp(loop.counter, 1, tile.lanes) for loop in tile.loops}

    def without(mask: Expr | None) -> Expr | None:
        if mask is None:
            return None
        tests = conjuncts(mask)
        rest = [test for test in tests if not holds(test)]
        if len(rest) == len(tests):
            return mask
        return build.all_of(rest) if rest else None

    def expression(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and without(expr.mask) is not expr.mask:
            return dataclasses.replace(expr, mask=without(expr.mask))
        return None

    def statement(stmt: Stmt) -> Stmt | Body | None:
        if isinstance(stmt, Store) and without(stmt.mask) is not stmt.mask:
            return dataclasses.replace(stmt, mask=without(stmt.mask))
        if isinstance(stmt, If) and stmt.tail and without(stmt.test) is not stmt.test:
            test = without(stmt.test)
            return stmt.body if test is None else dataclasses.replace(stmt, test=test)
        return None

    return rewrite(part, statement, expression)


def _edge(part: Body, tile: _Tile, names: Names) -> For:
    """The loop over the vectors there are, around a tile of one vector."""
    around = tile.loops[0]
    counter = Var(names.fresh(around.var))

    def first(array: str, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        axis = tile.axes[array]
        return (*indices[:axis], build.ZERO, *indices[axis + 1 :])

    def expression(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.array in tile.axes:
            return dataclasses.replace(expr, indices=first(expr.array, expr.indices))
        return None

    def statement(stmt: Stmt) -> Stmt | Body | None:
        if isinstance(stmt, Alloc) and stmt.array.name in tile.axes:
            axis = tile.axes[stmt.array.name]
            shape = (*stmt.array.shape[:axis], build.ONE, *stmt.array.shape[axis + 1 :])
            return dataclasses.replace(stmt, array=dataclasses.replace(stmt.array, shape=shape))
        if isinstance(stmt, Store) and stmt.array in tile.axes:
            return dataclasses.replace(stmt, indices=first(stmt.array, stmt.indices))
        if isinstance(stmt, For) and stmt.var in tile.counters:
            return substitute(stmt.body, {stmt.var: counter})
        return None

    body = renamed_counters(rewrite(part, statement, expression), names)
    return dataclasses.replace(
        around,
        var=counter.name,
        start=tile.start,
        stop=tile.end,
        body=body,
        max_trip=tile.size // tile.lanes,
    )
