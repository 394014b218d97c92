"""A device in use: what the framework does around the few calls a backend implements.

Here live the guarantees backends may rely on (one `alloc` or `free` at a time, no empty
allocation) and those users may (failures name the device, nothing outlives `close`).
"""

from __future__ import annotations

import gc
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.base.errors import DeviceError, OutOfMemory, TreadleError
from treadle.base.log import get_logger
from treadle.runtime.api import Buffer, Device, DeviceInfo, PeerDevice

HostArray = npt.NDArray[Any]

_METHODS = ("alloc", "free", "copy_in", "copy_out", "fill", "stream", "memory", "close")


class Block:
    """A piece of device memory with its size; compared by identity."""

    __slots__ = ("buffer", "nbytes")

    def __init__(self, buffer: Buffer, nbytes: int) -> None:
        self.buffer = buffer
        self.nbytes = nbytes


@dataclass
class Traffic:
    """Copies over a device's lifetime, in numbers and in bytes."""

    uploads: int = 0
    downloads: int = 0
    peer_copies: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class OpenDevice:
    """One opened device with its default stream, live memory and copy counters.

    Raises:
        DeviceError: the backend's object lacks methods of `Device`; they are listed.
    """

    def __init__(self, name: str, raw: Device) -> None:
        missing = [m for m in _METHODS if not callable(getattr(raw, m, None))]
        if missing:
            raise DeviceError(
                name,
                f"its backend opened a {type(raw).__name__} without {', '.join(missing)}",
                hint="derive the class from treadle.backends.api.Device",
            )
        self.name = name
        self.raw = raw
        self.stream = raw.stream()
        self.traffic = Traffic()
        self.closed = False
        self.placing = threading.RLock()
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._live: set[Block] = set()
        self._released: deque[Block] = deque()

    def __repr__(self) -> str:
        return f"OpenDevice({self.name}, {self.allocated} bytes live)"

    @property
    def info(self) -> DeviceInfo:
        """What the device says about itself."""
        return self.raw.info

    @property
    def allocated(self) -> int:
        """Bytes of live blocks."""
        with self._lock:
            return sum(block.nbytes for block in self._live)

    def memory(self) -> tuple[int, int]:
        """(total, free) bytes."""
        return self.raw.memory()

    # -- memory ----------------------------------------------------------------------------

    def alloc(self, nbytes: int) -> Block:
        """A block of `nbytes` bytes.

        Raises:
            OutOfMemory: there is no room, not even after collecting garbage.
            DeviceError: the device failed, or was closed.
        """
        try:
            return self._alloc(nbytes)
        except MemoryError:
            gc.collect()  # reference cycles may still hold arrays
            self.stream.synchronize()  # and queued work may still hold freed memory
        try:
            return self._alloc(nbytes)
        except MemoryError as error:
            raise self._out_of_memory(nbytes) from error

    def _alloc(self, nbytes: int) -> Block:
        with self._lock:
            self._check_open()
            self._free_released()
            # Empty arrays have memory too, so that no backend needs a special case for them.
            block = Block(self._call(self.raw.alloc, max(nbytes, 1)), nbytes)
            self._live.add(block)
        self._settle()
        return block

    def _out_of_memory(self, nbytes: int) -> OutOfMemory:
        total, free = self.memory()
        return OutOfMemory(
            self.name,
            f"cannot allocate {nbytes} bytes",
            saw=f"{free} of {total} bytes free" if total else "",
            hint="use smaller batches or shapes, or delete tensors that are no longer needed",
        )

    def release(self, block: Block) -> None:
        """Give a block back, now or when whoever is allocating has finished.

        The garbage collector comes here at any moment, also in the middle of `alloc`.
        """
        if not self.closed:
            self._released.append(block)
            self._settle()

    def _settle(self) -> None:
        while self._released and self._lock.acquire(blocking=False):
            try:
                self._free_released()
            finally:
                self._lock.release()

    def _free_released(self) -> None:
        while self._released:
            self._free(self._released.popleft())

    def _free(self, block: Block) -> None:
        if block in self._live:
            self._live.discard(block)
            try:
                self.raw.free(block.buffer)
            except Exception:  # nobody is there to catch it
                get_logger().exception("%s failed to free %d bytes", self.name, block.nbytes)

    def close(self) -> None:
        """Free what is left, arrays that still exist included, and close the device."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._released.clear()
            for block in list(self._live):
                self._free(block)
            try:
                self.raw.close()
            except Exception:  # the program goes on, or is at its end
                get_logger().exception("%s failed to close", self.name)

    # -- movement --------------------------------------------------------------------------

    def upload(self, array: HostArray) -> Block:
        """A new block with the contents of a host array."""
        block = self._filled(array.nbytes, self.raw.copy_in, flat_bytes(array))
        with self._counting:
            self.traffic.uploads += 1
            self.traffic.bytes_up += array.nbytes
        return block

    def filled(self, byte: int, nbytes: int) -> Block:
        """A new block of equal bytes; nothing is copied."""
        return self._filled(nbytes, self.raw.fill, byte, nbytes)

    def fetch(self, source: OpenDevice, block: Block) -> Block:
        """A new block with the contents of another device's; see `reaches`."""
        if not isinstance(self.raw, PeerDevice):
            raise DeviceError(self.name, f"cannot copy from {source.name} without the host")
        self.stream.wait(source.stream.record())
        made = self._filled(
            block.nbytes, self.raw.copy_peer, source.raw, block.buffer, block.nbytes
        )
        with self._counting:
            self.traffic.peer_copies += 1
        return made

    def reaches(self, source: OpenDevice) -> bool:
        """Whether blocks of `source` can be copied here without the host."""
        return isinstance(self.raw, PeerDevice) and type(source.raw) is type(self.raw)

    def _filled(self, nbytes: int, write: Callable[..., None], *arguments: Any) -> Block:
        block = self.alloc(nbytes)
        if nbytes:
            try:
                self._call(write, block.buffer, *arguments, self.stream)
            except BaseException:
                self.release(block)
                raise
        return block

    def download(self, block: Block, into: HostArray) -> None:
        """Fill a dense host array from a block."""
        self._check_open()
        if into.nbytes:
            self._call(self.raw.copy_out, flat_bytes(into), block.buffer, self.stream)
        with self._counting:
            self.traffic.downloads += 1
            self.traffic.bytes_down += into.nbytes

    # -- failures --------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.closed:
            raise DeviceError(
                self.name,
                "the device was closed",
                hint="tensors there are lost; make them anew on a device that is open",
            )

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call the backend; whatever it raises names the device and keeps its cause."""
        try:
            return method(*arguments)
        except (TreadleError, MemoryError):
            raise
        except Exception as error:
            name = getattr(method, "__name__", "a call")
            raise DeviceError(
                self.name, f"{name} failed: {type(error).__name__}: {error}"
            ) from error


def flat_bytes(array: HostArray) -> memoryview:
    """The bytes of an array as a flat memory view (NumPy exports no view of bfloat16 itself)."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
