"""Sizes of windows that slide over the spatial axes, as convolution and pooling take them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import TypeAlias

from treadle.base.errors import DTypeError, ShapeError

Extents: TypeAlias = "int | Sequence[int]"


def extents(value: Extents, ndim: int, what: str, least: int = 1) -> tuple[int, ...]:
    """One int per spatial axis; a single int stands for all of them.

    Raises:
        ShapeError: there are too many or too few, or one is below `least`.
    """
    problem = f"expects an int or {ndim} ints, each at least {least}"
    try:
        given = value if isinstance(value, Iterable) else (value,) * ndim
        result = tuple([index(v) for v in given])
    except TypeError:
        hint = "pass ints; half of an odd kernel size keeps extents at stride 1"
        raise DTypeError(what, problem, saw=repr(value), hint=hint) from None
    if len(result) != ndim or min(result) < least:
        raise ShapeError(what, problem, saw=repr(value), hint=f"pass one int of at least {least}")
    return result


def require_size(value: int, what: str, least: int = 0) -> None:
    """Raise unless a number of features or channels is an int of at least `least`.

    Raises:
        DTypeError: it is not an int.
        ShapeError: it is too small.
    """
    problem, hint = f"expects an int of at least {least}", f"pass {least} or more"
    try:
        fits = index(value) >= least
    except TypeError:
        raise DTypeError(what, problem, saw=repr(value), hint="pass an int") from None
    if not fits:
        raise ShapeError(what, problem, saw=repr(value), hint=hint)
