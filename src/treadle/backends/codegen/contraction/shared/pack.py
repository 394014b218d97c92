"""Packing: strided operands copied into the dense rows and panels that tiles read.

target[o * pitch + i] = source[o * outer_step + i * inner_step], converted to the type of the sums.
Transposed rows and panels are written up to one vector beyond their last element, which nothing
that counts reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, Literal, NamedTuple

from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel.builder import Builder, KernelBuilder
from treadle.backends.codegen.kernel.ir import KernelRoutine
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum, shuffle
from treadle.backends.codegen.kernel.records import P, RecordedKernel, S
from treadle.base.dtype import DType
from treadle.base.symbol import Dim, is_identical

Order = Literal["straight", "transposed", "strided"]
"""The step of the source that is 1: the inner one, the outer one, or neither."""


def order_of(outer_step: Dim, inner_step: Dim) -> Order:
    """Return the order in which a source with these steps is packed."""
    if is_identical(inner_step, 1):
        return "straight"
    return "transposed" if is_identical(outer_step, 1) else "strided"


@lru_cache(maxsize=256)
def pack_function(tile: Tile, source: DType, order: Order, *, panel: bool) -> KernelRoutine:
    """A function of (source, outer_step, inner_step, target, pitch, outer, inner).

    `panel` says that `inner` is at most the width of the tile: short rows, many of them.
    """
    writer = _PackWriter(Builder(), tile, source)
    {
        "straight": writer.panel if panel else writer.rows,
        "transposed": writer.transposed,
        "strided": writer.strided,
    }[order]()
    return writer.e.function(f"pack_{'panel' if panel else 'rows'}_{order}_{source.name}")


class _PackWriter:
    """The bodies of the packing functions, over the same parameters."""

    def __init__(self, e: Builder, tile: Tile, source: DType) -> None:
        self.e, self.tile, self.lanes = e, tile, tile.lanes
        self.source = e.pointer(source, "source")
        self.outer_step, self.inner_step = e.sizes("outer_step", "inner_step")
        self.target = e.pointer(tile.dtype, "target")
        self.pitch, self.outer, self.inner = e.sizes("pitch", "outer", "inner")

    def _load(self, place: Value, lanes: int, mask: Value | None = None) -> Value:
        return self.source.load(place, lanes, mask).cast(self.tile.dtype)

    def panel(self) -> None:
        """Whole rows of a panel at once."""
        e, lanes, vectors = self.e, self.lanes, self.tile.vectors

        def copy(masks: list[Value | None]) -> None:
            with e.loop(self.outer) as o:
                start, target = o * self.outer_step, o * self.pitch
                for v, mask in enumerate(masks):
                    value = self._load(start + v * lanes, lanes, mask)
                    self.target[target + v * lanes] = value

        with e.when(self.tile.width <= self.inner):
            copy([None] * vectors)
        with e.otherwise():
            copy([e.first_lanes(self.inner - v * lanes, lanes) for v in range(vectors)])

    def rows(self) -> None:
        """Row after row, vector after vector."""
        e, lanes = self.e, self.lanes
        whole = self.inner - self.inner % lanes
        with e.loop(self.outer) as o:
            start, target = o * self.outer_step, o * self.pitch
            with e.loop(0, whole, lanes) as i:
                value = self._load(start + i, lanes)
                self.target[target + i] = value
            with e.when(whole < self.inner):
                mask = e.first_lanes(self.inner - whole, lanes)
                value = self._load(start + whole, lanes, mask)
                self.target.store(target + whole, value, mask)

    def transposed(self) -> None:
        """Square blocks, transposed in registers; inner places beyond the end repeat the last."""
        e, lanes = self.e, self.lanes
        last = self.inner - 1
        whole = self.outer - self.outer % lanes
        with e.loop(0, self.inner, lanes) as i:
            starts = [minimum(i + j, last) * self.inner_step for j in range(lanes)]
            with e.loop(0, whole, lanes) as o:
                square = [self._load(start + o, lanes) for start in starts]
                for j, value in enumerate(transpose(square)):
                    place = (o + j) * self.pitch + i
                    self.target[place] = value
            with e.loop(whole, self.outer) as o:
                place = o * self.pitch + i
                for j, start in enumerate(starts):
                    value = self._load(start + o, 1)
                    self.target[place + j] = value

    def strided(self) -> None:
        """Element after element."""
        with self.e.loop(self.outer) as o:
            start, target = o * self.outer_step, o * self.pitch
            with self.e.loop(self.inner) as i:
                value = self._load(start + i * self.inner_step, 1)
                self.target[target + i] = value


def transpose(rows: list[Value]) -> list[Value]:
    """Return the vectors transposed, as many as each has lanes, by exchange of halves of halves.

    `len(rows)` is a power of two.
    """
    count = len(rows)
    distance = count // 2
    while distance:
        made = list(rows)
        first = [i if not i & distance else count + i - distance for i in range(count)]
        second = [i + distance if not i & distance else count + i for i in range(count)]
        for i in range(count):
            if not i & distance:
                pair = rows[i], rows[i + distance]
                made[i] = shuffle(*pair, first)
                made[i + distance] = shuffle(*pair, second)
        rows = made
        distance //= 2
    return rows


# -- packing of whole operands -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Packing:
    """A kernel that packs an operand: into rows of `pitch` elements, or into panels.

    An item is `block` outer places of one matrix (rows), or one panel (all outer places of
    `width` inner ones). `source` is what the operand is made of, the tile says what it becomes.
    """

    tile: Tile
    source: DType
    order: Order
    panels: bool
    batch: int


class Copies(NamedTuple, Generic[S]):
    """A batch axis of a copy: how often, and the steps of source and target."""

    extent: S
    source: S
    target: S


def copies(e: Builder, rank: int) -> tuple[Copies[Value], ...]:
    """Parameters for some batch axes."""
    names = ("batch", "source_batch", "target_batch")
    return tuple(Copies(*e.sizes(*(f"{name}{i}" for name in names))) for i in range(rank))


def at_position(
    position: Value, batch: Sequence[Copies[Value]], source: Pointer, target: Pointer
) -> tuple[Pointer, Pointer]:
    """Source and target of a position of the batch axes, the last one running fastest."""
    for axis in reversed(range(len(batch))):
        at = position % batch[axis].extent if axis else position
        position = position // batch[axis].extent if axis else position
        source = source + at * batch[axis].source
        target = target + at * batch[axis].target
    return source, target


class PackingParameters(NamedTuple, Generic[P, S]):
    """Parameters of a packing kernel: `inner` places of panels are those of all panels."""

    source: P
    target: P
    outer: S
    inner: S
    outer_step: S
    inner_step: S
    pitch: S
    block: S
    blocks: S
    batch: tuple[Copies[S], ...]


@lru_cache(maxsize=256)
def packing_kernel(packing: Packing) -> RecordedKernel:
    """The kernel; panels of a matrix follow one another, [panel][outer][width]."""
    tile = packing.tile
    pack = pack_function(tile, packing.source, packing.order, panel=packing.panels)
    e = KernelBuilder()
    p = e.record(
        PackingParameters[Pointer, Value],
        source=packing.source,
        target=tile.dtype,
        batch=lambda: copies(e, packing.batch),
    )
    with e.items() as i:
        place, position = i % p.blocks, i // p.blocks
        source, target = at_position(position, p.batch, p.source, p.target)
        outer, inner = p.outer, p.inner
        if packing.panels:
            first = place * tile.width
            source = source + first * p.inner_step
            target = target + first * outer
            inner = minimum(inner - first, tile.width)
        else:
            first = place * p.block
            source = source + first * p.outer_step
            target = target + first * p.pitch
            outer = minimum(outer - first, p.block)
        e.call(pack, source, p.outer_step, p.inner_step, target, p.pitch, outer, inner)
    kind = "panels" if packing.panels else "rows"
    name = f"pack_{kind}_{packing.order}_{packing.source.name}"
    return RecordedKernel(e.kernel(name, [pack]), p)
