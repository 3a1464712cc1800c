"""What the names in a kernel's body mean: constants, modules, and the functions a kernel may call."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any, Final

import numpy as np

from pyschedule.ir.functions import FUNCTIONS

#: Python's name of a function → ours, where they differ.
_NUMPY_NAMES: Final = {
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arcsinh": "asinh",
    "arccosh": "acosh",
    "arctanh": "atanh",
    "arctan2": "atan2",
    "absolute": "abs",
    "minimum": "minimum",
    "maximum": "maximum",
}
_INTERNAL: Final = ("pmin", "pmax", "checked_index", "abs", "minimum", "maximum")


@dataclass(frozen=True, slots=True)
class Function:
    """A callable that a kernel may use.  `kind`: `"function"` (of the IR), `"dtype"` (a conversion), or the
    name of a form that the reader of expressions or statements knows."""

    kind: str
    name: str
    home: str


def _table() -> dict[int, tuple[Any, Function]]:
    """By identity, since a module may be imported under any name and functions by `from`."""
    known: list[tuple[Any, Function]] = []
    for name in FUNCTIONS:
        if name not in _INTERNAL and hasattr(math, name):
            known.append((getattr(math, name), Function("function", name, "math")))
        if name not in _INTERNAL and hasattr(np, name) and name not in ("pow", "remainder"):
            known.append((getattr(np, name), Function("function", name, "numpy")))
    known += [(getattr(np, name), Function("function", ours, "numpy")) for name, ours in _NUMPY_NAMES.items()]
    # `fabs` gives a float, as functions of `math` do.
    known += [(fabs, Function("function", "abs", "math")) for fabs in (math.fabs, np.fabs)]
    known += [(getattr(np, name), Function(name, name, "numpy")) for name in ("square", "where")]
    for home, module in (("math", math), ("numpy", np)):
        known += [(getattr(module, name), Function("angle", name, home)) for name in ("degrees", "radians")]
    known.append((np.rad2deg, Function("angle", "degrees", "numpy")))
    known.append((np.deg2rad, Function("angle", "radians", "numpy")))
    known += [
        (np.power, Function("operator", "**", "numpy")),
        (pow, Function("operator", "**", "python")),
        (np.remainder, Function("operator", "%", "numpy")),
    ]
    known += [(getattr(builtins, name), Function(name, name, "python")) for name in ("min", "max", "range", "len")]
    known.append((abs, Function("function", "abs", "python")))
    for kind, name in ((int, "int64"), (float, "float64"), (bool, "bool")):
        known.append((kind, Function("python_type", name, "python")))
    for name in [
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "float32",
        "float64",
    ]:
        known.append((getattr(np, name), Function("dtype", name, "numpy")))
    known.append((np.bool_, Function("dtype", "bool", "numpy")))
    for name in (
        "zeros",
        "ones",
        "empty",
        "full",
        "array",
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
    ):
        known.append((getattr(np, name), Function("array", name, "numpy")))
    return {id(value): (value, function) for value, function in known}


_FUNCTIONS: Final = _table()


def function_of(value: Any) -> Function | None:
    """What `value` is, if it is a callable that a kernel may use."""
    entry = _FUNCTIONS.get(id(value))
    if entry is not None:
        return entry[1]
    if getattr(value, "__module__", "") == "ml_dtypes" and getattr(value, "__name__", "") == "bfloat16":
        return Function("dtype", "bfloat16", "ml_dtypes")
    return None


def number_of(value: Any) -> tuple[bool | int | float, str | None] | None:
    """A Python or NumPy number as (value, dtype); the dtype is `None` for Python's.  NumPy's integers count
    as int64."""
    if isinstance(value, np.bool_):
        return bool(value), "bool"
    if isinstance(value, np.integer):
        return int(value), "int64"
    if isinstance(value, np.floating) and value.dtype.name in ("float16", "float32", "float64"):
        # np.float64 is a float to Python as well, but a strong one to NumPy's promotion.
        return float(value), value.dtype.name
    if type(value) in (bool, int, float):
        return value, None
    return None


_MISSING: Final = object()


class Namespace:
    """Looks free names up in the closure, the module and the builtins, and remembers what was used."""

    def __init__(self, function: FunctionType) -> None:
        self._globals = function.__globals__
        self._closure = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        self.used: dict[str, Any] = {}

    def lookup(self, name: str, missing: Callable[[], Exception]) -> Any:
        """The value of a free name; raises what `missing` makes where it has none (yet)."""
        value: Any = _MISSING
        if name in self._closure:
            try:
                value = self._closure[name].cell_contents
            except ValueError:
                value = _MISSING
        elif name in self._globals:
            value = self._globals[name]
        else:
            value = getattr(builtins, name, _MISSING)
        if value is _MISSING:
            raise missing()
        self.record(name, value)
        return value

    def record(self, name: str, value: Any) -> None:
        """Notes a value that the kernel's meaning depends on."""
        function = function_of(value)
        if function is not None:
            self.used[name] = f"{function.home}.{function.name}"
        elif number_of(value) is not None or isinstance(value, tuple):
            self.used[name] = value

    @staticmethod
    def is_module(value: Any) -> bool:
        return isinstance(value, ModuleType)
