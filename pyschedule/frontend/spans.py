"""Which loops of a block-form body run over which axes of the inputs, and how far once lifted.

Loops and axes of local arrays form groups: what indexes an axis of a local array directly shares its extent.
An index into an input constrains the group of one of its loops:

* `A[i]`: directly; the group spans that axis.
* `X[2*h + 3*r + 1]`: a window.  `r` is a window loop if it indexes some input directly, or no output; `h`
  slides, and runs as far as keeps the window inside the input (and its padding).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from pyschedule.errors import ScheduleError
from pyschedule.frontend.folding import fold
from pyschedule.frontend.parser import Parsed
from pyschedule.frontend.surface import (
    Apply,
    Binary,
    Element,
    Extent,
    Loop,
    Name,
    NewArray,
    Number,
    SetElement,
    Unary,
    names_in,
)
from pyschedule.ir.nodes import Expr, Location
from pyschedule.ir.visitors import Body, bodies, children, walk, walk_expr


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of an input.  `extent` is `None` where it is free; `pad` zeros are before and after it."""

    array: str
    index: int
    extent: int | None
    tile: int
    pad: int

    @property
    def whole(self) -> Expr:
        return Extent(self.array, self.index) if self.extent is None else Number(self.extent)

    @property
    def is_tiled(self) -> bool:
        return self.extent is None or self.tile < self.extent

    @property
    def stops(self) -> set[int]:
        """Where a loop through one tile may end: a tile larger than the extent is the extent."""
        tiles = {self.tile} if self.extent is None else {self.tile, min(self.tile, self.extent)}
        return {tile + 2 * self.pad for tile in tiles}

    @property
    def text(self) -> str:
        return f"{self.array}.shape[{self.index}]"


Axes = dict[tuple[str, int], Axis]
_Key = tuple[str, int] | int  # an axis of a local array, or the id of a loop


@dataclass(eq=False, slots=True)
class Group:
    """Loops (and axes of local arrays) that span the same iterations.

    `stops`: for each input axis that constrains the group, the exclusive bound of its counters; none for a
    group that is not lifted.
    """

    loops: list[Loop] = field(default_factory=list)
    locals: list[tuple[str, int]] = field(default_factory=list)
    windows: list[_Window] = field(default_factory=list)
    stops: list[tuple[Axis, Expr]] = field(default_factory=list)

    @property
    def is_direct(self) -> bool:
        return any(window.is_direct for window in self.windows)

    @property
    def is_tiled(self) -> bool:
        return any(window.axis.is_tiled for window in self.windows)

    @property
    def name(self) -> str:
        return self.loops[0].name if self.loops else self.locals[0][0]

    @property
    def loc(self) -> Location | None:
        return self.loops[0].loc if self.loops else None

    @property
    def stop(self) -> Expr:
        return self.stops[0][1]

    def extent(self, written: Expr) -> Expr:
        """The extent of a local array's axis that was `written` for one tile."""
        starts_later = any(not isinstance(loop.start, Number) or loop.start.value != 0 for loop in self.loops)
        if starts_later and isinstance(written, Number):
            for window in self.windows:
                if written.value == window.axis.tile:
                    return plus(window.axis.whole, 2 * window.axis.pad)
        return self.stop


@dataclass(frozen=True, slots=True)
class _Window:
    """`axis` is indexed by `stride * counter + offset + sum(coefficient * counter of group)`."""

    axis: Axis
    stride: int
    offset: int
    others: tuple[tuple[int, Group], ...]

    @property
    def is_direct(self) -> bool:
        return self.stride == 1 and self.offset == 0 and not self.others

    def stop(self, whole: Expr, reach: Expr) -> Expr:
        """The bound that keeps the index below `whole`, where the other terms reach up to `reach`."""
        room = fold(Binary("-", plus(whole, -self.offset - 1), reach))
        if self.stride != 1:
            room = fold(Binary("//", room, Number(self.stride)))
        return plus(room, 1)


@dataclass(frozen=True, slots=True)
class Spans:
    """`of_loop` maps the id of each `Loop`, `of_axis` each axis of a local array, to its group."""

    axes: Axes
    groups: list[Group]
    of_loop: dict[int, Group]
    of_axis: dict[tuple[str, int], Group]


@dataclass(frozen=True, slots=True)
class _Access:
    array: str
    axis: int
    index: Expr
    loops: dict[str, Loop]
    loc: Location | None


def plus(expr: Expr, constant: int) -> Expr:
    """`expr + constant`, constants gathered."""
    if isinstance(expr, Binary) and expr.op in "+-" and isinstance(expr.right, Number):
        inner = int(expr.right.value)
        return plus(expr.left, constant + (inner if expr.op == "+" else -inner))
    if constant == 0:
        return expr
    op = "+" if constant > 0 or isinstance(expr, Number) else "-"
    return fold(Binary(op, expr, Number(constant if op == "+" else -constant)))


def affine(expr: Expr) -> tuple[int, dict[str, int]] | None:
    """`expr` as (constant, name → coefficient), or `None`."""
    if isinstance(expr, Number) and type(expr.value) is int:
        return expr.value, {}
    if isinstance(expr, Name):
        return 0, {expr.name: 1}
    if isinstance(expr, Unary) and expr.op == "-":
        return _scaled(affine(expr.operand), -1)
    if isinstance(expr, Binary) and expr.op in ("+", "-", "*"):
        left, right = affine(expr.left), affine(expr.right)
        if left is None or right is None:
            return None
        if expr.op == "*":
            left, right = (left, right) if not right[1] else (right, left)
            return None if right[1] else _scaled(left, right[0])
        scaled = _scaled(right, 1 if expr.op == "+" else -1)
        if scaled is None:
            return None
        terms = dict(left[1])
        for name, coefficient in scaled[1].items():
            terms[name] = terms.get(name, 0) + coefficient
        return left[0] + scaled[0], {name: value for name, value in terms.items() if value}
    return None


def _scaled(form: tuple[int, dict[str, int]] | None, by: int) -> tuple[int, dict[str, int]] | None:
    return None if form is None else (form[0] * by, {name: value * by for name, value in form[1].items()})


def _accesses(body: Body, loops: dict[str, Loop]) -> Iterator[_Access]:
    """Every index of every array access, with the loops around it by name."""
    for stmt in body:
        inner = loops
        if isinstance(stmt, Loop):
            inner = {**loops, stmt.name: stmt}
        if isinstance(stmt, SetElement):
            for axis, index in enumerate(stmt.indices):
                yield _Access(stmt.array, axis, index, inner, stmt.loc)
        for part in children(stmt):
            for node in walk_expr(part):
                if isinstance(node, Element):
                    for axis, index in enumerate(node.indices):
                        yield _Access(node.array, axis, index, inner, node.loc)
        for part_body in bodies(stmt):
            yield from _accesses(part_body, inner)


def group_loops(parsed: Parsed, body: Body, axes: Axes, window_pad: int | None) -> Spans:
    """Groups the loops and works out their bounds.  `window_pad` pads the axes that windows slide along."""
    accesses = list(_accesses(body, {}))
    made = {stmt.name for stmt in walk(body) if isinstance(stmt, NewArray)}
    spans = _joined(body, accesses, made, axes)
    if window_pad:
        _pad_windows(parsed, spans, accesses, window_pad)
    _constrain(parsed, spans, accesses)
    for stmt in walk(body):
        if isinstance(stmt, NewArray) and stmt.like is not None:
            for axis in range(len(axes)):
                if (stmt.like, axis) in axes and (stmt.name, axis) in spans.of_axis:
                    window = _Window(spans.axes[stmt.like, axis], 1, 0, ())
                    spans.of_axis[stmt.name, axis].windows.append(window)
    for group in spans.groups:
        _resolve(group, ())
    for access in accesses:
        if access.array in made:
            _local_index_is_direct(access, spans)
    for group in spans.groups:
        for loop in group.loops:
            if group.stops:
                _bound_is_the_tiles(loop, group)
    return spans


def _joined(body: Body, accesses: list[_Access], made: set[str], axes: Axes) -> Spans:
    """Groups by direct indices of local arrays."""
    parent: dict[_Key, _Key] = {}

    def root(key: _Key) -> _Key:
        parent.setdefault(key, key)
        while parent[key] != key:
            key = parent[key]
        return key

    loops = [stmt for stmt in walk(body) if isinstance(stmt, Loop)]
    for loop in loops:
        root(id(loop))
    for access in accesses:
        if access.array in made:
            root((access.array, access.axis))
            if isinstance(access.index, Name) and access.index.name in access.loops:
                parent[root((access.array, access.axis))] = root(id(access.loops[access.index.name]))
    groups: dict[_Key, Group] = {}
    spans = Spans(dict(axes), [], {}, {})
    for loop in loops:
        group = groups.setdefault(root(id(loop)), Group())
        group.loops.append(loop)
        spans.of_loop[id(loop)] = group
    for key in parent:
        if isinstance(key, tuple):
            group = groups.setdefault(root(key), Group())
            group.locals.append(key)
            spans.of_axis[key] = group
    spans.groups.extend(groups.values())
    return spans


def _is_plain(access: _Access) -> bool:
    return isinstance(access.index, Name) and access.index.name in access.loops


def _pad_windows(parsed: Parsed, spans: Spans, accesses: list[_Access], pad: int) -> None:
    slid = {(a.array, a.axis) for a in accesses if not _is_plain(a) and names_in(a.index) & a.loops.keys()}
    padded = [key for key in spans.axes if key in slid]
    if not padded:
        raise ScheduleError(f"pad={pad}, but no window slides along an input of {parsed.name}()", parsed.loc)
    for key in padded:
        spans.axes[key] = replace(spans.axes[key], pad=pad)


def _constrain(parsed: Parsed, spans: Spans, accesses: list[_Access]) -> None:
    """Gives each index into an input to the group that it constrains; direct ones first, since they tell the
    window loops from those that slide."""
    later: list[tuple[_Access, Axis, int, list[tuple[int, Group]]]] = []
    for access in accesses:
        axis = spans.axes.get((access.array, access.axis))
        if axis is None:
            continue
        form = affine(access.index)
        if form is None or not form[1].keys() <= access.loops.keys() or not form[1]:
            if axis.is_tiled:
                raise ScheduleError(
                    f"{axis.text} is tiled, and this index along it is no sum of loop counters: it has no meaning "
                    "beyond one tile",
                    access.loc,
                )
            continue
        terms = [(value, spans.of_loop[id(access.loops[name])]) for name, value in form[1].items()]
        if form[0] == 0 and len(terms) == 1 and terms[0][0] == 1:
            terms[0][1].windows.append(_Window(axis, 1, 0, ()))
        else:
            later.append((access, axis, form[0], terms))
    for access, axis, offset, terms in later:
        slides = _sliding(access, axis, terms)
        if slides is None:
            continue
        stride, group = slides
        others = tuple(term for term in terms if term[1] is not group)
        if stride < 1 or any(value < 1 for value, _ in others):
            raise ScheduleError(f"the index along {axis.text} runs backwards, which cannot be lifted", access.loc)
        group.windows.append(_Window(axis, stride, offset, others))


def _sliding(access: _Access, axis: Axis, terms: list[tuple[int, Group]]) -> tuple[int, Group] | None:
    """Which loop of a window runs along the axis; `None` where each has its extent from elsewhere."""
    if len(terms) == 1:
        return terms[0]
    free = [term for term in terms if not term[1].is_direct]
    if len(free) > 1:
        free = [term for term in free if term[1].locals] or free
    if len(free) > 1:
        names = ", ".join(f"'{group.name}'" for _, group in free)
        raise ScheduleError(
            f"which of the loops {names} slides along {axis.text}? One should index the result", access.loc
        )
    return free[0] if free else None


def _resolve(group: Group, above: tuple[Group, ...]) -> None:
    """Fills in `stops`: for each axis the tightest of its windows."""
    if group.stops or not group.windows:
        return
    if group in above:
        raise ScheduleError(f"the windows of the loop over '{group.name}' depend on one another", group.loc)
    tightest: dict[Axis, Expr] = {}
    for window in group.windows:
        reach: Expr = Number(0)
        for coefficient, other in window.others:
            _resolve(other, (*above, group))
            last = plus(other.stop, -1) if other.stops else _last(other)
            reach = fold(Binary("+", reach, fold(Binary("*", last, Number(coefficient)))))
        whole = plus(window.axis.whole, 2 * window.axis.pad)
        stop = window.stop(whole, reach)
        known = tightest.get(window.axis)
        tightest[window.axis] = stop if known is None else _smaller(known, stop)
    group.stops.extend(tightest.items())


def _last(group: Group) -> Expr:
    """The last value of a loop that is not lifted."""
    loop = group.loops[0]
    values = _literal_range(loop)
    if values is not None:
        return Number(values[-1] if values else 0)
    if names_in(loop.stop):
        raise ScheduleError(
            f"how far the window loop over '{loop.name}' runs must be a constant or a shape", loop.loc
        )
    return plus(loop.stop, -1)


def _smaller(one: Expr, other: Expr) -> Expr:
    if one == other:
        return one
    a, b = affine_of_extent(one), affine_of_extent(other)
    if a is not None and b is not None and a[1] == b[1]:
        return one if a[0] <= b[0] else other
    return fold(Apply("pmin", "python", (one, other)))


def affine_of_extent(expr: Expr) -> tuple[int, Expr | None] | None:
    """`extent + constant` as (constant, extent)."""
    if isinstance(expr, Number):
        return int(expr.value), None
    if isinstance(expr, Extent):
        return 0, expr
    if isinstance(expr, Binary) and expr.op in "+-" and isinstance(expr.right, Number):
        return (int(expr.right.value) if expr.op == "+" else -int(expr.right.value)), expr.left
    return None


def _local_index_is_direct(access: _Access, spans: Spans) -> None:
    """A local array's axis grows with the loops that index it; only a plain counter says how far."""
    if _is_plain(access):
        return
    for name in names_in(access.index) & access.loops.keys():
        group = spans.of_loop[id(access.loops[name])]
        if group.stops and group.is_tiled:
            raise ScheduleError(
                f"'{access.array}' is indexed by an expression of the tiled loop '{name}', so that its extent "
                f"cannot be lifted; index it by '{name}' alone",
                access.loc,
            )


# ----------------------------------------------------------------------------------------- literals


def _literal_range(loop: Loop) -> range | None:
    parts = [part.value for part in (loop.start, loop.stop, loop.step) if isinstance(part, Number)]
    return range(*map(int, parts)) if len(parts) == 3 else None


def _bound_is_the_tiles(loop: Loop, group: Group) -> None:
    """A literal bound must be that of the tile (where a window slides, up to the tile's extent)."""
    if not isinstance(loop.start, Number) or not isinstance(loop.step, Number) or loop.step.value < 1:
        raise ScheduleError(
            f"the loop over '{loop.name}' does not run upwards from a constant through its tile", loop.loc
        )
    windows = [window for window in group.windows if not window.is_direct]
    direct = [window.axis for window in group.windows if window.is_direct]
    for axis in direct[1:]:
        if axis.stops.isdisjoint(direct[0].stops):
            raise ScheduleError(
                f"the loop over '{loop.name}' goes through tiles of two sizes: that of {direct[0].text} has "
                f"{direct[0].tile}, that of {axis.text} {axis.tile}; give both the same in tile_shapes",
                loop.loc,
            )
    if isinstance(loop.stop, Number):
        bound = int(loop.stop.value)
        exact = {stop for axis in direct for stop in axis.stops}
        largest = max((window.axis.tile + 2 * window.axis.pad for window in windows), default=0)
        if bound not in exact and not (windows and 0 <= bound <= largest):
            axis = (direct or [window.axis for window in windows])[0]
            raise ScheduleError(
                f"the loop over '{loop.name}' runs to {bound}, the tile of {axis.text} to {axis.tile}; write "
                f"range({axis.tile}) or range({axis.text})",
                loop.loc,
            )
    elif names_in(loop.stop):
        raise ScheduleError(
            f"the bound of the loop over '{loop.name}' must be the tile's extent, a number or a shape",
            loop.loc,
        )


def tile_size(loop: Loop, group: Group) -> int:
    """How many iterations of a lifted loop belong to one tile: the literal bound's, or the tile's own."""
    stop = loop.stop
    if not isinstance(stop, Number):
        stop = Number(min(_tile_stop(window) for window in group.windows))
    values = _literal_range(replace(loop, stop=stop))
    return max(1, len(values)) if values is not None else 1


def _tile_stop(window: _Window) -> int:
    """The bound of a window's loop inside one tile."""
    reach = 0
    for coefficient, other in window.others:
        last = plus(other.stop, -1) if other.stops else _last(other)
        reach += coefficient * (int(last.value) if isinstance(last, Number) else 0)
    stop = window.stop(Number(window.axis.tile + 2 * window.axis.pad), Number(reach))
    return int(stop.value) if isinstance(stop, Number) else window.axis.tile
