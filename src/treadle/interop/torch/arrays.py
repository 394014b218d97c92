"""Tensors of PyTorch as arrays and back, on the same memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

from treadle.base import dtype as dt
from treadle.base.dtype import DType

Array = np.ndarray[Any, Any]

DTYPES: dict[torch.dtype, DType] = {
    torch.bool: dt.bool_,
    torch.uint8: dt.uint8,
    torch.int8: dt.int8,
    torch.int16: dt.int16,
    torch.int32: dt.int32,
    torch.int64: dt.int64,
    torch.float16: dt.float16,
    torch.bfloat16: dt.bfloat16,
    torch.float32: dt.float32,
    torch.float64: dt.float64,
}
"""Element types that both have."""


def to_array(tensor: torch.Tensor) -> Array:
    """The tensor's memory as a row-major array; a copy only where it is not row-major."""
    plain = tensor.detach()
    if not plain.is_contiguous():
        plain = plain.contiguous()
    if plain.dtype is torch.bfloat16:
        words: Array = plain.view(torch.int16).numpy()
        return words.view(ml_dtypes.bfloat16)
    found: Array = plain.numpy()
    return found


def to_tensor(array: Array) -> torch.Tensor:
    """A tensor on the array's memory."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
