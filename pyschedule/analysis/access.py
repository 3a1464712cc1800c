"""How an access moves through memory: strides along a counter, contiguity, invariance, alignment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from pyschedule.analysis.affine import Affine, affine, coefficient, difference, is_invariant
from pyschedule.analysis.induction import form_divisible
from pyschedule.ir.build import constant
from pyschedule.ir.nodes import Array, Expr, For, Load, Ramp, Store
from pyschedule.ir.types import Vector, element_of, lanes_of

Access = Load | Store

#: Staged tiles start on a boundary of so many bytes.
STAGED_ALIGNMENT: Final = 64


def strides(array: Array) -> tuple[int | None, ...]:
    """Element strides, axis by axis: `None` where one is known at run time only.

    Of a parameter only the unit-stride axis is known; locals are contiguous, the last axis fastest.
    """
    if array.space == "global":
        return tuple(1 if axis == array.unit_axis else None for axis in range(array.rank))
    result: list[int | None] = []
    step: int | None = 1
    for extent in reversed(array.shape):
        result.append(step)
        size = constant(extent)
        step = None if step is None or size is None else step * size
    return tuple(reversed(result))


def stride(access: Access, array: Array, var: str) -> int | None:
    """Elements between the addresses at `var` and at `var + 1`; 0 where `var` does not matter.

    `None`: it is known at run time only (a row stride, a symbolic coefficient), or differs from one
    iteration to the next (`x[i // 2]`, `x[table[i]]`).
    """
    total = 0
    for index, step in zip(access.indices, strides(array), strict=True):
        symbolic = coefficient(index, var)
        factor = None if symbolic is None else constant(symbolic)
        if factor == 0:
            continue
        if factor is None or step is None:
            return None
        total += factor * step
    return total


def contiguous(access: Access, array: Array, var: str) -> bool:
    """Whether consecutive values of `var` reach consecutive elements, upwards."""
    return stride(access, array, var) == 1


def invariant(access: Access, var: str) -> bool:
    """Whether the address (and the mask) is the same for all values of `var`."""
    parts = access.indices if access.mask is None else (*access.indices, access.mask)
    return all(is_invariant(part, (var,)) for part in parts)


def aligned(access: Access, array: Array, var: str, lanes: int, enclosing: Sequence[For] = ()) -> bool:
    """Whether vectors of `lanes` elements that run along `var` provably start on a multiple of their size.

    `enclosing` are the loops around the access.  Where the loop of `var` is not among them, vectors are
    taken to start at multiples of `lanes` of it; where it is, its start has to show it (its step is the one
    before vectorization, or `lanes` after).
    """
    if isinstance(array.dtype, Vector) or not contiguous(access, array, var):
        return False
    if base_divisor(array) % lanes:
        return False
    loops = {loop.var: loop for loop in enclosing}
    own = loops.pop(var, None)
    start = Affine(0) if own is None else affine(own.start)
    if start is None:
        return False
    for index, step in zip(access.indices, strides(array), strict=True):
        if step is None:  # a multiple of the divisor, hence of `lanes`
            continue
        form = affine(index)
        if form is None:
            return False
        # At the start of a vector `var` is `start` plus a multiple of `lanes`.
        at_start = form.without(var) + start.scaled(form.coefficient(var))
        if not form_divisible(at_start.scaled(step), lanes, loops):
            return False
    return True


def base_divisor(array: Array) -> int:
    """A power of two of elements that divides the array's base address, as far as is known."""
    if array.space in ("packed", "shared"):
        return max(1, STAGED_ALIGNMENT // element_of(array.dtype).bytes)
    return array.divisor & -array.divisor


def apart(accesses: Sequence[Access], var: str, step: int, inner: Collection[str] = ()) -> bool:
    """Whether accesses at different values of `var`, `step` apart or more, surely reach different elements,
    whatever the counters `inner` are for each of them.

    So they do where along one axis all of them move with `var` in the same way, and with nothing else:
    `C[i, j]` and `C[i, j:j+8]` along `i`, but not `c[i // 2]`, nor `c[i]` and `c[i + 1]`, nor `c[i + j]`.
    """
    for indices in zip(*(access.indices for access in accesses), strict=True):
        bases = [_base(index) for index in indices]
        first = bases[0][0]
        symbolic = coefficient(first, var)
        factor = None if symbolic is None else constant(symbolic)
        if not factor or not is_invariant(first, inner) or any(difference(base, first) != 0 for base, _ in bases):
            continue
        if all(reach is not None and reach < abs(factor * step) for _, reach in bases):
            return True
    return False


def _base(index: Expr) -> tuple[Expr, int | None]:
    """Where an index starts, and how far its lanes reach beyond (`None`: not known)."""
    if isinstance(index, Ramp):
        return index.base, abs(index.stride) * (index.lanes - 1)
    return index, 0 if lanes_of(index.type) == 1 else None
