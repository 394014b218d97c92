"""Layers and their base class: `import treadle.module as M`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.base import spelling
from treadle.module import init
from treadle.module.activation import GELU, LeakyReLU, PReLU, ReLU, Sigmoid, SiLU, Softmax
from treadle.module.batchnorm import BatchNorm1d, BatchNorm2d
from treadle.module.conv import Conv1d, Conv2d, Conv3d
from treadle.module.conv_transpose import ConvTranspose2d, ConvTranspose3d
from treadle.module.dropout import Dropout
from treadle.module.elemwise import Elemwise
from treadle.module.embedding import Embedding
from treadle.module.identity import Identity
from treadle.module.linear import Linear
from treadle.module.module import Module
from treadle.module.normalization import (
    GeneralNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LocalResponseNorm,
)
from treadle.module.padding import Pad
from treadle.module.pooling import AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool2d, MaxPool2d
from treadle.module.rearrange import (
    Concat,
    PixelShuffle,
    SlidingWindow,
    SlidingWindowTranspose,
)
from treadle.module.sequential import Sequential

__all__ = [
    "GELU",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AvgPool2d",
    "BatchNorm1d",
    "BatchNorm2d",
    "Concat",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Elemwise",
    "Embedding",
    "GeneralNorm",
    "GroupNorm",
    "Identity",
    "InstanceNorm",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LocalResponseNorm",
    "MaxPool2d",
    "Module",
    "PReLU",
    "Pad",
    "PixelShuffle",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "SlidingWindow",
    "SlidingWindowTranspose",
    "Softmax",
    "init",
]

if not TYPE_CHECKING:  # A type checker shall see the names that exist only.

    def __getattr__(name: str) -> Any:
        advice = spelling.of_member(name, "treadle.module", __all__)
        raise AttributeError(
            f"module 'treadle.module' has no attribute {name!r}{advice}", name=name
        )
