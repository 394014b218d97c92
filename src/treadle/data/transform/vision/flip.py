"""Transforms that mirror the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from treadle.data.transform.vision import functional as F
from treadle.data.transform.vision_transform import VisionTransform, move_points


class _RandomFlip(VisionTransform):
    """Mirrors everything along one axis, or nothing."""

    _axis = 0
    _flip_code = 0
    _flipped = False
    _h = _w = 0

    def __init__(self, prob: float = 0.5, *, order: Sequence[str] | None = None) -> None:
        super().__init__(order)
        # Subclasses of MegEngine's programs pass their order here, and set `prob` themselves.
        given: Any = prob
        if isinstance(given, (int, float)) and not 0 <= given <= 1:
            raise ValueError(f"prob should be in [0, 1], but got prob={prob}")
        self.prob = prob

    def apply(self, input: Any) -> Any:
        self._flipped = bool(np.random.random() < self.prob)
        # Under MegEngine's names, which subclasses in programs read.
        self._h, self._w = self._get_image(input).shape[:2]
        return super().apply(input)

    def _apply_image(self, image: Any) -> Any:
        return F.flip(image, flipCode=self._flip_code) if self._flipped else image

    def _apply_mask(self, mask: Any) -> Any:
        return F.flip(mask, flipCode=self._flip_code) if self._flipped else mask

    def _apply_coords(self, coords: Any) -> Any:
        if not self._flipped:
            return coords
        moved = move_points(type(self).__name__, coords, (0, 0))
        moved[:, self._axis] = (self._w, self._h)[self._axis] - moved[:, self._axis]
        return moved


class RandomHorizontalFlip(_RandomFlip):
    """Mirrors left and right with a given probability: x becomes width - x.

    Keypoints are moved, not renamed: the left eye is still called so on the right.

    Args:
        prob: probability of mirroring.
        order: see `VisionTransform`.

    Raises:
        ValueError: `prob` is not a probability.
    """

    _axis = 0
    _flip_code = 1


class RandomVerticalFlip(_RandomFlip):
    """Mirrors top and bottom with a given probability: y becomes height - y.

    Args:
        prob: probability of mirroring.
        order: see `VisionTransform`.

    Raises:
        ValueError: `prob` is not a probability.
    """

    _axis = 1
    _flip_code = 0
