"""Programs of the host that are ready to run, and native code as files carry it.

This is all that a process needs to know of programs that it only runs; how they are made stands in
`program.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from treadle.base.arithmetic import Rows
from treadle.base.array import Array


class Executable(Protocol):
    """A program that is ready to run. Threads may run one at the same time, on other bases."""

    def run(self, bases: npt.NDArray[np.int64], start: int = 0, /) -> int:
        """Run from instruction `start`; the number of the `Host` instruction reached, or -1.

        `bases` holds addresses. Other Python threads go on meanwhile.
        """
        ...

    def call(
        self,
        bases: npt.NDArray[np.int64],
        arrays: tuple[Any, ...],
        given: int,
        at: int,
        watch: npt.NDArray[np.int64],
        /,
    ) -> int:
        """Run from the start on the memory of arrays, unless something watched has changed.

        The first `given` of `arrays` become the first bases, the others those from `at` on. `watch`
        is described in `backends/watch.py`.

        Returns:
            The number of the `Host` instruction reached, -1 at the end, or less where nothing has
            run, since an array is not row-major memory of the host or what is watched has changed.
        """
        ...

    def repeat(
        self, bases: npt.NDArray[np.int64], varying: npt.NDArray[np.int64], /
    ) -> tuple[int, int]:
        """Run once per row of `varying`, whose entries replace the first bases of that turn.

        Stops early where an interrupt is pending, and at a `Host` instruction.

        Returns:
            The number of turns made, and the number of the `Host` instruction reached, or -1.
        """
        ...

    def profile(
        self, bases: npt.NDArray[np.int64], times: npt.NDArray[np.int64], start: int = 0, /
    ) -> int:
        """Run the program as `run` does, and note in `times` when each launch ran.

        `times` has a row per step: start and end of its last turn in nanoseconds of the monotonic
        clock, and, added to what stands there, the nanoseconds of all its turns and their number.
        """
        ...

    def stored(self) -> bytes:
        """The program as bytes, from which `Compiler.restore` makes it again in any process."""
        ...


@dataclass(frozen=True, slots=True)
class NativeProgram:
    """A program in words, apart from the addresses of its kernels.

    Attributes:
        words: what the executor reads; where the address of a kernel belongs, its number.
        places: where that is.
        steps: how many there are.
        bases: how many base addresses a run takes.
    """

    words: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]
    steps: int
    bases: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine that native code was made for, or that a process has.

    Attributes:
        target: name of the instructions, such as "avx2".
        architecture: of the processor, such as "x86_64".
        system: the operating system, such as "linux".
        requires: features of the processor without which the code fails, as Linux spells them.
        format: names how programs are written and how they are run; only equal ones go together.
    """

    target: str
    architecture: str
    system: str
    requires: tuple[str, ...]
    format: str


@dataclass(frozen=True, slots=True)
class NativeCode:
    """Programs with their machine code, for processes that cannot compile.

    Attributes:
        programs: they share the code.
        symbols: kernels, by number.
        library: a shared library with the kernels and what runs programs; empty where no linker
            made one.
        objects: what a linker makes it from; empty where there is a library.
        machine: what it runs on.
    """

    programs: tuple[NativeProgram, ...]
    symbols: tuple[str, ...]
    library: bytes | memoryview
    objects: tuple[bytes | memoryview, ...]
    machine: Machine


@runtime_checkable
class NativeLoader(Protocol):
    """The interface of runners of shipped code, whether or not it can be compiled here: a backend,
    or a module.
    """

    def misfit(self, machine: Machine, /) -> tuple[str, str] | None:
        """Return why code for a machine cannot run here: what it needs, and what is here; None
        where it can.
        """
        ...

    def open_native(self, code: NativeCode, /) -> Sequence[Executable]:
        """The programs, ready to run. Nothing is compiled where there is a library or a linker.

        Raises:
            LoadError: the code cannot be opened, or lacks a kernel.
        """
        ...

    def evaluator(self, rows: Rows, /) -> Callable[[npt.NDArray[np.int64]], int]:
        """Code of integers as a function of registers; see `base.arithmetic.evaluate`.

        Programs were opened before.
        """
        ...

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any], /) -> Array:
        """Memory for a result, taken from what earlier ones gave back."""
        ...

    def get_threads(self) -> int:
        """Return how many threads share the work of kernels, of the whole process."""
        ...

    def set_threads(self, count: int, /) -> int:
        """Share programs' work among `count` threads; returns how many there were before."""
        ...


@runtime_checkable
class Assembling(Protocol):
    """Optional: an engine of the host that makes machine code for others, which may run programs.

    That is, code around programs: what takes arguments of another framework, for instance.
    """

    def assemble(self, symbols: Sequence[str], text: str, /) -> Mapping[str, int]:
        """Addresses of functions of a module in LLVM's text form, which stays loaded.

        Args:
            symbols: of the functions; they name all that matters of the text.
            text: of the module.

        Raises:
            CompileError: it cannot be compiled or loaded here.
        """
        ...

    def run_address(self) -> int:
        """The function `i64 (pool, program, holder of bases, step)` that runs programs.

        The holder is an object of NumPy's layout whose data are the bases; the result is as that of
        `Executable.run`.
        """
        ...

    def pool_address(self) -> int:
        """The pool of threads, which is started if need be; another one after a fork."""
        ...
