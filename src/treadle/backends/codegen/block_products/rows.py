"""Rows of activations as bytes, in the order in which products read them.

Rows are taken `tile` at a time. For every 32 terms there is a record, in units of 4 bytes, of all
rows of a tile: their words of four bytes, word by word; their scales; where levels have an offset,
what sums of a group of weights begin with, the offset times the bytes, negated; where groups have
minima, the sums of what the bytes stand for. A kernel thus reads through one pointer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from treadle.backends.codegen.kernel import builder
from treadle.backends.codegen.kernel.builder import Builder
from treadle.backends.codegen.kernel.ir import Kernel, Value, pointer, size
from treadle.base import dtype as dt
from treadle.base.blocks.activations import LEAST, LEVELS, TERMS
from treadle.base.blocks.panels import Layout
from treadle.base.dtype import DType

WORDS = TERMS // 4
"""Words of a row in a record."""


@dataclass(frozen=True, slots=True)
class Records:
    """Records of tiles of rows, for weights of a layout."""

    tile: int
    layout: Layout

    @property
    def groups(self) -> int:
        """Groups of weights per record."""
        return TERMS // self.layout.group

    @property
    def scales(self) -> int:
        """The place of the scales."""
        return self.tile * WORDS

    def start(self, group: int) -> int:
        """The place of what sums of a group begin with."""
        return self.scales + self.tile * (1 + group)

    def total(self, group: int) -> int:
        """The place of the sums of a group."""
        return self.start(self.groups * bool(self.layout.offset)) + self.tile * group

    @property
    def units(self) -> int:
        """Units of 4 bytes per record."""
        return self.total(self.groups * self.layout.minimum)


@cache
def rows_kernel(records: Records, dtype: DType, lanes: int) -> Kernel:
    """A kernel over rows: (x, records, blocks of 32 terms), x [rows, 32 * blocks]."""
    x, made, blocks = pointer(dtype, "x"), pointer(dt.int32, "records"), size("blocks")

    def write(e: Builder, lo: Value, hi: Value) -> None:
        def row(r: Value) -> None:
            source = e.offset(x, e.mul(r, e.mul(blocks, TERMS)))
            tile = e.mul(e.div(r, records.tile), e.mul(blocks, records.units))
            target = e.offset(made, e.add(tile, e.rem(r, records.tile)))

            def block(i: Value) -> None:
                _record(
                    e,
                    records,
                    e.offset(source, e.mul(i, TERMS)),
                    e.offset(target, e.mul(i, records.units)),
                    lanes,
                )

            e.loop(0, blocks, 1, block)

        e.loop(lo, hi, 1, row)

    name = f"quantize_rows_{dtype.name}_{records.tile}"
    return builder.kernel(name, [x, made, blocks], write)


def _record(e: Builder, records: Records, source: Value, target: Value, lanes: int) -> None:
    """One row's part of a record."""
    given = [e.cast(e.load(source, i, lanes), dt.float32) for i in range(0, TERMS, lanes)]
    scale, inverse = _scale(e, given)
    bytes_ = []
    for value in given:
        level = e.unary("rint", e.mul(value, inverse))
        # Not finite values, whose scale is NaN already, become some byte.
        bytes_.append(e.cast(e.min(e.max(level, -LEVELS), LEVELS), dt.int32))
    tile, words = records.tile, []
    for value in bytes_:
        packed = e.bitcast(e.cast(value, dt.int8), dt.int32)
        words += (
            [packed] if packed.lanes == 1 else [e.extract(packed, i) for i in range(lanes // 4)]
        )
    for i, word in enumerate(words):
        e.store(target, i * tile, word)
    floats = e.reinterpret(target, dt.float32)
    e.store(floats, records.scales, scale)
    each = len(bytes_) // records.groups
    for group in range(records.groups):
        parts = bytes_[group * each : (group + 1) * each]
        total = parts[0]
        for part in parts[1:]:
            total = e.add(total, part)
        total = e.reduce("add", total)
        if records.layout.offset:
            e.store(target, records.start(group), e.mul(total, -records.layout.offset))
        if records.layout.minimum:
            what = e.mul(e.cast(total, dt.float32), scale)
            e.store(floats, records.total(group), what)


def _scale(e: Builder, given: list[Value]) -> tuple[Value, Value]:
    """The scale of a row's part, NaN where a value is not finite, and what values are times."""
    largest, wrong = e.abs(given[0]), e.mul(given[0], 0.0)
    for value in given[1:]:
        largest = e.max(largest, e.abs(value))
        wrong = e.fma(value, 0.0, wrong)
    most = e.reduce("max", largest)
    seen = e.compare("lt", e.constant(LEAST, dt.float32), most)
    inverse = e.select(seen, e.div(e.constant(float(LEVELS), dt.float32), most), 0.0)
    scale = e.select(seen, e.div(most, float(LEVELS)), 0.0)
    return e.add(scale, e.reduce("add", wrong)), inverse
