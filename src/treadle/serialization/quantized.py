"""Quantized arrays as plain data for the object tree."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from treadle.base.quantized import QuantDtypeMeta, QuantizedType, quantized_type

_STORED = ("int8", "uint8", "int16", "int32")


def description(kind: QuantizedType) -> list[Any]:
    """The family, zero point, shape of the scales, and the scales, exactly."""
    scale = np.asarray(kind.numpy.metadata["mgb_dtype"]["scale"], np.float64)  # type: ignore[index]
    scales = [float(s).hex() for s in scale.reshape(-1)]
    zero = kind.zero_point if kind.meta.is_unsigned else None
    return [list(kind.meta), zero, list(scale.shape), scales]


def described(data: Any) -> QuantizedType:
    """The type of a description.

    Raises:
        ValueError: the description breaks its own rules. TypeError likewise.
    """
    family, zero, shape, scales = data
    name, cname, stored, low, high, unsigned = family
    if not (isinstance(name, str) and isinstance(cname, str) and type(unsigned) is bool):
        raise ValueError("the family of dtypes is malformed")
    if stored not in _STORED:
        raise ValueError(f"{stored!r} stores no quantized values")
    limits = np.iinfo(stored)
    if not (type(low) is type(high) is int and limits.min <= low <= high <= limits.max):
        raise ValueError(f"limits {low!r} to {high!r} do not fit {stored}")
    if not all(type(n) is int and n > 0 for n in shape) or math.prod(shape) != len(scales):
        raise ValueError(f"{len(scales)} scales do not have the shape {shape}")
    steps = np.array([float.fromhex(s) for s in scales]).reshape(shape)
    return quantized_type(QuantDtypeMeta(name, cname, stored, low, high, unsigned), steps, zero)


def stands_for(array: np.ndarray[Any, Any], data: Any) -> np.ndarray[Any, Any]:
    """An array of stored integers under the dtype of a description.

    Raises:
        ValueError: the description does not fit the array.
    """
    kind = described(data)
    if array.dtype != kind.stored.numpy:
        raise ValueError(f"{array.dtype} data for {kind}")
    if np.broadcast_shapes(kind.scale.shape, array.shape) != array.shape:
        raise ValueError(f"scales {kind.scale.shape} for an array {array.shape}")
    return array.view(kind.numpy)
