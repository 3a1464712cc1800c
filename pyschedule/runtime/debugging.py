"""Calls of a kernel as plain Python, for a debugger or a print, with the results of a compiled call.

The user's function runs, on the user's arrays.  Where plain NumPy would compute something else than a kernel does,
the difference is taken out: halves are summed in float32 and rounded once, integers wrap and floats divide by zero
without a word, arrays on a GPU are copied to the host and back, and a block's body runs over the whole arrays.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pyschedule.errors import Unsupported
from pyschedule.frontend import build
from pyschedule.frontend.blockform import Block
from pyschedule.frontend.plain import plain_function
from pyschedule.ir.arithmetic import numpy_dtype
from pyschedule.runtime import binding, hostcode
from pyschedule.runtime import signature as arguments

if TYPE_CHECKING:
    from pyschedule.frontend.build import Built
    from pyschedule.ir.signature import Signature
    from pyschedule.runtime.dispatch import Dispatch
    from pyschedule.runtime.lowering import Definition

Array = np.ndarray[Any, Any]

_PYTHON: Final[dict[str, Callable[[Any], Any]]] = {"b": bool, "i": int, "f": float}
_OPERATORS: Final = {"/": operator.truediv, "//": operator.floordiv, "%": operator.mod}


class PlainCalls:
    """The calls of one kernel while it is debugged."""

    def __init__(self, dispatch: Dispatch, definition: Definition) -> None:
        self._dispatch = dispatch
        self._definition = definition
        self._known: dict[Signature, Built] = {}
        self._function: FunctionType | None = None
        if self._definition.block_form is None:
            self._function = plain_function(self._definition.parsed, divide)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        names = self._dispatch.parameters.names
        values = self._dispatch.parameters.bind(args, kwargs)
        held = [_on_host(value) for value in values]
        built = self._built(values)
        function: Callable[..., Any] | None = self._function or self._lifted(built)
        interpreted = function is None
        if function is None:
            function, held = self._dispatch.interpret, [_copied(value) for value in values]
        bound = self._dispatch.parameters.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        bound.arguments.update(zip(names, held, strict=True))
        try:
            with np.errstate(all="ignore"):
                result = function(*bound.args, **bound.kwargs)
        finally:
            for value, copy in zip(values, held, strict=True):
                _give_back(value, copy)
        given = {id(copy): value for value, copy in zip(values, held, strict=True)}
        several = isinstance(result, tuple)
        items = [given.get(id(item), item) for item in (result if several else (result,))]
        if not interpreted and result is not None:
            items = self._results(items, built, dict(zip(names, values, strict=True)))
        return tuple(items) if several else items[0]

    def _built(self, values: tuple[Any, ...]) -> Built:
        """The kernel as the front end types it; raises what a compiled call would for wrong arguments."""
        form = self._definition.block_form
        block = None if form is None else Block(form.input_shapes, form.tile_shapes, form.pad)
        converted = self._dispatch.convert(tuple(_copied(value) for value in values))
        signature = self._dispatch.signature_of(converted)
        built = self._known.get(signature)
        if built is None:
            built = build.build(self._definition.parsed, signature, block, self._definition.schedule.strict_math)
            self._known[signature] = built
        named = dict(zip(self._dispatch.parameters.names, converted, strict=True))
        for check in built.checks:
            if not binding.evaluate(hostcode.python_source(check.test), named):
                raise ValueError(check.message)
        return built

    def _lifted(self, built: Built) -> FunctionType | None:
        """The function over whole arrays; `None` where only the nest can be interpreted (padded inputs)."""
        form = self._definition.block_form
        if form is None or form.pad:
            return None
        try:
            return plain_function(self._definition.parsed, divide, built.body)
        except Unsupported:
            return None

    @staticmethod
    def _results(items: list[Any], built: Built, named: dict[str, Any]) -> list[Any]:
        """Results as a compiled call gives them: halves rounded, lists as arrays."""
        made = {array.name: array for array in built.kernel.array_params if array.name in built.kernel.outputs}
        arrays: dict[str, Any] = {}
        results: list[Any] = []
        for place, item in zip(built.kernel.returns, items, strict=True):
            if isinstance(place, int):
                scalar = built.kernel.scalar_results[place]
                item = _PYTHON[scalar.kind](item) if scalar.weak else numpy_dtype(scalar.name).type(item)
            elif place in made:
                if place not in arrays:
                    extents = [hostcode.python_source(extent) for extent in made[place].shape]
                    shape = [int(binding.evaluate(extent, named)) for extent in extents]
                    dtype = numpy_dtype(str(made[place].dtype))
                    arrays[place] = np.asarray(np.array(item, copy=True)).astype(dtype).reshape(shape)
                item = arrays[place]
            results.append(item)
        return results


def divide(op: str, left: Any, right: Any) -> Any:
    """`left op right`, where Python's numbers divide by zero as a kernel's do: to infinity, NaN, or 0."""
    try:
        return _OPERATORS[op](left, right)
    except ZeroDivisionError:
        floats = op == "/" or isinstance(left, float) or isinstance(right, float)
        kind = np.float64 if floats else np.int64
        with np.errstate(all="ignore"):
            result = _OPERATORS[op](kind(left), kind(right))
        return float(result) if floats else int(result)


# ------------------------------------------------------------------------------------------------- arrays


class Halves(np.ndarray[Any, Any]):
    """Half elements held as float32: an element that a statement adds to is rounded when another reads it, or at
    the end; every other store rounds."""

    half: Any
    sums: dict[int, tuple[Any, int]]
    last: list[Any]

    @staticmethod
    def of(array: Array) -> Halves:
        made = array.astype(np.float32).view(Halves)
        made.half, made.sums, made.last = array.dtype, {}, [None]
        return made

    def __array_finalize__(self, origin: Any) -> None:
        self.half = getattr(origin, "half", None)
        self.sums = getattr(origin, "sums", {})
        self.last = getattr(origin, "last", [None])

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        if isinstance(value, np.ndarray):
            return value
        element, statement = self._element(key), _statement()
        if self.sums.get(element, statement) != statement:
            del self.sums[element]
            value = self._rounded(value)
            super().__setitem__(key, value)
        self.last[0] = element, statement
        return value

    def __setitem__(self, key: Any, value: Any) -> None:
        if np.ndim(value) or isinstance(super().__getitem__(key), np.ndarray):
            super().__setitem__(key, np.asarray(value).astype(self.half))
            return
        element, statement = self._element(key), _statement()
        if self.last[0] == (element, statement):
            self.sums[element] = statement
        else:
            self.sums.pop(element, None)
            value = self._rounded(value)
        super().__setitem__(key, value)

    def _rounded(self, value: Any) -> Any:
        return np.float32(np.float32(value).astype(self.half))

    def _element(self, key: Any) -> int:
        """The address of an element, which rows of the array share with it."""
        indices = key if isinstance(key, tuple) else (key,)
        ends = zip(indices, self.shape, self.strides, strict=False)
        offset = sum((int(at) % extent) * step for at, extent, step in ends)
        return int(self.ctypes.data) + int(offset)


def _statement() -> tuple[Any, int]:
    """The function and line that use an element."""
    frame = sys._getframe(2)
    return frame.f_code, frame.f_lineno


def _is_half(dtype: Any) -> bool:
    return getattr(dtype, "name", "") in ("float16", "bfloat16")


def _copied(value: Any) -> Any:
    """An argument on the host: what lives on a GPU is copied."""
    if not arguments.is_cuda(value):
        return value
    from numba import cuda

    return cuda.as_cuda_array(value).copy_to_host()


def _on_host(value: Any) -> Any:
    """What the function is given for an argument."""
    value = _copied(value)
    return Halves.of(value) if isinstance(value, np.ndarray) and _is_half(value.dtype) else value


def _give_back(value: Any, copy: Any) -> None:
    """What the function wrote into the stand-in of an argument is written to the argument."""
    if copy is value or not isinstance(copy, np.ndarray):
        return
    plain = np.asarray(copy)
    if isinstance(copy, Halves):
        plain = plain.astype(copy.half)
    if arguments.is_cuda(value):
        from numba import cuda

        cuda.as_cuda_array(value).copy_to_device(plain)
    elif value.flags.writeable:
        value[...] = plain
