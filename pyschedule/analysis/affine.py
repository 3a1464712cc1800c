"""Integer expressions as `constant + sum(coefficient * term)`.

A term is a variable (its name), a `Dim`, a product of such, or any other int64 expression taken whole (an
"opaque" term: `i // 4`, `min(i, n)`, `lut[r]`).  Two equal opaque terms denote one value as long as both are
evaluated at the same moment, which holds within one expression.

Index arithmetic is taken not to overflow; `+`, `-` and `*` agree modulo 2**64 even where it does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from pyschedule.ir.build import ZERO, add, const, constant, mul, sub, wrapped
from pyschedule.ir.nodes import BinOp, Cast, Const, Dim, Expr, Load, UnaryOp, Var
from pyschedule.ir.types import INT64, Scalar
from pyschedule.ir.visitors import walk_expr

#: A variable's name, an extent, or an expression taken whole.
Term = str | Expr
#: A product of terms, in a fixed order; the empty one is the constant's.
Monomial = tuple[Term, ...]

_MOST_TERMS = 64


@dataclass(frozen=True, slots=True)
class Affine:
    """`constant + sum(coefficient * term)`, terms in order of first appearance, no coefficient zero."""

    constant: int
    terms: tuple[tuple[Term, int], ...] = ()

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def coefficient(self, term: Term) -> int:
        return next((factor for other, factor in self.terms if other == term), 0)

    def without(self, term: Term) -> Affine:
        return Affine(self.constant, tuple(item for item in self.terms if item[0] != term))

    def __add__(self, other: Affine) -> Affine:
        sums = dict(self.terms)
        for term, factor in other.terms:
            sums[term] = sums.get(term, 0) + factor
        return Affine(self.constant + other.constant, tuple(item for item in sums.items() if item[1]))

    def __sub__(self, other: Affine) -> Affine:
        return self + other.scaled(-1)

    def scaled(self, factor: int) -> Affine:
        if factor == 0:
            return Affine(0)
        return Affine(self.constant * factor, tuple((term, value * factor) for term, value in self.terms))

    def plus(self, number: int) -> Affine:
        return Affine(self.constant + number, self.terms)

    def __str__(self) -> str:
        parts = [f"{factor}*{term}" for term, factor in self.terms] + [str(self.constant)]
        return " + ".join(parts)


def affine(expr: Expr) -> Affine | None:
    """The form of a scalar integer expression; `None` for floats, bools and vectors.

    What is not linear is opaque, products of variables too (`coefficient` sees into those).
    """
    polynomial = _polynomial(expr)
    if polynomial is None:
        return None
    terms: dict[Term, int] = {}
    for monomial, factor in polynomial.items():
        if monomial:
            terms[_product(monomial)] = factor
    return Affine(polynomial.get((), 0), tuple(terms.items()))


def coefficient(expr: Expr, name: str) -> Expr | None:
    """What `name` is multiplied by in `expr`: the `ld` of `i*ld + j`, perhaps a `Const`, zero where absent.

    `None` where `expr` is not linear in it (`i*i`, `i // 2`, `table[i]`) or is no scalar integer.
    """
    polynomial = _polynomial(expr)
    if polynomial is None:
        return None
    total: Expr = ZERO
    for monomial, factor in polynomial.items():
        others = [term for term in monomial if term != name]
        if any(mentions(term, name) for term in others) or len(monomial) - len(others) > 1:
            return None
        if len(others) < len(monomial):
            total = add(total, mul(_expression(tuple(others)), factor))
    return total


def is_invariant(expr: Expr, names: Collection[str]) -> bool:
    """Whether `expr` reads none of these variables and arrays."""
    return not any(
        (isinstance(part, Var) and part.name in names) or (isinstance(part, Load) and part.array in names)
        for part in walk_expr(expr)
    )


def mentions(term: Term, name: str) -> bool:
    """Whether a term is, or reads, the variable (or array) of that name."""
    return term == name if isinstance(term, str) else not is_invariant(term, (name,))


def expression(form: Affine) -> Expr:
    """`form` as an expression: its terms in order, those that are subtracted last, then the constant."""
    added = [item for item in form.terms if item[1] > 0]
    taken = [item for item in form.terms if item[1] < 0]
    rest = wrapped(form.constant)
    result: Expr | None = None
    for term, factor in added:
        part = mul(_factor(term), wrapped(factor))
        result = part if result is None else add(result, part)
    if result is None:
        result, rest = const(rest), 0
    for term, factor in taken:
        part = mul(_factor(term), wrapped(-factor))
        result = UnaryOp("-", part) if constant(result) == 0 else sub(result, part)
    return add(result, rest)


def difference(left: Expr, right: Expr) -> int | None:
    """`left - right` where that is a constant."""
    first, second = affine(left), affine(right)
    if first is None or second is None:
        return None
    result = first - second
    return result.constant if result.is_constant else None


# ------------------------------------------------------------------------------------------- polynomials


def _factor(term: Term) -> Expr:
    return Var(term, INT64) if isinstance(term, str) else term


def _expression(monomial: Monomial) -> Expr:
    result: Expr = const(1)
    for term in monomial:
        result = mul(_factor(term), result) if result == const(1) else mul(result, _factor(term))
    return result


def _product(monomial: Monomial) -> Term:
    return monomial[0] if len(monomial) == 1 else _expression(monomial)


def _polynomial(expr: Expr) -> Mapping[Monomial, int] | None:
    if not isinstance(expr.type, Scalar) or not expr.type.is_integer:
        return None
    return _parts(expr)


def _parts(expr: Expr) -> dict[Monomial, int]:
    """The polynomial of a scalar integer expression; only int64 arithmetic is looked into."""
    if isinstance(expr, Const):
        return {(): int(expr.value)} if expr.value else {}
    if isinstance(expr, Var):
        return {(expr.name,): 1} if expr.vtype in _INT64 else {(expr,): 1}
    if isinstance(expr, BinOp) and expr.dtype in _INT64 and _integers(expr.left, expr.right):
        return _binary(expr)
    if isinstance(expr, UnaryOp) and expr.op == "-" and expr.type in _INT64:
        return {monomial: -factor for monomial, factor in _parts(expr.operand).items()}
    if isinstance(expr, Cast) and expr.dtype in _INT64 and _keeps_value(expr.operand):
        return _parts(expr.operand)
    return {(expr,): 1}


_INT64 = (INT64, Scalar("int64", weak=True))


def _keeps_value(operand: Expr) -> bool:
    """Whether conversion to int64 changes no value."""
    kind = operand.type
    return isinstance(kind, Scalar) and kind.is_integer and kind.name != "uint64"


def _integers(*operands: Expr) -> bool:
    return all(_keeps_value(operand) for operand in operands)


def _binary(expr: BinOp) -> dict[Monomial, int]:
    if expr.op in "+-":
        result = dict(_parts(expr.left))
        sign = 1 if expr.op == "+" else -1
        for monomial, factor in _parts(expr.right).items():
            result[monomial] = result.get(monomial, 0) + sign * factor
        return {monomial: factor for monomial, factor in result.items() if factor}
    if expr.op == "*":
        left, right = _parts(expr.left), _parts(expr.right)
        if len(left) * len(right) > _MOST_TERMS:
            return {(expr,): 1}
        product: dict[Monomial, int] = {}
        for first, a in left.items():
            for second, b in right.items():
                monomial = tuple(sorted(first + second, key=_rank))
                product[monomial] = product.get(monomial, 0) + a * b
        return {monomial: factor for monomial, factor in product.items() if factor}
    shift = constant(expr.right)
    if expr.op == "<<" and shift is not None and 0 <= shift < 63:
        return {monomial: factor << shift for monomial, factor in _parts(expr.left).items()}
    return {(expr,): 1}


def _rank(term: Term) -> tuple[int, str]:
    """A fixed order of the factors of a product: variables, extents, the rest."""
    if isinstance(term, str):
        return 0, term
    return (1, f"{term.array}.{term.axis}") if isinstance(term, Dim) else (2, repr(term))
