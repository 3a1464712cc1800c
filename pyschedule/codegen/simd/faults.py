"""What compiled code raises while it runs: an index out of range, with the numbers that make its message.

Numba has exceptions with arguments that are known at run time: a description on the heap, with their values and a
function that makes a tuple of these, of which its wrapper makes the exception (`set_dynamic_user_exc` of
`CPUCallConv`, in `numba/core/callconv.py`).  Its own function of that kind belongs to the environment of one
function, and cannot be part of several that are linked; here both are a few instructions, apart from what is hot.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import callconv, cgutils, types

from pyschedule.codegen.simd.types import INT32, INT64

_BYTES = ir.IntType(8).as_pointer()
_DETAILS = 3
#: The description as Numba reads it, and behind it the values.
_FAULT = ir.LiteralStructType([callconv.excinfo_t, ir.ArrayType(INT64, _DETAILS)])


class IndexFault(IndexError):
    """A checked index was out of range; the arguments are the number of the check, the index and the extent."""


class _Given(ir.Value):  # type: ignore[misc]
    """Stands for an argument that is known at run time, as any value does for Numba; this one takes few bytes."""


def raise_index_fault(context: Any, builder: Any, number: Any, index: Any, extent: Any) -> None:
    """Leaves the function that is being built with an `IndexFault`."""
    raising = _raising(context, builder.module)
    nothing = ir.Constant(raising.args[0].type, None)
    code = builder.call(raising, [nothing, _slot(context, builder), number, index, extent])
    context.call_conv._return_errcode_raw(builder, code)


def raise_again(context: Any, builder: Any, fault: Any) -> None:
    """Leaves the function that is being built with an exception by its description."""
    builder.store(fault, _slot(context, builder))
    context.call_conv._return_errcode_raw(builder, callconv.RETCODE_USEREXC)


def forget(context: Any, builder: Any, fault: Any) -> None:
    """Frees the description of an exception that will not be raised."""
    allocated = builder.extract_value(builder.load(fault), callconv.ALLOC_FLAG_IDX)
    with builder.if_then(builder.icmp_signed(">", allocated, INT32(0))):
        context.nrt.free(builder, builder.bitcast(fault, _BYTES))


def _slot(context: Any, builder: Any) -> Any:
    """Where a function leaves the description of its exception."""
    return context.call_conv._get_excinfo_argument(builder.function)


def _raising(context: Any, module: Any) -> Any:
    """The function, in Numba's calling convention, that raises an `IndexFault`."""
    name = "pyschedule.index_fault"
    if name in module.globals:
        return module.globals[name]
    kind = context.call_conv.get_function_type(types.none, (types.int64,) * _DETAILS)
    function = ir.Function(module, kind, name)
    function.linkage = "internal"
    function.attributes.add("cold")
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    what = IndexFault, (_Given(),) * _DETAILS, None
    static = builder.load(context.get_python_api(builder).serialize_object(what))
    size = INT64(context.get_abi_sizeof(_FAULT))
    fault = builder.bitcast(context.nrt.allocate(builder, size), _FAULT.as_pointer())
    values = cgutils.gep_inbounds(builder, fault, 0, 1)
    for place, value in enumerate(context.call_conv.get_arguments(function)):
        builder.store(value, cgutils.gep_inbounds(builder, values, 0, place))
    description = static
    for place, value in (
        (callconv.HASH_BUF_IDX, builder.bitcast(values, _BYTES)),
        (callconv.UNWRAP_FUNC_IDX, builder.bitcast(_unwrapping(context, module), _BYTES)),
        (callconv.ALLOC_FLAG_IDX, INT32(_DETAILS)),
    ):
        description = builder.insert_value(description, value, place)
    info = cgutils.gep_inbounds(builder, fault, 0, 0)
    builder.store(description, info)
    raise_again(context, builder, info)
    return function


def _unwrapping(context: Any, module: Any) -> Any:
    """The function that makes a tuple of the values."""
    function = ir.Function(module, ir.FunctionType(_BYTES, [_BYTES]), "pyschedule.index_fault.values")
    function.linkage = "internal"
    function.attributes.add("noinline")
    builder = ir.IRBuilder(function.append_basic_block("entry"))
    api = context.get_python_api(builder)
    values = builder.load(builder.bitcast(function.args[0], ir.ArrayType(INT64, _DETAILS).as_pointer()))
    numbers = [api.long_from_longlong(builder.extract_value(values, place)) for place in range(_DETAILS)]
    result = api.tuple_pack(numbers)
    for number in numbers:
        api.decref(number)
    # Numba keeps its reference for ever: the next call, which finds that nothing else uses the tuple, drops it.
    last = cgutils.add_global_variable(module, _BYTES, f"{function.name}.last")
    last.linkage, last.initializer = "internal", ir.Constant(_BYTES, None)
    api.decref(builder.load(last))
    builder.store(result, last)
    builder.ret(result)
    return function
