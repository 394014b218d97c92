"""The base of probability distributions."""

from __future__ import annotations

import copy
from typing import TypeVar

from treadle.functional.elemwise import sqrt
from treadle.tensor import Tensor

T = TypeVar("T", bound="Distribution")


class Distribution:
    """A probability distribution, or a batch of them with parameters of its own for each.

    Args:
        batch_shape: shape of the batch.
        event_shape: shape of one draw from one distribution.
    """

    def __init__(
        self, batch_shape: tuple[int, ...] = (), event_shape: tuple[int, ...] = ()
    ) -> None:
        self._batch_shape = tuple(batch_shape)
        self._event_shape = tuple(event_shape)

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch of distributions."""
        return self._batch_shape

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one draw from one distribution."""
        return self._event_shape

    def expand(self: T, batch_shape: tuple[int, ...]) -> T:
        """The same distributions, broadcast to a larger batch.

        Raises:
            ShapeError: the batch does not broadcast to that shape.
        """
        made = copy.copy(self)
        made._batch_shape = tuple(batch_shape)
        return made

    @property
    def mean(self) -> Tensor:
        """The mean of each distribution."""
        raise NotImplementedError(f"{type(self).__name__} has no mean")

    @property
    def variance(self) -> Tensor:
        """The variance of each distribution."""
        raise NotImplementedError(f"{type(self).__name__} has no variance")

    @property
    def stddev(self) -> Tensor:
        """The standard deviation of each distribution."""
        return sqrt(self.variance)

    def sample(self, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """Draws of shape (*sample_shape, *batch_shape, *event_shape), without a gradient."""
        raise NotImplementedError(f"{type(self).__name__} cannot be sampled")

    def log_prob(self, value: Tensor) -> Tensor:
        """The logarithm of the density at `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no density")

    def cdf(self, value: Tensor) -> Tensor:
        """The probability of a draw that is not above `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no distribution function")

    def icdf(self, value: Tensor) -> Tensor:
        """The value that a draw does not exceed with probability `value`."""
        raise NotImplementedError(f"{type(self).__name__} has no quantiles")

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_shape={self.batch_shape})"
