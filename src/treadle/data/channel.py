"""Messages between processes, large ones through anonymous shared memory.

A message is pickled with its array buffers beside it. A small one goes through the pipe. On Linux
a large one is written to a memory file without a name (memfd) whose descriptor goes through the
pipe: the receiver maps it, so arrays arrive without another copy, and since nothing was ever
named, nothing can be left behind, whoever is killed when. Elsewhere it all goes through the pipe.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import pickle
import socket
import struct
import sys
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

# Below this a memory file costs more than it saves; a few of these also fit into the buffer of a
# pipe, so that neither side waits for the other to read.
_INLINE_LIMIT = 32 * 1024
# Cache-line alignment, so that arrays arrive as aligned as NumPy makes them.
_ALIGNMENT = 64
# Each mapping keeps a file descriptor: a caller that hoards batches gets copies beyond this.
_MOST_MAPPINGS = 64

_INLINE, _MEMORY_FILE = 0, 1
_HEADER = struct.Struct("<BI")

_mappings: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()


@dataclass(frozen=True, slots=True)
class Parcel:
    """A pickled message: its pieces' sizes, and either their bytes or a memory file."""

    sizes: tuple[int, ...]
    body: bytes
    descriptor: int | None

    @classmethod
    def pack(cls, message: object) -> Parcel:
        """Pickle a message.

        Raises:
            Exception: whatever pickling one of its parts raises.
            OSError: there is too little memory for the message.
        """
        buffers: list[pickle.PickleBuffer] = []
        head = pickle.dumps(message, protocol=5, buffer_callback=buffers.append)
        pieces = [memoryview(head), *(buffer.raw() for buffer in buffers)]
        sizes = tuple(piece.nbytes for piece in pieces)
        total = _offsets(sizes)[-1]
        if sys.platform == "linux" and total > _INLINE_LIMIT:
            return cls(sizes, b"", _write_memory_file(pieces, sizes))
        body = bytearray(total)
        for piece, start in zip(pieces, _offsets(sizes), strict=False):
            body[start : start + piece.nbytes] = piece
        return cls(sizes, bytes(body), None)

    def header(self) -> bytes:
        """The first bytes on the wire."""
        kind = _INLINE if self.descriptor is None else _MEMORY_FILE
        table = struct.pack(f"<{len(self.sizes)}Q", *self.sizes)
        return _HEADER.pack(kind, len(self.sizes)) + table

    def close(self) -> None:
        """Give up this process's hold on the memory file."""
        if self.descriptor is not None:
            os.close(self.descriptor)


class Channel:
    """One end of a two-way pipe that carries picklable objects of any size.

    Args:
        connection: this end of a `multiprocessing.Pipe`.
    """

    def __init__(self, connection: Connection[Any, Any]) -> None:
        self.connection = connection
        self._sending = threading.Lock()

    def send(self, message: object) -> None:
        """Send a message; nothing is sent if it cannot be pickled or stored.

        Raises:
            OSError: the other side has gone, or memory is short.
        """
        parcel = Parcel.pack(message)
        with contextlib.closing(parcel):
            self.post(parcel)

    def post(self, parcel: Parcel) -> None:
        """Send a packed message, which may be sent to others too."""
        with self._sending:
            self.connection.send_bytes(parcel.header() + parcel.body)
            if parcel.descriptor is not None:
                _send_descriptor(self.connection, parcel.descriptor)

    def receive(self) -> Any:
        """Wait for a message and return it.

        Raises:
            EOFError: the other side has gone.
            OSError: the other side has gone in the middle of a message.
        """
        frame = self.connection.recv_bytes()
        kind, count = _HEADER.unpack_from(frame)
        table = struct.Struct(f"<{count}Q")
        sizes = table.unpack_from(frame, _HEADER.size)
        if kind == _INLINE:
            # A copy of its own: writable, and aligned as the pieces in it expect.
            body = memoryview(bytearray(frame[_HEADER.size + table.size :]))
        else:
            body = _read_memory_file(_descriptor_from(self.connection), _offsets(sizes)[-1])
        starts = _offsets(sizes)
        pieces = [body[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        return pickle.loads(pieces[0], buffers=pieces[1:])

    def close(self) -> None:
        """Close this end; the other side sees the end of the stream."""
        self.connection.close()


# `multiprocessing.reduction` waits for an answer over the same pipe since Python 3.14, where the
# thread that receives would take it for a message.
def _send_descriptor(connection: Connection[Any, Any], descriptor: int) -> None:
    with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as pipe:
        socket.send_fds(pipe, [b"\0"], [descriptor])


def _descriptor_from(connection: Connection[Any, Any]) -> int:
    with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as pipe:
        _, descriptors, _, _ = socket.recv_fds(pipe, 1, 1)
    if not descriptors:
        raise EOFError("the other side has gone")
    return descriptors[0]


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Aligned start of each piece, and the end of the last."""
    starts = [0]
    for size in sizes:
        starts.append(-(-(starts[-1] + size) // _ALIGNMENT) * _ALIGNMENT)
    return starts


def _write_memory_file(pieces: Sequence[memoryview], sizes: Sequence[int]) -> int:
    # Written, not mapped: running out of memory is then an error, not a fatal signal.
    if sys.platform != "linux":
        raise OSError("memory files exist on Linux only")
    descriptor = os.memfd_create("treadle-batch")
    try:
        os.ftruncate(descriptor, _offsets(sizes)[-1])
        for piece, start in zip(pieces, _offsets(sizes), strict=False):
            done = 0
            while done < piece.nbytes:
                done += os.pwrite(descriptor, piece[done:], start + done)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read_memory_file(descriptor: int, size: int) -> memoryview:
    try:
        if len(_mappings) < _MOST_MAPPINGS:
            # A private mapping: the sender's later writes, and those after a fork, stay unseen.
            mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
            _mappings.add(mapping)
            return memoryview(mapping)
        copy = np.empty(size, dtype=np.uint8).data
        done = 0
        while done < size:
            done += os.preadv(descriptor, [copy[done:]], done)
        return copy
    finally:
        os.close(descriptor)
