"""TVM: schedules by hand for products and convolutions, compiled for the shapes at hand."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import tvm
from llvmlite import binding
from tvm import s_tir, te

from peers.problems import Convolution, Normalisation, Product, aligned
from pyschedule.report import Entry

_TYPES = ("float32", "float64", "float16")


class Tvm:
    def __init__(self, threads: int) -> None:
        os.environ.setdefault("TVM_BIND_THREADS", "0")  # or it would bind this thread, in which all others run too
        self.threads = threads
        cpu = binding.get_host_cpu_name()
        self._bits = 512 if binding.get_host_cpu_features().get("avx512f") else 256
        self._target = tvm.target.Target({"kind": "llvm", "mcpu": cpu, "num-cores": threads})
        self.version = f"TVM {tvm.__version__} for {cpu}"
        self.done = (
            "by hand, each compiled for its shape, on the memory of the arrays, which exist: products with tiles "
            "of 6 x 64 in registers over panels of b that are packed in the call, a row by reading b once; "
            "convolutions of (height, width, channels) with 7 pixels x 64 channels in registers, whose weights are "
            "packed into panels before, outside of the time; bfloat16, int8 and normalisations are left out"
        )

    def normalisation(self, given: Normalisation) -> dict[str, Entry]:
        return {}

    def product(self, given: Product) -> dict[str, Entry]:
        if given.dtype not in _TYPES:
            return {}
        make = self._row if given.m == 1 else self._tiles
        out = given.out()
        call = self._calls(make(given), [given.a, given.b, out])
        return {"tvm": Entry(call, lambda _: out, cores=self.threads)}

    def _lanes(self, inner: str) -> int:
        return self._bits // (64 if inner == "float64" else 32)

    def _tiles(self, given: Product) -> Any:
        """Tiles of the result in registers, over panels of b as wide as a tile, packed one at a time.

        The last tiles reach over the edges: they read the last row again, and write what there is.
        """
        m, n, k, kind = given.m, given.n, given.k, given.dtype
        inner = "float64" if kind == "float64" else "float32"
        lanes, rows = self._lanes(inner), 6
        width = min(4 * lanes, -(-n // lanes) * lanes)
        tiles, panels = -(-m // rows), -(-n // width)
        a, b = te.placeholder((m, k), kind, "a"), te.placeholder((k, n), kind, "b")

        def panel_of(p: Any, q: Any, c: Any) -> Any:
            value = b[q, p * width + c].astype(inner)
            return value if n % width == 0 else te.if_then_else(p * width + c < n, value, te.const(0, inner))

        def row(i: Any) -> Any:
            return i if m % rows == 0 else te.min(i, m - 1)

        left = a if inner == kind else te.compute((m, k), lambda i, q: a[i, q].astype(inner), "wide")
        packed = te.compute((panels, k, width), panel_of, "packed")
        r = te.reduce_axis((0, k), "r")
        sums = te.compute(
            (tiles * rows, panels * width),
            lambda i, j: te.sum(left[row(i), r] * packed[j // width, r, j % width], axis=r),
            "sums",
        )
        out = te.compute((m, n), lambda i, j: sums[i, j].astype(kind), "out")
        schedule = s_tir.Schedule(te.create_prim_func([a, b, out]))
        block = schedule.get_sblock("sums")
        i, j, q = schedule.get_loops(block)
        io, ii = schedule.split(i, [None, rows])
        jo, jv, jl = schedule.split(j, [None, width // lanes, lanes])
        schedule.reorder(jo, io, q, ii, jv, jl)
        by_panel = self.threads == 1 or panels >= 2 * self.threads
        if self.threads > 1:
            schedule.parallel(jo if by_panel else io)
        self._in_registers(schedule, block, io, q, [ii, jv], jl, "out")
        panel = schedule.get_sblock("packed")
        if by_panel:
            schedule.compute_at(panel, jo)
        self._vectorized(schedule, panel, lanes)
        if left is not a:
            self._vectorized(schedule, schedule.get_sblock("wide"), lanes)
        return schedule

    def _row(self, given: Product) -> Any:
        """One row of the result, in the first cache while the rows of b are read once, eight at a time."""
        n, k, kind = given.n, given.k, given.dtype
        lanes = self._lanes(kind)
        a, b = te.placeholder((1, k), kind, "a"), te.placeholder((k, n), kind, "b")
        r = te.reduce_axis((0, k), "r")
        out = te.compute((1, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "out")
        schedule = s_tir.Schedule(te.create_prim_func([a, b, out]))
        block = schedule.get_sblock("out")
        i, j, q = schedule.get_loops(block)
        jo, jv, jl = schedule.split(j, [self.threads, None, lanes])
        qo, qi = schedule.split(q, [None, 8])
        schedule.reorder(i, jo, qo, jv, qi, jl)
        schedule.unroll(qi)
        schedule.vectorize(jl)
        if self.threads > 1:
            schedule.parallel(jo)
        start = schedule.decompose_reduction(block, qo)
        schedule.vectorize(schedule.get_loops(start)[-1])
        return schedule

    # -------------------------------------------------------------------------------------- convolutions

    def convolution(self, given: Convolution) -> dict[str, Entry]:
        x = aligned(given.x[0].transpose(1, 2, 0))
        out = aligned(given.out()[0].transpose(1, 2, 0))
        weight = given.weight.transpose(2, 3, 1, 0)
        panels = weight.reshape(*weight.shape[:3], -1, self._channels(given)).transpose(3, 0, 1, 2, 4)
        schedule = self._windows(given)
        call = self._calls(schedule, [x, aligned(panels), given.bias, out])
        return {"tvm": Entry(call, lambda _: out.transpose(2, 0, 1)[None], cores=self.threads)}

    def _channels(self, given: Convolution) -> int:
        return min(4 * self._lanes("float32"), given.filters)

    def _windows(self, given: Convolution) -> Any:
        """7 pixels of a row and the channels of a panel in registers, for depthwise windows too."""
        size, window, stride, pad, filters = (
            given.size_out,
            given.window,
            given.stride,
            given.padding,
            given.filters,
        )
        lanes, width = self._lanes("float32"), self._channels(given)
        depth = given.channels // given.groups
        x = te.placeholder((given.size, given.size, given.channels), "float32", "x")
        weight = te.placeholder((filters // width, window, window, depth, width), "float32", "weight")
        bias = te.placeholder((filters,), "float32", "bias")
        border = given.size + 2 * pad

        def pixel(y: Any, z: Any, c: Any) -> Any:
            inside = te.all(y >= pad, y < given.size + pad, z >= pad, z < given.size + pad)
            return te.if_then_else(inside, x[y - pad, z - pad, c], 0.0)

        image = te.compute((border, border, given.channels), pixel, "padded") if pad else x
        r, s, c = (
            te.reduce_axis((0, extent), name) for extent, name in ((window, "r"), (window, "s"), (depth, "c"))
        )

        def term(y: Any, z: Any, f: Any) -> Any:
            seen = image[y * stride + r, z * stride + s, c if given.groups == 1 else f]
            return te.sum(seen * weight[f // width, r, s, c, f % width], axis=[r, s, c])

        sums = te.compute((size, size, filters), term, "sums")
        out = te.compute((size, size, filters), lambda y, z, f: sums[y, z, f] + bias[f], "out")
        schedule = s_tir.Schedule(te.create_prim_func([x, weight, bias, out]))
        block = schedule.get_sblock("sums")
        y, z, f, r, s, c = schedule.get_loops(block)
        bands = filters > width and size >= 28  # rows with all their panels; else a panel with all its rows
        yo, yi = schedule.split(y, [None, 7])
        zo, zi = schedule.split(z, [None, 7])
        fo, fv, fl = schedule.split(f, [None, width // lanes, lanes])
        schedule.reorder(*((yo, fo) if bands else (fo, yo)), yi, zo, r, s, c, zi, fv, fl)
        if self.threads > 1:
            schedule.parallel(yo if bands else schedule.fuse(fo, yo))
        self._in_registers(schedule, block, zo, r, [zi, fv], fl, "out")
        if given.groups > 1:
            schedule.unroll(r)
            schedule.unroll(s)
        if depth <= 4:
            schedule.unroll(c)
        if pad:
            self._vectorized(schedule, schedule.get_sblock("padded"), lanes if given.channels >= lanes else 1)
        return schedule

    # ------------------------------------------------------------------------------------------ schedules

    def _in_registers(
        self, schedule: Any, block: Any, tile: Any, reduction: Any, unrolled: list[Any], lanes: Any, writer: str
    ) -> None:
        """The sums of a tile in registers through its reduction; the block `writer` takes them from there."""
        count = schedule.get(lanes).extent
        last = schedule.get_sblock(writer)
        schedule.reverse_compute_at(last, tile)
        schedule.set_scope(block, 0, "local")
        schedule.vectorize(lanes)
        for loop in unrolled:
            schedule.unroll(loop)
        *_, rows, columns = schedule.get_loops(last)
        outer, inner = schedule.split(columns, [None, count])
        schedule.vectorize(inner)
        schedule.unroll(outer)
        schedule.unroll(rows)
        start = schedule.decompose_reduction(block, reduction)
        loops = schedule.get_loops(start)
        for loop in loops[-len(unrolled) - 1 : -1]:
            schedule.unroll(loop)
        schedule.vectorize(loops[-1])

    def _vectorized(self, schedule: Any, block: Any, lanes: int) -> None:
        if lanes > 1:
            _, inner = schedule.split(schedule.get_loops(block)[-1], [None, lanes])
            schedule.vectorize(inner)

    def _calls(self, schedule: Any, arrays: Sequence[Any]) -> Callable[[], Any]:
        """A call of compiled code on the memory of these arrays.

        Tensors of TVM's own would be copies, and reading them would push the arrays that all others share out of
        the caches.
        """
        compiled = tvm.compile(schedule.mod, target=self._target)["main"]
        tensors = [tvm.runtime.from_dlpack(array) for array in arrays]
        return lambda: compiled(*tensors)
