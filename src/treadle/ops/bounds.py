"""Ranges of integers, in which ops state what their results lie between (`Op.bounds`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

from treadle.base.symbol import Dim, maximum, minimum

Range = tuple[Dim, Dim]
"""The least of some integers, and the first one beyond the greatest."""
Ranges = Sequence[Range]


def least(numbers: Iterable[Dim]) -> Dim:
    """Return the smallest of numbers and expressions."""
    return reduce(minimum, numbers)


def greatest(numbers: Iterable[Dim]) -> Dim:
    """Return the largest of numbers and expressions."""
    return reduce(maximum, numbers)


def hull(ranges: Ranges) -> Range:
    """Return the range of all that lies in one of some ranges."""
    return least(low for low, _ in ranges), greatest(beyond for _, beyond in ranges)
