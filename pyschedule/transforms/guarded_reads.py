"""Guarded reads: what a vector reads or else takes as zero, by one test for all lanes, becomes a masked load.

Before - windows over an image with imagined zeros around it, channels in lanes:

    acc[0:16] += w * (X[y + r - 1, x + s - 1, 0:16] if y + r >= 1 and y + r <= H and x + s >= 1 and ... else 0.0)

After:

    acc[0:16] += w * X[y + r - 1 if y + r >= 1 and y + r <= H else 0, ..., 0:16; y + r >= 1 and y + r <= H and ...]

No branch is left, of which a window has one an element; and tests and addresses that do not change in a loop over
the lanes are worked out before it.  Where its tests fail, all lanes of the load are off and it is one of index 0:
it would not fault elsewhere, but takes a processor long where it has no page at hand.

Left alone are tests of data and those that have nothing to do with the indices of the read, gathers, values other
than 0, and elements of two bytes, which not every CPU that has masks can mask.
"""

from __future__ import annotations

from dataclasses import replace

from pyschedule.ir import build
from pyschedule.ir.nodes import Array, Compare, Expr, Kernel, Load, Ramp, Select
from pyschedule.ir.types import INT64, element_of, lanes_of
from pyschedule.ir.visitors import arrays, rewrite, variables, walk_expr
from pyschedule.transforms.nest import conjuncts, is_zero, with_body


def mask_reads(kernel: Kernel) -> Kernel:
    """The kernel with its guarded vector reads as masked loads."""
    known = arrays(kernel)

    def expression(expr: Expr) -> Expr | None:
        if isinstance(expr, Select) and isinstance(expr.then, Load) and is_zero(expr.orelse):
            return _masked(expr.then, expr.test, known[expr.then.array])
        return None

    body = rewrite(kernel.body, expression=expression)
    return kernel if body is kernel.body else with_body(kernel, body)


def _masked(load: Load, test: Expr, array: Array) -> Load | None:
    tests = conjuncts(test)
    if array.space == "register" or element_of(array.dtype).bytes < 4 or not _is_contiguous(load, array):
        return None
    moving = {name for index in load.indices for name in variables(index)}
    if not all(_is_of_indices(part) for part in tests) or not variables(test) & moving:
        return None

    def near(index: Expr) -> Expr:
        own = [part for part in tests if variables(part) & variables(index)]
        if not own or lanes_of(index.type) > 1:
            return index
        return Select(build.all_of(own), index, build.ZERO, INT64)

    mask = test if load.mask is None else build.both(test, load.mask)
    return replace(load, indices=tuple(near(index) for index in load.indices), mask=mask)


def _is_contiguous(load: Load, array: Array) -> bool:
    """Whether lanes are elements side by side."""
    vectors = [axis for axis, index in enumerate(load.indices) if lanes_of(index.type) > 1]
    if vectors != [array.unit_axis]:
        return False
    index = load.indices[vectors[0]]
    return isinstance(index, Ramp) and index.stride == 1


def _is_of_indices(test: Expr) -> bool:
    return (
        isinstance(test, Compare)
        and test.dtype == INT64
        and lanes_of(test.type) == 1
        and not any(isinstance(part, Load) for part in walk_expr(test))
    )
