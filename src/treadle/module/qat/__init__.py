"""Layers for quantization-aware training: float layers that round as integers will.

`quantization.quantize_qat` puts them in the place of float layers.
"""

from treadle.module.qat.batch_matmul_activation import BatchMatMulActivation
from treadle.module.qat.conv import Conv2d, ConvRelu2d
from treadle.module.qat.conv_bn import (
    ConvBn2d,
    ConvBnRelu2d,
    ConvTransposeBn2d,
    ConvTransposeBnRelu2d,
)
from treadle.module.qat.conv_transpose import ConvTranspose2d, ConvTransposeRelu2d
from treadle.module.qat.elemwise import Concat, Elemwise
from treadle.module.qat.linear import Linear, LinearRelu
from treadle.module.qat.linear_bn import LinearBn1d, LinearBnRelu1d
from treadle.module.qat.module import QATModule
from treadle.module.qat.quant_dequant import DequantStub, QuantStub

__all__ = [
    "BatchMatMulActivation",
    "Concat",
    "Conv2d",
    "ConvBn2d",
    "ConvBnRelu2d",
    "ConvRelu2d",
    "ConvTranspose2d",
    "ConvTransposeBn2d",
    "ConvTransposeBnRelu2d",
    "ConvTransposeRelu2d",
    "DequantStub",
    "Elemwise",
    "Linear",
    "LinearBn1d",
    "LinearBnRelu1d",
    "LinearRelu",
    "QATModule",
    "QuantStub",
]
