"""Programs as the native executor reads them: encoding, and the `Executable`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.backends.cpu.layout import (
    END,
    HOST,
    HOST_WORDS,
    JUMP,
    JUMP_WORDS,
    NO_POOL,
    RUN,
    RUN_WORDS,
)
from treadle.backends.cpu.native import runtime
from treadle.backends.cpu.pool import PROCESS, start
from treadle.backends.cpu.toolchain import Library
from treadle.backends.program import Address, Host, Jump, Program, Run, Step
from treadle.base.errors import CompileError

Words = npt.NDArray[np.int64]
_SLICE_NANOSECONDS = 20_000_000
"""Native code returns this often, so that Python can answer signals."""


def encode(program: Program, address_of: Callable[[Any], int]) -> Words:
    """The words of a program; `address_of` finds a kernel's code.

    Raises:
        CompileError: a step names a base or an instruction that the program does not have.
    """
    head = 2 + len(program.steps)  # most arguments, every step's first word, that of the end
    starts = [head]
    for step in program.steps:
        starts.append(starts[-1] + _length(step))
    _check(program)
    runs = [len(s.arguments) for s in program.steps if isinstance(s, Run)]
    words = [max(runs, default=0), *starts]
    for number, step in enumerate(program.steps):
        if isinstance(step, Run):
            words += [RUN, number, address_of(step.kernel), len(step.arguments)]
            words += [step.items, int(step.serial)]
            for argument in step.arguments:
                words += _pair(argument)
        elif isinstance(step, Jump):
            words += [JUMP, number, starts[step.target], *_pair(step.unless)]
        else:
            words += [HOST, number]
    return np.array([*words, END, -1], np.int64)


def _length(step: Step) -> int:
    if isinstance(step, Run):
        return RUN_WORDS + 2 * len(step.arguments)
    return JUMP_WORDS if isinstance(step, Jump) else HOST_WORDS


def _pair(argument: Address | int | None) -> tuple[int, int]:
    """Base and offset; -1 and the number itself where there is no base."""
    if isinstance(argument, Address):
        return argument.base, argument.offset
    return -1, argument or 0


def _check(program: Program) -> None:
    """What native code takes on trust."""
    for number, step in enumerate(program.steps):
        named = step.arguments if isinstance(step, Run) else ()
        if isinstance(step, Jump):
            named = () if step.unless is None else (step.unless,)
            if not 0 <= step.target <= len(program.steps):
                raise CompileError("cpu", f"step {number} jumps to {step.target}")
        for argument in named:
            if isinstance(argument, Address) and not 0 <= argument.base < program.bases:
                raise CompileError("cpu", f"step {number} uses base {argument.base}")


class NativeExecutable:
    """A program in native form. It keeps the code it runs loaded.

    See `treadle.backends.program.Executable`.
    """

    __slots__ = ("_bases", "_hosts", "_keep", "_program", "_run", "_steps", "_words")

    def __init__(self, program: Program, symbols: Mapping[Any, str], libraries: Sequence[Library]):
        addresses = {s: a for library in libraries for s, a in library.addresses.items()}
        self._words = encode(program, lambda kernel: addresses[symbols[kernel]])
        self._keep = tuple(libraries)
        self._program = self._words.ctypes.data
        self._run = runtime().run
        self._bases = program.bases
        self._steps = len(program.steps)
        self._hosts = any(isinstance(step, Host) for step in program.steps)

    def run(self, bases: Words, start_at: int = 0, /) -> int:
        if len(bases) < self._bases or not 0 <= start_at <= self._steps:
            raise self._misuse(bases, start_at)
        reached: int = self._run(PROCESS.address, self._program, bases, start_at)
        if reached == NO_POOL:
            reached = self._run(start(), self._program, bases, start_at)
        return reached

    def repeat(
        self, bases: Words, varying: Words, /, progress: npt.NDArray[np.int64] | None = None
    ) -> int:
        """Run once per row of `varying`; the number of turns made.

        A signal is answered between turns: what its handler raises leaves from here. Then
        `progress[0]`, always up to date, says how many turns were made.
        """
        rows, own = _dense(varying), _dense(bases).copy()
        if len(own) < self._bases or rows.ndim != 2 or rows.shape[1] > len(own) or self._hosts:
            raise self._misuse(bases, 0)
        turns, width = int(rows.shape[0]), int(rows.shape[1])
        done = np.zeros(1, np.int64) if progress is None else progress
        done[0] = 0
        native = runtime().repeat
        while done[0] < turns:
            native(
                PROCESS.address or start(),
                self._program,
                own.ctypes.data,
                rows.ctypes.data,
                width,
                turns,
                done.ctypes.data,
                _SLICE_NANOSECONDS,
            )
        return turns

    def profile(self, bases: Words, /) -> npt.NDArray[np.int64]:
        own = _dense(bases)
        if len(own) < self._bases:
            raise self._misuse(bases, 0)
        times = np.zeros((self._steps, 2), np.int64)
        address = PROCESS.address or start()
        runtime().profile(address, self._program, own.ctypes.data, times.ctypes.data)
        return times

    def _misuse(self, bases: Words, start_at: int) -> CompileError:
        return CompileError(
            "cpu",
            "a program is run on bases, or from a step, that do not fit it",
            saw=f"{np.shape(bases)} for {self._bases} bases; step {start_at} of {self._steps}",
        )


def _dense(array: Words) -> Words:
    return np.ascontiguousarray(array, np.int64)
