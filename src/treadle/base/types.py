"""The logical type of a value: element type, shape and, where it matters, device."""

from __future__ import annotations

from dataclasses import dataclass

from treadle.base.dtype import DType
from treadle.base.shape import Shape, format_shape, is_static, size_of


@dataclass(frozen=True, slots=True)
class TensorType:
    """What an op may know about an operand without its data.

    `shape` holds ints or symbolic dims; `device` is a logical device name, `""` where the
    program has not been placed. Layout and memory kind are physical and live elsewhere.
    """

    dtype: DType
    shape: Shape
    device: str = ""

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every extent is a plain int."""
        return is_static(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense array of this type; symbolic shapes raise `ShapeError`."""
        return size_of(self.shape) * self.dtype.itemsize

    def with_shape(self, shape: Shape) -> TensorType:
        """The same element type and device with another shape."""
        return TensorType(self.dtype, shape, self.device)

    def with_dtype(self, dtype: DType) -> TensorType:
        """The same shape and device with another element type."""
        return TensorType(dtype, self.shape, self.device)

    def __str__(self) -> str:
        place = f"@{self.device}" if self.device else ""
        return f"{self.dtype.name}{format_shape(self.shape)}{place}"
