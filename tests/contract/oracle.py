"""A kernel beside its Python function: equal values and signs of zero, equal types of results, slack left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tests.support import TARGETS, call, inside_slack

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
RNG = np.random.default_rng(20)

#: How far a result may be off that is computed in float32 and rounded once, where NumPy rounds each time.
HALF = 2e-2


def scheduled(function: Callable[..., Any], *decorators: Callable[[Any], Any]) -> Any:
    """The kernel of a function under some decorators, applied in this order."""
    for decorate in decorators:
        function = decorate(function)
    return function


def numbers(dtype: Any, *shape: int, nonzero: bool = False) -> np.ndarray:
    """Elements all over a dtype's range: for integers its ends too."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        ends = np.iinfo(dtype)
        made = RNG.integers(ends.min, ends.max, shape, dtype, endpoint=True)
        flat = made.reshape(-1)
        edge = [ends.max, ends.min, 1, ends.max - 1][: flat.size]
        flat[: len(edge)] = edge
        if nonzero:
            flat[flat == 0] = 1
        return made
    if dtype.kind == "b":
        return RNG.integers(0, 2, shape).astype(bool)
    return (RNG.standard_normal(shape) * 8).astype(dtype)


def same(
    kernel: Any, *args: Any, targets: tuple[str, ...] = TARGETS, rtol: float = 0.0, types: bool = True
) -> None:
    """Asserts that kernel and function write and return the same, on each target; exactly, or by `rtol`.

    `types`: results have the same types too, where the kernel runs on the CPU.  Arguments are left as they were.
    """
    plain = [_copy(arg) for arg in args]
    with np.errstate(all="ignore"):
        expected = kernel.python(*plain)
    for target in targets:
        given = [_copy(arg) for arg in args]
        guarded = [
            inside_slack(arg) if isinstance(arg, np.ndarray) and arg.flags.c_contiguous else (arg, lambda: True)
            for arg in given
        ]
        result = call(kernel, *(arg for arg, _ in guarded), target=target)
        what = f"{kernel.__name__} on {target}"
        assert all(intact() for _, intact in guarded), f"{what}: something outside the arguments was written"
        for place, ((got, _), wanted) in enumerate(zip(guarded, plain, strict=True)):
            if isinstance(wanted, np.ndarray):
                _equal(got, wanted, rtol, f"{what}: argument {place}")
        _equal_results(result, expected, rtol, types and target == "cpu", what)


def _copy(arg: Any) -> Any:
    """A copy with the same strides, up to their size."""
    if not isinstance(arg, np.ndarray):
        return arg
    steps = tuple(-1 if stride < 0 else 1 for stride in arg.strides)
    forward = arg[(..., *(slice(None, None, step) for step in steps))]
    if arg.size and not arg.flags.forc and not forward.flags.forc:
        spread = np.zeros(tuple(2 * extent + 1 for extent in arg.shape), arg.dtype)
        copy = spread[tuple(slice(0, 2 * extent, 2) for extent in arg.shape)]
        copy[...] = forward
    else:
        copy = np.array(forward, order="K")
    return copy[(..., *(slice(None, None, step) for step in steps))]


def _equal_results(got: Any, wanted: Any, rtol: float, types: bool, what: str) -> None:
    if isinstance(wanted, tuple):
        assert isinstance(got, tuple) and len(got) == len(wanted), f"{what}: {got!r}, not {wanted!r}"
        for place, (one, other) in enumerate(zip(got, wanted, strict=True)):
            _equal_results(one, other, rtol, types, f"{what}: result {place}")
    elif wanted is None:
        assert got is None, what
    else:
        if types:
            assert type(got) is type(wanted), f"{what}: {got!r} is no {type(wanted).__name__}"
        _equal(np.asarray(got), np.asarray(wanted), rtol, what)


def _equal(got: np.ndarray, wanted: np.ndarray, rtol: float, what: str) -> None:
    assert got.shape == wanted.shape, what
    if wanted.dtype.kind in "fV":
        got, wanted = got.astype(np.float64), wanted.astype(np.float64)
        if rtol:
            np.testing.assert_allclose(got, wanted, rtol=rtol, atol=rtol, err_msg=what)
            return
        signs = np.signbit(got) == np.signbit(wanted)
        assert (signs | np.isnan(wanted)).all(), f"{what}: the sign of a zero"
    np.testing.assert_array_equal(got, wanted, err_msg=what)
