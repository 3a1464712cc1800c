"""A call of a kernel with certain arguments, as the call of compiled code that it comes down to."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pyschedule.runtime import binding
from pyschedule.runtime import signature as arguments
from pyschedule.runtime.plan import Plan

#: From so much work on (`Plan.work`) other threads run during a call: some microseconds.
_LONG: Final = 30_000


@dataclass(frozen=True, slots=True, eq=False)
class CompiledCall:
    """A call of compiled code with `arguments`, those of the kernel, which have all been checked.

    `words` are what the code is given, as machine words; `addresses` says which of them are the address of the
    elements of which argument; `apart` which arguments, of which one is written, may not overlap; `returned` which
    one is returned.  `long`: other threads should run meanwhile.
    """

    compiled: Any
    arguments: tuple[Any, ...]
    words: tuple[int, ...]
    addresses: tuple[tuple[int, int], ...]
    apart: tuple[tuple[int, int], ...]
    returned: int | None
    long: bool


def is_possible(plan: Plan) -> bool:
    """Whether a call comes down to one of compiled code: it allocates no results, can be neither stopped nor refuse
    an index, and returns nothing or one array."""
    return not (plan.outputs or plan.results or plan.polled or plan.checks) and len(plan.returns) <= 1


def compiled_call(plan: Plan, compiled: Any, named: Mapping[str, Any], types: tuple[Any, ...]) -> CompiledCall:
    """The call of `compiled`, which Numba compiled for `types` (its `CompileResult`), with these arguments."""
    places = {name: place for place, name in enumerate(named)}
    words: list[int] = []
    addresses: list[tuple[int, int]] = []
    for name, kind in zip(plan.params, types, strict=True):
        value = named[name]
        if not isinstance(value, np.ndarray):
            words.append(_word(arguments.passed_scalar(value), kind))
            continue
        # Numba's ArrayModel: an owner and a parent, neither of which is needed, elements, bytes of each, address.
        addresses.append((len(words) + 4, places[name]))
        words += [0, 0, value.size, value.itemsize, 0, *value.shape, *value.strides]
    arrays = [name for name, value in named.items() if isinstance(value, np.ndarray)]
    apart = [(places[one], places[other]) for one in plan.written for other in arrays if other != one]
    returned = next((places[name] for name in plan.returns if isinstance(name, str)), None)
    long = binding.evaluate(plan.work, dict(named)) > _LONG
    return CompiledCall(
        compiled, tuple(named.values()), tuple(words), tuple(addresses), tuple(apart), returned, long
    )


def _word(value: Any, kind: Any) -> int:
    """A number as compiled code is given it, in the low bits of a word."""
    from numba.core import types

    if isinstance(kind, types.Float):
        return int(struct.unpack("<q", struct.pack("<d" if kind.bitwidth == 64 else "<fxxxx", value))[0])
    return int(value)
