"""The compiler of CUDA programs: what NVIDIA's libraries compute by them, all else generated."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal

from treadle.backends.api import Device, Support, no
from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.text import symbol_of
from treadle.backends.cuda.device import CudaDevice
from treadle.backends.cuda.libraries import custom
from treadle.backends.cuda.libraries.calls import KINDS, CallLaunchable, kind_of
from treadle.backends.cuda.libraries.collectives import lower_collective
from treadle.backends.cuda.libraries.cudnn import library as cudnn
from treadle.backends.cuda.libraries.cudnn.attention import lower_attention
from treadle.backends.cuda.libraries.cudnn.calls import KIND as CUDNN
from treadle.backends.cuda.libraries.lowering import Offers, lower_product
from treadle.backends.object_cache import ObjectCache
from treadle.backends.program import Launch, Lowered, MapLayout, Program, runs_of
from treadle.backends.rendered.compiler import RenderedCompiler
from treadle.backends.rendered.executable import RenderedExecutable, encode
from treadle.backends.rendered.library import KernelBinaries
from treadle.backends.rendering import Launchable, Renderer
from treadle.base.errors import CompileError, DeviceError
from treadle.base.types import TensorType
from treadle.ops.bucket import AllReduceBucket
from treadle.ops.collective import Collective
from treadle.ops.custom import Custom
from treadle.ops.op import Op
from treadle.ops.winograd import Winograd
from treadle.runtime.comm.carriers import NCCL, why_not
from treadle.runtime.comm.groups import WORLD

PRODUCTS = "cublasLt"
"""The kind of calls that compute matrix products."""
APART = ("attention", "attention_grad")


class CudaLibrary(KernelBinaries):
    """Binaries of generated kernels; calls of libraries have none.

    Args:
        renderer: what makes the binaries.
        cache: where they are kept.
        libraries: kinds of calls that can be made here.
    """

    def __init__(self, renderer: Renderer, cache: ObjectCache, libraries: Collection[str]) -> None:
        super().__init__(renderer, cache)
        self.libraries = frozenset(libraries)

    def add(self, kernels: Mapping[str, Any]) -> None:
        super().add({s: k for s, k in kernels.items() if not kind_of(s)})

    def has(self, symbols: Iterable[str]) -> bool:
        every = list(symbols)
        own = [s for s in every if kind_of(s) == custom.KIND]
        kinds = {kind_of(s) for s in every} - {"", custom.KIND}
        return (
            kinds <= self.libraries
            and all(map(custom.is_prepared, own))
            and super().has([s for s in every if not kind_of(s)])
        )

    def load(self, device: Device, symbols: Sequence[str]) -> list[Launchable]:
        generated = iter(super().load(device, [s for s in symbols if not kind_of(s)]))
        return [_opened(device, s) if kind_of(s) else next(generated) for s in symbols]


class CudaCompiler(RenderedCompiler):
    """See `treadle.backends.program.Compiler`.

    Args:
        renderer: of generated kernels.
        libraries: kinds of library calls that can be made here, names of `calls.KINDS`.
    """

    def __init__(self, renderer: Renderer, libraries: Collection[str] = ()) -> None:
        super().__init__(renderer)
        self._cudnn = cudnn.version() if CUDNN in libraries else 0
        self.libraries = frozenset(libraries) - (set() if self._cudnn else {CUDNN})
        self.library = CudaLibrary(renderer, self.library.cache, self.libraries)
        accepts = cudnn.accepts if self._cudnn else None
        self._offers = Offers(PRODUCTS in self.libraries, accepts)

    @property
    def target(self) -> str:
        carries = ("carries",) if self.carries(WORLD) else ()
        version = (str(self._cudnn),) if self._cudnn else ()  # it decides what is cuDNN's
        return " ".join((super().target, *sorted(self.libraries), *version, *carries))

    @property
    def is_open(self) -> bool:
        """False where a library computes products, whose extents are in its calls."""
        return not self.libraries

    def carries(self, group: str, /) -> bool:
        """Return whether arrays of a group travel between processes without the host."""
        return NCCL in self.libraries and not why_not(NCCL, group)

    @property
    def layouts(self) -> tuple[MapLayout, ...]:
        """Layouts of maps besides row-major; none where a library computes convolutions."""
        return () if {PRODUCTS, CUDNN} & self.libraries else super().layouts

    def keeps(self, name: str, /) -> bool:
        """Attention stays whole for cuDNN, see `takes`; without it, for want of products alone.

        Reductions are put into buckets for NCCL.
        """
        if name == AllReduceBucket.name:
            return NCCL in self.libraries
        apart = PRODUCTS in self.libraries and CUDNN not in self.libraries and name in APART
        return not apart and super().keeps(name)

    def takes(self, op: Op, types: Sequence[TensorType], /) -> bool:
        """Return whether an attention stays whole: where cuDNN computes it.

        What cuDNN does not compute is taken apart: its products are worth more than one kernel for
        all of it.
        """
        if op.name not in APART or PRODUCTS not in self.libraries:
            return True
        return isinstance(self._attention(op, types), Lowered)

    def lower(
        self, op: Op, types: Sequence[TensorType], frozen: Sequence[bool] = (), /
    ) -> Lowered | Support:
        if isinstance(op, Custom):
            return custom.lower_custom(op, types, self.renderer, self.library.cache)
        if isinstance(op, Collective):
            return lower_collective(op, types, super().lower, NCCL in self.libraries)
        found: Lowered | Support = no("policy", "neither cuDNN nor cuBLASLt is installed")
        if {PRODUCTS, CUDNN} & self.libraries:
            if isinstance(op, Winograd):
                return no("policy", "convolutions are a library's")
            found = self._attention(op, types)
            if isinstance(found, Support):
                found = lower_product(op, types, self.renderer.target, self._offers)
        return found if isinstance(found, Lowered) else super().lower(op, types, frozen)

    def _attention(self, op: Op, types: Sequence[TensorType]) -> Lowered | Support:
        accepts = self._offers.accepts
        if accepts is None:
            return no("policy", "cuDNN is not installed")
        return lower_attention(op, types, accepts, self.renderer.target)

    def build(self, program: Program, /) -> RenderedExecutable:
        kernels = [*(run.kernel for run in runs_of(program.steps)), *program.beside]
        self.library.add({_symbol(k): k for k in kernels})
        return RenderedExecutable(encode(program, _symbol, self.renderer.fingerprint), self.library)

    def inspect(self, launch: Launch, form: Literal["kernel", "llvm", "assembly"], /) -> str:
        if isinstance(launch.kernel, KernelModule):
            return super().inspect(launch, form)
        return f"// a call of a library: {_symbol(launch.kernel)}\n"


def _symbol(kernel: Any) -> str:
    symbol: str = symbol_of(kernel) if isinstance(kernel, KernelModule) else kernel.symbol
    return symbol


def _opened(device: Device, symbol: str) -> CallLaunchable:
    if not isinstance(device, CudaDevice):
        raise DeviceError("cuda", f"a {type(device).__name__} is not a CUDA device")
    open_call = KINDS.get(kind_of(symbol))
    if open_call is None:
        raise CompileError("cuda", f"no library is known for the call {symbol}")
    return open_call(device, symbol)
