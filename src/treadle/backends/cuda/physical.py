"""GPUs by way of NVIDIA's cuda-core: contexts, queues, memory pools, kernels.

Imported only where the driver was found.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

from cuda.bindings import driver
from cuda.core import (
    Device,
    DeviceMemoryResource,
    EventOptions,
    LaunchConfig,
    LegacyPinnedMemoryResource,
    ObjectCode,
    launch,
)

from treadle.backends.cuda.driver import (
    Capture,
    DriverError,
    Extents,
    Facts,
    Gpu,
    GpuRecording,
    Mark,
    MemoryRegion,
    Queue,
    TimedMark,
)

_OUT_OF_MEMORY = "CUDA_ERROR_OUT_OF_MEMORY"


def _checked(result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what a call of the bindings gave besides its status."""
    status, *values = result
    if status == driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
        raise MemoryError(_OUT_OF_MEMORY)
    if status != driver.CUresult.CUDA_SUCCESS:
        raise DriverError(f"{status.name} ({int(status)})")
    return tuple(values)


class PhysicalMark:
    """An event of cuda-core."""

    __slots__ = ("event",)

    def __init__(self, event: Any) -> None:
        self.event = event

    def done(self) -> bool:
        return bool(self.event.is_done)

    def wait(self) -> None:
        self.event.sync()


class PhysicalTimedMark(PhysicalMark):
    """An event that was told to note its time."""

    __slots__ = ()

    def since(self, start: TimedMark, /) -> float:
        if not isinstance(start, PhysicalTimedMark):
            raise DriverError(f"a {type(start).__name__} knows no time of a GPU")
        return float(self.event - start.event) / 1e3


class PhysicalQueue:
    """A stream of cuda-core that does not wait for the legacy default stream."""

    __slots__ = ("gpu", "handle", "stream")

    def __init__(self, gpu: PhysicalGpu) -> None:
        self.gpu = gpu
        self.stream = gpu.current().create_stream()
        self.handle = int(self.stream.handle)

    def mark(self) -> Mark:
        self.gpu.current()
        return PhysicalMark(self.stream.record())

    def timed_mark(self) -> TimedMark:
        self.gpu.current()
        return PhysicalTimedMark(self.stream.record(options=EventOptions(timing_enabled=True)))

    def after(self, mark: Mark, /) -> None:
        if isinstance(mark, PhysicalMark):
            self.stream.wait(mark.event)
        else:
            mark.wait()

    def synchronize(self) -> None:
        self.gpu.current()
        self.stream.sync()


class PhysicalRecording:
    """A CUDA graph that is ready to be launched."""

    __slots__ = ("graph",)

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def close(self) -> None:
        self.graph.close()


class PhysicalCapture(PhysicalQueue):
    """A stream of its own that is captured, so that nothing of other threads gets into it.

    In relaxed mode whatever the program does elsewhere meanwhile, such as freeing memory, goes on.
    """

    __slots__ = ("builder",)

    def __init__(self, gpu: PhysicalGpu) -> None:
        self.gpu = gpu
        gpu.select()
        self.builder = gpu.current().create_graph_builder()
        self.stream = self.builder.stream
        self.handle = int(self.stream.handle)
        self.builder.begin_building("relaxed")

    def finish(self) -> GpuRecording:
        self.gpu.current()
        return PhysicalRecording(self.builder.end_building().complete())

    def close(self) -> None:
        self.gpu.current()
        # One that the driver has given up cannot be ended; what went wrong was raised by then.
        with contextlib.suppress(Exception):
            self.builder.close()


class PhysicalRegion:
    """A buffer of cuda-core."""

    __slots__ = ("address", "buffer")

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.address = int(buffer.handle)


class PhysicalGpu:
    """One GPU, with its primary context, which other libraries share."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._threads = threading.local()
        device = self.current()
        self._pool = DeviceMemoryResource(device)
        peers = [d for d in Device.get_all_devices() if d.device_id != index]
        peers = [d for d in peers if device.can_access_peer(d)]
        if peers:
            self._pool.peer_accessible_by = peers
        self._pins = LegacyPinnedMemoryResource()
        self.facts = _facts(device, self.memory()[0])

    def current(self) -> Any:
        """The device, current in the calling thread."""
        device = getattr(self._threads, "device", None)
        if device is None:
            device = Device(self._index)
            device.set_current()
            self._threads.device = device
        return device

    def select(self) -> None:
        # Another GPU may have been made current in this thread since `current` was called.
        self.current().set_current()

    def queue(self) -> PhysicalQueue:
        return PhysicalQueue(self)

    def allocate(self, nbytes: int, queue: Queue, /) -> PhysicalRegion:
        self.current()
        try:
            return PhysicalRegion(self._pool.allocate(nbytes, stream=_stream(queue)))
        except Exception as error:  # the package's own class is not public
            if _OUT_OF_MEMORY in str(error):
                raise MemoryError(_OUT_OF_MEMORY) from error
            raise

    def release(self, region: MemoryRegion, queue: Queue, /) -> None:
        self.current()
        if isinstance(region, PhysicalRegion):
            region.buffer.close(stream=_stream(queue))

    def pinned(self, nbytes: int, /) -> PhysicalRegion:
        device = self.current()
        return PhysicalRegion(self._pins.allocate(nbytes, stream=device.default_stream))

    def copy(self, to: int, source: int, nbytes: int, queue: Queue, /) -> None:
        self.current()
        _checked(driver.cuMemcpyAsync(to, source, nbytes, queue.handle))

    def fill(self, to: int, value: int, nbytes: int, queue: Queue, /) -> None:
        self.current()
        _checked(driver.cuMemsetD8Async(to, value, nbytes, queue.handle))

    def load(self, binary: bytes, symbols: Sequence[str], /) -> list[Any]:
        self.current()
        code = ObjectCode.from_cubin(binary)
        return [code.get_kernel(symbol) for symbol in symbols]

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
        self.current()
        # Python's integers are passed as 8 bytes with a sign, its floats as doubles.
        config = LaunchConfig(grid=blocks, block=threads, shmem_size=shared)
        launch(_stream(queue), config, kernel, *arguments)

    def capture(self) -> Capture:
        return PhysicalCapture(self)

    def replay(self, recording: GpuRecording, queue: Queue, /) -> None:
        self.current()
        if not isinstance(recording, PhysicalRecording):
            raise DriverError(f"a {type(recording).__name__} is not a recording of a GPU")
        recording.graph.launch(_stream(queue))

    def memory(self) -> tuple[int, int]:
        self.current()
        free, total = _checked(driver.cuMemGetInfo())
        return int(total), int(free)

    def close(self) -> None:
        self.current().sync()


def open_gpu(index: int) -> Gpu:
    """GPU number `index` of those that the driver shows."""
    return PhysicalGpu(index)


def _stream(queue: Queue) -> Any:
    if not isinstance(queue, PhysicalQueue):
        raise DriverError(f"a {type(queue).__name__} is not a queue of a GPU")
    return queue.stream


def _facts(device: Any, memory: int) -> Facts:
    properties = device.properties
    capability = device.compute_capability
    major, minor = int(capability.major), int(capability.minor)
    # Kilohertz and bits; two transfers per clock.
    bandwidth = 2e3 * properties.memory_clock_rate * properties.global_memory_bus_width / 8
    processors = int(properties.multiprocessor_count)
    cores = 64 if (major, minor) in ((7, 5), (8, 0)) else 128
    return Facts(
        name=str(device.name),
        capability=(major, minor),
        memory=memory,
        bandwidth=float(bandwidth),
        processors=processors,
        threads=int(properties.max_threads_per_multiprocessor),
        flops=2e3 * float(properties.clock_rate) * cores * processors,
    )
