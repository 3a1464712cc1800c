"""`tune`: hill climbing from a kernel's own schedule, then whatever else the time allows."""

from __future__ import annotations

import inspect
import random
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final

from pyschedule.errors import InternalError, ScheduleError, ScheduleWarning
from pyschedule.ir.signature import Shaped
from pyschedule.kernel import ScheduledKernel, schedule_function
from pyschedule.schedule import targets
from pyschedule.schedule.directives import BlockForm, Tile
from pyschedule.tuning.measure import Arena, Clock, Timing
from pyschedule.tuning.space import Candidate, Space, space_of, with_sizes

if TYPE_CHECKING:
    import pandas

    from pyschedule.runtime.lowering import Lowering

#: A candidate replaces the incumbent when it takes at most this part of its time: less is noise.
_FASTER: Final = 0.98
#: The rounds and the seconds that one comparison may take, at most.
_ROUNDS: Final = 15
_SECONDS: Final = 0.5

COLUMNS: Final = ("schedule", "status", "time_s", "best_s", "speedup", "rounds", "note")


@dataclass(frozen=True, slots=True)
class Trial:
    """A candidate that was tried.  `status`: `"original"`, `"faster"` (than the best until then), `"slower"`
    (or no different), or `"refused"`, with the reason in `note` and no timing.  `ratio` is its time by the
    original's."""

    candidate: Candidate
    status: str
    timing: Timing | None = None
    ratio: float = float("nan")
    note: str = ""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a candidate was not measured."""

    reason: str


#: Measures a candidate against an incumbent (`None`: alone): its timing, and its time by the incumbent's.
Judge = Callable[[Candidate, Candidate | None], tuple[Timing, float] | Refused]
Report = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TuneResult:
    """What a search found.

    `kernel` is the best: the one that was given, or a new kernel with other sizes; `best` are its sizes and
    `speedup` is how many times as fast as the given one it was measured to be.  `stopped` says why the search
    ended: `"time"`, `"space"` (every candidate was tried) or `"interrupt"`.
    """

    kernel: ScheduledKernel
    best: Candidate
    speedup: float
    stopped: str
    trials: tuple[Trial, ...]
    decorators: tuple[str, ...]

    def to_frame(self) -> pandas.DataFrame:
        """One row a candidate, in the order in which they were tried: schedule, status, time_s (the median),
        best_s, speedup (against the original), rounds, note."""
        import pandas

        rows = []
        for trial in self.trials:
            timing = trial.timing or Timing(float("nan"), float("nan"), 0)
            status = "best" if trial.candidate == self.best and trial.status == "faster" else trial.status
            rows.append(
                (
                    trial.candidate.describe(),
                    status,
                    timing.median_s,
                    timing.best_s,
                    1 / trial.ratio,
                    timing.rounds,
                    trial.note,
                )
            )
        return pandas.DataFrame(rows, columns=list(COLUMNS))


def tune(
    kernel: Any,
    *args: Any,
    seconds: float = 30.0,
    target: str | None = None,
    seed: int = 0,
    progress: Report | None = None,
) -> TuneResult:
    """Searches for tile sizes with which a kernel is faster on these arguments, for about so many seconds.

    `tune(gemm_kernel, A, B, C).kernel` is the best kernel found; the given one is a candidate too, and stays
    the result where nothing was measured to be faster.  An operator stands for the kernel that does its work.
    Every candidate runs on copies of the arguments that are written, and its result is compared with the given
    kernel's.  The search starts with single changes of the given sizes (their order by `seed`), goes on from
    what is faster, and then tries the rest.  The candidate in work is finished when time is up; Ctrl-C stops
    at once and keeps the best so far.

    `target` may name the target that the arguments live on.  `TypeError` for what is no kernel or has no data,
    `ValueError` for another target, a time that is not positive, or a kernel that tiles no loop,
    `InternalError` where a candidate's result is wrong.
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ValueError(f"tune: seconds must be a positive number, not {seconds!r}")
    kernel, args = _kernel_and_arguments(kernel, args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ScheduleWarning)  # calls of the result say the same
        lowering: Lowering = kernel.lower(*args)
        _check_target(target, lowering)
        workshop = _Workshop(kernel, args, lowering, time.perf_counter)
        space = space_of(lowering, args)
        best, trials, stopped = climb(
            space, workshop.judge, seconds=seconds, seed=seed, clock=time.perf_counter, progress=progress
        )
    ratio = next((trial.ratio for trial in trials if trial.candidate == best), 1.0)
    found = workshop.kernel(best)
    return TuneResult(found, best, 1 / ratio, stopped, trials, workshop.decorators(best))


def climb(
    space: Space, judge: Judge, *, seconds: float, seed: int, clock: Clock, progress: Report | None = None
) -> tuple[Candidate, tuple[Trial, ...], str]:
    """The best candidate of a space, all that were tried, and why the search stopped.

    The best is compared with the original once more at the end, and gives way to it unless it is faster.
    """
    deadline = clock() + seconds
    best, ratio = space.original, 1.0
    trials: dict[Candidate, Trial] = {}
    chosen = _Choice(space, seed)
    stopped = "space"
    try:
        _tell(progress, f"measuring {best.describe()}")
        first = judge(best, None)
        if isinstance(first, Refused):
            raise InternalError(f"the kernel's own schedule was refused: {first.reason}")
        trials[best] = Trial(best, "original", first[0], 1.0)
        for candidate in chosen:
            if clock() >= deadline:
                stopped = "time"
                break
            _tell(progress, f"{len(trials)} tried, {1 / ratio:.2f} times as fast; trying {candidate.describe()}")
            verdict = judge(candidate, best)
            if isinstance(verdict, Refused):
                trials[candidate] = Trial(candidate, "refused", note=verdict.reason)
                continue
            timing, relative = verdict
            status = "faster" if relative <= _FASTER else "slower"
            trials[candidate] = Trial(candidate, status, timing, relative * ratio)
            if status == "faster":
                best, ratio = candidate, relative * ratio
                chosen.start_from(best)
        if best != space.original:
            _tell(progress, f"comparing {best.describe()} with the original once more")
            verdict = judge(best, space.original)
            if not isinstance(verdict, Refused):
                trials[best] = replace(trials[best], ratio=verdict[1], timing=verdict[0])
                if verdict[1] >= 1.0:
                    trials[best] = replace(trials[best], status="slower", note="not faster when measured again")
                    best = space.original
    except KeyboardInterrupt:
        stopped = "interrupt"
    return best, tuple(trials.values()), stopped


class _Choice:
    """The candidates, each once: neighbours of the latest start, shuffled, then the rest of the space."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._random = random.Random(seed)
        self._given = {space.original}
        self._rest = iter(space)
        self._near: list[Candidate] = []
        self.start_from(space.original)

    def start_from(self, candidate: Candidate) -> None:
        near = [other for other in self._space.neighbours(candidate) if other not in self._given]
        self._random.shuffle(near)
        self._near = near

    def __iter__(self) -> Iterator[Candidate]:
        while True:
            candidate = self._near.pop() if self._near else next(self._rest, None)
            if candidate is None:
                return
            if candidate not in self._given:
                self._given.add(candidate)
                yield candidate


class _Workshop:
    """Makes the kernel of a candidate, and judges it."""

    def __init__(self, kernel: ScheduledKernel, args: tuple[Any, ...], lowering: Lowering, clock: Clock) -> None:
        self._args = args
        self._schedule = lowering.definition.schedule
        self._kind = lowering.target.kind
        self._function = kernel.python
        self._skipped = _skipped(lowering)
        self._arena = Arena(kernel, args, clock)
        self._expected: list[Any] | None = None
        self._original = kernel
        self._kernels: dict[Candidate, ScheduledKernel] = {}

    def kernel(self, candidate: Candidate) -> ScheduledKernel:
        if candidate not in self._kernels:
            directives = with_sizes(self._schedule, self._kind, candidate)
            same = directives == self._schedule.directives
            self._kernels[candidate] = self._original if same else schedule_function(self._function, directives)
        return self._kernels[candidate]

    def judge(self, candidate: Candidate, incumbent: Candidate | None) -> tuple[Timing, float] | Refused:
        """See `Judge`.  The result of the first candidate is what the others are held against."""
        try:
            kernel = self.kernel(candidate)
            more = _skipped(kernel.lower(*self._args)).items() - self._skipped.items()
        except ScheduleError as error:
            return Refused(str(error))
        if more:
            return Refused(min(summary for _, summary in more))
        if self._expected is None:
            self._expected = self._arena.outputs(kernel)
        else:
            try:
                self._arena.check(kernel, self._expected, candidate.describe())
            except InternalError:
                raise
            except RuntimeError as error:  # such as a GPU that has too little of something for it
                return Refused(f"does not run: {error}")
        if incumbent is None:
            return self._arena.alone(kernel, rounds=_ROUNDS, seconds=_SECONDS), 1.0
        return self._arena.duel(kernel, self.kernel(incumbent), rounds=_ROUNDS, seconds=_SECONDS)

    def decorators(self, candidate: Candidate) -> tuple[str, ...]:
        """The lines that make a candidate's kernel, in place of the kernel's own `@tile`s for this target."""
        return tuple(
            _decorator(item)
            for item in with_sizes(self._schedule, self._kind, candidate)
            if isinstance(item, Tile) and item.sizes and item.target in (None, self._kind)
        )


# ------------------------------------------------------------------------------------------------- helpers


def _tell(progress: Report | None, text: str) -> None:
    if progress is not None:
        progress(text)


def _skipped(lowering: Lowering) -> dict[Any, str]:
    """The requests that were skipped: (transform, place) → why."""
    return {(item.transform, item.loc): item.summary for item in lowering.log if item.status == "Skipped"}


def _kernel_and_arguments(kernel: Any, args: tuple[Any, ...]) -> tuple[ScheduledKernel, tuple[Any, ...]]:
    """The kernel to tune (of an operator: the one that does its work) and all its arguments, in order."""
    for number, argument in enumerate(args, 1):
        if isinstance(argument, Shaped):
            raise TypeError(f"tune: argument {number} is a spec, which has no data to compute with")
    steps = getattr(kernel, "steps", None)
    if steps is not None:
        calls, _ = steps(*args)
        kernel, args = calls[-1]  # what comes before only prepares its arguments
    if not isinstance(kernel, ScheduledKernel):
        raise TypeError(f"tune needs a kernel (or an operator) and its arguments, not {kernel!r}")
    bound = inspect.signature(kernel.python).bind(*args)
    bound.apply_defaults()
    return kernel, bound.args


def _check_target(target: str | None, lowering: Lowering) -> None:
    here = lowering.target
    if target is None or target == here.kind or targets.resolve(target) == here:
        return
    where = "on the GPU" if here.kind == "cuda" else "on the CPU"
    raise ValueError(f"tune: the arguments live {where}, so the target is {here.kind!r}, not {target!r}")


def _decorator(tile: Tile) -> str:
    settings = {field.name for kind in (Tile, BlockForm) for field in fields(kind)}
    odd = [name for name, _ in tile.sizes if not name.isidentifier() or name in settings]
    parts = [] if odd else [Candidate(tile.sizes).describe()]
    if odd:  # such as i#2, which is no keyword, or the name of an argument
        parts = ["{" + ", ".join(f'"{name}": {sizes}' for name, sizes in tile.sizes) + "}"]
    if tile.order:
        parts.append(f'order="{" ".join(tile.order)}"')
    if tile.stage:
        parts.append("stage={" + ", ".join(f'"{array}": "{piece}"' for array, piece in tile.stage) + "}")
    parts += [f'parallel="{" ".join(tile.parallel)}"'] if tile.parallel else []
    parts += [f'target="{tile.target}"'] if tile.target is not None else []
    parts += [f"{name}=True" for name in ("strict", "strict_math") if getattr(tile, name)]
    return f"@tile({', '.join(parts)})"
