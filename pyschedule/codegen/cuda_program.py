"""What the CUDA back end hands to the runtime: source text, and how to launch each of its kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyschedule.ir.types import Scalar

#: The most blocks in the y and z directions of a grid (x may have 2**31 - 1).
GRID_LIMIT: Final = 65_535
#: What word 1 of a control array says where a launch was not begun; no poll has this number.
NOT_STARTED: Final = 0xFFFF
#: Word 1 holds a poll's number below this, and above it a value of the poll's.
POLL_NUMBERS: Final = 1 << 16
#: The status words of a launch, of 64 bits: this and the number of the check that failed first, its index, its
#: extent; zeros where none has failed.
STATUS_WORDS: Final = 3
STATUS_OFFSET: Final = 2


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a generated kernel.

    `kind`: `"pointer"` (the address of `array`'s first element, uint64), `"extent"` or `"stride"` (of `axis`,
    in elements), `"scalar"` (the kernel's own parameter `name`), `"status"` or `"results"` (the address of
    the status word, or of the scalar results), `"control"` (the address of the call's control array, in memory of
    the host).  `type` is what is passed.
    """

    name: str
    kind: str
    type: Scalar
    array: str = ""
    axis: int = 0


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch: `function` of the program's source, over a grid that depends on the arguments.

    `grid` holds three Python expressions, text, over the names in `names` (which `CudaProgram.bindings`
    computes from arrays and scalars); a zero among them means that there is nothing to do.  `threads` are the
    block's dimensions.  `dynamic_shared` is in bytes, and needs the function's attribute raised where it is
    above 48 KB.  `static_shared` is what the source declares itself.
    """

    function: str
    grid: tuple[str, str, str]
    threads: tuple[int, int, int]
    parameters: tuple[Parameter, ...]
    dynamic_shared: int = 0
    static_shared: int = 0

    @property
    def threads_per_block(self) -> int:
        return self.threads[0] * self.threads[1] * self.threads[2]

    def grid_size(self, bindings: Mapping[str, int | float]) -> tuple[int, int, int]:
        """The grid for these arguments; each extent is at least 0."""
        values = {**bindings, "min": min, "max": max}
        x, y, z = (max(0, int(eval(text, {"__builtins__": {}}, values))) for text in self.grid)
        return x, y, z


@dataclass(frozen=True, slots=True)
class Workspace:
    """A global buffer that the runtime allocates for one call: an array of the kernel that outlives a launch,
    or whose extent is known only then.  `shape` holds Python expressions over `CudaProgram.bindings`."""

    name: str
    dtype: str
    shape: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """An array parameter, as far as a launch must know it.

    `writes`: whether any launch stores to it.  The code relies on a stride of 1 along `unit_axis`, and on
    `divisor` (in elements) dividing the address and every other stride.
    """

    name: str
    dtype: str
    rank: int
    writes: bool
    unit_axis: int | None = None
    divisor: int = 1

    def check(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        """Raises `ValueError` naming the argument whose layout is not what the code relies on.

        `strides` count elements; those of extents of 1 or 0 do not matter.
        """
        if len(shape) != self.rank:
            raise ValueError(f"argument {self.name!r}: expected {self.rank} axes, got {len(shape)}")
        for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
            if extent <= 1 or 0 in shape:
                continue
            if axis == self.unit_axis and stride != 1:
                raise ValueError(
                    f"argument {self.name!r}: axis {axis} must have a stride of 1 element, not {stride}; "
                    "this program was made for another layout"
                )
            if axis != self.unit_axis and stride % self.divisor:
                raise ValueError(
                    f"argument {self.name!r}: the stride of axis {axis} must be a multiple of {self.divisor} "
                    f"elements, not {stride}; this program was made for another layout"
                )


@dataclass(frozen=True, slots=True)
class CudaProgram:
    """A complete Python module as text, and the launches that run the kernel, in order.

    `index_bits` is 32 where offsets are computed in unsigned 32 bits: valid as long as `fits` says so of the
    arguments; a program of 64 is always valid.  `scalar_results` are written to a buffer of 8 bytes each.
    `polls`: the kernel can be stopped; once word 0 of its control array is not 0, launches end early, and word 1 is
    `value * 65536 + number` of a poll, or `NOT_STARTED` where a launch only found that it should not begin.
    `has_status`: the kernel checks indices, and what its status words are after a launch says whether all were in
    range (`raise_for_status`); `checks` are the messages for those that were not.
    `notes` tell what could not be mapped and runs in a single thread instead.
    """

    source: str
    launches: tuple[Launch, ...]
    arrays: tuple[ArrayInfo, ...]
    scalars: tuple[tuple[str, Scalar], ...]
    workspaces: tuple[Workspace, ...] = ()
    scalar_results: tuple[Scalar, ...] = ()
    has_status: bool = False
    checks: tuple[str, ...] = ()
    strict_math: bool = False
    index_bits: int = 32
    notes: tuple[str, ...] = field(default=())
    polls: bool = False

    def raise_for_status(self, words: Sequence[int]) -> None:
        """Raises `IndexError` where the status words tell of an index out of range."""
        if words[0]:
            from pyschedule.ir.index_checks import failure

            error = failure(self.checks, words[0] - STATUS_OFFSET, words[1], words[2])
            raise IndexError(f"{error}; the GPU ran to the end, and stored nothing there: do not use the results")

    def bindings(
        self, shapes: Mapping[str, tuple[int, ...]], scalars: Mapping[str, int | float]
    ) -> dict[str, int | float]:
        """The names that grids and workspace shapes are written in: `A_shape0` is the extent of `A`'s axis 0."""
        values: dict[str, int | float] = dict(scalars)
        for array in self.arrays:
            for axis, extent in enumerate(shapes[array.name]):
                values[f"{array.name}_shape{axis}"] = int(extent)
        return values

    def fits(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        strides: Mapping[str, tuple[int, ...]],
        scalars: Mapping[str, int | float],
    ) -> bool:
        """Whether a 32-bit program is right for these arguments: extents below 2**31, no negative stride, no
        offset of 2**32 elements or more, no grid beyond what a launch may have.  `strides` count elements."""
        if self.index_bits == 64:
            return True
        bindings = self.bindings(shapes, scalars)
        for launch in self.launches:
            x, y, z = launch.grid_size(bindings)
            if x >= 1 << 31 or y > GRID_LIMIT or z > GRID_LIMIT:
                return False
        for name, shape in shapes.items():
            if 0 in shape:
                continue
            steps = strides[name]
            if any(extent >= 1 << 31 for extent in shape) or any(step < 0 for step in steps):
                return False
            if sum((extent - 1) * step for extent, step in zip(shape, steps, strict=True)) >= 1 << 32:
                return False
        return True
