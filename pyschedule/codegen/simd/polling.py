"""Cancellation: the words of a call's control array, read and written by all its threads.

Word 0 is the request to stop, word 1 the number of the poll that left the kernel, 0 while none did; behind them
stands where that was.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from pyschedule.codegen.simd.types import INT64, intrinsic


def _word(context: Any, builder: Any, array_type: Any, array: Any, index: int) -> Any:
    """The address of a word."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [ir.Constant(INT64, index)])


@intrinsic
def stop_requested(_typing: Any, control: Any) -> Any:
    """Whether the call was asked to stop.

    The load is atomic, so that it is done each time, and monotonic: it orders nothing else.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _word(context, builder, signature.args[0], args[0], 0)
        word = builder.load_atomic(place, "monotonic", 8)
        return builder.icmp_unsigned("!=", word, ir.Constant(INT64, 0))

    return types.boolean(control), codegen


@intrinsic
def first_to_leave(_typing: Any, control: Any, number: Any) -> Any:
    """Whether no thread has left the kernel yet; `number` then says which poll this one leaves by."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _word(context, builder, signature.args[0], args[0], 1)
        zero, own = ir.Constant(INT64, 0), context.cast(builder, args[1], signature.args[1], types.int64)
        pair = builder.cmpxchg(place, zero, own, "monotonic", "monotonic")
        return builder.extract_value(pair, 1)

    return types.boolean(control, number), codegen
