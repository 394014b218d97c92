"""Products of many rows by matrix registers, with weights in panels.

Weights are taken `STEPS` steps of 64 terms at a time: their levels are written as signed bytes into
scratch memory, from which every tile of 16 rows multiplies them. Registers multiply 64 terms, but a
group has 16 or 32 of them with a scale of their own. So each group becomes a matrix of 16 words of
which only its own are not 0; those of neighbors share their zeros. The sums of a group are stored,
loaded as vectors, a row each, scaled and added to what the row has so far.
"""

from __future__ import annotations

from functools import cache

from treadle.backends.codegen.block_products.kernel import Spec
from treadle.backends.codegen.block_products.levels import Header, Levels
from treadle.backends.codegen.kernel import builder
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.base import dtype as dt
from treadle.base.blocks.activations import TERMS
from treadle.base.blocks.panels import ROWS

LINES = 16
"""Rows of a matrix register, words of each of them, and columns of a panel."""
STEP = 64
"""Terms of a step."""
STEPS = 8
"""Steps whose levels are in scratch memory at a time."""
MOST_TILES = 16
"""Tiles of rows of an item, whose sums are in scratch memory."""
_ROWS = 0, 7
"""Registers of rows: their high bytes, or all, and their low ones."""
_AREA = LINES * LINES
"""Words of a matrix."""


@cache
def matrices_kernel(spec: Spec, name: str, features: tuple[str, ...]) -> Kernel:
    """A kernel with the parameters of `product_kernel`; tiles have 16 rows."""
    writer = _Matrices(spec)
    return builder.kernel(
        f"blocks_{name}_{spec.records.kind}_matrices",
        writer.parameters,
        writer.write,
        features=features,
    )


class _Matrices:
    """Writes the kernel."""

    def __init__(self, spec: Spec) -> None:
        self.spec, self.layout, self.records = spec, spec.layout, spec.records
        self.levels = Levels(spec.layout, LINES)
        self.groups = STEP // spec.layout.group
        self.rows, self.weights = pointer(dt.int32, "records"), pointer(dt.uint8, "panels")
        self.y = pointer(spec.dtype, "y")
        names = ("m", "n", "blocks", "panel_count", "chunk")
        self.m, self.n, self.blocks, self.panels, self.chunk = map(size, names)

    @property
    def parameters(self) -> list[Value]:
        """In order."""
        sizes = [self.m, self.n, self.blocks, self.panels, self.chunk]
        return [self.rows, self.weights, self.y, *sizes]

    def write(self, e: Builder, lo: Value, hi: Value) -> None:
        """Items: some tiles with one panel."""
        many = STEPS * self.groups
        self.words = e.stack(dt.int32, many * _AREA)
        self.scales = e.stack(dt.float32, many * LINES)
        self.minima = e.stack(dt.float32, many * LINES)
        self.counts = e.stack(dt.int32, self.groups * self.records.bytes * _AREA)
        self.sums = e.stack(dt.float32, MOST_TILES * _AREA)
        e.zero(self.words, many * _AREA)
        e.begin_matrices()
        e.loop(lo, hi, 1, lambda i: self._item(e, i))
        e.end_matrices()

    def _item(self, e: Builder, i: Value) -> None:
        first = e.mul(e.div(i, self.panels), self.chunk)
        panel = e.rem(i, self.panels)
        weights = e.offset(self.weights, e.mul(panel, e.mul(self.blocks, self.layout.block)))
        all_tiles = e.div(e.add(self.m, LINES - 1), LINES)
        tiles = e.min(self.chunk, e.sub(all_tiles, first))
        steps = e.div(e.mul(self.blocks, self.layout.elements), STEP)
        pitch = e.mul(steps, self.records.units)
        rows = e.offset(self.rows, e.mul(first, pitch))
        e.zero(self.sums, e.mul(tiles, _AREA))

        def part(step: Value) -> None:
            count = e.min(e.sub(steps, step), STEPS)
            self._unpack(e, weights, step, count)

            def tile(t: Value) -> None:
                at = e.add(e.mul(t, pitch), e.mul(step, self.records.units))
                self._tile(e, e.offset(rows, at), e.offset(self.sums, e.mul(t, _AREA)), count)

            e.loop(0, tiles, 1, tile)

        e.loop(0, steps, STEPS, part)
        e.loop(0, tiles, 1, lambda t: self._store(e, first, t, panel))

    def _store(self, e: Builder, first: Value, t: Value, panel: Value) -> None:
        column = e.mul(panel, ROWS)
        mask = e.first_lanes(e.sub(self.n, column), LINES)
        top = e.mul(e.add(first, t), LINES)
        sums = e.offset(self.sums, e.mul(t, _AREA))

        def row(r: Value) -> None:
            value = e.cast(e.load(sums, e.mul(r, LINES), LINES), self.spec.dtype)
            e.store(self.y, e.add(e.mul(e.add(top, r), self.n), column), value, mask)

        e.loop(0, e.min(e.sub(self.m, top), LINES), 1, row)

    def _unpack(self, e: Builder, weights: Value, step: Value, count: Value) -> None:
        """Levels, scales and minima of some steps."""
        layout = self.layout
        taken = max(1, STEP // layout.elements)  # blocks of a step
        whole = max(1, layout.elements // STEP)  # steps of a block
        first = e.div(e.mul(step, taken), whole)

        def turn(i: Value) -> None:
            for b in range(taken):
                block = e.offset(
                    weights, e.mul(e.add(e.add(first, e.mul(i, taken)), b), layout.block)
                )
                header = self.levels.header(e, block, 0)

                def piece(
                    p: Value,
                    b: int = b,
                    block: Value = block,
                    header: Header = header,
                ) -> None:
                    here = e.offset(block, e.add(e.mul(p, layout.piece), layout.header))
                    group = e.add(e.mul(i, whole * self.groups), e.mul(p, layout.groups))
                    group = e.add(group, b * (layout.elements // layout.group))
                    self._groups(e, here, group, header)

                e.loop(0, layout.pieces, 1, piece)

        e.loop(0, e.div(count, whole), 1, turn)

    def _groups(self, e: Builder, piece: Value, first: Value, header: Header) -> None:
        """The groups of a piece, the first of which is so many behind the scratch's first."""
        for group in range(self.layout.groups):
            number = e.add(first, group)
            scale, minimum = self.levels.scales(e, piece, group, 0, header)
            e.store(self.scales, e.mul(number, LINES), scale)
            if minimum is not None:
                e.store(self.minima, e.mul(number, LINES), minimum)
            target = e.offset(self.words, e.mul(number, _AREA))
            for i, level in enumerate(self.levels.words(e, piece, group, 0)):
                signed = e.bitcast(level, dt.int8)
                if self.layout.offset:
                    offset = self.layout.offset
                    signed = e.sub(signed, offset - 256 * (offset > 127))
                e.store(target, i * LINES, e.bitcast(signed, dt.int32))

    def _counted(self, e: Builder, group: int, row: int) -> Value:
        """Sums of a group for a row."""
        first = group * self.records.bytes * _AREA + row * LINES
        found = e.load(self.counts, first, LINES)
        if self.records.bytes == 1:
            return found
        return e.add(e.bitwise("shl", found, 8), e.load(self.counts, first + _AREA, LINES))

    def _tile(self, e: Builder, rows: Value, sums: Value, count: Value) -> None:
        """Sixteen rows times the levels in scratch memory."""
        records, groups = self.records, self.groups
        width = (self.layout.group // 4) * LINES

        def step(s: Value, *sums: Value) -> tuple[Value, ...]:
            record = e.offset(rows, e.mul(s, records.units))
            floats = e.reinterpret(record, dt.float32)
            place = e.mul(s, groups)
            words = e.offset(self.words, e.mul(place, _AREA))
            for byte in range(records.bytes):
                e.matrix_load(_ROWS[byte], e.offset(record, records.word(0, byte)), LINES)
            for g in range(groups):
                # Group g has its words at those of its terms, zeros before and behind.
                e.matrix_load(1 + g % 2, e.offset(words, g * (_AREA - width)), LINES)
                for byte in range(records.bytes):
                    register = 3 + (2 * g + byte) % 4
                    area = e.offset(self.counts, (g * records.bytes + byte) * _AREA)
                    e.matrix_zero(register)
                    e.matrix_dot(register, _ROWS[byte], 1 + g % 2, dt.int8, dt.int8)
                    e.matrix_store(register, area, LINES)
            made = list(sums)
            for g in range(groups):
                at = e.mul(e.add(place, g), LINES)
                scale = e.load(self.scales, at, LINES)
                minimum = e.load(self.minima, at, LINES) if self.layout.minimum else None
                part = g * self.layout.group // TERMS
                for r in range(LINES):
                    counted = self._counted(e, g, r)
                    factor = e.mul(scale, e.load(floats, records.scale(part) + r))
                    made[r] = e.fma(e.cast(counted, dt.float32), factor, made[r])
                    if minimum is not None:
                        total = e.load(floats, records.total(g) + r)
                        made[r] = e.fma(minimum, total, made[r])
            return tuple(made)

        before = [e.load(sums, r * LINES, LINES) for r in range(LINES)]
        for r, value in enumerate(e.loop(0, count, 1, step, before)):
            e.store(sums, r * LINES, value)
