"""Hints to the processor: an element that will be read soon, or written."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from pyschedule.codegen.simd.memory import element_pointer
from pyschedule.codegen.simd.types import INT32, intrinsic

_FOR_READING, _FOR_WRITING = 0, 1
_TO_ALL_CACHES, _DATA = 3, 1


def _prefetch(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, purpose: int) -> None:
    pointer = element_pointer(context, builder, array_type, array, offset)
    address = builder.bitcast(pointer, ir.IntType(8).as_pointer())
    kind = ir.FunctionType(ir.VoidType(), [address.type, INT32, INT32, INT32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    hints = (purpose, _TO_ALL_CACHES, _DATA)
    builder.call(function, [address, *(ir.Constant(INT32, hint) for hint in hints)])


@intrinsic
def prefetch(_typing: Any, array: Any, offset: Any) -> Any:
    """Asks for the cache line of an element.  An address where there is no memory is no error: nothing is read."""
    if not isinstance(array, types.Array) or not isinstance(offset, types.Integer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _prefetch(context, builder, signature.args[0], args[0], args[1], _FOR_READING)
        return context.get_dummy_value()

    return types.none(array, types.int64), codegen


@intrinsic
def prefetch_for_writing(_typing: Any, array: Any, offset: Any, streamed: Any) -> Any:
    """Asks for the cache line of an element that will be written; not if its array is stored around the caches."""
    if not isinstance(array, types.Array) or not isinstance(offset, types.Integer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        with builder.if_then(builder.not_(context.cast(builder, args[2], signature.args[2], types.boolean))):
            _prefetch(context, builder, signature.args[0], args[0], args[1], _FOR_WRITING)
        return context.get_dummy_value()

    return types.none(array, types.int64, types.boolean), codegen
