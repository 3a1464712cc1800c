"""Loop nests for tests, written as the Python they stand for.

    source = nest('''
        for m in range(3):
            for i in range(4):
                A[i] = A[i + 1] + 2.0
    ''', "A")

Arrays are named with their ranks (`"A B:2"`), integer arguments as `"N:int"`; `A.shape[0]` is an extent.
Statements of a source are numbered in textual order.  A nest made from it names, in a comment, the statement
that each of its own is and the source's counters: `A[i_1] = ...  # 0: m, i_1`.
"""

from __future__ import annotations

import ast
import textwrap

from pyschedule.ir.build import const
from pyschedule.ir.nodes import (
    Alloc,
    Assign,
    BinOp,
    BoolOp,
    Break,
    Call,
    Compare,
    Const,
    Dim,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Location,
    Origin,
    Return,
    Select,
    Stmt,
    Store,
    UnaryOp,
    Var,
    While,
)
from pyschedule.ir.types import BOOL, FLOAT32, INT64, Scalar
from tests.analysis.helpers import array, local

_BINARY = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.BitAnd: "&",
}
_COMPARE = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


def nest(text: str, params: str) -> Kernel:
    """The kernel of a piece of Python; see the head of this module."""
    text = textwrap.dedent(text).strip("\n")
    arrays = [part.partition(":") for part in params.split() if not part.endswith((":int", ":float"))]
    scalars = [part.partition(":") for part in params.split() if part.endswith((":int", ":float"))]
    reader = _Reader(text)
    for name, _, kind in scalars:
        reader.types[name] = INT64 if kind == "int" else FLOAT32
    body = reader.body(ast.parse(text).body, ())
    return Kernel(
        "kernel",
        (
            *(array(name, int(rank or 1)) for name, _, rank in arrays),
            *(Var(name, reader.types[name]) for name, _, _ in scalars),
        ),
        body,
    )


class _Reader:
    def __init__(self, text: str) -> None:
        self.comments = [line.partition("#")[2].strip() for line in text.splitlines()]
        self.derived = any(self.comments)
        self.types: dict[str, Scalar] = {}
        self.count = 0

    def body(self, stmts: list[ast.stmt], loops: tuple[str, ...]) -> tuple[Stmt, ...]:
        return tuple(made for stmt in stmts for made in self.statement(stmt, loops))

    def statement(self, stmt: ast.stmt, loops: tuple[str, ...]) -> list[Stmt]:
        loc = Location("kernel.py", stmt.lineno, stmt.col_offset)
        if isinstance(stmt, ast.For):
            assert isinstance(stmt.target, ast.Name) and isinstance(stmt.iter, ast.Call)
            name = stmt.target.id
            self.types[name] = INT64
            bounds = [self.expr(arg) for arg in stmt.iter.args]
            start, stop, step = ([const(0), *bounds, const(1)] if len(bounds) == 1 else [*bounds, const(1)])[:3]
            body = self.body(stmt.body, (*loops, name))
            return [For(name, start, stop, step, body, source=name.partition("_")[0], loc=loc)]
        if isinstance(stmt, ast.While):
            return [While(self.expr(stmt.test), self.body(stmt.body, loops), loc=loc)]
        if isinstance(stmt, ast.If):
            return [If(self.expr(stmt.test), self.body(stmt.body, loops), self.body(stmt.orelse, loops), loc)]
        if isinstance(stmt, ast.Break):
            return [Break(loc)]
        if isinstance(stmt, ast.Return):
            return [Return(() if stmt.value is None else (self.expr(stmt.value),), loc)]
        if isinstance(stmt, ast.AugAssign):
            read = ast.parse(ast.unparse(stmt.target), mode="eval").body
            return self.write(stmt, stmt.target, ast.BinOp(read, stmt.op, stmt.value), loops, loc)
        assert isinstance(stmt, ast.Assign)
        target = stmt.targets[0]
        if isinstance(stmt.value, ast.Call) and ast.unparse(stmt.value.func) == "empty":
            assert isinstance(target, ast.Name)
            return [Alloc(local(target.id, *(ast.literal_eval(arg) for arg in stmt.value.args)), loc)]
        return self.write(stmt, target, stmt.value, loops, loc)

    def write(
        self, stmt: ast.stmt, target: ast.expr, value: ast.expr, loops: tuple[str, ...], loc: Location
    ) -> list[Stmt]:
        made = self.expr(value)
        origin = self.origin(stmt.lineno, loops)
        if isinstance(target, ast.Name):
            type_ = made.type
            assert isinstance(type_, Scalar)
            self.types[target.id] = type_
            return [Assign(target.id, made, type_, origin, loc)]
        assert isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name)
        return [Store(target.value.id, self.indices(target.slice), made, None, origin, loc)]

    def origin(self, line: int, loops: tuple[str, ...]) -> Origin | None:
        if not self.derived:
            self.count += 1
            return Origin(self.count - 1, tuple(Var(name) for name in loops))
        comment = self.comments[line - 1]
        if not comment:
            return None
        number, _, counters = comment.partition(":")
        parsed = ast.parse(f"({counters},)" if counters.strip() else "()", mode="eval").body
        assert isinstance(parsed, ast.Tuple)
        return Origin(int(number), tuple(self.expr(item) for item in parsed.elts))

    def indices(self, node: ast.expr) -> tuple[Expr, ...]:
        return tuple(self.expr(item) for item in (node.elts if isinstance(node, ast.Tuple) else [node]))

    def expr(self, node: ast.expr) -> Expr:
        if isinstance(node, ast.Constant):
            kind = {bool: BOOL, int: INT64}.get(type(node.value), FLOAT32)
            return Const(node.value, kind)  # type: ignore[arg-type]
        if isinstance(node, ast.Name):
            return Var(node.id, self.types.get(node.id, FLOAT32))
        if isinstance(node, ast.Subscript):
            if isinstance(node.value, ast.Attribute):
                return Dim(ast.unparse(node.value.value), ast.literal_eval(node.slice))
            name = ast.unparse(node.value)
            loc = Location("kernel.py", node.lineno, node.col_offset) if hasattr(node, "lineno") else None
            dtype = INT64 if name.startswith("lut") else FLOAT32
            return Load(name, self.indices(node.slice), dtype, loc=loc)
        if isinstance(node, ast.BinOp):
            left, right = self.expr(node.left), self.expr(node.right)
            dtype = INT64 if left.type == INT64 and right.type == INT64 else FLOAT32
            return BinOp(_BINARY[type(node.op)], left, right, dtype)
        if isinstance(node, ast.Compare):
            left, right = self.expr(node.left), self.expr(node.comparators[0])
            dtype = INT64 if left.type == INT64 and right.type == INT64 else FLOAT32
            return Compare(_COMPARE[type(node.ops[0])], left, right, dtype)
        if isinstance(node, ast.BoolOp):
            first, *rest = (self.expr(value) for value in node.values)
            for part in rest:
                first = BoolOp("and" if isinstance(node.op, ast.And) else "or", first, part)
            return first
        if isinstance(node, ast.UnaryOp):
            operand = self.expr(node.operand)
            if isinstance(operand, Const) and isinstance(node.op, ast.USub):
                return Const(-operand.value, operand.dtype)
            return UnaryOp("not" if isinstance(node.op, ast.Not) else "-", operand)
        if isinstance(node, ast.IfExp):
            then, orelse = self.expr(node.body), self.expr(node.orelse)
            assert isinstance(then.type, Scalar)
            return Select(self.expr(node.test), then, orelse, then.type)
        assert isinstance(node, ast.Call)
        args = tuple(self.expr(arg) for arg in node.args)
        function = {"min": "pmin", "max": "pmax"}.get(ast.unparse(node.func), ast.unparse(node.func))
        assert isinstance(args[0].type, Scalar)
        return Call(function, args, args[0].type)
