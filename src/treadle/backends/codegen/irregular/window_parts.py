"""Parts of kernels of channels-last pooling: operands, vectors of channels, windows.

Vectors run over channels; a few of them at a time share the way through a window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from treadle.backends.codegen.irregular.pool_tables import Bounds, Geometry
from treadle.backends.codegen.kernel.builder import Builder, Changing
from treadle.backends.codegen.kernel.language import Pointer, Value, maximum, minimum, select
from treadle.backends.codegen.kernel.records import P, Record, S
from treadle.backends.codegen.scalars.code import compute_dtype, load_value, store_value
from treadle.backends.codegen.views import Strided
from treadle.backends.program import Ref
from treadle.base.dtype import DType
from treadle.base.symbol import Dim

STEPS = ("batch", "d", "h", "w")


@dataclass(frozen=True, slots=True)
class WindowConfig:
    """Constants of a kernel: element type, channels of a vector, vectors at a time.

    With `deep`, windows have other than one cell along depth; with `masked`, the last vector has
    lanes behind the last channel. Without, it ends there, and does some channels again.
    """

    dtype: DType
    lanes: int
    vectors: int
    deep: bool
    masked: bool

    @property
    def wide(self) -> DType:
        """The type that is computed in."""
        return compute_dtype(self.dtype)

    @property
    def name(self) -> str:
        """Part of the names of kernels."""
        return f"{self.dtype.name}{'_deep' * self.deep}{'_masked' * self.masked}"


class VolumeRecord(Record[P, S]):
    """An array [N,D,H,W,C] whose channels are neighbors."""

    pointer: P
    steps: tuple[S, ...]

    def at(self: Volume, *position: Value) -> Pointer:
        """A pointer to the first channel of a position of some leading axes."""
        place: Value | int = 0
        for number, step in zip(position, self.steps, strict=False):
            place = place + number * step
        return self.pointer + place


Volume = VolumeRecord[Pointer, Value]


def volume(e: Builder, dtype: DType, name: str) -> Volume:
    """Parameters of a kernel."""
    return VolumeRecord(e.pointer(dtype, name), (*e.sizes(*[f"{name}_{s}" for s in STEPS]),))


def volume_of(ref: Ref, view: Strided, itemsize: int) -> VolumeRecord[Ref, Dim]:
    """The array that a view [N,C,*S] shows."""
    batch, _, *steps = view.strides
    place = Ref(ref.kind, ref.index, ref.offset + view.offset * itemsize)
    return VolumeRecord(place, (batch, *(0,) * (3 - len(steps)), *steps))


@dataclass(frozen=True, slots=True)
class Channels:
    """A few vectors of neighboring channels."""

    first: Value
    count: int
    lanes: int
    mask: Value | None

    def load(self, pointer: Pointer, place: Value | int = 0) -> list[Value]:
        """Return the channels' elements at a place, in the compute type."""
        start = self.first + place
        return [
            load_value(pointer, start + v * self.lanes, self.lanes, self.mask)
            for v in range(self.count)
        ]

    def store(self, pointer: Pointer, values: Sequence[Value], place: Value | int = 0) -> None:
        """Write them at a place, rounded."""
        start = self.first + place
        for v, value in enumerate(values):
            store_value(pointer, start + v * self.lanes, value, self.mask)

    def constant(self, number: float, dtype: DType) -> list[Value]:
        """The same number in all of them."""
        given = float(number) if dtype.is_float else int(number)
        return [self.first.home.constant(given, dtype, self.lanes)] * self.count


def each_channels(e: Builder, spec: WindowConfig, stop: Value) -> Iterator[Channels]:
    """Blocks for all vectors of the first `stop` channels: for several at a time, and the rest."""
    lanes, wide = spec.lanes, spec.lanes * spec.vectors
    full = (stop // wide) * wide
    with e.loop(0, full, wide) as c:
        yield Channels(c, spec.vectors, lanes, None)
    with e.loop(full, stop, lanes) as c:
        if spec.masked:
            yield Channels(c, 1, lanes, e.first_lanes(stop - c, lanes))
        else:
            yield Channels(minimum(c, stop - lanes), 1, lanes, None)


@contextmanager
def each_row(
    geometry: Geometry,
    bounds: Bounds,
    volumes: Sequence[Volume],
    deep: bool,
    carrying: Changing[Any] = (),
) -> Iterator[list[Value]]:
    """A block for every row of cells of a window: its places in the volumes."""
    e, ((d0, d1, _), (h0, h1, _), _) = geometry.e, bounds
    step_d, step_h, _ = geometry.dilations
    with e.loop(d0, d1, step_d, carrying=carrying) if deep else nullcontext(d0) as d:
        planes = [d * volume.steps[1] for volume in volumes]
        with e.loop(h0, h1, step_h, carrying=carrying) as h:
            yield [
                plane + h * volume.steps[2] for plane, volume in zip(planes, volumes, strict=True)
            ]


@contextmanager
def each_cell(
    geometry: Geometry,
    bounds: Bounds,
    volumes: Sequence[Volume],
    deep: bool,
    carrying: Changing[Any] = (),
) -> Iterator[list[Value]]:
    """A block for every cell of a window, in row-major order: its places in the volumes."""
    w0, w1, _ = bounds[2]
    step = geometry.dilations[2]
    with (
        each_row(geometry, bounds, volumes, deep, carrying) as rows,
        geometry.e.loop(w0, w1, step, carrying=carrying) as w,
    ):
        yield [place + w * volume.steps[3] for place, volume in zip(rows, volumes, strict=True)]


def wins(x: Value, best: Value) -> Value:
    """x > best, and NaN before numbers."""
    if not x.dtype.is_float:
        return best < x
    return ~(x <= best) & (best == best)


def greater(known: Value, value: Value) -> Value:
    """The greater one; NaN where either is."""
    found = maximum(known, value)  # The second one where either is NaN.
    if not known.dtype.is_float:
        return found
    return select(known != known, known, found)


def has_cells(bounds: Bounds) -> Value:
    """Return whether a window has cells."""
    found = [first < stop for first, stop, _ in bounds]
    return found[0] & found[1] & found[2]


def first_cell(geometry: Geometry, bounds: Bounds, volume: Volume) -> Value:
    """The place of the first cell of a window; of some cell where it has none."""
    place = geometry.e.index(0)
    for window, extent, step in zip(bounds, geometry.extents, volume.steps[1:], strict=True):
        place = place + minimum(window[0], extent - 1) * step
    return place
