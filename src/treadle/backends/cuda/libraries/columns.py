"""Columns: every window of images as a column of a matrix, and columns added up to images.

With them a convolution is a matrix product. One thread writes one element; which one follows from
its number, so that neighbors write to neighboring places.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from treadle.backends.codegen.irregular.rows import BITS, RowBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.backends.codegen.scalars.convert import compute_dtype
from treadle.backends.program import Launch, Ref
from treadle.base import dtype as dt
from treadle.base.dtype import DType


class _Parameters(Record[P, S]):
    """Parameters of kernels: memory, `Windows`, and the steps of the matrices."""

    source: P
    target: P
    channels: S
    height: S
    width: S
    down: S
    along: S
    rows_out: S
    columns_out: S
    step_down: S
    step_along: S
    spread_down: S
    spread_along: S
    top: S
    left: S
    image_step: S
    row_step: S


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

    def arguments(self, source: Ref, target: Ref, steps: tuple[int, int]) -> _Parameters[Ref, int]:
        """Return the arguments of kernels."""
        shape = self.channels, self.height, self.width
        moves = (*self.strides, *self.dilation, *self.before)
        return _Parameters(source, target, *shape, *self.kernel, *self.places, *moves, *steps)


def to_columns(
    windows: Windows, dtype: DType, source: Ref, target: Ref, steps: tuple[int, int]
) -> Launch:
    """Write the matrices; `steps` are elements from image to image, and from row to row."""
    items = windows.images * windows.rows * windows.columns
    given, kernel = windows.arguments(source, target, steps), _gathering(BITS[dtype.itemsize])
    return kernel.launch(given, items, 1, items=items, nbytes=2 * items * dtype.itemsize)


def from_columns(windows: Windows, dtype: DType, source: Ref, target: Ref) -> Launch:
    """Add up matrices that lie one after the other, row by row."""
    items = windows.images * windows.channels * windows.height * windows.width
    steps = windows.rows * windows.columns, windows.columns
    given = windows.arguments(source, target, steps)
    nbytes = (items + windows.images * windows.rows * windows.columns) * dtype.itemsize
    return _adding(dtype).launch(given, items, 1, items=items, nbytes=nbytes)


def _split(number: Value, *extents: Value) -> list[Value]:
    """Coordinates of a number, the last extent running fastest."""
    found: list[Value] = []
    for extent in reversed(extents):
        found.insert(0, number % extent)
        number = number // extent
    return [number, *found]


@functools.cache
def _gathering(dtype: DType) -> RecordedKernel:
    """Return the kernel; each row of the launch is an element of the matrices."""
    e = RowBuilder()
    s = e.record(_Parameters[Pointer, Value], source=dtype, target=dtype)
    with e.loop(e.first, e.stop) as number:
        axes = s.channels, s.down, s.along, s.rows_out, s.columns_out
        image, channel, p, q, i, j = _split(number, *axes)
        y = i * s.step_down + p * s.spread_down - s.top
        x = j * s.step_along + q * s.spread_along - s.left
        plane = image * s.channels + channel
        place = (plane * s.height + y) * s.width + x
        inside = (y >= 0) & (y < s.height) & ((x >= 0) & (x < s.width))
        found = s.source.load(place, 1, inside)
        s.target.store(_element(s, image, channel, (p, q), (i, j)), found)
    return RecordedKernel(e.kernel(f"columns_{dtype.name}"), s)


@functools.cache
def _adding(dtype: DType) -> RecordedKernel:
    """Return the kernel; each row of the launch is a cell of the images."""
    wide = compute_dtype(dtype)
    e = RowBuilder()
    s = e.record(_Parameters[Pointer, Value], source=dtype, target=dtype)

    def window(before: Value, cell: Value, step: Value) -> tuple[Value, Value]:
        """The window of which a place is this cell, and whether there is one."""
        start = before - cell
        at = maximum(start, 0)
        even = at % step == 0
        return at // step, even & (start >= 0)

    with e.loop(e.first, e.stop) as number:
        image, channel, y, x = _split(number, s.channels, s.height, s.width)
        total = [e.constant(0.0, wide)]
        with e.loop(s.down, carrying=total) as p:
            i, has_row = window(y + s.top, p * s.spread_down, s.step_down)
            with e.loop(s.along, carrying=total) as q:
                j, has_column = window(x + s.left, q * s.spread_along, s.step_along)
                inside = (i >= 0) & (i < s.rows_out) & ((j >= 0) & (j < s.columns_out))
                inside = inside & (has_row & has_column)
                at = _element(s, image, channel, (p, q), (i, j))
                total[0] = total[0] + s.source.load(at, 1, inside).cast(wide)
        s.target.store(number, total[0].cast(dtype))
    return RecordedKernel(e.kernel(f"add_columns_{dtype.name}"), s)


def _element(
    s: _Parameters[Pointer, Value],
    image: Value,
    channel: Value,
    cell: tuple[Value, Value],
    window: tuple[Value, Value],
) -> Value:
    """Return the place of cell (p, q) of window (i, j) in the matrices."""
    (p, q), (i, j) = cell, window
    row = ((channel * s.down + p) * s.along + q) * s.row_step
    return image * s.image_step + row + (i * s.columns_out + j)


TYPES = (dt.float32, dt.float64, dt.float16, dt.bfloat16)
"""Element types that columns are made of here."""
