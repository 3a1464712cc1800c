"""From a call to compiled code: checks of the arguments, the choice of a variant, and a fast path for both.

Whatever depends only on dtypes, shapes, strides and flags is worked out once for each combination of them, and
remembered under a key of these very attributes (without strides where all arrays are in C order).  What is left to
do in a call is written out as a small function for its plan (`runtime.binding`): look for overlaps, allocate
outputs, enter the compiled code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from operator import is_
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pyschedule.ir.arithmetic import numpy_dtype
from pyschedule.ir.signature import ArgumentSpec, Shaped, Signature
from pyschedule.runtime import binding
from pyschedule.runtime import signature as arguments
from pyschedule.runtime.cancellation import Calls, checked_timeout
from pyschedule.runtime.compiled_call import CompiledCall, compiled_call, is_possible
from pyschedule.runtime.compiler import Entrance, most_threads, usable_threads
from pyschedule.runtime.lowering import Definition, Lowering, assumed_of, plan_of
from pyschedule.runtime.plan import Plan
from pyschedule.runtime.shortcuts import Shortcuts
from pyschedule.runtime.specialisations import Specialisations
from pyschedule.schedule import targets
from pyschedule.schedule.directives import Poll, Schedule
from pyschedule.schedule.targets import Target

if TYPE_CHECKING:
    from pyschedule.frontend.parser import Parsed
    from pyschedule.runtime.gpu import GpuCalls

#: Combinations of layouts and shapes remembered for one kernel.
_REMEMBERED: Final = 1024
#: NumPy's flag of an array in C order.
_IN_ORDER: Final = 1

Values = tuple[Any, ...]


class Dispatch:
    """The calls of one kernel.  `call` has the function's own parameters; it is safe to use from threads.

    `shortened` is told of a shorter way to call with all arguments by position, once there is one.
    """

    def __init__(
        self, parsed: Parsed, schedule: Schedule, shortened: Callable[[Entrance], None] | None = None
    ) -> None:
        definition = self._definition = Definition(parsed, schedule)
        self._specialisations = Specialisations(definition)
        self._function = definition.parsed.function
        self.parameters = arguments.Parameters.of(self._function, frozenset(definition.arrays))
        self.calls = Calls(definition.parsed.name)
        self._memo: dict[Values, Entrance] = {}
        self._gpu: GpuCalls | None = None
        self.call: Entrance = self._make_call()
        self._shortcuts: Shortcuts | None = None
        self._shortened = shortened

    # ------------------------------------------------------------------------------------- the fast path

    def _make_call(self) -> Entrance:
        """The function that is called: looks up what to do for arguments like these, and does it.

        Its text is made for the kernel's parameters, so that Python binds them by name and default.  Where all
        arrays are in C order their shapes say what strides would: only those of axes with one element may differ,
        and nothing is read along them.
        """
        names = self.parameters.names
        arrays = [name for name in names if name in self.parameters.arrays]

        def key(*facts: str) -> str:
            shown = {name: "".join(f"{name}.{fact}, " for fact in facts) + f"_ps_{name}, " for name in arrays}
            return "".join(f"{name}.__class__, {shown.get(name, '')}" for name in names)

        flags = "; ".join(f"_ps_{name} = {name}.flags.num" for name in arrays) or "pass"
        in_order = " & ".join([*(f"_ps_{name}" for name in arrays), str(_IN_ORDER)])
        given = ", ".join(names)
        text = (
            f"def {self._function.__name__}({_header(self.parameters.signature)}):\n"
            f"    try:\n"
            f"        {flags}\n"
            f"        if {in_order}: _ps_bound = _ps_memo[({key('dtype', 'shape')})]\n"
            f"        else: _ps_bound = _ps_memo[({key('dtype', 'shape', 'strides')})]\n"
            f"    except (AttributeError, KeyError, TypeError):\n"
            f"        _ps_bound = None\n"
            f"    if _ps_bound is None:\n"
            f"        _ps_bound = _ps_prepare(({given}{',' if names else ''}))\n"
            f"    return _ps_bound({given})\n"
        )
        space: dict[str, Any] = {
            "_ps_memo": self._memo,
            "_ps_prepare": self._prepare,
            "_ps_defaults": {name: item.default for name, item in self.parameters.signature.parameters.items()},
        }
        exec(compile(text, f"<pyschedule call of {self._function.__name__}>", "exec"), space)
        return space[self._function.__name__]  # type: ignore[no-any-return]

    def _remember(self, values: Values, bound: Entrance) -> None:
        named = zip(self.parameters.names, values, strict=True)
        in_order = all(value.flags.num & _IN_ORDER for name, value in named if name in self.parameters.arrays)
        key: list[Any] = []
        for name, value in zip(self.parameters.names, values, strict=True):
            key.append(value.__class__)
            if name not in self.parameters.arrays and isinstance(value, np.ndarray):
                return  # its layout is not part of the key
            if name in self.parameters.arrays:
                key += [value.dtype, value.shape, *(() if in_order else (value.strides,)), value.flags.num]
        if len(self._memo) >= _REMEMBERED:
            self._memo.clear()
        known = tuple(key)

        def settle(*given: Any) -> None:
            """Calls with arguments like these come again and again."""
            self._memo[known] = bound
            self._note(given)

        self._memo[known] = Shortcuts.after_some_calls(bound, settle) if Shortcuts.usable() else bound

    def _note(self, values: Values) -> None:
        call = self.compiled(values)
        if call is None or self._shortened is None:
            return
        if self._shortcuts is None:
            self._shortcuts = Shortcuts(self._function.__name__, self.call, len(values))
        sources = [(place, 0) if isinstance(value, np.ndarray) else None for place, value in enumerate(values)]
        if self._shortcuts.note(values, call, sources, call.returned):
            self._shortened(self._shortcuts.function)

    def prepared(self, args: Values, kwargs: dict[str, Any]) -> Entrance | None:
        """What calls with arguments like these enter once they have looked at them; `None` where each is new."""
        values = self.parameters.bind(args, kwargs)
        if any(map(arguments.is_cuda, values)):
            return None
        converted = self.convert(values)
        return self._bind(converted) if all(map(is_, values, converted)) else None

    def compiled(self, values: Values) -> CompiledCall | None:
        """The call of compiled code that a call with these arguments comes down to, after it has been made once;
        `None` where there is more to do in each."""
        names = self.parameters.names
        given = all(
            isinstance(value, np.ndarray) == (name in self.parameters.arrays)
            for name, value in zip(names, values, strict=True)
        )
        if not given or not Shortcuts.usable() or any(map(arguments.is_cuda, values)):
            return None
        signature, target = self.signature_of(values), targets.host()
        plan = self._specialisations.plan(signature, target).plan
        named = dict(zip(names, values, strict=True))
        if not is_possible(plan) or not binding.hold(plan.assumptions, named):
            return None
        mode, _ = self._mode(plan, named)
        if mode != "serial" and most_threads() > 1:
            return None
        types = binding.numba_types(plan, named)
        program: Any = self._specialisations.program(signature, target, "serial", types)
        compiled = program.overloads.get(types)
        return None if compiled is None else compiled_call(plan, compiled, named, types)

    def within(self, timeout: Any, args: Values, kwargs: dict[str, Any]) -> Any:
        """A call that is stopped `timeout` seconds after its compiled code has started."""
        seconds = checked_timeout(timeout)
        values = self.parameters.bind(args, kwargs)
        kind = "cuda" if any(map(arguments.is_cuda, values)) else "cpu"
        self.require_poll(kind)
        with self.calls.within(seconds):
            return self.call(*args, **kwargs)

    def require_poll(self, kind: str | None = None) -> None:
        """`TypeError` where calls cannot be stopped."""
        schedule = self._definition.schedule
        if not (schedule if kind is None else schedule.for_target(kind)).of(Poll):
            where = f" for {kind!r}" if kind is not None and schedule.of(Poll) else ""
            raise TypeError(
                f"{self._function.__name__} does not poll{where}, so its calls cannot be stopped; decorate it with "
                "@poll(every=4096)"
            )

    # ------------------------------------------------------------------------------------- the slow path

    def convert(self, values: Values) -> Values:
        """The arguments as NumPy arrays and numbers; `TypeError` or `ValueError` naming the one that is not."""
        return tuple(
            arguments.as_array(value, name) if self._takes_array(name, value) else arguments.as_scalar(value, name)
            for name, value in zip(self.parameters.names, values, strict=True)
        )

    def _takes_array(self, name: str, value: Any) -> bool:
        """Whether a parameter is one for arrays, or one that need not be a number and is given an array.

        The front end knows which are never computed with, and refuses the others by name.
        """
        return name in self.parameters.arrays or _is_array(value)

    def _prepare(self, values: Values) -> Entrance:
        """What to do for arguments like these; raises before anything is written."""
        if any(map(arguments.is_cuda, values)):
            return lambda *_: self._on_gpu(values)
        converted = self.convert(values)
        bound = self._bind(converted)
        if all(one is other for one, other in zip(values, converted, strict=True)):
            self._remember(values, bound)
            return bound
        originals = {id(new): old for new, old in zip(converted, values, strict=True) if new is not old}

        def through_conversion(*_: Any) -> Any:
            result = bound(*converted)
            if isinstance(result, tuple):
                return tuple(originals.get(id(item), item) for item in result)
            return originals.get(id(result), result)

        return through_conversion

    def signature_of(self, values: Values) -> Signature:
        """The signature of converted arguments; `ValueError` where a shape is not that of `input_shapes`."""
        specs: list[ArgumentSpec] = []
        for name, value in zip(self.parameters.names, values, strict=True):
            if isinstance(value, np.ndarray):
                fixed = self._definition.fixed_shape(name)
                arguments.check_block_shape(name, fixed, value.shape)
                specs.append(arguments.array_spec(value, fixed))
            else:
                specs.append(arguments.scalar_spec(value))
        return Signature(tuple(specs))

    def _bind(self, values: Values) -> Entrance:
        signature = self.signature_of(values)
        assumptions = self._specialisations.plan(signature, targets.host()).plan.assumptions
        named = dict(zip(self.parameters.names, values, strict=True))
        unchecked, checked = signature, replace(signature, checked=True)
        if not binding.hold([test for test in assumptions if not test.scalars], named):
            return self._bind_to(checked, values)
        varying = [test for test in assumptions if test.scalars]
        if not varying:
            return self._bind_to(unchecked, values)
        entrances: dict[bool, Entrance] = {}
        holds = binding.condition(varying, self.parameters.names)

        def either(*given: Any) -> Any:
            """Numbers decide, in each call, whether what is assumed of them holds."""
            assumed = bool(holds(*given))
            entrance = entrances.get(assumed)
            if entrance is None:
                entrance = entrances[assumed] = self._bind_to(unchecked if assumed else checked, given)
            return entrance(*given)

        return either

    def _bind_to(self, signature: Signature, values: Values) -> Entrance:
        target = targets.host()
        plan = self._specialisations.plan(signature, target).plan
        named = dict(zip(self.parameters.names, values, strict=True))
        scalars = {name: value for name, value in named.items() if not isinstance(value, np.ndarray)}
        for name in plan.written:
            arguments.check_written(named[name], name)
        for index, test in enumerate(plan.tests):
            if not test.scalars:
                binding.require(plan, index, named)
        for name, value in scalars.items():
            arguments.check_range(value, name)
        types = binding.numba_types(plan, named)

        def program(variant: str) -> Entrance:
            return self._specialisations.program(signature, target, variant, types)

        mode, parallel_now = self._mode(plan, named)
        serial: Entrance = binding.Later(lambda: program("serial"))
        parallel: Entrance = binding.Later(lambda: program("parallel"))
        if parallel_now:
            parallel = program("parallel")
        else:
            serial = program("serial")
        owners = frozenset(
            name for name, value in named.items() if isinstance(value, np.ndarray) and value.flags.owndata
        )
        return binding.bind(plan, self.parameters, scalars, mode, serial, parallel, self.calls, owners)

    @staticmethod
    def _mode(plan: Plan, named: dict[str, Any]) -> tuple[str, bool]:
        """Which variants calls like this one may want (`"serial"`, `"parallel"`, or `"either"`, by the values of
        scalars), and whether this one wants the parallel one."""
        if plan.parallel is None:
            return "serial", False
        large = bool(binding.evaluate(plan.work, named) > binding.PARALLEL_WORK)
        if not plan.work_reads_scalars and not large:
            return "serial", False
        return "either" if plan.work_reads_scalars else "parallel", large and usable_threads() > 1

    def _on_gpu(self, values: Values) -> Any:
        from pyschedule.runtime import gpu

        gpu.check_host(values, self.parameters)
        if self._gpu is None:
            self._gpu = gpu.GpuCalls(self._definition, self._specialisations, self.parameters, self.calls)
        return self._gpu.call(values, device_target())

    # ------------------------------------------------------------------------------------- looking inside

    def interpret(self, *args: Any, **kwargs: Any) -> Any:
        """A call played statement by statement on the source nest, without any code being generated."""
        from pyschedule.ir.interpreter import run

        originals = self.parameters.bind(args, kwargs)
        values = self.convert(originals)
        named = dict(zip(self.parameters.names, values, strict=True))
        lowering = self._lowering_for(self.signature_of(values), targets.host(), named)
        plan = plan_of(lowering, cache=False)
        for index in range(len(plan.tests)):
            binding.require(plan, index, named)
        arrays = {name: value for name, value in named.items() if isinstance(value, np.ndarray)}
        for output in plan.outputs:
            shape = tuple(binding.evaluate(extent, named) for extent in output.shape)
            arrays[output.name] = np.empty(shape, numpy_dtype(output.dtype))
        scalars = {name: value for name, value in named.items() if name not in arrays}
        run(lowering.stages["source"], arrays, scalars)
        given = dict(zip(self.parameters.names, originals, strict=True))
        returned = [given.get(item, arrays.get(item)) for item in plan.returns if isinstance(item, str)]
        return returned[0] if len(returned) == 1 else tuple(returned) or None

    def lowering(self, args: Values, kwargs: dict[str, Any], target: str | Target | None) -> Lowering:
        """The lowering for these arguments (`pyschedule.spec`s will do for arrays) and this target."""
        if not args and not kwargs:
            args = self._definition.implied_arguments() or ()
        values = self.parameters.bind(args, kwargs)
        on_gpu = target is None and any(map(arguments.is_cuda, values))
        chosen = device_target() if on_gpu else targets.resolve(target)
        specs: list[ArgumentSpec] = []
        for name, value in zip(self.parameters.names, values, strict=True):
            if self._takes_array(name, value):
                fixed = self._definition.fixed_shape(name)
                specs.append(arguments.lowering_spec(value, name, fixed, chosen))
            else:
                specs.append(arguments.lowering_scalar(value, name))
        return self._lowering_for(
            Signature(tuple(specs)), chosen, dict(zip(self.parameters.names, values, strict=True))
        )

    def _lowering_for(self, signature: Signature, target: Target, named: dict[str, Any]) -> Lowering:
        """The lowering for these arguments: another where what is assumed does not hold of them.  It is taken to
        hold of numbers that are only spoken of."""
        lowering = self._specialisations.lowering(signature, target)
        numbers = {name for name, value in named.items() if not isinstance(value, Shaped) or value.shape}
        if binding.hold([test for test in assumed_of(lowering) if numbers.issuperset(test.scalars)], named):
            return lowering
        return self._specialisations.lowering(replace(signature, checked=True), target)


@cache
def device_target() -> Target:
    """The GPU that arrays live on: the current device."""
    from pyschedule.runtime.cuda_launch import CoreDriver

    return CoreDriver().target()


def _is_array(value: Any) -> bool:
    """An array of one axis or more; an array of none will do as a number."""
    return isinstance(value, (np.ndarray, Shaped)) and len(value.shape) > 0


def _header(signature: inspect.Signature) -> str:
    """The parameter list of a function with this signature; defaults are read from `_ps_defaults`."""
    parts: list[str] = []
    previous: inspect._ParameterKind = inspect.Parameter.POSITIONAL_ONLY
    for name, item in signature.parameters.items():
        if previous is inspect.Parameter.POSITIONAL_ONLY and item.kind is not previous and parts:
            parts.append("/")
        if item.kind is inspect.Parameter.KEYWORD_ONLY and previous is not inspect.Parameter.KEYWORD_ONLY:
            parts.append("*")
        previous = item.kind
        default = "" if item.default is inspect.Parameter.empty else f"=_ps_defaults[{name!r}]"
        parts.append(f"{name}{default}")
    if previous is inspect.Parameter.POSITIONAL_ONLY and parts:
        parts.append("/")
    return ", ".join(parts)
