"""Channels: NCCL's communicators, each of one group, on one device.

A channel is made when the group's first collective comes by, and closed with the group. Nothing
here waits without a clock: a channel does not block, and before the host waits for the device,
collectives under way are watched.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

from treadle.backends.cuda.device import CudaDevice, CudaStream
from treadle.backends.cuda.driver import Mark
from treadle.backends.cuda.libraries.channel import Channel, ChannelError, ChannelLibrary
from treadle.base.env import COMM_TIMEOUT
from treadle.base.errors import DeviceError
from treadle.base.log import get_logger
from treadle.runtime.comm import groups
from treadle.runtime.comm.api import CommunicationError, Communicator, RankLost

_SPINS = 200
_NAP = 0.0002
"""Seconds between two questions, once the answer takes long."""


def library() -> ChannelLibrary:
    """NCCL by way of nccl4py.

    Raises:
        ImportError, RuntimeError: it is not installed.
    """
    from treadle.backends.cuda.libraries.nccl import Nccl

    return Nccl()


# -- channels ----------------------------------------------------------------------------------


class Line:
    """A channel with what is known of its state.

    Args:
        channel: the ranks; None where arrays go through the host because no channel came about.
        comm: the group.
        device: that it serves.
    """

    def __init__(self, channel: Channel | None, comm: Communicator, device: CudaDevice) -> None:
        self.channel = channel
        self.comm, self.device = comm, device
        self.patience = float(COMM_TIMEOUT.get())
        self.lock = threading.Lock()
        self.broken = ""
        """Reason why it has failed."""
        self._last: tuple[Mark, str] | None = None

    def submit(self, what: str, work: Callable[[Channel], None], stream: CudaStream) -> None:
        """Submit work of the channel on a stream.

        Raises:
            CommunicationError: it fails, or a call before has failed.
        """
        with self.lock:
            if self.broken or self.channel is None:
                raise self._failure(what, "the group's NCCL communicator has failed before")
            channel, began = self.channel, time.monotonic()
            try:
                self.device.call(self.device.gpu.select)
                work(channel)
                _until(lambda: self._is_taken(channel, what), self.patience)
                state = channel.state()
            except ChannelError as error:
                state = str(error)
            if state is None:
                state = f"submitting it took more than {time.monotonic() - began:.0f} s"
            if state:
                raise self._give_up(what, state)
            self._last = self.device.call(stream.queue.mark), what

    def _is_taken(self, channel: Channel, what: str) -> bool:
        """Return whether a call has been submitted, or has failed."""
        if channel.state() is not None:
            return True
        self.comm.look_for_losses(what)
        return False

    def settle(self) -> None:
        """Wait until what was submitted is over.

        Raises:
            CommunicationError: it fails, or takes too long.
            RankLost: a rank is gone.
        """
        last, channel = self._last, self.channel
        if last is None or channel is None:
            return
        mark, what = last
        state: str | None = ""

        def over() -> bool:
            nonlocal state
            if self.device.call(mark.done):
                return True
            self.comm.look_for_losses(what)
            state = channel.state()
            return bool(state)

        try:
            ended = _until(over, self.patience)
        except RankLost:
            with self.lock:
                self._give_up(what, "a rank is lost")
            raise
        with self.lock:
            if self._last is last:
                self._last = None
            if state or not ended:
                raise self._give_up(what, state or f"it is not over after {self.patience:g} s")

    def _give_up(self, what: str, why: str) -> CommunicationError:
        """End the channel, and what is on its way with it."""
        self.broken = why
        self._last = None
        if self.channel is not None:
            self.channel.abort()
            self.channel = None
        return self._failure(what, f"NCCL reports: {why}")

    def _failure(self, what: str, problem: str) -> CommunicationError:
        return CommunicationError(
            what.split("{")[0].split(",")[0],
            problem,
            saw=self.broken if self.broken not in problem else f"in {what}",
            hint="end the job and resume from the last checkpoint; NCCL_DEBUG=INFO says more",
        )

    def close(self, together: bool) -> None:
        """Close the channel `together` with the other ranks, or abort it."""
        channel, self.channel = self.channel, None
        if channel is not None and together:
            channel.close()
        elif channel is not None:
            channel.abort()


def _until(test: Callable[[], bool], seconds: float) -> bool:
    """Ask until the answer is yes; False if it is not within some time."""
    for _ in range(_SPINS):
        if test():
            return True
    deadline = time.monotonic() + seconds
    while not test():
        if time.monotonic() > deadline:
            return False
        time.sleep(_NAP)
    return True


_LINES: weakref.WeakKeyDictionary[Communicator, list[Line]] = weakref.WeakKeyDictionary()
_LOCK = threading.RLock()


def line_of(comm: Communicator, device: CudaDevice) -> Line:
    """The channel of a group on a device; made at the first call, which all ranks make together.

    Where no channel comes about, all ranks find out, and say so once.

    Raises:
        CommunicationError: a rank does not come in time.
    """
    with _LOCK:
        lines = _LINES.setdefault(comm, [])
        for line in lines:
            if line.device is device:
                return line
        lines.append(_opened(comm, device))
        device.guards.append(lines[-1].settle)
        return lines[-1]


def _opened(comm: Communicator, device: CudaDevice) -> Line:
    channel, problem, key = None, "", b""
    try:
        made = library()
        key = made.new_key() if comm.rank == 0 else b""
    except (ImportError, RuntimeError) as error:
        problem = f"{type(error).__name__}: {error}"
    told = comm.exchange((problem, key))
    problems = [p for p, _ in told]
    if not any(problems):
        channel, problem = _join(made, comm, told[0][1], device)
        problems = comm.exchange(problem)
    bad = [(rank, p) for rank, p in enumerate(problems) if p]
    if not bad:
        return Line(channel, comm, device)
    if channel is not None:
        channel.abort()
    rank, why = bad[0]
    get_logger().warning(
        "arrays of the group %r go through the host: rank %d cannot use NCCL: %s",
        comm.name,
        rank,
        why,
    )
    return Line(None, comm, device)


def _join(
    made: ChannelLibrary, comm: Communicator, key: bytes, device: CudaDevice
) -> tuple[Channel | None, str]:
    """A channel that all ranks have joined, or why there is none."""
    patience = float(COMM_TIMEOUT.get()) / 2  # Who fails at once waits for the others meanwhile.
    try:
        device.call(device.gpu.select)
        channel = made.join(comm, key)
        if not _until(lambda: channel.state() is not None, patience):
            channel.abort()
            return None, f"the ranks did not meet within {patience:g} s"
        state = channel.state()
        if state:
            channel.abort()
        return (None, state) if state else (channel, "")
    except (ChannelError, RuntimeError) as error:
        return None, f"{type(error).__name__}: {error}"


def _leave(together: bool) -> None:
    """Close the channels of all groups."""
    with _LOCK:
        for lines in list(_LINES.values()):
            for line in lines:
                line.device.guards.remove(line.settle)
                if together:
                    with suppress(DeviceError):  # It is gone, and all that was on its way.
                        line.settle()
                line.close(together)
        _LINES.clear()


groups.before_leaving(_leave)
