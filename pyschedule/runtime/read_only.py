"""Machine code in a directory that can be read and not written.

Numba looks for its cache only where it could write: beside a module in a read-only directory (a package that an
administrator installed, an image that was filled when it was built) it would not even look.  `InReadOnlyTree` is
one more place for it to look, after the writable one beside the module, for generated modules alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from numba.core.caching import CacheImpl, InTreeCacheLocator

#: How the names of generated modules begin.
GENERATED = "_pyschedule_"


class InReadOnlyTree(InTreeCacheLocator):  # type: ignore[misc]
    """The `__pycache__` beside a generated module, where its machine code is and nothing can be added."""

    @classmethod
    def from_function(cls, py_func: Any, py_file: str) -> Any:
        """`None` for functions of others, and where there is nothing to read."""
        if not py_func.__module__.startswith(GENERATED) or not os.path.exists(py_file):
            return None
        found = cls(py_func, py_file)
        directory = Path(found.get_cache_path())
        return found if any(directory.glob(f"{Path(py_file).stem}.*.nbi")) else None

    def ensure_cache_path(self) -> None:
        """Numba asks this before it adds to the directory."""
        raise PermissionError(f"{self.get_cache_path()} is read-only")


def look_there_too() -> None:
    """Adds the place to those where Numba looks, once."""
    places = CacheImpl._locator_classes
    if InReadOnlyTree not in places:
        places.insert(places.index(InTreeCacheLocator) + 1, InReadOnlyTree)
