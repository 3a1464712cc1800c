"""The function that is called where an operator is called, written out for its parameters.

For an operator of `a`, `b`, `out` it reads

    def matmul(a, b, *, out=None):
        return _way(a, b, out)

    def positional(a, b, out):
        if a.__class__ is not _ndarray: return _other(a, b, out)
        try:
            _a = a.flags.num; _b = b.flags.num; _out = 1 if out is None else out.flags.num
            if _a & _b & _out & 1: run = _memo[(a.__class__, a.dtype, a.shape, _a, b.__class__, ...)]
            else: run = _memo[(a.__class__, a.dtype, a.shape, _a, a.strides, b.__class__, ...)]
        except (AttributeError, KeyError, TypeError): run = None
        if run is None: return _first((a, b, out))
        return run(a, b, out)

and `_other` does the same for views of arrays of another library.  Where all arrays are in C order, shapes say what
strides would: only those of axes with one element may differ, and nothing is read along them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from operators.foreign import KNOWN, Elsewhere

Run = Callable[..., Any]

#: NumPy's flag of an array in C order.
_IN_ORDER: Final = 1


class _Text:
    """A default in the text of a signature."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


@dataclass(frozen=True, slots=True)
class Entries:
    """`function` takes the operator's arguments, by name and default; `positional` takes all by position.

    `shorten(way)` has `function` go another way than `positional`.
    """

    function: Any
    positional: Run
    shorten: Callable[[Run], None]


@dataclass(frozen=True, slots=True)
class Form:
    """An operator's parameters: all of them in order, those for arrays, and those of these that may be `None`.

    Where `in_place` is not empty, it matters whether `out` is this very argument.
    """

    name: str
    signature: inspect.Signature
    arrays: tuple[str, ...]
    in_place: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.signature.parameters)

    @property
    def optional(self) -> frozenset[str]:
        return frozenset(name for name in self.arrays if self.signature.parameters[name].default is None)

    def key(self, values: tuple[Any, ...], layout_of: Callable[[Any], Any]) -> tuple[Any, ...]:
        """What the plan of a call depends on, as the text of the function has it."""
        layouts = {
            name: layout_of(value)
            for name, value in zip(self.names, values, strict=True)
            if name in self.arrays and value is not None
        }
        in_order = all(known.flags.num & _IN_ORDER for known in layouts.values())
        key: list[Any] = []
        for name, value in zip(self.names, values, strict=True):
            if name not in self.arrays:
                key += [value.__class__, value]
            elif value is None:
                key.append(None)
            else:
                known = layouts[name]
                facts: tuple[Any, ...] = (value.__class__, known.dtype, known.shape, known.flags.num)
                if not in_order:
                    facts = (*facts, known.strides)
                key += [facts] if name in self.optional else facts
        if self.in_place:
            given = dict(zip(self.names, values, strict=True))
            key.append(given["out"] is given[self.in_place])
        return tuple(key)

    def flags_text(self) -> tuple[list[str], str]:
        """Lines that read the flags of the arrays, and a test whether all are in C order."""
        lines = []
        for name in self.arrays:
            flags = f"{name}.flags.num"
            lines.append(f"_{name} = {f'{_IN_ORDER} if {name} is None else ' * (name in self.optional)}{flags}")
        return lines, " & ".join([*(f"_{name}" for name in self.arrays), str(_IN_ORDER)])

    def key_text(self, in_order: bool) -> str:
        key = []
        for name in self.names:
            facts = f"{name}.__class__, {name}.dtype, {name}.shape, _{name}"
            if not in_order:
                facts += f", {name}.strides"
            if name not in self.arrays:
                facts = f"{name}.__class__, {name}"
            elif name in self.optional:
                facts = f"None if {name} is None else ({facts})"
            key.append(facts)
        if self.in_place:
            key.append(f"out is {self.in_place}")
        return f"({', '.join(key)},)"


def make_entries(form: Form, memo: dict[Any, Run], first: Callable[[tuple[Any, ...]], Any]) -> Entries:
    """The functions of an operator: they look up in `memo` what to do, and ask `first` where it has nothing."""
    empty = inspect.Parameter.empty
    header = inspect.Signature(
        [
            item.replace(
                annotation=empty, default=empty if item.default is empty else _Text(f"_defaults[{name!r}]")
            )
            for name, item in form.signature.parameters.items()
        ]
    )
    names = ", ".join(form.names)
    flags, in_order = form.flags_text()
    body = "\n    ".join(
        (
            f"    if {form.arrays[0]}.__class__ is not _ndarray: return _other({names})",
            "try:",
            *(f"    {line}" for line in flags),
            f"    if {in_order}: run = _memo[{form.key_text(True)}]",
            f"    else: run = _memo[{form.key_text(False)}]",
            "except (AttributeError, KeyError, TypeError):",
            "    run = None",
            "if run is None:",
            f"    return _first(({names},))",
            f"return run({', '.join(form.arrays)})",
        )
    )
    text = (
        f"def {form.name}{header}:\n    return _way({names})\n\n"
        f"def positional({names}):\n{body}\n\n{_of_other_libraries(form)}"
    )
    space: dict[str, Any] = {
        "_memo": memo,
        "_first": first,
        "_known": KNOWN,
        "_ndarray": np.ndarray,
        "_Elsewhere": Elsewhere,
        "_defaults": {name: item.default for name, item in form.signature.parameters.items()},
    }
    exec(compile(text, f"<call of {form.name}>", "exec"), space)
    space["_way"] = space["positional"]
    return Entries(space[form.name], space["positional"], lambda way: space.update(_way=way))


def _of_other_libraries(form: Form) -> str:
    """The text of `_other`: arrays of one library are viewed as NumPy's, and the result goes back."""
    names = ", ".join(form.names)
    first, *others = form.arrays
    tests = ["kind is None"]
    lines = []
    for name in form.arrays:
        view = f"kind.view({name}, {name!r})"
        if name == "out" and form.in_place:
            view = f"_{form.in_place} if out is {form.in_place} else {view}"
        if name in form.optional:
            view = f"None if {name} is None else {view}"
        lines.append(f"    _{name} = {view}")
        if name in others:
            missing = f"{name} is not None and " if name in form.optional else ""
            tests.append(f"{missing}_known.get({name}.__class__) is not kind")
    given = ", ".join(f"_{name}" if name in form.arrays else name for name in form.names)
    back = f"return kind.wrap(_way({given}), {first})"
    if "out" in form.arrays:
        back = f"{back} if out is None else (_way({given}), out)[1]"
    return "\n    ".join(
        (
            f"def _other({names}):",
            f"kind = _known.get({first}.__class__)",
            f"if {' or '.join(tests)}: return _first(({names},))",
            "try:",
            *lines,
            f"except _Elsewhere: return _first(({names},))",
            back,
        )
    )
