"""The 16-bit floats: every word widened exactly, every narrowing rounded once, with and without the instruction."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from pyschedule.codegen.simd import halves
from pyschedule.ir.nodes import BinOp, Cast, Const, Dim, Expr, Kernel, Ramp, Store, Var
from pyschedule.ir.types import FLOAT32, Scalar
from tests.codegen.cpu_support import LANES, agree, array, compiled, load, samples, serial

I = Var("i")


@pytest.mark.parametrize("instruction", [True, False])
@pytest.mark.parametrize("lanes", [1, 16])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_half_is_widened_exactly_and_every_narrowing_rounds_once(
    dtype: str, lanes: int, instruction: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not instruction:
        for name in ("_has_half_conversion", "_has_bfloat16_conversion"):
            monkeypatch.setattr(halves, name, lambda _context: False)
    half = np.dtype(getattr(ml_dtypes, dtype)) if dtype == "bfloat16" else np.dtype(np.float16)
    h, f, d = array("h", dtype), array("f", "float32"), array("d", "float64")
    out, back, narrow = array("out", "float32"), array("back", dtype), array("narrow", dtype)
    index: Expr = I if lanes == 1 else Ramp(I, 1, lanes)
    body = serial(
        "i",
        Dim("h", 0),
        Store("out", (index,), load(h, index)),
        Store("back", (index,), load(f, index)),
        Store("narrow", (index,), load(d, index)),
        step=lanes,
    )
    function = compiled(Kernel("halves", (h, f, d, out, back, narrow), (body,)))
    words = np.arange(1 << 16, dtype=np.uint16)
    rng = np.random.default_rng(1)
    values = words.view(half).astype(np.float64)
    with np.errstate(all="ignore"):
        nudged = np.nextafter(values + np.roll(values, 1), rng.choice([-np.inf, np.inf], 1 << 16)) / 2
    nudged[:4096] = rng.standard_normal(4096) * 10.0 ** rng.integers(-12, 12, 4096)
    with np.errstate(all="ignore"):
        single = nudged.astype(np.float32)
        wanted_single, wanted_double = single.astype(half), nudged.astype(half) if dtype == "float16" else None
    got = np.zeros(1 << 16, np.float32), np.zeros(1 << 16, np.uint16), np.zeros(1 << 16, np.uint16)
    function(words, single, nudged, *got)
    np.testing.assert_array_equal(got[0], words.view(half).astype(np.float32))
    np.testing.assert_array_equal(got[1].view(half).astype(np.float32), wanted_single.astype(np.float32))
    if wanted_double is not None:
        np.testing.assert_array_equal(got[2].view(half).astype(np.float64), wanted_double.astype(np.float64))
    else:  # rounded once: the nearest of the two neighbours, the even one at a tie
        assert _nearest(nudged, got[2])


def _nearest(value: np.ndarray[Any, Any], words: np.ndarray[Any, Any]) -> bool:
    finite = np.isfinite(value) & (np.abs(value) < 1e38)
    value, words = value[finite], words[finite]
    half = np.dtype(ml_dtypes.bfloat16)
    own = np.abs(words.view(half).astype(np.float64) - value)
    for step in (-1, 1):
        other = (words.astype(np.int64) + step).astype(np.uint16)
        distance = np.abs(other.view(half).astype(np.float64) - value)
        closer = (distance < own) | ((distance == own) & (words % 2 == 1))
        if np.any(closer & np.isfinite(distance)):
            return False
    return True


def test_a_cast_to_a_half_rounds_and_stays_float32() -> None:
    x, y = array("x", "float32"), array("y", "float32")
    for name in ("float16", "bfloat16"):
        for lanes in (1, LANES):
            index: Expr = I if lanes == 1 else Ramp(I, 1, lanes)
            value = BinOp("+", Cast(Scalar(name), load(x, index)), Const(0.0, FLOAT32), FLOAT32)
            kernel = Kernel("round", (x, y), (serial("i", Dim("x", 0), Store("y", (index,), value), step=lanes),))
            agree(kernel, {"x": samples("float32", 32), "y": np.zeros(32, np.float32)})
