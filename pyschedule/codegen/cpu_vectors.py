"""Vector expressions and masks on the CPU: lanes that are off are kept away from memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from pyschedule.codegen.expressions import (
    ATOM,
    BIT_AND,
    BIT_OR,
    Code,
    is_vector,
)
from pyschedule.codegen.names import Names
from pyschedule.codegen.wrapping import WrappingWriter
from pyschedule.ir import build
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
    Kernel,
    Load,
    Ramp,
    Select,
    Stmt,
    Var,
)
from pyschedule.ir.types import BOOL, INT64, element_of, lanes_of
from pyschedule.ir.visitors import variables, walk_expr, written_variables

#: The comparison that holds where another one does not, of integers.
_OPPOSITE = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}


@dataclass(frozen=True, slots=True)
class Linear:
    """The vector `base, base + step, ...`, of scalar expressions."""

    base: Expr
    step: Expr


class VectorWriter(WrappingWriter):
    """`_active`: the lanes that the expression being written is evaluated for, `None` for all of them."""

    def __init__(self, kernel: Kernel, names: Names, used: set[str]) -> None:
        super().__init__(kernel)
        self.names = names
        self.used = used
        self._active: tuple[Code, int] | None = None
        self._masks: list[dict[Expr, str]] = [{}]
        self._assigned = written_variables(kernel.body)

    def use(self, name: str) -> str:
        self.used.add(name)
        return name

    def variable(self, name: str) -> str:
        return self.names.of("variable", name)

    def body(self, body: tuple[Stmt, ...]) -> None:
        self._masks.append({})
        super().body(body)
        self._masks.pop()

    # ----------------------------------------------------------------------------------------- linear vectors

    def linear(self, expr: Expr) -> Linear | None:
        """An index as base and step, where it is one (a scalar has step 0)."""
        if not is_vector(expr):
            return Linear(expr, build.ZERO)
        match expr:
            case Ramp():
                return Linear(expr.base, build.const(expr.stride))
            case Broadcast():
                return Linear(expr.value, build.ZERO)
            case Cast() if expr.dtype == INT64 and expr.operand.type == expr.type:
                return self.linear(expr.operand)
            case BinOp() if expr.op in "+-*" and expr.dtype == INT64:
                left, right = self.linear(expr.left), self.linear(expr.right)
                if left is None or right is None:
                    return None
                if expr.op == "+":
                    return Linear(build.add(left.base, right.base), build.add(left.step, right.step))
                if expr.op == "-":
                    return Linear(build.sub(left.base, right.base), build.sub(left.step, right.step))
                if left.step == build.ZERO:
                    left, right = right, left
                if right.step == build.ZERO:
                    return Linear(build.mul(left.base, right.base), build.mul(left.step, right.base))
        return None

    # -------------------------------------------------------------------------------------------------- masks

    def mask(self, expr: Expr) -> Code:
        """A mask; a longer one that does not change in the present block is computed once and named."""
        for known in self._masks:
            if expr in known:
                return Code(known[expr])
        code = self.converted(expr, BOOL)
        if (code.binding == ATOM and code.text.isidentifier()) or self._inline or not self._is_stable(expr):
            return code
        name = self.names.fresh("mask")
        self.line(f"{name} = {code.text}")
        self._masks[-1][expr] = name
        return Code(name)

    def _is_stable(self, expr: Expr) -> bool:
        return not variables(expr) & self._assigned and not any(
            isinstance(part, Load) or _can_raise(part) for part in walk_expr(expr)
        )

    @contextmanager
    def active(self, mask: Code | None, lanes: int) -> Iterator[None]:
        """Evaluates for the lanes of `mask` only, among those that are active already."""
        outer = self._active
        if mask is not None:
            self._active = (mask, lanes) if outer is None else _both(outer, (mask, lanes))
        yield
        self._active = outer

    @contextmanager
    def _all_lanes(self) -> Iterator[None]:
        outer, self._active = self._active, None
        yield
        self._active = outer

    def active_mask(self, lanes: int) -> str | None:
        """The active lanes as a vector mask."""
        if self._active is None:
            return None
        code, width = self._active
        return code.text if width > 1 else self.function("splat", [code.text, str(lanes)]).text

    def active_test(self) -> Code | None:
        """Whether any lane is active, as a scalar."""
        if self._active is None:
            return None
        code, width = self._active
        return self.function("reduce_or", [code.text]) if width > 1 else code

    # -------------------------------------------------------------------------------------------- expressions

    def comparison(self, expr: Compare) -> Code:
        if is_vector(expr) and expr.dtype == INT64:
            lanes = lanes_of(expr.type)
            if (count := self._lanes_below(expr)) is not None:
                return self.function("head", [self.index(count), str(lanes)])
            if (count := self._lanes_below(replace(expr, op=_OPPOSITE.get(expr.op, "")))) is not None:
                head = self.function("head", [self.index(count), str(lanes)])
                return Code(f"~{head.text}", ATOM)
        return super().comparison(expr)

    def _lanes_below(self, expr: Compare) -> Expr | None:
        """How many of the first lanes pass `ramp < bound`, where the test has that form."""
        left, right, op = expr.left, expr.right, expr.op
        if op in (">", ">="):
            left, right, op = right, left, op.replace(">", "<")
        if op not in ("<", "<="):
            return None
        one, other = self.linear(left), self.linear(right)
        if one is None or other is None or one.step != build.ONE or other.step != build.ZERO:
            return None
        count = build.sub(other.base, one.base)
        return count if op == "<" else build.add(count, 1)

    def logical(self, expr: BoolOp) -> Code:
        if not is_vector(expr):
            return super().logical(expr)
        if (joined := self._joined(expr)) is not None:
            return joined
        binding = BIT_AND if expr.op == "and" else BIT_OR
        left_lanes = lanes_of(expr.left.type)
        if _touches_memory(expr.right):
            left = self.mask(expr.left)
            condition = left if expr.op == "and" else self._inverted(left, left_lanes)
            with self.active(condition, left_lanes):
                right = self.operand(expr.right, BOOL, binding + 1)
        else:
            left = self.mask(expr.left) if left_lanes > 1 else self.converted(expr.left, BOOL)
            second = self.mask(expr.right) if is_vector(expr.right) else self.converted(expr.right, BOOL)
            right = f"({second.text})" if second.binding < binding + 1 else second.text
        op = "&" if expr.op == "and" else "|"
        first = f"({left.text})" if left.binding < binding else left.text
        return Code(f"{first} {op} {right}", binding)

    def _joined(self, expr: BoolOp) -> Code | None:
        """Tests of indices that all must hold, those that are the same in all lanes without a branch: they decide
        how many of the first lanes there are, where another one says that."""
        tests = _all_of(expr)
        scalars = [test for test in tests if not is_vector(test)]
        if not scalars or not all(isinstance(test, Compare) and test.dtype == INT64 for test in tests):
            return None
        if any(_touches_memory(test) for test in tests):
            return None
        same = " & ".join(f"({self.text(test)})" for test in scalars)
        vectors = [test for test in tests if is_vector(test)]
        parts: list[str] = []
        for test in vectors:
            there = any(test in known for known in self._masks)
            count = self._lanes_below(test) if same and not there and isinstance(test, Compare) else None
            if count is None:
                parts.append(self.mask(test).text)
                continue
            known = self.function("select", [same, self.index(count), self.index(build.ZERO)])
            parts.append(self.function("head", [known.text, str(lanes_of(expr.type))]).text)
            same = ""
        if same:
            parts.insert(0, f"({same})" if len(scalars) > 1 else same)
        return Code(" & ".join(parts), BIT_AND if len(parts) > 1 else ATOM)

    def _inverted(self, code: Code, lanes: int) -> Code:
        text = code.text if code.binding == ATOM else f"({code.text})"
        return Code(f"~{text}" if lanes > 1 else f"(not {text})", ATOM)

    def select(self, expr: Select) -> Code:
        lanes = lanes_of(expr.type)
        if not is_vector(expr.test):
            if lanes > 1:
                return self._scalar_choice(expr, lanes)
            if _is_cheap(expr.then) and _is_cheap(expr.orelse):
                # No branch: hundreds of them, for the indices of unrolled bodies, take LLVM minutes.
                parts = (
                    self.converted(expr.test, BOOL),
                    self.converted(expr.then, expr.dtype),
                    self.converted(expr.orelse, expr.dtype),
                )
                return self.function("select", [part.text for part in parts])
            return super().select(expr)
        guarded = _touches_memory(expr.then) or _touches_memory(expr.orelse)
        test = self.mask(expr.test) if guarded else self.converted(expr.test, BOOL)
        width = lanes_of(expr.test.type)
        with self.active(test if _touches_memory(expr.then) else None, width):
            then = self.converted(expr.then, expr.dtype)
        with self.active(self._inverted(test, width) if _touches_memory(expr.orelse) else None, width):
            orelse = self.converted(expr.orelse, expr.dtype)
        return self.function("select", [test.text, then.text, orelse.text])

    def _scalar_choice(self, expr: Select, lanes: int) -> Code:
        """A vector chosen by one test: Python's conditional expression, both arms in lanes."""
        test = self.operand(expr.test, BOOL, BIT_OR)
        with self.inline():
            arms = []
            for arm in (expr.then, expr.orelse):
                code = self.converted(arm, expr.dtype)
                text = code.text if is_vector(arm) else self.function("splat", [code.text, str(lanes)]).text
                arms.append(f"({text})" if code.binding < BIT_OR and is_vector(arm) else text)
        return Code(f"({arms[0]} if {test} else {arms[1]})")

    def checked_index(self, expr: Call) -> Code:
        args = self.check(expr)
        if self._active is None:
            return self.function("checked_index", args)
        lanes = lanes_of(expr.type)
        test = self.active_test()
        mask = self.active_mask(lanes) if lanes > 1 else test.text if test is not None else ""
        return self.function("checked_index_masked", [*args, mask or ""])


def _both(left: tuple[Code, int], right: tuple[Code, int]) -> tuple[Code, int]:
    """Two conditions, each of so many lanes, as one."""
    lanes = max(left[1], right[1])
    texts = [code.text if code.binding > BIT_AND else f"({code.text})" for code, _ in (left, right)]
    return Code(f"{texts[0]} & {texts[1]}", BIT_AND), lanes


def _can_raise(expr: Expr) -> bool:
    return isinstance(expr, Call) and expr.function == "checked_index"


def _touches_memory(expr: Expr) -> bool:
    """Whether evaluating an expression for a lane that is off could do harm."""
    return any(isinstance(part, Load) or _can_raise(part) for part in walk_expr(expr))


def _is_cheap(expr: Expr) -> bool:
    """Whether an integer may as well be computed where it is not wanted: sums of variables and extents."""
    return (
        all(
            isinstance(part, (Const, Var, Dim)) or (isinstance(part, BinOp) and part.op in ("+", "-"))
            for part in walk_expr(expr)
        )
        and element_of(expr.type).is_integer
    )


def _all_of(expr: Expr) -> list[Expr]:
    """The tests that a conjunction is made of."""
    if isinstance(expr, BoolOp) and expr.op == "and":
        return _all_of(expr.left) + _all_of(expr.right)
    return [expr]
