"""LLVM text to object code: the one module that imports llvmlite.

Run as a script it serves requests on standard input, so that several processes compile at a time
(llvmlite's lock lets one thread of a process compile). It must not import Treadle then: the server
would start ten times slower.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import struct
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, Literal

if __name__ == "__main__":
    # As a script: this folder's modules are not for import by bare names, llvmlite is.
    sys.path[:] = sys.argv[1:]

import llvmlite.binding as llvm

_LENGTH = struct.Struct("<q")
_CODEGEN_LEVEL = 2
_LINUX_NAMES = {
    "bmi": "bmi1",
    "dotprod": "asimddp",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
    "amx-tile": "amx_tile",
    "amx-bf16": "amx_bf16",
    "amx-int8": "amx_int8",
}


def host_features() -> list[str]:
    """Features LLVM finds on this processor, spelled as in /proc/cpuinfo."""
    found = llvm.get_host_cpu_features()
    return [_LINUX_NAMES.get(name, name) for name, present in found.items() if present]


@functools.lru_cache(maxsize=16)
def _machine(triple: str, cpu: str, features: str) -> Any:
    """The code generator of a target, made once."""
    if triple:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
    else:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(triple or llvm.get_process_triple())
    return target.create_target_machine(
        cpu=cpu, features=features, opt=_CODEGEN_LEVEL, reloc="pic", codemodel="default"
    )


def translate(
    text: str, triple: str, cpu: str, features: str, form: Literal["object", "assembly"] = "object"
) -> bytes:
    """Object code (position-independent) or assembly of a module in LLVM's text form.

    Kernels arrive with explicit vectors and in good order, so no passes run on them.

    Raises:
        RuntimeError: LLVM does not accept the text.
    """
    machine = _machine(triple, cpu, features)
    module = llvm.parse_assembly(text)
    module.verify()
    module.triple = machine.triple
    module.data_layout = str(machine.target_data)
    with _loops_as_they_are():
        if form == "assembly":
            return bytes(machine.emit_assembly(module), "utf-8")
        made: bytes = machine.emit_object(module)
    return made


@contextlib.contextmanager
def _loops_as_they_are() -> Iterator[None]:
    """Switch LLVM's strength reduction of loops off in the block; it took up to 2/3 of its time.

    Generators write loops with pointers that are moved on, so it found nothing to gain: kernels
    were measured to be as fast without it, and products of few rows to be faster.
    """
    llvm.set_option("treadle", "-disable-lsr=true")
    try:
        yield
    finally:
        llvm.set_option("treadle", "-disable-lsr=false")  # Others may use LLVM in this process.


# -- without a linker: objects become code through LLVM's own loader ---------------------------


@functools.cache
def _jit() -> Any:
    return llvm.create_lljit_compiler(_machine("", "", ""))


_NUMBERS = itertools.count()
"""Libraries of the process have different names."""


def link(objects: list[bytes], symbols: list[str]) -> Any:
    """Objects in memory as one library; `library[symbol]` is an address. It lives as long."""
    builder = llvm.JITLibraryBuilder().add_current_process()
    for image in objects:
        builder.add_object_img(image)
    for symbol in symbols:
        builder.export_symbol(symbol)
    return builder.link(_jit(), f"treadle.{next(_NUMBERS)}")


# -- the server --------------------------------------------------------------------------------


def write_message(stream: BinaryIO, *parts: bytes) -> None:
    """Parts, each after its length; one empty part ends the conversation."""
    stream.write(b"".join(_LENGTH.pack(len(part)) + part for part in parts))
    stream.flush()


def read_message(stream: BinaryIO) -> bytes:
    """The next part; empty at the end of the stream."""
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return b""
    return stream.read(_LENGTH.unpack(head)[0])


def _serve() -> None:
    """Texts in, objects out, until a part is empty; the first three parts are the target."""
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    triple, cpu, features = (read_message(source).decode().strip() for _ in range(3))
    while text := read_message(source):
        try:
            made = b"o" + translate(text.decode(), triple, cpu, features)
        except RuntimeError as error:
            made = b"e" + str(error).encode()
        write_message(sink, made)


if __name__ == "__main__":
    _serve()
