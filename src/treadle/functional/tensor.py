"""Moving the elements of tensors: shapes, joining, splitting, indexing, reordering.

Results are new tensors, never views. Axes may count from the end; one out of range is a
`ShapeError`. `creation` has the functions that make tensors from nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from treadle.base.dtype import bool_, int32
from treadle.base.errors import DeviceError, ShapeError
from treadle.base.shape import format_shape
from treadle.base.symbol import Dim, Expr
from treadle.engine.eager.repeated import repeated, repeated_of_several
from treadle.functional import complex_parts, creation
from treadle.functional.arguments import (
    as_tensor,
    axis_of,
    call,
    extents,
    indices_of,
    ints,
    promote_all,
    unary,
)
from treadle.functional.complex_parts import *  # noqa: F403
from treadle.functional.creation import *  # noqa: F403
from treadle.functional.creation import zeros
from treadle.ops import cumulative, gather_along, movement, select
from treadle.ops import gather as gathering
from treadle.ops.methods import as_extent, either
from treadle.tensor import Tensor

__all__ = [
    *complex_parts.__all__,
    *creation.__all__,
    "broadcast_to",
    "concat",
    "cond_take",
    "copy",
    "cumsum",
    "diag",
    "expand_dims",
    "flatten",
    "gather",
    "meshgrid",
    "non_zero",
    "repeat",
    "reshape",
    "roll",
    "scatter",
    "split",
    "squeeze",
    "stack",
    "swapaxes",
    "tile",
    "transpose",
    "where",
]


# -- building ------------------------------------------------------------------------------


def meshgrid(*inputs: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Coordinate grids of 1-d tensors; "xy" puts the second one along the rows, "ij" the first.

    Lengths m and n give two grids of shape (n, m) for "xy", (m, n) for "ij".

    Raises:
        ValueError: the indexing is neither of the two.

    Example:
        >>> x, y = F.meshgrid(F.arange(3), F.arange(2))
        >>> x.tolist(), y.tolist()
        ([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]], [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing must be 'xy' or 'ij', got {indexing!r}")
    count = len(inputs)
    order = list(range(count))
    if indexing == "xy" and count > 1:
        order[0], order[1] = 1, 0
    shape = [0] * count
    for x, axis in zip(inputs, order, strict=True):
        shape[axis] = x.size
    grids = []
    for x, axis in zip(inputs, order, strict=True):
        row = x.reshape(*(x.size if i == axis else 1 for i in range(count)))
        grids.append(broadcast_to(row, tuple(shape)))
    return grids


def diag(inp: Tensor, k: int = 0) -> Tensor:
    """A vector as the k-th diagonal of a square matrix, or a matrix's k-th diagonal.

    Raises:
        ShapeError: neither a vector nor a matrix.

    Example:
        >>> F.diag(mge.tensor([1., 2.])).tolist(), F.diag(F.eye(3), k=1).tolist()
        ([[1.0, 0.0], [0.0, 2.0]], [0.0, 0.0])
    """
    x = as_tensor(inp)
    if x.ndim == 1:
        length = int(x.shape[0])
        size = length + abs(k)
        rows = np.arange(length) + max(-k, 0)
        out = zeros((size, size), dtype=x._kind.dtype, device=x.device)
        out[rows, rows + k] = x
        return out
    if x.ndim != 2:
        raise ShapeError("diag", "takes a vector or a matrix", saw=str(x.type))
    height, width = map(int, x.shape)
    count = max(0, min(height - max(-k, 0), width - max(k, 0)))
    rows = np.arange(count) + max(-k, 0)
    return x[rows, rows + k]


# -- shapes --------------------------------------------------------------------------------


@repeated
def reshape(inp: Tensor, target_shape: Any) -> Tensor:
    """The same elements under another shape; one extent may be -1, shapes may be tensors.

    Raises:
        ShapeError: the shape has another number of elements.

    Example:
        >>> F.reshape(F.arange(6), (2, -1)).tolist()
        [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    """
    return as_tensor(inp).reshape(extents(target_shape))


@repeated
def flatten(
    inp: Tensor,
    start_axis: int = 0,
    end_axis: int = -1,
    start_dim: int | None = None,
    end_dim: int | None = None,
) -> Tensor:
    """Merge the axes from `start_axis` to `end_axis` into one.

    Example:
        >>> F.flatten(F.ones((2, 3, 4)), 1).shape
        (2, 12)
    """
    if start_dim is not None:
        start_axis = either("start_axis", start_axis, start_dim, 0)
    if end_dim is not None:
        end_axis = either("end_axis", end_axis, end_dim, -1)
    return as_tensor(inp).flatten(start_axis, end_axis)


@repeated
def expand_dims(inp: Tensor, axis: int | Sequence[int]) -> Tensor:
    """Insert axes of size 1 at positions of the result; a repeated one moves on by one.

    Raises:
        ShapeError: a position is out of range.

    Example:
        >>> F.expand_dims(F.ones((2, 3)), [0, -1]).shape
        (1, 2, 3, 1)
    """
    x = as_tensor(inp)
    given = ints(axis)
    ndim = x.ndim + len(given)
    places = sorted(a + ndim if a < 0 else a for a in given)
    if not all(0 <= p < ndim for p in places):
        raise ShapeError(
            "expand_dims",
            f"axis {axis} is out of range",
            saw=str(x.type),
            hint=f"the result has {ndim} axes: use those from {-ndim} to {ndim - 1}",
        )
    shape = list(x.shape)
    for place in places:
        shape.insert(place, 1)
    return x.reshape(tuple(shape))


@repeated
def squeeze(
    inp: Tensor,
    axis: int | Sequence[int] | None = None,
    dim: int | Sequence[int] | None = None,
) -> Tensor:
    """Drop axes of size 1: the given ones, or all of them.

    Raises:
        ShapeError: a given axis is not of size 1.

    Example:
        >>> F.squeeze(F.ones((1, 2, 1)), 0).shape, F.squeeze(F.ones((1, 2, 1))).shape
        ((2, 1), (2,))
    """
    if dim is not None:
        axis = either("axis", axis, dim)
    x = as_tensor(inp)
    if axis is None:
        return x.reshape(tuple(d for d in x.shape if d != 1))
    places = {axis_of(a, x, "squeeze") for a in ints(axis)}
    if any(x.shape[p] != 1 for p in places):
        single = [i for i, d in enumerate(x.shape) if d == 1]
        raise ShapeError(
            "squeeze",
            f"axis {axis} is not of size 1",
            saw=str(x.type),
            hint=f"the axes of size 1 are {single}" if single else "no axis of x is of size 1",
        )
    return x.reshape(tuple(d for i, d in enumerate(x.shape) if i not in places))


@repeated
def broadcast_to(inp: Tensor, shape: Any) -> Tensor:
    """Broadcast to a shape as NumPy does; None entries keep the extent of `inp`.

    Raises:
        ShapeError: the shapes do not fit.

    Example:
        >>> F.broadcast_to(mge.tensor([1., 2.]), (2, 2)).tolist()
        [[1.0, 2.0], [1.0, 2.0]]
    """
    x = as_tensor(inp)
    if isinstance(shape, (int, np.integer)):
        raise TypeError("broadcast_to takes a shape, not an int")
    given = [*extents(shape)] if isinstance(shape, Tensor) else list(shape)
    lead = len(given) - x.ndim
    if any(d is None and i < lead for i, d in enumerate(given)):
        raise ShapeError(
            "broadcast_to", f"None names no axis of the input in {given}", saw=str(x.type)
        )
    wanted = tuple(x.shape[i - lead] if d is None else as_extent(d) for i, d in enumerate(given))
    return call("broadcast_to", movement.Broadcast(wanted), x)


@repeated
def transpose(inp: Tensor, pattern: Iterable[int | str], *more: Any) -> Tensor:
    """Permute axes into the order of `pattern`; an "x" inserts an axis of size 1.

    Example:
        >>> x = F.ones((2, 3))
        >>> F.transpose(x, (1, 0)).shape, F.transpose(x, (1, "x", 0)).shape
        ((3, 2), (3, 1, 2))
    """
    if more or isinstance(pattern, int):
        raise TypeError(
            f"transpose takes all axes as one pattern, such as (1, 0), got {(pattern, *more)}; "
            "F.swapaxes(x, i, j) exchanges two"
        )
    return as_tensor(inp).transpose(*pattern)


@repeated
def swapaxes(inp: Tensor, axis1: int, axis2: int) -> Tensor:
    """Swap two axes of a tensor.

    Example:
        >>> F.swapaxes(F.ones((2, 3, 4)), 0, 2).shape
        (4, 3, 2)
    """
    x = as_tensor(inp)
    order = list(range(x.ndim))
    i, j = axis_of(axis1, x, "swapaxes"), axis_of(axis2, x, "swapaxes")
    order[i], order[j] = j, i
    return unary(movement.Transpose(tuple(order)), x)


# -- joining and splitting -----------------------------------------------------------------


@repeated_of_several
def concat(
    inps: Iterable[Tensor], axis: int = 0, device: Any = None, dim: int | None = None
) -> Tensor:
    """Join tensors along an existing axis, promoted to one element type; other extents agree.

    Numbers and 0-d tensors count as one element each, beside tensors of one axis too.

    Raises:
        DeviceError: they live on different devices and `device` does not say where to go.
        ShapeError: extents other than that of `axis` differ, or there are no tensors.

    Example:
        >>> F.concat([F.ones((2, 3)), F.zeros((1, 3))]).shape
        (3, 3)
    """
    if dim is not None:
        axis = either("axis", axis, dim, 0)
    given = _several(inps, "concat", axis)
    if device is not None:
        given = [x.to(device) for x in given]
    elif len({x.device.place for x in given}) > 1:
        names = ", ".join(dict.fromkeys(str(x.device) for x in given))
        raise DeviceError(
            "concat", f"ambiguous device: {names}", hint=f"pass device={str(given[0].device)!r}"
        )
    if any([x.ndim < 2 for x in given]):
        given = [x if x.ndim else x.reshape(1) for x in given]
    tensors = promote_all(given)
    return movement.Concat(axis_of(axis, tensors[0], "concat"))(*tensors)


def stack(
    inps: Iterable[Tensor], axis: int = 0, device: Any = None, dim: int | None = None
) -> Tensor:
    """Join tensors of one shape along a new axis.

    Raises:
        ShapeError: the shapes differ, or there are no tensors.

    Example:
        >>> F.stack([mge.tensor([1., 2.]), mge.tensor([3., 4.])], axis=1).tolist()
        [[1.0, 3.0], [2.0, 4.0]]
    """
    if dim is not None:
        axis = either("axis", axis, dim, 0)
    given = _several(inps, "stack", axis)
    first = given[0].shape
    if any([x.shape != first for x in given[1:]]):
        raise ShapeError(
            "stack",
            "the shapes differ",
            saw=", ".join(dict.fromkeys(format_shape(x.shape) for x in given)),
            hint="reshape or broadcast them to one shape; concat() joins along an existing axis",
        )
    return concat([expand_dims(x, axis) for x in given], axis, device)


def _several(given: Iterable[Any], op: str, axis: Any) -> list[Tensor]:
    """The tensors to be joined."""
    if isinstance(axis, Tensor) and axis.ndim:
        raise TypeError(f"{op} takes the tensors as one list: F.{op}([x, y], axis)")
    tensors = [as_tensor(x) for x in given]
    if not tensors:
        raise ShapeError(
            op,
            "needs at least one tensor",
            saw="an empty sequence",
            hint="an iterator yields its tensors only once; zeros() makes an empty tensor",
        )
    return tensors


def split(inp: Tensor, nsplits_or_sections: Any, axis: int = 0) -> tuple[Tensor, ...]:
    """Split along an axis into a number of parts (larger ones first), or at given positions.

    Raises:
        ShapeError: more parts than elements, or cut positions that do not rise.

    Example:
        >>> [part.tolist() for part in F.split(F.arange(5), 2)]
        [[0.0, 1.0, 2.0], [3.0, 4.0]]
        >>> [part.tolist() for part in F.split(F.arange(5), [1, 3])]
        [[0.0], [1.0, 2.0], [3.0, 4.0]]
    """
    x = as_tensor(inp)
    at = axis_of(axis, x, "split")
    extent: Any = x.shape[at]
    if isinstance(nsplits_or_sections, (int, np.integer)):
        parts = int(nsplits_or_sections)
        if not 0 < parts <= max(extent, 1):
            raise _bad_split(x, f"cannot split axis {axis} of size {extent} into {parts} parts")
        sizes = [(extent + parts - 1 - i) // parts for i in range(parts)]
        cuts = list(accumulate(sizes, initial=0))
    else:
        cuts = [0, *extents(nsplits_or_sections), extent]
        if any(a > b for a, b in pairwise(cuts)):
            raise _CutsError(x, nsplits_or_sections, extent)
    before = (slice(None),) * at
    return tuple(x[(*before, slice(a, b))] for a, b in pairwise(cuts))


_SPLIT = "give a number of parts, at most the size of the axis, or the positions of the cuts"


def _bad_split(x: Tensor, problem: str) -> ShapeError:
    return ShapeError("split", problem, saw=str(x.type), hint=_SPLIT)


class _CutsError(ShapeError):
    """Cut positions that do not rise, in MegEngine's words, which programs compare."""

    def __init__(self, x: Tensor, given: Any, extent: int) -> None:
        super().__init__("split", f"Invalid nsplits_or_secions: {given}", hint=_SPLIT)
        self.add_note(f"  split: cut positions must rise from 0 to {extent}; saw {x.type}")
        self.add_note(f"  hint: {_SPLIT}\n  at:   {self.at}")

    def _text(self) -> str:
        return self.problem


@repeated
def repeat(inp: Tensor, repeats: Dim, axis: int | None = None) -> Tensor:
    """Repeat every element, or every slice along `axis`; the result is flat for None.

    The axis counts from the front; its extent grows by the factor `repeats`.

    Raises:
        ValueError: the axis is negative.

    Example:
        >>> F.repeat(mge.tensor([1, 2]), 2).tolist()
        [1, 1, 2, 2]
    """
    x = as_tensor(inp)
    if axis is None:
        x, axis = x.reshape(-1), 0
    if axis < 0:
        raise ValueError("repeat takes a non-negative axis")
    at = axis_of(axis, x, "repeat")
    shape = x.shape
    count = repeats if isinstance(repeats, Expr) else int(repeats)
    op = movement.Broadcast((*shape[: at + 1], count, *shape[at + 1 :]))
    wide = call("repeat", op, expand_dims(x, at + 1))
    return wide.reshape((*shape[:at], shape[at] * count, *shape[at + 1 :]))


@repeated
def tile(inp: Tensor, reps: Any) -> Tensor:
    """Repeat the whole tensor along each axis; missing leading axes count as 1.

    Each extent of the result is that of `inp` times its count.

    Example:
        >>> F.tile(mge.tensor([1, 2]), (2, 2)).tolist()
        [[1, 2, 1, 2], [1, 2, 1, 2]]
    """
    x = as_tensor(inp)
    counts = extents(reps)
    counts = (1,) * (x.ndim - len(counts)) + counts
    shape = (1,) * (len(counts) - x.ndim) + x.shape
    rows = x.reshape(tuple(v for d in shape for v in (1, d)))
    pairs = tuple(v for c, d in zip(counts, shape, strict=True) for v in (c, d))
    wide = call("tile", movement.Broadcast(pairs), rows)
    return wide.reshape(tuple(c * d for c, d in zip(counts, shape, strict=True)))


@repeated
def roll(inp: Tensor, shift: Any, axis: Any = None, dims: Any = None) -> Tensor:
    """Shift elements cyclically along axes, or along the flat tensor for None; same shape.

    Example:
        >>> F.roll(mge.tensor([1, 2, 3, 4]), 1).tolist()
        [4, 1, 2, 3]
    """
    axis = axis if dims is None else either("axis", axis, dims)
    x = as_tensor(inp)
    shifts = ints(shift)
    if axis is None:
        flat = unary(movement.Roll((sum(shifts),), (0,)), x.reshape(-1))
        return flat.reshape(x.shape)
    axes = tuple(axis_of(a, x, "roll") for a in ints(axis))
    if len(shifts) == 1:
        shifts = shifts * len(axes)
    return unary(movement.Roll(shifts, axes), x)


@repeated
def cumsum(inp: Tensor, axis: int | None = None, dim: int | None = None) -> Tensor:
    """Running sum along an axis, same shape; bool counts as int32.

    Example:
        >>> F.cumsum(mge.tensor([1, 2, 3]), 0).tolist()
        [1, 3, 6]
    """
    axis = axis if dim is None else either("axis", axis, dim)
    if axis is None:
        raise TypeError("cumsum: missing axis")
    x = as_tensor(inp)
    if x._kind.dtype is bool_:
        x = x.astype(int32)
    return unary(cumulative.CumSum(axis_of(axis, x, "cumsum")), x)


# -- picking -------------------------------------------------------------------------------


def gather(inp: Tensor, axis: int, index: Tensor) -> Tensor:
    """Pick along an axis by an index of equal rank: out[i][j] = inp[index[i][j]][j] for axis 0.

    The result has the shape of the index.

    Raises:
        IndexRangeError: an index lies outside the axis.

    Example:
        >>> F.gather(mge.tensor([[1, 2], [3, 4]]), 1, mge.tensor([[1], [0]])).tolist()
        [[2], [3]]
    """
    x = as_tensor(inp)
    op = gather_along.TakeAlongAxis(axis_of(axis, x, "gather"))
    return call("gather", op, x, indices_of(index, x, "gather"))


def scatter(inp: Tensor, axis: int, index: Tensor, source: Tensor) -> Tensor:
    """Write `source` into `inp` at the positions that `gather` would read; returns `inp`.

    `source` has the shape of the index and is cast to the element type of `inp`.

    Raises:
        IndexRangeError: an index lies outside the axis.

    Example:
        >>> x = F.zeros((2, 3))
        >>> F.scatter(x, 1, mge.tensor([[2], [0]]), mge.tensor([[5.], [6.]])).tolist()
        [[0.0, 0.0, 5.0], [6.0, 0.0, 0.0]]
    """
    x = as_tensor(inp)
    op = gather_along.ScatterAlongAxis(axis_of(axis, x, "scatter"))
    values = as_tensor(source, x).astype(x._kind.dtype)
    x._reset(call("scatter", op, x, indices_of(index, x, "scatter"), values))
    return x


def where(mask: Any, x: Any = None, y: Any = None) -> Any:
    """x where the bool mask holds, else y; all three broadcast. With the mask alone: its indices.

    Raises:
        TypeError: mask, x or y is not a tensor.
        ValueError: the mask is not bool.

    Example:
        >>> x = mge.tensor([1., -2., 3.])
        >>> F.where(x > 0, x, F.zeros_like(x)).tolist()
        [1.0, 0.0, 3.0]
    """
    if x is None and y is None:
        return non_zero(mask, as_tuple=True)
    if not isinstance(mask, Tensor) or not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise TypeError("where takes tensors for mask, x and y")
    if mask._kind.dtype is not bool_:
        raise ValueError(f"mask must be bool, got {mask.dtype.name}; compare, as in x > 0")
    first, second = promote_all([x, y])
    return select.Where()(mask, first, second)


def cond_take(mask: Any, x: Any) -> tuple[Tensor, Tensor]:
    """(values, flat int32 indices), both (count,), of the elements of x where the bool mask holds.

    Raises:
        TypeError: mask or x is not a tensor.
        ValueError: the mask is not bool.
        ShapeError: mask and x differ in shape.

    Example:
        >>> x = mge.tensor([1., -2., 3.])
        >>> [part.tolist() for part in F.cond_take(x > 0, x)]
        [[1.0, 3.0], [0, 2]]
    """
    if not isinstance(x, Tensor) or not isinstance(mask, Tensor):
        raise TypeError("input must be a tensor")
    if mask._kind.dtype is not bool_:
        raise ValueError(f"mask must be bool, got {mask.dtype.name}; compare, as in x > 0")
    if mask.shape != x.shape:
        raise ShapeError("cond_take", "mask and x differ in shape", saw=f"{mask.type}, {x.type}")
    found = gathering.Nonzero()(mask.reshape(-1))[:, 0]
    return x.reshape(-1)[found], found


def non_zero(condition: Tensor, as_tuple: bool = False) -> Any:
    """int32 indices of the true (non-zero) elements: (count, ndim), or one vector per axis.

    Example:
        >>> F.non_zero(mge.tensor([[1, 0], [0, 2]])).tolist()
        [[0, 0], [1, 1]]
    """
    x = as_tensor(condition)
    found = gathering.Nonzero()(x if x._kind.dtype is bool_ else x != 0)
    return tuple(found[:, i] for i in range(x.ndim)) if as_tuple else found


def copy(inp: Tensor, device: Any = None) -> Tensor:
    """A copy, on another device if one is named; gradients flow back to the source.

    Example:
        >>> F.copy(mge.tensor([1., 2.]), device="cpu1").device
        CompNode("cpu1:0" from "cpu1:0")
    """
    x = as_tensor(inp)
    return x.to(x.device if device is None else device)
