"""How often loops run, and what their counters can be.

Bounds are proved by replacing one term at a time with something simpler that is never smaller (or never
larger): a counter by its loop's first or last value, `min(a, b)` by `a` or by `b`, `x % n` by `n - 1`, an
extent by zero.  A bound found this way holds; that none is found proves nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyschedule.analysis.affine import Affine, Term, affine, mentions
from pyschedule.ir.build import constant
from pyschedule.ir.nodes import BinOp, Call, Dim, Expr, For, Select

_MINIMA = ("pmin", "minimum")
_MAXIMA = ("pmax", "maximum")
#: Replacements a proof may try; enough for bounds of several tiled loops, and no time at all.
_EFFORT = 400


# ------------------------------------------------------------------------------------------- trip counts


def static_trip(loop: For) -> int | None:
    """The number of iterations where it is a constant, as that of `range(i_0, i_0 + 6)` is."""
    length = _length(loop)
    if length is None or not length[0].is_constant:
        return None
    return max(0, -(-length[0].constant // length[1]))


def max_trip(loop: For, enclosing: Sequence[For] = ()) -> int | None:
    """An upper bound of the number of iterations, as 192 for `range(i_0, min(i_0 + 192, M))`.

    `enclosing` are loops around it, outermost first, whose counters its bounds may use.
    """
    found = loop.max_trip
    length = _length(loop)
    if length is not None:
        most = Bounder(enclosing).upper(length[0])
        if most is not None:
            trips = max(0, -(-most // length[1]))
            found = trips if found is None else min(found, trips)
    return found


def _length(loop: For) -> tuple[Affine, int] | None:
    """`(distance, step)`, so that the trip count is `max(0, ceil(distance / step))`, the step positive."""
    start, stop, step = affine(loop.start), affine(loop.stop), constant(loop.step)
    if start is None or stop is None or not step:
        return None
    return (stop - start, step) if step > 0 else (start - stop, -step)


# ------------------------------------------------------------------------------------------------ bounds


def upper_bound(expr: Expr, enclosing: Sequence[For] = ()) -> int | None:
    """A constant that `expr` never exceeds inside the loops given (outermost first), if one can be proved."""
    form = affine(expr)
    return None if form is None else Bounder(enclosing).upper(form)


def lower_bound(expr: Expr, enclosing: Sequence[For] = ()) -> int | None:
    """A constant that `expr` never goes below inside the loops given, if one can be proved."""
    form = affine(expr)
    return None if form is None else Bounder(enclosing).lower(form)


class Bounder:
    """Bounds of affine forms inside some loops (outermost first); keeps what it worked out of the loops."""

    def __init__(self, enclosing: Sequence[For]) -> None:
        self.loops = {loop.var: loop for loop in enclosing}
        # Inner counters go first: their bounds mention outer ones, never the other way round.
        self.depth = {loop.var: level for level, loop in enumerate(enclosing)}
        self.ends: dict[tuple[str, bool], list[Affine]] = {}
        self.effort = 0

    def upper(self, form: Affine) -> int | None:
        """A constant that the form never exceeds."""
        self.effort = _EFFORT
        return self._upper(form)

    def lower(self, form: Affine) -> int | None:
        """A constant that the form never goes below: an upper bound of the negated form, negated."""
        most = self.upper(form.scaled(-1))
        return None if most is None else -most

    def _upper(self, form: Affine) -> int | None:
        if form.is_constant:
            return form.constant
        self.effort -= 1
        if self.effort < 0:
            return None
        if not any(self._can_replace(term) for term, _ in form.terms):
            return None
        for term, factor in sorted(form.terms, key=self._rank):
            rest = form.without(term)
            choices = self._replacements(term, factor)
            if choices is None:
                continue
            needs_all, parts = choices
            bounds = [self._upper(rest + part) for part in parts]
            known = [bound for bound in bounds if bound is not None]
            if needs_all:
                return max(known) if len(known) == len(bounds) else None
            return min(known, default=None)
        return None

    def _can_replace(self, term: Term) -> bool:
        return term in self.loops if isinstance(term, str) else True

    def _rank(self, item: tuple[Term, int]) -> tuple[int, int]:
        """Opaque terms first (what they hide may cancel), then counters from the innermost, then extents."""
        term = item[0]
        if isinstance(term, str):
            return 1, -self.depth.get(term, -1)
        return (2, 0) if isinstance(term, Dim) else (0, -len(self._counters(term)))

    def _counters(self, term: Expr) -> list[str]:
        return [name for name in self.loops if mentions(term, name)]

    def _replacements(self, term: Term, factor: int) -> tuple[bool, list[Affine]] | None:
        """Forms to put for `factor * term`: each an upper bound, or (`True`) all of them together."""
        if isinstance(term, str):
            ends = self._ends(term, factor > 0)
            return (False, [end.scaled(factor) for end in ends]) if ends else None
        if isinstance(term, Dim):
            return (False, [Affine(0)]) if factor < 0 else None
        if isinstance(term, Call) and term.function in (*_MINIMA, *_MAXIMA):
            forms = [affine(arg) for arg in term.args]
            parts = [form.scaled(factor) for form in forms if form is not None]
            if len(parts) < len(forms):
                return None
            return (factor > 0) != (term.function in _MINIMA), parts
        if isinstance(term, Select):
            arms = [affine(term.then), affine(term.orelse)]
            parts = [arm.scaled(factor) for arm in arms if arm is not None]
            return (True, parts) if len(parts) == 2 else None
        return self._divided(term, factor) if isinstance(term, BinOp) else None

    def _ends(self, counter: str, last: bool) -> list[Affine]:
        key = counter, last
        if key not in self.ends:
            loop = self.loops.get(counter)
            self.ends[key] = [] if loop is None else _last_values(loop) if last else _first_values(loop)
        return self.ends[key]

    def _divided(self, term: BinOp, factor: int) -> tuple[bool, list[Affine]] | None:
        """Bounds of `x // n`, `x % n`, `x & n` and `x >> n` for a positive constant `n`."""
        number, operand = constant(term.right), affine(term.left)
        if number is None or number < 0 or operand is None:
            return None
        if term.op == "%" and number:
            return False, [Affine(max(0, factor * (number - 1)))]
        if term.op == "&":
            return False, [Affine(max(0, factor * number))]
        if term.op == ">>" and number < 63:
            number = 1 << number
        elif term.op != "//" or not number:
            return None
        if factor % number == 0:
            # x - (n - 1) <= n * (x // n) <= x
            return False, [(operand if factor > 0 else operand.plus(1 - number)).scaled(factor // number)]
        most = self._upper(operand if factor > 0 else operand.scaled(-1))
        if most is None:
            return None
        return False, [Affine(factor * (most // number if factor > 0 else -most // number))]


def _first_values(loop: For) -> list[Affine]:
    """Forms that the counter of a running loop never goes below."""
    step = constant(loop.step)
    if not step:
        return []
    if step > 0:
        start = affine(loop.start)
        return [] if start is None else [start]
    return _ends(loop, -step, upward=False)


def _last_values(loop: For) -> list[Affine]:
    """Forms that the counter of a running loop never exceeds."""
    step = constant(loop.step)
    if not step:
        return []
    if step < 0:
        start = affine(loop.start)
        return [] if start is None else [start]
    return _ends(loop, step, upward=True)


def _ends(loop: For, step: int, *, upward: bool) -> list[Affine]:
    """The last value towards `stop`, for each alternative that a minimum (or maximum) there offers.

    Where the distance from `start` is a constant the step counts: `range(a, a + 192, 6)` ends at `a + 186`.
    """
    sign = 1 if upward else -1
    start = affine(loop.start)
    ends = []
    for alternative in _alternatives(loop.stop, _MINIMA if upward else _MAXIMA):
        stop = affine(alternative)
        if stop is None:
            continue
        distance = None if start is None else (stop - start).scaled(sign)
        if start is not None and distance is not None and distance.is_constant and distance.constant > 0:
            ends.append(start.plus(sign * ((distance.constant - 1) // step * step)))
        else:
            ends.append(stop.plus(-sign))
    return ends


def _alternatives(expr: Expr, functions: Collection[str]) -> list[Expr]:
    if isinstance(expr, Call) and expr.function in functions:
        return [part for arg in expr.args for part in _alternatives(arg, functions)]
    return [expr]


# ---------------------------------------------------------------------------------------- divisibility


def divides(expr: Expr, number: int, enclosing: Sequence[For] = ()) -> bool:
    """Whether `number` provably divides `expr`, given the loops around it."""
    form = affine(expr)
    return form is not None and form_divisible(form, number, {loop.var: loop for loop in enclosing})


def form_divisible(form: Affine, number: int, loops: dict[str, For]) -> bool:
    if number == 1:
        return True
    return form.constant % number == 0 and all(
        factor % number == 0 or _term_divisible(term, factor, number, loops) for term, factor in form.terms
    )


def _term_divisible(term: Term, factor: int, number: int, loops: dict[str, For]) -> bool:
    if isinstance(term, str):
        loop = loops.get(term)
        if loop is None:
            return False
        ends = affine(loop.start), affine(loop.step)
        outer = {name: other for name, other in loops.items() if name != term}
        return all(end is not None and form_divisible(end.scaled(factor), number, outer) for end in ends)
    parts: tuple[Expr, ...]
    if isinstance(term, Call) and term.function in (*_MINIMA, *_MAXIMA):
        parts = term.args
    elif isinstance(term, Select):
        parts = (term.then, term.orelse)
    elif isinstance(term, BinOp) and term.op == "*":
        parts = (term.left, term.right)
    elif isinstance(term, BinOp) and term.op == "&" and constant(term.right) is not None:
        return factor * (constant(term.right) or 0) % number == 0 and number & (number - 1) == 0
    else:
        return False
    forms = [affine(part) for part in parts]
    proved = [form is not None and form_divisible(form.scaled(factor), number, loops) for form in forms]
    return any(proved) if isinstance(term, BinOp) else all(proved)
