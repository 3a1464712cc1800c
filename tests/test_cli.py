"""The command line, as a user meets it: help, exit statuses, one line on a wrong request."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
KERNEL = """
from pyschedule import tile

@tile(i=4)
def twice(x, y):
    for i in range(x.shape[0]):
        y[i] = 2 * x[i]

def plain(x):
    return x
"""


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pyschedule", *arguments],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").write_text(KERNEL)
    (tmp_path / "operators.py").write_text(KERNEL.replace("twice", "mine_too"))
    (tmp_path / "broken.py").write_text("raise RuntimeError('boom\\nand more')\n")
    (tmp_path / "unparsed.py").write_text("def f(:\n")
    (tmp_path / "refused.py").write_text(KERNEL.replace("i=4", "z=4"))
    return tmp_path


@pytest.mark.parametrize("command", ["", "demo", "inspect", "bench", "tune", "doctor"])
def test_help(command):
    result = run(*command.split(), "--help")
    assert result.returncode == 0
    assert result.stdout.startswith("usage: pyschedule")
    assert not result.stderr


def test_inspect_prints_the_log_and_the_nest(folder):
    for name in ("mine:twice", "mine.py:twice"):
        result = run("inspect", name, "float32[10]", "float32[10]", cwd=folder)
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith("[Transform Log]\n- Applied Tiling: i=4\n")
        assert "for i" in result.stdout


def test_inspect_tells_more_of_the_loops_when_asked(folder):
    result = run("inspect", "mine:twice", "float32[10]", "float32[10]", "--verbose", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "[Loops]\n- loop 'i' [" in result.stdout and "    trip count: x.shape[0]\n" in result.stdout


def test_inspect_shows_the_generated_source(folder):
    result = run("inspect", "mine:twice", "float32[10]", "float32[10]", "--source", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "def " in result.stdout and "numba" in result.stdout


def test_a_file_is_loaded_though_another_module_has_its_name(folder):
    result = run("inspect", f"{folder}/operators.py:mine_too", "float32[10]", "float32[10]")
    assert result.returncode == 0, result.stderr
    assert "def mine_too" in result.stdout


def test_inspect_of_an_operator_for_a_gpu_that_is_not_here():
    result = run("inspect", "gemm", "float32[256,256]", "float32[256,256]", "--target", "cuda:sm_90")
    assert result.returncode == 0, result.stderr
    assert "- Applied Tiling: i=(128, 8), j=(128, 8), k=16" in result.stdout


WRONG = [
    ([], "choose a command"),
    (["dance"], "dance"),
    (["inspect"], "kernel"),
    (["inspect", "nothing"], "MODULE:KERNEL"),
    (["inspect", "absent_module:f"], "absent_module"),
    (["inspect", "absent.py:f"], "absent.py"),
    (["inspect", "mine:absent"], "absent"),
    (["inspect", "mine:plain"], "decorate"),
    (["inspect", "broken:f"], "RuntimeError: boom and more"),
    (["inspect", "unparsed.py:f"], "unparsed.py, line 1"),
    (["inspect", "refused.py:twice"], "refused.py:4:2: tile: there is no loop 'z'"),
    (["inspect", "mine:twice", "float32[10]"], "'y'; give"),
    (["inspect", "mine:twice", "float99[10]", "float32[10]"], "float99"),
    (["inspect", "mine:twice", "float32[10]", "float32[10]", "--target", "tpu"], "cpu"),
    (["demo", "--size", "0"], "positive"),
    (["bench", "mine:twice", "float32[10]", "float32[10]", "--rounds", "many"], "positive"),
    (["bench", "mine:twice", "float32[10]", "float32[10]", "--csv", "absent/t.csv"], "folder"),
    (["tune", "mine:twice", "float32[10]"], "'y'; give"),
    (["tune", "mine:twice", "float32[10]", "float32[10]", "--seconds", "0"], "positive"),
    (["tune", "mine:twice", "float32[10]", "float32[10]", "--csv", "absent/t.csv"], "folder"),
]


@pytest.mark.parametrize("arguments, word", WRONG, ids=[" ".join(arguments) for arguments, _ in WRONG])
def test_a_wrong_request_ends_with_2_and_one_line(folder, arguments, word):
    result = run(*arguments, cwd=folder)
    assert result.returncode == 2, result.stdout + result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and word in lines[0], result.stderr
    assert not result.stdout


def test_bench_prints_a_table_and_writes_it(folder):
    result = run(
        "bench", "mine:twice", "float32[1000]", "float32[1000]", "--rounds", "3", "--csv", "t.csv", cwd=folder
    )
    assert result.returncode == 0, result.stderr
    assert "naive" in result.stdout and "+tiling" in result.stdout
    rows = (folder / "t.csv").read_text().splitlines()
    assert rows[0].startswith("operator,shape,dtype,target,variant,time_s,speedup,gflops")
    assert len(rows) == 3


def test_doctor_finds_this_machine():
    result = run("doctor")
    assert result.returncode == 0, result.stderr
    for word in ("python", "numba", "cpu features", "matrix unit", "threads", "cache", "nvidia-cuda-nvcc"):
        assert word in result.stdout


def test_demo_at_a_small_size():
    result = run("demo", "--size", "96")
    assert result.returncode == 0, result.stderr
    assert "[Transform Log]\n- Applied Tiling: i=(96, 6), j=(256, 64), k=" in result.stdout
    for variant in ("naive", "+tiling", "+tiling+vectorization", "+tiling+vectorization+unroll", "numpy"):
        assert f" {variant} " in result.stdout
