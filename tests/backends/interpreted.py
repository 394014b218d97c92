"""Programs whose kernels are interpreted, for targets that this processor does not run."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
from tests.engine.python_compiler import PythonExecutable

from treadle.backends.codegen.kernel import interpret
from treadle.backends.codegen.target import TARGETS
from treadle.backends.cpu.compiler import NativeCompiler
from treadle.backends.cpu.native import toolchain
from treadle.backends.cpu.toolchain import Toolchain
from treadle.backends.program import Address, Limits, Program, Run
from treadle.base.symbol import Dim
from treadle.engine.targets import compiled

Bases = np.ndarray[Any, Any]
_BEYOND = 1 << 40
"""Bytes that a kernel may see on both sides of an address: programs do not say where a value ends,
and the address of one that is read backwards is its end.
"""


class InterpretedExecutable(PythonExecutable):
    """A program of kernels in the kernel language, each launch of which is interpreted."""

    def launch(self, run: Run, bases: Bases) -> None:
        given = [
            _seen(bases, a) if p.type.pointer else _number(bases, a)
            for p, a in zip(run.kernel.parameters, run.arguments, strict=True)
        ]
        items = int(run.items) if run.counted < 0 else int(bases[run.counted])
        interpret.run(run.kernel, given, 0, items)


def _number(bases: Bases, given: Address | Dim) -> int:
    """A number, or what a base holds that is known at a call only."""
    if isinstance(given, Address):
        return int(bases[given.base]) + int(given.offset)
    return int(given)


def _seen(bases: Bases, at: Address | Dim) -> Bases | interpret.MemoryPointer:
    """All that may lie around an address; nothing around none, which NumPy would allocate."""
    address = _number(bases, at)
    if not address:
        return np.empty(0, np.uint8)
    before = min(_BEYOND, (address - 1) // 64 * 64)  # Alignments stay what they are.
    memory = (ctypes.c_uint8 * (before + _BEYOND)).from_address(address - before)
    return interpret.MemoryPointer(np.frombuffer(memory, np.uint8), before, address - before)


class InterpretedCompiler(NativeCompiler):
    """Lowers as for a target; what it builds runs anywhere, and is kept nowhere."""

    def __init__(self, target: str) -> None:
        super().__init__(Toolchain(TARGETS[target], toolchain().cache))

    def build(self, program: Program, /) -> Any:
        return InterpretedExecutable(program)

    def restore(self, stored: bytes, /) -> None:
        return None

    def save(self, key: str, data: bytes, /) -> None:
        """Nothing is kept."""

    def saved(self, key: str, /) -> None:
        return None

    def limits(self, *, anew: bool = False) -> Limits:
        """Those of some processor: measuring would run the target's instructions."""
        return Limits(1e11, 3e10)


@contextmanager
def interpreting(target: str) -> Iterator[None]:
    """Whole programs are lowered for a target and interpreted; single ops run as ever."""
    compiler = InterpretedCompiler(target)
    with mock.patch.object(compiled, "find_compiler", lambda options, kind: compiler):
        yield
