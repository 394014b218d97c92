"""Operands without a device: types alone, and plain NumPy arrays.

Composite ops derive their type rule and oracle from them; tests use them to check gradients
without the engine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.types import TensorType
from treadle.ops.op import Op, as_tuple
from treadle.ops.operators import Operators


class TypeOperand(Operators):
    """Knows its type only; applying an op infers."""

    __slots__ = ("_type",)

    def __init__(self, type_: TensorType) -> None:
        self._type = type_

    @property
    def type(self) -> TensorType:
        return self._type

    def apply(self, op: Op, inputs: tuple[TypeOperand, ...], /) -> tuple[TypeOperand, ...]:
        return tuple(TypeOperand(t) for t in op.infer(*(x._type for x in inputs)))

    def constant(self, value: Any, dtype: DType | None = None) -> TypeOperand:
        array = constant_array(value, dtype, self._type.dtype)
        return TypeOperand(TensorType(as_dtype(array.dtype), array.shape))


class ArrayOperand(Operators):
    """Holds a NumPy array; applying an op runs its oracle."""

    __slots__ = ("array",)

    def __init__(self, array: Array) -> None:
        self.array = array

    @property
    def type(self) -> TensorType:
        return TensorType(as_dtype(self.array.dtype), self.array.shape)

    def apply(self, op: Op, inputs: tuple[ArrayOperand, ...], /) -> tuple[ArrayOperand, ...]:
        results = as_tuple(op.reference(*(x.array for x in inputs)))
        return tuple(ArrayOperand(r) for r in results)

    def constant(self, value: Any, dtype: DType | None = None) -> ArrayOperand:
        return ArrayOperand(constant_array(value, dtype, as_dtype(self.array.dtype)))


def constant_array(value: Any, dtype: DType | None, like: DType) -> Array:
    """A constant's array: scalars take `like`'s element type unless `dtype` is given."""
    if isinstance(value, (bool, int, float, complex)) and not isinstance(value, np.generic):
        return np.asarray(value, dtype=(dtype or like).numpy)
    array = np.asarray(value)
    return array if dtype is None else array.astype(dtype.numpy)
