"""Activation functions as layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import treadle.functional as F
from treadle.module.module import Module
from treadle.module.window import require_size
from treadle.tensor import Parameter, Tensor


class Softmax(Module):
    """exp(x) / sum(exp(x)) along `axis`; `F.softmax` says which axis None means."""

    def __init__(self, axis: int | Sequence[int] | None = None, name: str | None = None) -> None:
        super().__init__(name)
        self.axis = axis

    def forward(self, inputs: Tensor) -> Tensor:
        return F.softmax(inputs, self.axis)

    def _module_info_string(self) -> str:
        return f"axis={self.axis}"


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, inputs: Tensor) -> Tensor:
        return F.sigmoid(inputs)


class SiLU(Module):
    """x * sigmoid(x)."""

    def forward(self, inputs: Tensor) -> Tensor:
        return F.silu(inputs)


class GELU(Module):
    """x times the normal distribution function of x, exact (by erf)."""

    def forward(self, inputs: Tensor) -> Tensor:
        return F.gelu(inputs)


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x)


class PReLU(Module):
    """x where positive, weight * x elsewhere (He et al., 2015).

    Args:
        num_parameters: 1 slope for all, or one for each channel of (N, C, H, W).
        init: the first value of every slope.
        name: a name for messages and graphs.

    Parameters: `weight` (1,), or (1, num_parameters, 1, 1).
    """

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, name: str | None = None
    ) -> None:
        super().__init__(name)
        require_size(num_parameters, f"{type(self).__name__}: num_parameters", least=1)
        self.num_parameters = num_parameters
        shape = (1,) if num_parameters == 1 else (1, num_parameters, 1, 1)
        self.weight = Parameter(np.full(shape, init, np.float32))

    def forward(self, inputs: Tensor) -> Tensor:
        return F.prelu(inputs, self.weight)

    def _module_info_string(self) -> str:
        return f"num_parameters={self.num_parameters}"


class LeakyReLU(Module):
    """x where not negative, negative_slope * x elsewhere."""

    def __init__(self, negative_slope: float = 0.01, name: str | None = None) -> None:
        super().__init__(name)
        self.negative_slope = negative_slope

    def forward(self, inputs: Tensor) -> Tensor:
        return F.leaky_relu(inputs, self.negative_slope)

    def _module_info_string(self) -> str:
        return f"negative_slope={self.negative_slope}"


class ELU(Module):
    """x where positive, alpha * (exp(x) - 1) elsewhere (Clevert et al., 2016)."""

    def __init__(self, alpha: float = 1.0, name: str | None = None) -> None:
        super().__init__(name)
        self.alpha = alpha

    def forward(self, inputs: Tensor) -> Tensor:
        return F.elu(inputs, self.alpha)

    def _module_info_string(self) -> str:
        return f"alpha={self.alpha}"


class Tanh(Module):
    """The hyperbolic tangent."""

    def forward(self, inputs: Tensor) -> Tensor:
        return F.tanh(inputs)


class ReLU6(Module):
    """min(max(x, 0), 6)."""

    def forward(self, inputs: Tensor) -> Tensor:
        return F.relu6(inputs)


class Softplus(Module):
    """log(1 + exp(x))."""

    def forward(self, inputs: Tensor) -> Tensor:
        return F.softplus(inputs)


class HSwish(Module):
    """x * relu6(x + 3) / 6; PyTorch's Hardswish."""

    def forward(self, inputs: Tensor) -> Tensor:
        return F.hswish(inputs)


class HSigmoid(Module):
    """relu6(x + 3) / 6; PyTorch's Hardsigmoid."""

    def forward(self, inputs: Tensor) -> Tensor:
        return F.hsigmoid(inputs)


class LogSoftmax(Module):
    """log(softmax(x)) along `axis`, without overflow."""

    def __init__(self, axis: int | Sequence[int], name: str | None = None) -> None:
        super().__init__(name)
        self.axis = axis

    def forward(self, inputs: Tensor) -> Tensor:
        return F.logsoftmax(inputs, self.axis)

    def _module_info_string(self) -> str:
        return f"axis={self.axis}"
