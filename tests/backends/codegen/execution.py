"""Kernels run natively, for tests: compiled by LLVM, or by the system's C compiler."""

from __future__ import annotations

import ctypes
import functools
import platform
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from tests.backends.codegen.matrix_registers import emulated

from treadle.backends.codegen.kernel.c import c_source
from treadle.backends.codegen.kernel.ir import KernelModule
from treadle.backends.codegen.kernel.llvm import module_text, symbol_of
from treadle.backends.codegen.target import AVX2, AVX512, GENERIC, NEON, Target
from treadle.backends.cpu import llvm_compile
from treadle.backends.cpu.building import names_of, translate

Native = Callable[[KernelModule, Sequence[Any], int, int], None]
_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)


def runs_here(target: Target) -> bool:
    """Whether this processor executes the target's instructions."""
    features = llvm.get_host_cpu_features()
    needed = {"avx2": ("avx2", "fma", "f16c"), "avx512": ("avx512f", "avx512bw", "avx512vl")}
    if target is NEON:
        return platform.machine() == "aarch64"
    if target is GENERIC:
        return True
    return all(features.get(name, False) for name in needed[target.name])


RUNNABLE = tuple(t for t in (GENERIC, AVX2, AVX512, NEON) if runs_here(t))


def standing_in(target: Target) -> Target | None:
    """The target whose code runs a target's kernels here, None if the interpreter has to.

    Kernels say nothing of the width of registers: printed for a processor with narrower vectors,
    they are split by LLVM and compute the same. Matrix registers are emulated.
    """
    if target in RUNNABLE:
        return target
    if target.triple:
        return None
    found = next((t for t in reversed(RUNNABLE) if not t.triple and t.fma == target.fma), None)
    if found is None or not target.matrices:
        return found
    return replace(found, name=f"{found.name} with matrices", matrices=True)


def parse(kernels: Sequence[KernelModule], target: Target) -> llvm.ModuleRef:
    """The kernels as a verified module."""
    module = llvm.parse_assembly(module_text(kernels, target))
    module.verify()
    return module


def object_code(kernels: Sequence[KernelModule], target: Target) -> bytes:
    """The code of the kernels, as programs have it."""
    return translate(module_text(kernels, target), target)


def _code_of_stand_in(kernels: Sequence[KernelModule], target: Target) -> bytes:
    """Code that no program has, for vectors or registers that this processor lacks.

    LLVM may write it as fast as it can: it takes a third of the time, and the arithmetic is that of
    the text in any case.
    """
    text = module_text(kernels, target)
    module = llvm.parse_assembly(emulated(text) if target.matrices else text)
    module.verify()
    machine = _fast_machine(*names_of(target))
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    made: bytes = machine.emit_object(module)
    return made


@functools.cache
def _fast_machine(triple: str, cpu: str, features: str) -> Any:
    llvm_compile.translate("", triple, cpu, features)  # It prepares LLVM for the target.
    made = llvm.Target.from_triple(triple or llvm.get_process_triple())
    return made.create_target_machine(cpu=cpu, features=features, opt=0, reloc="pic")


def assembly(kernels: Sequence[KernelModule], target: Target) -> str:
    """The kernels' code as people read it."""
    return translate(module_text(kernels, target), target, "assembly").decode()


def compiled(kernels: Sequence[KernelModule], target: Target, stands_in: bool = False) -> Native:
    """The kernels, compiled together; calls one of them on arrays and integers.

    With `stands_in` they are another target's, see `standing_in`.
    """
    code = (_code_of_stand_in if stands_in else object_code)(kernels, target)
    return _linked(code, tuple(sorted({symbol_of(k) for k in kernels})))


@functools.cache
def _linked(code: bytes, symbols: tuple[str, ...]) -> Native:
    library = llvm_compile.link([code], list(symbols))
    return lambda kernel, arguments, lo, hi: launch(library[symbol_of(kernel)], arguments, lo, hi)


def c_compiler() -> str | None:
    """The system's C compiler, if there is one that takes the usual options."""
    return None if platform.system() == "Windows" else shutil.which("cc")


def compiled_c(kernels: Sequence[KernelModule], target: Target, folder: Path) -> Native:
    """The kernels, printed as C and compiled by the system."""
    source, library = folder / "kernels.c", folder / "kernels.so"
    source.write_text(c_source(kernels, target))
    strict = ["-std=c11", "-ffp-contract=off", "-fno-strict-aliasing", "-Wall", "-Werror"]
    quiet = ["-Wno-unused-variable", "-Wno-unused-function", "-Wno-unused-but-set-variable"]
    command = [c_compiler(), "-O0", *strict, *quiet, "-shared", "-fPIC", source, "-o", library]
    subprocess.run([str(word) for word in (*command, "-lm")], check=True)
    loaded = ctypes.CDLL(str(library))

    def call(kernel: KernelModule, arguments: Sequence[Any], lo: int, hi: int) -> None:
        address = ctypes.cast(getattr(loaded, symbol_of(kernel)), ctypes.c_void_p).value
        launch(address or 0, arguments, lo, hi)

    return call


def launch(address: int, arguments: Sequence[Any], lo: int, hi: int) -> None:
    """Call a kernel's function by the kernel ABI."""
    slots = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in arguments]
    table = (ctypes.c_int64 * max(1, len(slots)))(*slots)
    _ENTRY(address)(ctypes.addressof(table), lo, hi)


def same(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Element by element: the same bits, or both NaN."""
    bits = np.dtype(f"u{x.dtype.itemsize}")
    equal = x.view(bits) == y.view(bits)
    if x.dtype.kind not in "biu":
        equal |= np.isnan(x.astype(np.float64)) & np.isnan(y.astype(np.float64))
    return np.asarray(equal)
