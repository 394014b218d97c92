"""Transforms of samples: chains, and the vision transforms, imported when first named."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from treadle.data.transform.base import CudaTransform, PseudoTransform, Transform
from treadle.data.transform.compose import Compose

if TYPE_CHECKING:
    from treadle.data.transform import vision
    from treadle.data.transform.vision import (
        BrightnessTransform,
        CenterCrop,
        ColorJitter,
        ContrastTransform,
        GaussianNoise,
        HueTransform,
        Lighting,
        Normalize,
        Pad,
        RandomCrop,
        RandomHorizontalFlip,
        RandomResize,
        RandomResizedCrop,
        RandomVerticalFlip,
        Resize,
        SaturationTransform,
        ShortestEdgeResize,
        ToMode,
        TorchTransformCompose,
        VisionTransform,
    )

__all__ = [
    "BrightnessTransform",
    "CenterCrop",
    "ColorJitter",
    "Compose",
    "ContrastTransform",
    "CudaTransform",
    "GaussianNoise",
    "HueTransform",
    "Lighting",
    "Normalize",
    "Pad",
    "PseudoTransform",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResize",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
    "SaturationTransform",
    "ShortestEdgeResize",
    "ToMode",
    "TorchTransformCompose",
    "Transform",
    "VisionTransform",
    "vision",
]


def __getattr__(name: str) -> Any:
    """Import the vision transforms, and OpenCV with them, when one is first named."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    found = importlib.import_module(f"{__name__}.vision")
    return found if name == "vision" else getattr(found, name)


def __dir__() -> list[str]:
    return __all__
