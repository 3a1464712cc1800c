"""Small local arrays: `np.zeros(...)` and its kin, list displays, and comprehensions of them."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from pyschedule.frontend.statements import StatementReader
from pyschedule.frontend.surface import (
    DEFAULT,
    JOINED,
    OF_ARRAY,
    OF_FILL,
    Loop,
    Name,
    NewArray,
    Number,
    SetElement,
    names_in,
)
from pyschedule.ir.nodes import Expr, Stmt
from pyschedule.ir.types import DTYPES
from pyschedule.ir.visitors import Body


@dataclass(frozen=True, slots=True)
class _Part:
    """One axis of a display: a counter and its extent (`items` is then the one element), or several items."""

    counter: str | None
    extent: Expr
    items: tuple[_Part | Expr, ...]

    @property
    def shape(self) -> tuple[Expr, ...]:
        inner = self.items[0] if self.items else None
        return (self.extent, *(inner.shape if isinstance(inner, _Part) else ()))


class DisplayReader(StatementReader):
    """Adds the making of local arrays to `StatementReader`."""

    def makes_array(self, node: ast.expr) -> bool:
        """Whether an assigned value is one of the forms that make a local array."""
        if isinstance(node, (ast.List, ast.ListComp)):
            return True
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return isinstance(node.left, ast.List) or isinstance(node.right, ast.List)
        if isinstance(node, ast.Call):
            function = self.callee(node.func) if isinstance(node.func, (ast.Name, ast.Attribute)) else None
            return function is not None and function.kind == "array"
        return False

    def _new_array(self, name: str, value: ast.expr, node: ast.stmt) -> list[Stmt]:
        if not self.makes_array(value):
            raise self.refusal(
                node,
                f"the array '{name}' cannot be bound to something else",
                "another name for the other value",
            )
        if isinstance(value, ast.Call):
            return self._numpy_array(name, value, node)
        return self._from_display(name, self._display(value), JOINED, node)

    # ------------------------------------------------------------------------------------------- NumPy

    def _numpy_array(self, name: str, node: ast.Call, stmt: ast.stmt) -> list[Stmt]:
        function = self.callee(node.func)
        form = "" if function is None else function.name
        known = {"full": ("shape", "fill_value", "dtype"), "full_like": ("a", "fill_value", "dtype")}.get(
            form, ("a", "dtype") if form.endswith("_like") else ("shape", "dtype")
        )
        given = dict(zip(known, node.args, strict=False))
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg not in known or keyword.arg in given:
                raise self.refusal(
                    node, f"'np.{form}' takes {', '.join(known)} in a kernel", "only these arguments"
                )
            given[keyword.arg] = keyword.value
        if len(node.args) > len(known) or any(key not in given for key in known if key != "dtype"):
            raise self.refusal(node, f"'np.{form}' takes {', '.join(known)} in a kernel", "these arguments")
        if form == "array":
            display = given["shape"]
            if not isinstance(display, (ast.List, ast.ListComp)):
                raise self.refusal(node, "'np.array' of something that is no list", "a list of numbers, or a loop")
            # A literal list of Python floats is float64 to NumPy, not a weak one.
            dtype = self._dtype(given["dtype"]) if "dtype" in given else OF_FILL
            return self._from_display(name, self._display(display), dtype, stmt)
        fill: Expr | None = None
        if form.startswith(("zeros", "ones")):
            fill = Number(0 if form.startswith("zeros") else 1, None, self.place(node))
        elif form.startswith("full"):
            fill = self.read(given["fill_value"])
        like = self._like(given["a"]) if form.endswith("_like") else self.shape_of(given["shape"])
        if "dtype" in given:
            dtype = self._dtype(given["dtype"])
        elif form.endswith("_like"):
            dtype = f"{OF_ARRAY}{like}"
        else:
            dtype = OF_FILL if form == "full" else DEFAULT
        shape = () if like is not None else self._shape(given["shape"])
        return [NewArray(name, shape, fill, like, dtype, self.place(stmt))]

    def _like(self, node: ast.expr) -> str:
        array = self.array_named(node)
        if array is None:
            raise self.refusal(
                node, f"'{ast.unparse(node)}' is not an array of this kernel", "an array parameter or local"
            )
        return array

    def _shape(self, node: ast.expr) -> tuple[Expr, ...]:
        items = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
        value = self.value_of(node) if isinstance(node, (ast.Name, ast.Attribute)) else None
        if isinstance(value, tuple):
            return tuple(self._python_constant(node, item, ast.unparse(node)) for item in value)
        extents = tuple(self.read(item) for item in items)
        for extent in extents:
            self._check_extent(extent, node)
        return extents

    def _check_extent(self, extent: Expr, node: ast.expr) -> None:
        if isinstance(extent, Number) and (type(extent.value) is not int or extent.value < 0):
            raise self.refusal(node, f"the extent {extent.value!r} is no size", "an integer of at least 0")

    def _dtype(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in DTYPES:
            return node.value
        if isinstance(node, ast.Attribute) and node.attr == "dtype" and self.array_named(node.value) is not None:
            return f"{OF_ARRAY}{self.array_named(node.value)}"
        function = self.callee(node)
        if function is None or function.kind not in ("dtype", "python_type"):
            raise self.refusal(
                node, f"'{ast.unparse(node)}' is no dtype that a kernel has", f"one of {', '.join(DTYPES)}"
            )
        return function.name

    # ----------------------------------------------------------------------------------- list displays

    def _display(self, node: ast.expr) -> _Part | Expr:
        if isinstance(node, ast.List):
            items = tuple(self._display(item) for item in node.elts)
            if not items:
                raise self.refusal(node, "an empty list", "the whole array at once, as in 'row = [0.0] * n'")
            shapes = {item.shape if isinstance(item, _Part) else () for item in items}
            if len(shapes) > 1:
                raise self.refusal(node, "rows of different lengths", "rows of one length")
            return _Part(None, Number(len(items), None, self.place(node)), items)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            listed, count = (node.left, node.right) if isinstance(node.left, ast.List) else (node.right, node.left)
            if isinstance(listed, ast.List):
                return self._repeated(listed, count, node)
        if isinstance(node, ast.ListComp):
            return self._comprehension(node)
        return self.read(node)

    def _repeated(self, listed: ast.List, count: ast.expr, node: ast.BinOp) -> _Part:
        extent = self.read(count)
        self._check_extent(extent, node)
        if len(listed.elts) != 1:
            raise self.refusal(
                node, "only a list of one number can be repeated", "'[0.0] * n', or the numbers in full"
            )
        item = self._display(listed.elts[0])
        if isinstance(item, _Part):
            raise self.refusal(
                node,
                "'[[...]] * n' repeats one and the same row",
                "'[[0.0] * n for _ in range(m)]', which makes m rows",
            )
        return _Part(self.fresh("_fill"), extent, (item,))

    def _comprehension(self, node: ast.ListComp) -> _Part:
        generator = node.generators[0]
        call = generator.iter
        known = self.callee(call.func) if isinstance(call, ast.Call) else None
        simple = len(node.generators) == 1 and not generator.ifs and isinstance(generator.target, ast.Name)
        if (
            not simple
            or not isinstance(call, ast.Call)
            or known is None
            or known.kind != "range"
            or len(call.args) != 1
            or call.keywords
        ):
            raise self.refusal(
                node,
                "a comprehension here counts with one 'range(n)'",
                "'[0.0 for _ in range(n)]', or a loop that stores",
            )
        extent = self.read(call.args[0])
        self._check_extent(extent, node)
        if names_in(extent) & set(self.renamed.values()):
            raise self.refusal(node, "rows of different lengths", "rows of one length")
        target = generator.target
        if not isinstance(target, ast.Name):
            raise self.cannot(target)
        counter = self.fresh("_fill")
        outer = dict(self.renamed)
        self.renamed[target.id] = counter
        item = self._display(node.elt)
        self.renamed = outer
        return _Part(counter, extent, (item,))

    def _from_display(self, name: str, part: _Part | Expr, dtype: str, node: ast.stmt) -> list[Stmt]:
        place = self.place(node)
        if not isinstance(part, _Part):
            raise self.refusal(node, "a list display was expected", "'[0.0] * n' or '[0.0 for _ in range(n)]'")
        leaf: _Part | Expr = part
        counters = set()
        while isinstance(leaf, _Part) and leaf.counter is not None:
            counters.add(leaf.counter)
            leaf = leaf.items[0]
        if not isinstance(leaf, _Part) and not names_in(leaf) & counters:
            self.taken -= counters
            return [NewArray(name, part.shape, leaf, None, dtype, place)]
        return [NewArray(name, part.shape, None, None, dtype, place), *self._stores(name, part, (), node)]

    def _stores(self, name: str, part: _Part | Expr, indices: tuple[Expr, ...], node: ast.stmt) -> Body:
        place = self.place(node)
        if not isinstance(part, _Part):
            return (SetElement(name, indices, part, place),)
        if part.counter is None:
            return tuple(
                stmt
                for position, item in enumerate(part.items)
                for stmt in self._stores(name, item, (*indices, Number(position, None, place)), node)
            )
        inner = self._stores(name, part.items[0], (*indices, Name(part.counter, place)), node)
        zero, one = Number(0, None, place), Number(1, None, place)
        return (Loop(part.counter, zero, part.extent, one, inner, "", 1, place),)
