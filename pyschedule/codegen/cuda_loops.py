"""Loops of a CUDA kernel: in one thread, over blocks, over threads, and shared out among all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from pyschedule.codegen.cuda_integers import Text
from pyschedule.codegen.cuda_statements import Context, StatementWriter, is_mapped, shares_work, synchronises
from pyschedule.codegen.ranges import constant_trip, fits_u32, trip_count
from pyschedule.errors import Unsupported
from pyschedule.ir.build import constant
from pyschedule.ir.nodes import Const, Expr, For, Load, Poll, Store, Var
from pyschedule.ir.types import INT64
from pyschedule.ir.visitors import Body, expressions, variables, walk, written_variables

#: Full unrolling is asked for by itself where a register array is indexed and the loop is at most this long.
_REGISTER_UNROLL_LIMIT: Final = 64
#: A cooperative nest of constant size is unrolled up to this many rounds.
_ROUNDS_UNROLLED: Final = 16


class KernelWriter(StatementWriter):
    """Writes one launch, loops and all."""

    def loop(self, loop: For, context: Context) -> None:
        if context.serial or loop.mapping in ("serial", "parallel"):
            self._serial_loop(loop, context)
        elif loop.mapping.startswith("thread."):
            self._thread_loop(loop, context)
        elif loop.mapping == "cooperative":
            self._cooperative(loop, context)
        else:
            raise Unsupported(f"the {loop.mapping} loop {loop.label or loop.var!r} is inside other work", loop.loc)

    def _unroll_of(self, loop: For) -> int:
        """What the loop asks for; a short constant loop that indexes registers is unrolled in any case."""
        if loop.unroll != 0:
            return loop.unroll
        trip = constant_trip(loop)
        if trip is None or trip > _REGISTER_UNROLL_LIMIT:
            return 0
        for stmt in walk(loop.body):
            if isinstance(stmt, Store) and self._in_registers(loop, stmt):
                return -1
        for part in expressions(loop.body):
            if isinstance(part, Load) and self._in_registers(loop, part):
                return -1
        return 0

    def _in_registers(self, loop: For, access: Load | Store) -> bool:
        return access.array in self.register_arrays and any(
            loop.var in variables(index) for index in access.indices
        )

    def _bound(self, expr: Expr, kind: str, name: str, body: Body) -> str:
        """A loop's stop as text that can be evaluated again: a name or a number."""
        if kind == "u32" and self.facts.interval(expr)[0] < 0:
            text = Text(
                f"{self.use('u32')}({self.use('pmax')}({self._i64(expr)}, {self.use('i64')}(0)))", "u32", True
            )
        else:
            text = self.expr.as_kind(expr, kind)
        changes = variables(expr) & (written_variables(body))
        if not changes and (text.text.isidentifier() or isinstance(expr, Const)):
            return text.text
        stop = self.fresh(name + "_stop")
        self.line(f"{stop} = {self.typed(text, INT64) if kind == 'i64' else text.text}")
        return stop

    def _i64(self, expr: Expr) -> str:
        return f"{self.use('i64')}({self.expr.signed(expr).text})"

    def _runs_along(self, loop: For) -> bool:
        """Whether the loop's counter moves along the axes of stride 1 only."""
        accesses: list[Load | Store] = [part for part in expressions(loop.body) if isinstance(part, Load)]
        accesses += [stmt for stmt in walk(loop.body) if isinstance(stmt, Store)]
        return not any(
            loop.var in variables(index) and axis != self.arrays[access.array].unit_axis
            for access in accesses
            if self.arrays[access.array].space == "global"
            for axis, index in enumerate(access.indices)
        )

    def _counts_in_u32(self, loop: For) -> bool:
        step = constant(loop.step)
        if step is None or step <= 0:
            return False
        return self.facts.interval(loop.start)[0] >= 0 and (
            max(self.facts.interval(loop.stop)[1], self.facts.interval(loop.start)[1]) + step < 1 << 32
        )

    def _serial_loop(self, loop: For, context: Context) -> None:
        work = not context.serial and shares_work(loop.body)
        bounds = variables(loop.start) | variables(loop.stop) | variables(loop.step)
        if work and bounds & self.thread_varying and synchronises(loop.body):
            raise Unsupported(
                f"threads meet in loop {loop.label or loop.var!r}, whose bounds differ between them", loop.loc
            )
        name = self.names[loop.var]
        trip = constant_trip(loop)
        counts = self._counts_in_u32(loop)
        unroll = self._unroll_of(loop)
        if bounds & self.thread_varying:
            self.thread_varying.add(loop.var)
        if trip is not None and constant(loop.start) is not None:
            start, stop, step = constant(loop.start) or 0, constant(loop.stop) or 0, constant(loop.step) or 1
            kind = "u64" if min(start, stop) >= 0 and step > 0 else "i64"
            cast = f"{self.use('u64')}({{}})" if kind == "u64" else "{}"
            numbers = [stop] if (start, step) == (0, 1) else [start, stop] if step == 1 else [start, stop, step]
            head = f"for {name} in range({', '.join(cast.format(number) for number in numbers)}):"
        elif counts and isinstance(loop.start, Var) and loop.start.name in self.strips and self._runs_along(loop):
            # The compiler cannot see that a 32-bit counter that starts anywhere does not wrap, and would widen it
            # in each copy of the body.  (Where it is multiplied by a stride, that is done in 32 bits anyway.)
            kind, u64 = "u64", self.use("u64")
            stop_text = self._bound(loop.stop, "u32", name, loop.body)
            self.line(f"{name} = {u64}({self.expr.as_kind(loop.start, 'u32').text})", loop)
            end = self.fresh(f"{name}_end")
            self.line(f"{end} = {u64}({stop_text})")
            head = f"while {name} < {end}:"
        elif counts:
            kind = "u32"
            stop_text = self._bound(loop.stop, "u32", name, loop.body)
            self.line(f"{name} = {self.expr.as_kind(loop.start, 'u32').text}", loop)
            head = f"while {name} < {stop_text}:"
        else:
            kind = "i64"
            texts = [self._i64(part) for part in (loop.start, loop.stop, loop.step)]
            head = f"for {name} in range({', '.join(texts)}):"
        self.kinds[loop.var] = kind
        if loop.body and isinstance(loop.body[0], Poll):
            self.strips.add(loop.var)
        self.facts.enter(loop)
        self.line(head, loop)
        self.depth += 1
        self.body(loop.body, context)
        if head.startswith("while"):
            step_text = self.expr.as_kind(loop.step, kind).text
            self.line(f"{name} = {self.use(kind)}({name} + {step_text})")
        self.marker(unroll)
        self.depth -= 1

    def block_loop(self, loop: For) -> None:
        """The counter of a block loop from the block's index; written once, at the head of the kernel."""
        axis = loop.mapping.removeprefix("block.")
        self._place_counter(loop, f"b{axis}")

    def strided_block_loop(self, loop: For) -> tuple[int, str]:
        """A block loop that may be longer than the grid: each block takes every n-th iteration, n being the
        grid's extent.  Returns the depth and the text of the step at the end of the body."""
        axis, i64 = loop.mapping.removeprefix("block."), self.use("i64")
        name = self.names[loop.var]
        limit = self._bound(loop.stop, "i64", name, ())
        self.facts.enter(loop)
        self.kinds[loop.var] = "i64"
        self.line(f"{name} = {i64}(b{axis})", loop)
        self.line(f"while {name} < {limit}:")
        self.depth += 1
        return self.depth, f"{name} = {i64}({name} + {i64}(cuda.gridDim.{axis}))"

    def _place_counter(self, loop: For, position: str, position_kind: str = "u32") -> None:
        """`var = start + position * step`, where `position` is the number of the iteration."""
        name = self.names[loop.var]
        self.facts.enter(loop)
        kind = "u32" if fits_u32(self.facts.interval(loop.counter)) else "i64"
        start, step = constant(loop.start), constant(loop.step)
        cast = self.use(kind)
        if position_kind == "i64" and kind == "u32":
            position = f"{cast}({position})"
        if start == 0 and step == 1:
            text = position if kind == "u32" else f"{cast}({position})"
        else:
            scaled = (
                position
                if step == 1
                else f"{position} * {cast}({step})"
                if kind == "u32"
                else f"{cast}({position}) * {step}"
            )
            first = self.expr.as_kind(loop.start, kind)
            text = f"{cast}({scaled})" if start == 0 else f"{cast}({first.operand} + {scaled})"
        self.kinds[loop.var] = kind
        if text != name:
            self.line(f"{name} = {text}", loop)

    def _thread_loop(self, loop: For, context: Context) -> None:
        axis = loop.mapping.removeprefix("thread.")
        if axis in context.covered:
            raise Unsupported(f"two nested loops are mapped to {loop.mapping}", loop.loc)
        if not context.uniform and synchronises(loop.body):
            raise Unsupported("threads meet below a test that differs between them", loop.loc)
        size = self.block["xyz".index(axis)]
        trip = constant_trip(loop)
        most = trip if trip is not None else loop.max_trip
        count = trip_count(loop)
        if count is None:
            raise Unsupported(f"the step of the {loop.mapping} loop is not constant", loop.loc)
        self.thread_varying.add(loop.var)
        meets = synchronises(loop.body)
        inner = replace(context, covered=context.covered | {axis}, uniform=context.uniform and meets)
        position = f"t{axis}"
        if trip == size:
            self._place_counter(loop, position)
            self.body(loop.body, inner)
            return
        kind = "u32" if self.facts.interval(count)[1] + size < 1 << 32 else "i64"
        limit = self._bound(count, kind, self.names[loop.var] + "_trips", loop.body)
        cast = self.use(kind)
        if most is not None and most <= size:
            test = f"{position} < {limit}" if kind == "u32" else f"{cast}({position}) < {limit}"
            if meets:
                self._place_counter(loop, position)
                self.body(loop.body, replace(inner, active=(*context.active, test)))
                return
            self.line(f"if {test}:", loop)
            self.depth += 1
            self._place_counter(loop, position)
            self.body(loop.body, inner)
            self.depth -= 1
            return
        if meets and variables(count) & self.thread_varying:
            raise Unsupported(f"threads meet in loop {loop.label or loop.var!r}, whose length differs", loop.loc)
        turn = self.fresh(self.names[loop.var] + "_turn")
        if meets:  # all threads go through the same rounds, whether or not they have an iteration in each
            self.line(f"{turn} = {cast}(0)", loop)
            self.line(f"while {turn} < {limit}:")
            self.depth += 1
            mine = self.fresh(self.names[loop.var] + "_mine")
            self.line(f"{mine} = {cast}({turn} + {cast}({position}))")
            self._place_counter(loop, mine, kind)
            self.body(loop.body, replace(inner, active=(*context.active, f"{mine} < {limit}")))
        else:
            self.line(f"{turn} = {position if kind == 'u32' else f'{cast}({position})'}", loop)
            self.line(f"while {turn} < {limit}:")
            self.depth += 1
            self._place_counter(loop, turn, kind)
            self.body(loop.body, inner)
        self.line(f"{turn} = {cast}({turn} + {cast}({size}))")
        self.depth -= 1

    def _cooperative(self, loop: For, context: Context) -> None:
        if not context.uniform:
            raise Unsupported("a cooperative nest that not all threads of the block reach", loop.loc)
        nest = [loop]
        while len(nest[-1].body) == 1 and is_mapped(nest[-1].body[0], "cooperative"):
            nest.append(nest[-1].body[0])  # type: ignore[arg-type]
        body = nest[-1].body
        if any(is_mapped(stmt, "cooperative") or is_mapped(stmt, "thread.") for stmt in walk(body)):
            raise Unsupported("a cooperative nest is not perfect", loop.loc)
        read = {part.name for part in expressions((loop,)) if isinstance(part, Var)}
        if read & self.thread_varying:
            raise Unsupported(
                f"a cooperative nest reads {min(read & self.thread_varying)!r}, which is a thread's own",
                loop.loc,
            )
        extents, limits = self._cooperative_extents(nest)
        total = 1
        constant_total = all(isinstance(extent, int) for extent in extents)
        threads = self.threads_in_block
        u32 = self.use("u32")
        inner = Context(covered=frozenset("xyz"), uniform=False)
        self.thread_varying.update(item.var for item in nest)
        turn = self.fresh("turn")
        if constant_total:
            for extent in extents:
                total *= int(extent)
            rounds = -(-total // threads) if total else 0
            if rounds == 0:
                return
            if rounds > 1:
                counter = self.fresh("round")
                self.line(f"for {counter} in range({self.use('u64')}({rounds})):", loop)
                self.depth += 1
                self.line(f"{turn} = {u32}(tid + {u32}({counter}) * {u32}({threads}))")
            else:
                self.line(f"{turn} = tid", loop)
            guarded = total % threads != 0
            if guarded:
                self.line(f"if {turn} < {u32}({total}):")
                self.depth += 1
            self._cooperative_body(nest, extents, limits, turn, body, inner)
            if guarded:
                self.depth -= 1
            if rounds > 1:
                self.marker(-1 if rounds <= _ROUNDS_UNROLLED else 0)
                self.depth -= 1
            return
        product = " * ".join(f"{u32}({extent})" if isinstance(extent, int) else extent for extent in extents)
        total_name = self.fresh("turns")
        self.line(f"{total_name} = {u32}({product})", loop)
        self.line(f"{turn} = tid")
        self.line(f"while {turn} < {total_name}:")
        self.depth += 1
        self._cooperative_body(nest, extents, limits, turn, body, inner)
        self.line(f"{turn} = {u32}({turn} + {u32}({threads}))")
        self.depth -= 1

    def _cooperative_extents(self, nest: list[For]) -> tuple[list[int | str], list[str | None]]:
        """Per loop: how far its number runs (a constant wherever one bounds it), and, where that is more than
        the trip count, the name of the trip count."""
        extents: list[int | str] = []
        limits: list[str | None] = []
        counters = {item.var for item in nest}
        for item in nest:
            trip, count = constant_trip(item), trip_count(item)
            if trip is not None:
                extents.append(trip)
                limits.append(None)
                continue
            if count is None or (variables(count) & counters):
                raise Unsupported(
                    f"the trip count of the cooperative loop {item.label or item.var!r} varies", item.loc
                )
            if self.facts.interval(count)[1] >= 1 << 32:
                raise Unsupported(f"the cooperative loop {item.label or item.var!r} may be too long", item.loc)
            limit = self._bound(count, "u32", self.names[item.var] + "_trips", ())
            if item.max_trip is not None:
                extents.append(item.max_trip)
                limits.append(limit)
            else:
                extents.append(limit)
                limits.append(None)
        if sum(isinstance(extent, str) for extent in extents) > 1:
            raise Unsupported("a cooperative nest with two unbounded loops", nest[0].loc)
        return extents, limits

    def _position_name(self, loop: For) -> str:
        """The variable for a loop's number: the counter itself, where they are the same."""
        if constant(loop.start) == 0 and constant(loop.step) == 1:
            return self.names[loop.var]
        return self.fresh(self.names[loop.var] + "_turn")

    def _cooperative_body(
        self,
        nest: list[For],
        extents: list[int | str],
        limits: list[str | None],
        turn: str,
        body: Body,
        inner: Context,
    ) -> None:
        """Splits the number of the turn into one number a loop, innermost fastest, and writes the body."""
        u32 = self.use("u32")
        positions: list[str] = [""] * len(nest)
        rest = turn
        for level in range(len(nest) - 1, 0, -1):
            extent = extents[level]
            size = f"{u32}({extent})" if isinstance(extent, int) else extent
            positions[level] = self._position_name(nest[level])
            self.line(f"{positions[level]} = {u32}({rest} % {size})", nest[level])
            outer = self.fresh("rest") if level > 1 else self._position_name(nest[0])
            self.line(f"{outer} = {u32}({rest} // {size})")
            rest = outer
        positions[0] = rest
        tests = [f"{position} < {limit}" for position, limit in zip(positions, limits, strict=True) if limit]
        if tests:
            self.line(f"if {' and '.join(tests)}:")
            self.depth += 1
        for item, position in zip(nest, positions, strict=True):
            self._place_counter(item, position)
        self.body(body, inner)
        if tests:
            self.depth -= 1
