"""Python's indices made explicit: afterwards every index is between 0 and its extent.

    C[i, j] += A[i, k] * x[-1]      becomes      C[i, j] += A[i, k] * x[x.shape[0] - 1]

What can be proved under the preconditions and assumptions that come with the result is left alone; an index that
depends on data becomes `checked_index(index, extent)`, which raises `IndexError` where Python would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from pyschedule.analysis.bounds import CHECK, PLAIN, SHIFT, Bounds, analyse
from pyschedule.ir.build import ZERO, add
from pyschedule.ir.index_checks import check
from pyschedule.ir.nodes import Array, Cast, Compare, Expr, Kernel, Load, Select, Stmt, Store
from pyschedule.ir.types import INT64
from pyschedule.ir.users_names import users_names
from pyschedule.ir.visitors import Body, arrays, bodies, map_children


def make_explicit(kernel: Kernel, *, assume: bool = False) -> tuple[Kernel, Bounds]:
    """The kernel with explicit indices, and what its arguments must satisfy for it to stay in bounds.

    `assume`: some of that is assumed, of accesses that only may run; for other arguments it has to be made explicit
    again, without.  The very kernel given where no index needs a change.
    """
    bounds = analyse(kernel, assume=assume)
    if all(decision == PLAIN for one in bounds.decisions for decision in one):
        return kernel, bounds
    rewriter = _Rewriter(arrays(kernel), iter(bounds.decisions), users_names(kernel))
    return dataclasses.replace(kernel, body=rewriter.body(kernel.body)), bounds


@dataclasses.dataclass(frozen=True, slots=True)
class _Rewriter:
    """Meets the accesses in the order of `analysis.sites.accesses`, one tuple of decisions each."""

    arrays: dict[str, Array]
    decisions: Iterator[tuple[str, ...]]
    names: dict[str, str]

    def body(self, body: Body) -> Body:
        return tuple(self.statement(stmt) for stmt in body)

    def statement(self, stmt: Stmt) -> Stmt:
        decision = next(self.decisions) if isinstance(stmt, Store) else ()
        new: Stmt = map_children(stmt, self.expression)
        if isinstance(stmt, Store) and isinstance(new, Store):
            new = dataclasses.replace(new, indices=self.explicit(stmt, new.indices, decision))
        changes = {name: self.body(getattr(new, name)) for name in ("body", "orelse") if hasattr(new, name)}
        return dataclasses.replace(new, **changes) if any(bodies(new)) else new

    def expression(self, expr: Expr) -> Expr:
        decision = next(self.decisions) if isinstance(expr, Load) else ()
        new: Expr = map_children(expr, self.expression)
        if isinstance(expr, Load) and isinstance(new, Load):
            indices = self.explicit(expr, new.indices, decision)
            new = new if indices == new.indices else dataclasses.replace(new, indices=indices)
        return new

    def explicit(
        self, access: Load | Store, indices: tuple[Expr, ...], decision: tuple[str, ...]
    ) -> tuple[Expr, ...]:
        """What becomes of the indices of an access as it is written, of which some have changed inside already."""
        parts = zip(indices, self.arrays[access.array].shape, decision, strict=True)
        return tuple(self.index(*part, access, axis) for axis, part in enumerate(parts))

    def index(self, index: Expr, extent: Expr, decision: str, access: Load | Store, axis: int) -> Expr:
        if decision == PLAIN:
            return index
        if index.type != INT64:
            index = Cast(INT64, index)
        if decision == CHECK:
            return check(index, access, axis, extent, self.names)
        if decision == SHIFT:
            return add(extent, index)
        return Select(Compare("<", index, ZERO, INT64), add(index, extent), index, INT64)
