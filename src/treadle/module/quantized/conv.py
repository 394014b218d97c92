"""Convolutions on integers."""

from __future__ import annotations

from typing import Any

import treadle.functional as F
from treadle.functional.quantized import conv_bias_activation
from treadle.module import conv as Float
from treadle.module.quantized.module import QuantizedModule, folded, take_weights, weight_only
from treadle.module.window import Extents
from treadle.tensor import Tensor


class Conv2d(Float.Conv2d, QuantizedModule):
    """Convolution of quantized tensors; see `functional.quantized.conv_bias_activation`.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, dilation, groups, conv_mode,
            compute_mode, padding_mode: as those of `module.Conv2d`.
        dtype: quantized dtype of the result; None for `qint32` sums.
        name: a name for messages and graphs.

    Parameters: `weight` of a quantized dtype, `bias` float32; it is rounded at each call to the
    scale of the products.

    Raises:
        ValueError: it is called in training mode.
        DTypeError: the input is not quantized.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Extents,
        stride: Extents = 1,
        padding: Extents = 0,
        dilation: Extents = 1,
        groups: int = 1,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        dtype: Any = None,
        padding_mode: str = "zeros",
        name: str | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            True,
            conv_mode,
            compute_mode,
            padding_mode,
            name,
        )
        self.output_dtype = dtype

    def calc_conv_quantized(self, inp: Tensor, nonlinear_mode: str = "identity") -> Tensor:
        """The convolution with an activation by name."""
        if weight_only(self, inp):
            out = self.calc_conv(inp, self.weight.astype("float32"), self.bias)
            return F.relu(out) if nonlinear_mode == "relu" else out
        padded, spec = self._padded(inp)
        rest = *spec[:4], nonlinear_mode, *spec[4:]
        return conv_bias_activation(padded, self.weight, self.bias, self.output_dtype, *rest)

    @classmethod
    def from_qat_module(cls, qat_module: Any) -> Any:
        """The integer layer that computes what `qat_module` does in evaluation."""
        made = cls._like(qat_module, qat_module.get_activation_dtype())
        made._take_mode(qat_module)
        shape = (1, qat_module.out_channels, 1, 1)
        take_weights(made, qat_module, qat_module.weight, qat_module.bias, shape)
        return made

    @classmethod
    def _like(cls, conv: Float.Conv2d, dtype: Any) -> Any:
        rest = *conv._spec(), dtype, conv.padding_mode
        return cls(conv.in_channels, conv.out_channels, conv.kernel_size, *rest)

    def forward(self, inp: Tensor) -> Tensor:
        return self.calc_conv_quantized(inp)


class ConvRelu2d(Conv2d):
    """Convolution of quantized tensors with ReLU; built as `quantized.Conv2d` is."""

    def forward(self, inp: Tensor) -> Tensor:
        return self.calc_conv_quantized(inp, "relu")


class _FoldedConv2d(Conv2d):
    """A convolution with the batch normalization behind it folded in."""

    @classmethod
    def from_qat_module(cls, qat_module: Any) -> Any:
        """The integer layer that computes what `qat_module` does in evaluation."""
        return folded(cls, qat_module, qat_module.conv)


class ConvBn2d(_FoldedConv2d):
    """Convolution and folded batch normalization of quantized tensors."""


class ConvBnRelu2d(_FoldedConv2d):
    """Convolution, folded batch normalization and ReLU of quantized tensors."""

    def forward(self, inp: Tensor) -> Tensor:
        return self.calc_conv_quantized(inp, "relu")
