"""Weighted means of quantities over batches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Logs = dict[str, float]


class Means:
    """Sums of values times weights.

    Attributes:
        weight: the sum of the weights.
        last: the values that were added last.
    """

    def __init__(self) -> None:
        self.weight = 0
        self.last: Logs = {}
        self._sums: Logs = {}

    def add(self, values: Mapping[str, float], weight: int) -> None:
        """Take in the values of a batch."""
        self.weight += weight
        self.last = dict(values)
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * weight

    def all(self) -> Logs:
        """The mean of each."""
        return {name: total / self.weight for name, total in self._sums.items()}

    def state(self) -> dict[str, Any]:
        """Return the state from which `of` makes an equal object."""
        return {"weight": self.weight, "last": self.last, "sums": self._sums}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Means:
        """The object of a `state`."""
        means = cls()
        means.weight = int(state["weight"])
        means.last, means._sums = dict(state["last"]), dict(state["sums"])
        return means
