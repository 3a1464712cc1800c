"""The IR as text that reads like Python: what the log, the golden files and error messages show.

Vectors print as slices where they index (`A[i, j:j+16]`), masks after a semicolon (`A[i, j:j+16; j < n]`).
Scalar expressions print as Python that computes them, with no parenthesis that precedence makes needless.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import singledispatch
from itertools import takewhile
from typing import Final

from pyschedule.ir import build
from pyschedule.ir.blocks import MatrixProduct, Pack, TransposedStores
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    Barrier,
    BinOp,
    BoolOp,
    Break,
    Broadcast,
    Call,
    Cast,
    Compare,
    Const,
    Dim,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Poll,
    Prefetch,
    Ramp,
    Reduce,
    Return,
    Select,
    Stmt,
    Store,
    UnaryOp,
    Var,
    While,
)
from pyschedule.ir.types import Vector
from pyschedule.ir.users_names import displayed
from pyschedule.ir.visitors import Body, walk

_INDENT: Final = "    "

# How tightly each form binds, loosest first, as in Python's grammar.
(
    _TERNARY,
    _OR,
    _AND,
    _NOT,
    _COMPARE,
    _BITOR,
    _BITXOR,
    _BITAND,
    _SHIFT,
    _SUM,
    _PRODUCT,
    _SIGN,
    _POWER,
    _ATOM,
) = range(14)

_BINARY: Final = {
    "|": _BITOR,
    "^": _BITXOR,
    "&": _BITAND,
    "<<": _SHIFT,
    ">>": _SHIFT,
    "+": _SUM,
    "-": _SUM,
    "*": _PRODUCT,
    "/": _PRODUCT,
    "//": _PRODUCT,
    "%": _PRODUCT,
    "**": _POWER,
}
_UNARY: Final = {"-": ("-", _SIGN), "~": ("~", _SIGN), "not": ("not ", _NOT)}
_FUNCTIONS: Final = {"pmin": "min", "pmax": "max", "minimum": "np.minimum", "maximum": "np.maximum"}
_REDUCTIONS: Final = {
    "+": "sum",
    "*": "prod",
    "pmin": "min",
    "pmax": "max",
    "minimum": "np.min",
    "maximum": "np.max",
    "and": "all",
    "or": "any",
    "&": "np.bitwise_and.reduce",
    "|": "np.bitwise_or.reduce",
    "^": "np.bitwise_xor.reduce",
}


# ------------------------------------------------------------------------------------------- expressions


def format_expr(expr: Expr) -> str:
    return _text(expr)[0]


def _at(expr: Expr, binding: int) -> str:
    """The text of an operand, in parentheses where it binds less tightly than its place asks."""
    text, own = _text(expr)
    return text if own >= binding else f"({text})"


def _call(name: str, *args: Expr | int) -> tuple[str, int]:
    texts = (str(arg) if isinstance(arg, int) else format_expr(arg) for arg in args)
    return f"{name}({', '.join(texts)})", _ATOM


@singledispatch
def _text(expr: Expr) -> tuple[str, int]:
    """The text of an expression and how tightly it binds."""
    raise TypeError(f"no text for {type(expr).__name__}")


@_text.register
def _(expr: Const) -> tuple[str, int]:
    value = float(expr.value) if expr.dtype.is_float else expr.value
    text = repr(value)
    return text, _SIGN if text.startswith("-") else _ATOM


@_text.register
def _(expr: Var) -> tuple[str, int]:
    return expr.name, _ATOM


@_text.register
def _(expr: Dim) -> tuple[str, int]:
    return f"{expr.array}.shape[{expr.axis}]", _ATOM


@_text.register
def _(expr: Load) -> tuple[str, int]:
    return _element(expr.array, expr.indices, expr.mask), _ATOM


@_text.register
def _(expr: BinOp) -> tuple[str, int]:
    own = _BINARY.get(expr.op, _COMPARE)  # an operator that is not there must print too: in its refusal
    if expr.op == "**":  # binds to the right, and less tightly than a sign on its right
        return f"{_at(expr.left, _ATOM)} ** {_at(expr.right, _SIGN)}", own
    return f"{_at(expr.left, own)} {expr.op} {_at(expr.right, own + 1)}", own


@_text.register
def _(expr: Compare) -> tuple[str, int]:  # a chain would mean something else: both sides bind tighter
    return f"{_at(expr.left, _BITOR)} {expr.op} {_at(expr.right, _BITOR)}", _COMPARE


@_text.register
def _(expr: BoolOp) -> tuple[str, int]:
    own = _AND if expr.op == "and" else _OR
    return f"{_at(expr.left, own)} {expr.op} {_at(expr.right, own + 1)}", own


@_text.register
def _(expr: UnaryOp) -> tuple[str, int]:
    sign, own = _UNARY.get(expr.op, (expr.op, _SIGN))
    return sign + _at(expr.operand, own), own


@_text.register
def _(expr: Select) -> tuple[str, int]:
    if isinstance(expr.test.type, Vector):
        return _call("np.where", expr.test, expr.then, expr.orelse)
    return f"{_at(expr.then, _OR)} if {_at(expr.test, _OR)} else {_at(expr.orelse, _TERNARY)}", _TERNARY


@_text.register
def _(expr: Cast) -> tuple[str, int]:
    return _call(str(expr.dtype), expr.operand)


@_text.register
def _(expr: Call) -> tuple[str, int]:
    return _call(_FUNCTIONS.get(expr.function, expr.function), *expr.args)


@_text.register
def _(expr: Ramp) -> tuple[str, int]:
    return _call("ramp", expr.base, expr.stride, expr.lanes)


@_text.register
def _(expr: Broadcast) -> tuple[str, int]:
    return _call("broadcast", expr.value, expr.lanes)


@_text.register
def _(expr: Reduce) -> tuple[str, int]:
    return _call(_REDUCTIONS.get(expr.op, expr.op), expr.vector)


def _element(array: str, indices: tuple[Expr, ...], mask: Expr | None) -> str:
    inside = ", ".join(map(_index, indices)) or "()"
    return f"{array}[{inside}]" if mask is None else f"{array}[{inside}; {format_expr(mask)}]"


def _index(index: Expr) -> str:
    """One index; a ramp as a slice (one that counts down has no slice that reads well)."""
    if not isinstance(index, Ramp) or index.stride < 1:
        return format_expr(index)
    base, binding = _text(index.base)
    length = index.lanes * index.stride
    colon = ":"
    if build.constant(index.base) is not None or binding != _ATOM:
        end = format_expr(build.add(index.base, length))
        colon = ":" if binding == _ATOM else " : "
    else:
        end = f"{base}+{length}"
    return f"{base}{colon}{end}" + (f":{index.stride}" if index.stride != 1 else "")


# -------------------------------------------------------------------------------------------- statements


def format_body(body: Body, indent: int = 0) -> str:
    """Statements, one a line, `indent` levels deep; `pass` where there are none."""
    if not body:
        return _INDENT * indent + "pass"
    return "\n".join(format_stmt(stmt, indent) for stmt in body)


def format_stmt(stmt: Stmt, indent: int = 0) -> str:
    margin = _INDENT * indent
    return "\n".join(margin + line for line in _lines(stmt))


def headline(stmt: Stmt) -> str:
    """The first line of a statement: all of a simple one, the head of a loop or a branch."""
    return next(iter(_lines(stmt)))


def _block(head: str, body: Body, comments: list[str] | None = None) -> list[str]:
    first = f"{head}:  # {', '.join(comments)}" if comments else f"{head}:"
    lines = [line for stmt in body for line in _lines(stmt)] or ["pass"]
    return [first, *(_INDENT + line for line in lines)]


def _assignment(target: str, left: Expr, value: Expr) -> list[str]:
    """`target = value`, or `target op= ...` where the value continues what is there."""
    if isinstance(value, BinOp) and value.left == left:
        return [f"{target} {value.op}= {format_expr(value.right)}"]
    return [f"{target} = {format_expr(value)}"]


def _unrolling(unroll: int) -> list[str]:
    return [] if unroll == 0 else ["nounroll" if unroll == 1 else "unroll" if unroll < 0 else f"unroll {unroll}"]


@singledispatch
def _lines(stmt: Stmt) -> list[str]:
    raise TypeError(f"no text for {type(stmt).__name__}")


@_lines.register
def _(stmt: Assign) -> list[str]:
    return _assignment(stmt.target, Var(stmt.target, stmt.vtype), stmt.value)


@_lines.register
def _(stmt: Store) -> list[str]:
    target = _element(stmt.array, stmt.indices, stmt.mask)
    value = stmt.value
    same = (
        isinstance(value, BinOp)
        and isinstance(value.left, Load)
        and (value.left.array, value.left.indices, value.left.mask) == (stmt.array, stmt.indices, stmt.mask)
    )
    lines = _assignment(target, value.left if isinstance(value, BinOp) and same else stmt.value, value)
    if stmt.stream:
        lines[-1] += f"  # around the caches from {stmt.stream >> 20} MiB"
    return lines


@_lines.register
def _(stmt: Alloc) -> list[str]:
    array = stmt.array
    return [f"{array.name} = {array.space} {array.dtype}[{', '.join(map(format_expr, array.shape))}]"]


@_lines.register
def _(stmt: If) -> list[str]:
    lines = _block(f"if {format_expr(stmt.test)}", stmt.body)
    if len(stmt.orelse) == 1 and isinstance(stmt.orelse[0], If):
        first, *rest = _lines(stmt.orelse[0])
        return [*lines, "el" + first, *rest]
    return lines + _block("else", stmt.orelse) if stmt.orelse else lines


@_lines.register
def _(stmt: For) -> list[str]:
    bounds = [stmt.start, stmt.stop, stmt.step]
    if build.constant(stmt.step) == 1:
        bounds.pop()
        if build.constant(stmt.start) == 0:
            bounds.pop(0)
    label = stmt.label if stmt.ordinal == 1 else f"{stmt.label}#{stmt.ordinal}"
    comments = [label] if stmt.source and label != stmt.var else []
    comments += [stmt.mapping] if stmt.mapping != "serial" else []
    head = f"for {stmt.var} in range({', '.join(map(format_expr, bounds))})"
    return _block(head, stmt.body, comments + _unrolling(stmt.unroll))


@_lines.register
def _(stmt: While) -> list[str]:
    return _block(f"while {format_expr(stmt.test)}", stmt.body, _unrolling(stmt.unroll))


@_lines.register
def _(stmt: Break) -> list[str]:
    return ["break"]


@_lines.register
def _(stmt: Return) -> list[str]:
    return [f"return {', '.join(map(format_expr, stmt.values))}".rstrip()]


@_lines.register
def _(stmt: Barrier) -> list[str]:
    return ["barrier()"]


@_lines.register
def _(stmt: Prefetch) -> list[str]:
    return [f"prefetch{'_for_writing' if stmt.write else ''}({_element(stmt.array, stmt.indices, None)})"]


@_lines.register
def _(stmt: Pack) -> list[str]:
    block = _block_of(stmt.array, stmt.indices, dict(zip(stmt.axes, (stmt.lanes, stmt.depth), strict=True)))
    groups = f", {stmt.group} of depth side by side" if stmt.group > 1 else ""
    spare = ", unless it lies well" if stmt.spare else ""
    moved = f" {'+' if stmt.zero_point > 0 else '-'} {abs(stmt.zero_point)}" if stmt.zero_point else ""
    return [f"{_block_of(stmt.tile, stmt.place, {})} = pack({block}{moved}{groups}{spare})"]


@_lines.register
def _(stmt: MatrixProduct) -> list[str]:
    target = _block_of(stmt.array, stmt.indices, dict(zip(stmt.axes, (stmt.rows, stmt.columns), strict=True)))
    left_extents = {} if stmt.left_axes is None else dict(zip(stmt.left_axes, (stmt.rows, stmt.depth), strict=True))
    left = _block_of(stmt.left, stmt.left_place, left_extents)
    right = _block_of(stmt.right, stmt.right_place, {})
    left += f" or {_block_of(stmt.copied, stmt.copied_place, {})}" if stmt.copied else ""
    left += f" {'-' if stmt.zero_point > 0 else '+'} {abs(stmt.zero_point)}" if stmt.zero_point else ""
    product = f"matrix_product({left}, {right}, depth={format_expr(stmt.depth)})"
    return [f"{target} {'=' if stmt.fresh else '+='} {product}"]


def _block_of(array: str, indices: tuple[Expr, ...], extents: Mapping[int, Expr]) -> str:
    """A block that begins at `indices`, with its extents along some axes."""
    parts = [
        f"{format_expr(index)} : +{_tight(extents[axis])}" if axis in extents else format_expr(index)
        for axis, index in enumerate(indices)
    ]
    return f"{array}[{', '.join(parts)}]"


def _tight(expr: Expr) -> str:
    text = format_expr(expr)
    return text if text.isalnum() or text.endswith(")") else f"({text})"


@_lines.register
def _(stmt: TransposedStores) -> list[str]:
    return _block("transposed", stmt.body)


@_lines.register
def _(stmt: Poll) -> list[str]:
    text = "poll(together)" if stmt.together else "poll()"
    return _block(text, stmt.body) if stmt.body else [text]


# ----------------------------------------------------------------------------------------------- kernels


def format_kernel(kernel: Kernel) -> str:
    """The whole kernel: `def name(A: float32[M, K], alpha: float64) -> C:` and its body.

    An extent shows under the name that the body gives it (`M = A.shape[0]`), or as `:`.
    """
    kernel = displayed(kernel)
    assigned = Counter(stmt.target for stmt in walk(kernel.body) if isinstance(stmt, Assign))
    names: dict[Expr, str] = {
        stmt.value: stmt.target
        for stmt in takewhile(lambda stmt: isinstance(stmt, Assign), kernel.body)
        if isinstance(stmt, Assign) and isinstance(stmt.value, Dim) and assigned[stmt.target] == 1
    }

    def extent(array: Array, axis: int) -> str:
        shape = array.shape[axis]
        if shape in names:
            return names[shape]
        return ":" if shape == Dim(array.name, axis) else format_expr(shape)

    params = [
        f"{param.name}: {param.dtype}[{', '.join(extent(param, axis) for axis in range(param.rank))}]"
        if isinstance(param, Array)
        else f"{param.name}: {param.vtype}"
        for param in kernel.params
    ]
    results = [item if isinstance(item, str) else str(kernel.scalar_results[item]) for item in kernel.returns]
    arrow = f" -> {', '.join(results)}" if results else ""
    strict = ["strict math"] if kernel.strict_math else None
    return "\n".join(_block(f"def {kernel.name}({', '.join(params)}){arrow}", kernel.body, strict))
