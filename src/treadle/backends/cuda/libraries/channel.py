"""Protocol of libraries of collectives: channels, each of one group on one device."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from treadle.runtime.comm.api import Communicator


class Channel(Protocol):
    """A group's ranks as NCCL knows them. Addresses are the device's; work is only submitted.

    Calls raise `ChannelError`.
    """

    def state(self) -> str | None:
        """None while it is busy with the call before; what has failed; empty if all is well."""
        ...

    def all_reduce(self, x: int, y: int, count: int, dtype: str, kind: str, stream: int) -> None:
        """The reduction of all x, on every rank."""
        ...

    def reduce(
        self, x: int, y: int, count: int, dtype: str, kind: str, root: int, stream: int
    ) -> None:
        """The same, on one rank."""
        ...

    def broadcast(self, x: int, y: int, count: int, dtype: str, root: int, stream: int) -> None:
        """One rank's x, on every rank."""
        ...

    def all_gather(self, x: int, y: int, count: int, dtype: str, stream: int) -> None:
        """Every x of `count` elements, one behind the other, on every rank."""
        ...

    def reduce_scatter(
        self, x: int, y: int, count: int, dtype: str, kind: str, stream: int
    ) -> None:
        """Reduce x over all ranks into y, of which each rank gets its `count` elements."""
        ...

    def send(self, x: int, count: int, dtype: str, peer: int, stream: int) -> None:
        """Send `count` elements to another rank, which receives them."""
        ...

    def recv(self, y: int, count: int, dtype: str, peer: int, stream: int) -> None:
        """Receive `count` elements from another rank."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """Return a context whose calls are submitted as one, and may wait for one another."""
        ...

    def close(self) -> None:
        """Close the channel, together with all ranks of a machine."""
        ...

    def abort(self) -> None:
        """End what is under way, here."""
        ...


class ChannelLibrary(Protocol):
    """Maker of channels."""

    def new_key(self) -> bytes:
        """Return a key by which the ranks of a new channel find one another."""
        ...

    def join(self, comm: Communicator, key: bytes) -> Channel:
        """Become a rank of a channel, on the thread's current device; does not wait for others."""
        ...


class ChannelError(RuntimeError):
    """NCCL refuses a call; the message has its words."""
