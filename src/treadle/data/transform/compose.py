"""A chain of transforms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.data.transform.base import Transform
from treadle.data.transform.vision_transform import VisionTransform


class Compose(VisionTransform):
    """Transforms applied one after the other.

    Args:
        transforms: the chain, first one first.
        batch_compose: run each transform over the whole batch before the next one starts,
            instead of the whole chain over one sample after the other.
        shuffle_indices: groups of 1-based positions in the chain; the transforms of a group swap
            places at random for every sample. Draws from NumPy's global generator.
        order: names of a sample's fields ("image", "mask", ...), handed to every transform; if
            None, each keeps its own.

    Raises:
        ValueError: `shuffle_indices` with `batch_compose`, or a position outside the chain.
    """

    def __init__(
        self,
        transforms: Sequence[Transform] = (),
        batch_compose: bool = False,
        shuffle_indices: Sequence[Sequence[int]] | None = None,
        *,
        order: Sequence[str] | None = None,
    ) -> None:
        self.transforms = list(transforms)
        self.batch_compose = batch_compose
        self.shuffle_indices = [tuple(group) for group in shuffle_indices or ()]
        if self.shuffle_indices and batch_compose:
            raise ValueError("Compose cannot shuffle transforms that run over the whole batch")
        for position in (place for group in self.shuffle_indices for place in group):
            if not 1 <= position <= len(self.transforms):
                raise ValueError(
                    f"shuffle_indices counts from 1 to {len(self.transforms)}, got {position}"
                )
        if order is None:
            self.order = ("image",)
        else:
            self.set_order(order)

    def set_order(self, order: Sequence[str]) -> None:
        super().set_order(order)
        for transform in self.transforms:
            transform.set_order(order)

    def _has_rule(self, field: str) -> bool:
        return True  # For the transforms of the chain to say, which may know kinds of their own.

    def apply_batch(self, inputs: Sequence[Any]) -> Sequence[Any]:
        if not self.batch_compose:
            return super().apply_batch(inputs)
        for transform in self.transforms:
            inputs = transform.apply_batch(inputs)
        return inputs

    def apply(self, input: Any) -> Any:
        for transform in self._chain():
            input = transform.apply(input)
        return input

    def _chain(self) -> list[Transform]:
        chain = list(self.transforms)
        for group in self.shuffle_indices:
            for place, source in zip(group, np.random.permutation(group), strict=True):
                chain[place - 1] = self.transforms[source - 1]
        return chain

    def __repr__(self) -> str:
        return f"Compose({', '.join(map(repr, self.transforms))})"
