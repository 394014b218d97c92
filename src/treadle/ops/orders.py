"""Orders of axes, in which layouts of memory ask ops for another form (`Op.permuted`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
Order = tuple[int, ...]
"""Axes in the order in which memory has them."""
Orders = Callable[[int], Order]
"""The order of the axes of a value, by their number."""


def inverse(order: Order) -> Order:
    """Return where in memory each axis is; as a transpose, what undoes one by `order`."""
    return tuple(order.index(axis) for axis in range(len(order)))


def placed(entries: Sequence[T], order: Order) -> tuple[T, ...]:
    """Return what has an entry for each axis, in memory's order."""
    return tuple(entries[axis] for axis in order)
