"""Expressions of the IR as Python functions of an environment: the lower half of the interpreter.

Loads check every index against its array; lanes that a mask turns off read as zero and touch no memory.  The
arms of a `Select`, and the right side of `and` and `or`, are evaluated for the lanes that take them: loads in
the others touch nothing.  The value and the indices of a masked access are *not* shielded by its mask (save
`checked_index`): a load inside them needs a mask of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from pyschedule.errors import InternalError
from pyschedule.ir import arithmetic
from pyschedule.ir.arithmetic import numpy_dtype
from pyschedule.ir.index_checks import explicit
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
    Reduce,
    Select,
    Stmt,
    UnaryOp,
    Var,
)
from pyschedule.ir.printer import headline
from pyschedule.ir.types import BOOL, INT64, Type, Vector, element_of, lanes_of, with_lanes
from pyschedule.ir.visitors import arrays


class Env(dict[str, Any]):
    """Name → value, of variables and arrays."""

    def __missing__(self, name: str) -> Any:
        raise InternalError(f"{name} is used before it has a value")

    def fork(self, **values: Any) -> Env:
        """A copy, with further values."""
        copy = Env(self)
        copy.update(values)
        return copy


Evaluate = Callable[[Env], Any]

LANES: Final = "lanes that are evaluated"  # an entry of the environment that no variable can have the name of


class Expressions:
    """Turns the expressions of a kernel into functions of an environment.

    `lazy`: inside an arm that only some lanes take, so that loads ask `env[LANES]` which.  `lenient`: inside
    the indices of a masked access, where `checked_index` (alone) does.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.arrays = arrays(kernel)
        self.statement: Stmt | None = None
        self.lazy = self.lenient = False

    def value(self, expr: Expr, type_: Type | None = None) -> Evaluate:
        """`expr`, converted to `type_` where one is given."""
        method: Callable[[Any], Evaluate] = getattr(self, f"_{type(expr).__name__.lower()}")
        evaluate = method(expr)
        if type_ is None:
            return evaluate
        change = arithmetic.convert(expr.type, type_)
        return evaluate if change is arithmetic.same else lambda env: change(evaluate(env))

    def _operand(self, expr: Expr, whole: Expr, element: Type | None = None) -> Evaluate:
        """An operand in the lanes of the whole expression."""
        return self.value(expr, with_lanes(element or element_of(expr.type), lanes_of(whole.type)))

    def _const(self, expr: Const) -> Evaluate:
        value = arithmetic.hold(expr.value, expr.dtype)
        return lambda env: value

    def _var(self, expr: Var) -> Evaluate:
        name = expr.name
        return lambda env: env[name]

    def _dim(self, expr: Dim) -> Evaluate:
        name, axis = expr.array, expr.axis
        return lambda env: env[name].shape[axis]

    def _binop(self, expr: BinOp) -> Evaluate:
        left, right = (self._operand(part, expr, expr.dtype) for part in (expr.left, expr.right))
        compute = arithmetic.binary(expr.op, expr.dtype, isinstance(expr.type, Vector))
        return lambda env: compute(left(env), right(env))

    def _compare(self, expr: Compare) -> Evaluate:
        left, right = (self._operand(part, expr, expr.dtype) for part in (expr.left, expr.right))
        compute = arithmetic.comparison(expr.op, isinstance(expr.type, Vector))
        return lambda env: compute(left(env), right(env))

    def _boolop(self, expr: BoolOp) -> Evaluate:
        stop = expr.op == "or"
        left = self._operand(expr.left, expr)
        if not isinstance(expr.type, Vector):
            right = self.value(expr.right)
            return lambda env: stop if left(env) == stop else right(env)
        some_right = self._in_lanes(self._lazily(expr.right, expr))

        def compute(env: Env) -> Any:
            known = left(env)
            open_lanes = known != stop
            return np.where(open_lanes, some_right(env, open_lanes), known)

        return compute

    def _unaryop(self, expr: UnaryOp) -> Evaluate:
        operand = self.value(expr.operand)
        compute = arithmetic.unary(expr.op, expr.operand.type)
        return lambda env: compute(operand(env))

    def _select(self, expr: Select) -> Evaluate:
        if not isinstance(expr.test.type, Vector):
            test = self.value(expr.test)
            then, orelse = (self._operand(part, expr, expr.dtype) for part in (expr.then, expr.orelse))
            return lambda env: then(env) if test(env) else orelse(env)
        test = self.value(expr.test)
        first, second = (self._in_lanes(self._lazily(part, expr, expr.dtype)) for part in (expr.then, expr.orelse))

        def choose(env: Env) -> Any:
            taken = test(env)
            return np.where(taken, first(env, taken), second(env, ~taken))

        return choose

    def _lazily(self, expr: Expr, whole: Expr, element: Type | None = None) -> Evaluate:
        before, self.lazy = self.lazy, True
        evaluate = self._operand(expr, whole, element)
        self.lazy = before
        return evaluate

    def _in_lanes(self, evaluate: Evaluate) -> Callable[[Env, Any], Any]:
        """`evaluate` for the given lanes only, among those already chosen."""

        def compute(env: Env, chosen: Any) -> Any:
            outer = env.get(LANES)
            env[LANES] = chosen if outer is None else chosen & outer
            try:
                return evaluate(env)
            finally:
                env[LANES] = outer

        return compute

    def _cast(self, expr: Cast) -> Evaluate:
        operand = self.value(expr.operand)
        compute = arithmetic.cast(expr.operand.type, expr.dtype)
        return lambda env: compute(operand(env))

    def _call(self, expr: Call) -> Evaluate:
        if expr.function == "checked_index":
            return self._checked_index(expr)
        element = None if expr.dtype == BOOL else expr.dtype  # a question is asked in the argument's own type
        args = [self._operand(arg, expr, element) for arg in expr.args]
        compute = arithmetic.function(expr.function, expr.dtype, isinstance(expr.type, Vector))
        if len(args) == 2:  # by far the most frequent: the bounds of tails
            first, second = args
            return lambda env: compute(first(env), second(env))
        return lambda env: compute(*[arg(env) for arg in args])

    def _checked_index(self, expr: Call) -> Evaluate:
        index, extent = (self._operand(arg, expr, INT64) for arg in expr.args)
        if not isinstance(expr.type, Vector):
            return lambda env: explicit(index(env), extent(env), expr.loc)
        partial = self.lazy or self.lenient

        def check(env: Env) -> Any:
            indices, extents = index(env), extent(env)
            lanes = env.get(LANES) if partial else None
            for lane in range(len(indices)) if lanes is None else np.flatnonzero(lanes):
                explicit(indices[lane], extents[lane], expr.loc)
            return np.where(indices < 0, indices + extents, indices)

        return check

    def _ramp(self, expr: Ramp) -> Evaluate:
        base = self.value(expr.base, INT64)
        steps = np.arange(expr.lanes, dtype=np.int64) * expr.stride
        return lambda env: base(env) + steps

    def _broadcast(self, expr: Broadcast) -> Evaluate:
        return self.value(expr.value, expr.type)

    def _reduce(self, expr: Reduce) -> Evaluate:
        vector = self.value(expr.vector)
        compute = arithmetic.reduction(expr.op, expr.vector.type)
        return lambda env: compute(vector(env))

    # ------------------------------------------------------------------------------------------- memory

    def access(self, name: str, indices: tuple[Expr, ...], mask: Expr | None) -> Evaluate:
        """A function to (the array, the index, which lanes), its bounds checked.

        "Which lanes" is `True` for all, `False` for none, or an array of bools.
        """
        stmt, lazy = self.statement, self.lazy
        which = None if mask is None else self.value(mask)
        before, self.lenient = self.lenient, self.lenient or mask is not None
        parts = [self.value(index, with_lanes(INT64, lanes_of(index.type))) for index in indices]
        self.lenient = before

        def check(index: tuple[Any, ...], shape: tuple[int, ...], chosen: Any) -> None:
            for axis, (part, extent) in enumerate(zip(index, shape, strict=False)):
                low, high = part, part
                if isinstance(part, np.ndarray):
                    used = part if chosen is True else part[chosen]
                    low, high = used.min(), used.max()
                if low < 0 or high >= extent:
                    raise _outside(stmt, name, axis, low if low < 0 else high, extent)

        def at_one(env: Env) -> tuple[Any, Any, Any]:  # the usual case, made fast
            memory = env[name]
            index = tuple([part(env) for part in parts])
            for part, extent in zip(index, memory.shape, strict=False):
                if not 0 <= part < extent:
                    check(index, memory.shape, True)
            return memory, index, True

        def everywhere(env: Env) -> tuple[Any, Any, Any]:
            memory = env[name]
            index = tuple([part(env) for part in parts])
            check(index, memory.shape, True)
            return memory, index, True

        if which is None and not lazy:
            scalar = not any(isinstance(index.type, Vector) for index in indices)
            return at_one if scalar else everywhere
        some_index = self._in_lanes(lambda env: tuple([part(env) for part in parts]))

        def somewhere(env: Env) -> tuple[Any, Any, Any]:
            memory = env[name]
            chosen = True if which is None else which(env)
            lanes = env.get(LANES) if lazy else None
            if lanes is not None:
                chosen = lanes & chosen
            if chosen is False or (chosen is not True and not chosen.any()):
                return memory, None, False
            index = some_index(env, chosen) if chosen is not True else tuple([part(env) for part in parts])
            check(index, memory.shape, chosen)
            return memory, index, chosen

        return somewhere

    def _load(self, expr: Load) -> Evaluate:
        array, type_ = self.arrays[expr.array], expr.type
        element, lanes = element_of(array.dtype), lanes_of(type_)
        kept = numpy_dtype(arithmetic.held(element).name)
        access = self.access(expr.array, expr.indices, expr.mask)
        change = arithmetic.convert(with_lanes(element, lanes), type_)
        if lanes == 1:
            own = arithmetic.holder(element)
            zero = change(arithmetic.hold(0, element))

            def one(env: Env) -> Any:
                memory, index, chosen = access(env)
                return zero if chosen is False else change(own(memory[index]))

            return one
        whole = isinstance(array.dtype, Vector)

        def several(env: Env) -> Any:
            memory, index, chosen = access(env)
            if chosen is True:
                return change(memory[index].astype(kept))
            result = np.zeros(lanes, kept)
            if chosen is not False:
                result[chosen] = memory[index][chosen] if whole else memory[only(index, chosen)]
            return change(result)

        return several


def only(index: tuple[Any, ...], chosen: Any) -> tuple[Any, ...]:
    """An index for the chosen lanes alone."""
    return tuple(part[chosen] if isinstance(part, np.ndarray) else part for part in index)


def _outside(stmt: Stmt | None, name: str, axis: int, index: int, extent: int) -> IndexError:
    place = getattr(stmt, "loc", None)
    where = f"{place}: " if place is not None else ""
    text = headline(stmt) if stmt is not None else name
    return IndexError(f"{where}index {index} is outside axis {axis} of {name}, of extent {extent}, in `{text}`")
