"""Array data inside a program: the op without operands that yields it."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType, as_dtype
from treadle.base.errors import GraphError
from treadle.base.shape import format_shape, size_of
from treadle.base.types import TensorType
from treadle.ops.op import Op, Sample, op


class ArrayData:
    """An immutable array that compares by content, bit for bit (-0.0 and NaN payloads count).

    Data read from a text that only names it by digest has no array until one is attached; it
    still has a type and compares.
    """

    __slots__ = ("_array", "_digest", "dtype", "shape")

    def __init__(self, array: Any) -> None:
        # A copy: whoever made the array may write to it later.
        own = np.array(array, order="C", copy=True)
        own.flags.writeable = False
        self.dtype: DType = as_dtype(own.dtype)
        self.shape: tuple[int, ...] = own.shape
        self._array: Array | None = own
        self._digest = ""

    @classmethod
    def absent(cls, dtype: DType, shape: tuple[int, ...], digest: str) -> ArrayData:
        """Data of which only type and digest are known."""
        data = cls.__new__(cls)
        data.dtype, data.shape, data._array, data._digest = dtype, shape, None, digest
        return data

    @property
    def is_present(self) -> bool:
        """True if the array itself is here, not only its digest."""
        return self._array is not None

    @property
    def array(self) -> Array:
        """The read-only array; raises `GraphError` where only the digest is known."""
        if self._array is None:
            raise GraphError(
                "constant",
                f"the data of {self!r} is not attached",
                hint="parse the text with the table of constants that was written beside it",
            )
        return self._array

    @property
    def nbytes(self) -> int:
        """Bytes of the dense array."""
        return size_of(self.shape) * self.dtype.itemsize

    @property
    def digest(self) -> str:
        """128-bit content hash in hexadecimal, of element type, shape and bytes."""
        if not self._digest:
            head = f"{self.dtype.name}{format_shape(self.shape)}".encode()
            state = hashlib.blake2b(head, digest_size=16)
            # NumPy exports no buffer of bfloat16 itself.
            state.update(self.array.reshape(-1).view(np.uint8).data)
            self._digest = state.hexdigest()
        return self._digest

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, ArrayData):
            return NotImplemented
        same_type = self.dtype is other.dtype and self.shape == other.shape
        return same_type and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"{self.dtype.name}{format_shape(self.shape)}(digest {self.digest})"


@op
class Constant(Op):
    """The array `data`, on `device` (`""`: wherever the program runs)."""

    data: ArrayData
    device: str = ""

    work = "data"
    name = "constant"
    incidental = True
    operands = ()
    dtypes = dt.ALL
    no_gradient = "has no inputs to differentiate by"

    def infer(self) -> tuple[TensorType, ...]:
        return (TensorType(self.data.dtype, self.data.shape, self.device),)

    def reference(self) -> Array:
        return self.data.array

    @classmethod
    def samples(cls) -> tuple[Sample, ...]:
        arrays = (
            np.arange(6, dtype=np.float32).reshape(2, 3),
            np.int32(7),
            np.zeros((0, 3), np.bool_),
            np.ones((1, 1), dt.bfloat16.numpy),
        )
        return tuple(Sample(cls(ArrayData(a)), (), gradient=False) for a in arrays)
