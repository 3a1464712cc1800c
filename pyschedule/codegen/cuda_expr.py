"""IR expressions as the text of generated CUDA Python: scalars other than int64, and vectors."""

from __future__ import annotations

from abc import abstractmethod

from pyschedule.codegen.cuda_integers import COMPARISON, EXTREMES, OPERATION, TESTS, Integers, Text, as_ramp, held
from pyschedule.codegen.ptx_names import LIBDEVICE_NAMES, SHORT
from pyschedule.codegen.ranges import fits_u32
from pyschedule.errors import InternalError, Unsupported
from pyschedule.ir.nodes import (
    BinOp,
    BoolOp,
    Broadcast,
    Call,
    Cast,
    Compare,
    Expr,
    Load,
    Ramp,
    Reduce,
    Select,
    UnaryOp,
    Var,
)
from pyschedule.ir.types import BOOL, INT64, Scalar, element_of, lanes_of


class Expressions(Integers):
    """Writes expressions of any type; `load` is what a memory room below adds."""

    # ------------------------------------------------------------------------------------ other scalars

    def _scalar_var(self, expr: Var) -> Text:
        return Text(self.names[expr.name], SHORT[held(element_of(expr.vtype)).name], True)

    def _scalar_binop(self, expr: BinOp) -> Text:
        kind = SHORT[held(expr.dtype).name]
        left, right = self.value(expr.left, expr.dtype), self.value(expr.right, expr.dtype)
        if held(expr.dtype) == BOOL:
            name = {"+": "vor", "*": "vand", "&": "vand", "|": "vor", "^": "vxor"}.get(expr.op)
            if name is None:
                raise Unsupported(f"{expr.op!r} of two bools has no CUDA form", expr.loc)
            return Text(f"{self.use(name)}({left.text}, {right.text})", "b8", True)
        if expr.op in ("<<", ">>", "//", "%"):
            name = "v" + OPERATION[expr.op]
            return Text(f"{self.use(name)}({left.text}, {right.text})", kind, True)
        if expr.dtype.is_float and expr.op == "**":
            return self._libdevice("pow", (left, right), kind)
        text = Text(f"{left.operand} {expr.op} {right.operand}", kind)
        if expr.dtype.is_integer:  # Numba computes small integers in 64 bits
            return Text(f"{self.use(kind)}({text.text})", kind, True)
        return text

    def _scalar_compare(self, expr: Compare) -> Text:
        if expr.dtype == INT64:
            sides = (expr.left, expr.right)
            small = all(fits_u32(self.facts.interval(side)) for side in sides)
            kind = "u32" if small and all(held(element_of(side.type)) == INT64 for side in sides) else "i64"
            left, right = (self.as_kind(side, kind) for side in sides)
        else:
            left, right = self.value(expr.left, expr.dtype), self.value(expr.right, expr.dtype)
        return Text(f"{left.operand} {expr.op} {right.operand}", "b8")

    def _scalar_boolop(self, expr: BoolOp) -> Text:
        left, right = self.value(expr.left, BOOL), self.value(expr.right, BOOL)
        return Text(f"{left.operand} {expr.op} {right.operand}", "b8")

    def _scalar_unaryop(self, expr: UnaryOp) -> Text:
        kind = SHORT[held(element_of(expr.type)).name]
        operand = self.value(expr.operand, element_of(expr.type))
        if expr.op == "not":
            return Text(f"not {operand.operand}", "b8")
        if kind == "b8":
            return Text(f"not {operand.operand}", "b8")
        text = f"{expr.op}{operand.operand}"
        if element_of(expr.type).is_integer:
            return Text(f"{self.use(kind)}({text})", kind, True)
        return Text(text, kind)

    def choice(self, expr: Select, then: Text, orelse: Text, kind: str) -> Text:
        test = self.value(expr.test, BOOL)
        return Text(f"{then.operand} if {test.operand} else {orelse.operand}", kind)

    def _scalar_select(self, expr: Select) -> Text:
        kind = SHORT[held(expr.dtype).name]
        return self.choice(expr, self.value(expr.then, expr.dtype), self.value(expr.orelse, expr.dtype), kind)

    def _scalar_cast(self, expr: Cast) -> Text:
        kind = SHORT[held(expr.dtype).name]
        operand = self.value(expr.operand, held(expr.dtype))
        if expr.dtype.is_half:
            return Text(f"{self.use('round_' + SHORT[expr.dtype.name])}({operand.text})", "f32", True)
        return Text(operand.text, kind, operand.atom)

    def _scalar_call(self, expr: Call) -> Text:
        return self.call(expr)

    def call(self, expr: Call) -> Text:
        kind = SHORT[held(expr.dtype).name]
        if expr.function in TESTS:
            source = held(element_of(expr.args[0].type))
            argument = self.typed_text(self.value(expr.args[0], source), SHORT[source.name])
            return Text(f"{self.use('v' + expr.function)}({argument})", "b8", True)
        args = tuple(self.value(arg, expr.dtype) for arg in expr.args)
        texts = ", ".join(self.typed_text(arg, kind) for arg in args)
        if expr.function in EXTREMES:
            return Text(f"{self.use(expr.function)}({texts})", kind, True)
        if expr.function == "abs":
            return Text(f"{self.use('vabs')}({texts})", kind, True)
        if not expr.dtype.is_float:
            raise InternalError(f"CUDA code: {expr.function} of {expr.dtype}")
        return self._libdevice(expr.function, args, kind)

    def _libdevice(self, function: str, args: tuple[Text, ...], kind: str) -> Text:
        name = LIBDEVICE_NAMES.get(function, function) + ("f" if kind == "f32" else "")
        return Text(f"libdevice.{name}({', '.join(arg.text for arg in args)})", kind, True)

    def _scalar_reduce(self, expr: Reduce) -> Text:
        element = held(element_of(expr.vector.type))
        operation = {"and": "and", "or": "or"}.get(expr.op) or OPERATION.get(expr.op) or expr.op
        vector = self.value(expr.vector, element)
        if lanes_of(expr.vector.type) == 1:
            return vector
        return Text(f"{self.use('reduce_' + operation)}({vector.text})", SHORT[element.name], True)

    @abstractmethod
    def load(self, expr: Load) -> Text:
        """A load, of a scalar or a vector."""

    def _scalar_load(self, expr: Load) -> Text:
        return self.load(expr)

    # ------------------------------------------------------------------------------------------ vectors

    def vector(self, expr: Expr, lanes: int) -> Text:
        """A vector expression, in the type that its own element type is held in."""
        element = held(element_of(expr.type))
        kind = SHORT[element.name]
        if lanes_of(expr.type) == 1:
            scalar = self.value(expr, element)
            return Text(f"{self.use(f'splat{lanes}')}({self.typed_text(scalar, kind)})", kind, True)
        if isinstance(expr, Var):
            return Text(self.names[expr.name], kind, True)
        if isinstance(expr, Load):
            return self.load(expr)
        if isinstance(expr, Broadcast):
            return self.vector(expr.value, lanes)
        if isinstance(expr, Ramp):
            i64 = self.use("i64")
            base = self.signed(expr.base).text
            return Text(f"{self.use(f'ramp{lanes}')}({i64}({base}), {i64}({expr.stride}))", "i64", True)
        method = getattr(self, "_vector_" + type(expr).__name__.lower(), None)
        if method is None:
            raise InternalError(f"CUDA code: no vector form of {type(expr).__name__}")
        text: Text = method(expr, lanes)
        return text

    def lanes(self, expr: Expr, dtype: Scalar, lanes: int) -> str:
        """`expr` in `lanes` lanes of `dtype`."""
        if lanes_of(expr.type) == 1:
            kind = SHORT[held(dtype).name]
            return f"{self.use(f'splat{lanes}')}({self.typed_text(self.value(expr, dtype), kind)})"
        return self.value(expr, dtype).text

    def _apply(self, name: str, kind: str, *args: str) -> Text:
        return Text(f"{self.use(name)}({', '.join(args)})", kind, True)

    def _vector_binop(self, expr: BinOp, lanes: int) -> Text:
        kind = SHORT[held(expr.dtype).name]
        operation = OPERATION[expr.op]
        if held(expr.dtype) == BOOL:
            operation = {"add": "or", "mul": "and"}.get(operation, operation)
        if operation == "pow" and not expr.dtype.is_float:
            raise Unsupported("'**' of integer vectors has no CUDA form", expr.loc)
        sides = (self.lanes(side, expr.dtype, lanes) for side in (expr.left, expr.right))
        return self._apply("v" + operation, kind, *sides)

    def _vector_compare(self, expr: Compare, lanes: int) -> Text:
        name = "v" + COMPARISON[expr.op]
        small = [self._small_lanes(side, lanes) for side in (expr.left, expr.right)] if expr.dtype == INT64 else []
        if small and small[0] is not None and small[1] is not None:
            return self._apply(name, "b8", small[0], small[1])
        sides = (self.lanes(side, expr.dtype, lanes) for side in (expr.left, expr.right))
        return self._apply(name, "b8", *sides)

    def _small_lanes(self, expr: Expr, lanes: int) -> str | None:
        """Int64 lanes that are a ramp or all the same, as lanes of `u32`, if they all fit."""
        if element_of(expr.type) != INT64 or not fits_u32(self.facts.interval(expr)):
            return None
        if isinstance(expr, Broadcast):
            expr = expr.value
        u32 = self.use("u32")
        if lanes_of(expr.type) == 1:
            return f"{self.use(f'splat{lanes}')}({self.as_kind(expr, 'u32').text})"
        ramp = as_ramp(expr)
        if ramp is None or not fits_u32(self.facts.interval(ramp.base)):
            return None
        return (
            f"{self.use(f'ramp{lanes}')}({self.as_kind(ramp.base, 'u32').text}, {u32}({ramp.stride % (1 << 32)}))"
        )

    def _vector_boolop(self, expr: BoolOp, lanes: int) -> Text:
        sides = (self.lanes(side, BOOL, lanes) for side in (expr.left, expr.right))
        return self._apply("v" + expr.op, "b8", *sides)

    def _vector_unaryop(self, expr: UnaryOp, lanes: int) -> Text:
        element = held(element_of(expr.type))
        name = "vneg" if expr.op == "-" else "vnot" if expr.op == "not" else "vinv"
        return self._apply(name, SHORT[element.name], self.lanes(expr.operand, element, lanes))

    def _vector_select(self, expr: Select, lanes: int) -> Text:
        then, orelse = (self.lanes(arm, expr.dtype, lanes) for arm in (expr.then, expr.orelse))
        kind = SHORT[held(expr.dtype).name]
        if lanes_of(expr.test.type) == 1:
            # One test for all lanes guards the loads of the arm that is not taken.
            return Text(f"{then} if {self.value(expr.test, BOOL).operand} else {orelse}", kind)
        return self._apply("vselect", kind, self.lanes(expr.test, BOOL, lanes), then, orelse)

    def _vector_cast(self, expr: Cast, lanes: int) -> Text:
        value = self.lanes(expr.operand, held(expr.dtype), lanes)
        if expr.dtype.is_half:
            return self._apply("round_" + SHORT[expr.dtype.name], "f32", value)
        return Text(value, SHORT[expr.dtype.name], True)

    def _vector_call(self, expr: Call, lanes: int) -> Text:
        if expr.function == "checked_index":
            index = self.lanes(expr.args[0], INT64, lanes)
            extent = f"{self.use('i64')}({self.signed(expr.args[1]).text})"
            return self._apply("checked_index", "i64", self.status(), index, extent, self.check_number(expr))
        if expr.function in TESTS:
            element = held(element_of(expr.args[0].type))
            return self._apply("v" + expr.function, "b8", self.lanes(expr.args[0], element, lanes))
        args = (self.lanes(arg, expr.dtype, lanes) for arg in expr.args)
        return self._apply("v" + expr.function, SHORT[held(expr.dtype).name], *args)
