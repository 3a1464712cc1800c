"""Parameters of the kernel from the specs of a call's arguments; what does not suit is refused by name."""

from __future__ import annotations

from pyschedule.frontend.blockform import Block
from pyschedule.frontend.parser import Parsed
from pyschedule.frontend.promotion import held
from pyschedule.frontend.surface import Give, Loop, Name, SetName, names_in, place_of
from pyschedule.ir.build import const
from pyschedule.ir.nodes import Array, Dim, Location, Var
from pyschedule.ir.signature import ArraySpec, ScalarSpec, Signature
from pyschedule.ir.types import Scalar
from pyschedule.ir.visitors import Body, children, walk

Parameter = Array | Var


def bind(parsed: Parsed, signature: Signature, block: Block | None) -> tuple[Parameter, ...]:
    """One `Array` or `Var` for each parameter.

    Raises `TypeError` where an array and a number are mixed up, or an array has another rank than its uses;
    `ValueError` where an array is read-only but stored to, or has not the shape that the block form fixes.
    """
    given = signature.arguments
    if len(given) != len(parsed.params):
        names = ", ".join(parsed.params)
        raise TypeError(f"{parsed.name}() takes {len(parsed.params)} arguments ({names}), not {len(given)}")
    shapes = dict(zip(parsed.arrays, block.input_shapes, strict=False)) if block is not None else {}
    params: list[Parameter] = []
    for name, spec in zip(parsed.params, given, strict=True):
        if isinstance(spec, ScalarSpec):
            if name in parsed.arrays:
                raise TypeError(f"argument '{name}' of {parsed.name}() must be an array, not a number")
            params.append(Var(name, held(spec.type), parsed.loc))
        else:
            params.append(_array(parsed, name, spec, shapes.get(name)))
    return tuple(params)


def _array(parsed: Parsed, name: str, spec: ArraySpec, fixed: tuple[int | None, ...] | None) -> Array:
    who = f"argument '{name}' of {parsed.name}()"
    if name not in parsed.arrays:
        place = _computed_with(parsed.body, name)
        if place is not None:
            raise TypeError(f"{who} must be a number, not an array: see {place}")
    wanted = dict(parsed.ranks).get(name)
    if wanted is not None and wanted != spec.rank:
        raise TypeError(f"{who} has {spec.rank} axes, the kernel indexes {wanted}")
    if spec.readonly and name in parsed.written:
        raise ValueError(f"{who} is read-only, and the kernel writes to it")
    extents = spec.shape
    if fixed is not None:
        if len(fixed) != spec.rank or any(
            given is not None and want is not None and given != want
            for given, want in zip(spec.shape, fixed, strict=False)
        ):
            raise ValueError(f"{who} has the shape {_shape(spec.shape)}, 'input_shapes' says {_shape(fixed)}")
        extents = tuple(want if want is not None else given for given, want in zip(spec.shape, fixed, strict=True))
    shape = tuple(Dim(name, axis) if extent is None else const(extent) for axis, extent in enumerate(extents))
    return Array(name, Scalar(spec.dtype), shape, "global", spec.unit_axis, spec.divisor, parsed.loc)


def _computed_with(body: Body, name: str) -> Location | None:
    """Where a body reads or assigns a name other than by returning it whole."""
    for stmt in walk(body):
        parts = [part for part in children(stmt) if not (isinstance(stmt, Give) and isinstance(part, Name))]
        if any(name in names_in(part) for part in parts) or (
            isinstance(stmt, SetName | Loop) and stmt.name == name
        ):
            return place_of(stmt)
    return None


def _shape(extents: tuple[int | None, ...]) -> str:
    inner = ", ".join("?" if extent is None else str(extent) for extent in extents)
    return f"({inner},)" if len(extents) == 1 else f"({inner})"
