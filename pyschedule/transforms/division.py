"""Division and remainder of integers by constants, made simpler or worked out from the loops around them."""

from __future__ import annotations

import math
from dataclasses import replace

from pyschedule.analysis.affine import Affine, affine, expression
from pyschedule.analysis.residues import remainder, residue
from pyschedule.ir.build import add, constant
from pyschedule.ir.nodes import BinOp, Const, Expr
from pyschedule.transforms.facts import Facts, has_effect


def known_remainder(expr: BinOp, facts: Facts) -> Const | None:
    """`e % n` and `e & mask` where the loops around say what is left: `(k + 1) & 3` is 1 in
    `for k in range(0, m, 4)`, as in each copy of an unrolled body."""
    if expr.op not in ("%", "&") or has_effect(expr):
        return None
    value = remainder(expr, facts.counters)
    return None if value is None else Const(value, expr.dtype)


def divided(expr: BinOp, facts: Facts) -> Expr | None:
    """Division and remainder of an index (in int64) by a positive constant n, written as n*q + r:

    * `(n*q + r) // n` is `q + r // n`, and `(n*q + r) % n` is `r % n` - floor division, any sign;
    * `r // n` is m and `r % n` is `r - m*n` where `m*n <= r < (m + 1)*n` is known;
    * `(r + c) // n` is `r // n + m` for a constant c where r leaves a known rest;
    * `x & (n - 1)` is `x % n`, and `x >> p` is `x // n`, for n = 2**p, of negative x too.

    `None` where nothing of this makes it simpler.
    """
    divisor = _divisor(expr)
    form = affine(expr.left)
    if divisor is None or form is None or not facts.is_index(expr.left):
        return None
    whole = Affine(0, tuple((term, factor) for term, factor in form.terms if factor % divisor == 0))
    rest = Affine(form.constant % divisor, tuple(item for item in form.terms if item[1] % divisor))
    quotient = whole.plus(form.constant - rest.constant)
    quotient = Affine(
        quotient.constant // divisor, tuple((term, factor // divisor) for term, factor in quotient.terms)
    )
    least, most = facts.range_of(rest)
    block = least // divisor if math.isfinite(least) and math.isfinite(most) else None
    known = block is not None and block == most // divisor
    if expr.op in ("%", "&"):
        if known:
            return expression(rest.plus(-int(block or 0) * divisor))
        if whole.terms or not 0 <= form.constant < divisor:
            return replace(expr, left=expression(rest))
        return None
    if known:
        return expression(quotient.plus(int(block or 0)))
    left = residue(expression(rest.plus(-rest.constant)), divisor, facts.counters) if rest.constant else None
    if left is not None:
        quotient = quotient.plus((left + rest.constant) // divisor)
        rest = rest.plus(-rest.constant)
    elif not whole.terms:
        return None
    inner = replace(expr, left=expression(rest))
    return inner if quotient.is_constant and not quotient.constant else add(inner, expression(quotient))


def _divisor(expr: BinOp) -> int | None:
    number = constant(expr.right)
    if number is None:
        return None
    if expr.op in ("//", "%"):
        return number if number > 0 else None
    if expr.op == "&":
        return number + 1 if number >= 0 and number & (number + 1) == 0 else None
    return 1 << number if expr.op == ">>" and 0 <= number < 62 else None
