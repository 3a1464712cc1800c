"""The rows of a report: what a measured time says about the work that was done in it."""

from __future__ import annotations

import math
from typing import Any, Final

from pyschedule.report.peak import copy_gbytes, fma_gflops

COLUMNS: Final = (
    "operator",
    "shape",
    "dtype",
    "target",
    "variant",
    "time_s",
    "speedup",
    "gflops",
    "pct_peak",
    "gbytes_s",
    "pct_bandwidth",
    "rel_error",
)


def row(
    *,
    operator: str,
    shape: str,
    dtype: str,
    target: str,
    variant: str,
    time_s: float,
    speedup: float,
    rel_error: float,
    flops: float | None,
    bytes_moved: float | None,
    cores: int,
) -> dict[str, Any]:
    """One row, with the columns in order; NaN for what is not known (on a GPU, the shares of a CPU's limits)."""
    gflops = flops / time_s / 1e9 if flops else math.nan
    gbytes = bytes_moved / time_s / 1e9 if bytes_moved else math.nan
    host = target == "cpu"
    peak = fma_gflops(dtype) if host and flops else None
    return {
        "operator": operator,
        "shape": shape,
        "dtype": dtype,
        "target": target,
        "variant": variant,
        "time_s": time_s,
        "speedup": speedup,
        "gflops": gflops,
        "pct_peak": 100 * gflops / (peak * cores) if peak else math.nan,
        "gbytes_s": gbytes,
        "pct_bandwidth": 100 * gbytes / copy_gbytes() if host and bytes_moved else math.nan,
        "rel_error": rel_error,
    }
