"""Driver of a GPU as the backend needs it, as a protocol; `physical.py` has the real one.

Addresses are plain integers and work is submitted to queues, so that everything above can be run
without a GPU: the tests supply main memory and kernels compiled for the host.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

LEAST = (7, 5)
"""The oldest compute capability that NVIDIA's compilers of CUDA 13 have code for."""
LIBRARY = "libcuda.so.1"
"""NVIDIA's driver library on Linux."""


Extents = int | tuple[int, ...]
"""Of a launch: one to three."""


class DriverError(RuntimeError):
    """A call of the driver failed; the message has its name and code."""


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about one GPU.

    Attributes:
        name: the maker's name of it.
        capability: compute capability, major and minor.
        memory: bytes.
        bandwidth: bytes per second to and from memory at best; 0 if unknown.
        processors: number of multiprocessors.
        threads: threads that one of them holds at a time.
        flops: float32 operations per second of all cores at best; 0 if unknown.
    """

    name: str
    capability: tuple[int, int]
    memory: int
    bandwidth: float
    processors: int
    threads: int = 2048
    flops: float = 0.0

    @property
    def architecture(self) -> str:
        """The compiler's name of exactly this architecture, such as sm_80 or sm_90a."""
        return architecture(self.capability)


def architecture(capability: tuple[int, int]) -> str:
    """Return the name of an architecture; from 9.0 on "a" stands for features of it alone."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if major >= 9 else ''}"


class Mark(Protocol):
    """A place in a queue."""

    def done(self) -> bool:
        """Return whether everything before it has finished."""
        ...

    def wait(self) -> None:
        """Block until it has."""
        ...


class TimedMark(Mark, Protocol):
    """A mark that knows when it was reached."""

    def since(self, start: TimedMark, /) -> float:
        """Seconds from an earlier one of the same GPU; both have been reached."""
        ...


class Queue(Protocol):
    """Work in order of submission."""

    @property
    def handle(self) -> int:
        """The driver's pointer to it, for libraries."""
        ...

    def mark(self) -> Mark:
        """A place after what was submitted so far."""
        ...

    def timed_mark(self) -> TimedMark:
        """The same, and it knows its time."""
        ...

    def after(self, mark: Mark, /) -> None:
        """Start all later work only after a mark, which may be another queue's."""
        ...

    def synchronize(self) -> None:
        """Block until everything has finished."""
        ...


class GpuRecording(Protocol):
    """Work that was recorded, with the addresses it had; it runs where `Gpu.replay` submits it."""

    def close(self) -> None:
        """Free the recording; everything that was submitted of it has finished."""
        ...


class Capture(Queue, Protocol):
    """A queue whose work is recorded in place of being done: launches, copies, fills.

    What waits for work, or allocates in its order, raises `DriverError`. Other queues are not
    concerned, whoever uses them meanwhile.
    """

    def finish(self) -> GpuRecording:
        """All of the work as one piece.

        Raises:
            DriverError: the driver does not record it.
        """
        ...

    def close(self) -> None:
        """End the capture, finished or not."""
        ...


class MemoryRegion(Protocol):
    """Memory; it lives until `Gpu.release`."""

    @property
    def address(self) -> int:
        """Address of the memory."""
        ...


class Gpu(Protocol):
    """One GPU. May be called by any thread; failures raise `DriverError` or `MemoryError`."""

    facts: Facts

    def select(self) -> None:
        """Make it the one that libraries use in the calling thread."""
        ...

    def queue(self) -> Queue:
        """A new queue."""
        ...

    def allocate(self, nbytes: int, queue: Queue, /) -> MemoryRegion:
        """Memory on the GPU, usable by what is submitted to the queue from now on."""
        ...

    def release(self, region: MemoryRegion, queue: Queue, /) -> None:
        """Give memory back, after what was submitted to the queue so far."""
        ...

    def pinned(self, nbytes: int, /) -> MemoryRegion:
        """Memory of the host that copies can use directly; it lives as long as the object."""
        ...

    def copy(self, to: int, source: int, nbytes: int, queue: Queue, /) -> None:
        """Submit a copy between addresses of the GPU, of another one, or of pinned memory."""
        ...

    def fill(self, to: int, value: int, nbytes: int, queue: Queue, /) -> None:
        """Submit setting bytes."""
        ...

    def load(self, binary: bytes, symbols: Sequence[str], /) -> list[Any]:
        """Kernels of a cubin, by name."""
        ...

    def launch(
        self,
        kernel: Any,
        blocks: Extents,
        threads: Extents,
        arguments: Sequence[int | float],
        queue: Queue,
        /,
        shared: int = 0,
    ) -> None:
        """Submit a kernel whose parameters all have 8 bytes: integers with a sign, and doubles.

        `shared` is how many bytes of shared memory each block gets besides what it declares.
        """
        ...

    def capture(self) -> Capture:
        """Begin to record."""
        ...

    def replay(self, recording: GpuRecording, queue: Queue, /) -> None:
        """Submit recorded work, once more."""
        ...

    def memory(self) -> tuple[int, int]:
        """Bytes in all, and bytes that are free."""
        ...

    def close(self) -> None:
        """Close the GPU, with all that it holds."""
        ...


def count_devices(library: str = LIBRARY) -> tuple[int, str]:
    """Return how many GPUs the driver shows, and why there are none.

    Only the driver's own library is called, which leaves no context on any GPU.
    """
    try:
        driver = ctypes.CDLL(library)
    except OSError:
        return 0, f"no CUDA driver: {library} was not found; install NVIDIA's driver for the GPU"
    status = driver.cuInit(0)
    if status:
        return 0, f"the CUDA driver finds no usable GPU (cuInit gave error {status})"
    found = ctypes.c_int()
    status = driver.cuDeviceGetCount(ctypes.byref(found))
    if status:
        return 0, f"the CUDA driver does not count its GPUs (error {status})"
    if not found.value:
        return 0, "the CUDA driver shows no GPU (is CUDA_VISIBLE_DEVICES set?)"
    return found.value, ""


def has_driver(library: str = LIBRARY) -> bool:
    """Return whether the driver's library is installed."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def driver_version(library: str = LIBRARY) -> int:
    """The CUDA version that the driver knows, for example 13000; 0 where there is none."""
    try:
        driver, found = ctypes.CDLL(library), ctypes.c_int()
    except OSError:
        return 0
    driver.cuDriverGetVersion(ctypes.byref(found))
    return found.value


def capabilities(library: str = LIBRARY) -> tuple[tuple[int, int], ...]:
    """The compute capability of every GPU; asked of the driver's library alone."""
    count, _ = count_devices(library)
    if not count:
        return ()
    driver, value = ctypes.CDLL(library), ctypes.c_int()

    def ask(attribute: int, index: int) -> int:
        device = ctypes.c_int()
        driver.cuDeviceGet(ctypes.byref(device), index)
        driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        return value.value

    return tuple((ask(_MAJOR, i), ask(_MINOR, i)) for i in range(count))


def unique_name(index: int, library: str = LIBRARY) -> str:
    """Return a name that tells a GPU from all others, those of other machines included; empty
    without one.
    """
    if index >= count_devices(library)[0]:
        return ""
    driver, device, found = ctypes.CDLL(library), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    driver.cuDeviceGet(ctypes.byref(device), index)
    # The second version has names of its own for parts of a GPU that are used like whole ones.
    status = driver.cuDeviceGetUuid_v2(ctypes.byref(found), device)
    return "" if status else bytes(found).hex()


_MAJOR, _MINOR = 75, 76
"""The driver's numbers of two attributes: parts of the compute capability."""
