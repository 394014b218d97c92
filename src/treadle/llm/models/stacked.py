"""Adapters at inference: every row of a call has one of several, or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import treadle.functional as F
from treadle.llm.models.matrices import Adapt, Routing, WeightMatrix, expert_of
from treadle.tensor import Tensor

Floats = npt.NDArray[np.floating[Any]]
Ints = npt.NDArray[np.integer[Any]]
Pairs = Mapping[str, tuple[Floats, Floats]]
"""A and B of modules, B with its scale: B (A x) is what is added."""


class Stacked:
    """Several adapters beside each other; number 0 adds nothing.

    Args:
        adapters: number 1 and those that follow. Ranks may differ: smaller ones are filled up.
    """

    def __init__(self, adapters: Sequence[Pairs]) -> None:
        self.count = len(adapters) + 1
        self.stacks: dict[str, tuple[Tensor, Tensor]] = {}
        self.experts: dict[str, tuple[Tensor, Tensor, Ints]] = {}
        parts: dict[str, list[tuple[int, Floats, Floats]]] = {}
        for module in dict.fromkeys(m for pairs in adapters for m in pairs):
            there = [(i + 1, pairs[module]) for i, pairs in enumerate(adapters) if module in pairs]
            rank = max(len(a) for _, (a, _) in there)
            first, second = there[0][1]
            down = np.zeros((self.count, rank, first.shape[1]), np.float32)
            up = np.zeros((self.count, second.shape[0], rank), np.float32)
            for i, (a, b) in there:
                down[i, : len(a)], up[i, :, : len(a)] = a, b
            expert = expert_of(module)
            if expert is None:
                self.stacks[module] = (Tensor(down), Tensor(up))
            else:
                parts.setdefault(expert[0], []).append((expert[1], down, up))
        for part, found in parts.items():
            numbers = np.repeat([i for i, *_ in found], [d.shape[1] for _, d, _ in found])
            down = np.concatenate([d for _, d, _ in found], 1)
            up = np.concatenate([u for *_, u in found], 2)
            self.experts[part] = (Tensor(down), Tensor(up), numbers)

    def chosen(self, which: Tensor) -> Adapt:
        """Return the changes of products by the adapters of int32 (batch,), in a program."""
        return _Chosen(self, which)


@dataclass(frozen=True)
class _Chosen:
    """Changes of products, by an adapter for each row of a batch."""

    stacked: Stacked
    which: Tensor

    def __call__(self, product: WeightMatrix, x: Tensor, y: Tensor, /) -> Tensor:
        """Return y with what each row's adapter adds."""
        pair = self.stacked.stacks.get(product.module)
        if pair is None:
            return y
        down, up = pair
        if product.rows != up.shape[1]:
            up = up[:, product.first : product.first + product.rows]
        inner = F.matmul(x.astype("float32"), down[self.which], transpose_b=True)
        more = F.matmul(inner, up[self.which], transpose_b=True)
        return (y.astype("float32") + more).astype(y.dtype)

    def of_experts(
        self, products: Sequence[WeightMatrix], x: Tensor, y: Tensor, routing: Routing, /
    ) -> Tensor:
        """All matrices side by side, and zeros for experts that a row does not meet."""
        expert = expert_of(products[0].module)
        found = None if expert is None else self.stacked.experts.get(expert[0])
        if found is None:
            return y
        (down, up), batch = (m[self.which] for m in found[:2]), self.which.shape[0]
        # Rows of a sequence stand together: its adapter multiplies all of them at once.
        lead = (x.shape[0], batch) if routing.every else (batch,)
        given = F.reshape(x.astype("float32"), (*lead, -1, x.shape[-1]))
        inner = F.matmul(given, down, transpose_b=True)
        inner = F.reshape(inner, (*x.shape[:2], -1)) * routing.meets(found[2])
        lead = (y.shape[0], batch) if routing.every else (batch,)
        more = F.matmul(F.reshape(inner, (*lead, -1, inner.shape[-1])), up, transpose_b=True)
        return (y.astype("float32") + F.reshape(more, y.shape)).astype(y.dtype)
