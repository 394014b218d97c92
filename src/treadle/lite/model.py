"""Models that networks run: a file's native code, or its portable part, compiled when needed."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from treadle.base.array import Array
from treadle.base.edition import COMPILED
from treadle.base.errors import LoadError
from treadle.base.log import get_logger
from treadle.engine.package import foreign
from treadle.engine.package.offline import OfflineModel, load_offline
from treadle.lite.config import (
    AS_COMPILED,
    CompileSettings,
    LiteConfig,
    LiteIO,
    LiteNetworkIO,
    LiteOptions,
)
from treadle.lite.globals import decrypted
from treadle.lite.native import Native, Room
from treadle.lite.tensor import LiteLayout
from treadle.runtime.array import to_host

if TYPE_CHECKING:
    from treadle.lite.packed import Choices
    from treadle.lite.portable import Portable


def is_packed(raw: bytes) -> bool:
    """Return whether these are the first bytes of a packed model."""
    return raw[:4] == b"PK\x03\x04"


class LiteModel:
    """A model that was loaded. Networks share it, and threads may run it at the same time.

    Args:
        native: code of the file for this machine, if it has any.
        read: reads the portable part.
    """

    def __init__(self, native: Native | None, read: Callable[[], Portable]) -> None:
        self.native = native
        self._read = read
        self._lock = threading.Lock()
        self._told: set[str] = set()
        self._portable = read() if native is None else None

    @property
    def portable(self) -> Portable:
        """The portable part, read when it is first needed."""
        with self._lock:
            if self._portable is None:
                self._portable = self._read()
            return self._portable

    def portable_because(self, reason: str, becomes: str = COMPILED) -> Portable:
        """The portable part, which is compiled now although there is native code; told once."""
        if self.native is not None and reason not in self._told:
            self._told.add(reason)
            _tell(reason, becomes)
        return self.portable

    @property
    def gears(self) -> Sequence[tuple[tuple[int, ...], ...]]:
        """Shapes that there is native code for; of a file for ranges, one that it takes."""
        return () if self.native is None else self.native.gears

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """Least and largest extents by name, where there is native code for all of them."""
        return {} if self.native is None else dict(self.native.ranges)

    @property
    def inputs(self) -> Sequence[LiteIO]:
        """Names and layouts of the inputs."""
        return self.portable.inputs if self.native is None else self.native.inputs

    @property
    def outputs(self) -> Sequence[LiteIO]:
        """Names and layouts of the outputs."""
        return self.portable.outputs if self.native is None else self.native.outputs

    def run(self, arrays: Sequence[Array], settings: CompileSettings, room: Room) -> list[Array]:
        """Run on one array per input; results are written where `room` says.

        Raises:
            TreadleError: the model does not take these shapes.
        """
        shapes, becomes = tuple(a.shape for a in arrays), COMPILED
        if self.native is not None and settings == AS_COMPILED:
            if self.native.at(shapes) is not None:
                return self.native.run(arrays, room)
            reason = f"it has no code for inputs of shapes {list(map(list, shapes))}"
        elif settings.device:
            reason, becomes = f"it runs on {settings.device}", "compiled"
        else:
            reason = "options of the network differ from those that its code was compiled with"
        results = self.portable_because(reason, becomes).run(arrays, settings)
        return [_placed(io.name, r, room) for io, r in zip(self.outputs, results, strict=True)]


def _tell(reason: str, becomes: str = COMPILED) -> None:
    get_logger("lite").warning("the portable part of the model is %s: %s", becomes, reason)


def _placed(name: str, result: Array, room: Room) -> Array:
    target = room(name, LiteLayout(result.shape, result.dtype))
    if target is None:
        return result
    np.copyto(target, to_host(result))
    return target


# -- files -------------------------------------------------------------------------------------


def opened(
    file: str | os.PathLike[str] | IO[Any],
    config: LiteConfig,
    allow_native: bool | None = None,
) -> tuple[LiteModel, LiteOptions | None]:
    """A file's model, and the options that a packed one says it is to be run with.

    `allow_native` says whose machine code may run, as in `load_offline`.

    Raises:
        CheckpointError: the file is damaged, or holds no model.
        RuntimeError: it is encrypted by a method that is not registered.
        TypeError: it is neither a path nor a binary file.
    """
    name = config.bare_model_cryption_name
    if isinstance(file, str | os.PathLike) and not name:
        with Path(file).open("rb") as stream:
            if not is_packed(stream.read(4)):
                return _loaded(os.fspath(file), allow_native), None
    raw = Path(file).read_bytes() if isinstance(file, str | os.PathLike) else _read(file)
    raw = decrypted(raw, name) if name else raw
    if not is_packed(raw):
        return _loaded(raw, allow_native), None
    # Only packed files need an archive's reader.
    from treadle.lite.packed import unpack

    packed = unpack(raw)
    model = _loaded(packed.model, allow_native, packed.cache)
    return model, packed.options(config.options)


def _read(file: Any) -> bytes:
    raw = file.read() if hasattr(file, "read") else None
    if not isinstance(raw, bytes):
        given = type(file).__name__ if raw is None else "a file opened as text"
        raise TypeError(
            f"LiteNetwork.load: {given} is neither a path nor a file opened in binary mode; "
            "io.BytesIO(data) makes one of bytes"
        )
    return raw


def _loaded(
    file: str | bytes, allow_native: bool | None, choices: Choices | None = None
) -> LiteModel:
    """The model of a path or of a file's bytes."""
    offline: OfflineModel | None
    if foreign(file[:32] if isinstance(file, bytes) else _head(file)) is not None:
        offline = None
    elif isinstance(file, str):
        offline = _offline(file, allow_native)
    else:
        offline = _in_memory(file, allow_native)

    def read() -> Portable:
        # The compiler is behind this import.
        from treadle.lite import portable

        if offline is not None:
            return portable.Portable(offline.model, choices)
        return portable.read(file if isinstance(file, bytes) else Path(file).read_bytes(), choices)

    native = Native(offline) if offline is not None and offline.target else None
    return LiteModel(native, read)


def _head(path: str) -> bytes:
    with Path(path).open("rb") as stream:
        return stream.read(32)


def _offline(path: str, allow_native: bool | None) -> OfflineModel:
    try:
        found = load_offline(path, recompile=True, allow_native=allow_native)
    except LoadError as error:
        _tell(str(error))
        return load_offline(path, allow_native=False)
    if not found.target and "target" in found.manifest:
        made = found.manifest["target"]["name"]
        _tell(f"its code is for other machines ({made})")
    return found


def _in_memory(raw: bytes, allow_native: bool | None) -> OfflineModel | None:
    """A file that is not on disk, and must not come there: it may have been encrypted.

    None where the system has no files in memory.
    """
    try:
        descriptor = os.memfd_create("treadle")
    except (AttributeError, OSError):
        return None
    try:
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(raw)
        return _offline(f"/proc/self/fd/{descriptor}", allow_native)
    finally:
        os.close(descriptor)


def get_model_io_info(model_path: Any, config: LiteConfig | None = None) -> LiteNetworkIO:
    """Names and layouts of a model's inputs and outputs, without compiling it.

    Raises:
        CheckpointError: the file is damaged, or holds no model.
    """
    model, _ = opened(model_path, config or LiteConfig())
    return LiteNetworkIO(list(model.inputs), list(model.outputs))


__all__ = ["LiteModel", "get_model_io_info", "is_packed", "opened"]
