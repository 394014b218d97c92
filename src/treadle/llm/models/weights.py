"""Tensors of a checkpoint, taken by name with the shape that the config says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

import ml_dtypes
import numpy as np

import treadle.functional as F
from treadle.base.array import Array
from treadle.base.blocks import BlockTensor
from treadle.base.errors import CheckpointError
from treadle.base.files.strict_json import shorten
from treadle.llm.models.adopt import adopted
from treadle.llm.models.declared import Names, Norm, Piece
from treadle.llm.models.matrices import (
    Adapt,
    Dense,
    Matrix,
    Quantized,
    TokenTable,
    WeightMatrix,
    quantized,
)
from treadle.ops.norm import RmsNorm
from treadle.tensor import Tensor

ELEMENTS: Mapping[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
"""Element types that models compute in."""

_LAYER = re.compile(r"\blayers?\.\d+\.")
_DERIVED = re.compile(r"rotary_emb\.inv_freq$")


class Checkpoint(Protocol):
    """The interface of checkpoints that models are built from; `treadle.llm.files` reads files as
    such.
    """

    @property
    def config(self) -> Mapping[str, Any]:
        """The values of config.json."""

    @property
    def pooling(self) -> Mapping[str, Any]:
        """Pooling of encoders: `mode`, how rows become one, and whether to `normalize` it."""

    def names(self) -> Iterable[str]:
        """Return the names of all tensors."""

    def tensor(self, name: str) -> Array | BlockTensor:
        """One of them."""

    def release(self, name: str) -> None:
        """Release what was read of a file for a tensor."""


class CheckpointWeights:
    """Takes tensors from a checkpoint and knows which were taken.

    Args:
        checkpoint: where they lie.
        names: under which names.
        dtype: their element type once they are taken, a key of `ELEMENTS`.
        stored: matrices of quantized blocks stay what they are, as far as kernels read them.
        pieces: what their products round pieces of texts to; see `Quantized`.

    Attributes:
        nbytes: of all that was taken to compute with.
        rounds_pieces: whether attention of pieces rounds to bfloat16, too.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        names: Names,
        dtype: str,
        *,
        stored: bool = False,
        pieces: str = "int16",
    ) -> None:
        self._stored = stored
        self._pieces = pieces
        self.rounds_pieces = stored and pieces == "bfloat16"
        self._checkpoint = checkpoint
        self._names = names
        self._there = frozenset(checkpoint.names())
        self._taken: set[str] = set()
        self.dtype = dtype
        self.nbytes = 0

    def has(self, name: str) -> bool:
        """Return whether there is such a tensor, under any of its names."""
        return any(piece.name in self._there for piece in self._names(name))

    def product(self, name: str, rows: int, columns: int) -> WeightMatrix:
        """Return the product with this matrix."""
        piece = self._find(name)
        first = 0 if piece.rows is None else piece.rows.start or 0
        return WeightMatrix(piece.name.removesuffix(".weight"), first, rows, columns)

    def rows(self, name: str) -> int:
        """Return the number of rows of a tensor that no config tells of."""
        return int(self._checkpoint.tensor(self._find(name).name).shape[0])

    def take(self, name: str, *shape: int) -> Tensor:
        """A tensor of this shape."""
        piece, found = self._read(name)
        array = _widened(found)
        if piece.transposed:
            array = np.swapaxes(array, -1, -2)
        array = _part(array, piece)
        if array.shape != shape:
            raise _mismatch(name, piece, found, shape)
        made = adopted(np.array(array, ELEMENTS[self.dtype], order="C"))
        self._checkpoint.release(piece.name)
        self.nbytes += made.size * made.dtype.itemsize
        return made

    def matrix(self, name: str, *shape: int) -> Matrix:
        """A matrix to multiply with; with three extents one of every expert."""
        blocks = self._blocks(name, shape)
        found = None if blocks is None else quantized(blocks, self._pieces)
        if found is None:
            return Dense(self.take(name, *shape))
        self._checkpoint.release(self._find(name).name)
        self.nbytes += found.panels.size
        return found

    def table(self, name: str, vocabulary: int, features: int) -> TokenTable:
        """Vectors of tokens."""
        blocks = self._blocks(name, (vocabulary, features))
        if blocks is None:
            return TokenTable(self.take(name, vocabulary, features))
        return TokenTable(blocks=blocks)

    def _blocks(self, name: str, shape: tuple[int, ...]) -> BlockTensor | None:
        """Blocks that stay blocks."""
        piece, found = self._read(name) if self._stored else (None, None)
        if piece is None or not isinstance(found, BlockTensor) or piece.transposed:
            return None
        data = _part(found.data, piece)
        rows = (*data.shape[:-1], found.shape[-1])
        if rows != shape:
            raise _mismatch(name, piece, found, shape)
        return BlockTensor(found.format, rows, data)

    def _read(self, name: str) -> tuple[Piece, Array | BlockTensor]:
        piece = self._find(name)
        self._taken.add(piece.name)
        return piece, self._checkpoint.tensor(piece.name)

    def matrices(self, name: str, count: int, *shape: int) -> Matrix:
        """A matrix of every expert; `name` has {} in the place of the number."""
        together = name.replace(".{}", "")
        if self.has(together):
            return self.matrix(together, count, *shape)
        found = [self.matrix(name.format(i), *shape) for i in range(count)]
        first = found[0]
        same = [m for m in found if isinstance(m, Quantized)]
        if (
            isinstance(first, Quantized)
            and len({m.format for m in same}) == 1 == len(same) // count
        ):
            return replace(first, panels=adopted(np.stack([m.panels.numpy() for m in same])))
        return Dense(F.stack([self.take(name.format(i), *shape) for i in range(count)]))

    def each(self, name: str, count: int, *shape: int) -> Tensor:
        """A tensor of every expert, stacked; `name` has {} in the place of the number."""
        together = name.replace(".{}", "")
        if self.has(together):
            return self.take(together, count, *shape)
        return F.stack([self.take(name.format(i), *shape) for i in range(count)])

    def _find(self, name: str) -> Piece:
        asked = self._names(name)
        for piece in asked:
            if piece.name in self._there:
                return piece
        known = ", ".join(map(shorten, sorted(self._there)[:4]))
        others = [p.name for p in asked if p.name != name]
        problem = f"is missing{', as ' if others else ''}{' or '.join(others)}"
        hint = "the config belongs to another model, or a part of this one is not there"
        saw = f"{len(self._there)} tensors: {known}, ..."
        raise CheckpointError(name, problem, saw=saw, hint=hint)

    def check_all_taken(self) -> None:
        """Raise where layers have tensors that the model has no use for."""
        left = sorted(
            n for n in self._there - self._taken if _LAYER.search(n) and not _DERIVED.search(n)
        )
        if left:
            raise CheckpointError(
                left[0],
                f"and {len(left) - 1} more tensors have no place in the model of this config",
                saw=", ".join(map(shorten, left[:4])),
                hint="the config belongs to another model",
            )

    def release(self) -> None:
        """Release all memory that was read of files: the system reads ahead what lies around."""
        for name in self._there:
            self._checkpoint.release(name)


def _part(array: Array, piece: Piece) -> Array:
    """The rows that a piece names."""
    rows = slice(None) if piece.rows is None else piece.rows
    part: Array = array[(slice(None),) * piece.axis + (rows,)]
    return part


def _mismatch(
    name: str, piece: Piece, found: Array | BlockTensor, shape: tuple[int, ...]
) -> CheckpointError:
    return CheckpointError(
        name,
        "has another shape than the config says",
        saw=f"{piece.name}: {tuple(found.shape)}, wanted {shape}",
        hint="the config belongs to another model, or the file is damaged",
    )


def _widened(found: Array | BlockTensor) -> Array:
    if not isinstance(found, BlockTensor):
        return found
    return found.format.dequantize(found.data)


class Linear:
    """x W^T + b."""

    def __init__(
        self, weights: CheckpointWeights, name: str, rows: int, columns: int, bias: bool
    ) -> None:
        self.weight = weights.matrix(f"{name}.weight", rows, columns)
        self.bias = weights.take(f"{name}.bias", rows) if bias else None
        self.product = weights.product(f"{name}.weight", rows, columns)

    def __call__(self, x: Tensor, adapt: Adapt | None = None) -> Tensor:
        """(..., rows)."""
        y = self.weight.times(x)
        y = y if self.bias is None else y + self.bias
        return y if adapt is None else adapt(self.product, x, y)


class RootMeanSquare:
    """A norm with its weight."""

    def __init__(self, weights: CheckpointWeights, name: str, features: int, norm: Norm) -> None:
        weight = weights.take(f"{name}.weight", features)
        self.weight = (
            (weight.astype("float32") + 1.0).astype("float32") if norm.plus_one else weight
        )
        self._op = RmsNorm(1, norm.eps)
        self._wide = norm.plus_one

    def __call__(self, x: Tensor) -> Tensor:
        """Return x over the root mean square of its last axis, times the weight, in x's dtype."""
        given = x.astype("float32") if self._wide else x
        y: Tensor = given.apply(self._op, (given, self.weight))[0]
        return y.astype(x.dtype)
