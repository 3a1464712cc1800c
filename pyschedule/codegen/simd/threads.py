"""Threads: the pieces of a loop, each run by a thread of Numba's pool.

`prange` would do the same, at the price of a third of a second of compile time a loop: it takes a pass over the
whole function, and a generalised ufunc with its wrapper.  Here the entry of the threading layer is called that
Numba's code for `prange` calls in the end (`numba/np/ufunc/parallel.py`): `numba_parallel_for` runs
`function(arrays, dimensions, steps, data)` on each thread with its share of `dimensions[0]`, the addresses in
`arrays` moved on by `steps` to the first item of that share.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import numba
from llvmlite import ir
from numba.core import callconv, cgutils, compiler, types

from pyschedule.codegen.simd.faults import forget, raise_again
from pyschedule.codegen.simd.passes import FewerPasses, Part
from pyschedule.codegen.simd.types import INT32, INT64, intrinsic

_BYTES = ir.IntType(8).as_pointer()
_WORDS = INT64.as_pointer()
_PIECES = ir.FunctionType(ir.VoidType(), [_BYTES.as_pointer(), _WORDS, _WORDS, _BYTES])
_PARALLEL_FOR = ir.FunctionType(ir.VoidType(), [_BYTES] * 5 + [INT64] * 3)
#: What all threads see: the arguments, the number of pieces, and the description of the first error, 0 before.
_ARGUMENTS, _COUNT, _FAULT = range(3)


#: What has been compiled to become a part of the programs that call it, by function and types.
_parts: WeakKeyDictionary[Any, dict[tuple[Any, ...], Any]] = WeakKeyDictionary()


def _part(context: Any, function: Any, arguments: Any) -> Any:
    """A jitted function for a piece, the number of pieces and a tuple of arguments, as a part of the program that
    is being compiled."""
    known = _parts.setdefault(function, {})
    given = types.int64, types.int64, *map(types.unliteral, arguments.types)
    if given not in known:
        flags = compiler.Flags()
        function.targetdescr.options.parse_as_flags(flags, function.targetoptions)
        known[given] = compiler.compile_extra(
            *(function.targetdescr.typing_context, function.targetdescr.target_context),
            *(function.py_func, given, types.none, flags, {}),
            library=Part(context.codegen(), function.py_func.__name__),
            pipeline_class=FewerPasses,
        )
    part = known[given]
    context.active_code_library.add_linking_library(part.library)
    return part


@intrinsic
def on_threads(_typing: Any, work: Any, trips: Any, arguments: Any) -> Any:
    """Calls `work(piece, pieces, *arguments)` for each of `min(threads, trips)` pieces on a thread of its own, and
    waits; raises the error of one of those that raised one.  `work` is a jitted function without a result, which
    becomes a part of the program that calls this: it is never compiled for itself.

    Threads must have been started before machine code that calls this is loaded: `numba.get_num_threads()` does it.
    """
    numba.get_num_threads()

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        program = _part(context, work.dispatcher, arguments)
        packed = args[2]
        shared_type = ir.LiteralStructType([packed.type, INT64, INT64])
        pieces = _pieces(context, builder.module, program, shared_type)

        threads = _threads(builder)
        wanted = context.cast(builder, args[1], signature.args[1], types.int64)
        count = builder.select(builder.icmp_signed("<", wanted, threads), wanted, threads)
        shared = cgutils.alloca_once(builder, shared_type)
        for place, value in ((_ARGUMENTS, packed), (_COUNT, count), (_FAULT, INT64(0))):
            builder.store(value, cgutils.gep_inbounds(builder, shared, 0, place))
        with builder.if_then(builder.icmp_signed(">", count, INT64(0))):
            _launch(builder, pieces, shared, count, threads)
        fault = builder.load(cgutils.gep_inbounds(builder, shared, 0, _FAULT))
        with cgutils.if_unlikely(builder, builder.icmp_unsigned("!=", fault, INT64(0))):
            raise_again(context, builder, builder.inttoptr(fault, callconv.excinfo_ptr_t))
        return context.get_dummy_value()

    return types.none(work, trips, arguments), codegen


@intrinsic
def on_this_thread(_typing: Any, work: Any, arguments: Any) -> Any:
    """Calls `work(0, 1, *arguments)`, the one piece that is everything; an error of its goes to the caller."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        program = _part(context, work.dispatcher, arguments)
        given = [INT64(0), INT64(1), *cgutils.unpack_tuple(builder, args[1])]
        context.call_internal(builder, program.fndesc, program.signature, given)
        return context.get_dummy_value()

    return types.none(work, arguments), codegen


@intrinsic
def keep_busy(typing: Any, trips: Any) -> Any:
    """Whether so many iterations can be dealt out to the threads with at most one in seven idle at the end."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        threads = _threads(builder)
        wanted = context.cast(builder, args[0], signature.args[0], types.int64)
        rounds = builder.sdiv(builder.add(wanted, builder.sub(threads, INT64(1))), threads)
        dealt = builder.mul(rounds, threads)
        return builder.icmp_signed(">=", builder.mul(wanted, INT64(7)), builder.mul(dealt, INT64(6)))

    return types.boolean(trips), codegen


def _threads(builder: Any) -> Any:
    """How many threads the caller may use."""
    threads = builder.call(_function(builder, "get_num_threads", ir.FunctionType(INT64, [])), [])
    return builder.sext(builder.trunc(threads, INT32), INT64)  # the C function returns an int


def _launch(builder: Any, pieces: Any, shared: Any, count: Any, threads: Any) -> None:
    """Two "arrays": what is shared, at which each thread looks from its start, and the pieces, told by addresses a
    byte apart, which are never read."""
    arrays, steps = (cgutils.alloca_once(builder, kind, size=2) for kind in (_BYTES, INT64))
    nowhere = ir.Constant(_BYTES, None)
    for place, (address, step) in enumerate(((builder.bitcast(shared, _BYTES), 0), (nowhere, 1))):
        builder.store(address, builder.gep(arrays, [INT64(place)]))
        builder.store(INT64(step), builder.gep(steps, [INT64(place)]))
    dimensions = cgutils.alloca_once_value(builder, count)
    given = [builder.bitcast(value, _BYTES) for value in (pieces, arrays, dimensions, steps)]
    function = _function(builder, "numba_parallel_for", _PARALLEL_FOR)
    builder.call(function, [*given, nowhere, INT64(0), INT64(2), threads])


def _pieces(context: Any, module: Any, program: Any, shared_type: Any) -> Any:
    """The function that a thread runs: its pieces, one after the other."""
    function = ir.Function(module, _PIECES, module.get_unique_name(f"pieces.{program.fndesc.unique_name}"))
    function.linkage = "internal"
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    arrays, dimensions = function.args[0], function.args[1]
    shared = builder.bitcast(builder.load(arrays), shared_type.as_pointer())
    first = builder.ptrtoint(builder.load(builder.gep(arrays, [INT64(1)])), INT64)
    packed, count = (
        builder.load(cgutils.gep_inbounds(builder, shared, 0, place)) for place in (_ARGUMENTS, _COUNT)
    )
    arguments = cgutils.unpack_tuple(builder, packed)
    with cgutils.for_range(builder, builder.load(dimensions)) as loop:
        given = [builder.add(first, loop.index), count, *arguments]
        status, _ = context.call_internal_no_propagate(builder, program.fndesc, program.signature, given)
        with cgutils.if_unlikely(builder, status.is_error):
            place = cgutils.gep_inbounds(builder, shared, 0, _FAULT)
            own = builder.ptrtoint(status.excinfoptr, INT64)
            seen = builder.cmpxchg(place, INT64(0), own, "monotonic", "monotonic")
            with builder.if_then(builder.not_(builder.extract_value(seen, 1))):
                forget(context, builder, status.excinfoptr)
    builder.ret_void()
    return function


def _function(builder: Any, name: str, kind: Any) -> Any:
    return cgutils.get_or_insert_function(builder.module, kind, name)
