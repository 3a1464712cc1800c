"""Calls of an operator that come again and again, noted as the call of compiled code that each comes down to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from operators.arrays import Operand
from operators.plans import Plan
from pyschedule import Shortcuts

Steps = tuple[list[tuple[Any, tuple[Any, ...]]], Any]


class Shortened:
    """The noted calls of one operator.  `shorten` is told of the way to them."""

    def __init__(
        self, name: str, positional: Callable[..., Any], shorten: Callable[[Callable[..., Any]], None]
    ) -> None:
        self._name, self._positional, self._shorten = name, positional, shorten
        self._shortcuts: Shortcuts | None = None

    def note(self, plan: Plan, given: dict[str, Any], steps: Steps) -> None:
        """Notes a call, if there is one call of a kernel to it.

        `given` are all its arguments by name, `steps` is what it was (`Operator.steps`).
        """
        calls, result = steps
        if len(calls) != 1 or plan.scalar or plan.result.parent is not None or plan.result.fill is not None:
            return
        kernel, arguments = calls[0]
        call = kernel.compiled(*arguments)
        if call is None:
            return
        names = list(given)
        sources: list[tuple[int, int] | None] = []
        for operand, array in zip(plan.main.arguments, arguments, strict=True):
            if not isinstance(operand, Operand):
                sources.append(None)
            elif operand.root is plan.result and plan.result.argument is None:
                sources.append((len(names), array.ctypes.data - result.ctypes.data))
            elif operand.root.argument is not None:
                name = operand.root.argument
                sources.append((names.index(name), array.ctypes.data - given[name].ctypes.data))
            elif operand.root.fill is not None or operand.size == 0:
                sources.append(None)
            else:
                return  # room for what a step makes
        if self._shortcuts is None:
            self._shortcuts = Shortcuts(self._name, self._positional, len(names))
        if plan.result.argument is None:
            new = partial(np.empty, plan.result.shape, plan.result.dtype)
            noted = self._shortcuts.note(tuple(given.values()), call, sources, None, new)
        else:
            noted = self._shortcuts.note(tuple(given.values()), call, sources, names.index(plan.result.argument))
        if noted:
            self._shorten(self._shortcuts.function)
