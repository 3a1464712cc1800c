"""What makes an operator of kernels: a plan that is made once for arguments of one layout, and a short way to it.

An operator is written as a function from the layouts of its arguments to a `Plan`: which kernels run on what.  The
plan is written out as a small function of the arrays and remembered, under the arguments' classes, dtypes, shapes,
strides and flags (without strides where all are in C order), and the values of all that are no arrays.  A call that
finds it looks for overlaps with `out`, allocates what is new, calls the kernels, and that is all.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import update_wrapper
from typing import Any, Final, Protocol

import numpy as np

from operators.arrays import Operand, check_written
from operators.entries import Form, make_entries
from operators.foreign import NUMPY, SPEC, Foreign, Kind, kind_of
from operators.plans import Plan, Run, written_out
from operators.shortened import Shortened
from pyschedule import Shortcuts

#: Plans remembered for one operator.
_REMEMBERED: Final = 1024

Values = tuple[Any, ...]


class Operator(Protocol):
    """A function of arrays that is carried out by kernels."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def python(self, *args: Any, **kwargs: Any) -> Any:
        """The result by the kernels' undecorated functions: slow, and the meaning of the operator."""

    def lower(self, *args: Any, target: Any = None, **kwargs: Any) -> Any:
        """The `Lowering` of the kernel that does the work for these arguments; `pyschedule.spec`s will do."""

    def steps(self, *args: Any, **kwargs: Any) -> tuple[list[tuple[Any, Values]], Any]:
        """The calls of kernels that a call would make, (kernel, arguments) in order, and the result they write."""


def operator(*arrays: str, in_place: str = "") -> Callable[[Callable[..., Plan]], Operator]:
    """Makes an operator of a function that plans it.  `arrays` are the parameters that take arrays.

    The function is called with an `Operand` for each array that is given, the values of its other parameters, and
    returns the `Plan`; it raises `TypeError` or `ValueError` where they do not go together.  Where the caller
    passes one array both as `out` and as the parameter `in_place`, it gets one operand for both, and its kernels
    must allow for that.  All other overlaps with `out` are taken care of: the result is made apart and copied.
    """
    return lambda plan: _Calls(plan, arrays, in_place).function


class _Calls:
    """The calls of one operator.  `function` is the operator: it has the parameters of the function that plans."""

    def __init__(self, plan: Callable[..., Plan], arrays: tuple[str, ...], in_place: str = "") -> None:
        self.plan = plan
        self._form = Form(
            plan.__name__,
            inspect.signature(plan),
            tuple(name for name in inspect.signature(plan).parameters if name in arrays),
            in_place,
        )
        self._names, self._arrays = self._form.names, self._form.arrays
        if set(arrays) != set(self._arrays):
            raise ValueError(f"{plan.__name__}: not all of {arrays} are parameters")
        self._memo: dict[Any, Run] = {}
        self._entries = make_entries(self._form, self._memo, self._first)
        self._shortened = Shortened(plan.__name__, self._entries.positional, self._entries.shorten)
        function: Any = update_wrapper(self._entries.function, plan)
        function.python, function.lower, function.steps = self.python, self.lower, self.steps
        self.function: Operator = function

    def python(self, *args: Any, **kwargs: Any) -> Any:
        values = self._bind(args, kwargs)
        kind, views, foreign = self._views(values)
        self._require_data(kind)
        plan = self._planned(kind, views)
        kernels = [getattr(step.kernel, "python", step.kernel) for step in plan.steps]
        run = written_out(plan, self._arrays, kind, kernels, self._apart(views, self.python))
        return self._given_back(run(*self._of_arrays(views)), values, foreign)

    def steps(self, *args: Any, **kwargs: Any) -> tuple[list[tuple[Any, Values]], Any]:
        kind, views, _ = self._views(self._bind(args, kwargs))
        self._require_data(kind)
        return self._recorded(self._planned(kind, views), kind, views)

    def lower(self, *args: Any, target: Any = None, **kwargs: Any) -> Any:
        kind, views, _ = self._views(self._bind(args, kwargs))
        plan = self._planned(kind, views)
        alone = Plan((plan.main,), plan.main, plan.result)
        steps, _ = self._recorded(alone, SPEC if kind is NUMPY else kind, views)  # nothing new is allocated
        kernel, arguments = steps[0]
        return kernel.lower(*arguments, target=target)

    def _recorded(self, plan: Plan, kind: Kind, views: Values) -> tuple[list[tuple[Any, Values]], Any]:
        """The calls that a plan would make, and its result."""
        calls: list[tuple[Any, Values]] = []

        def recorder(kernel: Any) -> Run:
            return lambda *given: calls.append((kernel, given))

        kernels = [recorder(step.kernel) for step in plan.steps]
        result = written_out(plan, self._arrays, kind, kernels, None)(*self._of_arrays(views))
        return calls, result

    # ------------------------------------------------------------------------------------- the slow path

    def _bind(self, args: Values, kwargs: dict[str, Any]) -> Values:
        bound = self._form.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(bound.arguments.values())

    def _of_arrays(self, values: Values) -> Values:
        return tuple(value for name, value in zip(self._names, values, strict=True) if name in self._arrays)

    def _first(self, values: Values) -> Any:
        """A call whose plan is not known, or not found by the attributes that NumPy's arrays have."""
        kind, views, foreign = self._views(values)
        self._require_data(kind)
        if any(view is not value for view, value in zip(views, values, strict=True)):
            return self._given_back(self._entries.positional(*views), values, foreign)
        try:
            key: Values | None = self._form.key(views, kind.layout_of)
            run = self._memo.get(key)
        except TypeError:  # an argument that can be no key: the plan is for this call alone
            key = run = None
        if run is None:
            plan = self._planned(kind, views)
            kernels = [step.kernel for step in plan.steps]
            run = written_out(plan, self._arrays, kind, kernels, self._apart(views, self._entries.function))
            if len(self._memo) >= _REMEMBERED:
                self._memo.clear()
            if key is not None:
                self._memo[key] = self._noted(key, run, values) if kind is NUMPY else run
        return run(*self._of_arrays(views))

    def _noted(self, key: Values, run: Run, values: Values) -> Run:
        """`run`, until it has been called again and again with arguments like these `values`: then it is noted."""
        if not Shortcuts.usable():
            return run
        others = {name: value for name, value in zip(self._names, values, strict=True) if name not in self._arrays}

        def settle(*arrays: Any) -> None:
            self._memo[key] = run
            given = {**others, **dict(zip(self._arrays, arrays, strict=True))}
            if given.get("out") is not None and given["out"] is given.get(self._form.in_place):
                return  # that one array is passed twice would not be seen
            in_order = {name: given[name] for name in self._names}
            views = tuple(in_order.values())
            plan = self._planned(NUMPY, views)  # once more, as it refers to the arrays that it is made of
            self._shortened.note(plan, in_order, self._recorded(plan, NUMPY, views))

        return Shortcuts.after_some_calls(run, settle)

    def _require_data(self, kind: Kind) -> None:
        if kind is SPEC:
            raise TypeError(f"{self.plan.__name__}: a pyschedule.spec holds no data; pass arrays, or use .lower")

    def _views(self, values: Values) -> tuple[Kind, Values, Foreign | None]:
        """The kind of the arguments, and the arguments as kernels take them; `TypeError` for mixed kinds of array.

        Lists among the other arguments become tuples.
        """
        found: tuple[str, Kind | Foreign] | None = None
        views: list[Any] = []
        known: dict[int, Any] = {}  # one array passed twice stays one array
        for name, value in zip(self._names, values, strict=True):
            if name not in self._arrays:
                views.append(tuple(value) if isinstance(value, list) else value)
                continue
            if value is None and name in self._form.optional:
                views.append(None)
                continue
            kind = kind_of(value, name)
            if found is None:
                found = name, kind
            elif found[1] != kind:
                other, first = found
                raise TypeError(
                    f"{name} is an array of {kind.name}, but {other} is one of {first.name}; one kind is needed"
                )
            if id(value) not in known:
                known[id(value)] = kind.view(value, name)
            views.append(known[id(value)])
        assert found is not None  # every operator has an array that must be given
        if isinstance(found[1], Foreign):
            return NUMPY, tuple(views), found[1]
        return found[1], tuple(views), None

    def _given_back(self, result: Any, values: Values, foreign: Foreign | None) -> Any:
        """The result of a call with views of these arguments, as the caller's kind of array."""
        given = dict(zip(self._names, values, strict=True))
        if given.get("out") is not None:
            return given["out"]
        return result if foreign is None else foreign.wrap(np.asarray(result), given[self._arrays[0]])

    def _planned(self, kind: Kind, views: Values) -> Plan:
        """The plan for such arguments; raises what is wrong with them."""
        given = dict(zip(self._names, views, strict=True))
        operands = {
            name: Operand(kind.layout_of(given[name]), name) for name in self._arrays if given[name] is not None
        }
        if "out" in operands:
            check_written(operands["out"].sample, "out")
            if self._form.in_place and given["out"] is given[self._form.in_place]:
                operands[self._form.in_place] = operands["out"]
        return self.plan(**{**given, **operands})

    def _apart(self, views: Values, again: Run) -> Run:
        """What is done instead of a plan where `out` overlaps an argument: the result is made apart and copied."""
        others = {name: view for name, view in zip(self._names, views, strict=True) if name not in self._arrays}

        def apart(*arrays: Any) -> Any:
            given = dict(zip(self._arrays, arrays, strict=True))
            out = given.pop("out")
            if type(out) is not np.ndarray:
                raise ValueError("out: it overlaps another argument in memory; pass a copy of one of them")
            out[...] = again(**given, **others)
            return out

        return apart
