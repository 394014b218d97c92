"""Panels: blocks of 16 rows of a matrix, side by side, as kernels read them.

A file keeps a row's blocks one after another. A product with few rows of activations wants
neighboring rows instead: a vector whose 32-bit lanes are words of 16 rows, a word being four levels
along the row. Then a dot product of bytes serves 16 rows at once and no sum crosses lanes.

A panel has 16 rows (zeros complete the last one) and, for every block of the format:

* a header: `d`, then `m` where the format has one, each 16 float16 numbers;
* `pieces` pieces, each with its scales (and minima) of groups, one byte per row, and its words.

A level, an unsigned integer, is put together from fields of bits of words (`Layout.fields`). Its
value is scale * (level - offset) + minimum, both per group of 16 or 32 levels. A panel takes as
many bytes as its 16 rows took in the file, up to 4 % more where 6-bit scales become bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]

ROWS = 16
"""Rows of a panel."""
WORD = 4 * ROWS
"""Bytes of a word of all rows: four levels of each."""
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
class Layout:
    """Where a format's numbers lie in a panel.

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
    """

    elements: int
    pieces: int
    group: int
    offset: int
    minimum: bool
    scales: Scales
    low: int
    high: int = 0

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


LAYOUTS: dict[str, Layout] = {
    "Q4_0": Layout(32, 1, 32, 8, False, "none", 4),
    "Q4_1": Layout(32, 1, 32, 0, True, "none", 4),
    "Q5_0": Layout(32, 1, 32, 16, False, "none", 4, 1),
    "Q5_1": Layout(32, 1, 32, 0, True, "none", 4, 1),
    "Q8_0": Layout(32, 1, 32, 128, False, "none", 8),
    "Q2_K": Layout(256, 2, 16, 0, True, "nibbles", 2),
    "Q3_K": Layout(256, 2, 16, 4, False, "signed", 2, 1),
    "Q4_K": Layout(256, 4, 32, 0, True, "bytes", 4),
    "Q5_K": Layout(256, 4, 32, 0, True, "bytes", 4, 1),
    "Q6_K": Layout(256, 2, 16, 32, False, "signed", 4, 2),
}
"""The formats that kernels multiply with, by name."""


def to_panels(name: str, data: Array) -> Array:
    """Rows of blocks as panels.

    Args:
        name: a key of `LAYOUTS`.
        data: uint8 [rows, bytes of a row], as files have them.

    Returns:
        uint8 [ceil(rows / 16), bytes of a panel].
    """
    layout, made = LAYOUTS[name], PARTS[name]
    rows, width = data.shape
    panels, blocks = -(-rows // ROWS), width // made.bytes
    whole = np.zeros((panels * ROWS, width), np.uint8)
    whole[:rows] = data
    parts = made.split(whole.reshape(panels, ROWS, blocks, made.bytes), layout)
    target = np.empty((panels, blocks, layout.block), np.uint8)
    target[..., : layout.header] = _across(parts.header, 2).reshape(panels, blocks, -1)
    pieces = target[..., layout.header :].reshape(panels, blocks, layout.pieces, layout.piece)
    at = layout.scale_bytes
    if parts.scales is not None:
        pieces[..., :at] = _across(parts.scales, 1).reshape(*pieces.shape[:3], at)
    for words in parts.words:
        wide = words.shape[-1] * ROWS
        pieces[..., at : at + wide] = _across(words, 4).reshape(*pieces.shape[:3], wide)
        at += wide
    return target.reshape(panels, blocks * layout.block)


def from_panels(name: str, panels: Array, rows: int) -> Array:
    """The values of panels: float32 [rows, elements of a row]."""
    layout = LAYOUTS[name]
    blocks = panels.shape[1] // layout.block
    given = panels.reshape(-1, blocks, layout.block)
    count = len(given)
    header = np.ascontiguousarray(given[..., : layout.header]).view(np.float16)
    header = header.reshape(count, blocks, 1, 1, -1, ROWS).astype(np.float32)
    pieces = given[..., layout.header :].reshape(count, blocks, layout.pieces, layout.piece)
    scale, minimum = _scales(layout, pieces, header)
    levels = _levels(layout, pieces)
    values = (levels - np.float32(layout.offset)) * scale[..., None, :, None]
    if minimum is not None:
        values = values + minimum[..., None, :, None]
    # [panel, block, piece, group, word, row, byte]
    found = values.transpose(0, 5, 1, 2, 3, 4, 6).reshape(count * ROWS, -1)
    return np.ascontiguousarray(found[:rows])


def _scales(layout: Layout, pieces: Array, header: Array) -> tuple[Array, Array | None]:
    """Scales and minima of groups: [panel, block, piece, group, row]."""
    d = header[..., 0, :]
    m = header[..., 1, :] if layout.minimum else None
    groups = layout.groups
    given = pieces[..., : layout.scale_bytes].reshape(*pieces.shape[:3], -1, ROWS)
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


def _levels(layout: Layout, pieces: Array) -> Array:
    """Levels as float32: [panel, block, piece, group, word, row, byte]."""
    words = pieces[..., layout.scale_bytes :].reshape(*pieces.shape[:3], layout.words, ROWS, 4)
    made = []
    for word in range(layout.span // 4):
        level = np.zeros((*pieces.shape[:3], ROWS, 4), np.uint8)
        for field in layout.fields(word):
            level |= ((words[..., field.word, :, :] >> field.shift) & field.mask) << field.up
        made.append(level.astype(np.float32))
    return np.stack(made, 3).reshape(*pieces.shape[:3], layout.groups, -1, ROWS, 4)


def _across(part: Array, size: int) -> Array:
    """[panel, row, block, ..., bytes] with items of `size` bytes of all rows side by side."""
    items = part.reshape(*part.shape[:-1], -1, size)
    return np.moveaxis(items, 1, -2)


@dataclass(frozen=True, slots=True)
class _Parts:
    """Fields of rows of blocks: [panel, row, block, bytes]; by piece from the scales on."""

    header: Array
    scales: Array | None
    words: tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class _File:
    """Where a block of a file has its fields.

    Attributes:
        bytes: of a block.
        header: the offset of d, and of m behind it.
        low, high: ranges of bytes with the low and high bits.
        scales: the range with scales of groups.
        planes: how the high bits lie: "elements", one bit after another; "groups", bit g of byte l
            for level l of group g; "" where they are fields already.
    """

    bytes: int
    header: int
    low: tuple[int, int]
    high: tuple[int, int] | None = None
    scales: tuple[int, int] | None = None
    planes: str = ""

    def split(self, blocks: Array, layout: Layout) -> _Parts:
        """The fields, in the order that panels have inside of a row."""
        start = self.header
        header = blocks[..., start : start + 2 * (1 + layout.minimum)]
        low = blocks[..., self.low[0] : self.low[1]]
        if layout.low == 8:
            low = low ^ 0x80  # signed levels become unsigned
        words = [low.reshape(*low.shape[:3], layout.pieces, -1)]
        if self.high is not None:
            high = self._planes(blocks[..., self.high[0] : self.high[1]])
            words.append(high.reshape(*high.shape[:3], layout.pieces, -1))
        scales = None
        if self.scales is not None:
            packed = blocks[..., self.scales[0] : self.scales[1]]
            scales = _SCALES[packed.shape[-1], layout.scales](packed, layout.pieces)
        return _Parts(header, scales, tuple(words))

    def _planes(self, high: Array) -> Array:
        """Single bits so that bit v of byte b is that of level 4v + b, for every 32 levels."""
        if not self.planes:
            return high
        bits = np.unpackbits(high[..., None], axis=-1, bitorder="little")
        if self.planes == "groups":
            bits = np.moveaxis(bits, -1, -2)
        split = bits.reshape(*high.shape[:3], -1, 8, 4)
        return np.packbits(split, axis=-2, bitorder="little").reshape(*high.shape[:3], -1)


def _plain(packed: Array, pieces: int) -> Array:
    """One byte per group."""
    return packed.reshape(*packed.shape[:3], pieces, -1)


def _six_bits_and_minima(packed: Array, pieces: int) -> Array:
    """Eight scales and eight minima of 6 bits in 12 bytes: a piece's scales, then its minima."""
    first, second, third = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    scales = np.concatenate((first & 63, (third & 15) | ((first >> 6) << 4)), -1)
    minima = np.concatenate((second & 63, (third >> 4) | ((second >> 6) << 4)), -1)
    both = [x.reshape(*x.shape[:3], pieces, -1) for x in (scales, minima)]
    return np.concatenate(both, -1)


def _six_bits(packed: Array, pieces: int) -> Array:
    """Sixteen scales of 6 bits, less 32, in 12 bytes."""
    low = np.concatenate((packed[..., :8] & 15, packed[..., :8] >> 4), -1)
    tops = [(packed[..., 8:] >> shift) & 3 for shift in (0, 2, 4, 6)]
    scales: Array = (low | (np.concatenate(tops, -1) << 4)).astype(np.int8) - np.int8(32)
    return scales.view(np.uint8).reshape(*packed.shape[:3], pieces, -1)


_SCALES = {
    (16, "nibbles"): _plain,
    (16, "signed"): _plain,
    (12, "bytes"): _six_bits_and_minima,
    (12, "signed"): _six_bits,
}

PARTS: dict[str, _File] = {
    "Q4_0": _File(18, 0, (2, 18)),
    "Q4_1": _File(20, 0, (4, 20)),
    "Q5_0": _File(22, 0, (6, 22), (2, 6), planes="elements"),
    "Q5_1": _File(24, 0, (8, 24), (4, 8), planes="elements"),
    "Q8_0": _File(34, 0, (2, 34)),
    "Q2_K": _File(84, 80, (16, 80), scales=(0, 16)),
    "Q3_K": _File(110, 108, (32, 96), (0, 32), (96, 108), "groups"),
    "Q4_K": _File(144, 0, (16, 144), scales=(4, 16)),
    "Q5_K": _File(176, 0, (48, 176), (16, 48), (4, 16), "groups"),
    "Q6_K": _File(210, 208, (0, 128), (128, 192), (192, 208)),
}
"""Blocks of files, by format."""
