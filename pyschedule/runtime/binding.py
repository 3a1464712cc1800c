"""What a call does once its arguments are known to be good, as a small function written for its plan.

For `C += A @ B` it reads

    def bound(A, B, C):
        if C is A: _ps_apart(C, 'C', A, 'A')
        if _ps_overlap(C, B): _ps_apart(C, 'C', B, 'B')
        (_ps_parallel if _ps_threads() > 1 else _ps_serial)(A, B, C)

where C and A own their memory, and B is a view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy._core.multiarray import may_share_memory  # the C function: np.may_share_memory costs twice as much

from pyschedule.ir.arithmetic import numpy_dtype
from pyschedule.ir.types import Scalar
from pyschedule.runtime import hostcode
from pyschedule.runtime import signature as arguments
from pyschedule.runtime.cancellation import Calls
from pyschedule.runtime.compiler import Entrance, usable_threads
from pyschedule.runtime.plan import Plan, Test

Named = dict[str, Any]


class Later:
    """A variant that is compiled when it is first entered."""

    __slots__ = ("_compile", "_program")

    def __init__(self, compile_: Callable[[], Entrance]) -> None:
        self._compile = compile_
        self._program: Entrance | None = None

    def ready(self) -> Entrance:
        """The compiled program."""
        if self._program is None:
            self._program = self._compile()
        return self._program

    def __call__(self, *args: Any) -> Any:
        return self.ready()(*args)


# -------------------------------------------------------------------------------- evaluation before a call


@lru_cache(maxsize=1024)
def _evaluator(text: str, names: tuple[str, ...]) -> Callable[..., Any]:
    return eval(f"lambda {', '.join(names)}: {text}", dict(hostcode.HELPERS))  # type: ignore[no-any-return]


def evaluate(text: str, named: Named) -> Any:
    """An expression of a plan, for these arguments."""
    return _evaluator(text, tuple(named))(*named.values())


def require(plan: Plan, index: int, named: Named) -> None:
    """`ValueError` where a precondition does not hold; its message gets the extents and values at hand."""
    test = plan.tests[index]
    if evaluate(test.test, named):
        return
    raise ValueError(test.message.format(**named))


def outside(plan: Plan, error: IndexError) -> None:
    """Raises the error of compiled code in the words of the plan; nothing where it is another error."""
    from pyschedule.codegen.simd.faults import IndexFault
    from pyschedule.ir import index_checks

    if isinstance(error, IndexFault):
        raise index_checks.failure(plan.checks, *error.args) from None


def condition(tests: Iterable[Test], names: tuple[str, ...]) -> Callable[..., Any]:
    """A function of arguments of these names: whether all tests hold of them."""
    return _evaluator(" and ".join(test.test for test in tests) or "True", names)


def hold(assumptions: Iterable[Test], named: Named) -> bool:
    """Whether all assumptions of a plan hold of these arguments."""
    return bool(condition(assumptions, tuple(named))(*named.values()))


def numba_types(plan: Plan, named: Named) -> tuple[Any, ...]:
    """The Numba types of the entry's parameters."""
    import numba

    outputs = {
        output.name: np.empty((0,) * len(output.shape), numpy_dtype(output.dtype)) for output in plan.outputs
    }
    types: list[Any] = []
    for name in plan.params:
        value = named[name] if name in named else outputs[name]
        if isinstance(value, np.ndarray):
            value = value.view(np.uint16) if name in plan.halves else value
        else:
            value = arguments.passed_scalar(value)
        types.append(numba.typeof(value))
    if plan.polls:  # the control array of a call
        types.append(numba.types.Array(numba.int64, 1, "C"))
    return tuple(types)


# ---------------------------------------------------------------------------------------- the bound function

_COMMON: Final[Named] = {
    **hostcode.HELPERS,
    "_ps_overlap": may_share_memory,
    "_ps_apart": arguments.check_apart,
    "_ps_range": arguments.check_range,
    "_ps_require": require,
    "_ps_outside": outside,
    "_ps_empty": np.empty,
    "_ps_u16": np.uint16,
    "_ps_float32": np.float32,
    "_ps_threads": usable_threads,
}


def bind(
    plan: Plan,
    parameters: arguments.Parameters,
    scalars: Named,
    mode: str,
    serial: Entrance,
    parallel: Entrance,
    calls: Calls,
    owners: frozenset[str] = frozenset(),
) -> Entrance:
    """The function that calls the entry with arguments of which all that is fixed has been checked.

    `scalars` are examples of the scalar arguments: their types decide how they are passed on.  `calls` runs the
    entries that can be stopped.  `owners` are the arrays that own their memory, and no views.
    """
    conversions = {name: arguments.scalar_conversion(name, value) for name, value in scalars.items()}
    make = _factory(_source(plan, parameters, conversions, mode, owners))
    return make(  # type: ignore[no-any-return]
        plan,
        serial,
        parallel,
        tuple(map(_result_type, plan.results)),
        tuple(numpy_dtype(output.dtype) for output in plan.outputs),
        calls.run,
    )


@lru_cache(maxsize=256)
def _factory(text: str) -> Callable[..., Any]:
    space = dict(_COMMON)
    exec(compile(text, "<pyschedule bound call>", "exec"), space)
    return space["_ps_make"]  # type: ignore[no-any-return]


def _source(
    plan: Plan,
    parameters: arguments.Parameters,
    conversions: dict[str, tuple[str, bool]],
    mode: str,
    owners: frozenset[str],
) -> str:
    names = parameters.names
    lines = [f"def bound({', '.join(names)}):"]
    lines += [f"    _ps_range({name}, {name!r})" for name, (_, ranged) in conversions.items() if ranged]
    for index, test in enumerate(plan.tests):
        if test.scalars:
            named = ", ".join(f"{name!r}: {name}" for name in (*test.arrays, *test.scalars))
            lines.append(f"    if not {test.test}: _ps_require(_ps_plan, {index}, {{{named}}})")
    arrays = [name for name in names if name in parameters.arrays]
    for written in plan.written:
        for other in arrays:
            # Of two arrays that are both written, one test will do.
            if other != written and not (other in plan.written and other < written):
                # Two arrays that own their memory share it only if they are one.
                both = {written, other} <= owners
                meet = f"{written} is {other}" if both else f"_ps_overlap({written}, {other})"
                lines.append(f"    if {meet}: _ps_apart({written}, {written!r}, {other}, {other!r})")
    for index, output in enumerate(plan.outputs):
        shape = "".join(f"{extent}, " for extent in output.shape)
        lines.append(f"    {output.name} = _ps_empty(({shape}), _ps_dtypes[{index}])")
    passed = ", ".join(
        f"{name}.view(_ps_u16)" if name in plan.halves else conversions[name][0] if name in conversions else name
        for name in plan.params
    )
    call = f"{_entry(plan, mode)}({passed})"
    if plan.polls:
        passed = f"({passed}{',' if passed else ''})"
        call = f"_ps_run({_entry(plan, mode)}, {passed}, _ps_plan.polls, {plan.work})"
    if plan.checks:
        lines += ["    try:", f"        _ps_values = {call}"]
        lines.append("    except IndexError as _ps_error:")
        lines += ["        _ps_outside(_ps_plan, _ps_error)", "        raise"]
    else:
        lines.append(f"    _ps_values = {call}")
    returned = [item if isinstance(item, str) else _result(item, plan.results[item], plan) for item in plan.returns]
    if returned:
        lines.append(f"    return {', '.join(returned)}")
    body = "\n".join(f"    {line}" for line in lines)
    given = "_ps_plan, _ps_serial, _ps_parallel, _ps_types, _ps_dtypes, _ps_run"
    return f"def _ps_make({given}):\n{body}\n    return bound\n"


def _entry(plan: Plan, mode: str) -> str:
    if mode == "serial":
        return "_ps_serial"
    test = "_ps_threads() > 1"
    if mode == "either":
        test = f"{plan.work} > {PARALLEL_WORK} and {test}"
    return f"(_ps_parallel if {test} else _ps_serial)"


#: Below this much work (`hostcode.work_estimate`) starting threads costs more than they save.  Measured on two
#: cores: products of 72 x 72 matrices gain a tenth and those of 64 x 64 lose a twentieth; norms of 30 rows of 1000
#: elements gain a tenth, of 10 rows they lose it.
PARALLEL_WORK: Final = 300_000


def _result(index: int, scalar: Scalar, plan: Plan) -> str:
    """A scalar result as the undecorated function would return it: Python's number where its type is weak."""
    value = f"_ps_values[{index}]"
    return value if scalar.weak else f"_ps_types[{index}]({value})"


def _result_type(scalar: Scalar) -> Any:
    return numpy_dtype(scalar.name).type
