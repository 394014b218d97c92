"""A device in use: what the framework does around the few calls a backend implements.

Here live the guarantees backends may rely on (one `alloc` or `free` at a time, no empty
allocation) and those users may (failures name the device, nothing outlives `close`).
"""

from __future__ import annotations

import gc
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from treadle.base.errors import DeviceError, DeviceLost, OutOfMemory, TreadleError
from treadle.base.log import get_logger
from treadle.base.observer import OBSERVER, recording
from treadle.runtime.api import (
    Buffer,
    Device,
    DeviceInfo,
    PartDevice,
    PeerDevice,
    QueueDevice,
    Stream,
)

HostArray = npt.NDArray[Any]

_RECENT, _MOST_LATER = 8, 64
"""Ops that a failure which comes late names as its possible causes."""
_METHODS = ("alloc", "free", "copy_in", "copy_out", "fill", "stream", "memory", "close")


class MemoryBlock:
    """A piece of device memory with its size; compared by identity."""

    __slots__ = ("buffer", "nbytes")

    def __init__(self, buffer: Buffer, nbytes: int) -> None:
        self.buffer = buffer
        self.nbytes = nbytes


@dataclass
class Traffic:
    """Copies over a device's lifetime, in numbers and in bytes; seconds that it was waited for."""

    uploads: int = 0
    downloads: int = 0
    peer_copies: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    waited: float = 0.0


class Later:
    """Work to be looked at when a device has done what was asked of it so far.

    Whoever waits for the device looks, and is told what is wrong; or else whoever adds many more.
    """

    def __init__(self) -> None:
        self._looks: deque[Callable[[], None]] = deque()

    def add(self, look: Callable[[], None]) -> None:
        """One more thing, which raises where something is wrong."""
        self._looks.append(look)
        if len(self._looks) > _MOST_LATER:
            self._looks.popleft()()

    def look(self) -> None:
        """Look at everything."""
        while self._looks:
            self._looks.popleft()()


_NO_BLOCK = "it returned None; it must return what stands for the memory"


class OpenDevice:
    """One opened device with its default stream, live memory and copy counters.

    Raises:
        DeviceError: the backend's object lacks methods of `Device`; they are listed.
    """

    def __init__(self, name: str, raw: Device) -> None:
        missing = [m for m in _METHODS if not callable(getattr(raw, m, None))]
        if missing:
            problem = f"its backend opened an object of class {type(raw).__name__} without "
            hint = "derive the class from treadle.backends.api.Device"
            raise DeviceError(name, problem + ", ".join(missing), hint=hint)
        self.name = name
        self.raw = raw
        self.traffic = Traffic()
        self.closed = False
        self.lost = ""
        self.recent: deque[str] = deque(maxlen=_RECENT)
        self.later = Later()
        self.placing = threading.RLock()
        self._lock = threading.Lock()
        self._counting = threading.Lock()
        self._live: set[MemoryBlock] = set()
        self._bytes = self.peak = 0  # of live blocks, and the most there were
        self._released: deque[MemoryBlock] = deque()
        self.stream: Stream = self._call(raw.stream)
        self.main: Stream = self.stream  # the one that backends know of

    def __repr__(self) -> str:
        return f"OpenDevice({self.name}, {self.allocated} bytes live)"

    @property
    def info(self) -> DeviceInfo:
        """Properties that the device reports about itself."""
        return self.raw.info

    @property
    def allocated(self) -> int:
        """Bytes of live blocks."""
        return self._bytes

    def memory(self) -> tuple[int, int]:
        """(total, free) bytes."""
        return self.raw.memory()

    # -- memory ----------------------------------------------------------------------------

    def alloc(self, nbytes: int) -> MemoryBlock:
        """A block of `nbytes` bytes.

        Raises:
            OutOfMemory: there is no room, not even after collecting garbage.
            DeviceError: the device failed, or was closed.
        """
        try:
            with self._lock:
                if self._released or self.closed or self.lost:
                    self._check_open()
                    self._free_released()
                # Empty arrays have memory too, so that no backend needs a special case for them.
                block = MemoryBlock(self.raw.alloc(nbytes or 1), nbytes)
                if block.buffer is None:
                    raise TypeError(_NO_BLOCK)
                self._live.add(block)
                self._bytes = held = self._bytes + nbytes
                if held > self.peak:
                    self.peak = held
        except MemoryError:
            return _allocated_at_last(self, nbytes)
        except Exception as error:
            self._fail("alloc", error)
        if self._released:
            self._settle()
        if OBSERVER.now is not None:
            _tell(self, nbytes)
        return block

    def release(self, block: MemoryBlock) -> None:
        """Give a block back, now or when whoever is allocating has finished.

        The garbage collector comes here at any moment, also in the middle of `alloc`.
        """
        if self.closed:
            return
        self._released.append(block)
        self._settle()

    def _settle(self) -> None:
        lock = self._lock
        while self._released and lock.acquire(False):
            try:
                self._free_released()
            finally:
                lock.release()

    def _free_released(self) -> None:
        released, live = self._released, self._live
        while released:
            block = released.popleft()
            if block in live:
                live.discard(block)
                self._bytes -= block.nbytes
                if OBSERVER.now is not None:
                    _tell(self, -block.nbytes)
                try:
                    if self.stream is self.main and not self.lost:
                        self.raw.free(block.buffer)
                    elif not self.lost:
                        free_in_order(self, block.buffer)
                except Exception:  # nobody is there to catch it
                    get_logger().exception("%s failed to free %d bytes", self.name, block.nbytes)

    def left_behind(self) -> None:
        """Mark the device as lost in a forked child: it stayed with the parent."""
        why = "it was opened before this process was forked; start processes with 'spawn'"
        self.lost, self.closed = self.lost or why, True
        # Threads that held them did not come along.
        self.placing = threading.RLock()
        self._lock, self._counting = threading.Lock(), threading.Lock()

    def close(self) -> None:
        """Free what is left, arrays that still exist included, and close the device."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            self._released.clear()
            self._released.extend(self._live)
            self._free_released()
            try:
                self.raw.close()
            except Exception:  # the program goes on, or is at its end
                get_logger().exception("%s failed to close", self.name)

    # -- movement --------------------------------------------------------------------------

    def upload(self, array: HostArray) -> MemoryBlock:
        """A new block with the contents of a host array."""
        block = self._filled(array.nbytes, self.raw.copy_in, flat_bytes(array))
        self._count_upload(array.nbytes)
        return block

    def _count_upload(self, nbytes: int) -> None:
        with self._counting:
            self.traffic.uploads += 1
            self.traffic.bytes_up += nbytes

    def filled(self, byte: int, nbytes: int) -> MemoryBlock:
        """A new block of equal bytes; nothing is copied."""
        return self._filled(nbytes, self.raw.fill, byte, nbytes)

    def fetch(self, source: OpenDevice, block: MemoryBlock) -> MemoryBlock:
        """A new block with the contents of another device's; see `reaches`."""
        if not isinstance(self.raw, PeerDevice):
            raise DeviceError(self.name, f"cannot copy from {source.name} without the host")
        self.stream.wait(source.stream.record())
        made = self._filled(
            block.nbytes, self.raw.copy_peer, source.raw, block.buffer, block.nbytes
        )
        # Whoever frees the source does so in the order of its stream: not before this copy is done.
        source.stream.wait(self.stream.record())
        with self._counting:
            self.traffic.peer_copies += 1
        return made

    def reaches(self, source: OpenDevice) -> bool:
        """Return whether blocks of `source` can be copied here without the host."""
        return isinstance(self.raw, PeerDevice) and type(source.raw) is type(self.raw)

    def _filled(self, nbytes: int, write: Callable[..., None], *arguments: Any) -> MemoryBlock:
        block = self.alloc(nbytes)
        if nbytes:
            try:
                self._call(write, block.buffer, *arguments, self.stream)
            except BaseException:
                self.release(block)
                raise
        return block

    def write(self, array: HostArray, block: MemoryBlock, offset: int) -> None:
        """Copy a host array to a place inside a block."""
        self._check_open()
        if array.nbytes:
            place = self.piece(block, offset, array.nbytes)
            self._call(self.raw.copy_in, place, flat_bytes(array), self.stream)
        self._count_upload(array.nbytes)

    def piece(self, block: MemoryBlock, offset: int, nbytes: int) -> Buffer:
        """The memory at a place inside a block; what a backend gave where it is the start."""
        if not offset:
            return block.buffer
        if not isinstance(self.raw, PartDevice):
            problem = "it cannot copy pieces of its memory, which programs with host ops need"
            raise DeviceError(self.name, problem, hint="its class lacks part(); see PartDevice")
        return self._call(self.raw.part, block.buffer, offset, nbytes)

    def download(self, block: MemoryBlock, into: HostArray, offset: int = 0) -> None:
        """Fill a dense host array from a block, from `offset` bytes on."""
        self._check_open()
        if into.nbytes:
            place = self.piece(block, offset, into.nbytes)
            self._call(self.raw.copy_out, flat_bytes(into), place, self.stream)
            self.recent.clear()  # what was launched before has finished
            self.later.look()
        with self._counting:
            self.traffic.downloads += 1
            self.traffic.bytes_down += into.nbytes

    # -- order -----------------------------------------------------------------------------

    def synchronize(self) -> None:
        """Wait until the device has done what was asked of it.

        Raises:
            DeviceError: something failed in the meantime; the ops in question are named.
        """
        self._check_open()
        self.waiting(self._synchronize)
        self.recent.clear()
        self.later.look()

    def _synchronize(self) -> None:
        self._call(self.stream.synchronize)

    def waiting(self, wait: Callable[[], Any]) -> Any:
        """The result of a call that waits for the device; the time is counted."""
        began = time.perf_counter()
        try:
            return wait()
        finally:
            with self._counting:
                self.traffic.waited += time.perf_counter() - began

    # -- failures --------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.lost:
            raise DeviceLost(
                self.name,
                f"the device was lost: {self.lost}",
                hint=f"device.reset({self.name!r}) opens it anew; tensors that were only there "
                "have to be made or loaded again",
            )
        if self.closed:
            raise DeviceError(
                self.name,
                "the device was closed",
                hint="tensors there are lost; make them anew on a device that is open",
            )

    def failed(self, error: DeviceLost) -> DeviceLost:
        """Note that the device is gone: nothing is asked of it from now on. What to raise."""
        self.lost = self.lost or error.problem
        return DeviceLost(
            error.where,
            f"{self.name} was lost: {error.problem}",
            saw=error.saw,
            hint=f"tensors on the host are intact; device.reset({self.name!r}) opens it anew",
        )

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        """Call the backend; whatever it raises names the device and keeps its cause."""
        try:
            return method(*arguments)
        except Exception as error:
            self._fail(getattr(method, "__name__", "a call"), error)

    def _fail(self, name: str, error: Exception) -> NoReturn:
        """Raise what a call of the backend raised, with the device's name."""
        late = ", ".join(self.recent)
        try:
            if isinstance(error, DeviceLost):
                raise self.failed(error) from error
            if isinstance(error, TreadleError | MemoryError):
                raise error
            raise DeviceError(
                self.name,
                f"{name} failed: {type(error).__name__}: {error}",
                saw=f"launched before, not waited for: {late}" if late else "",
                hint="TREADLE_SYNC=1 has the op at fault raise it" if late else "",
            ) from error
        finally:
            del error  # or it and this frame would hold each other, and arrays with them


def copy_within(device: OpenDevice, source: MemoryBlock, target: MemoryBlock, offset: int) -> bool:
    """Copy a block to a place inside another one of the device; whether it can without the host."""
    device._check_open()
    if not isinstance(device.raw, PeerDevice):
        return False
    if source.nbytes:
        place = device.piece(target, offset, source.nbytes)
        copy, nbytes = device.raw.copy_peer, source.nbytes
        device._call(copy, place, device.raw, source.buffer, nbytes, device.stream)
    return True


# -- streams ---------------------------------------------------------------------------------


def use(device: OpenDevice, stream: Stream) -> Stream:
    """Submit to another stream from now on, after all that was submitted; the one before."""
    device._check_open()
    before = device.stream
    if stream is not before:
        device._call(stream.wait, device._call(before.record))
        device.stream = stream
    return before


def new_stream(device: OpenDevice) -> Stream:
    """A stream besides the default one; that one itself where the device has no other."""
    device._check_open()
    if not isinstance(device.raw, QueueDevice):
        return device.main
    made: Stream = device._call(device.raw.new_stream)
    return made


def _tell(device: OpenDevice, change: int) -> None:
    """Tell whoever records that so many more bytes are held, or fewer."""
    observer = recording()
    if observer is not None:
        observer.allocated(device.name, change, device.allocated)


def _allocated_at_last(device: OpenDevice, nbytes: int) -> MemoryBlock:
    """Allocate as `alloc`, after everything was let go that can be."""
    gc.collect()  # reference cycles may still hold arrays
    device._call(device.stream.synchronize)  # and queued work may still hold freed memory
    with device._lock:
        device._check_open()
        device._free_released()
        try:
            block = MemoryBlock(device._call(device.raw.alloc, nbytes or 1), nbytes)
        except MemoryError as error:
            raise _no_room(device, nbytes) from error
        device._live.add(block)
        device._bytes += nbytes
        device.peak = max(device.peak, device._bytes)
    device._settle()
    return block


def forget_peak(device: OpenDevice) -> None:
    """Reset `peak`, the most bytes of live blocks, to the bytes that are live now."""
    with device._lock:
        device.peak = device._bytes


def free_in_order(device: OpenDevice, buffer: Buffer) -> None:
    """Free memory in the order of the default stream, which is the one that backends know of."""
    current, main = device.stream, device.main
    main.wait(current.record())
    device.raw.free(buffer)
    current.wait(main.record())


def _no_room(device: OpenDevice, nbytes: int) -> OutOfMemory:
    try:
        total, free = device.memory()
    except Exception:  # what is to be told is that there is no room
        total = free = 0
    return OutOfMemory(
        device.name,
        f"cannot allocate {nbytes} bytes",
        saw=f"{free} of {total} bytes free" if total else "",
        hint="use smaller batches or shapes, or delete tensors that are no longer needed",
    )


def flat_bytes(array: HostArray) -> memoryview:
    """The bytes of an array as a flat memory view (NumPy exports no view of bfloat16 itself)."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
