"""Python identifiers for the names of a kernel, none of them taken twice and none that the module needs."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable


class Names:
    """Hands out identifiers: the wanted one where it is free, else with the first free number behind it."""

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._taken = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins), *reserved}
        self._given: dict[tuple[str, str], str] = {}

    def fresh(self, wanted: str) -> str:
        """An identifier that nobody has yet."""
        base = re.sub(r"\W", "_", wanted) or "x"
        if base[0].isdigit():
            base = f"_{base}"
        name, number = base, 2
        while name in self._taken:
            name, number = f"{base}_{number}", number + 1
        self._taken.add(name)
        return name

    def of(self, kind: str, name: str) -> str:
        """The identifier of one thing of the kernel (`kind` keeps a variable and an array apart)."""
        key = (kind, name)
        if key not in self._given:
            self._given[key] = self.fresh(name)
        return self._given[key]
