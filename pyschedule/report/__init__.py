"""Reports: how fast kernels are, against themselves with less of their schedule and against named peers."""

from __future__ import annotations

from pyschedule.report.contest import Contest, Entry
from pyschedule.report.perf import Case, perf_report

__all__ = ["Case", "Contest", "Entry", "perf_report"]
