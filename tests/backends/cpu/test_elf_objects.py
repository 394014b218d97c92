"""Objects: those of LLVM are taken, damaged ones never reach its loader, which some would end."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.damage.mutate import mutated

from treadle.backends.codegen.target import GENERIC
from treadle.backends.cpu import building, linking, shipped
from treadle.backends.cpu.elf_objects import check_object
from treadle.backends.cpu.native import toolchain
from treadle.backends.cpu.toolchain import LinkedObjects

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="objects are of another format elsewhere"
)
TEXT = """
@table = internal constant [2 x ptr] [ptr @one, ptr @two]
@count = global i64 7
@room = internal global [64 x i64] zeroinitializer
declare i64 @time(ptr)
define i64 @one() {
  %t = call i64 @time(ptr null)
  ret i64 %t
}
define i64 @two(i64 %n) {
  %p = getelementptr [2 x ptr], ptr @table, i64 0, i64 %n
  %f = load ptr, ptr %p
  %r = call i64 %f()
  %c = load i64, ptr @count
  %s = add i64 %r, %c
  store i64 %s, ptr @room
  ret i64 %s
}
"""
"""With what objects of kernels have at most: a call of the system, places, data, frames."""
SECTION, SYMBOL, RELOCATION = 64, 24, 24


@pytest.fixture(scope="module")
def image() -> bytes:
    return building.translate(TEXT, GENERIC)


class Tables:
    """Places in an object, found by names of sections and not as the check finds them."""

    def __init__(self, image: bytes) -> None:
        self.headers = struct.unpack_from("<Q", image, 40)[0]
        self.count, names = struct.unpack_from("<HH", image, 60)
        self.at: dict[str, int] = {}
        self.data: dict[str, int] = {}
        start = struct.unpack_from("<Q", image, self.headers + SECTION * names + 24)[0]
        for n in range(self.count):
            header = self.headers + SECTION * n
            place = start + struct.unpack_from("<I", image, header)[0]
            name = image[place : image.index(b"\0", place)].decode()
            self.at[name] = header
            self.data[name] = struct.unpack_from("<Q", image, header + 24)[0]


def _in_header(name: str, at: int, form: str, value: int) -> Callable[[bytearray, Tables], None]:
    return lambda raw, t: struct.pack_into(form, raw, t.at[name] + at, value)


def _in_data(name: str, at: int, form: str, value: int) -> Callable[[bytearray, Tables], None]:
    return lambda raw, t: struct.pack_into(form, raw, t.data[name] + at, value)


def _at(at: int, form: str, value: int) -> Callable[[bytearray, Tables], None]:
    return lambda raw, t: struct.pack_into(form, raw, at, value)


def _renamed(raw: bytearray, t: Tables) -> None:
    at = bytes(raw).index(b"\0.bss\0")
    raw[at : at + 6] = b"\0.tbs\0"


LIES: dict[str, tuple[Any, str]] = {
    "no object": (_at(0, "<I", 1), "magic number"),
    "a library": (_at(16, "<H", 3), "its kind"),
    "for another machine": (_at(18, "<H", 40), "its kind"),
    "sections elsewhere": (_at(40, "<Q", 1 << 63), "section headers"),
    "many sections": (_at(60, "<H", 4000), "outside of the object"),
    "names in no section": (_at(62, "<H", 4000), "section headers"),
    "a name elsewhere": (_in_header(".text", 0, "<I", 1 << 30), "name of a section"),
    "a name of another kind": (_renamed, "name of a section"),
    "functions that are called": (_in_header(".data", 4, "<I", 14), "kind of a section"),
    "memory of threads": (_in_header(".bss", 8, "<Q", 0x403), "a section"),
    "code that is written": (_in_header(".text", 8, "<Q", 7), "code that is written"),
    "an odd alignment": (_in_header(".text", 48, "<Q", 3), "alignment"),
    "a large alignment": (_in_header(".text", 48, "<Q", 1 << 40), "alignment"),
    "a long section": (_in_header(".text", 32, "<Q", 1 << 40), "a section"),
    "much room": (_in_header(".bss", 32, "<Q", 1 << 40), "a section"),
    "no symbols": (_in_header(".symtab", 4, "<I", 1), "its symbols"),
    "names of symbols that are none": (_in_header(".symtab", 40, "<I", 2), "its names"),
    "symbols of another size": (_in_header(".symtab", 56, "<Q", 16), "size of a table"),
    "a symbol without name": (_in_data(".symtab", SYMBOL, "<I", 1 << 30), "name of a symbol"),
    "a resolver": (_in_data(".symtab", SYMBOL + 4, "<B", 10), "kind of a symbol"),
    "a symbol of no section": (_in_data(".symtab", SYMBOL + 6, "<H", 900), "place of a symbol"),
    "a symbol elsewhere": (_in_data(".symtab", 2 * SYMBOL + 8, "<Q", 1 << 63), "place of a symbol"),
    "relocations of no section": (_in_header(".rela.text", 44, "<I", 99), "its relocations"),
    "relocations of names": (_in_header(".rela.text", 44, "<I", 1), "its relocations"),
    "a relocation elsewhere": (_in_data(".rela.text", 0, "<Q", 1 << 40), "place of a relocation"),
    "an odd relocation": (_in_data(".rela.text", 8, "<I", 37), "kind of a relocation"),
    "no such symbol": (_in_data(".rela.text", 12, "<I", 1 << 20), "symbol of a relocation"),
    "a long frame": (_in_data(".eh_frame", 0, "<I", 1 << 20), "a frame"),
    "no opening of frames": (_in_data(".eh_frame", 4, "<I", 1), "a frame"),
    "code for exceptions": (_in_data(".eh_frame", 9, "<B", ord("P")), "a frame"),
}


@pytest.mark.parametrize("what", LIES)
def test_lies_are_named(image: bytes, what: str) -> None:
    change, problem = LIES[what]
    raw = bytearray(image)
    change(raw, Tables(image))
    assert raw != image
    with pytest.raises(ValueError, match=problem):
        check_object(bytes(raw))


def test_objects_of_this_machine_are_taken_and_run(image: bytes) -> None:
    check_object(memoryview(bytearray(image)))
    assert LinkedObjects([image], ["one", "two"]).addresses["two"]
    check_object(toolchain().object(TEXT))


def test_pieces_are_refused(image: bytes) -> None:
    for length in range(0, len(image), 41):
        with pytest.raises(ValueError, match=r"damaged|outside"):
            check_object(image[:length])


LOADED = """
import sys
from treadle.backends.cpu import llvm_compile
for path in sys.argv[1:]:
    try:
        llvm_compile.link([open(path, "rb").read()], [])
    except (OSError, RuntimeError):
        pass
"""


def loaded(paths: list[Path]) -> int:
    """The status of a process that has LLVM load objects."""
    command = [sys.executable, "-c", LOADED, *map(str, paths)]
    return subprocess.run(command, capture_output=True).returncode


def test_damaged_objects_end_no_process(image: bytes, tmp_path: Path) -> None:
    """Those that the check takes are loaded, and of those that it refuses some do end it."""
    rng = random.Random(0)
    tables = Tables(image).data[".symtab"]
    taken, refused = [], []
    for number in range(300):
        if number % 2:
            raw = image[:tables] + mutated(image[tables:], rng)
        else:
            changed = bytearray(image)
            changed[rng.randrange(tables, len(image))] ^= 1 << rng.randrange(8)
            raw = bytes(changed)
        path = tmp_path / f"{number}.o"
        path.write_bytes(raw)
        try:
            check_object(raw)
            taken.append(path)
        except ValueError:
            refused.append(path)
    assert len(taken) > 10 and len(refused) > 100
    assert loaded(taken) == 0
    assert loaded(refused) < 0


def test_code_of_files_is_checked_where_llvm_loads_it(
    image: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a linker, or where it does not take the objects."""
    monkeypatch.setattr(linking, "shared_library", lambda objects: None)
    code: Any = SimpleNamespace(library=None, objects=[image])
    assert shipped._library(code, ["one"]).addresses["one"]
    raw = bytearray(image)
    LIES["a long section"][0](raw, Tables(image))
    code.objects.append(memoryview(bytes(raw)))
    with pytest.raises(ValueError, match="a section: damaged"):
        shipped._library(code, ["one"])
