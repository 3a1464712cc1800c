"""Memory as the lockstep executor sees it: buffers that check bounds, alignment and races.

A race is an access that another thread's access to the same word does not wait for: a read of a word that
another thread wrote since the last barrier, a write over one that another thread read or wrote, or two
threads writing at once.  Between blocks there is no barrier, so any such pair is a race.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pyschedule.errors import InternalError
from pyschedule.ir.types import Scalar

_SEVERAL: Final = -2
_NOBODY: Final = -1


class LockstepError(InternalError):
    """The generated CUDA code does what a GPU could not, or should not, do."""


class RaceError(LockstepError):
    """Two threads use one word of memory, at least one of them writing, with nothing that orders them."""


class OutOfBoundsError(LockstepError):
    """An access outside the array."""


class BarrierDivergenceError(LockstepError):
    """A barrier that only some threads of the block reach."""


class MisalignedError(LockstepError):
    """A vector access at an address that is not a multiple of its size."""


def stored_dtype(dtype: str) -> np.dtype[Any]:
    """What an IR dtype is in memory: halves as 16-bit words, bools as bytes."""
    if Scalar(dtype).is_half:
        return np.dtype(np.uint16)
    return np.dtype(np.uint8) if dtype == "bool" else np.dtype(dtype)


def poison(data: NDArray[Any]) -> None:
    """Fills memory that nobody has written with values that show in a result."""
    if data.dtype.kind == "f":
        data.fill(np.nan)
    else:
        data.view(np.uint8).fill(0xA5)


class Clock:
    """The present block and barrier interval.  `epoch` differs between any two intervals of a launch."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.block = 0
        self.epoch = 0

    def next_block(self, number: int) -> None:
        self.block = number
        self.epoch += 1

    def barrier(self) -> None:
        self.epoch += 1


class Tracker:
    """Who last read and wrote each word of a buffer, and when."""

    def __init__(self, name: str, words: int) -> None:
        self.name = name
        self.writer = np.full(words, _NOBODY, np.int64)
        self.written = np.zeros(words, np.int64)
        self.reader = np.full(words, _NOBODY, np.int64)
        self.read = np.zeros(words, np.int64)

    def _fail(self, what: str, words: NDArray[Any], threads: NDArray[Any], wrong: NDArray[Any]) -> None:
        at = int(np.flatnonzero(wrong)[0])
        word, thread = int(words[at]), int(threads[at])
        raise RaceError(
            f"{self.name}[{word}]: thread {thread} {what} "
            f"(last writer {int(self.writer[word])}, last reader {int(self.reader[word])})"
        )

    def _unordered(self, owner: NDArray[Any], when: NDArray[Any], threads: NDArray[Any], clock: Clock) -> Any:
        """Which words were last used by another thread that no barrier orders before this access."""
        other = (owner != _NOBODY) & (owner != threads)
        elsewhere = (owner >= 0) & (owner // clock.threads != clock.block)
        return other & ((when == clock.epoch) | elsewhere)

    def on_read(self, words: NDArray[Any], threads: NDArray[Any], clock: Clock) -> None:
        if not words.size:
            return
        wrong = self._unordered(self.writer[words], self.written[words], threads, clock)
        if wrong.any():
            self._fail("reads what another thread writes", words, threads, wrong)
        before = self.reader[words]
        shared = (before != _NOBODY) & (before != threads) & (self.read[words] == clock.epoch)
        self.reader[words] = threads
        shared |= self.reader[words] != threads
        self.reader[words[shared]] = _SEVERAL
        self.read[words] = clock.epoch

    def on_write(self, words: NDArray[Any], threads: NDArray[Any], clock: Clock) -> None:
        if not words.size:
            return
        wrong = self._unordered(self.writer[words], self.written[words], threads, clock)
        if wrong.any():
            self._fail("writes what another thread wrote", words, threads, wrong)
        wrong = self._unordered(self.reader[words], self.read[words], threads, clock)
        if wrong.any():
            self._fail("writes what another thread reads", words, threads, wrong)
        self.writer[words] = threads
        wrong = self.writer[words] != threads
        if wrong.any():
            self._fail("writes together with another thread", words, threads, wrong)
        self.written[words] = clock.epoch


class Buffer:
    """Words of one type in global or shared memory.

    `valid` says which offsets are elements of the array (the gaps of a strided view are not); `origin` is the
    flat position of the element whose offset is 0; `address` is that element's address in bytes.
    """

    def __init__(
        self,
        name: str,
        data: NDArray[Any],
        valid: NDArray[np.bool_] | None = None,
        origin: int = 0,
        address: int = 0,
    ) -> None:
        self.name = name
        self.data = data
        self.valid = valid
        self.origin = origin
        self.address = address
        self.tracker = Tracker(name, data.size)
        self.writable = True

    def start_launch(self) -> None:
        self.tracker = Tracker(self.name, self.data.size)

    def positions(self, offsets: NDArray[np.int64], threads: NDArray[Any]) -> NDArray[np.int64]:
        positions = offsets + self.origin
        wrong = (positions < 0) | (positions >= self.data.size)
        if self.valid is not None and not wrong.any():
            wrong = ~self.valid[positions]
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise OutOfBoundsError(f"{self.name}: thread {int(threads[at])} uses offset {int(offsets[at])}")
        return positions

    def load(
        self, offsets: NDArray[np.int64], threads: NDArray[Any], clock: Clock, readonly: bool = False
    ) -> NDArray[Any]:
        """The words at `offsets` (one a thread of `threads`, which are numbers in the whole grid)."""
        positions = self.positions(offsets, threads)
        if readonly:
            wrong = self.tracker.writer[positions] != _NOBODY
            if wrong.any():
                raise RaceError(f"{self.name}: read as constant, but written in the same launch")
        self.tracker.on_read(positions, threads, clock)
        result: NDArray[Any] = self.data[positions]
        return result

    def store(self, offsets: NDArray[np.int64], values: NDArray[Any], threads: NDArray[Any], clock: Clock) -> None:
        positions = self.positions(offsets, threads)
        if not self.writable:
            raise LockstepError(f"{self.name}: a store to an array that is only read")
        self.tracker.on_write(positions, threads, clock)
        self.data[positions] = values

    def check_alignment(self, offsets: NDArray[np.int64], lanes: int) -> None:
        size = self.data.itemsize
        unit = min(16, lanes * size)
        if ((self.address + offsets * size) % unit).any():
            raise MisalignedError(f"{self.name}: an access of {lanes} x {size} bytes is not aligned to {unit}")


class Word:
    """The status word, the scalar results or the control array: plain memory that any thread may write."""

    def __init__(self, name: str, data: NDArray[Any]) -> None:
        self.name = name
        self.data = data


class Control(Word):
    """A call's control array.  The request to stop comes at the `stop_at`-th look at it (`None`: never); of the
    threads that look then, only every other one sees it yet, as may be on a GPU."""

    def __init__(self, stop_at: int | None) -> None:
        super().__init__("control", np.zeros(2, np.int64))
        self._stop_at = stop_at
        self.looks = 0

    def look(self, threads: int) -> NDArray[np.int32]:
        self.looks += 1
        if self._stop_at is None or self.looks < self._stop_at:
            return np.zeros(threads, np.int32)
        self.data[0] = 1
        seen = np.ones(threads, np.int32)
        if self.looks == self._stop_at and threads > 1:
            seen[::2] = 0
        return seen


class LocalArray:
    """An array of which each thread has its own: `data[element, thread]`."""

    def __init__(self, name: str, count: int, dtype: np.dtype[Any], threads: int) -> None:
        self.name = name
        self.data = np.empty((count, threads), dtype)
        poison(self.data)

    def check(self, offsets: NDArray[Any]) -> None:
        if offsets.size and (offsets.min() < 0 or offsets.max() >= self.data.shape[0]):
            raise OutOfBoundsError(f"{self.name}: offset {int(offsets.max())} of {self.data.shape[0]} elements")


def global_buffer(name: str, array: NDArray[Any], dtype: str) -> Buffer:
    """A buffer over the memory of a NumPy array, strides and all; writes go straight to it."""
    if array.dtype.itemsize != Scalar(dtype).bytes:
        raise TypeError(f"argument {name!r}: expected {dtype}, got {array.dtype}")
    item = array.dtype.itemsize
    if any(stride % item for stride in array.strides):
        raise ValueError(f"argument {name!r}: strides {array.strides} are no multiples of the element size {item}")
    stored = stored_dtype(dtype)
    address = int(array.ctypes.data)
    if array.size == 0:
        return Buffer(name, np.empty(0, stored), address=address)
    spans = [(extent - 1) * (stride // item) for extent, stride in zip(array.shape, array.strides, strict=True)]
    low = sum(span for span in spans if span < 0)
    size = sum(abs(span) for span in spans) + 1
    corner = array[(..., *(slice(None, None, -1) if span < 0 else slice(None) for span in spans))]
    flat = np.lib.stride_tricks.as_strided(corner, (size,), (item,))
    valid = np.zeros(size, np.bool_)
    steps = tuple(abs(stride // item) * valid.itemsize for stride in array.strides)
    np.lib.stride_tricks.as_strided(valid, array.shape, steps)[...] = True
    buffer = Buffer(name, flat.view(stored), valid, origin=-low, address=address)
    buffer.writable = bool(array.flags.writeable)
    return buffer
