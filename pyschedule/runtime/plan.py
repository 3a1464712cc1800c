"""What a call needs to know of a lowered kernel: plain data, kept in memory and, as JSON, in the on-disk cache."""

from __future__ import annotations

from dataclasses import dataclass

from pyschedule.codegen.cuda_program import CudaProgram
from pyschedule.ir.types import Scalar
from pyschedule.schedule.log import Record


@dataclass(frozen=True, slots=True)
class Test:
    """What must hold before the kernel runs: Python source over `A.shape[0]` and scalar names.  `message` is
    formatted with the arguments."""

    test: str
    arrays: tuple[str, ...]
    scalars: tuple[str, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Output:
    """An array that the runtime allocates; its extents are Python source, as in `Test`."""

    name: str
    dtype: str
    shape: tuple[str, ...]
    scalars: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProgramText:
    """One variant of the generated code: a module's text, and the function in it to call."""

    source: str
    entry: str


@dataclass(frozen=True, slots=True)
class Plan:
    """`params`: the entry's parameters in order, outputs included.  `halves`: those passed as 16-bit words.
    `returns` and `results` are `Kernel.returns` and `Kernel.scalar_results`.  `tests` refuse arguments; where one
    of the `assumptions` does not hold, the plan for the checked signature is the one to take.  `records` are the
    log.  `polled`: the kernel can be stopped; `polls` has the places of each of its polls (`ir.nodes.Poll`), and is
    empty where it is always short, so that it has none.  `checks`: what is wrong where a check of an index fails,
    by its number (`ir.index_checks`).

    On a CPU `work` estimates the work of a call (`hostcode`), `serial` is its program and `parallel` another
    one that uses threads, absent where no loop runs in parallel.  On a GPU `cuda` is its program for 32-bit
    offsets.
    """

    name: str
    target: str
    params: tuple[str, ...]
    written: tuple[str, ...]
    halves: tuple[str, ...]
    outputs: tuple[Output, ...]
    returns: tuple[str | int, ...]
    results: tuple[Scalar, ...]
    tests: tuple[Test, ...]
    records: tuple[Record, ...]
    assumptions: tuple[Test, ...] = ()
    work: str = "0"
    work_reads_scalars: bool = False
    serial: ProgramText | None = None
    parallel: ProgramText | None = None
    cuda: CudaProgram | None = None
    polled: bool = False
    polls: tuple[tuple[str, ...], ...] = ()
    checks: tuple[str, ...] = ()
