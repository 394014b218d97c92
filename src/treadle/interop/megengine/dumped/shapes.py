"""Shapes that dumped models compute: extents on the host, which may be symbols.

MegEngine's graphs take shapes apart and join them again. What does so is computed here, so that a
model keeps its open extents; whatever else takes such a value gets a tensor of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import treadle.functional as F
from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.symbol import Dim, Expr, maximum, minimum
from treadle.ops.creation import Extent
from treadle.tensor import Tensor

__all__ = ["Extents", "computed", "shape_of", "whole"]

_MOST = 64
"""Numbers that a constant may have in order to take part: shapes are short."""


class Extents:
    """Extents that no tensor holds yet.

    Attributes:
        array: of objects: integers and expressions.
        anchor: a tensor of the program that they belong to.
    """

    def __init__(self, array: Any, anchor: Tensor) -> None:
        self.array: Array = np.asarray(array, object)
        self.anchor = anchor

    def tensor(self) -> Tensor:
        """An int32 tensor of them; the program computes those that are symbols."""
        if not any(isinstance(d, Expr) for d in self.array.flat):
            return Tensor(self.array.astype(np.int32))
        flat = [self.anchor.apply(Extent(d, dt.int32), ())[0].reshape(1) for d in self.array.flat]
        return F.concat(flat).reshape(*self.array.shape)


def shape_of(x: Tensor) -> Extents:
    """The shape of a tensor."""
    return Extents(list(x.shape), x)


def whole(shape: Any) -> list[Dim]:
    """Extents, or the numbers in a tensor, as a list."""
    return list(shape.array.flat) if isinstance(shape, Extents) else Tensor(shape).tolist()


def _array(given: Any) -> Array | None:
    """Extents or a short constant as an array; None for anything else."""
    if isinstance(given, Extents):
        return given.array
    if isinstance(given, np.ndarray) and given.dtype.kind in "iu" and given.size <= _MOST:
        return given.astype(object)
    return None


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "ADD": lambda x, y: x + y,
    "SUB": lambda x, y: x - y,
    "MUL": lambda x, y: x * y,
    "FLOOR_DIV": lambda x, y: x // y,
    "MOD": lambda x, y: x % y,
    "MAX": np.frompyfunc(maximum, 2, 1),
    "MIN": np.frompyfunc(minimum, 2, 1),
}


def _part(items: Sequence[tuple[int, ...]], x: Array, *numbers: Array) -> Array:
    """Ranges and single elements of an array."""
    rest = iter(numbers)
    index: list[Any] = [slice(None)] * x.ndim
    for axis, *flags in items:
        begin, end, step, at = (int(next(rest).item()) if f else None for f in flags)
        index[axis] = slice(begin, end, step) if at is None else at
    return np.asarray(x[tuple(index)], object)


def _axes(changes: Sequence[tuple[int, int]], x: Array) -> Array:
    for removes, axis in changes:
        x = np.squeeze(x, axis) if removes else np.expand_dims(x, axis)
    return x


_HOST: dict[str, Callable[..., Any]] = {
    "AxisAddRemove": _axes,
    "Concat": lambda axis, *given: np.concatenate([np.atleast_1d(g) for g in given], axis),
    "Elemwise": lambda mode, x, y=None: (
        _ARITHMETIC[mode](x, y) if mode in _ARITHMETIC and y is not None else None
    ),
    "Identity": lambda _, x: x,
    "Reduce": lambda mode, x: (
        np.asarray([np.prod(x)], object) if mode == "PRODUCT" and x.ndim == 1 else None
    ),
    "Subtensor": _part,
}
"""Kinds of operators that are computed of extents, given what says how."""


def computed(kind: str, how: Any, given: Sequence[Any]) -> Extents | None:
    """Compute an operator of extents and constants; None where it is one for tensors."""
    mine = [x for x in given if isinstance(x, Extents)]
    arrays = [_array(x) for x in given]
    if not mine or kind not in _HOST or any(a is None for a in arrays):
        return None
    found = _HOST[kind](how, *arrays)
    return None if found is None else Extents(found, mine[0].anchor)
