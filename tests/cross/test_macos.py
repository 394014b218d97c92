"""Libraries for macOS are linked and looked at; no Mac and no emulator of one is at hand.

Installed by `make setup-cross`; run by `make test-cross`.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from tests.deploy.networks import Net
from tests.deploy.test_library import traced

from treadle.deploy import write_library
from treadle.deploy.library import _functions

pytestmark = pytest.mark.cross
pytest.importorskip("ziglang", reason="make test-cross installs it")
_SYMBOLS, _IMAGE, _IS_DYLIB = 2, 0xFEEDFACF, 6
_SYMBOL = struct.Struct("<IBBHQ")


def parts(image: bytes) -> tuple[int, set[str], set[str]]:
    """The processor of a Mach-O image, what it gives to others, and what it takes from them.

    Source: <mach-o/loader.h>, <mach-o/nlist.h>.
    """
    magic, processor, _, kind, commands = struct.unpack_from("<5I", image)
    assert (magic, kind) == (_IMAGE, _IS_DYLIB)
    given, taken, at = set(), set(), 32
    for _ in range(commands):
        command, nbytes = struct.unpack_from("<2I", image, at)
        if command == _SYMBOLS:
            first, count, texts, _ = struct.unpack_from("<4I", image, at + 8)
            for i in range(count):
                offset, kind, *_ = _SYMBOL.unpack_from(image, first + i * _SYMBOL.size)
                name = image[texts + offset : image.index(b"\0", texts + offset)].decode()
                if kind & 1 and not kind & 0x10:
                    (given if kind & 0x0E else taken).add(name)
        at += nbytes
    return processor, given, taken


@pytest.mark.parametrize(("target", "processor"), [("neon", 0x100000C), ("avx2", 0x1000007)])
def test_a_library_is_linked(target: str, processor: int, tmp_path: Path) -> None:
    network = Net()
    network.eval()
    model = traced(network, np.zeros((2, 3, 16, 16), np.float32))
    made = write_library(model, tmp_path, "net", target=target, system="macos")
    assert made.library.name == "libnet.dylib"
    found, given, taken = parts(made.library.read_bytes())
    assert found == processor
    assert {f"_{name}" for name in _functions("net")} <= given
    own = [name for name in taken if name.startswith(("_net", "_loops", "_contract"))]
    assert not own
    # What the system's library has.
    assert {"_pthread_create", "_usleep", "_clock_gettime"} <= taken
