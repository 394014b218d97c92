"""Programs into the words that the native executor reads; `layout.py` says what each is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from treadle.backends.cpu.executable import Encoded
from treadle.backends.cpu.layout import (
    END,
    FIRST,
    HOST,
    HOST_WORDS,
    JUMP,
    JUMP_WORDS,
    LAST,
    OPEN_END,
    OPEN_ITEMS,
    PART,
    PART_WORDS,
    RUN,
    RUN_WORDS,
    SUMS,
    SUMS_WORDS,
    TOGETHER,
)
from treadle.backends.program import Address, Jump, Program, Run, Step, Together, runs_of
from treadle.base.errors import CompileError
from treadle.base.symbol import Dim


def encode(program: Program, symbol_of: Callable[[Any], str]) -> Encoded:
    """The words of a program; `symbol_of` names a kernel.

    Raises:
        CompileError: a step names a base or an instruction that the program does not have.
    """
    _check(program)
    starts = [2 + len(program.steps)]  # scratch words, every step's first word, that of the end
    before = SUMS_WORDS + 3 * len(program.sums) if program.sums else 0
    for step in program.steps:
        starts.append(starts[-1] + before + _length(step))
        before = 0
    out = _WordWriter([max(map(_scratch, program.steps), default=0), *starts], symbol_of)
    if program.sums:  # A part of the first step.
        out.words += [SUMS, 0, len(program.sums), *(base for sum_ in program.sums for base in sum_)]
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
    )


@dataclass
class _WordWriter:
    """Words so far, where kernels are in them, and the numbers of kernels."""

    words: list[int]
    symbol_of: Callable[[Any], str]
    places: list[int] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)

    def run(self, code: int, number: int, run: Run, how: int, room: int, last: int) -> None:
        """A RUN or a PART; see `layout.RUN` for the words that differ."""
        self.places.append(len(self.words) + 2)
        kernel = self.numbers.setdefault(self.symbol_of(run.kernel), len(self.numbers))
        items = run.counted
        if items < 0:
            items = int(run.items)
        else:
            code |= OPEN_ITEMS
        self.words += [code, number, kernel, len(run.arguments), items, how, room, last]
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
        for i, (run, grain) in enumerate(zip(step.runs, step.grains, strict=True)):
            units = step.ends[i] if step.ends else units - (-int(run.items) // grain)
            room += PART_WORDS
            self.run(PART | OPEN_END * bool(step.ends), number, run, grain, room, units)
            room += len(run.arguments)
        code = TOGETHER | OPEN_ITEMS * bool(step.ends)
        self.words += [code, number, 0, 0, units, 0, 0, FIRST | LAST]


def _scratch(step: Step) -> int:
    """Words of scratch memory that a step needs."""
    head = PART_WORDS if isinstance(step, Together) else 0
    return sum(head + len(run.arguments) for run in runs_of((step,)))


def _length(step: Step) -> int:
    if isinstance(step, Run | Together):
        tail = RUN_WORDS if isinstance(step, Together) and not step.serial else 0
        return tail + sum(RUN_WORDS + 2 * len(run.arguments) for run in runs_of((step,)))
    return JUMP_WORDS if isinstance(step, Jump) else HOST_WORDS


def _pair(argument: Address | Dim | None) -> tuple[int, int]:
    """Base and offset; -1 and the number itself where there is no base."""
    if isinstance(argument, Address):
        return argument.base, int(argument.offset)
    return -1, int(argument or 0)


def _check(program: Program) -> None:
    """Check what native code takes on trust."""
    if not all(0 <= base < program.bases for sum_ in program.sums for base in sum_):
        raise CompileError("cpu", "a sum is of bases that the program does not have")
    for number, step in enumerate(program.steps):
        runs = list(runs_of((step,)))
        named = [a.base for run in runs for a in run.arguments if isinstance(a, Address)]
        named += [run.counted for run in runs if run.counted >= 0]
        if isinstance(step, Together):
            named += step.ends
        elif isinstance(step, Jump):
            named = [] if step.unless is None else [step.unless.base]
            if not 0 <= step.target <= len(program.steps):
                raise CompileError("cpu", f"step {number} jumps to {step.target}")
        for base in named:
            if not 0 <= base < program.bases:
                raise CompileError("cpu", f"step {number} uses base {base}")
