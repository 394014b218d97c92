"""Estimates of extents that do not ask the call, so that nothing becomes a guard."""

from __future__ import annotations

import math

from treadle.base.symbol import DECISIONS, Dim, Expr, bounds, divisor, evaluate


def is_multiple(x: Dim, of: int) -> bool:
    """Return whether an extent is known to be a multiple of a number."""
    return divisor(x) % of == 0


def is_many(x: Dim) -> bool:
    """Return whether a number of parts is more than one, or may be."""
    return isinstance(x, Expr) or x > 1


def at_most(x: Dim) -> int | None:
    """The largest number that an extent can be; None where there is none."""
    high = bounds(x)[1]
    return None if high == math.inf else int(high)


def estimate(x: Dim) -> int:
    """The number that an extent is at the hints, without a guard: for what decides on speed alone.

    An expression that is 0 there, and more at other extents, counts as 1: it is divided by.

    Raises:
        ShapeError: it is symbolic, and no call gives it.
    """
    if isinstance(x, int):
        return x
    decisions = DECISIONS.get()
    return evaluate(x, {} if decisions is None else decisions.hints or decisions.values) or 1
