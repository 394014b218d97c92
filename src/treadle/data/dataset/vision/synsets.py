"""ImageNet's table of classes, from the MATLAB file (level 5) it is published as.

After "MAT-File Format", MathWorks, chapter 1: a file is a header of 128 bytes and elements, each
with a type, a length and data; arrays are elements that hold elements.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from treadle.data.failure import DatasetError

_MATRIX, _COMPRESSED = 14, 15
_STRUCT, _CHAR = 2, 4
_DTYPES = {
    1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8",
    13: "<u8", 16: "u1", 17: "<u2",
}  # fmt: skip
# The table of 1860 words takes 0.6 MB; a file that claims much more is not it.
_LIMIT = 1 << 26

Record = dict[str, Any]


def read_synsets(path: Path) -> tuple[dict[int, str], dict[str, tuple[str, ...]]]:
    """Read which WordNet id each class has, and which names each id.

    Only the words without words below them are classes.

    Raises:
        FileNotFoundError: there is no such file.
        DatasetError: the file is damaged or something else.
    """
    data = path.read_bytes()
    try:
        records = [r for r in _synsets(data) if int(r["num_children"]) == 0]
        ids = {int(r["ILSVRC2012_ID"]): str(r["WNID"]) for r in records}
        names = {str(r["WNID"]): tuple(str(r["words"]).split(", ")) for r in records}
    except (KeyError, ValueError, IndexError, TypeError, struct.error, zlib.error) as error:
        saw = f"{type(error).__name__}: {error}"
        raise DatasetError(str(path), "this is not ImageNet's table of classes", saw=saw) from error
    return ids, names


def _synsets(data: bytes) -> list[Record]:
    if data[126:128] != b"IM":
        raise ValueError("no MATLAB file of level 5, little-endian")
    for kind, body in _elements(data[128:]):
        if kind == _COMPRESSED:
            plain = zlib.decompressobj().decompress(body, _LIMIT)
            kind, body = next(_elements(plain))
        if kind == _MATRIX:
            name, value = _array(body)
            if name == "synsets":
                return list(value)
    raise KeyError("synsets")


def _elements(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The elements of a file or of an array: types and data."""
    position = 0
    while position + 8 <= len(data):
        kind, length = struct.unpack_from("<II", data, position)
        if kind >> 16:
            # Up to four bytes stand in the tag itself.
            kind, length = kind & 0xFFFF, kind >> 16
            yield kind, data[position + 4 : position + 4 + length]
            position += 8
            continue
        start, stop = position + 8, position + 8 + length
        if stop > len(data):
            raise ValueError("an element ends behind the file")
        yield kind, data[start:stop]
        position = stop if kind == _COMPRESSED else stop + -stop % 8


def _array(body: bytes) -> tuple[str, Any]:
    """Name and value of an array: text, records, or numbers (a single one as itself)."""
    parts = _elements(body)
    if not body:
        return "", None
    flags, dims, name = next(parts)[1], next(parts)[1], next(parts)[1].decode()
    kind, shape = flags[0], np.frombuffer(dims, "<i4")
    if kind == _STRUCT:
        return name, _records(parts, int(shape.prod()))
    code, raw = next(parts, (2, b""))
    if code not in _DTYPES:
        return name, None
    values = np.frombuffer(raw, _DTYPES[code])
    if kind == _CHAR:
        return name, "".join(map(chr, values.tolist()))
    return name, values[0] if values.size == 1 else values


def _records(parts: Iterator[tuple[int, bytes]], count: int) -> list[Record]:
    (width,) = struct.unpack("<i", next(parts)[1])
    raw = next(parts)[1]
    fields = [raw[at : at + width].split(b"\0")[0].decode() for at in range(0, len(raw), width)]
    return [{field: _array(next(parts)[1])[1] for field in fields} for _ in range(count)]
