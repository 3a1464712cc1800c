"""The subset of Python that generated CUDA source uses, executed for all threads of a block at once.

Each function is translated once into closures, one an expression or statement, over a `Machine` that holds
the locals and the mask of active threads.  Integer arithmetic follows Numba's rules (small integers compute in
64 bits; `uint64` with `int64`, which Numba makes a float, is refused).
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyschedule.codegen import ptx_names
from pyschedule.runtime import lockstep_ops
from pyschedule.runtime.lockstep_machine import (
    Evaluate,
    Execute,
    Machine,
    Value,
    as_mask,
    checked_index,
    memory_access,
    read_element,
    write_element,
)
from pyschedule.runtime.lockstep_memory import (
    BarrierDivergenceError,
    Buffer,
    Clock,
    LocalArray,
    LockstepError,
    poison,
)

# ---------------------------------------------------------------------------------------------- operators


def _numba_operand(value: Value) -> Value:
    """Integers below 64 bits compute in 64, of their own signedness."""
    if value.dtype.kind == "u" and value.dtype.itemsize < 8:
        return value.astype(np.uint64)
    if value.dtype.kind == "i" and value.dtype.itemsize < 8:
        return value.astype(np.int64)
    return value


def _arithmetic(function: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    def apply(left: Value, right: Value) -> Value:
        kinds = left.dtype.kind + right.dtype.kind
        if kinds == "ff":
            return function(left, right)
        if "b" in kinds and kinds != "bb":
            raise LockstepError("arithmetic on a bool")
        if kinds in ("iu", "ui"):
            unsigned = left if left.dtype.kind == "u" else right
            if unsigned.dtype.itemsize == 8:
                raise LockstepError("int64 and uint64 meet in one operation, which Numba does in float64")
            return function(left.astype(np.int64), right.astype(np.int64))
        if "f" in kinds:
            raise LockstepError("an integer and a float meet in one operation")
        return function(_numba_operand(left), _numba_operand(right))

    return apply


_BINARY: Final[dict[type, Callable[[Value, Value], Value]]] = {
    ast.Add: _arithmetic(operator.add),
    ast.Sub: _arithmetic(operator.sub),
    ast.Mult: _arithmetic(operator.mul),
    ast.Div: _arithmetic(operator.truediv),
    ast.FloorDiv: _arithmetic(np.floor_divide),
    ast.Mod: _arithmetic(np.mod),
    ast.Pow: _arithmetic(operator.pow),
    ast.BitAnd: _arithmetic(operator.and_),
    ast.BitOr: _arithmetic(operator.or_),
    ast.BitXor: _arithmetic(operator.xor),
}
_COMPARE: Final[dict[type, Callable[[Value, Value], Value]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


# -------------------------------------------------------------------------------------------- translation


class _Translator:
    """Turns the statements and expressions of one function into closures."""

    def __init__(self, types: dict[str, str]) -> None:
        self.types = types

    # ------------------------------------------------------------------------------------ expressions

    def expression(self, node: ast.expr) -> Evaluate:
        method = getattr(self, "_expr_" + type(node).__name__.lower(), None)
        if method is None:
            raise LockstepError(f"line {node.lineno}: {ast.unparse(node)!r} is not in the generated subset")
        made: Evaluate = method(node)
        return made

    def _expr_constant(self, node: ast.Constant) -> Evaluate:
        value: Value = node.value
        if isinstance(value, bool):
            value = np.bool_(value)
        elif isinstance(value, int):
            value = np.int64(value) if value < 2**63 else np.uint64(value)
        elif isinstance(value, float):
            value = np.float64(value)
        return lambda machine: value

    def _expr_name(self, node: ast.Name) -> Evaluate:
        name = node.id

        def evaluate(machine: Machine) -> Value:
            try:
                return machine.names[name]
            except KeyError:
                raise LockstepError(f"line {node.lineno}: {name!r} has no value yet") from None

        return evaluate

    def _expr_attribute(self, node: ast.Attribute) -> Evaluate:
        text = ast.unparse(node)
        if text in ("math.inf", "math.nan"):
            number = np.float64("inf" if text == "math.inf" else "nan")
            return lambda machine: number
        key = text.removeprefix("cuda.")
        return lambda machine: machine.special[key]

    def _expr_binop(self, node: ast.BinOp) -> Evaluate:
        left, right, apply = self.expression(node.left), self.expression(node.right), _BINARY[type(node.op)]
        return lambda machine: apply(left(machine), right(machine))

    def _expr_unaryop(self, node: ast.UnaryOp) -> Evaluate:
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            number: Any = node.operand.value
            return self._expr_constant(ast.Constant(-number))  # one literal, as Python folds it
        operand = self.expression(node.operand)
        if isinstance(node.op, ast.Not):
            return lambda machine: np.logical_not(operand(machine))
        function = operator.neg if isinstance(node.op, ast.USub) else operator.invert
        return lambda machine: function(_numba_operand(operand(machine)))

    def _expr_compare(self, node: ast.Compare) -> Evaluate:
        left, right = self.expression(node.left), self.expression(node.comparators[0])
        apply = _COMPARE[type(node.ops[0])]
        return lambda machine: apply(left(machine), right(machine))

    def _expr_boolop(self, node: ast.BoolOp) -> Evaluate:
        """Short-circuit: what stands on the right is evaluated by those threads that need it."""
        parts = [self.expression(value) for value in node.values]
        conjunction = isinstance(node.op, ast.And)

        def evaluate(machine: Machine) -> Value:
            result = parts[0](machine)
            for part in parts[1:]:
                need = as_mask(machine, result if conjunction else ~np.asarray(result)) & machine.mask
                if not need.any():
                    return result
                other = machine.within(need, part)
                result = result & other if conjunction else result | (other & need)
            return result

        return evaluate

    def _expr_ifexp(self, node: ast.IfExp) -> Evaluate:
        test, then, orelse = (self.expression(part) for part in (node.test, node.body, node.orelse))

        def evaluate(machine: Machine) -> Value:
            condition = test(machine)
            if np.ndim(condition) == 0:
                return then(machine) if condition else orelse(machine)
            yes, no = condition & machine.mask, ~condition & machine.mask
            if not no.any():
                return then(machine)
            if not yes.any():
                return orelse(machine)
            first, second = machine.within(yes, then), machine.within(no, orelse)
            if first.dtype != second.dtype:
                raise LockstepError(f"line {node.lineno}: the arms are {first.dtype} and {second.dtype}")
            if max(np.ndim(first), np.ndim(second)) > np.ndim(condition):  # one test for all lanes
                condition = np.expand_dims(condition, -1)
            return np.where(condition, first, second)

        return evaluate

    def _expr_subscript(self, node: ast.Subscript) -> Evaluate:
        base, index = self.expression(node.value), self.expression(node.slice)
        return lambda machine: read_element(machine, base(machine), index(machine))

    def _expr_call(self, node: ast.Call) -> Evaluate:
        if isinstance(node.func, ast.Attribute):
            text = ast.unparse(node.func)
            if text == "cuda.syncthreads_or":
                test = self.expression(node.args[0])
                return lambda machine: _any_thread(machine, test(machine))
            if not text.startswith("libdevice."):
                raise LockstepError(f"line {node.lineno}: {text} is not in the generated subset")
            function = lockstep_ops.libdevice(text.removeprefix("libdevice."))
            arguments = [self.expression(arg) for arg in node.args]
            return lambda machine: function(*(arg(machine) for arg in arguments))
        name = ast.unparse(node.func)
        args = [self.expression(arg) for arg in node.args]
        if name in self.types:
            dtype, operand = self.types[name], args[0]
            return lambda machine: lockstep_ops.cast(operand(machine), dtype)
        memory = ptx_names.parse(name)
        if memory is not None:
            access = memory_access(memory)
            return lambda machine: access(machine, *(arg(machine) for arg in args))
        if name == "checked_index":
            return lambda machine: checked_index(machine, *(arg(machine) for arg in args))
        if name == "stop_requested":
            return lambda machine: args[0](machine).look(machine.count)
        twin = lockstep_ops.twin(name)
        if twin is None:
            raise LockstepError(f"line {node.lineno}: {name} has no NumPy twin")
        function = twin
        return lambda machine: _checked_twin(name, function, [arg(machine) for arg in args])

    # ------------------------------------------------------------------------------------- statements

    def body(self, nodes: list[ast.stmt]) -> Execute:
        steps = [self.statement(node) for node in nodes]

        def execute(machine: Machine) -> None:
            for step in steps:
                if machine.mask is not machine.everyone and not machine.mask.any():
                    return
                step(machine)

        return execute

    def statement(self, node: ast.stmt) -> Execute:
        method = getattr(self, "_stmt_" + type(node).__name__.lower(), None)
        if method is None:
            raise LockstepError(f"line {node.lineno}: {ast.unparse(node)!r} is not in the generated subset")
        made: Execute = method(node)
        return made

    def _stmt_pass(self, node: ast.Pass) -> Execute:
        return lambda machine: None

    def _stmt_expr(self, node: ast.Expr) -> Execute:
        if isinstance(node.value, ast.Constant):
            return lambda machine: None
        text = ast.unparse(node.value)
        if text == "cuda.syncthreads()":
            return _barrier
        if text.endswith("()") and text.startswith(("unroll_", "stay_rolled")):
            return lambda machine: None
        evaluate = self.expression(node.value)

        def execute(machine: Machine) -> None:
            evaluate(machine)

        return execute

    def _stmt_assign(self, node: ast.Assign) -> Execute:
        target = node.targets[0]
        if isinstance(target, ast.Subscript):
            base, index, value = (self.expression(part) for part in (target.value, target.slice, node.value))
            return lambda machine: write_element(machine, base(machine), index(machine), value(machine))
        if not isinstance(target, ast.Name):
            raise LockstepError(f"line {node.lineno}: {ast.unparse(node)!r} is not in the generated subset")
        name = target.id
        made = self._array(name, node.value)
        if made is not None:
            declare = made
            return lambda machine: machine.names.__setitem__(name, declare(machine))
        evaluate = self.expression(node.value)
        return lambda machine: machine.assign(name, evaluate(machine))

    def _array(self, name: str, node: ast.expr) -> Evaluate | None:
        """`cuda.local.array`, `cuda.shared.array`, or a part of the dynamic shared memory."""
        part: ast.Slice | None = None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice):
            part, node = node.slice, node.value
        if not isinstance(node, ast.Call) or ast.unparse(node.func) not in (
            "cuda.local.array",
            "cuda.shared.array",
        ):
            return None
        count, dtype = ast.literal_eval(node.args[0]), np.dtype(self.types[ast.unparse(node.args[1])])
        if ast.unparse(node.func) == "cuda.local.array":
            return lambda machine: LocalArray(name, count, dtype, machine.count)
        if part is not None and part.lower is not None and part.upper is not None:
            count = ast.literal_eval(part.upper) - ast.literal_eval(part.lower)

        def declare(machine: Machine) -> Value:
            memory = np.empty(count, dtype)
            poison(memory)
            return Buffer(name, memory)

        return declare

    def _stmt_if(self, node: ast.If) -> Execute:
        test, then, orelse = self.expression(node.test), self.body(node.body), self.body(node.orelse)

        def execute(machine: Machine) -> None:
            condition = test(machine)
            if np.ndim(condition) == 0:
                (then if condition else orelse)(machine)
                return
            outer = machine.mask
            machine.settle(outer & condition)
            if machine.mask.any():
                then(machine)
            machine.settle(outer & ~condition)
            if machine.mask.any():
                orelse(machine)
            machine.settle(outer)

        return execute

    def _looping(
        self, machine: Machine, advance: Callable[[NDArray[np.bool_]], NDArray[np.bool_]], body: Execute
    ) -> None:
        """Runs `body` for the threads that `advance` still lets in, until there are none."""
        outer = machine.mask
        machine.loops.append(outer)
        while True:
            machine.settle(machine.loops[-1])
            if not machine.mask.any():
                break
            going = advance(machine.mask)
            machine.loops[-1] = machine.loops[-1] & going
            machine.settle(machine.loops[-1])
            if not machine.mask.any():
                break
            body(machine)
        machine.loops.pop()
        machine.settle(outer)

    def _stmt_while(self, node: ast.While) -> Execute:
        test, body = self.expression(node.test), self.body(node.body)
        return lambda machine: self._looping(machine, lambda mask: as_mask(machine, test(machine)), body)

    def _stmt_for(self, node: ast.For) -> Execute:
        if not (isinstance(node.iter, ast.Call) and isinstance(node.target, ast.Name)):
            raise LockstepError(f"line {node.lineno}: only loops over range are in the generated subset")
        bounds = [self.expression(arg) for arg in node.iter.args]
        name, body = node.target.id, self.body(node.body)

        def execute(machine: Machine) -> None:
            values = [bound(machine) for bound in bounds]
            kinds = {value.dtype for value in values}
            if len(kinds) > 1:
                raise LockstepError(f"line {node.lineno}: a range over {', '.join(map(str, kinds))}")
            if len(values) == 1:
                values = [np.zeros_like(values[0]), values[0]]
            start, stop = values[0], values[1]
            step = values[2] if len(values) == 3 else np.ones_like(start)
            state = {"value": start, "first": True}
            machine.names.pop(name, None)

            def advance(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
                value = state["value"]
                if state["first"]:
                    going = np.where(step > 0, value < stop, value > stop)
                else:  # as Numba, which counts: the value behind the last one may be no int64
                    going = np.where(step > 0, stop - value > step, stop - value < step)
                    value = value + step
                state.update(value=value, first=False)
                machine.names[name] = value
                return as_mask(machine, going)

            self._looping(machine, advance, body)

        return execute

    def _stmt_break(self, node: ast.Break) -> Execute:
        def execute(machine: Machine) -> None:
            machine.loops[-1] = machine.loops[-1] & ~machine.mask
            machine.settle(machine.mask)

        return execute

    def _stmt_return(self, node: ast.Return) -> Execute:
        def execute(machine: Machine) -> None:
            before = machine.returned if machine.returned is not None else np.zeros(machine.count, np.bool_)
            machine.returned = before | machine.mask
            machine.settle(machine.mask)

        return execute


def _checked_twin(name: str, function: Callable[..., Value], values: list[Value]) -> Value:
    """Calls a twin after seeing to it that all its numbers have one type, as the intrinsics want."""
    kinds = {value.dtype for value in values if value.dtype != np.bool_}
    if len(kinds) > 1:
        raise LockstepError(f"{name}: operands of types {', '.join(sorted(map(str, kinds)))}")
    result = np.asarray(function(*values))
    return result if result.ndim else result[()]


def _barrier(machine: Machine) -> None:
    if machine.mask is not machine.everyone and not machine.mask.all():  # also where the others have returned
        raise BarrierDivergenceError(
            f"a barrier is reached by {int(machine.mask.sum())} of {machine.count} threads"
        )
    machine.clock.barrier()


def _any_thread(machine: Machine, test: Value) -> Value:
    """A barrier that tells all threads whether the test is not 0 for one of them."""
    _barrier(machine)
    return np.int32(np.any(as_mask(machine, np.asarray(test) != 0) & machine.mask))


class Function:
    """One generated kernel, ready to run."""

    def __init__(self, node: ast.FunctionDef, types: dict[str, str]) -> None:
        self.parameters = [arg.arg for arg in node.args.args]
        self.body = _Translator(types).body(node.body)

    def run_block(
        self,
        arguments: list[Any],
        threads: tuple[int, int, int],
        block: tuple[int, int, int],
        grid: tuple[int, int, int],
        clock: Clock,
    ) -> None:
        machine = Machine(threads, block, grid, clock)
        machine.names.update(zip(self.parameters, arguments, strict=True))
        self.body(machine)


@lru_cache(maxsize=64)
def functions_of(source: str) -> dict[str, Function]:
    """The functions of a generated module, by name."""
    tree = ast.parse(source)
    types: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "numba.cuda.types":
            types.update({alias.asname or alias.name: alias.name for alias in node.names})
    return {node.name: Function(node, types) for node in tree.body if isinstance(node, ast.FunctionDef)}
