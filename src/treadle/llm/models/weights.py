"""Tensors of a checkpoint, taken by name with the shape that the config says."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import ml_dtypes
import numpy as np

import treadle.functional as F
from treadle.base.array import Array
from treadle.base.blocks import BlockTensor
from treadle.base.blocks.panels import ROWS, has_panels, panel_bytes
from treadle.base.errors import CheckpointError
from treadle.base.files.strict_json import shorten
from treadle.engine.devices.names import default_device
from treadle.llm.models.adopt import adopted
from treadle.llm.models.declared import Names, Norm, Piece
from treadle.llm.models.matrices import (
    Adapt,
    Dense,
    Matrix,
    Quantized,
    TokenTable,
    WeightMatrix,
)
from treadle.llm.models.packing import Packer
from treadle.ops.norm import RmsNorm
from treadle.tensor import Tensor

ELEMENTS: Mapping[str, Any] = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16}
"""Element types that models compute in."""
_NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
"""Element types that products widen while they read."""

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

    def release(self, name: str, rows: slice | None = None) -> None:
        """Release what was read of a file for a tensor, or for these of its rows, counted through
        all axes but the last.
        """


@dataclass(frozen=True)
class _BlockRows:
    """Rows of blocks in a tensor of the checkpoint; `first` is None where others lie between."""

    name: str
    first: int | None
    blocks: BlockTensor


class CheckpointWeights:
    """Takes tensors from a checkpoint and knows which were taken.

    Args:
        checkpoint: where they lie.
        names: under which names.
        dtype: their element type once they are taken, a key of `ELEMENTS`.
        stored: matrices of quantized blocks, and of floats of 16 bits, stay what they are, as far
            as kernels read them.
        pieces: what their products round pieces of texts to; see `Quantized`.
        packer: what fills their panels: they are read at the end of its block.

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
        packer: Packer,
    ) -> None:
        self._packer = packer
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

    def expert_products(
        self, name: str, count: int, shape: tuple[int, int], used: int
    ) -> list[WeightMatrix]:
        """Return the products with the matrices of experts, none where one tensor holds them all,
        or several matrices of an expert; see `matrices`.
        """
        if self.has(name.replace(".{}", "")) or self._find(name.format(0)).rows is not None:
            return []
        found = [self.product(name.format(i), *shape) for i in range(count)]
        return [replace(p, share=used / count) for p in found]

    def rows(self, name: str) -> int:
        """Return the number of rows of a tensor that no config tells of."""
        return int(self._checkpoint.tensor(self._find(name).name).shape[0])

    def take(self, name: str, *shape: int, widened: bool = True) -> Tensor:
        """A tensor of this shape; unless `widened`, stored floats of 16 bits have those."""
        piece, found = self._read(name)
        array = _widened(found)
        if piece.transposed:
            array = np.swapaxes(array, -1, -2)
        array = _part(array, piece)
        if array.shape != shape:
            raise _mismatch(name, piece, found, shape)
        narrow = self._stored and not widened and array.dtype in _NARROW
        made = adopted(np.array(array, array.dtype if narrow else ELEMENTS[self.dtype], order="C"))
        self._checkpoint.release(piece.name)
        self.nbytes += made.size * made.dtype.itemsize
        return made

    def matrix(self, name: str, *shape: int) -> Matrix:
        """A matrix to multiply with; with three extents one of every expert."""
        found = self._blocks(name, shape)
        if found is not None:
            return self._packed([found])
        return Dense(self.take(name, *shape, widened=False))

    def below(self, rows: Mapping[str, int], columns: int) -> Quantized | None:
        """One matrix of several below each other, where their panels are whole and of one format.

        Args:
            rows: of matrices, by their names.
            columns: those of all.
        """
        if len(rows) < 2 or any(count % ROWS for count in list(rows.values())[:-1]):
            return None
        found = self._alike({name: (count, columns) for name, count in rows.items()})
        return None if found is None else self._packed(found)

    def matrices(self, name: str, count: int, *shape: int) -> Matrix:
        """A matrix of every expert; `name` has {} in the place of the number."""
        together = name.replace(".{}", "")
        if self.has(together):
            return self.matrix(together, count, *shape)
        found = self._alike({name.format(i): shape for i in range(count)})
        if found is None:
            parts = [self.take(name.format(i), *shape, widened=False) for i in range(count)]
            return Dense(F.stack(parts))
        return self._packed(found, stacked=True)

    def _alike(self, shapes: Mapping[str, tuple[int, ...]]) -> list[_BlockRows] | None:
        """Matrices of blocks; None where some are none, or formats differ."""
        found: list[_BlockRows] = []
        for name, shape in shapes.items():
            part = self._blocks(name, shape)
            if part is None or part.blocks.format != (found or [part])[0].blocks.format:
                return None
            found.append(part)
        return found

    def _packed(self, parts: Sequence[_BlockRows], *, stacked: bool = False) -> Quantized:
        """Panels of matrices below each other or, if `stacked`, along an axis before."""
        form, shape = parts[0].blocks.format.name, parts[0].blocks.shape
        each = [(part, at) for part in parts for at in np.ndindex(shape[:-2])]
        ends = np.cumsum([0, *(-(-p.blocks.shape[-2] // ROWS) for p, _ in each)]).tolist()
        bytes_ = panel_bytes(form, parts[0].blocks.data.shape[-1])
        target = np.empty((ends[-1], bytes_), np.uint8)
        for i, (part, at) in enumerate(each):
            release = partial(self._release_rows, part, sum(at))
            self._packer.pack(form, part.blocks.data[at], target[ends[i] : ends[i + 1]], release)
        self.nbytes += target.size
        if not default_device().on_host:  # It copies what is there now.
            self._packer.wait()
        rows = shape[-2] if stacked else sum(part.blocks.shape[-2] for part in parts)
        stack = (len(parts),) if stacked else shape[:-2]
        panels = adopted(target.reshape(*stack, -1, bytes_))
        return Quantized(panels, form, rows, self._pieces)

    def _release_rows(self, part: _BlockRows, matrix: int, rows: slice) -> None:
        if part.first is not None:
            first = part.first + matrix * part.blocks.shape[-2]
            self._checkpoint.release(part.name, slice(first + rows.start, first + rows.stop))

    def table(
        self, name: str, vocabulary: int, features: int, head: Matrix | None = None
    ) -> TokenTable:
        """Vectors of tokens; `head` is the same matrix, where one multiplies with it."""
        if isinstance(head, Dense):
            return TokenTable(head.weight, self.dtype)
        if head is not None and default_device().on_host:
            return TokenTable(head=head)
        found = self._blocks(name, (vocabulary, features))
        if found is None:
            return TokenTable(self.take(name, vocabulary, features, widened=False), self.dtype)
        release = partial(self._checkpoint.release, found.name)
        return TokenTable(blocks=found.blocks, release=release)

    def _blocks(self, name: str, shape: tuple[int, ...]) -> _BlockRows | None:
        """Blocks that stay blocks, since kernels read them."""
        piece, found = self._read(name) if self._stored else (None, None)
        if piece is None or not isinstance(found, BlockTensor) or piece.transposed:
            return None
        data = _part(found.data, piece)
        rows = (*data.shape[:-1], found.shape[-1])
        if rows != shape:
            raise _mismatch(name, piece, found, shape)
        blocks = BlockTensor(found.format, rows, data)
        first: int | None = 0
        if piece.rows is not None:
            together = piece.rows.step in (None, 1) and len(rows) == 2
            first = piece.rows.start or 0 if together else None
        return _BlockRows(piece.name, first, blocks) if has_panels(blocks) else None

    def _read(self, name: str) -> tuple[Piece, Array | BlockTensor]:
        piece = self._find(name)
        self._taken.add(piece.name)
        return piece, self._checkpoint.tensor(piece.name)

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
