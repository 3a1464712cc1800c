"""Halide: schedules by hand for products and convolutions, compiled for the shapes at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

import halide as hl
import numpy as np

from peers.problems import Convolution, Normalisation, Product, aligned
from pyschedule.report import Entry

_GUARD, _SHIFT, _AUTO = hl.TailStrategy.GuardWithIf, hl.TailStrategy.ShiftInwards, hl.TailStrategy.Auto
_TYPES = {
    "float32": hl.Float(32),
    "float64": hl.Float(64),
    "float16": hl.Float(16),
    "bfloat16": hl.UInt(16),  # NumPy has no such buffers: the same bits
}


def _target() -> Any:
    """This machine, and no checks at the start of a call."""
    target = hl.get_host_target()
    for feature in (hl.TargetFeature.NoAsserts, hl.TargetFeature.NoBoundsQuery):
        target = target.with_feature(feature)
    return target


def _lanes(bits: int) -> int:
    return int(hl.get_host_target().natural_vector_size(hl.Float(bits)))


def _dense(parameter: Any, *extents: int) -> None:
    """The extents of a parameter, and that nothing lies between its elements: innermost first."""
    stride = 1
    for axis, extent in enumerate(extents):
        parameter.dim(axis).set_bounds(0, extent).set_stride(stride)
        stride *= extent


def _variables(names: str) -> list[Any]:
    return [hl.Var(name) for name in names.split()]


class Halide:
    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.version = f"Halide {metadata.version('halide')} for {hl.get_host_target()}"
        self.done = (
            "by hand, each compiled for its shape, called without checks on buffers that exist: products with "
            "tiles of 6 x 64 in registers over panels of b that are packed in the call, a row by reading b once; "
            "convolutions of (height, width, channels) with 7 pixels x 64 channels in registers, whose weights are "
            "packed into panels before, outside of the time; 1x1 as a product; int8 and normalisations are left out"
        )

    def product(self, given: Product) -> dict[str, Entry]:
        if given.dtype not in _TYPES:
            return {}
        make = self._row if given.m == 1 else self._tiles
        out = given.out()
        arrays = [given.a, given.b, out]
        if given.dtype == "bfloat16":
            arrays = [array.view(np.uint16) for array in arrays]
        call = _calls(make(given), arrays)
        return {"halide": Entry(call, lambda _: out, cores=self.threads)}

    def normalisation(self, given: Normalisation) -> dict[str, Entry]:
        return {}

    def _factors(self, given: Product) -> tuple[list[Any], Any, Any, Any, Callable[[Any], Any]]:
        """Parameters, the factors as functions of the inner type, that type, and how a sum is written."""
        stored = _TYPES[given.dtype]
        kind = hl.Float(64) if given.dtype == "float64" else hl.Float(32)
        a, b = hl.ImageParam(stored, 2, "a"), hl.ImageParam(stored, 2, "b")
        _dense(a, given.k, given.m)
        _dense(b, given.n, given.k)

        def read(value: Any) -> Any:
            if given.dtype == "bfloat16":  # the upper half of a float32
                return hl.reinterpret(kind, hl.cast(hl.UInt(32), value) << 16)
            return hl.cast(kind, value)

        def written(value: Any) -> Any:
            if given.dtype == "bfloat16":
                bits = hl.reinterpret(hl.UInt(32), value)
                even = hl.cast(hl.UInt(32), 0x7FFF) + ((bits >> 16) & 1)  # to the nearest, ties to even
                return hl.cast(stored, (bits + even) >> 16)
            return hl.cast(stored, value)

        return [a, b], (lambda x, y: read(a[x, y])), (lambda x, y: read(b[x, y])), kind, written

    def _tiles(self, given: Product) -> Any:
        """Tiles of the result in registers, over panels of b as wide as a tile, packed one at a time."""
        parameters, a, b, kind, written = self._factors(given)
        lanes, rows = _lanes(kind.bits()), 6
        width = min(4 * lanes, -(-given.n // lanes) * lanes)
        even = given.n % width == 0
        i, j, ii, ji, io, jo, c, q, p = _variables("i j ii ji io jo c q p")
        wide, packed, sums, out = (hl.Func(name) for name in ("wide", "packed", "sums", "out"))
        r = hl.RDom([(0, given.k)])
        column = p * width + c
        wide[q, i] = a(q, i)
        packed[c, q, p] = b(column if even else hl.min(column, given.n - 1), q)
        sums[j, i] = hl.cast(kind, 0)
        sums[j, i] += wide[r, i] * packed[j % width, r, j / width]
        out[j, i] = written(sums[j, i])

        tail = _AUTO if even else _GUARD
        out.split(j, jo, ji, width, tail).split(i, io, ii, rows, _SHIFT if given.m >= rows else _GUARD)
        out.reorder(ji, ii, io, jo).vectorize(ji, lanes, tail).unroll(ii)
        sums.compute_at(out, io).bound_extent(j, width)
        for stage in (sums, sums.update()):
            stage.vectorize(j, lanes).unroll(j).unroll(i)
        sums.update().reorder(j, i, r.x)
        if given.dtype in ("float16", "bfloat16"):
            wide.compute_root().vectorize(q, lanes)
        place = packed.compute_at(out, jo)
        if self.threads > 1 and given.n >= 2 * self.threads * width:
            out.parallel(jo)
        elif self.threads > 1:
            out.parallel(io, max(1, -(-given.m // rows) // (4 * self.threads)))
            place = packed.compute_root()
        place.bound_extent(c, width).vectorize(c, lanes).unroll(c)
        _dense(out.output_buffer(), given.n, given.m)
        return out.compile_to_callable(parameters, _target())

    def _row(self, given: Product) -> Any:
        """One row of the result, in the first cache while the rows of b are read once, eight at a time."""
        parameters, a, b, kind, written = self._factors(given)
        lanes = _lanes(kind.bits())
        i, j, jo = _variables("i j jo")
        ko, ki = hl.RVar("ko"), hl.RVar("ki")
        sums, out = hl.Func("sums"), hl.Func("out")
        r = hl.RDom([(0, given.k)])
        sums[j, i] = hl.cast(kind, 0)
        sums[j, i] += a(r.x, i) * b(j, r.x)
        out[j, i] = written(sums[j, i])
        piece = -(-given.n // (self.threads * lanes)) * lanes
        out.split(j, jo, j, piece).vectorize(j, lanes)
        if self.threads > 1:
            out.parallel(jo)
        sums.compute_at(out, jo).vectorize(j, lanes)
        sums.update().split(r.x, ko, ki, 8).reorder(ki, j, ko).vectorize(j, lanes).unroll(ki)
        _dense(out.output_buffer(), given.n, given.m)
        return out.compile_to_callable(parameters, _target())

    # -------------------------------------------------------------------------------------- convolutions

    def convolution(self, given: Convolution) -> dict[str, Entry]:
        x = aligned(given.x[0].transpose(1, 2, 0))
        out = aligned(given.out()[0].transpose(1, 2, 0))
        weight = given.weight.transpose(2, 3, 1, 0)
        if given.window == 1:
            weight = weight[0, 0]
        elif given.groups == 1:  # panels of the output channels of a tile
            panels = weight.reshape(*weight.shape[:3], -1, self._channels(given))
            weight = panels.transpose(3, 0, 1, 2, 4)
        make = self._depthwise if given.groups > 1 else self._pixels if given.window == 1 else self._windows
        call = _calls(make(given), [x, aligned(weight), given.bias, out])
        return {"halide": Entry(call, lambda _: out.transpose(2, 0, 1)[None], cores=self.threads)}

    def _channels(self, given: Convolution) -> int:
        return min(4 * _lanes(32), given.filters)

    def _images(self, given: Convolution, *weight: int) -> tuple[list[Any], Any]:
        """Parameters, and the image with a border of zeros as a function that is not scheduled yet."""
        image, weights, bias = (
            hl.ImageParam(hl.Float(32), rank, name) for rank, name in ((3, "x"), (len(weight), "w"), (1, "b"))
        )
        _dense(image, given.channels, given.size, given.size)
        _dense(weights, *weight)
        _dense(bias, given.filters)
        padded, (c, x, y) = hl.Func("padded"), _variables("c x y")
        source = image
        if given.padding:
            every = (hl.Expr(), hl.Expr())
            source = hl.BoundaryConditions.constant_exterior(image, 0.0, [every, *[(0, given.size)] * 2])
        padded[c, x, y] = source[c, x - given.padding, y - given.padding]
        return [image, weights, bias], padded

    def _windows(self, given: Convolution) -> Any:
        """7 pixels of a row and the channels of a panel in registers."""
        width = self._channels(given)
        count = given.filters // width
        parameters, padded = self._images(given, width, given.channels, given.window, given.window, count)
        _, weight, bias = parameters
        (c, x, y), sums = _variables("c x y"), hl.Func("sums")
        r = hl.RDom([(0, given.channels), (0, given.window), (0, given.window)])
        pixel = padded[r.x, x * given.stride + r.y, y * given.stride + r.z]
        sums[c, x, y] = bias[c]
        sums[c, x, y] += weight[c % width, r.x, r.y, r.z, c / width] * pixel
        out = self._scheduled(given, sums, padded, width, bands=count > 1 and given.size_out >= 28)
        sums.update().reorder(c, x, r.x, r.y, r.z)
        if given.channels <= 4:
            sums.update().unroll(r.x)
        return out.compile_to_callable(parameters, _target())

    def _depthwise(self, given: Convolution) -> Any:
        parameters, padded = self._images(given, given.filters, 1, given.window, given.window)
        _, weight, bias = parameters
        (c, x, y), sums = _variables("c x y"), hl.Func("sums")
        r = hl.RDom([(0, given.window), (0, given.window)])
        sums[c, x, y] = bias[c]
        sums[c, x, y] += weight[c, 0, r.x, r.y] * padded[c, x * given.stride + r.x, y * given.stride + r.y]
        out = self._scheduled(given, sums, padded, self._channels(given), bands=False)
        sums.update().reorder(c, x, r.x, r.y).unroll(r.x).unroll(r.y)
        return out.compile_to_callable(parameters, _target())

    def _scheduled(self, given: Convolution, sums: Any, padded: Any, width: int, bands: bool) -> Any:
        """The result, in tiles of 7 pixels; in bands of rows with all their panels, or in panels with all rows."""
        lanes = _lanes(32)
        c, x, y, co, ci, xo, xi, yo, yi, block = _variables("c x y co ci xo xi yo yi block")
        out = hl.Func("out")
        out[c, x, y] = sums[c, x, y]
        out.split(c, co, ci, width).split(x, xo, xi, 7, _SHIFT).split(y, yo, yi, 8 if bands else 4, _GUARD)
        out.reorder(*((ci, xi, xo, yi, co, yo) if bands else (ci, xi, xo, yi, yo, co))).vectorize(ci, lanes).unroll(
            xi
        )
        if self.threads > 1 and bands:
            out.parallel(yo)
        elif self.threads > 1:
            out.fuse(yo, co, block).parallel(block)
        sums.compute_at(out, xo)
        for stage in (sums, sums.update()):
            stage.vectorize(c, lanes).unroll(c).unroll(x)
        if given.padding:
            if bands:
                padded.compute_at(out, yo)
            else:
                padded.compute_root()
            along_channels = given.channels >= lanes
            padded.vectorize(padded.args()[0 if along_channels else 1], lanes)
        _dense(out.output_buffer(), given.filters, given.size_out, given.size_out)
        return out

    def _pixels(self, given: Convolution) -> Any:
        """Windows of one pixel: all pixels are the rows of a product; the bias is where its sums begin."""
        lanes, width = _lanes(32), self._channels(given)
        parameters, padded = self._images(given, given.filters, given.channels)
        _, weight, bias = parameters
        c, q, p, x, y = _variables("c q p x y")
        packed, sums = hl.Func("packed"), hl.Func("sums")
        r = hl.RDom([(0, given.channels)])
        packed[c, q, p] = weight[p * width + c, q]
        sums[c, x, y] = bias[c]
        sums[c, x, y] += packed[c % width, r.x, c / width] * padded[r.x, x, y]
        out = self._scheduled(given, sums, padded, width, bands=False)
        sums.update().reorder(c, x, r.x)
        packed.compute_root().vectorize(c, lanes).unroll(c)
        return out.compile_to_callable(parameters, _target())


def _calls(compiled: Any, arrays: Sequence[Any]) -> Callable[[], Any]:
    """A call of compiled code on the memory of these arrays."""
    buffers = [hl.Buffer(array) for array in arrays]
    held = list(arrays)

    def call() -> Any:
        compiled(*buffers)
        return held[-1]

    return call
