"""Datasets: indexable ones, streams, arrays in memory, concatenation, and readers of images."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from treadle.data.dataset.array import ArrayDataset, ConcatDataset
from treadle.data.dataset.base import Dataset, MapDataset, StreamDataset

if TYPE_CHECKING:
    from treadle.data.dataset import vision
    from treadle.data.dataset.vision import (
        CIFAR10,
        CIFAR100,
        COCO,
        MNIST,
        Cityscapes,
        ImageFolder,
        ImageNet,
        Objects365,
        PascalVOC,
        VisionDataset,
    )

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "COCO",
    "MNIST",
    "ArrayDataset",
    "Cityscapes",
    "ConcatDataset",
    "Dataset",
    "ImageFolder",
    "ImageNet",
    "MapDataset",
    "Objects365",
    "PascalVOC",
    "StreamDataset",
    "VisionDataset",
    "vision",
]


def __getattr__(name: str) -> Any:
    """Import a reader when it is first named."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    found = importlib.import_module(f"{__name__}.vision")
    return found if name == "vision" else getattr(found, name)


def __dir__() -> list[str]:
    return __all__
