"""Memory of a program for many extents, laid out at each of them.

Of buffers that are needed at the same time one lies below the other (`ordering.py`); at any sizes a
buffer then lies where the highest of those below it ends. That is safe at all sizes, and at those
that an order was made for it takes no more than a plan for them does. At others it may take more,
so a program has several orders, and takes the one that ends lowest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeAlias

from treadle.base.arithmetic import DONE, Rows, Words
from treadle.engine.extents import late
from treadle.engine.scheme import Registers

MOST_PLACEMENTS = 6
"""Orders of buffers that a program keeps."""
_LOOSE, _SLACK = 1.1, 1 << 20
"""An arena of more than so many times the bytes needed at one step, and so many more, is reason for
another order."""

Run: TypeAlias = Callable[[Words], int]
Evaluator: TypeAlias = Callable[[Rows], Run]


class Placements:
    """Orders of the buffers of one arena, as code; the one that ends lowest is taken.

    Args:
        at: registers of the code.
        lives: first and last step of each buffer.
        evaluator: makes code a function.
        most: orders that there may be; further ones are made where those at hand are wide.
    """

    def __init__(
        self,
        at: Registers,
        lives: Sequence[tuple[int, int]],
        evaluator: Evaluator,
        most: int = MOST_PLACEMENTS,
    ) -> None:
        self._at = at
        self._lives = lives
        self._evaluator = evaluator
        self._most_orders = most
        self._runs: tuple[Run, ...] = ()
        self._adding = threading.Lock()
        self.rows: tuple[Rows, ...] = ()

    def add(self, rows: Rows) -> None:
        """One more order, if it is another one."""
        if all(rows.tobytes() != known.tobytes() for known in self.rows):
            self.rows += (rows,)
            self._runs += (self._evaluator(rows),)

    def suit(self, registers: Words) -> None:
        """One more order, which suits the sizes that registers hold."""
        self.add(late.placed(self._at, self._lives, registers))

    def place(self, registers: Words) -> int:
        """Put offsets into registers that hold sizes, and return the bytes of the arena."""
        peak = self._best(registers)
        most = registers.item(self._at.bound) * _LOOSE + _SLACK
        if peak > most and len(self.rows) < self._most_orders:
            with self._adding:
                self.suit(registers)
            peak = self._best(registers)
        return peak

    def _best(self, registers: Words) -> int:
        at, best, run = self._at.peak, None, None
        for run in self._runs:
            if run(registers) != DONE:
                raise OverflowError
            peak = registers.item(at)
            if best is None or peak < best[0]:
                best = peak, run
        if best is None:
            return registers.item(self._at.least)
        if best[1] is not run:
            best[1](registers)
        return best[0]
