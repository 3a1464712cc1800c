"""`PYSCHEDULE_DEBUG=1`: prints, breakpoints and the user's variables, and the results of a compiled call."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from pyschedule import FrontendError, tile, unroll, vectorize

ROOT = Path(__file__).parents[2]
SCALE = 3


def debugged(monkeypatch, function, *decorators):
    """The kernel as it is for debugging, and compiled."""
    compiled = function
    for decorate in decorators:
        compiled = decorate(compiled)
    monkeypatch.setenv("PYSCHEDULE_DEBUG", "1")
    plain = function
    for decorate in decorators:
        plain = decorate(plain)
    monkeypatch.delenv("PYSCHEDULE_DEBUG")
    return plain, compiled


def same(plain, compiled, *args):
    """Both write and return the same, of the same types."""
    one = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
    other = [arg.copy() if isinstance(arg, np.ndarray) else arg for arg in args]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        got = plain(*one)
    wanted = compiled(*other)
    for left, right in zip(one, other, strict=True):
        if isinstance(right, np.ndarray):
            np.testing.assert_array_equal(left, right)
    assert type(got) is type(wanted)
    if isinstance(wanted, tuple):
        assert [type(item) for item in got] == [type(item) for item in wanted]
    for left, right in zip(
        *((item if isinstance(item, tuple) else (item,)) for item in (got, wanted)), strict=True
    ):
        if right is not None:
            assert np.asarray(left).dtype == np.asarray(right).dtype
            np.testing.assert_array_equal(np.asarray(left, float), np.asarray(right, float))


# --------------------------------------------------------------------------------- prints and breakpoints


def talkative(x):
    import pdb  # noqa: F401

    total = 0.0
    for i in range(x.shape[0]):
        print("at", i, x[i])
        if x[i] > 1:
            print("large")
        else:
            total += x[i]
        match i:
            case 1:
                print("one")
            case _:
                total += 1
    return total


def test_prints_are_allowed_while_debugging_and_are_no_part_of_the_kernel(monkeypatch, capsys):
    monkeypatch.setenv("PYSCHEDULE_DEBUG", "1")
    kernel = unroll("i", 2)(talkative)
    assert kernel(np.array([1.0, 2.0, 0.5])) == 3.5
    assert capsys.readouterr().out == "at 0 1.0\nat 1 2.0\nlarge\none\nat 2 0.5\n"
    assert "print" not in kernel.lower(np.zeros(3)).source


@pytest.mark.parametrize(
    ("line", "caret"),
    [
        ("print(x[0])", "print(x[0])"),
        ("breakpoint()", "breakpoint()"),
        ("import pdb; pdb.set_trace()", "import pdb"),
    ],
)
def test_otherwise_they_are_refused_with_the_way_to_have_them(tmp_path, line, caret):
    file = tmp_path / "spoken.py"
    file.write_text(f"def spoken(x):\n    for i in range(3):\n        {line}\n        x[i] = 1\n")
    import importlib.util

    spec = importlib.util.spec_from_file_location("spoken", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(FrontendError, match="PYSCHEDULE_DEBUG=1") as caught:
        unroll("i")(module.spoken)
    lines = str(caught.value).splitlines()
    assert lines[0].startswith(f"{file}:3:9: ")
    assert lines[2].count("^") == len(caret)


def session(tmp_path, text, *commands, module="pdb"):
    """The output of a program under pdb, with these commands, in debugging mode."""
    file = tmp_path / "program.py"
    file.write_text(textwrap.dedent(text).lstrip())
    given = [part for command in commands for part in ("-c", command)]
    start = [sys.executable, "-m", module, *given, str(file)] if module else [sys.executable, str(file)]
    done = subprocess.run(
        start,
        input="" if module else "\n".join(commands) + "\n",
        capture_output=True,
        text=True,
        env=os.environ | {"PYSCHEDULE_DEBUG": "1", "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        timeout=120,
    )
    return done.stdout


PROGRAM = """
    import numpy as np
    from pyschedule import tile, unroll, vectorize

    @unroll("i", 4)
    @vectorize("i", 2)
    def scaled(x, factor):
        total = 0.0
        for i in range(x.shape[0]):
            x[i] = x[i] * factor
            total += x[i]
        mean = total / x.shape[0]
        return mean

    print("mean", scaled(np.arange(5.0), 3))
    """


def test_pdb_stops_at_the_users_line_with_the_users_variables(tmp_path):
    looks = ("b 10, i == 3", "c", "w", "p i, float(total), factor, x.tolist()", "cl 1", "b 12", "c", "w")
    out = session(tmp_path, PROGRAM, *looks, "p float(mean)", "c", "q")
    assert "program.py(10)scaled()" in out and "total += x[i]" in out
    assert "(3, 9.0, 3, [0.0, 3.0, 6.0, 9.0, 4.0])" in out
    assert "program.py(12)scaled()" in out and "\n6.0\n" in out.replace("(Pdb) ", "")
    assert "mean 6.0" in out


def test_a_breakpoint_in_the_kernel_stops_there(tmp_path):
    text = PROGRAM.replace("            total += x[i]\n", "            total += x[i]\n            breakpoint()\n")
    out = session(tmp_path, text, "p i, float(total)", "n", "n", "n", "p i, float(total)", "q", module=None)
    assert "program.py(8)scaled()" in out
    assert "(0, 0.0)" in out and "(1, 3.0)" in out


BLOCK = """
    import numpy as np
    from pyschedule import tile, unroll, vectorize

    @tile(input_shapes=[(6, 5), (5, 4)], tile_shapes=[(2, 5), (5, 2)])
    def product(A_block, B_block):
        C_tile = [[0.0 for _ in range(2)] for _ in range(2)]
        for i in range(2):
            for j in range(2):
                for k in range(5):
                    C_tile[i][j] += A_block[i][k] * B_block[k][j]
        return C_tile

    A, B = np.arange(30.0).reshape(6, 5), np.arange(20.0).reshape(5, 4)
    C = product(A, B)
    print("right", np.array_equal(C, A @ B), C.dtype)
    """


def test_pdb_stops_in_a_block_at_the_users_line_over_the_whole_arrays(tmp_path):
    looks = ("b 10, i == 4 and j == 3 and k == 2", "c", "w", "p i, j, k, float(C_tile[i][j])")
    out = session(tmp_path, BLOCK, *looks, "p len(C_tile), len(C_tile[0])", "c", "q")
    assert "program.py(10)product()" in out
    assert "C_tile[i][j] += A_block[i][k] * B_block[k][j]" in out
    assert "(4, 3, 2, 207.0)" in out and "(6, 4)" in out
    assert "right True float64" in out


# ----------------------------------------------------------------------------------------------- results


def product(A, B, C):
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            for k in range(A.shape[1]):
                C[i, j] += A[i, k] * B[k, j]


def half_sum(x, y):
    s = 0.0
    for i in range(len(x)):
        s += x[i]
    for i in range(len(x)):
        y[i] = x[i] / 3
    t = 0.0
    for i in range(len(x)):
        t = max(t, y[i] * 2)
    return s, t, y


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_halves_are_summed_in_float32_and_rounded_once(monkeypatch, dtype):
    rng = np.random.default_rng(3)
    A, B = (rng.standard_normal((7, 70)) * 4).astype(dtype), (rng.standard_normal((70, 5)) * 4).astype(dtype)
    C = rng.standard_normal((7, 5)).astype(dtype)
    plain, compiled = debugged(monkeypatch, product, unroll("i", 2, strict_math=True))
    same(plain, compiled, A, B, C)
    ones = np.ones(2100, dtype)  # counting in halves would stop at 2048, or at 256
    plain, compiled = debugged(monkeypatch, half_sum, unroll("i", 2, strict_math=True))
    same(plain, compiled, ones, np.zeros_like(ones))
    same(plain, compiled, A.reshape(-1), np.zeros(A.size, dtype))


def wrapping(x, n):
    s = 0
    for i in range(len(x)):
        x[i] = x[i] * x[i] + 100
        s += x[i]
    return s


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_integers_wrap_without_a_warning(monkeypatch, dtype):
    plain, compiled = debugged(monkeypatch, wrapping, unroll("i", 2))
    ends = np.iinfo(dtype)
    same(plain, compiled, np.array([ends.max, ends.min, 3, ends.max - 1, 9], dtype), 3)


def divided(x, a, b, n, m):
    s = 0.0
    for i in range(len(x)):
        s += x[i]
        x[i] = a / x[i]
    mean = s / len(x)
    a /= b
    return mean, a, n // m * SCALE, n % m, x.shape[0] / m


def test_zero_divides_as_it_does_in_a_kernel(monkeypatch):
    plain, compiled = debugged(monkeypatch, divided, unroll("i", 2, strict_math=True))
    for x in (np.array([0.0, 2.0, -0.0]), np.zeros(0), np.array([0.0, 1.5], np.float32)):
        for a, b in ((1.0, 0.0), (0.0, 0.0), (-1.0, 0.5)):
            same(plain, compiled, x, a, b, 7, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = plain(np.zeros(2), 1.0, 0.0, 7, 0)
    np.testing.assert_array_equal(result, (0.0, np.inf, 0, 0, np.inf))


def closed_over(scale):
    def kernel(x, offset=2, *, power=1):
        for i in range(len(x)):
            x[i] = x[i] * scale + offset / power
        return x

    return kernel


def test_closures_defaults_and_keywords_are_the_functions_own(monkeypatch):
    plain, compiled = debugged(monkeypatch, closed_over(4), unroll("i", 2))
    x, y = np.arange(3.0), np.arange(3.0)
    result = plain(x, power=4)
    assert result is x
    np.testing.assert_array_equal(result, compiled(y, power=4))
    assert plain.python.__kwdefaults__ == {"power": 1}


# ------------------------------------------------------------------------------------------ the block form


def block(A_block, B_block):
    C_tile = [[0.0 for _ in range(4)] for _ in range(4)]
    for i in range(4):
        for j in range(4):
            for k in range(4):
                C_tile[i][j] += A_block[i][k] * B_block[k][j]
    return C_tile


def normalised(X_tile):
    Y = [[0.0] * 4 for _ in range(2)]
    for i in range(2):
        mean = 0.0
        for j in range(4):
            mean += X_tile[i][j]
        mean = mean / X_tile.shape[1]
        for j in range(4):
            Y[i][j] = X_tile[i][j] - mean
    return Y


def slid(X, W):
    Y = np.zeros((4, 4), np.float32)
    for h in range(4):
        for w in range(4):
            for r in range(3):
                Y[h, w] += X[h + r, w] * W[r]
    return Y


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_a_block_gives_what_it_does_compiled(monkeypatch, dtype):
    rng = np.random.default_rng(5)

    def numbers(*shape):
        return rng.integers(-4, 5, shape).astype(dtype)

    tiled = tile(input_shapes=[(9, 6), (6, None)], tile_shapes=[(4, 4), (4, 4)])
    plain, compiled = debugged(monkeypatch, block, tiled)
    for columns in (1, 7):
        same(plain, compiled, numbers(9, 6), numbers(6, columns))
    with pytest.raises(ValueError, match="A_block"):
        plain(numbers(9, 5), numbers(6, 3))
    for function, shapes, tiles in (
        (normalised, [(5, 8)], [(2, 4)]),
        (slid, [(9, 5), (3,)], [(6, 4), (3,)]),
    ):
        plain, compiled = debugged(monkeypatch, function, tile(input_shapes=shapes, tile_shapes=tiles))
        same(plain, compiled, *(numbers(*shape) for shape in shapes))


def test_a_padded_block_is_interpreted(monkeypatch):
    padded = tile(input_shapes=[(9, 5), (3,)], tile_shapes=[(6, 4), (3,)], pad=[[1, 0], [0]])
    plain, compiled = debugged(monkeypatch, slid, padded)
    same(plain, compiled, np.arange(45, dtype=np.float32).reshape(9, 5), np.array([1, 2, 3], np.float32))


def test_the_decorators_are_checked_while_debugging_too(monkeypatch):
    monkeypatch.setenv("PYSCHEDULE_DEBUG", "1")
    with pytest.raises(ValueError, match="'q'"):
        vectorize("q")(product)
    assert "Applied Unroll" in str(unroll("k", 2)(product).lower(*(np.zeros((4, 4)),) * 3).log)


class OnGpu:
    """An array that lives elsewhere: only copies of it can be looked at."""

    def __init__(self, array):
        self.memory = array
        self.__cuda_array_interface__ = {"shape": array.shape, "typestr": array.dtype.str, "data": (0, False)}

    def copy_to_host(self):
        return self.memory.copy()

    def copy_to_device(self, array):
        self.memory[...] = array


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_arrays_on_a_gpu_are_copied_to_the_host_and_back(monkeypatch, dtype):
    from numba import cuda

    monkeypatch.setattr(cuda, "as_cuda_array", lambda value: value)
    plain, compiled = debugged(monkeypatch, half_sum, unroll("i", 2, strict_math=True))
    x, y = np.linspace(-3, 5, 9).astype(dtype), np.zeros(9, dtype)
    given = OnGpu(x.copy()), OnGpu(y.copy())
    s, t, result = plain(*given)
    wanted = compiled(x, y)
    assert (s, t) == wanted[:2] and type(s) is type(wanted[0])
    assert result is given[1]
    np.testing.assert_array_equal(given[1].memory, y)
