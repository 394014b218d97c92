"""Layers that compute on integers, for inference.

`quantization.quantize` puts them in the place of layers that were trained with rounding.
"""

from treadle.module.quantized.batch_matmul_activation import BatchMatMulActivation
from treadle.module.quantized.conv import Conv2d, ConvBn2d, ConvBnRelu2d, ConvRelu2d
from treadle.module.quantized.conv_transpose import (
    ConvTranspose2d,
    ConvTransposeBn2d,
    ConvTransposeBnRelu2d,
    ConvTransposeRelu2d,
)
from treadle.module.quantized.dynamic import DynamicLinear, DynamicLinearRelu
from treadle.module.quantized.elemwise import Concat, Elemwise
from treadle.module.quantized.linear import Linear, LinearBn1d, LinearBnRelu1d, LinearRelu
from treadle.module.quantized.module import QuantizedModule
from treadle.module.quantized.quant_dequant import DequantStub, QuantStub

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
    "DynamicLinear",
    "DynamicLinearRelu",
    "Elemwise",
    "Linear",
    "LinearBn1d",
    "LinearBnRelu1d",
    "LinearRelu",
    "QuantStub",
    "QuantizedModule",
]
