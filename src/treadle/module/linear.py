"""Affine layers."""

from __future__ import annotations

import math

import numpy as np

import treadle.functional as F
from treadle.module import init
from treadle.module.module import Module
from treadle.module.window import require_size
from treadle.tensor import Parameter, Tensor


class Linear(Module):
    """y = x W^T + b over the last axis.

    Args:
        in_features: extent of the input's last axis.
        out_features: extent of the output's last axis.
        bias: whether to add a trainable b.
        compute_mode: "default", or "float32" to accumulate float16 products in float32.
        name: a name for messages and graphs.

    Parameters: `weight` (out_features, in_features), normal with deviation
    sqrt(1 / in_features); `bias` (out_features,), zero.

    Raises:
        DTypeError: a number of features is not an int.
        ShapeError: a number of features is negative.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        compute_mode: str = "default",
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        require_size(in_features, f"{type(self).__name__}: in_features")
        require_size(out_features, f"{type(self).__name__}: out_features")
        self.in_features = in_features
        self.out_features = out_features
        self.compute_mode = compute_mode
        self.weight = Parameter(np.zeros((out_features, in_features), np.float32))
        self.bias = Parameter(np.zeros(out_features, np.float32)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew and zero the bias."""
        init.normal_(self.weight, 0.0, math.sqrt(1 / max(self.in_features, 1)))
        if self.bias is not None:
            init.zeros_(self.bias)

    def _calc_linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The layer's operation with another weight and bias, as quantization calls it."""
        return F.linear(x, weight, bias, compute_mode=self.compute_mode)

    def forward(self, x: Tensor) -> Tensor:
        return self._calc_linear(x, self.weight, self.bias)

    def _module_info_string(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class LinearRelu(Linear):
    """relu(x W^T + b), as one layer that quantization treats as a whole; built as `Linear` is."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self._calc_linear(x, self.weight, self.bias))
