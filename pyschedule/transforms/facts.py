"""What is known at the place where an expression stands."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pyschedule.analysis.affine import Affine
from pyschedule.analysis.induction import Bounder
from pyschedule.ir.nodes import Call, Const, Dim, Expr, For, Load, Ramp, Var
from pyschedule.ir.visitors import walk_expr


@dataclass(frozen=True)
class Facts:
    """What is known where an expression stands.

    `loops`: the loops around it, outermost first, whose bounds nothing in them changes; `others`: the loops
    around it that change their own bounds.  `assigned`: scalars that are written somewhere.  `known`: tests that
    hold (or do not).  `extents`: fixed ones.
    """

    loops: tuple[For, ...] = ()
    others: tuple[For, ...] = ()
    assigned: frozenset[str] = frozenset()
    known: Mapping[Expr, bool] | None = None
    extents: Mapping[Dim, Const] | None = None

    @cached_property
    def bounder(self) -> Bounder:
        return Bounder(self.loops)

    @cached_property
    def counters(self) -> dict[str, For]:
        """All loops around, by their counters."""
        return {loop.var: loop for loop in (*self.loops, *self.others)}

    @cached_property
    def decided(self) -> dict[Expr, Expr]:
        """Comparisons and extrema that were simplified here already: copies of a body repeat them."""
        return {}

    def inside(self, loop: For, *, steady: bool = True) -> Facts:
        """What is known in a loop; `steady`: its bounds mean inside it what they meant on entry."""
        if steady:
            return replace(self, loops=(*self.loops, loop))
        return replace(self, others=(*self.others, loop))

    def given(self, tests: Mapping[Expr, bool]) -> Facts:
        return replace(self, known={**(self.known or {}), **tests})

    def is_index(self, expr: Expr) -> bool:
        """Whether nothing in an expression can overflow: no array is read, no assigned scalar (and no error
        is owed to the user)."""
        return not any(
            isinstance(part, (Load, Ramp))
            or (isinstance(part, Var) and part.name in self.assigned)
            or (isinstance(part, Call) and part.function == "checked_index")
            for part in walk_expr(expr)
        )

    def range_of(self, form: Affine) -> tuple[float, float]:
        """The least and the largest value, infinite where unknown."""
        if form.is_constant:
            return form.constant, form.constant
        least, most = self.bounder.lower(form), self.bounder.upper(form)
        return -math.inf if least is None else least, math.inf if most is None else most


def has_effect(expr: Expr) -> bool:
    """Whether evaluating an expression may raise an error that the user is owed."""
    return any(isinstance(part, Call) and part.function == "checked_index" for part in walk_expr(expr))
