"""Speeds of engines: the modelled side of every comparison with measured times."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.backends.segments import Rates

__all__ = ["RATES", "Rates"]

RATES: Mapping[str, Rates] = {
    "reference": Rates(40e9, 4e9, 5e-6),
    "cpu": Rates(100e9, 16e9, 1e-6),
}
"""By engine name: those of a desktop processor. They decide between choices an order of magnitude
apart, and need be no better than that."""
