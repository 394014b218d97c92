"""Tensors of PyTorch as arrays and back, on the same memory."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from treadle.base import dtype as dt
from treadle.base.array import Array
from treadle.base.dtype import DType

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
PARTS: dict[torch.dtype, DType] = {torch.complex64: dt.float32, torch.complex128: dt.float64}
"""Complex element types, and that of their parts."""


def to_array(tensor: torch.Tensor) -> Array:
    """The tensor's memory as a row-major array; a copy only where it is not row-major.

    Complex numbers are two real ones, on a last axis of their own.
    """
    plain = tensor.detach()
    if plain._is_zerotensor():  # Gradients that are 0 everywhere come without memory.
        plain = torch.zeros(plain.shape, dtype=plain.dtype)
    if plain.dtype in PARTS:
        plain = torch.view_as_real(plain.resolve_conj())
    elif plain.is_neg():
        plain = plain.resolve_neg()
    if not plain.is_contiguous():
        plain = plain.contiguous()
    if plain.dtype is torch.bfloat16:
        words: Array = plain.view(torch.int16).numpy()
        return words.view(ml_dtypes.bfloat16)
    found: Array = plain.numpy()
    return found


def to_tensor(array: Array, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor on the array's memory; `dtype` complex: of the pairs on its last axis."""
    if array.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    made = torch.from_numpy(array)
    if dtype not in PARTS:
        return made
    return (
        torch.view_as_complex(made) if made.numel() else made.new_empty(made.shape[:-1]).to(dtype)
    )
