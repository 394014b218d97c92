"""The CPU's `Compiler`: lowers ops for the host's target, builds programs, shows kernels."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from treadle.backends.api import Support
from treadle.backends.codegen.target import Target
from treadle.backends.cpu.allocator import HOST
from treadle.backends.cpu.executable import NativeExecutable, encode, restored
from treadle.backends.cpu.native import toolchain
from treadle.backends.cpu.toolchain import Library, Toolchain
from treadle.backends.program import Array, Launch, Lowered, Program, Run
from treadle.base.types import TensorType
from treadle.ops.op import Op


def _generators() -> Any:
    return importlib.import_module("treadle.backends.cpu.generators")


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
        found: Lowered | Support = _generators().lower(op, types, frozen, self._toolchain.target)
        return found

    def keeps(self, name: str, /) -> bool:
        return name in _generators().LOWERINGS

    def build(self, program: Program, /) -> NativeExecutable:
        kernels = {step.kernel for step in program.steps if isinstance(step, Run)}
        return NativeExecutable(encode(program, _generators().symbol_of), self.load(kernels))

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any], /) -> Array:
        return HOST.empty(shape, dtype)

    def restore(self, stored: bytes, /) -> NativeExecutable | None:
        return restored(stored)

    def save(self, key: str, data: bytes, /) -> None:
        self._toolchain.cache.put(key, data)

    def saved(self, key: str, /) -> bytes | None:
        return self._toolchain.cache.get(key)

    def load(self, kernels: Iterable[Any]) -> list[Library]:
        """Libraries that have all these kernels.

        Raises:
            CompileError: LLVM does not accept a kernel.
        """
        target, symbol_of = self._toolchain.target, _generators().symbol_of
        return self._toolchain.load({symbol_of(k): _Text(k, target) for k in kernels})

    def inspect(self, launch: Launch, form: Literal["kernel", "llvm", "assembly"], /) -> str:
        if form == "kernel":
            return str(_generators().kernel_text(launch.kernel))
        text = _Text(launch.kernel, self._toolchain.target)()
        return text if form == "llvm" else self._toolchain.assembly(text)


class _Text:
    """A kernel's LLVM text, printed when the cache does not have its object."""

    def __init__(self, kernel: Any, target: Target) -> None:
        self._kernel = kernel
        self._target = target

    def __call__(self) -> str:
        return str(_generators().module_text([self._kernel], self._target))
