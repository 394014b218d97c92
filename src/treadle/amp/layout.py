"""MegEngine's tags of channels-last tensors; compiled programs choose layouts by themselves."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Protocol, TypeVar

from treadle.tensor import Tensor

_TAG = "nhwc"


class _HasTensors(Protocol):
    """The part of a module that is used here."""

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and buffers by name."""
        ...


M = TypeVar("M", bound=_HasTensors)


def convert_tensor_format(x: Tensor, inplace: bool = True) -> Tensor:
    """Tag an image or weight with 4 or 5 axes as channels-last; shape and values stay.

    Args:
        x: a tensor; with another number of axes it is returned as it is.
        inplace: tag the tensor itself, in place of a copy.

    Returns:
        The tensor with `format` "nhwc".

    Raises:
        TypeError: x is not a tensor.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"convert_tensor_format takes a tensor, got {type(x).__name__}")
    if x.ndim not in (4, 5) or x.format == _TAG:
        return x
    tagged = x if inplace else copy.deepcopy(x)
    tagged.format = _TAG
    return tagged


def convert_module_format(module: M, inplace: bool = True) -> M:
    """Tag all parameters and buffers with 4 or 5 axes as channels-last.

    Args:
        module: whose tensors are tagged.
        inplace: tag these, in place of those of a deep copy.

    Returns:
        The module whose tensors are tagged.
    """
    tagged = module if inplace else copy.deepcopy(module)
    for _, tensor in tagged.named_tensors():
        convert_tensor_format(tensor)
    return tagged
