"""Layers whose weight is shared out among ranks.

Shoeybi et al., Megatron-LM (2019). Inputs and losses are the same on all ranks of a group: what is
shared out is the work. So each rank's gradient of the loss is already the whole one, and sums over
ranks stand where a forward or a backward pass has only a part of a value.
"""

from __future__ import annotations

import numpy as np

import treadle.functional as F
from treadle.autodiff import Function
from treadle.base.array import Array
from treadle.distributed import WORLD, Group
from treadle.distributed import functional as collectives
from treadle.distributed.shrinking import require_all_ranks
from treadle.module.linear import Linear
from treadle.module.module import Module
from treadle.runtime.comm import groups
from treadle.tensor import Parameter, Tensor


class _Shared(Function):
    """A value that each rank reads a part of, or reads with its part of a weight."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        return x

    def backward(self, dy: Tensor) -> Tensor:
        return collectives.all_reduce_sum(dy, self._group)


class _Summed(Function):
    """The sum of what ranks have, each of which gets the gradient of the sum."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        return collectives.all_reduce_sum(x, self._group)

    def backward(self, dy: Tensor) -> Tensor:
        return dy


class _Joined(Function):
    """The ranks' tensors, joined along the last axis; each gets the gradient of its part."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def forward(self, x: Tensor) -> Tensor:
        return collectives.all_gather(x, self._group, axis=-1)

    def backward(self, dy: Tensor) -> Tensor:
        return _part(dy, self._group)


def _part(x: Tensor, group: Group) -> Tensor:
    """Return this rank's part of x along the last axis."""
    part: Tensor = F.split(x, group.size, axis=-1)[group.rank]
    return part


class _ParallelLinear(Module):
    """A `Linear` of which this rank has a part; `axis` says along which axis of the weight."""

    _axis = 0

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        group: Group = WORLD,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        group.communicator()
        self._init_from(Linear(in_features, out_features, bias), group)

    def _init_from(self, whole: Linear, group: Group) -> None:
        """Take this rank's part of a layer."""
        self.in_features, self.out_features = whole.in_features, whole.out_features
        self._group = group
        self._losses = groups.losses()
        extent = whole.weight.shape[self._axis]
        if extent % group.size:
            raise ValueError(
                f"{type(self).__name__}: {extent} features do not divide among {group.size} ranks"
            )
        self.weight = Parameter(self._own(whole.weight))
        self.bias: Parameter | None = None
        if whole.bias is not None:
            self.bias = Parameter(whole.bias.numpy() if self._axis else self._own(whole.bias))

    def _require_all(self) -> None:
        require_all_ranks(type(self).__name__, self._losses)

    def _own(self, x: Tensor) -> Array:
        return np.split(x.numpy(), self._group.size, self._axis)[self._group.rank]

    def take(self, whole: Linear) -> None:
        """Take this rank's part of a layer with the same extents, such as a trained one.

        Raises:
            ValueError: it has other extents, or only one of the two has a bias.
        """
        theirs = whole.in_features, whole.out_features, whole.bias is None
        if theirs != (self.in_features, self.out_features, self.bias is None):
            raise ValueError(f"{self!r} cannot take {whole!r}")
        self._init_from(whole, self._group)

    def _module_info_string(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, ranks={self._group.size}"
        )


class ColumnParallelLinear(_ParallelLinear):
    """y = x W^T + b, of which each rank computes some of the output features.

    Args:
        in_features: extent of the input's last axis; the input is the same on all ranks.
        out_features: extent of the output's last axis, divided by the ranks.
        bias: whether to add a trainable b.
        group: the ranks.
        gather_output: join the features of all ranks; else the output is this rank's, as
            `RowParallelLinear` takes it.
        name: a name for messages.

    Raises:
        AssertionError: this process is in no group.
        ValueError: the features do not divide evenly.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        group: Group = WORLD,
        gather_output: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, group, name)
        self.gather_output = gather_output

    def forward(self, x: Tensor) -> Tensor:
        self._require_all()
        y: Tensor = F.linear(_Shared(self._group)(x), self.weight, self.bias)
        joined: Tensor = _Joined(self._group)(y) if self.gather_output else y
        return joined


class RowParallelLinear(_ParallelLinear):
    """y = x W^T + b, of which each rank multiplies some of the input features.

    Args:
        in_features: extent of the whole input's last axis, divided by the ranks.
        out_features: extent of the output's last axis; the output is the same on all ranks.
        bias: whether to add a trainable b.
        group: the ranks.
        split_input: whether the input is a whole one, of which this rank takes its part; else it
            is this rank's, as `ColumnParallelLinear` gives it.
        name: a name for messages.

    Raises:
        AssertionError: this process is in no group.
        ValueError: the features do not divide evenly.
    """

    _axis = 1

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        group: Group = WORLD,
        split_input: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(in_features, out_features, bias, group, name)
        self.split_input = split_input

    def forward(self, x: Tensor) -> Tensor:
        self._require_all()
        mine = _part(_Shared(self._group)(x), self._group) if self.split_input else x
        y: Tensor = _Summed(self._group)(F.linear(mine, self.weight))
        return y if self.bias is None else y + self.bias
