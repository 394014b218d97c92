"""Programs as the native executor reads them: encoding, and the `Executable`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.backends.cpu.layout import (
    END,
    FIRST,
    HOST,
    HOST_WORDS,
    JUMP,
    JUMP_WORDS,
    LAST,
    NO_POOL,
    PART,
    PART_WORDS,
    RUN,
    RUN_WORDS,
    TOGETHER,
)
from treadle.backends.cpu.native import runtime, toolchain
from treadle.backends.cpu.pool import PROCESS, start
from treadle.backends.cpu.toolchain import Library
from treadle.backends.program import Address, Host, Jump, Program, Run, Step, Together, runs_of
from treadle.base.errors import CompileError

Words = npt.NDArray[np.int64]
_SLICE_NANOSECONDS = 20_000_000
"""Native code returns this often, so that Python can answer signals."""


@dataclass(frozen=True)
class Encoded:
    """A program in words, apart from the addresses of its kernels.

    Attributes:
        words: what the executor reads; where a kernel's address belongs, its number.
        places: where that is.
        symbols: the kernels, by number.
        steps: how many there are.
        bases: how many base addresses a run takes.
        hosted: whether there are `Host` steps.
    """

    words: Words
    places: Words
    symbols: tuple[str, ...]
    steps: int
    bases: int
    hosted: bool

    def linked(self, libraries: Sequence[Library]) -> Words:
        """The words with every kernel's address in its place."""
        known = {s: a for library in libraries for s, a in library.addresses.items()}
        addresses = np.array([known[symbol] for symbol in self.symbols], np.int64)
        words = self.words.copy()
        words[self.places] = addresses[words[self.places]]
        return words


def encode(program: Program, symbol_of: Callable[[Any], str]) -> Encoded:
    """The words of a program; `symbol_of` names a kernel.

    Raises:
        CompileError: a step names a base or an instruction that the program does not have.
    """
    _check(program)
    starts = [2 + len(program.steps)]  # scratch words, every step's first word, that of the end
    for step in program.steps:
        starts.append(starts[-1] + _length(step))
    out = _Writer([max(map(_scratch, program.steps), default=0), *starts], symbol_of)
    for number, step in enumerate(program.steps):
        if isinstance(step, Run):
            out.run(RUN, number, step, int(step.serial), 0, FIRST | LAST)
        elif isinstance(step, Together):
            out.together(number, step)
        elif isinstance(step, Jump):
            out.words += [JUMP, number, starts[step.target], *_pair(step.unless)]
        else:
            out.words += [HOST, number]
    for kernel in program.beside:
        out.numbers.setdefault(symbol_of(kernel), len(out.numbers))
    return Encoded(
        np.array([*out.words, END, -1], np.int64),
        np.array(out.places, np.int64),
        tuple(out.numbers),
        len(program.steps),
        program.bases,
        any(isinstance(step, Host) for step in program.steps),
    )


@dataclass
class _Writer:
    """Words so far, where kernels are in them, and the numbers of kernels."""

    words: list[int]
    symbol_of: Callable[[Any], str]
    places: list[int] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def run(self, code: int, number: int, run: Run, how: int, room: int, last: int) -> None:
        """A RUN or a PART; see `layout.RUN` for the words that differ."""
        self.places.append(len(self.words) + 2)
        kernel = self.numbers.setdefault(self.symbol_of(run.kernel), len(self.numbers))
        self.words += [code, number, kernel, len(run.arguments), run.items, how, room, last]
        for argument in run.arguments:
            self.words += _pair(argument)

    def together(self, number: int, step: Together) -> None:
        """A merged launch; what one thread does alone needs no parts."""
        if step.serial:
            final = len(step.runs) - 1
            for i, run in enumerate(step.runs):
                self.run(RUN, number, run, 1, 0, FIRST * (i == 0) | LAST * (i == final))
            return
        units = room = 0
        for run, grain in zip(step.runs, step.grains, strict=True):
            units += -(-run.items // grain)
            room += PART_WORDS
            self.run(PART, number, run, grain, room, units)
            room += len(run.arguments)
        self.words += [TOGETHER, number, 0, 0, units, 0, 0, FIRST | LAST]


def _scratch(step: Step) -> int:
    """Words of scratch memory that a step needs."""
    head = PART_WORDS if isinstance(step, Together) else 0
    return sum(head + len(run.arguments) for run in runs_of((step,)))


def _length(step: Step) -> int:
    if isinstance(step, Run | Together):
        tail = RUN_WORDS if isinstance(step, Together) and not step.serial else 0
        return tail + sum(RUN_WORDS + 2 * len(run.arguments) for run in runs_of((step,)))
    return JUMP_WORDS if isinstance(step, Jump) else HOST_WORDS


def _pair(argument: Address | int | None) -> tuple[int, int]:
    """Base and offset; -1 and the number itself where there is no base."""
    if isinstance(argument, Address):
        return argument.base, argument.offset
    return -1, argument or 0


def _check(program: Program) -> None:
    """What native code takes on trust."""
    for number, step in enumerate(program.steps):
        named = [a for run in runs_of((step,)) for a in run.arguments]
        if isinstance(step, Jump):
            named = [] if step.unless is None else [step.unless]
            if not 0 <= step.target <= len(program.steps):
                raise CompileError("cpu", f"step {number} jumps to {step.target}")
        for argument in named:
            if isinstance(argument, Address) and not 0 <= argument.base < program.bases:
                raise CompileError("cpu", f"step {number} uses base {argument.base}")


class NativeExecutable:
    """A program in native form. It keeps the code it runs loaded.

    See `treadle.backends.program.Executable`; `address` is that of its words.
    """

    __slots__ = ("_bases", "_encoded", "_keep", "_run", "_steps", "_words", "address")

    def __init__(self, encoded: Encoded, libraries: Sequence[Library]) -> None:
        self._encoded = encoded
        self._words = encoded.linked(libraries)
        self._keep = tuple(libraries)
        self.address = self._words.ctypes.data
        self._run = runtime().run
        self._bases = encoded.bases
        self._steps = encoded.steps

    def run(self, bases: Words, start_at: int = 0, /) -> int:
        if len(bases) < self._bases or not 0 <= start_at <= self._steps:
            raise self._misuse(bases, start_at)
        reached: int = self._run(PROCESS.address, self.address, bases, start_at)
        if reached == NO_POOL:
            reached = self._run(start(), self.address, bases, start_at)
        return reached

    def repeat(
        self, bases: Words, varying: Words, /, progress: npt.NDArray[np.int64] | None = None
    ) -> int:
        """Run once per row of `varying`; the number of turns made.

        A signal is answered between turns: what its handler raises leaves from here. Then
        `progress[0]`, always up to date, says how many turns were made.
        """
        rows, own = _dense(varying), _dense(bases).copy()
        if (
            len(own) < self._bases
            or rows.ndim != 2
            or rows.shape[1] > len(own)
            or self._encoded.hosted
        ):
            raise self._misuse(bases, 0)
        turns, width = int(rows.shape[0]), int(rows.shape[1])
        done = np.zeros(1, np.int64) if progress is None else progress
        done[0] = 0
        native = runtime().repeat
        while done[0] < turns:
            native(
                PROCESS.address or start(),
                self.address,
                own.ctypes.data,
                rows.ctypes.data,
                width,
                turns,
                done.ctypes.data,
                _SLICE_NANOSECONDS,
            )
        return turns

    def profile(self, bases: Words, times: Words, start_at: int = 0, /) -> int:
        own = _dense(bases)
        fits = times.shape == (self._steps, 4) and times.dtype == np.int64
        if not fits or not times.flags.carray:
            raise CompileError(
                "cpu",
                f"the times of {self._steps} steps need dense int64 memory of as many rows of 4",
                saw=f"{times.dtype} {times.shape}",
            )
        if len(own) < self._bases or not 0 <= start_at <= self._steps:
            raise self._misuse(bases, start_at)
        address = PROCESS.address or start()
        reached: int = runtime().profile(
            address, self.address, own.ctypes.data, start_at, times.ctypes.data
        )
        return reached

    def stored(self) -> bytes:
        """The program as bytes, from which `restored` makes it again without its kernels."""
        encoded = self._encoded
        head = {
            "code": toolchain().fingerprint,
            "symbols": encoded.symbols,
            "steps": encoded.steps,
            "bases": encoded.bases,
            "hosted": encoded.hosted,
            "places": len(encoded.places),
        }
        text = json.dumps(head).encode() + b"\n"
        return text + encoded.places.tobytes() + encoded.words.tobytes()

    def _misuse(self, bases: Words, start_at: int) -> CompileError:
        return CompileError(
            "cpu",
            "a program is run on bases, or from a step, that do not fit it",
            saw=f"{np.shape(bases)} for {self._bases} bases; step {start_at} of {self._steps}",
        )


def _dense(array: Words) -> Words:
    return np.ascontiguousarray(array, np.int64)


def restored(data: bytes) -> NativeExecutable | None:
    """What `stored` wrote; None where that was for other code, or the cache no longer has it.

    The bytes must come from this user's cache: they are run, not checked.
    """
    text, _, rest = data.partition(b"\n")
    head = json.loads(text)
    if head["code"] != toolchain().fingerprint:
        return None
    libraries = toolchain().fetch(head["symbols"])
    if libraries is None:
        return None
    numbers = np.frombuffer(rest, np.int64)
    places, words = numbers[: head["places"]], numbers[head["places"] :]
    symbols, steps = tuple(head["symbols"]), head["steps"]
    encoded = Encoded(words, places, symbols, steps, head["bases"], head["hosted"])
    return NativeExecutable(encoded, libraries)
