"""Packing: strided operands copied into the dense rows and panels that tiles read.

target[o * pitch + i] = source[o * outer_step + i * inner_step], converted to the type of the sums.
Transposed rows and panels are written up to one vector beyond their last element, which nothing
that counts reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from treadle.backends.codegen.contraction.shared.tile import Tile
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Kernel, Value
from treadle.base.dtype import DType
from treadle.base.symbol import Dim, is_identical

Order = Literal["straight", "transposed", "strided"]
"""Which step of the source is 1: the inner one, the outer one, or neither."""


def order_of(outer_step: Dim, inner_step: Dim) -> Order:
    """How a source with these steps is packed."""
    if is_identical(inner_step, 1):
        return "straight"
    return "transposed" if is_identical(outer_step, 1) else "strided"


@lru_cache(maxsize=256)
def pack_function(tile: Tile, source: DType, order: Order, *, panel: bool) -> Function:
    """A function of (source, outer_step, inner_step, target, pitch, outer, inner).

    `panel` says that `inner` is at most the width of the tile: short rows, many of them.
    """
    given, made = ir.pointer(source, "source"), ir.pointer(tile.dtype, "target")
    names = ("outer_step", "inner_step", "pitch", "outer", "inner")
    outer_step, inner_step, pitch, outer, inner = (ir.size(n) for n in names)
    writer = _Writer(tile, given, outer_step, inner_step, made, pitch, outer, inner)
    write = {
        "straight": writer.panel if panel else writer.rows,
        "transposed": writer.transposed,
        "strided": writer.strided,
    }[order]
    parameters = (given, outer_step, inner_step, made, pitch, outer, inner)
    kind = "panel" if panel else "rows"
    return builder.function(f"pack_{kind}_{order}_{source.name}", parameters, write)


class _Writer:
    """The bodies of the packing functions, over the same parameters."""

    def __init__(self, tile: Tile, source: Value, outer_step: Value, *others: Value) -> None:
        self.tile, self.lanes, self.source, self.outer_step = tile, tile.lanes, source, outer_step
        self.inner_step, self.target, self.pitch, self.outer, self.inner = others

    def _load(self, e: Builder, place: Value, lanes: int, mask: Value | None = None) -> Value:
        return e.cast(e.load(self.source, place, lanes, mask), self.tile.dtype)

    def panel(self, e: Builder) -> None:
        """Whole rows of a panel at once."""
        lanes, vectors = self.lanes, self.tile.vectors

        def copy(masks: list[Value | None]) -> None:
            def row(o: Value) -> None:
                start, target = e.mul(o, self.outer_step), e.mul(o, self.pitch)
                for v, mask in enumerate(masks):
                    value = self._load(e, e.add(start, v * lanes), lanes, mask)
                    e.store(self.target, e.add(target, v * lanes), value)

            e.loop(0, self.outer, 1, row)

        e.branch(
            e.compare("le", self.tile.width, self.inner),
            lambda: copy([None] * vectors),
            lambda: copy(
                [e.first_lanes(e.sub(self.inner, v * lanes), lanes) for v in range(vectors)]
            ),
        )

    def rows(self, e: Builder) -> None:
        """Row after row, vector after vector."""
        lanes = self.lanes
        whole = e.sub(self.inner, e.rem(self.inner, lanes))

        def row(o: Value) -> None:
            start, target = e.mul(o, self.outer_step), e.mul(o, self.pitch)

            def copy(i: Value, mask: Value | None = None) -> None:
                value = self._load(e, e.add(start, i), lanes, mask)
                e.store(self.target, e.add(target, i), value, mask)

            def rest() -> None:
                copy(whole, e.first_lanes(e.sub(self.inner, whole), lanes))

            e.loop(0, whole, lanes, copy)
            e.branch(e.compare("lt", whole, self.inner), rest)

        e.loop(0, self.outer, 1, row)

    def transposed(self, e: Builder) -> None:
        """Square blocks, transposed in registers; inner places beyond the end repeat the last."""
        lanes = self.lanes
        last = e.sub(self.inner, 1)
        whole = e.sub(self.outer, e.rem(self.outer, lanes))

        def column(i: Value) -> None:
            starts = [e.mul(e.min(e.add(i, j), last), self.inner_step) for j in range(lanes)]

            def block(o: Value) -> None:
                square = [self._load(e, e.add(start, o), lanes) for start in starts]
                for j, value in enumerate(transpose(e, square)):
                    place = e.add(e.mul(e.add(o, j), self.pitch), i)
                    e.store(self.target, place, value)

            def single(o: Value) -> None:
                place = e.add(e.mul(o, self.pitch), i)
                for j, start in enumerate(starts):
                    value = self._load(e, e.add(start, o), 1)
                    e.store(self.target, e.add(place, j), value)

            e.loop(0, whole, lanes, block)
            e.loop(whole, self.outer, 1, single)

        e.loop(0, self.inner, lanes, column)

    def strided(self, e: Builder) -> None:
        """Element after element."""

        def row(o: Value) -> None:
            start, target = e.mul(o, self.outer_step), e.mul(o, self.pitch)

            def single(i: Value) -> None:
                value = self._load(e, e.add(start, e.mul(i, self.inner_step)), 1)
                e.store(self.target, e.add(target, i), value)

            e.loop(0, self.inner, 1, single)

        e.loop(0, self.outer, 1, row)


def transpose(e: Builder, rows: list[Value]) -> list[Value]:
    """As many vectors as each has lanes, transposed: halves, then halves of halves, change places.

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
                made[i] = e.shuffle(*pair, first)
                made[i + distance] = e.shuffle(*pair, second)
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


@dataclass(frozen=True, slots=True, eq=False)
class PackingKernel:
    """A kernel and the names of its parameters, in order."""

    kernel: Kernel
    names: tuple[str, ...]


@lru_cache(maxsize=256)
def packing_kernel(packing: Packing) -> PackingKernel:
    """The kernel; panels of a matrix follow one another, [panel][outer][width]."""
    tile, batch = packing.tile, range(packing.batch)
    pack = pack_function(tile, packing.source, packing.order, panel=packing.panels)
    values = {"source": ir.pointer(packing.source), "target": ir.pointer(tile.dtype)}
    names = ["outer", "inner", "outer_step", "inner_step", "pitch", "block", "blocks"]
    names += [f"{n}{i}" for i in batch for n in ("batch", "source_batch", "target_batch")]
    values |= {name: ir.size(name) for name in names}

    def write(e: Builder, lo: Value, hi: Value) -> None:
        def item(i: Value) -> None:
            place, position = e.rem(i, values["blocks"]), e.div(i, values["blocks"])
            source, target = values["source"], values["target"]
            for axis in reversed(batch):
                at = e.rem(position, values[f"batch{axis}"]) if axis else position
                position = e.div(position, values[f"batch{axis}"]) if axis else position
                source = e.offset(source, e.mul(at, values[f"source_batch{axis}"]))
                target = e.offset(target, e.mul(at, values[f"target_batch{axis}"]))
            outer, inner = values["outer"], values["inner"]
            if packing.panels:
                first = e.mul(place, tile.width)
                source = e.offset(source, e.mul(first, values["inner_step"]))
                target = e.offset(target, e.mul(first, outer))
                inner = e.min(e.sub(inner, first), tile.width)
            else:
                first = e.mul(place, values["block"])
                source = e.offset(source, e.mul(first, values["outer_step"]))
                target = e.offset(target, e.mul(first, values["pitch"]))
                outer = e.min(e.sub(outer, first), values["block"])
            steps = values["outer_step"], values["inner_step"]
            e.call(pack, source, *steps, target, values["pitch"], outer, inner)

        e.loop(lo, hi, 1, item)

    kind = "panels" if packing.panels else "rows"
    name = f"pack_{kind}_{packing.order}_{packing.source.name}"
    kernel = builder.kernel(name, list(values.values()), write, [pack])
    return PackingKernel(kernel, tuple(values))
