"""Panels: blocks of 16 rows of a matrix, side by side, as kernels read them.

A file keeps a row's blocks one after another. A product with few rows of activations wants
neighboring rows instead: a vector whose 32-bit lanes are words of 16 rows, a word being four levels
along the row. Then a dot product of bytes serves 16 rows at once and no sum crosses lanes.

A panel has 16 rows (zeros complete the last one) and, for every block of the format:

* a header: `d`, then `m` where the format has one, each 16 float16 numbers;
* `pieces` pieces, each with its scales (and minima) of groups, one byte per row, and its words.

A level, an unsigned integer, is put together from fields of bits of words (`PanelLayout.fields`).
Its value is scale * (level - offset) + minimum, both per group of 16 or 32 levels. A panel takes
as many bytes as its 16 rows took in the file, up to 6 % more where scales of 6 bits become bytes
and those of 8 float16.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np

from treadle.base.array import Array
from treadle.base.blocks.formats import FORMATS
from treadle.base.blocks.layout import BlockTensor, Fields
from treadle.base.blocks.scales import IQ4_VALUES
from treadle.base.blocks.small import FP4_DOUBLED
from treadle.base.blocks.super_blocks import (
    low_and_high_scales,
    scales_and_minima,
    six_bit_scales,
)

ROWS = 16
"""Rows of a panel."""
WORD = 4 * ROWS
"""Bytes of a word of all rows: four levels of each."""
_CHUNK = 1 << 20
"""Bytes of a file that are rearranged at a time: in smaller ones calls of NumPy take their time."""
_LOOKED_UP = 64
"""Rows that are widened at a time."""
_THREADS = 4
"""NumPy moves bytes without the interpreter's lock."""
_SIGNS = 0x80808080
"""The highest bit of a byte, in every byte of a word."""
ONES = 0x01010101
"""A byte's lowest bit, in every byte of a word."""

Scales = Literal["none", "bytes", "nibbles", "signed"]


@dataclass(frozen=True, slots=True)
class Field:
    """Bits of every byte of a word: `mask` after a shift right by `shift`, worth 2**`up` each."""

    word: int
    shift: int
    mask: int
    up: int = 0


@dataclass(frozen=True, slots=True)
class PanelLayout:
    """Placement of a format's numbers in a panel.

    Attributes:
        elements: levels of a row per block.
        pieces: parts of a block that look alike.
        group: levels that share a scale.
        offset: the level that stands for 0 (before the minimum is added).
        minimum: whether a minimum is added.
        scales: what pieces hold for each group: nothing; a scale byte and a minimum byte; one byte
            with a scale in the low and a minimum in the high half; a signed scale.
        low: bits of a level in the first words of a piece: 2, 4 or 8.
        high: further bits of a level, in the words behind: 0, 1 (a word per 32 levels) or 2.
        table: levels by the codes of 4 bits that words hold in their place.
    """

    elements: int
    pieces: int
    group: int
    offset: int
    minimum: bool
    scales: Scales
    low: int
    high: int = 0
    table: tuple[int, ...] = ()

    @property
    def bits(self) -> int:
        """Bits of the largest level."""
        return max(self.table).bit_length() if self.table else self.low + self.high

    @property
    def header(self) -> int:
        """Bytes of the header."""
        return 2 * ROWS * (1 + self.minimum)

    @property
    def span(self) -> int:
        """Levels of a row per piece."""
        return self.elements // self.pieces

    @property
    def groups(self) -> int:
        """Groups of a piece."""
        return self.span // self.group

    @property
    def scale_bytes(self) -> int:
        """Bytes of a piece before its words."""
        each = {"none": 0, "bytes": 2, "nibbles": 1, "signed": 1}[self.scales]
        return each * self.groups * ROWS

    @property
    def low_words(self) -> int:
        """Words of a piece with the low bits."""
        return self.span * self.low // 32

    @property
    def words(self) -> int:
        """Words of a piece."""
        return self.low_words + self.span * self.high // 32

    @property
    def piece(self) -> int:
        """Bytes of a piece."""
        return self.scale_bytes + self.words * WORD

    @property
    def block(self) -> int:
        """Bytes of a block of a panel."""
        return self.header + self.pieces * self.piece

    def fields(self, word: int) -> tuple[Field, ...]:
        """The bits of word `word` of a piece's levels: levels 4 * word up to 4 * word + 3."""
        turn, place = divmod(word, self.low_words)
        found = [Field(place, self.low * turn, (1 << self.low) - 1)]
        if self.high == 1:
            at = self.low_words + word // 8
            found.append(Field(at, word % 8, 1, self.low))
        if self.high == 2:
            found.append(Field(self.low_words + word % 8, 2 * (word // 8), 3, self.low))
        return tuple(found)


def _leveled(values: Array, offset: int) -> tuple[int, ...]:
    """Values as levels."""
    return tuple(int(v) + offset for v in values)


LAYOUTS: dict[str, PanelLayout] = {
    "Q4_0": PanelLayout(32, 1, 32, 8, False, "none", 4),
    "Q4_1": PanelLayout(32, 1, 32, 0, True, "none", 4),
    "Q5_0": PanelLayout(32, 1, 32, 16, False, "none", 4, 1),
    "Q5_1": PanelLayout(32, 1, 32, 0, True, "none", 4, 1),
    "Q8_0": PanelLayout(32, 1, 32, 128, False, "none", 8),
    "Q2_K": PanelLayout(256, 2, 16, 0, True, "nibbles", 2),
    "Q3_K": PanelLayout(256, 2, 16, 4, False, "signed", 2, 1),
    "Q4_K": PanelLayout(256, 4, 32, 0, True, "bytes", 4),
    "Q5_K": PanelLayout(256, 4, 32, 0, True, "bytes", 4, 1),
    "Q6_K": PanelLayout(256, 2, 16, 32, False, "signed", 4, 2),
    "IQ4_NL": PanelLayout(32, 1, 32, 128, False, "none", 4, table=_leveled(IQ4_VALUES, 128)),
    "IQ4_XS": PanelLayout(256, 8, 32, 128, False, "signed", 4, table=_leveled(IQ4_VALUES, 128)),
    "MXFP4": PanelLayout(32, 1, 32, 12, False, "none", 4, table=_leveled(FP4_DOUBLED, 12)),
}
"""The formats that kernels multiply with, by name."""


_POWERS = -24, 15
"""Of two: those that float16 holds."""


def has_panels(blocks: BlockTensor) -> bool:
    """Return whether kernels multiply with blocks, exactly as they are.

    Scales of MXFP4 are powers of two, which become float16; those of blocks of zeros may be any.
    """
    if blocks.format.name == "MXFP4":
        fields = blocks.data.view(blocks.format.layout)
        power, (least, most) = _powers(fields), _POWERS
        outside = (power < least) | (power > most)
        return not (fields["q"][outside] & 0x77).any()  # The highest bit of a code is a sign.
    return blocks.format.name in LAYOUTS


def _powers(fields: Fields) -> Array:
    """Return exponents of two, by which doubled values of MXFP4 are multiplied."""
    powers: Array = fields["e"].astype(np.int32) - 128
    return powers


def panel_bytes(name: str, row: int) -> int:
    """Return the bytes of a panel whose rows have so many bytes in a file."""
    return row // FORMATS[name].bytes * LAYOUTS[name].block


def to_panels(name: str, data: Array) -> Array:
    """Rows of blocks as panels.

    Args:
        name: a key of `LAYOUTS`.
        data: uint8 [rows, bytes of a row], as files have them.

    Returns:
        uint8 [ceil(rows / 16), bytes of a panel].
    """
    rows, row = data.shape
    target = np.empty((-(-rows // ROWS), panel_bytes(name, row)), np.uint8)
    with ThreadPoolExecutor(_THREADS) as pool:
        step = max(1, _CHUNK // max(1, ROWS * row))
        parts = range(0, len(target), step)
        list(pool.map(lambda at: fill_panels(name, data, target, at, at + step), parts))
    return target


def fill_panels(name: str, data: Array, target: Array, first: int, end: int) -> None:
    """Write panels `first` to `end`, or to the last one, of what `to_panels` returns.

    Args:
        name, data: see `to_panels`.
        target: all of its panels.
    """
    layout, row = LAYOUTS[name], data.shape[1]
    step = max(1, _CHUNK // max(1, ROWS * row))
    for at in range(first, min(end, len(target)), step):
        till = min(at + step, end)
        given = data[at * ROWS : till * ROWS]
        if len(given) % ROWS:
            given = np.concatenate([given, np.zeros((-len(given) % ROWS, row), np.uint8)])
        made = target[at:till]
        fields = np.ascontiguousarray(given).view(FORMATS[name].layout).reshape(len(made), ROWS, -1)
        _fill(made.reshape(len(made), fields.shape[2], -1), fields, layout)


def _fill(target: Array, fields: Fields, layout: PanelLayout) -> None:
    """Write panels [panel, block, bytes] from fields of blocks [panel, row, block]."""
    header = target[..., : layout.header].view(np.float16)
    for i, number in enumerate(("d", "m")[: 1 + layout.minimum]):
        header[..., i * ROWS : (i + 1) * ROWS] = _numbers(fields, number).swapaxes(1, 2)
    pieces = target[..., layout.header :].reshape(*target.shape[:2], layout.pieces, layout.piece)
    at = layout.scale_bytes
    scales = _group_bytes(fields, layout)
    if scales is not None:
        made = pieces[..., :at].reshape(*pieces.shape[:3], -1, ROWS)
        made[...] = np.moveaxis(scales, 1, -1)
    for part in _words(fields, layout):
        wide = part.shape[-1]
        made = pieces[..., at : at + wide * WORD].view(np.uint32)
        made.reshape(*pieces.shape[:3], wide, ROWS)[...] = np.moveaxis(part, 1, -1)
        if layout.low == 8:
            made ^= _SIGNS  # signed levels become unsigned
        at += wide * WORD


def _numbers(fields: Fields, name: str) -> Array:
    """A number of each block."""
    names = fields.dtype.names or ()
    if name in names:
        found: Array = fields[name]
        return found
    made: Array = _HALF_POWERS[fields["e"]]
    return made


_HALF_POWERS = np.ldexp(1.0, (np.arange(256) - 128).clip(*_POWERS)).astype(np.float16)
"""Scales of doubled values of MXFP4, by their bytes."""


def from_panels(name: str, panels: Array, rows: int) -> Array:
    """The values of panels: float32 [rows, elements of a row]."""
    found = _values(LAYOUTS[name], *_parts(LAYOUTS[name], panels))
    # [panel, block, piece, group, word, row, byte]
    found = found.transpose(0, 5, 1, 2, 3, 4, 6).reshape(len(panels) * ROWS, -1)
    return np.ascontiguousarray(found[:rows])


def rows_of_panels(name: str, panels: Array, rows: Array) -> Array:
    """The values of the rows with these numbers [...]: float32 [..., elements of a row]."""
    layout, count = LAYOUTS[name], rows.size
    panel, row = np.divmod(rows.reshape(-1), ROWS)
    header, scales, words = _parts(layout, panels)
    found = np.empty((count, header.shape[1] * layout.elements), np.float32)
    for at in range(0, count, _LOOKED_UP):
        p, r = panel[at : at + _LOOKED_UP], row[at : at + _LOOKED_UP]
        # Of the rows of a panel one is taken, and stays an axis.
        given = header[p, :, :, r], scales[p, :, :, :, r], words[p, :, :, :, r]
        made = _values(layout, given[0][..., None], given[1][..., None], given[2][..., None, :])
        found[at : at + _LOOKED_UP] = made.reshape(len(p), -1)
    return found.reshape(*rows.shape, -1)


def _parts(layout: PanelLayout, panels: Array) -> tuple[Array, Array, Array]:
    """Views of headers float16 [panel, block, number, row], scales of groups uint8 [panel, block,
    piece, number, row] and words uint8 [panel, block, piece, word, row, byte].
    """
    count = len(panels)
    given = panels.reshape(count, -1, layout.block)
    blocks = given.shape[1]
    header = given[..., : layout.header].view(np.float16).reshape(count, blocks, -1, ROWS)
    pieces = given[..., layout.header :].reshape(count, blocks, layout.pieces, layout.piece)
    at = layout.scale_bytes
    scales = pieces[..., :at].reshape(*pieces.shape[:3], at // ROWS, ROWS)
    words = pieces[..., at:].reshape(*pieces.shape[:3], layout.words, ROWS, 4)
    return header, scales, words


def _values(layout: PanelLayout, header: Array, scales: Array, words: Array) -> Array:
    """Return values of what `_parts` gives, float32 [panel, block, piece, group, word, row,
    byte].
    """
    scale, minimum = _scales(layout, header.astype(np.float32)[:, :, None, None], scales)
    levels = _levels(layout, words)
    values: Array = (levels - np.float32(layout.offset)) * scale[..., None, :, None]
    return values if minimum is None else values + minimum[..., None, :, None]


def _scales(layout: PanelLayout, header: Array, given: Array) -> tuple[Array, Array | None]:
    """Scales and minima of groups: [panel, block, piece, group, row]."""
    d = header[..., 0, :]
    m = header[..., 1, :] if layout.minimum else None
    groups = layout.groups
    if layout.scales == "none":
        return d, m
    if layout.scales == "signed":
        return d * given.view(np.int8).astype(np.float32), None
    if layout.scales == "nibbles":
        factors, minima = given & 15, given >> 4
    else:
        factors, minima = given[..., :groups, :], given[..., groups:, :]
    assert m is not None  # noqa: S101  (formats with minima of groups have them)
    return d * factors.astype(np.float32), -(m * minima.astype(np.float32))


def _levels(layout: PanelLayout, words: Array) -> Array:
    """Levels as float32: [panel, block, piece, group, word, row, byte]."""
    made = []
    for word in range(layout.span // 4):
        level = np.zeros((*words.shape[:3], *words.shape[4:]), np.uint8)
        for field in layout.fields(word):
            level |= ((words[..., field.word, :, :] >> field.shift) & field.mask) << field.up
        if layout.table:
            level = np.asarray(layout.table, np.uint8)[level]
        made.append(level.astype(np.float32))
    found = np.stack(made, 3)
    return found.reshape(*words.shape[:3], layout.groups, -1, *words.shape[4:])


def _words(fields: Fields, layout: PanelLayout) -> list[Array]:
    """Low bits of levels, then the high ones: uint32 [panel, row, block, piece, word] each.

    Those of fields of a file are not aligned: NumPy copies them as fast as others.
    """
    names = fields.dtype.names or ()
    low = fields["q" if "q" in names else "l"].view(np.uint32)
    found = [low.reshape(*fields.shape, layout.pieces, -1)]
    if layout.high:
        high = fields["mask" if "mask" in names else "h"].view(np.uint32)
        if layout.high == 1:
            high = _plane(high)
        found.append(high.reshape(*fields.shape, layout.pieces, -1))
    return found


def _plane(high: Array) -> Array:
    """Single bits, bit v of byte b being that of level 4v + b, for every 32 levels: uint32 [...,
    words].

    Files have them level by level, a word for 32, or eight words, of whose byte l bit g is for
    level 32g + l.
    """
    if high.shape[-1] == 1:
        x = high.copy()
        for shift, mask in _SPREAD:
            x ^= (moved := (x >> shift ^ x) & mask)
            x ^= moved << shift
        return x
    x = np.moveaxis(high, -1, 0).copy()  # Word v has bit g of level 32g + 4v + b in its byte b.
    for shift, mask in _TURNS:
        low, upper = np.moveaxis(x.reshape(-1, 2, shift, *x.shape[1:]), 1, 0)
        upper ^= (moved := (low >> shift ^ upper) & mask)
        low ^= moved << shift
    return np.moveaxis(x, 0, -1)


_SPREAD = (14, 0x0000CCCC), (7, 0x00AA00AA), (2, 0x0C0C0C0C), (1, 0x22222222)
"""Exchanges of bits of a word; each exchanges two digits of their numbers in base 2."""
_TURNS = (4, 0x0F0F0F0F), (2, 0x33333333), (1, 0x55555555)
"""Exchanges that transpose eight words of eight bits in each byte (Warren, Hacker's Delight,
7-3).
"""


def _group_bytes(fields: Fields, layout: PanelLayout) -> Array | None:
    """Scales of a piece's groups, then their minima: uint8 [..., pieces, bytes]."""
    if layout.scales == "none":
        return None
    if "s" not in (fields.dtype.names or ()):
        found: Array = low_and_high_scales(fields.reshape(-1))
    elif layout.scales == "bytes":
        pairs = [x.view(np.uint16) for x in scales_and_minima(fields["s"])]
        found = np.stack(pairs, -1)  # A piece has two groups.
    else:
        found = fields["s"]
        found = six_bit_scales(found) if found.shape[-1] == 12 else found
    return found.view(np.uint8).reshape(*fields.shape, layout.pieces, -1)
