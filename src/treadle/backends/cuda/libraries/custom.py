"""Ops of users on GPUs: kernels in CUDA C++ that they bring, and functions of their libraries."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from treadle.backends.api import Support, no
from treadle.backends.cuda.device import CudaDevice, CudaStream
from treadle.backends.object_cache import ObjectCache
from treadle.backends.program import Launch, Lowered, Ref
from treadle.backends.rendering import Argument, Renderer
from treadle.base.errors import CompileError, EngineError, UnsupportedOp
from treadle.base.types import TensorType
from treadle.ops.custom import CudaKernel, Custom, CustomKernel

KIND = "custom"


@dataclass(frozen=True, slots=True)
class CustomCall:
    """The launch of a user's op; `key` tells apart what its rule gave for types and attributes."""

    op: str
    key: str

    @property
    def name(self) -> str:
        """Name of the op in reports and profiles."""
        return self.op

    @property
    def symbol(self) -> str:
        """Kind, key and op as text; processes that do not know the key lower the op again."""
        return f"{KIND} {self.key} {self.op}"


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A prepared call: a kernel with its binary, or a function; operands, then results.

    `op` is the user's op, whose place in memory is a part of the call's key.
    """

    op: CustomKernel
    work: Any
    n_inputs: int
    renderer: Renderer
    binary: bytes


_PREPARED: dict[str, _Prepared] = {}


def is_prepared(symbol: str) -> bool:
    """Return whether this process has lowered the op of a symbol."""
    return symbol in _PREPARED


def lower_custom(
    op: Custom, types: Sequence[TensorType], renderer: Renderer, cache: ObjectCache
) -> Lowered | Support:
    """The launch of a user's op, or why the host runs it.

    Raises:
        EngineError: its kernel does not compile.
    """
    kernel = op.registered(tuple(types))
    if kernel.cuda is None:
        return no("op", f"{kernel.name} has no kernel in CUDA")
    results = op.infer(*types)
    if not all(t.is_static for t in (*types, *results)):
        return no("dynamic-shape", f"a shape of {kernel.name} is not known")
    own = [TensorType(t.dtype, t.shape) for t in types]
    try:
        work = kernel.cuda(dict(op.settings), own, list(results))
    except UnsupportedOp as error:
        return no("dtype", error.problem)
    binary = _compiled(kernel, work, renderer, cache) if isinstance(work, CudaKernel) else b""
    # Functions of a library are known by where their op is, which `_PREPARED` keeps there.
    what = repr(work) if isinstance(work, CudaKernel) else f"function {id(kernel)}"
    text = repr((op.kernel, op.settings, own, what))
    call = CustomCall(op.kernel, hashlib.sha256(text.encode()).hexdigest()[:16])
    _PREPARED[call.symbol] = _Prepared(kernel, work, len(own), renderer, binary)
    ends = [*(Ref("input", i) for i in range(len(own)))]
    ends += [Ref("output", i) for i in range(len(results))]
    nbytes = sum(t.nbytes for t in (*own, *results))
    return Lowered(launches=(Launch(call, tuple(ends), 1, nbytes=nbytes),))


def _compiled(
    kernel: CustomKernel, work: CudaKernel, renderer: Renderer, cache: ObjectCache
) -> bytes:
    """The binary of a kernel's source, which is kept on disk."""
    text = f"{renderer.fingerprint}|{work.source}"
    key = f"{hashlib.sha256(text.encode()).hexdigest()}.custom"
    known = cache.get(key)
    if known is not None:
        return known
    try:
        made = renderer.compile(work.source)
    except CompileError as error:
        # Not a reason to take the host: whoever wrote the kernel wants to know.
        problem = f"its kernel {work.name} in CUDA does not compile"
        raise EngineError(kernel.name, problem, saw=error.saw or error.problem) from error
    cache.put(key, made)
    return made


class CustomLaunchable:
    """See `CallLaunchable`. What functions of libraries do is not recorded."""

    def __init__(self, prepared: _Prepared, device: CudaDevice) -> None:
        self._prepared = prepared
        self.recordable = isinstance(prepared.work, CudaKernel)
        self._kernel: Any = None
        self._beside: list[int | float] = []
        if self.recordable:
            given = prepared.work.arguments
            self._beside = [int(a) if isinstance(a, int) else float(a) for a in given]
            name = prepared.work.name
            (loaded,) = prepared.renderer.load(device, prepared.binary, [name])
            self._kernel = loaded.kernel

    def submit(self, device: CudaDevice, stream: CudaStream, arguments: Sequence[Argument]) -> None:
        """Submit it on these places."""
        work, count = self._prepared.work, self._prepared.n_inputs
        places = [a if isinstance(a, int) else a[0].address + a[1] for a in arguments]
        if not isinstance(work, CudaKernel):
            work(places[:count], places[count:], stream.queue.handle)
        elif not work.is_empty:
            given = (work.blocks, work.threads, (*places, *self._beside), stream.queue)
            gpu, kernel, shared = device.gpu, self._kernel, work.shared
            device.call(lambda: gpu.launch(kernel, *given, shared=shared))


def launchable(device: CudaDevice, symbol: str) -> CustomLaunchable:
    """Return the launchable op of a symbol.

    Raises:
        CompileError: this process has not lowered it.
    """
    prepared = _PREPARED.get(symbol)
    if prepared is None:
        raise CompileError("cuda", f"nothing is known of the call {symbol}")
    return CustomLaunchable(prepared, device)
