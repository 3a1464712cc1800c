"""The structural checker: the rules that a kernel's IR keeps at every stage, each a function named as a sentence.

What these rules cannot see is checked elsewhere: that indices are in bounds by the interpreter, that an order
of iterations is legal by the dependence analysis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from pyschedule.errors import InternalError
from pyschedule.ir import build
from pyschedule.ir.blocks import MatrixProduct, Pack, TransposedStores
from pyschedule.ir.functions import FUNCTIONS, REDUCTIONS
from pyschedule.ir.nodes import (
    Alloc,
    Assign,
    Barrier,
    BinOp,
    BoolOp,
    Break,
    Broadcast,
    Call,
    Compare,
    Const,
    Dim,
    Expr,
    For,
    If,
    Kernel,
    Load,
    Poll,
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
from pyschedule.ir.printer import format_expr, headline
from pyschedule.ir.survey import Survey, survey
from pyschedule.ir.threads import barriers_are_uniform, private_arrays_are_written_by_one_thread
from pyschedule.ir.types import FLOAT32, Scalar, Vector, element_of, lanes_of
from pyschedule.ir.visitors import children, contains

Sentences = Iterator[str]

_MAPPINGS: Final = {
    *("serial", "parallel", "cooperative"),
    *(f"{unit}.{axis}" for unit in ("block", "thread") for axis in "xyz"),
}
#: Operator → the kinds of number it takes.
_OPERANDS: Final = {
    **dict.fromkeys(("+", "-", "*", "//", "%", "**"), "iuf"),
    "/": "f",
    **dict.fromkeys(("&", "|", "^"), "biu"),
    **dict.fromkeys(("<<", ">>"), "iu"),
}
_COMPARISONS: Final = ("<", "<=", ">", ">=", "==", "!=")


def check(kernel: Kernel) -> None:
    """Raises `InternalError` with a sentence for each rule that is broken, and where."""
    broken = problems(kernel)
    if broken:
        listed = "\n".join(f"- {sentence}" for sentence in broken)
        raise InternalError(f"the IR of {kernel.name} breaks its contract:\n{listed}")


def problems(kernel: Kernel) -> list[str]:
    """What is wrong with a kernel, a sentence each; once a name or an array is missing, no more than that."""
    found = survey(kernel)
    for group in (NAMES, TYPES, CONTROL):
        broken = [sentence for rule in group for sentence in rule(found)]
        if broken:
            return list(dict.fromkeys(broken))
    return []


def _in(stmt: Stmt) -> str:
    loc = getattr(stmt, "loc", None)
    return f"in `{headline(stmt)}`" + (f" at {loc}" if loc is not None else "")


# ------------------------------------------------------------------------------------------------- names


def every_variable_is_bound(found: Survey) -> Sentences:
    """A variable that is read is an argument, a counter of a loop around, or may have been assigned before."""
    for name, stmt in found.unbound:
        yield f"{name} has no value {_in(stmt)}"


def every_array_is_declared(found: Survey) -> Sentences:
    for name, stmt in found.undeclared:
        yield f"{name} is no array in scope {_in(stmt)}"


def counter_names_are_unique(found: Survey) -> Sentences:
    taken = {param.name for param in found.kernel.params}
    if len(taken) < len(found.kernel.params):
        yield "two parameters have the same name"
    for loop, _ in found.all(For):
        if loop.var in taken:
            yield f"{loop.var} is the name of two loops or of a parameter and a loop"
        taken.add(loop.var)


def counters_are_written_by_their_loops_only(found: Survey) -> Sentences:
    counters = {loop.var for loop, _ in found.all(For)}
    for stmt, _ in found.all(Assign):
        if stmt.target in counters:
            yield f"the counter {stmt.target} is assigned {_in(stmt)}"


def names_mean_one_thing(found: Survey) -> Sentences:
    """No name is both an array and a variable, or has two types; arrays of one name are alike but for extents."""
    for name in found.arrays.keys() & found.types.keys():
        yield f"{name} is an array and a variable"
    for alloc, _ in found.all(Alloc):
        this, other = alloc.array, found.arrays[alloc.array.name]
        if (this.dtype, this.space, this.rank) != (other.dtype, other.space, other.rank):
            yield f"{this.name} is declared in two ways"
        if this.space == "global" or other.space == "global":
            yield f"{this.name} is declared, and in global memory, which only parameters are"
    for var, where in found.all(Var):
        declared = found.types.get(var.name, var.vtype)
        if not _same(declared, var.vtype):
            yield f"{var.name} is {declared}, and {var.vtype} {_in(where)}"
    for stmt, _ in found.all(Assign):
        if not _same(found.types[stmt.target], stmt.vtype):
            yield f"{stmt.target} is {found.types[stmt.target]}, and {stmt.vtype} {_in(stmt)}"


def results_are_parameters(found: Survey) -> Sentences:
    kernel = found.kernel
    names = {array.name for array in kernel.array_params}
    for result in (*kernel.outputs, *kernel.returns):
        known = result in names if isinstance(result, str) else 0 <= result < len(kernel.scalar_results)
        if not known:
            yield f"the result {result!r} is no array parameter or scalar result"


def _same(one: Scalar | Vector, other: Scalar | Vector) -> bool:
    return element_of(one).name == element_of(other).name and lanes_of(one) == lanes_of(other)


# ------------------------------------------------------------------------------------------------- types


def indices_match_rank(found: Survey) -> Sentences:
    accesses: list[tuple[Load | Store, Stmt]] = [*found.all(Load), *found.all(Store)]
    for access, stmt in accesses:
        rank = found.arrays[access.array].rank
        if len(access.indices) != rank:
            yield f"{access.array} of rank {rank} has {len(access.indices)} indices {_in(stmt)}"
        for index in access.indices:
            if not element_of(index.type).is_integer:
                yield f"the index {format_expr(index)} is no integer {_in(stmt)}"
    for dim, stmt in found.all(Dim):
        if not 0 <= dim.axis < found.arrays[dim.array].rank:
            yield f"{dim.array} has no axis {dim.axis} {_in(stmt)}"


def blocks_fit_their_arrays(found: Survey) -> Sentences:
    """A block has an axis of its array for each of its own, and buffers of packed blocks end in two fixed axes."""
    packed: list[tuple[str, int, Stmt]] = [(stmt.tile, len(stmt.place) + 2, stmt) for stmt, _ in found.all(Pack)]
    for product, _ in found.all(MatrixProduct):
        packed += [(product.right, len(product.right_place) + 3, product)]
        if product.left_axes is None:
            packed += [(product.left, len(product.left_place) + 3, product)]
        if product.copied:
            packed += [(product.copied, len(product.copied_place) + 3, product)]
    for name, rank, stmt in packed:
        shape = found.arrays[name].shape
        if len(shape) != rank or any(build.constant(extent) is None for extent in shape[-2:]):
            yield f"{name} holds no blocks where it is said to {_in(stmt)}"
    blocks: list[tuple[str, tuple[Expr, ...], tuple[int, int], Stmt]]
    blocks = [(block.array, block.indices, block.axes, block) for block, _ in found.all(Pack)]
    for product, _ in found.all(MatrixProduct):
        blocks += [(product.array, product.indices, product.axes, product)]
        if product.left_axes is not None:
            blocks += [(product.left, product.left_place, product.left_axes, product)]
    for name, indices, axes, stmt in blocks:
        rank = found.arrays[name].rank
        if len(indices) != rank or len({*axes} & set(range(rank))) != 2:
            yield f"{name} of rank {rank} has no such block {_in(stmt)}"


def transposed_stores_are_neighbours(found: Survey) -> Sentences:
    """But for values, tests and the index along the unit axis they are alike, and their lanes lie apart."""
    for block, _ in found.all(TransposedStores):
        inner = [stmt.body[0] if isinstance(stmt, If) and not stmt.orelse else stmt for stmt in block.body]
        stores = block.stores
        if len(stores) != len(inner) or any(len(stmt.body) != 1 for stmt in block.body if isinstance(stmt, If)):
            yield f"there is more than stores {_in(block)}"
            continue
        axis = found.arrays[stores[0].array].contiguous_axis
        if axis is None or len({_but_for(store, axis) for store in stores}) > 1:
            yield f"{stores[0].array} is stored in no neighbouring places {_in(block)}"
            continue
        ramps = [index for index in stores[0].indices if isinstance(index.type, Vector)]
        lanes = lanes_of(ramps[0].type) if ramps else 1
        if not 2 <= len(stores) <= lanes or any(lanes_of(store.indices[axis].type) > 1 for store in stores):
            yield f"{len(stores)} vectors of {lanes} lanes are no block {_in(block)}"


def _but_for(store: Store, axis: int) -> tuple[str, tuple[Expr, ...], Expr | None]:
    """Where a store goes, along the other axes."""
    return store.array, (*store.indices[:axis], *store.indices[axis + 1 :]), store.mask


def operations_exist(found: Survey) -> Sentences:
    for node, stmt in found.all(BinOp):
        if node.op not in _OPERANDS or node.dtype.kind not in _OPERANDS[node.op]:
            yield f"there is no {node.op} of {node.dtype} {_in(stmt)}"
    for compare, stmt in found.all(Compare):
        if compare.op not in _COMPARISONS:
            yield f"there is no comparison {compare.op} {_in(stmt)}"
    for sign, stmt in found.all(UnaryOp):
        kinds = {"-": "iuf", "~": "biu", "not": "b"}.get(sign.op, "")
        if element_of(sign.operand.type).kind not in kinds:
            yield f"there is no {sign.op} of {sign.operand.type} {_in(stmt)}"
    for call, stmt in found.all(Call):
        function = FUNCTIONS.get(call.function)
        if function is None or function.arity != len(call.args):
            yield f"there is no {call.function} of {len(call.args)} arguments {_in(stmt)}"
        elif not {"bool": "b", "int": "i", "float": "f"}.get(function.result, "iuf").count(call.dtype.kind):
            yield f"{call.function} gives no {call.dtype} {_in(stmt)}"
    for reduce, stmt in found.all(Reduce):
        if reduce.op not in REDUCTIONS or not isinstance(reduce.vector.type, Vector):
            yield f"there is no reduction {reduce.op} of {reduce.vector.type} {_in(stmt)}"


def constants_fit_their_type(found: Survey) -> Sentences:
    for node, stmt in found.all(Const):
        kind = "b" if isinstance(node.value, bool) else "iuf" if isinstance(node.value, int) else "f"
        if node.dtype.kind not in kind:
            yield f"{node.value!r} is no {node.dtype} {_in(stmt)}"


def no_expression_is_a_half(found: Survey) -> Sentences:
    """Loads widen halves and stores round them: between, they are float32."""
    for kind in (Const, Var, Load, BinOp, Compare, Select, Call):
        for node, stmt in found.nodes[kind]:
            dtype = element_of(node.vtype if isinstance(node, Var) else node.dtype)
            if dtype.is_half:
                yield f"{format_expr(node)} computes in {dtype} {_in(stmt)}"


def loads_have_their_arrays_type(found: Survey) -> Sentences:
    for load, stmt in found.all(Load):
        kept = found.arrays[load.array].dtype
        element = FLOAT32 if element_of(kept).is_half else element_of(kept)
        if element.name != element_of(load.dtype).name or lanes_of(kept) != lanes_of(load.dtype):
            yield f"{load.array} of {kept} is loaded as {load.dtype} {_in(stmt)}"


def tests_are_bool(found: Survey) -> Sentences:
    """A branch or a loop takes one bool; a `Select`, `and`, `or` and a mask take lanes of them too."""
    branches: list[tuple[If | While, Stmt]] = [*found.all(If), *found.all(While)]
    for stmt, _ in branches:
        type_ = stmt.test.type
        if not isinstance(type_, Scalar) or type_.kind != "b":
            yield f"the test is {type_}, not one bool, {_in(stmt)}"
    for select, where in found.all(Select):
        if element_of(select.test.type).name != "bool":
            yield f"{format_expr(select.test)} is chosen by, and no bool, {_in(where)}"
    for both, where in found.all(BoolOp):
        if both.op not in ("and", "or"):
            yield f"there is no {both.op} {_in(where)}"
        for part in (both.left, both.right):
            if element_of(part.type).name != "bool":
                yield f"{format_expr(part)} is no bool {_in(where)}"


def masks_are_boolean(found: Survey) -> Sentences:
    accesses: list[tuple[Load | Store, Stmt]] = [*found.all(Load), *found.all(Store)]
    for access, stmt in accesses:
        if access.mask is not None and element_of(access.mask.type).name != "bool":
            yield f"the mask {format_expr(access.mask)} is no bool {_in(stmt)}"


def lanes_agree(found: Survey) -> Sentences:
    """Vectors that meet in an operation have as many lanes; a vector goes where as many lanes are."""
    if not found.has_vectors:
        return
    for fewer, more, stmt in found.meetings:
        yield f"vectors of {fewer} and {more} lanes meet {_in(stmt)}"
    for ramp, stmt in found.all(Ramp):
        if isinstance(ramp.base.type, Vector) or ramp.lanes < 2:
            yield f"{format_expr(ramp)} is no ramp {_in(stmt)}"
    for broadcast, stmt in found.all(Broadcast):
        if isinstance(broadcast.value.type, Vector) or broadcast.lanes < 2:
            yield f"{format_expr(broadcast)} is no broadcast {_in(stmt)}"
    for assign, _ in found.all(Assign):
        if lanes_of(assign.value.type) not in (1, lanes_of(assign.vtype)):
            yield f"{assign.value.type} is assigned to {assign.vtype} {_in(assign)}"
    for store, _ in found.all(Store):
        moving = [store.value.type] if store.mask is None else [store.value.type, store.mask.type]
        place = [found.arrays[store.array].dtype, *(index.type for index in store.indices)]
        counts = sorted({type_.lanes for type_ in (*moving, *place) if isinstance(type_, Vector)})
        if len(counts) > 1:
            yield f"vectors of {counts[0]} and {counts[1]} lanes meet {_in(store)}"
        elif counts and not any(isinstance(type_, Vector) for type_ in place):
            yield f"lanes are stored to one element {_in(store)}"


def vectors_are_kept_in_registers(found: Survey) -> Sentences:
    """Only a register array has vectors for elements, and each access to it is to one of these."""
    if not found.has_vectors:
        return
    for array in found.arrays.values():
        if isinstance(array.dtype, Vector) and array.space != "register":
            yield f"{array.name} keeps vectors, in {array.space} memory"
    accesses: list[tuple[Load | Store, Stmt]] = [*found.all(Load), *found.all(Store)]
    for access, stmt in accesses:
        vectors = isinstance(found.arrays[access.array].dtype, Vector)
        if vectors and any(isinstance(index.type, Vector) for index in access.indices):
            yield f"{access.array} keeps vectors, and has a vector index {_in(stmt)}"


# ----------------------------------------------------------------------------------------------- control


def bounds_are_integers(found: Survey) -> Sentences:
    for loop, _ in found.all(For):
        for bound in (loop.start, loop.stop, loop.step):
            if not isinstance(bound.type, Scalar) or not bound.type.is_integer:
                yield f"the bound {format_expr(bound)} is {bound.type} {_in(loop)}"
        if build.constant(loop.step) == 0:
            yield f"the step is zero {_in(loop)}"


def mappings_nest(found: Survey) -> Sentences:
    """Threads are inside blocks, cooperative loops inside both, and each hardware axis is used once in a nest."""
    ranks = {"block": 1, "thread": 2, "cooperative": 3}
    for loop, around in _loops(found):
        unit = loop.mapping.partition(".")[0]
        if loop.mapping not in _MAPPINGS:
            yield f"there is no mapping {loop.mapping!r} {_in(loop)}"
        for outer in around:
            mapping = outer.mapping if isinstance(outer, For) else "serial"
            if mapping == loop.mapping and unit in ("block", "thread"):
                yield f"{mapping} is mapped twice {_in(loop)}"
            if ranks.get(unit, 4) < ranks.get(mapping.partition(".")[0], 0):
                yield f"{loop.mapping} is inside {mapping} {_in(loop)}"


def _loops(found: Survey) -> Iterator[tuple[For, tuple[For | While, ...]]]:
    return ((stmt, around) for stmt, around in found.statements if isinstance(stmt, For))


def breaks_are_inside_loops(found: Survey) -> Sentences:
    """And leave loops that run in order: no iteration of another kind may end the rest."""
    for stmt, around in found.statements:
        mapped = [loop.mapping for loop in around if isinstance(loop, For) and loop.mapping != "serial"]
        if isinstance(stmt, Break):
            if not around:
                yield "a break is outside loops"
            elif isinstance(around[-1], For) and around[-1].mapping != "serial":
                yield f"a break leaves a {around[-1].mapping} loop {_in(around[-1])}"
        elif isinstance(stmt, Return) and mapped:
            yield f"a return leaves a {mapped[-1]} loop {_in(stmt)}"


def polls_say_where_they_are(found: Survey) -> Sentences:
    """Each poll has a number of its own and a value for each gap in its places, and does no more than to store."""
    polls = [poll for poll, _ in found.all(Poll)]
    if len({poll.number for poll in polls}) < len(polls):
        yield "two polls have the same number"
    for poll in polls:
        gaps = sum(place.count("{}") for place in poll.places)
        if gaps != len(poll.values) or poll.number < 1:
            yield f"poll {poll.number} has {len(poll.values)} values for {gaps} gaps"
        if contains(poll.body, Poll, Barrier, Break, Return):
            yield f"poll {poll.number} does more than to store before it leaves"


def returns_match_the_results(found: Survey) -> Sentences:
    wanted = len(found.kernel.scalar_results)
    for stmt, _ in found.all(Return):
        if len(stmt.values) != wanted:
            yield f"{len(stmt.values)} values are returned, not {wanted}, {_in(stmt)}"


def register_indices_are_counters_and_constants(found: Survey) -> Sentences:
    """So that each is a constant once its loops are unrolled; and register and shared arrays have constant
    extents."""
    for array in found.arrays.values():
        if array.space in ("register", "shared") and any(build.constant(extent) is None for extent in array.shape):
            yield f"{array.name} in {array.space} memory has an extent that is no constant"
    if not any(array.space == "register" for array in found.arrays.values()):
        return
    counters = {loop.var for loop, _ in found.all(For)}
    accesses: list[tuple[Load | Store, Stmt]] = [*found.all(Load), *found.all(Store)]
    for access, stmt in accesses:
        if found.arrays[access.array].space != "register":
            continue
        for index in access.indices:
            if not _counts(index, counters):
                yield f"the register index {format_expr(index)} depends on more than counters {_in(stmt)}"


def _counts(index: Expr, counters: set[str]) -> bool:
    if isinstance(index, Var):
        return index.name in counters
    if isinstance(index, (Load, Dim)):
        return False
    return all(_counts(part, counters) for part in children(index))


NAMES: Final = (
    every_variable_is_bound,
    every_array_is_declared,
    counter_names_are_unique,
    counters_are_written_by_their_loops_only,
    names_mean_one_thing,
    results_are_parameters,
)
TYPES: Final = (
    indices_match_rank,
    blocks_fit_their_arrays,
    transposed_stores_are_neighbours,
    operations_exist,
    constants_fit_their_type,
    no_expression_is_a_half,
    loads_have_their_arrays_type,
    tests_are_bool,
    masks_are_boolean,
    lanes_agree,
    vectors_are_kept_in_registers,
)
CONTROL: Final = (
    bounds_are_integers,
    mappings_nest,
    breaks_are_inside_loops,
    polls_say_where_they_are,
    returns_match_the_results,
    barriers_are_uniform,
    private_arrays_are_written_by_one_thread,
    register_indices_are_counters_and_constants,
)
