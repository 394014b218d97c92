"""Block formats of quantized weights, and arrays of blocks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from treadle.base.errors import DTypeError, NumericError, ShapeError

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]
Fields: TypeAlias = NDArray[np.void]

_PIECE = 2**17  # elements that are converted at once: their intermediates stay in the cache


@dataclass(frozen=True)
class BlockFormat:
    """One format: its layout in bytes, and what the bytes mean.

    Attributes:
        name: as GGUF tools write it, `Q4_0`.
        number: of the type in GGUF files.
        elements: of a block.
        layout: the fields of a block in the file's order, packed, little-endian.
        decode: from blocks [n] of the layout to float32 [n, elements].
        encode: from float32 [n, elements] to blocks [n].
    """

    name: str
    number: int
    elements: int
    layout: np.dtype[np.void]
    decode: Callable[[Fields], Floats]
    encode: Callable[[Floats, np.dtype[np.void]], Fields]

    def __repr__(self) -> str:
        return self.name

    @property
    def bytes(self) -> int:
        """Bytes of a block."""
        return self.layout.itemsize

    @property
    def bits(self) -> float:
        """Bits of an element, its share of the scales included."""
        return 8 * self.bytes / self.elements

    def row_bytes(self, elements: int) -> int:
        """Bytes of a row of so many elements.

        Raises:
            ShapeError: the row is not a whole number of blocks.
        """
        if elements % self.elements:
            raise ShapeError(
                self.name,
                "a row is not a whole number of blocks",
                saw=f"{elements} elements, {self.elements} to a block",
                hint="take a format of smaller blocks (Q8_0, Q4_0), or keep the tensor unquantized",
            )
        return elements // self.elements * self.bytes

    def dequantize(self, data: Bytes) -> Floats:
        """The numbers: float32 [..., n·elements] of uint8 [..., n·bytes].

        Raises:
            DTypeError: the data are not bytes.
            ShapeError: the last axis is not a whole number of blocks.
        """
        if data.dtype != np.uint8:
            raise DTypeError(self.name, "blocks are bytes", saw=str(data.dtype), hint="use uint8")
        if data.ndim == 0 or data.shape[-1] % self.bytes:
            raise ShapeError(
                self.name,
                "the bytes are not a whole number of blocks",
                saw=f"shape {data.shape}, {self.bytes} bytes to a block",
            )
        blocks = np.ascontiguousarray(data).reshape(-1).view(self.layout)
        numbers = np.empty((blocks.size, self.elements), np.float32)
        step = _PIECE // self.elements
        # Scales come from files: they may be infinite, or no numbers at all.
        with np.errstate(all="ignore"):
            for at in range(0, blocks.size, step):
                numbers[at : at + step] = self.decode(blocks[at : at + step])
        return numbers.reshape(*data.shape[:-1], data.shape[-1] // self.bytes * self.elements)

    def quantize(self, x: NDArray[Any]) -> Bytes:
        """Blocks of numbers: uint8 [..., n·bytes] of floats [..., n·elements].

        Raises:
            ShapeError: a row is not a whole number of blocks.
            NumericError: a number is not finite, or a scale exceeds float16.
        """
        row = self.row_bytes(x.shape[-1])
        numbers = np.ascontiguousarray(x, np.float32).reshape(-1, self.elements)
        blocks, step = np.empty(len(numbers), self.layout), _PIECE // self.elements
        with np.errstate(all="ignore"):
            for at in range(0, len(numbers), step):
                piece = numbers[at : at + step]
                self._check_finite(piece, "a number")
                blocks[at : at + step] = self.encode(piece, self.layout)
        for field in self.layout.names or ():
            if self.layout[field] == np.float16:
                self._check_finite(blocks[field], "a block's scale in float16")
        return blocks.view(np.uint8).reshape(*x.shape[:-1], row)

    def _check_finite(self, numbers: NDArray[Any], what: str) -> None:
        if not np.isfinite(numbers).all():
            raise NumericError(
                self.name,
                f"{what} is not finite",
                saw=f"{np.count_nonzero(~np.isfinite(numbers))} of {numbers.size}",
                hint="keep this tensor in float32 or bfloat16",
            )


@dataclass(frozen=True, eq=False)
class BlockTensor:
    """A tensor whose rows are blocks.

    Attributes:
        format: of the blocks.
        shape: of the numbers.
        data: uint8 [*shape[:-1], bytes of a row], perhaps mapped from a file.
    """

    format: BlockFormat
    shape: tuple[int, ...]
    data: Bytes

    def __post_init__(self) -> None:
        """Check that bytes and shape agree."""
        wanted = *self.shape[:-1], self.format.row_bytes(self.shape[-1])
        if self.data.dtype != np.uint8 or self.data.shape != wanted:
            raise ShapeError(
                self.format.name,
                "the bytes do not fit the shape",
                saw=f"{self.data.dtype} {self.data.shape} for {self.shape}",
                hint=f"give uint8 {wanted}",
            )

    @property
    def ndim(self) -> int:
        """Axes of the numbers."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the blocks in bytes."""
        return self.data.nbytes

    def dequantize(self) -> Floats:
        """The numbers, float32 of `shape`."""
        return self.format.dequantize(self.data)

    def __getitem__(self, rows: Any) -> BlockTensor:
        """Some rows: an index, a slice or an array of indices over the leading axes."""
        data = self.data[rows]
        return BlockTensor(self.format, (*data.shape[:-1], self.shape[-1]), data)
