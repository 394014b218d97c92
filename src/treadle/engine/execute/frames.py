"""Memory of one run of a program: the table of base addresses, and scratch memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.backends.native_code import Executable
from treadle.backends.program import Address
from treadle.base.array import Array
from treadle.base.types import TensorType
from treadle.engine.execute.arenas import Arena
from treadle.engine.execute.counters import Tally
from treadle.engine.execute.reductions import Reductions
from treadle.engine.plan import HostTask, Loaded
from treadle.runtime.host import HostBuffer, address

Split = tuple[list[tuple[Address, TensorType]], list[tuple[Address, TensorType]]]
"""Operands of a segment: those that are not frozen, and those that are."""


class At:
    """A program for many extents at certain ones: its numbers.

    Args:
        extents: in the order of the program's symbols.
        numbers: entries of its table.
        peak: bytes of scratch memory.
        results: extents and element types of the results.
    """

    __slots__ = ("extents", "launches", "numbers", "peak", "results", "splits", "tasks")

    def __init__(
        self,
        extents: tuple[int, ...],
        numbers: npt.NDArray[np.int64],
        peak: int,
        results: list[tuple[tuple[int, ...], Any]],
    ) -> None:
        self.extents = extents
        self.numbers = numbers
        self.peak = peak
        self.results = results
        self.tasks: dict[int, HostTask] = {}
        self.launches: dict[int, Any] = {}
        self.splits: dict[int, Split] = {}
        """Host tasks at these extents, what runs them, and operands of segments, as far as they
        were met."""


class Frame:
    """Addresses and scratch memory of one run at a time.

    An arena that programs share is there while one of them runs.
    """

    __slots__ = (
        "arena", "at", "bases", "kept", "last", "place", "reductions", "tally", "version", "views"
    )  # fmt: skip

    def __init__(self, loaded: Loaded[Executable], tally: Tally, arena: Arena | None) -> None:
        self.tally = tally
        plan = loaded.plan
        self.arena = arena
        self.at: At | None = None
        """The instance whose numbers are in the table."""
        self.kept: HostBuffer = loaded.kept
        self.bases = np.zeros(plan.bases + plan.slots, np.int64)
        self.last = plan.bases - 1
        """The place of the arena's address; those of constants and kept memory are before it."""
        self.bases[self.last - 2 : self.last] = [
            address(b.bytes) for b in (loaded.constants, loaded.kept)
        ]
        self.place = 0 if arena is None else arena.address
        """The address of an arena that is in the table."""
        self.bases[self.last] = self.place
        self.version: object = None
        """Names the inputs whose addresses are in the table; None where they must be written."""
        self.views: dict[tuple[Address, TensorType], Array] = {}
        """Arrays over the arena and constants that were handed to host tasks."""
        self.reductions = Reductions()

    def turn_to(self, at: At) -> None:
        """Write the numbers of certain extents into the table."""
        first = self.last + 1
        self.bases[first : first + len(at.numbers)] = at.numbers
        self.at = at
        self.views.clear()

    def lend(self, arena: Arena) -> None:
        """Give the next run scratch memory that others have in turn."""
        if arena.address != self.place:
            self.bases[self.last] = self.place = arena.address
        self.arena = arena

    def returned(self, arena: Arena) -> Arena:
        """Return what was lent, of which nothing stays here."""
        self.arena = None
        self.views.clear()
        return arena
