"""The untyped tree between Python's `ast` and the IR.

Names are resolved (constants folded, functions identified, shapes recognised) but nothing is typed yet: one
tree serves every call signature.  The nodes share the base classes of the IR's, so that its generic visitors
walk and rewrite them too.  Every node keeps its place in the user's file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pyschedule.ir.nodes import BODY, CHILD, Expr, Location, Stmt
from pyschedule.ir.visitors import Body, children, walk, walk_expr

#: What `NewArray.dtype` may say besides a dtype's name: the join of what is stored, or the fill's own type.
JOINED: Final = "?"
OF_FILL: Final = "="
#: NumPy's default dtype, float64 (which the block form's results replace by that of the inputs).
DEFAULT: Final = "!"
#: `"@A"`: the dtype of array `A`.
OF_ARRAY: Final = "@"


# ------------------------------------------------------------------------------------------- expressions


@dataclass(frozen=True, slots=True)
class Number(Expr):
    """A constant.  `dtype` is `None` for Python's numbers (weak), else the NumPy scalar's own dtype."""

    value: bool | int | float
    dtype: str | None = None
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Name(Expr):
    """A scalar parameter, local or counter; in a `Give` also a whole array."""

    name: str
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Extent(Expr):
    """`array.shape[axis]`; a negative axis counts from the end, as in Python."""

    array: str
    axis: int
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Element(Expr):
    array: str
    indices: tuple[Expr, ...] = field(metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Binary(Expr):
    op: str
    left: Expr = field(metadata=CHILD)
    right: Expr = field(metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Unary(Expr):
    """`-`, `~` or `not`."""

    op: str
    operand: Expr = field(metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Comparison(Expr):
    op: str
    left: Expr = field(metadata=CHILD)
    right: Expr = field(metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Logic(Expr):
    """`and` / `or` of two or more parts, with Python's value (the deciding part, not a bool)."""

    op: str
    parts: tuple[Expr, ...] = field(metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Conditional(Expr):
    test: Expr = field(metadata=CHILD)
    then: Expr = field(metadata=CHILD)
    orelse: Expr = field(metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Convert(Expr):
    """`int(x)`, `float(x)`, `bool(x)` (weak results, being Python's) and `np.float32(x)` (strong); with the dtype
    `OF_FILL` the operand as it is, of the strong type that NumPy gives it."""

    dtype: str
    weak: bool
    operand: Expr = field(metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Apply(Expr):
    """A function of `ir.functions.FUNCTIONS`; `home` is `"math"`, `"numpy"` or `"python"`."""

    function: str
    home: str
    args: tuple[Expr, ...] = field(metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)


# -------------------------------------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class SetName(Stmt):
    name: str
    value: Expr = field(metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class SetElement(Stmt):
    array: str
    indices: tuple[Expr, ...] = field(metadata=CHILD)
    value: Expr = field(metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class NewArray(Stmt):
    """A local array: of `shape`, or of the shape of the array `like`; every element `fill`, if given."""

    name: str
    shape: tuple[Expr, ...] = field(metadata=CHILD)
    fill: Expr | None = field(default=None, metadata=CHILD)
    like: str | None = None
    dtype: str = JOINED
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RankIs(Stmt):
    """`M, K = A.shape` promises that `array` has `rank` axes."""

    array: str
    rank: int
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Loop(Stmt):
    """`for name in range(start, stop, step)`; `source` is empty for a loop the user did not write."""

    name: str
    start: Expr = field(metadata=CHILD)
    stop: Expr = field(metadata=CHILD)
    step: Expr = field(metadata=CHILD)
    body: tuple[Stmt, ...] = field(metadata=BODY)
    source: str = ""
    ordinal: int = 1
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Repeat(Stmt):
    """`while test`; `source` is its counter, if it seems to have one.

    `counter`: set where the loop counts, once `counting.count` has run.  `test` is then `counter < stop` (or
    `<=`, `>`, `>=`, `!=`), the last statement of `body` adds a constant to the counter, and nothing else sets it,
    short of an assignment of its last value just before each `Leave`.  For the others `reason` says why not.
    """

    test: Expr = field(metadata=CHILD)
    body: tuple[Stmt, ...] = field(metadata=BODY)
    source: str = ""
    ordinal: int = 1
    loc: Location | None = field(default=None, compare=False)
    counter: str = field(default="", compare=False)
    reason: str = field(default="", compare=False)
    reason_loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Branch(Stmt):
    test: Expr = field(metadata=CHILD)
    body: tuple[Stmt, ...] = field(metadata=BODY)
    orelse: tuple[Stmt, ...] = field(default=(), metadata=BODY)
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Leave(Stmt):
    """`break`."""

    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Skip(Stmt):
    """`continue`; gone once `control.without_continue` has run."""

    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Give(Stmt):
    """`return` of nothing (`values` empty), of arrays (a `Name`) and of scalars."""

    values: tuple[Expr, ...] = field(metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)


# ----------------------------------------------------------------------------------------------- queries


def names_in(expr: Expr) -> set[str]:
    """The names of variables (not arrays) that an expression reads."""
    return {part.name for part in walk_expr(expr) if isinstance(part, Name)}


def elements_in(expr: Expr) -> set[str]:
    """The arrays whose elements an expression reads."""
    return {part.array for part in walk_expr(expr) if isinstance(part, Element)}


def names_read(stmt: Stmt) -> set[str]:
    """The names read by the expressions directly under a statement."""
    return {name for part in children(stmt) for name in names_in(part)}


def assigned(body: Body) -> set[str]:
    """The scalar names that a body binds, by assignment or by a loop."""
    return {stmt.name for stmt in walk(body) if isinstance(stmt, (SetName, Loop))}


def arrays_in(stmt: Stmt) -> Iterator[tuple[str, Location | None]]:
    """The arrays that a statement itself (not those inside it) reads, writes or asks the shape of."""
    for part in children(stmt):
        for node in walk_expr(part):
            if isinstance(node, (Element, Extent)):
                yield node.array, node.loc
    if isinstance(stmt, (SetElement, RankIs)):
        yield stmt.array, stmt.loc
    if isinstance(stmt, NewArray):
        for name in (stmt.like, stmt.dtype[1:] if stmt.dtype.startswith(OF_ARRAY) else None):
            if name is not None:
                yield name, stmt.loc


def place_of(node: Expr | Stmt) -> Location | None:
    return getattr(node, "loc", None)
