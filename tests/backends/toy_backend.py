"""A backend with memory of its own, for tests of everything around a backend.

Device memory is NumPy arrays nobody else sees; whatever enters or leaves is copied and counted.
Fresh and freed memory is poisoned, so that reading what was never written, or what is gone,
gives wrong results instead of lucky ones. Misuse by the framework raises `AssertionError`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treadle.backends.api import (
    Availability,
    Backend,
    Device,
    DeviceInfo,
    Kernel,
    Stream,
    Support,
    no,
    yes,
)

FRESH, GONE = 0xCB, 0xDD


class ToyBuffer:
    """Poisoned memory that knows whether it was freed."""

    def __init__(self, nbytes: int) -> None:
        self.bytes = np.full(nbytes, FRESH, np.uint8)
        self.alive = True

    def view(self, dtype: Any, shape: Sequence[Any]) -> np.ndarray[Any, Any]:
        assert self.alive, "freed memory is used"
        flat = self.bytes.view(dtype)
        size = int(np.prod(shape, dtype=np.int64))
        return flat[:size].reshape(shape)


class ToyDevice(Device):
    """Counts every call; `capacity` in bytes is enforced."""

    def __init__(self, index: int, capacity: int) -> None:
        self.info = DeviceInfo(f"toy {index}", memory=capacity)
        self.capacity = capacity
        self.used = self.allocs = self.frees = 0
        self.ins = self.outs = self.fills = self.launches = 0
        self.closed = False
        self._busy = False

    def alloc(self, nbytes: int, /) -> ToyBuffer:
        assert nbytes >= 1 and not self.closed
        assert not self._busy, "alloc and free must come one at a time"
        self._busy = True
        try:
            # Rounded up, as real allocators do: the framework must not rely on the size.
            buffer = ToyBuffer(-(-nbytes // 64) * 64)
            if self.used + buffer.bytes.size > self.capacity:
                raise MemoryError
            self.used += buffer.bytes.size
            self.allocs += 1
            return buffer
        finally:
            self._busy = False

    def free(self, buffer: ToyBuffer, /) -> None:
        assert buffer.alive and not self.closed, "double free"
        assert not self._busy, "alloc and free must come one at a time"
        buffer.alive = False
        buffer.bytes[:] = GONE
        self.used -= buffer.bytes.size
        self.frees += 1

    def copy_in(self, dst: ToyBuffer, src: memoryview, stream: Stream, /) -> None:
        self.ins += 1
        dst.view(np.uint8, (src.nbytes,))[:] = src

    def copy_out(self, dst: memoryview, src: ToyBuffer, stream: Stream, /) -> None:
        self.outs += 1
        dst[:] = src.view(np.uint8, (dst.nbytes,)).data

    def fill(self, buffer: ToyBuffer, value: int, nbytes: int, stream: Stream, /) -> None:
        self.fills += 1
        buffer.view(np.uint8, (nbytes,))[:] = value

    def memory(self) -> tuple[int, int]:
        return self.capacity, self.capacity - self.used

    def close(self) -> None:
        assert not self.closed
        self.closed = True

    @property
    def copies(self) -> tuple[int, int]:
        """Uploads and downloads so far."""
        return self.ins, self.outs


class ToyWithPeers(ToyDevice):
    """Two of these copy between each other without the host."""

    fetched = 0

    def copy_peer(
        self, dst: ToyBuffer, source: Device, src: ToyBuffer, nbytes: int, stream: Stream, /
    ) -> None:
        self.fetched += 1
        dst.view(np.uint8, (nbytes,))[:] = src.view(np.uint8, (nbytes,))


def kernel(op: str, compute: Callable[..., Any], dense: bool = True, **options: Any) -> Kernel:
    """A float32 kernel from a NumPy function; `dense` asserts that operands were broadcast."""

    def run(device: Any, outs: Any, ins: Any, attributes: Any, stream: Any, /) -> None:
        assert not dense or all(i.type.shape == outs[0].type.shape for i in ins)
        device.launches += 1
        arrays = [i.buffer.view(i.type.dtype.numpy, i.type.shape) for i in ins]
        out = outs[0]
        out.buffer.view(out.type.dtype.numpy, out.type.shape)[...] = compute(*arrays, **attributes)

    return Kernel(op, run, **{"supports": float32_only} | options)


def float32_only(op: Any, types: Sequence[Any]) -> Support:
    wrong = [t.dtype.name for t in types if t.dtype.name != "float32"]
    return no("dtype", f"only float32, not {wrong[0]}") if wrong else yes()


def elementwise() -> list[Kernel]:
    """Kernels for the arithmetic that training an MLP is made of."""
    return [
        kernel("add", np.add),
        kernel("sub", np.subtract),
        kernel("mul", np.multiply),
        kernel("relu", lambda x: np.maximum(x, np.float32(0))),
        kernel("matmul", lambda x, y, **_: x @ y, dense=False, supports=plain_matmul),
    ]


def plain_matmul(op: Any, types: Sequence[Any]) -> Support:
    if any(op.attributes.values()):
        return no("attribute", "no transposed operands")
    if any(t.ndim != 2 for t in types):
        return no("rank", "only matrices")
    return float32_only(op, types)


class Toy(Backend):
    """A family of `count` toy devices."""

    protocol = (1, 0)

    def __init__(
        self,
        name: str = "toy",
        *,
        kernels: Sequence[Kernel] = (),
        count: int = 2,
        priority: int = 0,
        capacity: int = 1 << 26,
        device: type[ToyDevice] = ToyDevice,
    ) -> None:
        self.name = name
        self.device_kinds = (name,)
        self.opened: dict[int, ToyDevice] = {}
        self._kernels = kernels
        self._found = Availability(True, "made of NumPy", count, priority)
        self._capacity = capacity
        self._device = device

    def probe(self) -> Availability:
        return self._found

    def open(self, index: int, /) -> ToyDevice:
        self.opened[index] = self._device(index, self._capacity)
        return self.opened[index]

    def kernels(self) -> Sequence[Kernel]:
        return self._kernels
