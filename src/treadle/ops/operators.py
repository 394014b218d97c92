"""Python operators and the methods gradient rules use, for every kind of operand.

`Operators` decides promotion and inserts casts, so ops themselves only ever see equal types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from treadle.base.dtype import DType, as_dtype, bool_, float_for, promote, promote_scalar
from treadle.base.errors import DTypeError
from treadle.base.shape import Shape
from treadle.base.types import TensorType
from treadle.ops import elementwise as ew
from treadle.ops.movement import Broadcast, Reshape, Transpose
from treadle.ops.op import Op
from treadle.ops.reduce import Sum

T = TypeVar("T", bound="Operators")


class Operators:
    """Operators over the two things a kind of operand supplies: `apply` and `constant`."""

    __slots__ = ()

    @property
    def type(self) -> TensorType:
        """Element type, shape and device."""
        raise NotImplementedError

    @property
    def shape(self) -> Any:
        """The shape."""
        return self.type.shape

    def apply(self: T, op: Op, inputs: tuple[T, ...], /) -> tuple[T, ...]:
        """Run or record `op`."""
        raise NotImplementedError

    def constant(self: T, value: Any, dtype: DType | None = None) -> T:
        """A constant on this operand's device."""
        raise NotImplementedError

    def astype(self: T, dtype: Any, /) -> T:
        """Cast to another element type; the operand itself where nothing changes."""
        wanted = as_dtype(dtype)
        return self if wanted is self.type.dtype else ew.Cast(wanted)(self)

    def reshape(self: T, shape: Any, /) -> T:
        """The same elements under `shape`."""
        return self if tuple(shape) == self.type.shape else Reshape(tuple(shape))(self)

    def transpose(self: T, permutation: Any, /) -> T:
        """Axes in the order of `permutation`."""
        return Transpose(tuple(permutation))(self)

    def broadcast_to(self: T, shape: Shape, /) -> T:
        """NumPy's broadcast to exactly `shape`."""
        return self if shape == self.type.shape else Broadcast(tuple(shape))(self)

    def sum(self: T, axis: Any = None, keepdims: bool = False) -> T:
        """Sum over axes; all of them for None."""
        axes = range(self.type.ndim) if axis is None else axis
        return Sum(_axes(axes, self.type.ndim), keepdims)(self)

    def sum_to(self: T, shape: Shape, /) -> T:
        """Sum the axes along which `shape` was broadcast to this operand's shape."""
        mine = self.type.shape
        if mine == shape:
            return self
        lead = len(mine) - len(shape)
        axes = [
            i for i, d in enumerate(mine) if i < lead or (shape[i - lead] == 1 and d != 1)
        ]
        return Sum(tuple(axes))(self).reshape(shape) if axes else self.reshape(shape)

    def __add__(self: T, other: Any, /) -> T:
        return binary(ew.Add(), self, other)

    def __radd__(self: T, other: Any, /) -> T:
        return binary(ew.Add(), self, other, swap=True)

    def __sub__(self: T, other: Any, /) -> T:
        return binary(ew.Sub(), self, other)

    def __rsub__(self: T, other: Any, /) -> T:
        return binary(ew.Sub(), self, other, swap=True)

    def __mul__(self: T, other: Any, /) -> T:
        return binary(ew.Mul(), self, other)

    def __rmul__(self: T, other: Any, /) -> T:
        return binary(ew.Mul(), self, other, swap=True)

    def __truediv__(self: T, other: Any, /) -> T:
        return binary(ew.Div(), self, other)

    def __rtruediv__(self: T, other: Any, /) -> T:
        return binary(ew.Div(), self, other, swap=True)

    def __neg__(self: T) -> T:
        return ew.Neg()(self)

    def __lt__(self: T, other: Any, /) -> T:
        return binary(ew.Less(), self, other)

    def __le__(self: T, other: Any, /) -> T:
        return binary(ew.LessEqual(), self, other)

    def __gt__(self: T, other: Any, /) -> T:
        return binary(ew.Less(), self, other, swap=True)

    def __ge__(self: T, other: Any, /) -> T:
        return binary(ew.LessEqual(), self, other, swap=True)


def _axes(axes: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    return tuple(sorted(a + ndim if a < 0 else a for a in given))


def binary(op: Op, x: T, other: Any, *, swap: bool = False) -> T:
    """Apply a binary op after promotion; `swap` puts `other` first.

    `other` is an operand of the same kind, a Python scalar, or array data.
    """
    first, second = _promoted(op, x, other)
    return op(second, first) if swap else op(first, second)


def _promoted(op: Op, x: T, other: Any) -> tuple[T, T]:
    mine = x.type.dtype
    if isinstance(other, (bool, int, float)) and not isinstance(other, np.generic):
        wanted = _compute_type(op, promote_scalar(mine, other), mine)
        return x.astype(wanted), x.constant(other, wanted)
    y: T = other if isinstance(other, type(x)) else x.constant(as_array(op, other))
    theirs = y.type.dtype
    wanted = _compute_type(op, promote(mine, theirs), mine if mine is theirs else None)
    return x.astype(wanted), y.astype(wanted)


def _compute_type(op: Op, promoted: DType, same: DType | None) -> DType:
    """The element type `op` computes in, given what its operands promote to."""
    if same is bool_ and bool_ in op.dtypes:
        return bool_
    return promoted if promoted in op.dtypes else float_for(promoted)


def as_array(op: Op, value: Any) -> np.ndarray[Any, Any]:
    """Array data mixed into an expression; None and objects raise `DTypeError`."""
    if value is None:
        raise TypeError("the operand is None and is not supported.")
    array = np.asarray(value)
    if array.dtype == object:
        raise DTypeError(op.name, f"cannot use a {type(value).__name__} as an operand")
    return array
