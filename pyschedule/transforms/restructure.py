"""Splitting loops into pieces and interleaving the pieces, every iteration kept exactly once.

Before, with `tile(i=(48, 32))`:

    for i in range(0, N):
        S(i)

After - counters are absolute, so that a piece starts where its tile does, and `min` ends the tail:

    for i_0 in range(0, N, 48):
        for i_1 in range(i_0, min(i_0 + 48, N), 32):
            for i_2 in range(i_1, min(i_1 + 32, min(i_0 + 48, N))):
                S(i_2)

Statements between the loops follow the pieces of the loops around them: those that share the first pieces of
their order stay together, and split (loop distribution) where the orders part.  Scalars whose life then spans
two loops are given one element an iteration (`expansion`).  Strip-mining and interchange are described in
M. Wolfe, *High Performance Compilers for Parallel Computing*, 1996, chapter 9; legality is not argued here but
decided by `analysis.dependences` on the nest that results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyschedule.errors import Unsupported
from pyschedule.ir import build
from pyschedule.ir.nodes import BinOp, Call, Expr, For, If, Stmt, Var
from pyschedule.ir.visitors import substitute, substitute_expr, variables
from pyschedule.transforms.bands import Band, Unit
from pyschedule.transforms.nest import Body, Names, before, clip

Sizes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Piece:
    """One level of a split loop; the last level has the original counter's values."""

    loop: For
    level: int
    count: int  # of sizes: levels are 0..count

    @property
    def last(self) -> bool:
        return self.level == self.count

    @property
    def label(self) -> str:
        return self.loop.source if self.count == 0 else f"{self.loop.source}.{self.level}"


def pieces_of(band: Band, sizes: Sizes) -> list[Piece]:
    return [
        Piece(loop, level, len(sizes.get(loop.var, ())))
        for loop in band.loops
        for level in range(len(sizes.get(loop.var, ())) + 1)
    ]


def default_order(band: Band, sizes: Sizes, hardware_threads: bool, *, registers_only: bool = False) -> list[Piece]:
    """Level by level; reductions last among the outer pieces, and outside the innermost output pieces.

    Where hardware runs the second level too (threads of a GPU), reductions come after it, so that an
    accumulator stays in one thread's registers.  `registers_only`: the innermost output pieces are those of the
    loops with most sizes, the register tile; the other loops' last pieces stay outside the reductions.
    """
    summed = band.reductions
    pieces = pieces_of(band, sizes)
    outputs = [piece for piece in pieces if piece.loop.var not in summed]
    sums = [piece for piece in pieces if piece.loop.var in summed]
    depth = max((piece.count for piece in pieces), default=0)
    if hardware_threads:
        return [
            *(piece for level in (0, 1) for piece in outputs if piece.level == level),
            *(piece for level in range(depth + 1) for piece in sums if piece.level == level),
            *(piece for level in range(2, depth + 1) for piece in outputs if piece.level == level),
        ]
    order: list[Piece] = []
    for level in range(depth):
        order += [piece for piece in outputs if piece.level == level and not piece.last]
        order += [piece for piece in sums if piece.level == level and not piece.last]
    inner = [piece for piece in outputs if piece.last and (piece.count == depth or not registers_only)]
    order += [piece for piece in outputs if piece.last and piece not in inner]
    return order + [piece for piece in sums if piece.last] + inner


def in_place_order(band: Band, sizes: Sizes) -> list[Piece]:
    """Every loop's pieces where the loop was: changes no order of execution, so it is always legal."""
    return pieces_of(band, sizes)


def step_of(loop: For) -> int:
    step = build.constant(loop.step)
    if step is None or step == 0:
        raise Unsupported(f"loop '{loop.source}' has a step that is not a constant", loop.loc)
    return step


# ------------------------------------------------------------------------------------------ the new nest


@dataclass(frozen=True, slots=True)
class _Range:
    """What is left of a loop inside the pieces emitted so far: from `low`, before `end`.

    `pending`: the true bounds still mention counters that are not in scope, and `low`, `end` are the hull
    over these; the innermost piece clips by the true bounds.
    """

    low: Expr
    end: Expr
    pending: bool = False


@dataclass(frozen=True, slots=True)
class _Scope:
    """`ranges`: source counter → what is left of it; `values`: source counter → its value, once known;
    `loose`: counters whose loops run over a hull, so that statements in them check the true bounds."""

    ranges: dict[str, _Range]
    values: dict[str, Expr]
    loose: frozenset[str] = frozenset()


def restructure(band: Band, sizes: Sizes, order: Sequence[Piece], names: Names) -> Body:
    """The band's units in loops over the pieces of their paths, in the given order.

    Raises `Unsupported` where a bound depends on a counter in a way that has no hull.
    """
    rank = {(piece.loop.var, piece.level): place for place, piece in enumerate(order)}
    by_key = {(piece.loop.var, piece.level): piece for piece in order}

    def own_order(unit: Unit) -> tuple[Piece, ...]:
        keys = [key for key in rank if any(loop.var == key[0] for loop in unit.path)]
        return tuple(by_key[key] for key in sorted(keys, key=rank.__getitem__))

    def emit(entries: list[tuple[Unit, tuple[Piece, ...]]], scope: _Scope) -> list[Stmt]:
        result: list[Stmt] = []
        place = 0
        while place < len(entries):
            unit, rest = entries[place]
            if not rest:
                checks = [test for loop in unit.path if loop.var in scope.loose for test in _true_bounds(loop)]
                # No tail guard: an accumulator may hold elements that only other iterations reach.
                body: Body = (If(build.all_of(checks), (unit.stmt,)),) if checks else (unit.stmt,)
                result.extend(substitute(body, scope.values))
                place += 1
                continue
            group = [(unit, rest[1:])]
            place += 1
            while place < len(entries) and entries[place][1] and entries[place][1][0] == rest[0]:
                group.append((entries[place][0], entries[place][1][1:]))
                place += 1
            result.append(loop_over(rest[0], group, scope))
        return result

    def loop_over(piece: Piece, group: list[tuple[Unit, tuple[Piece, ...]]], scope: _Scope) -> For:
        loop, level = piece.loop, piece.level
        step = step_of(loop)
        own = sizes.get(loop.var, ())
        current = scope.ranges.get(loop.var) or _start(loop, scope, by_name)
        loose = scope.loose
        if current.pending and piece.last:
            inner = (variables(loop.start) | variables(loop.stop)) & set(by_name) - set(scope.values)
            if inner:
                loose |= {loop.var}
            else:
                current = _clipped(loop, current, scope, step)
        size = own[level] if not piece.last else 1
        outer = own[level - 1] if level > 0 else None
        name = names.fresh(loop.source if piece.count == 0 else f"{loop.source}_{level}")
        counter = Var(name)
        ranges, values = dict(scope.ranges), dict(scope.values)
        if piece.last:
            values[loop.var] = counter
        else:
            ranges[loop.var] = _inside(loop, counter, current, size, outer, step)
        trips = -(-outer // size) if outer is not None else _static(current, step * size)
        return For(
            var=name,
            start=current.low,
            stop=current.end,
            step=build.const(step * size),
            body=tuple(emit(group, _Scope(ranges, values, loose))),
            source=loop.source,
            ordinal=loop.ordinal,
            piece=level if piece.count else None,
            mapping=loop.mapping,
            unroll=loop.unroll,
            max_trip=trips,
            loc=loop.loc,
        )

    by_name = {loop.var: loop for loop in band.loops}
    return tuple(emit([(unit, own_order(unit)) for unit in band.units], _Scope({}, {})))


def _true_bounds(loop: For) -> list[Expr]:
    """That a counter is within its loop's own bounds."""
    step = step_of(loop)
    first = build.compare(">=" if step > 0 else "<=", loop.counter, loop.start)
    return [first, before(loop.counter, loop.stop, step)]


def _static(current: _Range, step: int) -> int | None:
    span = build.constant(build.sub(current.end, current.low))
    return None if span is None else max(0, -(-span // step))


def _inside(loop: For, counter: Var, current: _Range, size: int, outer: int | None, step: int) -> _Range:
    """What one iteration of a piece leaves to the next: `size` iterations, clipped where the loop may end.

    Clipping by the loop's own end is enough where the outer size is a multiple of this one; nothing needs
    clipping where the (constant) trip count is.
    """
    end = build.add(counter, step * size)
    limit = current.end
    if outer is not None and outer % size == 0 and isinstance(limit, Call) and limit.function in ("pmin", "pmax"):
        limit = limit.args[1]
    elif outer is not None and outer % size == 0 and not current.pending and _static(current, step) == outer:
        return _Range(counter, end, current.pending)
    if outer is None:
        trips = _static(current, step)
        if trips is not None and trips % size == 0 and not current.pending:
            return _Range(counter, end)
    return _Range(counter, clip(end, limit, step), current.pending)


def _start(loop: For, scope: _Scope, loops: dict[str, For]) -> _Range:
    """The whole range of a loop: its bounds, or their hull over counters that come only further in."""
    missing = {
        name
        for bound in (loop.start, loop.stop)
        for name in variables(bound)
        if name in loops and name not in scope.values
    }
    if not missing:
        return _Range(substitute_expr(loop.start, scope.values), substitute_expr(loop.stop, scope.values))
    step = step_of(loop)
    if abs(step) != 1 and any(name in missing for name in variables(loop.start)):
        raise Unsupported(
            f"the start of loop '{loop.source}' depends on loop "
            f"'{', '.join(sorted(loops[name].source for name in missing))}', which would come inside it",
            loop.loc,
        )
    low = _extreme(loop.start, -1 if step > 0 else 1, missing, scope, loops, loop)
    end = _extreme(loop.stop, 1 if step > 0 else -1, missing, scope, loops, loop)
    return _Range(low, end, pending=True)


def _clipped(loop: For, current: _Range, scope: _Scope, step: int) -> _Range:
    low = substitute_expr(loop.start, scope.values)
    end = substitute_expr(loop.stop, scope.values)
    if low != current.low:
        low = build.maximum(current.low, low) if step > 0 else build.minimum(current.low, low)
    if abs(step) != 1:
        low = current.low
    return _Range(low, clip(current.end, end, step))


def _extreme(expr: Expr, want: int, missing: set[str], scope: _Scope, loops: dict[str, For], loop: For) -> Expr:
    """The largest (`want` = 1) or smallest (-1) value of a bound over the counters not yet in scope."""
    values = dict(scope.values)
    for name in missing & variables(expr):
        way = monotone(expr, name)
        if way is None:
            raise Unsupported(
                f"the bound of loop '{loop.source}' depends on loop '{loops[name].source}', which would come "
                "inside it, in a way that has no simple hull",
                loop.loc,
            )
        inner = loops[name]
        step = step_of(inner)
        span = scope.ranges.get(name) or _start(inner, scope, loops)
        first, final = span.low, build.sub(span.end, 1 if step > 0 else -1)
        smallest, largest = (first, final) if step > 0 else (final, first)
        values[name] = largest if way * want > 0 else smallest
    return substitute_expr(expr, values)


def monotone(expr: Expr, name: str) -> int | None:
    """1: never falls as the variable grows; -1: never rises; 0: does not depend on it; `None`: unknown."""
    if name not in variables(expr):
        return 0
    if isinstance(expr, Var):
        return 1
    if isinstance(expr, Call) and expr.function in ("pmin", "pmax"):
        return _same_way([monotone(arg, name) for arg in expr.args])
    if not isinstance(expr, BinOp):
        return None
    left, right = monotone(expr.left, name), monotone(expr.right, name)
    if expr.op == "+":
        return _same_way([left, right])
    if expr.op == "-" and right is not None:
        return _same_way([left, -right])
    factor = build.constant(expr.right)
    if factor is not None and left is not None and (expr.op == "*" or (expr.op == "//" and factor > 0)):
        return left if factor > 0 else -left
    return None


def _same_way(ways: Sequence[int | None]) -> int | None:
    signs = {way for way in ways if way != 0}
    if None in signs or len(signs) > 1:
        return None
    return signs.pop() if signs else 0


def static_trips(loop: For) -> int | None:
    """The trip count, where start, stop and step are constants."""
    step = build.constant(loop.step)
    return None if not step else _static(_Range(loop.start, loop.stop), step)
