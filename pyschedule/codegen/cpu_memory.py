"""Where a CPU function's values live: addresses, loads and stores, masks, and local arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pyschedule.codegen.cpu_vectors import VectorWriter
from pyschedule.codegen.emitter import INDENT, merged_tests
from pyschedule.codegen.expressions import (
    CONDITIONAL,
    OR,
    Code,
    Raw,
    contiguous_strides,
    flat_offset,
    is_vector,
)
from pyschedule.codegen.names import Names
from pyschedule.codegen.reuse import Reuse, runs
from pyschedule.errors import InternalError
from pyschedule.ir import build
from pyschedule.ir.blocks import MatrixProduct, Pack, TransposedStores
from pyschedule.ir.nodes import Alloc, Array, Assign, Const, Expr, Kernel, Load, Prefetch, Stmt, Store, Var
from pyschedule.ir.types import Scalar, Vector, element_of, lanes_of
from pyschedule.ir.visitors import Body, expressions, variables, walk, walk_expr, written_variables

#: The units that are instructions on vector registers, of how many words, and whether these multiply and add to a
#: sum at once.
DOT_PRODUCTS = {"AVX-512 VNNI": (16, 1), "AVX-512": (16, 0), "AVX-VNNI": (8, 1), "AVX2": (8, 0)}
#: Local arrays of at most this many bytes (and of constant extents) lie in the stack frame.
STACK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Address:
    """`offset` counts elements.  `step` is `None` for a vector of offsets (or for one element: `lanes` 1)."""

    offset: Expr
    step: Expr | None
    lanes: int


class MemoryWriter(VectorWriter):
    def __init__(self, kernel: Kernel, names: Names, used: set[str]) -> None:
        super().__init__(kernel, names, used)
        self.shared: frozenset[str] = frozenset()
        self._entry: dict[tuple[str, str, int], str] = {}  # (what, array, axis) -> line
        self._hoisted: dict[tuple[Array, str], str] = {}  # line by array and its identifier
        self._memory: dict[Array, str] = {}
        self._changing = written_variables(kernel.body)
        self._parameters = {param.name for param in kernel.scalar_params} - self._changing
        self._in_registers = _register_arrays(kernel.body)
        self._reuse: Reuse | None = None
        self._unfenced: list[str] = []
        self.unit_is_set_up = False
        self._stream_bytes = {
            stmt.array: stmt.stream for stmt in walk(kernel.body) if isinstance(stmt, Store) and stmt.stream
        }

    def adopt(self, outer: MemoryWriter, scalars: tuple[str, ...]) -> None:
        """Takes over what the function whose loop this one runs gives it as arguments."""
        self._memory = dict(outer._memory)
        self._parameters |= set(scalars)

    def array(self, name: str) -> str:
        """The identifier of an array."""
        array = self.arrays.get(name)
        if array is not None and array in self._memory:
            return self._memory[array]
        return self.names.of("array", name)

    # ---------------------------------------------------------------------------------------------- prologue

    def prologue(self) -> list[str]:
        """What the function reads and allocates once: extents, strides, memory."""
        return [f"    {line}" for line in (*self._entry.values(), *self._hoisted.values())]

    def parameter_extent(self, array: Array, axis: int) -> Code:
        return Code(self._at_entry("n", array, axis, f"{self.array(array.name)}.shape[{axis}]"))

    def _at_entry(self, what: str, array: Array, axis: int, value: str) -> str:
        name = self.names.of(what, f"{array.name}_{what}{axis}")
        if self._entry.setdefault((what, array.name, axis), f"{name} = {value}") != f"{name} = {value}":
            return f"({value})"  # another array of this name, in a scope of its own
        return name

    def strides(self, array: Array) -> tuple[Expr, ...]:
        if array.space != "global":
            return tuple(
                self._named_stride(array, axis, step) for axis, step in enumerate(contiguous_strides(array.shape))
            )
        return tuple(
            build.ONE if axis == array.unit_axis else self._read_stride(array, axis) for axis in range(array.rank)
        )

    def _read_stride(self, array: Array, axis: int) -> Expr:
        value = f"{self.use('stride')}({self.array(array.name)}, {axis})"
        return Raw(self._at_entry("s", array, axis, value))

    def _named_stride(self, array: Array, axis: int, step: Expr) -> Expr:
        """The stride of a local array, read once where it is known at entry."""
        if isinstance(step, (Const, Var)) or not self._known_at_entry(step):
            return step
        return Raw(self._at_entry("s", array, axis, self.index(step)))

    # --------------------------------------------------------------------------------------------- addresses

    def address(self, array: Array, indices: tuple[Expr, ...]) -> Address:
        strides = self.strides(array)
        if isinstance(array.dtype, Vector):  # memory that holds vectors: count elements
            strides = tuple(build.mul(step, array.dtype.lanes) for step in strides)
        lanes = max((lanes_of(index.type) for index in indices), default=1)
        if lanes == 1:
            return Address(flat_offset(indices, strides), None, 1)
        linear = [self.linear(index) for index in indices]
        if all(part is not None for part in linear):
            bases = tuple(part.base for part in linear if part is not None)
            steps = tuple(part.step for part in linear if part is not None)
            return Address(flat_offset(bases, strides), flat_offset(steps, strides), lanes)
        return Address(flat_offset(indices, strides), None, lanes)

    def offset(self, address: Address) -> str:
        return self.index(address.offset)

    # ------------------------------------------------------------------------------------------------- loads

    def body(self, body: tuple[Stmt, ...]) -> None:
        outer, self._reuse = self._reuse, None
        super().body(body)
        self._reuse = outer

    def statements(self, body: tuple[Stmt, ...]) -> None:
        for run in runs(merged_tests(body)):
            self._reuse = Reuse(run, self.arrays, self._in_memory) if isinstance(run[0], (Assign, Store)) else None
            previous: Stmt | None = None
            for stmt in run:
                if self._reuse is not None:
                    self._reuse.advance(previous)
                previous = stmt
                self.statement(stmt)
        self._reuse = None

    def _in_memory(self, access: Load | Store) -> bool:
        return self.register(self.arrays[access.array], access.indices) is None

    def load(self, node: Load) -> Code:
        reuse = self._reuse
        if reuse is None:
            return self._load(node)
        if (name := reuse.known(node)) is not None:
            return Code(name)
        code = self._load(node)
        if self._inline or self._active is not None or not reuse.worth_a_name(node):
            return code
        name = self.names.fresh(f"{node.array}_value")
        self.line(f"{name} = {code.text}")
        reuse.remember(node, name)
        return Code(name)

    def _load(self, node: Load) -> Code:
        array = self.arrays[node.array]
        if (register := self.register(array, node.indices)) is not None:
            if node.mask is not None:
                raise InternalError(f"a masked access of {node.array}, which lives in registers")
            return Code(register)
        mask = None if node.mask is None else self.mask(node.mask)
        vector_mask = node.mask is not None and is_vector(node.mask)
        with self.active(mask, lanes_of(node.mask.type) if node.mask is not None else 1):
            address = self.address(array, node.indices)
            if isinstance(array.dtype, Vector):
                return self._load_vector_element(array, address, mask)
            lanes = max(address.lanes, lanes_of(node.mask.type) if vector_mask and node.mask is not None else 1)
            code = (
                self._scalar_load(array, address, mask) if lanes == 1 else self._vector_load(array, address, lanes)
            )
        return self._widened(code, array)

    def _widened(self, code: Code, array: Array) -> Code:
        element = element_of(array.dtype)
        return self.function(f"from_{element.name}", [code.text]) if element.is_half else code

    def _scalar_load(self, array: Array, address: Address, mask: Code | None) -> Code:
        value = Code(f"{self.use('load')}({self.array(array.name)}, {self.offset(address)})")
        test = self.active_test()
        if test is None:
            return value
        element = element_of(array.dtype)
        zero = "uint16(0)" if element.is_half else self.constant(0, element).text
        if element.is_half:
            self.use("uint16")
        text = f"({test.text})" if test.binding < OR else test.text
        return Code(f"{value.text} if {text} else {zero}", CONDITIONAL)

    def _vector_load(self, array: Array, address: Address, lanes: int) -> Code:
        name, offset, mask = self.array(array.name), self.offset(address), self.active_mask(lanes)
        if address.lanes > 1 and address.step is None:
            if mask is None:
                return self.function("gather", [name, offset])
            return self.function("gather_masked", [name, offset, mask])
        step = "0" if address.step is None else self.index(address.step)
        if mask is not None:
            if step == "1":
                return self.function("load_masked", [name, offset, mask])
            return self.function("load_strided_masked", [name, offset, step, mask])
        if step == "1":
            return self.function("load_vector", [name, offset, str(lanes)])
        if step == "0":
            return self.function("splat", [f"{self.use('load')}({name}, {offset})", str(lanes)])
        return self.function("load_strided", [name, offset, step, str(lanes)])

    def _load_vector_element(self, array: Array, address: Address, mask: Code | None) -> Code:
        if address.lanes > 1 or mask is not None:
            raise InternalError(f"a vector or masked index into {array.name}, whose elements are vectors")
        lanes = lanes_of(array.dtype)
        return self.function("load_vector", [self.array(array.name), self.offset(address), str(lanes)])

    # ------------------------------------------------------------------------------------------------ stores

    def assign(self, stmt: Assign) -> None:
        value = self.value_of_type(stmt.value, element_of(stmt.vtype), lanes_of(stmt.vtype))
        self.line(f"{self.variable(stmt.target)} = {value}", self.place(stmt.loc))

    def value_of_type(self, value: Expr, element: Scalar, lanes: int) -> str:
        """The text of `value` converted to an element type (held), in so many lanes."""
        code = self.converted(value, element)
        if lanes > 1 and not is_vector(value):
            return self.function("splat", [code.text, str(lanes)]).text
        return code.text

    def store(self, stmt: Store) -> None:
        array = self.arrays[stmt.array]
        element, width = element_of(array.dtype), lanes_of(array.dtype)
        if (register := self.register(array, stmt.indices)) is not None:
            if stmt.mask is not None:
                raise InternalError(f"a masked access of {stmt.array}, which lives in registers")
            self.line(f"{register} = {self.value_of_type(stmt.value, element, width)}", self.place(stmt.loc))
            return
        if stmt.mask is not None and not is_vector(stmt.mask):
            self.line(f"if {self.text(stmt.mask)}:", self.place(stmt.loc))
            with self.indented(), self.inline():
                self._write(array, stmt, None)
            return
        self._write(array, stmt, None if stmt.mask is None else self.mask(stmt.mask))

    def transposed_stores(self, stmt: TransposedStores) -> None:
        stores = stmt.stores
        first = stores[0]
        array, element = self.arrays[first.array], element_of(self.arrays[first.array].dtype)
        mask = None if first.mask is None else self.mask(first.mask)
        count = str(len(stores)) if stmt.count is None else self.index(stmt.count)
        address = self.address(array, first.indices)
        with self.active(mask, address.lanes):
            values = []
            for store in stores:
                value = self._stored(store.value, element).text
                scalar = not is_vector(store.value)
                values.append(self.function("splat", [value, str(address.lanes)]).text if scalar else value)
            place = [self.array(array.name), self.offset(address), self.index(address.step or build.ZERO)]
            arguments = [*place, f"({', '.join(values)})", self.active_mask(address.lanes) or "None", count]
        self.line(self.function("store_transposed", arguments).text, self.place(first.loc))

    def prefetch(self, stmt: Prefetch) -> None:
        array = self.arrays[stmt.array]
        place = f"{self.array(stmt.array)}, {self.offset(self.address(array, stmt.indices))}"
        if stmt.write:
            self.line(f"{self.use('prefetch_for_writing')}({place}, {self.streamed(array)})")
        else:
            self.line(f"{self.use('prefetch')}({place})")

    def streamed(self, array: Array) -> str:
        """Whether the stores into an array that may go around the caches do so in this call."""
        least = self._stream_bytes.get(array.name, 0)
        if not least or array.space != "global":
            return "False"
        call = f"{self.use('streams')}({self.array(array.name)}, {array.unit_axis}, {least})"
        return self._at_entry("streamed", array, array.unit_axis or 0, call)

    def fence(self) -> None:
        """What a function does before it ends: other threads see what has been stored around the caches."""
        if self._unfenced:
            self.line(f"if {' or '.join(self._unfenced)}:")
            with self.indented():
                self.line(f"{self.use('fence')}()")
            self._unfenced = []

    def pack(self, stmt: Pack) -> None:
        tile, array = self.arrays[stmt.tile], self.arrays[stmt.array]
        strides = self.strides(array)
        groups, width = (build.constant(extent) or 0 for extent in tile.shape[-2:])
        arguments = [
            *(self.array(stmt.tile), self._block(tile, stmt.place)),
            *(self.array(stmt.array), self.offset(self.address(array, stmt.indices))),
            *(self.index(strides[axis]) for axis in stmt.axes),
            *(self.index(stmt.lanes), self.index(stmt.depth)),
            *map(str, (groups, width // stmt.group, stmt.group, stmt.zero_point)),
        ]
        if not stmt.spare:
            self.line(self.function("pack", arguments).text, self.place(stmt.loc))
            return
        self.line(f"if not {self.lies_well(array)}:")
        with self.indented():
            self.line(self.function("pack", arguments).text, self.place(stmt.loc))

    def lies_well(self, array: Array) -> str:
        """Whether a matrix unit reads the rows of an array as fast where they lie as packed."""
        call = f"{self.use('begins_at_lines')}({self.array(array.name)}, {array.unit_axis})"
        return self._at_entry("lines", array, array.unit_axis or 0, call)

    def matrix_product(self, stmt: MatrixProduct) -> None:
        array, left, right = (self.arrays[name] for name in (stmt.array, stmt.left, stmt.right))
        group = 4 // element_of(right.dtype).bytes
        width = (build.constant(right.shape[-1]) or 0) // group
        packed, place = (stmt.copied, stmt.copied_place) if stmt.copied else (stmt.left, stmt.left_place)
        operand = [self.array(packed), "0"]
        if stmt.copied or stmt.left_axes is None:
            operand[1] = self._block(self.arrays[packed], (*place, build.ZERO))
        result = [
            *(self.array(stmt.array), self.offset(self.address(array, stmt.indices))),
            self.index(self.strides(array)[stmt.axes[0]]),
            *(self.index(stmt.rows), self.index(stmt.columns)),
        ]
        columns = [self.array(stmt.right), self._block(right, (*stmt.right_place, build.ZERO))]
        if stmt.unit in DOT_PRODUCTS:
            fixed = [stmt.height, width, int(stmt.fresh), stmt.zero_point, *DOT_PRODUCTS[stmt.unit]]
            arguments = [*result, *operand, *columns, self.index(stmt.depth), *map(str, fixed)]
            self.line(self.function("dot_products", arguments).text, self.place(stmt.loc))
            return
        there = [operand[0], "0", "0", "0"]
        if stmt.left_axes is not None:
            step = self.index(self.strides(left)[stmt.left_axes[0]])
            lies = self.lies_well(left) if stmt.copied else "1"
            there = [self.array(stmt.left), self.offset(self.address(left, stmt.left_place)), step, lies]
        arguments = [
            *result,
            *operand,
            *there,
            *columns,
            self.index(stmt.depth),
            *(str(stmt.height), str(width), str(int(stmt.fresh)), str(["", "left", "right"].index(stmt.passing))),
        ]
        with self.matrix_unit(stmt):
            self.line(self.function("matrix_product", arguments).text, self.place(stmt.loc))

    @contextmanager
    def matrix_unit(self, *body: Stmt) -> Iterator[None]:
        """The statements written meanwhile find the matrix unit set up, if they need it."""
        tiles = (isinstance(stmt, MatrixProduct) and stmt.unit not in DOT_PRODUCTS for stmt in walk(body))
        here = not self.unit_is_set_up and any(tiles)
        if here:
            self.line(f"{self.use('set_up_matrix_unit')}()")
            self.unit_is_set_up = True
        yield
        if here:
            self.release_matrix_unit()
            self.unit_is_set_up = False

    def release_matrix_unit(self) -> None:
        """What the function does before it ends, wherever the unit is set up."""
        if self.unit_is_set_up:
            self.line(f"{self.use('release_matrix_unit')}()")

    def _block(self, buffer: Array, place: tuple[Expr, ...]) -> str:
        """Where a block begins, of a buffer whose last two axes are blocks."""
        return self.offset(self.address(buffer, (*place, build.ZERO, build.ZERO)))

    def _write(self, array: Array, stmt: Store, mask: Code | None) -> None:
        mask_lanes = lanes_of(stmt.mask.type) if mask is not None and stmt.mask is not None else 1
        with self.active(mask, mask_lanes):
            address = self.address(array, stmt.indices)
            value = self._stored(stmt.value, element_of(array.dtype))
            call = self._store_call(array, address, value, is_vector(stmt.value), mask_lanes)
            if stmt.stream:
                call = self._around_caches(call, array)
        if call.startswith("if "):
            test, _, call = call.partition(":\n")
            self.line(f"{test}:", self.place(stmt.loc))
            with self.indented():
                self.line(call)
        else:
            self.line(call, self.place(stmt.loc))

    def _around_caches(self, call: str, array: Array) -> str:
        """The call of a store, changed to one that may go around the caches."""
        word, _, rest = call.partition("(")
        around = {"store": "store_streaming", "store_masked": "store_masked_streaming"}.get(word)
        if around is None:
            raise InternalError(f"{array.name} is not stored by whole vectors: {call}")
        streamed = self.streamed(array)
        self._unfenced += [streamed] if streamed not in self._unfenced else []
        return f"{self.use(around)}({rest.removesuffix(')')}, {streamed})"

    def _stored(self, value: Expr, element: Scalar) -> Code:
        if element.is_half:
            return self.function(f"to_{element.name}", [self.as_float(value).text])
        return self.converted(value, element)

    def _store_call(self, array: Array, address: Address, value: Code, vector_value: bool, mask_lanes: int) -> str:
        name, offset, store = self.array(array.name), self.offset(address), "store"
        lanes = max(address.lanes, mask_lanes)
        width = lanes_of(array.dtype)
        if lanes == 1:
            if width > 1 and not vector_value:
                value = self.function("splat", [value.text, str(width)])
            elif vector_value and width == 1:
                raise InternalError(f"a vector is stored in one element of {array.name}")
            return self.function(store, [name, offset, value.text]).text
        mask = self.active_mask(lanes)
        if address.lanes == 1 and not vector_value:
            test = self.function("reduce_or", [mask or ""]).text
            return f"if {test}:\n{self.function(store, [name, offset, value.text]).text}"
        if address.lanes > 1 and address.step is None:
            return self.function("scatter_masked", [name, offset, value.text, mask or self._all_on(lanes)]).text
        step = "0" if address.step is None else self.index(address.step)
        if step == "1":
            if mask is not None:
                return self.function("store_masked", [name, offset, value.text, mask]).text
            if not vector_value:
                value = self.function("splat", [value.text, str(lanes)])
            return self.function(store, [name, offset, value.text]).text
        args = [name, offset, step, value.text, mask or self._all_on(lanes)]
        return self.function("store_strided_masked", args).text

    def _all_on(self, lanes: int) -> str:
        return self.function("splat", ["True", str(lanes)]).text

    # ------------------------------------------------------------------------------------------ local arrays

    def register(self, array: Array, indices: tuple[Expr, ...]) -> str | None:
        """The variable that is this element of an array that lives in variables, else `None`."""
        if array.space != "register" or array.name not in self._in_registers:
            return None
        position = "_".join(str(build.constant(index)) for index in indices)
        return self.names.of("register", f"{array.name}_{position}" if position else array.name)

    def alloc(self, stmt: Alloc) -> None:
        """Memory for a local array: once at the function's entry where its extents are known there."""
        array = stmt.array
        if array.space == "register" and array.name in self._in_registers:
            return
        if array in self._memory:
            return
        name = self.names.fresh(array.name)
        size: Expr = build.const(lanes_of(array.dtype))
        for extent in array.shape:
            size = build.mul(size, extent)
        hoisted = self._known_at_entry(size)
        text = f"{name} = {self._memory_text(array, size)}"
        if hoisted:
            self._memory[array] = name
            self._hoisted[array, name] = text
        else:
            self._memory[array] = name
            self.line(text, self.place(stmt.loc))

    @contextmanager
    def memory_here(self) -> Iterator[None]:
        """Memory for the statements written meanwhile is allocated before them, not at the function's entry."""
        hoisted, memory, place = dict(self._hoisted), dict(self._memory), len(self.lines)
        yield
        new = [text for key, text in self._hoisted.items() if key not in hoisted]
        self.lines[place:place] = [f"{INDENT * self.depth}{text}" for text in new]
        self._hoisted, self._memory = hoisted, memory

    def _known_at_entry(self, size: Expr) -> bool:
        known = variables(size) <= self._parameters
        return known and not any(isinstance(part, Load) for part in walk_expr(size))

    def _memory_text(self, array: Array, size: Expr) -> str:
        element = element_of(array.dtype)
        dtype = self.use("uint16") if element.is_half else self.dtype_name(element)
        count = build.constant(size)
        if count is not None and count * element.bytes <= STACK_BYTES and array.name not in self.shared:
            return self.function("stack", [dtype, str(max(count, 1))]).text
        return self.function("scratch", [self.index(size), dtype]).text


def _register_arrays(body: Body) -> frozenset[str]:
    """The arrays of registers of which every index is a constant: each element can be a variable."""
    declared = {
        stmt.array.name for stmt in walk(body) if isinstance(stmt, Alloc) and stmt.array.space == "register"
    }
    accesses: list[Load | Store] = [part for part in expressions(body) if isinstance(part, Load)]
    accesses += [stmt for stmt in walk(body) if isinstance(stmt, Store)]
    indexed = {
        access.array
        for access in accesses
        if access.mask is not None or any(build.constant(index) is None for index in access.indices)
    }
    return frozenset(declared - indexed)
