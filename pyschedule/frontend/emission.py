"""Surface statements → IR statements, once the types of locals have settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyschedule.frontend import surface, trips
from pyschedule.frontend.flow import Liveness, escaping_loops
from pyschedule.frontend.parser import Parsed
from pyschedule.frontend.promotion import held
from pyschedule.frontend.results import Check
from pyschedule.frontend.values import ArrayInfo, Typed, ValueReader, coerce
from pyschedule.ir import build
from pyschedule.ir.build import FALSE, ONE, TRUE, ZERO
from pyschedule.ir.nodes import (
    Alloc,
    Array,
    Assign,
    Break,
    Const,
    Expr,
    For,
    If,
    Load,
    Return,
    Stmt,
    Store,
    Var,
    While,
)
from pyschedule.ir.signature import ScalarSpec, Signature
from pyschedule.ir.types import FLOAT64, INT64, WEAK_FLOAT, WEAK_INT, Scalar
from pyschedule.ir.users_names import value_name
from pyschedule.ir.visitors import Body, may_break, variables, walk, walk_expr, written_arrays, written_variables

_ROUNDS = 20  # types only grow, and their lattice is low: far more than any program needs


@dataclass(frozen=True, slots=True)
class Emitted:
    """`outputs`: returned local arrays, made parameters.  `returns` as in `Kernel`."""

    body: Body
    outputs: tuple[Array, ...]
    returns: tuple[str | int, ...]
    scalar_results: tuple[Scalar, ...]
    checks: tuple[Check, ...]


class Emitter(ValueReader):
    """Emits a body again and again while the types found for its locals still grow; the last is the result."""

    def __init__(
        self,
        parsed: Parsed,
        body: Body,
        params: tuple[Array | Var, ...],
        signature: Signature,
        dtypes: Mapping[str, str],
    ) -> None:
        super().__init__(parsed.text)
        self._parsed = parsed
        self._body = body
        self._dtypes = dtypes
        self._live = Liveness(body)
        self._results: dict[int, Scalar] = {}
        self._stored: dict[str, Scalar] = {}
        self._params = params
        for param, spec in zip(params, signature.arguments, strict=True):
            if isinstance(spec, ScalarSpec):
                self.params[param.name] = spec.type
        self._escaping = escaping_loops(body, self._live)
        self._local_arrays = {stmt.name for stmt in walk(body) if isinstance(stmt, surface.NewArray)}
        gives = [stmt for stmt in walk(body) if isinstance(stmt, surface.Give)]
        array_names = self._local_arrays | {param.name for param in params if isinstance(param, Array)}
        self._returns = _results_of(parsed, gives, array_names)
        self._name_locals()

    def _name_locals(self) -> None:
        """Locals keep their names, except where a parameter or a loop has a better claim to it."""
        names = {stmt.name for stmt in walk(self._body) if isinstance(stmt, surface.SetName)}
        names |= {
            stmt.name for stmt in walk(self._body) if id(stmt) in self._escaping and isinstance(stmt, surface.Loop)
        }
        counting = {stmt.name for stmt in walk(self._body) if isinstance(stmt, surface.Loop)}
        counting |= {stmt.source for stmt in walk(self._body) if isinstance(stmt, surface.Repeat)}
        self._used = {param.name for param in self._params} | self._local_arrays
        clashing = {name for name in names if name in counting or name in self.params}
        for name in [*sorted(names - clashing), *sorted(clashing)]:
            clashes = name in clashing
            self.locals[name] = self._fresh(value_name(name) if clashes else name, made=clashes)
        self._reserved = frozenset(self._used)

    def _fresh(self, base: str, *, made: bool = False) -> str:
        """A name for the IR: `base` if it is free, else one that the user's function does not have either, as all
        that are `made` up."""
        name, number = base, 1
        while name in self._used or ((made or number > 1) and name in self._parsed.names):
            number += 1
            name = f"{base}_{number}"
        self._used.add(name)
        return name

    def run(self) -> Emitted:
        assigned_params = [name for name in self.locals if name in self.params]
        for name in assigned_params:
            self.types[name] = self.joins.join(name, None, self.params[name], None)
        for _ in range(_ROUNDS):
            before = (dict(self.types), dict(self._stored), dict(self._results))
            self._used = set(self._reserved)
            self._known = {}
            self._outputs: list[Array] = []
            self._checks: list[Check] = []
            self.counters, self.strong_counters = {}, set()
            self.arrays = {
                param.name: ArrayInfo(param.name, _scalar(param), _scalar(param), param.shape)
                for param in self._params
                if isinstance(param, Array)
            }
            prelude: list[Stmt] = []
            for name in assigned_params:
                value = coerce(Var(name, held(self.params[name])), self.types[name])
                prelude.append(Assign(self.locals[name], value, held(self.types[name]), loc=self._parsed.loc))
                self._known[name] = Var(name, held(self.params[name]))
            body = (*prelude, *self._emit(self._body))
            if before == (self.types, self._stored, self._results):
                break
        while body and isinstance(body[-1], Return) and not body[-1].values:
            body = body[:-1]
        scalars = tuple(self._results[position] for position in sorted(self._results))
        return Emitted(body, tuple(self._outputs), self._returns, scalars, tuple(self._checks))

    # ------------------------------------------------------------------------------------- statements

    def _emit(self, body: Body) -> Body:
        done: list[Stmt] = []
        for stmt in body:
            done.extend(self._statement(stmt))
            changed = surface.assigned((stmt,)) if not isinstance(stmt, surface.SetName) else ()
            for name in changed:
                self._known.pop(name, None)
        return tuple(done)

    def _statement(self, stmt: Stmt) -> list[Stmt]:
        if isinstance(stmt, surface.SetName):
            return self._set_name(stmt)
        if isinstance(stmt, surface.SetElement):
            return self._set_element(stmt)
        if isinstance(stmt, surface.Loop):
            return self._loop(stmt)
        if isinstance(stmt, surface.Repeat):
            return self._repeat(stmt)
        if isinstance(stmt, surface.Branch):
            return self._branch(stmt)
        if isinstance(stmt, surface.NewArray):
            return self._new_array(stmt)
        if isinstance(stmt, surface.Give):
            return self._give(stmt)
        if isinstance(stmt, surface.Leave):
            return [Break(stmt.loc)]
        if isinstance(stmt, surface.RankIs):
            return []
        raise TypeError(f"no such surface statement: {stmt!r}")

    def _set_name(self, stmt: surface.SetName) -> list[Stmt]:
        if isinstance(stmt.value, surface.Name) and stmt.value.name == stmt.name not in self.counters:
            return []  # what a counted loop leaves in its counter, where it turned out to be no such loop
        value, type_ = self.value(stmt.value)
        known = self.types.get(stmt.name)
        sums = isinstance(stmt.value, surface.Binary) and stmt.name in surface.names_in(stmt.value)
        self.types[stmt.name] = self.joins.join(stmt.name, known, type_, value, sums)
        vtype = held(self.types[stmt.name])
        self._known.pop(stmt.name, None)
        if value.type == INT64 and self._is_settled(value):
            self._known[stmt.name] = value
        return [Assign(self.locals[stmt.name], coerce(value, vtype), vtype, loc=stmt.loc)]

    def _is_settled(self, value: Expr) -> bool:
        """Whether an expression has this value for as long as the counters in it are in scope."""
        if any(isinstance(part, Load) for part in walk_expr(value)):
            return False
        changing = set(self.locals.values())
        return not variables(value) & changing

    def _set_element(self, stmt: surface.SetElement) -> list[Stmt]:
        info = self.arrays[stmt.array]
        value, type_ = self.value(stmt.value)
        if stmt.array in self._stored:
            sums = isinstance(stmt.value, surface.Binary) and stmt.array in surface.elements_in(stmt.value)
            known = self._stored[stmt.array]
            self._stored[stmt.array] = self.joins.join((stmt.array,), known, type_, value, sums)
        if isinstance(value, Const):
            value = coerce(value, info.element)
        return [Store(info.name, self.indices(stmt.indices), value, loc=stmt.loc)]

    # -------------------------------------------------------------------------------- local arrays

    def _new_array(self, stmt: surface.NewArray) -> list[Stmt]:
        like = self.arrays[stmt.like] if stmt.like is not None else None
        shape = like.shape if like is not None else tuple(self.integer(part, "an extent") for part in stmt.shape)
        fill = None if stmt.fill is None else self.value(stmt.fill)
        dtype, element = self._array_type(stmt, fill)
        info = ArrayInfo(stmt.name, dtype, element, shape)
        self.arrays[stmt.name] = info
        array = Array(stmt.name, dtype, shape, "local", len(shape) - 1 if shape else None, loc=stmt.loc)
        done: list[Stmt] = []
        if stmt.name in self._returns:
            self._outputs.append(self._output(array, stmt))
        else:
            done.append(Alloc(array, stmt.loc))
        if fill is not None:
            done.append(self._filled(info, coerce(fill[0], element), stmt))
        return done

    def _array_type(self, stmt: surface.NewArray, fill: Typed | None) -> tuple[Scalar, Scalar]:
        """The dtype of the elements, and their type once loaded."""
        if stmt.name in self._dtypes:
            dtype = Scalar(self._dtypes[stmt.name])
            return dtype, dtype
        if stmt.dtype.startswith(surface.OF_ARRAY):
            dtype = self.arrays[stmt.dtype[1:]].dtype
            return dtype, dtype
        if stmt.dtype == surface.DEFAULT:
            return FLOAT64, FLOAT64
        if stmt.dtype not in (surface.JOINED, surface.OF_FILL):
            return Scalar(stmt.dtype), Scalar(stmt.dtype)
        if stmt.dtype == surface.OF_FILL and fill is not None:
            return fill[1].strong(), fill[1].strong()
        joined = self._stored.get(stmt.name)
        if fill is not None:
            joined = self.joins.join((stmt.name,), joined, fill[1], fill[0])
        if joined is None:
            joined = _first_store(self._body, stmt.name)
        self._stored[stmt.name] = joined
        if stmt.dtype == surface.OF_FILL:
            return joined.strong(), joined.strong()
        return held(joined), joined

    def _output(self, array: Array, stmt: surface.NewArray) -> Array:
        for extent in array.shape:
            if not self._is_settled(extent) or self.counters:
                raise self.refusal(
                    stmt.loc,
                    f"the extents of the result '{array.name}' change while the kernel runs",
                    "extents from shapes, integer arguments and constants, and the array made outside of loops",
                )
        divisor = max(1, 64 // _scalar(array).bytes)
        for width in (build.constant(extent) for extent in array.shape[1:]):
            while divisor > 1 and (width is None or width % divisor):
                divisor //= 2
        return Array(array.name, array.dtype, array.shape, "global", array.unit_axis, divisor, stmt.loc)

    def _filled(self, info: ArrayInfo, value: Expr, stmt: surface.NewArray) -> Stmt:
        counters = [self._fresh("_fill") for _ in info.shape]
        result: Stmt = Store(info.name, tuple(Var(name) for name in counters), value, loc=stmt.loc)
        for name, extent in reversed(list(zip(counters, info.shape, strict=True))):
            trip = int(extent.value) if isinstance(extent, Const) else None
            result = For(name, ZERO, extent, ONE, (result,), max_trip=trip, loc=stmt.loc)
        return result

    # --------------------------------------------------------------------------------------- control

    def _branch(self, stmt: surface.Branch) -> list[Stmt]:
        shortened = self._extreme_update(stmt)
        if shortened is not None:
            return self._statement(shortened)
        test = self.truth(stmt.test)
        if isinstance(test, Const):
            return list(self._emit(stmt.body if test.value else stmt.orelse))
        known = dict(self._known)
        body = self._emit(stmt.body)
        self._known = dict(known)
        orelse = self._emit(stmt.orelse)
        self._known = known
        return [If(test, body, orelse, loc=stmt.loc)]

    def _extreme_update(self, stmt: surface.Branch) -> Stmt | None:
        """`if x > m: m = x` as `m = max(m, x)`."""
        if stmt.orelse or len(stmt.body) != 1:
            return None
        (inner,) = stmt.body
        old: Expr
        if isinstance(inner, surface.SetName):
            old = surface.Name(inner.name, inner.loc)
        elif isinstance(inner, surface.SetElement):
            old = surface.Element(inner.array, inner.indices, inner.loc)
        else:
            return None
        if old == inner.value or (isinstance(old, surface.Name) and old.name not in self.types):
            return None
        value = self.extreme(stmt.test, inner.value, old)
        if value is None:
            return None
        if isinstance(inner, surface.SetName):
            return surface.SetName(inner.name, value, stmt.loc)
        return surface.SetElement(inner.array, inner.indices, value, stmt.loc)

    def _give(self, stmt: surface.Give) -> list[Stmt]:
        values: list[Expr] = []
        for place, value in zip(self._returns, stmt.values, strict=True):
            if isinstance(place, int):
                expr, type_ = self.value(value)
                known = self._results.get(place)
                self._results[place] = self.joins.join(place, known, type_, expr)
                values.append(coerce(expr, self._results[place]))
        return [Return(tuple(values), stmt.loc)]

    # ----------------------------------------------------------------------------------------- loops

    def _loop(self, stmt: surface.Loop) -> list[Stmt]:
        start, stop = (
            self.integer(stmt.start, "the start of 'range'"),
            self.integer(stmt.stop, "the stop of 'range'"),
        )
        step = self.integer(stmt.step, "the step of 'range'")
        self._check_step(step, stmt)
        name, var = stmt.name, self._fresh(stmt.name)
        if id(stmt) not in self._escaping:
            return self._for(var, start, stop, step, self._inside(stmt.body, {name: Var(var)}), stmt)
        self.types[name] = self.joins.join(name, self.types.get(name), WEAK_INT, None)
        type_ = held(self.types[name])

        def keep(value: Expr) -> Assign:
            return Assign(self.locals[name], coerce(value, type_), type_, loc=stmt.loc)

        own = name in surface.assigned(stmt.body)
        body = self._inside(stmt.body, {name: None if own else coerce(Var(var), type_)})
        last = None if own or may_break(body) or _changed((start, stop), body) else trips.last(start, stop, step)
        if last is None:
            return self._for(var, start, stop, step, (keep(Var(var)), *body), stmt)
        runs, value = last
        after: Body = () if runs == FALSE else (keep(value),)
        if after and runs != TRUE:
            after = (If(runs, after, loc=stmt.loc),)
        return [*self._for(var, start, stop, step, body, stmt), *after]

    def _check_step(self, step: Expr, stmt: surface.Loop) -> None:
        if isinstance(step, Const):
            if step.value == 0:
                raise self.refusal(stmt.loc, "the step of 'range' is zero", "a step above or below zero")
        elif variables(step) <= self.params.keys() and self._is_settled(step):
            test = build.compare("!=", step, 0)
            self._checks.append(Check(test, f"{self._parsed.name}(): the step of 'range' is zero", stmt.loc))

    def _check_distance(self, start: Expr, stop: Expr, stmt: surface.Loop | surface.Repeat) -> None:
        span = trips.distance(start, stop)
        if span is None or not variables(span) <= self.params.keys() or not self._is_settled(span):
            return
        what = "the bounds of a loop are 2**63 or more apart"
        if not variables(span):
            raise self.refusal(stmt.loc, what, "bounds that are nearer")
        message = f"{self._parsed.name}(): {what}"
        self._checks.append(Check(trips.is_countable(span), message, stmt.loc))

    def _for(
        self, var: str, start: Expr, stop: Expr, step: Expr, body: Body, stmt: surface.Loop | surface.Repeat
    ) -> list[Stmt]:
        """The loop, after the assignments of those bounds that its body would change.

        Python evaluates them once, and so does a `For`; but the pieces of a loop that is split ask again.
        """
        self._check_distance(start, stop, stmt)
        before: list[Stmt] = []
        bounds: list[Expr] = []
        for what, bound in (("start", start), ("stop", stop), ("step", step)):
            if _changed((bound,), body):
                name = self._fresh(f"{var}_{what}")
                before.append(Assign(name, bound, INT64, loc=stmt.loc))
                bounds.append(Var(name, INT64))
            else:
                bounds.append(bound)
        first, last, by = map(build.constant, bounds)
        trip = None if first is None or last is None or not by else max(0, -((first - last) // by))
        start, stop, step = bounds
        return [*before, For(var, start, stop, step, body, stmt.source, stmt.ordinal, max_trip=trip, loc=stmt.loc)]

    def _inside(self, body: Body, scope: Mapping[str, Expr | None]) -> Body:
        """A loop's body, with its counter in scope (`None`: a local of that name is to be read instead)."""
        outer, known = dict(self.counters), self._known
        for name, counter in scope.items():
            if counter is None:
                self.counters.pop(name, None)
            else:
                self.counters[name] = counter
        changed = surface.assigned(body) | scope.keys()
        self._known = {name: value for name, value in known.items() if name not in changed}
        result = self._emit(body)
        self.counters, self._known = outer, known
        return result

    def _repeat(self, stmt: surface.Repeat) -> list[Stmt]:
        reason = stmt.reason
        if stmt.counter:
            loop = self._counted(stmt)
            if not isinstance(loop, str):
                return loop
            reason = loop
        changed = surface.assigned(stmt.body)
        self._known = {name: value for name, value in self._known.items() if name not in changed}
        test, body = self.truth(stmt.test), self._inside(stmt.body, {})
        return [While(test, body, stmt.source, stmt.ordinal, 0, stmt.loc, reason, stmt.reason_loc or stmt.loc)]

    def _counted(self, stmt: surface.Repeat) -> list[Stmt] | str:
        """The loop that a counted `while` is, or why it may miss its bound after all."""
        name, test, increment = stmt.counter, stmt.test, stmt.body[-1]
        if not isinstance(test, surface.Comparison) or not isinstance(increment, surface.SetName):
            raise TypeError("this is no counted loop")
        value, type_ = self.value(increment.value)
        self.types[name] = self.joins.join(name, self.types[name], type_, value, True)
        step, type_ = trips.constant_step(increment), held(self.types[name])
        local = Var(self.locals[name], type_)
        start = coerce(self._known.get(name, local), INT64)
        bound, bound_type = self.value(test.right)
        stop = coerce(bound, INT64)
        text = self.source.text(surface.place_of(test)) or "its test"
        if type_ != INT64 and not trips.never_wraps(type_, test.op, step, bound, bound_type):
            why = f"counter '{name}' is of type {type_.name}, which may wrap before `{text}` ends the loop"
            return f"{why}; start it from 'int(...)'"
        if test.op == "!=" and not trips.meets(start, stop, step):
            return f"`{text}` may step over its bound, as far as is known; write '<' or '>' for '!='"
        if test.op in ("<=", ">="):
            stop = build.add(stop, 1 if step > 0 else -1)
        var = self._fresh(stmt.source or name)
        if not self.types[name].weak:
            self.strong_counters.add(var)
        body = self._inside(stmt.body[:-1], {name: coerce(Var(var), type_)})

        def last() -> Stmt:
            return Assign(local.name, coerce(trips.final_value(start, stop, step), type_), type_, loc=stmt.loc)

        lives = name in self._live.after[id(stmt)]
        if not lives or local.name not in written_variables(body):
            done = self._for(var, start, stop, build.const(step), body, stmt)
            return [*done, last()] if lives else done
        # Left early, the body says what the counter is; else this does.
        before: list[Stmt] = []
        if local.name in variables(start):
            kept = self._fresh(f"{var}_start")
            before.append(Assign(kept, start, INT64, loc=stmt.loc))
            start = Var(kept, INT64)
        return [*before, last(), *self._for(var, start, stop, build.const(step), body, stmt)]


def _changed(bounds: Sequence[Expr], body: Body) -> bool:
    """Whether a body may change what these expressions are."""
    read = {part.array for bound in bounds for part in walk_expr(bound) if isinstance(part, Load)}
    names = {name for bound in bounds for name in variables(bound)}
    return bool(names & written_variables(body) or read & written_arrays(body))


def _scalar(array: Array) -> Scalar:
    if not isinstance(array.dtype, Scalar):
        raise TypeError(f"{array.name} has a vector dtype")
    return array.dtype


def _first_store(body: Body, name: str) -> Scalar:
    """The type that a list display without a fill starts from: it grows with what is stored."""
    weak_kinds = [
        stmt.value.value
        for stmt in walk(body)
        if isinstance(stmt, surface.SetElement) and stmt.array == name and isinstance(stmt.value, surface.Number)
    ]
    return WEAK_INT if weak_kinds and all(type(value) is int for value in weak_kinds) else WEAK_FLOAT


def _results_of(parsed: Parsed, gives: list[surface.Give], arrays: set[str]) -> tuple[str | int, ...]:
    """`Kernel.returns`; refuses returns that disagree about which results are arrays."""
    if not gives:
        return ()

    def kinds(give: surface.Give) -> tuple[str | None, ...]:
        return tuple(
            value.name if isinstance(value, surface.Name) and value.name in arrays else None
            for value in give.values
        )

    first = kinds(gives[0])
    for give in gives[1:]:
        if kinds(give) != first:
            raise parsed.text.refusal(
                give.loc,
                "the results differ from those of an earlier 'return'",
                "the same arrays in the same places",
            )
    numbers = iter(range(len(first)))
    return tuple(next(numbers) if name is None else name for name in first)
