"""Python statements → surface statements."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyschedule.frontend.debugging import REMEDY, is_for_debugging
from pyschedule.frontend.expressions import BINARY, ExpressionReader
from pyschedule.frontend.folding import fold
from pyschedule.frontend.matching import read_match
from pyschedule.frontend.names import Namespace
from pyschedule.frontend.source import Source
from pyschedule.frontend.surface import (
    Binary,
    Branch,
    Element,
    Extent,
    Give,
    Leave,
    Loop,
    Name,
    Number,
    RankIs,
    Repeat,
    SetElement,
    SetName,
    Skip,
    names_in,
)
from pyschedule.ir.nodes import Expr, Location, Stmt
from pyschedule.ir.visitors import Body

_REFUSED: Final[dict[type[ast.AST], tuple[str, str]]] = {
    ast.With: ("'with'", "the block without it; open files and locks outside the kernel"),
    ast.AsyncWith: ("'async with'", "the block without it"),
    ast.AsyncFor: ("'async for'", "'for i in range(n):'"),
    ast.Try: ("'try'", "an 'if' that tests for the case beforehand"),
    ast.TryStar: ("'try'", "an 'if' that tests for the case beforehand"),
    ast.Raise: ("'raise'", "a check before the kernel is called, or a status value that it returns"),
    ast.Assert: ("'assert'", "a check before the kernel is called"),
    ast.Delete: ("'del'", "nothing: locals of a kernel end with it"),
    ast.Import: ("'import'", "the import at the top of the module"),
    ast.ImportFrom: ("'import'", "the import at the top of the module"),
    ast.Global: ("'global'", "an argument, or a value that the kernel returns"),
    ast.Nonlocal: ("'nonlocal'", "an argument, or a value that the kernel returns"),
    ast.FunctionDef: ("a function inside it", "the function's body in place of its call"),
    ast.AsyncFunctionDef: ("a function inside it", "the function's body in place of its call"),
    ast.ClassDef: ("a class", "scalar locals and arrays"),
}


@dataclass(frozen=True, slots=True)
class LoopName:
    """A loop as directives may name it: the `ordinal`-th of that name in source order."""

    name: str
    ordinal: int
    loc: Location


class StatementReader(ExpressionReader):
    """Reads a function's statements; `loops` collects the user's loops in source order."""

    def __init__(self, source: Source, namespace: Namespace, params: tuple[str, ...], taken: set[str]) -> None:
        super().__init__(source, namespace, params)
        self.taken = taken
        self._counts: Counter[str] = Counter()
        self.loops: list[LoopName] = []
        self.made: set[str] = set()

    def fresh(self, base: str) -> str:
        """A name that nothing else in the function has."""
        name, number = base, 1
        while name in self.taken:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name

    def body(self, nodes: list[ast.stmt]) -> Body:
        return tuple(stmt for node in nodes for stmt in self._statement(node))

    def _statement(self, node: ast.stmt) -> list[Stmt]:
        if is_for_debugging(node):
            what = f"call '{ast.unparse(node).split('(')[0]}'" if isinstance(node, ast.Expr) else "use 'import'"
            raise self.refusal(node, f"a kernel cannot {what}", REMEDY)
        method: Callable[[Any], list[Stmt]] | None = getattr(self, f"_on_{type(node).__name__.lower()}", None)
        if method is None:
            what, instead = _REFUSED.get(
                type(node), (f"'{type(node).__name__}'", "loops, conditions and assignments")
            )
            raise self.refusal(_head(node), f"a kernel cannot use {what}", instead)
        return method(node)

    def _on_pass(self, node: ast.Pass) -> list[Stmt]:
        return []

    def _on_break(self, node: ast.Break) -> list[Stmt]:
        return [Leave(self.place(node))]

    def _on_continue(self, node: ast.Continue) -> list[Stmt]:
        return [Skip(self.place(node))]

    def _on_expr(self, node: ast.Expr) -> list[Stmt]:
        if isinstance(node.value, ast.Call):
            self.read(node.value)  # most calls are refused with a better reason than the one below
        elif type(node.value) is not ast.Constant:
            self.read(node.value)
        raise self.refusal(node, "this value is not used", "an assignment, or nothing")

    # ----------------------------------------------------------------------------------------- returns

    def _on_return(self, node: ast.Return) -> list[Stmt]:
        place = self.place(node)
        if node.value is None or (isinstance(node.value, ast.Constant) and node.value.value is None):
            return [Give((), place)]
        items = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
        return [Give(tuple(self._result(item) for item in items), place)]

    def _result(self, node: ast.expr) -> Expr:
        array = self.array_named(node)
        return self.read(node) if array is None else Name(array, self.place(node))

    # ------------------------------------------------------------------------------------ control flow

    def _on_if(self, node: ast.If) -> list[Stmt]:
        test = self.read(node.test)
        return [Branch(test, self.body(node.body), self.body(node.orelse), self.place(_head(node)))]

    def _on_match(self, node: ast.Match) -> list[Stmt]:
        return read_match(self, node)

    def _named(self, name: str, place: Location) -> int:
        self._counts[name] += 1
        self.loops.append(LoopName(name, self._counts[name], place))
        return self._counts[name]

    def _on_for(self, node: ast.For) -> list[Stmt]:
        if node.orelse:
            raise self.refusal(
                node.orelse[0], "a loop cannot have 'else'", "a flag that the loop sets before 'break'"
            )
        if not isinstance(node.target, ast.Name):
            raise self.refusal(node.target, "a loop counts with one name", "'for i in range(n):'")
        place = self.place(_head(node))
        start, stop, step = self._range(node)
        name = node.target.id
        ordinal = self._named(name, place)
        return [Loop(name, start, stop, step, self.body(node.body), name, ordinal, place)]

    def _range(self, node: ast.For) -> tuple[Expr, Expr, Expr]:
        call = node.iter
        array = self.array_named(call)
        if array is not None:
            raise self.refusal(call, f"a loop over the array '{array}' itself", f"'for i in range(len({array})):'")
        known = self.callee(call.func) if isinstance(call, ast.Call) else None
        if not isinstance(call, ast.Call) or known is None or known.kind != "range":
            instead = "'for i in range(start, stop, step):'"
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "reversed":
                instead = "a negative step, 'for i in range(n - 1, -1, -1):'"
            raise self.refusal(call, "a loop runs over 'range' only", instead)
        if call.keywords or not 1 <= len(call.args) <= 3 or any(isinstance(arg, ast.Starred) for arg in call.args):
            raise self.refusal(
                call, "'range' takes one to three positional arguments", "'range(start, stop, step)'"
            )
        args = [self.read(arg) for arg in call.args]
        for arg, item in zip(args, call.args, strict=True):
            if isinstance(arg, Number) and isinstance(arg.value, float):
                raise self.refusal(item, f"'range' of the float {arg.value!r}", "integers, as in 'range(int(x))'")
        place = self.place(call)
        start, stop, step = Number(0, None, place), args[0], Number(1, None, place)
        if len(args) == 1:
            return start, stop, step
        if len(args) == 3 and isinstance(args[2], Number) and args[2].value == 0:
            raise self.refusal(call, "the step of 'range' is zero", "a step above or below zero")
        return args[0], args[1], args[2] if len(args) == 3 else step

    def _on_while(self, node: ast.While) -> list[Stmt]:
        if node.orelse:
            raise self.refusal(
                node.orelse[0], "a loop cannot have 'else'", "a flag that the loop sets before 'break'"
            )
        place = self.place(_head(node))
        test = self.read(node.test)
        name = _while_counter(node)
        ordinal = self._named(name, place) if name else 1
        return [Repeat(test, self.body(node.body), name, ordinal, place)]

    # ------------------------------------------------------------------------------------- assignments

    def _on_annassign(self, node: ast.AnnAssign) -> list[Stmt]:
        if node.value is None:
            return []
        return self._assign([node.target], node.value, node)

    def _on_assign(self, node: ast.Assign) -> list[Stmt]:
        return self._assign(node.targets, node.value, node)

    def _assign(self, targets: list[ast.expr], value: ast.expr, node: ast.stmt) -> list[Stmt]:
        if len(targets) == 1:
            if isinstance(targets[0], (ast.Tuple, ast.List)):
                return self._unpack(list(targets[0].elts), value, node)
            if isinstance(targets[0], ast.Name):
                name = targets[0].id
                if name in self.shapes:
                    return []  # `shape = A.shape`: uses of the name are uses of the shape
                if name in self.made:
                    return self._new_array(name, value, node)
            return [self._set(targets[0], self.read(value), node)]
        if any(isinstance(item, (ast.Tuple, ast.List)) or self.array_named(item) for item in targets):
            raise self.refusal(node, "a chain of assignments takes scalars only", "one assignment a line")
        read = self.read(value)
        if isinstance(read, Number):
            return [self._set(target, read, node) for target in targets]
        held = self.fresh("_value")
        place = self.place(node)
        return [
            SetName(held, read, place),
            *(self._set(target, Name(held, place), node) for target in targets),
        ]

    def _new_array(self, name: str, value: ast.expr, node: ast.stmt) -> list[Stmt]:
        raise NotImplementedError

    def _set(self, target: ast.expr, value: Expr, node: ast.stmt) -> Stmt:
        place = self.place(node)
        if isinstance(target, ast.Subscript):
            if self.shape_of(target.value) is not None:
                raise self.refusal(target, "a shape cannot be changed", "an array made with the shape it needs")
            array, indices = self.element(target)
            return SetElement(array, indices, value, place)
        if isinstance(target, ast.Name):
            if target.id in self.arrays:
                raise self.refusal(
                    target,
                    f"the array '{target.id}' cannot be bound to something else",
                    f"another name, or stores into its elements, '{target.id}[i] = ...'",
                )
            return SetName(target.id, value, place)
        if isinstance(target, ast.Starred):
            raise self.cannot(target)
        raise self.refusal(target, "only names and array elements can be assigned", "'x = ...' or 'A[i] = ...'")

    def _on_augassign(self, node: ast.AugAssign) -> list[Stmt]:
        place = self.place(node)
        if isinstance(node.op, ast.MatMult):
            raise self.refusal(node, "a kernel cannot use '@='", "loops with 'C[i, j] += A[i, k] * B[k, j]'")
        old: Expr
        if isinstance(node.target, ast.Name):
            if node.target.id in self.arrays:
                raise self.refusal(
                    node,
                    f"the whole array '{node.target.id}' is changed at once",
                    "a 'for' loop over its elements",
                )
            old = Name(node.target.id, place)
        elif isinstance(node.target, ast.Subscript) and self.shape_of(node.target.value) is None:
            array, indices = self.element(node.target)
            old = Element(array, indices, place)
        else:
            raise self.refusal(node.target, "only names and array elements can be assigned", "'x += ...'")
        value = fold(Binary(BINARY[type(node.op)], old, self.read(node.value), place))
        return [self._set(node.target, value, node)]

    def _unpack(self, targets: list[ast.expr], value: ast.expr, node: ast.stmt) -> list[Stmt]:
        place = self.place(node)
        starred = next((target for target in targets if isinstance(target, ast.Starred)), None)
        if starred is not None:
            raise self.cannot(starred)
        array = self.shape_of(value)
        if array is not None:
            extents = [Extent(array, axis, place) for axis in range(len(targets))]
            return [
                RankIs(array, len(targets), place),
                *(self._set(target, extent, node) for target, extent in zip(targets, extents, strict=True)),
            ]
        if isinstance(value, (ast.Tuple, ast.List)):
            values = [self.read(item) for item in value.elts]
        else:
            constant = self.value_of(value)
            if not isinstance(constant, tuple):
                raise self.refusal(
                    node,
                    "only a shape or as many values as names can be unpacked",
                    "'M, N = A.shape' or 'a, b = b, a'",
                )
            values = [self._python_constant(value, item, ast.unparse(value)) for item in constant]
        if len(values) != len(targets):
            raise self.refusal(
                node, f"{len(targets)} names are given {len(values)} values", "as many values as names"
            )
        return self._assign_together(targets, values, node)

    def _assign_together(self, targets: list[ast.expr], values: list[Expr], node: ast.stmt) -> list[Stmt]:
        """`a, b = b, a`: values that read what an earlier target writes are held in temporaries."""
        place = self.place(node)
        held: list[Stmt] = []
        stores: list[Stmt] = []
        written_names: set[str] = set()
        written_arrays = False
        for target, value in zip(targets, values, strict=True):
            reads_array = any(True for _ in _elements(value))
            if names_in(value) & written_names or (reads_array and written_arrays):
                name = self.fresh("_old")
                held.append(SetName(name, value, place))
                value = Name(name, place)
            store = self._set(target, value, node)
            written_names |= {store.name} if isinstance(store, SetName) else set()
            written_arrays = written_arrays or isinstance(store, SetElement)
            stores.append(store)
        return held + stores


def _elements(expr: Expr) -> list[Element]:
    from pyschedule.ir.visitors import walk_expr

    return [part for part in walk_expr(expr) if isinstance(part, Element)]


def _head(node: ast.stmt) -> ast.stmt:
    """A stand-in for a compound statement that covers its first line only."""
    inner = getattr(node, "body", None)
    if not inner or isinstance(node, ast.expr):
        return node
    head = ast.Pass(lineno=node.lineno, col_offset=node.col_offset)
    first = inner[0]
    header = getattr(node, "test", None) or getattr(node, "iter", None)
    head.end_lineno = node.lineno
    head.end_col_offset = first.col_offset - 2  # where the colon of a one-line statement is, as a rule
    if header is not None and header.end_lineno == node.lineno:
        head.end_col_offset = header.end_col_offset + 1
    elif first.lineno > node.lineno:
        head.end_lineno, head.end_col_offset = node.lineno + 1, 0  # the caret runs to the end of the line
    return head


def _while_counter(node: ast.While) -> str:
    """The name that the test looks at and the body counts with; of `while True` the test is that of a `break`."""
    changed = {
        item.target.id
        for item in ast.walk(node)
        if isinstance(item, ast.AugAssign) and isinstance(item.target, ast.Name)
    }
    for item in ast.walk(node):
        if isinstance(item, ast.Assign) and isinstance(item.value, ast.BinOp):
            names = {part.id for part in ast.walk(item.value) if isinstance(part, ast.Name)}
            changed |= {target.id for target in item.targets if isinstance(target, ast.Name) and target.id in names}
    test = node.test
    if isinstance(test, ast.Constant):
        tests = [item for item in node.body if isinstance(item, ast.If) and isinstance(item.body[0], ast.Break)]
        test = tests[0].test if tests else test
    if isinstance(test, ast.Name):
        return test.id if test.id in changed else ""
    sides = [
        part for item in ast.walk(test) if isinstance(item, ast.Compare) for part in (item.left, *item.comparators)
    ]
    for part in sides:
        if isinstance(part, ast.Name) and part.id in changed:
            return part.id
    inside = [item.id for part in sides for item in ast.walk(part) if isinstance(item, ast.Name)]
    return next((name for name in inside if name in changed), "")
