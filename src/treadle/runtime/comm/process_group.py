"""Groups of processes that a program starts by itself and that meet at a key-value server."""

from __future__ import annotations

import ast
import hashlib
import os
import platform
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.runtime.comm.api import Agreement, CommunicationError, intent
from treadle.runtime.comm.loopback import DoneHandle, Unanimous
from treadle.runtime.comm.sockets import VALUE, KeyStore, Sockets

_DIGEST, _WORDS = 8, 248
"""Bytes of a hash, and of the beginning of the words, that say what a rank is about to do."""
Rooms = Callable[[str, int], KeyStore]
"""Gives the store in which so many processes meet, by the name of their group."""


class Joined(Sockets):
    """A communicator over connections of each process with each other one.

    What goes on in the background elsewhere is done at once. Values are written as Python's
    literals, so that reading one runs nothing.

    Args:
        rooms: where the processes of a group meet.
        rank, size: this one's place, and how many there are.
        timeout: seconds that they wait for one another.
        host: a name by which others reach this process.
        name: of the group.
        world: that it is part of, and the places there; None if it is one.
    """

    def __init__(
        self,
        rooms: Rooms,
        rank: int,
        size: int,
        timeout: float,
        host: str,
        name: str = "world",
        world: tuple[Joined, tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__(rooms(name, size), rank, size, timeout, host)
        self.name, self._rooms, self._host = name, rooms, host
        if world is None:
            self.ranks = tuple(range(size))
            self.machines: tuple[str, ...] = tuple(self.exchange(platform.node()))
        else:
            whole, places = world
            self.ranks = tuple([whole.ranks[r] for r in places])
            self.machines = tuple([whole.machines[r] for r in places])

    # -- control -----------------------------------------------------------------------------

    def agree(self, what: str, /) -> None:
        said = np.zeros(_DIGEST + _WORDS, np.uint8)
        text = what.encode()
        digest = hashlib.blake2b(text, digest_size=_DIGEST).digest() + text[:_WORDS]
        said[: len(digest)] = np.frombuffer(digest, np.uint8)
        every = self._gathered("agreement", said)
        if (every != said).any():
            raise self._disagree(what, every)

    def _disagree(self, what: str, every: Array) -> CommunicationError:
        alike: dict[str, list[str]] = {}
        for rank, row in zip(self.ranks, every, strict=True):
            words = row[_DIGEST:].tobytes().rstrip(b"\0").decode(errors="replace")
            alike.setdefault(words, []).append(str(rank))
        return CommunicationError(
            what.split("{")[0].split(" ")[0],
            f"the ranks of the group {self.name!r} are about to run different operations",
            saw="; ".join(f"ranks {', '.join(who)}: {words}" for words, who in alike.items()),
            hint="call the same collectives in the same order, with equal shapes and dtypes",
        )

    def announce(self, what: str, /) -> Unanimous:
        self.agree(what)
        return Unanimous()

    def barrier(self) -> None:
        self.agree("barrier")

    def exchange(self, value: Any, /) -> list[Any]:
        mine = _written("exchange", value)
        sizes = self._gathered("exchange of values", np.array([mine.size]))
        padded = np.zeros(sizes.max(), np.uint8)
        padded[: mine.size] = mine
        every = self._gathered("exchange of values", padded)
        return [_read(row[: int(n)]) for row, (n,) in zip(every, sizes, strict=True)]

    def broadcast_value(self, value: Any, root: int, /) -> Any:
        mine = _written("broadcast", value if self.rank == root else None)
        (size,) = self.broadcast(np.array([mine.size]), root)
        return _read(self.broadcast(mine if self.rank == root else np.empty(size, np.uint8), root))

    def send_value(self, value: Any, dest: int, /) -> None:
        self._link(dest, "send").send(VALUE, _written("send", value).data)

    def recv_value(self, source: int, /) -> Any:
        return _read(self._link(source, "recv").take(VALUE, "recv of a value"))

    # -- arrays ------------------------------------------------------------------------------

    def all_reduce(self, x: Array, kind: str, /, by: Hashable | None = None) -> Array:
        if by is not None:
            self.agree(intent(by, x))
        return super().all_reduce(x, kind)

    def start_all_reduce(
        self, x: Array, kind: str, /, announced: Agreement | None = None
    ) -> DoneHandle:
        return DoneHandle(self.all_reduce(x, kind))

    # -- groups ------------------------------------------------------------------------------

    def group(self, ranks: Sequence[int], name: str, /) -> Joined:
        place, count = list(ranks).index(self.rank), len(ranks)
        places = self, tuple(ranks)
        return Joined(self._rooms, place, count, self._timeout, self._host, name, places)

    def look_for_losses(self, where: str, /) -> None:
        return None

    def abort(self, status: int, /) -> None:
        os._exit(status)  # The others find that this one has left.

    def close(self) -> None:
        self.barrier()
        super().close()


def _written(name: str, value: Any) -> Array:
    text = repr(value)
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        raise CommunicationError(
            name,
            "values are numbers, texts, bytes, None, and tuples, lists and dicts of them",
            saw=f"{type(value).__name__}: {text[:80]}",
            hint="send arrays as tensors",
        ) from None
    return np.frombuffer(text.encode(), np.uint8)


def _read(data: Any) -> Any:
    return ast.literal_eval(bytes(data).decode())


__all__ = ["Joined", "Rooms"]
