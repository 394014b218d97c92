"""The kernel of a contraction: items of rows by panels, each packed, multiplied and finished.

c[m, n] = epilogue(sum over k of a[m, k] * b[k, n]), once per position of the batch axes. Extents,
strides and block sizes are parameters: one kernel serves every shape. An item is `height` rows by
`width` panels; it packs its panels of b into scratch memory, then goes through its rows in blocks
of `block`, panel after panel, tile after tile, reading a where it lies. Long sums are built
in steps of `depth` terms.

The terms of a sum are added in one order, whatever the items and the threads that run them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial, reduce

from treadle.backends.codegen.contraction.product.patches import patch_function
from treadle.backends.codegen.contraction.shared.epilogue import Block, Epilogue, Place, finish
from treadle.backends.codegen.contraction.shared.items import (
    STATISTICS,
    Contraction,
    Item,
    Items,
    moved,
)
from treadle.backends.codegen.contraction.shared.moments import moments_function
from treadle.backends.codegen.contraction.shared.pack import Order, pack_function
from treadle.backends.codegen.contraction.shared.tile import Form, Tile, full_tiles, tile_function
from treadle.backends.codegen.kernel import builder, ir
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Function, Value
from treadle.base.dtype import DType


@dataclass(frozen=True, slots=True)
class Spec:
    """What a kernel has as constants.

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
        """Whether tiles store their sums in the result at once."""
        return not self.positions and self.epilogue.stores_sums(self.tile.dtype)

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables of offsets; see `Problem`."""
        names = ["terms", "columns"] if self.patches else []
        names += ["row_table", "term_table"] if self.form in ("table", "picked") else []
        names += ["b_table"] if self.form == "picked" else []
        return (*names, "positions") if self.positions else (*names,)


Args = tuple[Value, ...]


@dataclass(slots=True)
class Step:
    """Terms [first, first + count) of the sums."""

    first: Value
    count: Value
    last: Value | None = None


@lru_cache(maxsize=512)
def contraction_kernel(spec: Spec) -> Contraction:
    """The kernel of a specification; equal specifications share it."""
    writer = _Writer(spec)
    kernel = builder.kernel(
        writer.name(), list(writer.items.parameters.values()), writer.write, writer.functions()
    )
    return Contraction(kernel, tuple(writer.items.parameters))


@dataclass(slots=True)
class _Writer:
    """Writes one kernel."""

    spec: Spec
    items: Items = field(init=False)
    big: Function = field(init=False)
    small: Function = field(init=False)
    pack_b: Function | None = None
    moments: Function | None = None
    b_panels: Value = field(init=False)
    sums: Value = field(init=False)

    def __post_init__(self) -> None:
        spec = self.spec
        self.items = Items(
            spec.tile.width,
            spec.tile.dtype,
            spec.b,
            spec.batch,
            spec.epilogue,
            spec.tables,
            spec.measured >= 0,
        )
        self.big = tile_function(spec.tile, spec.form, small=False, accumulate=spec.split)
        self.small = tile_function(spec.tile, spec.form, small=True, accumulate=spec.split)
        if spec.measured >= 0:
            self.moments = moments_function(spec.tile)
        if spec.patches:
            self.pack_b = patch_function(spec.tile)
        elif spec.b_order is not None:
            self.pack_b = pack_function(spec.tile, spec.b, spec.b_order, panel=True)

    def name(self) -> str:
        """A name that tells kernels apart in reports."""
        spec = self.spec
        order: str = "in_place" if spec.in_place else spec.b_order or "panels"
        order = "patches" if spec.patches else order
        steps = "".join(f"_{s.op.name}" for s in spec.epilogue.steps[:3])
        steps += "_moments" if spec.measured >= 0 else ""
        return f"contract_{spec.b.name}_{spec.form}_{order}{steps}"

    def functions(self) -> list[Function]:
        """What the entry calls."""
        return [f for f in (self.big, self.small, self.pack_b, self.moments) if f is not None]

    def __getitem__(self, name: str) -> Value:
        return self.items[name]

    # -- items -----------------------------------------------------------------------------

    def write(self, e: Builder, lo: Value, hi: Value) -> None:
        """The entry."""
        spec = self.spec
        if self.pack_b is not None:
            self.b_panels = e.stack(spec.tile.dtype, spec.panels)
        self.sums = e.stack(spec.tile.dtype, spec.sums)
        # Neighboring items share their panels: those of the last item are still there.
        fresh = e.constant(-1, ir.INDEX.dtype)

        def item(i: Value, packed: Value) -> Value:
            group = e.div(i, self["row_items"])
            self._item(e, self.items.locate(e, i, group), e.compare("ne", group, packed))
            return group

        e.loop(lo, hi, 1, item, (fresh,))

    def _item(self, e: Builder, item: Item, fresh: Value) -> None:
        if not self.spec.split:
            self._terms(e, item, Step(e.index(0), self["k"]), fresh)
            return

        def terms(first: Value) -> None:
            rest = e.sub(self["k"], first)
            count = e.min(self["depth"], rest)
            last = e.compare("le", rest, self["depth"])
            self._terms(e, item, Step(first, count, last), None)

        e.loop(0, self["k"], self["depth"], terms)

    # -- packing ---------------------------------------------------------------------------

    def _terms(self, e: Builder, item: Item, step: Step, fresh: Value | None) -> None:
        """Add some terms to all sums of an item."""
        if self.pack_b is not None and fresh is not None:
            e.branch(fresh, partial(self._pack_panels, e, item, step))
        elif self.pack_b is not None:
            self._pack_panels(e, item, step)

        def block(row: Value) -> None:
            rows = e.min(self["block"], e.sub(item.rows, row))
            a = self._rows_of_a(e, item, step, e.add(item.row, row))
            e.loop(0, item.panels, 1, lambda p: self._panel(e, item, step, (row, rows, a), p))

        e.loop(0, item.rows, self["block"], block)

    def _rows_of_a(self, e: Builder, item: Item, step: Step, row: Value) -> Callable[..., Args]:
        """What tells a tile where its rows of a lie, given how far behind `row` they begin."""
        if self.spec.form in ("table", "picked"):
            rows = e.offset(self["row_table"], row)
            terms = e.offset(self["term_table"], step.first)
            return lambda r: (item.a, e.offset(rows, r), terms)
        a = e.offset(item.a, e.mul(step.first, self["a_term"]))
        a = e.offset(a, e.mul(row, self["a_row"]))
        if self.spec.form == "column":
            return lambda r: (e.offset(a, r), self["a_term"])
        return lambda r: (e.offset(a, e.mul(r, self["a_row"])), self["a_row"])

    def _pack_panels(self, e: Builder, item: Item, step: Step) -> None:
        width = self.spec.tile.width

        def panel(p: Value) -> None:
            column = e.mul(e.add(item.panel, p), width)
            if self.spec.in_place:
                ragged = e.compare("lt", e.sub(self["n"], column), width)
                e.branch(ragged, lambda: self._pack_panel(e, item, step, p, column))
            else:
                self._pack_panel(e, item, step, p, column)

        e.loop(0, item.panels, 1, panel)

    def _pack_panel(self, e: Builder, item: Item, step: Step, p: Value, column: Value) -> None:
        if self.pack_b is None:
            return
        width = self.spec.tile.width
        target = e.offset(self.b_panels, e.mul(p, e.mul(step.count, width)))
        count = e.min(e.sub(self["n"], column), width)
        if self.spec.patches:
            terms, columns = e.offset(self["terms"], step.first), e.offset(self["columns"], column)
            e.call(self.pack_b, item.b, terms, columns, target, step.count, count)
            return
        steps = self["b_term"], self["b_column"]
        start = e.offset(item.b, e.mul(step.first, steps[0]))
        start = e.offset(start, e.mul(column, steps[1]))
        e.call(self.pack_b, start, *steps, target, width, step.count, count)

    # -- tiles -----------------------------------------------------------------------------

    def _panel(
        self,
        e: Builder,
        item: Item,
        step: Step,
        rows_of_a: tuple[Value, Value, Callable[..., Args]],
        p: Value,
    ) -> None:
        """A block of rows times one panel."""
        spec, width = self.spec, self.spec.tile.width
        row, rows, a = rows_of_a
        column = e.mul(e.add(item.panel, p), width)
        columns = e.sub(self["n"], column)
        b = self._panel_of_b(e, item, step, p, column)
        place = e.index(0)
        if spec.split:
            place = e.mul(e.add(e.mul(p, self["height"]), row), width)
        sums = e.offset(self.sums, place)
        results, extras = (
            [moved(e, place, e.add(item.row, row), column) for place in places]
            for places in (item.results, item.extras)
        )

        full = e.compare("le", width, columns)
        target = sums, e.index(width)
        if spec.direct:
            c = results[0]
            there, here = (c.pointer, c.row_step), target
            pointer, by = e.branch(full, lambda: there, lambda: here, target)
            target = pointer, by
        self._tiles(e, step, (rows, a), b, target)

        def end() -> None:
            block = Block(sums, width, rows, columns)
            finish(e, spec.tile, spec.epilogue, block, extras, results, ragged=spec.direct)

        conditions = [] if step.last is None else [step.last]
        conditions += [e.invert(full)] if spec.direct else []
        _when(e, conditions, end)
        if self.moments is not None:
            at = e.div(e.add(item.row, row), self["block"]), column, rows, columns
            measure = partial(self._measure, e, results[spec.measured], at)
            _when(e, [] if step.last is None else [step.last], measure)

    def _measure(self, e: Builder, result: Place, at: tuple[Value, ...]) -> None:
        """The statistics of a block of rows of a result, which is still in the first cache."""
        if self.moments is None:
            return
        block, column, rows, columns = at
        place = e.add(e.mul(block, self["n"]), column)
        means, squares = (e.offset(self[name], place) for name in STATISTICS)
        e.call(self.moments, result.pointer, result.row_step, means, squares, rows, columns)

    def _panel_of_b(
        self, e: Builder, item: Item, step: Step, p: Value, column: Value
    ) -> tuple[Value, Value]:
        """Where a panel lies, and the step from term to term, or the table of terms."""
        width = self.spec.tile.width
        if self.spec.form == "picked":
            place = e.mul(e.add(item.panel, p), self["panel_terms"])
            return e.offset(item.b, e.mul(place, width)), e.offset(self["b_table"], step.first)
        if self.pack_b is None:
            place = e.add(e.mul(e.add(item.panel, p), self["k"]), step.first)
            return e.offset(item.b, e.mul(place, width)), e.index(width)
        packed = e.offset(self.b_panels, e.mul(p, e.mul(step.count, width))), e.index(width)
        if not self.spec.in_place:
            return packed

        def there() -> tuple[Value, Value]:
            start = e.offset(item.b, e.mul(step.first, self["b_term"]))
            return e.offset(start, column), self["b_term"]

        full = e.compare("le", width, e.sub(self["n"], column))
        pointer, by = e.branch(full, there, lambda: packed, packed)
        return pointer, by

    def _tiles(
        self,
        e: Builder,
        step: Step,
        rows_of_a: tuple[Value, Callable[..., Args]],
        b: tuple[Value, Value],
        target: tuple[Value, Value],
    ) -> None:
        """Full tiles, then small ones for the last rows; the cut is that of `Tile.cut`."""
        tile = self.spec.tile
        rows, a = rows_of_a
        accumulate = [e.select(e.compare("eq", step.first, 0), 0, e.index(1))]
        accumulate = accumulate if self.spec.split else []

        def tiles(function: Function, count: Callable[[Value], list[Value]]) -> Callable[..., None]:
            def call(r: Value) -> None:
                c = e.offset(target[0], e.mul(r, target[1]))
                arguments = (*a(r), *b, step.count, c, target[1])
                e.call(function, *arguments, *count(r), *accumulate)

            return call

        whole = e.mul(full_tiles(e, tile, rows), tile.rows)
        e.loop(0, whole, tile.rows, tiles(self.big, lambda r: []))
        e.loop(whole, rows, tile.small, tiles(self.small, lambda r: [e.sub(rows, r)]))


def _when(e: Builder, conditions: list[Value], write: Callable[[], None]) -> None:
    """Write something that runs where all conditions hold."""
    if conditions:
        e.branch(reduce(partial(e.bitwise, "and"), conditions), write)
    else:
        write()
