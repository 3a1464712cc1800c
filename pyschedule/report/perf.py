"""`perf_report`: kernels against themselves with less of their schedule, and against named peers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pyschedule.errors import InternalError
from pyschedule.ir.signature import Shaped
from pyschedule.report.contest import Contest, contest_rows
from pyschedule.report.counting import Work, count
from pyschedule.report.measure import interleaved
from pyschedule.report.progress import silent
from pyschedule.report.rows import COLUMNS, row
from pyschedule.report.variants import variants
from pyschedule.runtime.repeated import TOLERANCE, Repeated, on_device, relative_error, to_host

if TYPE_CHECKING:
    import pandas

    from pyschedule.runtime.lowering import Lowering


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
    """Measures a kernel, or several `Case`s and `Contest`s, and returns a pandas DataFrame.

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
        if arguments or not all(isinstance(case, (Case, Contest)) for case in kernel):
            raise TypeError("perf_report: give a kernel and its arguments, or one list of Case and Contest")
        cases: list[Case | Contest] = list(kernel)
    else:
        cases = [Case(kernel, arguments, operator, shape, peers or {}, reference, flops, bytes_moved)]
    cases = [_checked(case) if isinstance(case, Case) else case for case in cases]
    rows = itertools.chain.from_iterable(
        (_rows if isinstance(case, Case) else contest_rows)(case, rounds, seconds, progress)  # type: ignore[arg-type]
        for case in cases
    )
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
    if not callable(getattr(kernel, "steps", None)):
        return case
    main = kernel.lower(*case.arguments).definition.parsed.name
    name = case.operator or getattr(kernel, "__name__", "")
    for step, given in kernel.steps(*case.arguments)[0]:
        if getattr(step, "__name__", "") == main:
            return replace(case, kernel=step, arguments=tuple(given), operator=name)
    raise ValueError(f"perf_report: {name} does nothing with these arguments, which leaves nothing to measure")


def _rows(case: Case, rounds: int, seconds: float, progress: Callable[[str], None]) -> list[dict[str, Any]]:
    arrays = [arg for arg in case.arguments if hasattr(arg, "shape")]
    device = any(on_device(arg) for arg in arrays)
    kind = "cuda" if device else "cpu"
    dtype = str(arrays[0].dtype) if arrays else "float64"
    lowering: Lowering = case.kernel.lower(*case.arguments, target=kind)
    own = variants(case.kernel, lowering.definition.schedule.for_target(kind))
    source = lowering.stages["source"]
    work = count(source, case.arguments)
    bench = Repeated(case.arguments, source)

    progress("computing in float64")
    expected = _reference(case, bench, next(iter(own.values())), work)
    functions: dict[str, Callable[..., Any]] = {**own, **case.peers}
    errors: dict[str, float] = {}
    for name, function in functions.items():
        progress(f"checking {name}")
        errors[name] = relative_error(bench.outputs(function), expected)
        if not errors[name] <= TOLERANCE.get(dtype, 0.0):
            message = f"{name}: the result is off by {errors[name]:.2g} (relative, against float64)"
            raise InternalError(message) if name in own else ValueError(message)
    times = interleaved(
        {name: partial(bench.run, function) for name, function in functions.items()},
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
        rows.append(
            row(
                operator=case.operator or getattr(case.kernel, "__name__", "kernel"),
                shape=case.shape or " ".join(str(tuple(arg.shape)) for arg in arrays),
                dtype=dtype,
                target=kind,
                variant=name,
                time_s=elapsed,
                speedup=slowest / elapsed,
                rel_error=errors[name],
                flops=flops,
                bytes_moved=moved,
                cores=cores,
            )
        )
    return rows


def _cores(kernel: Any, arguments: tuple[Any, ...]) -> int:
    """The cores that a variant uses: Numba's threads, where one of its loops is parallel, else one."""
    import numba

    return int(numba.get_num_threads()) if kernel.lower(*arguments).runs_in_parallel else 1


def _reference(case: Case, bench: Repeated, naive: Any, work: Work) -> list[Any]:
    """The outputs in float64."""
    import numpy as np

    bench.restore()
    arguments = tuple(
        to_host(arg).astype(np.float64)
        if hasattr(arg, "shape") and str(arg.dtype) in TOLERANCE
        else to_host(arg).copy()
        if hasattr(arg, "shape")
        else arg
        for arg in case.arguments
    )
    function = case.reference
    if function is None:
        small = work.flops is not None and work.flops <= 1_000_000
        function = naive.python if small else naive
    return bench.select(arguments, function(*arguments))
