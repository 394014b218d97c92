"""What happens to files: bytes that change, vanish, repeat, swap places, counts that grow."""

from __future__ import annotations

import hashlib
import io
import json
import random
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from treadle.base.files import sealed
from treadle.base.files.container import header_bytes, read_header
from treadle.base.files.source import SizedStream

LARGE = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 1 << 20, (1 << 31) - 1, (1 << 32) - 1, 1 << 40)
"""What counts become, cut to the bytes that they have."""


def _flip(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _byte(data: bytearray, rng: random.Random) -> None:
    data[rng.randrange(len(data))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data)) :]


def _remove(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.choice((1, 2, 4, 8, rng.randrange(1, 200)))]


def _insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    data[at:at] = rng.randbytes(rng.choice((1, 2, 4, 8, rng.randrange(1, 64))))


def _repeat(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data))
    piece = data[at : at + rng.randrange(1, 1 + min(len(data), 4096))]
    data[at:at] = piece * rng.choice((1, 1, 3, 100))


def _swap(data: bytearray, rng: random.Random) -> None:
    size = rng.randrange(1, 1 + min(64, len(data) // 2 or 1))
    a, b = (rng.randrange(0, max(1, len(data) - size)) for _ in "ab")
    data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]


def _count(data: bytearray, rng: random.Random) -> None:
    """A number in binary becomes another, of the bytes that a count may have."""
    form = rng.choice(["<B", "<H", ">H", "<I", ">I", "<Q", ">Q"])
    size = struct.calcsize(form)
    if len(data) > size:
        limit = (1 << 8 * size) - 1
        number = rng.choice((*LARGE, limit, limit >> 1, 1 + (limit >> 1))) & limit
        struct.pack_into(form, data, rng.randrange(len(data) - size), number)


def _digits(data: bytearray, rng: random.Random) -> None:
    """A number in a text becomes another, with or without as many digits."""
    found = list(re.finditer(rb"\d+", data))
    if not found:
        return _count(data, rng)
    at = rng.choice(found)
    text = rng.choice((b"0", b"-1", b"1e9", b"4294967296", b"9" * 18, b"9" * 40, b"null", b"[]"))
    if rng.random() < 0.5:
        text = (b"9" * len(at[0])) if rng.random() < 0.5 else b"%d" % (int(at[0][:9]) + 1)
    data[at.start() : at.end()] = text
    return None


WAYS: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip, _flip, _byte, _cut, _remove, _insert, _repeat, _swap, _count, _count, _digits, _digits,
)  # fmt: skip


def mutated(sound: bytes, rng: random.Random) -> bytes:
    """The bytes after one to eight accidents, of the archive's members if it is an archive."""
    if sound.startswith(b"PK\x03\x04") and rng.random() < 0.5:
        return _repacked(sound, rng)
    data = bytearray(sound)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        if data:
            rng.choice(WAYS)(data, rng)
    return bytes(data)


def heads(sound: bytes, rng: random.Random) -> bytes:
    """As `mutated`, mostly near the beginning: behind a table, bytes are numbers of any value."""
    head = len(sound) if rng.random() < 0.25 else 6144
    return mutated(sound[:head], rng) + sound[head:]


def _repacked(sound: bytes, rng: random.Random) -> bytes:
    """An archive that is sound, with a member that is not: its checksums do not tell."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(sound)) as old, zipfile.ZipFile(made, "w") as new:
        names = old.namelist()
        chosen = rng.choice(names)
        for name in names:
            content = old.read(name)
            if name == chosen:
                match rng.randrange(8):
                    case 0:
                        continue
                    case 1:
                        content = b""
                    case _:
                        content = mutated(content, rng)
            new.writestr(zipfile.ZipInfo(name), content)
    return made.getvalue()


# -- files whose digests are right -------------------------------------------------------------

STRANGE: tuple[Any, ...] = (
    None, True, -1, 0, 1, 7, 64, 10**12, 2**40 - 64, 2**62, 2**64, 1.5, 1e300, "", "x", "float64",
    "\0", "é" * 500, [], [[]], [-1], [2**40], ["x"], [0] * 5000, {}, {"x": 1},
)  # fmt: skip


def resealed(manifest: dict[str, Any], entries: Any, data: bytes) -> bytes:
    """A file whose digests are right, whatever its manifest says."""
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    metadata = {sealed.MANIFEST: text, sealed.DIGEST: sealed._digest(text, entries)}
    return header_bytes(entries, metadata) + data


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a tree and each key or index of it."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


def lying(sound: bytes, rng: random.Random) -> bytes:
    """A file of Treadle's whose manifest or arrays lie, with digests that are right."""
    source = SizedStream(io.BytesIO(sound), len(sound), "sound")
    header = read_header(source)
    manifest = json.loads(header.metadata[sealed.MANIFEST])
    data = bytearray(source.read(header.data_start, source.size))
    for _ in range(rng.choice((1, 1, 2, 4))):
        if rng.random() < 0.2 and header.entries:
            name = rng.choice(sorted(header.entries))
            entry = header.entries[name]
            piece = bytearray(data[entry.begin : entry.end])
            if piece:
                rng.choice((_flip, _byte, _count))(piece, rng)
            data[entry.begin : entry.end] = piece
            manifest["sha256"][name] = hashlib.sha256(piece).hexdigest()
            continue
        parts = [k for k in manifest if k not in ("sha256", "format", "version", "producer")]
        where, key = rng.choice(list(places({k: manifest[k] for k in parts})))
        if where.keys() == set(parts) if isinstance(where, dict) else False:
            where = manifest
        old = where[key]
        if isinstance(old, str) and rng.random() < 0.7:
            where[key] = mutated(old.encode() or b"x", rng).decode(errors="replace")
        elif type(old) is int and rng.random() < 0.7:
            where[key] = old + rng.choice((-1, 1, 1000, 1 << 31, -2 * old))
        elif isinstance(old, list) and old and rng.random() < 0.5:
            where[key] = rng.choice((old * 2, old[:-1], old[::-1], [*old, rng.choice(old)]))
        else:
            where[key] = deepcopy(rng.choice(STRANGE))
    return resealed(manifest, header.entries, bytes(data))
