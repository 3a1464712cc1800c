"""What one `unroll` may make at most."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Final

from pyschedule.errors import ScheduleError

#: The environment variable that sets other limits.
VARIABLE: Final = "PYSCHEDULE_UNROLL_LIMITS"


@dataclass(frozen=True, slots=True)
class UnrollLimits:
    """Copies of the innermost body that one directive may make, and basic blocks and operations in all copies."""

    copies: int = 1024
    blocks: int = 8192
    operations: int = 65536

    @classmethod
    def read(cls, environment: Mapping[str, str]) -> UnrollLimits:
        """The limits that `PYSCHEDULE_UNROLL_LIMITS` sets, as in `copies=4096,blocks=20000`.

        Raises `ScheduleError` for text of another form.
        """
        limits = cls()
        names = [item.name for item in fields(cls)]
        for part in filter(None, environment.get(VARIABLE, "").replace(" ", "").split(",")):
            name, _, value = part.partition("=")
            if name not in names or not value.isdecimal() or not int(value):
                raise ScheduleError(
                    f"{VARIABLE}: {part!r} sets no limit; allowed are {', '.join(names)}, each a positive integer, "
                    f"as in 'copies={2 * limits.copies},operations={2 * limits.operations}'"
                )
            limits = replace(limits, **{name: int(value)})
        return limits
