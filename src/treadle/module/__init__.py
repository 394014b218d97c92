"""Layers and their base class: `import treadle.module as M`."""

from __future__ import annotations

import importlib
import typing

from treadle.base import spelling
from treadle.module import external, init
from treadle.module.activation import (
    ELU,
    GELU,
    HSigmoid,
    HSwish,
    LeakyReLU,
    LogSoftmax,
    PReLU,
    ReLU,
    ReLU6,
    Sigmoid,
    SiLU,
    Softmax,
    Softplus,
    Tanh,
)
from treadle.module.batch_matmul_activation import BatchMatMulActivation
from treadle.module.batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d, SyncBatchNorm
from treadle.module.conv import Conv1d, Conv2d, Conv3d, ConvRelu2d
from treadle.module.conv_bn import ConvBn2d, ConvBnRelu2d
from treadle.module.conv_special import DeformableConv2d, LocalConv2d, RegionRestrictedConv
from treadle.module.conv_transpose import (
    ConvTranspose2d,
    ConvTranspose3d,
    ConvTransposeRelu2d,
)
from treadle.module.conv_transpose_bn import ConvTransposeBn2d, ConvTransposeBnRelu2d
from treadle.module.deformable_psroi_pooling import DeformablePSROIPooling
from treadle.module.dropout import Dropout
from treadle.module.elemwise import Elemwise
from treadle.module.embedding import Embedding
from treadle.module.gru import GRU, GRUCell
from treadle.module.identity import Identity
from treadle.module.linear import Linear, LinearRelu
from treadle.module.linear_bn import LinearBn1d, LinearBnRelu1d
from treadle.module.loss import (
    BCELoss,
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    L1Loss,
    MSELoss,
    SmoothL1Loss,
)
from treadle.module.module import Module
from treadle.module.multiheadattn import MultiHeadAttention
from treadle.module.normalization import (
    GeneralNorm,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    LocalResponseNorm,
)
from treadle.module.padding import Pad
from treadle.module.pooling import AdaptiveAvgPool2d, AdaptiveMaxPool2d, AvgPool2d, MaxPool2d
from treadle.module.quant_dequant import DequantStub, QuantStub
from treadle.module.rearrange import (
    Concat,
    Flatten,
    PixelShuffle,
    SlidingWindow,
    SlidingWindowTranspose,
)
from treadle.module.rnn import LSTM, RNN, LSTMCell, RNNCell
from treadle.module.sequential import Sequential
from treadle.module.vision import (
    CropAndPad,
    Dilation,
    FillPoly,
    Flip,
    Remap,
    Resize,
    Rot90,
    Rotate,
)
from treadle.module.vision_noise import (
    ActiveBlur,
    AdditiveElemwise,
    AdditiveGaussianNoise,
    AdditiveLaplaceNoise,
    AdditivePoissonNoise,
    Cutmix,
    Emboss,
    GaussianBlur,
    LinearContrast,
    Mixup,
    Sharpen,
)

__all__ = [
    "ELU",
    "GELU",
    "GRU",
    "LSTM",
    "RNN",
    "ActiveBlur",
    "AdaptiveAvgPool2d",
    "AdaptiveMaxPool2d",
    "AdditiveElemwise",
    "AdditiveGaussianNoise",
    "AdditiveLaplaceNoise",
    "AdditivePoissonNoise",
    "AvgPool2d",
    "BCELoss",
    "BCEWithLogitsLoss",
    "BatchMatMulActivation",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Concat",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvBn2d",
    "ConvBnRelu2d",
    "ConvRelu2d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "ConvTransposeBn2d",
    "ConvTransposeBnRelu2d",
    "ConvTransposeRelu2d",
    "CropAndPad",
    "CrossEntropyLoss",
    "Cutmix",
    "DeformableConv2d",
    "DeformablePSROIPooling",
    "DequantStub",
    "Dilation",
    "Dropout",
    "Elemwise",
    "Embedding",
    "Emboss",
    "FillPoly",
    "Flatten",
    "Flip",
    "GRUCell",
    "GaussianBlur",
    "GeneralNorm",
    "GroupNorm",
    "HSigmoid",
    "HSwish",
    "HuberLoss",
    "Identity",
    "InstanceNorm",
    "L1Loss",
    "LSTMCell",
    "LayerNorm",
    "LeakyReLU",
    "Linear",
    "LinearBn1d",
    "LinearBnRelu1d",
    "LinearContrast",
    "LinearRelu",
    "LocalConv2d",
    "LocalResponseNorm",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Mixup",
    "Module",
    "MultiHeadAttention",
    "PReLU",
    "Pad",
    "PixelShuffle",
    "QuantStub",
    "RNNCell",
    "ReLU",
    "ReLU6",
    "RegionRestrictedConv",
    "Remap",
    "Resize",
    "Rot90",
    "Rotate",
    "Sequential",
    "Sharpen",
    "SiLU",
    "Sigmoid",
    "SlidingWindow",
    "SlidingWindowTranspose",
    "SmoothL1Loss",
    "Softmax",
    "Softplus",
    "SyncBatchNorm",
    "Tanh",
    "external",
    "init",
]

if not typing.TYPE_CHECKING:  # A type checker shall see the names that exist only.

    def __getattr__(name: str) -> typing.Any:
        if name in ("qat", "quantized"):
            return importlib.import_module(f"treadle.module.{name}")
        advice = spelling.of_layer(name, __all__)
        raise AttributeError(
            f"module 'treadle.module' has no attribute {name!r}{advice}", name=name
        )
