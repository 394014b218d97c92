"""The CPU's `Compiler`: lowers ops for the host's target, builds programs, shows kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from treadle.backends.api import Support
from treadle.backends.codegen.kernel_ir import Kernel
from treadle.backends.codegen.llvm_text import module_text, symbol_of
from treadle.backends.codegen.lower import lower
from treadle.backends.codegen.lowering import LOWERINGS
from treadle.backends.codegen.target import Target
from treadle.backends.codegen.text import kernel_text
from treadle.backends.cpu.executable import NativeExecutable, encode
from treadle.backends.cpu.native import toolchain
from treadle.backends.cpu.toolchain import Library, Toolchain
from treadle.backends.program import Launch, Lowered, Program, Run
from treadle.base.types import TensorType
from treadle.ops.op import Op


class NativeCompiler:
    """See `treadle.backends.program.Compiler`."""

    def __init__(self) -> None:
        self._toolchain: Toolchain = toolchain()

    @property
    def target(self) -> str:
        return self._toolchain.fingerprint

    def lower(
        self, op: Op, types: Sequence[TensorType], frozen: Sequence[bool] = (), /
    ) -> Lowered | Support:
        return lower(op, types, frozen, self._toolchain.target)

    def keeps(self, name: str, /) -> bool:
        return name in LOWERINGS

    def build(self, program: Program, /) -> NativeExecutable:
        kernels = {step.kernel for step in program.steps if isinstance(step, Run)}
        return NativeExecutable(encode(program, symbol_of), self.load(kernels))

    def load(self, kernels: Iterable[Kernel]) -> list[Library]:
        """Libraries that have all these kernels.

        Raises:
            CompileError: LLVM does not accept a kernel.
        """
        target = self._toolchain.target
        return self._toolchain.load({symbol_of(k): _Text(k, target) for k in kernels})

    def inspect(self, launch: Launch, form: Literal["kernel", "llvm", "assembly"], /) -> str:
        if form == "kernel":
            return kernel_text(launch.kernel)
        text = module_text([launch.kernel], self._toolchain.target)
        return text if form == "llvm" else self._toolchain.assembly(text)


class _Text:
    """A kernel's LLVM text, printed when the cache does not have its object."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self._kernel = kernel
        self._target = target

    def __call__(self) -> str:
        return module_text([self._kernel], self._target)
