"""Arrays between processes over TCP, for those that no MPI launcher started.

Ranks find one another through a store of keys, which whoever started them has; each pair of them
has a connection. Every message says what its sender is about to do, so that ranks which are out of
step are told so. Sums are made in the order of ranks, on all of them alike.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import socket
import struct
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Protocol

import numpy as np

from treadle.base.array import Array
from treadle.runtime.comm.api import CommunicationError, intent, reduction_type

_HEAD = struct.Struct("<QQ")
"""Hash of what the sender is about to do, and how many bytes follow."""
_HELLO = struct.Struct("<32sQ")
"""The word that a listener has put into the store, and the rank of who calls."""
_SMALL = 1 << 16
"""Bytes up to which each rank sums all arrays itself, which saves a turn."""
_ALONE, VALUE = 0, 2
"""In place of hashes, which are odd: arrays and values that one rank sends to another alone."""
_FOLDS: dict[str, Callable[..., Array]] = {
    "sum": np.add,
    "mean": np.add,
    "max": np.maximum,
    "min": np.minimum,
}
_PATIENCE = 5.0
"""Seconds in which a caller must say who it is."""
Bytes = memoryview


class KeyStore(Protocol):
    """Keys that all ranks see."""

    def set(self, key: str, value: str, /) -> Any:
        """Set a key."""
        ...

    def get(self, key: str, /) -> bytes:
        """A key's value, once somebody has set it."""
        ...


class _Link:
    """The connection to one other rank.

    What does not fit into the connection at once is written by a thread, so that ranks which send
    to one another do not wait for one another.
    """

    def __init__(self, connection: socket.socket, peer: int) -> None:
        self.peer = peer
        self._socket = connection
        self._queue: SimpleQueue[list[Bytes] | threading.Event | None] = SimpleQueue()
        self._writer: threading.Thread | None = None
        self._arrived: defaultdict[int, deque[tuple[int, Bytes]]] = defaultdict(deque)

    def send(self, what: int, data: Bytes) -> None:
        """Send something, whose memory stays as it is until `flush`."""
        left = [memoryview(_HEAD.pack(what, data.nbytes)), data]
        if self._writer is None:
            left = self._at_once(left)
            if not left:
                return
            self._writer = threading.Thread(target=self._write, daemon=True, name="treadle-send")
            self._writer.start()
        self._queue.put(left)

    def _at_once(self, pieces: list[Bytes]) -> list[Bytes]:
        """Write what the connection takes without waiting; what is left.

        The socket's own methods wait up to its timeout until the connection takes something, with
        `MSG_DONTWAIT` too; below a timeout the descriptor itself does not block.
        """
        try:
            count = os.writev(self._socket.fileno(), pieces)
        except BlockingIOError:
            return pieces
        except OSError as error:
            raise self._lost("send") from error
        rest = []
        for piece in pieces:
            if count < piece.nbytes:
                rest.append(piece[count:])
            count = max(count - piece.nbytes, 0)
        return rest

    def _write(self) -> None:
        while (item := self._queue.get()) is not None:
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                for piece in item:
                    self._socket.sendall(piece)
            except OSError:
                # A part may have left, after which no message could be told from another. Whoever
                # waits at either end finds out.
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def flush(self, timeout: float) -> None:
        """Wait until everything has been written."""
        if self._writer is None:
            return
        done = threading.Event()
        self._queue.put(done)
        if not done.wait(timeout):
            raise self._late("send", timeout)

    def receive(self, what: int, into: Bytes, name: str) -> None:
        """The next message of its kind: of those to this rank alone, or of all ranks together."""
        found, data = self._next(what, name, into)
        self._check(found == what and data.nbytes == into.nbytes, name)
        if data is not into:
            into[:] = data

    def take(self, what: int, name: str) -> Bytes:
        """The next message of its kind to this rank alone, of any size."""
        return self._next(what, name)[1]

    def _next(self, what: int, name: str, into: Bytes | None = None) -> tuple[int, Bytes]:
        """The next message of its kind; one that is as expected is read into its memory."""
        known = self._arrived[_kind(what)]
        while not known:
            head = bytearray(_HEAD.size)
            self._fill(memoryview(head), name)
            found, size = _HEAD.unpack(head)
            if into is not None and (found, size) == (what, into.nbytes):
                self._fill(into, name)
                return found, into
            data = memoryview(bytearray(size))
            self._fill(data, name)
            self._arrived[_kind(found)].append((found, data))
        return known.popleft()

    def _check(self, same: bool, name: str) -> None:
        if not same:
            raise CommunicationError(
                name.split(" ")[0],
                f"rank {self.peer} is about to run another operation",
                saw=f"this rank: {name}",
                hint="call the same collectives in the same order, with equal shapes and dtypes",
            )

    def _fill(self, into: Bytes, name: str) -> None:
        try:
            while into.nbytes:
                count = self._socket.recv_into(into)
                if not count:
                    raise self._lost(name)
                into = into[count:]
        except TimeoutError as error:
            raise self._late(name, self._socket.gettimeout() or 0.0) from error
        except OSError as error:
            raise self._lost(name) from error

    def _lost(self, name: str) -> CommunicationError:
        return CommunicationError(
            name.split(" ")[0],
            f"rank {self.peer} has left, or its machine cannot be reached",
            saw=f"this rank: {name}",
            hint="see what that rank said last; resume from the last checkpoint",
        )

    def _late(self, name: str, seconds: float) -> CommunicationError:
        return CommunicationError(
            name.split(" ")[0],
            f"rank {self.peer} did not come within {seconds:g} s",
            saw=f"this rank: {name}",
            hint="see what that rank does",
        )

    def close(self) -> None:
        """Hang up, after what was sent has left."""
        if self._writer is not None:
            self._queue.put(None)
            self._writer.join(1.0)
        self._socket.close()


class Sockets:
    """A group of processes that are connected with one another.

    It has the methods of `Communicator` for arrays; each looks whether ranks agree.

    Args:
        store: that all of them see, with no other group's keys.
        rank, size: this one's place, and how many there are.
        timeout: seconds that ranks wait for one another.
        host: a name by which others reach this process.
    """

    engine = "sockets"

    def __init__(
        self, store: KeyStore, rank: int, size: int, timeout: float, host: str = "127.0.0.1"
    ) -> None:
        self.rank, self.size = rank, size
        self._timeout = timeout
        self._links = _connected(store, rank, size, timeout, host)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._pass("barrier", [_of(_NOTHING)] * self.size, [_of(_NOTHING)] * self.size)

    def all_reduce(self, x: Array, kind: str, /, by: object = "all_reduce") -> Array:
        """The elementwise "sum", "mean", "max" or "min"."""
        what = intent(f"{by} {kind}", x)
        wide = np.asarray(x, reduction_type(x.dtype), order="C")
        if wide.nbytes <= _SMALL:
            total = self._folded(self._gathered(what, wide), kind)
        else:
            part = -(-wide.size // self.size)
            padded = np.zeros((self.size, part), wide.dtype)
            padded.reshape(-1)[: wide.size] = wide.reshape(-1)
            mine = self._folded(self._swapped(what, padded), kind)
            whole = self._gathered(what, mine).reshape(-1)[: wide.size]
            total = whole.reshape(wide.shape)
        if kind == "mean":
            total = total // self.size if x.dtype.kind in "iu" else total / self.size
        return total.astype(x.dtype, copy=False)

    def reduce(self, x: Array, root: int, /) -> Array | None:
        """The sum on rank `root`, None on others."""
        wide = np.asarray(x, reduction_type(x.dtype), order="C")
        every = self._gathered_at(intent(f"reduce to {root}", x), wide, root)
        return None if every is None else self._folded(every, "sum").astype(x.dtype, copy=False)

    def reduce_scatter(self, x: Array, /) -> Array:
        """Return this rank's entry [...] of the sum of arrays [size, ...]."""
        wide = np.asarray(x, reduction_type(x.dtype), order="C")
        every = self._swapped(intent("reduce_scatter", x), wide)
        return self._folded(every, "sum").astype(x.dtype, copy=False)

    def all_gather(self, x: Array, /) -> Array:
        """Arrays of all ranks, stacked: [size, ...]."""
        return self._gathered(intent("all_gather", x), np.asarray(x, order="C"))

    def gather(self, x: Array, root: int, /) -> Array | None:
        """Arrays of all ranks stacked on rank `root`, None on others."""
        return self._gathered_at(intent(f"gather to {root}", x), np.asarray(x, order="C"), root)

    def scatter(self, x: Array, root: int, /) -> Array:
        """Return this rank's entry [...] of root's x [size, ...]; others' x only says its type."""
        what, source = intent(f"scatter from {root}", x), np.asarray(x, order="C")
        if self.rank == root:
            self._pass(what, [_of(part) for part in source], [None] * self.size)
            return np.array(source[root])
        made = np.empty(x.shape[1:], x.dtype)
        self._pass(what, [None] * self.size, self._only(root, made))
        return made

    def broadcast(self, x: Array, root: int, /) -> Array:
        """Rank root's array; those of others have its shape and type."""
        what = intent(f"broadcast from {root}", x)
        made = np.array(x, order="C") if self.rank == root else np.empty(x.shape, x.dtype)
        if self.rank == root:
            self._pass(what, [_of(made)] * self.size, [None] * self.size)
        else:
            self._pass(what, [None] * self.size, self._only(root, made))
        return made

    def all_to_all(self, x: Array, /) -> Array:
        """Entry r of the result is this rank's entry of rank r's array; both are [size, ...]."""
        return self._swapped(intent("all_to_all", x), np.asarray(x, order="C"))

    def send(self, x: Array, dest: int, /) -> None:
        """Send an array, without waiting for its receiver."""
        self._link(dest, "send").send(_ALONE, _of(np.array(x, order="C")))

    def recv(self, shape: tuple[int, ...], dtype: np.dtype[Any], source: int, /) -> Array:
        """The next array that a rank sends, which must have this many bytes."""
        made = np.empty(shape, dtype)
        self._link(source, "recv").receive(_ALONE, _of(made), f"recv {dtype}{list(shape)}")
        return made

    def close(self) -> None:
        """Hang up; what was sent has left."""
        for link in self._links.values():
            link.close()
        self._links.clear()

    # -- turns -------------------------------------------------------------------------------

    def _link(self, rank: int, name: str) -> _Link:
        found = self._links.get(rank)
        if found is None:
            raise CommunicationError(
                name,
                f"there is no connection to rank {rank}",
                saw=f"rank {self.rank} of {self.size}, connected with {sorted(self._links)}",
            )
        return found

    def _pass(self, what: str, out: Sequence[Bytes | None], into: Sequence[Bytes | None]) -> None:
        """Send to and receive from each rank that there is something for."""
        digest = _digest(what)
        others = [(self.rank + i) % self.size for i in range(1, self.size)]
        links = {r: self._link(r, what.split(" ")[0]) for r in others}
        for r in others:
            data = out[r]
            if data is not None:
                links[r].send(digest, data)
        for r in reversed(others):
            place = into[r]
            if place is not None:
                links[r].receive(digest, place, what)
        for link in links.values():
            link.flush(self._timeout)

    def _only(self, rank: int, array: Array) -> list[Bytes | None]:
        return [_of(array) if r == rank else None for r in range(self.size)]

    def _gathered(self, what: str, x: Array) -> Array:
        every = np.empty((self.size, *x.shape), x.dtype)
        every[self.rank] = x
        self._pass(what, [_of(x)] * self.size, [_of(part) for part in _rows(every)])
        return every

    def _gathered_at(self, what: str, x: Array, root: int) -> Array | None:
        if self.rank != root:
            self._pass(what, self._only(root, x), [None] * self.size)
            return None
        every = np.empty((self.size, *x.shape), x.dtype)
        every[root] = x
        self._pass(what, [None] * self.size, [_of(part) for part in _rows(every)])
        return every

    def _swapped(self, what: str, x: Array) -> Array:
        made = np.empty(x.shape, x.dtype)
        made[self.rank] = x[self.rank]
        self._pass(what, [_of(p) for p in _rows(x)], [_of(p) for p in _rows(made)])
        return made

    def _folded(self, every: Array, kind: str) -> Array:
        total = np.array(every[0])
        for r in range(1, self.size):
            _FOLDS[kind](total, every[r], out=total)
        return total


_NOTHING = np.empty(0, np.uint8)


def _rows(x: Array) -> list[Array]:
    """Entries along the first axis, those of an array without further ones as arrays, too."""
    return [x[r, ...] for r in range(len(x))]


def _of(x: Array) -> Bytes:
    """The memory of a dense array."""
    return x.reshape(-1).view(np.uint8).data


def _kind(what: int) -> int:
    """Messages of a kind arrive in order: arrays, values, and those of all ranks together."""
    return 1 if what % 2 else what


def _digest(what: str) -> int:
    """63 bits, which are never those of a message to one rank."""
    word = hashlib.blake2b(what.encode(), digest_size=8).digest()
    return int.from_bytes(word, "little") >> 1 | 1


# -- meeting -----------------------------------------------------------------------------------


def own_host(toward: str) -> str:
    """The address of this machine in the network in which another one is."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((toward, 9))  # Nothing is sent.
        except OSError:
            return "127.0.0.1"
        return str(probe.getsockname()[0])


def _connected(
    store: KeyStore, rank: int, size: int, timeout: float, host: str
) -> dict[int, _Link]:
    """Connections to all other ranks: each calls those below it.

    The store has the word that a caller must say, so nobody else can take a place.
    """
    word = secrets.token_hex(16)
    found: dict[int, _Link] = {}
    deadline = time.monotonic() + timeout
    with socket.create_server((host, 0), backlog=size) as listener:
        store.set(f"at/{rank}", f"{host} {listener.getsockname()[1]} {word}")
        for peer in range(rank):
            name, port, theirs = store.get(f"at/{peer}").decode().split(" ")
            connection = socket.create_connection((name, int(port)), timeout)
            connection.sendall(_HELLO.pack(theirs.encode(), rank))
            found[peer] = _ready(connection, peer, timeout)
        while len(found) < size - 1:
            missing = [r for r in range(size) if r != rank and r not in found]
            listener.settimeout(max(deadline - time.monotonic(), 0.01))
            try:
                connection, _ = listener.accept()
            except TimeoutError as error:
                raise CommunicationError(
                    "init_process_group",
                    f"ranks {missing} did not come within {timeout:g} s",
                    saw=f"rank {rank} of {size} waits at {host}",
                ) from error
            said, peer = _said(connection)
            if secrets.compare_digest(said, word.encode()) and peer in missing:
                found[peer] = _ready(connection, peer, timeout)
            else:
                connection.close()
    return found


def _said(connection: socket.socket) -> tuple[bytes, int]:
    """The word and the rank that a caller says; an empty word for one that says nothing."""
    connection.settimeout(_PATIENCE)
    data = b""
    try:
        while len(data) < _HELLO.size and (more := connection.recv(_HELLO.size - len(data))):
            data += more
        word, rank = _HELLO.unpack(data)
    except (OSError, struct.error):
        return b"", -1
    return word, rank


def _ready(connection: socket.socket, peer: int, timeout: float) -> _Link:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.settimeout(timeout)
    return _Link(connection, peer)
