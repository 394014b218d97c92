"""Transposed convolutions on integers."""

from __future__ import annotations

from typing import Any

import treadle.functional as F
from treadle.functional.quantized import conv_transpose2d
from treadle.module import conv_transpose as Float
from treadle.module.quantized.module import QuantizedModule, folded, take_weights, weight_only
from treadle.module.window import Extents
from treadle.tensor import Tensor


class ConvTranspose2d(Float.ConvTranspose2d, QuantizedModule):
    """Transposed convolution of quantized tensors; see `functional.quantized.conv_transpose2d`.

    Args:
        in_channels, out_channels, kernel_size, stride, padding, output_padding, dilation, groups,
            bias, conv_mode, compute_mode: as those of `module.ConvTranspose2d`.
        dtype: quantized dtype of the result; None for `qint32` sums.
        name: a name for messages and graphs.

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
        output_padding: Extents = 0,
        dilation: Extents = 1,
        groups: int = 1,
        bias: bool = True,
        conv_mode: str = "cross_correlation",
        compute_mode: str = "default",
        dtype: Any = None,
        name: str | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            output_padding,
            dilation,
            groups,
            bias,
            conv_mode,
            compute_mode,
            name,
        )
        self.output_dtype = dtype

    def calc_conv_transpose2d_quantized(
        self, inp: Tensor, nonlinear_mode: str = "identity"
    ) -> Tensor:
        """The transposed convolution with an activation by name."""
        if weight_only(self, inp):
            out = self.calc_conv_transpose2d(inp, self.weight.astype("float32"), self.bias)
            return F.relu(out) if nonlinear_mode == "relu" else out
        spec = self._spec()
        rest = *spec[:2], self.output_padding, *spec[2:], nonlinear_mode
        return conv_transpose2d(inp, self.weight, self.bias, self.output_dtype, *rest)

    @classmethod
    def from_qat_module(cls, qat_module: Any) -> Any:
        """The integer layer that computes what `qat_module` does in evaluation."""
        made = cls._like(qat_module, qat_module.get_activation_dtype())
        made._take_mode(qat_module)
        shape = (1, qat_module.out_channels, 1, 1)
        take_weights(made, qat_module, qat_module.weight, qat_module.bias, shape)
        return made

    @classmethod
    def _like(cls, conv: Float.ConvTranspose2d, dtype: Any) -> Any:
        spec = conv._spec()
        rest = *spec[:2], conv.output_padding, *spec[2:4], True, *spec[4:], dtype
        return cls(conv.in_channels, conv.out_channels, conv.kernel_size, *rest)

    def forward(self, inp: Tensor) -> Tensor:
        return self.calc_conv_transpose2d_quantized(inp)


class ConvTransposeRelu2d(ConvTranspose2d):
    """Transposed convolution of quantized tensors with ReLU."""

    def forward(self, inp: Tensor) -> Tensor:
        return self.calc_conv_transpose2d_quantized(inp, "relu")


class _FoldedConvTranspose2d(ConvTranspose2d):
    """A transposed convolution with the batch normalization behind it folded in."""

    @classmethod
    def from_qat_module(cls, qat_module: Any) -> Any:
        """The integer layer that computes what `qat_module` does in evaluation."""
        return folded(cls, qat_module, qat_module.conv_transpose2d)


class ConvTransposeBn2d(_FoldedConvTranspose2d):
    """Transposed convolution and folded batch normalization of quantized tensors."""


class ConvTransposeBnRelu2d(_FoldedConvTranspose2d):
    """Transposed convolution, folded batch normalization and ReLU of quantized tensors."""

    def forward(self, inp: Tensor) -> Tensor:
        return self.calc_conv_transpose2d_quantized(inp, "relu")
