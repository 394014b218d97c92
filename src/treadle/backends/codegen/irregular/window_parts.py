"""What kernels of channels-last pooling are made of: operands, vectors of channels, windows.

Vectors run over channels; a few of them at a time share the way through a window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from treadle.backends.codegen.irregular.pool_tables import Geometry
from treadle.backends.codegen.kernel import ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Value
from treadle.backends.codegen.scalars.code import compute_dtype, load_value, store_value
from treadle.backends.codegen.views import Strided
from treadle.backends.program import Ref
from treadle.base.dtype import DType
from treadle.base.symbol import Dim

STEPS = ("batch", "d", "h", "w")

Bounds = Sequence[tuple[Value, Value, Value]]
"""(first, stop, cells that count) along depth, height and width."""


@dataclass(frozen=True, slots=True)
class Spec:
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


@dataclass(frozen=True, slots=True)
class Operand:
    """An array [N,D,H,W,C] whose channels are neighbors."""

    pointer: Value
    steps: tuple[Value, ...]

    @staticmethod
    def of(dtype: DType, name: str) -> Operand:
        """Parameters of a kernel."""
        return Operand(ir.pointer(dtype, name), tuple(ir.size(f"{name}_{s}") for s in STEPS))

    @property
    def parameters(self) -> tuple[Value, ...]:
        """In the order of `arguments`."""
        return (self.pointer, *self.steps)

    def at(self, b: Builder, *position: Value) -> Value:
        """A pointer to the first channel of a position of some leading axes."""
        place = b.index(0)
        for number, step in zip(position, self.steps, strict=False):
            place = b.add(place, b.mul(number, step))
        return b.offset(self.pointer, place)


def arguments(ref: Ref, view: Strided, itemsize: int) -> tuple[Ref | Dim, ...]:
    """Arguments for the parameters of an `Operand`, whose view is [N,C,*S]."""
    batch, _, *steps = view.strides
    place = Ref(ref.kind, ref.index, ref.offset + view.offset * itemsize)
    return (place, batch, *(0,) * (3 - len(steps)), *steps)


@dataclass(frozen=True, slots=True)
class Channels:
    """A few vectors of neighboring channels."""

    first: Value
    count: int
    lanes: int
    mask: Value | None

    def load(self, b: Builder, pointer: Value, place: Value | int = 0) -> list[Value]:
        """Their elements at a place, in the compute type."""
        start = b.add(self.first, place)
        return [
            load_value(pointer, b.add(start, v * self.lanes), self.lanes, self.mask)
            for v in range(self.count)
        ]

    def store(
        self, b: Builder, pointer: Value, values: Sequence[Value], place: Value | int = 0
    ) -> None:
        """Write them at a place, rounded."""
        start = b.add(self.first, place)
        for v, value in enumerate(values):
            store_value(pointer, b.add(start, v * self.lanes), value, self.mask)

    def constant(self, b: Builder, number: float, dtype: DType) -> tuple[Value, ...]:
        """The same number in all of them."""
        given = float(number) if dtype.is_float else int(number)
        return (b.constant(given, dtype, self.lanes),) * self.count


def each_channels(
    b: Builder, spec: Spec, first: Value, stop: Value, body: Callable[[Channels], None]
) -> None:
    """`body` for all vectors of the channels [first, stop), several at a time."""
    lanes, wide = spec.lanes, spec.lanes * spec.vectors
    full = b.add(first, b.mul(b.div(b.sub(stop, first), wide), wide))
    b.loop(first, full, wide, lambda c: body(Channels(c, spec.vectors, lanes, None)))

    def single(c: Value) -> None:
        if spec.masked:
            body(Channels(c, 1, lanes, b.first_lanes(b.sub(stop, c), lanes)))
        else:
            body(Channels(b.min(c, b.sub(stop, lanes)), 1, lanes, None))

    b.loop(full, stop, lanes, single)


def each_row(
    b: Builder,
    geometry: Geometry,
    bounds: Bounds,
    operands: Sequence[Operand],
    deep: bool,
    body: Callable[..., tuple[Value, ...]],
    initial: Sequence[Value] = (),
) -> tuple[Value, ...]:
    """`body((d, h), places in the operands, *carried)` for every row of cells of a window."""
    (d0, d1, _), (h0, h1, _), _ = bounds
    step_d, step_h, _ = geometry.dilations

    def layer(d: Value, *carried: Value) -> tuple[Value, ...]:
        planes = [b.mul(d, operand.steps[1]) for operand in operands]

        def row(h: Value, *inner: Value) -> tuple[Value, ...]:
            places = [
                b.add(plane, b.mul(h, operand.steps[2]))
                for plane, operand in zip(planes, operands, strict=True)
            ]
            return body((d, h), places, *inner)

        return b.loop(h0, h1, step_h, row, carried)

    return b.loop(d0, d1, step_d, layer, initial) if deep else layer(d0, *initial)


def each_cell(
    b: Builder,
    geometry: Geometry,
    bounds: Bounds,
    operands: Sequence[Operand],
    deep: bool,
    body: Callable[..., tuple[Value, ...]],
    initial: Sequence[Value] = (),
) -> tuple[Value, ...]:
    """`body((d, h, w), places, *carried)` for every cell of a window, in row-major order."""
    w0, w1, _ = bounds[2]

    def row(at: Sequence[Value], rows: Sequence[Value], *carried: Value) -> tuple[Value, ...]:
        def cell(w: Value, *inner: Value) -> tuple[Value, ...]:
            places = [
                b.add(place, b.mul(w, operand.steps[3]))
                for place, operand in zip(rows, operands, strict=True)
            ]
            return body((*at, w), places, *inner)

        return b.loop(w0, w1, geometry.dilations[2], cell, carried)

    return each_row(b, geometry, bounds, operands, deep, row, initial)


def wins(b: Builder, x: Value, best: Value) -> Value:
    """x > best, and NaN before numbers."""
    if not x.dtype.is_float:
        return b.compare("lt", best, x)
    return b.bitwise("and", b.invert(b.compare("le", x, best)), b.compare("eq", best, best))


def greater(b: Builder, known: Value, value: Value) -> Value:
    """The greater one; NaN where either is."""
    found = b.max(known, value)  # The second one where either is NaN.
    if not known.dtype.is_float:
        return found
    return b.select(b.compare("ne", known, known), known, found)


def has_cells(b: Builder, bounds: Bounds) -> Value:
    """Whether a window has cells."""
    found = [b.compare("lt", first, stop) for first, stop, _ in bounds]
    return b.bitwise("and", b.bitwise("and", found[0], found[1]), found[2])


def first_cell(b: Builder, geometry: Geometry, bounds: Bounds, operand: Operand) -> Value:
    """The place of the first cell of a window; of some cell where it has none."""
    place = b.index(0)
    for window, extent, step in zip(bounds, geometry.extents, operand.steps[1:], strict=True):
        place = b.add(place, b.mul(b.min(window[0], b.sub(extent, 1)), step))
    return place
