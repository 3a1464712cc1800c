"""Waiting for other threads: one that computes, one that only waits for a core, and none."""

from __future__ import annotations

import hashlib
import threading
import time
from contextlib import contextmanager

import pytest

from pyschedule.report import quiet


@contextmanager
def computing():
    """Another thread that computes, without the interpreter's lock."""
    done = threading.Event()
    data = bytes(1 << 20)

    def turn():
        while not done.is_set():
            hashlib.sha256(data)

    thread = threading.Thread(target=turn)
    thread.start()
    try:
        yield done
    finally:
        done.set()
        thread.join()


def test_alone_it_is_quiet_at_once():
    assert quiet.until_quiet(5.0)


def test_a_thread_that_computes_is_not_quiet_until_it_ends():
    with computing() as done:
        assert not quiet.until_quiet(0.05)
        threading.Timer(0.05, done.set).start()
        assert quiet.until_quiet(30.0) and done.is_set()


def test_a_thread_that_sleeps_is_quiet():
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert quiet.until_quiet(30.0)
    finally:
        done.set()
        thread.join()


def test_a_thread_that_waits_for_a_core_is_awake(monkeypatch):
    """Other programs may keep it from computing: what is computed says nothing then."""
    monkeypatch.setattr(quiet, "_computed", lambda: 0.0)
    if not quiet._TASKS.exists():
        pytest.skip("the system does not say what threads do")
    with computing():
        assert not quiet.until_quiet(0.05)


def test_where_the_system_is_silent_the_clocks_decide(monkeypatch, tmp_path):
    monkeypatch.setattr(quiet, "_TASKS", tmp_path / "none")
    monkeypatch.setattr(quiet, "_computed", time.perf_counter)  # all the time that passes
    with computing():
        assert not quiet.until_quiet(0.02)
    monkeypatch.setattr(quiet, "_computed", lambda: 0.0)
    assert quiet.until_quiet(30.0)


def test_names_of_threads_may_have_parentheses(tmp_path):
    (tmp_path / "stat").write_text("12 (a) R (b)) S 1 2 3")
    assert quiet._state(tmp_path) == "S"
    assert quiet._state(tmp_path / "ended") == ""
