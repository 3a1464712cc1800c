"""The checks of indices that depend on data: what each is of, their numbers in a kernel, and what they say.

Compiled code cannot make a message: it hands over the number of the check that failed, the index and the extent.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyschedule.ir.nodes import Call, Expr, Kernel, Load, Location, Store
from pyschedule.ir.printer import format_expr
from pyschedule.ir.types import INT64
from pyschedule.ir.users_names import renamed
from pyschedule.ir.visitors import expressions

#: The number of a check that nothing is known of.
UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class IndexLocation(Location):
    """Where an index is checked: the access, with `text` as it stands there, and the axis of the array."""

    array: str = ""
    axis: int = 0
    text: str = ""

    @property
    def message(self) -> str:
        """With `{index}` and `{extent}` to be filled in."""
        place, text = (part.replace("{", "{{").replace("}", "}}") for part in (str(self), self.text))
        axis = f"axis {self.axis} of '{self.array}', which has extent {{extent}}"
        return f"{place}: index {{index}} is outside {axis}, in `{text}`"


def check(index: Expr, access: Load | Store, axis: int, extent: Expr, names: dict[str, str]) -> Call:
    """The index of one axis of an access as it is written, checked against the extent; `names` are those that the
    user has for some variables."""
    loc = access.loc
    if loc is not None:
        text = format_expr(renamed(Load(access.array, access.indices, INT64), names))
        where = loc.file, loc.line, loc.column, loc.end_line, loc.end_column
        loc = IndexLocation(*where, access.array, axis, text)
    return Call("checked_index", (index, extent), INT64, loc)


def explicit(index: int, extent: int, where: Location | None) -> int:
    """Python's index, negative from the end, as one from the start; what a check does."""
    if not -extent <= index < extent:
        raise failure((where.message,) if isinstance(where, IndexLocation) else (), 0, index, extent)
    return index + extent if index < 0 else index


def numbers(kernel: Kernel) -> dict[Location, int]:
    """The checks of a kernel by their places, numbered from 0 in the order in which they stand in it."""
    found = (
        part.loc
        for part in expressions(kernel.body)
        if isinstance(part, Call) and part.function == "checked_index" and isinstance(part.loc, IndexLocation)
    )
    return {loc: number for number, loc in enumerate(dict.fromkeys(found))}


def messages(kernel: Kernel) -> tuple[str, ...]:
    """What each check of a kernel says, by its number."""
    return tuple(loc.message for loc in numbers(kernel) if isinstance(loc, IndexLocation))


def failure(told: tuple[str, ...], number: int, index: int, extent: int) -> IndexError:
    """The error of a check; `told` are the messages of its kernel."""
    if not 0 <= number < len(told):
        return IndexError(f"index {index} is out of bounds for an axis of extent {extent}")
    return IndexError(told[number].format(index=index, extent=extent))
