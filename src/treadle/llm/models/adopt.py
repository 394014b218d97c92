"""Tensors around arrays that were just made: models are too large to be copied once more."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from treadle.base.dtype import as_dtype
from treadle.engine.devices.names import default_device
from treadle.engine.eager.dispatch import eager_type
from treadle.tensor import Tensor, wrap


def adopted(array: npt.NDArray[Any]) -> Tensor:
    """A tensor that has this array, which nobody else holds; other devices get a copy."""
    device = default_device()
    if not device.on_host or not array.flags.c_contiguous:
        return Tensor(np.ascontiguousarray(array))
    return wrap(array, eager_type(as_dtype(array.dtype), device))
