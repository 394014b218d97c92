"""Cross products."""

from __future__ import annotations

from treadle.base.errors import ShapeError
from treadle.functional.arguments import as_tensor, axis_of
from treadle.ops import movement
from treadle.tensor import Tensor

__all__ = ["cross"]


def cross(
    a: Tensor,
    b: Tensor,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Tensor:
    """Cross product of vectors along axes of a, b and the result; `axis` sets all three.

    The other axes broadcast. A vector of 2 elements lies in the plane z = 0; of two of them the
    result is z alone, without an axis.

    Raises:
        ShapeError: an axis does not have 2 or 3 elements.

    Example:
        >>> F.cross(mge.tensor([1., 0., 0.]), mge.tensor([0., 1., 0.])).tolist()
        [0.0, 0.0, 1.0]
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    x, y = _last(as_tensor(a), axisa), _last(as_tensor(b), axisb)
    if {x.shape[-1], y.shape[-1]} - {2, 3}:
        raise ShapeError("cross", "takes vectors of 2 or 3 elements", saw=f"{x.type}, {y.type}")
    if x.shape[-1] == y.shape[-1] == 2:
        return x[..., 0] * y[..., 1] - x[..., 1] * y[..., 0]
    x, y = _in_space(x), _in_space(y)
    parts = [x[..., j] * y[..., k] - x[..., k] * y[..., j] for j, k in ((1, 2), (2, 0), (0, 1))]
    joined = [p.reshape(*p.shape, 1) for p in parts]
    return _from_last(movement.Concat(parts[0].ndim)(*joined), axisc)


def _in_space(x: Tensor) -> Tensor:
    """Vectors of 3 elements; those of 2 get a zero."""
    return x if x.shape[-1] == 3 else movement.Concat(x.ndim - 1)(x, x[..., :1] * 0)


def _last(x: Tensor, axis: int) -> Tensor:
    """An axis moved to the end."""
    at = axis_of(axis, x, "cross")
    return x.transpose([i for i in range(x.ndim) if i != at] + [at])


def _from_last(x: Tensor, axis: int) -> Tensor:
    """The last axis moved to where it belongs."""
    order = list(range(x.ndim - 1))
    order.insert(axis_of(axis, x, "cross"), x.ndim - 1)
    return x.transpose(order)
