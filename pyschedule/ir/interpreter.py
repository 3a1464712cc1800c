"""Runs the IR of any stage on NumPy arrays: the second oracle beside the plain Python function.

A kernel is compiled once into nested Python functions of an environment (name → value), then run.  It is
strict where a back end would fail silently: every index is checked against its array, lanes that a mask turns
off touch no memory, local arrays start as garbage (NaN), a name read before it is written is an error.

What runs the iterations of a mapped loop is played out one after the other:

* `parallel` and serial loops: in order, sharing the scalars of the body around them;
* `block` loops: in order, each block with its own copy of the scalars;
* `thread` loops: each thread with its own copy of the scalars, and of the arrays declared inside the loop,
  except `shared` ones, of which a block has one for good.  Where the body has a `Barrier`, threads are Python
  generators that run in turn from barrier to barrier; that they all stop at the same one is checked;
* `cooperative` nests: the iterations are numbered, and thread t of n runs t, t + n, t + 2n, ...  (Outside
  thread loops, one thread runs them all.)  A thread that reads what another should have copied, with no barrier
  between, thus finds garbage or the last tile's data.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, Final

import numpy as np

from pyschedule.errors import InternalError
from pyschedule.ir import arithmetic, block_execution
from pyschedule.ir.arithmetic import numpy_dtype
from pyschedule.ir.blocks import MatrixProduct, Pack, TransposedStores
from pyschedule.ir.evaluation import Env, Evaluate, Expressions, only
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    Barrier,
    Break,
    For,
    If,
    Kernel,
    Origin,
    Poll,
    Prefetch,
    Return,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.printer import format_expr, headline
from pyschedule.ir.types import INT64, Vector, element_of, lanes_of, with_lanes
from pyschedule.ir.visitors import Body, contains

#: `trace(statement, counters)`: called for each instance of a statement that has an `Origin`, lane by lane; and
#: for each `Poll` with statement `POLLED` and the values that it would report.
Trace = Callable[[int, tuple[int, ...]], None]

#: The number by which a trace is told of a `Poll`.
POLLED: Final = -1

_BREAK: Final = "break"

# Entries of the environment; no variable has such a name.
_THREAD: Final = "thread, of threads"
_SHARED: Final = "shared arrays"


def run(
    kernel: Kernel,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    scalars: Mapping[str, float] | None = None,
    trace: Trace | None = None,
) -> tuple[Any, ...]:
    """Runs a kernel on `arrays` (all array parameters, those it returns included), which it changes.

    Returns what `Kernel.returns` lists: arrays of `arrays`, and scalars.  Raises `ValueError` or `TypeError`
    for arguments that do not fit, `IndexError` naming the statement for an index out of bounds, and
    `InternalError` for IR that has no meaning.
    """
    body = _Compiler(kernel, trace).body(kernel.body)
    env = _environment(kernel, arrays, scalars or {})
    with np.errstate(all="ignore"):
        outcome = body(env)
        if isinstance(outcome, Generator):
            outcome = _exhaust(outcome)
    values = outcome if isinstance(outcome, tuple) else ()
    if len(values) != len(kernel.scalar_results):
        raise InternalError(f"{kernel.name} ended without its {len(kernel.scalar_results)} scalar results")
    return tuple(arrays[item] if isinstance(item, str) else values[item] for item in kernel.returns)


def _environment(kernel: Kernel, given: Mapping[str, np.ndarray[Any, Any]], scalars: Mapping[str, float]) -> Env:
    env = Env()
    for param in kernel.params:
        if param.name not in (given if isinstance(param, Array) else scalars):
            raise TypeError(f"{kernel.name} lacks its argument {param.name}")
        if isinstance(param, Var):
            env[param.name] = arithmetic.hold(scalars[param.name], element_of(param.vtype))
            continue
        value = env[param.name] = given[param.name]
        if value.dtype != numpy_dtype(element_of(param.dtype).name) or value.ndim != param.rank:
            raise TypeError(
                f"{param.name} is {value.dtype} of rank {value.ndim}, not {param.dtype} of rank {param.rank}"
            )
    compiler = _Compiler(kernel, None)
    for array in kernel.array_params:
        for axis, extent in enumerate(array.shape):
            asked, found = compiler.value(extent)(env), env[array.name].shape[axis]
            if asked != found:
                raise ValueError(f"{array.name}.shape[{axis}] is {found}, and {format_expr(extent)} is {asked}")
    return env


def _exhaust(generator: Generator[object, None, Any]) -> Any:
    """Runs a generator to its end, past its barriers, for its result."""
    while True:
        try:
            next(generator)
        except StopIteration as end:
            return end.value


class _Compiler(Expressions):
    """Turns statements into functions of an environment.

    They return `None`, or what ends the loops around them: `_BREAK`, or the tuple of a `Return`.
    """

    def __init__(self, kernel: Kernel, trace: Trace | None) -> None:
        super().__init__(kernel)
        self.kernel = kernel
        self.trace = trace

    def _store(self, stmt: Store) -> Evaluate:
        array = self.arrays[stmt.array]
        whole = isinstance(array.dtype, Vector)
        value = self.value(stmt.value)
        change = arithmetic.stored(stmt.value.type, element_of(array.dtype))
        access = self.access(stmt.array, stmt.indices, stmt.mask)
        note = self._note(stmt.origin)

        def store(env: Env) -> None:
            new = change(value(env))
            memory, index, chosen = access(env)
            if chosen is False:
                return
            if chosen is True:
                memory[index] = new
            else:
                new = new[chosen] if isinstance(new, np.ndarray) else new
                if whole:
                    memory[index][chosen] = new
                else:
                    memory[only(index, chosen)] = new
            if note is not None:
                note(env, chosen)

        return store

    def body(self, body: Body) -> Evaluate:
        """A function that runs the statements; with a `Barrier` among them, a generator that yields there."""
        steps = [self.step(stmt) for stmt in body]
        waits = [contains((stmt,), Barrier) for stmt in body]
        if any(waits):

            def run_and_wait(env: Env) -> Generator[object, None, Any]:
                for step, waiting in zip(steps, waits, strict=True):
                    outcome = (yield from step(env)) if waiting else step(env)
                    if outcome is not None:
                        return outcome
                return None

            return run_and_wait
        if len(steps) == 1:
            return steps[0]

        def run_all(env: Env) -> Any:
            for step in steps:
                outcome = step(env)
                if outcome is not None:
                    return outcome
            return None

        return run_all

    def step(self, stmt: Stmt) -> Evaluate:
        self.statement = stmt
        method: Callable[[Any], Evaluate] = getattr(self, f"_{type(stmt).__name__.lower()}")
        return method(stmt)

    def _note(self, origin: Origin | None) -> Callable[[Env, Any], None] | None:
        """Reports one instance of a statement to the trace, or one a lane."""
        trace = self.trace
        if trace is None or origin is None:
            return None
        statement = origin.statement
        counters = [self.value(part, with_lanes(INT64, lanes_of(part.type))) for part in origin.counters]
        lanes = max((lanes_of(part.type) for part in origin.counters), default=1)

        def note(env: Env, chosen: Any) -> None:
            values = [counter(env) for counter in counters]
            if lanes == 1:
                trace(statement, tuple(values))
                return
            for lane in range(lanes) if chosen is True else np.flatnonzero(chosen):
                trace(statement, tuple(int(np.broadcast_to(value, lanes)[lane]) for value in values))

        return note

    def _assign(self, stmt: Assign) -> Evaluate:
        name, value, note = stmt.target, self.value(stmt.value, stmt.vtype), self._note(stmt.origin)

        def assign(env: Env) -> None:
            env[name] = value(env)
            if note is not None:
                note(env, True)

        return assign

    def _alloc(self, stmt: Alloc) -> Evaluate:
        array = stmt.array
        extents = [self.value(extent, INT64) for extent in array.shape]
        inner = (lanes_of(array.dtype),) if isinstance(array.dtype, Vector) else ()
        element, shared = element_of(array.dtype), array.space == "shared"

        def declare(env: Env) -> None:
            shape = (*(extent(env) for extent in extents), *inner)
            if shared and _SHARED in env:
                block = env[_SHARED]
                if (array.name, shape) not in block:
                    block[array.name, shape] = arithmetic.garbage(element, shape)
                env[array.name] = block[array.name, shape]
            else:
                env[array.name] = arithmetic.garbage(element, shape)

        return declare

    def _if(self, stmt: If) -> Evaluate:
        test = self.value(stmt.test)
        arms = {True: self.body(stmt.body), False: self.body(stmt.orelse)}
        waits = {True: contains(stmt.body, Barrier), False: contains(stmt.orelse, Barrier)}
        if not any(waits.values()):
            return lambda env: arms[bool(test(env))](env)

        def branch(env: Env) -> Generator[object, None, Any]:
            taken = bool(test(env))
            return (yield from arms[taken](env)) if waits[taken] else arms[taken](env)

        return branch

    def _while(self, stmt: While) -> Evaluate:
        test = self.value(stmt.test)

        def rounds(env: Env) -> Iterator[Env]:
            while test(env):
                yield env

        return self._loop(stmt.body, rounds)

    def _for(self, stmt: For) -> Evaluate:
        kind = stmt.mapping.partition(".")[0]
        if kind == "cooperative":
            return self._cooperative(stmt)
        var, trips = stmt.var, self._range(stmt)

        def in_order(env: Env) -> Iterator[Env]:
            for env[var] in trips(env):  # noqa: B020
                yield env

        def blocks(env: Env) -> Iterator[Env]:
            for value in trips(env):
                yield env.fork(**{var: value})

        def threads(env: Env) -> Iterator[Env]:
            values = trips(env)
            number, count = env.get(_THREAD, (0, 1))
            shared = env.get(_SHARED, {})
            for position, value in enumerate(values, number * len(values)):
                thread = (position, count * len(values))
                yield env.fork(**{var: value, _THREAD: thread, _SHARED: shared})

        if kind == "thread" and contains(stmt.body, Barrier):
            return self._in_step(stmt, threads)
        return self._loop(stmt.body, {"block": blocks, "thread": threads}.get(kind, in_order))

    def _range(self, stmt: For) -> Callable[[Env], range]:
        start, stop, step = (self.value(bound, INT64) for bound in (stmt.start, stmt.stop, stmt.step))
        return lambda env: range(start(env), stop(env), step(env))

    def _loop(self, body: Body, rounds: Callable[[Env], Iterator[Env]]) -> Evaluate:
        """The body once for each environment that `rounds` gives."""
        once = self.body(body)
        if contains(body, Barrier):

            def loop_and_wait(env: Env) -> Generator[object, None, Any]:
                for inner in rounds(env):
                    outcome = yield from once(inner)
                    if outcome is not None:
                        return None if outcome is _BREAK else outcome
                return None

            return loop_and_wait

        def loop(env: Env) -> Any:
            for inner in rounds(env):
                outcome = once(inner)
                if outcome is not None:
                    return None if outcome is _BREAK else outcome
            return None

        return loop

    def _cooperative(self, stmt: For) -> Evaluate:
        """A nest of cooperative loops directly inside one another: every n-th iteration, from the thread's."""
        nest, body = [stmt], stmt.body
        while len(body) == 1 and isinstance(body[0], For) and body[0].mapping == "cooperative":
            nest.append(body[0])
            body = body[0].body
        levels = [(loop.var, self._range(loop)) for loop in nest]

        def points(env: Env, level: int) -> Iterator[Env]:
            if level == len(levels):
                yield env
                return
            var, trips = levels[level]
            for env[var] in trips(env):  # noqa: B020
                yield from points(env, level + 1)

        def share(env: Env) -> Iterator[Env]:
            number, count = env.get(_THREAD, (0, 1))
            return itertools.islice(points(env, 0), number, None, count)

        return self._loop(body, share)

    def _in_step(self, stmt: For, threads: Callable[[Env], Iterator[Env]]) -> Evaluate:
        """Threads from barrier to barrier: each runs to its next one, in turn, before any goes on."""
        once, done = self.body(stmt.body), object()

        def rounds(env: Env) -> Iterator[object]:
            running = [once(own) for own in threads(env)]
            while running:
                reached = {next(thread, done) for thread in running}
                if len(reached) > 1:
                    raise InternalError(f"threads of `{headline(stmt)}` part at a barrier: some are elsewhere")
                if done in reached:
                    return
                yield from reached

        return rounds

    def _barrier(self, stmt: Barrier) -> Evaluate:
        place = object()

        def wait(env: Env) -> Iterator[object]:
            yield place

        return wait

    def _prefetch(self, stmt: Prefetch) -> Evaluate:
        return lambda env: None

    def _pack(self, stmt: Pack) -> Evaluate:
        return block_execution.pack(self, stmt)

    def _matrixproduct(self, stmt: MatrixProduct) -> Evaluate:
        return block_execution.product(self, stmt)

    def _transposedstores(self, stmt: TransposedStores) -> Evaluate:
        """The stores in their order; an `InternalError` where their places or tests are not what the node says."""
        run, count = self.body(stmt.body), None if stmt.count is None else self.value(stmt.count, INT64)
        tests = [self.value(inner.test) if isinstance(inner, If) else None for inner in stmt.body]
        axis = self.arrays[stmt.stores[0].array].contiguous_axis
        places = [self.value(store.indices[axis or 0], INT64) for store in stmt.stores]
        text = headline(stmt.stores[0])

        def store(env: Env) -> Any:
            number = len(tests) if count is None else count(env)
            first = places[0](env)
            for at, (test, place) in enumerate(zip(tests, places, strict=True)):
                if place(env) != first + at or (test is None or bool(test(env))) != (at < number):
                    raise InternalError(f"store {at + 1} of `{text}` and its neighbours is not like the others")
            return run(env)

        return store

    def _poll(self, stmt: Poll) -> Evaluate:
        """Nobody cancels what is interpreted."""
        trace = self.trace
        if trace is None:
            return lambda env: None
        values = [self.value(value, INT64) for value in stmt.values]

        def poll(env: Env) -> None:
            trace(POLLED, tuple(int(value(env)) for value in values))

        return poll

    def _break(self, stmt: Break) -> Evaluate:
        return lambda env: _BREAK

    def _return(self, stmt: Return) -> Evaluate:
        values = [
            self.value(value, dtype) for value, dtype in zip(stmt.values, self.kernel.scalar_results, strict=True)
        ]
        return lambda env: tuple(value(env) for value in values)
