"""Products of many rows by matrix registers, with weights in panels.

Weights are taken `STEPS` steps of 64 terms at a time: their levels are written as signed bytes into
scratch memory, from which every tile of 16 rows multiplies them. Registers multiply 64 terms, but a
group has 16 or 32 of them with a scale of their own. So each group becomes a matrix of 16 words of
which only its own are not 0; those of neighbors share their zeros. The sums of a group are stored,
loaded as vectors, a row each, scaled and added to what the row has so far.
"""

from __future__ import annotations

from functools import cache

from treadle.backends.codegen.block_products.kernel import BlockConfig, ProductParameters
from treadle.backends.codegen.block_products.levels import Header, Levels
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.language import Pointer, Value, fma, minimum
from treadle.backends.codegen.kernel.records import RecordedKernel
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
def matrices_kernel(spec: BlockConfig, name: str, features: tuple[str, ...]) -> RecordedKernel:
    """A kernel with the parameters of `product_kernel`; tiles have 16 rows."""
    return _Matrices(spec).kernel(f"blocks_{name}_{spec.records.kind}_matrices", features)


class _Matrices:
    """Writes the kernel."""

    def __init__(self, spec: BlockConfig) -> None:
        self.spec, self.layout, self.records = spec, spec.layout, spec.records
        self.levels = Levels(spec.layout, LINES)
        self.groups = STEP // spec.layout.group
        self.e = e = KernelBuilder()
        self.p = e.record(ProductParameters[Pointer, Value], y=spec.dtype)
        many = STEPS * self.groups
        self.words = e.stack(dt.int32, many * _AREA)
        self.scales = e.stack(dt.float32, many * LINES)
        self.minima = e.stack(dt.float32, many * LINES)
        self.counts = e.stack(dt.int32, self.groups * self.records.bytes * _AREA)
        self.sums = e.stack(dt.float32, MOST_TILES * _AREA)

    def kernel(self, name: str, features: tuple[str, ...]) -> RecordedKernel:
        """Items: some tiles with one panel."""
        e = self.e
        self.words.zero(STEPS * self.groups * _AREA)
        e.begin_matrices()
        with e.items() as i:
            self._item(i)
        e.end_matrices()
        return RecordedKernel(e.kernel(name, features=features), self.p)

    def _item(self, i: Value) -> None:
        e, p, sizes = self.e, self.p, self.p.sizes
        first = i // sizes.panel_count * p.chunk
        panel = i % sizes.panel_count
        weights = p.panels + panel * (sizes.blocks * self.layout.block)
        all_tiles = (sizes.m + (LINES - 1)) // LINES
        tiles = minimum(p.chunk, all_tiles - first)
        steps = sizes.blocks * self.layout.elements // STEP
        pitch = steps * self.records.units
        rows = p.records + first * pitch
        self.sums.zero(tiles * _AREA)
        with e.loop(0, steps, STEPS) as step:
            count = minimum(steps - step, STEPS)
            self._unpack(weights, step, count)
            with e.loop(tiles) as t:
                at = t * pitch + step * self.records.units
                self._tile(rows + at, self.sums + t * _AREA, count)
        with e.loop(tiles) as t:
            self._store(first, t, panel)

    def _store(self, first: Value, t: Value, panel: Value) -> None:
        column, sizes = panel * ROWS, self.p.sizes
        mask = self.e.first_lanes(sizes.n - column, LINES)
        top = (first + t) * LINES
        sums = self.sums + t * _AREA
        with self.e.loop(minimum(sizes.m - top, LINES)) as r:
            value = sums.load(r * LINES, LINES).cast(self.spec.dtype)
            self.p.y.store((top + r) * sizes.n + column, value, mask)

    def _unpack(self, weights: Pointer, step: Value, count: Value) -> None:
        """Levels, scales and minima of some steps."""
        layout = self.layout
        taken = max(1, STEP // layout.elements)  # blocks of a step
        whole = max(1, layout.elements // STEP)  # steps of a block
        first = step * taken // whole
        with self.e.loop(count // whole) as i:
            for b in range(taken):
                block = weights + (first + i * taken + b) * layout.block
                header = self.levels.header(block, 0)
                with self.e.loop(layout.pieces) as p:
                    here = block + (p * layout.piece + layout.header)
                    group = i * (whole * self.groups) + p * layout.groups
                    group += b * (layout.elements // layout.group)
                    self._groups(here, group, header)

    def _groups(self, piece: Pointer, first: Value, header: Header) -> None:
        """The groups of a piece, the first of which is so many behind the scratch's first."""
        for group in range(self.layout.groups):
            number = first + group
            scale, least = self.levels.scales(piece, group, 0, header)
            self.scales[number * LINES] = scale
            if least is not None:
                self.minima[number * LINES] = least
            target = self.words + number * _AREA
            for i, level in enumerate(self.levels.words(piece, group, 0)):
                signed = level.bitcast(dt.int8)
                if self.layout.offset:
                    offset = self.layout.offset
                    signed -= offset - 256 * (offset > 127)
                target[i * LINES] = signed.bitcast(dt.int32)

    def _counted(self, group: int, row: int) -> Value:
        """Sums of a group for a row."""
        first = group * self.records.bytes * _AREA + row * LINES
        found = self.counts.load(first, LINES)
        if self.records.bytes == 1:
            return found
        return (found << 8) + self.counts.load(first + _AREA, LINES)

    def _tile(self, rows: Pointer, sums: Pointer, count: Value) -> None:
        """Sixteen rows times the levels in scratch memory."""
        made = [sums.load(r * LINES, LINES) for r in range(LINES)]
        with self.e.loop(count, carrying=made) as s:
            record = rows + s * self.records.units
            floats = record.reinterpret(dt.float32)
            place = s * self.groups
            self._multiply(record, self.words + place * _AREA)
            self._add(floats, place, made)
        for r, value in enumerate(made):
            sums[r * LINES] = value

    def _multiply(self, record: Pointer, words: Pointer) -> None:
        """Sums of the groups of a step, of all rows."""
        e, records = self.e, self.records
        width = (self.layout.group // 4) * LINES
        for byte in range(records.bytes):
            e.matrix_load(_ROWS[byte], record + records.word(0, byte), LINES)
        for g in range(self.groups):
            # Group g has its words at those of its terms, zeros before and behind.
            e.matrix_load(1 + g % 2, words + g * (_AREA - width), LINES)
            for byte in range(records.bytes):
                register = 3 + (2 * g + byte) % 4
                area = self.counts + (g * records.bytes + byte) * _AREA
                e.matrix_zero(register)
                e.matrix_dot(register, _ROWS[byte], 1 + g % 2, dt.int8, dt.int8)
                e.matrix_store(register, area, LINES)

    def _add(self, floats: Pointer, place: Value, made: list[Value]) -> None:
        """Add the sums of a step's groups, scaled, to what the rows have so far."""
        records = self.records
        for g in range(self.groups):
            at = (place + g) * LINES
            scale = self.scales.load(at, LINES)
            least = self.minima.load(at, LINES) if self.layout.minimum else None
            part = g * self.layout.group // TERMS
            for r in range(LINES):
                counted = self._counted(g, r)
                factor = scale * floats[records.scale(part) + r]
                made[r] = fma(counted.cast(dt.float32), factor, made[r])
                if least is not None:
                    made[r] = fma(least, floats[records.total(g) + r], made[r])
