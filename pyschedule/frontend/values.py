"""Surface expressions → typed IR expressions, for one call signature."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import singledispatchmethod
from typing import Final

import numpy as np

from pyschedule.errors import FrontendError
from pyschedule.frontend import surface
from pyschedule.frontend.joins import Joins, is_python_integer, together
from pyschedule.frontend.promotion import arithmetic, comparison, held, of_math, promote_all
from pyschedule.frontend.source import Source
from pyschedule.ir import build
from pyschedule.ir.functions import FUNCTIONS
from pyschedule.ir.nodes import (
    BinOp,
    BoolOp,
    Call,
    Cast,
    Compare,
    Const,
    Expr,
    Load,
    Location,
    Select,
    UnaryOp,
    Var,
)
from pyschedule.ir.types import BOOL, FLOAT32, FLOAT64, INT64, WEAK_BOOL, WEAK_FLOAT, WEAK_INT, Scalar
from pyschedule.ir.visitors import walk_expr

#: An IR expression and the type it has for promotion, which may be weak where the expression's own is not.
Typed = tuple[Expr, Scalar]

_WEAK: Final = {"bool": WEAK_BOOL, "int64": WEAK_INT, "float64": WEAK_FLOAT}
_INDEX_ARITHMETIC: Final[dict[str, Callable[[Expr, Expr], Expr]]] = {
    "+": build.add,
    "-": build.sub,
    "*": build.mul,
    "//": build.floordiv,
    "%": build.mod,
}
_NEGATED: Final = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """What expressions need of an array: `dtype` as stored, `element` as loaded (weak in a list display
    that holds only Python's numbers), extents as expressions."""

    name: str
    dtype: Scalar
    element: Scalar
    shape: tuple[Expr, ...]


def coerce(expr: Expr, dtype: Scalar) -> Expr:
    """`expr` as `dtype`: a constant is converted here, anything else by a `Cast` where it has another type."""
    dtype = held(dtype)
    if isinstance(expr, Const):
        if expr.dtype == dtype:
            return expr
        folded = _converted(expr.value, dtype)
        if folded is not None:
            return folded
    return expr if expr.type == dtype else Cast(dtype, expr)


def _converted(value: bool | int | float, dtype: Scalar) -> Const | None:
    """The constant of `dtype` that a value converts to; `None` where the conversion is best left to run."""
    if dtype.kind == "b":
        return Const(bool(value), dtype)
    if dtype.is_float:
        return Const(float(value), dtype)
    if isinstance(value, float):
        return None
    info = np.iinfo(dtype.name)
    return Const(int(value), dtype) if info.min <= value <= info.max else None


class ValueReader:
    """Types and emits expressions.

    `types` holds the type of each local found so far, `locals` its name in the IR; `counters` the loop
    counters in scope; `arrays` the arrays in scope.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.types: dict[str, Scalar] = {}
        self.locals: dict[str, str] = {}
        self.params: dict[str, Scalar] = {}
        self.counters: dict[str, Expr] = {}
        self.strong_counters: set[str] = set()  # in the IR: those that are NumPy's integers
        self.arrays: dict[str, ArrayInfo] = {}
        self.joins = Joins()
        self._known: dict[str, Expr] = {}  # what locals are equal to, here

    def refusal(self, where: Location | None, what: str, instead: str) -> FrontendError:
        return self.source.refusal(where, what, instead)

    # ------------------------------------------------------------------------------------ conversions

    def integer(self, expr: Expr, what: str) -> Expr:
        """The int64 value of a bound, an index or an extent; refuses floats and bools."""
        value, type_ = self.value(expr)
        if not type_.is_integer:
            raise self.refusal(
                surface.place_of(expr), f"{what} must be an integer, this is a {type_.name}", "'int(x)' of it"
            )
        if isinstance(value, Cast) and value in self.counters.values():
            return value.operand  # a counter of fewer bits, which its type holds
        return coerce(value, INT64)

    def truth(self, expr: Expr) -> Expr:
        """A bool: the value itself, or whether it differs from zero; `and`, `or` and `not` stay logical."""
        if isinstance(expr, surface.Logic):
            result = self.truth(expr.parts[0])
            for part in expr.parts[1:]:
                result = _logic(expr.op, result, self.truth(part))
            return result
        return _truth(*self.value(expr))

    def cast(self, expr: Expr, dtype: Scalar) -> Expr:
        return coerce(self.value(expr)[0], dtype)

    # ------------------------------------------------------------------------------------ expressions

    @singledispatchmethod
    def value(self, expr: Expr) -> Typed:
        """The IR of a surface expression, with its type.  Raises `FrontendError` for what has none."""
        raise TypeError(f"no such surface expression: {expr!r}")

    @value.register
    def _number(self, expr: surface.Number) -> Typed:
        if expr.dtype is not None:
            scalar = Scalar(expr.dtype)
            if scalar.is_half:
                return Cast(scalar, Const(float(expr.value), FLOAT32)), scalar
            return Const(expr.value, scalar), scalar
        if isinstance(expr.value, bool):
            return Const(expr.value, BOOL), WEAK_BOOL
        if isinstance(expr.value, float):
            return Const(expr.value, FLOAT64), WEAK_FLOAT
        if not -(2**63) <= expr.value < 2**63:
            return Const(expr.value, Scalar("uint64")), Scalar("uint64")
        return Const(expr.value, INT64), WEAK_INT

    @value.register
    def _name(self, expr: surface.Name) -> Typed:
        name = expr.name
        if name in self.counters:
            counter = self.counters[name]
            if isinstance(counter, Cast):
                return counter, self.types[name]
            type_ = INT64 if isinstance(counter, Var) and counter.name in self.strong_counters else WEAK_INT
            return (replace(counter, loc=expr.loc) if isinstance(counter, Var) else counter), type_
        if name in self.params and name in self.locals and self.types[name] != self.params[name]:
            known = self._known.get(name)
            if isinstance(known, Var) and known.name == name:  # not assigned yet: of its own type
                return Var(name, held(self.params[name]), expr.loc), self.params[name]
        if name in self.locals:
            type_ = self.types[name]
            return Var(self.locals[name], held(type_), expr.loc), type_
        if name in self.params:
            return Var(name, held(self.params[name]), expr.loc), self.params[name]
        raise self.refusal(expr.loc, f"the array '{name}' is used as a number", f"one of its elements, '{name}[i]'")

    @value.register
    def _extent(self, expr: surface.Extent) -> Typed:
        info = self.arrays[expr.array]
        rank = len(info.shape)
        if not -rank <= expr.axis < rank:
            raise self.refusal(
                expr.loc,
                f"'{expr.array}' has {rank} axes, there is no axis {expr.axis}",
                "an axis that it has",
            )
        return info.shape[expr.axis], WEAK_INT

    @value.register
    def _element(self, expr: surface.Element) -> Typed:
        info = self.arrays[expr.array]
        return Load(info.name, self.indices(expr.indices), held(info.element), None, expr.loc), info.element

    def indices(self, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple(self.integer(index, "an index") for index in indices)

    @value.register
    def _binary(self, expr: surface.Binary) -> Typed:
        (left, left_type), (right, right_type) = self.value(expr.left), self.value(expr.right)
        return self._arithmetic(expr.op, left, left_type, right, right_type, expr.loc)

    def _arithmetic(
        self, op: str, left: Expr, left_type: Scalar, right: Expr, right_type: Scalar, loc: Location | None
    ) -> Typed:
        type_ = arithmetic(op, left_type, right_type)
        if type_ is None:
            raise self.refusal(
                loc,
                f"there is no '{op}' of a {left_type.name} and a {right_type.name}",
                "'int(x)' of the operands",
            )
        if op == "**" and type_.is_integer and isinstance(right, Const) and right.value < 0:
            if not type_.weak:
                raise self.refusal(loc, "an integer to a negative power", "'float(x)' of the base")
            type_ = WEAK_FLOAT
        if type_.kind == "b" and op in ("+", "*"):
            return _logic("or" if op == "+" else "and", left, right), type_
        dtype = held(type_)
        left, right = self._operand(left, dtype, loc), self._operand(right, dtype, loc)
        if dtype == INT64 and op in _INDEX_ARITHMETIC:
            left, right = coerce(left, INT64), coerce(right, INT64)
            result = _INDEX_ARITHMETIC[op](left, right)
            if isinstance(result, BinOp) and result.loc is None and result is not left and result is not right:
                result = replace(result, loc=loc)
            return result, type_
        return BinOp(op, left, right, dtype, loc), type_

    def _operand(self, expr: Expr, dtype: Scalar, loc: Location | None) -> Expr:
        """A constant in the type of the operation; other operands are converted by the operation."""
        if not isinstance(expr, Const) or expr.dtype == dtype:
            return expr
        if dtype.is_integer and not isinstance(expr.value, float):
            info = np.iinfo(dtype.name)
            if not info.min <= expr.value <= info.max:
                raise self.refusal(loc, f"{expr.value} does not fit {dtype.name}", "'int(x)' of the other operand")
        return _converted(expr.value, dtype) or expr

    @value.register
    def _unary(self, expr: surface.Unary) -> Typed:
        if expr.op == "not":
            return _negation(self.truth(expr.operand)), WEAK_BOOL
        operand, type_ = self.value(expr.operand)
        if type_.kind == "b":
            if not type_.weak:
                if expr.op == "~":
                    return UnaryOp("not", operand), type_
                raise self.refusal(expr.loc, "there is no '-' of a bool", "'not x', or '-int(x)'")
            operand, type_ = coerce(operand, INT64), WEAK_INT
        if expr.op == "~" and type_.is_float:
            raise self.refusal(expr.loc, f"there is no '~' of a {type_.name}", "'int(x)' of the operand")
        if expr.op == "-" and isinstance(operand, Const):
            negated = _converted(-operand.value, operand.dtype)
            return (UnaryOp("-", operand) if negated is None else negated), type_
        return UnaryOp(expr.op, operand), type_

    @value.register
    def _comparison(self, expr: surface.Comparison) -> Typed:
        (left, left_type), (right, right_type) = self.value(expr.left), self.value(expr.right)
        weak = left_type.weak and right_type.weak
        exact = _of_both_signs(expr.op, left, left_type, right, right_type, expr.loc)
        if exact is not None:
            return exact, WEAK_BOOL if weak else BOOL
        dtype = comparison(left_type, right_type)
        left = _converted(left.value, dtype) or left if isinstance(left, Const) else left
        right = _converted(right.value, dtype) or right if isinstance(right, Const) else right
        result: Expr
        if dtype == INT64 and isinstance(left, Const) and isinstance(right, Const):
            result = build.compare(expr.op, left, right)
        else:
            result = Compare(expr.op, left, right, dtype, expr.loc)
        return result, WEAK_BOOL if weak else BOOL

    @value.register
    def _logical(self, expr: surface.Logic) -> Typed:
        parts = [self.value(part) for part in expr.parts]
        both = self._of_a_choice(expr.parts, parts)
        if both.kind == "b":
            result = parts[0][0]
            for part, _ in parts[1:]:
                result = _logic(expr.op, result, part)
            return result, both
        result = coerce(parts[-1][0], both)
        for part, type_ in reversed(parts[:-1]):
            value, test = coerce(part, both), _truth(part, type_)
            then, orelse = (value, result) if expr.op == "or" else (result, value)
            result = Select(test, then, orelse, held(both))
        return result, both

    @value.register
    def _conditional(self, expr: surface.Conditional) -> Typed:
        extreme = self.extreme(expr.test, expr.then, expr.orelse)
        if extreme is not None:
            return self.value(extreme)
        parts = [self.value(expr.then), self.value(expr.orelse)]
        both = self._of_a_choice((expr.then, expr.orelse), parts)
        (then, _), (orelse, _) = parts
        return Select(self.truth(expr.test), coerce(then, both), coerce(orelse, both), held(both)), both

    def _of_a_choice(self, given: tuple[Expr, ...], parts: list[Typed]) -> Scalar:
        """The type that holds whichever of some values is chosen, as it is."""
        integers: set[int | None] = set()
        for expr, (value, type_) in zip(given, parts, strict=True):
            if not is_python_integer(type_):
                continue
            if isinstance(value, Const):
                integers.add(int(value.value))
            elif isinstance(expr, surface.Name) and expr.name in self.locals and expr.name not in self.counters:
                integers |= self.joins.integers(expr.name)
            else:
                integers.add(None)
        return together(promote_all([type_ for _, type_ in parts]), integers)

    def extreme(self, test: Expr, then: Expr, orelse: Expr) -> surface.Apply | None:
        """`then if test else orelse` as Python's `max(orelse, then)` or `min`, where `test` compares just
        these two.  `>=` and `<=` take the new value on a tie, which only integers cannot tell apart."""
        if not isinstance(test, surface.Comparison) or test.op not in ("<", "<=", ">", ">="):
            return None
        if (test.left, test.right) == (then, orelse):
            greater = test.op[0] == ">"
        elif (test.left, test.right) == (orelse, then):
            greater = test.op[0] == "<"
        else:
            return None
        both = self._of_a_choice((then, orelse), [self.value(then), self.value(orelse)])
        if both.kind == "b" or (len(test.op) == 2 and not both.is_integer):
            return None
        if comparison(self.value(then)[1], self.value(orelse)[1]) != held(both):
            return None
        return surface.Apply("pmax" if greater else "pmin", "python", (orelse, then), test.loc)

    @value.register
    def _convert(self, expr: surface.Convert) -> Typed:
        if expr.dtype == "bool":
            return self.truth(expr.operand), WEAK_BOOL if expr.weak else BOOL
        operand, type_ = self.value(expr.operand)
        if expr.dtype == surface.OF_FILL:
            return operand, type_.strong()
        scalar = Scalar(expr.dtype)
        if scalar.is_half:
            return Cast(scalar, operand), scalar
        return coerce(operand, scalar), _WEAK[expr.dtype] if expr.weak else scalar

    @value.register
    def _apply(self, expr: surface.Apply) -> Typed:
        parts = [self.value(arg) for arg in expr.args]
        both = promote_all([type_ for _, type_ in parts])
        function = FUNCTIONS[expr.function]
        if function.result == "same":
            return self._same_type(expr, parts, both)
        if expr.function in ("floor", "ceil", "trunc") and both.is_integer:
            return parts[0][0], both
        type_ = of_math(expr.home, both)
        args = tuple(coerce(part, type_) for part, _ in parts)
        if function.result == "bool":
            return Call(expr.function, args, BOOL, expr.loc), WEAK_BOOL if expr.home == "math" else BOOL
        return Call(expr.function, args, held(type_), expr.loc), type_

    def _same_type(self, expr: surface.Apply, parts: list[Typed], both: Scalar) -> Typed:
        """`abs`, `min` and `max`: in the promoted type of the arguments."""
        if expr.function == "abs" and expr.home == "math":
            both = of_math("math", both)
        elif expr.home == "numpy" and both.weak:
            both = both.strong()
        elif expr.home == "python":
            both = self._of_a_choice(expr.args, parts)
        if both.kind == "b" and expr.function == "abs":
            return (parts[0][0], both) if not both.weak else (coerce(parts[0][0], INT64), WEAK_INT)
        if both.kind == "b":
            op = "or" if expr.function in ("pmax", "maximum") else "and"
            return _logic(op, parts[0][0], parts[1][0]), both
        args = tuple(coerce(part, both) for part, _ in parts)
        if held(both) == INT64 and expr.function in ("pmin", "pmax"):
            combine = build.minimum if expr.function == "pmin" else build.maximum
            result = combine(*args)
            return (replace(result, loc=expr.loc) if isinstance(result, Call) else result), both
        return Call(expr.function, args, held(both), expr.loc), both


def _truth(value: Expr, type_: Scalar) -> Expr:
    if type_.kind == "b":
        return value
    if isinstance(value, Const):
        return Const(bool(value.value), BOOL)
    dtype = held(type_)
    zero = Const(0.0 if dtype.is_float else 0, dtype)
    return Compare("!=", value, zero, dtype, getattr(value, "loc", None))


def _of_both_signs(
    op: str, left: Expr, left_type: Scalar, right: Expr, right_type: Scalar, loc: Location | None
) -> Expr | None:
    """A comparison of a signed integer with a uint64: exact, as in NumPy, though no type holds both.

    `None` for other operands, and for a constant that a uint64 holds.
    """
    types = {left_type.name, right_type.name}
    if "uint64" not in types or len(types) == 1 or not (left_type.is_integer and right_type.is_integer):
        return None
    signed = right if left_type.name == "uint64" else left
    if right_type.kind == left_type.kind or (isinstance(signed, Const) and signed.value >= 0):
        return None
    zero = Const(0, INT64)
    among_unsigned = Compare(op, left, right, Scalar("uint64"), loc)
    if op == "!=" or op[0] == ("<" if signed is left else ">"):
        return _of_both("or", Compare("<", signed, zero, INT64, loc), among_unsigned)
    return _of_both("and", Compare(">=", signed, zero, INT64, loc), among_unsigned)


def _of_both(op: str, left: Expr, right: Expr) -> Expr:
    """`left or right`, `left and right`: Python evaluates both, so that indices in either are looked at always."""
    if any(isinstance(part, Load) for part in walk_expr(right)):
        return BinOp({"or": "|", "and": "&"}[op], left, right, BOOL)
    return BoolOp(op, left, right)


def _logic(op: str, left: Expr, right: Expr) -> Expr:
    if isinstance(left, Const):
        return left if bool(left.value) == (op == "or") else right
    return BoolOp(op, left, right)


def _negation(test: Expr) -> Expr:
    """`not test`, with an exact comparison turned round: that of integers, and (in)equality of anything."""
    if isinstance(test, Const):
        return Const(not test.value, BOOL)
    if isinstance(test, Compare) and (test.op in ("==", "!=") or not test.dtype.is_float):
        return replace(test, op=_NEGATED[test.op])
    return UnaryOp("not", test)
