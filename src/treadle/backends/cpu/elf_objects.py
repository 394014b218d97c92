"""Objects in memory: they are checked before LLVM's own loader follows their tables.

Where the system has no linker, code of files reaches LLVM as objects. Its loader, too, trusts what
tables say. What LLVM makes of our texts has few kinds of sections, symbols and relocations, and
nothing else is taken: nothing that runs when it is loaded, and no place outside of the object.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

import numpy as np

from treadle.backends.cpu.elf import MAGIC, MOST_SPAN, RELOCATION, SYMBOL, Bytes, need

_OBJECT = struct.Struct("<9s7xHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_NULL, _DATA, _SYMBOL_TABLE, _NAMES, _MOVED, _ZEROS = 0, 1, 2, 3, 4, 8
_FRAMES = 0x70000001
_SECTIONS = {_NULL, _DATA, _SYMBOL_TABLE, _NAMES, _MOVED, _ZEROS, _FRAMES}
"""Kinds of sections. AArch64 has frames in one of data."""
_NAMED = re.compile(rb"(\.rela)?\.(text|rodata|data|bss|eh_frame)(\.[\w.]*)?|\.(str|shstr|sym)tab|"
                    rb"\.note\.GNU-stack|")  # fmt: skip
"""Names of sections: loaders take some for lists of functions to call."""
_SECTION_FLAGS = 0x77
"""Written, in memory, run, merged, of strings, with a link; no memory of threads, no groups."""
_MOST_SECTIONS, _MOST_ALIGN = 4096, 4096
_ABSOLUTE, _FILE = 0xFFF1, 4
_WIDTHS = {
    62: {1: 8, 2: 4, 4: 4, 9: 4, 41: 4, 42: 4},
    183: dict.fromkeys((261, 275, 277, 278, 282, 283, 284, 285, 286, 299, 311, 312), 4) | {257: 8},
}
"""Bytes that a relocation writes, by machine (x86-64 and AArch64) and kind."""


_FRAME = struct.Struct("<II")
_OPENINGS = {62: b"\x01zR\0\x01\x78\x10\x01\x1b", 183: b"\x01zR\0\x01\x7c\x1e\x01\x1b"}
"""Openings of tables of frames, behind the length and a 0."""


def check_object(image: Bytes) -> None:
    """Raise if LLVM's loader may not be given an object.

    Raises:
        ValueError: it is no relocatable object, or none as LLVM makes them of our texts.
    """
    raw = memoryview(image).cast("B")
    try:
        _Object(raw).check()
    except struct.error as error:
        raise ValueError(f"a table lies outside of the object: {error}") from error


class _Section(NamedTuple):
    """A section header."""

    name: int
    kind: int
    flags: int
    start: int
    offset: int
    nbytes: int
    link: int
    info: int
    align: int
    entry: int


class _Object:
    """An object, section by section.

    Attributes:
        raw: its bytes.
        sections: their headers, in the order of their numbers.
        widths: the bytes that relocations write, by kind.
        opening: how tables of frames begin.
    """

    def __init__(self, raw: memoryview) -> None:
        self.raw = raw
        found = _OBJECT.unpack_from(raw)
        magic, kind, machine, version, entry, segments, at, flags = found[:8]
        header, _, count, size, number, self.names = found[8:]
        need(magic in MAGIC, "its magic number")
        need(kind == version == 1 and machine in _WIDTHS and not flags, "its kind")
        need(entry == segments == count == 0 and header == _OBJECT.size, "its header")
        need(size == _SECTION.size and 0 < number <= _MOST_SECTIONS, "its section headers")
        need(self.names < number and at <= len(raw) and not at % 8, "its section headers")
        self.widths, self.opening = _WIDTHS[machine], _OPENINGS[machine]
        self.sections = [_Section(*_SECTION.unpack_from(raw, at + n * size)) for n in range(number)]

    def check(self) -> None:
        """Raise ValueError for whatever is not as it should be."""
        need(not any(self.sections[0]), "its first section")
        for section in self.sections:
            self._check_section(section)
        names = self._names_in(self.names)
        for section in self.sections:
            name = names[section.name :].partition(b"\0")[0]
            known = section.name < len(names) and _NAMED.fullmatch(name)
            need(bool(known), "the name of a section")
            frames = name.startswith(b".eh_frame")
            need(frames or section.kind != _FRAMES, "the name of a section")
            if frames:
                self._check_frames(self._bytes(section))
        tables = [n for n, s in enumerate(self.sections) if s.kind == _SYMBOL_TABLE]
        need(len(tables) == 1, "its symbols")
        count = self._check_symbols(self.sections[tables[0]])
        for section in self.sections:
            if section.kind == _MOVED:
                need(section.link == tables[0], "its relocations")
                self._check_relocations(section, count)

    def _check_section(self, section: _Section) -> None:
        need(section.kind in _SECTIONS, "the kind of a section")
        need(not section.flags & ~_SECTION_FLAGS and not section.start, "a section")
        need(section.flags & 5 != 5, "a section of code that is written")
        even = section.align <= _MOST_ALIGN and not section.align & (section.align - 1)
        need(not section.align or even, "the alignment of a section")
        inside = section.offset + section.nbytes <= len(self.raw)
        need(inside or (section.kind == _ZEROS and section.nbytes <= MOST_SPAN), "a section")

    def _check_frames(self, raw: memoryview) -> None:
        """Raise unless a table of frames is one opening, and entries that lead to it."""
        at = 0
        while at < len(raw):
            length, back = _FRAME.unpack_from(raw, at)
            end = at + 4 + length
            need(not length % 4 and length > 12 and end <= len(raw), "a frame")
            if at:
                need(back == at + 4 and not raw[at + 16], "a frame")
            else:
                begins = bytes(raw[8 : 8 + len(self.opening)])
                need(not back and begins == self.opening, "a frame")
            at = end

    def _names_in(self, number: int) -> bytes:
        """A table of names."""
        need(number < len(self.sections), "its names")
        section = self.sections[number]
        names = bytes(self._bytes(section))
        good = section.kind == _NAMES and names[:1] == b"\0" == names[-1:] and names.isascii()
        need(good, "its names")
        return names

    def _check_symbols(self, table: _Section) -> int:
        """Return the number of symbols."""
        symbols = np.frombuffer(self._rows(table, SYMBOL.itemsize), SYMBOL)
        need(len(symbols) > 0 and not symbols[0].tobytes().strip(b"\0"), "its symbols")
        need(table.info <= len(symbols), "its symbols")
        names = self._names_in(table.link)
        need(bool((symbols["name"] < len(names)).all()), "the name of a symbol")
        kinds, places = symbols["info"] & 15, symbols["section"].astype(np.int64)
        need(bool((kinds <= _FILE).all()), "the kind of a symbol")
        local = np.arange(len(symbols)) < table.info
        need(bool(((symbols["info"] >> 4 == 0) == local).all()), "the reach of a symbol")
        need(bool((symbols["info"] >> 4 <= 2).all()), "the reach of a symbol")
        known = places < len(self.sections)
        need(bool((known | (places == _ABSOLUTE)).all()), "the place of a symbol")
        room = np.array([s.nbytes for s in self.sections], np.uint64)
        room = room[np.where(known, places, 0)]
        end = symbols["value"] + symbols["size"]
        inside = (symbols["value"] <= room) & (symbols["size"] <= room) & (end <= room)
        need(bool(inside.all()), "the place of a symbol")
        return len(symbols)

    def _check_relocations(self, section: _Section, symbols: int) -> None:
        need(0 < section.info < len(self.sections), "its relocations")
        target = self.sections[section.info]
        need(target.kind in (_DATA, _FRAMES), "its relocations")
        found = np.frombuffer(self._rows(section, RELOCATION.itemsize), RELOCATION)
        need(self.widths.keys() >= set(found["type"].tolist()), "the kind of a relocation")
        width = np.array([self.widths[kind] for kind in found["type"].tolist()], np.uint64)
        at = found["offset"]
        inside = (at < target.nbytes) & (at + width <= target.nbytes)
        need(bool(inside.all()), "the place of a relocation")
        need(bool((found["symbol"] < symbols).all()), "the symbol of a relocation")

    def _rows(self, section: _Section, size: int) -> memoryview:
        need(section.entry == size and not section.nbytes % size, "the size of a table")
        return self._bytes(section)

    def _bytes(self, section: _Section) -> memoryview:
        return self.raw[section.offset : section.offset + section.nbytes]


__all__ = ["check_object"]
