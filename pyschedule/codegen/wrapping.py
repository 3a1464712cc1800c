"""Which int64 sums, differences and products may wrap.

Numba marks signed arithmetic `nsw`: LLVM may take it that no result ever needs a 65th bit, and decides `x + 1 > x`
or `(x * 3) % 3` without looking.  That is good for indices, which are known to be in range before the kernel runs;
of values from outside it is wrong, for fixed-width integers wrap.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyschedule.codegen.emitter import Emitter
from pyschedule.codegen.ranges import INT64_RANGE, WIDE_EXTENT, Facts
from pyschedule.ir.nodes import BinOp, Expr, For, If, Kernel, Load, Var
from pyschedule.ir.visitors import walk_expr, written_variables


class WrappingWriter(Emitter):
    """Tells the sums, differences and products that may wrap from those that are known to stay in range."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(kernel)
        self._facts = Facts(self.arrays, WIDE_EXTENT)
        self._assigned = written_variables(kernel.body)
        self._in_range = 0

    def enter(self, loop: For) -> None:
        """Notes what is known of a loop's counter in its body."""
        self._facts.arrays = self.arrays
        self._facts.enter(loop)

    def may_wrap(self, expr: BinOp) -> bool:
        if self._in_range:
            return any(
                isinstance(part, Load) or (isinstance(part, Var) and part.name in self._assigned)
                for part in walk_expr(expr)
            )
        self._facts.arrays = self.arrays
        return self._facts.interval(expr) == INT64_RANGE

    @contextmanager
    def _known_in_range(self) -> Iterator[None]:
        """In addresses, bounds and tails what is made of counters, arguments and extents alone stays in range."""
        self._in_range += 1
        yield
        self._in_range -= 1

    def index(self, expr: Expr) -> str:
        """A part of an address, a bound, a size."""
        with self._known_in_range():
            return self.text(expr)

    def test(self, stmt: If) -> str:
        return self.index(stmt.test) if stmt.tail else super().test(stmt)

    def range_text(self, stmt: For) -> str:
        with self._known_in_range():
            return super().range_text(stmt)

    def loop(self, stmt: For) -> None:
        self.enter(stmt)
        super().loop(stmt)
