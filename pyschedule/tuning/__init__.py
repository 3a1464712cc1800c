"""Tuning: a search for a faster schedule of a kernel, by measuring."""

from __future__ import annotations

from pyschedule.tuning.search import tune

__all__ = ["tune"]
