"""The native runtime of this process: its library, and its functions as ctypes knows them.

All of them release the interpreter lock while they run.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Mapping
from typing import Any

from treadle.backends.cpu.eager_text import eager_text
from treadle.backends.cpu.executor_text import executor_text
from treadle.backends.cpu.host import host_target
from treadle.backends.cpu.layout import LIVE, MOST_THREADS, POOL_BYTES, SPINS, THREADS
from treadle.backends.cpu.pool_text import pool_text
from treadle.backends.cpu.toolchain import LoadedCode, Toolchain
from treadle.backends.object_cache import ObjectCache
from treadle.backends.objects import ARRAY_DATA, are_as_expected
from treadle.base.env import cache_directory
from treadle.base.errors import CompileError
from treadle.base.process import RUNTIME

CORE = ("run", "call", "profile", "repeat", "stop", "worker", "evaluate")
"""Functions of the runtime that programs need; the rest is for eager calls."""
_FUNCTIONS = (*CORE, "launch", "switch")


LAYOUT = {
    "POOL_BYTES": POOL_BYTES,
    "POOL_THREADS": THREADS,
    "POOL_SPINS": SPINS,
    "POOL_LIVE": LIVE,
    "MOST_THREADS": MOST_THREADS,
    "ARRAY_DATA_WORD": ARRAY_DATA // 8,
}
"""Layout of the runtime, for one in another language that starts threads and runs programs."""


def executor(prefix: str, machine: str = "", system: str = "") -> str:
    """The text of the executor and the pool alone, for programs that leave this process.

    `machine` is the architecture that it is for, and `system` its system; "" for these.
    """
    text = "\n".join((pool_text(machine, system), executor_text()))
    return text.replace("@treadle_", f"@{prefix}")


@functools.cache
def version(machine: str = "", system: str = "") -> str:
    """Names how programs are written and run: it changes with the text of the executor."""
    return hashlib.sha256(executor("treadle_", machine, system).encode()).hexdigest()[:16]


@RUNTIME.cached("environment")
def toolchain() -> Toolchain:
    """The toolchain of the host."""
    return Toolchain(host_target(), ObjectCache(cache_directory() / "objects"))


class Core:
    """The part of the native runtime that programs need; `executor_text.py` describes its
    functions.

    Args:
        library: has the functions, and stays loaded.
        address: of each of them; `worker` remains one.
    """

    def __init__(self, library: LoadedCode, address: Mapping[str, int]) -> None:
        if not are_as_expected():
            raise CompileError(
                "cpu",
                "this interpreter lays out its objects, or NumPy its arrays, in an unknown way",
                hint="use CPython on a 64-bit machine",
            )
        self._library = library
        pointer, word, object_ = ctypes.c_void_p, ctypes.c_int64, ctypes.py_object
        self.worker = address["worker"]
        self.stop: Any = ctypes.CFUNCTYPE(None, pointer)(address["stop"])
        self.run: Any = ctypes.CFUNCTYPE(word, pointer, pointer, object_, word)(address["run"])
        self.call: Any = ctypes.CFUNCTYPE(
            word, pointer, pointer, object_, object_, word, word, object_
        )(address["call"])
        self.profile: Any = ctypes.CFUNCTYPE(word, pointer, pointer, pointer, word, pointer)(
            address["profile"]
        )
        self.repeat: Any = ctypes.CFUNCTYPE(
            word, pointer, pointer, pointer, pointer, word, word, pointer, word
        )(address["repeat"])
        self.evaluate: Any = ctypes.CFUNCTYPE(word, pointer, word, pointer)(address["evaluate"])


class NativeRuntime(Core):
    """The whole runtime: `launch` is described in `eager_text.py`, `switch` is an address."""

    def __init__(self) -> None:
        text = "\n".join((pool_text(), executor_text(), eager_text()))
        version = hashlib.sha256(text.encode()).hexdigest()[:16]
        symbols = [f"treadle_{name}_{version}" for name in _FUNCTIONS]
        for name in _FUNCTIONS:
            text = text.replace(f"@treadle_{name}(", f"@treadle_{name}_{version}(")
        # Any symbol leads to the whole module: it is compiled once, as one.
        library = toolchain().load_module(symbols, text)
        address = dict(zip(_FUNCTIONS, library.addresses.values(), strict=True))
        super().__init__(library, address)
        self.run_address, self.switch = address["run"], address["switch"]
        pointer, word, object_ = ctypes.c_void_p, ctypes.c_int64, ctypes.py_object
        self.launch: Any = ctypes.CFUNCTYPE(word, pointer, pointer, object_, word)(
            address["launch"]
        )


@functools.cache
def runtime() -> NativeRuntime:
    """The native runtime, compiled or fetched from the cache at the first call; never unloaded.

    Raises:
        CompileError: this machine or interpreter cannot have it.
    """
    return NativeRuntime()


_ADOPTED: list[Core] = []


def core() -> Core:
    """Return the runner of programs: the part of `runtime()`, or what came with the code of a file
    before.
    """
    return _ADOPTED[0] if _ADOPTED else runtime()


def adopt(library: LoadedCode, address: Mapping[str, int]) -> None:
    """Take the functions of a library for those of this process, where it has none yet.

    They must be of this `version()`, so that threads and programs understand one another.
    """
    if not _ADOPTED and not runtime.cache_info().currsize:
        _ADOPTED.append(Core(library, address))
