"""A kernel's function once more as Python, for debugging: the user's own statements at their own lines.

What changes: in the block form the bounds of lifted loops and the extents of local arrays, which speak of one tile,
become those of the whole arrays; and a division goes through `divide`, where Python would stop at a zero.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping
from types import CellType, CodeType, FunctionType
from typing import Any, Final

from pyschedule.errors import Unsupported
from pyschedule.frontend.parser import Parsed
from pyschedule.frontend.source import read_source
from pyschedule.frontend.surface import Apply, Binary, Extent, Loop, NewArray, Number, Unary, place_of
from pyschedule.ir.nodes import Expr, Location
from pyschedule.ir.visitors import Body, walk

_OPERATORS: Final[dict[type[ast.operator], str]] = {ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%"}
_DIVIDE: Final = "_ps_divide"

Divide = Callable[[str, Any, Any], Any]
_Place = tuple[int, int]


def plain_function(parsed: Parsed, divide: Divide, lifted: Body = ()) -> FunctionType:
    """The function behind `parsed`, with the bounds and extents of the `lifted` body where there is one.

    Its file, lines, names, defaults, module and closure are the user's.  `divide(op, a, b)` is called for `/`, `//`
    and `%` of what is no element of an array.  The function itself is returned where nothing changes.  Raises
    `Unsupported` where an extent has no place to be put.
    """
    plain, source, definition = read_source(parsed.function)
    loops = {_place(stmt): stmt for stmt in walk(lifted) if isinstance(stmt, Loop)}
    made = {_place(stmt): stmt for stmt in walk(lifted) if isinstance(stmt, NewArray) and stmt.like is None}
    change = _Change(source.first - 2, loops, made)
    body = [change.visit(copy.deepcopy(stmt)) for stmt in definition.body]
    if not change.changed:
        return plain
    code = plain.__code__
    # Its closure is the user's; the wrapper only makes the compiler see the names of it.
    cells = (*code.co_freevars, _DIVIDE)
    arguments = ast.arguments([], [ast.arg(name) for name in cells], None, [], [], None, [])
    inner = ast.copy_location(ast.FunctionDef(plain.__name__, _bare(definition.args), body, []), definition)
    outer = ast.copy_location(ast.FunctionDef("_ps_closure", arguments, [inner], []), definition)
    module = ast.fix_missing_locations(ast.Module([outer], []))
    ast.increment_lineno(module, source.first - 2)
    found = _code(_code(compile(module, code.co_filename, "exec"), "_ps_closure"), plain.__name__)
    known = dict(zip(code.co_freevars, plain.__closure__ or (), strict=True)) | {_DIVIDE: CellType(divide)}
    closure = tuple(known[name] for name in found.co_freevars)
    made_function = FunctionType(found, plain.__globals__, plain.__name__, plain.__defaults__, closure)
    made_function.__kwdefaults__ = plain.__kwdefaults__
    return made_function


def _place(stmt: Loop | NewArray) -> _Place:
    loc: Location | None = place_of(stmt)
    return (loc.line, loc.column) if loc is not None else (0, 0)


def _code(outer: CodeType, name: str) -> CodeType:
    return next(item for item in outer.co_consts if isinstance(item, CodeType) and item.co_name == name)


def _bare(args: ast.arguments) -> ast.arguments:
    """The parameters without annotations and values of defaults: the function has its own."""
    bare = copy.deepcopy(args)
    for arg in (*bare.posonlyargs, *bare.args, *bare.kwonlyargs):
        arg.annotation = None
    bare.defaults = [ast.Constant(None) for _ in bare.defaults]
    bare.kw_defaults = [None if item is None else ast.Constant(None) for item in bare.kw_defaults]
    return bare


class _Change(ast.NodeTransformer):
    def __init__(self, moved: int, loops: Mapping[_Place, Loop], made: Mapping[_Place, NewArray]) -> None:
        self.moved = moved
        self.loops = loops
        self.made = made
        self.changed = False

    def visit_For(self, node: ast.For) -> ast.AST:
        loop = self.loops.get((node.lineno + self.moved, node.col_offset))
        self.generic_visit(node)
        if loop is not None and isinstance(node.iter, ast.Call) and node.iter.args:
            self._put(node.iter.args, 0 if len(node.iter.args) == 1 else 1, loop.stop)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        return self._assignment(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        return self._assignment(node)

    def _assignment(self, node: ast.Assign | ast.AnnAssign) -> ast.AST:
        made = self.made.get((node.lineno + self.moved, node.col_offset))
        self.generic_visit(node)
        if made is not None:
            self._extents(node.value, made.shape)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if type(node.op) not in _OPERATORS or _is_element(node.left) or _is_element(node.right):
            return node
        return self._divided(node, node.left, node.op, node.right)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        self.generic_visit(node)
        if type(node.op) not in _OPERATORS or not isinstance(node.target, ast.Name) or _is_element(node.value):
            return node
        old = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        value = self._divided(node, old, node.op, node.value)
        return ast.copy_location(ast.Assign([node.target], value), node)

    def _divided(self, node: ast.AST, left: ast.expr, op: ast.operator, right: ast.expr) -> ast.expr:
        if isinstance(right, ast.Constant) and right.value:
            return ast.copy_location(ast.BinOp(left, op, right), node)
        self.changed = True
        name = ast.Constant(_OPERATORS[type(op)])
        return ast.copy_location(ast.Call(ast.Name(_DIVIDE, ast.Load()), [name, left, right], []), node)

    def _put(self, where: list[ast.expr], position: int, value: Expr) -> None:
        new = ast.parse(_text(value), mode="eval").body
        if ast.dump(new) != ast.dump(where[position]):
            self.changed = True
            where[position] = ast.copy_location(new, where[position])
            for part in ast.walk(where[position]):
                ast.copy_location(part, where[position])

    def _extents(self, node: ast.expr | None, shape: tuple[Expr, ...]) -> None:
        """Puts the extents of a local array where it is made."""
        if not shape:
            return
        if isinstance(node, ast.ListComp) and isinstance(node.generators[0].iter, ast.Call):
            self._put(node.generators[0].iter.args, 0, shape[0])
            self._extents(node.elt, shape[1:])
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            sides = [node.left, node.right]
            at = 0 if isinstance(node.right, ast.List) else 1
            self._put(sides, at, shape[0])
            node.left, node.right = sides
        elif isinstance(node, ast.List):
            if shape[0] != Number(len(node.elts)):
                raise Unsupported("a list that is written out cannot have another length", place_of(shape[0]))
            for item in node.elts:
                self._extents(item, shape[1:])
        elif isinstance(node, ast.Call) and node.args:
            given = node.args[0]
            if isinstance(given, (ast.Tuple, ast.List)) and len(given.elts) == len(shape):
                for axis, extent in enumerate(shape):
                    self._put(given.elts, axis, extent)
            elif len(shape) == 1:
                self._put(node.args, 0, shape[0])
            else:
                raise Unsupported("the shape of a local array is not written out", place_of(shape[0]))


def _is_element(node: ast.expr) -> bool:
    """An element of an array, which NumPy divides; extents are Python's integers."""
    if not isinstance(node, ast.Subscript):
        return False
    base: ast.expr = node
    while isinstance(base, ast.Subscript):
        base = base.value
    return not (isinstance(base, ast.Attribute) and base.attr == "shape")


def _text(expr: Expr) -> str:
    """An extent as Python."""
    match expr:
        case Number():
            return repr(expr.value)
        case Extent():
            return f"{expr.array}.shape[{expr.axis}]"
        case Binary():
            return f"({_text(expr.left)} {expr.op} {_text(expr.right)})"
        case Unary(op="-"):
            return f"(-{_text(expr.operand)})"
        case Apply(function="pmin" | "pmax"):
            return f"{expr.function[1:]}({', '.join(map(_text, expr.args))})"
        case _ if hasattr(expr, "name"):
            return str(expr.name)
    raise Unsupported("an extent that has no text", place_of(expr))
