"""Sizes of windows that slide over the spatial axes, as convolution and pooling take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from treadle.base.errors import ShapeError

Extents: TypeAlias = "int | Sequence[int]"


def extents(value: Extents, ndim: int, what: str, least: int = 1) -> tuple[int, ...]:
    """One int per spatial axis; a single int stands for all of them.

    Raises:
        ShapeError: there are too many or too few, or one is below `least`.
    """
    result = (int(value),) * ndim if isinstance(value, int) else tuple(int(v) for v in value)
    if len(result) != ndim or min(result) < least:
        wanted = f"an int or {ndim} ints, each at least {least}"
        raise ShapeError(what, f"expects {wanted}", saw=repr(value))
    return result
