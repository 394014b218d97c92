"""A backend that works late and goes wrong on demand, for tests of what users then see.

Kernels only queue their work, which is done when somebody waits or copies out: what fails, fails
later than the op that asked for it. `fail` says what goes wrong at which call.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tests.backends.toy_backend import Toy, ToyBuffer, ToyDevice

from treadle.backends.api import DoneEvent, Kernel, Stream


class LateStream:
    """Work in the order of submission, done when somebody waits for it."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []
        self.waits = 0

    def record(self) -> DoneEvent:
        self.synchronize()
        return DoneEvent()

    def wait(self, event: Any, /) -> None:
        event.wait()

    def synchronize(self) -> None:
        self.waits += 1
        while self.waiting:
            self.waiting.pop(0)()


class LateDevice(ToyDevice):
    """Memory as the toy's; `fail` maps a method's name to what it raises from now on."""

    def __init__(self, index: int, capacity: int) -> None:
        super().__init__(index, capacity)
        self.queue = LateStream()
        self.fail: dict[str, BaseException] = {}

    def stream(self) -> LateStream:
        return self.queue

    def _may_fail(self, name: str) -> None:
        if name in self.fail:
            raise self.fail[name]

    def alloc(self, nbytes: int, /) -> ToyBuffer:
        self._may_fail("alloc")
        return super().alloc(nbytes)

    def free(self, buffer: ToyBuffer, /) -> None:
        self._may_fail("free")
        self.queue.waiting.append(lambda: super(LateDevice, self).free(buffer))

    def copy_in(self, dst: ToyBuffer, src: memoryview, stream: Stream, /) -> None:
        self._may_fail("copy_in")
        self.queue.synchronize()
        super().copy_in(dst, src, stream)

    def copy_out(self, dst: memoryview, src: ToyBuffer, stream: Stream, /) -> None:
        self._may_fail("copy_out")
        self.queue.synchronize()
        super().copy_out(dst, src, stream)

    def close(self) -> None:
        self.closed = True


def late(op: str, compute: Callable[..., Any], error: BaseException | None = None) -> Kernel:
    """A kernel that queues its work; the work raises `error` where one is given."""

    def run(device: Any, outs: Sequence[Any], ins: Sequence[Any], attributes: Any, stream: Any, /):
        def work() -> None:
            if error is not None:
                raise error
            arrays = [i.buffer.view(i.type.dtype.numpy, i.type.shape) for i in ins]
            out = outs[0]
            out.buffer.view(out.type.dtype.numpy, out.type.shape)[...] = compute(*arrays)

        device.launches += 1
        stream.waiting.append(work)

    return Kernel(op, run)


def late_backend(*kernels: Kernel, name: str = "late") -> Toy:
    """A device that adds and multiplies late, with other kernels besides."""
    taken = {k.op for k in kernels}
    plain = [late("add", np.add), late("mul", np.multiply)]
    listed = [*kernels, *(k for k in plain if k.op not in taken)]
    return Toy(name, kernels=listed, device=LateDevice)
