"""A toy device with a compiler: its kernels are the oracles of the ops, run on device memory."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tests.backends.toy_backend import Toy, ToyBuffer, ToyDevice
from tests.engine.python_compiler import PythonCompiler, PythonKernel

from treadle.backends.api import Buffer, Device, Stream, Support
from treadle.backends.program import (
    Address,
    Host,
    Jump,
    Program,
    Run,
    Step,
    Together,
    Watch,
    runs_of,
)
from treadle.base.types import TensorType
from treadle.ops.op import Op, as_tuple
from treadle.runtime.array import DeviceArray


class Piece(ToyBuffer):
    """A part of a buffer; it lives and dies with the whole."""

    def __init__(self, whole: ToyBuffer, offset: int, nbytes: int) -> None:
        self._whole = whole
        self.bytes = whole.bytes[offset : offset + nbytes]

    @property
    def alive(self) -> bool:
        return self._whole.alive


class PartedDevice(ToyDevice):
    """A toy device whose memory can be moved in pieces."""

    def part(self, buffer: ToyBuffer, offset: int, nbytes: int, /) -> Piece:
        assert offset >= 0 and offset + nbytes <= buffer.bytes.size
        return Piece(buffer, offset, nbytes)


class ToyExecutable:
    """Interprets a program on toy buffers; fails at launch number `fails_at` of a run."""

    def __init__(self, program: Program, compiler: "ToyCompiler") -> None:
        self.program = program
        self._compiler = compiler

    def run(
        self, device: Device, stream: Stream, bases: Sequence[Buffer], start: int = 0, /
    ) -> int:
        steps, at = self.program.steps, start
        while at < len(steps):
            step = steps[at]
            if isinstance(step, Host):
                return at
            if isinstance(step, Run | Together):
                for launch in runs_of((step,)):
                    self._compiler.launched()
                    _launch(launch, bases)
                at += 1
            elif isinstance(step, Jump):
                at = step.target if _jumps(step, bases) else at + 1
        return -1

    def stored(self) -> bytes:
        return b""


class WatchedToyExecutable(ToyExecutable):
    """The same, step by step."""

    def run_watched(
        self,
        device: Device,
        stream: Stream,
        bases: Sequence[Buffer],
        start: int,
        watch: Watch,
        /,
    ) -> int:
        steps, at = self.program.steps, start
        while at < len(steps):
            step = steps[at]
            if isinstance(step, Host):
                return at
            if isinstance(step, Jump):
                at = step.target if _jumps(step, bases) else at + 1
                continue
            watch(at, functools.partial(_launch_all, step, bases))
            at += 1
        return -1


def _launch_all(step: Step, bases: Sequence[Buffer]) -> None:
    for launch in runs_of((step,)):
        _launch(launch, bases)


def _bytes_at(bases: Sequence[Buffer], where: Address, nbytes: int) -> Any:
    buffer = bases[where.base]
    assert buffer.alive, "freed memory is used"
    assert where.offset + nbytes <= buffer.bytes.size
    return buffer.bytes[where.offset : where.offset + nbytes]


def _array(bases: Sequence[Buffer], where: Address, type_: TensorType) -> Any:
    shape = tuple(int(d) for d in type_.shape)
    raw = _bytes_at(bases, where, type_.nbytes)
    return np.ascontiguousarray(raw).view(type_.dtype.numpy).reshape(shape)


def _launch(launch: Run, bases: Sequence[Buffer]) -> None:
    kernel: PythonKernel = launch.kernel
    places = [a for a in launch.arguments if isinstance(a, Address)]
    count = len(kernel.types)
    ins = [_array(bases, a, t).copy() for a, t in zip(places, kernel.types, strict=False)]
    made = as_tuple(kernel.op.reference(*ins))
    for result, where, type_ in zip(made, places[count:], kernel.results, strict=True):
        dense = np.ascontiguousarray(np.asarray(result, type_.dtype.numpy))
        _bytes_at(bases, where, type_.nbytes)[:] = dense.reshape(-1).view(np.uint8)


def _jumps(step: Jump, bases: Sequence[Buffer]) -> bool:
    return step.unless is None or not _bytes_at(bases, step.unless, 1)[0]


class ToyCompiler(PythonCompiler):
    """Lowers ops to their oracles; launches are counted, and one of them may be told to fail."""

    target = "toy"

    def __init__(self, refused: Sequence[str] = ()) -> None:
        super().__init__(refused)
        self.launches = 0
        self.executable: type[ToyExecutable] = WatchedToyExecutable
        self.fails_at: int | None = None
        self.failure: Exception = RuntimeError("the wire came off")

    def launched(self) -> None:
        self.launches += 1
        if self.launches == self.fails_at:
            raise self.failure

    def build(self, program: Program, /) -> Any:
        return self.executable(program, self)


class CompilingToy(Toy):
    """A family of toy devices that is also the engine which generates code for them."""

    priority = 100

    def __init__(self, name: str = "toy", refused: Sequence[str] = (), **options: Any) -> None:
        super().__init__(name, device=options.pop("device", PartedDevice), **options)
        self.serves = (name,)
        self.code = ToyCompiler(refused)

    def compiler(self) -> ToyCompiler:
        return self.code

    def prepare(self, op: Op, types: Sequence[TensorType], /) -> Callable[..., Any] | Support:
        answer = self.code.lower(op, types)
        if isinstance(answer, Support):
            return answer

        def run(*arrays: DeviceArray) -> Any:
            device = arrays[0].device
            self.code.launched()
            ins = [a.buffer.view(a.dtype, a.shape).copy() for a in arrays]
            made = []
            for result in as_tuple(op.reference(*ins)):
                dense = np.array(result, order="C")
                block = device.alloc(dense.nbytes)
                block.buffer.bytes[: dense.nbytes] = dense.reshape(-1).view(np.uint8)
                made.append(DeviceArray(device, dense.dtype, dense.shape, block))
            return made[0] if op.n_outputs == 1 else tuple(made)

        return run
