"""Calls that are like one before, without Python in between.

A function of Python that finds out what to do for its arguments costs a microsecond while the caches are warm, and
several after a kernel that has used them.  What it finds out can be noted: `Shortcuts.function` compares its
arguments with what is noted, as compiled code (`shortcut_code`), and enters the compiled kernel where they are
alike; else it calls the function of Python.  An array is alike if its class, dtype, shape, strides and flags are
the same, plain numbers and text if they are equal; all else must be the very same objects.  Arrays that would
overlap, where the call must refuse or avoid that, are not alike.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
import sysconfig
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np

from pyschedule.runtime.compiled_call import CompiledCall

#: What a method that takes its arguments as a C array is marked with (`METH_FASTCALL` in CPython's methodobject.h).
_FASTCALL: Final = 0x80
#: Records made for one function at most: one whose arguments change in every call must not make one in each.
_MADE: Final = 256
#: Calls before one is noted: few are not worth it.
_CALLS: Final = 32


class _Table(np.ndarray[Any, Any]):
    """The words that compiled code reads, and the objects they are addresses of."""

    kept: dict[Any, Any]


class _MethodDef(ctypes.Structure):
    """`PyMethodDef` of CPython's methodobject.h."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Shortcuts:
    """`function(*arguments)` does what `otherwise(*arguments)` does, sooner where a call is noted that is alike."""

    def __init__(self, name: str, otherwise: Callable[..., Any], arguments: int) -> None:
        from pyschedule.runtime.shortcut_code import RECORDS, Table, lookup

        self._made = 0
        self._records = RECORDS
        words = np.zeros(Table.FIRST + RECORDS, np.int64)
        self._table = words.view(_Table)
        method = _MethodDef(name.encode(), lookup(), _FASTCALL, None)
        self._table.kept = {"otherwise": otherwise, "method": method}
        self._table[Table.OTHERWISE] = id(otherwise)
        self._table[Table.ARGUMENTS] = arguments
        make = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        self.function: Callable[..., Any] = make(("PyCFunction_NewEx", ctypes.pythonapi))(
            ctypes.addressof(method), self._table, None
        )

    @staticmethod
    def usable() -> bool:
        """Whether there can be any, in this Python."""
        return _usable()

    @staticmethod
    def after_some_calls(entrance: Callable[..., Any], settle: Callable[..., object]) -> Callable[..., Any]:
        """`entrance`, and `settle` is called after some calls, once, with the arguments of the last: a call that is
        made again and again is worth noting."""
        return _Settling(entrance, settle)

    def note(
        self,
        given: Sequence[Any],
        call: CompiledCall,
        sources: Sequence[tuple[int, int] | None],
        returned: int | None,
        new: Callable[[], Any] | None = None,
    ) -> bool:
        """Notes that calls like the one with `given` are this compiled call; whether there was room for it.

        `sources` has, for each argument of the compiled call that is an array, which of `given` it is a view of,
        and where in it, in bytes from the first element; `None` is for an array that stays, and is not written.
        `returned` is the argument that is returned, or `None`.  With `new`, an array that it makes follows the
        arguments, and is returned.
        """
        from pyschedule.runtime.shortcut_code import Table

        record = _record(given, call, sources, returned, new) if self._made < _MADE else None
        if record is None:
            return False
        words, kept = record
        place = self._made % self._records
        self._made += 1
        self._table.kept[self._made] = words, kept  # for good: a call may be reading what is replaced
        self._table[Table.FIRST + place] = words.ctypes.data
        self._table[Table.RECORDS] = min(self._made, self._records)
        return True


class _Settling:
    """An entrance that counts its calls, and has `settle` called with the arguments of one when there were some."""

    __slots__ = ("_entrance", "_left", "_settle")

    def __init__(self, entrance: Callable[..., Any], settle: Callable[..., object]) -> None:
        self._entrance, self._settle, self._left = entrance, settle, _CALLS

    def __call__(self, *args: Any) -> Any:
        result = self._entrance(*args)
        self._left -= 1
        if self._left == 0:
            self._settle(*args)
        return result


def _record(
    given: Sequence[Any],
    call: CompiledCall,
    sources: Sequence[tuple[int, int] | None],
    returned: int | None,
    new: Callable[[], Any] | None,
) -> tuple[np.ndarray[Any, Any], Any] | None:
    """The words of a record, and what must live as long; `None` where it would be too large, or fit no call."""
    from pyschedule.runtime.shortcut_code import ARGUMENTS, AXES, SLOTS, WORDS, Field

    if (
        len(call.words) > SLOTS
        or len(given) > ARGUMENTS
        or any(isinstance(item, np.ndarray) and item.ndim > AXES for item in given)
    ):
        return None
    pairs: list[int] = []
    for one, other in call.apart:
        source, target = sources[one], sources[other]
        if source is None or target is None or len(given) in (source[0], target[0]):  # no other lies there
            continue
        ends = (*_reach(call.arguments[one], source[1]), *_reach(call.arguments[other], target[1]))
        if source[0] == target[0]:
            if ends[0] < ends[3] and ends[2] < ends[1]:
                return None
            continue
        pairs += [source[0], *ends[:2], target[0], *ends[2:]]
    patches: list[int] = []
    known = list(call.words)
    fixed = []
    for slot, argument in call.addresses:
        source = sources[argument]
        if source is None:
            fixed.append(call.arguments[argument])
            known[slot] = fixed[-1].ctypes.data
        else:
            patches += [slot, *source]
    slots, pairs_, patches_ = (np.array(words, np.int64) for words in (known, pairs, patches))
    words = np.zeros(Field.ARGUMENTS + WORDS * len(given), np.int64)
    words[Field.THUNK] = _thunk(call.compiled)
    words[Field.SLOTS], words[Field.SLOT_COUNT] = slots.ctypes.data, len(call.words)
    words[Field.PAIRS], words[Field.PAIR_COUNT] = pairs_.ctypes.data, len(pairs) // 6
    words[Field.PATCHES], words[Field.PATCH_COUNT] = patches_.ctypes.data, len(patches) // 3
    words[Field.NEW] = 0 if new is None else id(new)
    words[Field.RESULT] = -1 if returned is None else returned
    words[Field.RELEASE], words[Field.FAILED] = call.long, id(_failed)
    for place, item in enumerate(given):
        begin = Field.ARGUMENTS + WORDS * place
        if type(item) is not np.ndarray:
            words[begin + 1], words[begin + 2] = id(item), id(type(item)) if _is_plain(item) else 0
            continue
        words[begin : begin + 4] = id(np.ndarray), id(item.dtype), item.flags.num, item.ndim
        words[begin + 4 : begin + 4 + item.ndim] = item.shape
        words[begin + 4 + AXES : begin + 4 + AXES + item.ndim] = item.strides
    others = [item.dtype if isinstance(item, np.ndarray) else item for item in given]
    return words, (slots, pairs_, patches_, others, fixed, new, call.compiled)


def _is_plain(item: Any) -> bool:
    """Whether another object of the same class that is equal will do.  Zeros of either sign are equal."""
    if type(item) is tuple:
        return all(type(part) is int for part in item)
    return type(item) in (int, str) or (type(item) is float and item != 0)


def _reach(array: Any, start: int) -> tuple[int, int]:
    """The first byte of an array's elements and one past the last, from where its first element's array starts."""
    if array.size == 0:
        return start, start
    low, high = np.lib.array_utils.byte_bounds(array)
    return start + low - array.ctypes.data, start + high - array.ctypes.data


_thunks: dict[int, int] = {}


def _thunk(compiled: Any) -> int:
    from pyschedule.runtime.shortcut_code import thunk

    found = _thunks.get(id(compiled))
    if found is None:
        found = _thunks[id(compiled)] = thunk(compiled)
        _kept.append(compiled)
    return found


#: What thunks call.
_kept: list[Any] = []


class _ExceptionInfo(ctypes.Structure):
    """How compiled code describes an exception (`excinfo_t` in `numba/core/callconv.py`)."""

    _fields_ = (("pickled", ctypes.c_void_p), ("length", ctypes.c_int32))


def _failed(status: int, address: int) -> None:
    """Raises what compiled code describes: an exception whose arguments are known when it is compiled."""
    if address == 0:
        raise SystemError(f"a compiled kernel returned the status {status}")
    info = _ExceptionInfo.from_address(address)
    kind, arguments, *_ = pickle.loads(ctypes.string_at(info.pickled, info.length))
    raise kind(*(arguments or ()))


@cache
def _usable() -> bool:
    """Whether objects lie in memory as `shortcut_code` reads them: CPython with its lock, words of 64 bits."""
    from pyschedule.runtime import shortcut_code as code

    if (
        sys.implementation.name != "cpython"
        or sys.maxsize < 2**32
        or sysconfig.get_config_var("Py_GIL_DISABLED")
        or hasattr(sys, "gettotalrefcount")
    ):
        return False
    array = np.zeros((3, 5, 7), np.int16)[1:, ::-2]

    def field(offset: int, kind: Any = ctypes.c_int64) -> int:
        return int(kind.from_address(id(array) + offset).value)

    if (field(code.CLASS), field(code.DATA), field(code.DTYPE)) != (
        id(np.ndarray),
        array.ctypes.data,
        id(array.dtype),
    ) or (field(code.NDIM, ctypes.c_int32), field(code.FLAGS, ctypes.c_int32)) != (array.ndim, array.flags.num):
        return False
    extents = (ctypes.c_int64 * array.ndim).from_address
    return (tuple(extents(field(code.SHAPE))), tuple(extents(field(code.STRIDES)))) == (array.shape, array.strides)
