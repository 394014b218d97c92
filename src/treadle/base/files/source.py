"""Sources of checkpoints: a regular file or a binary stream, with its name and size."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, TypeAlias

from treadle.base.errors import CheckpointError

PathLike: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"


@dataclass(frozen=True, slots=True)
class SizedStream:
    """A readable stream of known size; `where` names it in errors."""

    stream: BinaryIO
    size: int
    where: str

    def error(self, problem: str, *, saw: str = "", hint: str = "") -> CheckpointError:
        """The error to raise about this file."""
        return CheckpointError(self.where, problem, saw=saw, hint=hint)

    def read(self, offset: int, count: int) -> bytes:
        """`count` bytes from `offset`, fewer only at the end of the file."""
        self.stream.seek(offset)
        return self.stream.read(count)

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` from `offset`.

        Raises:
            CheckpointError: the file ended early (it was cut while being read).
        """
        self.stream.seek(offset)
        filled = 0
        while filled < len(view):
            count = self.stream.readinto(view[filled:])  # type: ignore[attr-defined]
            if not count:
                raise self.error("the file became shorter while it was read")
            filled += count


@contextmanager
def open_source(f: PathLike | IO[Any]) -> Iterator[SizedStream]:
    """Open a path, or take a binary file object from its present position to its end.

    Raises:
        OSError: the path cannot be opened.
        CheckpointError: the path is a directory, device, pipe or socket.
        TypeError: `f` is neither a path nor a file object opened in binary mode.
    """
    if isinstance(f, str | bytes | os.PathLike):
        with _open_regular(os.fsdecode(f)) as source:
            yield source
        return
    read = getattr(f, "read", None)
    if not callable(read):
        raise TypeError(f"load: expected a path or a binary file object, got {type(f).__name__}")
    data = read()
    if not isinstance(data, bytes | bytearray | memoryview):
        raise TypeError(f"load: the file object yields {type(data).__name__}; open it with 'rb'")
    yield SizedStream(io.BytesIO(data), len(data), stream_name(f))


@contextmanager
def _open_regular(path: str) -> Iterator[SizedStream]:
    # O_NONBLOCK: opening a pipe that nobody writes to must fail, not hang.
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0)
    handle = os.open(path, flags)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise CheckpointError(path, "not a regular file", hint="name a saved file")
        # closefd: os.fdopen itself refuses a directory, which the line above names better.
        with open(handle, "rb", closefd=False) as stream:
            yield SizedStream(stream, status.st_size, path)
    finally:
        os.close(handle)


def stream_name(f: object) -> str:
    """Return the name of a file object for messages."""
    name = getattr(f, "name", None)
    return name if isinstance(name, str) else f"<{type(f).__name__}>"
