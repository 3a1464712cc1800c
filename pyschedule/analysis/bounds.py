"""Which indices stay inside their arrays: proved, or under which conditions on the arguments, or to be checked.

For an access that is known to run in every point of its domain, the arguments under which it would leave the
array are an exact set, the projection of the points outside; its complement is a `Precondition`, tested once
before the kernel runs.  It holds where the loops do not run at all.  An access that only may run (data decide,
or a `break` comes first) must not refuse anything.  Where it is not provably inside, there is a choice: what the
arguments would have to satisfy if it ran in every point is an *assumption*, under which it is inside; and for
arguments that do not satisfy it, and where nothing of the kind can be said, its index is checked each time.  Proofs
take the preconditions of the whole kernel for granted, and its assumptions.

    for i in range(x.shape[0]):
        if x[i] > 0.0:              assumed: x.shape[0] <= y.shape[0]
            y[i] = x[i]             otherwise: y[checked_index(i, y.shape[0])] = x[i]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyschedule.analysis.isl_expressions import from_ast, from_set, meanings, negated
from pyschedule.analysis.quasiaffine import (
    Formula,
    Parameters,
    Quasi,
    at_most,
    atom,
    below,
    both,
    constant,
    junction,
    scale,
)
from pyschedule.analysis.sites import Site, sites
from pyschedule.errors import Unsupported
from pyschedule.ir.nodes import Dim, Expr, Kernel, Location, Var
from pyschedule.ir.printer import format_expr
from pyschedule.ir.visitors import rewrite_expr, walk_expr

#: What becomes of an index: left alone; the extent added (it is always negative); added where negative;
#: checked at run time.
PLAIN, SHIFT, WRAP, CHECK = "plain", "shift", "wrap", "check"

#: Operations of isl for all questions about a kernel (a second or two), and for each question after those.
_MOST_OPERATIONS = 1_000_000
_FEWEST_OPERATIONS = 10_000

#: What needs a larger extent than this to be inside is hardly meant: an int32 from an array, as an index.
_LARGEST = 1 << 30


@dataclass(frozen=True, slots=True)
class Precondition:
    """What must hold of the arguments for `array` to be indexed inside its bounds along `axis`.

    `test` is a bool expression over extents and integer arguments.  `message` says what was violated;
    `message.format(**arguments)` puts in the extents of the arguments given.
    """

    test: Expr
    array: str
    axis: int
    loc: Location | None
    message: str


@dataclass(frozen=True, slots=True)
class Bounds:
    """`decisions` has one tuple an access, in the order of `sites.accesses`; one entry an axis.  They hold for
    arguments that satisfy the `preconditions` (others are refused) and the `assumptions`."""

    preconditions: tuple[Precondition, ...]
    decisions: tuple[tuple[str, ...], ...]
    assumptions: tuple[Precondition, ...] = ()


def analyse(kernel: Kernel, *, assume: bool = False) -> Bounds:
    """The bounds of a kernel whose indices still have Python's meaning (negative ones count from the end).

    `assume`: something may be assumed of the arguments, so that fewer indices are checked.
    """
    parameters = Parameters()
    found = sites(kernel, parameters)
    sets = _Sets(parameters)
    preconditions: list[Precondition] = []
    for site in found:
        if not site.exact:
            continue
        for axis in range(len(site.indices)):
            precondition = sets.refusal(site, axis)
            if precondition is not None:
                preconditions.append(precondition)
    assumptions: list[Precondition] = []
    for site in found if assume else ():
        for axis in range(0 if site.exact else len(site.indices)):
            assumption = sets.refusal(site, axis, useful=True)
            if assumption is not None:
                assumptions.append(assumption)
    decisions = tuple(tuple(sets.decision(site, axis) for axis in range(len(site.indices))) for site in found)
    return Bounds(tuple(preconditions), decisions, tuple(assumptions))


class _Sets:
    """The isl sets of one kernel: all questions are asked of these."""

    def __init__(self, parameters: Parameters) -> None:
        import islpy as isl

        self.isl = isl
        self.context = isl.Context()
        self.context.set_max_operations(_MOST_OPERATIONS)
        self.hard = False
        self.parameters = parameters
        self.declaration = parameters.declaration()
        self.names = meanings(parameters)
        self.known = self._read(f"{{ : {parameters.context()} }}")
        # The arguments that some precondition refuses.
        self.refused = self._read("{ : 0 = 1 }")
        self.cache: dict[tuple[Any, ...], Any] = {}

    def _ask(self) -> None:
        """Before each question: all have one quota together, and when that is used up each has a small one."""
        if self.hard:
            self.context.reset_operations()

    def _give_up(self) -> None:
        """The quota is used up."""
        self.hard = True
        self.context.set_max_operations(_FEWEST_OPERATIONS)
        self.context.reset_operations()

    def _read(self, text: str) -> Any:
        return self.isl.Set.read_from_str(self.context, self.declaration + text)

    def _points(self, site: Site, extra: Formula) -> Any:
        return self._read(f"{{ [{', '.join(site.unknowns)}] : {site.domain} and {extra} }}")

    def _arguments(self, site: Site, question: Formula) -> Any:
        """The arguments for which some point of the site answers the question with yes; `None`: too hard."""
        key = site.domain, site.unknowns, question
        if key not in self.cache:
            self._ask()
            try:
                self.cache[key] = self._points(site, question).params().intersect(self.known).coalesce()
            except self.isl.Error:
                self._give_up()
                self.cache[key] = None
        return self.cache[key]

    def outside(self, site: Site, axis: int) -> Any:
        index, extent = site.indices[axis], site.extents[axis]
        return self._arguments(site, junction("or", _below(index, extent), at_most(extent, index)))

    def decision(self, site: Site, axis: int) -> str:
        index = site.indices[axis]
        if not self._accepted(self.outside(site, axis)):
            return CHECK
        if self._accepted(self._arguments(site, below(index, constant(0)))):
            return PLAIN
        return SHIFT if self._accepted(self._arguments(site, at_most(constant(0), index))) else WRAP

    def _accepted(self, arguments: Any) -> bool:
        """Whether something happens for no arguments but those that are refused."""
        if arguments is None:
            return False
        self._ask()
        try:
            return bool(arguments.is_subset(self.refused))
        except self.isl.Error:
            self._give_up()
            return False

    def refusal(self, site: Site, axis: int, *, useful: bool = False) -> Precondition | None:
        """What must hold for a site to be inside along an axis, if that is not asked already, nor too hard to
        say; the arguments for which it does not are refused from now on.

        `useful`: nothing where it holds only for arguments with which the site does not run at all, as when data
        decide where an index is, or for arrays of unusual size.
        """
        outside = self.outside(site, axis)
        if outside is None:
            return None
        self._ask()
        try:
            if outside.is_empty() or outside.is_subset(self.refused):
                return None
            if useful:
                runs = self._arguments(site, self._usual())
                if runs is None or runs.subtract(outside.union(self.refused)).is_empty():
                    return None
            found = self.precondition(site, axis, outside)
            self.refused = self.refused.union(outside).coalesce()
            return found
        except self.isl.Error:
            self._give_up()
            return None

    def _usual(self) -> Formula:
        return both(*(at_most(atom(name), constant(_LARGEST)) for name in self.parameters.names.values()))

    def precondition(self, site: Site, axis: int, outside: Any) -> Precondition:
        array = site.array
        test = negated(from_set(outside, self.known, self.names))
        verb = "writes" if site.writes else "reads"
        reached = self._reached(site, axis)
        named = "index" if len(reached) == 1 else "indices"
        what = f"{named} {' to '.join(map(format_expr, reached))}{_values(*reached)}"
        if not reached:
            what = "an index outside"
        where = "" if site.loc is None else f" at {site.loc}".replace("{", "{{").replace("}", "}}")
        message = (
            f"{array.name}: axis {axis} has extent {_filled(array.shape[axis])}, but the loop {verb} {what}{where}"
        )
        return Precondition(test, array.name, axis, site.loc, message)

    def _reached(self, site: Site, axis: int) -> tuple[Expr, ...]:
        """The index that lies furthest outside, or the first and the last where arguments decide which it is;
        nothing where no expression says it."""
        index, extent = site.indices[axis], site.extents[axis]
        beyond = self._arguments(site, _below(index, extent)), self._arguments(site, at_most(extent, index))
        before, after = (found is not None and not found.is_empty() for found in beyond)
        self._ask()
        try:
            points = self._points(site, junction("and"))
            indices = points.apply(
                self.isl.Map.read_from_str(
                    self.context, f"{self.declaration}{{ [{', '.join(site.unknowns)}] -> [{index}] }}"
                )
            )
            ends = [indices.dim_min(0)] if before or not after else []
            ends += [indices.dim_max(0)] if after else []
            if any(end.n_piece() != 1 for end in ends):
                return ()
            build = self.isl.AstBuild.from_context(self.known)
            return tuple(dict.fromkeys(from_ast(build.expr_from_pw_aff(end), self.names) for end in ends))
        except Unsupported:
            return ()
        except self.isl.Error:
            self._give_up()
            return ()


def _below(index: Quasi, extent: Quasi) -> Formula:
    """`index < -extent`: not even Python's negative indices reach that far."""
    return below(index, scale(extent, -1))


def _arguments_of(expr: Expr) -> list[Dim | Var]:
    return list(dict.fromkeys(part for part in walk_expr(expr) if isinstance(part, (Dim, Var))))


def _filled(expr: Expr) -> str:
    """The text of an expression, with a replacement field for everything that an argument decides."""
    return format_expr(
        rewrite_expr(expr, lambda part: Var(f"{{{format_expr(part)}}}") if isinstance(part, (Dim, Var)) else None)
    )


def _values(*exprs: Expr) -> str:
    """` (n = {n}, A.shape[0] = {A.shape[0]})`: what the arguments in some expressions are."""
    arguments = dict.fromkeys(part for expr in exprs for part in _arguments_of(expr))
    parts = [f"{format_expr(part)} = {_filled(part)}" for part in arguments]
    return f" ({', '.join(parts)})" if parts else ""
