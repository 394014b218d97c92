"""Gradients packed into one vector, so that one collective serves many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from treadle.distributed.functional import all_reduce_sum
from treadle.distributed.group import WORLD, Group, require_processes
from treadle.functional.tensor import concat, split
from treadle.tensor import Tensor

__all__ = [
    "TensorFuture",
    "bcast_list_",
    "get_offsets",
    "make_allreduce_cb",
    "pack_allreduce_split",
    "param_pack_concat",
    "param_pack_split",
]


class TensorFuture:
    """A tensor that will be there later; attributes are those of the tensor."""

    def __init__(self, ack: bool = True) -> None:
        self.ack = ack
        self._value: Tensor | None = None

    def set(self, value: Tensor) -> None:
        """Say what the tensor is."""
        self._value = value

    def get(self) -> Tensor:
        """The tensor.

        Raises:
            RuntimeError: it is not there yet.
        """
        if self._value is None:
            raise RuntimeError("the tensor is not there yet")
        return self._value

    def numpy(self) -> np.ndarray[Any, Any]:
        """The tensor's data."""
        return self.get().numpy()


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
    total = all_reduce_sum(param_pack_concat(pack_list), group)
    if reduce_method == "mean":
        total = total / group.size
    return param_pack_split(total, get_offsets(shapes), shapes)


def bcast_list_(inps: Sequence[Tensor], group: Group = WORLD) -> NoReturn:
    """Give tensors the first rank's values; raises `AssertionError` outside of a group."""
    require_processes()


def make_allreduce_cb(
    reduce_method: str, group: Group = WORLD, backend: str | None = None
) -> Callable[[Tensor, Tensor], Any]:
    """A callback for `GradManager.attach` that reduces gradients over a group, "sum" or "mean".

    Raises:
        AssertionError: outside of a group, or for another method.
    """
    if reduce_method.lower() not in ("sum", "mean"):
        raise AssertionError(f"reduce_method must be 'sum' or 'mean', got {reduce_method!r}")
    require_processes()
