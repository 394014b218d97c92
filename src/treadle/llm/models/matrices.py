"""Matrices that activations are multiplied with: of numbers, or of quantized blocks."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

import treadle.functional as F
from treadle.base.array import Array
from treadle.base.blocks import BlockTensor
from treadle.base.blocks.panels import rows_of_panels
from treadle.tensor import Tensor

PIECE = 32
"""Neighboring tokens from which on they count as a piece of a text: one of a prompt."""


@dataclass(frozen=True)
class Dense:
    """A matrix (rows, columns) of numbers; with an axis before for those of experts.

    Floats of 16 bits are widened while products read them, exactly.
    """

    weight: Tensor

    def times(self, x: Tensor) -> Tensor:
        """x W^T: (..., rows)."""
        return F.linear(x, self.weight)

    def chosen(self, x: Tensor, experts: Tensor, *, many: bool) -> Tensor:
        """x (tokens, 1 or used, columns) times the matrices that were chosen: (..., rows)."""
        y = F.matmul(F.expand_dims(x, 2), self.weight[experts], transpose_b=True)
        return F.squeeze(y, 2)


@dataclass(frozen=True)
class Quantized:
    """A matrix of quantized blocks, in panels; with an axis before for those of experts.

    `pieces` is what activations are rounded to where many neighboring tokens of a text are read;
    see `F.block_linear`. Elsewhere they are rounded to integers of 16 bits.
    """

    panels: Tensor
    format: str
    rows: int
    pieces: str

    def times(self, x: Tensor) -> Tensor:
        """x W^T: (..., rows), x being (batch, time, columns) or less."""
        many = x.ndim == 3 and x.shape[1] >= PIECE
        activations = self.pieces if many else "int16"
        return F.block_linear(x, self.panels, self.format, self.rows, activations=activations)

    def chosen(self, x: Tensor, experts: Tensor, *, many: bool) -> Tensor:
        """x (tokens, 1 or used, columns) times the matrices that were chosen: (..., rows).

        `many` says that the tokens are those of pieces.
        """
        kind = self.pieces if many else "int16"
        return F.block_experts(x, self.panels, experts, self.format, self.rows, activations=kind)


Matrix: TypeAlias = Dense | Quantized


@dataclass(frozen=True)
class WeightMatrix:
    """Matrix of a product: some rows of a module, as files name it.

    Attributes:
        share: of the tokens, that it is multiplied with; experts are chosen by some.
    """

    module: str
    first: int
    rows: int
    columns: int
    share: float = 1.0


_EXPERT = re.compile(r"\.experts\.(\d{1,6})\.")


def expert_of(module: str) -> tuple[str, int] | None:
    """Return a module's name with {} for its expert's number, and that; None for other modules."""
    found = _EXPERT.search(module)
    return None if found is None else (_EXPERT.sub(".experts.{}.", module), int(found[1]))


@dataclass(frozen=True)
class Routing:
    """Experts that rows of products meet.

    Attributes:
        experts: int32 (tokens, used), of rows (tokens, 1 or used, columns); or, `every` expert
            meeting all tokens, (experts, 1), of rows (1 or experts, tokens, columns).
    """

    experts: Tensor
    every: bool = False

    def meets(self, numbers: Array) -> Tensor:
        """float32, 1 where a row meets an expert of `numbers`: (..., numbers)."""
        wanted = Tensor(numbers.astype(np.int32))
        there: Tensor = F.equal(F.expand_dims(self.experts, -1), wanted)
        return there.astype("float32")


class Adapt(Protocol):
    """Changes of products, from their operands and themselves."""

    def __call__(self, product: WeightMatrix, x: Tensor, y: Tensor, /) -> Tensor:
        """Return y = x W^T, (..., rows), changed."""

    def of_experts(
        self, products: Sequence[WeightMatrix], x: Tensor, y: Tensor, routing: Routing, /
    ) -> Tensor:
        """Return y changed, whose rows meet different matrices: those of experts, in order."""


class Projection:
    """Several products of one operand.

    Args:
        matrices: one for each, or one of all rows below each other.
        biases: those of the products.
        products: what they are of.
    """

    def __init__(
        self,
        matrices: Sequence[Matrix] | Quantized,
        biases: Sequence[Tensor | None],
        products: Sequence[WeightMatrix],
    ) -> None:
        self.products = tuple(products)
        self._biases = tuple(biases)
        self._whole = matrices if isinstance(matrices, Quantized) else None
        self._matrices = () if isinstance(matrices, Quantized) else tuple(matrices)

    def __call__(self, x: Tensor, adapt: Adapt | None = None) -> list[Tensor]:
        """(..., rows) for each matrix."""
        if self._whole is not None:
            ends = np.cumsum([p.rows for p in self.products])[:-1].tolist()
            found = list(F.split(self._whole.times(x), ends, axis=-1))
        else:
            found = [m.times(x) for m in self._matrices]
        found = [
            y if bias is None else y + bias for y, bias in zip(found, self._biases, strict=True)
        ]
        if adapt is None:
            return found
        return [adapt(product, x, y) for product, y in zip(self.products, found, strict=True)]


@dataclass(frozen=True)
class TokenTable:
    """Vectors of tokens: numbers that programs look up, or blocks that are widened before.

    Blocks are those of the head, which multiplies with the same matrix, or of a file: of a mapped
    one only the pages of tokens that occur are read, and `release` lets them go.
    """

    numbers: Tensor | None = None
    dtype: str = "float32"
    head: Quantized | None = None
    blocks: BlockTensor | None = None
    release: Callable[[], None] = lambda: None

    def given(self, tokens: Array) -> Tensor:
        """Return the rows of a program's int32 tokens."""
        if self.head is not None:
            return Tensor(rows_of_panels(self.head.format, self.head.panels.numpy(), tokens))
        if self.blocks is not None:
            found = self.blocks.format.dequantize(self.blocks.data[tokens])
            self.release()
            return Tensor(found)
        return Tensor(tokens)

    def vectors(self, given: Tensor) -> Tensor:
        """Return the tokens' vectors in a program, (batch, time, features)."""
        if self.numbers is None:
            return given
        found: Tensor = F.embedding(given, self.numbers)
        return found.astype(self.dtype)
