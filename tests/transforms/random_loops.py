"""Random nests of loops as people write them, as plain Python functions, and random directives for them.

A program has one to three nested loops, sometimes two beside each other, `for` over `range` or counted `while`,
with constant, run-time and outer counters in their bounds, of either direction; bodies with `if`, `continue`,
`break`, stage numbers, sums and scalars that are read after the loops.  At some places of its bodies it counts
(`count[site, i + REACH, j + REACH] += 1`), which an iteration that runs twice, or not at all, gives away.  All
numbers are integers, so that results are compared bit by bit.
"""

from __future__ import annotations

import linecache
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

import numpy as np

from pyschedule.errors import ScheduleError
from pyschedule.frontend.parser import Parsed, parse
from pyschedule.runtime.lowering import Definition
from pyschedule.schedule.directives import Directive, NoUnroll, Poll, Schedule, Tile, Unroll, Vectorize

#: Counters lie between -REACH and REACH.
REACH = 24
SIZE = 2 * REACH + 1
SITES = 4

Arguments = dict[str, Any]


@dataclass(frozen=True)
class Program:
    """A function of `count`, `x` and `y` (arrays) and `a` and `b` (integers), and its text."""

    function: FunctionType
    text: str
    depth: int

    @property
    def parsed(self) -> Parsed:
        return parse(self.function)

    def arguments(self, rng: random.Random) -> Arguments | None:
        """Arguments for which no index lies outside; `None` where some tries found none."""
        for _ in range(20):
            values = np.random.default_rng(rng.randrange(1 << 30))
            found: Arguments = {
                "count": np.zeros((SITES, *(SIZE,) * self.depth), np.int64),
                "x": values.integers(-9, 10, SIZE),
                "y": values.integers(-9, 10, SIZE),
                "a": rng.randint(-3, 8),
                "b": rng.randint(-2, 9),
            }
            own = copied(found)
            try:
                self.function(**own)
            except IndexError:
                continue
            if own["count"].max() <= 1:  # else a counter below -REACH, taken from the end, met another
                return found
        return None

    def accepts(self, schedule: Schedule) -> bool:
        """Whether the decorators would take the directives, on either target."""
        definition = Definition(self.parsed, schedule)
        try:
            for kind in ("cpu", "cuda"):
                definition.check(kind)
        except ScheduleError:
            return False
        return True


def copied(arguments: Arguments) -> Arguments:
    return {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in arguments.items()}


def random_program(rng: random.Random, name: str) -> Program:
    """A program that there are arguments for."""
    tries = 0
    while True:
        program = _Writer(rng).program(f"<random loops {name}, try {tries}>")
        if program.arguments(rng) is not None:
            return program
        tries += 1


@dataclass
class _Loop:
    """A loop that is being written: what a `continue` in it must do first."""

    counter: str
    advance: str = ""


@dataclass
class _Writer:
    rng: random.Random
    lines: list[str] = field(default_factory=list)
    around: list[_Loop] = field(default_factory=list)
    sites: int = 0

    def __post_init__(self) -> None:
        self.depth = self.rng.choice([1, 1, 2, 2, 3])
        # Without a scalar that every iteration changes, loops may be tiled and put in lanes.
        self.ordered = self.rng.random() < 0.5
        self.leaves = self.rng.random() < 0.5

    def program(self, name: str) -> Program:
        counters = list("ijk"[: self.depth])
        self.put(0, "def program(count, x, y, a, b):")
        self.put(1, "t = 1")
        self.put(1, "last = -9")
        self.put(1, "total = 0")
        for counter in counters:
            self.put(1, f"{counter} = -9")
        self.nest(1, counters)
        after = self.rng.sample(["t", "last", "total", *counters], self.rng.randint(1, 3))
        self.put(1, f"y[{REACH}] += 1")
        self.put(1, f"return {', '.join(after)}")
        text = "\n".join(self.lines) + "\n"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        space: dict[str, Any] = {}
        exec(compile(text, name, "exec"), space)
        return Program(space["program"], text, self.depth)

    def put(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    # ------------------------------------------------------------------------------------------------ loops

    def nest(self, indent: int, counters: list[str]) -> None:
        self.loop(indent, counters)
        if self.rng.random() < 0.15:
            self.loop(indent, counters)

    def loop(self, indent: int, counters: list[str]) -> None:
        rng, counter = self.rng, counters[0]
        step = rng.choice([1, 1, 1, 2, 3, -1, -1, -2])
        start, stop = self.bounds(step, len(counters))
        if rng.random() < 0.75:
            self.put(indent, f"for {counter} in range({start}, {stop}, {step}):")
            self.around.append(_Loop(counter))
            self.body(indent + 1, counters)
        else:
            self.put(indent, f"{counter} = {start}")
            op = rng.choice(["<", "<="] if step > 0 else [">", ">="])
            self.put(indent, f"while {counter} {op} {stop}:")
            advance = f"{counter} += {step}" if rng.random() < 0.7 else f"{counter} = {counter} + {step}"
            self.around.append(_Loop(counter, advance))
            self.body(indent + 1, counters)
            self.put(indent + 1, advance)
        self.around.pop()

    def bounds(self, step: int, levels: int) -> tuple[str, str]:
        rng = self.rng
        outer = [loop.counter for loop in self.around]
        deep = self.depth == 3  # bounds of three loops that all depend on one another take isl its time
        starts = [str(rng.randint(-4, 7)), str(rng.randint(-4, 7)), "a"]
        if outer:
            starts.append(outer[-1])
        if not deep:
            starts += ["2 * a", *([f"{outer[0]} - 1", f"4 * {outer[0]}", f"min({outer[0]}, a)"] if outer else [])]
        start = rng.choice(starts)
        trips = rng.randint(0, 9 if levels < 3 else 5)
        beyond = rng.randint(0, abs(step) - 1)
        length = trips * step + (beyond if step > 0 else -beyond)
        literal = start.lstrip("-").isdigit()
        stops = [str(int(start) + length) if literal else f"{start} + {length}"] * 2
        stops += [f"{start} + b" if step > 0 else f"{start} - b", "b" if step > 0 else "-b"]
        stops += [] if deep else [f"min({start} + 7, b)" if step > 0 else f"max({start} - 7, -b)"]
        return start, rng.choice(stops)

    def body(self, indent: int, counters: list[str]) -> None:
        most = 1 if self.depth == 3 else 2
        before, after = self.rng.randint(0, most), self.rng.randint(0, most)
        innermost = len(counters) == 1
        for _ in range(before + innermost):
            self.statement(indent, 2)
        if innermost:
            self.count(indent)
        else:
            self.nest(indent, counters[1:])
        for _ in range(after):
            self.statement(indent, 2)

    # ------------------------------------------------------------------------------------------- statements

    def count(self, indent: int) -> None:
        """One more run of this place, at the counters that there are."""
        if self.sites == SITES:
            self.put(indent, f"last = {self.counter()}")
            return
        own = [loop.counter for loop in self.around]
        indices = [f"{name} + {REACH}" for name in own] + ["0"] * (len("ijk") - len(own))
        self.put(indent, f"count[{', '.join([str(self.sites), *indices[: self.depth]])}] += 1")
        self.sites += 1

    def statement(self, indent: int, depth: int) -> None:
        rng, loop = self.rng, self.around[-1]
        kind = rng.random()
        if depth and kind < 0.15:
            self.put(indent, f"if {self.test()}:")
            self.statement(indent + 1, depth - 1)
            if rng.random() < 0.4:
                self.put(indent, "else:")
                self.statement(indent + 1, depth - 1)
        elif depth and kind < 0.27:
            self.stages(indent, depth)
        elif kind < 0.4 and self.leaves:
            self.put(indent, f"if {self.test()}:")
            if rng.random() < 0.5:
                self.put(indent + 1, "break")
            else:
                if loop.advance:
                    self.put(indent + 1, loop.advance)
                self.put(indent + 1, "continue")
        elif kind < 0.5:
            self.count(indent) if rng.random() < 0.5 else self.put(indent, f"last = {self.counter()}")
        else:
            self.put(indent, self.update())

    def stages(self, indent: int, depth: int) -> None:
        """What a software pipeline does: another arm for each stage."""
        rng, counter = self.rng, self.around[-1].counter
        period = rng.choice([2, 3, 4, 4, 6])
        shifted = rng.choice([counter, f"({counter} + {rng.randint(1, 9)})", f"(a + {counter})"])
        stage = f"{shifted} & {period - 1}" if period in (2, 4) and rng.random() < 0.6 else f"{shifted} % {period}"
        if rng.random() < 0.6:
            self.put(indent, f"stage = {stage}")
            stage = "stage"
        else:
            stage = f"({stage})"
        for place in range(rng.randint(1, min(3, period))):
            self.put(indent, f"{'el' if place else ''}if {stage} == {place}:")
            self.statement(indent + 1, depth - 1)
        if rng.random() < 0.5:
            self.put(indent, "else:")
            self.statement(indent + 1, depth - 1)

    def counter(self) -> str:
        return self.rng.choice([loop.counter for loop in self.around])

    def test(self) -> str:
        rng, counter = self.rng, self.counter()
        tests = [f"{counter} % 3 == {rng.randint(0, 2)}", f"{counter} > a", f"{counter} & 2"]
        tests += [f"x[{counter} + {REACH}] > {rng.randint(2, 8)}", f"{counter} + {self.counter()} == b"]
        if self.ordered:
            tests += [f"t % 7 == {rng.randint(0, 6)}", f"total > {rng.randint(5, 40)}"]
        return rng.choice(tests)

    def update(self) -> str:
        rng, counter = self.rng, self.counter()
        place = f"{counter} + {REACH}"
        updates = [
            f"y[{place}] = y[{place}] * 2 + {self.counter()}",
            f"y[{place}] += x[{place}]",
            f"total += x[{place}]",
            f"last = max(last, x[{place}])",
            f"y[{place}] += {counter} // 4 - ({counter} + 1) % {rng.choice([2, 3, 4])}",
        ]
        if self.ordered:
            updates += [f"t = (t * 3 + {counter}) % 1009"] * 3 + [f"y[{place}] = y[{place} - 1] + 1"]
        return rng.choice(updates)


# ------------------------------------------------------------------------------------------------- directives


def random_directives(rng: random.Random, program: Program) -> Schedule:
    """Directives on the program's loops that the decorators would take."""
    loops = list(dict.fromkeys(loop.name for loop in program.parsed.loops))
    while True:
        schedule = Schedule(tuple(_directives(rng, loops)))
        if program.accepts(schedule):
            return schedule


def _directives(rng: random.Random, loops: list[str]) -> Iterator[Directive]:
    pieces: dict[str, str] = {}
    if rng.random() < 0.15:
        loop = rng.choice(loops)
        pieces[loop] = f"{loop}.{rng.randint(0, 1)}"
        yield Tile(sizes=((loop, (rng.choice([2, 3, 4, 8]),)),))
    if rng.random() < 0.15:
        yield Vectorize(loop=rng.choice([None, *loops]), width=rng.choice([None, 2, 4]))
    kind = rng.random()
    if kind < 0.1:
        yield Unroll()
    elif kind < 0.2:
        yield Unroll(factors=tuple(rng.randint(2, 5) for _ in range(rng.randint(1, min(2, len(loops))))))
    else:
        for loop in loops:
            name = rng.choice([loop, pieces.get(loop, loop)])
            asked = rng.random()
            if asked < 0.25:
                yield Unroll(loop=name, factor=None)
            elif asked < 0.75:
                yield Unroll(loop=name, factor=rng.randint(2, 7))
            elif asked < 0.85:
                yield NoUnroll(loop=name)
    if rng.random() < 0.3:
        yield Poll(every=rng.choice([1, 2, 3, 5, 64]))
