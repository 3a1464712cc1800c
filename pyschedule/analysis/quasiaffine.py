"""Index arithmetic in the form that isl decides exactly: linear terms, floors, minima and maxima, and formulas.

An integer expression of the IR becomes a `Quasi`: a `Linear` combination of atoms (counters, parameters and
floors of other linear combinations), or an `Extreme` (`min` or `max`) of several.  Sums, constant factors and
floor divisions are pushed inside an `Extreme`, so that a comparison with it is a plain `and` or `or` of linear
facts and never a case distinction.  `str()` of all of these is isl's own syntax.

Arithmetic is over the integers: that an index computation does not overflow 64 bits is assumed throughout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyschedule.ir.nodes import BinOp, BoolOp, Call, Cast, Compare, Const, Dim, Expr, UnaryOp, Var
from pyschedule.ir.types import Scalar


@dataclass(frozen=True, slots=True)
class Floor:
    """`floor(numerator / divisor)` with a positive divisor."""

    numerator: Linear
    divisor: int

    def __str__(self) -> str:
        return f"floor(({self.numerator})/{self.divisor})"


Atom = str | Floor


@dataclass(frozen=True, slots=True)
class Linear:
    """`sum(factor * atom) + constant`, terms sorted, no factor zero."""

    terms: tuple[tuple[Atom, int], ...]
    constant: int

    def __str__(self) -> str:
        parts = [f"{factor}*{atom}" if factor != 1 else str(atom) for atom, factor in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts)


@dataclass(frozen=True, slots=True)
class Extreme:
    """`min` or `max` of its parts."""

    op: str
    parts: tuple[Quasi, ...]

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.parts))})"


Quasi = Linear | Extreme


def constant(value: int) -> Linear:
    return Linear((), value)


def atom(symbol: Atom) -> Linear:
    return Linear(((symbol, 1),), 0)


def _linear(terms: Mapping[Atom, int], rest: int) -> Linear:
    kept = ((symbol, factor) for symbol, factor in terms.items() if factor)
    return Linear(tuple(sorted(kept, key=lambda term: str(term[0]))), rest)


def add(left: Quasi, right: Quasi) -> Quasi:
    if isinstance(left, Extreme):
        return Extreme(left.op, tuple(add(part, right) for part in left.parts))
    if isinstance(right, Extreme):
        return add(right, left)
    terms = dict(left.terms)
    for symbol, factor in right.terms:
        terms[symbol] = terms.get(symbol, 0) + factor
    return _linear(terms, left.constant + right.constant)


def scale(value: Quasi, factor: int) -> Quasi:
    if factor == 0:
        return constant(0)
    if isinstance(value, Extreme):
        op = value.op if factor > 0 else {"min": "max", "max": "min"}[value.op]
        return Extreme(op, tuple(scale(part, factor) for part in value.parts))
    return Linear(tuple((symbol, own * factor) for symbol, own in value.terms), value.constant * factor)


def sub(left: Quasi, right: Quasi) -> Quasi:
    return add(left, scale(right, -1))


def floor_div(value: Quasi, divisor: int) -> Quasi:
    """`value // divisor` as Python has it; the divisor is not zero."""
    if divisor < 0:
        return floor_div(scale(value, -1), -divisor)
    if isinstance(value, Extreme):
        return Extreme(value.op, tuple(floor_div(part, divisor) for part in value.parts))
    # What the divisor divides comes out: floor((4*i + j)/4) = i + floor(j/4).
    whole = {symbol: own // divisor for symbol, own in value.terms if own % divisor == 0}
    rest = tuple((symbol, own) for symbol, own in value.terms if own % divisor)
    if not rest:
        return _linear(whole, value.constant // divisor)
    outside = _linear(whole, value.constant // divisor)
    return add(outside, atom(Floor(Linear(rest, value.constant % divisor), divisor)))


def mod(value: Quasi, divisor: int) -> Quasi:
    return sub(value, scale(floor_div(value, divisor), divisor))


def symbols(value: Quasi) -> Iterator[str]:
    """The names of the counters and parameters that a value depends on."""
    if isinstance(value, Extreme):
        for part in value.parts:
            yield from symbols(part)
        return
    for symbol, _ in value.terms:
        if isinstance(symbol, Floor):
            yield from symbols(symbol.numerator)
        else:
            yield symbol


def substitute(value: Quasi, values: Mapping[str, Linear]) -> Quasi:
    if isinstance(value, Extreme):
        return Extreme(value.op, tuple(substitute(part, values) for part in value.parts))
    result: Quasi = constant(value.constant)
    for symbol, factor in value.terms:
        if isinstance(symbol, Floor):
            new = floor_div(substitute(symbol.numerator, values), symbol.divisor)
        else:
            new = values.get(symbol) or atom(symbol)
        result = add(result, scale(new, factor))
    return result


# ------------------------------------------------------------------------------------------------ formulas


@dataclass(frozen=True, slots=True)
class Fact:
    """`value <= 0`, or `value = 0`."""

    value: Linear
    equal: bool = False

    def __str__(self) -> str:
        return f"{self.value} {'=' if self.equal else '<='} 0"


@dataclass(frozen=True, slots=True)
class Junction:
    """`and` or `or` of its parts."""

    op: str
    parts: tuple[Formula, ...]

    def __str__(self) -> str:
        if not self.parts:
            return "0 = 0" if self.op == "and" else "0 = 1"
        if len(self.parts) == 1:
            return str(self.parts[0])
        return "(" + f" {self.op} ".join(map(str, self.parts)) + ")"


Formula = Fact | Junction

TRUE: Final = Junction("and", ())
FALSE: Final = Junction("or", ())


def junction(op: str, *parts: Formula) -> Formula:
    """Flattened, and short where a part decides."""
    ends, neutral = (FALSE, TRUE) if op == "and" else (TRUE, FALSE)
    flat: list[Formula] = []
    for part in parts:
        if part == ends:
            return ends
        if part == neutral:
            continue
        flat.extend(part.parts if isinstance(part, Junction) and part.op == op else (part,))
    return flat[0] if len(flat) == 1 else Junction(op, tuple(flat))


def both(*parts: Formula) -> Formula:
    return junction("and", *parts)


def at_most_zero(value: Quasi) -> Formula:
    if isinstance(value, Extreme):
        return junction("and" if value.op == "max" else "or", *(at_most_zero(part) for part in value.parts))
    if not value.terms:
        return TRUE if value.constant <= 0 else FALSE
    return Fact(value)


def at_most(left: Quasi, right: Quasi) -> Formula:
    return at_most_zero(sub(left, right))


def below(left: Quasi, right: Quasi) -> Formula:
    return at_most_zero(add(sub(left, right), constant(1)))


def equal(left: Quasi, right: Quasi) -> Formula:
    difference = sub(left, right)
    if isinstance(difference, Linear) and difference.terms:
        return Fact(difference, equal=True)
    return both(at_most_zero(difference), at_most_zero(scale(difference, -1)))


def substitute_formula(formula: Formula, values: Mapping[str, Linear]) -> Formula:
    if isinstance(formula, Junction):
        return junction(formula.op, *(substitute_formula(part, values) for part in formula.parts))
    value = substitute(formula.value, values)
    return equal(value, constant(0)) if formula.equal else at_most_zero(value)


def formula_symbols(formula: Formula) -> Iterator[str]:
    if isinstance(formula, Junction):
        for part in formula.parts:
            yield from formula_symbols(part)
    else:
        yield from symbols(formula.value)


# --------------------------------------------------------------------------------------- from expressions


@dataclass(slots=True)
class Parameters:
    """The isl parameters `p0, p1, ...` of one analysis: extents, integer arguments, and products of these.

    Extents are never negative.  Two nests are comparable when their models share this table.
    """

    names: dict[object, str] = field(default_factory=dict)
    extents: set[str] = field(default_factory=set)

    def named(self, key: object, extent: bool = False) -> Linear:
        name = self.names.setdefault(key, f"p{len(self.names)}")
        if extent:
            self.extents.add(name)
        return atom(name)

    def declaration(self) -> str:
        return f"[{', '.join(self.names.values())}] -> "

    def context(self) -> Formula:
        return both(*(at_most_zero(scale(atom(name), -1)) for name in sorted(self.extents)))

    def owns(self, value: Quasi) -> bool:
        """Whether a value is the same throughout a call."""
        known = set(self.names.values())
        return all(symbol in known for symbol in symbols(value))


Scope = Mapping[str, Quasi]

_COMPARISONS: Final = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


def _is_index(dtype: Scalar) -> bool:
    return dtype.name == "int64"


def quasi(expr: Expr, scope: Scope, parameters: Parameters) -> Quasi | None:
    """An integer expression as a `Quasi`, or `None` where it is not quasi-affine in the names of `scope`.

    An operation that is not affine, of operands that are the same throughout a call, is a parameter.
    """
    if isinstance(expr, Const):
        return constant(int(expr.value)) if not isinstance(expr.value, float) else None
    if isinstance(expr, Var):
        return scope.get(expr.name)
    if isinstance(expr, Dim):
        return parameters.named(expr, extent=True)
    if isinstance(expr, UnaryOp):
        operand = quasi(expr.operand, scope, parameters) if expr.op == "-" else None
        return None if operand is None else scale(operand, -1)
    if isinstance(expr, Cast):
        inner = expr.operand.type
        widens = _is_index(expr.dtype) and isinstance(inner, Scalar) and inner.kind in "iu"
        return quasi(expr.operand, scope, parameters) if widens else None
    if isinstance(expr, Call) and _is_index(expr.dtype):
        args = [quasi(arg, scope, parameters) for arg in expr.args]
        parts = tuple(arg for arg in args if arg is not None)
        if len(parts) == len(args):
            return _function(expr.function, parts)
        return None
    if isinstance(expr, BinOp) and _is_index(expr.dtype):
        left, right = quasi(expr.left, scope, parameters), quasi(expr.right, scope, parameters)
        if left is None or right is None:
            return None
        result = _operation(expr.op, left, right)
        if result is None and parameters.owns(left) and parameters.owns(right):
            return parameters.named((expr.op, left, right))
        return result
    return None


def _function(name: str, args: tuple[Quasi, ...]) -> Quasi | None:
    if name in ("pmin", "minimum"):
        return Extreme("min", args)
    if name in ("pmax", "maximum"):
        return Extreme("max", args)
    if name == "abs":
        return Extreme("max", (args[0], scale(args[0], -1)))
    return None


def _operation(op: str, left: Quasi, right: Quasi) -> Quasi | None:
    if op == "+":
        return add(left, right)
    if op == "-":
        return sub(left, right)
    if op == "*" and isinstance(left, Linear) and not left.terms:
        left, right = right, left
    if not isinstance(right, Linear) or right.terms:
        return None
    number = right.constant
    if op == "*":
        return scale(left, number)
    if op == "//" and number:
        return floor_div(left, number)
    if op == "%" and number:
        return mod(left, number)
    if op == "<<" and 0 <= number < 63:
        return scale(left, 1 << number)
    if op == ">>" and 0 <= number < 63:
        return floor_div(left, 1 << number)
    if op == "&" and number >= 0 and (number + 1) & number == 0:
        return mod(left, number + 1)
    return None


def condition(expr: Expr, scope: Scope, parameters: Parameters, positive: bool = True) -> tuple[Formula, bool]:
    """What holds where a test is true (or false: `positive=False`), and whether that is all of it.

    Where it is not exact, the formula still holds whenever the test does.
    """
    if isinstance(expr, Const):
        return (TRUE if bool(expr.value) == positive else FALSE), True
    if isinstance(expr, UnaryOp) and expr.op == "not":
        return condition(expr.operand, scope, parameters, not positive)
    if isinstance(expr, BoolOp):
        left, exact = condition(expr.left, scope, parameters, positive)
        right, right_exact = condition(expr.right, scope, parameters, positive)
        op = "and" if (expr.op == "and") == positive else "or"
        return junction(op, left, right), exact and right_exact
    if isinstance(expr, Compare) and _is_index(expr.dtype):
        first, second = quasi(expr.left, scope, parameters), quasi(expr.right, scope, parameters)
        if first is not None and second is not None:
            return _comparison(expr.op if positive else _COMPARISONS[expr.op], first, second), True
    return TRUE, False


def _comparison(op: str, left: Quasi, right: Quasi) -> Formula:
    if op in (">", ">="):
        op, left, right = op.replace(">", "<"), right, left
    if op == "<":
        return below(left, right)
    if op == "<=":
        return at_most(left, right)
    if op == "==":
        return equal(left, right)
    return junction("or", below(left, right), below(right, left))
