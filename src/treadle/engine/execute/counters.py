"""Counters of a program's runs, and of how often Python had to do with them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class Counters:
    """Cost of a program's runs at its border. Subtract to look at a part of them.

    Attributes:
        iterations: runs of the whole program; many per call in sink mode.
        entries: calls of native code, and so returns to Python: one per call, and one more for
            every op that is left to the host.
        transfers: arrays that changed hands: inputs whose addresses Python gave, and results it
            took. Inputs that are the same as in the last run are not given again.
        launches: kernels started; those of branches and loops count once each, taken or not.
        copies, copied: values that went from one device to another, and their bytes.
        phases: programs that ran one after the other, where data decide extents between them.
    """

    iterations: int = 0
    entries: int = 0
    transfers: int = 0
    launches: int = 0
    copies: int = 0
    copied: int = 0
    phases: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.iterations + other.iterations,
            self.entries + other.entries,
            self.transfers + other.transfers,
            self.launches + other.launches,
            self.copies + other.copies,
            self.copied + other.copied,
            self.phases + other.phases,
        )

    def __sub__(self, other: Counters) -> Counters:
        return Counters(
            self.iterations - other.iterations,
            self.entries - other.entries,
            self.transfers - other.transfers,
            self.launches - other.launches,
            self.copies - other.copies,
            self.copied - other.copied,
            self.phases - other.phases,
        )

    def __str__(self) -> str:
        runs = max(self.iterations, 1)
        text = (
            f"{self.iterations} iterations; per iteration {self.entries / runs:.4g} entries, "
            f"{self.transfers / runs:.4g} transfers, {self.launches / runs:.4g} launches"
        )
        if self.phases:
            text += f", {self.phases / runs:.4g} phases"
        if not self.copies:
            return text
        return f"{text}, {self.copies / runs:.4g} copies of {self.copied / runs:.4g} bytes"


class Tally:
    """Counts of the runs of one frame; only one thread at a time adds to it."""

    __slots__ = ("entries", "iterations", "transfers")

    def __init__(self) -> None:
        self.iterations = 0
        self.entries = 0
        self.transfers = 0


class NativeTally:
    """Counts of runs that native code makes without the executor.

    Args:
        transfers: inputs and results of a run.

    Attributes:
        runs: a word, which native code adds to.
    """

    def __init__(self, transfers: int) -> None:
        self.runs = np.zeros(1, np.int64)
        self._transfers = transfers

    @property
    def iterations(self) -> int:
        """Runs of the program."""
        return int(self.runs[0])

    @property
    def entries(self) -> int:
        """Calls of native code."""
        return self.iterations

    @property
    def transfers(self) -> int:
        """Addresses that were given."""
        return self.iterations * self._transfers


def total(tallies: Iterable[Tally | NativeTally], launches: int) -> Counters:
    """The sum of all frames of a program that starts so many kernels per run."""
    made = Counters()
    for t in tallies:
        made += Counters(t.iterations, t.entries, t.transfers, t.iterations * launches)
    return made
