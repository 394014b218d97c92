"""Kernels to addresses: compiled where the cache has none, linked, and loaded.

Where the system has a linker, the objects of a program become one shared library, which the
system's loader opens: warm starts then need no LLVM (importing it costs more than everything else
they do), and debuggers and profilers know the code. Elsewhere LLVM's own loader takes the objects.
"""

from __future__ import annotations

import _ctypes
import functools
import hashlib
import importlib
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

from treadle.backends.codegen.target import Target
from treadle.backends.object_cache import ObjectCache
from treadle.base.errors import CompileError
from treadle.base.log import get_logger

FORMAT = 2
"""Part of every key: to be raised when equal texts come to mean other code."""
Texts = Mapping[str, Callable[[], str]]


def building() -> ModuleType:
    """The module that compiles and links, imported at the first call: LLVM takes a while.

    Raises:
        CompileError: llvmlite is missing or broken.
    """
    try:
        from treadle.backends.cpu import building

        return building
    except (ImportError, OSError) as error:
        raise CompileError(
            "cpu", f"llvmlite cannot be imported: {error}", hint="reinstall llvmlite"
        ) from error


def linking() -> ModuleType:
    """The module that calls linkers, imported at the first call: warm starts need none."""
    from treadle.backends.cpu import linking

    return linking


@functools.cache
def llvmlite_version() -> str:
    """Part of every key: another version may generate other code."""
    try:
        return str(getattr(importlib.import_module("llvmlite"), "__version__", "unknown"))
    except ImportError:
        return "missing"


class LoadedCode:
    """Loaded code: addresses by symbol. Dropping the last reference unloads it."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self.addresses: dict[str, int] = dict.fromkeys(symbols, 0)


class SharedLibrary(LoadedCode):
    """A file opened by the system's loader; descriptor `behind` stays open as long as it."""

    def __init__(self, path: str, symbols: Sequence[str], behind: int | None = None) -> None:
        super().__init__(symbols)
        self._behind = behind
        self._handle = _ctypes.dlopen(path, os.RTLD_NOW | os.RTLD_LOCAL)
        self.find(symbols)

    def find(self, symbols: Sequence[str]) -> None:
        """Look symbols up.

        Raises:
            OSError: one is not there.
        """
        for symbol in symbols:
            self.addresses[symbol] = _ctypes.dlsym(self._handle, symbol)

    def __del__(
        self,
        _unload: Any = _ctypes.dlclose,
        _at_exit: Any = sys.is_finalizing,
        _close: Any = os.close,
    ) -> None:
        handle = getattr(self, "_handle", None)
        if handle is None:  # Whoever made the descriptor closes it.
            return
        if not _at_exit():  # a thread may still be inside then
            _unload(handle)
        if self._behind is not None:
            _close(self._behind)


class LinkedObjects(LoadedCode):
    """Objects taken in by LLVM's loader."""

    def __init__(self, objects: Sequence[bytes], symbols: Sequence[str]) -> None:
        super().__init__(symbols)
        self._tracker = building().linked_by_llvm(objects, symbols)
        for symbol in symbols:
            self.addresses[symbol] = self._tracker[symbol]


def opened(image: bytes | memoryview, symbols: Sequence[str]) -> LoadedCode:
    """A shared library in memory.

    Raises:
        OSError: the system's loader does not take it, or it lacks a symbol.
    """
    try:
        descriptor = os.memfd_create("treadle")
    except AttributeError as error:
        raise OSError("this system has no files in memory") from error
    # The loader takes two files of one name for the same, and numbers that are closed come again.
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(image)
        library = SharedLibrary(f"/proc/self/fd/{descriptor}", (), descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    library.find(symbols)
    return library


class Toolchain:
    """Compiles for one target and remembers, in the process and on disk, what it compiled.

    Attributes:
        compiled: how many modules LLVM has compiled for it so far.
        cache: what is on disk.
        built: how many libraries were made rather than found in the cache.
        found: how many were found there.
        fingerprint: names all that decides what code a text becomes.
    """

    def __init__(self, target: Target, cache: ObjectCache) -> None:
        self.target = target
        self.compiled = 0
        self.built = 0
        self.found = 0
        self.fingerprint = f"{FORMAT}/llvmlite-{llvmlite_version()}/{target!r}"
        self.cache = cache
        self._loaded: WeakValueDictionary[str, LoadedCode] = WeakValueDictionary()

    def load(self, texts: Texts) -> list[LoadedCode]:
        """Libraries that have all these symbols between them.

        `texts` maps the symbol of each kernel to a function that gives the LLVM text of a module
        with it. Equal symbols mean equal code.

        Raises:
            CompileError: LLVM does not accept a text, or the code cannot be loaded.
        """
        with _LOCK:
            found = [self._loaded.get(symbol) for symbol in texts]
            if all(found):
                return list({id(library): library for library in found if library}.values())
            library = self._library(texts, list(texts))
            for symbol in texts:
                self._loaded[symbol] = library
            return [library]

    def fetch(self, symbols: Sequence[str]) -> list[LoadedCode] | None:
        """Return libraries that the process or the cache has already; None where one is missing.

        Symbols that were loaded together are found together.
        """
        try:
            return self.load(dict.fromkeys(symbols, _absent))
        except KeyError:
            return None

    def load_module(self, symbols: Sequence[str], text: str) -> LoadedCode:
        """One module that defines several symbols, which name all that matters of its text."""
        with _LOCK:
            return self._library({"+".join(sorted(symbols)): lambda: text}, symbols)

    def objects(self, texts: Texts) -> list[bytes]:
        """The object file of every text, from the cache where it has it."""
        with _LOCK:
            return self._objects(texts)

    def object(self, text: str) -> bytes:
        """The object file of a module."""
        made: bytes = building().translate(text, self.target)
        return made

    def assembly(self, text: str) -> str:
        """The target's assembly of a module."""
        made: bytes = building().translate(text, self.target, "assembly")
        return made.decode()

    # -- one library -----------------------------------------------------------------------

    def _library(self, texts: Texts, symbols: Sequence[str]) -> LoadedCode:
        key = self._key("\n".join(sorted(texts))) + ".so"
        image = self.cache.get(key)
        found = None if image is None else self._open(key, image, symbols)
        if found is not None:
            self.found += 1
            return found
        objects = self._objects(texts)
        image = linking().shared_library(objects)
        if image is not None:
            # What was not written now may be a damaged file, so it is not opened by its name.
            found = self._open(key if self.cache.put(key, image) else "", image, symbols)
        return LinkedObjects(objects, symbols) if found is None else found

    def _open(self, key: str, image: bytes, symbols: Sequence[str]) -> LoadedCode | None:
        """The image opened from the cache or, where it is not there (no key), from memory."""
        try:
            if key:
                return SharedLibrary(str(self.cache.path(key)), symbols)
        except OSError:
            pass  # on a file system that allows no execution
        try:
            return opened(image, symbols)
        except OSError as error:
            get_logger().info("a library cannot be opened, LLVM loads its objects: %s", error)
            return None

    def _objects(self, texts: Texts) -> list[bytes]:
        """The object of every text, from the cache where it has it."""
        keys = {symbol: self._key(symbol) + ".o" for symbol in texts}
        found = {symbol: self.cache.get(key) for symbol, key in keys.items()}
        missing = {s: texts[s] for s, image in found.items() if image is None}
        if _absent in missing.values():  # Nothing has to be started to find that out.
            _absent()
        self.built += 1
        if missing:
            self.compiled += len(missing)
            for symbol, image in building().objects_of(missing, self.target).items():
                found[symbol] = image
                self.cache.put(keys[symbol], image)
        return [image for image in found.values() if image is not None]

    def _key(self, what: str) -> str:
        return hashlib.sha256(f"{self.fingerprint}\n{what}".encode()).hexdigest()


def _absent() -> str:
    raise KeyError("no text")


# LLVM has a lock of its own, which a thread that is not there after a fork would hold for ever:
# forks wait until nobody compiles.
_LOCK = threading.RLock()
os.register_at_fork(
    before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release
)
