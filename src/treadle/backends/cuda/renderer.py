"""CUDA's part of the renderer role: CUDA C++, cubins by NVRTC, launches.

A binary holds machine code for the architecture of every GPU of the process, so that it can be
loaded on each of them, and for each kernel the bytes of scratch memory that a thread of it needs.
"""

from __future__ import annotations

import hashlib
import json
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from treadle.backends.api import Device, Stream, Support, no, yes
from treadle.backends.codegen.kernel.c_cuda import cuda_source, scratch_bytes
from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.target import Target
from treadle.backends.cuda.device import CudaDevice, CudaStream
from treadle.backends.cuda.launching import LaunchGeometry, geometry
from treadle.backends.cuda.recording import CudaRecording, record
from treadle.backends.rendering import Argument
from treadle.base.env import CUDA_GRAPHS, CUDA_TF32
from treadle.base.errors import CompileError, DeviceError
from treadle.base.log import get_logger
from treadle.runtime.api import Buffer

TARGET = Target(
    "cuda",
    vector_bytes=16,
    registers=32,
    fma=True,
    l1=8 << 10,
    l2=16 << 10,
    fine=True,
)
"""Properties of a thread: vectors of four floats, and caches that many threads share."""
MOST_PARAMETERS = 500
"""Parameters of 8 bytes that surely fit in the 4,096 bytes which every architecture has."""
_HEADER = struct.Struct("<Q")
ToCode = Callable[[str, str], bytes]


class CudaLaunchable:
    """A loaded kernel, with its last arguments as the driver takes them."""

    __slots__ = ("given", "kernel", "scratch", "values")

    def __init__(self, kernel: Any, scratch: int) -> None:
        self.kernel = kernel
        self.scratch = scratch
        self.given: tuple[Argument, ...] | None = None
        self.values: tuple[int, ...] = ()

    def place(self, arguments: tuple[Argument, ...]) -> tuple[int, ...]:
        """Addresses and integers; those of the last launch where nothing has changed."""
        if arguments is not self.given:
            self.values = tuple(a if isinstance(a, int) else a[0].address + a[1] for a in arguments)
            self.given = arguments
        return self.values


class CudaRenderer:
    """See `treadle.backends.rendering.Renderer`.

    Args:
        architectures: of the GPUs, such as ("sm_90a",).
        compiler: the name of what compiles, and its version.
        compile_code: from a source and an architecture to machine code; NVRTC if left out.
    """

    name = "cuda"

    def __init__(
        self,
        architectures: Sequence[str],
        compiler: str = "",
        compile_code: ToCode | None = None,
    ) -> None:
        self.architectures = tuple(dict.fromkeys(architectures))
        self._compiler = compiler
        self._compile_code = compile_code
        self._loaded: dict[tuple[int, str], tuple[CudaDevice, Mapping[str, Any]]] = {}
        self._lock = threading.Lock()
        self._said = False

    @property
    def target(self) -> Target:
        return TARGET

    @property
    def fingerprint(self) -> str:
        if not (compiler := self._compiler):
            from treadle.backends.cuda.nvrtc import compiler_version

            compiler = compiler_version()
        return f"{'+'.join(self.architectures)} {compiler}"

    def supports(self, kernel: Any, /) -> Support:
        if not isinstance(kernel, KernelModule):
            return no("device-feature", f"{kernel} is not a kernel of Treadle's")
        if len(kernel.parameters) > MOST_PARAMETERS:
            return no("size-limit", f"{kernel.name} has {len(kernel.parameters)} parameters")
        return yes()

    # -- code ------------------------------------------------------------------------------

    def render(self, kernels: Sequence[Any], /) -> str:
        return cuda_source(kernels, TARGET)

    def compile(self, source: str, /) -> bytes:
        if not self._said:
            self._said = True
            get_logger().info("compiling kernels for %s; they are kept on disk", self.fingerprint)
        to_code = self._compile_code
        if to_code is None:
            from treadle.backends.cuda.nvrtc import to_cubin

            to_code = to_cubin
        codes = {name: to_code(source, name) for name in self.architectures}
        header = {
            "scratch": dict(scratch_bytes(source)),
            "codes": {name: len(code) for name, code in codes.items()},
        }
        text = json.dumps(header).encode()
        return b"".join((_HEADER.pack(len(text)), text, *codes.values()))

    def load(
        self, device: Device, binary: bytes, symbols: Sequence[str], /
    ) -> list[CudaLaunchable]:
        own = _own(device)
        header, code = _code_for(binary, own.gpu.facts.architecture)
        scratch = header["scratch"]
        found = self._kernels(own, code, symbols)
        return [CudaLaunchable(found[s], scratch.get(s, 0)) for s in symbols]

    def _kernels(self, device: CudaDevice, code: bytes, symbols: Sequence[str]) -> dict[str, Any]:
        """Kernels by symbol. Code is loaded once per device, and stays."""
        key = id(device), hashlib.sha256(code).hexdigest()
        with self._lock:
            known = self._loaded.get(key)
            made = dict(known[1]) if known is not None and known[0] is device else {}
            missing = list(dict.fromkeys(s for s in symbols if s not in made))
            if missing:
                loaded = device.call(lambda: device.gpu.load(code, missing))
                made |= zip(missing, loaded, strict=True)
                self._loaded[key] = device, made
            return made

    # -- launches --------------------------------------------------------------------------

    def launch(
        self,
        device: Device,
        launchable: Any,
        arguments: tuple[Argument, ...],
        items: int,
        serial: bool,
        stream: Stream,
        /,
    ) -> None:
        own, queued = _own(device), _own_stream(stream)
        if not isinstance(launchable, CudaLaunchable):
            with queued.lock:  # it may use scratch memory
                launchable.submit(own, queued, arguments)
            return
        if items < 1:
            return
        values = launchable.place(arguments)
        shape = geometry(items, launchable.scratch, own.gpu.facts)
        if not shape.scratch:
            _launch(own, queued, launchable, shape, (*values, items, 0, launchable.scratch))
            return
        with queued.lock:
            memory = queued.scratch(shape.scratch)
            _launch(own, queued, launchable, shape, (*values, items, memory, launchable.scratch))

    # -- recordings ------------------------------------------------------------------------

    def record(
        self, device: Device, stream: Stream, submit: Callable[[Stream], None], /
    ) -> CudaRecording:
        return record(_own(device), _own_stream(stream), submit)

    def records(self, launchable: Any, /) -> bool:
        return isinstance(launchable, CudaLaunchable) or getattr(launchable, "recordable", False)

    def places(self, buffers: Sequence[Buffer], /) -> tuple[int, ...]:
        return tuple([buffer.address for buffer in buffers])

    def settings(self) -> str | None:
        return None if CUDA_GRAPHS.get() == "0" else CUDA_TF32.get()


def _launch(
    device: CudaDevice,
    stream: CudaStream,
    launchable: CudaLaunchable,
    shape: LaunchGeometry,
    passed: Sequence[int],
) -> None:
    gpu, kernel = device.gpu, launchable.kernel
    device.call(lambda: gpu.launch(kernel, shape.blocks, shape.threads, passed, stream.queue))


def _own(device: Device) -> CudaDevice:
    if not isinstance(device, CudaDevice):
        raise DeviceError("cuda", f"a {type(device).__name__} is not a CUDA device")
    return device


def _own_stream(stream: Stream) -> CudaStream:
    if not isinstance(stream, CudaStream):
        raise DeviceError("cuda", f"a {type(stream).__name__} is not a stream of a CUDA device")
    return stream


def _code_for(binary: bytes, architecture: str) -> tuple[dict[str, Any], bytes]:
    """The header of a binary, and the machine code of an architecture.

    Raises:
        CompileError: there is none in it.
    """
    (length,) = _HEADER.unpack_from(binary)
    at = _HEADER.size + length
    header: dict[str, Any] = json.loads(binary[_HEADER.size : at])
    for name, nbytes in header["codes"].items():
        if name == architecture:
            return header, binary[at : at + nbytes]
        at += nbytes
    raise CompileError(
        "cuda", f"there is no code for {architecture}", saw=", ".join(header["codes"])
    )
