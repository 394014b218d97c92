"""The exponential distribution."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from treadle.distributions.distribution import Distribution
from treadle.functional.elemwise import expm1, log, log1p, square
from treadle.random import exponential
from treadle.tensor import Tensor

T = TypeVar("T", bound="Exponential")


class Exponential(Distribution):
    """Waiting times of events that come at a rate: density rate exp(-rate x) for x >= 0.

    Args:
        rate: events per unit of time, a positive number, an array or a tensor; gradients flow to
            a tensor.

    Raises:
        TypeError: the rate is neither.
    """

    def __init__(self, rate: float | np.ndarray[Any, Any] | Tensor) -> None:
        if not isinstance(rate, (int, float, np.ndarray, np.generic, Tensor)):
            raise TypeError(f"rate must be numbers or a tensor, got {type(rate).__name__}")
        self.rate = rate if isinstance(rate, Tensor) else Tensor(rate, dtype="float32")
        super().__init__(self.rate.shape)

    def expand(self: T, batch_shape: tuple[int, ...]) -> T:
        """The same rates, broadcast to a larger batch."""
        made = super().expand(batch_shape)
        made.rate = self.rate.broadcast_to(tuple(batch_shape))
        return made

    @property
    def mean(self) -> Tensor:
        """1 / rate."""
        return 1 / self.rate

    @property
    def variance(self) -> Tensor:
        """1 / rate^2."""
        return square(1 / self.rate)

    @property
    def stddev(self) -> Tensor:
        """1 / rate."""
        return 1 / self.rate

    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draws of shape (*sample_shape, *batch_shape), float32, without a gradient."""
        shape = tuple(sample_shape)
        drawn = exponential(self.rate, shape)
        return drawn.reshape((*shape, *self.batch_shape))

    def log_prob(self, value: Tensor) -> Tensor:
        """log(rate) - rate value."""
        return log(self.rate) - self.rate * value

    def cdf(self, value: Tensor) -> Tensor:
        """1 - exp(-rate value)."""
        return -expm1(-self.rate * value)

    def icdf(self, value: Tensor) -> Tensor:
        """-log(1 - value) / rate."""
        return -log1p(-value) / self.rate
