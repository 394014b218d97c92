"""Normalization within one sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

import treadle.functional as F
from treadle.base.errors import ShapeError
from treadle.module import init
from treadle.module.module import Module
from treadle.module.window import require_size
from treadle.tensor import Parameter, Tensor


class _Norm(Module):
    """Holds the scale and shift that follow a normalization."""

    _flat_state = True

    def __init__(self, shape: tuple[int, ...], eps: float, affine: bool, name: str | None) -> None:
        super().__init__(name)
        for extent in shape:
            require_size(extent, f"{type(self).__name__}: extents")
        self.eps = eps
        self.affine = affine
        self.weight = Parameter(np.ones(shape, np.float32)) if affine else None
        self.bias = Parameter(np.zeros(shape, np.float32)) if affine else None

    def reset_parameters(self) -> None:
        """Set the weight to 1 and the bias to 0."""
        if self.weight is not None and self.bias is not None:
            init.ones_(self.weight)
            init.zeros_(self.bias)


class LayerNorm(_Norm):
    """Normalizes over the last axes (Ba et al., 2016).

    Args:
        normalized_shape: extents of the axes to normalize over; an int means the last one.
        eps: added to the variance.
        affine: whether to scale and shift by trainable `weight` and `bias`, both of
            `normalized_shape`.
        name: a name for messages and graphs.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        affine: bool = True,
        name: str | None = None,
    ) -> None:
        given = normalized_shape
        shape = (given,) if isinstance(given, int) else tuple(given)
        super().__init__(shape, eps, affine, name)
        self.normalized_shape = shape

    def forward(self, x: Tensor) -> Tensor:
        shape, affine = self.normalized_shape, self.affine
        return F.layer_norm(x, shape, affine, self.weight, self.bias, self.eps)

    def _module_info_string(self) -> str:
        return f"normalized_shape={self.normalized_shape}, eps={self.eps}, affine={self.affine}"


class GroupNorm(_Norm):
    """Normalizes groups of channels of (N, C, ...) (Wu and He, 2018).

    Args:
        num_groups: number of groups; `num_channels` must be divisible by it.
        num_channels: channels C.
        eps: added to the variance.
        affine: whether to scale and shift by trainable `weight` and `bias`, both (C,).
        name: a name for messages and graphs.

    Raises:
        ShapeError: the channels cannot be split into equal groups.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        name: str | None = None,
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ShapeError(
                "GroupNorm",
                "num_channels must be divisible by num_groups",
                saw=f"num_channels={num_channels}, num_groups={num_groups}",
                hint="num_groups is 1 or more and divides the number of channels",
            )
        super().__init__((num_channels,), eps, affine, name)
        self.num_groups = num_groups
        self.num_channels = num_channels

    def forward(self, x: Tensor) -> Tensor:
        groups, affine = self.num_groups, self.affine
        return F.group_norm(x, groups, affine, self.weight, self.bias, self.eps)

    def _module_info_string(self) -> str:
        return (
            f"groups={self.num_groups}, channels={self.num_channels}, "
            f"eps={self.eps}, affine={self.affine}"
        )


class InstanceNorm(_Norm):
    """Normalizes each channel of each sample of (N, C, ...) (Ulyanov et al., 2016).

    Args:
        num_channels: channels C.
        eps: added to the variance.
        affine: whether to scale and shift by trainable `weight` and `bias`, both (C,).
        name: a name for messages and graphs.
    """

    def __init__(
        self,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        name: str | None = None,
    ) -> None:
        super().__init__((num_channels,), eps, affine, name)
        self.num_channels = num_channels

    def forward(self, x: Tensor) -> Tensor:
        return F.instance_norm(x, self.affine, self.weight, self.bias, self.eps)

    def _module_info_string(self) -> str:
        return f"channels={self.num_channels}, eps={self.eps}, affine={self.affine}"


class GeneralNorm(_Norm):
    """Normalizes over any run of axes.

    Args:
        normalized_shape: extents of the axes to normalize over; may be left out without `affine`.
        normalized_axis: the axes, one for each extent; an int means a single axis.
        eps: added to the variance.
        affine: whether to scale and shift by trainable `weight` and `bias`, both of
            `normalized_shape`.
        name: a name for messages and graphs.

    Raises:
        ShapeError: axes and extents differ in number, or extents are missing.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int] | None = None,
        normalized_axis: int | Sequence[int] = 0,
        eps: float = 1e-5,
        affine: bool = True,
        name: str | None = None,
    ) -> None:
        given, axis = normalized_shape, normalized_axis
        axes = (axis,) if isinstance(axis, int) else tuple(axis)
        shape = None if given is None else (given,) if isinstance(given, int) else tuple(given)
        if (shape is None and affine) or (shape is not None and len(shape) != len(axes)):
            saw = f"normalized_shape={shape}, normalized_axis={axes}"
            hint = "give one for each axis; only without affine they may be left out"
            raise ShapeError("GeneralNorm", "expects one extent for each axis", saw=saw, hint=hint)
        super().__init__(shape or (), eps, affine, name)
        self.normalized_shape = shape
        self.normalized_axis = axes

    def forward(self, x: Tensor) -> Tensor:
        axes, affine = self.normalized_axis, self.affine
        return F.general_norm(x, axes, affine, self.weight, self.bias, self.eps)

    def _module_info_string(self) -> str:
        return (
            f"normalized_shape={self.normalized_shape}, "
            f"normalized_axis={self.normalized_axis}, eps={self.eps}, affine={self.affine}"
        )


class LocalResponseNorm(Module):
    """Divides by (k + alpha * sum of squares over neighboring channels) ** beta.

    Krizhevsky et al., "ImageNet classification with deep convolutional neural networks", 2012.

    Args:
        kernel_size: how many channels, an odd number, the sum spans.
        k, alpha, beta: as in the formula.
        name: a name for messages and graphs.
    """

    def __init__(
        self,
        kernel_size: int = 5,
        k: float = 2.0,
        alpha: float = 1e-4,
        beta: float = 0.75,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        self.kernel_size = kernel_size
        self.k = k
        self.alpha = alpha
        self.beta = beta

    def forward(self, inp: Tensor) -> Tensor:
        return F.local_response_norm(inp, self.kernel_size, self.k, self.alpha, self.beta)

    def _module_info_string(self) -> str:
        return f"kernel_size={self.kernel_size}, k={self.k}, alpha={self.alpha}, beta={self.beta}"
