"""Kernels called from several threads and processes, and the choice between one thread and many."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from pyschedule import tile
from pyschedule.runtime import binding, compiler, dispatch

KERNEL = """
    import threading
    import numpy as np
    from pyschedule import tile

    @tile(i=16, parallel="i.0")
    def double(x, y):
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                y[i, j] = 2 * x[i, j]

    x = np.ones((700, 600))
    double(x, np.empty_like(x))
"""


def run(tmp_path, code, **environment):
    file = tmp_path / "script.py"
    file.write_text(textwrap.dedent(KERNEL) + textwrap.dedent(code))
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2]), "NUMBA_NUM_THREADS": "2"} | environment
    done = subprocess.run([sys.executable, str(file)], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_python_threads_enter_a_layer_that_is_not_thread_safe_one_by_one(tmp_path):
    """Numba's own layer ends the process when two threads are in it."""
    code = """
        def work():
            for _ in range(100):
                y = np.empty_like(x)
                double(x, y)
                assert (y == 2).all()

        threads = [threading.Thread(target=work) for _ in range(4)]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        import numba
        print(numba.threading_layer())
    """
    assert run(tmp_path, code, NUMBA_THREADING_LAYER="workqueue") == ["workqueue"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_calls_what_its_parent_ran_in_parallel(tmp_path):
    """GNU OpenMP ends the child of a process that has used it."""
    code = """
        import os
        if os.fork() == 0:
            y = np.empty_like(x)
            double(x, y)
            os._exit(0 if (y == 2).all() else 1)
        print(os.waitstatus_to_exitcode(os.wait()[1]))
    """
    assert run(tmp_path, code) == ["0"]


@pytest.fixture
def entered(monkeypatch):
    """The variants that calls enter, in order."""
    seen = []
    original = dispatch.Specialisations.program

    def program(self, signature, target, variant, types):
        entrance = original(self, signature, target, variant, types)

        def watched(*args):
            seen.append(variant)
            return entrance(*args)

        return watched

    monkeypatch.setattr(dispatch.Specialisations, "program", program)
    return seen


def make():
    @tile(i=16, parallel="i.0")
    def double(x, n):
        for i in range(n):
            x[i] = 2 * x[i]

    return double


def test_threads_are_used_where_there_is_work_for_them(entered, monkeypatch):
    monkeypatch.setattr(binding, "PARALLEL_WORK", 1000)
    threads = [2]
    monkeypatch.setattr(dispatch, "usable_threads", lambda: threads[0])
    monkeypatch.setitem(binding._COMMON, "_ps_threads", lambda: threads[0])
    binding._factory.cache_clear()
    double = make()
    x = np.ones(5000)
    for n in (10, 5000, 10, 5000):
        double(x, n)
    threads[0] = 1
    double(x, 5000)
    assert entered == ["serial", "parallel", "serial", "parallel", "serial"]
    np.testing.assert_array_equal(x[[0, 9, 10, 4999]], [32, 32, 8, 8])
    binding._factory.cache_clear()


def test_a_parallel_kernel_gives_the_serial_result_at_every_size():
    double = make()
    for n in (0, 1, 15, 16, 17, 31, 33, 300_001):
        x = np.arange(n, dtype=np.int64)
        double(x, n)
        np.testing.assert_array_equal(x, 2 * np.arange(n))


def test_after_a_fork_of_openmp_there_is_one_thread(monkeypatch):
    monkeypatch.setattr(compiler, "_layer", "omp")
    monkeypatch.setattr(compiler, "_forked", False)
    monkeypatch.setattr(compiler, "_launching", compiler._launching)
    compiler._after_fork()
    assert compiler.usable_threads() == 1
