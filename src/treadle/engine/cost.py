"""Speeds of engines: the modelled side of every comparison with measured times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of an engine: operations and bytes per second, and seconds per op and per segment."""

    flops: float
    bandwidth: float
    launch: float
    segment: float = 0.0

    def seconds(self, flops: int, nbytes: int) -> float:
        """Modelled time of one launch: what limits it, arithmetic or memory, and its start."""
        return self.launch + max(flops / self.flops, nbytes / self.bandwidth)


RATES: Mapping[str, Rates] = {
    "reference": Rates(40e9, 4e9, 5e-6),
    "cpu": Rates(100e9, 16e9, 1e-6),
}
"""By engine name: those of a desktop processor. They decide between choices an order of magnitude
apart, and need be no better than that."""
