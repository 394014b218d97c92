"""Lookup tables."""

from __future__ import annotations

import numpy as np

import treadle.functional as F
from treadle.base.errors import ShapeError
from treadle.module import init
from treadle.module.module import Module
from treadle.module.window import require_size
from treadle.tensor import Parameter, Tensor


class Embedding(Module):
    """Row i of a trainable table for every index i.

    Args:
        num_embeddings: rows of the table.
        embedding_dim: columns; the output's last axis.
        padding_idx, max_norm, norm_type: must be None; MegEngine reserves them too.
        initial_weight: the table to start from, (num_embeddings, embedding_dim).
        freeze: keep gradients from the table.
        name: a name for messages and graphs.

    Parameters: `weight` (num_embeddings, embedding_dim), standard normal.

    Raises:
        ValueError: a reserved argument is used.
        DTypeError: an extent is not an int.
        ShapeError: an extent is negative, or `initial_weight` has another shape.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float | None = None,
        initial_weight: Tensor | None = None,
        freeze: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        require_size(num_embeddings, f"{type(self).__name__}: num_embeddings")
        require_size(embedding_dim, f"{type(self).__name__}: embedding_dim")
        _refuse(padding_idx=padding_idx, max_norm=max_norm, norm_type=norm_type)
        self.padding_idx = padding_idx
        self.max_norm = max_norm
        self.norm_type = norm_type
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.freeze = freeze
        shape = (num_embeddings, embedding_dim)
        if initial_weight is None:
            self.weight = Parameter(np.zeros(shape, np.float32))
            self.reset_parameters()
            return
        if initial_weight.shape != shape:
            saw = f"initial_weight {initial_weight.type}, expected shape {shape}"
            raise ShapeError("Embedding", "the initial weight has another shape", saw=saw)
        self.weight = Parameter(initial_weight)

    def reset_parameters(self) -> None:
        """Draw the table anew."""
        init.normal_(self.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        weight = self.weight.detach() if self.freeze else self.weight
        return F.embedding(inputs, weight)

    @classmethod
    def from_pretrained(
        cls,
        embeddings: Tensor,
        freeze: bool = True,
        padding_idx: int | None = None,
        max_norm: float | None = None,
        norm_type: float | None = None,
    ) -> Embedding:
        """A layer around a table (rows, columns) that exists already, frozen by default."""
        if embeddings.ndim != 2:
            saw = f"embeddings {embeddings.type}"
            raise ShapeError("from_pretrained", "expects a table with 2 axes", saw=saw)
        rows, columns = embeddings.shape
        return cls(rows, columns, padding_idx, max_norm, norm_type, embeddings, freeze)

    def _module_info_string(self) -> str:
        return f"{self.num_embeddings}, {self.embedding_dim}"


def _refuse(**reserved: float | None) -> None:
    for name, value in reserved.items():
        if value is not None:
            raise ValueError(f"Embedding: {name} is not supported, got {value!r}")
