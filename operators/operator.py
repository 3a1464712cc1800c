"""What makes an operator of kernels: it checks its arguments, allocates the result, and calls its kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any


@dataclass(frozen=True)
class Step:
    """One call of a kernel."""

    kernel: Any
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Plan:
    """What a call of an operator does: `steps` in order; `main` is the one that does the operator's work."""

    steps: tuple[Step, ...]
    main: Step
    result: Any


class Operator:
    """A function of arrays that is carried out by kernels.

    `operator(*args)` computes; `.python(*args)` does the same with the undecorated kernels; and
    `.lower(*args, target=None)` shows what the kernel for these arguments becomes (`pyschedule.spec`s will do
    for arrays).  `plan` takes the operator's arguments, checks them, and says which kernels run on what.
    """

    def __init__(self, plan: Callable[..., Plan]) -> None:
        self.plan = plan
        update_wrapper(self, plan)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        plan = self.plan(*args, **kwargs)
        for step in plan.steps:
            step.kernel(*step.arguments)
        return plan.result

    def python(self, *args: Any, **kwargs: Any) -> Any:
        """The result by the kernels' undecorated functions: slow, and the meaning of the operator."""
        plan = self.plan(*args, **kwargs)
        for step in plan.steps:
            step.kernel.python(*step.arguments)
        return plan.result

    def lower(self, *args: Any, target: Any = None, **kwargs: Any) -> Any:
        """The `Lowering` of the kernel that does the work for these arguments."""
        main = self.plan(*args, **kwargs).main
        return main.kernel.lower(*main.arguments, target=target)
