"""Random control flow - nested loops of both kinds, `continue`, `break`, counters changed and read later - run as
Python and as built."""

from __future__ import annotations

import linecache
import random
from typing import Any

import numpy as np
import pytest

from tests.frontend.execution import agrees

_NAMES = ("a", "b", "c")


class Writer:
    """Writes a function of `x` (an int64 array of 8) and `n`; all its loops end."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.lines = ["def f(x, n):", "    a = n", "    b = 3", "    c = 0", "    i = 0", "    j = 1", "    k = -1"]
        self.counters = 0

    def expression(self, depth: int = 2) -> str:
        pick = self.random.random()
        if depth == 0 or pick < 0.35:
            return self.random.choice([*_NAMES, "i", "j", "n", str(self.random.randint(-3, 5))])
        if pick < 0.5:
            return f"x[{self.expression(0)} % 8]"
        if pick < 0.6:
            return (
                f"{self.random.choice(['min', 'max'])}({self.expression(depth - 1)}, {self.expression(depth - 1)})"
            )
        if pick < 0.7:
            return f"({self.expression(depth - 1)} if {self.test()} else {self.expression(depth - 1)})"
        if pick < 0.75:
            return (
                f"({self.expression(depth - 1)} {self.random.choice(['and', 'or'])} {self.expression(depth - 1)})"
            )
        op = self.random.choice(["+", "-", "*", "// 3 +", "% 5 -", "&", "|", "^"])
        return f"({self.expression(depth - 1)} {op} {self.expression(depth - 1)}) % 101"

    def test(self) -> str:
        op = self.random.choice(["<", "<=", ">", ">=", "==", "!="])
        test = f"{self.expression(1)} {op} {self.expression(1)}"
        if self.random.random() < 0.2:
            return f"not {test}"
        return (
            f"{test} {self.random.choice(['and', 'or'])} {self.expression(0)} > 1"
            if self.random.random() < 0.2
            else test
        )

    def body(self, indent: int, depth: int, in_loop: bool) -> None:
        for _ in range(self.random.randint(1, 4)):
            self.statement(indent, depth, in_loop)

    def put(self, indent: int, text: str) -> None:
        self.lines.append("    " * indent + text)

    def statement(self, indent: int, depth: int, in_loop: bool) -> None:
        pick = self.random.random()
        if depth > 0 and pick < 0.25:
            self.loop(indent, depth)
        elif depth > 0 and pick < 0.45:
            self.put(indent, f"if {self.test()}:")
            self.body(indent + 1, depth - 1, in_loop)
            if self.random.random() < 0.5:
                self.put(indent, "else:")
                self.body(indent + 1, depth - 1, in_loop)
        elif in_loop and pick < 0.55:
            self.put(indent, f"if {self.test()}:")
            self.put(indent + 1, self.random.choice(["continue", "break", "continue"]))
        elif pick < 0.6:
            name = self.random.choice(_NAMES)
            self.put(indent, f"if {self.expression(1)} > {name}:")
            self.put(indent + 1, f"{name} = {self.expression(1)}")
        elif pick < 0.75:
            self.put(indent, f"x[{self.expression(1)} % 8] += {self.expression()}")
        elif pick < 0.8:
            self.put(indent, f"a, b = b, {self.expression(1)}")
        elif pick < 0.83:
            self.put(indent, f"i = {self.expression(1)}")
        else:
            self.put(indent, f"{self.random.choice(_NAMES)} = {self.expression()}")

    def loop(self, indent: int, depth: int) -> None:
        counter = self.random.choice(["i", "j", "k"])
        pick = self.random.random()
        if pick < 0.65:
            start, stop = self.random.choice(["", f"{self.expression(0)} % 9 - 3, "]), f"({self.expression(0)}) % 6"
            step = self.random.choice(["", "", ", 2", ", -1"]) if start else ""
            self.put(indent, f"for {counter} in range({start}{stop}{step}):")
            self.body(indent + 1, depth - 1, True)
            return
        # A `while` with a counter of its own, incremented first, last, or on some paths twice: it always ends.
        self.counters += 1
        own = f"w{self.counters}"
        if self.random.random() < 0.5:
            self.counting(indent, depth, own)
            return
        step, op, last = self.random.choice([(1, "<", 4), (2, "<=", 5), (-1, ">", -3), (3, "!=", 9)])
        self.put(indent, f"{own} = 0")
        self.put(indent, f"while {own} {op} {last}:")
        kind = self.random.random()
        if kind < 0.4:
            self.put(indent + 1, f"{own} += {step}")
            self.body(indent + 1, depth - 1, True)
            if self.random.random() < 0.5:
                self.put(indent + 1, f"x[{own} % 8] += 1")
        elif kind < 0.7:
            self.put(indent + 1, f"if {self.test()}:")
            self.put(indent + 2, f"{own} += {step}")
            self.put(indent + 2, "continue")
            self.body_without_jumps(indent + 1, depth - 1)
            self.put(indent + 1, f"{own} += {step}")
        else:
            self.body_without_jumps(indent + 1, depth - 1)
            self.put(indent + 1, f"x[{own} % 8] += 1")
            self.put(indent + 1, f"{own} = {own} + {step}")
        self.put(indent, f"c += {own}")

    def counting(self, indent: int, depth: int, own: str) -> None:
        """A `while` of any comparison, direction and start, incremented anywhere on each path, with ways out."""
        random = self.random
        step = random.choice([1, 1, 2, 3, -1, -2])
        op = random.choice(["<", "<=", ">", ">="][:: 1 if step > 0 else -1][:2])
        bound = random.choice(["n", "4", "n + 3", "x.shape[0] // 2", "x[2] % 6", "a % 5", "(n >> 1) + STEP"])
        start = random.choice(["0", "n", "2", "-3", "a % 4", "x[0] % 5"])
        flipped = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
        negated = {"<": ">=", "<=": ">", ">": "<=", ">=": "<"}
        test = random.choice(
            [
                f"{own} {op} stop",
                f"stop {flipped[op]} {own}",
                f"not {own} {negated[op]} stop",
                f"{own} + 2 {op} stop",
                f"{own} {op} stop and ({self.test()})",
                f"ok and {own} {op} stop",
            ]
        ).replace("stop", f"({bound})")
        self.put(indent, f"{own} = {start}")
        self.put(indent, "ok = True")
        self.put(indent, f"while {test}:")
        change = f"{own} = {step} + {own}" if random.random() < 0.2 else f"{own} += {step}"
        change = f"{own} -= {-step}" if step < 0 and random.random() < 0.5 else change
        for _ in range(random.randint(0, 2)):
            self.put(indent + 1, f"if {self.test()}:")
            if random.random() < 0.4:
                self.put(indent + 2, f"if x[{own} % 8] > {self.expression(0)}:")
                self.put(indent + 3, change)
                self.put(indent + 3, "continue")
                self.put(indent + 2, f"x[{own} % 8] -= 1")
            else:
                self.put(indent + 2, change)
                self.put(indent + 2, f"c += {own}")
                self.put(indent + 2, random.choice(["continue", "break", "continue"]))
        if random.random() < 0.3:
            self.put(indent + 1, f"if {self.test()}:")
            self.put(indent + 2, random.choice(["break", "ok = False", f"return {own}, b, c, i, j, k"]))
        if random.random() < 0.3:
            self.put(indent + 1, f"if x[{own} % 8] % 2 == 0:")
            self.put(indent + 2, change)
            self.put(indent + 1, "else:")
            self.put(indent + 2, f"c -= {own}")
            self.put(indent + 2, change)
            self.put(indent + 1, f"x[{own} % 8] += {own}")
        else:
            if random.random() < 0.5:
                self.body_without_jumps(indent + 1, depth - 1)
            self.put(indent + 1, change)
            self.put(indent + 1, f"t = {own} - {step}")
            self.put(indent + 1, f"x[t % 8] += {own}")
            if random.random() < 0.3:
                self.put(indent + 1, f"for k in range({own} % 3):")
                self.put(indent + 2, f"x[k] += {own} + k")
        if random.random() < 0.5:
            self.body_without_jumps(indent + 1, depth - 1)
        self.put(indent, f"c += {own}")

    def body_without_jumps(self, indent: int, depth: int) -> None:
        self.body(indent, depth, False)

    def function(self) -> Any:
        for _ in range(3):
            self.statement(1, 3, False)
        self.put(1, "return a, b, c, i, j, k")
        source = "\n".join(self.lines) + "\n"
        name = f"<random {abs(hash(source))}>"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        space: dict[str, Any] = {"STEP": 1}
        exec(compile(source, name, "exec"), space)
        return space["f"], source


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(metafunc.config.getoption("--random-programs")))


def test_a_random_program_does_what_python_does(seed: int) -> None:
    function, source = Writer(seed).function()
    for n in (0, 3, -2):
        try:
            agrees(function, np.arange(8, dtype=np.int64) - 3, n)
        except AssertionError as error:
            raise AssertionError(f"n = {n}\n{source}") from error
