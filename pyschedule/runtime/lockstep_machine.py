"""One block in lockstep: its threads, their mask, and how they use memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyschedule.codegen.cuda_program import STATUS_OFFSET
from pyschedule.codegen.ptx_names import MemoryName
from pyschedule.runtime import lockstep_ops
from pyschedule.runtime.lockstep_memory import Buffer, Clock, LocalArray, LockstepError, Word, poison

Value = Any
Evaluate = Callable[["Machine"], Value]
Execute = Callable[["Machine"], None]


class Machine:
    """One block in execution."""

    def __init__(
        self, threads: tuple[int, int, int], block: tuple[int, int, int], grid: tuple[int, int, int], clock: Clock
    ) -> None:
        self.count = threads[0] * threads[1] * threads[2]
        lanes = np.arange(self.count, dtype=np.int32)
        self.special: dict[str, Any] = {}
        thread = (lanes % threads[0], lanes // threads[0] % threads[1], lanes // (threads[0] * threads[1]))
        for axis, name in enumerate("xyz"):
            self.special["threadIdx." + name] = thread[axis].astype(np.int32)
            self.special["blockIdx." + name] = np.int32(block[axis])
            self.special["gridDim." + name] = np.int32(grid[axis])
            self.special["blockDim." + name] = np.int32(threads[axis])
        self.clock = clock
        self.numbers = clock.block * self.count + np.arange(self.count, dtype=np.int64)
        self.everyone: NDArray[np.bool_] = np.ones(self.count, np.bool_)
        self.mask = self.everyone
        self.returned: NDArray[np.bool_] | None = None
        self.loops: list[NDArray[np.bool_]] = []
        self.names: dict[str, Value] = {}
        self.dynamic_shared: NDArray[np.uint8] | None = None

    def settle(self, mask: NDArray[np.bool_]) -> None:
        """Makes `mask`, less the threads that left the loop or returned, the present one."""
        if self.loops:
            mask = mask & self.loops[-1]
        if self.returned is not None:
            mask = mask & ~self.returned
        self.mask = self.everyone if mask is self.everyone or mask.all() else mask

    def within(self, mask: NDArray[np.bool_], evaluate: Evaluate) -> Value:
        """Evaluates for some of the threads only."""
        outer = self.mask
        self.mask = mask
        try:
            return evaluate(self)
        finally:
            self.mask = outer

    def assign(self, name: str, value: Value) -> None:
        if isinstance(value, (LocalArray, Buffer)):
            self.names[name] = value
            return
        old = self.names.get(name)
        if isinstance(old, (np.ndarray, np.generic)) and old.dtype != value.dtype:
            raise LockstepError(f"variable {name!r} is {old.dtype} and becomes {value.dtype}")
        if self.mask is self.everyone:
            self.names[name] = value
            return
        lanes = np.ndim(value) == 2
        if old is None:
            shape = (self.count, value.shape[1]) if lanes else (self.count,)
            old = np.empty(shape, value.dtype)
            poison(old)
        mask = self.mask[:, None] if lanes else self.mask
        self.names[name] = np.where(mask, value, old)


def as_mask(machine: Machine, test: Value) -> NDArray[np.bool_]:
    return np.broadcast_to(np.asarray(test, np.bool_), (machine.count,))


# ------------------------------------------------------------------------------------------------- memory


def _offsets(machine: Machine, offset: Value, lanes: int, indexed: bool) -> NDArray[np.int64]:
    """Offsets as (threads, lanes)."""
    array = np.asarray(offset).astype(np.int64)
    if indexed:
        return np.broadcast_to(array, (machine.count, array.shape[1]))
    first = np.broadcast_to(array, (machine.count,))[:, None]
    return first + np.arange(lanes, dtype=np.int64)


def _active(machine: Machine, lanes: int, mask: Value | None) -> NDArray[np.bool_]:
    active = np.broadcast_to(machine.mask[:, None], (machine.count, lanes))
    if mask is None:
        return active
    tests = np.asarray(mask, np.bool_)
    return active & (tests if tests.ndim == 2 else np.broadcast_to(tests, (machine.count,))[:, None])


def memory_access(name: MemoryName) -> Callable[..., Value]:
    """The twin of a memory intrinsic."""

    def access(machine: Machine, base: Value, offset: Value, *rest: Value) -> Value:
        value = rest[0] if name.writes else None
        mask = rest[-1] if name.masked else None
        offsets = _offsets(machine, offset, name.lanes, name.indexed)
        lanes = offsets.shape[1]
        active = _active(machine, lanes, mask)
        if isinstance(base, Buffer) and lanes > 1 and name.aligned and not name.indexed:
            whole = active.all(axis=1)
            base.check_alignment(offsets[whole, 0], lanes)
        threads = np.broadcast_to(machine.numbers[:, None], offsets.shape)[active]
        places = offsets[active]
        if name.writes:
            held = np.asarray(value)
            if held.ndim == 1 and lanes >= 1:
                held = held[:, None]
            stored = np.broadcast_to(lockstep_ops.narrow(held, name.dtype), offsets.shape)[active]
            _store(machine, base, places, stored, threads, active)
            return None
        loaded = np.zeros(offsets.shape, _word_type(base))
        loaded[active] = _load(machine, base, places, threads, active, name.readonly)
        result = lockstep_ops.widen(loaded, name.dtype)
        return result if lanes > 1 or name.indexed else result[:, 0]

    return access


def _word_type(base: Value) -> np.dtype[Any]:
    dtype: np.dtype[Any] = base.data.dtype
    return dtype


def _load(
    machine: Machine, base: Value, places: NDArray[Any], threads: NDArray[Any], active: NDArray[Any], readonly: bool
) -> NDArray[Any]:
    if isinstance(base, Buffer):
        return base.load(places, threads, machine.clock, readonly)
    if isinstance(base, Word):
        words: NDArray[Any] = base.data[places]
        return words
    base.check(places)
    loaded: NDArray[Any] = base.data[places, np.nonzero(active)[0]]
    return loaded


def _store(
    machine: Machine,
    base: Value,
    places: NDArray[Any],
    stored: NDArray[Any],
    threads: NDArray[Any],
    active: NDArray[Any],
) -> None:
    if isinstance(base, Word):
        if places.size:
            base.data.view(stored.dtype)[places] = stored
    elif isinstance(base, Buffer):
        base.store(places, stored, threads, machine.clock)
    else:
        base.check(places)
        base.data[places, np.nonzero(active)[0]] = stored


def read_element(machine: Machine, base: Value, offset: Value) -> Value:
    """`array[offset]` of a local or shared array."""
    if isinstance(base, LocalArray):
        if np.ndim(offset) == 0:
            base.check(np.asarray(offset).reshape(1))
            return base.data[int(offset)].copy()
        places = np.where(machine.mask, np.asarray(offset).astype(np.int64), 0)
        base.check(places)
        return base.data[places, np.arange(machine.count)]
    offsets = np.broadcast_to(np.asarray(offset).astype(np.int64), (machine.count,))
    if machine.mask is machine.everyone:
        return base.load(offsets, machine.numbers, machine.clock)
    loaded = np.zeros(machine.count, base.data.dtype)
    loaded[machine.mask] = base.load(offsets[machine.mask], machine.numbers[machine.mask], machine.clock)
    return loaded


def write_element(machine: Machine, base: Value, offset: Value, value: Value) -> None:
    if np.asarray(value).dtype != base.data.dtype:
        raise LockstepError(f"{base.name} holds {base.data.dtype}, and is given {np.asarray(value).dtype}")
    if isinstance(base, LocalArray) and np.ndim(offset) == 0:
        base.check(np.asarray(offset).reshape(1))
        row = base.data[int(offset)]
        if machine.mask is machine.everyone:
            row[...] = value
        else:
            np.copyto(row, value, where=machine.mask)
        return
    mask = machine.mask
    offsets = np.broadcast_to(np.asarray(offset).astype(np.int64), (machine.count,))[mask]
    values = np.broadcast_to(np.asarray(value), (machine.count,))[mask]
    if isinstance(base, LocalArray):
        base.check(offsets)
        base.data[offsets, np.flatnonzero(mask)] = values
    else:
        base.store(offsets, values, machine.numbers[mask], machine.clock)


def checked_index(machine: Machine, status: Word, index: Value, extent: Value, number: Value) -> Value:
    fits = lockstep_ops.in_range(index, extent)
    wrapped = np.where(index < 0, index + extent, index)
    active = machine.mask[:, None] if np.ndim(index) == 2 else machine.mask
    shape = np.broadcast_shapes(np.shape(fits), active.shape)
    outside = np.flatnonzero(np.broadcast_to(~fits, shape) & active)
    if outside.size and not status.data[0]:
        given = np.broadcast_to(index, shape).flat[outside[0]]
        status.data[:] = STATUS_OFFSET + np.max(number), given, np.max(extent)  # the same in all threads
    return np.where(fits, wrapped, 0)
