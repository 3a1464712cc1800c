"""Calls made again and again from the same arguments: restored before each, timed fairly, and compared.

What a report and a search for schedules have in common.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyschedule.ir import visitors
from pyschedule.ir.nodes import Kernel

#: The largest relative error, by the Euclidean norm, that a schedule may bring about.
TOLERANCE: Final = {"float64": 1e-11, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


def on_device(array: Any) -> bool:
    """Whether this is an array that lives on a GPU."""
    return hasattr(array, "__cuda_array_interface__")


def to_host(array: Any) -> Any:
    """The array as NumPy's; itself where it is one."""
    import numpy as np

    if on_device(array):
        from numba import cuda

        return cuda.as_cuda_array(array).copy_to_host()
    return np.asarray(array)


def synchronize() -> None:
    """Waits until the GPU has done all it was given."""
    from numba import cuda

    cuda.synchronize()


class Repeated:
    """Calls of functions that write the same arguments, which are restored to what they were before each.

    `source` is the source stage of the kernel whose arguments they are: it says which are written.
    """

    def __init__(self, arguments: tuple[Any, ...], source: Kernel) -> None:
        self.arguments = arguments
        self._written = written_places(source)
        self._pristine = {place: to_host(arguments[place]).copy() for place in self._written}
        self._device = any(on_device(arg) for arg in arguments)

    def restore(self) -> None:
        for place, content in self._pristine.items():
            array = self.arguments[place]
            if on_device(array):
                from numba import cuda

                cuda.as_cuda_array(array).copy_to_device(content)
            else:
                array[...] = content

    def run(self, function: Callable[..., Any]) -> None:
        """Calls the function, and waits for what it gave a GPU to do."""
        function(*self.arguments)
        if self._device:
            synchronize()

    def outputs(self, function: Callable[..., Any]) -> list[Any]:
        """What a function writes into its arguments; where a kernel writes none, what it returns."""
        self.restore()
        result = function(*self.arguments)
        got = self.select(self.arguments, result)
        self.restore()
        return got

    def select(self, arguments: tuple[Any, ...], result: Any) -> list[Any]:
        """The outputs of a call that had these arguments and this result."""
        import numpy as np

        if self._written:
            return [to_host(arguments[place]).copy() for place in self._written]
        values = result if isinstance(result, tuple) else (result,)
        return [np.array(to_host(value)) for value in values]


def written_places(source: Kernel) -> list[int]:
    """Which arguments of a call the kernel writes."""
    written = visitors.written_arrays(source.body) - set(source.outputs)
    names = [param.name for param in source.params if param.name not in source.outputs]
    return [place for place, name in enumerate(names) if name in written]


def samples(
    runs: Mapping[str, Callable[[], object]],
    prepare: Callable[[], object],
    *,
    rounds: int,
    seconds: float,
    progress: Callable[[str], None],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """The times of the calls of each run, in seconds, in the order of the rounds.

    A round calls each run once, after `prepare`, which is not timed.  A run that has used up `seconds` sits
    out the rounds that remain; each runs once at least.
    """
    found: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name, run in runs.items():
            if number and sum(found[name]) > seconds:
                continue
            progress(f"timing {name}, round {number + 1} of at most {rounds}")
            prepare()
            begin = clock()
            run()
            found[name].append(clock() - begin)
    return found


def relative_error(got: list[Any], expected: list[Any]) -> float:
    """The largest relative error over the outputs, by the Euclidean norm; infinite where one is not finite
    and the other is."""
    import numpy as np

    worst = 0.0
    for one, other in zip(got, expected, strict=True):
        left, right = np.asarray(one, np.float64), np.asarray(other, np.float64)
        if left.shape != right.shape:
            return math.inf
        finite = np.isfinite(right)
        if not np.isfinite(left[finite]).all() or not np.array_equal(left[~finite], right[~finite], equal_nan=True):
            return math.inf
        difference = float(np.linalg.norm(left[finite] - right[finite]))
        size = float(np.linalg.norm(right[finite]))
        worst = max(worst, 0.0 if difference == 0 else difference / size if size else math.inf)
    return worst
