"""Arithmetic intrinsics for generated CUDA source: lane by lane on vectors, and on scalars where Python has no
operator of the same meaning.

Both operands of an operation have the same type; the emitter broadcasts and converts before it calls.  Lanes
are unrolled here, in LLVM, so that the generated source stays short.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce
from typing import Any, Final

from llvmlite import ir
from numba.cuda import cgutils, types

from pyschedule.codegen.cuda_program import STATUS_OFFSET
from pyschedule.codegen.ptx import (
    BIT,
    INT32,
    INT64,
    Rule,
    VectorType,
    constant,
    define,
    element_of,
    lanes_of,
    llvm_element,
    with_lanes,
)
from pyschedule.codegen.ptx_names import LIBDEVICE_NAMES, LONG

#: `operation(builder, element's Numba type, operands of one lane) -> result of one lane`
Lane = Callable[..., Any]


def _is_float(element: Any) -> bool:
    return isinstance(element, types.Float)


def _is_signed(element: Any) -> bool:
    return isinstance(element, types.Integer) and element.signed


def _arithmetic(float_op: str, int_op: str) -> Lane:
    return lambda b, element, x, y: getattr(b, float_op if _is_float(element) else int_op)(x, y)


def _compare(op: str) -> Lane:
    def lane(b: Any, element: Any, x: Any, y: Any) -> Any:
        if _is_float(element):
            return b.fcmp_unordered("une", x, y) if op == "!=" else b.fcmp_ordered(op, x, y)
        return (b.icmp_signed if _is_signed(element) else b.icmp_unsigned)(op, x, y)

    return lane


_LESS: Final = _compare("<")
_MORE: Final = _compare(">")


def _is_nan(b: Any, element: Any, x: Any) -> Any:
    return b.fcmp_unordered("uno", x, x) if _is_float(element) else ir.Constant(BIT, 0)


def _python_extreme(better: Lane) -> Lane:
    """Python's `max(a, b)`: `b if b > a else a` (and `min` alike)."""
    return lambda b, element, x, y: b.select(better(b, element, y, x), y, x)


def _numpy_extreme(better: Lane) -> Lane:
    """`np.maximum`: a NaN on either side wins."""

    def lane(b: Any, element: Any, x: Any, y: Any) -> Any:
        # `x` stays unless `y` is better; a NaN in `y` replaces it, a NaN in `x` stays.
        take = better(b, element, y, x)
        if _is_float(element):
            take = b.and_(b.or_(take, _is_nan(b, element, y)), b.not_(_is_nan(b, element, x)))
        return b.select(take, y, x)

    return lane


def _call_libdevice(b: Any, element: Any, name: str, *args: Any) -> Any:
    llvm = llvm_element(element)
    suffix = "f" if element.bitwidth == 32 else ""
    kind = ir.FunctionType(llvm, [llvm] * len(args))
    symbol = f"__nv_{LIBDEVICE_NAMES.get(name, name)}{suffix}"
    return b.call(cgutils.get_or_insert_function(b.module, kind, symbol), args)


def _divide_floor(b: Any, element: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Quotient and remainder as Python has them; integer division by zero gives 0, as NumPy's."""
    llvm = x.type
    zero = constant(llvm, 0)
    if _is_float(element):
        rest = _call_libdevice(b, element, "fmod", x, y)
        differs = b.fcmp_unordered("une", rest, zero)
        negative_rest, negative_y = (b.fcmp_ordered("<", v, zero) for v in (rest, y))
        adjust = b.and_(differs, b.xor(negative_rest, negative_y))
        rest = b.select(adjust, b.fadd(rest, y), rest)
        rest = b.select(differs, rest, _call_libdevice(b, element, "copysign", zero, y))
        exact = b.fdiv(b.fsub(x, rest), y)
        down = _call_libdevice(b, element, "floor", exact)
        short = b.fcmp_ordered(">", b.fsub(exact, down), constant(llvm, 0.5))
        return b.select(short, b.fadd(down, constant(llvm, 1.0)), down), rest
    by_zero = b.icmp_unsigned("==", y, zero)
    divisor = b.select(by_zero, constant(llvm, 1), y)
    if not _is_signed(element):
        quotient, rest = b.udiv(x, divisor), b.urem(x, divisor)
    else:
        quotient, rest = b.sdiv(x, divisor), b.srem(x, divisor)
        differs = b.icmp_signed("!=", rest, zero)
        adjust = b.and_(differs, b.icmp_signed("<", b.xor(rest, divisor), zero))
        quotient = b.select(adjust, b.sub(quotient, constant(llvm, 1)), quotient)
        rest = b.select(adjust, b.add(rest, divisor), rest)
    return b.select(by_zero, zero, quotient), b.select(by_zero, zero, rest)


def _shift(left: bool) -> Lane:
    """A count of the width or more gives what shifting one by one would."""

    def lane(b: Any, element: Any, x: Any, count: Any) -> Any:
        width = constant(x.type, x.type.width)
        too_far = b.icmp_unsigned(">=", count, width)
        if not left and _is_signed(element):
            return b.ashr(x, b.select(too_far, constant(x.type, x.type.width - 1), count))
        shifted = (b.shl if left else b.lshr)(x, b.select(too_far, constant(x.type, 0), count))
        return b.select(too_far, constant(x.type, 0), shifted)

    return lane


def _negate(b: Any, element: Any, x: Any) -> Any:
    # NVVM's dialect of LLVM may be older than the `fneg` instruction.
    return b.fsub(constant(x.type, -0.0), x) if _is_float(element) else b.neg(x)


def _absolute(b: Any, element: Any, x: Any) -> Any:
    if _is_float(element):
        return _call_libdevice(b, element, "fabs", x)
    if not _is_signed(element):
        return x
    return b.select(b.icmp_signed("<", x, constant(x.type, 0)), b.neg(x), x)


def _is_finite(b: Any, element: Any, x: Any) -> Any:
    if not _is_float(element):
        return ir.Constant(BIT, 1)
    return b.fcmp_ordered("<", _absolute(b, element, x), constant(x.type, float("inf")))


def _is_infinite(b: Any, element: Any, x: Any) -> Any:
    if not _is_float(element):
        return ir.Constant(BIT, 0)
    return b.fcmp_ordered("==", _absolute(b, element, x), constant(x.type, float("inf")))


def _float_true_divide(b: Any, element: Any, x: Any, y: Any) -> Any:
    return b.fdiv(x, y)


_BINARY: Final[dict[str, Lane]] = {
    "add": _arithmetic("fadd", "add"),
    "sub": _arithmetic("fsub", "sub"),
    "mul": _arithmetic("fmul", "mul"),
    "div": _float_true_divide,
    "floordiv": lambda b, element, x, y: _divide_floor(b, element, x, y)[0],
    "mod": lambda b, element, x, y: _divide_floor(b, element, x, y)[1],
    "and": lambda b, element, x, y: b.and_(x, y),
    "or": lambda b, element, x, y: b.or_(x, y),
    "xor": lambda b, element, x, y: b.xor(x, y),
    "shl": _shift(True),
    "shr": _shift(False),
    "pmin": _python_extreme(_LESS),
    "pmax": _python_extreme(_MORE),
    "minimum": _numpy_extreme(_LESS),
    "maximum": _numpy_extreme(_MORE),
}
_COMPARISONS: Final = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_UNARY: Final[dict[str, Lane]] = {
    "neg": _negate,
    "inv": lambda b, element, x: b.not_(x),
    "not": lambda b, element, x: b.not_(x),
    "abs": _absolute,
}
_TESTS: Final[dict[str, Lane]] = {"isnan": _is_nan, "isinf": _is_infinite, "isfinite": _is_finite}
_LIBDEVICE: Final = {
    **dict.fromkeys(
        [
            "sqrt",
            "exp",
            "exp2",
            "expm1",
            "log",
            "log2",
            "log10",
            "log1p",
            "sin",
            "cos",
            "tan",
            "asin",
            "acos",
            "atan",
            "sinh",
            "cosh",
            "tanh",
            "asinh",
            "acosh",
            "atanh",
            "erf",
            "cbrt",
            "erfc",
            "gamma",
            "lgamma",
            "floor",
            "ceil",
            "trunc",
        ],
        1,
    ),
    **dict.fromkeys(("atan2", "hypot", "copysign", "fmod", "remainder", "pow"), 2),
}


def _lanes_of_value(b: Any, numba_type: Any, value: Any) -> list[Any]:
    if not isinstance(numba_type, VectorType):
        return [value]
    return [b.extract_element(value, ir.Constant(INT32, lane)) for lane in range(numba_type.lanes)]


def _gathered(b: Any, numba_type: Any, parts: list[Any]) -> Any:
    if not isinstance(numba_type, VectorType):
        return parts[0]
    result: Any = ir.Constant(ir.VectorType(parts[0].type, len(parts)), ir.Undefined)
    for lane, part in enumerate(parts):
        result = b.insert_element(result, part, ir.Constant(INT32, lane))
    return result


def _lane_rule(operation: Lane, result: Callable[[Any], Any]) -> Rule:
    """Applies `operation` lane by lane; all arguments have the type of the first."""

    def rule(*kinds: Any) -> Any:
        kind = kinds[0]
        returned = result(kind)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            columns = [_lanes_of_value(b, kind, arg) for arg in args]
            parts = [operation(b, element_of(kind), *lane) for lane in zip(*columns, strict=True)]
            return _gathered(b, returned, parts)

        return returned(*[kind] * len(kinds)), code

    return rule


def _same(kind: Any) -> Any:
    return kind


def _truth(kind: Any) -> Any:
    return with_lanes(types.boolean, lanes_of(kind))


def _splat_rule(lanes: int) -> Rule:
    def rule(value: Any) -> Any:
        kind = VectorType(types.unliteral(value), lanes)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            return _gathered(b, kind, [args[0]] * lanes)

        return kind(types.unliteral(value)), code

    return rule


def _ramp_rule(lanes: int) -> Rule:
    """`base, base + stride, ...`, of the type of `base`."""

    def rule(base: Any, stride: Any) -> Any:
        element = types.unliteral(base)
        kind = VectorType(element, lanes)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            steps = [b.mul(args[1], ir.Constant(args[1].type, lane)) for lane in range(lanes)]
            return _gathered(b, kind, [b.add(args[0], step) for step in steps])

        return kind(element, element), code

    return rule


def _cast_rule(dtype: str) -> Rule:
    """Conversion of every lane, as Numba converts one number (a bool: whether it is not zero)."""
    target = types.boolean if dtype == "bool" else getattr(types, dtype)

    def rule(value: Any) -> Any:
        source = element_of(value)
        kind = with_lanes(target, lanes_of(value))

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            parts = [_convert(context, b, part, source, target) for part in _lanes_of_value(b, value, args[0])]
            return _gathered(b, kind, parts)

        return kind(value), code

    return rule


def _convert(context: Any, b: Any, part: Any, source: Any, target: Any) -> Any:
    if isinstance(target, types.Boolean):
        if isinstance(source, types.Boolean):
            return part
        zero = constant(part.type, 0)
        return b.fcmp_unordered("une", part, zero) if _is_float(source) else b.icmp_unsigned("!=", part, zero)
    if isinstance(source, types.Boolean):
        wide = b.zext(part, INT64)
        return context.cast(b, wide, types.int64, target)
    return context.cast(b, part, source, target)


def _select_rule(test: Any, then: Any, orelse: Any) -> Any:
    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        tests, thens, elses = (
            _lanes_of_value(b, kind, arg) for kind, arg in zip(signature.args, args, strict=True)
        )
        return _gathered(b, then, [b.select(*lane) for lane in zip(tests, thens, elses, strict=True)])

    return then(test, then, then), code


def _fma_rule(x: Any, y: Any, z: Any) -> Any:
    return _lane_rule(lambda b, element, *args: _call_libdevice(b, element, "fma", *args), _same)(x, y, z)


def _reduce_rule(operation: Lane) -> Rule:
    """All lanes combined pairwise, halves first: the order does not depend on the values."""

    def rule(vector: Any) -> Any:
        element = element_of(vector)

        def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
            parts = _lanes_of_value(b, vector, args[0])
            while len(parts) > 1 and len(parts) % 2 == 0:
                half = len(parts) // 2
                parts = [operation(b, element, parts[n], parts[n + half]) for n in range(half)]
            return reduce(lambda x, y: operation(b, element, x, y), parts)

        return element(vector), code

    return rule


def _checked_index_rule(status: Any, index: Any, extent: Any, number: Any) -> Any:
    """A Python index made one in `0 <= result < extent`; out of range: 0, and the first in a launch to be so writes
    the status words."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        words = b.inttoptr(args[0], ir.PointerType(INT64, 1))
        told = b.add(args[3], constant(INT64, STATUS_OFFSET))
        count = args[2]
        parts = []
        for given in _lanes_of_value(b, index, args[1]):
            negative = b.icmp_signed("<", given, constant(INT64, 0))
            wrapped = b.select(negative, b.add(given, count), given)
            fits = b.icmp_unsigned("<", wrapped, count)
            with b.if_then(b.not_(fits)):
                seen = b.cmpxchg(words, constant(INT64, 0), told, "monotonic", "monotonic")
                with b.if_then(b.extract_value(seen, 1)):
                    for place, value in ((1, given), (2, count)):
                        b.store(value, b.gep(words, [constant(INT64, place)]))
            parts.append(b.select(fits, wrapped, constant(INT64, 0)))
        return _gathered(b, index, parts)

    return index(types.uint64, index, types.int64, types.int64), code


def _in_range_rule(index: Any, extent: Any) -> Any:
    """Whether a Python index is in range: `-extent <= index < extent`."""

    def code(context: Any, b: Any, signature: Any, args: Any) -> Any:
        parts = []
        for given in _lanes_of_value(b, index, args[0]):
            negative = b.icmp_signed("<", given, constant(INT64, 0))
            wrapped = b.select(negative, b.add(given, args[1]), given)
            parts.append(b.icmp_unsigned("<", wrapped, args[1]))
        return _gathered(b, _truth(index), parts)

    return _truth(index)(index, types.int64), code


_FIXED: Final[dict[str, tuple[int, Rule]]] = {
    "vselect": (3, _select_rule),
    "vfma": (3, _fma_rule),
    "checked_index": (4, _checked_index_rule),
    "in_range": (2, _in_range_rule),
}
_SIZED = re.compile(r"^(splat|ramp)(\d+)$")


def build(name: str) -> Any:
    """The intrinsic called `name`, or `None`.

    `v` and an operation (`vadd`, `vlt`, `vexp`, ...), `reduce_` and an operation, `splat4`, `ramp4`,
    `cast_f32`, `checked_index`, `in_range`, `vselect`, `vfma`; `pmin`, `pmax`, `minimum`, `maximum`,
    `floordiv`, `mod`, `isnan`, `isinf`, `isfinite` also by their plain names, for scalars.
    """
    if name in _FIXED:
        return define(name, *_FIXED[name])
    sized = _SIZED.match(name)
    if sized:
        lanes = int(sized[2])
        if sized[1] == "splat":
            return define(name, 1, _splat_rule(lanes))
        return define(name, 2, _ramp_rule(lanes))
    if name.startswith("reduce_") and name.removeprefix("reduce_") in _BINARY:
        return define(name, 1, _reduce_rule(_BINARY[name.removeprefix("reduce_")]))
    if name.startswith("cast_") and name.removeprefix("cast_") in {*LONG} - {"f16", "bf16"}:
        return define(name, 1, _cast_rule(LONG[name.removeprefix("cast_")]))
    operation = name.removeprefix("v")
    if operation in _BINARY:
        return define(name, 2, _lane_rule(_BINARY[operation], _same))
    if operation in _COMPARISONS:
        return define(name, 2, _lane_rule(_compare(_COMPARISONS[operation]), _truth))
    if operation in _UNARY:
        return define(name, 1, _lane_rule(_UNARY[operation], _same))
    if operation in _TESTS:
        return define(name, 1, _lane_rule(_TESTS[operation], _truth))
    if operation in _LIBDEVICE:

        def lane(b: Any, element: Any, *args: Any) -> Any:
            return _call_libdevice(b, element, operation, *args)

        return define(name, _LIBDEVICE[operation], _lane_rule(lane, _same))
    return None
