"""Images of shared libraries: those of linkers are opened, damaged ones never reach the loader."""

from __future__ import annotations

import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.damage.mutate import mutated

from treadle.backends.codegen.target import GENERIC
from treadle.backends.cpu import building, elf
from treadle.backends.cpu.elf import check_image

LD = shutil.which("ld")
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or LD is None, reason="images are made by linkers of Linux"
)
TEXT = """
@table = internal constant [3 x ptr] [ptr @one, ptr @two, ptr @three]
@count = global i64 7
declare i64 @time(ptr)
define i64 @one() {
  %t = call i64 @time(ptr null)
  ret i64 %t
}
define internal i64 @three() {
  ret i64 3
}
define i64 @two(i64 %n) {
  %p = getelementptr [3 x ptr], ptr @table, i64 0, i64 %n
  %f = load ptr, ptr %p
  %r = call i64 %f()
  %c = load i64, ptr @count
  %s = add i64 %r, %c
  ret i64 %s
}
"""
"""With what images of kernels have at most: calls of the system, a table of places, data."""


def linked(folder: Path, *options: str) -> bytes:
    (folder / "a.o").write_bytes(building.translate(TEXT, GENERIC))
    command = [str(LD), "-shared", "-z", "noexecstack", *options, "-o", "a.so", "a.o"]
    subprocess.run(command, check=True, cwd=folder)
    return (folder / "a.so").read_bytes()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return linked(tmp_path_factory.mktemp("image"), "-z", "noseparate-code")


OPTIONS = {
    "as kernels are": ["-z", "noseparate-code"],
    "with segments apart": ["-z", "separate-code"],
    "GNU": ["--hash-style=gnu"],
    "System V": ["--hash-style=sysv"],
    "with an identity": ["--build-id"],
    "bound": ["-z", "now"],
    "with tables of frames": ["--eh-frame-hdr"],
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_images_of_linkers_are_taken(options: list[str], tmp_path: Path) -> None:
    check_image(linked(tmp_path, *options))


class Tables:
    """Places in an image, found by other means than those of the check."""

    def __init__(self, image: bytes) -> None:
        count = struct.unpack_from("<H", image, 56)[0]
        self.headers: dict[tuple[int, int], int] = {}
        for n in range(count):
            kind, flags, offset, start = struct.unpack_from("<IIQQ", image, 64 + 56 * n)
            self.headers[kind, flags] = 64 + 56 * n
            if kind == 2:
                self.dynamic, self.shift = offset, start - offset
        self.tags: dict[int, int] = {}
        self.values: dict[int, int] = {}
        at = self.dynamic
        while True:
            tag, value = struct.unpack_from("<QQ", image, at)
            self.tags[tag], self.values[tag] = at, value
            if not tag:
                return
            at += 16


def _at_tag(tag: int, value: int) -> Callable[[bytearray, Tables], None]:
    return lambda raw, t: struct.pack_into("<Q", raw, t.tags[tag] + 8, value)


def _renamed(tag: int, to: int) -> Callable[[bytearray, Tables], None]:
    return lambda raw, t: struct.pack_into("<Q", raw, t.tags[tag], to)


def _in_table(tag: int, at: int, form: str, value: int) -> Callable[[bytearray, Tables], None]:
    """Tables are in the first segment, whose addresses are offsets."""
    return lambda raw, t: struct.pack_into(form, raw, t.values[tag] + at, value)


def _in_header(kind: int, flags: int, at: int, form: str, value: int) -> Any:
    return lambda raw, t: struct.pack_into(form, raw, t.headers[kind, flags] + at, value)


def _circle(raw: bytearray, t: Tables) -> None:
    """Every chain of the hash table ends at the first symbol, which follows itself."""
    at = t.values[4]
    buckets, count = struct.unpack_from("<II", raw, at)
    struct.pack_into(f"<{buckets + count}I", raw, at + 8, *[1] * (buckets + count))


def _endless(raw: bytearray, t: Tables) -> None:
    nbytes = t.tags[0] - t.dynamic
    struct.pack_into("<QQ", raw, t.headers[2, 6] + 32, nbytes, nbytes)


LOAD, RELRO, STACK = 1, 0x6474E552, 0x6474E551
HASH, STRINGS, SYMBOLS, RELA, PLT, GNU = 4, 5, 6, 7, 23, 0x6FFFFEF5
LIES: dict[str, tuple[Any, str]] = {
    "no image": (lambda raw, t: raw.__setitem__(slice(0, 4), b"text"), "magic number"),
    "for 32 bits": (lambda raw, t: raw.__setitem__(4, 1), "magic number"),
    "a program": (lambda raw, t: struct.pack_into("<H", raw, 16, 2), "its kind"),
    "headers elsewhere": (lambda raw, t: struct.pack_into("<Q", raw, 32, 1 << 40), "headers"),
    "many headers": (lambda raw, t: struct.pack_into("<H", raw, 56, 60000), "headers"),
    "unreadable": (_in_header(LOAD, 5, 4, "<I", 1), "mapped for"),
    "code to be written": (_in_header(LOAD, 5, 4, "<I", 7), "mapped for"),
    "a long segment": (_in_header(LOAD, 6, 32, "<Q", 1 << 40), "a segment"),
    "a large segment": (_in_header(LOAD, 6, 40, "<Q", 1 << 40), "a segment"),
    "segments that overlap": (_in_header(LOAD, 6, 16, "<Q", 0), "segment"),
    "an odd alignment": (_in_header(LOAD, 6, 48, "<Q", 4097), "alignment"),
    "a stack of code": (_in_header(STACK, 6, 4, "<I", 7), "stack"),
    "memory of threads": (_in_header(RELRO, 4, 0, "<I", 7), "kind of a segment"),
    "what becomes constant": (_in_header(RELRO, 4, 40, "<Q", 1 << 30), "becomes constant"),
    "no end of tags": (_endless, "no end"),
    "tables without sizes": (_renamed(9, 0), "sizes of its tables"),
    "symbols of another size": (_at_tag(11, 16), "sizes of its tables"),
    "flags": (_renamed(3, 30), "its flags"),
    "other libraries": (_renamed(STRINGS, 1), "the tag 0x1:"),
    "code that runs at once": (_renamed(3, 12), "the tag 0xc:"),
    "names elsewhere": (_at_tag(STRINGS, 1 << 40), "outside of the image"),
    "names without end": (_at_tag(10, 19), "its names"),
    "symbols elsewhere": (_at_tag(SYMBOLS, 1 << 40), "outside of the image"),
    "a hash table elsewhere": (_at_tag(HASH, 1 << 63), "outside of the image"),
    "no buckets": (_in_table(HASH, 0, "<I", 0), "hash table"),
    "a circle": (_circle, "hash table"),
    "a GNU table without words": (_in_table(GNU, 8, "<I", 0), "GNU hash table"),
    "a GNU table of few symbols": (_in_table(GNU, 4, "<I", 1 << 20), "GNU hash table"),
    "a name elsewhere": (_in_table(SYMBOLS, 24, "<I", 1 << 30), "name of a symbol"),
    "a resolver": (_in_table(SYMBOLS, 24 + 4, "<B", 0x1A), "kind of a symbol"),
    "a symbol elsewhere": (_in_table(SYMBOLS, 24 + 8, "<Q", 1 << 40), "place of a symbol"),
    "relocations of half a size": (_at_tag(2, 12), "its relocations"),
    "a relocation elsewhere": (_in_table(RELA, 0, "<Q", 1 << 40), "place of a relocation"),
    "a relocation of code": (_in_table(RELA, 0, "<Q", 0), "place of a relocation"),
    "an odd relocation": (_in_table(PLT, 8, "<I", 37), "kind of a relocation"),
    "no such symbol": (_in_table(PLT, 12, "<I", 1 << 20), "symbol of a relocation"),
    "a place elsewhere": (_in_table(RELA, 16, "<q", -8), "a relocation"),
}


@pytest.mark.parametrize("what", LIES)
def test_lies_are_named(image: bytes, what: str) -> None:
    change, problem = LIES[what]
    raw = bytearray(image)
    change(raw, Tables(image))
    assert raw != image
    with pytest.raises(ValueError, match=problem):
        check_image(bytes(raw))


def test_a_relocation_of_the_dynamic_section_is_refused(image: bytes) -> None:
    """It would change where tables are while the loader reads them."""
    raw, t = bytearray(image), Tables(image)
    _in_table(RELA, 0, "<Q", t.tags[SYMBOLS] + 8 + t.shift)(raw, t)
    with pytest.raises(ValueError, match="place of a relocation"):
        check_image(bytes(raw))


def test_pieces_of_images_are_refused(image: bytes) -> None:
    last = max(Tables(image).tags.values())
    for length in (*range(0, last, 61), last):
        with pytest.raises(ValueError, match=r"damaged|outside"):
            check_image(image[:length])


OPENED = """
import _ctypes, os, sys
for path in sys.argv[1:]:
    try:
        handle = _ctypes.dlopen(path, os.RTLD_NOW | os.RTLD_LOCAL)
        for symbol in ("one", "two", "count", "none"):
            try:
                _ctypes.dlsym(handle, symbol)
            except OSError:
                pass
    except OSError:
        pass
"""


def opened(paths: list[Path]) -> int:
    """The status of a process that opens images."""
    command = [sys.executable, "-S", "-c", OPENED, *map(str, paths)]
    return subprocess.run(command, capture_output=True).returncode


def test_damaged_images_end_no_process(image: bytes, tmp_path: Path) -> None:
    """Those that the check takes are opened, and of those that it refuses some do end it."""
    rng = random.Random(0)
    tables = max(Tables(image).values[tag] for tag in (HASH, STRINGS, SYMBOLS, RELA, PLT, GNU))
    taken, refused = [], []
    for number in range(400):
        if rng.random() < 0.5:
            raw = mutated(image[: tables + 100], rng)[: tables + 100]
            raw = raw.ljust(tables + 100, b"\0") + image[tables + 100 :]
        else:
            at = Tables(image).dynamic
            raw = image[:at] + mutated(image[at : at + 256], rng)[:256].ljust(256, b"\0")
            raw += image[len(raw) :]
        path = tmp_path / f"{number}.so"
        path.write_bytes(raw)
        try:
            check_image(raw)
            taken.append(path)
        except ValueError:
            refused.append(path)
    assert len(taken) > 10 and len(refused) > 100
    assert opened(taken) == 0
    assert opened(refused) < 0


def test_the_check_reads_views(image: bytes) -> None:
    """Files are mapped: what is given is no copy."""
    check_image(memoryview(bytearray(image)))
    assert elf.__all__ == ["check_image"]
