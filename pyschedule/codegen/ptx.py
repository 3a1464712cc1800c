"""The intrinsics that generated CUDA source calls: memory accesses, lane arithmetic and loop markers.

`from pyschedule.codegen.ptx import load_f32x4, vadd, unroll_full` works for every name of the grammar in
`ptx_names`, every operation of `ptx_lanes`, and the markers of `loop_markers`: intrinsics are built when
first asked for.

A vector is an LLVM vector value: NVVM turns a load or store of one that is aligned to 16 bytes into 128-bit
accesses, and its arithmetic into scalar instructions, lane by lane.  Halves live in memory as 16-bit words;
loads widen them to float32, stores round them (to nearest, ties to even).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import intrinsic, models, register_model

from pyschedule.codegen import loop_markers, ptx_names
from pyschedule.codegen.ptx_names import MemoryName

BIT = ir.IntType(1)
INT16 = ir.IntType(16)
INT32 = ir.IntType(32)
INT64 = ir.IntType(64)

#: `rule(*argument types) -> (signature, codegen) | None`, as Numba's `intrinsic` wants it, less the context.
Rule = Callable[..., Any]


class VectorType(types.Type):  # type: ignore[misc]
    """`lanes` values of a Numba number type or boolean, as one LLVM vector."""

    def __init__(self, element: Any, lanes: int) -> None:
        self.element = element
        self.lanes = lanes
        super().__init__(name=f"vector({element}, {lanes})")


@register_model(VectorType)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, numba_type: Any) -> None:
        super().__init__(manager, numba_type, ir.VectorType(llvm_element(numba_type.element), numba_type.lanes))


def llvm_element(element: Any) -> Any:
    if isinstance(element, types.Boolean):
        return BIT
    if isinstance(element, types.Integer):
        return ir.IntType(element.bitwidth)
    return ir.FloatType() if element.bitwidth == 32 else ir.DoubleType()


def value_type(dtype: str) -> Any:
    """The Numba type of an element of an array of IR dtype `dtype` once loaded."""
    if dtype in ("float16", "bfloat16"):
        return types.float32
    return types.boolean if dtype == "bool" else getattr(types, dtype)


def with_lanes(element: Any, lanes: int) -> Any:
    return element if lanes == 1 else VectorType(element, lanes)


def lanes_of(numba_type: Any) -> int:
    return numba_type.lanes if isinstance(numba_type, VectorType) else 1


def element_of(numba_type: Any) -> Any:
    return numba_type.element if isinstance(numba_type, VectorType) else numba_type


def widened(llvm: Any, lanes: int) -> Any:
    return llvm if lanes == 1 else ir.VectorType(llvm, lanes)


def constant(llvm: Any, number: Any) -> Any:
    """`number`, in every lane where `llvm` is a vector type."""
    if isinstance(llvm, ir.VectorType):
        return ir.Constant(llvm, [ir.Constant(llvm.element, number)] * llvm.count)
    return ir.Constant(llvm, number)


def define(name: str, arity: int, rule: Rule) -> Any:
    """A Numba intrinsic called `name` from a rule over `arity` argument types."""
    wrappers: dict[int, Callable[..., Any]] = {
        0: lambda typingctx: rule(),
        1: lambda typingctx, a: rule(a),
        2: lambda typingctx, a, b: rule(a, b),
        3: lambda typingctx, a, b, c: rule(a, b, c),
        4: lambda typingctx, a, b, c, d: rule(a, b, c, d),
    }
    wrapper = wrappers[arity]
    wrapper.__name__ = wrapper.__qualname__ = name
    return intrinsic(wrapper)


# ------------------------------------------------------------------------------------- storage and value


def _storage(dtype: str) -> Any:
    if dtype in ("float16", "bfloat16"):
        return INT16
    return ir.IntType(8) if dtype == "bool" else llvm_element(getattr(types, dtype))


def widen(builder: Any, dtype: str, stored: Any) -> Any:
    """A stored element (or vector of them) as the value that is computed with."""
    lanes = stored.type.count if isinstance(stored.type, ir.VectorType) else 1
    if dtype == "float16":
        return _converted(builder, "llvm.convert.from.fp16.f32", stored, ir.FloatType())
    if dtype == "bfloat16":
        bits = builder.zext(stored, widened(INT32, lanes))
        return builder.bitcast(builder.shl(bits, constant(bits.type, 16)), widened(ir.FloatType(), lanes))
    if dtype == "bool":
        return builder.icmp_unsigned("!=", stored, constant(stored.type, 0))
    return stored


def narrow(builder: Any, dtype: str, value: Any) -> Any:
    """A value as it is stored; halves are rounded to nearest even, NaN stays NaN."""
    lanes = value.type.count if isinstance(value.type, ir.VectorType) else 1
    if dtype == "float16":
        return _converted(builder, "llvm.convert.to.fp16.f32", value, INT16)
    if dtype == "bfloat16":
        bits = builder.bitcast(value, widened(INT32, lanes))
        high = builder.lshr(bits, constant(bits.type, 16))
        odd = builder.and_(high, constant(bits.type, 1))
        rounded = builder.lshr(
            builder.add(builder.add(bits, constant(bits.type, 0x7FFF)), odd), constant(bits.type, 16)
        )
        quiet = builder.or_(high, constant(bits.type, 0x40))
        is_nan = builder.fcmp_unordered("uno", value, value)
        return builder.trunc(builder.select(is_nan, quiet, rounded), widened(INT16, lanes))
    if dtype == "bool":
        return builder.zext(value, widened(ir.IntType(8), lanes))
    return value


def _converted(builder: Any, name: str, value: Any, result: Any) -> Any:
    """A number, or a vector lane by lane, through an intrinsic between float32 and the 16 bits of a half.

    Halves stay integers to LLVM: NVVM joins neighbouring accesses of eight elements of its type `half` into one
    that it then calls an unsupported operation; of eight 16-bit integers it makes one access of 128 bits.
    """
    element = value.type.element if isinstance(value.type, ir.VectorType) else value.type
    function = builder.module.declare_intrinsic(name, (), ir.FunctionType(result, [element]))
    if element is value.type:
        return builder.call(function, [value])
    whole: Any = ir.Constant(ir.VectorType(result, value.type.count), ir.Undefined)
    for lane in range(value.type.count):
        index = ir.Constant(INT32, lane)
        whole = builder.insert_element(
            whole, builder.call(function, [builder.extract_element(value, index)]), index
        )
    return whole


# -------------------------------------------------------------------------------------------- memory


def _pointer(context: Any, builder: Any, name: MemoryName, base_type: Any, base: Any) -> Any:
    """A pointer to the first element of the array, in its own address space."""
    element = _storage(name.dtype)
    if name.space == "global":
        return builder.inttoptr(base, ir.PointerType(element, 1))
    data = context.make_array(base_type)(context, builder, base).data
    pointer = builder.bitcast(data, ir.PointerType(element))
    if name.space == "shared":
        return builder.addrspacecast(pointer, ir.PointerType(element, 3))
    return pointer


def _wide_offset(builder: Any, offset: Any) -> Any:
    """An element offset as 64 bits.  Narrower ones are unsigned: extended with zeros, which LLVM's GEP would
    not do by itself."""
    return offset if offset.type == INT64 else builder.zext(offset, INT64)


def _lane(builder: Any, value: Any, lane: int) -> Any:
    if not isinstance(value.type, ir.VectorType):
        return value
    return builder.extract_element(value, ir.Constant(INT32, lane))


def _words_of(element: Any, lanes: int) -> int:
    """How many 32-bit words a whole vector of small elements is accessed as; 0 where it is accessed as it is.

    NVVM takes vectors of elements below 32 bits apart, and sees through a cast of the vector as a whole.
    """
    bits = lanes * element.width if isinstance(element, ir.IntType) and element.width < 32 else 0
    return bits // 32 if bits % 32 == 0 else 0


def _load(builder: Any, name: MemoryName, pointer: Any, element: Any, lanes: int) -> Any:
    words = _words_of(element, lanes)
    accessed = widened(INT32, words) if words else widened(element, lanes)
    if lanes > 1:
        pointer = builder.bitcast(pointer, ir.PointerType(accessed, pointer.type.addrspace))
    loaded = builder.load(pointer, align=min(16, name.scalar.bytes * lanes))
    if name.readonly:
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
    if not words:
        return loaded
    result: Any = ir.Constant(ir.VectorType(element, lanes), ir.Undefined)
    per_word = lanes // words
    for lane in range(lanes):
        word = _lane(builder, loaded, lane // per_word)
        shifted = builder.lshr(word, ir.Constant(INT32, element.width * (lane % per_word)))
        result = builder.insert_element(result, builder.trunc(shifted, element), ir.Constant(INT32, lane))
    return result


def _store_whole(builder: Any, name: MemoryName, pointer: Any, stored: Any) -> None:
    element, lanes = stored.type.element, stored.type.count
    words = _words_of(element, lanes)
    if words:
        per_word = lanes // words
        parts = []
        for first in range(0, lanes, per_word):
            word: Any = ir.Constant(INT32, 0)
            for lane in range(per_word):
                wide = builder.zext(_lane(builder, stored, first + lane), INT32)
                word = builder.or_(word, builder.shl(wide, ir.Constant(INT32, element.width * lane)))
            parts.append(word)
        stored = parts[0]
        if words > 1:
            stored = ir.Constant(ir.VectorType(INT32, words), ir.Undefined)
            for index, word in enumerate(parts):
                stored = builder.insert_element(stored, word, ir.Constant(INT32, index))
    target = builder.bitcast(pointer, ir.PointerType(stored.type, pointer.type.addrspace))
    builder.store(stored, target, align=min(16, name.scalar.bytes * lanes))


def _guarded_load(builder: Any, name: MemoryName, pointer: Any, element: Any, test: Any) -> Any:
    """One element, or zero where `test` is false, whose address is then not touched."""
    before = builder.block
    with builder.if_then(test):
        loaded = _load(builder, name, pointer, element, 1)
        inside = builder.block
    result = builder.phi(element)
    result.add_incoming(constant(element, 0), before)
    result.add_incoming(loaded, inside)
    return result


def _element_pointers(builder: Any, pointer: Any, offsets: Any, lanes: int) -> list[Any]:
    """One pointer a lane: `offsets` is a vector of offsets, or the first of consecutive ones."""
    if isinstance(offsets.type, ir.VectorType):
        return [
            builder.gep(pointer, [_wide_offset(builder, _lane(builder, offsets, lane))]) for lane in range(lanes)
        ]
    first = builder.gep(pointer, [_wide_offset(builder, offsets)])
    return [first if lane == 0 else builder.gep(first, [ir.Constant(INT64, lane)]) for lane in range(lanes)]


def _load_lanes(builder: Any, name: MemoryName, pointers: list[Any], mask: Any) -> Any:
    element = _storage(name.dtype)
    if len(pointers) == 1:
        if mask is None:
            return _load(builder, name, pointers[0], element, 1)
        return _guarded_load(builder, name, pointers[0], element, mask)
    result: Any = ir.Constant(ir.VectorType(element, len(pointers)), ir.Undefined)
    for lane, pointer in enumerate(pointers):
        if mask is None:
            one = _load(builder, name, pointer, element, 1)
        else:
            one = _guarded_load(builder, name, pointer, element, _lane(builder, mask, lane))
        result = builder.insert_element(result, one, ir.Constant(INT32, lane))
    return result


def all_lanes(builder: Any, mask: Any) -> Any:
    result = _lane(builder, mask, 0)
    for lane in range(1, mask.type.count if isinstance(mask.type, ir.VectorType) else 1):
        result = builder.and_(result, _lane(builder, mask, lane))
    return result


def _load_rule(name: MemoryName) -> Rule:
    def rule(base: Any, offset: Any, mask: Any = None) -> Any:
        lanes = max(name.lanes, lanes_of(offset))
        whole = lanes > 1 and not name.indexed and name.aligned

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _pointer(context, builder, name, signature.args[0], args[0])
            pointers = _element_pointers(builder, pointer, args[1], lanes)
            test = args[2] if name.masked else None
            if not whole:
                return widen(builder, name.dtype, _load_lanes(builder, name, pointers, test))
            if test is None:
                return widen(builder, name.dtype, _load(builder, name, pointers[0], _storage(name.dtype), lanes))
            with builder.if_else(all_lanes(builder, test)) as (full, partial):
                with full:
                    at_once = _load(builder, name, pointers[0], _storage(name.dtype), lanes)
                    full_block = builder.block
                with partial:
                    one_by_one = _load_lanes(builder, name, pointers, test)
                    partial_block = builder.block
            result = builder.phi(at_once.type)
            result.add_incoming(at_once, full_block)
            result.add_incoming(one_by_one, partial_block)
            return widen(builder, name.dtype, result)

        result = with_lanes(value_type(name.dtype), lanes)
        return (result(base, offset, mask) if name.masked else result(base, offset)), code

    return rule


def _store_lanes(builder: Any, name: MemoryName, pointers: list[Any], stored: Any, mask: Any) -> None:
    for lane, pointer in enumerate(pointers):
        one = _lane(builder, stored, lane)
        if mask is None:
            builder.store(one, pointer, align=name.scalar.bytes)
        else:
            with builder.if_then(_lane(builder, mask, lane)):
                builder.store(one, pointer, align=name.scalar.bytes)


def _store_rule(name: MemoryName) -> Rule:
    def rule(base: Any, offset: Any, value: Any, mask: Any = None) -> Any:
        lanes = max(name.lanes, lanes_of(offset))
        whole = lanes > 1 and not name.indexed and name.aligned

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            pointer = _pointer(context, builder, name, signature.args[0], args[0])
            pointers = _element_pointers(builder, pointer, args[1], lanes)
            stored = narrow(builder, name.dtype, args[2])
            test = args[3] if name.masked else None
            if not whole:
                _store_lanes(builder, name, pointers, stored, test)
            elif test is None:
                _store_whole(builder, name, pointers[0], stored)
            else:
                with builder.if_else(all_lanes(builder, test)) as (full, partial):
                    with full:
                        _store_whole(builder, name, pointers[0], stored)
                    with partial:
                        _store_lanes(builder, name, pointers, stored, test)
            return context.get_dummy_value()

        # The value is converted by Numba to what the array holds.
        held = with_lanes(value_type(name.dtype), lanes)
        if name.masked:
            return types.none(base, offset, held, mask), code
        return types.none(base, offset, held), code

    return rule


def _memory(text: str, name: MemoryName) -> Any:
    arity = 2 + name.writes + name.masked
    return define(text, arity, _store_rule(name) if name.writes else _load_rule(name))


# -------------------------------------------------------------------------------------- halves in arrays


def _half_rule(dtype: str, widens: bool) -> Rule:
    def rule(value: Any) -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return (widen if widens else narrow)(builder, dtype, args[0])

        if widens:
            return types.float32(types.uint16), code
        return types.uint16(types.float32), code

    return rule


# ------------------------------------------------------------------------------------------ loop markers


def _marker_rule(unroll: int) -> Rule:
    def rule() -> Any:
        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            text = loop_markers.marker_text(unroll)
            builder.call(ir.InlineAsm(ir.FunctionType(ir.VoidType(), []), text, "", side_effect=True), [])
            return context.get_dummy_value()

        return types.none(), code

    return rule


def _stop_rule(control: Any) -> Any:
    """Word 0 of a call's control array, which lies in the host's memory, as int32: not 0 once the call is to stop.

    The load is done each time, and sees what the host has written.
    """

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(INT32, [INT64])
        load = ir.InlineAsm(kind, "ld.relaxed.sys.global.s32 $0, [$1];", "=r,l", side_effect=True)
        return builder.call(load, [args[0]])

    return types.int32(types.uint64), code


def _round_rule(dtype: str) -> Rule:
    """float32 (or a vector of it) rounded to a half type, held as float32."""

    def rule(value: Any) -> Any:
        held = with_lanes(types.float32, lanes_of(value))

        def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return widen(builder, dtype, narrow(builder, dtype, args[0]))

        return held(held), code

    return rule


@cache
def _build(name: str) -> Any:
    memory = ptx_names.parse(name)
    if memory is not None:
        return _memory(name, memory)
    head, _, short = name.rpartition("_")
    if short in ("f16", "bf16") and head in ("widen", "narrow"):
        return define(name, 1, _half_rule(ptx_names.LONG[short], head == "widen"))
    if short in ("f16", "bf16") and head == "round":
        return define(name, 1, _round_rule(ptx_names.LONG[short]))
    if name == "stop_requested":
        return define(name, 1, _stop_rule)
    if name in ("unroll_full", "stay_rolled"):
        return define(name, 0, _marker_rule(-1 if name == "unroll_full" else 1))
    if name.startswith("unroll_by_") and name.removeprefix("unroll_by_").isdigit():
        return define(name, 0, _marker_rule(int(name.removeprefix("unroll_by_"))))
    from pyschedule.codegen import ptx_lanes

    return ptx_lanes.build(name)


def __getattr__(name: str) -> Any:
    built = None if name.startswith("__") else _build(name)
    if built is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return built
