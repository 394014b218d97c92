"""Kernels to binaries: compiled where neither the process nor the disk has them.

Kernels that are missing are compiled together. On disk lie the binary, named by its source and all
that decides what it becomes, and for every kernel a note that says in which binary it is, so that
programs find the kernels of others.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from treadle.backends.object_cache import ObjectCache
from treadle.backends.rendered.recording import RecordingCounts
from treadle.backends.rendering import Launchable, Renderer
from treadle.base.errors import CompileError
from treadle.runtime.api import Device

FORMAT = 1
"""Part of every key: raised when equal sources come to mean other code."""
AT_ONCE = 24
"""Kernels that are compiled as one source: what fails or is interrupted is lost together."""


class KernelBinaries:
    """The binaries of one renderer.

    Attributes:
        compiled: how many sources were compiled for it so far.
        cache: what is on disk.
        recordings: what its programs have recorded so far.
    """

    def __init__(self, renderer: Renderer, cache: ObjectCache) -> None:
        self.renderer = renderer
        self.cache = cache
        self.compiled = 0
        self.recordings = RecordingCounts()
        self._home: dict[str, str] = {}
        self._binaries: dict[str, bytes] = {}
        self._lock = threading.RLock()

    def add(self, kernels: Mapping[str, Any]) -> None:
        """Compile the kernels that are not known yet; `kernels` has them by symbol.

        Raises:
            CompileError: the compiler refuses one.
        """
        with self._lock:
            missing = [symbol for symbol in kernels if not self._known(symbol)]
            for first in range(0, len(missing), AT_ONCE):
                self._compile({s: kernels[s] for s in missing[first : first + AT_ONCE]})

    def has(self, symbols: Iterable[str]) -> bool:
        """Return whether all these kernels are there without compiling any."""
        with self._lock:
            return all(map(self._known, symbols))

    def load(self, device: Device, symbols: Sequence[str]) -> list[Launchable]:
        """Launchables on a device, one per symbol.

        Raises:
            CompileError: a kernel was not added before.
        """
        by_home: dict[str, list[int]] = {}
        with self._lock:
            for place, symbol in enumerate(symbols):
                if not self._known(symbol):
                    raise CompileError(self.renderer.name, f"there is no binary of {symbol}")
                by_home.setdefault(self._home[symbol], []).append(place)
            found: dict[int, Launchable] = {}
            for home, places in by_home.items():
                wanted = [symbols[p] for p in places]
                made = self.renderer.load(device, self._binaries[home], wanted)
                found.update(zip(places, made, strict=True))
        return [found[place] for place in range(len(symbols))]

    def _known(self, symbol: str) -> bool:
        if symbol in self._home:
            return True
        note = self.cache.get(self._key(symbol, "kernel"))
        if note is None:
            return False
        home = note.decode()
        if home not in self._binaries:
            binary = self.cache.get(home)
            if binary is None:
                return False
            self._binaries[home] = binary
        self._home[symbol] = home
        return True

    def _compile(self, kernels: Mapping[str, Any]) -> None:
        source = self.renderer.render(list(kernels.values()))
        home = self._key(source, "binary")
        self._binaries[home] = binary = self.renderer.compile(source)
        self.compiled += 1
        written = self.cache.put(home, binary)
        for symbol in kernels:
            self._home[symbol] = home
            if written:
                self.cache.put(self._key(symbol, "kernel"), home.encode())

    def _key(self, text: str, kind: str) -> str:
        parts = (str(FORMAT), self.renderer.name, self.renderer.fingerprint, text)
        return f"{hashlib.sha256('|'.join(parts).encode()).hexdigest()}.{kind}"
