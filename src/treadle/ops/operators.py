"""Python operators and the methods gradient rules use, for every kind of operand.

`Operators` decides promotion and inserts casts, so ops themselves only ever see equal types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from treadle.base.dtype import (
    DType,
    as_dtype,
    bool_,
    complex64,
    float_for,
    promote,
    promote_scalar,
)
from treadle.base.errors import DTypeError, ShapeError
from treadle.base.guards import is_stretched
from treadle.base.shape import Shape
from treadle.base.spelling import none_operand
from treadle.base.symbol import Expr, is_identical
from treadle.base.types import TensorType
from treadle.ops import elementwise as ew
from treadle.ops import logic
from treadle.ops.complex_parts import BY_PARTS
from treadle.ops.creation import Extent
from treadle.ops.matmul import ExactMatmul, Matmul, MatrixProduct
from treadle.ops.movement import Broadcast, Reshape, Transpose
from treadle.ops.op import Op
from treadle.ops.reduce import Sum
from treadle.ops.unary import Abs, Ceil, Floor, Reciprocal, Round, Rsqrt, Sqrt, Square

T = TypeVar("T", bound="Operators")

_POWERS: dict[float, Op] = {2: Square(), 0.5: Sqrt(), -0.5: Rsqrt(), -1: Reciprocal()}
"""Exponents with an op of their own, which is faster and has a simpler gradient."""
_PRODUCTS = Matmul.dtypes + ExactMatmul.dtypes


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

    def _as_operand_of(self: T, op: Op) -> T:
        """Return this operand as mixed precision hands it to `op`; only tensors are cast."""
        return self

    def is_operand(self, other: object) -> bool:
        """Return whether another value is an operand of this kind, and not data to be made one."""
        return isinstance(other, type(self))

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
        mine, lead = self.type.shape, self.type.ndim - len(shape)
        if not lead and all(map(is_identical, mine, shape)):
            return self
        axes = [i for i, d in enumerate(mine) if i < lead or is_stretched(shape[i - lead], d)]
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

    def __floordiv__(self: T, other: Any, /) -> T:
        return binary(ew.FloorDiv(), self, other)

    def __rfloordiv__(self: T, other: Any, /) -> T:
        return binary(ew.FloorDiv(), self, other, swap=True)

    def __mod__(self: T, other: Any, /) -> T:
        return binary(ew.Mod(), self, other)

    def __rmod__(self: T, other: Any, /) -> T:
        return binary(ew.Mod(), self, other, swap=True)

    def __pow__(self: T, other: Any, /) -> T:
        return power(self, other)

    def __rpow__(self: T, other: Any, /) -> T:
        return binary(ew.Pow(), self, other, swap=True)

    def __matmul__(self: T, other: Any, /) -> T:
        return _matrix_product(*_promoted(Matmul(), self, other, _PRODUCTS))

    def __rmatmul__(self: T, other: Any, /) -> T:
        return _matrix_product(*reversed(_promoted(Matmul(), self, other, _PRODUCTS)))

    def __abs__(self: T) -> T:
        return Abs()(self)

    def __round__(self: T) -> T:
        return Round()(self)

    def __floor__(self: T) -> T:
        return Floor()(self)

    def __ceil__(self: T) -> T:
        return Ceil()(self)

    def __pos__(self: T) -> T:
        return self

    def __and__(self: T, other: Any, /) -> T:
        return binary(self._logical(logic.LogicalAnd(), logic.BitAnd()), self, other)

    def __rand__(self: T, other: Any, /) -> T:
        return binary(self._logical(logic.LogicalAnd(), logic.BitAnd()), self, other, swap=True)

    def __or__(self: T, other: Any, /) -> T:
        return binary(self._logical(logic.LogicalOr(), logic.BitOr()), self, other)

    def __ror__(self: T, other: Any, /) -> T:
        return binary(self._logical(logic.LogicalOr(), logic.BitOr()), self, other, swap=True)

    def __xor__(self: T, other: Any, /) -> T:
        return binary(self._logical(logic.LogicalXor(), logic.BitXor()), self, other)

    def __rxor__(self: T, other: Any, /) -> T:
        return binary(self._logical(logic.LogicalXor(), logic.BitXor()), self, other, swap=True)

    def __invert__(self: T) -> T:
        return self._logical(logic.LogicalNot(), logic.BitNot())(self)

    def _logical(self, truth: Op, bits: Op) -> Op:
        """The op for truth values or the one for integers, by this operand's type."""
        return truth if self.type.dtype is bool_ else bits

    def __lshift__(self: T, other: Any, /) -> T:
        return binary(logic.ShiftLeft(), self, other)

    def __rlshift__(self: T, other: Any, /) -> T:
        return binary(logic.ShiftLeft(), self, other, swap=True)

    def __rshift__(self: T, other: Any, /) -> T:
        return binary(logic.ShiftRight(), self, other)

    def __rrshift__(self: T, other: Any, /) -> T:
        return binary(logic.ShiftRight(), self, other, swap=True)

    def __lt__(self: T, other: Any, /) -> T:
        return binary(logic.Less(), self, other)

    def __le__(self: T, other: Any, /) -> T:
        return binary(logic.LessEqual(), self, other)

    def __gt__(self: T, other: Any, /) -> T:
        return binary(logic.Greater(), self, other)

    def __ge__(self: T, other: Any, /) -> T:
        return binary(logic.GreaterEqual(), self, other)


def _axes(axes: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    given = (axes,) if isinstance(axes, int) else tuple(axes)
    return tuple(sorted(a + ndim if a < 0 else a for a in given))


def binary(op: Op, x: T, other: Any, *, swap: bool = False) -> T:
    """Apply a binary op after promotion; `swap` puts `other` first.

    `other` is an operand of the same kind, a Python scalar, or array data.
    """
    first, second = _promoted(op, x, other)
    if first.type.dtype is complex64 and op.name in BY_PARTS:
        result: T = BY_PARTS[op.name](*((second, first) if swap else (first, second)))
        return result
    return op(second, first) if swap else op(first, second)


def power(x: T, other: Any) -> T:
    """x to a power, after promotion.

    Raises:
        DTypeError: a negative whole number as exponent, where the result would be integers.
    """
    if not _is_scalar(other):
        return binary(ew.Pow(), x, other)
    wanted = _compute_type(ew.Pow.dtypes, promote_scalar(x.type.dtype, other), None)
    if wanted is not None and wanted.is_integer and other < 0:
        raise DTypeError(
            "pow",
            "integers to a negative power are not integers",
            saw=f"{x.type}, {other!r}",
            hint="cast with astype() to a floating type, or write the exponent as a float",
        )
    simple = _POWERS.get(other)
    if wanted is None or simple is None:
        return binary(ew.Pow(), x, other)
    # A square that is written as a power is as precise as other powers.
    return simple(_cast(x, wanted)._as_operand_of(ew.Pow()))


def product_of(dtype: DType, transpose_x: bool = False, transpose_y: bool = False) -> MatrixProduct:
    """The op that multiplies matrices of an element type."""
    return (ExactMatmul if dtype.is_integer else Matmul)(transpose_x, transpose_y)


def _matrix_product(x: T, y: T) -> T:
    """NumPy's `@`: a vector counts as one row or one column, an axis that the result drops."""
    if x.type.ndim > 1 < y.type.ndim:
        return product_of(x.type.dtype)(x, y)
    rows = x.reshape((1, *x.type.shape)) if x.type.ndim == 1 else x
    columns = y.reshape((*y.type.shape, 1)) if y.type.ndim == 1 else y
    product = product_of(x.type.dtype)(rows, columns)
    shape = list(product.type.shape)
    if y.type.ndim == 1:
        del shape[-1]
    if x.type.ndim == 1:
        del shape[-1 if y.type.ndim == 1 else -2]
    return product.reshape(tuple(shape))


def _promoted(op: Op, x: T, other: Any, dtypes: tuple[DType, ...] | None = None) -> tuple[T, T]:
    """Both operands in the type that the op computes in, one of `dtypes`: by default its own."""
    mine, dtypes = x.type.dtype, dtypes or op.dtypes
    if isinstance(other, Expr):
        wanted = _compute_type(dtypes, promote_scalar(mine, 1), None, op)
        if wanted is None:
            raise _refusal(op, (mine,), f"{x.type}, {other}")
        return _cast(x, wanted), x.apply(Extent(other, wanted), ())[0]
    if _is_scalar(other):
        same = mine if isinstance(other, bool) else None
        wanted = _compute_type(dtypes, promote_scalar(mine, other), same, op)
        if wanted is None:
            raise _refusal(op, (mine,), f"{x.type}, {other!r}")
        return _cast(x, wanted), x.constant(other, wanted)
    y: T = other if x.is_operand(other) else x.constant(as_array(op, other))
    theirs = y.type.dtype
    same = mine if mine is theirs else None
    wanted = _compute_type(dtypes, promote(mine, theirs), same, op)
    if wanted is None:
        raise _refusal(op, (mine, theirs), f"{x.type}, {y.type}")
    return _cast(x, wanted), _cast(y, wanted)


def _cast(x: T, wanted: DType) -> T:
    """The operand itself where nothing changes: `astype` of a tensor makes a new handle."""
    return x if x.type.dtype is wanted else x.astype(wanted)


def _is_scalar(value: Any) -> bool:
    """Return whether a value is a Python number; NumPy's float64 pretends to be one, but has a
    type.
    """
    return isinstance(value, (bool, int, float)) and not isinstance(value, np.generic)


def _compute_type(
    dtypes: tuple[DType, ...], promoted: DType, same: DType | None, op: Op | None = None
) -> DType | None:
    """Return the element type among `dtypes` that an op computes in, given what its operands
    promote to; None if none.
    """
    if same is bool_ and bool_ in dtypes:
        return bool_
    for wanted in (promoted, float_for(promoted)):
        if wanted in dtypes or (wanted is complex64 and op is not None and op.name in BY_PARTS):
            return wanted
    return None


def _refusal(op: Op, dtypes: tuple[DType, ...], saw: str) -> DTypeError:
    return DTypeError(
        op.name,
        "does not take " + " with ".join(dict.fromkeys(d.name for d in dtypes)),
        saw=saw,
        hint="cast with astype() to one of " + ", ".join(d.name for d in op.dtypes),
    )


def as_array(op: Op, value: Any) -> np.ndarray[Any, Any]:
    """Array data mixed into an expression; None is a `TypeError`, objects a `DTypeError`."""
    if value is None:
        raise none_operand()
    try:
        array = np.asarray(value)
    except ValueError:
        raise ShapeError(op.name, "the rows of a nested list differ in length") from None
    if array.dtype.kind in "OUSmM":
        raise DTypeError(
            op.name,
            f"cannot use a {type(value).__name__} as an operand",
            hint="pass a tensor, a number, or array data",
        )
    return array
