"""A report as text: the columns a reader looks at first, with few digits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pandas

_FORMATS: Final = {
    "time_s": "{:.4g}",
    "best_s": "{:.4g}",
    "speedup": "{:.1f}",
    "gflops": "{:.1f}",
    "pct_peak": "{:.1f}",
    "gbytes_s": "{:.2f}",
    "pct_bandwidth": "{:.1f}",
    "rel_error": "{:.1e}",
}


def show(frame: pandas.DataFrame) -> str:
    """The report's table, one line a row; what is not known is a dash."""
    text = frame.copy()
    for column in frame.columns.intersection(list(_FORMATS)):
        style = _FORMATS[column]
        text[column] = ["-" if math.isnan(value) else style.format(value) for value in frame[column]]
    return text.to_string(index=False)
