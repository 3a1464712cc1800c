"""Calls that can be stopped: by `kernel.cancel()`, by a timeout, by Ctrl-C.

Compiled code looks at word 0 of its call's control array at each poll, and leaves once it is set; word 1 then has
the number of the poll, the words behind it what the poll says of where it was.  A call whose word 1 is 0 at its
end has run to its end, whatever was asked of it meanwhile: its results are whole, and are returned.

Python runs signal handlers in the main thread, between two of its own instructions: not while that thread is in
compiled code.  What C code does at once is to write the signal's number into a file (`signal.set_wakeup_fd`): a
thread listens there while the main thread is in a long call, and asks the call to stop.  Only where the program
handles Ctrl-C by a function of its own, which alone knows what it raises, does the call run in a helper thread, so
that the main thread can run that function.
"""

from __future__ import annotations

import math
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyschedule.codegen.cuda_program import POLL_NUMBERS
from pyschedule.errors import KernelCancelled, KernelTimeout

#: How long the main thread sleeps between two looks at the clock, in seconds, at most.
_LOOK: Final = 0.02
#: Calls of less work (`hostcode.work_estimate`) are over in some ten milliseconds: the main thread runs them.
SHORT_WORK: Final = 1_000_000
#: The words of a control array before those that polls report in.
_HEAD: Final = 2

Places = tuple[tuple[str, ...], ...]


class Control:
    """One running call: its control array, and why it was asked to stop: `"cancel"`, `"timeout"`, `"interrupt"`."""

    __slots__ = ("_shared", "deadline", "places", "reason", "timeout", "words")

    def __init__(self, places: Places, timeout: float | None, words: NDArray[np.int64] | None = None) -> None:
        """`words`: memory that a GPU reads and writes too; its threads report in one word."""
        self._shared = words is not None
        self.words = np.zeros(_size(places), np.int64) if words is None else words
        self.places = places
        self.timeout = timeout
        self.deadline = None if timeout is None else time.monotonic() + timeout
        self.reason: str | None = None

    def request(self, reason: str) -> None:
        """Asks the call to stop; the first reason is the one that is told, but Ctrl-C is told in any case."""
        if self.reason is None or reason == "interrupt":
            self.reason = reason
        self.words[0] = 1

    @property
    def left(self) -> bool:
        """Whether the call ended at a poll, with its work undone (to be asked when it has ended)."""
        return bool(self.words[1])

    @property
    def progress(self) -> str:
        """How far the call got: `"in loop 'k' at 4096 of 100000, in loop 'i' at 3 of 10"`, innermost loop first."""
        number = int(self.words[1])
        if self._shared:
            value, number = divmod(number, POLL_NUMBERS)
        if not 1 <= number <= len(self.places):
            return "before its loops"
        if self._shared:
            place = self.places[number - 1][-1].partition(" of ")[0].partition(" down to ")[0]
            return f"in {place.format(value)} in one of its threads"
        values = iter(int(word) for word in self.words[_HEAD:])
        told = [place.format(*(next(values) for _ in range(_gaps(place)))) for place in self.places[number - 1]]
        return ", ".join(f"in {place}" for place in reversed(told)) or "before its loops"


@lru_cache(maxsize=1024)
def _size(places: Places) -> int:
    """The words of the control array of a kernel with these polls."""
    return _HEAD + max((sum(map(_gaps, poll)) for poll in places), default=0)


def _gaps(place: str) -> int:
    return place.count("{}")


class Calls:
    """The running calls of one kernel."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: set[Control] = set()
        self._lock = threading.Lock()
        self._local = threading.local()

    # ------------------------------------------------------------------------------------------- requests

    def cancel(self) -> None:
        """Asks all calls that run now to stop."""
        with self._lock:
            running = list(self._running)
        for control in running:
            control.request("cancel")

    @contextmanager
    def within(self, timeout: float | None) -> Iterator[None]:
        """The next call of this thread must end within so many seconds."""
        self._local.timeout = timeout
        try:
            yield
        finally:
            self._local.timeout = None

    def control(self, places: Places, words: NDArray[np.int64] | None = None) -> Control:
        """The control of a call that starts now, with the timeout that was set for it."""
        timeout = getattr(self._local, "timeout", None)
        self._local.timeout = None
        return Control(places, timeout, words)

    @contextmanager
    def registered(self, control: Control) -> Iterator[None]:
        """While the call runs, `cancel` reaches it."""
        self._register(control)
        try:
            yield
        finally:
            self._unregister(control)

    def _register(self, control: Control) -> None:
        with self._lock:
            self._running.add(control)

    def _unregister(self, control: Control) -> None:
        with self._lock:
            self._running.discard(control)

    # ---------------------------------------------------------------------------------------------- calls

    def run(self, entry: Callable[..., Any], args: tuple[Any, ...], places: Places, work: float) -> Any:
        """The result of the compiled function, called with the arguments and a control array behind them.

        Raises `KernelCancelled`, `KernelTimeout` or `KeyboardInterrupt` where it left at a poll.
        """
        if (ready := getattr(entry, "ready", None)) is not None:
            entry = ready()  # compiled by now: only the call itself can be stopped
        control = self.control(places)
        args = (*args, control.words)
        self._register(control)
        try:
            handler = _handler_of_interrupts() if work > SHORT_WORK else None
            if handler is signal.default_int_handler:
                result = _run_listening(entry, args, control)
            elif callable(handler):
                result = _run_aside(entry, args, control, self._name)
            else:
                result = _run_timed(entry, args, control)
        finally:
            self._unregister(control)
        if control.reason is not None:
            self.settle(control)
        return result

    def settle(self, control: Control) -> None:
        """Raises what a call that has ended must raise."""
        if control.left:
            raise self._stopped(control)
        if control.reason == "interrupt":  # the call was quicker; Ctrl-C is not forgotten
            raise KeyboardInterrupt(f"{self._name} had finished")

    def _stopped(self, control: Control) -> BaseException:
        where = control.progress
        if control.reason == "interrupt":
            return KeyboardInterrupt(f"{self._name} was interrupted {where}")
        if control.reason == "timeout":
            return KernelTimeout(f"{self._name} was stopped after {control.timeout:g} s, {where}", where)
        return KernelCancelled(f"{self._name} was cancelled {where}", where)


def checked_timeout(timeout: Any) -> float | None:
    """A timeout in seconds, as long as threads can wait at most; `ValueError` for what is no positive number."""
    if timeout is None:
        return None
    number = isinstance(timeout, (int, float, np.integer, np.floating)) and not isinstance(timeout, bool)
    if not number or not timeout > 0 or not math.isfinite(timeout):
        raise ValueError(f"timeout must be a positive number of seconds or None, not {timeout!r}")
    return min(float(timeout), threading.TIMEOUT_MAX)


# -------------------------------------------------------------------------------------------------- waiting


def _handler_of_interrupts() -> Any:
    """What Ctrl-C would run in this thread; `None` in any but the main thread."""
    main = threading.current_thread() is threading.main_thread()
    return signal.getsignal(signal.SIGINT) if main else None


class Interrupts:
    """While open, Ctrl-C asks the call to stop, and raises nothing: the exception comes when the call has ended.

    Where the program handles Ctrl-C itself, its handler stays; what it raises comes out of the wait.
    """

    def __init__(self, control: Control) -> None:
        self._control = control
        self._handler: Any = None

    def _request(self, _signal: int, _frame: Any) -> None:
        self._control.request("interrupt")

    def __enter__(self) -> None:
        if _handler_of_interrupts() is signal.default_int_handler:
            self._handler = signal.default_int_handler
            signal.signal(signal.SIGINT, self._request)

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)


def wait(control: Control, ended: Callable[[float], bool]) -> None:
    """Waits until `ended` (which is given the seconds that it may wait) says so; sees to timeouts and Ctrl-C.

    What a signal handler raises meanwhile stops the call, and is raised when the call has ended.
    """
    raised: BaseException | None = None
    with Interrupts(control):
        while True:
            try:
                left = math.inf if control.deadline is None else control.deadline - time.monotonic()
                if left <= 0:
                    control.deadline = None
                    control.request("timeout")
                if ended(min(max(left, 0.0), _LOOK)):
                    break
            except BaseException as error:
                control.request("interrupt")
                raised = raised or error
    if raised is not None:
        raise raised


def _run_timed(entry: Callable[..., Any], args: tuple[Any, ...], control: Control) -> Any:
    """The call in this thread, stopped by another one when its time is over."""
    if control.timeout is None:
        return entry(*args)
    timer = threading.Timer(control.timeout, control.request, ("timeout",))
    timer.daemon = True
    timer.start()
    try:
        return entry(*args)
    finally:
        timer.cancel()


class _Listener:
    """A thread that hears of Ctrl-C at once, and asks `calls` to stop: those of the main thread, inner ones last.

    What comes in is passed on to where it would have gone (an event loop may be waiting for it).
    """

    def __init__(self) -> None:
        self.calls: list[Control] = []
        self._heard, self._told = socket.socketpair()
        self._told.setblocking(False)  # as `set_wakeup_fd` wants it
        self._before = -1
        threading.Thread(target=self._listen, name="pyschedule interrupts", daemon=True).start()

    def _listen(self) -> None:
        while numbers := self._heard.recv(4096):
            if signal.SIGINT in numbers:
                for control in list(self.calls):
                    control.request("interrupt")
            if self._before >= 0:
                with suppress(OSError):
                    os.write(self._before, numbers)

    @contextmanager
    def hears_for(self, control: Control) -> Iterator[None]:
        own = self._told.fileno()
        before = signal.set_wakeup_fd(own, warn_on_full_buffer=False)
        if before != own:
            self._before = before
        self.calls.append(control)
        try:
            yield
        finally:
            self.calls.remove(control)
            signal.set_wakeup_fd(before)


_listener: _Listener | None = None


def _run_listening(entry: Callable[..., Any], args: tuple[Any, ...], control: Control) -> Any:
    """The call in the main thread, while another one listens for Ctrl-C."""
    global _listener
    if _listener is None:
        _listener = _Listener()
    with Interrupts(control), _listener.hears_for(control):
        return _run_timed(entry, args, control)


class _Job:
    """A call for a helper thread.  Whoever gets `claim` owns it: the helper, or a caller that gives up before."""

    __slots__ = ("args", "claim", "done", "entry", "error", "result", "threads")

    def __init__(self, entry: Callable[..., Any], args: tuple[Any, ...], threads: int | None) -> None:
        self.entry = entry
        self.args = args
        self.threads = threads
        self.claim = threading.Lock()
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        if not self.claim.acquire(blocking=False):
            return
        try:
            if self.threads is not None:
                import numba

                numba.set_num_threads(self.threads)
            self.result = self.entry(*self.args)
        except BaseException as error:
            self.error = error


_Helper = queue.SimpleQueue["_Job"]
#: Helper threads without work, each by the queue that it takes jobs from.
_idle: list[_Helper] = []


def _work(jobs: _Helper) -> None:
    while True:
        job = jobs.get()
        job.run()
        _idle.append(jobs)
        job.done.set()
        del job  # nothing is kept alive while this thread is idle


def _run_aside(entry: Callable[..., Any], args: tuple[Any, ...], control: Control, name: str) -> Any:
    """The call in a helper thread, which has this thread's number of Numba threads, while this one waits."""
    threads = None
    if getattr(entry, "threaded", False):
        import numba

        threads = numba.get_num_threads()
    job = _Job(entry, args, threads)
    try:
        try:
            jobs = _idle.pop()
        except IndexError:
            jobs = queue.SimpleQueue()
            threading.Thread(target=_work, args=(jobs,), name=f"pyschedule {name}", daemon=True).start()
        jobs.put(job)
        wait(control, job.done.wait)
    except BaseException as error:
        control.request("interrupt")
        while not job.claim.acquire(blocking=False):  # it runs, or has run
            if _has_ended(job):
                break
        if control.left:
            error.add_note(f"{name} was stopped {control.progress}")
        raise
    if job.error is not None:
        raise job.error
    return job.result


def _has_ended(job: _Job) -> bool:
    """Waits a moment for a job; what is raised meanwhile adds nothing to what is being raised already."""
    try:
        return job.done.wait(_LOOK)
    except BaseException:
        return False


def _after_fork() -> None:
    """The child of a fork has no helper threads, and must not write where its parent listens."""
    global _listener
    _idle.clear()
    _listener = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
