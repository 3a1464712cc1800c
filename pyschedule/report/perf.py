"""`perf_report`: kernels against themselves with less of their schedule, and against named peers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from pyschedule.errors import InternalError
from pyschedule.ir import visitors
from pyschedule.ir.nodes import Kernel
from pyschedule.ir.signature import Shaped
from pyschedule.report.counting import Work, count
from pyschedule.report.device import on_device, synchronize, to_host
from pyschedule.report.measure import interleaved
from pyschedule.report.peak import copy_gbytes, fma_gflops
from pyschedule.report.progress import silent
from pyschedule.report.variants import variants

if TYPE_CHECKING:
    import pandas

    from pyschedule.runtime.lowering import Lowering

COLUMNS: Final = (
    "operator",
    "shape",
    "dtype",
    "target",
    "variant",
    "time_s",
    "speedup",
    "gflops",
    "pct_peak",
    "gbytes_s",
    "pct_bandwidth",
    "rel_error",
)

#: The largest relative error, by the Euclidean norm, that a variant may have against float64.
_TOLERANCE: Final = {"float64": 1e-11, "float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}


@dataclass(frozen=True)
class Case:
    """One row group of a report: a kernel on some arguments; or an operator, which stands for the kernel that
    does its work for these arguments, on what that kernel gets.

    `peers` take the kernel's arguments and write, or return, what the kernel does.  `reference` does so with
    float64 copies of them; without it, the undecorated function does where the nest is small, else its
    compiled, untransformed form.  `flops` and `bytes_moved` of one call are counted from the nest unless
    given.  `shape` is how the table writes the sizes.
    """

    kernel: Any
    arguments: tuple[Any, ...]
    operator: str = ""
    shape: str = ""
    peers: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    reference: Callable[..., Any] | None = None
    flops: float | None = None
    bytes_moved: float | None = None


def perf_report(
    kernel: Any,
    *arguments: Any,
    operator: str = "",
    shape: str = "",
    peers: Mapping[str, Callable[..., Any]] | None = None,
    reference: Callable[..., Any] | None = None,
    flops: float | None = None,
    bytes_moved: float | None = None,
    rounds: int = 20,
    seconds: float = 2.0,
    progress: Callable[[str], None] = silent,
) -> pandas.DataFrame:
    """Measures a kernel, or several `Case`s, and returns a pandas DataFrame.

    `perf_report(gemm, A, B, C, peers={"numpy": lambda A, B, C: np.matmul(A, B, out=C)})`, or
    `perf_report([Case(...), Case(...)])`.  One row per (operator, shape, dtype, target, variant), with the
    columns `operator shape dtype target variant time_s speedup gflops pct_peak gbytes_s pct_bandwidth
    rel_error`.

    The variants are `naive`, `+tiling`, `+tiling+vectorization`, `+tiling+vectorization+unroll`, as far as
    the kernel's schedule has them, then the peers.  `naive` is the same nest without its schedule, compiled by
    the same back end: not the Python interpreter, which would need an hour for a product of 1024³.  `speedup`
    is against it (against the first variant where a kernel has no form without its schedule, as in the block
    form).

    Outputs are checked against float64 first (`rel_error`, by the Euclidean norm; `InternalError` where a
    variant is wrong, `ValueError` where a peer is).  Then all are timed in one process, interleaved, each from
    the same arguments: `time_s` is the median of at most `rounds` calls, or fewer once one variant has used
    `seconds`.  `gbytes_s` is compulsory traffic: each array once for reading, once for writing.  `pct_peak`
    and `pct_bandwidth` are against what the cores in use were measured to do; NaN where that is not known.

    `TypeError` for what is no kernel and for arguments without data, `ValueError` for rounds that are none.
    """
    import pandas

    if not isinstance(rounds, int) or rounds < 1:
        raise ValueError(f"perf_report: rounds must be a positive integer, not {rounds!r}")
    if isinstance(kernel, (list, tuple)):
        if arguments or not all(isinstance(case, Case) for case in kernel):
            raise TypeError("perf_report: give a kernel and its arguments, or one list of Case")
        cases = list(kernel)
    else:
        cases = [Case(kernel, arguments, operator, shape, peers or {}, reference, flops, bytes_moved)]
    cases = [_checked(case) for case in cases]
    rows = itertools.chain.from_iterable(_rows(case, rounds, seconds, progress) for case in cases)
    return pandas.DataFrame(list(rows), columns=list(COLUMNS))


def _checked(case: Case) -> Case:
    """The case of a kernel with data; raises `TypeError` where it is none."""
    kernel = case.kernel
    if not callable(getattr(kernel, "lower", None)):
        kind = type(kernel).__name__
        raise TypeError(f"perf_report needs a kernel (or an operator) and its arguments, not {kernel!r} ({kind})")
    for number, argument in enumerate(case.arguments, 1):
        if isinstance(argument, Shaped):
            raise TypeError(f"perf_report: argument {number} is a spec, which has no data to compute with")
    plan = getattr(kernel, "plan", None)
    if plan is None:
        return case
    main = plan(*case.arguments).main
    name = case.operator or getattr(kernel, "__name__", "")
    return replace(case, kernel=main.kernel, arguments=tuple(main.arguments), operator=name)


def _rows(case: Case, rounds: int, seconds: float, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    arrays = [arg for arg in case.arguments if hasattr(arg, "shape")]
    device = any(on_device(arg) for arg in arrays)
    kind = "cuda" if device else "cpu"
    dtype = str(arrays[0].dtype) if arrays else "float64"
    lowering: Lowering = case.kernel.lower(*case.arguments, target=kind)
    own = variants(case.kernel, lowering.definition.schedule.for_target(kind))
    source = lowering.stages["source"]
    work = count(source, case.arguments)
    bench = _Bench(case, source)

    progress("computing in float64")
    expected = bench.reference(next(iter(own.values())), work)
    functions: dict[str, Callable[..., Any]] = {**own, **case.peers}
    errors: dict[str, float] = {}
    for name, function in functions.items():
        progress(f"checking {name}")
        errors[name] = _relative_error(bench.outputs(function), expected)
        if not errors[name] <= _TOLERANCE.get(dtype, 0.0):
            message = f"{name}: the result is off by {errors[name]:.2g} (relative, against float64)"
            raise InternalError(message) if name in own else ValueError(message)
    times = interleaved(
        {name: bench.timed(function) for name, function in functions.items()},
        bench.restore,
        rounds=rounds,
        seconds=seconds,
        progress=progress,
    )
    bench.restore()
    flops = case.flops if case.flops is not None else work.flops
    moved = case.bytes_moved if case.bytes_moved is not None else work.bytes_moved
    slowest = times[next(iter(own))]
    rows = []
    for name, elapsed in times.items():
        cores = _cores(own[name], case.arguments) if name in own and not device else 1
        gflops = flops / elapsed / 1e9 if flops else math.nan
        gbytes = moved / elapsed / 1e9 if moved else math.nan
        peak = None if device else fma_gflops(dtype)
        rows.append(
            {
                "operator": case.operator or getattr(case.kernel, "__name__", "kernel"),
                "shape": case.shape or " ".join(str(tuple(arg.shape)) for arg in arrays),
                "dtype": dtype,
                "target": kind,
                "variant": name,
                "time_s": elapsed,
                "speedup": slowest / elapsed,
                "gflops": gflops,
                "pct_peak": 100 * gflops / (peak * cores) if peak else math.nan,
                "gbytes_s": gbytes,
                "pct_bandwidth": math.nan if device else 100 * gbytes / copy_gbytes(),
                "rel_error": errors[name],
            }
        )
    return rows


def _cores(kernel: Any, arguments: tuple[Any, ...]) -> int:
    """The cores that a variant uses: Numba's threads, where one of its loops is parallel, else one."""
    import numba

    return int(numba.get_num_threads()) if kernel.lower(*arguments).runs_in_parallel else 1


class _Bench:
    """The arguments that all variants share, restored to what they were before each run."""

    def __init__(self, case: Case, source: Kernel) -> None:
        written = visitors.written_arrays(source.body) - set(source.outputs)
        names = [param.name for param in source.params if param.name not in source.outputs]
        self._case = case
        self._written = [place for place, name in enumerate(names) if name in written]
        self._pristine = {place: to_host(case.arguments[place]).copy() for place in self._written}

    def restore(self) -> None:
        for place, content in self._pristine.items():
            array = self._case.arguments[place]
            if on_device(array):
                from numba import cuda

                cuda.as_cuda_array(array).copy_to_device(content)
            else:
                array[...] = content

    def timed(self, function: Callable[..., Any]) -> Callable[[], None]:
        device = any(on_device(arg) for arg in self._case.arguments)

        def run() -> None:
            function(*self._case.arguments)
            if device:
                synchronize()

        return run

    def outputs(self, function: Callable[..., Any]) -> list[Any]:
        """What a function writes into its arguments; where a kernel writes none, what it returns."""
        self.restore()
        result = function(*self._case.arguments)
        got = self._select(self._case.arguments, result)
        self.restore()
        return got

    def reference(self, naive: Any, work: Work) -> list[Any]:
        """The outputs in float64."""
        import numpy as np

        self.restore()
        arguments = tuple(
            to_host(arg).astype(np.float64)
            if hasattr(arg, "shape") and str(arg.dtype) in _TOLERANCE
            else to_host(arg).copy()
            if hasattr(arg, "shape")
            else arg
            for arg in self._case.arguments
        )
        function = self._case.reference
        if function is None:
            small = work.flops is not None and work.flops <= 1_000_000
            function = naive.python if small else naive
        return self._select(arguments, function(*arguments))

    def _select(self, arguments: tuple[Any, ...], result: Any) -> list[Any]:
        import numpy as np

        if self._written:
            return [to_host(arguments[place]).copy() for place in self._written]
        values = result if isinstance(result, tuple) else (result,)
        return [np.array(to_host(value)) for value in values]


def _relative_error(got: list[Any], expected: list[Any]) -> float:
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
