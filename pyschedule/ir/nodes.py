"""The nodes of the loop-nest IR.

Every node is a frozen dataclass whose fields declare a role (`child`, `body`, or plain data), so that
walking, rewriting and comparing are written once, in `visitors`, for all of them.  Nodes are immutable: a
transform builds new ones and shares what it did not touch.

Contract, checked by `checker`:

* A `For` counter is written by its loop alone and read only inside it.  Its bounds are evaluated once, on
  entry.  `step` is never zero.  Counters and integer scalars are int64.
* Indices of `Load` and `Store` are element indices in `0 <= index < extent` - the front end's Python-style
  negative indices are made explicit (`transforms.indexing`) before any transform runs.
* In a vectorised body the counter is replaced by `Ramp`; any expression that contains a vector is a vector,
  and scalars among its operands are meant broadcast.  A `mask` is a bool vector (or a bool scalar): lanes
  that are off read as zero and write nothing, and their addresses are never touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from pyschedule.ir.types import BOOL, INT64, Scalar, Type, Vector, element_of, lanes_of, with_lanes

ROLE: Final = "role"
#: A field that holds an expression, `None`, or a tuple of expressions.
CHILD: Final = {ROLE: "child"}
#: A field that holds a tuple of statements.
BODY: Final = {ROLE: "body"}
#: The field that holds a statement's `Origin`.
ORIGIN: Final = {ROLE: "origin"}


@dataclass(frozen=True, slots=True)
class Location:
    """Where a node stands in the user's file: 1-based line, 0-based column (as Python's `ast`)."""

    file: str
    line: int
    column: int
    end_line: int = 0
    end_column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}"


# ------------------------------------------------------------------------------------------- expressions


@dataclass(frozen=True, slots=True)
class Expr:
    """An expression without side effects (short of the error of a `checked_index`)."""

    @property
    def type(self) -> Type:
        raise TypeError(f"{type(self).__name__} has no type")


@dataclass(frozen=True, slots=True)
class Const(Expr):
    value: bool | int | float
    dtype: Scalar

    @property
    def type(self) -> Type:
        return self.dtype


@dataclass(frozen=True, slots=True)
class Var(Expr):
    """A scalar argument, a local, or a loop counter; of vector type where a transform made it one."""

    name: str
    vtype: Type = INT64
    loc: Location | None = field(default=None, compare=False)

    @property
    def type(self) -> Type:
        return self.vtype


@dataclass(frozen=True, slots=True)
class Dim(Expr):
    """The extent of one axis of an array: `A.shape[axis]`."""

    array: str
    axis: int

    @property
    def type(self) -> Type:
        return INT64


@dataclass(frozen=True, slots=True)
class Load(Expr):
    """`array[indices]`.  A half element has type float32: halves are widened by the load.

    With one vector index the load is a vector: contiguous where that index is a `Ramp` of stride 1 along
    the unit-stride axis, else a gather.
    """

    array: str
    indices: tuple[Expr, ...] = field(metadata=CHILD)
    dtype: Type
    mask: Expr | None = field(default=None, metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)

    @property
    def type(self) -> Type:
        lanes = max((lanes_of(index.type) for index in self.indices), default=1)
        if self.mask is not None:
            lanes = max(lanes, lanes_of(self.mask.type))
        return with_lanes(self.dtype, lanes) if lanes > 1 else self.dtype


@dataclass(frozen=True, slots=True)
class BinOp(Expr):
    """`+ - * / // % ** & | ^ << >>` with Python's meaning (`//` and `%` floor), computed in `dtype`.

    Operands of another type are converted to `dtype` first (both, for `/` as for the others); for shifts
    and `**` too.  Integers wrap.
    """

    op: str
    left: Expr = field(metadata=CHILD)
    right: Expr = field(metadata=CHILD)
    dtype: Scalar
    loc: Location | None = field(default=None, compare=False)

    @property
    def type(self) -> Type:
        return with_lanes(self.dtype, max(lanes_of(self.left.type), lanes_of(self.right.type)))


@dataclass(frozen=True, slots=True)
class Compare(Expr):
    """`< <= > >= == !=`, after both operands are converted to `dtype`."""

    op: str
    left: Expr = field(metadata=CHILD)
    right: Expr = field(metadata=CHILD)
    dtype: Scalar
    loc: Location | None = field(default=None, compare=False)

    @property
    def type(self) -> Type:
        return with_lanes(BOOL, max(lanes_of(self.left.type), lanes_of(self.right.type)))


@dataclass(frozen=True, slots=True)
class BoolOp(Expr):
    """`and` / `or` of bool operands, short-circuit on scalars (so that `i < n and A[i] > 0` is safe)."""

    op: str
    left: Expr = field(metadata=CHILD)
    right: Expr = field(metadata=CHILD)

    @property
    def type(self) -> Type:
        return with_lanes(BOOL, max(lanes_of(self.left.type), lanes_of(self.right.type)))


@dataclass(frozen=True, slots=True)
class UnaryOp(Expr):
    """`-` (negate), `~` (invert), `not` (of a bool)."""

    op: str
    operand: Expr = field(metadata=CHILD)

    @property
    def type(self) -> Type:
        return self.operand.type


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """`a if test else b`, evaluating only the arm that is taken; lane by lane where `test` is a vector."""

    test: Expr = field(metadata=CHILD)
    then: Expr = field(metadata=CHILD)
    orelse: Expr = field(metadata=CHILD)
    dtype: Scalar

    @property
    def type(self) -> Type:
        return with_lanes(self.dtype, max(lanes_of(part.type) for part in (self.test, self.then, self.orelse)))


@dataclass(frozen=True, slots=True)
class Cast(Expr):
    """Conversion to `dtype` as NumPy's `astype` does it; to a half type: rounded to it, held as float32."""

    dtype: Scalar
    operand: Expr = field(metadata=CHILD)

    @property
    def type(self) -> Type:
        held = Scalar("float32") if self.dtype.is_half else self.dtype
        return with_lanes(held, lanes_of(self.operand.type))


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """A function of `ir.functions.FUNCTIONS`, of scalars or lane by lane."""

    function: str
    args: tuple[Expr, ...] = field(metadata=CHILD)
    dtype: Scalar
    loc: Location | None = field(default=None, compare=False)

    @property
    def type(self) -> Type:
        return with_lanes(self.dtype, max((lanes_of(arg.type) for arg in self.args), default=1))


@dataclass(frozen=True, slots=True)
class Ramp(Expr):
    """The int64 vector `base, base + stride, ..., base + (lanes - 1) * stride`; `stride` is an int."""

    base: Expr = field(metadata=CHILD)
    stride: int
    lanes: int

    @property
    def type(self) -> Type:
        return Vector(INT64, self.lanes)


@dataclass(frozen=True, slots=True)
class Broadcast(Expr):
    value: Expr = field(metadata=CHILD)
    lanes: int

    @property
    def type(self) -> Type:
        return Vector(element_of(self.value.type), self.lanes)


@dataclass(frozen=True, slots=True)
class Reduce(Expr):
    """All lanes of a vector combined into one scalar; `op` is a name in `ir.functions.REDUCTIONS`."""

    op: str
    vector: Expr = field(metadata=CHILD)

    @property
    def type(self) -> Type:
        return element_of(self.vector.type)


# -------------------------------------------------------------------------------------------- statements


@dataclass(frozen=True, slots=True)
class Origin:
    """Which statement of the source this is, and for which values of the source's counters it runs.

    `counters[n]` is the value, as an expression over the present counters, of the n-th loop that encloses
    the statement in the *source* kernel (outermost first).  Transforms substitute into it as into any other
    expression; dependence checks compare two nests through it.
    """

    statement: int
    counters: tuple[Expr, ...] = field(metadata=CHILD)


@dataclass(frozen=True, slots=True)
class Stmt:
    pass


@dataclass(frozen=True, slots=True)
class Assign(Stmt):
    """`target = value`: writes a scalar (or vector) local."""

    target: str
    value: Expr = field(metadata=CHILD)
    vtype: Type
    origin: Origin | None = field(default=None, metadata=ORIGIN, compare=False)
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Store(Stmt):
    """`array[indices] = value`, converted to the element type (a half is rounded here, once).

    `stream` is a hint: where the whole array has at least so many bytes, what is stored will have left the caches
    before anyone reads it, and may go around them (0: it may not).
    """

    array: str
    indices: tuple[Expr, ...] = field(metadata=CHILD)
    value: Expr = field(metadata=CHILD)
    mask: Expr | None = field(default=None, metadata=CHILD)
    origin: Origin | None = field(default=None, metadata=ORIGIN, compare=False)
    loc: Location | None = field(default=None, compare=False)
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Alloc(Stmt):
    """Declares a local array, in scope until the end of the enclosing body; its contents are undefined.

    Buffers are declared where they are used; back ends may hoist the memory, never the lifetime.
    """

    array: Array
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class If(Stmt):
    """`tail` marks a guard that tiling made: what it excludes are no iterations of the source, so that values
    computed for them in registers may be anything, while memory must not be touched."""

    test: Expr = field(metadata=CHILD)
    body: tuple[Stmt, ...] = field(metadata=BODY)
    orelse: tuple[Stmt, ...] = field(default=(), metadata=BODY)
    loc: Location | None = field(default=None, compare=False)
    tail: bool = False


@dataclass(frozen=True, slots=True)
class For(Stmt):
    """`for var in range(start, stop, step): body`.

    `var` is unique in the kernel.  `source` is the user's name of the loop, `ordinal` counts the user's
    loops of that name from 1, and `piece` is `None` for a loop that was not split, else its level (0 is the
    outermost).  `label` is what directives call it: `j` or `j.1`.

    `mapping` says what runs the iterations: `"serial"`, `"parallel"` (CPU threads), `"block.x"`, `"block.y"`,
    `"block.z"`, `"thread.x"`, `"thread.y"`, `"thread.z"` (one iteration or more a block or thread), or
    `"cooperative"` (a loop, perhaps of a nest, shared out among all threads of the block).
    Of parallel loops inside one another threads share the first that has enough iterations for all of them.

    `unroll` asks the back end: 0 nothing, 1 stay rolled (`nounroll`), N > 1 unroll by N, -1 unroll fully.
    `max_trip` is a compile-time upper bound of the trip count, where there is one.
    `grain`: of a parallel loop over tiles of `step` values: tiles of so many would run in parallel as well, so that
    what a thread gets may begin and end inside a tile.  `None`: nothing is known of parts of an iteration.
    """

    var: str
    start: Expr = field(metadata=CHILD)
    stop: Expr = field(metadata=CHILD)
    step: Expr = field(metadata=CHILD)
    body: tuple[Stmt, ...] = field(metadata=BODY)
    source: str = ""
    ordinal: int = 1
    piece: int | None = None
    mapping: str = "serial"
    unroll: int = 0
    max_trip: int | None = None
    grain: int | None = None
    loc: Location | None = field(default=None, compare=False)

    @property
    def label(self) -> str:
        return self.source if self.piece is None else f"{self.source}.{self.piece}"

    @property
    def counter(self) -> Var:
        return Var(self.var, INT64)


@dataclass(frozen=True, slots=True)
class While(Stmt):
    """A loop that could not be shown to count (counted `while` loops become `For`).

    `reason` says why not and ends with what would make it count; `reason_loc` is the place in the way.
    """

    test: Expr = field(metadata=CHILD)
    body: tuple[Stmt, ...] = field(metadata=BODY)
    source: str = ""
    ordinal: int = 1
    unroll: int = 0
    loc: Location | None = field(default=None, compare=False)
    reason: str = field(default="", compare=False)
    reason_loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Break(Stmt):
    """Leaves the innermost loop."""

    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Return(Stmt):
    """Ends the kernel.  `values` are scalars in the order of `Kernel.scalar_results`."""

    values: tuple[Expr, ...] = field(metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Barrier(Stmt):
    """All threads of a block wait for one another; nothing on a CPU."""


@dataclass(frozen=True, slots=True)
class Prefetch(Stmt):
    """A hint that an element will be read soon, or written; it means nothing, and the element need not exist."""

    array: str
    indices: tuple[Expr, ...] = field(metadata=CHILD)
    loc: Location | None = field(default=None, compare=False)
    write: bool = False


@dataclass(frozen=True, slots=True)
class Poll(Stmt):
    """Leaves the whole kernel where its call was cancelled, after `body`; otherwise nothing happens.

    What was stored before stays.  `body` stores what is held in registers, so that it is not lost.  `places`
    say where this is, outermost loop first, each a template for one value or two of `values`: `"loop 'k' at {}
    of {}"`.  `number` is the poll's own in the kernel, from 1.  `together`: the threads of a block, which meet at
    barriers later, leave all at once or not at all.
    """

    number: int
    places: tuple[str, ...]
    values: tuple[Expr, ...] = field(metadata=CHILD)
    body: tuple[Stmt, ...] = field(default=(), metadata=BODY)
    together: bool = False


# ------------------------------------------------------------------------------------------------ kernels


@dataclass(frozen=True, slots=True)
class Array:
    """An array, by name: a parameter, or a local one declared by `Alloc`.

    `space`: `"global"` (a parameter), `"local"` (the user's small array, or a scratch buffer of the thread),
    `"packed"` (a staged tile, contiguous and 64-byte aligned), `"shared"` (the same on a GPU), `"register"`
    (an accumulator tile: every index is a constant once loops are unrolled).

    `dtype` is what is stored (`"float16"` for a half; a `Vector` only for registers).  `shape` holds one
    extent per axis: `Dim(name, axis)` for a parameter of run-time extent, a `Const` where it is fixed.
    Locals are contiguous, last axis fastest.  For parameters `unit_axis` is the axis of element stride 1
    (`None`: there is none), and `divisor` divides, in elements, the base address and all other strides.
    """

    name: str
    dtype: Type
    shape: tuple[Expr, ...] = field(metadata=CHILD)
    space: str = "global"
    unit_axis: int | None = None
    divisor: int = 1
    loc: Location | None = field(default=None, compare=False)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def contiguous_axis(self) -> int | None:
        """`unit_axis`, of locals too."""
        return self.unit_axis if self.space == "global" else self.rank - 1 if self.shape else None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A function: parameters in call order, a body, and what it returns.

    `params` holds `Array` and `Var` entries.  A local array that the user's function returns has been made a
    parameter, listed in `outputs` (allocated by the runtime; its `shape` says how large).  `returns` gives
    the function's results in order: the name of an array parameter, or an index into `scalar_results`.
    `strict_math` forbids reassociation and contraction of floats.
    """

    name: str
    params: tuple[Array | Var, ...]
    body: tuple[Stmt, ...]
    outputs: tuple[str, ...] = ()
    returns: tuple[str | int, ...] = ()
    scalar_results: tuple[Scalar, ...] = ()
    strict_math: bool = False
    loc: Location | None = field(default=None, compare=False)
    source: str = field(default="", compare=False)

    @property
    def array_params(self) -> tuple[Array, ...]:
        return tuple(param for param in self.params if isinstance(param, Array))

    @property
    def scalar_params(self) -> tuple[Var, ...]:
        return tuple(param for param in self.params if isinstance(param, Var))
