"""The NumPy side of gather and scatter: bounds, linear positions, sums over duplicates."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from treadle.base.array import Array
from treadle.base.dtype import as_dtype
from treadle.base.errors import IndexRangeError, allowed_range, out_of_range
from treadle.base.shape import row_major_strides
from treadle.base.types import TensorType
from treadle.ops.op import Op

_FEW = 16
"""Elements up to which Python finds the smallest and the largest sooner than NumPy."""
_CHUNK = 1 << 20  # Elements per scatter pass, so that its positions stay small beside the data.


def typed(arrays: Sequence[Array]) -> tuple[TensorType, ...]:
    """The types of arrays, for messages."""
    return tuple(TensorType(as_dtype(a.dtype), a.shape) for a in arrays)


def check_bounds(
    op: Op, arrays: Sequence[Array], index: Array, axis: int, extent: int, low: int = 0
) -> None:
    """Raise `IndexRangeError` naming the first index that is outside low <= i < extent.

    `arrays` are all operands, for the message.
    """
    bad = (index < low) | (index >= extent)
    if not bad.any():
        return
    first = int(np.asarray(index)[bad].flat[0])
    raise IndexRangeError(
        op.name,
        f"index {first} is out of range for axis {axis} with extent {extent}",
        saw=op.saw(typed(arrays)),
        hint=allowed_range(low, extent),
    )


def outside(index: Array, low: int, high: int) -> int | None:
    """An index that is not in low <= i < high; None where all are."""
    if not index.size:
        return None
    if index.size <= _FEW:
        flat = index.ravel().tolist()
        least, most = min(flat), max(flat)
    else:
        least, most = index.min(), index.max()
    if low <= least and most < high:
        return None
    return int(least if least < low else most)


def asking(op: Op) -> str:
    """The op that an error about an index names: a check that stands alone names another."""
    return getattr(op, "of", op.name)


def check_indices(op: Op, arrays: Sequence[Array]) -> None:
    """Raise `IndexRangeError` if an operand of an op has an index that is out of its range.

    For engines whose kernels do not look; the oracles of ops do.
    """
    for operand, *ends in op.index_ranges(typed(arrays)):
        low, high = map(int, ends)
        found = outside(arrays[operand], low, high)
        if found is not None:
            raise out_of_range(asking(op), found, low, high, op.saw(typed(arrays)))


def wrapped(index: Array, extent: int) -> Array:
    """int64 indices with negative ones counted from the end."""
    wide = index.astype(np.int64, copy=False)
    return np.where(wide < 0, wide + extent, wide) if (wide < 0).any() else wide


def linear_along(index: Array, axis: int, shape: Sequence[int]) -> Array:
    """Positions, in a dense array of `shape`, of the elements that a gather along `axis` reads."""
    strides = row_major_strides(shape)
    linear = wrapped(index, shape[axis]) * strides[axis]
    for i, extent in enumerate(index.shape):
        if i != axis:
            along = [1] * index.ndim
            along[i] = extent
            linear = linear + (np.arange(extent, dtype=np.int64) * strides[i]).reshape(along)
    return linear


def linear_over(indices: Sequence[Array], shape: Sequence[int]) -> Array:
    """Positions, in a dense array of `shape`, that several broadcast indices name together."""
    strides = row_major_strides(shape)
    terms = [wrapped(i, d) * s for i, d, s in zip(indices, shape, strides, strict=True)]
    return np.asarray(sum(np.broadcast_arrays(*terms), np.int64(0)))


def add_rows(table: Array, positions: Array, rows: Array) -> None:
    """table[positions[i]] += rows[i], in place; table is dense [n, r], rows [m, r].

    The one-dimensional form of `np.add.at` is several times as fast as that over rows.
    """
    width = table.shape[1]
    flat, columns = table.reshape(-1), np.arange(width)
    step = max(_CHUNK // max(width, 1), 1)
    for first in range(0, len(positions), step):
        part = positions[first : first + step, None] * width + columns
        np.add.at(flat, part.reshape(-1), rows[first : first + step].reshape(-1))


def writable(x: Array, dtype: npt.DTypeLike | None = None) -> Array:
    """A dense copy of x to write to; fast where x is zero broadcast, as gradients begin with."""
    kind = np.dtype(dtype or x.dtype)
    if x.size > 1 and not any(x.strides):
        one = x[(0,) * x.ndim]
        # Bits, not values: -0.0 is no zero here.
        return np.full(x.shape, one, kind) if any(one.tobytes()) else np.zeros(x.shape, kind)
    return np.array(x, kind, order="C")


def accumulating(x: Array) -> Array:
    """A writable dense copy of x in the type that sums are kept in (float32 for half types)."""
    half = x.dtype.itemsize == 2 and x.dtype.kind not in "iu"
    return writable(x, np.float32 if half else x.dtype)
