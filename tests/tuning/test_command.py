"""`pyschedule tune`, as a user meets it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
KERNELS = """
from pyschedule import tile, vectorize

@tile(i=4)
def twice(x, y):
    for i in range(x.shape[0]):
        y[i] = 2 * x[i]

@tile(i=(16, 4), j=(64, 8))
def squares(x, y):  # more candidates than a test has time for
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] * x[i, j]

@vectorize("i")
def untiled(x, y):
    for i in range(x.shape[0]):
        y[i] = 2 * x[i]
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "mine.py").write_text(KERNELS)
    return subprocess.Popen(
        [sys.executable, "-m", "pyschedule", "tune", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_prints_a_table_and_the_line_to_paste(tmp_path):
    process = start(tmp_path, "mine:twice", "float32[1000]", "float32[1000]", "--seconds", "2", "--csv", "t.csv")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    lines = out.splitlines()
    assert lines[0].split() == ["schedule", "status", "time_s", "best_s", "speedup", "rounds", "note"]
    assert lines[1].split()[:2] == ["i=4", "original"]
    assert lines[-1].startswith("@tile(i=")
    assert (tmp_path / "t.csv").read_text().startswith("schedule,status,time_s,best_s,speedup,rounds,note\ni=4,")


def test_ctrl_c_prints_the_best_so_far(tmp_path):
    process = start(tmp_path, "mine:squares", "float32[60,200]", "float32[60,200]", "--seconds", "1000")
    line = process.stderr.readline()
    while line and " tried, " not in line:
        line = process.stderr.readline()
    assert line, "it never got to a second candidate"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out.splitlines()[-1].startswith("@tile(i=")
    assert "interrupted; " in out


def test_a_kernel_with_nothing_to_vary_is_one_line(tmp_path):
    process = start(tmp_path, "mine:untiled", "float32[1000]", "float32[1000]")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 2 and not out
    assert len(err.splitlines()) == 1 and "add the decorator tile" in err
