"""Readers of the field's image datasets; those that decode images need OpenCV."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from treadle.data.dataset.vision.cifar import CIFAR10, CIFAR100
from treadle.data.dataset.vision.meta_vision import VisionDataset
from treadle.data.dataset.vision.mnist import MNIST

if TYPE_CHECKING:
    from treadle.data.dataset.vision.cityscapes import Cityscapes
    from treadle.data.dataset.vision.coco import COCO
    from treadle.data.dataset.vision.folder import ImageFolder
    from treadle.data.dataset.vision.imagenet import ImageNet
    from treadle.data.dataset.vision.objects365 import Objects365
    from treadle.data.dataset.vision.voc import PascalVOC

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "COCO",
    "MNIST",
    "Cityscapes",
    "ImageFolder",
    "ImageNet",
    "Objects365",
    "PascalVOC",
    "VisionDataset",
]

_LATER = {
    "COCO": "coco",
    "Cityscapes": "cityscapes",
    "ImageFolder": "folder",
    "ImageNet": "imagenet",
    "Objects365": "objects365",
    "PascalVOC": "voc",
}


def __getattr__(name: str) -> Any:
    """Import a reader, and OpenCV with it, when it is first named."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return __all__
