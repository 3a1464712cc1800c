"""Loads, stores and the addresses they need, as the text of generated CUDA Python."""

from __future__ import annotations

from pyschedule.codegen.cuda_expr import Expressions
from pyschedule.codegen.cuda_integers import Text, as_ramp, held
from pyschedule.codegen.ptx_names import SHORT, MemoryName
from pyschedule.ir.nodes import Array, BinOp, Const, Expr, Load, Var
from pyschedule.ir.types import BOOL, INT64, Vector, element_of, lanes_of
from pyschedule.ir.visitors import walk_expr


class Accesses(Expressions):
    """Writes accesses to arrays.

    Global offsets are computed modulo 2**32 in narrow programs; the part of an index that only depends on
    unrolled counters is added to the address by itself, as a constant.
    """

    # ------------------------------------------------------------------------------------------- memory

    def _strides(self, array: Array) -> list[int | str | None]:
        """Per axis: the stride of a local array as a number, `None` for the unit axis of a parameter, else the
        name of the stride parameter."""
        if array.space == "global":
            return [
                None if axis == array.unit_axis else self.stride(array.name, axis) for axis in range(array.rank)
            ]
        strides: list[int | str | None] = []
        step = lanes_of(array.dtype)
        for extent in reversed(array.shape):
            strides.append(step)
            value = self.facts.interval(extent)
            step *= value[1]
        return strides[::-1]

    def offset(self, array: Array, indices: tuple[Expr, ...]) -> Text:
        """The element offset of a scalar access (or of a vector's first lane)."""
        strides = self._strides(array)
        if array.space != "global":
            return self._sum([(index, stride) for index, stride in zip(indices, strides, strict=True)], "u64")
        if not self.narrow:
            return self._sum([(index, stride) for index, stride in zip(indices, strides, strict=True)], "u64")
        rest: list[tuple[Expr, int | str | None]] = []
        constants: list[tuple[Expr, int | str | None]] = []
        for index, stride in zip(indices, strides, strict=True):
            if stride is None:
                fixed, moving = self._split_constant_part(index)
                constants.extend((part, None) for part in fixed)
                rest.extend((part, None) for part in moving)
            else:
                rest.append((index, stride))
        if not constants:
            return self._sum(rest, "u32")
        if not rest:
            return self._sum(constants, "u64")
        narrow = self._sum(rest, "u32")
        return Text(f"{self.use('u64')}({narrow.text}) + {self._sum(constants, 'u64').text}", "u64")

    def _split_constant_part(self, index: Expr) -> tuple[list[Expr], list[Expr]]:
        """The terms of a sum over unrolled counters alone, which become immediate offsets, and the others.

        Both parts must be non-negative, so that either is exact by itself; else all is one part.
        """
        terms = [term for term in _terms(index) if term != Const(0, INT64)]
        fixed = [term for term in terms if self._is_unrolled(term)]
        moving = [term for term in terms if not self._is_unrolled(term)]
        low = sum(self.facts.interval(term)[0] for term in moving)
        if not fixed or low < 0 or any(self.facts.interval(term)[0] < 0 for term in fixed):
            return [], [index]
        return fixed, moving

    def _is_unrolled(self, term: Expr) -> bool:
        leaves = [part for part in walk_expr(term) if not isinstance(part, BinOp)]
        return all(
            isinstance(leaf, Const) or (isinstance(leaf, Var) and self.kinds.get(leaf.name) == "u64")
            for leaf in leaves
        )

    def _sum(self, parts: list[tuple[Expr, int | str | None]], kind: str) -> Text:
        """`sum(index * stride)` modulo 2**32 or 2**64, cut down to that width."""
        terms: list[str] = []
        for index, stride in parts:
            if isinstance(index, Const) and isinstance(stride or 1, int):
                index, stride = Const(int(index.value) * int(stride or 1), INT64), 1
                if index.value == 0:
                    continue
            text = self.modular(index, kind)
            if stride is None or stride == 1:
                terms.append(text.text)
            elif isinstance(stride, int):
                terms.append(f"{text.operand} * {self.use(kind)}({stride})")
            else:
                factor = stride if self.offset_kind == kind else f"{self.use(kind)}({stride})"
                terms.append(f"{text.operand} * {factor}")
        if not terms:
            return Text(f"{self.use(kind)}(0)", kind, True)
        total = " + ".join(terms)
        if kind == "u64":
            return Text(total, kind)
        if len(terms) == 1 and total.isidentifier():
            return Text(total, kind, True)
        return Text(f"{self.use(kind)}({total})", kind, True)

    def _element_bytes(self, array: Array) -> int:
        return element_of(array.dtype).bytes

    def _is_aligned(self, array: Array, indices: tuple[Expr, ...], lanes: int) -> bool:
        """Whether consecutive lanes from these indices start at a multiple of their size (at most 16 bytes)."""
        size = self._element_bytes(array)
        need = min(16, lanes * size) // size
        if need <= 1:
            return True
        for axis, index in enumerate(indices):
            if array.space == "global":
                unit = 1 if axis == array.unit_axis else array.divisor
            else:
                stride = self._strides(array)[axis]
                unit = stride if isinstance(stride, int) else 1
            if (self.facts.divisor(index) * unit) % need:
                return False
        return array.space != "global" or array.divisor % need == 0

    def access(
        self, array: Array, indices: tuple[Expr, ...], lanes: int, writes: bool, masked: bool
    ) -> tuple[MemoryName, str]:
        """The intrinsic and the offset of a vector access."""
        space = "global" if array.space == "global" else "shared" if array.space == "shared" else "local"
        readonly = space == "global" and not writes and self.readonly(array.name)
        dtype = element_of(array.dtype).name
        vectors = [axis for axis, index in enumerate(indices) if lanes_of(index.type) > 1]
        unit = array.unit_axis if array.space == "global" else array.rank - 1
        ramps = {axis: as_ramp(indices[axis]) for axis in vectors}
        bases = tuple(
            ramp.base if (ramp := ramps.get(axis)) is not None else index for axis, index in enumerate(indices)
        )
        if len(vectors) <= 1 and not isinstance(array.dtype, Vector):
            axis = vectors[0] if vectors else None
            ramp = ramps[axis] if axis is not None else None
            contiguous = ramp is not None and ramp.stride == 1 and axis == unit
            if contiguous:
                aligned = self._is_aligned(array, bases, lanes)
                name = MemoryName(space, writes, dtype, lanes, False, readonly, aligned, masked)
                return name, self.offset(array, bases).text
        if isinstance(array.dtype, Vector) and not vectors:
            name = MemoryName(space, writes, dtype, lanes, False, readonly, True, masked)
            return name, self.offset(array, indices).text
        name = MemoryName(space, writes, dtype, 1, True, readonly, True, masked)
        return name, self._vector_offsets(array, indices, lanes)

    def _vector_offsets(self, array: Array, indices: tuple[Expr, ...], lanes: int) -> str:
        """Offsets lane by lane, in int64."""
        i64 = self.use("i64")
        total = ""
        for index, stride in zip(indices, self._strides(array), strict=True):
            part = self.lanes(index, INT64, lanes)
            if stride is not None and stride != 1:
                part = f"{self.use('vmul')}({part}, {self.use(f'splat{lanes}')}({i64}({stride})))"
            total = f"{self.use('vadd')}({total}, {part})" if total else part
        return total

    def load(self, expr: Load) -> Text:
        array = self.facts.arrays[expr.array]
        lanes = lanes_of(expr.type)
        kind = SHORT[held(element_of(array.dtype)).name]
        base = self.pointer(array.name)
        mask = expr.mask
        if lanes == 1:
            offset = self.offset(array, expr.indices)
            space = "global" if array.space == "global" else "shared" if array.space == "shared" else "local"
            if array.space == "global":
                dtype = element_of(array.dtype).name
                name = MemoryName(space, False, dtype, 1, readonly=self.readonly(array.name))
                text = Text(f"{self.use(str(name))}({base}, {offset.text})", kind, True)
            else:
                text = self._from_storage(array, f"{base}[{offset.text}]")
            if mask is None:
                return text
            zero = self._constant(Const(0, held(element_of(array.dtype))))
            test = self.value(mask, BOOL)
            return Text(f"{text.text} if {test.operand} else {self.cast(zero, kind).text}", kind)
        memory, offset_text = self.access(array, expr.indices, lanes, False, mask is not None)
        args = [base, offset_text]
        if mask is not None:
            args.append(self.lanes(mask, BOOL, lanes))
        return Text(f"{self.use(str(memory))}({', '.join(args)})", kind, True)

    def _from_storage(self, array: Array, text: str) -> Text:
        dtype = element_of(array.dtype)
        if dtype.is_half:
            return Text(f"{self.use('widen_' + SHORT[dtype.name])}({text})", "f32", True)
        if dtype == BOOL:
            return Text(f"{text} != {self.use('u8')}(0)", "b8")
        return Text(text, SHORT[dtype.name], True)

    def to_storage(self, array: Array, value: Text) -> str:
        """The text to assign to an element of a local or shared array."""
        dtype = element_of(array.dtype)
        if dtype.is_half:
            return f"{self.use('narrow_' + SHORT[dtype.name])}({value.text})"
        if dtype == BOOL:
            return f"{self.use('u8')}({value.text})"
        return value.text


def _terms(expr: Expr) -> list[Expr]:
    """The terms of a sum (differences stay whole)."""
    if isinstance(expr, BinOp) and expr.op == "+" and expr.dtype == INT64:
        return _terms(expr.left) + _terms(expr.right)
    return [expr]
