"""The communicator of a process that is alone: what it sends, it receives."""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.runtime.comm.api import Agreement, CommunicationError


class DoneHandle:
    """A collective that was over when it began."""

    def __init__(self, result: Array) -> None:
        self._result = result

    def done(self) -> bool:
        """Return True: it was over when it began."""
        return True

    def wait(self) -> Array:
        """The result."""
        return self._result


class Unanimous:
    """Rendezvous of a process that is alone."""

    def done(self) -> bool:
        """Return True: no other process has to come."""
        return True

    def wait(self) -> None:
        """Return at once: no other process has to come."""
        return None


class Loopback:
    """One process."""

    engine = "loopback"
    rank = 0
    size = 1

    def __init__(self, name: str = "world", world_rank: int = 0) -> None:
        self.name = name
        self.ranks: tuple[int, ...] = (world_rank,)
        self.machines: tuple[str, ...] = (platform.node(),)
        self._arrays: deque[Array] = deque()
        self._values: deque[Any] = deque()

    def agree(self, what: str, /) -> None:
        return None

    def announce(self, what: str, /) -> Unanimous:
        return Unanimous()

    def barrier(self) -> None:
        return None

    def exchange(self, value: Any, /) -> list[Any]:
        return [value]

    def broadcast_value(self, value: Any, root: int, /) -> Any:
        return value

    def send_value(self, value: Any, dest: int, /) -> None:
        self._values.append(value)

    def recv_value(self, source: int, /) -> Any:
        return _next(self._values)

    def all_reduce(self, x: Array, kind: str, /, by: Hashable | None = None) -> Array:
        return np.array(x)

    def start_all_reduce(
        self, x: Array, kind: str, /, announced: Agreement | None = None
    ) -> DoneHandle:
        return DoneHandle(x)

    def reduce(self, x: Array, root: int, /) -> Array:
        return np.array(x)

    def reduce_scatter(self, x: Array, /) -> Array:
        return np.array(x[0])

    def all_gather(self, x: Array, /) -> Array:
        return np.array(x[None])

    def gather(self, x: Array, root: int, /) -> Array:
        return np.array(x[None])

    def scatter(self, x: Array, root: int, /) -> Array:
        return np.array(x[0])

    def broadcast(self, x: Array, root: int, /) -> Array:
        return np.array(x)

    def all_to_all(self, x: Array, /) -> Array:
        return np.array(x)

    def send(self, x: Array, dest: int, /) -> None:
        self._arrays.append(np.array(x))

    def recv(self, shape: tuple[int, ...], dtype: np.dtype[Any], source: int, /) -> Array:
        found: Array = _next(self._arrays)
        if found.dtype != dtype or found.shape != shape:
            raise CommunicationError(
                "recv",
                "another array was sent than is received",
                saw=f"{found.dtype}{list(found.shape)}, expected {dtype}{list(shape)}",
            )
        return found

    def group(self, ranks: Sequence[int], name: str, /) -> Loopback:
        if list(ranks) != [0]:
            raise CommunicationError("group", f"there is one process, so no ranks {list(ranks)}")
        return Loopback(name, self.ranks[0])

    def look_for_losses(self, where: str, /) -> None:
        return None

    def abort(self, status: int, /) -> None:
        raise SystemExit(status)

    def close(self) -> None:
        return None


def _next(queue: deque[Any]) -> Any:
    if not queue:
        raise CommunicationError("recv", "nothing was sent, and no other process could send")
    return queue.popleft()
