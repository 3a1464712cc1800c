"""`benchmarks/cpu.py`: a line of a table with NumPy alone, the files it writes, and what it says of wrong options.

Without the libraries of the extra `peers`, which the project's tests never need.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas
import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*options):
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(ROOT / "benchmarks" / "cpu.py"), *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import tables

    return tables


@pytest.fixture
def problems(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from peers import problems

    return problems


def test_arrays_begin_where_a_line_of_the_caches_does(problems):
    odd = [problems.Product(3, 5, 7, dtype) for dtype in ("float32", "float64", "float16", "int8")]
    odd += [problems.Product(67, 129, 31)] * 4
    window = problems.Convolution(3, 5, 7, 9)
    norm = problems.Normalisation(3, 7)
    arrays = [array for given in odd for array in (given.a, given.b, given.out())]
    arrays += [window.x, window.weight, window.bias, window.out(), norm.x, norm.weight, norm.bias, norm.out()]
    assert [array.ctypes.data % 64 for array in arrays] == [0] * len(arrays)
    assert all(array.flags.c_contiguous and array.flags.writeable for array in arrays)
    assert all(array.flags.owndata for array in arrays if array.nbytes <= 1024)
    assert arrays[0].shape == (3, 7) and arrays[-2].any() and not arrays[-1].any()


def test_an_aligned_copy_has_the_order_of_its_axes(problems):
    values = np.arange(24, dtype=np.int8).reshape(2, 3, 4).transpose(2, 0, 1)
    copy = problems.aligned(values)
    assert copy.flags.c_contiguous and copy.dtype == np.int8 and np.array_equal(copy, values)


def test_a_line_of_a_table_is_printed_and_written(tmp_path):
    given = ["--quick", "--rows", "small,overhead", "--only", "8x8x8", "--peers", "numpy"]
    done = run(*given, "--write", str(tmp_path / "deep" / "zen4.1"))
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "deep" / "zen4.1.md").read_text()
    table = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert [cell.strip() for cell in table[0].split("|")[1:-1]] == [
        "shape",
        "pyschedule",
        "numpy",
        "ours - best, µs",
    ]
    assert table[-1].startswith("| 8x8x8 |") and len(table) == 3
    assert all(line in text for line in table)
    for said in (
        "CPU:",
        "instruction sets:",
        "NumPy 2",
        "torch: not installed, or not asked for",
        "load average",
        "scheduling:",
    ):
        assert said in text and said in done.stdout, said
    frame = pandas.read_csv(tmp_path / "deep" / "zen4.1.csv")
    assert frame["variant"].tolist() == ["pyschedule", "numpy"]
    assert (frame["time_s"] > 0).all() and (frame["rel_error"] < 1e-6).all()
    assert frame["speedup"][1] == 1.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--rows", "gemm,bread"), "'bread' is none of gemm, dtypes"),
        (("--peers", "nobody"), "'nobody' is none of numpy"),
        (("--threads", "0"), "--threads: 1 to"),
        (("--threads", "4096"), "--threads: 1 to"),
    ],
)
def test_wrong_options_are_refused_in_one_line(options, message):
    done = run(*options)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def frame_of(*rows):
    columns = ["operator", "shape", "dtype", "variant", "time_s"]
    return pandas.DataFrame([dict(zip(columns, row, strict=True)) for row in rows])


def test_ratios_are_of_the_best_peer_the_copy_and_one_core(tables):
    frame = frame_of(
        ("norm", "4x4", "float32", "pyschedule", 2.0),
        ("norm", "4x4", "float32", "pyschedule, one core", 3.0),
        ("norm", "4x4", "float32", "copy", 1.0),
        ("norm", "4x4", "float32", "torch", 5.0),
        ("norm", "4x4", "float32", "numba", 4.0),
    )
    text = tables.lines(tables.Table("Norm", lambda row: 1 / row.time_s), frame)
    header, _, line = ([cell.strip() for cell in row.split("|")[1:-1]] for row in text if row.startswith("|"))
    cells = dict(zip(header, line, strict=True))
    assert cells["shape"] == "4x4" and cells["copy"] == "1.0" and cells["numba"] == "0.2"
    assert (cells["ours / best"], cells["ours / copy"], cells["ours / one core"]) == ("2.000", "0.500", "1.50")


def test_a_peer_that_sits_a_line_out_is_a_dash(tables):
    frame = frame_of(
        ("matmul", "4x4x4", "float32", "pyschedule NCHW", 2.0),
        ("matmul", "4x4x4", "float32", "numpy", 1.0),
        ("matmul", "4x4x4", "int8", "pyschedule NCHW", 2.0),
    )
    text = tables.lines(tables.Table("Products", lambda row: row.time_s, 1), frame)
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in text if row.startswith("|")]
    assert rows[0] == ["shape", "pyschedule NCHW", "numpy", "NCHW / best"]
    assert rows[2:] == [["4x4x4 float32", "2.0", "1.0", "0.500"], ["4x4x4 int8", "2.0", "-", "-"]]


def test_differences_are_in_microseconds(tables):
    frame = frame_of(
        ("matmul", "8x8x8", "float32", "pyschedule", 3.5e-6),
        ("matmul", "8x8x8", "float32", "numpy", 1.0e-6),
    )
    table = tables.Table("Small", lambda row: row.time_s * 1e6, 2, apart=True)
    assert tables.lines(table, frame)[-2].split("|")[-2].strip() == "2.50"


def test_without_a_peer_there_are_no_ratios(tables):
    frame = frame_of(("matmul", "8x8x8", "float32", "pyschedule", 0.25))
    text = tables.lines(tables.Table("First", lambda row: row.time_s, 3), frame)
    assert [row.replace(" ", "") for row in text[2:5:2]] == ["|shape|pyschedule|", "|8x8x8|0.250|"]
