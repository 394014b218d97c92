"""Recipes of arrays, of which samples of ops are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.dtype import DType


@dataclass(frozen=True, slots=True)
class Arg:
    """Recipe of one input array.

    Attributes:
        shape: extents.
        dtype: element type; None means the type under test (the op's element type).
        low, high: values are uniform in [low, high); integers are drawn from the same range.
        avoid: points (kinks, poles) that no value comes closer to than 0.1.
        distinct: all values differ by at least 0.05, for maxima and sorting.
        values: exact contents as nested tuples, instead of random ones.
    """

    shape: tuple[int, ...] = ()
    dtype: DType | None = None
    low: float = -2.0
    high: float = 2.0
    avoid: tuple[float, ...] = ()
    distinct: bool = False
    values: Any = None

    def make(self, dtype: DType, rng: np.random.Generator) -> Array:
        """The array, of this argument's own type or else of `dtype`."""
        kind = self.dtype or dtype
        if self.values is not None:
            return np.asarray(self.values).astype(kind.numpy)
        if kind.kind == "bool":
            return rng.random(self.shape) < 0.5
        if kind.kind == "complex":
            both = rng.uniform(self.low, self.high, (2, *self.shape))
            return np.asarray(both[0] + 1j * both[1]).astype(kind.numpy)
        if kind.is_integer:
            return self._integers(kind, rng)
        return np.asarray(self._reals(rng)).astype(kind.numpy)

    def _integers(self, kind: DType, rng: np.random.Generator) -> Array:
        low = max(int(np.ceil(self.low)), 0 if kind.kind == "uint" else int(np.ceil(self.low)))
        high = max(int(np.ceil(self.high)), low + 1)
        if self.distinct:
            size = int(np.prod(self.shape))
            return (rng.permutation(size) + low).reshape(self.shape).astype(kind.numpy)
        drawn = rng.integers(low, high, self.shape)
        for point in self.avoid:
            drawn = np.where(drawn == point, drawn + 1, drawn)
        return np.asarray(drawn).astype(kind.numpy)

    def _reals(self, rng: np.random.Generator) -> Array:
        if self.distinct:
            size = int(np.prod(self.shape))
            steps = np.linspace(self.low, self.high, size) if size else np.zeros(0)
            return np.asarray(rng.permutation(steps).reshape(self.shape))
        drawn = np.asarray(rng.uniform(self.low, self.high, self.shape))
        for point in self.avoid:
            near = np.abs(drawn - point) < 0.1
            drawn = np.where(near, point + np.where(drawn >= point, 0.2, -0.2), drawn)
        return drawn
