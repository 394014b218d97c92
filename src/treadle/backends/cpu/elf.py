"""Shared libraries in memory: their tables are checked before the system's loader follows them.

The loader trusts an image: it maps, hashes, relocates and protects where the tables say. A damaged
image that somebody vouches for ends the process there. What linkers make of our objects has one
small shape, and nothing else is taken: no code that runs when it is opened, no other libraries, no
memory of threads, and no table, symbol or relocation outside of the image.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Bytes = bytes | memoryview
_Numbers = npt.NDArray[Any]

_HEADER = struct.Struct("<9s7xHH12xQ14xHH6x")
MAGIC = b"\x7fELF\2\1\1\0\0", b"\x7fELF\2\1\1\3\0"
_SEGMENT = struct.Struct("<IIQQQQQQ")
_HASH = struct.Struct("<II")
_GNU_HASH = struct.Struct("<IIII")
_NOTE = struct.Struct("<III")
SYMBOL = np.dtype([("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"),
                    ("value", "<u8"), ("size", "<u8")])  # fmt: skip
RELOCATION = np.dtype([("offset", "<u8"), ("type", "<u4"), ("symbol", "<u4"), ("addend", "<i8")])

_LOAD, _DYNAMIC, _PHDR = 1, 2, 6
_FRAMES, _STACK, _RELRO = 0x6474E550, 0x6474E551, 0x6474E552
_NOTES = 4, 0x6474E553
_SFRAMES = 0x6474E554
"""Kinds of segments."""
_EXECUTE, _WRITE = 1, 2
_ALLOWED = 4, 5, 6
"""Segments are mapped to be read, run or written; never both of the latter."""

_PLT_SIZE, _PLT_GOT, _SYSV, _STRINGS, _SYMBOLS, _RELA, _RELA_SIZE, _RELA_ENTRY = range(2, 10)
_STRINGS_SIZE, _SYMBOL_ENTRY, _PLT_KIND, _PLT, _FLAGS = 10, 11, 20, 23, 30
_GNU, _RELATIVES, _FLAGS_1 = 0x6FFFFEF5, 0x6FFFFFF9, 0x6FFFFFFB
"""Tags of the dynamic section."""
_TAGS = {_PLT_SIZE, _PLT_GOT, _SYSV, _STRINGS, _SYMBOLS, _RELA, _RELA_SIZE, _RELA_ENTRY,
         _STRINGS_SIZE, _SYMBOL_ENTRY, _PLT_KIND, _PLT, _FLAGS, _GNU, _RELATIVES,
         _FLAGS_1}  # fmt: skip
_TOGETHER = (
    (_SYMBOLS, _STRINGS, _STRINGS_SIZE, _SYMBOL_ENTRY, SYMBOL.itemsize),
    (_RELA, _RELA_SIZE, _RELA_ENTRY, RELOCATION.itemsize),
    (_PLT, _PLT_SIZE, _PLT_KIND, _RELA),
)
"""Tags that are there together or not at all; the last is followed by its value."""
_BOUND_NOW = 8, 1
"""The flags that linkers may set: symbols are looked up when the image is opened."""

_KINDS = {62: (8, {1, 6, 7, 8}), 183: (1027, {257, 1025, 1026, 1027})}
"""Of machines (x86-64 and AArch64): the relocation by the place of the image, and all kinds."""
_MOST_SEGMENTS = 16
MOST_SPAN = 1 << 26
"""Bytes of addresses that an image takes beyond its own size, for the gaps between segments."""
_MOST_SYMBOL = 3
"""Symbols are of no type, data, functions or sections; no resolvers, which would run."""


def check_image(image: Bytes) -> None:
    """Raise if the system's loader may not be given an image.

    Raises:
        ValueError: it is no shared library, or none as linkers make them of our objects.
    """
    raw = memoryview(image).cast("B")
    try:
        _Image(raw).check()
    except struct.error as error:
        raise ValueError(f"a table lies outside of the image: {error}") from error


class _ProgramHeader(NamedTuple):
    """A program header."""

    kind: int
    flags: int
    offset: int
    start: int
    physical: int
    nbytes: int
    room: int
    align: int

    @property
    def end(self) -> int:
        """The end of its memory."""
        return self.start + self.room


class _Image:
    """An image, header by header.

    Attributes:
        raw: its bytes.
        loads: segments that are mapped, in the order of their addresses.
    """

    def __init__(self, raw: memoryview) -> None:
        self.raw = raw
        magic, kind, machine, at, size, count = _HEADER.unpack_from(raw)
        need(magic in MAGIC, "its magic number")
        need(kind == 3 and machine in _KINDS, "its kind")
        need(at == 64 and size == _SEGMENT.size and count <= _MOST_SEGMENTS, "its program headers")
        self.relative, self.kinds = _KINDS[machine]
        segments = [_ProgramHeader(*_SEGMENT.unpack_from(raw, at + n * size)) for n in range(count)]
        self.loads = [s for s in segments if s.kind == _LOAD]
        self.others = [s for s in segments if s.kind != _LOAD]

    def check(self) -> None:
        """Raise ValueError for whatever is not as it should be."""
        self._check_loads()
        found = [s for s in self.others if s.kind == _DYNAMIC]
        stacks = [s for s in self.others if s.kind == _STACK]
        need(len(found) == len(stacks) == 1, "its program headers")
        need(not stacks[0].flags & _EXECUTE, "a stack that is code")
        for segment in self.others:
            self._check_other(segment)
        dynamic = found[0]
        tags = self._tags(dynamic)
        symbols = self._check_symbols(tags)
        self._check_relocations(tags, symbols, dynamic)

    def _check_loads(self) -> None:
        size, last = len(self.raw), 0
        need(bool(self.loads) and self.loads[0].offset == self.loads[0].start == 0, "its start")
        for load in self.loads:
            align = load.align
            even = 4096 <= align <= 1 << 21 and not align & (align - 1)
            need(even, "the alignment of a segment")
            need(load.offset + load.nbytes <= size and load.nbytes <= load.room, "a segment")
            need(not (load.start - load.offset) % align, "the place of a segment")
            need(load.start // align * align >= last and load.end <= size + MOST_SPAN, "a segment")
            need(load.flags in _ALLOWED, "what a segment is mapped for")
            last = load.end

    def _check_other(self, segment: _ProgramHeader) -> None:
        kind = segment.kind
        if kind == _STACK:
            return
        if kind == _RELRO:
            load = self._load(segment.start, 0, writable=True)
            last = -(-load.end // load.align) * load.align
            need(segment.end <= last, "what becomes constant")
            return
        need(kind in (_DYNAMIC, _PHDR, _FRAMES, _SFRAMES, *_NOTES), "the kind of a segment")
        raw = self.table(segment.start, segment.nbytes, writable=kind == _DYNAMIC)
        need(segment.room == segment.nbytes, "a segment")
        at = 0
        while kind in _NOTES and at < segment.nbytes:
            align = segment.align
            need(align in (4, 8), "the alignment of notes")
            name, description, _ = _NOTE.unpack_from(raw, at)
            for length in (_NOTE.size + name, description):
                at = -(-(at + length) // align) * align
            need(at - segment.nbytes < align, "a note")

    def _tags(self, dynamic: _ProgramHeader) -> dict[int, int]:
        pairs = self.table(dynamic.start, dynamic.nbytes // 16 * 16, writable=True)
        words = np.frombuffer(pairs, "<u8").tolist()
        tags: dict[int, int] = {}
        for tag, value in zip(words[::2], words[1::2], strict=True):
            if not tag:
                break
            need(tag in _TAGS and tag not in tags, f"the tag {tag:#x}")
            tags[tag] = value
        else:
            raise ValueError("its dynamic section has no end")
        for first, *rest, size, wanted in _TOGETHER:
            found = [tag in tags for tag in (first, *rest, size)]
            need(all(found) or not any(found), "the sizes of its tables")
            need(tags.get(size, wanted) == wanted, "the sizes of its tables")
        need(not tags.get(_FLAGS, 0) & ~_BOUND_NOW[0], "its flags")
        need(not tags.get(_FLAGS_1, 0) & ~_BOUND_NOW[1], "its flags")
        if _PLT_GOT in tags:
            self._load(tags[_PLT_GOT], 24, writable=True)
        return tags

    def _check_symbols(self, tags: dict[int, int]) -> int:
        """Return the number of symbols."""
        counts = [self._hashed(tags[_SYSV])] if _SYSV in tags else []
        counts += [self._hashed_by_gnu(tags[_GNU], *counts)] if _GNU in tags else []
        need(bool(counts) and _SYMBOLS in tags, "its tables")
        names = self.table(tags[_STRINGS], tags[_STRINGS_SIZE])
        need(len(names) > 0 and not names[-1] and bytes(names).isascii(), "its names")
        symbols = np.frombuffer(self.table(tags[_SYMBOLS], counts[0] * SYMBOL.itemsize), SYMBOL)
        need(bool((symbols["name"] < len(names)).all()), "the name of a symbol")
        need(bool(((symbols["info"] & 15) <= _MOST_SYMBOL).all()), "the kind of a symbol")
        need(bool((symbols["value"] <= self.loads[-1].end).all()), "the place of a symbol")
        return counts[0]

    def _hashed(self, at: int) -> int:
        buckets, count = _HASH.unpack_from(self.table(at, 8))
        need(buckets > 0, "its hash table")
        links = np.frombuffer(self.table(at + 8, 4 * (buckets + count)), "<u4")
        used = links[links != 0]
        # One that is named twice closes a circle, or is in two chains.
        need(bool((used < count).all()) and len(set(used.tolist())) == len(used), "its hash table")
        return int(count)

    def _hashed_by_gnu(self, at: int, known: int | None = None) -> int:
        buckets, first, words, shift = _GNU_HASH.unpack_from(self.table(at, 16))
        good = buckets > 0 and words > 0 and not words & (words - 1) and shift < 32
        need(good, "its GNU hash table")
        heads = np.frombuffer(self.table(at + 16, 8 * words + 4 * buckets), "<u4")[2 * words :]
        used = heads[heads != 0]
        if not len(used):
            return first if known is None else known
        highest, chains = int(used.max()), at + 16 + 8 * words + 4 * buckets
        need(int(used.min()) >= first, "its GNU hash table")
        load = self._load(chains, 0)
        room = (load.start + load.nbytes - chains) // 4
        ends = np.frombuffer(self.table(chains, 4 * room), "<u4")[highest - first :] & 1
        need(bool(ends.any()), "its GNU hash table")
        count = highest + int(ends.argmax()) + 1
        need(known in (None, count), "its GNU hash table")
        return count

    def _check_relocations(
        self, tags: dict[int, int], symbols: int, dynamic: _ProgramHeader
    ) -> None:
        count = tags.get(_RELATIVES, 0)
        for place, size in ((_RELA, _RELA_SIZE), (_PLT, _PLT_SIZE)):
            nbytes = tags.get(size, 0)
            need(not nbytes % RELOCATION.itemsize, "its relocations")
            if not nbytes:
                continue
            found = np.frombuffer(self.table(tags[place], nbytes), RELOCATION)
            at, kinds = found["offset"], found["type"]
            inside = np.zeros(len(found), bool)
            for load in self.loads:
                if load.flags & _WRITE and load.room >= 8:
                    inside |= (at >= load.start) & (at <= load.end - 8)
            inside &= (at >= dynamic.start + dynamic.room) | (at + 8 <= dynamic.start)
            need(bool(inside.all()), "the place of a relocation")
            need(self.kinds.issuperset(kinds.tolist()), "the kind of a relocation")
            need(bool((found["symbol"] < symbols).all()), "the symbol of a relocation")
            moved = found["addend"][kinds == self.relative]
            need(bool(((moved >= 0) & (moved <= self.loads[-1].end)).all()), "a relocation")
            if place == _RELA:
                need(count <= len(found), "its relocations")
                need(bool((kinds[:count] == self.relative).all()), "its relocations")
                count = 0
        need(not count, "its relocations")

    def table(self, start: int, nbytes: int, writable: bool = False) -> memoryview:
        """The bytes at an address: of a segment, and in the file."""
        load = self._load(start, nbytes, writable)
        at = load.offset + start - load.start
        need(start + nbytes <= load.start + load.nbytes, "the place of a table")
        return self.raw[at : at + nbytes]

    def _load(self, start: int, nbytes: int, writable: bool = False) -> _ProgramHeader:
        for load in self.loads:
            if load.start <= start and start + nbytes <= load.end:
                need(bool(load.flags & _WRITE) == writable, "the place of a table")
                return load
        raise ValueError("a table lies outside of the image")


def need(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(f"{what}: damaged, or not as linkers make it")


__all__ = ["check_image"]
