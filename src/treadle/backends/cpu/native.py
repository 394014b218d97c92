"""The native runtime of this process: its library, and its functions as ctypes knows them.

All of them release the interpreter lock while they run.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from typing import Any

import numpy as np

from treadle.backends.cpu.eager_text import eager_text
from treadle.backends.cpu.executor_text import executor_text
from treadle.backends.cpu.host import host_target
from treadle.backends.cpu.layout import (
    ARRAY_DATA,
    ARRAY_FLAGS,
    ARRAY_NDIM,
    ARRAY_SHAPE,
    LIVE,
    MOST_THREADS,
    POOL_BYTES,
    SPINS,
    THREADS,
)
from treadle.backends.cpu.pool_text import pool_text
from treadle.backends.cpu.toolchain import Toolchain
from treadle.backends.object_cache import ObjectCache
from treadle.base.env import cache_directory
from treadle.base.errors import CompileError

_FUNCTIONS = ("run", "profile", "repeat", "launch", "stop", "switch", "worker")


LAYOUT = {
    "POOL_BYTES": POOL_BYTES,
    "POOL_THREADS": THREADS,
    "POOL_SPINS": SPINS,
    "POOL_LIVE": LIVE,
    "MOST_THREADS": MOST_THREADS,
    "ARRAY_DATA_WORD": ARRAY_DATA // 8,
}
"""What a runtime in another language has to know to start threads and run programs."""


def executor(prefix: str) -> str:
    """The text of the executor and the pool alone, for programs that run without Python."""
    text = "\n".join((pool_text(), executor_text()))
    return text.replace("@treadle_", f"@{prefix}")


@functools.cache
def toolchain() -> Toolchain:
    """The toolchain of the host."""
    return Toolchain(host_target(), ObjectCache(cache_directory() / "objects"))


class Runtime:
    """The functions of the native runtime.

    `run`, `profile`, `repeat` and `launch` are described in `executor_text.py` and `eager_text.py`;
    `worker` and `switch` are addresses.
    """

    def __init__(self) -> None:
        _check_layouts()
        text = "\n".join((pool_text(), executor_text(), eager_text()))
        version = hashlib.sha256(text.encode()).hexdigest()[:16]
        symbols = [f"treadle_{name}_{version}" for name in _FUNCTIONS]
        for name in _FUNCTIONS:
            text = text.replace(f"@treadle_{name}(", f"@treadle_{name}_{version}(")
        # Any symbol leads to the whole module: it is compiled once, as one.
        self._library = toolchain().load_module(symbols, text)
        address = dict(zip(_FUNCTIONS, self._library.addresses.values(), strict=True))
        pointer, word, object_ = ctypes.c_void_p, ctypes.c_int64, ctypes.py_object
        self.worker = address["worker"]
        self.switch = address["switch"]
        self.stop: Any = ctypes.CFUNCTYPE(None, pointer)(address["stop"])
        self.run: Any = ctypes.CFUNCTYPE(word, pointer, pointer, object_, word)(address["run"])
        self.profile: Any = ctypes.CFUNCTYPE(word, pointer, pointer, pointer, word, pointer)(
            address["profile"]
        )
        self.repeat: Any = ctypes.CFUNCTYPE(
            None, pointer, pointer, pointer, pointer, word, word, pointer, word
        )(address["repeat"])
        self.launch: Any = ctypes.CFUNCTYPE(word, pointer, pointer, object_, word)(
            address["launch"]
        )


@functools.cache
def runtime() -> Runtime:
    """The native runtime, compiled or fetched from the cache at the first call; never unloaded.

    Raises:
        CompileError: this machine or interpreter cannot have it.
    """
    return Runtime()


def _check_layouts() -> None:
    """Native code reads NumPy arrays; that they look as it expects is seen from one of them.

    Raises:
        CompileError: they do not, as on interpreters other than CPython.
    """
    array = np.zeros((3, 5), np.int64)
    if ctypes.sizeof(ctypes.c_void_p) == 8 and array.__array_interface__["data"][0]:
        start = id(array)
        data = ctypes.c_void_p.from_address(start + ARRAY_DATA).value
        ndim = ctypes.c_int.from_address(start + ARRAY_NDIM).value
        shape = ctypes.c_void_p.from_address(start + ARRAY_SHAPE).value or 0
        dense = ctypes.c_int.from_address(start + ARRAY_FLAGS).value & 1
        if (data, ndim, dense) == (array.ctypes.data, 2, 1) and list(
            (ctypes.c_int64 * 2).from_address(shape)
        ) == [3, 5]:
            return
    raise CompileError(
        "cpu",
        "this interpreter lays out NumPy arrays in an unknown way",
        hint="use CPython on a 64-bit machine",
    )
