"""Arithmetic on inclusive bounds of integers.

A bound is an int, which is exact at any size, or an infinity. Results contain every value that
operands within their bounds can give.
"""

from __future__ import annotations

import math
from typing import TypeAlias

Interval: TypeAlias = tuple[float, float]


def total(x: Interval, y: Interval) -> Interval:
    """Bounds of x + y."""
    return _plus(x[0], y[0]), _plus(x[1], y[1])


def product(x: Interval, y: Interval) -> Interval:
    """Bounds of x * y."""
    corners = [_times(a, b) for a in x for b in y]
    return min(corners), max(corners)


def floordiv(x: Interval, y: Interval) -> Interval:
    """Bounds of x // y; none where y may not be positive."""
    if y[0] <= 0:
        return -math.inf, math.inf
    # Monotonic in each operand, so the extremes lie at the corners.
    corners = [_floor_divide(a, b) for a in x for b in y]
    return min(corners), max(corners)


def mod(x: Interval, y: Interval) -> Interval:
    """Bounds of x % y; none where y may not be positive."""
    if y[0] <= 0:
        return -math.inf, math.inf
    most = y[1] if _is_infinite(y[1]) else y[1] - 1
    return 0, min(most, x[1]) if x[0] >= 0 else most


def minimum(x: Interval, y: Interval) -> Interval:
    """Bounds of min(x, y)."""
    return min(x[0], y[0]), min(x[1], y[1])


def maximum(x: Interval, y: Interval) -> Interval:
    """Bounds of max(x, y)."""
    return max(x[0], y[0]), max(x[1], y[1])


def _is_infinite(x: float) -> bool:
    # Not math.isinf, which refuses ints beyond the range of floats.
    return x in (math.inf, -math.inf)


def _plus(x: float, y: float) -> float:
    return x if _is_infinite(x) else y if _is_infinite(y) else x + y


def _times(x: float, y: float) -> float:
    if x == 0 or y == 0:
        return 0
    if _is_infinite(x) or _is_infinite(y):
        return math.inf if (x > 0) == (y > 0) else -math.inf
    return x * y


def _floor_divide(x: float, y: float) -> float:
    """x // y for positive y."""
    if _is_infinite(x):
        return x
    return (0 if x >= 0 else -1) if _is_infinite(y) else x // y


FUNCTIONS = {"floordiv": floordiv, "mod": mod, "min": minimum, "max": maximum}
"""Bounds of functions of two extents, by name."""
