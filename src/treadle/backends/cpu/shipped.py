"""Code that was compiled elsewhere: whether it fits this process, and opening it.

Neither LLVM nor the generators are imported, and nothing is looked for in the cache. The library
brings the executor and the workers of the thread pool with it; programs of one process use those
of whoever came first, which is why only code of this Treadle's program format is opened.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treadle.backends.codegen.target import Target
from treadle.backends.cpu.allocator import HOST
from treadle.backends.cpu.elf import check_image
from treadle.backends.cpu.elf_objects import check_object
from treadle.backends.cpu.executable import Encoded, NativeExecutable, evaluator
from treadle.backends.cpu.host import flags, host_target, processor, required
from treadle.backends.cpu.native import CORE, adopt, version
from treadle.backends.cpu.pool import PROCESS, get_threads, set_threads, start
from treadle.backends.cpu.pool_text import SYSTEM
from treadle.backends.cpu.toolchain import LinkedObjects, LoadedCode, linking, opened
from treadle.backends.native_code import Machine, NativeCode
from treadle.base.array import Array
from treadle.base.errors import CompileError, LoadError

_SPELLED = {"AMD64": "x86_64", "arm64": "aarch64"}


def machine_of(target: Target) -> Machine:
    """Return the machine that code for a target needs."""
    architecture = target.triple.partition("-")[0] or platform.machine()
    architecture = _SPELLED.get(architecture, architecture)
    named = re.search("linux|macos|windows", target.triple)
    system = named.group() if named else SYSTEM
    form = version(architecture, system)
    return Machine(target.name, architecture, system, required(target), form)


def prefix_of(machine: Machine) -> str:
    """Return the prefix of the names of the executor's functions."""
    return f"treadle_{machine.format}_"


def misfit(machine: Machine) -> tuple[str, str] | None:
    """Return why code for a machine cannot run here: what it needs, and what is here; None where it
    can.
    """
    here = machine_of(host_target())
    if (machine.architecture, machine.system) != (here.architecture, here.system):
        return f"{machine.architecture} {machine.system}", f"{here.architecture} {here.system}"
    missing = set(machine.requires) - flags()
    if missing:
        needs = f"{machine.target} with {', '.join(sorted(missing))}"
        return needs, f"{host_target().name}: {processor()}"
    if machine.format != here.format:
        return f"program format {machine.format}", f"program format {here.format}"
    return None


def open_native(code: NativeCode) -> list[NativeExecutable]:
    """The programs of code that fits this process.

    Raises:
        LoadError: the code cannot be opened, or lacks a kernel.
    """
    runtime = {name: prefix_of(code.machine) + name for name in CORE}
    symbols = [*code.symbols, *runtime.values()]
    try:
        library = _library(code, symbols)
        if max(library.addresses.values()) >> 63:
            raise ValueError("a kernel lies where no program can be")
    except (OSError, ValueError, CompileError) as error:
        raise LoadError(
            "native code", f"it cannot be opened: {error}", hint="compile the model anew"
        ) from error
    adopt(library, {name: library.addresses[symbol] for name, symbol in runtime.items()})
    if PROCESS.address is None:
        start()  # Threads take a while to come: not at the expense of the first run.
    made = []
    for program in code.programs:
        encoded = Encoded(program.words, program.places, code.symbols, program.steps, program.bases)
        made.append(NativeExecutable(encoded, [library]))
    return made


def empty(shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """Memory for a result, taken from what earlier ones gave back."""
    return HOST.empty(shape, dtype)


def _library(code: NativeCode, symbols: Sequence[str]) -> LoadedCode:
    image: Any = code.library or linking().shared_library(code.objects)
    if image:
        check_image(image)
        return opened(image, symbols)
    if sys.platform == "linux":  # Elsewhere objects are of another format.
        for made in code.objects:
            check_object(made)
    return LinkedObjects([bytes(o) for o in code.objects], symbols)


def renumbered(encoded: Encoded, number_of: Callable[[str], int]) -> np.ndarray[Any, Any]:
    """The words of a program, with other numbers for its kernels."""
    words = encoded.words.copy()
    numbers = np.array([number_of(symbol) for symbol in encoded.symbols], np.int64)
    words[encoded.places] = numbers[words[encoded.places]]
    return words


__all__ = [
    "empty",
    "evaluator",
    "get_threads",
    "machine_of",
    "misfit",
    "open_native",
    "prefix_of",
    "renumbered",
    "set_threads",
]
