"""Gradients packed into one vector, so that one collective serves many."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from treadle.autodiff.tape import no_grad
from treadle.device import get_device_count
from treadle.distributed.group import WORLD, Group
from treadle.functional.tensor import concat, split
from treadle.ops.collective import AllReduce, BroadcastRank
from treadle.tensor import Tensor

__all__ = [
    "TensorFuture",
    "bcast_list_",
    "get_device_count_by_fork",
    "get_offsets",
    "pack_allreduce_split",
    "param_pack_concat",
    "param_pack_split",
]


class TensorFuture:
    """A tensor that will be there later.

    Args:
        ack: accepted for MegEngine's signature.
        pending: what brings it, called where it is asked for and not there.
    """

    def __init__(self, ack: bool = True, pending: Callable[[], None] | None = None) -> None:
        self.ack = ack
        self._value: Tensor | None = None
        self._pending = pending

    def set(self, value: Tensor) -> None:
        """Say what the tensor is."""
        self._value, self._pending = value, None

    def get(self) -> Tensor:
        """The tensor.

        Raises:
            RuntimeError: it is not there yet.
        """
        if self._value is None and self._pending is not None:
            self._pending()
        if self._value is None:
            raise RuntimeError("the tensor is not there yet")
        return self._value

    def numpy(self) -> np.ndarray[Any, Any]:
        """The tensor's data."""
        return self.get().numpy()


def get_device_count_by_fork(device_type: str) -> int:
    """The name of `treadle.device.get_device_count` before MegEngine 1.5; warns.

    Raises:
        AssertionError: there is no such kind of device.
    """
    warnings.warn(
        "get_device_count_by_fork is deprecated since 1.5; use device.get_device_count",
        DeprecationWarning,
        stacklevel=2,
    )
    return get_device_count(device_type)


def get_offsets(shapes: Sequence[Sequence[int]]) -> list[int]:
    """First element and the one behind the last of each shape in a packed vector, in one list."""
    offsets: list[int] = []
    end = 0
    for shape in shapes:
        offsets += [end, end + int(np.prod(shape))]
        end = offsets[-1]
    return offsets


def param_pack_concat(
    inps: Sequence[Tensor], offsets: Any = None, offsets_val: Any = None
) -> Tensor:
    """Tensors as one vector; the offsets follow from their shapes and need not be given."""
    return concat([x.reshape(-1) for x in inps])


def param_pack_split(inp: Tensor, offsets: Sequence[int], shapes: Sequence[Any]) -> list[Tensor]:
    """A vector taken apart at `get_offsets(shapes)`.

    Raises:
        ValueError: there are not two offsets per shape.
    """
    if len(offsets) != 2 * len(shapes):
        raise ValueError(f"{len(shapes)} shapes need {2 * len(shapes)} offsets, not {len(offsets)}")
    parts = split(inp, list(offsets[1:-1:2])) if len(shapes) > 1 else (inp,)
    return [part.reshape(tuple(shape)) for part, shape in zip(parts, shapes, strict=True)]


def pack_allreduce_split(
    pack_list: Sequence[Tensor], shapes: Sequence[Any], group: Group, reduce_method: str
) -> list[Tensor]:
    """Tensors summed or averaged over a group by one collective."""
    group.communicator()
    kind = kind_of(reduce_method)
    total = AllReduce(group.name, group.size, kind)(param_pack_concat(pack_list))
    return param_pack_split(total, get_offsets(shapes), shapes)


def bcast_list_(inps: Sequence[Tensor], group: Group = WORLD) -> None:
    """Give tensors, such as parameters, the values they have on the group's first rank.

    Raises:
        AssertionError: outside of a group.
        CommunicationError: ranks differ in shapes, dtypes or number of tensors.
    """
    group.communicator()
    op = BroadcastRank(group.name, group.size)
    with no_grad():
        for tensor in inps:
            tensor._reset(op(tensor))


def kind_of(reduce_method: str) -> str:
    """The op's name of a method; raises `AssertionError` where there is none."""
    kind = reduce_method.lower()
    if kind not in ("sum", "mean"):
        raise AssertionError(f"reduce_method must be 'sum' or 'mean', got {reduce_method!r}")
    return kind
