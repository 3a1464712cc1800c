"""Expressions made simpler without a change of value: the rules, each with its identity and when it fires.

Two grounds are told apart.  Arithmetic modulo 2**64 (`+ - *` on int64) may be regrouped whatever the values
are.  Order and division need that nothing overflows, which is taken for granted of index arithmetic only: of
counters, extents and scalars that the kernel never assigns, not of numbers read from arrays.

Floats keep every bit: `x * 1.0` and `x - 0.0` are `x`, but `x + 0.0` (minus zero) and `x * 0.0` (infinity,
NaN) are left alone, and nothing is regrouped.  Division is in `division`.  Not handled: facts from guards other
than their repetition, `(x // a) // b`, divisors that are not constant.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from typing import Any, Final

import numpy as np

from pyschedule.analysis.affine import affine, expression
from pyschedule.ir import arithmetic
from pyschedule.ir.nodes import (
    BinOp,
    BoolOp,
    Broadcast,
    Call,
    Cast,
    Compare,
    Const,
    Dim,
    Expr,
    Load,
    Ramp,
    Select,
    UnaryOp,
    Var,
)
from pyschedule.ir.types import BOOL, INT64, Scalar, Vector, element_of, lanes_of
from pyschedule.ir.visitors import map_children, walk_expr
from pyschedule.transforms.division import divided, known_remainder
from pyschedule.transforms.facts import Facts, has_effect
from pyschedule.transforms.nest import conjuncts

_MINIMA = ("pmin", "minimum")
_EXTREMA = ("pmin", "minimum", "pmax", "maximum")
_LINEAR = ("+", "-", "*")
_NEGATED: Final = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def simplified(expr: Expr, facts: Facts) -> Expr:
    """An expression of the same type and value; the very same object where no rule fires."""
    if isinstance(expr, (Const, Var)):
        return expr
    if isinstance(expr, (BinOp, UnaryOp)) and _is_linear(expr):
        return _linear(expr, facts)
    costly = isinstance(expr, (Compare, Call))
    if costly and (known := facts.decided.get(expr)) is not None:
        return expr if known == expr else known
    new: Expr = map_children(expr, lambda part: simplified(part, facts))
    if facts.known and isinstance(new, (Compare, UnaryOp, BoolOp, Select)) and new in facts.known:
        new = Const(facts.known[new], BOOL)
    rule = _RULES.get(type(new))
    if rule is not None:
        new = rule(new, facts)
    if costly:
        facts.decided[expr] = new
    return new


def negation(test: Expr) -> Expr:
    """`not test`; comparisons of integers are turned round (with a NaN `not x < y` is not `x >= y`)."""
    if isinstance(test, UnaryOp) and test.op == "not":
        return test.operand
    if isinstance(test, Compare) and test.dtype.is_integer:
        return replace(test, op=_NEGATED[test.op])
    truth = truth_of(test)
    return UnaryOp("not", test) if truth is None else _bool(not truth, test)


def truth_of(expr: Expr) -> bool | None:
    """The value of a bool constant, in all lanes."""
    if isinstance(expr, Broadcast):
        expr = expr.value
    return bool(expr.value) if isinstance(expr, Const) and expr.dtype.kind == "b" else None


# ------------------------------------------------------------------------------------------ sums of int64


def _is_linear(expr: Expr) -> bool:
    """A node that `_linear` looks through: scalar int64 `+ - *` and negation."""
    if isinstance(expr, BinOp):
        return expr.op in _LINEAR and expr.dtype.name == "int64" and not isinstance(expr.type, Vector)
    return isinstance(expr, UnaryOp) and expr.op == "-" and expr.type == INT64


def _linear(expr: Expr, facts: Facts) -> Expr:
    """Sums with terms gathered: `(x + a) - x` is `a`, `2*i + 3*i` is `5*i`, constants fold.

    Modulo 2**64, so whatever the terms are.  Only where that is shorter: the user's spelling stays else.
    """
    if isinstance(expr, BinOp) and expr.op != "*" and type(expr.left) is Var and type(expr.right) is Const:
        return expr if expr.right.value else _unit(expr)  # by far the most common sum
    expr = _through(expr, facts)
    form = affine(expr)
    if form is None or has_effect(expr):
        return expr
    if form.is_constant:
        return _int64(form.constant)
    if isinstance(expr, BinOp) and _plain(expr.left) and _plain(expr.right) and expr.left != expr.right:
        return _unit(expr)
    shorter = expression(form)
    return shorter if _size(shorter) < _size(expr) else expr


def _through(expr: Expr, facts: Facts) -> Expr:
    """The operands of a sum simplified, the sum itself not yet."""
    if not _is_linear(expr):
        return simplified(expr, facts)
    changed: Expr = map_children(expr, lambda part: _through(part, facts))
    return changed


def _plain(expr: Expr) -> bool:
    return isinstance(expr, (Const, Var, Dim))


def _size(expr: Expr) -> int:
    return sum(1 for _ in walk_expr(expr))


def _int64(value: int) -> Const:
    return Const(arithmetic.wrap(value), INT64)


# ------------------------------------------------------------------------------------------------ folding


def _folded(compute: Callable[..., Any], dtype: Scalar, *operands: Expr) -> Const | None:
    """The value of an operation on constants, computed as the kernel computes it; `None` where it would raise
    or leave the finite numbers."""
    if not all(isinstance(operand, Const) for operand in operands):
        return None
    values = [arithmetic.hold(one.value, one.dtype) for one in operands if isinstance(one, Const)]
    try:
        with np.errstate(all="ignore"):
            value = compute(*values)
    except (ArithmeticError, ValueError):
        return None
    number = value.item() if isinstance(value, np.generic) else value
    return None if isinstance(number, float) and not math.isfinite(number) else Const(number, dtype)


def _converted(expr: Expr, dtype: Scalar) -> Callable[[Any], Any]:
    return arithmetic.convert(element_of(expr.type), dtype)


# -------------------------------------------------------------------------------------------- arithmetic


def _binary(expr: BinOp, facts: Facts) -> Expr:
    if not (expr.dtype.is_float and expr.op in ("//", "%", "**")):  # libraries differ in the last bit
        compute = arithmetic.binary(expr.op, expr.dtype, vector=False)
        left, right = _converted(expr.left, expr.dtype), _converted(expr.right, expr.dtype)
        folded = _folded(
            lambda a, b: compute(left(a), right(b)), arithmetic.held(expr.dtype), expr.left, expr.right
        )
        if folded is not None:
            return folded
    if expr.dtype.is_integer and not isinstance(expr.type, Vector):
        rest = known_remainder(expr, facts)
        if rest is not None:
            return rest
        if expr.dtype.name == "int64" and _fits(expr.left):
            return divided(expr, facts) or _unit(expr)
    return _unit(expr)


def _unit(expr: BinOp) -> Expr:
    """Neutral operands: `x + 0`, `x - 0`, `x * 1`, `x // 1`, `x | 0`, `x ^ 0`, `x << 0`, `x >> 0` on integers,
    `x * 1.0`, `x / 1.0`, `x - 0.0` on floats, either way round where that is the same; when `x` has the
    operation's type (else it would have been converted)."""
    for kept, other, first in ((expr.left, expr.right, False), (expr.right, expr.left, True)):
        if not isinstance(other, Const) or kept.type != expr.type:
            continue
        neutral = _NEUTRAL_FLOAT if expr.dtype.is_float else _NEUTRAL
        if (expr.op, first) in neutral.get(other.value, ()) and not (other.value == 0 and _is_minus_zero(other)):
            return kept
    return expr


_NEUTRAL: Final[Mapping[float, tuple[tuple[str, bool], ...]]] = {
    0: (
        *(("+", False), ("+", True), ("-", False), ("|", False), ("|", True)),
        *(("^", False), ("^", True), ("<<", False), (">>", False)),
    ),
    1: (("*", False), ("*", True), ("//", False)),
}
_NEUTRAL_FLOAT: Final[Mapping[float, tuple[tuple[str, bool], ...]]] = {
    0: (("-", False),),
    1: (("*", False), ("*", True), ("/", False)),
}


def _is_minus_zero(value: Const) -> bool:
    return isinstance(value.value, float) and math.copysign(1.0, value.value) < 0


def _unary(expr: UnaryOp, facts: Facts) -> Expr:
    if expr.op == "not":
        turned = negation(expr.operand)
        return expr if turned == expr else turned
    if isinstance(expr.operand, Const):
        compute = arithmetic.unary(expr.op, expr.operand.type)
        return _folded(compute, element_of(expr.type), expr.operand) or expr
    if isinstance(expr.operand, UnaryOp) and expr.operand.op == expr.op:
        return expr.operand.operand  # -(-x), ~(~x): bits are put back
    return expr


def _cast(expr: Cast, facts: Facts) -> Expr:
    """A conversion to the type that a value has already; halves round, so theirs stays."""
    if expr.operand.type == expr.type and not expr.dtype.is_half:
        return expr.operand
    if isinstance(expr.operand, Const):
        value, wide = expr.operand.value, expr.dtype.name in ("int32", "int64")
        if isinstance(value, float) and not expr.dtype.is_float and not (wide and abs(value) < 2**31):
            return expr  # what an overflowing conversion gives is the machine's business
        compute = arithmetic.cast(expr.operand.type, expr.dtype)
        return _folded(compute, element_of(expr.type), expr.operand) or expr
    return expr


# -------------------------------------------------------------------------------------- minima, choices


def _call(expr: Call, facts: Facts) -> Expr:
    """`min` and `max` of integers: equal arguments once, nested ones flat, and of two whose order is known
    (`min(x, x + 3)`, or from the loops around: `min(i_1 + 6, i_0 + 192)`) only the one that counts."""
    if expr.function not in _EXTREMA or not expr.dtype.is_integer or isinstance(expr.type, Vector):
        return expr
    if any(arg.type != expr.type for arg in expr.args) or has_effect(expr):
        return expr
    smallest = expr.function in _MINIMA
    kept: list[Expr] = []
    for arg in _flat(expr, smallest):
        if any(_orders(other, arg, smallest, facts) for other in kept):
            continue
        kept = [other for other in kept if not _orders(arg, other, smallest, facts)]
        kept.append(arg)
    if kept == list(_flat(expr, smallest)):
        return expr
    return reduce(lambda left, right: Call(expr.function, (left, right), expr.dtype, expr.loc), kept)


def _flat(expr: Expr, smallest: bool) -> list[Expr]:
    if isinstance(expr, Call) and expr.function in _EXTREMA and (expr.function in _MINIMA) == smallest:
        return [part for arg in expr.args for part in _flat(arg, smallest)]
    return [expr]


def _orders(left: Expr, right: Expr, smallest: bool, facts: Facts) -> bool:
    """Whether `left <= right` (or `left >= right`) is known, so that `right` never counts."""
    if left == right:
        return True
    if isinstance(left, Const) and isinstance(right, Const):
        return left.value <= right.value if smallest else left.value >= right.value
    if left.type != INT64 or not (facts.is_index(left) and facts.is_index(right)):
        return False
    first, second = affine(left), affine(right)
    if first is None or second is None:
        return False
    difference = first - second if smallest else second - first
    return facts.range_of(difference)[1] <= 0


def _compare(expr: Compare, facts: Facts) -> Expr:
    """A comparison that always comes out the same: of constants, or of indices whose order is known; in
    lanes, where it does in the first and in the last."""
    compute = arithmetic.comparison(expr.op, vector=False)
    left, right = _converted(expr.left, expr.dtype), _converted(expr.right, expr.dtype)
    folded = _folded(lambda a, b: compute(left(a), right(b)), BOOL, expr.left, expr.right)
    if folded is not None:
        return folded
    if expr.dtype.name != "int64" or not (_fits(expr.left) and _fits(expr.right)):
        return expr
    lanes = lanes_of(expr.type)
    if lanes > 1 and expr.op in ("==", "!="):
        return expr  # between two lanes that differ there may be one that does not
    truths: set[bool | None] = set()
    for lane in {0, lanes - 1}:
        first, second = _in_lane(expr.left, lane), _in_lane(expr.right, lane)
        if not (facts.is_index(first) and facts.is_index(second)):
            return expr
        forms = affine(first), affine(second)
        if forms[0] is None or forms[1] is None:
            return expr
        truths.add(_truth(expr.op, *facts.range_of(forms[0] - forms[1])))
        if truths == {None}:
            return expr
    return _bool(truths.pop() is True, expr) if len(truths) == 1 else expr


def _fits(expr: Expr) -> bool:
    return element_of(expr.type).name == "int64"


def _in_lane(expr: Expr, lane: int) -> Expr:
    """One lane of a vector that is linear in the lane, or that is broadcast."""
    if isinstance(expr, Ramp):
        return BinOp("+", expr.base, _int64(expr.stride * lane), INT64)
    return expr.value if isinstance(expr, Broadcast) else expr


def _truth(op: str, least: float, most: float) -> bool | None:
    """Whether `d op 0` for every d between the two, or for none."""
    if op in ("!=", ">", ">="):
        opposite = _truth(_NEGATED[op], least, most)
        return None if opposite is None else not opposite
    if op == "==":
        return True if least == most == 0 else False if least > 0 or most < 0 else None
    limit = 0 if op == "<=" else -1
    return True if most <= limit else False if least > limit else None


def _bool(value: bool, like: Expr) -> Expr:
    """A truth value in as many lanes as `like` has."""
    lanes = lanes_of(like.type)
    return Const(value, BOOL) if lanes == 1 else Broadcast(Const(value, BOOL), lanes)


def _bool_op(expr: BoolOp, facts: Facts) -> Expr:
    """`true and x` and `false or x` are `x`; `false and x` is false, as `x and false` is (if `x` cannot raise);
    `x and x` is `x`, in a longer chain too."""
    decides = expr.op == "or"
    for part, other in ((expr.left, expr.right), (expr.right, expr.left)):
        truth = truth_of(part)
        if truth is None:
            continue
        if truth == decides:
            return expr if part is expr.right and has_effect(other) else _bool(truth, expr)
        return other if other.type == expr.type else Broadcast(other, lanes_of(expr.type))
    if expr.op == "and" and not has_effect(expr.right):
        before = conjuncts(expr.left)
        fresh = [test for test in conjuncts(expr.right) if test not in before]
        if len(fresh) < len(conjuncts(expr.right)):
            shorter = reduce(lambda left, right: BoolOp("and", left, right), [*before, *fresh])
            return shorter if shorter.type == expr.type else expr
    return expr.left if expr.left == expr.right else expr


def _select(expr: Select, facts: Facts) -> Expr:
    """A choice that is made already, or between equals; the arm that is left must have the choice's type."""
    truth = truth_of(expr.test)
    if truth is not None:
        arm = expr.then if truth else expr.orelse
    elif expr.then == expr.orelse and not has_effect(expr.test):
        arm = expr.then
    else:
        return expr
    if element_of(arm.type) != element_of(expr.type):
        arm = Cast(expr.dtype, arm)
    return arm if arm.type == expr.type else Broadcast(arm, lanes_of(expr.type))


def _dim(expr: Dim, facts: Facts) -> Expr:
    """The extent of an axis that the call fixed."""
    return (facts.extents or {}).get(expr, expr)


def _load(expr: Load, facts: Facts) -> Expr:
    """A mask that lets all lanes through, where the indices say how many there are."""
    if expr.mask is not None and truth_of(expr.mask):
        bare = replace(expr, mask=None)
        return bare if bare.type == expr.type else expr
    return expr


def _ramp(expr: Ramp, facts: Facts) -> Expr:
    return expr.base if expr.lanes == 1 else expr


_RULES: Final[Mapping[type, Callable[[Any, Facts], Expr]]] = {
    BinOp: _binary,
    UnaryOp: _unary,
    Cast: _cast,
    Call: _call,
    Compare: _compare,
    BoolOp: _bool_op,
    Select: _select,
    Dim: _dim,
    Load: _load,
    Ramp: _ramp,
}
