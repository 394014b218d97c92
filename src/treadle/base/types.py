"""The logical type of a value: element type, shape and, where it matters, device."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.base.dtype import DType
from treadle.base.shape import Shape, format_shape, is_static, product, size_of
from treadle.base.symbol import DECISIONS, Dim, is_identical


@dataclass(frozen=True, slots=True)
class TensorType:
    """Type of an operand: everything that an op may know about it without its data.

    `shape` holds ints or symbolic dims; `device` is a logical device name, `""` where the
    program has not been placed. Layout and memory kind are physical and live elsewhere.
    """

    dtype: DType
    shape: Shape
    device: str = ""

    def __eq__(self, other: object) -> bool:
        # Extents are equal if they are identical: types are compared everywhere, the call is asked
        # where something depends on it.
        if not isinstance(other, TensorType):
            return NotImplemented
        if self.dtype is not other.dtype and self.dtype != other.dtype:
            return False
        if DECISIONS.get() is None:
            return self.shape == other.shape and self.device == other.device
        alike = len(self.shape) == len(other.shape) and self.device == other.device
        return alike and all(map(is_identical, self.shape, other.shape))

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """True if every extent is a plain int."""
        return is_static(self.shape)

    @property
    def is_resolved(self) -> bool:
        """True if every extent is an int, or one that the call which is compiled for gives."""
        if is_static(self.shape):
            return True
        decisions = DECISIONS.get()
        return decisions is not None and all(map(decisions.knows, self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes of a dense array of this type; symbolic shapes raise `ShapeError`."""
        return size_of(self.shape) * self.dtype.itemsize

    @property
    def open_nbytes(self) -> Dim:
        """Bytes of a dense array of this type, an expression where the shape is symbolic."""
        return product(self.shape) * self.dtype.itemsize

    def with_shape(self, shape: Shape) -> TensorType:
        """The same element type and device with another shape."""
        return TensorType(self.dtype, shape, self.device)

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape and device with another element type."""
        return TensorType(dtype, self.shape, self.device)

    def __str__(self) -> str:
        place = f"@{self.device}" if self.device else ""
        return f"{self.dtype.name}{format_shape(self.shape)}{place}"
