"""Transforms written for torchvision, which work on Pillow's images."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treadle.base.array import Array
from treadle.base.errors import ShapeError
from treadle.data.transform.vision_transform import VisionTransform, checked_image


class TorchTransformCompose(VisionTransform):
    """Runs functions of Pillow images, such as torchvision's transforms, one after the other.

    An image (H, W, C) with 1 or 3 channels (blue, green, red) becomes an 8-bit Pillow image (grey
    or RGB); what comes out of the last function becomes an array of the same order of channels
    again. Functions that return tensors (ToTensor) may come last.

    Args:
        transforms: functions from image to image.
        order: see `VisionTransform`; of its kinds only "image" has a rule.

    Raises:
        ImportError: Pillow is not installed.
    """

    def __init__(
        self, transforms: Sequence[Callable[[Any], Any]], *, order: Sequence[str] | None = None
    ) -> None:
        super().__init__(order)
        self.transforms = list(transforms)
        _pillow()

    def _apply_image(self, image: Any) -> Array:
        array = checked_image("TorchTransformCompose", image)
        if array.shape[2] not in (1, 3):
            raise ShapeError(
                "TorchTransformCompose", "an image has 1 or 3 channels", saw=f"{array.shape}"
            )
        rgb = np.ascontiguousarray(array[:, :, ::-1].clip(0, 255).astype(np.uint8))
        result = _pillow().fromarray(rgb[:, :, 0] if rgb.shape[2] == 1 else rgb)
        for transform in self.transforms:
            result = transform(result)
        return _reversed_channels(np.asarray(result))


def _reversed_channels(image: Array) -> Array:
    """RGB as BGR, channels first or last; a grey image gets its axis back."""
    if image.ndim == 2:
        return np.array(image[:, :, np.newaxis])
    if image.shape[2] == 3:
        return np.ascontiguousarray(image[:, :, ::-1])
    return np.ascontiguousarray(image[::-1]) if image.shape[0] == 3 else np.array(image)


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise ImportError(
            "TorchTransformCompose works on Pillow's images, and Pillow is not installed\n"
            "  hint: pip install pillow",
            name="PIL",
        ) from error
