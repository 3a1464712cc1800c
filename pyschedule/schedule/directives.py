"""The directives: what a user asked for, as data that checks itself.

Each decorator makes one of these; the transforms read them.  Arguments are converted and checked here, once;
what needs the kernel to check (is there such a loop?) is checked by `schedule.resolve`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

from pyschedule.errors import ScheduleError
from pyschedule.ir.nodes import Location
from pyschedule.ir.types import DTYPES
from pyschedule.schedule.names import parse


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """`target`: `"cpu"`, `"cuda"` or `None` (both).  `loc` is the decorator's place."""

    target: str | None = None
    strict: bool = False
    strict_math: bool = False
    loc: Location | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile(Directive):
    """`sizes`: loop name → sizes, outermost first.  `order`: every piece once.  `stage`: array → the piece
    inside which its tile is copied.  `parallel`: the pieces whose iterations threads share.  `display`: how the
    log writes the sizes where it is not `i=..., j=...` (the block form); `automatic` asks for staging where it
    fits, without a word if it does not."""

    sizes: tuple[tuple[str, tuple[int, ...]], ...] = ()
    order: tuple[str, ...] = ()
    stage: tuple[tuple[str, str], ...] = ()
    parallel: tuple[str, ...] = ()
    display: str = ""
    automatic: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockForm(Directive):
    """The body speaks of one tile of each input; see `frontend.blockform`."""

    input_shapes: tuple[tuple[int | None, ...], ...]
    tile_shapes: tuple[tuple[int, ...], ...]
    pad: tuple[tuple[int, ...], ...] | int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Vectorize(Directive):
    loop: str | None = None
    width: int | None = None
    dtype: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unroll(Directive):
    """`loop` with a `factor` (`None`: full); or `factors` for the innermost non-reduction loops; or neither:
    automatic."""

    loop: str | None = None
    factor: int | None = None
    factors: tuple[int, ...] = ()

    @property
    def automatic(self) -> bool:
        return self.loop is None and not self.factors


@dataclass(frozen=True, slots=True, kw_only=True)
class NoUnroll(Directive):
    loop: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll(Directive):
    every: int = 4096


D = TypeVar("D", bound=Directive)


@dataclass(frozen=True, slots=True)
class Schedule:
    """All directives of a kernel, in source order (the topmost decorator first)."""

    directives: tuple[Directive, ...] = ()

    def for_target(self, kind: str) -> Schedule:
        """Those that hold for a target's kind (`"cpu"` or `"cuda"`)."""
        return Schedule(tuple(item for item in self.directives if item.target in (None, kind)))

    @property
    def strict(self) -> bool:
        return any(item.strict for item in self.directives)

    @property
    def strict_math(self) -> bool:
        return any(item.strict_math for item in self.directives)

    def of(self, kind: type[D]) -> tuple[D, ...]:
        return tuple(item for item in self.directives if isinstance(item, kind))

    def annotates(self, source: str, ordinal: int) -> bool:
        """Whether a directive names the loop `source`, the `ordinal`-th of its name, or chooses for itself."""
        names: list[str] = []
        for item in self.directives:
            if isinstance(item, Tile):
                names += [name for name, _ in item.sizes] + [*item.order, *(piece for _, piece in item.stage)]
                names += item.parallel
            elif isinstance(item, (Vectorize, Unroll, NoUnroll)) and item.loop is not None:
                names.append(item.loop)
            else:
                return True
        specs = [parse(name) for name in names]
        return any(spec is not None and spec.names(source, ordinal) for spec in specs)


# ------------------------------------------------------------------------------ conversion of arguments


def positive(value: Any, what: str, loc: Location | None) -> int:
    """An `int` of at least 1 (a NumPy integer will do; a bool will not)."""
    number = integer(value)
    if number is None or number < 1:
        raise ScheduleError(f"{what} must be a positive integer, not {value!r}", loc)
    return number


def sizes_of(value: Any, what: str, loc: Location | None) -> tuple[int, ...]:
    """One size, or a sequence of sizes that do not grow inwards."""
    values: Iterable[Any] = value if isinstance(value, (tuple, list)) else (value,)
    sizes = tuple(positive(item, what, loc) for item in values)
    if not sizes:
        raise ScheduleError(f"{what} must have at least one size", loc)
    for outer, inner in pairwise(sizes):
        if inner > outer:
            raise ScheduleError(f"{what}: the inner size {inner} is above its outer size {outer}", loc)
    return sizes


def words(value: Any, what: str, loc: Location | None) -> tuple[str, ...]:
    """`"i.0 j.0"` or a sequence of such names."""
    if value is None:
        return ()
    names = (
        tuple(value.split()) if isinstance(value, str) else tuple(value) if isinstance(value, Sequence) else None
    )
    if names is None or not all(isinstance(name, str) for name in names):
        raise ScheduleError(f"{what} must be a string of loop names, not {value!r}", loc)
    return names


def pairs(value: Any, what: str, loc: Location | None) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, Mapping) or not all(isinstance(part, str) for item in value.items() for part in item):
        raise ScheduleError(f"{what} must map array names to loop names, not {value!r}", loc)
    return tuple(value.items())


def extents_of(value: Any, what: str, loc: Location | None, *, free: bool) -> tuple[tuple[int | None, ...], ...]:
    """One shape an input, each a sequence of integers; `free` also allows 0 and `None` (any extent)."""
    allowed = "integers (or None for any extent)" if free else "positive integers"
    if not isinstance(value, (tuple, list)) or not value:
        raise ScheduleError(f"{what} must be a list of shapes, one an input, not {value!r}", loc)
    shapes: list[tuple[int | None, ...]] = []
    for shape in value:
        if not isinstance(shape, (tuple, list)):
            raise ScheduleError(f"{what} must be a list of shapes, one an input; {shape!r} is no shape", loc)
        extents: list[int | None] = []
        for extent in shape:
            if extent is None and free:
                extents.append(None)
                continue
            number = integer(extent)
            if number is None or number < (0 if free else 1):
                raise ScheduleError(f"{what}: {extent!r} in {shape!r} is no extent; {allowed} are", loc)
            extents.append(number)
        shapes.append(tuple(extents))
    return tuple(shapes)


def pad_of(value: Any, what: str, loc: Location | None) -> tuple[tuple[int, ...], ...] | int:
    """One padding for every window, or one sequence an input of one padding an axis; none is negative."""
    number = integer(value)
    if number is not None and number >= 0:
        return number
    if isinstance(value, (tuple, list)) and all(isinstance(part, (tuple, list)) for part in value):
        rows = tuple(tuple(integer(pad) for pad in part) for part in value)
        pads = tuple(tuple(pad for pad in row if pad is not None and pad >= 0) for row in rows)
        if pads == rows:
            return pads
    raise ScheduleError(
        f"{what} must be an integer of at least 0, or a tuple an input of one such integer an axis, not {value!r}",
        loc,
    )


def integer(value: Any) -> int | None:
    """The `int` of an integer (a NumPy one will do; a bool will not), else `None`."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        return None
    try:
        return int(value.__index__())
    except TypeError:  # an array of more than one element has the method and no index
        return None


#: Names of element types that people use, beside NumPy's own.
_ALIASES = {
    "half": "float16",
    "float": "float32",
    "single": "float32",
    "double": "float64",
    "bf16": "bfloat16",
}


def dtype_of(value: Any, what: str, loc: Location | None) -> str | None:
    """The name of an element type, from `"half"`, `"float32"`, `np.float32` or a NumPy dtype; `None` stays."""
    if value is None:
        return None
    name = value if isinstance(value, str) else getattr(value, "name", None) or getattr(value, "__name__", None)
    name = _ALIASES.get(name, name) if isinstance(name, str) else None
    if name not in DTYPES:
        raise ScheduleError(
            f"{what} must be an element type, not {value!r}; allowed are half, {', '.join(DTYPES)}", loc
        )
    return name
