"""Exchange of arrays with other libraries by DLPack (https://dmlc.github.io/dlpack)."""

from __future__ import annotations

from typing import Any

import numpy as np

from treadle.tensor import Tensor


def to_dlpack(tensor: Tensor, stream: int | None = None) -> Any:
    """A tensor as a DLPack capsule, with a copy of its data.

    Args:
        tensor: what to export.
        stream: for MegEngine's signature; the copy is complete when the call returns.

    Raises:
        TypeError: it is not a tensor.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"to_dlpack takes a tensor, not {type(tensor).__name__}")
    return tensor.__dlpack__()


class _Holder:
    """A capsule in the form that NumPy asks for."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


def from_dlpack(obj: Any, stream: int | None = None) -> Tensor:
    """A tensor with a copy of the data of an array of another library, or of a capsule.

    Raises:
        BufferError, TypeError: the object is not on the host, or is none of DLPack's.
    """
    source = obj if callable(getattr(obj, "__dlpack__", None)) else _Holder(obj)
    array = np.from_dlpack(source)
    return Tensor(array, dtype=array.dtype)


__all__ = ["from_dlpack", "to_dlpack"]
