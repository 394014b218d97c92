"""Columns: every window of images as a column of a matrix, and columns added up to images.

With them a convolution is a matrix product. One thread writes one element; which one follows from
its number, so that neighbors write to neighboring places.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from treadle.backends.codegen.irregular.rows import BITS, row_kernel
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.backends.codegen.scalars.convert import compute_dtype
from treadle.backends.program import Launch, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType

_SHAPE = ("channels", "height", "width", "down", "along", "rows_out", "columns_out")
_MOVES = ("step_down", "step_along", "spread_down", "spread_along", "top", "left")
_STEPS = ("image_step", "row_step")


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows of images [images, channels, height, width].

    Attributes:
        kernel: extents of a window.
        places: windows down and along an image.
        strides, dilation: cells from window to window, and from cell to cell of one.
        before: rows and columns of padding before the image.
    """

    images: int
    channels: int
    height: int
    width: int
    kernel: tuple[int, int]
    places: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]

    @property
    def rows(self) -> int:
        """Rows of the matrix of an image: cells of a window, of every channel."""
        return self.channels * self.kernel[0] * self.kernel[1]

    @property
    def columns(self) -> int:
        """Columns of it: windows of an image."""
        return self.places[0] * self.places[1]

    @property
    def is_image(self) -> bool:
        """True if the matrix is the image itself."""
        plain = self.kernel == self.strides == (1, 1) and self.before == (0, 0)
        return plain and self.places == (self.height, self.width)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes for kernels, in the order of their parameters."""
        shape = self.channels, self.height, self.width
        return (*shape, *self.kernel, *self.places, *self.strides, *self.dilation, *self.before)


def to_columns(
    windows: Windows, dtype: DType, source: Ref, target: Ref, steps: tuple[int, int]
) -> Launch:
    """Write the matrices; `steps` are elements from image to image, and from row to row."""
    items = windows.images * windows.rows * windows.columns
    arguments: tuple[Ref | int, ...] = (source, target, *windows.sizes, *steps, items, 1)
    nbytes = 2 * items * dtype.itemsize
    return Launch(_gathering(BITS[dtype.itemsize]), arguments, items, nbytes=nbytes)


def from_columns(windows: Windows, dtype: DType, source: Ref, target: Ref) -> Launch:
    """Add up matrices that lie one after the other, row by row."""
    items = windows.images * windows.channels * windows.height * windows.width
    steps = windows.rows * windows.columns, windows.columns
    arguments: tuple[Ref | int, ...] = (source, target, *windows.sizes, *steps, items, 1)
    nbytes = (items + windows.images * windows.rows * windows.columns) * dtype.itemsize
    return Launch(_adding(dtype), arguments, items, nbytes=nbytes)


class _Sizes:
    """The parameters of a kernel."""

    def __init__(self, b: Builder, values: dict[str, Value]) -> None:
        self.b = b
        self._values = values

    def __getitem__(self, name: str) -> Value:
        return self._values[name]

    def split(self, number: Value, *names: str) -> list[Value]:
        """Coordinates of a number, the last extent running fastest."""
        found: list[Value] = []
        for name in reversed(names):
            found.insert(0, self.b.rem(number, self[name]))
            number = self.b.div(number, self[name])
        return [number, *found]

    def row(self, channel: Value, p: Value, q: Value) -> Value:
        """The row of a cell of a window."""
        b = self.b
        return b.add(b.mul(b.add(b.mul(channel, self["down"]), p), self["along"]), q)

    def column(self, i: Value, j: Value) -> Value:
        """The column of a window."""
        return self.b.add(self.b.mul(i, self["columns_out"]), j)

    def is_inside(self, y: Value, x: Value, height: str, width: str) -> Value:
        """Return whether a cell, or a window, is one of those that there are."""
        b = self.b
        down = b.bitwise("and", b.compare("le", 0, y), b.compare("lt", y, self[height]))
        along = b.bitwise("and", b.compare("le", 0, x), b.compare("lt", x, self[width]))
        return b.bitwise("and", down, along)


def _parameters(dtype: DType) -> dict[str, Value]:
    pointers = {name: pointer(dtype, name) for name in ("source", "target")}
    return pointers | {name: size(name) for name in (*_SHAPE, *_MOVES, *_STEPS)}


@functools.cache
def _gathering(dtype: DType) -> Kernel:
    values = _parameters(dtype)

    def write(b: Builder, first: Value, stop: Value) -> None:
        s = _Sizes(b, values)

        def element(number: Value) -> None:
            axes = ("channels", "down", "along", "rows_out", "columns_out")
            image, channel, p, q, i, j = s.split(number, *axes)
            y, x = (
                b.sub(b.add(b.mul(place, s[step]), b.mul(cell, s[spread])), s[before])
                for place, step, cell, spread, before in (
                    (i, "step_down", p, "spread_down", "top"),
                    (j, "step_along", q, "spread_along", "left"),
                )
            )
            plane = b.add(b.mul(image, s["channels"]), channel)
            place = b.add(b.mul(b.add(b.mul(plane, s["height"]), y), s["width"]), x)
            found = b.load(s["source"], place, 1, s.is_inside(y, x, "height", "width"))
            row = b.mul(s.row(channel, p, q), s["row_step"])
            to = b.add(b.add(b.mul(image, s["image_step"]), row), s.column(i, j))
            b.store(s["target"], to, found)

        b.loop(first, stop, 1, element)

    return row_kernel(f"columns_{dtype.name}", tuple(values.values()), write)


@functools.cache
def _adding(dtype: DType) -> Kernel:
    values = _parameters(dtype)
    wide = compute_dtype(dtype)

    def write(b: Builder, first: Value, stop: Value) -> None:
        s = _Sizes(b, values)

        def element(number: Value) -> None:
            image, channel, y, x = s.split(number, "channels", "height", "width")

            def window(
                cell: Value, place: Value, names: tuple[str, str, str]
            ) -> tuple[Value, Value]:
                """The window of which a place is this cell, and whether there is one."""
                before, spread, step = (s[n] for n in names)
                start = b.sub(b.add(place, before), b.mul(cell, spread))
                at = b.max(start, 0)
                even = b.compare("eq", b.rem(at, step), 0)
                return b.div(at, step), b.bitwise("and", even, b.compare("le", 0, start))

            def down(p: Value, total: Value) -> Value:
                i, has_row = window(p, y, ("top", "spread_down", "step_down"))

                def along(q: Value, total: Value) -> Value:
                    j, has_column = window(q, x, ("left", "spread_along", "step_along"))
                    inside = s.is_inside(i, j, "rows_out", "columns_out")
                    inside = b.bitwise("and", inside, b.bitwise("and", has_row, has_column))
                    row = b.mul(s.row(channel, p, q), s["row_step"])
                    at = b.add(b.add(b.mul(image, s["image_step"]), row), s.column(i, j))
                    return b.add(total, b.cast(b.load(s["source"], at, 1, inside), wide))

                (total,) = b.loop(0, s["along"], 1, along, (total,))
                return total

            (total,) = b.loop(0, s["down"], 1, down, (b.constant(0.0, wide),))
            b.store(s["target"], number, b.cast(total, dtype))

        b.loop(first, stop, 1, element)

    return row_kernel(f"add_columns_{dtype.name}", tuple(values.values()), write)


TYPES = (dt.float32, dt.float64, dt.float16, dt.bfloat16)
"""Element types that columns are made of here."""
