"""Plans: which kernels run on what, and the small Python function that a plan is written out as.

For `gemm(a, b, c, trans_b=True, out=out)` that function reads

    def run(a, b, c, out):
        v0 = b.T
        try: _kernel0(a, v0, c, out, _number0, _number1)
        except _OverlapError: return _apart(a, b, c, out)
        return out

Of several kernels the first may have written before another one finds an overlap: `_overlap` looks before all then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from operators.arrays import Operand
from operators.foreign import NUMPY, Kind, broadcast, permuted
from pyschedule import OverlapError

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One call of a kernel, on operands and numbers.

    With `over` it is one call for each index below these counts, by which every operand is subscripted.
    """

    kernel: Any
    arguments: tuple[Any, ...]
    over: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What a call does: `steps` in order; `main` is the one that does the operator's work; `result` is returned.

    A `scalar` plan returns the one element of a new result that has no axes.
    """

    steps: tuple[Step, ...]
    main: Step
    result: Operand
    scalar: bool = False

    def read(self) -> set[str]:
        """The arguments that kernels are given."""
        given = (item for step in self.steps for item in step.arguments if isinstance(item, Operand))
        return {item.root.argument for item in given if item.root.argument is not None}


def copy(source: Any, target: Any) -> None:
    """A step that is no kernel: `target` becomes equal to `source`."""
    target[...] = source


def written_out(plan: Plan, arrays: Sequence[str], kind: Kind, kernels: Sequence[Any], apart: Run | None) -> Run:
    """The function of the arguments `arrays` that carries out a plan with these `kernels`, one a step.

    All calls must be with arrays of the layouts that the plan was made for.  Where `out` may overlap an argument
    that is read, it hands over to `apart` (`None`: it does not look).
    """
    return _Writer(plan, arrays, kind, kernels, apart).run()


class _FirstCall:
    """A kernel in the place from which it is called: after its first call, the way to call it with such arrays."""

    def __init__(self, kernel: Any, space: dict[str, Any], name: str) -> None:
        self._kernel, self._space, self._name = kernel, space, name

    def __call__(self, *args: Any) -> None:
        self._kernel(*args)
        self._space[self._name] = self._kernel.prepared(*args)


class _Writer:
    def __init__(
        self, plan: Plan, arrays: Sequence[str], kind: Kind, kernels: Sequence[Any], apart: Run | None
    ) -> None:
        self._plan, self._arrays, self._kind, self._kernels = plan, arrays, kind, kernels
        self._lines: list[str] = []
        self._names: dict[int, str] = {}
        self._space: dict[str, Any] = {
            "_overlap": kind.overlap,
            "_apart": apart,
            "_OverlapError": OverlapError,
            "_broadcast": np.broadcast_to if kind is NUMPY else broadcast,
            "_permuted": np.ndarray.transpose if kind is NUMPY else permuted,
            "_indices": product,
            "_empty": np.empty,
            "_new": kind.new,
        }
        self._looks = apart is not None

    def run(self) -> Run:
        given = ", ".join(self._arrays)
        others = [name for name in self._arrays if name != "out" and name in self._plan.read()]
        looks = self._looks and "out" in self._plan.read() and bool(others)
        # A kernel looks before it writes: where it is all there is to do, nobody else needs to.
        by_kernel = looks and self._kind is NUMPY and self._is_one_call()
        if looks and not by_kernel:
            test = " or ".join(f"_overlap(out, {name})" for name in others)
            self._lines.append(f"if {test}: return _apart({given})")
        for step, kernel in zip(self._plan.steps, self._kernels, strict=True):
            self._step(step, kernel)
        if by_kernel:
            call = self._lines.pop()
            self._lines += [f"try: {call}", f"except _OverlapError: return _apart({given})"]
        result = self._name(self._plan.result)
        self._lines.append(f"return {result}[()]" if self._plan.scalar else f"return {result}")
        text = "\n    ".join([f"def run({given}):", *self._lines]) + "\n"
        exec(compile(text, "<plan of an operator>", "exec"), self._space)
        return self._space["run"]  # type: ignore[no-any-return]

    def _is_one_call(self) -> bool:
        """Whether the plan is one call of a kernel that looks whether what it writes overlaps what it reads."""
        (kernel, *others), (step, *_) = self._kernels, self._plan.steps
        return not others and not step.over and hasattr(kernel, "prepared")

    def _step(self, step: Step, kernel: Any) -> None:
        name = self._constant("kernel", kernel)
        if hasattr(kernel, "prepared"):
            self._space[name] = _FirstCall(kernel, self._space, name)
        given = []
        for item in step.arguments:
            if isinstance(item, Operand):
                given.append(f"{self._name(item)}[_index]" if step.over else self._name(item))
            else:
                given.append(self._constant("number", item))
        call = f"{name}({', '.join(given)})"
        if step.over:
            call = f"for _index in _indices({', '.join(f'range({count})' for count in step.over)}): {call}"
        self._lines.append(call)

    def _name(self, operand: Operand) -> str:
        """The variable that holds an operand, after the lines that make it."""
        if operand.argument is not None:
            return operand.argument
        if id(operand) not in self._names:
            text = self._made(operand)
            self._names[id(operand)] = name = f"v{len(self._names)}"
            self._lines.append(f"{name} = {text}")
        return self._names[id(operand)]

    def _made(self, operand: Operand) -> str:
        if operand.parent is not None:
            return operand.view.format(self._name(operand.parent))
        dtype = self._constant("dtype", operand.dtype)
        if self._kind is NUMPY and operand.fill is None:
            return f"_empty({operand.shape}, {dtype})"
        return f"_new({operand.shape}, {dtype}, {operand.fill!r}, {self._arrays[0]})"

    def _constant(self, kind: str, value: Any) -> str:
        name = f"_{kind}{len(self._space)}"
        self._space[name] = value
        return name
