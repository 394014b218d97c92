"""Rows of activations as integers, in the order in which products read them.

Rows are taken `tile` at a time. For every 32 terms there is a record, in units of 4 bytes, of all
rows of a tile: their words of four bytes, word by word (of integers of 16 bits first those of high
bytes, then those of low ones, both signed, or, in `pairs`, first the even terms of each four, then
the odd ones); their scales; where levels have an offset, what sums of a group of weights begin
with, the offset times the integers, negated; where groups have minima, the sums of what the
integers stand for. A kernel thus reads through one pointer.
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


@dataclass(frozen=True, slots=True)
class Records:
    """Records of tiles of rows, for weights of a layout.

    They hold integers of a `kind`, a key of `LEVELS`. With `matrices` they are for matrix
    registers: of 64 terms, the bytes of a row side by side, 16 rows. Levels are signed there, so
    that sums begin with 0. With `pairs`, words hold two integers of 16 bits, for processors that
    multiply these rather than bytes.
    """

    tile: int
    layout: Layout
    kind: str
    matrices: bool = False
    pairs: bool = False

    @property
    def label(self) -> str:
        """What kernels of these records are named by."""
        return f"{self.kind}{'_pairs' * self.pairs}"

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
        """Of an integer."""
        return 2 if self.kind == "int16" else 1

    def word(self, index: int, byte: int = 0) -> int:
        """The place of a word of the first row; byte 0 is the highest."""
        place = index if self.matrices else index * self.tile
        return place + byte * self.words * self.tile

    @property
    def pitch(self) -> int:
        """From a row's word to that of the next row."""
        return self.words if self.matrices else 1

    def scale(self, part: int = 0) -> int:
        """The place of the scales of 32 terms."""
        return self.tile * (self.bytes * self.words + part)

    def start(self, group: int) -> int:
        """The place of what sums of a group begin with."""
        return self.scale(self.terms // TERMS + group)

    @property
    def starts(self) -> bool:
        """Whether there is something to begin with."""
        return bool(self.layout.offset) and not self.matrices

    def total(self, group: int) -> int:
        """The place of the sums of a group."""
        return self.start(self.groups * self.starts + group)

    @property
    def units(self) -> int:
        """Units of 4 bytes per record."""
        return self.total(self.groups * self.layout.minimum)


@cache
def rows_kernel(records: Records, dtype: DType, lanes: int) -> Kernel:
    """A kernel over rows: (x, records, records of a row), x [rows, terms]."""
    x, made, count = pointer(dtype, "x"), pointer(dt.int32, "records"), size("count")

    def write(e: Builder, lo: Value, hi: Value) -> None:
        def row(r: Value) -> None:
            source = e.offset(x, e.mul(r, e.mul(count, records.terms)))
            tile = e.mul(e.div(r, records.tile), e.mul(count, records.units))
            target, slot = e.offset(made, tile), e.rem(r, records.tile)

            def record(i: Value) -> None:
                given = e.offset(source, e.mul(i, records.terms))
                into = e.offset(target, e.mul(i, records.units))
                for part in range(records.terms // TERMS):
                    _part(e, records, part, e.offset(given, part * TERMS), (into, slot), lanes)

            e.loop(0, count, 1, record)

        e.loop(lo, hi, 1, row)

    kind = "matrices" if records.matrices else str(records.tile)
    name = f"quantize_rows_{dtype.name}_{records.label}_{kind}"
    return builder.kernel(name, [x, made, count], write)


def _part(
    e: Builder, records: Records, part: int, source: Value, into: tuple[Value, Value], lanes: int
) -> None:
    """A row's 32 terms in a record, in a slot of it."""
    given = [e.cast(e.load(source, i, lanes), dt.float32) for i in range(0, TERMS, lanes)]
    levels = LEVELS[records.kind]
    scale, inverse = _scale(e, given, levels)
    integers = []
    for value in given:
        level = e.unary("rint", e.mul(value, inverse))
        # Not finite values, whose scale is NaN already, become some integer.
        integers.append(e.cast(e.min(e.max(level, -levels), levels), dt.int32))
    target, slot = into
    rows = e.offset(target, e.mul(slot, records.pitch))
    if records.pairs:
        _pairs(e, records, rows, integers)
    elif records.bytes == 2:
        high = [e.bitwise("shr", e.add(x, 128), 8) for x in integers]
        low = [e.sub(x, e.bitwise("shl", h, 8)) for x, h in zip(integers, high, strict=True)]
        _words(e, records, part, rows, high)
        _words(e, records, part, e.offset(rows, records.word(0, 1)), low)
    else:
        _words(e, records, part, rows, integers)
    numbers = e.offset(target, slot)
    floats = e.reinterpret(numbers, dt.float32)
    e.store(floats, records.scale(part), scale)
    groups = TERMS // records.layout.group
    each = len(integers) // groups
    for group in range(groups):
        total = integers[group * each]
        for more in integers[group * each + 1 : (group + 1) * each]:
            total = e.add(total, more)
        total = e.reduce("add", total)
        if records.starts:
            e.store(numbers, records.start(group), e.mul(total, -records.layout.offset))
        if records.layout.minimum:
            what = e.mul(e.cast(total, dt.float32), scale)
            e.store(floats, records.total(part * groups + group), what)


def _words(e: Builder, records: Records, part: int, target: Value, bytes_: list[Value]) -> None:
    """Store bytes, which are int32 yet, as words."""
    at = part * TERMS // 4
    for value in bytes_:
        packed = e.bitcast(e.cast(value, dt.int8), dt.int32)
        if records.matrices:
            e.store(target, records.word(at), packed)
        else:
            for i in range(packed.lanes):
                word = packed if packed.lanes == 1 else e.extract(packed, i)
                e.store(target, records.word(at + i), word)
        at += packed.lanes


def _pairs(e: Builder, records: Records, target: Value, integers: list[Value]) -> None:
    """Store integers as words of two: of every four terms the even ones, then the odd ones."""
    at = 0
    for value in integers:
        narrow = e.cast(value, dt.int16)
        order = [four + i for four in range(0, value.lanes, 4) for i in (0, 2, 1, 3)]
        packed = e.bitcast(e.shuffle(narrow, narrow, order), dt.int32)
        for i in range(packed.lanes):
            e.store(target, records.word(at + i // 2, i % 2), e.extract(packed, i))
        at += packed.lanes // 2


def _scale(e: Builder, given: list[Value], levels: int) -> tuple[Value, Value]:
    """The scale of a row's part, NaN where a value is not finite, and what values are times."""
    largest, wrong = e.abs(given[0]), e.mul(given[0], 0.0)
    for value in given[1:]:
        largest = e.max(largest, e.abs(value))
        wrong = e.fma(value, 0.0, wrong)
    most = e.reduce("max", largest)
    seen = e.compare("lt", e.constant(LEAST, dt.float32), most)
    inverse = e.select(seen, e.div(e.constant(float(levels), dt.float32), most), 0.0)
    scale = e.select(seen, e.div(most, float(levels)), 0.0)
    return e.add(scale, e.reduce("add", wrong)), inverse
