"""Python expressions → surface expressions; what a kernel cannot say is refused here, with the remedy."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable
from typing import Any, Final

from pyschedule.errors import FrontendError
from pyschedule.frontend.folding import fold
from pyschedule.frontend.names import Function, Namespace, function_of, number_of
from pyschedule.frontend.source import Source
from pyschedule.frontend.surface import (
    OF_FILL,
    Apply,
    Binary,
    Comparison,
    Conditional,
    Convert,
    Element,
    Extent,
    Logic,
    Name,
    Number,
    Unary,
)
from pyschedule.ir.functions import FUNCTIONS
from pyschedule.ir.nodes import Expr, Location

BINARY: Final = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.BitXor: "^",
    ast.LShift: "<<",
    ast.RShift: ">>",
}
_UNARY: Final = {ast.USub: "-", ast.Invert: "~", ast.Not: "not"}
_COMPARE: Final = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}

#: What a kernel cannot say, and what to write instead.
REFUSED: Final[dict[type[ast.AST], tuple[str, str]]] = {
    ast.Lambda: ("a lambda", "the expression itself, where it is used"),
    ast.ListComp: (
        "a list comprehension here",
        "bind it to a name first, as in 'row = [0.0 for _ in range(64)]'",
    ),
    ast.List: ("a list here", "bind it to a name first, as in 'row = [0.0] * 64'"),
    ast.SetComp: ("a set", "a loop over 'range' and a small local array"),
    ast.Set: ("a set", "a small local array"),
    ast.DictComp: ("a dictionary", "a small local array"),
    ast.Dict: ("a dictionary", "separate scalar locals, or a small local array"),
    ast.GeneratorExp: ("a generator expression", "a 'for' loop over 'range' that accumulates into a local"),
    ast.Yield: ("'yield'", "a store into an output array"),
    ast.YieldFrom: ("'yield from'", "a store into an output array"),
    ast.Await: ("'await'", "a kernel that computes, called from the coroutine"),
    ast.NamedExpr: ("an assignment inside an expression (':=')", "an assignment on a line of its own"),
    ast.JoinedStr: ("a string", "numbers only; print or format outside the kernel"),
    ast.Tuple: ("a tuple here", "one scalar a name"),
    ast.Starred: ("an unpacking '*'", "the items one by one"),
    ast.Slice: ("a slice", "a 'for' loop over the elements"),
}


_COMPUTABLE: Final = "integers within 64 bits and divisors that are not zero, or floats, as in '1e20'"


def _join(names: Iterable[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)


class ExpressionReader:
    """Reads expressions in the scope of one function.

    `arrays`: parameters and locals used as arrays.  `shapes`: locals bound to a whole shape, with the array.
    `locals`: every name that the function binds (so that a free name of the same spelling does not count).
    """

    def __init__(self, source: Source, namespace: Namespace, params: tuple[str, ...]) -> None:
        self.source = source
        self.namespace = namespace
        self.params = params
        self.arrays: set[str] = set()
        self.shapes: dict[str, str] = {}
        self.locals: set[str] = set(params)
        self.renamed: dict[str, str] = {}

    # ---------------------------------------------------------------------------------------- helpers

    def place(self, node: ast.AST) -> Location:
        return self.source.place(node)

    def refusal(self, node: ast.AST, what: str, instead: str) -> FrontendError:
        return self.source.refusal(self.place(node), what, instead)

    def cannot(self, node: ast.AST) -> FrontendError:
        what, instead = REFUSED.get(
            type(node),
            (f"'{type(node).__name__}'", "loops, conditions and scalar arithmetic on array elements"),
        )
        return self.refusal(node, f"a kernel cannot use {what}", instead)

    def free(self, node: ast.Name) -> Any:
        """The value of a name that the function does not bind."""
        return self.namespace.lookup(
            node.id,
            lambda: self.refusal(
                node,
                f"the name '{node.id}' is not known",
                "a parameter, a local assigned before, or a constant defined before the kernel",
            ),
        )

    def value_of(self, node: ast.expr) -> Any:
        """The Python object that a free name, or an attribute of a module, stands for; `None` for others."""
        if isinstance(node, ast.Name) and node.id not in self.locals and node.id not in self.renamed:
            return self.free(node)
        if isinstance(node, ast.Attribute):
            base = self.value_of(node.value)
            if base is not None and self.namespace.is_module(base):
                if not hasattr(base, node.attr):
                    raise self.refusal(
                        node, f"module '{base.__name__}' has no '{node.attr}'", "a name that the module has"
                    )
                value = getattr(base, node.attr)
                self.namespace.record(ast.unparse(node), value)
                return value
        return None

    def callee(self, node: ast.expr) -> Function | None:
        value = self.value_of(node)
        return None if value is None else function_of(value)

    # ------------------------------------------------------------------------------------- expressions

    def read(self, node: ast.expr) -> Expr:
        """The surface expression of `node`, constants folded.  Raises `FrontendError`."""
        method: Callable[[Any], Expr] | None = getattr(self, f"_read_{type(node).__name__.lower()}", None)
        if method is None:
            raise self.cannot(node)
        try:
            return fold(method(node))
        except ArithmeticError as error:
            raise self.refusal(node, f"the constant cannot be computed: {error}", _COMPUTABLE) from error

    def _read_constant(self, node: ast.Constant) -> Expr:
        number = number_of(node.value)
        if number is not None:
            return Number(number[0], number[1], self.place(node))
        kind = {str: "a string", bytes: "a string", type(None): "None", complex: "a complex number"}
        raise self.refusal(
            node,
            f"a kernel cannot use {kind.get(type(node.value), repr(node.value))}",
            "integers, floats and bools",
        )

    def _read_name(self, node: ast.Name) -> Expr:
        name = self.renamed.get(node.id, node.id)
        if name in self.arrays:
            raise self.refusal(
                node,
                f"the whole array '{name}' is used as a value",
                f"its elements one by one, as in '{name}[i]'",
            )
        if name in self.shapes:
            raise self.refusal(node, f"the whole shape '{name}' is used as a value", f"one extent, '{name}[0]'")
        if name in self.locals or name in self.renamed.values():
            return Name(name, self.place(node))
        return self._python_constant(node, self.free(node), node.id)

    def _python_constant(self, node: ast.expr, value: Any, name: str) -> Expr:
        number = number_of(value)
        if number is not None:
            if type(number[0]) is int and not -(2**63) <= number[0] < 2**64:
                raise self.refusal(node, f"the constant '{name}' does not fit 64 bits", _COMPUTABLE)
            return Number(number[0], number[1], self.place(node))
        if function_of(value) is not None:
            raise self.refusal(node, f"the function '{name}' is used as a value", "a call of it")
        if self.namespace.is_module(value):
            raise self.refusal(node, f"the module '{name}' is used as a value", "one of its constants or functions")
        what = (
            "the array"
            if hasattr(value, "__array_interface__") or hasattr(value, "__cuda_array_interface__")
            else (f"the {type(value).__name__}")
        )
        raise self.refusal(
            node,
            f"{what} '{name}' comes from outside the kernel; only integers, floats and bools may",
            "pass it as an argument",
        )

    def _read_attribute(self, node: ast.Attribute) -> Expr:
        value = self.value_of(node)
        if value is not None:
            return self._python_constant(node, value, ast.unparse(node))
        if node.attr == "shape":
            raise self.refusal(
                node,
                "a whole shape is used as a value",
                "one extent, 'A.shape[0]', or 'M, N = A.shape' first",
            )
        if isinstance(node.value, ast.Name) and node.value.id in self.locals:
            remedy = "'.shape' and elements are what a kernel can ask of an array"
            if node.attr in ("T", "size", "ndim"):
                remedy = {
                    "T": "swap the indices, 'A[j, i]'",
                    "size": "multiply the extents, 'A.shape[0] * A.shape[1]'",
                    "ndim": "the number itself: a kernel knows how many indices it writes",
                }[node.attr]
            raise self.refusal(node, f"a kernel cannot use the attribute '.{node.attr}'", remedy)
        raise self.refusal(
            node,
            f"a kernel cannot use the attribute '.{node.attr}'",
            "a constant bound to a plain name before it",
        )

    def _read_binop(self, node: ast.BinOp) -> Expr:
        if isinstance(node.op, ast.MatMult):
            raise self.refusal(node, "a kernel cannot use '@'", "three loops with 'C[i, j] += A[i, k] * B[k, j]'")
        return Binary(BINARY[type(node.op)], self.read(node.left), self.read(node.right), self.place(node))

    def _read_unaryop(self, node: ast.UnaryOp) -> Expr:
        operand = self.read(node.operand)
        if isinstance(node.op, ast.UAdd):
            return operand
        return Unary(_UNARY[type(node.op)], operand, self.place(node))

    def _read_compare(self, node: ast.Compare) -> Expr:
        parts: list[Expr] = []
        left = self.read(node.left)
        for op, item in zip(node.ops, node.comparators, strict=True):
            if type(op) not in _COMPARE:
                word = {ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in"}[type(op)]
                raise self.refusal(node, f"a kernel cannot use '{word}'", "comparisons of numbers, '==' or '<'")
            right = self.read(item)
            parts.append(fold(Comparison(_COMPARE[type(op)], left, right, self.place(node))))
            left = right
        return parts[0] if len(parts) == 1 else Logic("and", tuple(parts), self.place(node))

    def _read_boolop(self, node: ast.BoolOp) -> Expr:
        op = "and" if isinstance(node.op, ast.And) else "or"
        return Logic(op, tuple(self.read(value) for value in node.values), self.place(node))

    def _read_ifexp(self, node: ast.IfExp) -> Expr:
        return Conditional(self.read(node.test), self.read(node.body), self.read(node.orelse), self.place(node))

    # --------------------------------------------------------------------------------------- subscripts

    def array_named(self, node: ast.expr) -> str | None:
        """The array that an expression names, if it does."""
        return node.id if isinstance(node, ast.Name) and node.id in self.arrays else None

    def shape_of(self, node: ast.expr) -> str | None:
        """The array whose whole shape an expression is: `A.shape`, or a local bound to it."""
        if isinstance(node, ast.Name):
            return self.shapes.get(node.id)
        if isinstance(node, ast.Attribute) and node.attr == "shape":
            return self.array_named(node.value)
        return None

    def _read_subscript(self, node: ast.Subscript) -> Expr:
        shape = self.shape_of(node.value)
        if shape is not None:
            return Extent(shape, self._constant_index(node), self.place(node))
        value = self.value_of(node.value)
        if isinstance(value, tuple):
            axis = self._constant_index(node)
            if not -len(value) <= axis < len(value):
                raise self.refusal(node, f"the tuple has {len(value)} items", "an index within it")
            return self._python_constant(node, value[axis], ast.unparse(node))
        array, indices = self.element(node)
        return Element(array, indices, self.place(node))

    def _constant_index(self, node: ast.Subscript) -> int:
        index = self.read(node.slice) if not isinstance(node.slice, (ast.Slice, ast.Tuple)) else None
        if not isinstance(index, Number) or type(index.value) is not int:
            raise self.refusal(node, "the index of a shape is not a constant integer", "'A.shape[0]'")
        return index.value

    def element(self, node: ast.Subscript) -> tuple[str, tuple[Expr, ...]]:
        """`A[i, j]` and `A[i][j]` as (array, indices)."""
        groups: list[list[ast.expr]] = []
        base: ast.expr = node
        while isinstance(base, ast.Subscript):
            groups.append(list(base.slice.elts) if isinstance(base.slice, ast.Tuple) else [base.slice])
            base = base.value
        array = self.array_named(base)
        if array is None:
            if isinstance(base, ast.Name) and base.id not in self.locals:
                self._python_constant(base, self.free(base), base.id)
            raise self.refusal(
                node, f"'{ast.unparse(base)}' is not an array of this kernel", "an array parameter or local"
            )
        return array, tuple(self._index(item, node) for group in reversed(groups) for item in group)

    def _index(self, node: ast.expr, whole: ast.Subscript) -> Expr:
        if isinstance(node, ast.Slice):
            raise self.refusal(
                whole, "a kernel cannot use slices", "a 'for' loop over the elements, as in 'C[i, j] = 0.0'"
            )
        if isinstance(node, ast.Constant) and (node.value is None or node.value is ...):
            raise self.refusal(
                whole, "a kernel cannot use 'None' or '...' as an index", "one integer index an axis"
            )
        index = self.read(node)
        if isinstance(index, Number) and (type(index.value) is not int):
            raise self.refusal(whole, f"the index {index.value!r} is not an integer", "an integer index")
        return index

    # -------------------------------------------------------------------------------------------- calls

    def _read_call(self, node: ast.Call) -> Expr:
        if isinstance(node.func, ast.Attribute) and self.value_of(node.func) is None:
            raise self.refusal(
                node,
                f"a kernel cannot call the method '.{node.func.attr}()'",
                "elements and loops; lists and arrays have a fixed size in a kernel",
            )
        function = self.callee(node.func)
        if function is None:
            raise self.refusal(
                node,
                f"a kernel cannot call '{ast.unparse(node.func)}'",
                "its body in place, or one of min, max, abs, int, float, bool, len, the 'math' functions of "
                "floats and their NumPy twins, np.maximum, np.minimum, np.where, dtypes such as np.float32",
            )
        if node.keywords:
            raise self.refusal(
                node, f"'{ast.unparse(node.func)}' takes no keywords in a kernel", "positional arguments"
            )
        if any(isinstance(arg, ast.Starred) for arg in node.args):
            raise self.refusal(node, "a kernel cannot unpack arguments with '*'", "the arguments one by one")
        return self._known_call(node, function)

    def _known_call(self, node: ast.Call, function: Function) -> Expr:
        place = self.place(node)
        name = ast.unparse(node.func)
        if function.kind == "range":
            raise self.refusal(node, "'range' stands outside a 'for'", "'for i in range(n):'")
        if function.kind == "array":
            raise self.refusal(
                node, "a new array is used as a value", f"bind it to a name first, 'x = {name}(...)'"
            )
        if function.kind == "len":
            self._arity(node, 1)
            array = self.array_named(node.args[0]) or self.shape_of(node.args[0])
            if array is None or self.array_named(node.args[0]) is None:
                raise self.refusal(node, "'len' of something that is no array", "'len(A)' or 'A.shape[0]'")
            return Extent(array, 0, place)
        if function.kind == "python_type" and node.args and isinstance(node.args[0], ast.Constant):
            text = node.args[0].value
            if function.name == "float64" and isinstance(text, str):
                try:
                    return Number(float(text), None, place)
                except ValueError:
                    raise self.refusal(node, f"float({text!r}) is no number", "float('inf') or a number") from None
        args = tuple(self.read(arg) for arg in node.args)
        if function.kind in ("min", "max"):
            if len(args) < 2:
                raise self.refusal(node, f"'{name}' of one argument", f"a loop with 'm = {name}(m, A[i])'")
            result = args[0]
            for arg in args[1:]:
                result = fold(Apply(f"p{function.kind}", "python", (result, arg), place))
            return result
        if function.kind in ("python_type", "dtype"):
            self._arity(node, 1)
            return Convert(function.name, function.kind == "python_type", args[0], place)
        if function.kind == "operator":
            self._arity(node, 2)
            return Binary(function.name, args[0], args[1], place)
        if function.kind == "square":
            self._arity(node, 1)
            return Convert(OF_FILL, False, fold(Binary("*", args[0], args[0], place)), place)
        if function.kind == "angle":
            self._arity(node, 1)
            factor = 180.0 / math.pi if function.name == "degrees" else math.pi / 180.0
            return Binary("*", args[0], Number(factor, None, place), place)
        if function.kind == "where":
            self._arity(node, 3)
            return Conditional(args[0], args[1], args[2], place)
        if function.name == "log" and function.home == "math" and len(args) == 2:
            logs = [fold(Apply("log", "math", (arg,), place)) for arg in args]
            return Binary("/", logs[0], logs[1], place)
        if function.name == "hypot" and function.home == "math" and args and len(args) != 2:
            length: Expr = Apply("abs", "math", (args[0],), place)
            for arg in args[1:]:
                length = Apply("hypot", "math", (length, arg), place)
            return length
        self._arity(node, FUNCTIONS[function.name].arity)
        call = Apply(function.name, function.home, args, place)
        if function.home == "math" and function.name in ("floor", "ceil", "trunc"):
            return Convert("int64", True, fold(call), place)  # Python's give an int, NumPy's a float
        return call

    def _arity(self, node: ast.Call, wanted: int) -> None:
        if len(node.args) != wanted:
            plural = "" if wanted == 1 else "s"
            raise self.refusal(
                node,
                f"'{ast.unparse(node.func)}' takes {wanted} argument{plural} in a kernel, not {len(node.args)}",
                f"{wanted} argument{plural}",
            )
