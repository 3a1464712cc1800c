"""A hint to the processor: an element that will be read soon."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from pyschedule.codegen.simd.memory import element_pointer
from pyschedule.codegen.simd.types import INT32, intrinsic

_FOR_READING, _TO_ALL_CACHES, _DATA = 0, 3, 1


@intrinsic
def prefetch(_typing: Any, array: Any, offset: Any) -> Any:
    """Asks for the cache line of an element.  An address where there is no memory is no error: nothing is read."""
    if not isinstance(array, types.Array) or not isinstance(offset, types.Integer):
        return None

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = element_pointer(context, builder, signature.args[0], *args)
        address = builder.bitcast(pointer, ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [address.type, INT32, INT32, INT32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        hints = (_FOR_READING, _TO_ALL_CACHES, _DATA)
        builder.call(function, [address, *(ir.Constant(INT32, hint) for hint in hints)])
        return context.get_dummy_value()

    return types.none(array, types.int64), codegen
