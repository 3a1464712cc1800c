"""The vector type in Numba: `lanes` values of one element type, held as one LLVM vector value.

Elements are Numba's number types and `boolean`; a vector of booleans is `<n x i1>`, a mask.  Vectors live in
variables only (never in an array or an argument of a jitted function; a tuple of them is for `store_transposed`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.datamodel import models
from numba.core.datamodel.registry import register_default
from numba.extending import intrinsic as _numba_intrinsic


class VectorType(types.Type):  # type: ignore[misc]
    def __init__(self, element: Any, lanes: int) -> None:
        self.element = element
        self.lanes = lanes
        super().__init__(name=f"{element}x{lanes}")


def _model(manager: Any, numba_type: Any) -> Any:
    element = manager.lookup(numba_type.element).get_value_type()
    return models.PrimitiveModel(manager, numba_type, ir.VectorType(element, numba_type.lanes))


register_default(VectorType)(_model)


def intrinsic(function: Callable[..., Any]) -> Any:
    """Makes `function(typingctx, *types) -> (signature, codegen) | None` callable from jitted code."""
    return _numba_intrinsic(prefer_literal=True)(function)


# ------------------------------------------------------------------------------------------- Numba types


def literal(numba_type: Any) -> Any:
    """The value of a literal type (`None` where it is not one)."""
    return numba_type.literal_value if isinstance(numba_type, types.Literal) else None


def plain(numba_type: Any) -> Any:
    return types.unliteral(numba_type)


def element_of(numba_type: Any) -> Any:
    numba_type = plain(numba_type)
    return numba_type.element if isinstance(numba_type, VectorType) else numba_type


def lanes_of(numba_type: Any) -> int:
    return numba_type.lanes if isinstance(numba_type, VectorType) else 1


def with_lanes(element: Any, lanes: int) -> Any:
    return element if lanes == 1 else VectorType(element, lanes)


def is_value(numba_type: Any) -> bool:
    """A number, a boolean, or a vector of them."""
    return isinstance(element_of(numba_type), (types.Integer, types.Float, types.Boolean))


def is_float(element: Any) -> bool:
    return isinstance(element, types.Float)


def is_signed(element: Any) -> bool:
    return isinstance(element, types.Integer) and element.signed


def common_lanes(*numba_types: Any) -> int:
    """The lanes of the widest; vectors of different widths do not mix (`ValueError`)."""
    widths = {lanes_of(item) for item in numba_types} - {1}
    if len(widths) > 1:
        raise ValueError(f"vectors of {sorted(widths)} lanes do not mix")
    return widths.pop() if widths else 1


# -------------------------------------------------------------------------------------------- LLVM types

BIT = ir.IntType(1)
BYTE = ir.IntType(8)
INT32 = ir.IntType(32)
INT64 = ir.IntType(64)


def llvm_element(element: Any) -> Any:
    """The LLVM type of one element as a value (`i1` for a boolean)."""
    if isinstance(element, types.Boolean):
        return BIT
    if isinstance(element, types.Integer):
        return ir.IntType(element.bitwidth)
    return {32: ir.FloatType(), 64: ir.DoubleType()}[element.bitwidth]


def storage_element(element: Any) -> Any:
    """The LLVM type of one element in memory (`i8` for a boolean)."""
    return BYTE if isinstance(element, types.Boolean) else llvm_element(element)


def element_bytes(element: Any) -> int:
    return 1 if isinstance(element, types.Boolean) else int(element.bitwidth) // 8


def llvm_type(numba_type: Any) -> Any:
    return widened(llvm_element(element_of(numba_type)), lanes_of(numba_type))


def widened(llvm_scalar: Any, lanes: int) -> Any:
    return llvm_scalar if lanes == 1 else ir.VectorType(llvm_scalar, lanes)


def lanes_in(value: Any) -> int:
    """The lanes of an LLVM value."""
    return int(value.type.count) if isinstance(value.type, ir.VectorType) else 1


def scalar_type(llvm: Any) -> Any:
    return llvm.element if isinstance(llvm, ir.VectorType) else llvm


def constant(llvm: Any, number: Any) -> Any:
    """`number`, or a vector that has it in every lane."""
    if isinstance(llvm, ir.VectorType):
        return ir.Constant(llvm, [ir.Constant(llvm.element, number)] * llvm.count)
    return ir.Constant(llvm, number)


def mangled(llvm: Any) -> str:
    """The type as it stands in the name of an overloaded LLVM intrinsic: `v16f32`."""
    if isinstance(llvm, ir.VectorType):
        return f"v{llvm.count}{mangled(llvm.element)}"
    if isinstance(llvm, ir.PointerType):
        return "p0"
    if isinstance(llvm, ir.IntType):
        return f"i{llvm.width}"
    return {ir.HalfType: "f16", ir.FloatType: "f32", ir.DoubleType: "f64"}[type(llvm)]


# ------------------------------------------------------------------------------------------- LLVM values


def broadcast(builder: Any, value: Any, lanes: int) -> Any:
    """`value` in all lanes; a vector is returned as it is."""
    if lanes == 1 or isinstance(value.type, ir.VectorType):
        return value
    vector = ir.VectorType(value.type, lanes)
    if isinstance(value, ir.Constant):
        return ir.Constant(vector, [value] * lanes)
    undefined = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(undefined, value, ir.Constant(INT32, 0))
    return builder.shuffle_vector(first, undefined, ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes))


def reverse(builder: Any, vector: Any) -> Any:
    lanes = vector.type.count
    order = ir.Constant(ir.VectorType(INT32, lanes), list(range(lanes - 1, -1, -1)))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), order)


def call_intrinsic(
    builder: Any, name: str, result: Any, args: list[Any], overloads: list[Any] | None = None
) -> Any:
    """Calls `llvm.name.<overloads>`; the overloads are the result's type unless given."""
    from numba.core import cgutils

    suffix = ".".join(mangled(item) for item in ([result] if overloads is None else overloads))
    function_type = ir.FunctionType(result, [arg.type for arg in args])
    function = cgutils.get_or_insert_function(builder.module, function_type, f"llvm.{name}.{suffix}")
    return builder.call(function, args)


def lanewise(builder: Any, function: Callable[..., Any], *args: Any) -> Any:
    """`function` (of scalar LLVM values) applied to each lane in turn."""
    lanes = max(lanes_in(arg) for arg in args)
    if lanes == 1:
        return function(*args)
    result: Any = None
    for lane in range(lanes):
        position = ir.Constant(INT32, lane)
        parts = [builder.extract_element(arg, position) if lanes_in(arg) > 1 else arg for arg in args]
        value = function(*parts)
        if result is None:
            result = ir.Constant(ir.VectorType(value.type, lanes), ir.Undefined)
        result = builder.insert_element(result, value, position)
    return result
