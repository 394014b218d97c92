"""Extents that are unknown: names with ranges, of which expressions are made (`base.symbol`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from treadle.base.errors import ShapeError
from treadle.base.interval import Interval


@dataclass(frozen=True, slots=True)
class Symbol:
    """An unknown extent with inclusive bounds (`high` None: unbounded) and a known divisor.

    `edges` are extents at which programs for ranges begin, where the user says so, and `hint` is
    the one at which prices are taken in its range.
    """

    name: str
    low: int = 1
    high: int | None = None
    multiple: int = 1
    edges: tuple[int, ...] = ()
    hint: int | None = None

    def __post_init__(self) -> None:
        low, high, edges = self.low, self.high, self.edges
        if self.multiple < 1 or self.bounds[0] > self.bounds[1]:
            raise ShapeError(
                "symbol",
                f"the extent {self.name} can have no value",
                saw=f"low={low}, high={high}, multiple={self.multiple}",
                hint="low and high are inclusive; multiple is 1 or more",
            )
        told = edges if self.hint is None else (*edges, self.hint)
        last = math.inf if high is None else high
        if list(edges) != sorted(set(edges)) or not all(low <= n <= last for n in told):
            raise ShapeError(
                "symbol",
                f"the edges or the hint of the extent {self.name} do not fit its range",
                saw=f"low={low}, high={high}, edges={edges}, hint={self.hint}",
                hint="edges rise, and lie in the range, as does the hint",
            )

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        # With the range: caches would compare extents of two cells, which asks the call.
        return hash((self.name, self.low, self.high))

    @property
    def order(self) -> tuple[Any, ...]:
        """Position of the atom in a product; total, and the same in every process."""
        high, hint = (-1 if n is None else n for n in (self.high, self.hint))
        return 0, self.name, self.low, high, self.multiple, self.edges, hint

    @property
    def bounds(self) -> Interval:
        """The smallest and the largest multiple in the range."""
        low = -(-self.low // self.multiple) * self.multiple
        high = math.inf if self.high is None else self.high // self.multiple * self.multiple
        return low, high

    @property
    def divisor(self) -> int:
        """A number that is known to divide the extent."""
        return self.multiple
