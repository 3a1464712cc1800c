"""The on-disk cache: what hits, what misses, and what it survives."""

from __future__ import annotations

import ctypes
import hashlib
import json
import logging
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from pyschedule import tile, vectorize

SCRIPT = """
    import sys
    import numpy as np
    from pyschedule import vectorize

    FACTOR = {factor}

    @vectorize("i", {width})
    def scale(x, y):
        for i in range(x.shape[0]):
            y[i] = FACTOR * x[i]{extra}

    x, y = np.arange(9, dtype={dtype!r}), np.zeros(9, {dtype!r})
    scale(x, y)
    print(y.sum())
    print([name for name in ("sympy", "pandas", "networkx", "islpy") if name in sys.modules])
"""


@pytest.fixture
def directory(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    monkeypatch.setenv("PYSCHEDULE_CACHE_DIR", str(path))
    return path


def script(tmp_path, **changes):
    file = tmp_path / "script.py"
    settings = {"factor": 2, "width": 4, "dtype": "float32", "extra": ""} | changes
    file.write_text(textwrap.dedent(SCRIPT).format(**settings))
    return file


def start(file, user=None, **environment):
    root = Path(__file__).parents[2]
    env = os.environ | {"PYSCHEDULE_LOG": "1", "PYTHONPATH": str(root)} | environment
    return subprocess.Popen(
        [sys.executable, str(file)],
        env=env,
        cwd=file.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **(user or {}),
    )


@pytest.fixture
def reader():
    """How to start a process that may not write where the mode of a directory forbids it, as root may."""
    if os.name != "posix":
        pytest.skip("the modes of directories are POSIX's here")
    if os.geteuid() != 0:
        return {}
    if sys.platform != "linux":
        pytest.skip("root may write anywhere")
    library = ctypes.CDLL(None)

    def give_up_writing_anywhere():
        drop_from_bounding_set, override_permissions = 24, 1  # linux/prctl.h, linux/capability.h
        if library.prctl(drop_from_bounding_set, override_permissions, 0, 0, 0):
            raise PermissionError("no capability can be dropped")

    return {"preexec_fn": give_up_writing_anywhere}


@pytest.fixture
def read_only():
    """Makes a directory and all in it read-only, until the test has ended."""
    made = []

    def make(directory):
        for path in (directory, *directory.rglob("*")):
            made.append((path, path.stat().st_mode))
            path.chmod(0o555 if path.is_dir() else 0o444)

    yield make
    for path, mode in made:
        path.chmod(mode)


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.splitlines(), err


def run(file, **environment):
    """What a process prints, and whether (its plan, its machine code) came from the cache."""
    out, err = finish(start(file, **environment))
    return out[0], ("plan loaded" in err, "machine code loaded" in err)


def entries(directory):
    return [path.parent for path in sorted(directory.rglob("plan.json"))]


def machine_code(directory):
    return sorted(directory.rglob("*.nbc"))


def test_a_second_process_lowers_and_compiles_nothing(tmp_path, directory):
    file = script(tmp_path)
    assert run(file) == ("72.0", (False, False))
    out, err = finish(start(file))
    assert out == ["72.0", "[]"]
    assert "plan loaded" in err and "machine code loaded" in err and "lowered" not in err


def test_what_matters_misses(tmp_path, directory):
    run(script(tmp_path))
    for change in ({"factor": 3}, {"factor": 2.0}, {"width": 8}, {"dtype": "float64"}, {"extra": " + 1"}):
        result, hits = run(script(tmp_path, **change))
        assert hits == (False, False), change
        expected = np.arange(9) * change.get("factor", 2) + (1 if "extra" in change else 0)
        assert float(result) == expected.sum(), change
    assert run(script(tmp_path)) == ("72.0", (True, True))


def test_a_closure_s_constant_is_part_of_the_key(directory):
    def make(factor):
        @vectorize("i", 4)
        def scale(x):
            for i in range(x.shape[0]):
                x[i] = factor * x[i]

        return scale

    for factor in (2, 3, 2, 2.5):
        x = np.ones(9)
        make(factor)(x)
        assert (x == factor).all()


def test_processes_that_compile_at_once(tmp_path, directory):
    file = script(tmp_path)
    for out, _ in [finish(process) for process in [start(file) for _ in range(3)]]:
        assert out[0] == "72.0"
    assert run(file) == ("72.0", (True, True))
    assert not [path for path in directory.rglob("*") if path.name.startswith(".") or ".tmp" in path.name]


def damage(path, how):
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    if how == "flipped":
        data[middle] ^= 1
    else:
        del data[0 if how == "empty" else middle :]
    path.write_bytes(data)


def test_what_is_damaged_is_made_anew(tmp_path, directory):
    file = script(tmp_path)
    run(file)
    (entry,) = entries(directory)
    for how in ("empty", "half", "flipped"):
        damage(entry / "plan.json", how)
        result, (plan, _) = run(file)
        assert result == "72.0" and not plan, how
    for how in ("empty", "half", "flipped"):
        for code in machine_code(directory):
            damage(code, how)
        assert run(file) == ("72.0", (True, False)), how
    for seal in directory.rglob("*.sums.json"):  # as after a run that was interrupted
        seal.unlink()
    assert run(file) == ("72.0", (True, False))
    assert run(file) == ("72.0", (True, True))


def test_an_index_that_cannot_be_read_is_compiled_anew(tmp_path, directory):
    """Numba's own index, damaged in a way that its checksum agrees with."""
    file = script(tmp_path)
    run(file)
    for seal in directory.rglob("*.sums.json"):
        sums = json.loads(seal.read_text())
        for name in sums:
            path = seal.parent / name
            path.write_bytes(b"rubbish")
            sums[name] = hashlib.sha256(b"rubbish").hexdigest()
        seal.write_text(json.dumps(sums))
    assert run(file) == ("72.0", (True, False))
    assert run(file) == ("72.0", (True, True))


def test_an_edited_module_is_written_again(tmp_path, directory):
    file = script(tmp_path)
    run(file)
    (module,) = directory.rglob("scale_serial_*.py")
    text = module.read_text()
    module.write_text("raise SystemExit('edited')")
    assert run(file)[0] == "72.0"
    assert module.read_text() == text


@pytest.mark.parametrize("kind", ["a file", "below a file", "read-only"])
def test_a_directory_that_cannot_be_written_is_done_without(tmp_path, reader, kind):
    path = tmp_path / "no"
    if kind == "read-only":
        path.mkdir(mode=0o555)
    else:
        path.write_text("")
        path = path / "cache" if kind == "below a file" else path
    out, err = finish(start(script(tmp_path), reader, PYSCHEDULE_CACHE_DIR=str(path)))
    assert out[0] == "72.0"
    assert err.count("cannot be used") == 1


def test_a_directory_that_can_only_be_read_gives_plan_and_machine_code(tmp_path, reader, read_only):
    file, path = script(tmp_path), tmp_path / "cache"
    nowhere = {"PYSCHEDULE_CACHE_DIR": str(path), "HOME": "/nowhere", "XDG_CACHE_HOME": "/nowhere"}
    finish(start(file, **nowhere))
    read_only(path)
    before = sorted(path.rglob("*"))
    for _ in range(2):
        out, err = finish(start(file, reader, **nowhere))
        assert out[0] == "72.0"
        assert "plan loaded" in err and "machine code loaded" in err and "cannot be used" not in err
    assert sorted(path.rglob("*")) == before


@pytest.mark.parametrize("damage", ["machine code", "of another Numba"])
def test_what_is_damaged_in_a_directory_that_can_only_be_read_is_compiled_and_not_kept(
    tmp_path, reader, read_only, damage
):
    file, path = script(tmp_path), tmp_path / "cache"
    nowhere = {"PYSCHEDULE_CACHE_DIR": str(path), "HOME": "/nowhere", "XDG_CACHE_HOME": "/nowhere"}
    finish(start(file, **nowhere))
    (code,), (index,) = path.rglob("*.nbc"), path.rglob("*.nbi")
    if damage == "of another Numba":
        with index.open("wb") as out:
            pickle.dump("0.0", out)
    else:
        code.write_bytes(b"nonsense")
    sums = {one.name: hashlib.sha256(one.read_bytes()).hexdigest() for one in (code, index)}
    if damage == "of another Numba":  # sound, and still of no use
        (seal,) = path.rglob("*.sums.json")
        seal.write_text(json.dumps(sums))
    read_only(path)
    out, err = finish(start(file, reader, **nowhere))
    assert out[0] == "72.0" and "machine code loaded" not in err


def test_a_cache_that_becomes_unwritable_keeps_working(tmp_path, directory):
    """The plan is there, and the module cannot be written beside it."""
    file = script(tmp_path)
    run(file)
    (entry,) = entries(directory)
    for path in sorted(entry.rglob("*"), reverse=True):
        if path.name != "plan.json":
            path.rmdir() if path.is_dir() else path.unlink()
    assert run(file)[0] == "72.0"
    (module,) = entry.glob("scale_serial_*.py")
    for path in (entry / "__pycache__").iterdir():
        path.unlink()
    (entry / "__pycache__").rmdir()
    module.unlink()
    module.mkdir()  # neither readable as a file nor replaceable by one
    assert run(file)[0] == "72.0"


def test_the_log_tells_hits_and_misses(tmp_path, directory, caplog):
    def body(x):
        for i in range(x.shape[0]):
            x[i] = 2 * x[i]

    with caplog.at_level(logging.INFO, "pyschedule"):
        vectorize("i", 4)(body)(np.ones(9))
        assert "cache miss" in caplog.text and "lowered for cpu" in caplog.text
        caplog.clear()
        vectorize("i", 4)(body)(np.ones(9))


def test_threads_that_call_a_new_kernel_at_once(directory):
    @tile(i=64)
    @vectorize("j", 4)
    def scale(x, y):
        for i in range(x.shape[0]):
            for j in range(x.shape[1]):
                y[i, j] = 2 * x[i, j]

    failures = []
    gate = threading.Barrier(6)

    def work(number):
        x, y = np.full((70 + number, 9), float(number)), np.zeros((70 + number, 9))
        gate.wait()
        for _ in range(50):
            y[...] = 0
            scale(x, y)
            if not (y == 2 * x).all():
                failures.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
