"""Adapters at inference: every row of a call has one of several, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

import treadle.functional as F
from treadle.llm.models.matrices import Adapt, WeightMatrix
from treadle.tensor import Tensor

Floats = npt.NDArray[np.floating[Any]]
Pairs = Mapping[str, tuple[Floats, Floats]]
"""A and B of modules, B with its scale: B (A x) is what is added."""


class Stacked:
    """Several adapters beside each other; number 0 adds nothing.

    Args:
        adapters: number 1 and those that follow. Ranks may differ: smaller ones are filled up.
    """

    def __init__(self, adapters: Sequence[Pairs]) -> None:
        self.count = len(adapters) + 1
        self._stacks: dict[str, tuple[Tensor, Tensor]] = {}
        for module in dict.fromkeys(m for pairs in adapters for m in pairs):
            there = [(i + 1, pairs[module]) for i, pairs in enumerate(adapters) if module in pairs]
            rank = max(len(a) for _, (a, _) in there)
            first, second = there[0][1]
            down = np.zeros((self.count, rank, first.shape[1]), np.float32)
            up = np.zeros((self.count, second.shape[0], rank), np.float32)
            for i, (a, b) in there:
                down[i, : len(a)], up[i, :, : len(a)] = a, b
            self._stacks[module] = (Tensor(down), Tensor(up))

    def chosen(self, which: Tensor) -> Adapt:
        """Return the changes of products by the adapters of int32 (batch,), in a program."""

        def adapt(product: WeightMatrix, x: Tensor, y: Tensor) -> Tensor:
            pair = self._stacks.get(product.module)
            if pair is None:
                return y
            down, up = pair
            if product.rows != up.shape[1]:
                up = up[:, product.first : product.first + product.rows]
            inner = F.matmul(x.astype("float32"), down[which], transpose_b=True)
            more = F.matmul(inner, up[which], transpose_b=True)
            return (y.astype("float32") + more).astype(y.dtype)

        return adapt
