"""Calls that are stopped: by `cancel`, by a timeout, by Ctrl-C; and calls that are quicker."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import pyschedule
from pyschedule import KernelCancelled, KernelTimeout, poll, tile, unroll
from pyschedule.runtime import cancellation
from pyschedule.runtime.cancellation import Calls, Control

ENDLESS = 10**14


@poll(every=4096)
def decay(x, n):
    acc = 0.0
    for k in range(n):
        acc = acc * 0.999 + x[k % 10]
    return acc


@poll(every=1000)
def count(y, n):
    for k in range(n):
        y[0] = k
    y[1] = 1


@tile(i=1, order="i.0 i.1 j", parallel="i.0")
@poll()
def rows(x, y, n):
    for i in range(x.shape[0]):
        for j in range(n):
            y[i] += x[i]


@poll()
def collatz(x, n):
    steps = 0
    while x != n:
        x = x // 2 if x % 2 == 0 else 3 * x + 1
        steps += 1
    return steps


@poll(every=4096)
def small(y):
    for k in range(100):
        y[k] = k


@poll()
def named(x, timeout):
    for k in range(x.shape[0]):
        x[k] = timeout


@unroll("k", 4)
def unpolled(x, n):
    acc = 0.0
    for k in range(n):
        acc = acc * 0.999 + x[k % 10]
    return acc


@poll(target="cuda")
def polled_on_gpus(y, n):
    for k in range(n):
        y[0] = k


X = np.ones(10)


@pytest.fixture(scope="module", autouse=True)
def compiled():
    decay(X, 10)
    count(np.zeros(2), 10)
    collatz(27, 1)


def soon(function, after=0.1):
    timer = threading.Timer(after, function)
    timer.start()
    return timer


# ------------------------------------------------------------------------------------------------- timeouts


def test_a_timeout_ends_a_call_and_says_how_far_it_got():
    began = time.perf_counter()
    with pytest.raises(KernelTimeout, match=rf"decay .* 0.2 s, in loop 'k' at \d+ of {ENDLESS}") as info:
        decay(X, ENDLESS, timeout=0.2)
    assert 0.2 <= time.perf_counter() - began < 30, "a loaded machine is late, but the loop has no end"
    assert isinstance(info.value, TimeoutError)
    assert isinstance(info.value, KernelCancelled)
    assert info.value.progress.startswith("in loop 'k' at ")


def test_a_timeout_that_is_not_reached_changes_nothing():
    assert decay(X, 10_000, timeout=100) == decay(X, 10_000)
    assert decay(x=X, n=10_000, timeout=100.0) == decay(X, 10_000, timeout=None)


def test_the_timeout_of_one_call_is_not_that_of_the_next():
    with pytest.raises(KernelTimeout):
        decay(X, ENDLESS, timeout=0.05)
    began = time.perf_counter()
    decay(X, 100_000_000)
    assert time.perf_counter() - began > 0.05, "the second call must be longer than the first one's timeout"


def test_a_while_loop_is_stopped_too():
    with pytest.raises(KernelTimeout, match=r"in the while loop of line \d+ in iteration \d+"):
        collatz(27, 0, timeout=0.1)
    assert collatz(27, 1, timeout=10) == collatz.python(27, 1)


def test_what_was_written_stays_and_what_follows_is_not_started():
    y = np.full(2, -1.0)
    with pytest.raises(KernelTimeout) as info:
        count(y, ENDLESS, timeout=0.1)
    reached = int(info.value.progress.split(" at ")[1].split(" of ")[0])
    assert y[0] == reached - 1, "every iteration before the poll ran, and none behind it"
    assert y[1] == -1


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_stopped_with_their_partial_sums_put_back(threads):
    numba = pytest.importorskip("numba")
    if threads > numba.config.NUMBA_NUM_THREADS:
        pytest.skip("too few threads")
    x, y = np.ones(64), np.zeros(64)
    rows(x, y, 1)
    before = numba.get_num_threads()
    numba.set_num_threads(threads)
    try:
        y[:] = 0
        with pytest.raises(KernelTimeout, match=r"in loop 'j' at \d+ of \d+, in loop 'i.0' at \d+ of 64"):
            rows(x, y, ENDLESS, timeout=0.2)
        assert numba.get_num_threads() == threads
    finally:
        numba.set_num_threads(before)
    assert np.count_nonzero(y) == threads
    assert (y[y > 0] % 4096 == 0).all(), "whole strips"


@pytest.mark.parametrize("bad", [0, -1, float("nan"), float("inf"), "1", True, [1]])
def test_bad_timeouts_are_refused_before_anything_runs(bad):
    y = np.zeros(2)
    with pytest.raises(ValueError, match="timeout must be a positive number of seconds"):
        count(y, 5, timeout=bad)
    assert not y.any()


def test_a_timeout_of_ages_is_no_timeout():
    @poll
    def long(n):
        acc = 0.0
        for i in range(n):
            acc = acc * 0.5 + 1
        return acc

    raised = []
    before, threading.excepthook = threading.excepthook, raised.append
    try:
        assert long(3_000_000, timeout=1e300) == long(3_000_000)
    finally:
        threading.excepthook = before
    assert not raised


def test_a_parameter_named_timeout_is_the_kernels_own():
    x = np.zeros(3)
    named(x, timeout=7)
    assert (x == 7).all()


def test_kernels_that_do_not_poll_say_what_is_missing():
    with pytest.raises(TypeError, match=r"unpolled does not poll, .* decorate it with @poll"):
        unpolled(X, 3, timeout=1)
    with pytest.raises(TypeError, match="unpolled does not poll"):
        unpolled.cancel()
    with pytest.raises(TypeError, match="does not poll for 'cpu'"):
        polled_on_gpus(np.zeros(2), 3, timeout=1)


def test_kernels_that_are_always_short_take_timeouts_and_have_no_polls():
    y = np.zeros(100)
    small(y, timeout=1)
    assert y[99] == 99
    small.cancel()
    assert "stop_requested" not in small.lower(y).source


# -------------------------------------------------------------------------------------------- cancellation


def test_cancel_stops_the_call_of_the_main_thread():
    timer = soon(decay.cancel)
    with pytest.raises(KernelCancelled, match=rf"decay was cancelled in loop 'k' at \d+ of {ENDLESS}") as info:
        decay(X, ENDLESS)
    assert not isinstance(info.value, KernelTimeout)
    timer.join()


def test_cancel_stops_all_calls_of_this_kernel_and_of_no_other():
    ends = {}

    def call(key, kernel, *args):
        try:
            ends[key] = kernel(*args)
        except KernelCancelled as error:
            ends[key] = error

    other = threading.Thread(target=call, args=("other", collatz, 27, 0))
    threads = [threading.Thread(target=call, args=(key, decay, X, ENDLESS)) for key in range(3)]
    for thread in (other, *threads):
        thread.start()
    for _ in range(600):  # a loaded machine may start a call after the first `cancel`, which is not meant for it
        time.sleep(0.1)
        decay.cancel()
        if len(ends) == 3:
            break
    assert sorted(ends) == [0, 1, 2]
    assert all(isinstance(end, KernelCancelled) for end in ends.values())
    assert other.is_alive()
    collatz.cancel()
    other.join(timeout=60)
    assert isinstance(ends["other"], KernelCancelled)


def test_cancel_before_a_call_does_not_stop_it():
    decay.cancel()
    assert decay(X, 100) == decay(X, 100)


def test_a_call_that_has_run_to_its_end_is_not_lost():
    """A request that no poll has seen any more changes nothing."""
    calls = Calls("kernel")

    def entry(control):
        calls.cancel()  # as if from another thread, behind the last poll
        return (7,)

    assert calls.run(entry, (), (), 0) == (7,)
    assert not calls._running


def test_a_call_that_left_raises_even_where_it_has_a_result():
    calls = Calls("kernel")

    def entry(control):
        calls.cancel()
        control[1:4] = 1, 5, 9
        return (0,)

    with pytest.raises(KernelCancelled, match="kernel was cancelled in loop 'k' at 5 of 9"):
        calls.run(entry, (), (("loop 'k' at {} of {}",),), 0)


@pytest.fixture
def own_handler():
    """The program handles Ctrl-C by a function of its own: long calls of the main thread run in a helper."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_error_of_the_compiled_code_comes_out_of_the_helper_thread(own_handler):
    calls = Calls("kernel")

    def entry(control):
        assert threading.current_thread() is not threading.main_thread()
        raise IndexError("index is out of range")

    with pytest.raises(IndexError, match="out of range"):
        calls.run(entry, (), (), float("inf"))


def test_helper_threads_are_used_again(own_handler):
    calls = Calls("kernel")
    seen = set()
    for _ in range(20):
        calls.run(lambda control: seen.add(threading.get_ident()), (), (), float("inf"))
    assert len(seen) <= 2


def test_progress_is_told_from_the_inside_out():
    control = Control((("loop 'i' at {}", "loop 'x' in iteration {}"),), None)
    assert control.progress == "before its loops"
    control.words[:] = 1, 1, 3, 8
    assert control.progress == "in loop 'x' in iteration 8, in loop 'i' at 3"


# --------------------------------------------------------------------------------------------------- Ctrl-C


def interrupt():
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_raises_keyboard_interrupt_that_says_how_far():
    timer = soon(interrupt)
    with pytest.raises(KeyboardInterrupt, match=rf"decay was interrupted in loop 'k' at \d+ of {ENDLESS}"):
        decay(X, ENDLESS)
    timer.join()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_and_cancel_together_are_a_ctrl_c():
    timer = soon(lambda: (decay.cancel(), interrupt()))
    with pytest.raises(KeyboardInterrupt):
        decay(X, ENDLESS)
    timer.join()


def test_a_second_ctrl_c_while_the_kernel_leaves_is_no_second_error():
    calls = Calls("kernel")

    def entry(control):
        for _ in range(3):
            interrupt()
            time.sleep(0.05)
        control[1] = 1

    with pytest.raises(KeyboardInterrupt, match="kernel was interrupted"):
        calls.run(entry, (), ((),), float("inf"))


def test_ctrl_c_that_comes_too_late_is_not_forgotten():
    calls = Calls("kernel")

    def entry(control):
        interrupt()
        time.sleep(0.05)

    with pytest.raises(KeyboardInterrupt, match="kernel had finished"):
        calls.run(entry, (), ((),), float("inf"))


def test_the_programs_own_handler_of_ctrl_c_is_heeded():
    class Stop(Exception):
        pass

    def handler(number, frame):
        raise Stop("by hand")

    before = signal.signal(signal.SIGINT, handler)
    try:
        timer = soon(interrupt)
        with pytest.raises(Stop, match="by hand") as info:
            decay(X, ENDLESS)
        timer.join()
        assert "decay was stopped in loop 'k' at" in info.value.__notes__[0]
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_handler_that_raises_nothing_lets_the_call_run():
    seen = []
    before = signal.signal(signal.SIGINT, lambda *_: seen.append(1))
    try:
        timer = soon(interrupt, 0.02)
        assert decay(X, 50_000_000) == decay(X, 50_000_000)
        timer.join()
    finally:
        signal.signal(signal.SIGINT, before)
    assert seen == [1]


def test_an_event_loop_hears_of_signals_that_came_meanwhile():
    """Where something else waits for signals (`asyncio` does so), it is told of them too."""
    heard, told = socket.socketpair()
    told.setblocking(False)
    before = signal.set_wakeup_fd(told.fileno())
    try:
        timer = soon(interrupt)
        with pytest.raises(KeyboardInterrupt):
            decay(X, ENDLESS)
        timer.join()
        heard.settimeout(5)
        assert heard.recv(1) == bytes([signal.SIGINT])
        assert signal.set_wakeup_fd(before) == told.fileno(), "put back as it was"
    finally:
        signal.set_wakeup_fd(before)
        heard.close()
        told.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_the_child_of_a_fork_is_interrupted_by_itself(tmp_path):
    code = (
        SCRIPT.partition("    sent = []")[0]
        + """
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        decay(x, 10**14)
    except KeyboardInterrupt:
        pass
    child = os.fork()
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        decay(x, 10**14)
    except KeyboardInterrupt:
        os.write(1, b"interrupted\\n")
        if child == 0:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    """
    )
    done = run(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["interrupted", "interrupted"]


def test_a_call_given_up_before_a_helper_took_it_never_runs():
    job = cancellation._Job(lambda: pytest.fail("it ran"), (), None)
    assert job.claim.acquire(blocking=False)
    job.run()
    assert job.error is None


SCRIPT = """
    import os, signal, sys, threading, time
    import numpy as np
    from pyschedule import poll

    @poll(every=4096)
    def decay(x, n):
        acc = 0.0
        for k in range(n):
            acc = acc * 0.999 + x[k % 10]
        return acc

    x = np.ones(10)
    decay(x, 10)
    sent = []

    def press():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    took = []
    for turn in range(5):
        threading.Timer(0.1, press).start()
        try:
            decay(x, 10**14)
        except KeyboardInterrupt as error:
            took.append(time.monotonic() - sent[-1])
            assert "at" in str(error)
    print(min(took))  # the others were late because the machine was busy
"""


def run(tmp_path, code, **environment):
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(code))
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | environment
    return subprocess.run([sys.executable, str(file)], env=env, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise")
def test_ctrl_c_ends_a_kernel_within_100_ms(tmp_path):
    done = run(tmp_path, SCRIPT)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 0.1


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise")
def test_ctrl_c_at_any_moment_is_an_interrupt_or_comes_after_a_whole_result(tmp_path):
    """Calls of 0 to 40 ms, interrupted around their start and end: no result is half, none is lost silently."""
    code = (
        SCRIPT.partition("    sent = []")[0]
        + """
    expected = decay(x, 3_000_000)
    lengths = np.random.default_rng(1).random(60)
    ended = interrupted = 0
    for length in lengths:
        timer = threading.Timer(float(length) * 0.02, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            assert decay(x, 3_000_000) == expected
            ended += 1
            timer.join()
            time.sleep(0.01)
        except KeyboardInterrupt:
            interrupted += 1
        timer.join()
    assert interrupted == len(lengths), (interrupted, ended)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert decay(x, 3_000_000) == expected
    print("right")
    """
    )
    done = run(tmp_path, code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["right"]


def test_plain_python_checks_the_timeout_and_needs_no_polls(tmp_path):
    code = (
        SCRIPT.partition("    sent = []")[0]
        + """
    assert decay(x, 10, timeout=1) == decay.python(x, 10)
    try:
        decay(x, 10, timeout=-1)
    except ValueError:
        print("refused")
    """
    )
    done = run(tmp_path, code, PYSCHEDULE_DEBUG="1")
    assert done.stdout.split() == ["refused"], done.stderr


def test_the_exceptions_are_public():
    assert {"KernelCancelled", "KernelTimeout"} <= set(pyschedule.__all__)


def test_the_cache_tells_schedules_with_other_polls_apart(tmp_path):
    """Same function, other `every`: the second process must not be given the first one's code."""
    code = """
    import numpy as np
    from pyschedule import poll

    def fill(y):
        for k in range(y.shape[0]):
            y[k] = k

    for every in (16, 48):
        y = np.zeros(100)
        poll(every=every)(fill)(y)
        assert y[99] == 99
        print(f"{every})" in poll(every=every)(fill).lower(y).source)
    """
    for _ in range(2):
        done = run(tmp_path, code, PYSCHEDULE_CACHE_DIR=str(tmp_path / "cache"))
        assert done.stdout.split() == ["True", "True"], done.stderr
