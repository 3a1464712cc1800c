"""The kernel that decorators make: an immutable object that is called, looked into, and decorated further."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import WRAPPER_ASSIGNMENTS
from types import FunctionType
from typing import TYPE_CHECKING, Any

from pyschedule.errors import ScheduleError
from pyschedule.frontend.debugging import is_debugging
from pyschedule.frontend.parser import Parsed, parse
from pyschedule.runtime.lowering import Definition
from pyschedule.schedule.directives import BlockForm, Directive, Schedule

if TYPE_CHECKING:
    from pyschedule.runtime.compiled_call import CompiledCall
    from pyschedule.runtime.dispatch import Dispatch
    from pyschedule.runtime.lowering import Lowering
    from pyschedule.schedule.targets import Target


def schedule_function(function: Any, directives: tuple[Directive, ...]) -> ScheduledKernel:
    """The kernel of a function, or of a kernel, with these directives on top of what it has.

    Raises `FrontendError` for a function that is no kernel, and `ScheduleError` for directives that do not fit
    the function or one another.
    """
    if isinstance(function, ScheduledKernel):
        parsed, before = function._parsed, function._schedule.directives
    elif isinstance(function, FunctionType):
        parsed, before = parse(function), ()
    else:
        loc = directives[0].loc
        kind = type(function).__name__
        raise ScheduleError(f"a kernel is made of a Python function, not of {function!r} ({kind})", loc)
    return ScheduledKernel(parsed, Schedule((*directives, *before)))


class ScheduledKernel:
    """A function with a schedule.

    Calling it compiles it for the arguments' types where that is new, and runs it: NumPy arrays on the CPU, CUDA
    arrays on their GPU.  With `@poll` a call takes `timeout=seconds` too, unless the function has a parameter of
    that name, and raises `KernelTimeout` when these have passed.  `python` is the undecorated function.  It cannot
    be changed: decorating it makes another kernel.
    """

    _parsed: Parsed
    _schedule: Schedule
    _state: _State

    def __init__(self, parsed: Parsed, schedule: Schedule) -> None:
        Definition(parsed, schedule).check()
        for form in schedule.of(BlockForm):
            _one_shape_an_array(form, parsed)
        function = parsed.function
        self.__dict__.update(function.__dict__)
        self.__dict__.update(
            {name: getattr(function, name) for name in WRAPPER_ASSIGNMENTS if hasattr(function, name)}
        )
        self.__dict__.update(
            __wrapped__=function, _parsed=parsed, _schedule=schedule, _state=_State(parsed, schedule)
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"the kernel {self._parsed.name!r} cannot be changed; decorate it to make another")

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __repr__(self) -> str:
        return f"<kernel {self._parsed.function.__qualname__}>"

    def __reduce__(self) -> str:
        """A kernel is pickled by name, as functions are."""
        return self._parsed.function.__qualname__

    # --------------------------------------------------------------------------------------------- calling

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not kwargs:
            return self._state.by_position(*args)
        if "timeout" in kwargs and "timeout" not in self._parsed.params:
            return self._state.within(kwargs.pop("timeout"), args, kwargs)
        return self._state.call(*args, **kwargs)

    def prepared(self, *args: Any, **kwargs: Any) -> Callable[..., Any]:
        """A shorter way to call the kernel with arguments like these, for callers that know them to be alike.

        It takes all arguments by position.  NumPy arrays must have the class, dtype, shape, strides and flags of
        these, and numbers their types: it does not look, and another array would be read and written out of its
        bounds.  Overlaps, and what depends on the values of numbers, are checked as ever.  Where there is no
        shorter way (arrays of other libraries or on a GPU, plain Python for a debugger) it is the kernel itself.
        """
        return self._state.prepared(args, kwargs) or self

    def compiled(self, *args: Any) -> CompiledCall | None:
        """The call of compiled code that a call with these arguments comes down to, for `pyschedule.Shortcuts`; one
        like it must have been made before.  `None` where there is more to do in each call."""
        return self._state.compiled(args)

    def cancel(self) -> None:
        """Stops all calls of this kernel that run now, in whatever threads: they raise `KernelCancelled`.

        `TypeError` where the kernel does not poll.
        """
        self._state.cancel()

    @property
    def python(self) -> FunctionType:
        """The undecorated function: what the kernel means."""
        return self._parsed.function

    # ------------------------------------------------------------------------------------------ looking in

    def lower(self, *args: Any, target: str | Target | None = None, **kwargs: Any) -> Lowering:
        """What becomes of the kernel for these arguments: arrays, numbers, or `pyschedule.spec(...)`s.

        `target` is `"cpu"`, `"cuda"` or `"cuda:sm_90a"`; by default where the arguments live.  In the block form
        with fixed `input_shapes` and `vectorize(dtype=...)` the arguments may be left out.
        """
        return self._state.dispatch.lowering(args, kwargs, target)


class _State:
    """What a kernel finds out as it is used.  `by_position` is `call` without keywords, or a shorter way to it."""

    __slots__ = ("_debugging", "_definition", "_dispatch", "_lock", "by_position", "call")

    def __init__(self, parsed: Parsed, schedule: Schedule) -> None:
        self._definition = (parsed, schedule)
        self._dispatch: Dispatch | None = None
        self._lock = threading.Lock()
        self._debugging = is_debugging()
        self.call: Callable[..., Any] = self._first_plain_call if self._debugging else self._first_call
        self.by_position = self.call

    @property
    def dispatch(self) -> Dispatch:
        from pyschedule.runtime.dispatch import Dispatch

        with self._lock:  # two threads must share one, or `cancel` would miss the calls of the other
            if self._dispatch is None:
                self._dispatch = Dispatch(*self._definition, self._shortened)
            return self._dispatch

    def within(self, timeout: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with a timeout; plain Python, where that runs instead, heeds none."""
        self.dispatch.require_poll()
        if self._debugging:
            from pyschedule.runtime.cancellation import checked_timeout

            checked_timeout(timeout)
            return self.call(*args, **kwargs)
        return self.dispatch.within(timeout, args, kwargs)

    def prepared(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[..., Any] | None:
        return None if self._debugging else self.dispatch.prepared(args, kwargs)

    def compiled(self, args: tuple[Any, ...]) -> CompiledCall | None:
        return None if self._debugging else self.dispatch.compiled(args)

    def cancel(self) -> None:
        self.dispatch.require_poll()
        self.dispatch.calls.cancel()

    def _first_plain_call(self, *args: Any, **kwargs: Any) -> Any:
        from pyschedule.runtime.debugging import PlainCalls

        self.call = self.by_position = PlainCalls(self.dispatch, Definition(*self._definition))
        return self.call(*args, **kwargs)

    def _first_call(self, *args: Any, **kwargs: Any) -> Any:
        self.call = self.by_position = self.dispatch.call
        return self.call(*args, **kwargs)

    def _shortened(self, by_position: Callable[..., Any]) -> None:
        self.by_position = by_position


def _one_shape_an_array(form: BlockForm, parsed: Parsed) -> None:
    if len(form.input_shapes) != len(parsed.arrays):
        arrays = ", ".join(map(repr, parsed.arrays)) or "none"
        raise ScheduleError(
            f"tile: input_shapes has {len(form.input_shapes)} shapes; {parsed.name!r} takes "
            f"{len(parsed.arrays)} arrays: {arrays}",
            form.loc,
        )


def inspect_loop_transforms(
    kernel: Any, *args: Any, target: str | Target | None = None, verbose: bool = False
) -> str:
    """The transform log of a kernel (or operator) for these arguments, then its loop nest as pseudocode.

    `verbose` adds what is known of each loop that a directive names: counter, start, step, bound, trip count, and
    the ways out of it.
    """
    if not callable(getattr(kernel, "lower", None)):
        raise TypeError(f"inspect_loop_transforms needs a kernel or an operator, not {type(kernel).__name__}")
    from pyschedule.ir.printer import format_kernel

    lowering = kernel.lower(*args, target=target)
    log = lowering.log.verbose() if verbose else lowering.log
    return f"{log}\n\n{format_kernel(lowering.kernel)}"
