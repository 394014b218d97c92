"""Programs as the native executor reads them, run: the `Executable`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.backends.cpu.layout import NO_POOL
from treadle.backends.cpu.native import core, toolchain
from treadle.backends.cpu.pool import PROCESS, start
from treadle.backends.cpu.toolchain import LoadedCode
from treadle.base.arithmetic import Rows
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
    """

    words: Words
    places: Words
    symbols: tuple[str, ...]
    steps: int
    bases: int

    def linked(self, libraries: Sequence[LoadedCode]) -> Words:
        """The words with every kernel's address in its place."""
        known = {s: a for library in libraries for s, a in library.addresses.items()}
        addresses = np.array([known[symbol] for symbol in self.symbols], np.int64)
        words = self.words.copy()
        words[self.places] = addresses[words[self.places]]
        return words


class NativeExecutable:
    """A program in native form. It keeps the code it runs loaded.

    See `treadle.backends.native_code.Executable`; `address` is that of its words.
    """

    __slots__ = ("_bases", "_call", "_encoded", "_keep", "_run", "_steps", "_words", "address")

    def __init__(self, encoded: Encoded, libraries: Sequence[LoadedCode]) -> None:
        self._encoded = encoded
        self._words = encoded.linked(libraries)
        self._keep = tuple(libraries)
        self.address = self._words.ctypes.data
        self._run, self._call = core().run, core().call
        self._bases = encoded.bases
        self._steps = encoded.steps

    def run(self, bases: Words, start_at: int = 0, /) -> int:
        if len(bases) < self._bases or not 0 <= start_at <= self._steps:
            raise self._misuse(bases, start_at)
        reached: int = self._run(PROCESS.address, self.address, bases, start_at)
        if reached == NO_POOL:
            reached = self._run(start(), self.address, bases, start_at)
        return reached

    def call(
        self, bases: Words, arrays: tuple[Any, ...], given: int, at: int, watch: Words, /
    ) -> int:
        reached: int = self._call(
            PROCESS.address or start(), self.address, bases, arrays, given, at, watch
        )
        return reached

    def repeat(
        self, bases: Words, varying: Words, /, progress: npt.NDArray[np.int64] | None = None
    ) -> tuple[int, int]:
        """Run once per row of `varying`; turns made, and the `Host` step reached, or -1.

        A signal is answered between turns: what its handler raises leaves from here. Then
        `progress[0]`, always up to date, says how many turns were made.
        """
        rows, own = _dense(varying), _dense(bases).copy()
        if len(own) < self._bases or rows.ndim != 2 or rows.shape[1] > len(own):
            raise self._misuse(bases, 0)
        turns, width = int(rows.shape[0]), int(rows.shape[1])
        done = np.zeros(1, np.int64) if progress is None else progress
        done[0] = 0
        native = core().repeat
        reached = -1
        while done[0] < turns and reached < 0:
            reached = native(
                PROCESS.address or start(),
                self.address,
                own.ctypes.data,
                rows.ctypes.data,
                width,
                turns,
                done.ctypes.data,
                _SLICE_NANOSECONDS,
            )
        return int(done[0]), reached

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
        reached: int = core().profile(
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


def evaluator(rows: Rows) -> Callable[[Words], int]:
    """Code as a function of registers; see `base.arithmetic.evaluate`."""
    evaluate, count, address = core().evaluate, len(rows), rows.__array_interface__["data"][0]
    last: tuple[Words | None, int] = None, 0

    def run(registers: Words, _keep: Rows = rows) -> int:
        nonlocal last
        known, at = last
        if known is not registers:  # Callers use theirs again, and asking takes longer than a run.
            at = registers.__array_interface__["data"][0]
            last = registers, at
        found: int = evaluate(address, count, at)
        return found

    return run


def _dense(array: Words) -> Words:
    return np.ascontiguousarray(array, np.int64)


def restored(data: bytes) -> NativeExecutable | None:
    """Make the executable that `stored` wrote; None where that was for other code, or the cache no
    longer has it.

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
    encoded = Encoded(words, places, symbols, steps, head["bases"])
    return NativeExecutable(encoded, libraries)
