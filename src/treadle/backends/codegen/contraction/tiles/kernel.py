"""The kernel of a contraction: items of rows by panels, each packed, multiplied and finished.

c[m, n] = epilogue(sum over k of a[m, k] * b[k, n]), once per position of the batch axes. Extents,
strides and block sizes are parameters: one kernel serves every shape. An item is `height` rows by
`width` panels; it packs its panels of b into scratch memory, then goes through its rows in blocks
of `block`, panel after panel, tile after tile, reading a where it lies. Long sums are built
in steps of `depth` terms.

The terms of a sum are added in one order, whatever the items and the threads that run them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from treadle.backends.codegen.contraction.shared.epilogue import Epilogue, SumsBlock, finish
from treadle.backends.codegen.contraction.shared.items import (
    Item,
    ItemSpec,
    ItemTables,
    declare_items,
    locate,
)
from treadle.backends.codegen.contraction.shared.moments import moments_function
from treadle.backends.codegen.contraction.shared.pack import Order, pack_function
from treadle.backends.codegen.contraction.shared.tile import Form, Tile, full_tiles, tile_function
from treadle.backends.codegen.contraction.tiles.patches import patch_function
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.ir import KernelModule, KernelRoutine
from treadle.backends.codegen.kernel.language import Pointer, Value, minimum, select
from treadle.backends.codegen.kernel.records import RecordedKernel, required
from treadle.base.dtype import DType


@dataclass(frozen=True, slots=True)
class TileConfig:
    """Constants of a kernel.

    Attributes:
        tile: its register tile.
        b: element type of b; a has that of the sums.
        form: what is contiguous in a.
        b_order: how panels of b are packed; None: it already consists of panels [n][k][width].
        patches: whether the elements of b are found by tables of offsets (`patches.py`).
        positions: whether a table says which rows of the results are computed.
        batch: number of batch axes.
        split: whether sums are built in steps of `depth` terms.
        in_place: whether full panels of b are read where they lie, and none but the last is packed.
        panels, sums: elements of scratch for panels of b and for sums.
        epilogue: what becomes of the sums.
        measured: the result of which statistics are left for every block of rows; -1 for none.
    """

    tile: Tile
    b: DType
    form: Form
    b_order: Order | None
    patches: bool
    positions: bool
    batch: int
    split: bool
    in_place: bool
    panels: int
    sums: int
    epilogue: Epilogue
    measured: int = -1

    @property
    def direct(self) -> bool:
        """True where tiles store their sums in the result at once."""
        return not self.positions and self.epilogue.stores_sums(self.tile.dtype)

    @property
    def items(self) -> ItemSpec:
        """The facts that decide on the parameters."""
        found = self.form in ("table", "picked")
        tables = ItemTables(
            terms=self.patches,
            columns=self.patches,
            row_table=found,
            term_table=found,
            b_table=self.form == "picked",
            positions=self.positions,
        )
        a, measured = self.tile.dtype, self.measured >= 0
        return ItemSpec(self.tile.width, a, self.b, self.batch, self.epilogue, tables, measured)


Args = tuple[Value, ...]


@dataclass(slots=True)
class TermRange:
    """Terms [first, first + count) of the sums."""

    first: Value
    count: Value
    last: Value | None = None


@lru_cache(maxsize=512)
def contraction_kernel(spec: TileConfig) -> RecordedKernel:
    """The kernel of a specification; equal specifications share it."""
    writer = _TileWriter(spec)
    return RecordedKernel(writer.kernel(), writer.p)


class _TileWriter:
    """Writes one kernel."""

    def __init__(self, spec: TileConfig) -> None:
        self.spec, tile = spec, spec.tile
        self.e = e = KernelBuilder()
        self.p = declare_items(e, spec.items)
        self.big = tile_function(tile, spec.form, small=False, accumulate=spec.split)
        self.small = tile_function(tile, spec.form, small=True, accumulate=spec.split)
        self.moments = moments_function(tile) if spec.measured >= 0 else None
        self.pack_b: KernelRoutine | None = None
        if spec.patches:
            self.pack_b = patch_function(tile)
        elif spec.b_order is not None:
            self.pack_b = pack_function(tile, spec.b, spec.b_order, panel=True)
        if self.pack_b is not None:
            self.b_panels = e.stack(tile.dtype, spec.panels)
        self.sums = e.stack(tile.dtype, spec.sums)

    def kernel(self) -> KernelModule:
        """The kernel, whose items are those of `locate`."""
        e, spec = self.e, self.spec
        # Neighboring items share their panels: those of the last item are still there.
        packed = [e.index(-1)]
        with e.items(carrying=packed) as i:
            group = i // self.p.division.row_items
            self._item(locate(spec.items, self.p, i, group), group != packed[0])
            packed[0] = group
        functions = (self.big, self.small, self.pack_b, self.moments)
        return e.kernel(self._name(), [f for f in functions if f is not None])

    def _name(self) -> str:
        """A name that tells kernels apart in reports."""
        spec = self.spec
        order: str = "in_place" if spec.in_place else spec.b_order or "panels"
        order = "patches" if spec.patches else order
        steps = spec.epilogue.label
        steps += "_moments" if spec.measured >= 0 else ""
        return f"contract_{spec.b.name}_{spec.form}_{order}{steps}"

    def _item(self, item: Item, fresh: Value) -> None:
        e, k, depth = self.e, self.p.k, self.p.division.depth
        if not self.spec.split:
            self._terms(item, TermRange(e.index(0), k), fresh)
            return
        with e.loop(0, k, depth) as first:
            rest = k - first
            count = minimum(depth, rest)
            last = rest <= depth
            self._terms(item, TermRange(first, count, last), None)

    # -- packing ---------------------------------------------------------------------------

    def _terms(self, item: Item, step: TermRange, fresh: Value | None) -> None:
        """Add some terms to all sums of an item."""
        e = self.e
        if self.pack_b is not None:
            with nullcontext() if fresh is None else e.when(fresh):
                self._pack_panels(item, step)
        with e.loop(0, item.rows, self.p.division.block) as row:
            rows = minimum(self.p.division.block, item.rows - row)
            a = self._rows_of_a(item, step, item.row + row)
            with e.loop(item.panels) as p:
                self._panel(item, step, (row, rows, a), p)

    def _rows_of_a(self, item: Item, step: TermRange, row: Value) -> Callable[[Value], Args]:
        """Return the places of a tile's rows of a, given how far behind `row` they begin."""
        if self.spec.form in ("table", "picked"):
            rows = required(self.p.tables.row_table) + row
            terms = required(self.p.tables.term_table) + step.first
            return lambda r: (item.a, rows + r, terms)
        a = item.a + step.first * self.p.a_term
        a = a + row * self.p.a_row
        if self.spec.form == "column":
            return lambda r: (a + r, self.p.a_term)
        return lambda r: (a + r * self.p.a_row, self.p.a_row)

    def _pack_panels(self, item: Item, step: TermRange) -> None:
        e, width = self.e, self.spec.tile.width
        with e.loop(item.panels) as p:
            column = (item.panel + p) * width
            if self.spec.in_place:
                with e.when(self.p.n - column < width):
                    self._pack_panel(item, step, p, column)
            else:
                self._pack_panel(item, step, p, column)

    def _pack_panel(self, item: Item, step: TermRange, p: Value, column: Value) -> None:
        if self.pack_b is None:
            return
        e, width = self.e, self.spec.tile.width
        target = self.b_panels + p * (step.count * width)
        count = minimum(self.p.n - column, width)
        if self.spec.patches:
            tables = self.p.tables
            terms, columns = required(tables.terms) + step.first, required(tables.columns) + column
            e.call(self.pack_b, item.b, terms, columns, target, step.count, count)
            return
        steps = self.p.b_term, self.p.b_column
        start = item.b + step.first * steps[0]
        start = start + column * steps[1]
        e.call(self.pack_b, start, *steps, target, width, step.count, count)

    # -- tiles -----------------------------------------------------------------------------

    def _panel(
        self,
        item: Item,
        step: TermRange,
        rows_of_a: tuple[Value, Value, Callable[[Value], Args]],
        p: Value,
    ) -> None:
        """A block of rows times one panel."""
        e, spec, width = self.e, self.spec, self.spec.tile.width
        row, rows, a = rows_of_a
        column = (item.panel + p) * width
        columns = self.p.n - column
        b = self._panel_of_b(item, step, p, column)
        sums = self.sums + ((p * self.p.division.height + row) * width if spec.split else 0)
        places = item.places(item.row + row, column)
        full = width <= columns
        target: list[Any] = [sums, e.index(width)]
        if spec.direct:
            with e.when(full, changing=target):
                target[:] = places.results[0].pointer, places.results[0].row_step
        self._tiles(step, (rows, a), b, target)
        with e.when_all([step.last, ~full if spec.direct else None]):
            block = SumsBlock(sums, width, rows, columns)
            finish(e, spec.tile, spec.epilogue, block, places, ragged=spec.direct)
        if self.moments is not None:
            at = (item.row + row) // self.p.division.block
            with e.when_all([step.last]):
                # The block of rows of the result is still in the first cache.
                place, c = at * self.p.n + column, places.results[spec.measured]
                means, squares = (memory + place for memory in required(self.p.statistics))
                e.call(self.moments, c.pointer, c.row_step, means, squares, rows, columns)

    def _panel_of_b(
        self, item: Item, step: TermRange, p: Value, column: Value
    ) -> tuple[Pointer, Value | int]:
        """Return a panel's place, and the step from term to term, or the table of terms."""
        e, width = self.e, self.spec.tile.width
        if self.spec.form == "picked":
            place = (item.panel + p) * required(self.p.panel_terms)
            return item.b + place * width, required(self.p.tables.b_table) + step.first
        if self.pack_b is None:
            place = (item.panel + p) * self.p.k + step.first
            return item.b + place * width, width
        panel: list[Any] = [self.b_panels + p * (step.count * width), e.index(width)]
        if self.spec.in_place:
            with e.when(width <= self.p.n - column, changing=panel):
                start = item.b + step.first * self.p.b_term
                panel[:] = start + column, self.p.b_term
        return panel[0], panel[1]

    def _tiles(
        self,
        step: TermRange,
        rows_of_a: tuple[Value, Callable[[Value], Args]],
        b: tuple[Pointer, Value | int],
        target: Sequence[Any],
    ) -> None:
        """Full tiles, then small ones for the last rows; the cut is that of `Tile.cut`."""
        e, tile, (rows, a), (start, by) = self.e, self.spec.tile, rows_of_a, target
        accumulate = [select(step.first == 0, 0, e.index(1))]
        accumulate = accumulate if self.spec.split else []

        def call(function: KernelRoutine, r: Value, *, last: bool = False) -> None:
            c = start + r * by
            given = (*a(r), *b, step.count, c, by)
            count = [rows - r] if last else []
            e.call(function, *given, *count, *accumulate)

        whole = full_tiles(tile, rows) * tile.rows
        with e.loop(0, whole, tile.rows) as r:
            call(self.big, r)
        with e.loop(whole, rows, tile.small) as r:
            call(self.small, r, last=True)
