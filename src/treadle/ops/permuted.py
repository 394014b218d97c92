"""Ops on operands whose axes lie in another order, which layouts of memory ask of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from treadle.ops.op import Op

T = TypeVar("T")
Order = tuple[int, ...]
"""Axes in the order in which memory has them."""
Orders = Callable[[int], Order]
"""The order of the axes of a value, by their number."""


@dataclass(frozen=True, slots=True)
class Permuted:
    """An op that computes the same on permuted operands.

    Attributes:
        op: the op to apply.
        operands: for each operand, as how many axes it is to be permuted; 0 leaves it as it is.
        held: whether the axes of the result are permuted; if not, the result is the same.
    """

    op: Op
    operands: tuple[int, ...]
    held: bool = True


def inverse(order: Order) -> Order:
    """Return where in memory each axis is; as a transpose, what undoes one by `order`."""
    return tuple(order.index(axis) for axis in range(len(order)))


def placed(entries: Sequence[T], order: Order) -> tuple[T, ...]:
    """Return what has an entry for each axis, in memory's order."""
    return tuple(entries[axis] for axis in order)
