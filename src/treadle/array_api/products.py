"""Products of matrices and vectors: the core's linear algebra."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from treadle.array_api.array import Array, as_array, broadcast, promote, require
from treadle.array_api.elementwise import conj, multiply
from treadle.array_api.manipulation import axis_of, expand_dims, moveaxis, permute_dims, reshape
from treadle.base.dtype import as_dtype
from treadle.base.shape import broadcast_shapes
from treadle.ops.operators import product_of
from treadle.ops.reduce import Sum
from treadle.tensor import Tensor

__all__ = ["matmul", "matrix_transpose", "tensordot", "vecdot"]


def _product(x: Tensor, y: Tensor) -> Tensor:
    made: Tensor = product_of(as_dtype(x.dtype))(x, y)
    return made


def matmul(x1: Array, x2: Array, /) -> Array:
    """Products of matrices over the last two axes; a vector is a row or a column.

    Raises:
        ValueError: an array has no axes.
    """
    x, y = promote(as_array(x1, "matmul"), as_array(x2, "matmul"))
    require("matmul", x, "numeric")
    if not x.ndim or not y.ndim:
        raise ValueError("matmul: arrays without axes are multiplied by *")
    left = expand_dims(x, 0) if x.ndim == 1 else x
    right = expand_dims(y, 1) if y.ndim == 1 else y
    made = _matrices(left, right)
    shape = list(made.shape)
    if y.ndim == 1:
        del shape[-1]
    if x.ndim == 1:
        del shape[-1 if y.ndim == 1 else -2]
    return made if x.ndim > 1 and y.ndim > 1 else reshape(made, tuple(shape))


def _matrices(x: Array, y: Array) -> Array:
    a, b, c, d = x.real_part, x.imag_part, y.real_part, y.imag_part
    if b is None or d is None:
        return Array(_product(a, c))
    return Array(_product(a, c) - _product(b, d), _product(a, d) + _product(b, c))


def matrix_transpose(x: Array, /) -> Array:
    """Every matrix of a stack transposed."""
    return as_array(x, "matrix_transpose").mT


def tensordot(
    x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2
) -> Array:
    """Sums of products over pairs of axes: the last and first so many, or those that are named."""
    x, y = promote(as_array(x1, "tensordot"), as_array(x2, "tensordot"))
    require("tensordot", x, "numeric")
    if isinstance(axes, int):
        mine, theirs = list(range(x.ndim - axes, x.ndim)), list(range(axes))
    else:
        mine = [axis_of(a, x.ndim, "tensordot") for a in axes[0]]
        theirs = [axis_of(a, y.ndim, "tensordot") for a in axes[1]]
    if [x.shape[a] for a in mine] != [y.shape[a] for a in theirs]:
        raise ValueError(f"tensordot: axes {axes} of {x.shape} and {y.shape} differ in extent")
    left = [a for a in range(x.ndim) if a not in mine]
    right = [a for a in range(y.ndim) if a not in theirs]
    terms = math.prod(x.shape[a] for a in mine)
    shapes = [x.shape[a] for a in left], [y.shape[a] for a in right]
    rows = reshape(permute_dims(x, (*left, *mine)), (math.prod(shapes[0]), terms))
    columns = reshape(permute_dims(y, (*theirs, *right)), (terms, math.prod(shapes[1])))
    return reshape(_matrices(rows, columns), (*shapes[0], *shapes[1]))


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Sums of conj(x1) * x2 along an axis, counted from the end.

    Raises:
        ValueError: the axis is not negative, or the extents along it differ.
    """
    x, y = promote(as_array(x1, "vecdot"), as_array(x2, "vecdot"))
    require("vecdot", x, "numeric")
    if not -min(x.ndim, y.ndim) <= axis < 0:
        raise ValueError(f"vecdot: axis {axis} does not count from the end of both arrays")
    if x.shape[axis] != y.shape[axis]:
        raise ValueError(f"vecdot: {x.shape} and {y.shape} differ along axis {axis}")
    x, y = moveaxis(x, axis, -1), moveaxis(y, axis, -1)
    shape: Any = broadcast_shapes("vecdot", x.shape, y.shape)
    terms = multiply(conj(broadcast(x, tuple(shape))), broadcast(y, tuple(shape)))
    return terms.map(lambda t: Sum((len(shape) - 1,))(t))
