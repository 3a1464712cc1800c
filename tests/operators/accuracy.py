"""How near a result must be: PyTorch's tolerances, and no nearer than the sums of a dtype can come."""

from __future__ import annotations

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)

#: (rtol, atol) of `torch.testing.assert_close`.
TOLERANCES = {
    "float16": (1e-3, 1e-5),
    "bfloat16": (1.6e-2, 1e-5),
    "float32": (1.3e-6, 1e-5),
    "float64": (1e-7, 1e-7),
}

#: The distance of 1 from the next number in the type that sums are held in.
_EPSILON = {"float16": 2.0**-23, "bfloat16": 2.0**-23, "float32": 2.0**-23, "float64": 2.0**-52}


def assert_near(got, exact, terms=None):
    """`got` is `exact` (float64) within PyTorch's tolerances for its dtype; integers are equal.

    A long sum cannot keep them where it cancels, and PyTorch's own tests widen them by hand for such: `terms`, the
    sum of the terms' magnitudes for each element, widens them by what rounding a sum of this size may do.
    """
    got, exact = np.asarray(got), np.asarray(exact)
    assert got.shape == exact.shape, f"shape {got.shape}, not {exact.shape}"
    if got.dtype.kind in "iu":
        np.testing.assert_array_equal(got, exact)
        return
    rtol, atol = TOLERANCES[got.dtype.name]
    allowed = (
        atol + rtol * np.abs(exact) + (0 if terms is None else 4 * _EPSILON[got.dtype.name] * np.asarray(terms))
    )
    wide = got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wrong = ~((np.abs(wide - exact) <= allowed) | (wide == exact) | (np.isnan(wide) & np.isnan(exact)))
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} differ; the first is {wide[wrong][0]}, not {exact[wrong][0]}"
    )
