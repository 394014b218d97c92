"""Arguments that are one number or one per axis."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any


def get_ndtuple(value: Any, *, n: int, allow_zero: bool = True) -> tuple[int, ...]:
    """A tuple of n whole numbers: of one number, or of n.

    Raises:
        AssertionError: there are more or fewer, or one is negative (or 0, unless `allow_zero`).
    """
    found = tuple(value) if isinstance(value, Iterable) else (value,) * n
    least = 0 if allow_zero else 1
    if len(found) != n or any(int(x) < least for x in found):
        raise AssertionError(f"get_ndtuple: wanted {n} numbers of at least {least}, got {value!r}")
    return tuple(int(x) for x in found)


# MegEngine's programs import these.
_single = partial(get_ndtuple, n=1, allow_zero=True)
_pair = partial(get_ndtuple, n=2, allow_zero=True)
_pair_nonzero = partial(get_ndtuple, n=2, allow_zero=False)
_triple = partial(get_ndtuple, n=3, allow_zero=True)
_triple_nonzero = partial(get_ndtuple, n=3, allow_zero=False)
_quadruple = partial(get_ndtuple, n=4, allow_zero=True)

__all__ = ["get_ndtuple"]
