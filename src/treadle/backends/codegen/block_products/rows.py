"""Rows of activations as integers, in the order in which products read them.

Rows are taken `tile` at a time. For every 32 terms there is a record, in units of 4 bytes, of all
rows of a tile: their words of four bytes, word by word (of integers of 16 bits first those of high
bytes, then those of low ones, both signed, or, in `pairs`, first the even terms of each four, then
the odd ones); their scales; where levels have an offset, what sums of a group of weights begin
with, the offset times the integers, negated; where groups have minima, the sums of what the
integers stand for. A kernel thus reads through one pointer.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import cache, reduce

from treadle.backends.codegen.block_products.levels import is_signed
from treadle.backends.codegen.kernel.builder import KernelBuilder
from treadle.backends.codegen.kernel.language import (
    Pointer,
    Value,
    fma,
    maximum,
    minimum,
    rint,
    select,
    shuffle,
)
from treadle.backends.codegen.kernel.records import P, Record, RecordedKernel, S
from treadle.base import dtype as dt
from treadle.base.blocks.activations import LEAST, LEVELS, TERMS
from treadle.base.blocks.panels import PanelLayout
from treadle.base.dtype import DType


@dataclass(frozen=True, slots=True)
class Records:
    """Records of tiles of rows, for weights of a layout.

    They hold integers of a `kind`, a key of `LEVELS`. With `matrices` they are for matrix
    registers: of 64 terms, the bytes of a row side by side, 16 rows. Levels are signed there, so
    that sums begin with 0. With `pairs`, words hold two integers of 16 bits, for processors that
    multiply these rather than bytes. With `signed`, levels are signed bytes.
    """

    tile: int
    layout: PanelLayout
    kind: str
    matrices: bool = False
    pairs: bool = False
    signed: bool = False

    @property
    def label(self) -> str:
        """A part of the names of kernels of these records."""
        return f"{self.kind}{'_pairs' * self.pairs}{'_signed' * self.signed}"

    @property
    def terms(self) -> int:
        """Terms of a record."""
        return 2 * TERMS if self.matrices else TERMS

    @property
    def words(self) -> int:
        """Words of a row in a record."""
        return self.terms // 4

    @property
    def groups(self) -> int:
        """Groups of weights per record."""
        return self.terms // self.layout.group

    @property
    def bytes(self) -> int:
        """Bytes of an integer of the records."""
        return 2 if self.kind == "int16" else 1

    def word(self, index: int, byte: int = 0) -> int:
        """The place of a word of the first row; byte 0 is the highest."""
        place = index if self.matrices else index * self.tile
        return place + byte * self.words * self.tile

    @property
    def pitch(self) -> int:
        """The distance between words of neighboring rows, in words."""
        return self.words if self.matrices else 1

    def scale(self, part: int = 0) -> int:
        """The place of the scales of 32 terms."""
        return self.tile * (self.bytes * self.words + part)

    def start(self, group: int) -> int:
        """The place of what sums of a group begin with."""
        return self.scale(self.terms // TERMS + group)

    @property
    def starts(self) -> bool:
        """True where sums begin with something."""
        if self.matrices or (self.signed and is_signed(self.layout)):
            return False
        return bool(self.layout.offset)

    def total(self, group: int) -> int:
        """The place of the sums of a group."""
        return self.start(self.groups * self.starts + group)

    @property
    def units(self) -> int:
        """Units of 4 bytes per record."""
        return self.total(self.groups * self.layout.minimum)


class RowsParameters(Record[P, S], records=dt.int32):
    """Rows x [rows, terms], their records, and the number of those of a row."""

    x: P
    records: P
    count: S


@cache
def rows_kernel(
    records: Records, dtype: DType, lanes: int, *, apart: bool = False
) -> RecordedKernel:
    """A kernel over rows, or, `apart`, over the records of rows."""
    e = KernelBuilder()
    p = e.record(RowsParameters[Pointer, Value], x=dtype)
    count = p.count
    with e.items() as item:
        r, only = (item // count, item % count) if apart else (item, None)
        source = p.x + r * (count * records.terms)
        tile = r // records.tile * (count * records.units)
        target, slot = p.records + tile, r % records.tile

        def record(i: Value) -> None:
            given = source + i * records.terms
            into = target + i * records.units
            for part in range(records.terms // TERMS):
                _part(records, part, given + part * TERMS, (into, slot), lanes)

        if only is not None:
            record(only)
        else:
            with e.loop(count) as i:
                record(i)
    kind = "matrices" if records.matrices else str(records.tile)
    return RecordedKernel(e.kernel(f"quantize_rows_{dtype.name}_{records.label}_{kind}"), p)


def _part(
    records: Records, part: int, source: Pointer, into: tuple[Pointer, Value], lanes: int
) -> None:
    """A row's 32 terms in a record, in a slot of it."""
    given = [source.load(i, lanes).cast(dt.float32) for i in range(0, TERMS, lanes)]
    levels = LEVELS[records.kind]
    scale, inverse = _scale(given, levels)
    # Not finite values, whose scale is NaN already, become some integer.
    integers = [
        minimum(maximum(rint(value * inverse), -levels), levels).cast(dt.int32) for value in given
    ]
    target, slot = into
    rows = target + slot * records.pitch
    if records.pairs:
        _pairs(records, rows, integers)
    elif records.bytes == 2:
        high = [(x + 128) >> 8 for x in integers]
        low = [x - (h << 8) for x, h in zip(integers, high, strict=True)]
        _words(records, part, rows, high)
        _words(records, part, rows + records.word(0, 1), low)
    else:
        _words(records, part, rows, integers)
    numbers = target + slot
    floats = numbers.reinterpret(dt.float32)
    floats[records.scale(part)] = scale
    groups = TERMS // records.layout.group
    each = len(integers) // groups
    for group in range(groups):
        total = reduce(operator.add, integers[group * each : (group + 1) * each]).reduce("add")
        if records.starts:
            numbers[records.start(group)] = total * -records.layout.offset
        if records.layout.minimum:
            floats[records.total(part * groups + group)] = total.cast(dt.float32) * scale


def _words(records: Records, part: int, target: Pointer, bytes_: list[Value]) -> None:
    """Store bytes, which are int32 yet, as words."""
    at = part * TERMS // 4
    for value in bytes_:
        packed = value.cast(dt.int8).bitcast(dt.int32)
        if records.matrices:
            target[records.word(at)] = packed
        else:
            for i in range(packed.lanes):
                word = packed if packed.lanes == 1 else packed.extract(i)
                target[records.word(at + i)] = word
        at += packed.lanes


def _pairs(records: Records, target: Pointer, integers: list[Value]) -> None:
    """Store integers as words of two: of every four terms the even ones, then the odd ones."""
    at = 0
    for value in integers:
        narrow = value.cast(dt.int16)
        order = [four + i for four in range(0, value.lanes, 4) for i in (0, 2, 1, 3)]
        packed = shuffle(narrow, narrow, order).bitcast(dt.int32)
        for i in range(packed.lanes):
            target[records.word(at + i // 2, i % 2)] = packed.extract(i)
        at += packed.lanes // 2


def _scale(given: list[Value], levels: int) -> tuple[Value, Value]:
    """The scale of a row's part, NaN where a value is not finite, and what values are times."""
    largest, wrong = abs(given[0]), given[0] * 0.0
    for value in given[1:]:
        largest = maximum(largest, abs(value))
        wrong = fma(value, 0.0, wrong)
    most = largest.reduce("max")
    seen = most > LEAST
    inverse = select(seen, float(levels) / most, 0.0)
    scale = select(seen, most / float(levels), 0.0)
    return scale + wrong.reduce("add"), inverse
