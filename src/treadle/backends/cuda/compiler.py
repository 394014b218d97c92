"""The compiler of CUDA programs where cuBLASLt is installed: products by it, all else generated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from treadle.backends.api import Device, Support, no
from treadle.backends.codegen.kernel.text import symbol_of
from treadle.backends.cuda.device import CudaDevice
from treadle.backends.cuda.libraries.blaslt import ProductLaunchable, library_of
from treadle.backends.cuda.libraries.lowering import lower_product
from treadle.backends.cuda.libraries.products import PREFIX, Product, parsed
from treadle.backends.program import Lowered, MapLayout, Program, runs_of
from treadle.backends.rendered.compiler import RenderedCompiler
from treadle.backends.rendered.executable import RenderedExecutable, encode
from treadle.backends.rendered.library import Library
from treadle.backends.rendering import Launchable, Renderer
from treadle.base.errors import DeviceError
from treadle.base.types import TensorType
from treadle.ops.op import Op
from treadle.ops.winograd import WinogradConv, WinogradConvGradWeight

APART = ("attention", "attention_grad")
WINOGRAD = (WinogradConv, WinogradConvGradWeight)


class CudaLibrary(Library):
    """Binaries of generated kernels; products have none."""

    def add(self, kernels: Mapping[str, Any]) -> None:
        super().add({s: k for s, k in kernels.items() if not s.startswith(PREFIX)})

    def has(self, symbols: Iterable[str]) -> bool:
        return super().has([s for s in symbols if not s.startswith(PREFIX)])

    def load(self, device: Device, symbols: Sequence[str]) -> list[Launchable]:
        generated = iter(super().load(device, [s for s in symbols if not s.startswith(PREFIX)]))
        return [_product(device, s) if s.startswith(PREFIX) else next(generated) for s in symbols]


class CudaCompiler(RenderedCompiler):
    """See `treadle.backends.program.Compiler`."""

    def __init__(self, renderer: Renderer) -> None:
        super().__init__(renderer)
        self.library = CudaLibrary(renderer, self.library.cache)

    @property
    def target(self) -> str:
        return f"{super().target} cublasLt"

    @property
    def layouts(self) -> tuple[MapLayout, ...]:
        """Maps stay row-major, as products over columns take them."""
        return ()

    def keeps(self, name: str, /) -> bool:
        """Attention is taken apart: its products are worth more than one kernel for all of it."""
        return name not in APART and super().keeps(name)

    def lower(
        self, op: Op, types: Sequence[TensorType], frozen: Sequence[bool] = (), /
    ) -> Lowered | Support:
        if isinstance(op, WINOGRAD):
            return no("policy", "convolutions are products by cuBLASLt")
        found = lower_product(op, types, self.renderer.target)
        return found if isinstance(found, Lowered) else super().lower(op, types, frozen)

    def build(self, program: Program, /) -> RenderedExecutable:
        kernels = [*(run.kernel for run in runs_of(program.steps)), *program.beside]
        self.library.add({_symbol(k): k for k in kernels})
        return RenderedExecutable(encode(program, _symbol, self.renderer.fingerprint), self.library)


def _symbol(kernel: Any) -> str:
    return kernel.symbol if isinstance(kernel, Product) else symbol_of(kernel)


def _product(device: Device, symbol: str) -> ProductLaunchable:
    if not isinstance(device, CudaDevice):
        raise DeviceError("cuda", f"a {type(device).__name__} is no CUDA device")
    return ProductLaunchable(parsed(symbol), library_of(device))
