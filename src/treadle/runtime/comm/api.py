"""The protocol of communicators: what processes of one group do together.

Arrays are NumPy arrays of any element type Treadle has; results are new arrays. Every process of
the group calls the same methods in the same order. Ranks are places in the group.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Protocol

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import TreadleError


class CommunicationError(TreadleError, RuntimeError):
    """Processes of a group disagree, do not answer, or cannot be reached."""

    code = "T25"


class RankFailed(CommunicationError, AssertionError):
    """A process of a launcher ended with an exception, was killed, or left the others alone.

    MegEngine's launcher raises an `AssertionError`. The rank's own exception is the cause.
    """


class RankLost(CommunicationError):
    """Ranks are gone: killed, or their machine is; the others go on with `distributed.shrink`.

    Only in a job that was started to outlive ranks: `launcher(on_failure="shrink")`.

    Attributes:
        ranks: those that are known to be lost, as they were numbered; others may follow.
    """

    ranks: tuple[int, ...] = ()


class Handle(Protocol):
    """A collective that goes on while the caller does something else."""

    def done(self) -> bool:
        """Return whether the result is there; asking moves the collective on."""
        ...

    def wait(self) -> Array:
        """The result.

        Raises:
            CommunicationError: the ranks disagree, or one does not come in time.
        """
        ...


class Agreement(Protocol):
    """True if all ranks are about to do the same, which is found out in the background."""

    def done(self) -> bool:
        """Return whether all have come; asking moves it on.

        Raises:
            CommunicationError: they have, to do different things.
        """
        ...

    def wait(self) -> None:
        """Wait until all have come.

        Raises:
            CommunicationError: the ranks disagree, or one does not come in time.
        """
        ...


class Communicator(Protocol):
    """A group of processes, and this one's place in it.

    Attributes:
        name: the group's name, equal on all of its ranks.
        engine: what carries the messages.
        rank, size: this process's place, and how many there are.
        ranks: the group's ranks as ranks of the world.
        machines: names of the machines they are on.
    """

    name: str
    engine: str
    rank: int
    size: int
    ranks: tuple[int, ...]
    machines: tuple[str, ...]

    # -- control -----------------------------------------------------------------------------

    def agree(self, what: str, /) -> None:
        """Wait until all ranks are about to do `what`.

        Raises:
            CommunicationError: on all ranks, if a rank is about to run another operation; on those
                that wait, if some rank does not come in time.
        """
        ...

    def announce(self, what: str, /) -> Agreement:
        """Say that this rank is about to do `what`, without waiting for others."""
        ...

    def barrier(self) -> None:
        """Wait for all ranks, and until what they sent has been received."""
        ...

    def exchange(self, value: Any, /) -> list[Any]:
        """Small Python objects of all ranks, in rank order."""
        ...

    def broadcast_value(self, value: Any, root: int, /) -> Any:
        """A small Python object of one rank."""
        ...

    def send_value(self, value: Any, dest: int, /) -> None:
        """Send a small Python object."""
        ...

    def recv_value(self, source: int, /) -> Any:
        """The next small Python object that a rank sends."""
        ...

    # -- arrays ------------------------------------------------------------------------------

    def all_reduce(self, x: Array, kind: str, /, by: Hashable | None = None) -> Array:
        """The elementwise "sum", "mean", "max" or "min".

        Ranks must have agreed on it, unless it is said `by` whom it is asked for: then they agree
        on that, and on the type of x, as a part of the reduction.
        """
        ...

    def start_all_reduce(
        self, x: Array, kind: str, /, announced: Agreement | None = None
    ) -> Handle:
        """The same, without waiting; `x` is given away, and the result may be in its memory.

        It is part of what was announced, if anything was: then ranks are not compared once more.
        """
        ...

    def reduce(self, x: Array, root: int, /) -> Array | None:
        """The sum on rank `root`, None on others."""
        ...

    def reduce_scatter(self, x: Array, /) -> Array:
        """Return this rank's entry [...] of the sum of arrays [size, ...]."""
        ...

    def all_gather(self, x: Array, /) -> Array:
        """Arrays of all ranks, stacked: [size, ...]."""
        ...

    def gather(self, x: Array, root: int, /) -> Array | None:
        """Arrays of all ranks stacked on rank `root`, None on others."""
        ...

    def scatter(self, x: Array, root: int, /) -> Array:
        """Return this rank's entry [...] of root's x [size, ...]; others' x only says its type."""
        ...

    def broadcast(self, x: Array, root: int, /) -> Array:
        """Rank root's array; those of others have its shape and type."""
        ...

    def all_to_all(self, x: Array, /) -> Array:
        """Entry r of the result is this rank's entry of rank r's array; both are [size, ...]."""
        ...

    def send(self, x: Array, dest: int, /) -> None:
        """Send an array, without waiting for its receiver."""
        ...

    def recv(self, shape: tuple[int, ...], dtype: np.dtype[Any], source: int, /) -> Array:
        """The next array that a rank sends, which must have this many bytes."""
        ...

    # -- groups ------------------------------------------------------------------------------

    def group(self, ranks: Sequence[int], name: str, /) -> Communicator:
        """Some of this group's ranks, in this order; called by those only."""
        ...

    def look_for_losses(self, where: str, /) -> None:
        """Look whether ranks are known to be gone; nobody is asked, and nobody has to come.

        Raises:
            RankLost: they are, in a job that outlives them.
        """
        ...

    def abort(self, status: int, /) -> None:
        """End all processes of the world at once."""
        ...

    def close(self) -> None:
        """Leave the group; what was sent has been received."""
        ...


def intent(by: object, x: Array) -> str:
    """Return in words what a rank is about to do with an array, for comparison with others."""
    return f"{by} {x.dtype}{list(x.shape)}"


def reduction_type(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The element type sums are made in: float32 for floats of 16 bits, which MPI does not know."""
    return np.dtype(np.float32) if dtype.itemsize == 2 and dtype.kind not in "iu" else dtype
