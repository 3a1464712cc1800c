"""The matrix unit: a register tile of sums of products becomes products of blocks.

Before, with `stage={"A": "i.0", "B": "j.0"}` and a tile of 32 x 32:

    for k in range(K):
        for i_2 in range(i_1, min(i_1 + 32, M)):
            for j_2 in range(j_1, min(j_1 + 32, N)):
                C[i_2, j_2] += int32(A[i_2, k]) * int32(B[k, j_2])

After, with 64 the depth of a tile of int8:

    C[i_1 : +min(32, M - i_1), j_1 : +min(32, N - j_1)] += matrix_product(
        A_tile[(i_1 - i_0) // 32], B_tile[(j_1 - j_0) // 32], depth=K)

The operands are staged for it, at the loops that `stage` names: block by block, in the order in which the unit
reads them, with zeros where a block reaches beyond the loops, so that every tile is whole.  The left one may do
without where its depth is contiguous: its elements then lie in the unit's order.  A loop before that sets the block
to zero is part of the product.

It is done before accumulators are looked for: the sums live in the unit's own registers while `k` runs.  Sums of
halves are regrouped, as a reduction may be, and subnormal numbers among them may count as zero (AMX, which sets
them to zero in operands and results), so that `strict_math` leaves halves alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from pyschedule.analysis import reductions
from pyschedule.analysis.affine import coefficient
from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.blocks import MatrixProduct
from pyschedule.ir.nodes import Alloc, Array, BinOp, Cast, Const, Expr, For, Kernel, Load, Stmt, Store
from pyschedule.ir.types import FLOAT32, Scalar, element_of
from pyschedule.ir.visitors import (
    arrays,
    bodies,
    expressions,
    loops,
    substitute_expr,
    variables,
    walk,
    walk_expr,
)
from pyschedule.schedule import names as loop_names
from pyschedule.schedule.directives import Tile
from pyschedule.schedule.log import Record
from pyschedule.schedule.targets import MatrixUnit, Target
from pyschedule.transforms.matrix_operands import (
    InPlace,
    Lanes,
    Layout,
    Operand,
    in_place,
    pack_operand,
    would_be_staged,
)
from pyschedule.transforms.nest import (
    Body,
    Names,
    TileForm,
    before,
    guarded,
    replace_statement,
    tile_form,
    with_body,
)
from pyschedule.transforms.staging_buffers import Read

_INT32 = Scalar("int32")
_NAME = "Matrix unit"
#: A block is at most so many of the unit's tiles high or wide: the code of each pair is written out.
_MOST_TILES = 4


@dataclass(frozen=True, slots=True)
class _Nest:
    """Three loops around one sum of products that `unit` might make; `around` are those outside."""

    loops: tuple[For, For, For]
    store: Store
    factors: tuple[Load, Load]
    around: tuple[For, ...]
    unit: MatrixUnit


@dataclass(frozen=True, slots=True)
class _Roles:
    """What a nest is as a product: `left` moves with the rows, `right` with the columns, both with the depth."""

    row: For
    column: For
    depth: For
    left: Load
    right: Load
    axes: tuple[int, int]
    row_form: TileForm
    column_form: TileForm


def use_matrix_unit(
    kernel: Kernel, tiles: tuple[Tile, ...], target: Target
) -> tuple[Kernel, tuple[Tile, ...], tuple[Record, ...]]:
    """Returns the kernel, the directives without the staging that is done, and a record for each product: which the
    unit makes, or why it does not."""
    if not target.matrix or not tiles:
        return kernel, tiles, ()
    requests = {array: (label, tile) for tile in tiles for array, label in tile.stage}
    records: dict[Record, None] = {}
    staged: set[str] = set()
    for nest in list(_nests(kernel.body, arrays(kernel), target.matrix)):
        if not {load.array for load in nest.factors} & set(requests):
            continue
        loc = nest.store.loc
        try:
            kernel, text, notes = _with_product(kernel, nest, requests, target)
        except Unsupported as refusal:
            records[Record(_NAME, "Note", f"not used: {refusal.reason}", (), loc, silent=True)] = None
            continue
        staged |= {load.array for load in nest.factors}
        records[Record(_NAME, "Applied", text, notes, loc)] = None
    left = {part.array for part in expressions(kernel.body) if isinstance(part, Load)}
    tiles = tuple(
        dataclasses.replace(tile, stage=tuple(item for item in tile.stage if item[0] not in staged - left))
        for tile in tiles
    )
    return kernel, tiles, tuple(records)


# ---------------------------------------------------------------------------------------------- what is there


def _nests(
    body: Body, declared: dict[str, Array], units: tuple[MatrixUnit, ...], around: tuple[For, ...] = ()
) -> Iterator[_Nest]:
    """The sums of products of two arrays that a unit might make, each with the three loops next to it."""
    for stmt in body:
        chain = _perfect(stmt)
        leaf = chain[-1].body[0] if chain and len(chain[-1].body) == 1 else None
        if isinstance(leaf, Store) and len(chain) >= 3:
            factors = _factors(leaf, declared)
            unit = None if factors is None else _unit_for(factors, declared, units)
            if factors is not None and unit is not None:
                inner = chain[-3:]
                yield _Nest((inner[0], inner[1], inner[2]), leaf, factors, (*around, *chain[:-3]), unit)
            continue
        inside = (*around, stmt) if isinstance(stmt, For) else around
        for part in bodies(stmt):
            yield from _nests(part, declared, units, inside)


def _perfect(stmt: Stmt) -> list[For]:
    """A loop and those that are all there is in its body, down to the innermost."""
    chain: list[For] = []
    while isinstance(stmt, For):
        chain.append(stmt)
        if len(stmt.body) != 1:
            break
        stmt = stmt.body[0]
    return chain


def _factors(store: Store, declared: dict[str, Array]) -> tuple[Load, Load] | None:
    """The two elements whose product a statement adds to a sum."""
    step = reductions.match(store)
    product = None if step is None or step.op != "+" else _widened(step.value)
    if not isinstance(product, BinOp) or product.op != "*":
        return None
    left, right = (_widened(part) for part in (product.left, product.right))
    if not isinstance(left, Load) or not isinstance(right, Load) or left.mask or right.mask:
        return None
    return (left, right) if left.array in declared and right.array in declared else None


def _unit_for(
    factors: tuple[Load, Load], declared: dict[str, Array], units: tuple[MatrixUnit, ...]
) -> MatrixUnit | None:
    """The first unit that takes elements of these types."""
    types = {element_of(declared[load.array].dtype).name for load in factors}
    return next((unit for unit in units if types <= set(unit.types)), None)


def _widened(expr: Expr) -> Expr:
    """What an expression is, but for conversions to types that hold all of its values, modulo the sum's width."""
    while isinstance(expr, Cast) and not expr.dtype.is_half and expr.dtype.bytes >= _INT32.bytes:
        expr = expr.operand
    return expr


# ------------------------------------------------------------------------------------------------- the roles


def _roles(nest: _Nest, declared: dict[str, Array], strict_math: bool) -> _Roles:
    """Raises `Unsupported` where the nest is no product that the unit can make."""
    target = declared[nest.store.array]
    kinds = [element_of(declared[load.array].dtype) for load in nest.factors]
    _sums_are_the_units(nest, target, kinds, strict_math)
    if target.space == "register":
        raise Unsupported(f"'{target.name}' is held in registers")
    counters = {loop.var: loop for loop in nest.loops}
    moving = [_moving(load, counters) for load in nest.factors]
    written = [variables(index) & set(counters) for index in nest.store.indices]
    outputs = set().union(*written)
    depth = moving[0] & moving[1]
    if len(outputs) != 2 or len(depth) != 1 or depth & outputs or any(len(names) != 2 for names in moving):
        raise Unsupported("the three innermost loops are no product of two matrices: rows, columns and a depth")
    if moving[0] == moving[1]:
        raise Unsupported("the three innermost loops are no product of two matrices: both move along one axis")
    last = target.rank - 1
    unit_axis = target.unit_axis if target.space == "global" else last
    if unit_axis is None or len(written[unit_axis]) != 1:
        raise Unsupported(f"no loop of the tile runs along neighbours in '{target.name}'")
    column = next(iter(written[unit_axis]))
    row = next(iter(outputs - {column}))
    axes = next(axis for axis, names in enumerate(written) if row in names), unit_axis
    for axis, name in zip(axes, (row, column), strict=True):
        factor = coefficient(nest.store.indices[axis], name)
        if written[axis] != {name} or factor is None or build.constant(factor) != 1:
            raise Unsupported(f"'{target.name}' is written at an index that does not count up with its loop")
    left, right = nest.factors if row in moving[0] else nest.factors[::-1]
    one, other = counters[row], counters[column]
    row_form, column_form = (_whole_tiles(loop, nest.unit) for loop in (one, other))
    deep = counters[next(iter(depth))]
    if build.constant(deep.step) != 1:
        raise Unsupported(f"loop '{deep.label}' does not count up by 1", deep.loc)
    inner = {loop.counter for loop in nest.loops}
    for loop in nest.loops:
        bounds = (loop.start, loop.stop)
        if any(isinstance(part, Load) or part in inner for bound in bounds for part in walk_expr(bound)):
            raise Unsupported(f"the bounds of loop '{loop.label}' change inside the tile", loop.loc)
        if loop.mapping != "serial":
            raise Unsupported(f"the iterations of loop '{loop.label}' run on the cores", loop.loc)
    return _Roles(one, other, deep, left, right, axes, row_form, column_form)


def _moving(load: Load, counters: Collection[str]) -> set[str]:
    return {name for index in load.indices for name in variables(index)} & set(counters)


def _sums_are_the_units(nest: _Nest, target: Array, kinds: Sequence[Scalar], strict_math: bool) -> None:
    names = " and ".join(dict.fromkeys(kind.name for kind in kinds))
    floats = [kind.is_float for kind in kinds]
    if len(set(floats)) > 1:
        raise Unsupported(f"it multiplies no {names}")
    held = element_of(target.dtype)
    wanted = FLOAT32 if floats[0] else _INT32
    if held != wanted:
        raise Unsupported(f"sums of {names} are made in {wanted}, and '{target.name}' is {held}")
    # Integers may be computed with in any width: all agree modulo that of the sum.
    step = reductions.match(nest.store)
    computed = [] if step is None else [step.dtype, step.value.type, _widened(step.value).type]
    for part in computed:
        dtype = element_of(part)
        if dtype != FLOAT32 if floats[0] else not dtype.is_integer or dtype.bytes < _INT32.bytes:
            raise Unsupported(f"its products are computed in {dtype}; in {wanted} they could be made there")
    if floats[0] and strict_math:
        raise Unsupported(
            f"strict_math=True keeps the order of a sum, and its subnormal numbers; without it {names} could be "
            "multiplied there"
        )


def _whole_tiles(loop: For, unit: MatrixUnit) -> TileForm:
    form = tile_form(loop)
    wanted = f"a size of {2 * unit.rows} as the last of loop '{loop.source}' would make it possible"
    if form is None:
        raise Unsupported(f"the tile has no constant size along loop '{loop.source}'; {wanted}", loop.loc)
    if form.size % unit.rows or form.step != 1 or not form.size:
        raise Unsupported(
            f"the tile is {form.size} along loop '{loop.source}', and the unit's are {unit.rows}; {wanted}",
            loop.loc,
        )
    if form.size > _MOST_TILES * unit.rows:
        raise Unsupported(f"the tile is {form.size} along loop '{loop.source}'; {wanted}", loop.loc)
    return form


# ------------------------------------------------------------------------------------------------- rewriting


def _with_product(
    kernel: Kernel, nest: _Nest, requests: dict[str, tuple[str, Tile]], target: Target
) -> tuple[Kernel, str, tuple[str, ...]]:
    """The kernel with the product in place of the nest, what the log says of it, and lines under that."""
    declared, unit = arrays(kernel), nest.unit
    roles = _roles(nest, declared, kernel.strict_math)
    kinds = [element_of(declared[load.array].dtype) for load in (roles.left, roles.right)]
    left_held, right_held, zero_point = unit.operands(kinds[0], kinds[1])
    depth, group = unit.depth(right_held.bytes), 4 // right_held.bytes
    names = Names(kernel)
    notes: list[str] = []
    staged: list[tuple[For, Operand]] = []
    operands: list[Operand | InPlace] = []
    for load, lane_loop, form, layout in (
        (roles.left, roles.row, roles.row_form, Layout(left_held, depth, depth, zero_point)),
        (roles.right, roles.column, roles.column_form, Layout(right_held, depth, group)),
    ):
        if load is roles.left and load.array not in requests:
            operands.append(_in_place(nest, roles, declared))
            notes.append(f"{load.array} is read where it lies")
            continue
        place = _place_of(load, nest, requests)
        read = Read(load, (*nest.around, *nest.loops))
        operand = pack_operand(kernel, read, place, Lanes(lane_loop, form), roles.depth, layout, target, names)
        if load is roles.left and (there := _there(nest, roles, declared)) is not None:
            operand = operand.spared(there)
        staged.append((place, operand))
        operands.append(operand)
        extents = [build.constant(extent) for extent in operand.buffer.shape]
        shape = " x ".join(str(extent or "n") for extent in extents)
        text = f"staged {load.array} at '{place.label}' as {shape} {operand.buffer.dtype} in packed memory"
        text += f", {layout.zero_point} added to each" if layout.zero_point else ""
        notes.append(text + (", unless its rows begin at lines of the cache" if operand.there else ""))
    left, right = operands
    there = left if isinstance(left, InPlace) else left.there
    start = {roles.row.var: roles.row.start, roles.column.var: roles.column.start}
    product = MatrixProduct(
        nest.store.array,
        tuple(substitute_expr(index, start) for index in nest.store.indices),
        roles.axes,
        _extent(roles.row, roles.row_form),
        _extent(roles.column, roles.column_form),
        left.array if there is None else there.array,
        left.place if there is None else there.place,
        right.array,
        right.place,
        build.maximum(build.sub(roles.depth.stop, roles.depth.start), 0),
        height=roles.row_form.size,
        fresh=False,
        left_axes=None if there is None else there.axes,
        copied=left.array if there is not None and left is not there else "",
        copied_place=left.place if there is not None and left is not there else (),
        passing=_passing(left, right, nest),
        zero_point=zero_point,
        unit=unit.name,
        loops=tuple((loop.source, loop.ordinal) for loop in nest.loops),
        loc=nest.store.loc,
    )
    body = _replaced(kernel.body, nest, roles, product)
    # The inner place first: the copies of the outer one go around what has become of it by then.
    for place, operand in sorted(staged, key=lambda item: -nest.around.index(item[0])):
        now = next(loop for loop in loops(body) if loop.var == place.var)
        new = dataclasses.replace(now, body=(Alloc(operand.buffer), *operand.copy, *now.body))
        body = replace_statement(body, now, (new,))
    rows, columns = roles.row_form.size, roles.column_form.size
    held = element_of(declared[nest.store.array].dtype)
    sums = f"{rows}x{columns} {held} of '{nest.store.array}'"
    types = " and ".join(dict.fromkeys(kind.name for kind in kinds))
    text = f"{unit.name}, {sums} from {types} in loop '{roles.depth.label}'"
    return with_body(kernel, body), text, tuple(notes)


def _extent(loop: For, form: TileForm) -> Expr:
    """How many iterations a tile's loop has."""
    return build.const(form.size) if form.exact else build.minimum(form.size, build.sub(form.end, loop.start))


def _in_place(nest: _Nest, roles: _Roles, declared: dict[str, Array]) -> InPlace:
    """The left operand as it is read where it lies; raises `Unsupported` where the unit's order is another one."""
    inner = {loop.var for loop in nest.loops}
    array = declared[roles.left.array]
    if not nest.unit.in_place:
        raise Unsupported(
            f"'{array.name}' is read in place, and {nest.unit.name} reads packed rows; "
            f"{would_be_staged(array.name)}",
            roles.left.loc,
        )
    return in_place(roles.left, array, (roles.row, roles.depth), inner, nest.store.array)


def _there(nest: _Nest, roles: _Roles, declared: dict[str, Array]) -> InPlace | None:
    """Where a staged left operand lies, if it may be read there too."""
    try:
        return _in_place(nest, roles, declared) if declared[roles.left.array].space == "global" else None
    except Unsupported:
        return None


def _passing(left: Operand | InPlace, right: Operand | InPlace, nest: _Nest) -> str:
    """The side of which the loop around takes block after block, while it stays with one of the other side."""
    var = nest.around[-1].var
    moves = [any(var in variables(index) for index in operand.place) for operand in (left, right)]
    return {(True, False): "left", (False, True): "right"}.get((moves[0], moves[1]), "")


def _place_of(load: Load, nest: _Nest, requests: dict[str, tuple[str, Tile]]) -> For:
    """The loop in which an operand is staged."""
    if load.array not in requests:
        around = nest.around[0].label if nest.around else "i.0"
        raise Unsupported(
            f"'{load.array}' is read in place, and the unit reads packed columns; "
            f"stage={{'{load.array}': '{around}'}}, or at another loop around, would make it possible",
            load.loc,
        )
    label = requests[load.array][0]
    spec = loop_names.parse(label)
    for loop in nest.around:
        if spec is not None and spec.matches(loop):
            return loop
    raise Unsupported(f"'{load.array}' is staged at '{label}', which is not outside the tile", load.loc)


def _replaced(body: Body, nest: _Nest, roles: _Roles, product: MatrixProduct) -> Body:
    """The body with the product in place of the nest, and of a loop before it that sets the block to zero."""
    old = nest.loops[0]
    siblings = next(part for part in _all_bodies(body) if any(stmt is old for stmt in part))
    at = next(place for place, stmt in enumerate(siblings) if stmt is old)
    product = dataclasses.replace(product, meaning=(old,))
    if at and _is_zeroed(siblings[at - 1], nest, roles):
        body = replace_statement(body, siblings[at - 1], ())
        product = dataclasses.replace(product, fresh=True, meaning=(siblings[at - 1], old))
    body = replace_statement(body, old, (product,))
    siblings = next(part for part in _all_bodies(body) if any(stmt is product for stmt in part))
    at = next(place for place, stmt in enumerate(siblings) if stmt is product)
    for stmt in siblings[at + 1 :]:
        whole = _in_whole_rows(stmt, roles)
        body = body if whole is stmt else replace_statement(body, stmt, (whole,))
    return body


def _in_whole_rows(stmt: Stmt, roles: _Roles) -> Stmt:
    """Loops over the rows and columns of the block, as what takes it from where the unit leaves it: all columns
    in each row, those beyond the end guarded, so that lanes have no loop over what is left."""
    chain, form = _perfect(stmt), roles.column_form
    row, column = (roles.row.start, roles.row.stop), (roles.column.start, roles.column.stop)
    if [(loop.start, loop.stop) for loop in chain] != [row, column] or form.exact:
        return stmt
    outer, inner = chain
    test = before(inner.counter, form.end, form.step)
    stop = build.add(form.low, form.size * form.step)
    whole = dataclasses.replace(inner, stop=stop, body=guarded(inner.body, test), max_trip=form.size)
    return dataclasses.replace(outer, body=(whole,))


def _all_bodies(body: Body) -> Iterator[Body]:
    yield body
    for stmt in walk(body):
        yield from bodies(stmt)


def _is_zeroed(stmt: Stmt, nest: _Nest, roles: _Roles) -> bool:
    """Whether a statement sets the elements of the block to zero, and nothing else."""
    chain = _perfect(stmt)
    if len(chain) != 2 or len(chain[1].body) != 1 or any(loop.mapping != "serial" for loop in chain):
        return False
    leaf = chain[1].body[0]
    if not isinstance(leaf, Store) or leaf.array != nest.store.array or leaf.mask is not None:
        return False
    zero = isinstance(leaf.value, Const) and str(leaf.value.value) in ("0", "0.0")
    for outer, inner in ((chain[0], chain[1]), (chain[1], chain[0])):
        renamed: dict[str, Expr] = {outer.var: roles.row.counter, inner.var: roles.column.counter}
        same = tuple(substitute_expr(index, renamed) for index in leaf.indices) == nest.store.indices
        ranges = all(
            (one.start, one.stop, one.step) == (other.start, other.stop, other.step)
            for one, other in ((outer, roles.row), (inner, roles.column))
        )
        if zero and same and ranges:
            return True
    return False


def products(body: Body) -> tuple[MatrixProduct, ...]:
    """The products of the unit in a body."""
    return tuple(stmt for stmt in walk(body) if isinstance(stmt, MatrixProduct))


def makes(loop: For) -> bool:
    """Whether a piece of a loop is around a product that stands for the loop's innermost piece."""
    key = (loop.source, loop.ordinal)
    return any(key in product.loops for product in products(loop.body))


def takes(kernel: Kernel, name: str | None, pieces: Collection[tuple[str, int]]) -> bool:
    """Whether a name means loops that products of the unit stand for, and none of the innermost `pieces` left."""
    spec = None if name is None else loop_names.parse(name)
    if spec is None or spec.piece is not None or any(spec.names(*key) for key in pieces):
        return False
    return any(spec.names(*key) for product in products(kernel.body) for key in product.loops)
