"""The backend under test, opened, with ways to put arrays into its memory and nowhere else."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from treadle.backends import registry
from treadle.backends.api import Backend, Buffer, Device, Engine, Kernel, Stream
from treadle.backends.registry import BackendEntry
from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.base.env import BACKENDS, of_child
from treadle.conformance.check import NotOffered
from treadle.engine.devices.names import CompNode, resolve
from treadle.engine.eager.dispatch import eager_type, run, run_nullary
from treadle.ops.op import Op
from treadle.runtime.array import DeviceArray, to_host
from treadle.runtime.opened import MemoryBlock, OpenDevice
from treadle.tensor import Tensor, wrap


@runtime_checkable
class AddressedDevice(Protocol):
    """Optional, for the kit alone: a device that can say where a buffer lies."""

    def address(self, buffer: Buffer, /) -> int:
        """The device address of a buffer's first byte, for the check of alignment."""
        ...


class Subject:
    """One installed backend.

    Args:
        name: of the backend's entry point.
        quick: fewer samples, shapes and steps.
        seed: of the random inputs.

    Raises:
        DeviceError, LoadError: there is no such backend, or it cannot be loaded.
        NotOffered: it has neither devices nor an engine, or no device that can be used here.
    """

    def __init__(self, name: str, *, quick: bool = False, seed: int = 0) -> None:
        self.environment = environment()  # before the backend, which may change it, is imported
        self.name = name
        self.quick = quick
        self.seed = seed
        self.coverage: dict[str, dict[str, str]] = {}
        self.backend: Backend = registry.load(name)
        self.entry: BackendEntry = registry.entries()[name]
        self.engine_only = not self.entry.kinds
        if self.engine_only:
            self.kind = _served(self.backend, name)
            return
        self.kind = self.entry.kinds[0]
        found = self.entry.availability
        if not self.entry.count:
            why = found.reason if found is not None else ""
            raise NotOffered(f"no device of {name} can be used here: {why or 'no reason given'}")

    def owns(self, engine: Engine) -> bool:
        """Return whether an engine is this backend's."""
        own: object = self.backend
        return engine is own

    @property
    def count(self) -> int:
        """Number of devices that probing found."""
        return self.entry.count

    def place(self, index: int = 0) -> CompNode:
        """A device's name, resolved."""
        return resolve(f"{self.kind}{index}")

    def device(self, index: int = 0) -> OpenDevice:
        """A device as the framework opened it."""
        return self.place(index).open()

    @property
    def raw(self) -> Device:
        """Device 0 as the backend made it."""
        return self.device().raw

    @property
    def stream(self) -> Stream:
        """Device 0's default stream."""
        return self.device().stream

    def kernels(self) -> dict[str, list[Kernel]]:
        """The backend's kernels by op, in the order in which they are asked."""
        found: dict[str, list[Kernel]] = {}
        for kernel in sorted(self.entry.kernels(), key=lambda k: -k.priority):
            found.setdefault(kernel.op, []).append(kernel)
        return found

    def rng(self, salt: int = 0) -> np.random.Generator:
        """Random numbers that are the same in every run."""
        return np.random.default_rng((self.seed, salt))

    # -- arrays and ops ------------------------------------------------------------------------

    def resident(self, array: Array, index: int = 0) -> DeviceArray:
        """An array in device memory, without a copy on the host."""
        device = self.device(index)
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        return DeviceArray(device, array.dtype, array.shape, block=device.upload(array))

    def payload(self, array: Array, index: int = 0) -> Any:
        """An array as engines for the kind get it: on the host as it is, else in device memory."""
        return array if self.place().on_host else self.resident(array, index)

    def tensor(self, array: Array, index: int = 0) -> Tensor:
        """A tensor in device memory, without a copy on the host."""
        kind = eager_type(as_dtype(array.dtype), self.place(index))
        return wrap(self.payload(array, index), kind)

    def run(self, op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
        """The results of an op on device 0, brought back to the host."""
        return tuple([np.array(to_host(p)) for p in self.launch(op, arrays)])

    def launch(self, op: Op, arrays: Sequence[Array]) -> tuple[Any, ...]:
        """The results of an op on operands that are on device 0 only."""
        place = self.place()
        if not arrays:
            return _tuple(run_nullary(op, place)[1])
        kinds = tuple([eager_type(as_dtype(a.dtype), place) for a in arrays])
        return _tuple(run(op, kinds, tuple([self.resident(a) for a in arrays]))[1])

    # -- raw memory ----------------------------------------------------------------------------

    def alloc(self, nbytes: int) -> MemoryBlock:
        """Memory of device 0, taken as the framework takes it."""
        return self.device().alloc(nbytes)

    def free(self, block: MemoryBlock) -> None:
        """Give memory back as the framework does."""
        self.device().release(block)

    def read(self, block: MemoryBlock | Buffer, nbytes: int, stream: Stream | None = None) -> bytes:
        """The first bytes of a block, or of a buffer of the backend's."""
        buffer = block.buffer if isinstance(block, MemoryBlock) else block
        into = np.full(nbytes, 0x77, np.uint8)
        self.raw.copy_out(into.data, buffer, stream or self.stream)
        return into.tobytes()

    def write(self, block: MemoryBlock | Buffer, data: bytes, stream: Stream | None = None) -> None:
        """Bytes to the start of a block, or of a buffer of the backend's."""
        buffer = block.buffer if isinstance(block, MemoryBlock) else block
        self.raw.copy_in(buffer, memoryview(data), stream or self.stream)

    def second_stream(self) -> Stream:
        """Another stream of device 0.

        Raises:
            NotOffered: `stream()` gives the same one again.
        """
        other = self.raw.stream()
        if other is self.stream:
            raise NotOffered("stream() gives one stream only")
        return other


def environment() -> dict[str, str]:
    """The environment of a process that finds the same packages and may use all backends."""
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    return of_child({"PYTHONPATH": path}, without=BACKENDS.names)


def _tuple(payloads: Any) -> tuple[Any, ...]:
    return payloads if isinstance(payloads, tuple) else (payloads,)


def _served(backend: Backend, name: str) -> str:
    """The device kind that a backend without devices of its own is an engine for."""
    if not isinstance(backend, Engine) or not backend.serves:
        raise NotOffered(f"the backend {name} has neither devices nor an engine")
    return backend.serves[0]
